"""Ask for captures from within: for programs that write requests into their own mailbox, as tpmon does.

The first argument of such a program is the folder that captures are written to.
"""

from __future__ import annotations

import os
import sys
import time

from tests.captures import read_told
from tpmon.hook.bus import wire_capture as w
from tpmon.hook.installation import HOOK

FOLDER = sys.argv[1]


def ask(number: int, kind: int = w.KIND_CAPTURE, folder: str = FOLDER, **words: int) -> None:
    """Write a request: a probe of one step, or a capture of three; ``words`` are others of its fields."""
    meant = {
        "steps": 1 if kind == w.KIND_PROBE else 3,
        "longest_ns": 60_000_000_000,
        "most_events": 200_000,
        "most_bytes": 1 << 29,
        "expires_ns": time.monotonic_ns() + 10**12,
    }
    request = w.Request(number, kind, **{**meant, **words}, folder=folder, name=f"cap{number}")
    w.write_request(HOOK.steps.pages.mailbox, request)


def told() -> dict[str, object]:
    """Return what the hook says of the request that it took last."""
    told = w.parse_progress(HOOK.steps.pages.page)
    return {
        "number": told.request,
        "state": told.state,
        "done": told.steps_done,
        "first": told.first_step,
        "reason": told.reason,
        "answer": list(HOOK.steps.pages.answers),
    }


def count(number: int) -> dict[str, object]:
    """Count in the one file of a capture what it is to hold."""
    (name,) = [one for one in os.listdir(FOLDER) if one.startswith(f"cap{number}-")]
    path = os.path.join(FOLDER, name)
    found = read_told(path)
    return {
        "marks": len(found.marks),
        "optimizer": found.optimizer,
        "mode": os.stat(path).st_mode & 0o777,
        "wrong": list(found.wrong),
        "conditions": found.conditions,
    }
