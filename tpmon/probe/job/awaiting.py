"""Wait for a process that may become a training job: its imports take seconds, or minutes on a slow disk."""

from __future__ import annotations

import time
from collections.abc import Callable

from tpmon.errors import LateStartError, StartingError
from tpmon.model.units import format_seconds
from tpmon.probe.job.job import Job

AWAIT_S = 600.0
"""As long as a process counts as one that may still import torch (``facts``)."""
AWAIT_EVERY_S = 0.5


def await_job(
    find: Callable[[], Job],
    say: Callable[[str], None],
    limit_s: float = AWAIT_S,
    every_s: float = AWAIT_EVERY_S,
) -> Job:
    """Call ``find`` again while it meets a program that is just starting, at most ``limit_s``; say so once.

    How old the program is counts at the first look alone: the same one is waited for to the end.

    Raises:
        TpmonError: as ``find`` does, also when the program ended or took longer.
    """
    end_s = time.monotonic() + limit_s
    awaited: tuple[int, int] | None = None
    while True:
        try:
            return find()
        except LateStartError as error:
            is_awaited = isinstance(error, StartingError) or error.process == awaited
            if not is_awaited or time.monotonic() >= end_s:
                raise
            if awaited is None:
                say(f"{error.what}; waiting for it, at most {format_seconds(limit_s)}")
            awaited = error.process
        time.sleep(every_s)
