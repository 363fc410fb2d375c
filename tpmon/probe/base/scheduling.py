"""Stay behind the training in the kernel's scheduler."""

from __future__ import annotations

import contextlib
import os


def step_aside() -> None:
    """Let tpmon never push a training thread off its CPU when it wakes up.

    A SCHED_BATCH task has its fair share but does not preempt on wake-up (sched(7)). Threads and
    children started later inherit it. Call before the first thread is started.
    """
    with contextlib.suppress(OSError):  # a sandbox may refuse it; tpmon then runs as any program
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
