"""Capture to a small file system that fills up, becomes read-only or loses its folder; mounts it itself.

Run as root: unshare --mount python capture_places.py FOLDER. Prints one JSON object.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess

import torch

import tpmon.hook
from tests.programs.capture_asking import FOLDER, ask, told, train
from tpmon.hook.bus import wire_capture as w
from tpmon.hook.capture import recorder

SIZE = "96m"
FILL = os.path.join(FOLDER, "of-others")
torch.set_num_threads(1)


def fill() -> None:
    """Write until there is no room for one byte more."""
    with open(FILL, "wb", buffering=0) as file:
        block = 1 << 20
        while block:
            try:
                file.write(bytes(block))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                block //= 2


def listing() -> list[str]:
    return sorted(name for name in os.listdir(FOLDER) if name != os.path.basename(FILL))


def capture(number: int, before=lambda _at: None) -> dict[str, object]:
    ask(number)
    losses = train(before=before)
    left = listing()
    if os.path.exists(FILL):
        os.unlink(FILL)
    return {**told(), "left": left, "same": losses == PLAIN}


def full() -> dict[str, object]:
    """Others fill it while steps are recorded."""
    return capture(10, lambda at: fill() if at == 3 else None)


LATE = """
def save(self, path):
    fill()
    original(self, path)
"""


def full_at_writing() -> dict[str, object]:
    """Others fill it after the hook looked, while torch writes."""
    original = recorder.Recorder.save
    made = {"fill": fill, "original": original}
    exec(compile(LATE, recorder.__file__, "exec"), made)  # no frame of ours is in the way of an error
    recorder.Recorder.save = made["save"]
    try:
        return capture(20)
    finally:
        recorder.Recorder.save = original


def readonly() -> dict[str, object]:
    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", FOLDER], check=True)

    found = capture(30, lambda at: remount("ro") if at == 3 else None)
    asked = capture(31)
    remount("rw")
    return {"during": found, "before": asked}


def link() -> dict[str, object]:
    """Somebody laid a link where torch writes."""
    target = os.path.join(FOLDER, "precious")
    with open(target, "w") as file:
        file.write("kept")
    first = told()["first"] + 13  # this training's steps, and then the first that is recorded
    names = [f"cap40-step{first + at}{w.TRACE_ENDING}.part.tmp" for at in range(-15, 16)]
    for name in names:
        os.symlink(target, os.path.join(FOLDER, name))
    found = capture(40)
    for name in names:
        os.unlink(os.path.join(FOLDER, name))
    with open(target) as file:
        kept = file.read()
    os.unlink(target)
    return {"state": found["state"], "reason": found["reason"], "kept": kept, "left": listing()}


os.makedirs(FOLDER, exist_ok=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", FOLDER], check=True)
PLAIN = train()
ask(1, w.KIND_PROBE)
train()
REPORT = {one.__name__: one() for one in (full, full_at_writing, readonly, link)}
REPORT["after"] = capture(50)
REPORT["problem"] = tpmon.hook.problem()
print(json.dumps(REPORT))
