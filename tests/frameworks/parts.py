"""What the programs share: their options, where samples come from, and what a transform costs."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from faults import POOL_THREADS, QUOTA_CORES, READ_MS, Fault

sys.path.append(str(Path(__file__).parents[1] / "programs" / "causes"))
from limits import enter_cpu_quota
from loop import READY_STEPS, Truth, blur, take_cpu_ms  # noqa: F401  # blur: for lightning_fit
from loop import Program as Loop
from slow_fs import mount_slow_fs
from store import fetch, start_store

FUSE_MB_S = 500.0


class Program:
    def __init__(self, doc: str) -> None:
        parser = argparse.ArgumentParser(description=doc)
        parser.add_argument("--fault", type=Fault, default=Fault.HEALTHY, choices=list(Fault))
        parser.add_argument("--seconds", type=int, default=180, help="end so long after the start")
        parser.add_argument("--steps-file", default="", help="count steps there")
        parser.add_argument("--seed", help="taken as by other programs, and not used")
        options = parser.parse_args()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        signal.alarm(options.seconds)
        self.fault: Fault = options.fault
        self.folder = Path(tempfile.mkdtemp())
        """Data and checkpoints go there."""
        self.truth = Truth(options.steps_file)
        if self.fault is Fault.POOL:
            torch.set_num_threads(POOL_THREADS)
        if self.fault is Fault.QUOTA:
            Loop.make(enter_cpu_quota, QUOTA_CORES)

    def note_step(self) -> None:
        self.truth.note(0)
        if self.truth.steps == READY_STEPS:
            self.truth.ready()

    def open_source(self, sample_bytes: int) -> Source | None:
        """Return the slow source that the fault asks for; None where samples are near."""
        if self.fault is Fault.SLOW_STORE:
            return Store(start_store(sample_bytes, READ_MS), sample_bytes)
        if self.fault is Fault.SLOW_FUSE:
            place = Loop.make(mount_slow_fs, sample_bytes, READ_MS / 2, FUSE_MB_S)
            return Files(place, sample_bytes)  # the open and the read are late, half each
        return None

    def count_rounds(self, step: Callable[[], object], one_round: Callable[[], object], batch: int) -> int:
        """Return how often a transform repeats its work for each sample, to cost what the fault says."""
        step_ms = take_ms(step)
        round_ms = take_cpu_ms(lambda: [one_round() for _ in range(20)]) / 20
        print(f"step {step_ms:.1f} ms, one round {round_ms:.3f} ms", flush=True)
        return max(1, round(self.fault.load_steps * step_ms / batch / round_ms))


class Store:
    """Ask a store over TCP, each worker over one connection."""

    def __init__(self, port: int, sample_bytes: int) -> None:
        self.port = port
        self.sample_bytes = sample_bytes
        self.connection: socket.socket | None = None

    def read(self, index: int) -> bytearray:
        if self.connection is None:
            self.connection = socket.create_connection(("127.0.0.1", self.port))
        return fetch(self.connection, self.sample_bytes)


class Files:
    def __init__(self, place: str, sample_bytes: int) -> None:
        self.place = place
        self.sample_bytes = sample_bytes

    def read(self, index: int) -> bytearray:
        with open(os.path.join(self.place, str(index)), "rb", buffering=0) as file:
            return bytearray(file.read(self.sample_bytes))


Source = Store | Files
"""What gives the bytes of sample ``index``."""


def take_ms(work: Callable[[], object], tries: int = 4) -> float:
    times = []
    for _ in range(tries):
        before = time.monotonic()
        work()
        times.append(time.monotonic() - before)
    return min(times) * 1000
