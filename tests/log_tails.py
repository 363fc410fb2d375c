"""Write logs as trainings do, at times that are known, and read them as tpmon does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tpmon.model.host import LogPace
from tpmon.model.known import Known
from tpmon.probe.host.log_pace import LogFollower, LogTail

TAIL_BYTES = 4096
LOOK_S = 2.0
START_S = 1_700_000_000.25

Write = tuple[float, str]


def loss_of(step: int) -> float:
    """Return a loss that is another one at each step."""
    return 2.0 + 1 / (1 + step % 977)


def follow(writes: Iterable[Write], until_s: float = 60.0, first_s: float = 11.3) -> Known[LogPace]:
    """Read the log of ``writes`` (seconds, text) every two seconds from ``first_s`` on; return the last pace."""
    follower, log, modified_s = LogFollower(), b"", 0.0
    todo = list(writes)
    look_s = first_s
    while look_s <= until_s:
        while todo and todo[0][0] <= look_s:
            modified_s, text = todo.pop(0)
            log += text.encode()
        if log:
            follower.feed(
                LogTail(
                    size=len(log),
                    raw=log[-TAIL_BYTES:],
                    modified_s=START_S + modified_s,
                    age_s=look_s - modified_s,
                    taken_ns=round((500 + look_s) * 1e9),
                )
            )
        look_s += LOOK_S
    return follower.tell(4211, 1)


def steady(
    line: Callable[[int], str], hz: float, every: int = 1, *, first: int = 0, until_s: float = 60.0
) -> Iterator[Write]:
    """Yield the line of each ``every``-th step of a training that makes ``hz``."""
    step = first + every
    while (at_s := (step - first) / hz) <= until_s:
        yield at_s, line(step)
        step += every


def bar(
    total: int, hz: float, name: str = "", unit: str = "it", post: Callable[[int], str] = lambda _step: ""
) -> Callable[[int], str]:
    """Return what tqdm writes for a step, its elapsed time by ``hz``."""

    def write(step: int) -> str:
        done = step % total or total
        rate = f"{hz:5.2f}{unit}/s" if hz >= 1 else f"{1 / hz:5.2f}s/{unit}"
        drawn = "█" * int(10 * done / total)
        spent, left = (f"{int(s // 60):02d}:{int(s % 60):02d}" for s in (done / hz, (total - done) / hz))
        tail = f"{done}/{total} [{spent}<{left}, {rate}{post(step)}]"
        return f"\r{name}{100 * done // total:3d}%|{drawn:<10}| {tail}"

    return write
