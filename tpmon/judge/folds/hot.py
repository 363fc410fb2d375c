"""Reduce dumps and samples to hot functions, a tree of stacks, and updates of a growing dump. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from tpmon.judge.dumps.collective_words import may_wait
from tpmon.judge.dumps.collectives import add_collectives
from tpmon.judge.dumps.describe import describe_stack, own_frames, shorten_stack
from tpmon.judge.folds.groups import ROLES, DumpOrigin, fold_rounds
from tpmon.judge.stacks.classify import is_users, package_of
from tpmon.judge.stacks.phases import Phase
from tpmon.model.dump import DumpRound, DumpState, ShownFrame, StackGroup
from tpmon.model.frame import Frame, TargetState
from tpmon.model.host import OutputSample
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.results.collectives import CollectivesReading
from tpmon.model.results.doctor import DumpUpdate, GroupStack, TreeLine
from tpmon.model.results.sample import (
    SAMPLE_SCHEMA,
    CountedFunction,
    FoldedStack,
    HotFunction,
    HotGroup,
    HotSample,
    PhaseShare,
    SampledProcess,
    SampleReading,
)
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.model.waits import WaitReason

MOST_FUNCTIONS = 100
NOT_KEPT = StackFrame("[stack not kept]", "", 0)
"""Stands for stacks beyond the number that is kept, so that the samples still add up."""
_UNNAMED = "python"


def hot_functions(reading: SampleReading, origin: DumpOrigin) -> HotSample:
    """Add up what was sampled of a job."""
    request = reading.request
    return HotSample(
        schema=SAMPLE_SCHEMA,
        host=reading.host,
        taken=reading.taken,
        pid=origin.pid,
        script=origin.script,
        seconds=reading.elapsed_s,
        asked_seconds=request.seconds,
        rate_hz=request.rate_hz,
        counted=request.counted,
        asked_processes=reading.asked,
        sampled_processes=len(reading.processes),
        ended_processes=reading.ended,
        groups=tuple(_group_processes(reading.processes, request.counted)),
        lost_samples=sum(process.lost for process in reading.processes),
        behind_s=max((process.behind_s for process in reading.processes), default=0.0),
        errors=reading.errors,
        paused_ms=0.0,
        spy_cpu_ms=reading.spy_cpu_ms,
    )


def _group_processes(processes: Sequence[SampledProcess], counted: CountedFunction) -> Iterable[HotGroup]:
    """Group by role (ranks, workers, helpers), the main threads of all roles first."""
    for main in (True, False):
        for role in ROLES:
            those = [process for process in processes if process.role is role]
            seen = any(is_main(process, stack) is main for process in those for stack in process.stacks)
            if seen or (main and those):
                yield _add_up(role, those, counted, main=main)


def is_main(process: SampledProcess, stack: StackCount) -> bool:
    """Tell whether a stack is of the thread that runs the loop, mostly the main one."""
    return stack.tid == known_or(process.loop_tid, process.pid)


def fold_stacks(reading: SampleReading) -> tuple[FoldedStack, ...]:
    """Add up equal stacks of each part of the job; their order does not depend on that of processes."""
    counts: Counter[tuple[Role, bool, tuple[StackFrame, ...]]] = Counter()
    for process in reading.processes:
        for stack in process.stacks:
            counts[process.role, is_main(process, stack), _shorten(stack.frames)] += stack.samples

    def order(folded: FoldedStack) -> tuple[object, ...]:
        names = [(frame.function, frame.file, frame.line) for frame in folded.frames]
        return not folded.main, ROLES.index(folded.role), -folded.samples, names

    return tuple(sorted((FoldedStack(*key, samples) for key, samples in counts.items()), key=order))


def _shorten(frames: tuple[StackFrame, ...]) -> tuple[StackFrame, ...]:
    return tuple(own_frames(frames)) or (NOT_KEPT,)


_Name = tuple[str, str]
"""A function, and its file."""


class _Counts:
    """Count the samples of one group's functions by their lines: as the innermost, anywhere, and that wait.

    Of a function that calls itself the innermost line counts, so that it is in a stack once.
    """

    def __init__(self) -> None:
        self.samples = self.waits = 0
        self._own, self._total, self._waiting = (Counter[StackFrame]() for _ in range(3))

    def add(self, frames: Sequence[StackFrame], samples: int, *, waits: bool) -> None:
        """Count one stack, outermost frame first."""
        self.samples += samples
        self.waits += samples if waits else 0
        self._own[frames[-1]] += samples
        inner = {(frame.function, frame.file): frame for frame in frames}
        for frame in inner.values():
            self._total[frame] += samples
            if waits:
                self._waiting[frame] += samples

    def list_functions(self, looks: int) -> list[HotFunction]:
        """List the functions, hottest first, with the most frequent line of each.

        Where a function was innermost in some samples, its line is of those only.
        """
        lines: dict[_Name, list[StackFrame]] = {}
        for frame in sorted(self._total, key=lambda one: (self._own[one], self._total[one], -one.line)):
            lines.setdefault((frame.function, frame.file), []).append(frame)
        found = []
        for (function, file), those in lines.items():
            own, total, waiting = (
                sum(map(counts.__getitem__, those)) for counts in (self._own, self._total, self._waiting)
            )
            is_own = those[0] != NOT_KEPT and is_users(those[0])
            found.append(
                HotFunction(
                    function=function,
                    file=file,
                    line=those[-1].line,
                    package="" if is_own else package_of(file) or _UNNAMED,
                    self_samples=own,
                    total_samples=total,
                    waiting_samples=waiting,
                    self_pct=_pct(own, looks),
                    total_pct=_pct(total, looks),
                    waiting_pct=_pct(waiting, looks),
                )
            )
        return sorted(found, key=lambda one: (-one.self_samples, -one.total_samples, one.function, one.file))


def _add_up(
    role: Role, processes: Sequence[SampledProcess], counted: CountedFunction, *, main: bool
) -> HotGroup:
    # Processes of one role mostly share stacks, and describing a stack is costly.
    merged: Counter[tuple[StackFrame, ...]] = Counter()
    looks = sampled = 0
    for process in processes:
        stacks = [stack for stack in process.stacks if is_main(process, stack) is main]
        if main or counted is not CountedFunction.ALL:
            threads = 1 if main else len({stack.tid for stack in stacks})
            looks += (process.looks - process.lost) * threads
        else:
            looks += sum(stack.samples for stack in stacks)
        sampled += bool(stacks) or main
        for stack in stacks:
            merged[stack.frames] += stack.samples
    counts, phases = _Counts(), Counter[Phase]()
    for frames, samples in merged.items():
        doing = describe_stack(role, ThreadKind.MAIN if main else ThreadKind.OTHER, frames)
        counts.add(_shorten(frames), samples, waits=doing.wait is not WaitReason.OTHER)
        if main and role is Role.RANK:
            phases[doing.phase] += samples
    looks = max(looks, counts.samples)
    functions = counts.list_functions(looks)
    ordered = sorted(phases.items(), key=lambda entry: (-entry[1], entry[0].value))
    return HotGroup(
        role=role,
        main=main,
        ranks=tuple(sorted({one.rank for one in processes if is_known(one.rank)})),
        processes=sampled,
        looks=looks,
        samples=counts.samples,
        waiting_pct=_pct(counts.waits, looks),
        cpu_pct=_mean([one.cpu_s for one in processes], processes) if main else NOT_APPLICABLE,
        delay_pct=_mean([one.delay_s for one in processes], processes) if main else NOT_APPLICABLE,
        phases=tuple(PhaseShare(phase.value, samples, _pct(samples, looks)) for phase, samples in ordered),
        functions=tuple(functions[:MOST_FUNCTIONS]),
        more_functions=max(0, len(functions) - MOST_FUNCTIONS),
    )


def _mean(seconds: Sequence[Known[float]], processes: Sequence[SampledProcess]) -> Applicable[float]:
    """Return the mean of main threads in percent of one core; the reason where none was read."""
    read = [(one, by.watched_s) for one, by in zip(seconds, processes, strict=True) if is_known(one)]
    if not read:
        return next(iter(seconds), NOT_APPLICABLE)
    return _pct(sum(one for one, _ in read), sum(watched_s for _, watched_s in read))


def _pct(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole else 0.0


TOP = 0
"""The mark above the outermost lines of a tree."""

_Stack = tuple[StackGroup, tuple[ShownFrame, ...]]


def show_stacks(groups: Sequence[StackGroup]) -> tuple[GroupStack, ...]:
    """Collapse each group's stack, and mark the group by what it is, not by its place."""
    met: Counter[int] = Counter()
    shown = []
    for group in groups:
        frames, first = group.frames, group.threads[0]
        what = frames if is_known(frames) else (first.name.rstrip("0123456789"), first.pid)
        mark = hash((first.role, first.kind, what))
        met[mark] += 1
        shown.append(GroupStack(hash((mark, met[mark])), shorten_stack(group)))
    return tuple(shown)


def build_tree(groups: Sequence[StackGroup]) -> tuple[TreeLine, ...]:
    """Merge the stacks of ``groups`` where they begin alike; lines are in the order of an open tree.

    Every thread ends in one place, main threads first. Groups without frames (native threads, stacks not
    read) are lines of their own at the end. A stack may be very deep, so nothing here recurses.
    """
    stacks = [(group, shorten_stack(group)) for group in groups]
    lines: list[TreeLine] = []
    todo = [(TOP, 0, 0, branch) for branch in reversed(_part([one for one in stacks if one[1]], 0))]
    while todo:
        parent, at, depth, those = todo.pop()
        head = those[0][1][at]
        mark = hash((parent, head.text, head.is_users))
        ends = tuple(group for group, shown in those if len(shown) == at + 1)
        threads = sum(len(group.threads) for group, _ in those)
        lines.append(TreeLine(mark, parent, depth, head, threads, ends))
        below = _part([one for one in those if len(one[1]) > at + 1], at + 1)
        inner = depth + (1 if len(below) + bool(ends) > 1 else 0)
        todo += [(mark, at + 1, inner, branch) for branch in reversed(below)]
    loose = [group for group, shown in stacks if not shown]
    lines += [
        TreeLine(hash(("loose", number)), TOP, 0, NOT_APPLICABLE, len(group.threads), (group,))
        for number, group in enumerate(loose)
    ]
    return tuple(lines)


def _part(stacks: Sequence[_Stack], at: int) -> list[list[_Stack]]:
    """Divide stacks by their line ``at``: main threads, then ranks, then large parts first."""
    by_text: dict[tuple[str, bool], list[_Stack]] = {}
    for group, shown in stacks:
        by_text.setdefault((shown[at].text, shown[at].is_users), []).append((group, shown))

    def order(part: tuple[tuple[str, bool], list[_Stack]]) -> tuple[bool, bool, int, tuple[str, bool]]:
        text, those = part
        has_main = any(group.threads[0].kind is ThreadKind.MAIN for group, _ in those)
        has_rank = any(group.threads[0].role is Role.RANK for group, _ in those)
        return not has_main, not has_rank, -sum(len(group.threads) for group, _ in those), text

    return [those for _, those in sorted(by_text.items(), key=order)]


NOTHING_READ = Missing("nothing was read yet")


def whole_rounds(state: DumpState) -> tuple[DumpRound, ...]:
    """Return the rounds to fold: complete ones, or part of the first where there is no other."""
    is_part = state.running and 0 < state.answered < state.asked
    return state.rounds[:-1] if is_part and len(state.rounds) > 1 else state.rounds


def date_log(logs: Sequence[OutputSample]) -> Applicable[datetime]:
    """Return when the job last wrote its log: one dump alone cannot tell how long it stands."""
    dated = [one.last_write for one in logs if is_known(one.last_write) and is_known(one.last_write_age_s)]
    return max(dated, default=NOT_APPLICABLE)


def fold_state(state: DumpState, frame: Frame) -> DumpUpdate:
    """Fold what a dump has read; ``frame`` gives its job and log.

    The job's records are worth reading once the last round is done and somebody may wait for others.
    """
    rounds = whole_rounds(state)
    if not rounds:
        return DumpUpdate(state, NOTHING_READ)
    target, pids = frame.target, state.request.pids
    not_asked = sum(row.pid not in pids for row in frame.ranks) if pids else NOT_APPLICABLE
    origin = DumpOrigin(target.pid, target.script, target.world_size, not_asked)
    dump = fold_rounds(rounds, origin, earlier=state.earlier)
    dump = replace(dump, last_write=date_log(frame.output))
    awaits = not state.running and target.state is not TargetState.ENDED and may_wait(dump.groups)
    return DumpUpdate(state, dump, show_stacks(dump.groups), build_tree(dump.groups), awaits_records=awaits)


def add_records(update: DumpUpdate, reading: CollectivesReading) -> DumpUpdate:
    """Return a finished dump with what the job recorded of its collectives."""
    dump = add_collectives(update.dump, reading) if is_known(update.dump) else update.dump
    return replace(update, dump=dump, awaits_records=False)
