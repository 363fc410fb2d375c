"""Tell on which cards a process works, and on which it only has a context. Pure.

The driver lists every process with a context, such as that of a checkpoint that was loaded to the card it
was saved from. It says how busy each keeps the card, but has no sample of a process that did nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpmon.model.gpu import GpuProcess, GpuSample, GpuState
from tpmon.model.known import Known, Missing, is_known, known_or

USED_PCT = 1.0
"""SM % from which a process computes on a card."""
BULK_RATIO = 0.5
"""Bytes over those on its fullest card from which a process uses a card on which it does not compute now."""
CONTEXT_RATIO = 0.1
"""The same where the driver does not say who computes: a context alone takes 0.3 to 0.6 GB."""
EXPLAINED_RATIO = 0.8
"""Part of U that the processes with a sample account for, from which those without one did nothing."""


def is_listed(card: GpuSample) -> bool:
    """Tell whether the card's process list is what says which processes are the job's."""
    return is_known(card.pids) and bool(card.pids) and not card.pids_are_visible_only


def list_processes(card: GpuSample) -> tuple[GpuProcess, ...]:
    """Return the driver's process list of a card; nothing where it was not read."""
    return known_or(card.processes, ())


def share_card(card: GpuSample) -> Known[Mapping[int, float]]:
    """Return the SM % of the processes of one reading, by PID.

    Missing where the driver told it of none, or where what it told leaves open who kept the card busy.
    """
    if is_known(card.sm_pct) and card.sm_pct < USED_PCT:
        return {}
    listed = list_processes(card)
    told = {one.pid: one.sm_pct for one in listed if is_known(one.sm_pct)}
    untold = next((one.sm_pct for one in listed if isinstance(one.sm_pct, Missing)), None)
    if untold is None:
        return told or Missing("no process list")
    if told and is_known(card.sm_pct) and sum(told.values()) >= EXPLAINED_RATIO * card.sm_pct:
        return told
    return untold


def bytes_on(pid: int, card: GpuSample) -> Known[int]:
    """Return the bytes that a process has on a card."""
    found = (one.used_bytes for one in list_processes(card) if one.pid == pid)
    return next(found, Missing("the driver does not list it"))


def tell_contexts(
    used_bytes: Mapping[str, Known[int]], busy_pct: Mapping[str, Known[float]]
) -> frozenset[str]:
    """Return the cards, by UUID, on which one process only has a context: it works on another of them.

    ``used_bytes`` and ``busy_pct`` are those of the process on each card that lists it.
    """
    most = max((one for one in used_bytes.values() if is_known(one)), default=0)
    works = {uuid for uuid, pct in busy_pct.items() if is_known(pct) and pct >= USED_PCT}
    found: set[str] = set()
    for uuid, used in used_bytes.items():
        ratio = BULK_RATIO if works and is_known(busy_pct[uuid]) else CONTEXT_RATIO
        if uuid not in works and is_known(used) and used < ratio * most:
            found.add(uuid)
    return frozenset(found)


def find_used(cards: Sequence[GpuSample]) -> Mapping[int, tuple[GpuSample, ...]]:
    """Return the cards that each process of the job works on, as one reading shows it.

    Cards that only open files tell, and lost ones, are never taken for a mere context.
    """
    on: dict[int, list[GpuSample]] = {}
    for card in cards:
        for pid in known_or(card.pids, ()):
            on.setdefault(pid, []).append(card)
    return {pid: _without_contexts(pid, mine) for pid, mine in on.items()}


def name_several(pid: int, cards: Sequence[GpuSample]) -> str:
    """Name the cards that the driver lists a process to work on, "" where it is one or only held open."""
    mine = find_used(cards).get(pid, ())
    told = len(mine) > 1 and all(map(is_listed, mine))
    return ",".join(str(one.index) for one in mine) if told else ""


def _without_contexts(pid: int, mine: Sequence[GpuSample]) -> tuple[GpuSample, ...]:
    listed = [one for one in mine if is_listed(one) and one.state is not GpuState.LOST]
    if len(listed) < 2:
        return tuple(mine)
    contexts = tell_contexts(
        {one.uuid: bytes_on(pid, one) for one in listed}, {one.uuid: _busy_pct(pid, one) for one in listed}
    )
    return tuple(one for one in mine if one.uuid not in contexts)


def _busy_pct(pid: int, card: GpuSample) -> Known[float]:
    shares = share_card(card)
    return shares.get(pid, 0.0) if is_known(shares) else shares


def list_silent(cards: Sequence[GpuSample]) -> tuple[GpuSample, ...]:
    """Return the cards that do not answer and that the job is on, or may be; a refusal is an answer."""
    return tuple(one for one in cards if one.state in (GpuState.STALE, GpuState.LOST) and may_be_on(one))


def list_missed(cards: Sequence[GpuSample]) -> tuple[GpuSample, ...]:
    """Return the silent cards but those that are no card of the job, though it holds them open.

    CUDA opens every card it may see: where the driver lists each of several processes on one card that
    answers, those are their cards.
    """
    own = [known_or(one.pids, ()) for one in cards if one.state is GpuState.OK and is_listed(one)]
    placed = {pid for pids in own for pid in pids}
    apart = len(placed) > 1 and len(placed) == sum(map(len, own))
    return tuple(
        one
        for one in list_silent(cards)
        if not (apart and one.pids_are_visible_only and placed.issuperset(known_or(one.pids, ())))
    )


def may_be_on(card: GpuSample) -> bool:
    """Tell whether the job is on a card, or nothing says that it is not."""
    return not is_known(card.pids) or bool(card.pids)


def list_used(cards: Sequence[GpuSample]) -> tuple[GpuSample, ...]:
    """Return the cards that the job works on."""
    used = {one.uuid for mine in find_used(cards).values() for one in mine}
    return tuple(card for card in cards if card.uuid in used)
