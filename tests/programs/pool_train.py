"""Compute for ever on more OpenMP threads than a small machine has CPUs; says "up" after the first step."""

from __future__ import annotations

import ctypes
import signal
import sys

import torch

ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
signal.alarm(180)
torch.set_num_threads(int(sys.argv[1]))
values = torch.rand(16_000_000)
values.sin_()
print("up", flush=True)
while True:
    values.sin_()
