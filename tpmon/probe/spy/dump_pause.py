"""Measure for how long a process is held by a tracer: its state is "t" then (proc(5))."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tpmon.model.frozen import dataclass
from tpmon.probe.base.procread import PROC
from tpmon.probe.proc.files import ProcFile

_EVERY_S = 0.0005
_JOIN_S = 1.0


@dataclass(slots=True)
class Pause:
    """Add up for how long the process was held, and keep the longest time in which nobody looked."""

    paused_ms: float = 0.0
    gap_ms: float = 0.0

    @property
    def most_ms(self) -> float:
        """Return the most that a stop can have taken, also one that no look met: it lay between two."""
        return self.paused_ms or self.gap_ms


@contextmanager
def watch_pause(pid: int, proc: str = PROC) -> Iterator[Pause]:
    """Look at the main thread of a process every half millisecond, in a thread of its own.

    The time from the look before one that finds it held to the look after it counts as held, so a look
    that comes late makes the pause longer and never shorter. A stop that no look meets is not in it.
    """
    pause = Pause()
    stop = threading.Event()
    work = (pid, proc, pause, stop, time.monotonic_ns())
    thread = threading.Thread(target=_watch, args=work, name="tpmon-pause", daemon=True)
    thread.start()
    try:
        yield pause
    finally:
        stop.set()
        thread.join(_JOIN_S)


def _watch(pid: int, proc: str, pause: Pause, stop: threading.Event, begun_ns: int) -> None:
    """Look until ``stop``: whoever may hold it begins after ``begun_ns`` and ends before the last look."""
    try:
        file = ProcFile(f"{proc}/{pid}/task/{pid}/stat")
    except OSError:
        return  # it ended: nothing to hold
    before_ns, was_held = begun_ns, False
    try:
        while True:
            is_last = stop.is_set()
            held = is_held(file.read())
            now_ns = time.monotonic_ns()
            gap_ms = (now_ns - before_ns) / 1e6
            pause.gap_ms = max(pause.gap_ms, gap_ms)
            if held or was_held:
                pause.paused_ms += gap_ms
            if is_last:
                return
            before_ns, was_held = now_ns, held
            time.sleep(_EVERY_S)
    except (OSError, ValueError):
        return  # it ended meanwhile
    finally:
        file.close()


def is_held(stat: bytes) -> bool:
    """Tell from /proc/PID/stat whether a tracer holds the thread. Pure."""
    return stat[stat.rindex(b")") + 2 :].startswith(b"t")
