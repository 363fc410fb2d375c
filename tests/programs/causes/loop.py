"""What the programs of this folder share: options, a tuned model, the training loop and its own truth.

A program is slow or stuck for one reason. Costs are tuned on the machine at hand in CPU time, so
that the reason stays the reason on a faster one, and the job keeps to two CPUs of a larger one.
With ``--fix`` a program applies the remedy that fits its cause.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from limits import RefusedError
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

Made = TypeVar("Made")
CPUS = 2
CLASSES = 10
SIDE = 32
CANNOT = 77
"""Exit status of a program whose cause cannot be made on this machine."""
TRUTH = struct.Struct("=4q")
"""Steps; CLOCK_MONOTONIC ns of the last step's end; ns waited for batches so far; 1 when to look."""
READY_STEPS = 5
KERNEL = torch.full((3, 1, 3, 3), 1 / 9)


class Truth:
    """Keep what the program knows about itself in a shared file, without a system call a step."""

    def __init__(self, path: str) -> None:
        self._map: mmap.mmap | bytearray = bytearray(TRUTH.size)
        if path:
            with open(path, "a+b") as file:
                file.truncate(TRUTH.size)
                self._map = mmap.mmap(file.fileno(), TRUTH.size)
        self.steps = self.waited_ns = 0
        self._ready = 0

    def note(self, waited_ns: int) -> None:
        self.steps += 1
        self.waited_ns += waited_ns
        self._write()

    def ready(self, is_ready: bool = True) -> None:
        """Say that the program now shows its cause: the time to look at it has come, or is over."""
        self._ready = int(is_ready)
        self._write()

    def _write(self) -> None:
        TRUTH.pack_into(self._map, 0, self.steps, time.monotonic_ns(), self.waited_ns, self._ready)


class Program:
    """Hold the options of a program, its random draw, its truth and when it ends."""

    def __init__(self, doc: str, *extra: tuple[str, type, object]) -> None:
        parser = argparse.ArgumentParser(description=doc)
        parser.add_argument("--seed", type=int, default=0, help="draws the parameters")
        parser.add_argument("--seconds", type=float, default=120.0, help="end so long after the start")
        parser.add_argument("--fix", action="store_true", help="apply the remedy")
        parser.add_argument("--steps-file", default="", help="keep steps, time and waiting there")
        for name, kind, default in extra:
            parser.add_argument(name, type=kind, default=default)
        self.options = parser.parse_args()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        signal.alarm(int(self.options.seconds) + 60)
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPUS])
        torch.set_num_threads(1)
        torch.manual_seed(self.options.seed)
        self.draw = random.Random(self.options.seed)
        self.fix: bool = self.options.fix
        self.rank = int(os.environ.get("RANK", "0"))
        self.truth = Truth(self.options.steps_file if self.rank == 0 else "")
        self.deadline = time.monotonic() + self.options.seconds
        self.waited_ns = 0
        """Of this step too, which the truth counts when the step has ended."""

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.deadline

    @staticmethod
    def cannot(reason: str) -> None:
        print(f"skip: {reason}", file=sys.stderr, flush=True)
        sys.exit(CANNOT)

    @classmethod
    def make(cls, what: Callable[..., Made], *arguments: object) -> Made:
        """Call what puts limits around this process or makes it a file system; end where that is not to be had."""
        try:
            return what(*arguments)
        except (RefusedError, OSError) as error:
            cls.cannot(str(error))
            raise

    def train(
        self,
        loader: Iterable[tuple[Tensor, Tensor]],
        model: nn.Module,
        after_step: Callable[[Tensor, Tensor], object] | None = None,
        steps: int = sys.maxsize,
    ) -> None:
        """Train epoch by epoch until the time is up or ``steps`` were made."""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        last = self.truth.steps + steps
        shown = time.monotonic()
        while True:
            asked = time.monotonic_ns()
            for images, labels in loader:
                waited_ns = time.monotonic_ns() - asked
                self.waited_ns += waited_ns
                loss = functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if after_step is not None:
                    after_step(images, loss)
                self.truth.note(waited_ns)
                if self.truth.steps == READY_STEPS and steps == sys.maxsize:
                    self.truth.ready()
                if self.rank == 0 and time.monotonic() - shown > 2:
                    shown = time.monotonic()
                    print(f"step {self.truth.steps} loss {loss.item():.3f}", flush=True)
                if self.truth.steps >= last or self.is_over:
                    return
                asked = time.monotonic_ns()


class Images(Dataset):
    """Serve made-up images of 3 x 32 x 32 floats with a class; ``rounds`` blurs are their transform.

    ``before`` is called with the index of each before it is made; None by default, as spawned workers get all
    of it pickled.
    """

    def __init__(self, rounds: int = 1, length: int = 1_000_000, before: Callable[[int], object] | None = None) -> None:
        self.rounds = rounds
        self.length = length
        self.before = before

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.read(index)), index % CLASSES

    def read(self, index: int) -> Tensor:
        if self.before is not None:
            self.before(index)
        return torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(index))

    def transform(self, image: Tensor) -> Tensor:
        return blur(image, self.rounds)


def blur(image: Tensor, rounds: int) -> Tensor:
    """Blur an image again and again: a transform of chosen cost."""
    for _ in range(rounds):
        image = functional.conv2d(image[None], KERNEL, padding=1, groups=3)[0]
    return image


def take_cpu_ms(work: Callable[[], object], tries: int = 5) -> float:
    """Return the least CPU milliseconds of this thread that a call took."""
    work()
    times = []
    for _ in range(tries):
        before = time.thread_time()
        work()
        times.append(time.thread_time() - before)
    return min(times) * 1000


def rounds_for(batch_ms: float, batch: int) -> int:
    """Return how many blurs an image gets when a batch shall cost ``batch_ms`` of CPU."""
    image = torch.rand(3, SIDE, SIDE)
    one_ms = take_cpu_ms(lambda: blur(image, 100)) / 100
    return max(1, round(batch_ms / batch / one_ms))


class Network(nn.Module):
    """Classify images with ``depth`` convolutions, or as many as ``step_ms`` CPU time has room for.

    Ranks that train one model together must give its depth.
    """

    def __init__(self, step_ms: float, batch: int, width: int = 16, depth: int = 0) -> None:
        super().__init__()
        if not depth:
            block = nn.Conv2d(width, width, 3, padding=1)
            images = torch.rand(batch, width, SIDE, SIDE, requires_grad=True)
            one_ms = take_cpu_ms(lambda: block(images).relu().sum().backward())
            depth = max(1, round(step_ms / one_ms))
        layers = [module for _ in range(depth) for module in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(self.first(images)).mean((2, 3)))


def make_loader(data: Dataset, batch: int, workers: int, **more: object) -> DataLoader:
    if workers:
        more = {"persistent_workers": True, "multiprocessing_context": "fork"} | more
    return DataLoader(data, batch_size=batch, num_workers=workers, drop_last=True, **({"shuffle": True} | more))


def same_batch(batch: int) -> Iterable[tuple[Tensor, Tensor]]:
    """Hand out one batch for ever: no loading at all."""
    images, labels = torch.rand(batch, 3, SIDE, SIDE), torch.arange(batch) % CLASSES
    while True:
        yield images, labels
