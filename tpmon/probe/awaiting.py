"""Wait for a process that may become a training job: its imports take seconds, or minutes on a slow disk."""

from __future__ import annotations

import time
from collections.abc import Callable

from tpmon.errors import StartingError
from tpmon.model.units import format_seconds
from tpmon.probe.job import Job

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

    Raises:
        TpmonError: as ``find`` does, also when the program ended or took longer.
    """
    end_s = time.monotonic() + limit_s
    said = False
    while True:
        try:
            return find()
        except StartingError as error:
            if time.monotonic() >= end_s:
                raise
            if not said:
                say(f"{error.what}; waiting for it, at most {format_seconds(limit_s)}")
                said = True
        time.sleep(every_s)
