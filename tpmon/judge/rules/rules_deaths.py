"""Loader workers that a signal ends again and again while the loop starts new ones. Pure."""

from __future__ import annotations

from collections import Counter

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Cleared, Suspicion, reading
from tpmon.judge.features.loader import Starved, find_starved
from tpmon.judge.features.snapshot import Rule, Scene
from tpmon.judge.hang.hang_ends import list_ends
from tpmon.model.known import is_known
from tpmon.model.process import ProcessEnd, Role
from tpmon.model.verdict import IN_WORDS, Evidence, Kind

AGAIN = 2
"""Times within the history that workers must have been killed: once is an accident that the event tells."""
LEAST_WEIGHT = 0.3
"""Weight where no wait of the rank says what it costs: each death ends an epoch, or the run."""
_POLITE = "SIGTERM"
"""How a rank ends its own workers."""


def list_kills(scene: Scene) -> list[tuple[int, ProcessEnd]]:
    """Return the workers of the history that a signal ended, and when (CLOCK_MONOTONIC ns), oldest first."""
    return [
        (taken_ns, end)
        for taken_ns, end in list_ends(scene)
        if end.role is Role.WORKER and is_known(end.signal) and end.signal != _POLITE
    ]


def judge_killed_workers(scene: Scene) -> Answer:
    """Suspect what kills the workers when a signal has ended some of them more than once in a minute."""
    kills = list_kills(scene)
    if not kills:
        return Cleared("killed workers (none in the last minute)")
    times = len({taken_ns for taken_ns, _ in kills})
    if times < AGAIN:
        return Cleared("workers killed again and again (it was once)")
    signals = Counter(end.signal for _, end in kills if is_known(end.signal))
    told = ", ".join(f"{count} by {name}" for name, count in signals.most_common())
    found = find_starved(scene)
    share = found.share.ratio if isinstance(found, Starved) else 0.0
    last = kills[-1][1]
    age = scene.frame.ages_s.cpu
    name = f"worker {last.worker}" if is_known(last.worker) else "a worker"
    return Suspicion(
        kind=Kind.DATA_BOUND,
        cause="killed-workers",
        weight=max(LEAST_WEIGHT, share),
        margin=times / AGAIN * 1.25,
        sources=frozenset(("process end", "exit status")),
        summary=f"workers are killed again and again: {told} in the last minute",
        evidence=(
            reading("workers killed in 60 s", float(len(kills)), "", "exit status", age),
            Evidence(
                "the last of them", IN_WORDS, "", f"{name} ({last.pid}): {last.how}", "exit status", age
            ),
        ),
        observed=frozenset((Need.WORKER_DIED,)),
        pid=last.pid,
        rank=last.rank,
    )


RULES: tuple[Rule, ...] = (judge_killed_workers,)
