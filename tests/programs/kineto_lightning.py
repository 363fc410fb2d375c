"""Fit with Lightning, with no tpmon in it: says "ready" at its fifth batch, then trains until it is killed."""

from __future__ import annotations

import logging
import time
import warnings

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(8, 1)

    def training_step(self, batch, at):
        if self.trainer.global_step == 5:
            print("ready", flush=True)
        time.sleep(0.01)
        return self.net(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
torch.set_num_threads(1)
lightning.Trainer(
    max_epochs=-1,
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(Module(), DataLoader(TensorDataset(torch.arange(16_000.0).reshape(2000, 8) / 16_000), batch_size=2))
