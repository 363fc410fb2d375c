"""Add samples up to hot functions: over ranks, over workers, main threads apart from the others. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tpmon.judge.fold import Origin
from tpmon.judge.fold_words import Wait, describe_stack, own_frames
from tpmon.judge.phase_kinds import Phase
from tpmon.judge.phase_stack import classify, is_users, package_of
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
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
    """Tell whether a stack is of the main thread, which has the number of its process."""
    return stack.tid == process.pid


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
    """Count the samples of the functions of one group."""

    def __init__(self) -> None:
        self.own: Counter[tuple[str, str]] = Counter()
        self.total: Counter[tuple[str, str]] = Counter()
        self.waiting: Counter[tuple[str, str]] = Counter()
        self.lines: dict[tuple[str, str], Counter[tuple[bool, int]]] = {}
        self.packages: dict[tuple[str, str], str] = {}
        self.phases: Counter[Phase] = Counter()
        self.samples = 0
        self.waits = 0

    def add(self, frames: Sequence[StackFrame], samples: int, *, waits: bool) -> None:
        """Count one stack, outermost frame first."""
        self.samples += samples
        self.waits += samples if waits else 0
        met: set[tuple[str, str]] = set()
        for depth, frame in enumerate(reversed(frames)):
            key = (frame.function, frame.file)
            if not depth:
                self.own[key] += samples
            if key in met:
                continue  # a function that calls itself is in this stack once
            met.add(key)
            self.total[key] += samples
            self.waiting[key] += samples if waits else 0
            self.lines.setdefault(key, Counter())[not depth, frame.line] += samples
            if key not in self.packages:
                self.packages[key] = _name_package(frame)


def _name_package(frame: StackFrame) -> str:
    """Name the package of library code, "" for the user's own."""
    if frame is not NOT_KEPT and is_users(frame):
        return ""
    return package_of(frame.file) or _UNNAMED


def _add_up(role: Role, processes: Sequence[SampledProcess], counted: Counted, *, main: bool) -> HotGroup:
    counts = _Counts()
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
            _count_stack(counts, role, stack, main=main)
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


def _count_stack(counts: _Counts, role: Role, stack: StackCount, *, main: bool) -> None:
    frames = _shorten(stack.frames)
    kind = ThreadKind.MAIN if main else ThreadKind.OTHER
    waits = describe_stack(role, kind, stack.frames).wait is not Wait.NOTHING
    counts.add(frames, stack.samples, waits=waits)
    if main and role is Role.RANK:
        counts.phases[classify(frames)[0]] += stack.samples


def _list_functions(counts: _Counts, looks: int) -> list[HotFunction]:
    found = [
        HotFunction(
            function=key[0],
            file=key[1],
            line=_find_line(counts.lines[key]),
            package=counts.packages[key],
            self_samples=counts.own[key],
            total_samples=total,
            waiting_samples=counts.waiting[key],
            self_pct=_pct(counts.own[key], looks),
            total_pct=_pct(total, looks),
            waiting_pct=_pct(counts.waiting[key], looks),
        )
        for key, total in counts.total.items()
    ]
    return sorted(found, key=lambda one: (-one.self_samples, -one.total_samples, one.function, one.file))


def _find_line(lines: Counter[tuple[bool, int]]) -> int:
    """Return the line seen most often; where the function was innermost, of those samples."""
    innermost = {line: samples for (is_leaf, line), samples in lines.items() if is_leaf}
    chosen = innermost or {line: samples for (_, line), samples in lines.items()}
    return min(chosen, key=lambda line: (-chosen[line], line))


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
