"""Build a job in which nothing moves."""

from __future__ import annotations

from tests.frames import make_process
from tpmon.model.known import Missing
from tpmon.model.process import ThreadGroup, ThreadKind

UNREAD = Missing("not permitted")
LOCK = "lock or queue (futex)"


def quiet_rank(**fields):
    """Build a rank that has waited for 90 s: longer than a wait of which no stack tells may last."""
    plain = {
        "state": "S",
        "cpu_pct": 0.0,
        "runnable": 0.01,
        "waiting": 0.0,
        "busy_threads": 0,
        "waits_for": LOCK,
        "waits_unchanged_s": 90.0,
        "thread_groups": (ThreadGroup(ThreadKind.MAIN, 1, 0.0), ThreadGroup(ThreadKind.COMM, 3, 0.01)),
    }
    return make_process(**{**plain, **fields})
