"""One loop a framework, of parts that take known times. Run: loops.py NAME, under tpmon run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

import torch
from known import BATCH, Net, Samples, SlowSGD, Stream, begin, begin_turns, clock, other, report, turn
from torch.utils.data import DataLoader

STEPS = 20
ACCUMULATE = 3
WARM = 2
"""Steps in which torch compiles."""
SUB_GROUP = 4
"""Elements that stage 3 of ZeRO updates by a call of the optimizer: the net's 9 take several."""
LEFT_OUT = (3, 8, 9)
"""Steps whose gradients are not finite, so that DeepSpeed leaves the update out."""


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
    next(iter(loader(1, quick=True)))  # the last batch of an evaluation is told when the next one is asked for
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


def train_deepspeed(name: str, config: dict[str, object], dtype: torch.dtype = torch.float32) -> None:
    """Train by DeepSpeed's own three calls; its count of steps and of updates left out is the truth."""
    import deepspeed
    from deepspeed.ops import __compatible_ops__ as ops

    ops["deepspeed_shm_comm"] = False  # it would be compiled here: gloo takes its place
    net = Net()
    each = {"train_micro_batch_size_per_gpu": BATCH, "zero_allow_untested_optimizer": True}
    engine, *_ = deepspeed.initialize(
        model=net, optimizer=SlowSGD(net.parameters()), config={**each, "steps_per_print": 1 << 30, **config}
    )
    batches = loader(STEPS * engine.gradient_accumulation_steps())
    begin_turns()
    for at, x in enumerate(batches):
        turn("data")
        loss = engine(x.to(dtype)).float().mean()
        ends = engine.is_gradient_accumulation_boundary()
        engine.backward(loss * float("inf") if "bf16" in config and at in LEFT_OUT else loss)
        engine.step()
        if ends:
            if not engine.was_step_applied():
                turn("optimizer")
            other()
        turn("other")
    report(name, engine.global_steps, skipped=engine.skipped_steps)
    torch.distributed.destroy_process_group()


def zero(stage: int) -> None:
    optimization = {"stage": stage, "sub_group_size": SUB_GROUP}
    config = {"gradient_accumulation_steps": 2, "zero_optimization": optimization}
    which = f"DeepSpeed, ZeRO stage {stage}" if stage else "DeepSpeed without ZeRO"
    train_deepspeed(f"{which}, accumulation over 2, gloo, 2 ranks", config)


def overflow() -> None:
    config = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True, "check_grad_overflow": True}}
    name = f"DeepSpeed, ZeRO stage 2, bf16, {len(LEFT_OUT)} updates left out, gloo, 2 ranks"
    train_deepspeed(name, config, torch.bfloat16)


def train_ranks(name: str, wrap: Callable[[Net], torch.nn.Module]) -> None:
    torch.distributed.init_process_group("gloo")
    net = wrap(Net())
    train(net, SlowSGD(net.parameters()))
    report(f"{name}, gloo, 2 ranks", STEPS)
    torch.distributed.destroy_process_group()


def ddp() -> None:
    train_ranks("DDP", torch.nn.parallel.DistributedDataParallel)


def fsdp() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def shard(net: Net) -> torch.nn.Module:
        mesh = init_device_mesh("cpu", (2,))
        fully_shard(net.layer, mesh=mesh)
        return fully_shard(net, mesh=mesh)

    train_ranks("FSDP2 (fully_shard)", shard)


def fsdp1() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    train_ranks("FSDP1", partial(FullyShardedDataParallel, device_id=torch.device("cpu")))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    loops = (plain, accumulation, zipped, compiled, lightning, accelerate, dispatched, hf_trainer, overflow)
    stages = {name: partial(zero, stage) for stage, name in enumerate(("deepspeed", "zero1", "zero2", "zero3"))}
    ({one.__name__: one for one in (*loops, ddp, fsdp, fsdp1)} | stages)[sys.argv[1]]()
