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
    """Write a request: a probe of one step, or a capture of three; ``words`` are of ASK_* by the rest of the name."""
    told = [0] * w.REQUEST_WORDS
    told[w.ASK_NUMBER], told[w.ASK_KIND] = number, kind
    told[w.ASK_STEPS] = 1 if kind == w.KIND_PROBE else 3
    told[w.ASK_LONGEST_NS] = 60_000_000_000
    told[w.ASK_MOST_EVENTS], told[w.ASK_MOST_BYTES] = 200_000, 1 << 29
    told[w.ASK_EXPIRES_NS] = time.monotonic_ns() + 10**12
    for name, value in words.items():
        told[getattr(w, f"ASK_{name}")] = value
    w.write_request(HOOK.steps.pages.mailbox, w.Request(tuple(told), folder, f"cap{number}"))


def told() -> dict[str, object]:
    """Return what the hook says of the request that it took last."""
    words, reason = w.parse_capture(HOOK.steps.pages.page)
    return {
        "number": words[w.CAP_REQUEST],
        "state": words[w.CAP_STATE],
        "done": words[w.CAP_STEPS_DONE],
        "first": words[w.CAP_FIRST_STEP],
        "reason": reason,
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
