"""Tell whether a process still runs, and is the one that was met."""

from __future__ import annotations

from tpmon.model.process import Identity


def is_running(process: Identity) -> bool:
    """Tell by the state and the start time in proc(5), stat: a zombie has ended, its PID may be another's."""
    words = _read_stat(process.pid)
    return bool(words) and words[0] not in (b"Z", b"X") and int(words[19]) == process.start_ticks


def read_image(pid: int) -> list[bytes]:
    """Return where code and stack of a process begin: elsewhere after an exec, by which the rest stays."""
    return _read_stat(pid)[23:26]


def name_end(process: Identity, image: list[bytes]) -> str:
    """Say how a process ended whose image was read before, "" while it goes on."""
    now = read_image(process.pid)
    if not now or not is_running(process):
        return "the process ended"
    return "" if now == image else "the process became another program"


def _read_stat(pid: int) -> list[bytes]:
    """Return the words of /proc/PID/stat from the state on; none where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return []
    return data[data.rindex(b")") + 2 :].split()
