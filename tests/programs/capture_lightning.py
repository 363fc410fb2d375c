"""Fit with Lightning: python capture_lightning.py FOLDER, with a Python that has it, captures in the middle of a run.

That run has validations between, and one JSON object is printed. Without FOLDER there is no tpmon in it: it says
"ready" at its fifth batch, then trains until it is killed, ten milliseconds a step.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

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


class Each(lightning.Callback):
    def __init__(self, act: Callable[[int], object]) -> None:
        self.act = act

    def on_train_batch_start(self, trainer, module, batch, at) -> None:
        self.act(trainer.global_step)


def fit(act: Callable[[int], object], *validating: DataLoader, **limits: int) -> list[float]:
    """Fit; ``act`` is called with the number of each step before it."""
    lightning.seed_everything(0, verbose=False)
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        callbacks=[Each(act)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **limits,
    )
    trainer.fit(module, DataLoader(DATA, batch_size=2), *validating)
    return module.losses


def go_slowly(step: int) -> None:
    if step == 5:
        print("ready", flush=True)
    time.sleep(0.01)


def capture() -> dict[str, object]:
    import tpmon.hook
    from tests.programs.capture_asking import FOLDER, ask, count, told
    from tpmon.hook.bus import wire_capture as w

    os.makedirs(FOLDER, exist_ok=True)
    asked = {5: lambda: ask(1, w.KIND_PROBE), 22: lambda: ask(2, steps=6)}
    plain, losses = (
        fit(lambda step, turns=turns: turns.get(step, int)(), DataLoader(DATA, 20), max_steps=60, val_check_interval=20)
        for turns in ({}, asked)
    )
    same = {"same_losses": plain == losses, "steps": len(losses)}
    return {"told": told(), "file": count(2), **same, "problem": tpmon.hook.problem()}


logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
torch.set_num_threads(1)
if len(sys.argv) > 1:
    print(json.dumps(capture()))
else:
    fit(go_slowly, max_epochs=-1)
