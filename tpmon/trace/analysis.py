"""The whole analysis of one trace, and of several ranks beside each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Union

import numpy as np

from tpmon.errors import TpmonError, UsageError
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.model.results.trace import (
    TRACE_SCHEMA,
    Communication,
    CopyRow,
    DeviceGaps,
    HostTime,
    KernelRow,
    MemoryUse,
    OperatorRow,
    Overview,
    StepRow,
    TraceFile,
    TraceReport,
)
from tpmon.model.results.trace_tables import (
    AllocationRow,
    FrameRow,
    HotKernel,
    MemoryCurve,
    ModuleRow,
    OperatorGroupRow,
    ProductRow,
    RangeRow,
    StepWork,
)
from tpmon.trace.advice import advise
from tpmon.trace.compare import read_conditions
from tpmon.trace.figures.breakdown import STRAY_PCT, Activity, break_down, find_activity
from tpmon.trace.figures.categories import JudgedWork, holds, judge_work
from tpmon.trace.figures.comms import sum_communication
from tpmon.trace.figures.gaps import (
    DeviceCauses,
    HostCauses,
    find_causes,
    find_device_causes,
    find_gaps,
    split_host,
)
from tpmon.trace.figures.kernels import (
    LaunchFigures,
    figure_launches,
    find_hot_kernel,
    sum_copies,
    sum_kernels,
    use_card,
)
from tpmon.trace.figures.matmuls import CountedProduct, count_work, sum_products
from tpmon.trace.figures.memory import draw_memory, sum_allocations, sum_memory
from tpmon.trace.figures.operators import Operators, group_by_shape, nest_operators, sum_operators
from tpmon.trace.figures.patterns import Parts, find_patterns
from tpmon.trace.figures.phases import describe_work
from tpmon.trace.figures.program import (
    Stacks,
    group_by_line,
    nest_python,
    sum_frames,
    sum_modules,
    sum_ranges,
)
from tpmon.trace.figures.steady import SteadyPart, find_steady, leave_odd
from tpmon.trace.figures.steps import TraceSteps, find_steps
from tpmon.trace.job import judge_job
from tpmon.trace.ranks import RankParts, take_parts
from tpmon.trace.reading.columns import group, percentile
from tpmon.trace.reading.forked import each_result, start_apart
from tpmon.trace.reading.parts import Jobs, one_job
from tpmon.trace.reading.read import (
    UNSAID,
    Progress,
    Trace,
    clean_name,
    read_distributed,
    read_rank,
    read_trace,
    read_world_size,
)
from tpmon.trace.reading.schema import TraceHeader
from tpmon.trace.reading.slice import describe_slice
from tpmon.trace.reading.sources import estimate_json_bytes
from tpmon.trace.verdict import judge_device, judge_host
from tpmon.trace.weight import weigh_profiler

ON_REQUEST = ("shapes", "lines")
"""Tables that take long and are long: made where they are asked for."""
_NOT_ASKED = Missing("not asked for (--json, --table shapes, --table lines)")
MOST_STEPS = 1000
"""Rows of the step table; a capture is bounded to far fewer."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Hold what the analysis of one trace went through: the trace, and what was found out on the way."""

    trace: Trace
    steps: TraceSteps
    activity: Activity
    causes: HostCauses
    devices: tuple[DeviceCauses, ...]
    figures: LaunchFigures


Keep = Callable[[Findings], None]
"""Is given the findings of each trace that was analysed."""


def analyze(
    paths: Sequence[str],
    progress: Progress | None = None,
    skip: Callable[[str, TpmonError], bool] | None = None,
    keep: Keep | None = None,
    *,
    wanted: Collection[str] = (),
    jobs: Jobs = one_job,
) -> TraceReport:
    """Analyse the traces at ``paths``; one alone is held, or with several ``jobs`` one in each process.

    ``skip`` is asked whether the others are wanted without one that cannot be read. ``keep`` takes
    what a trace was analysed from, which is gone otherwise. ``wanted`` names tables of ``ON_REQUEST``,
    ``jobs`` tells in how many processes so many bytes of JSON are read and analysed.
    TpmonError where ``read_trace`` raises one, UsageError where no trace is left.
    """
    files = []
    parts: list[RankParts] = []
    with closing(_each_file(paths, progress, wanted, jobs, keeps=keep is not None)) as each:
        for path, analyse in each:
            try:
                file, part, found = analyse()
            except TpmonError as error:
                if skip is None or not skip(path, error):
                    raise
                continue
            if keep is not None and found is not None:
                keep(found)
            del found
            files.append(file)
            parts.append(part)
    if not files:
        raise UsageError("none of the files is a trace", "tpmon trace FILE...")
    if len(files) == 1:
        return TraceReport(TRACE_SCHEMA, tuple(files), NOT_APPLICABLE)
    return TraceReport(TRACE_SCHEMA, *judge_job(files, parts))


_Analysed = tuple[TraceFile, RankParts, Union[Findings, None]]
"""A file, what the comparison of ranks needs of it, and what it was analysed from where that is kept."""


def _each_file(
    paths: Sequence[str], progress: Progress | None, wanted: Collection[str], jobs: Jobs, *, keeps: bool
) -> Generator[tuple[str, Callable[[], _Analysed]], None, None]:
    """Give each path with what analyses it: here and in ``jobs`` for a part of it, or whole files in them."""
    sizes = [estimate_json_bytes(path) for path in paths]
    together, of_job = min(jobs(sum(sizes)), len(paths)), len(paths) > 1
    if together < 2:
        for path, size in zip(paths, sizes, strict=True):
            yield path, partial(_analyze_file, path, progress, wanted, jobs(size), keeps=keeps, of_job=of_job)
        return
    tasks = [partial(_analyze_file, path, None, wanted, 1, keeps=keeps, of_job=of_job) for path in paths]
    done = 0
    with closing(each_result(tasks, together)) as results:
        for path, size, result in zip(paths, sizes, results, strict=True):
            yield path, result
            done += size
            if progress is not None:
                progress(done, sum(sizes))


def _analyze_file(
    path: str, progress: Progress | None, wanted: Collection[str], count: int, *, keeps: bool, of_job: bool
) -> _Analysed:
    kept: list[Findings] = []
    trace = read_trace(path, progress, lambda _size: count)
    keep = kept.append if keeps else None
    file, part = analyze_trace(trace, keep, wanted, apart=count > 1, of_job=of_job)
    trace.answers.clear()  # tests are not sent from process to process
    return file, part, kept[0] if keeps else None


@dataclass(frozen=True, slots=True)
class _Tables:
    """Hold the tables that idle time and its causes do not need."""

    counted: CountedProduct
    judged: JudgedWork
    work: StepWork
    products: tuple[ProductRow, ...]
    kernels: tuple[KernelRow, ...]
    operators: tuple[OperatorRow, ...]
    copies: tuple[CopyRow, ...]
    allocations: tuple[AllocationRow, ...]
    curve: tuple[MemoryCurve, ...]
    communication: Applicable[Communication]
    modules: Applicable[tuple[ModuleRow, ...]]
    frames: Applicable[tuple[FrameRow, ...]]
    shapes: Applicable[tuple[OperatorGroupRow, ...]]
    lines: Applicable[tuple[OperatorGroupRow, ...]]
    ranges: tuple[RangeRow, ...]


def _tabulate(
    trace: Trace,
    found: tuple[Operators, Stacks | None, Activity, LaunchFigures],
    steady: SteadyPart,
    wanted: Collection[str],
    origin: int,
) -> _Tables:
    ops, stacks, activity, figures = found
    counted, judged = count_work(trace, ops), judge_work(trace, ops, steady, activity.strays)
    return _Tables(
        counted=counted,
        judged=judged,
        work=describe_work(trace, ops, counted, judged, steady),
        products=sum_products(trace, ops, counted),
        kernels=sum_kernels(trace, figures, counted, ops),
        operators=sum_operators(trace, ops),
        copies=sum_copies(trace),
        allocations=sum_allocations(trace, ops),
        curve=draw_memory(trace, origin),
        communication=sum_communication(trace, activity),
        modules=sum_modules(trace, ops) if stacks else NOT_APPLICABLE,
        frames=sum_frames(trace, stacks) if stacks else NOT_APPLICABLE,
        shapes=group_by_shape(trace, ops) if "shapes" in wanted else _NOT_ASKED,
        lines=group_by_line(trace, ops, stacks) if "lines" in wanted or stacks is None else _NOT_ASKED,
        ranges=sum_ranges(trace),
    )


def analyze_trace(
    trace: Trace,
    keep: Keep | None = None,
    wanted: Collection[str] = (),
    *,
    apart: bool = False,
    of_job: bool = False,
) -> tuple[TraceFile, RankParts]:
    """Analyse one trace that is read; ``wanted`` names tables of ``ON_REQUEST``.

    ``apart``: children make a part of it meanwhile. ``of_job``: ranks are compared, by all steps, as one that
    is late in a single step holds the others in that.
    """
    with ExitStack() as stack:
        return _analyze(stack, trace, keep, wanted, apart=apart, of_job=of_job)


def _analyze(
    stack: ExitStack, trace: Trace, keep: Keep | None, wanted: Collection[str], *, apart: bool, of_job: bool
) -> tuple[TraceFile, RankParts]:
    steps = find_steps(trace)
    steady = find_steady(trace, steps)
    steady = steady if of_job else leave_odd(trace, steady)
    overlook = start_apart(stack, partial(_overlook, trace, steps, steady), apart=apart)
    ops, stacks = nest_operators(trace), nest_python(trace)
    activity, figures, overview = overlook()
    given = (trace, (ops, stacks, activity, figures), steady, wanted, int(steps.host_start[0]))
    tabulate = start_apart(stack, partial(_tabulate, *given), apart=apart)
    causes = find_causes(trace, activity, ops, _find_last_wait(trace, steady))
    devices = tuple(find_device_causes(trace, causes, ops, device) for device in trace.list_devices())
    gaps: tuple[DeviceGaps, ...] = ()
    judged: tuple[DeviceGaps, ...] = ()
    host: Applicable[HostTime] = NOT_APPLICABLE
    counting = tuple(one for one in devices if one.device not in activity.strays)
    if devices:
        gaps = find_gaps(trace, devices, ops, steady, int(steps.host_start[0]))
        judged = tuple(gap for gap in gaps if gap.device not in activity.strays)
        verdict = judge_device(trace, activity, counting, steady)
    else:
        host = split_host(trace, activity, causes, steady)
        verdict = judge_host(trace, host, steady)
    peaks = sum_memory(trace, steps)
    cards = tuple(card for card in overview.gpus if card.device not in activity.strays)
    tables = tabulate()
    counted, products = tables.counted, tables.products
    seen = (trace, steady, ops, activity, causes, counting, counted, judged, products, peaks, stacks)
    parts = Parts(*seen, tables.judged, figures, tables.work)
    marked = len(steps.names) if steps.marked else 0
    hot = find_hot_kernel(trace, tables.kernels, tables.judged.rows, marked)
    longest = _name_longest(hot, trace, ops, steady, on_device=bool(devices))
    verdict, patterns = advise(parts, verdict, cards, find_patterns(parts), longest)
    verdict = weigh_profiler(trace, overview, verdict)
    file = TraceFile(
        path=trace.path,
        rank=read_rank(trace),
        world_size=read_world_size(trace),
        backend=clean_name(read_distributed(trace).backend, 80) or UNSAID,
        host=clean_name(trace.header.host or "", 80) or UNSAID,
        versions=_versions(trace.header),
        events=sum(trace.phases.values()),
        file_bytes=trace.file_bytes,
        json_bytes=trace.json_bytes,
        overview=overview,
        gaps=gaps,
        host_us=host,
        operators=tables.operators,
        kernels=tables.kernels,
        copies=tables.copies,
        memory=MemoryUse(peaks, tables.allocations, tables.curve),
        communication=tables.communication,
        launched_before=int((trace.work.call < 0).sum()),
        conditions=read_conditions(trace, activity.strays),
        verdict=verdict,
        lost=trace.lost,
        products=products,
        hot_kernel=hot,
        patterns=patterns,
        modules=tables.modules,
        frames=tables.frames,
        shapes=tables.shapes,
        lines=tables.lines,
        ranges=tables.ranges,
        step_work=tables.work,
    )
    if keep is not None:
        keep(Findings(trace, steps, activity, causes, devices, figures))
    return file, take_parts(trace, file, steady, steps, activity)


def _name_longest(
    hot: Applicable[HotKernel], trace: Trace, ops: Operators, steady: SteadyPart, *, on_device: bool
) -> str:
    """Name what computes longest with its share of all that computes; "" where nothing does.

    Of what is judged alone: what stands before a loop is not what holds it.
    """
    if on_device:
        return f"{hot.name[:120]}, {hot.share_pct:.0f} % of the kernels' time" if is_known(hot) else ""
    begin, end = steady.steps.host_window
    inside = (ops.start >= begin) & (ops.start < end) & ~holds(steady.cuts, ops.start)
    groups = group(trace.host.name[ops.row[inside]])
    spent = groups.sum(ops.self_ns[inside])
    if not len(spent) or not spent.sum():
        return ""
    at = int(spent.argmax())
    name = clean_name(trace.names[groups.keys[at]], 80)
    return f"{name}, {100 * float(spent[at]) / float(spent.sum()):.0f} % of the operators' time"


def _find_last_wait(trace: Trace, steady: SteadyPart) -> int:
    """Return from when on a synchronise holds nothing: behind the last step, or else the last launch."""
    calls = trace.work.call[trace.work.call >= 0]
    if steady.steps.marked or steady.repeated or not len(calls):
        return steady.steps.host_window[1]
    return int(trace.calls.start[calls].max())


def group_operators(found: Findings, by: str) -> Applicable[tuple[OperatorGroupRow, ...]]:
    """Make one table of ``ON_REQUEST`` of a trace that is analysed; its events must still be there."""
    trace = found.trace
    ops = nest_operators(trace)
    return group_by_shape(trace, ops) if by == "shapes" else group_by_line(trace, ops, nest_python(trace))


def _overlook(
    trace: Trace, steps: TraceSteps, steady: SteadyPart
) -> tuple[Activity, LaunchFigures, Overview]:
    activity, figures = find_activity(trace), figure_launches(trace)
    return activity, figures, _overview(trace, steps, steady, activity, figures)


def _overview(
    trace: Trace, steps: TraceSteps, steady: SteadyPart, activity: Activity, figures: LaunchFigures
) -> Overview:
    """List all marked steps, else what stands in for them; means and shares are of the steady ones."""
    marked = steps.marked
    listed, steps, cuts = steps if marked else steady.steps, steady.steps, steady.cuts
    every = (listed.end - listed.start) / 1e6
    every_mark = (listed.host_end - listed.host_start) / 1e6
    starts = ((listed.start - listed.host_start[0]) / 1e6).tolist()
    lengths = steady.measure(steps.start, steps.end) / 1e6
    marks = steady.measure(steps.host_start, steps.host_end) / 1e6
    left = every.copy()
    left[np.isin(listed.host_start, steps.host_start)] = cuts.within(steps.start, steps.end) / 1e6
    times = (starts, every_mark.tolist(), every.tolist(), left.tolist())
    rows = list(zip(listed.names, *times, strict=True))
    strays = f"device{'s' if len(activity.strays) > 1 else ''} {', '.join(map(str, activity.strays))}"
    why = f"less than {STRAY_PCT:g} % of the work of the busiest"
    exclusive, full = break_down(activity, steps, cuts)
    left_out = (f"left out of means, shares and verdict, with {why}: {strays}",) if activity.strays else ()
    return Overview(
        steps=len(listed.names) if marked else 0,
        repeats=len(steps.names) if steady.repeated else 0,
        judged_steps=len(steady.steps.names) if marked else 0,
        left_out_us=(steady.left_ns + steady.apart_ns) / 1000,
        step_ms=float(lengths.mean()),
        step_p50_ms=percentile(lengths, 50),
        step_p95_ms=percentile(lengths, 95),
        host_step_ms=float(marks.mean()),
        window_us=(steps.window[1] - steps.window[0] - cuts.total) / 1000,
        step_table=tuple(StepRow(clean_name(name, 80), *times) for name, *times in rows[:MOST_STEPS]),
        breakdown_us=exclusive,
        overlapping_us=full,
        gpus=tuple(use_card(trace, figures, steps.window, device, cuts) for device in trace.list_devices()),
        notes=tuple(map(clean_name, (*steady.list_notes(), *left_out, *describe_slice(trace.header)))),
    )


def _versions(header: TraceHeader) -> str:
    nvidia = (("CUDA", header.cuda_runtime), ("driver", header.cuda_driver))
    amd = (("HIP", header.hip_runtime), ("HIP driver", header.hip_driver))
    told = (f"{name} {value}" for name, value in (*nvidia, *amd) if value is not None)
    return clean_name(", ".join(told), 120)
