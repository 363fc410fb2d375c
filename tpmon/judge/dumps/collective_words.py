"""Say which collective does not end, for whom, and what ranks called under its number. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from math import prod
from types import MappingProxyType

from tpmon.judge.dumps.describe import describe_stack
from tpmon.judge.stacks.classify import package_of
from tpmon.model.dump import DumpThread, Motion, StackGroup
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.results.collectives import (
    CallDifference,
    CallState,
    CollectiveCall,
    CollectiveCause,
    CollectiveFinding,
    GroupRecord,
    RankRecord,
    RasProcess,
    RasRank,
    RasReport,
    SourceNote,
)
from tpmon.model.stacks import StackFrame
from tpmon.model.text.dump_words import list_numbers, say_wait
from tpmon.model.units import format_seconds
from tpmon.model.waits import WaitReason

_ALIKE = frozenset(
    (
        "all_reduce",
        "all_reduce_barrier",
        "allreduce_coalesced",
        "broadcast",
        "_broadcast_oop",
        "reduce",
        "_reduce_oop",
        "_all_gather_base",
        "all_gather_single",
        "all_gather_into_tensor_coalesced",
        "_reduce_scatter_base",
        "reduce_scatter_single",
        "reduce_scatter_tensor_coalesced",
    )
)
"""Collectives whose input has the same size and type on every rank. In others sizes may differ."""


def find_differences(calls: Mapping[int, CollectiveCall]) -> tuple[CallDifference, ...]:
    """Return what the ranks called, most frequent first; () where ``calls`` of one number (by rank) fit."""
    if found := _divide(calls, lambda call: call.name):
        return found
    if any(call.name not in _ALIKE for call in calls.values()):
        return ()
    return _divide(calls, _say_size) or _divide(calls, _say_type)


def _divide(
    calls: Mapping[int, CollectiveCall], say: Callable[[CollectiveCall], str]
) -> tuple[CallDifference, ...]:
    words = {rank: said for rank, call in calls.items() if (said := say(call))}
    counts = Counter(words.values())
    if len(counts) < 2:
        return ()
    ordered = sorted(counts, key=lambda said: (-counts[said], said))
    return tuple(
        CallDifference(tuple(sorted(rank for rank in words if words[rank] == said)), said) for said in ordered
    )


def _say_size(call: CollectiveCall) -> str:
    # Other shapes with the same number of elements are legal.
    count = sum(prod(size) for size in call.input_sizes)
    return f"{call.name} of {count} elements" if call.input_sizes else ""


def _say_type(call: CollectiveCall) -> str:
    types = ", ".join(dict.fromkeys(call.input_types))
    return f"{call.name} of {types}" if types else ""


def _say_differences(finding: CollectiveFinding) -> str:
    """Say who called what: "ranks 0-6 called all_reduce of 16 elements, rank 7 called broadcast"."""
    return ", ".join(f"{name_numbers(one.ranks)} called {one.words}" for one in finding.differences)


def name_numbers(ranks: Sequence[int]) -> str:
    """Name ranks by their numbers: "ranks 0-2,4", "rank 3"."""
    return f"{_number(ranks, 'rank', 'ranks')} {list_numbers(ranks)}"


BACKENDS = {"nccl": "NCCL", "gloo": "gloo"}
"""By their names in torch, after which it names their threads: pt_nccl."""
FRAMEWORK_TIMEOUT_S = 1800.0
_TRAINER = "/transformers/trainer.py"
_FRAMEWORKS = {
    "deepspeed": "DeepSpeed",
    **dict.fromkeys(("lightning", "pytorch_lightning", "lightning_fabric"), "Lightning"),
}


def _ranks_of(groups: Sequence[StackGroup]) -> Iterator[tuple[StackGroup, DumpThread]]:
    for group in groups:
        for thread in group.threads:
            if thread.role is Role.RANK and thread.kind is ThreadKind.MAIN:
                yield group, thread


def find_standings(groups: Sequence[StackGroup]) -> dict[int, str]:
    """Say where each rank of a dump is, "" where that is not known; without ranks that share a number.

    Ranks that a program starts itself are numbered by birth, from 0 on each host.
    """
    found: dict[int, list[str]] = {}
    for group, thread in _ranks_of(groups):
        if is_known(thread.rank):
            words = ", ".join(word for word in (group.doing, say_wait(thread)) if word)
            found.setdefault(thread.rank, []).append(words if is_known(group.frames) else "")
    return {rank: those[0] for rank, those in found.items() if len(those) == 1}


@dataclass(frozen=True, slots=True)
class Waits:
    """Hold how long ranks are in collectives by their stacks, at most, and the backend by its threads.

    ``framework`` has a default timeout of its own; "" for none. ``by_log``: they were seen once, and may have
    begun to wait at the last line of the log.
    """

    backend: str
    since_s: Known[float]
    framework: str = ""
    by_log: bool = False


def find_waits(groups: Sequence[StackGroup], silent_s: Applicable[float] = NOT_APPLICABLE) -> Waits | None:
    """Return the waits of ranks for other ranks, None for none; ``silent_s`` is the age of the log."""
    threads = (thread for group in groups for thread in group.threads if thread.kind is ThreadKind.COMM)
    backend = find_backend(thread.name for thread in threads)
    ranks = [group for group, _ in _ranks_of(groups)]
    framework = find_framework(known_or(group.frames, ()) for group in ranks)
    waits = [group.since_s for group in ranks if group.stack_wait is WaitReason.COLLECTIVE]
    if not waits:
        return None
    if is_known(silent_s) and all(group.motion is Motion.ONCE for group in ranks):
        return Waits(backend, silent_s, framework, by_log=True)
    return Waits(backend, max((one for one in waits if is_known(one)), default=waits[0]), framework)


def find_framework(stacks: Iterable[Sequence[StackFrame]]) -> str:
    """Return the framework in the ranks' stacks that sets a timeout of its process group; "" for none."""
    files = {frame.file for frames in stacks for frame in frames}
    if any(file.endswith(_TRAINER) and package_of(file) for file in files):
        return "transformers.Trainer"
    packages = set(map(package_of, files))
    return next((name for package, name in _FRAMEWORKS.items() if package in packages), "")


def find_backend(names: Iterable[str]) -> str:
    """Return the backend by the names of communication threads; "" for none."""
    there = tuple(names)
    return next((name for name in BACKENDS if any(one.startswith(f"pt_{name}") for one in there)), "")


def may_wait(groups: Sequence[StackGroup]) -> bool:
    """Tell whether a rank waits for other ranks or its device by its stack, or could not be read.

    A rank that only packs an object there counts, too: the job's records may know more.
    """
    waits = (WaitReason.COLLECTIVE, WaitReason.DEVICE)
    return any(
        not is_known(group.frames) or describe_stack(thread.role, thread.kind, group.frames).wait in waits
        for group, thread in _ranks_of(groups)
    )


def say_assumed_abort(waits: Waits | None, defaults_s: Mapping[str, float]) -> str:
    """Say when the backend gives up with its default timeout; "" where nothing tells."""
    if waits is None or not is_known(waits.since_s) or waits.backend not in defaults_s:
        return ""
    framework, name = waits.framework, BACKENDS[waits.backend]
    default_s = FRAMEWORK_TIMEOUT_S if framework else defaults_s[waits.backend]
    left_s = default_s - waits.since_s
    if left_s > 0:
        since = " from the last log write on" if waits.by_log else ""
        whose = f"{framework}'s" if framework else "its"
        return f"{_say_end(waits.backend, left_s)} (assumed: {whose} default timeout{since})"
    if waits.by_log:  # the wait may be younger than the last line: nothing follows for the timeout
        return ""
    return f"{name} would have given up by default after {format_seconds(default_s)}: its timeout is longer"


JUST_NOW_S = 2.0
OLD_S = 30.0
_MOST_PLACES = 2
_MOST_RAS = 3
_MOST_TRANSFERS = 3
_LAGS = ("behind", "ahead of the rest")
_LAG_HINT = " (a job that runs shows this too: look again whether the numbers stay)"


def name_call(one: CollectiveFinding) -> str:
    """Name a collective: "all_reduce number 4 of default_pg"."""
    return f"{one.name or 'collective'} number {one.sequence} of {one.group}"


def say_why(one: CollectiveFinding) -> str:
    """Say in a few words what holds it up: who has not called it, or whose call does not fit."""
    if one.cause is CollectiveCause.MISMATCH:
        return _say_differences(one)
    parts = [_say_missing(one, {})] if one.missing else []
    parts += [_say_unread(one)] if one.unread else []
    return "; ".join(parts) or "all its ranks have called it"


def _say_age(age_s: float) -> str:
    return f"as recorded {format_seconds(age_s)} before: " if age_s >= OLD_S else ""


def write_summary(
    one: CollectiveFinding,
    standings: Mapping[int, str],
    age_s: float = 0.0,
    transfers: Mapping[int, str] = MappingProxyType({}),
) -> str:
    """Say what a finding means, by records ``age_s`` old; ``transfers`` name sends or receives of ranks."""
    total, count = len(one.waiting) + len(one.missing) + len(one.unread), len(one.waiting)
    is_new, call = one.waited_s < JUST_NOW_S, name_call(one)
    many = f"{'all' if count == total else f'{count} of {total}'} ranks"
    who = f"{many if total > 1 else name_numbers(one.waiting)} {_number(one.waiting, 'waits', 'wait')}"
    for_ = "" if is_new else f" for {format_seconds(one.waited_s)}"
    parts = [f"{call}: {who} in it{for_}"]
    if one.cause is CollectiveCause.MISMATCH:
        parts = [f"{call} does not fit: {_say_differences(one)}", f"{who}{for_}"]
    if one.missing:
        parts.append(f"{_say_missing(one, standings)}{_say_waits(one, transfers)}")
    if one.unread:
        parts.append(_say_unread(one))
    if one.cause is CollectiveCause.TRANSFER:
        parts.append("no rank is missing and the calls fit: look at the network and the cards")
    if is_new:
        parts.append("called just now, as in every step")
    elif is_known(one.abort_s) and age_s < OLD_S:
        parts.append(say_abort(one, one.abort_s))
    elif is_known(one.abort_s) and one.abort_s > age_s:
        parts.append(f"if they still wait, {say_abort(one, one.abort_s - age_s)}")
    return f"{_say_age(age_s)}{'; '.join(parts)}"


def _number(those: Sequence[object], one: str, many: str) -> str:
    return one if len(those) == 1 else many


def _say_unread(one: CollectiveFinding) -> str:
    return f"{name_numbers(one.unread)} {_number(one.unread, 'has', 'have')} no record of it here"


def _say_waits(one: CollectiveFinding, transfers: Mapping[int, str]) -> str:
    """Say which of the missing ranks wait themselves: " (waits itself in recv 1<-0)"."""
    waits = {rank: transfers[rank] for rank in one.missing if rank in transfers}
    if not waits:
        return ""
    if len(one.missing) == 1:
        return f" (waits itself in {waits[one.missing[0]]})"
    shown = [f"rank {rank} in {name}" for rank, name in list(waits.items())[:_MOST_TRANSFERS]]
    return f" (of these wait themselves: {', '.join(shown)})"


def _say_missing(one: CollectiveFinding, standings: Mapping[int, str]) -> str:
    said = f"{name_numbers(one.missing)} {_number(one.missing, 'has', 'have')} not called it"
    if one.cause is CollectiveCause.CROSSED:
        verb = _number(one.missing, "waits", "wait")
        return f"{said} and in turn {verb} in another group for those that wait here"
    places: dict[str, list[int]] = {}
    for rank in one.missing:
        if words := standings.get(rank, ""):
            places.setdefault(words, []).append(rank)
    if not places:
        return said
    shown = [
        words if len(places) == 1 else f"{name_numbers(ranks)} {words}"
        for words, ranks in list(places.items())[:_MOST_PLACES]
    ]
    return f"{said}: {'; '.join(shown)}"


def say_abort(one: CollectiveFinding, left_s: float) -> str:
    """Say that the backend gives up in ``left_s`` seconds, and whether that is assumed."""
    assumed = " (assumed: its default timeout)" if one.abort_assumed else ""
    return f"{_say_end(one.backend, left_s)}{assumed}"


def _say_end(backend: str, left_s: float) -> str:
    verb = "aborts this job" if backend == "nccl" else "gives up"
    when = f"in about {format_seconds(left_s)}" if left_s > 0 else "any moment"
    return f"{BACKENDS.get(backend, backend)} {verb} {when}"


def sum_up(
    findings: Sequence[CollectiveFinding],
    records: Sequence[RankRecord],
    ras: Sequence[RasReport],
    notes: Sequence[SourceNote],
    uncounted: str = "",
    *,
    age_s: float = 0.0,
) -> str:
    """Say in one sentence what the records show, the oldest ``age_s`` old; ``uncounted`` comes first."""
    old = _say_age(age_s)
    told = [f"NCCL RAS: {words}" for report in ras if (words := write_report(report))]
    named = "; ".join([f"{old}{uncounted}", *told] if uncounted else told)
    if findings:
        return f"{findings[0].summary}{f'; {named}' if named else ''}"
    if named:
        lags = not uncounted and all(map(_only_lags, ras))
        return f"{named}{_LAG_HINT if lags else ''}"
    if transfers := _say_transfers(records):
        return f"{old}{transfers}"
    if records and not any(record.groups for record in records):
        return "the records are empty: nothing was called yet, or TORCH_FR_BUFFER_SIZE is 0"
    if records:
        return f"{old}every collective that was called is done: no rank waits in one that the records know"
    if ras:
        return "NCCL RAS names no rank that is behind, silent or dead"
    return "no record of its collectives" if notes else ""


def _say_transfers(records: Sequence[RankRecord]) -> str:
    """Say which sends and receives are not done, the longest first; "" for none."""
    return _say_open(
        open_call(record.rank, record.taken, group, call)
        for record in records
        for group in record.groups
        for call in group.calls
        if call.is_transfer and call.state is not CallState.COMPLETED and is_known(record.rank)
    )


OpenCall = tuple[float, int, str]
"""A call of a rank that is not done: less the seconds that it has waited, the rank, and words of both."""


def open_call(rank: int, taken: datetime, group: GroupRecord, call: CollectiveCall) -> OpenCall:
    """Return a call of a rank by a record of the time ``taken``."""
    waited_s = max(0.0, (taken - call.created).total_seconds())
    name = f"{call.name} of {group.description or group.name}"
    return -waited_s, rank, f"rank {rank} waits in {name} for {format_seconds(waited_s)}"


def _say_open(calls: Iterable[OpenCall]) -> str:
    """Say who waits in which of these calls, the longest first; "" for none."""
    said = [words for _, _, words in sorted(calls)]
    more = said[_MOST_TRANSFERS:]
    rest = [f"{len(more)} more {_number(more, 'waits', 'wait')}"] if more else []
    return ", ".join([*said[:_MOST_TRANSFERS], *rest])


def say_uncounted(waits: Sequence[OpenCall]) -> str:
    """Say who waits in collectives whose numbers cannot be compared between ranks; "" for nobody."""
    if not waits:
        return ""
    return (
        f"{_say_open(waits)} (who is missing is not told: batches of sends and receives count among its"
        " collectives, and without the oldest calls the numbers cannot be compared between ranks)"
    )


def _only_lags(report: RasReport) -> bool:
    """Tell whether only counts of operations differ: NCCL reads them while the ranks go on."""
    return not report.dead and not report.silent and all(one.problem in _LAGS for one in report.ranks)


def write_report(report: RasReport) -> str:
    """Say which ranks NCCL's RAS names, "" for none."""
    parts = [_say_lost(report, "dead", report.dead)] if report.dead else []
    parts += [_say_lost(report, "no answer", report.silent)] if report.silent else []
    lost = {(one.process, one.node) for one in report.lost}
    rest = [one for one in report.ranks if not (_is_lost(one) and (one.process, one.node) in lost)]
    behind = [one for one in rest if one.problem == "behind"]
    named = [*behind, *(one for one in rest if one.problem not in _LAGS)]
    parts += map(_say_rank, named[:_MOST_RAS])
    return ", ".join([*parts, f"{len(named) - _MOST_RAS} more"] if len(named) > _MOST_RAS else parts)


def _is_lost(one: RasRank) -> bool:
    """Tell whether a rank only gave no answer, or never launched anything."""
    return one.problem == "no answer" or (one.problem == "behind" and one.launched == 0)


def _say_lost(report: RasReport, problem: str, count: int) -> str:
    """Say how many processes are dead or silent, and which: "process 7 on 10.0.0.1 is dead"."""
    verb = "gave no answer" if problem == "no answer" else f"is {problem}" if count == 1 else f"are {problem}"
    those = [_say_process(one, report) for one in report.lost if one.problem == problem]
    if count == len(those) == 1:
        who, rank = those[0]
        return f"{who} {verb}{rank}"
    head = f"{count} process{'es' if count > 1 else ''} {verb}"
    shown = [f"{who}{rank}" for who, rank in those[:_MOST_RAS]]
    more = [f"{len(those) - _MOST_RAS} more"] if len(those) > _MOST_RAS else []
    return f"{head}: {', '.join([*shown, *more])}" if shown else head


def _say_process(lost: RasProcess, report: RasReport) -> tuple[str, str]:
    rank = next((one for one in report.ranks if (one.process, one.node) == (lost.process, lost.node)), None)
    of = f" (rank {rank.rank} of communicator {rank.communicator[-6:]})" if rank is not None else ""
    return f"process {lost.process} on {lost.node}", of


def _say_rank(one: RasRank) -> str:
    where = f" (process {one.process} on {one.node})" if is_known(one.process) and is_known(one.node) else ""
    who = f"rank {one.rank} of communicator {one.communicator[-6:]}{where}"
    if one.problem == "behind" and is_known(one.operation):
        return f"{who} launched {one.launched} of {one.most_launched} {one.operation}"
    return f"{who}: {one.problem}"
