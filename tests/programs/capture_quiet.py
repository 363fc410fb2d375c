"""Use torch's profiler, be captured, use it again: what is written to standard error stands between lines of ours.

Run: python capture_quiet.py FOLDER
"""

from __future__ import annotations

import os

import torch
from torch.profiler import ProfilerActivity, profile

from tests.programs.capture_asking import FOLDER, ask, told, train
from tpmon.hook.bus import wire_capture as w

torch.set_num_threads(1)


def use_profiler(part: str) -> None:
    os.write(2, f"== {part}\n".encode())
    with profile(activities=[ProfilerActivity.CPU]):
        train()


os.makedirs(FOLDER, exist_ok=True)
train()
use_profiler("before")
os.write(2, b"== captured\n")
ask(1, w.KIND_PROBE)
train()
ask(2)
train()
assert told()["state"] == w.STATE_VERIFIED, told()
use_profiler("after")
