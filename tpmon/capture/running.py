"""Tell whether a process still runs, and is the one that was met."""

from __future__ import annotations

from tpmon.model.process import Identity


def is_running(process: Identity) -> bool:
    """Tell by the state and the start time in proc(5), stat: a zombie has ended, its PID may be another's."""
    try:
        with open(f"/proc/{process.pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return False
    words = data[data.rindex(b")") + 2 :].split()
    return words[0] not in (b"Z", b"X") and int(words[19]) == process.start_ticks
