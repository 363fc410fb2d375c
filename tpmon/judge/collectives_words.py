"""Say in one sentence which collective does not end, for whom, and when the backend gives up. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpmon.judge.collectives_match import name_numbers, say_differences
from tpmon.judge.collectives_stacks import BACKENDS, Standing
from tpmon.model.collectives import (
    CallState,
    CollectiveCause,
    CollectiveFinding,
    RankRecord,
    RasRank,
    RasReport,
    SourceNote,
)
from tpmon.model.known import is_known
from tpmon.model.units import format_seconds

JUST_NOW_S = 2.0
"""A wait shorter than this is what every step has."""
_MOST_PLACES = 2
_MOST_RAS = 3
_MOST_TRANSFERS = 3


def write_summary(one: CollectiveFinding, standings: Mapping[int, Standing]) -> str:
    """Say what one finding means."""
    total = len(one.waiting) + len(one.missing) + len(one.unread)
    call = f"{one.name or 'collective'} number {one.sequence} of {one.group}"
    who = "all" if len(one.waiting) == total else f"{len(one.waiting)} of {total}"
    for_ = f" for {format_seconds(one.waited_s)}" if one.waited_s >= JUST_NOW_S else ""
    waits = f"{who} ranks wait in it{for_}" if total > 1 else f"{name_numbers(one.waiting)} waits in it{for_}"
    parts = [f"{call}: {waits}"]
    if one.cause is CollectiveCause.MISMATCH:
        parts = [f"{call} does not fit: {say_differences(one.differences)}", waits.replace(" in it", "")]
    if one.missing:
        parts.append(_say_missing(one, standings))
    if one.unread:
        verb = "has" if len(one.unread) == 1 else "have"
        parts.append(f"{name_numbers(one.unread)} {verb} no record of it here")
    if one.cause is CollectiveCause.TRANSFER:
        parts.append("no rank is missing and the calls fit: look at the network and the cards")
    if one.waited_s < JUST_NOW_S:
        parts.append("called just now, as in every step")
    return "; ".join((*parts, *_say_abort(one)))


def _say_missing(one: CollectiveFinding, standings: Mapping[int, Standing]) -> str:
    verb = "has" if len(one.missing) == 1 else "have"
    said = f"{name_numbers(one.missing)} {verb} not called it"
    if one.cause is CollectiveCause.CROSSED:
        turn = "waits" if len(one.missing) == 1 else "wait"
        return f"{said} and in turn {turn} in another group for those that wait here"
    places: dict[str, list[int]] = {}
    for rank in one.missing:
        standing = standings.get(rank)
        if standing is not None and standing.doing:
            words = ", ".join(word for word in (standing.doing, standing.waits) if word)
            places.setdefault(words, []).append(rank)
    if not places:
        return said
    shown = [
        words if len(places) == 1 else f"{name_numbers(ranks)} {words}"
        for words, ranks in list(places.items())[:_MOST_PLACES]
    ]
    return f"{said}: {'; '.join(shown)}"


def _say_abort(one: CollectiveFinding) -> tuple[str, ...]:
    if not is_known(one.abort_s) or one.waited_s < JUST_NOW_S:
        return ()
    backend = BACKENDS.get(one.backend, one.backend)
    verb = "aborts this job" if one.backend == "nccl" else "gives up"
    when = f"in about {format_seconds(one.abort_s)}" if one.abort_s > 0 else "any moment"
    assumed = " (assumed: its default timeout)" if one.abort_assumed else ""
    return (f"{backend} {verb} {when}{assumed}",)


def sum_up(
    findings: Sequence[CollectiveFinding],
    records: Sequence[RankRecord],
    ras: Sequence[RasReport],
    notes: Sequence[SourceNote],
) -> str:
    """Say in one sentence what the records tell."""
    said = [say_report(report) for report in ras]
    named = "; ".join(words for words in said if words)
    if findings:
        return f"{findings[0].summary}{f'; {named}' if named else ''}"
    if named:
        return named
    if transfers := say_transfers(records):
        return transfers
    if records and not any(record.groups for record in records):
        return "the records are empty: nothing was called yet, or TORCH_FR_BUFFER_SIZE is 0"
    if records:
        return "every collective that was called is done: no rank waits in one that the records know"
    if ras:
        return "NCCL RAS names no rank that is behind, silent or dead"
    return "no record of its collectives" if notes else ""


def say_transfers(records: Sequence[RankRecord]) -> str:
    """Say which sends and receives are not done, the longest first; "" for none."""
    open_ = sorted(
        (
            (record.taken - call.created).total_seconds(),
            record.rank,
            call.name,
            group.description or group.name,
        )
        for record in records
        for group in record.groups
        for call in group.calls
        if call.is_transfer and call.state is not CallState.COMPLETED and is_known(record.rank)
    )[::-1]
    shown = [
        f"rank {rank} waits in {name} of {group} for {format_seconds(max(0.0, waited_s))}"
        for waited_s, rank, name, group in open_[:_MOST_TRANSFERS]
    ]
    more = len(open_) - len(shown)
    return ", ".join((*shown, f"{more} more wait") if more else shown)


def say_report(report: RasReport) -> str:
    """Say which ranks NCCL's RAS names, "" for none."""
    parts = []
    if report.dead:
        parts.append(f"{report.dead} process{'es are' if report.dead > 1 else ' is'} dead")
    if report.silent:
        parts.append(f"{report.silent} process{'es' if report.silent > 1 else ''} gave no answer")
    behind = [one for one in report.ranks if one.problem == "behind"]
    others = [one for one in report.ranks if one.problem not in ("behind", "ahead of the rest")]
    parts += [_say_rank(one) for one in (*behind, *others)[:_MOST_RAS]]
    more = len(behind) + len(others) - _MOST_RAS
    if more > 0:
        parts.append(f"{more} more")
    return f"NCCL RAS: {', '.join(parts)}" if parts else ""


def _say_rank(one: RasRank) -> str:
    where = f" (process {one.process} on {one.node})" if is_known(one.process) and is_known(one.node) else ""
    who = f"rank {one.rank} of communicator {one.communicator[-6:]}{where}"
    if one.problem == "behind" and is_known(one.operation):
        return f"{who} launched {one.launched} of {one.most_launched} {one.operation}"
    return f"{who}: {one.problem}"
