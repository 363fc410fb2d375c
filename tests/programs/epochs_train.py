"""Train short epochs, each with new loader workers, beside a gloo group; says "up" after the first."""

from __future__ import annotations

import ctypes
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
signal.alarm(180)
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{sys.argv[1]}")
rows = TensorDataset(torch.zeros(120, 8))
while True:
    for _batch in DataLoader(rows, batch_size=4, num_workers=2):
        time.sleep(0.05)
    print("up", flush=True)
