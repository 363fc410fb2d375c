"""Measure for how long a process is held by a tracer: its state is "t" then (proc(5))."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tpmon.model.frozen import dataclass
from tpmon.probe.procfs import ProcFile
from tpmon.probe.procread import PROC

_EVERY_S = 0.0005
_JOIN_S = 1.0


@dataclass(slots=True)
class Pause:
    """Add up for how long the process was held."""

    paused_ms: float = 0.0


@contextmanager
def watch_pause(pid: int, proc: str = PROC) -> Iterator[Pause]:
    """Look at the main thread of a process every half millisecond, in a thread of its own.

    The time from a look that finds it held to the next look counts as held, so a look that comes late
    makes the pause longer and never shorter.
    """
    pause = Pause()
    stop = threading.Event()
    thread = threading.Thread(target=_watch, args=(pid, proc, pause, stop), name="tpmon-pause", daemon=True)
    thread.start()
    try:
        yield pause
    finally:
        stop.set()
        thread.join(_JOIN_S)


def _watch(pid: int, proc: str, pause: Pause, stop: threading.Event) -> None:
    try:
        file = ProcFile(f"{proc}/{pid}/task/{pid}/stat")
    except OSError:
        return  # it ended: nothing to hold
    try:
        held_since_ns = 0
        while not stop.is_set():
            held = is_held(file.read())
            now_ns = time.monotonic_ns()
            if held_since_ns:
                pause.paused_ms += (now_ns - held_since_ns) / 1e6
            held_since_ns = now_ns if held else 0
            time.sleep(_EVERY_S)
    except (OSError, ValueError):
        return  # it ended meanwhile
    finally:
        file.close()


def is_held(stat: bytes) -> bool:
    """Tell from /proc/PID/stat whether a tracer holds the thread. Pure."""
    return stat[stat.rindex(b")") + 2 :].startswith(b"t")
