"""Fit with Lightning, with validations between, and capture in the middle; prints one JSON object.

Run with a Python that has lightning: python capture_lightning.py FOLDER
"""

from __future__ import annotations

import json
import logging
import os
import warnings

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import tpmon.hook
from tests.programs.capture_asking import FOLDER, ask, count, told
from tpmon.hook.bus import wire_capture as w

DATA = TensorDataset(torch.arange(1600.0).reshape(200, 8) / 1600)


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(8, 1)
        self.losses: list[float] = []

    def training_step(self, batch, _):
        loss = self.net(batch[0]).pow(2).mean()
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _):
        self.log("loss", self.net(batch[0]).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Asking(lightning.Callback):
    def __init__(self, asked) -> None:
        self.asked = asked

    def on_train_batch_start(self, trainer, module, batch, at) -> None:
        if trainer.global_step in self.asked:
            self.asked[trainer.global_step]()


def fit(asked) -> list[float]:
    lightning.seed_everything(0, verbose=False)
    module = Module()
    trainer = lightning.Trainer(
        max_steps=60,
        accelerator="cpu",
        devices=1,
        val_check_interval=20,
        callbacks=[Asking(asked)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(DATA, batch_size=2), DataLoader(DATA, batch_size=20))
    return module.losses


logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
torch.set_num_threads(1)
os.makedirs(FOLDER, exist_ok=True)
PLAIN = fit({})
LOSSES = fit({5: lambda: ask(1, w.KIND_PROBE), 22: lambda: ask(2, steps=6)})
print(
    json.dumps(
        {
            "told": told(),
            "file": count(2),
            "same_losses": PLAIN == LOSSES,
            "steps": len(LOSSES),
            "problem": tpmon.hook.problem(),
        }
    )
)
