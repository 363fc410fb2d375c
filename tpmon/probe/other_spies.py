"""Find the py-spy processes of this machine and what each looks at, so that two do not meet."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.frozen import dataclass
from tpmon.probe.procread import PROC, list_pids, parse_cmdline, read_file, read_stat

_NAME = "py-spy"
_PID_FLAGS = ("--pid", "-p")


@dataclass(frozen=True, slots=True)
class Spy:
    """Hold one py-spy; ``nonblocking``: it reads memory and never stops its target."""

    pid: int
    start_ticks: int
    nonblocking: bool

    def lives(self, proc: str = PROC) -> bool:
        """Tell whether it still runs."""
        try:
            stat = read_stat(self.pid, proc)
        except OSError:
            return False
        return stat.start_ticks == self.start_ticks and stat.state not in "ZX"


def parse_subject(argv: Sequence[str]) -> int | None:
    """Return the PID that a py-spy command line looks at; None where it starts a program itself. Pure."""
    for at, word in enumerate(argv):
        flag, _, value = word.partition("=")
        if flag in _PID_FLAGS:
            value = value or (argv[at + 1] if at + 1 < len(argv) else "")
            return int(value) if value.isascii() and value.isdecimal() else None
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
            spy = Spy(pid, read_stat(pid, proc).start_ticks, "--nonblocking" in argv)
        except OSError:
            continue  # it ended meanwhile, or is hidden
        subject = parse_subject(argv)
        if subject is not None:
            found[subject] = (*found.get(subject, ()), spy)
    return found
