"""Add samples up to hot functions: over ranks, over workers, main threads apart from the others. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tpmon.judge.dumps.describe import Wait, describe_stack, own_frames
from tpmon.judge.dumps.groups import Origin
from tpmon.judge.stacks.classify import is_users, package_of
from tpmon.judge.stacks.phases import Phase
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.sample import (
    SAMPLE_SCHEMA,
    Counted,
    FoldedStack,
    HotFunction,
    HotGroup,
    HotSample,
    PhaseShare,
    SampledProcess,
    SampleReading,
)
from tpmon.model.stacks import StackCount, StackFrame

MOST_FUNCTIONS = 100
"""Of one group; the others are counted. A training has some hundred."""
NOT_KEPT = StackFrame("[stack not kept]", "", 0)
"""Stands for stacks beyond the number that is kept, so that the samples still add up."""
_UNNAMED = "python"
_ROLES = (Role.RANK, Role.WORKER, Role.HELPER, Role.COMPILE, Role.LAUNCHER)


def hot_functions(reading: SampleReading, origin: Origin) -> HotSample:
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


def _group_processes(processes: Sequence[SampledProcess], counted: Counted) -> Iterable[HotGroup]:
    """Group by role, main threads first of each; ranks, then workers, then helpers."""
    for main in (True, False):
        for role in _ROLES:
            those = [process for process in processes if process.role is role]
            if any(is_main(process, stack) is main for process in those for stack in process.stacks) or (
                main and those
            ):
                yield _add_up(role, those, counted, main=main)


def is_main(process: SampledProcess, stack: StackCount) -> bool:
    """Tell whether a stack is of the thread that runs the loop, mostly the main one."""
    return stack.tid == known_or(process.loop_tid, process.pid)


def fold_stacks(reading: SampleReading) -> tuple[FoldedStack, ...]:
    """Add up equal stacks of each part of the job, in an order that the processes' order does not change."""
    counts: Counter[tuple[Role, bool, tuple[StackFrame, ...]]] = Counter()
    for process in reading.processes:
        for stack in process.stacks:
            counts[process.role, is_main(process, stack), _shorten(stack.frames)] += stack.samples

    def order(entry: tuple[tuple[Role, bool, tuple[StackFrame, ...]], int]) -> tuple[object, ...]:
        (role, main, frames), samples = entry
        names = [(frame.function, frame.file, frame.line) for frame in frames]
        return not main, _ROLES.index(role), -samples, names

    return tuple(FoldedStack(*key, samples) for key, samples in sorted(counts.items(), key=order))


def _shorten(frames: tuple[StackFrame, ...]) -> tuple[StackFrame, ...]:
    return tuple(own_frames(frames)) or (NOT_KEPT,)


class _Counts:
    """Count the samples of the functions of one group; functions and their lines are numbered.

    A job of 72 processes has some hundred thousand frames each second, so each costs two look-ups.
    """

    def __init__(self) -> None:
        self.functions: list[StackFrame] = []
        """Each function, by the first frame that was met of it."""
        self.own: list[int] = []
        self.total: list[int] = []
        self.waiting: list[int] = []
        self.phases: Counter[Phase] = Counter()
        self.samples = 0
        self.waits = 0
        self._functions: dict[tuple[str, str], int] = {}
        self._places: dict[StackFrame, int] = {}
        self._lines: list[int] = []
        self._owners: list[int] = []
        """The function of each place."""
        self._seen: list[int] = []
        self._innermost: list[int] = []

    def add(self, frames: Sequence[StackFrame], samples: int, *, waits: bool) -> None:
        """Count one stack, outermost frame first."""
        self.samples += samples
        self.waits += samples if waits else 0
        places = [self._number(frame) for frame in frames]
        owners, seen, total, waiting = self._owners, self._seen, self.total, self.waiting
        self._innermost[places[-1]] += samples
        self.own[owners[places[-1]]] += samples
        met: set[int] = set()
        for place in reversed(places):
            owner = owners[place]
            if owner in met:
                continue  # a function that calls itself is in this stack once
            met.add(owner)
            seen[place] += samples
            total[owner] += samples
            if waits:
                waiting[owner] += samples

    def find_lines(self) -> list[int]:
        """Return for each function the line seen most often; where it was innermost, of those samples."""
        best: list[tuple[int, int, int]] = [(0, 0, 0)] * len(self.functions)
        for place, owner in enumerate(self._owners):
            found = (self._innermost[place], self._seen[place], -self._lines[place])
            best[owner] = max(best[owner], found) if best[owner][1] else found
        return [-line for _, _, line in best]

    def _number(self, frame: StackFrame) -> int:
        place = self._places.get(frame)
        if place is None:
            place = self._places[frame] = len(self._owners)
            key = (frame.function, frame.file)
            owner = self._functions.setdefault(key, len(self.functions))
            if owner == len(self.functions):
                self.functions.append(frame)
                for numbers in (self.own, self.total, self.waiting):
                    numbers.append(0)
            self._owners.append(owner)
            self._lines.append(frame.line)
            self._seen.append(0)
            self._innermost.append(0)
        return place


def _name_package(frame: StackFrame) -> str:
    """Name the package of library code, "" for the user's own."""
    if frame != NOT_KEPT and is_users(frame):
        return ""
    return package_of(frame.file) or _UNNAMED


def _add_up(role: Role, processes: Sequence[SampledProcess], counted: Counted, *, main: bool) -> HotGroup:
    counts = _Counts()
    # Processes of one role are mostly in the same stacks, and what a stack does is costly to tell.
    merged: Counter[tuple[StackFrame, ...]] = Counter()
    looks = sampled = 0
    for process in processes:
        stacks = [stack for stack in process.stacks if is_main(process, stack) is main]
        seen = process.looks - process.lost
        if main:
            looks += seen
        elif counted is Counted.ALL:
            looks += sum(stack.samples for stack in stacks)
        else:
            looks += seen * len({stack.tid for stack in stacks})
        sampled += bool(stacks) or main
        for stack in stacks:
            merged[stack.frames] += stack.samples
    for frames, samples in merged.items():
        _count_stack(counts, role, frames, samples, main=main)
    looks = max(looks, counts.samples)
    functions = _list_functions(counts, looks)
    shown = tuple(functions[:MOST_FUNCTIONS])
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
        phases=_list_phases(counts, looks),
        functions=shown,
        more_functions=len(functions) - len(shown),
    )


def _count_stack(
    counts: _Counts, role: Role, frames: tuple[StackFrame, ...], samples: int, *, main: bool
) -> None:
    doing = describe_stack(role, ThreadKind.MAIN if main else ThreadKind.OTHER, frames)
    counts.add(_shorten(frames), samples, waits=doing.wait is not Wait.NOTHING)
    if main and role is Role.RANK:
        counts.phases[doing.phase] += samples


def _list_functions(counts: _Counts, looks: int) -> list[HotFunction]:
    found = [
        HotFunction(
            function=frame.function,
            file=frame.file,
            line=line,
            package=_name_package(frame),
            self_samples=own,
            total_samples=total,
            waiting_samples=waiting,
            self_pct=_pct(own, looks),
            total_pct=_pct(total, looks),
            waiting_pct=_pct(waiting, looks),
        )
        for frame, line, own, total, waiting in zip(
            counts.functions, counts.find_lines(), counts.own, counts.total, counts.waiting, strict=True
        )
    ]
    return sorted(found, key=lambda one: (-one.self_samples, -one.total_samples, one.function, one.file))


def _list_phases(counts: _Counts, looks: int) -> tuple[PhaseShare, ...]:
    ordered = sorted(counts.phases.items(), key=lambda entry: (-entry[1], entry[0].value))
    return tuple(PhaseShare(phase.value, samples, _pct(samples, looks)) for phase, samples in ordered)


def _mean(seconds: Sequence[Known[float]], processes: Sequence[SampledProcess]) -> Applicable[float]:
    """Return the mean of main threads in percent of one core; the reason where none was read."""
    pairs = [(one, process.watched_s) for one, process in zip(seconds, processes, strict=True)]
    read = [(one, watched_s) for one, watched_s in pairs if is_known(one)]
    if not read:
        return next((one for one in seconds if isinstance(one, Missing)), NOT_APPLICABLE)
    return _pct(sum(one for one, _ in read), sum(watched_s for _, watched_s in read))


def _pct(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole else 0.0
