"""One verdict of what the nodes of a job tell: their own verdicts, stacks of all ranks, who is late. Pure.

Each agent judges its node. What a rule there waits for, because ranks are elsewhere, is decided here, where
they are seen: a hang by the stacks of all nodes, a late rank by the waits of all. Nodes that do not answer
are left out, and none of them holds the others.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from tpmon.judge.answers.result import reading_aged, tell
from tpmon.judge.dumps.collective_words import name_numbers
from tpmon.judge.dumps.collectives import fold_collectives
from tpmon.judge.features.comms import BEHIND_RATIO
from tpmon.judge.folds.groups import fold_dumps
from tpmon.judge.hang.detection import AGAIN_S, ANSWER_S, LEAD_S
from tpmon.judge.rules.comms import WAITING_RATIO
from tpmon.judge.watch.tracker import HANG_AFTER_S, RHYTHM_FACTOR, WatchedTime, age_ns
from tpmon.model.dump import Dump, StackGroup, WaitKind
from tpmon.model.figures import Figure
from tpmon.model.frame import TargetState
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.results.collectives import CollectiveCause
from tpmon.model.results.fleet import (
    FLEET_SCHEMA,
    FleetNode,
    FleetReport,
    NodeState,
    NodeSummary,
    NodeView,
    RankSummary,
)
from tpmon.model.text.job_words import join_cause
from tpmon.model.units import clean_text, count_of, format_seconds, say_ratio
from tpmon.model.verdict import (
    EXIT_CODES,
    IN_WORDS,
    Confidence,
    Evidence,
    Finding,
    Kind,
    SinceIs,
    VerdictCode,
    pick_code,
)
from tpmon.model.waits import WaitReason

ROUNDS = 3
EVERY_S = 5.0
WINDOW_S = 12.0
WINDOWS = 5
AGREE = 3
"""A rank is late when so many of the last ``WINDOWS`` windows of a minute name it."""
REFOLD_S = 5.0
"""How often stacks that stay true are judged again: some waits must last longer than others."""
STILL_S = 5.0
"""From when on it is said that nothing moves."""
MOVED_S = 2.0
"""A look at stacks is still true if nothing has moved since, but for so long."""
GONE_S = 37.0
"""Who tells nothing for so long is gone: its agent was started again after 30 s, and is not there either."""
_NOTHING = "no node tells of the job so far"
_ALONE = "these are several jobs, or one host by two names, and each node is judged alone"
_ELSEWHERE = CollectiveCause.REMOTE_RANK.value
_PAUSES = (Kind.PAUSED, Kind.STARTING, Kind.IDLE)
"""Verdicts of a node whose ranks do on purpose what is no step."""
_SEVERITY = (VerdictCode.FINE, VerdictCode.UNDECIDED, VerdictCode.HELD, VerdictCode.HUNG)


@dataclass(frozen=True, slots=True)
class RankBehind:
    """Name a rank that others wait for in one window, and by what."""

    node: str
    rank: int
    pid: int
    share: float
    """Of a step, or of the time, that the others wait for it."""
    evidence: tuple[Evidence, ...]
    words: str


@dataclass(frozen=True, slots=True)
class Seat:
    """Hold which ranks were seen on a node, and when last, in seconds of the monotonic clock."""

    node: str
    ranks: tuple[int, ...]
    seen_s: float


@dataclass(frozen=True, slots=True)
class FleetMemory:
    """Hold what is remembered between two seconds of a fleet; times are of the monotonic clock, seconds."""

    asked_s: float = 0.0
    """When stacks of all nodes were asked for last, 0 for never."""
    asked: tuple[str, ...] = ()
    looks: tuple[Dump, ...] = ()
    folded: Applicable[Dump] = NOT_APPLICABLE
    folded_s: float = 0.0
    windows: tuple[RankBehind | None, ...] = ()
    window_s: float = 0.0
    seats: tuple[Seat, ...] = ()
    absent: tuple[Seat, ...] = ()
    """Ranks that were seen, and are on no node any more: their job has ended there, or the node is gone."""
    hang_after_s: float | None = None
    """What the user gave, None where the run's rhythm decides."""


Watched = tuple[FleetNode, NodeSummary]


def list_watched(nodes: Sequence[FleetNode]) -> list[Watched]:
    """Return the nodes that tell of ranks that live there, with what they tell."""
    told = [(one, one.summary) for one in nodes if one.state is NodeState.LIVE and is_known(one.summary)]
    return [(one, it) for one, it in told if it.ranks and it.state is not TargetState.ENDED]


def _list_sizes(watched: Sequence[Watched]) -> list[int]:
    return [told.world_size for _, told in watched if is_known(told.world_size)]


def say_strangers(watched: Sequence[Watched]) -> str:
    """Return why what these nodes tell of is not one job, empty where it may be one."""
    places: dict[int, str] = {}
    sizes: dict[int, str] = {}
    for node, told in watched:
        if not is_known(told.world_size) or told.world_size == 1:
            continue  # whoever started its ranks has not said which they are
        sizes.setdefault(told.world_size, node.node)
        for rank in {one.rank for one in told.ranks if is_known(one.rank)}:
            if rank in places:
                return f"rank {rank} is on {places[rank]} and on {node.node}: {_ALONE}"
            places[rank] = node.node
    if len(sizes) > 1:
        (one, here), (other, there), *_ = sizes.items()
        return f"{here} is of {count_of(one, 'rank')}, {there} of {other}: {_ALONE}"
    return ""


def measure_still(nodes: Sequence[FleetNode], memory: FleetMemory) -> WatchedTime:
    """Return for how long no rank of any node has moved, and the longest pause of any of them, as a watch."""
    seen = list_watched(nodes)
    still_s = min((told.still_s for _, told in seen), default=0.0)
    hang_after_s = max((told.hang_after_s for _, told in seen), default=HANG_AFTER_S)
    now_ns = age_ns(still_s) + 1  # limited: what an odd node tells brings nothing down
    asked_s = memory.hang_after_s
    return WatchedTime(asked_s=asked_s, longest_s=hang_after_s / RHYTHM_FACTOR, still_ns=1, taken_ns=now_ns)


def plan_look(memory: FleetMemory, nodes: Sequence[FleetNode], now_s: float) -> tuple[str, ...]:
    """Return the nodes whose stacks are worth reading now: all that watch ranks, once none of these moves."""
    # The looks take ten seconds, and begin so much before it is a hang. One node is judged by its own agent.
    watched = list_watched(nodes)
    watch = measure_still(nodes, memory)
    if max(len(watched), len(memory.seats)) < 2 or watch.still_s < watch.hang_after_s - LEAD_S:
        return ()
    if say_strangers(watched):
        return ()
    is_due = not memory.asked_s or now_s - memory.asked_s >= AGAIN_S
    return tuple(one.node for one, _ in watched) if is_due else ()


def note_asked(memory: FleetMemory, nodes: tuple[str, ...], now_s: float) -> FleetMemory:
    """Note that stacks were asked for."""
    return replace(memory, asked_s=now_s, asked=nodes, looks=(), folded=NOT_APPLICABLE, folded_s=0.0)


def note_answer(memory: FleetMemory, node: str, dump: Known[Dump]) -> FleetMemory:
    """Add the stacks of one node, or that there are none."""
    if node not in memory.asked:
        return memory
    asked = tuple(one for one in memory.asked if one != node)
    looks = (*memory.looks, name_host(dump, node)) if is_known(dump) else memory.looks
    return replace(memory, asked=asked, looks=looks)


def name_host(dump: Dump, node: str) -> Dump:
    """Return a dump whose host is called as the node is: two machines may have one host name."""
    groups = tuple(
        replace(group, threads=tuple(replace(thread, host=node) for thread in group.threads))
        for group in dump.groups
    )
    odd = dump.odd_one_out
    return replace(
        dump,
        host=node,
        groups=groups,
        errors=tuple(replace(one, host=node) for one in dump.errors),
        odd_one_out=replace(odd, host=node) if is_known(odd) else odd,
    )


def observe(memory: FleetMemory, nodes: Sequence[FleetNode], now_s: float) -> FleetMemory:
    """Add one second: fold the stacks that are there, drop those that movement disproves, close a window."""
    seats = _note_seats(memory.seats, nodes, now_s)
    memory = replace(memory, seats=seats, absent=_find_absent(seats, nodes, now_s))
    watch = measure_still(nodes, memory)
    if memory.asked_s and watch.still_s < now_s - memory.asked_s - MOVED_S:
        memory = replace(memory, asked=(), looks=(), folded=NOT_APPLICABLE, asked_s=0.0)
    is_whole, old = not memory.asked or now_s - memory.asked_s >= ANSWER_S, memory.folded
    is_hung = is_known(old) and is_known(old.verdict) and old.verdict.kind is Kind.HUNG
    if memory.looks and is_whole and now_s - memory.folded_s >= REFOLD_S and not is_hung:
        folded = fold_collectives(fold_dumps(memory.looks, watch), memory.looks)
        memory = replace(memory, folded=folded, folded_s=now_s)
    if now_s - memory.window_s >= WINDOW_S:
        windows = (*memory.windows, find_late(nodes))[-WINDOWS:]
        memory = replace(memory, windows=windows, window_s=now_s)
    return memory


def _note_seats(seats: Sequence[Seat], nodes: Sequence[FleetNode], now_s: float) -> tuple[Seat, ...]:
    """Note where ranks are now; nodes that tell of none keep those that they had."""
    noted = {one.node: one for one in seats}
    for node, told in list_watched(nodes):
        ranks = tuple(one.rank for one in told.ranks if is_known(one.rank))
        noted[node.node] = Seat(node.node, ranks, now_s)
    return tuple(noted.values())


def _find_absent(seats: Sequence[Seat], nodes: Sequence[FleetNode], now_s: float) -> tuple[Seat, ...]:
    """Return the ranks that are nowhere now, where their job has ended first."""
    old = [one for one in seats if one.seen_s < now_s]
    if not old:
        return ()
    here = {rank for one in seats if one.seen_s >= now_s for rank in one.ranks}
    # A run that was started again with fewer ranks waits for none of those before.
    size = max(_list_sizes(list_watched(nodes)), default=1 << 31)
    ended = {one.node for one in nodes if _has_ended(one)}
    gone = [
        replace(one, ranks=left)
        for one in old
        if (one.node in ended or now_s - one.seen_s >= GONE_S)
        and (left := tuple(rank for rank in one.ranks if rank < size and rank not in here))
    ]
    return tuple(sorted(gone, key=lambda one: one.node not in ended))


_Placed = tuple[FleetNode, RankSummary]


def find_late(nodes: Sequence[FleetNode]) -> RankBehind | None:
    """Return the rank that the ranks of all nodes wait for now; None where none is known."""
    # While somebody stands for a whole window there are no steps: one rank saves or validates.
    watched = list_watched(nodes)
    placed = [(node, rank) for node, told in watched for rank in told.ranks]
    if len(watched) < 2 or any(told.still_s >= WINDOW_S for _, told in watched) or say_strangers(watched):
        return None  # of a single node its own agent sees all ranks
    late = _find_by_steps(placed) or _find_by_waits(placed)
    pauses = any(
        late is not None and node.node == late.node and told.kind in _PAUSES for node, told in watched
    )
    return None if pauses else late


def _find_by_steps(placed: Sequence[_Placed]) -> RankBehind | None:
    """Find the rank whose data and forward take longest, by the hooks of all."""
    own = [
        (rank.own_ms, rank.step_ms, node, rank)
        for node, rank in placed
        if is_known(rank.own_ms) and is_known(rank.step_ms)
    ]
    if len(own) < len(placed):
        return None
    own.sort(key=lambda one: -one[0])
    late_ms, step_ms, node, rank = own[0]
    others_ms = statistics.median(one[0] for one in own[1:])
    share = (late_ms - others_ms) / step_ms if step_ms > 0 else 0.0
    if share < BEHIND_RATIO:
        return None
    rows = (_row(Figure.LATE_RANK_HOST, late_ms, _name(rank)), _row(Figure.OTHERS_HOST, others_ms))
    words = f"takes {late_ms:.0f} ms for data and forward of a step, the others {others_ms:.0f} ms"
    return _point(node, rank, share, rows, words)


def _find_by_waits(placed: Sequence[_Placed]) -> RankBehind | None:
    """Find the rank that waits in collectives least, while the others wait there long."""
    waits = [(rank.wait_ratio, node, rank) for node, rank in placed if is_known(rank.wait_ratio)]
    if len(waits) < len(placed):
        return None
    waits.sort(key=lambda one: one[0])
    least, node, rank = waits[0]
    typical = statistics.median(one[0] for one in waits[1:])
    if typical < WAITING_RATIO or typical - least < BEHIND_RATIO:
        return None
    rows = (
        _row(Figure.RANK_IN_COLLECTIVES, 100 * least, _name(rank)),
        _row(Figure.OTHERS_IN_COLLECTIVES, 100 * typical),
    )
    words = f"is in collectives {say_ratio(least)} of the time, the others {say_ratio(typical)}"
    return _point(node, rank, typical - least, rows, words)


def _point(
    node: FleetNode, rank: RankSummary, share: float, rows: tuple[Evidence, ...], words: str
) -> RankBehind | None:
    return RankBehind(node.node, rank.rank, rank.pid, share, rows, words) if is_known(rank.rank) else None


def _name(rank: RankSummary) -> str:
    return f"rank {rank.rank}" if is_known(rank.rank) else f"process {rank.pid}"


def _row(figure: Figure, value: float, of: str = "") -> Evidence:
    return tell(reading_aged(figure, round(value, 2), WINDOW_S / 2, of=of))


def find_straggler(windows: Sequence[RankBehind | None]) -> RankBehind | None:
    """Return the newest sight of the rank that enough windows agree on."""
    counts = Counter((one.node, one.rank, one.pid) for one in windows if one is not None)
    late, often = counts.most_common(1)[0] if counts else (None, 0)
    if often < AGREE:
        return None
    return next(one for one in reversed(windows) if one is not None and (one.node, one.rank, one.pid) == late)


def _judge_straggler(late: RankBehind, its_own: Finding | None, now: datetime) -> Finding:
    """Say who is late, and what holds its own node, which may be why."""
    why = ""
    if its_own is not None and its_own.kind is not Kind.COMMS_BOUND:
        held = EXIT_CODES[its_own.kind] == VerdictCode.HELD
        why = f"; its node is {join_cause(its_own.kind, its_own.cause)}" if held else ""
    return Finding(
        kind=Kind.COMMS_BOUND,
        cause="straggler",
        confidence=Confidence.MEDIUM,
        share_pct=100 * late.share,
        share_low_pct=NOT_APPLICABLE,
        share_high_pct=NOT_APPLICABLE,
        since=now - timedelta(seconds=AGREE * WINDOW_S),
        since_is=SinceIs.LOWER_BOUND,
        since_source=f"{AGREE} of {WINDOWS} windows of {WINDOW_S:g} s",
        summary=f"rank {late.rank} on {late.node} {late.words}: they wait for it{why}",
        try_=f"tpmon attach {late.pid}  # on {late.node}: what it does more than the others",
        also_try=NOT_APPLICABLE,
        ceiling=NOT_APPLICABLE,
        evidence=late.evidence,
        against=(),
        ruled_out=(),
        unknown=(),
        pid=late.pid,
        rank=late.rank,
        card=NOT_APPLICABLE,
        where=NOT_APPLICABLE,
    )


@dataclass(frozen=True, slots=True)
class Placed:
    """Hold a verdict and the node that it points at, if it is one."""

    finding: Known[Finding]
    node: Applicable[str] = NOT_APPLICABLE


def judge_fleet(memory: FleetMemory, nodes: Sequence[FleetNode], now: datetime) -> Placed:
    """Return the one verdict: a hang, then a rank that all wait for, then the worst of the nodes' own."""
    # That a node waits for ranks elsewhere is no verdict where these are seen, too.
    watch, watched = measure_still(nodes, memory), list_watched(nodes)
    sizes = _list_sizes(watched)
    sees_all = bool(sizes) and sum(len(told.ranks) for _, told in watched) >= max(sizes)
    if strangers := say_strangers(watched):
        return _place_own(_sort(_list_own(nodes)), nodes, strangers)
    own = _list_own(nodes)
    waits = all(it.kind is Kind.COMMS_BOUND for _, it in own)  # else a node only waits for another one
    own = [(one, it) for one, it in own if not (sees_all and _is_of_others(it, waits))]
    if absent := _judge_absent(memory, nodes):
        return absent
    if memory.absent and watch.still_s < watch.hang_after_s + REFOLD_S:
        # A node that does not see them may blame a rank of its own before the stacks of all are there.
        own = [(one, it) for one, it in own if it.kind is not Kind.HUNG]
    folded = memory.folded
    stood = folded.verdict if is_known(folded) and is_known(folded.verdict) else None
    if stood is not None and is_known(folded) and stood.kind is Kind.HUNG:
        odd, pid = folded.odd_one_out, stood.pid
        if not is_known(odd) or not odd.host or not is_known(pid):
            return Placed(stood)
        attach = f"tpmon attach {pid}  # on {odd.host}; tpmon dump {pid} has all its stacks"
        return Placed(replace(stood, summary=f"{odd.host}: {stood.summary}", try_=attach), odd.host)
    worst = _sort(own)
    top = pick_code(worst[0][1].kind, worst[0][1].cause) if worst else VerdictCode.UNDECIDED
    if top != VerdictCode.HUNG and (late := find_straggler(memory.windows)):
        its_own = next((it for one, it in worst if one.node == late.node), None)
        return Placed(_judge_straggler(late, its_own, now), late.node)
    if stood is not None and top in (VerdictCode.UNDECIDED, VerdictCode.FINE):
        return Placed(stood)
    if top == VerdictCode.UNDECIDED and len(watched) > 1 and watch.still_s >= STILL_S:
        # What a node waits for before it calls that a hang, nobody waits for here.
        said = f"no rank of {len(watched)} nodes has moved for {format_seconds(watch.still_s)}"
        until = f"called a hang from {format_seconds(watch.hang_after_s)} on"
        if watch.still_s >= watch.hang_after_s:
            until = "no stacks of all nodes tell so far whether it hangs"
        return Placed(replace(worst[0][1], summary=f"{said}; {until}", try_=NOT_APPLICABLE))
    return _place_own(worst, nodes)


def _judge_absent(memory: FleetMemory, nodes: Sequence[FleetNode]) -> Placed | None:
    """Say that all that are left wait for ranks that have ended, or whose node is gone; None if not so."""
    watch, folded = measure_still(nodes, memory), memory.folded
    if not memory.absent or not is_known(folded) or watch.still_s < watch.hang_after_s:
        return None
    mains = [
        one
        for one in folded.groups
        if (one.threads[0].role, one.threads[0].kind) == (Role.RANK, ThreadKind.MAIN)
    ]
    is_unread = any(one.role is Role.RANK for one in folded.errors)
    # One of those that are left may be to blame.
    if is_unread or not _wait_for_ranks(mains) or not is_known(folded.verdict):
        return None
    first, *others = memory.absent
    node = next(one for one in nodes if one.node == first.node)
    said = f"{name_numbers(first.ranks)} {'have' if len(first.ranks) > 1 else 'has'} ended"
    why = node.verdict.summary if is_known(node.verdict) else ""
    if not _has_ended(node):
        said = f"it answers no more, and has {name_numbers(first.ranks)}"
        why = node.reason if is_known(node.reason) else ""
    more = f"; {count_of(len(others), 'other node')} likewise" if others else ""
    left = sum(len(one.threads) for one in mains)
    waits = "the rank that is left waits" if left == 1 else f"the {left} ranks that are left wait"
    where = f"{' or '.join(one.doing for one in mains)}, for {format_seconds(watch.still_s)}"
    text = f"{first.node}: {said}{f' ({why})' if why else ''}{more}; {waits} in {where}"
    hung = replace(
        folded.verdict,
        kind=Kind.HUNG,
        cause=CollectiveCause.MISSING_RANK.value,
        summary=text,
        try_=f"dmesg -T | tail  # on {first.node}: was it killed, has a card failed?",
        evidence=(tell(reading_aged(Figure.DUMP_WAITS, IN_WORDS, 0.0, text=text)),),
        against=(),
        pid=NOT_APPLICABLE,
        rank=first.ranks[0] if len(first.ranks) == 1 else NOT_APPLICABLE,
        where=NOT_APPLICABLE,
    )
    return Placed(hung, first.node)


def _wait_for_ranks(groups: Sequence[StackGroup]) -> bool:
    """Tell whether all wait for other ranks: in a collective, or at a socket of one of them (the store)."""
    if all(one.stack_wait is WaitReason.COLLECTIVE for one in groups):
        return True
    threads = [one for group in groups for one in group.threads]
    here = {(one.host, one.pid) for one in threads}
    at = [
        (one, one.waits_on)
        for one in threads
        if is_known(one.waits_on) and one.waits_on.kind is WaitKind.SOCKET
    ]
    is_theirs = any((one.host, end.pid) in here for one, target in at for end in known_or(target.others, ()))
    return len(at) == len(threads) and len({known_or(target.peer, "") for _, target in at}) == 1 and is_theirs


def _list_own(nodes: Sequence[FleetNode]) -> list[tuple[FleetNode, Finding]]:
    """Return the nodes with a verdict of their own; one whose job has ended keeps the last."""
    telling = (NodeState.LIVE, NodeState.NO_JOB)
    return [(one, one.verdict) for one in nodes if one.state in telling and is_known(one.verdict)]


def is_over(nodes: Sequence[FleetNode]) -> bool:
    """Tell whether no node will tell more: the job has ended wherever it ran, or no agent can be started."""
    may_tell = (NodeState.STARTING, NodeState.LIVE, NodeState.LATE, NodeState.GONE)
    never = (NodeState.REFUSED, NodeState.OTHER_VERSION)
    if all(one.state in never for one in nodes):
        return True
    return any(map(_has_ended, nodes)) and not any(
        one.state in may_tell and not (one.state is NodeState.LIVE and _has_ended(one)) for one in nodes
    )


def _has_ended(node: FleetNode) -> bool:
    return is_known(node.summary) and node.summary.state is TargetState.ENDED


def _is_of_others(finding: Finding, all_wait: bool) -> bool:
    """Tell whether what a node waits for is on another one, which is seen."""
    is_wait = finding.kind is Kind.COMMS_BOUND and finding.cause == "unknown"
    return finding.cause == _ELSEWHERE or (is_wait and not all_wait)


def _weigh(finding: Finding) -> tuple[int, bool, float]:
    """Weigh a verdict of a node: what waits for other nodes is mostly explained by them."""
    code = VerdictCode(pick_code(finding.kind, finding.cause))
    is_wait = finding.kind is Kind.COMMS_BOUND or finding.cause == _ELSEWHERE
    return _SEVERITY.index(code), not is_wait, known_or(finding.share_pct, 0.0)


def _sort(own: Sequence[tuple[FleetNode, Finding]]) -> list[tuple[FleetNode, Finding]]:
    return sorted(own, key=lambda one: _weigh(one[1]), reverse=True)


def _place_own(
    worst: Sequence[tuple[FleetNode, Finding]], nodes: Sequence[FleetNode], note: str = ""
) -> Placed:
    """Say the worst verdict of a node, and where: on that node, on some, on all; else why there is none."""
    if not worst:
        return Placed(_explain_silence(nodes))
    node, finding = worst[0]
    same = [one.node for one, other in worst if (other.kind, other.cause) == (finding.kind, finding.cause)]
    more = f"; {note}" if note else ""
    if len(nodes) == 1:
        return Placed(finding, node.node)
    if len(same) == 1:
        said = f"{node.node}: {finding.summary}{more}"
        return Placed(replace(_say_where(finding, node.node), summary=said), node.node)
    # Nodes that tell nothing are none of "each".
    every = len(nodes) if len(same) == len(worst) else len(worst)
    where = "each node" if len(same) == every else f"{len(same)} of {count_of(every, 'node')}"
    return Placed(replace(finding, summary=f"on {where}, such as {node.node}: {finding.summary}{more}"))


def _explain_silence(nodes: Sequence[FleetNode]) -> Missing:
    """Say that no node tells of the job, and why the first of them does not."""
    why = next((f": {one.node}: {one.reason}" for one in nodes if is_known(one.reason)), "")
    return Missing(clean_text(f"{_NOTHING}{why}"))


def _say_where(finding: Finding, node: str) -> Finding:
    """Say behind the command to paste on which node; of several lines each may be one of its own."""
    if not is_known(finding.try_):
        return finding
    pasted = known_or(finding.try_code, "")
    if not pasted or not finding.try_.endswith(pasted):  # it came from elsewhere, and may have been cut
        pasted = finding.try_
    words = finding.try_.removesuffix(pasted)
    first, newline, rest = pasted.partition("\n")
    marked = f"{first}  # on {node}{newline}{rest}"
    try_code = marked if is_known(finding.try_code) else NOT_APPLICABLE
    return replace(finding, try_=f"{words}{marked}", try_code=try_code)


def list_views(nodes: Sequence[FleetNode]) -> tuple[NodeView, ...]:
    """Return which nodes have the same verdict of their own, the worst first."""
    found: dict[tuple[Kind, Applicable[str]], list[str]] = {}
    for node, finding in _sort(_list_own(nodes)):
        found.setdefault((finding.kind, finding.cause), []).append(node.node)
    return tuple(NodeView(kind, cause, tuple(names)) for (kind, cause), names in found.items())


def join_fleet(memory: FleetMemory, nodes: Sequence[FleetNode], now: datetime) -> FleetReport:
    """Join what all nodes tell into one report."""
    placed = judge_fleet(memory, nodes, now)
    told = [one.summary for one in nodes if is_known(one.summary)]
    sizes = [one.world_size for one in told if is_known(one.world_size)]
    return FleetReport(
        schema=FLEET_SCHEMA,
        taken=now,
        script=told[0].script if told else NOT_APPLICABLE,
        world_size=max(sizes) if sizes else NOT_APPLICABLE,
        ranks=sum(len(summary.ranks) for _, summary in list_watched(nodes)),
        verdict=placed.finding,
        node=placed.node,
        views=list_views(nodes),
        nodes=tuple(nodes),
        dump=memory.folded,
    )


def has_settled(nodes: Iterable[FleetNode]) -> bool:
    """Tell whether every node has answered in some way, those that tell of a job with a verdict."""
    return not any(
        (one.state is NodeState.LIVE and not is_known(one.verdict))
        or (one.state is NodeState.STARTING and not is_known(one.reason))
        for one in nodes
    )
