"""Train in one of several ways until standard input ends, or for so many steps, and report what came of it.

``python late_loops.py LOOP [STEPS]``. Says "ready" once it trains, then prints JSON: the losses to the last bit,
how long its longest steps took, what is patched at its end. Runs without tpmon.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset, dataloader

WARM_STEPS = 20
OPENED: list[str] = []
"""Files of tpmon that this process opened: a script of it ran."""


def note_opened(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and "/.tpmon-" in str(arguments[0]):
        OPENED.append(str(arguments[0]))


RANKS = 2


class Report:
    """Hold each step's loss and how long it took, by the clock and in CPU time of this thread.

    Also what of that were collections of garbage, in which steps the hook came or went, and frames given to Dynamo again.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.losses: list[str] = []
        self.wall_ms, self.cpu_ms, self.collecting_ms = array("d"), array("d"), array("d")
        self.full_collections = self.compiled = 0
        self.asked: list[int] = []
        self.turned: list[int] = []
        self._collected_ms = self._began = 0.0
        self._thread = threading.get_ident()
        self._opened, self._is_in = 0, False
        gc.callbacks.append(self._on_collection)
        self._at = (time.perf_counter(), time.thread_time())

    def step(self, loss: float) -> bool:
        """Note a step; tell whether to go on."""
        opened, now = len(OPENED), (time.perf_counter(), time.thread_time())
        if len(self.losses) >= WARM_STEPS:
            self.wall_ms.append((now[0] - self._at[0]) * 1e3)
            self.cpu_ms.append((now[1] - self._at[1]) * 1e3)
            self.collecting_ms.append(self._collected_ms)
            self._look(len(self.wall_ms) - 1, opened)
        self._collected_ms = 0.0
        self._at = now
        self.losses.append(loss.hex())
        if len(self.losses) == WARM_STEPS:
            self.compiled = -count_compiled()
            print("ready", flush=True)
        if self.steps:
            return len(self.losses) < self.steps
        return len(self.losses) < WARM_STEPS or not select.select([0], [], [], 0)[0]

    def _look(self, step: int, opened: int) -> None:
        """Note whether a script of tpmon ran in a step, or since its end, and whether the hook came or went."""
        held = sys.modules.get("tpmon.hook.installation")
        is_in = held is not None and bool(held.HOOK.installed)
        if is_in != self._is_in:
            self.turned.append(step)
        if len(OPENED) != self._opened:
            self.asked.append(step)
        if len(OPENED) != opened:
            self.asked.append(step + 1)
        self._is_in, self._opened = is_in, len(OPENED)

    def _on_collection(self, phase: str, told: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._began = time.thread_time()
        else:
            self._collected_ms += (time.thread_time() - self._began) * 1e3
            self.full_collections += told["generation"] == 2

    def write(self) -> None:
        found = {
            "losses": self.losses,
            "wall_ms": [round(one, 4) for one in self.wall_ms],
            "cpu_ms": [round(one, 4) for one in self.cpu_ms],
            "collecting_ms": [round(one, 4) for one in self.collecting_ms],
            "asked": self.asked,
            "turned": self.turned,
            "full_collections": self.full_collections,
            "compiled": self.compiled + count_compiled(),
            "patched": list_patched(),
            "threads": threading.active_count(),
        }
        print(json.dumps(found), flush=True)


def count_compiled() -> int:
    """Count the frames that torch.compile has taken up until now."""
    held = sys.modules.get("torch._dynamo.utils")
    return held.counters["frames"]["total"] if held else 0


def list_patched() -> list[str]:
    """List what is not torch's own any more."""
    from torch.autograd import graph

    places = {
        "data": dataloader._BaseDataLoaderIter.__next__,
        "backward": graph._engine_run_backward,
        "backward too": torch.autograd._engine_run_backward,
        "scaler": torch.amp.grad_scaler.GradScaler.update,
    }
    found = [name for name, one in places.items() if hasattr(one, "__wrapped__")]
    return found + [f"optimizer {key}" for key in optimizers._global_optimizer_post_hooks]


def make_model(compiled: bool = False) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return (torch.compile(model) if compiled else model), optimizer


def make_batches(workers: int, rank: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7 + rank)
    data = torch.randn(2048, 32, generator=generator)
    loader = DataLoader(
        TensorDataset(data, data.sum(1, keepdim=True)),
        16,
        shuffle=True,
        generator=generator,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    while True:
        yield from loader


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def run_plain(steps: int, workers: int = 0, compiled: bool = False) -> None:
    model, optimizer = make_model(compiled)
    report = Report(steps)
    for x, y in make_batches(workers):
        if not report.step(train_step(model, optimizer, x, y)):
            break
    report.write()


def run_threads(steps: int) -> None:
    """Train beside eight threads that never leave the interpreter."""
    over = threading.Event()

    def busy() -> None:
        number = 1
        while not over.is_set():
            number = number * 1_103_515_245 % 2_147_483_647

    threads = [threading.Thread(target=busy, daemon=True) for _ in range(8)]
    for one in threads:
        one.start()
    try:
        run_plain(steps)
    finally:
        over.set()
        for one in threads:
            one.join()


async def train_beside_tasks(steps: int) -> None:
    model, optimizer = make_model()
    report = Report(steps)

    async def tick() -> None:
        while True:  # noqa: ASYNC110 it stands for a task with work
            await asyncio.sleep(0.0005)

    tasks = [asyncio.create_task(tick()) for _ in range(20)]
    for x, y in make_batches(0):
        await asyncio.sleep(0)
        if not report.step(train_step(model, optimizer, x, y)):
            break
    for one in tasks:
        one.cancel()
    report.write()


def run_rank(rank: int, steps: int, store: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    model, optimizer = make_model()
    model = torch.nn.parallel.DistributedDataParallel(model)
    report = Report(steps)
    for x, y in make_batches(0, rank):
        loss = train_step(model, optimizer, x, y)
        goes_on = torch.tensor([float(report.step(loss) if rank == 0 else 1.0)])
        dist.all_reduce(goes_on, op=dist.ReduceOp.MIN)
        if rank:
            report.losses.append(loss.hex())
        if not goes_on.item():
            break
    if rank == 0:
        report.write()
    dist.destroy_process_group()


def run_ddp(steps: int) -> None:
    """Train with two ranks over gloo; this process is the first."""
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        other = mp.get_context("spawn").Process(target=run_rank, args=(1, steps, store))
        other.start()
        run_rank(0, steps, store)
        other.join()


LOOPS = {
    "plain": run_plain,
    "workers": lambda steps: run_plain(steps, workers=2),
    "compiled": lambda steps: run_plain(steps, compiled=True),
    "asyncio": lambda steps: asyncio.run(train_beside_tasks(steps)),
    "threads": run_threads,
    "ddp": run_ddp,
}

if __name__ == "__main__":
    sys.addaudithook(note_opened)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    LOOPS[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else 0)
