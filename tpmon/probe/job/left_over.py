"""Find processes that an ended rank has left behind: loader workers, and what multiprocessing spawned.

A worker that waits at its exit for a queue that nobody reads lives for ever. It keeps its memory, and the
device files of the cards that it inherited: the driver then frees nothing of what the rank had there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial

from tpmon.model.gpu import GpuSample, list_processes
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import WORKER_NAME
from tpmon.model.results.doctor import LeftOver, say_refusal
from tpmon.model.text.redaction import admit_text, hide_words
from tpmon.model.units import format_bytes
from tpmon.probe.base.procread import (
    PROC,
    TICKS_PER_S,
    StatLine,
    has_ended,
    read_links,
    read_or,
    read_stat,
    read_status,
    read_table,
)
from tpmon.probe.job.job import user_name
from tpmon.probe.job.process_facts import Facts, read_facts_of
from tpmon.probe.job.programs import FORKSERVER, parse_command
from tpmon.probe.job.tree import Family

CARD = re.compile(r"/dev/nvidia(\d+)")
LEFT_OVER_EVERY_S = 30.0
_LABEL_CHARS = 80


def is_left_over(fact: Facts, parent: Facts | None, grandparent: Facts | None = None) -> bool:
    """Tell whether the rank that a process works for has ended: the process that has it now is another.

    A fork has the command line and the stack of its parent; a parent of what was spawned, or of a fork
    server, is Python. ``parent`` is None for one that does not exist here, or that is another user's.
    """
    named, spawned = fact.stat.name.startswith(WORKER_NAME), fact.program.spawned
    if not (named or spawned) or not fact.argv:
        return False
    if parent is None:
        return True
    if parent.program.service == FORKSERVER:
        return grandparent is None or not grandparent.python
    if spawned:
        return not parent.python and not _trains(fact)
    is_fork = fact.argv == parent.argv or (fact.stat.image != 0 and fact.stat.image == parent.stat.image)
    return bool(parent.argv) and not is_fork


def _trains(fact: Facts) -> bool:
    """Tell whether a spawned process is a rank itself, by its environment or its threads."""
    return fact.place is not None or Family({fact.stat.pid: fact}).in_group(fact.stat.pid)


def find_left_over(table: Mapping[int, StatLine], proc: str = PROC) -> tuple[int, ...]:
    """Return the PIDs of all that ended ranks have left, oldest first."""
    return tuple(fact.stat.pid for fact in _find(table, proc))


def _may_be(stat: StatLine, table: Mapping[int, StatLine], nurses: Collection[int]) -> bool:
    """Tell by the process table what is worth reading: a fork has the stack of its parent."""
    if stat.kernel or has_ended(stat.state, stat.threads):
        return False
    parent = table.get(stat.parent)
    is_fork = parent is not None and stat.image != 0 and parent.image == stat.image
    return (not is_fork or stat.parent in nurses) and (
        stat.name.startswith((WORKER_NAME, "python", "pt_")) or stat.parent <= 1
    )


def _find(table: Mapping[int, StatLine], proc: str) -> list[Facts]:
    feeders = {stat.parent for stat in table.values() if stat.name.startswith(WORKER_NAME)}
    read = read_facts_of((table[pid] for pid in feeders if pid in table), proc)
    nurses = {pid for pid, fact in read.items() if fact.program.service == FORKSERVER}
    likely = {pid: stat for pid, stat in table.items() if _may_be(stat, table, nurses)}
    facts = read | read_facts_of(likely.values(), proc)
    likely = {
        pid: fact.stat
        for pid, fact in facts.items()
        if fact.program.spawned or fact.stat.name.startswith(WORKER_NAME)
    }
    above = {stat.parent for stat in likely.values()}
    above |= {table[pid].parent for pid in above if pid in table}
    facts |= read_facts_of((table[pid] for pid in above - facts.keys() if pid in table), proc)

    def parent_of(fact: Facts | None) -> Facts | None:
        return facts.get(fact.stat.parent) if fact is not None else None

    found = [
        facts[pid] for pid in likely if is_left_over(facts[pid], one := parent_of(facts[pid]), parent_of(one))
    ]
    return sorted(found, key=lambda fact: (fact.stat.start_ticks, fact.stat.pid))


def list_left_over(
    table: Mapping[int, StatLine] | None = None, proc: str = PROC, pids: Iterable[int] | None = None
) -> tuple[LeftOver, ...]:
    """Describe what ended ranks have left, those of one program and user together, oldest first."""
    found = _find(read_table(proc) if table is None else table, proc)
    asked = None if pids is None else set(pids)
    groups: dict[tuple[str, tuple[str, ...]], list[Facts]] = {}
    for fact in found:
        user = read_or("", partial(_name_user, fact.stat.pid, proc))
        groups.setdefault((user, fact.argv), []).append(fact)
    return tuple(
        _describe(user, group, proc)
        for (user, _), group in groups.items()
        if asked is None or asked & {fact.stat.pid for fact in group}
    )


def _name_user(pid: int, proc: str) -> str:
    return user_name(read_status(pid, proc).uid)


def _describe(user: str, group: list[Facts], proc: str) -> LeftOver:
    oldest = group[0].stat
    command = parse_command(group[0].argv)
    words = " ".join(hide_words([command.name, *command.arguments][:8]))
    stats = [read_or(fact.stat, partial(read_stat, fact.stat.pid, proc)) for fact in group]
    return LeftOver(
        pids=tuple(fact.stat.pid for fact in group),
        user=user,
        script=admit_text(words if command.how != "code" else group[0].program.label, _LABEL_CHARS),
        workers=all(fact.stat.name.startswith(WORKER_NAME) for fact in group),
        age_s=max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - oldest.start_ticks / TICKS_PER_S),
        rss_bytes=sum(stat.rss_bytes for stat in stats),
        cards=_read_cards([fact.stat.pid for fact in group], proc),
    )


def _read_cards(pids: Iterable[int], proc: str) -> Known[tuple[int, ...]]:
    """Return the numbers of the device files of cards that processes hold open."""
    cards: set[int] = set()
    for pid in pids:
        try:
            links = read_links(pid, proc).values()
        except PermissionError as error:
            return Missing(say_refusal(error, "fd"))
        except OSError:
            continue  # gone
        cards.update(int(card[1]) for link in links if (card := CARD.fullmatch(link)))
    return tuple(sorted(cards))


def describe_left_over(left: Iterable[LeftOver], cards: Iterable[GpuSample]) -> Iterator[str]:
    """Say which cards of a job are held by what an ended run left behind, and how much of them."""
    for card in cards:
        for one in left:
            if not is_known(one.cards) or card.index not in one.cards:
                continue
            told = [each.used_bytes for each in list_processes(card) if each.pid in one.pids]
            used = sum(size for size in told if is_known(size))
            held = f"{format_bytes(used)} held" if used else "still open, so its memory may not be free,"
            pids = " ".join(map(str, one.pids))
            what = "left-over worker" if one.workers else "left-over process"
            what += "s" if len(one.pids) > 1 else ""
            yield f"card {card.index}: {held} by {what} {pids} of an ended run; end them: kill {pids}"
