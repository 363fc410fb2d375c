"""One loop a framework, of parts that take known times. Run: loops.py NAME, under tpmon run."""

from __future__ import annotations

import os
import sys

import torch
from known import BATCH, Net, Samples, SlowSGD, Stream, begin, clock, other, report
from torch.utils.data import DataLoader

STEPS = 20
ACCUMULATE = 3
WARM = 2
"""Steps in which torch compiles."""


def loader(batches: int = STEPS, quick: bool = False) -> DataLoader:
    return DataLoader(Samples(batches, quick), batch_size=BATCH)


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, accumulate: int = 1) -> None:
    for at, x in enumerate(loader(STEPS * accumulate), 1):
        with clock("forward"):
            loss = net(x).mean() / accumulate
        with clock("backward"):
            loss.backward()
        if at % accumulate == 0:
            with clock("optimizer"):
                optimizer.step()
            optimizer.zero_grad()
            other()


def plain() -> None:
    net = Net()
    train(net, SlowSGD(net.parameters()))
    net.eval()
    with torch.no_grad():
        for x in loader(5, quick=True):
            net(x)
    report("plain loop and an evaluation", STEPS, 5)


def accumulation() -> None:
    net = Net()
    train(net, SlowSGD(net.parameters()), ACCUMULATE)
    report(f"gradient accumulation over {ACCUMULATE}", STEPS)


def zipped() -> None:
    net = Net()
    optimizer = SlowSGD(net.parameters())
    for _ in range(2):
        for xs in zip(*(loader(STEPS // 2) for _ in range(3)), strict=True):
            net(torch.cat(xs)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            other()
        net.eval()
        with torch.no_grad():
            for x in loader(5, quick=True):
                net(x)
        net.train()
    report("three DataLoaders, two epochs with an evaluation", STEPS, 2 * 5)


def compiled() -> None:
    net = Net()
    inner = net.layer
    net.layer = torch.compile(inner)
    optimizer = SlowSGD(inner.parameters())
    for x in loader(WARM):
        net(x).mean().backward()
        optimizer.step()
    begin()
    train(net, optimizer)
    report("torch.compile", WARM + STEPS)


def lightning() -> None:
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: torch.Tensor, _number: int) -> torch.Tensor:
            return self.net(batch).mean()

        def validation_step(self, batch: torch.Tensor, _number: int) -> None:
            self.net(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return SlowSGD(self.parameters())

        def on_train_batch_end(self, *_: object) -> None:
            other()

    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=2,
    )  # fmt: skip
    trainer.fit(Module(), loader(), loader(5, quick=True))
    next(
        iter(loader(1, quick=True))
    )  # the last batch of an evaluation is told when the next one is asked for
    report("Lightning", STEPS, 2 + 5)


def accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = Net()
    net, optimizer, batches = accelerator.prepare(net, SlowSGD(net.parameters()), loader(2 * STEPS))
    for at, x in enumerate(batches, 1):
        with accelerator.accumulate(net):
            accelerator.backward(net(x).mean())
            optimizer.step()
            optimizer.zero_grad()
        if at % 2 == 0:
            other()
    report("Accelerate, accumulation over 2", STEPS)


def dispatched() -> None:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    ranks, fetches = accelerator.num_processes, accelerator.is_main_process
    net = Net()
    data = DataLoader(Stream(ranks * STEPS), batch_size=BATCH)
    net, optimizer, batches = accelerator.prepare(net, SlowSGD(net.parameters()), data)
    batches = iter(batches)
    for at in range(STEPS):
        if fetches or at == 0:
            x = next(batches)
        else:
            with clock("forward"):  # it waits for process 0, and has no DataLoader of its own
                x = next(batches)
        with clock("forward"):
            loss = net(x).mean()
        with clock("backward"):
            accelerator.backward(loss)
        with clock("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
    report("Accelerate, a streaming dataset, gloo, 2 ranks", STEPS)


def hf_trainer() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.net(x).mean()}

    class Each(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            other()

    model = Model()
    arguments = TrainingArguments(
        output_dir="out", per_device_train_batch_size=BATCH, num_train_epochs=1, gradient_accumulation_steps=2,
        report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, logging_strategy="no",
        max_grad_norm=0.0, remove_unused_columns=False,
    )  # fmt: skip
    optimizer = SlowSGD(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _step: 1.0)
    Trainer(
        model=model, args=arguments, train_dataset=Samples(2 * STEPS), callbacks=[Each()],
        data_collator=lambda samples: {"x": torch.stack(samples)}, optimizers=(optimizer, schedule),
    ).train()  # fmt: skip
    report("HF Trainer, accumulation over 2", STEPS)


def ddp() -> None:
    torch.distributed.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(Net())
    train(net, SlowSGD(net.parameters()))
    report("DDP, gloo, 2 ranks", STEPS)
    torch.distributed.destroy_process_group()


def fsdp() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    net = Net()
    fully_shard(net.layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    train(net, SlowSGD(net.parameters()))
    report("FSDP2 (fully_shard), gloo, 2 ranks", STEPS)
    torch.distributed.destroy_process_group()


def fsdp1() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.distributed.init_process_group("gloo")
    net = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"))
    train(net, SlowSGD(net.parameters()))
    report("FSDP1, gloo, 2 ranks", STEPS)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    loops = (plain, accumulation, zipped, compiled, lightning, accelerate, dispatched, hf_trainer)
    {one.__name__: one for one in (*loops, ddp, fsdp, fsdp1)}[sys.argv[1]]()
