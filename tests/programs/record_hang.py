"""Hang in a collective over gloo, with the FlightRecorder of torch reachable in one of the ways that it offers.

Each rank makes the file READY/PID when it comes to the call that hangs.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

DONE = 3
TIMEOUT = timedelta(minutes=15)
WRITE_AFTER_S = 3.0
"""Long after the last call was made, also on a crowded machine."""


def write_record() -> None:
    """Write the record where torch would; gloo itself never does."""
    path = Path(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{dist.get_rank()}")
    path.write_bytes(c10d._dump_fr_trace())


def watch_pipe() -> None:
    """Write the record whenever the pipe is written to, as the watchdog of NCCL does."""
    path = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{dist.get_rank()}.pipe"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    while True:
        time.sleep(0.1)
        if os.read(fd, 128):
            write_record()


def hang(ready: str, way: str, fault: str, culprit: int) -> None:
    """Reduce some tensors, then hang: ``culprit`` stays away, or calls another collective."""
    rank = dist.get_rank()
    for _ in range(DONE):
        dist.all_reduce(torch.ones(4, 4))
    Path(ready, str(os.getpid())).touch()
    if way == "file":
        threading.Timer(WRITE_AFTER_S, write_record).start()
    if rank == culprit and fault == "missing":
        threading.Event().wait()
    if rank == culprit:
        dist.broadcast(torch.ones(2), src=(culprit + 1) % dist.get_world_size())
    dist.all_reduce(torch.ones(4, 4))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", required=True, help="folder for the files READY/PID")
    parser.add_argument("--way", choices=("server", "file", "pipe", "none"), default="none")
    parser.add_argument("--fault", choices=("missing", "mismatch"), default="missing")
    parser.add_argument("--culprit", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    if options.way == "server":
        server = c10d._WorkerServer("::", 0)
    if options.way == "pipe":
        threading.Thread(target=watch_pipe, daemon=True).start()
    hang(options.ready, options.way, options.fault, options.culprit)
