"""Find the children of a job that died and that nobody asked about: the kernel keeps their ends."""

from __future__ import annotations

import signal
from collections.abc import Container

from tpmon.model.dump import DeadChild
from tpmon.probe.base.procread import PROC, TICKS_PER_S, Stat, has_ended, read_table
from tpmon.probe.job.ending import KMSG, RECENT_S, describe_end, read_oom_victims
from tpmon.probe.job.job import now_ticks


def find_dead(parents: Container[int], proc: str = PROC, kmsg: str = KMSG) -> tuple[DeadChild, ...]:
    """List the children of ``parents`` that ended badly and are still there because nobody asked."""
    dead = [
        stat
        for stat in read_table(proc).values()
        if has_ended(stat.state, stat.threads) and stat.parent in parents and stat.wait_status
    ]
    killed = [stat for stat in dead if stat.wait_status & 0x7F == signal.SIGKILL]
    victims = read_oom_victims(kmsg, recent_s=_age_of_oldest_s(killed)) if killed else frozenset[int]()
    return tuple(
        DeadChild(
            stat.pid,
            stat.parent,
            stat.name,
            describe_end(stat.wait_status, oom_victim=stat.pid in victims),
        )
        for stat in dead
    )


def _age_of_oldest_s(killed: list[Stat]) -> float:
    """Return how far back the kernel log tells of them: before they began, their numbers were others'."""
    begun_ticks = min(stat.start_ticks for stat in killed)
    return max(RECENT_S, (now_ticks() - begun_ticks) / TICKS_PER_S)
