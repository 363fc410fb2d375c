"""Wait for what a test has set going."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tpmon.probe.base.procread import read_stat


def wait_until(holds: Callable[[], object], seconds: float = 30.0, every_s: float = 0.01) -> bool:
    """Look again and again until ``holds`` says yes; False when it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


def wait_until_at_rest(pid: int) -> bool:
    """Wait until every thread of a process sleeps and none has run for a tenth of a second.

    One that is preempted on its way into a wait sleeps already by its state, and runs once more.
    """

    def look() -> set[tuple[str, str]]:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return {(read_stat(f"{pid}/task/{task.name}").state, (task / "schedstat").read_text()) for task in tasks}

    def rests() -> bool:
        before = look()
        time.sleep(0.1)
        return look() == before and {state for state, _ in before} == {"S"}

    return wait_until(rests)
