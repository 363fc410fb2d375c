"""Find the py-spy processes of this machine and what each looks at, so that two do not meet."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.frozen import dataclass
from tpmon.probe.base.procread import PROC, TICKS_PER_S, list_pids, parse_cmdline, read_file, read_stat
from tpmon.probe.job.job import now_ticks

_NAME = "py-spy"
_PID_FLAGS = ("--pid", "-p")
_LENGTH_FLAGS = ("--duration", "-d")
_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Spy:
    """Hold one py-spy; ``nonblocking``: it reads memory and never stops its target.

    ``seconds`` is how long it was told to look, 0 where that is not told.
    """

    pid: int
    start_ticks: int
    nonblocking: bool
    seconds: int = 0

    def left_s(self) -> float:
        """Tell how long it goes on by what it was told; 0 where that is over or not known."""
        return max(0.0, self.seconds - (now_ticks() - self.start_ticks) / TICKS_PER_S)

    def lives(self, proc: str = PROC) -> bool:
        """Tell whether it still runs."""
        try:
            stat = read_stat(self.pid, proc)
        except OSError:
            return False
        return stat.start_ticks == self.start_ticks and stat.state not in "ZX"


def parse_subject(argv: Sequence[str]) -> int | None:
    """Return the PID that a py-spy command line looks at; None where it starts a program itself. Pure."""
    return _parse_number(argv, _PID_FLAGS)


def parse_length(argv: Sequence[str]) -> int | None:
    """Return for how many seconds a py-spy command line records; None where it does not tell. Pure."""
    return _parse_number(argv, _LENGTH_FLAGS)


def _parse_number(argv: Sequence[str], flags: Sequence[str]) -> int | None:
    for at, word in enumerate(argv):
        flag, _, value = word.partition("=")
        if flag in flags:
            value = value or (argv[at + 1] if at + 1 < len(argv) else "")
            return int(value) if value.isascii() and value.isdecimal() and len(value) <= _DIGITS else None
        if word == "--":
            return None
    return None


def find_spies(proc: str = PROC) -> dict[int, tuple[Spy, ...]]:
    """Return the py-spy processes by the PID that they look at."""
    found: dict[int, tuple[Spy, ...]] = {}
    for pid in list_pids(proc):
        try:
            if not read_file(f"{proc}/{pid}/comm", 64).startswith(_NAME.encode()):
                continue
            argv = parse_cmdline(read_file(f"{proc}/{pid}/cmdline", 65536))
            began = read_stat(pid, proc).start_ticks
            spy = Spy(pid, began, "--nonblocking" in argv, parse_length(argv) or 0)
        except OSError:
            continue  # it ended meanwhile, or is hidden
        subject = parse_subject(argv)
        if subject is not None:
            found[subject] = (*found.get(subject, ()), spy)
    return found
