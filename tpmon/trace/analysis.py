"""The whole analysis of one trace, and of several ranks beside each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from tpmon.errors import TpmonError, UsageError
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing
from tpmon.model.results.trace import (
    TRACE_SCHEMA,
    DeviceGaps,
    HostTime,
    MemoryUse,
    Overview,
    RankTable,
    StepRow,
    TraceFile,
    TraceReport,
)
from tpmon.model.results.trace_tables import OperatorGroupRow
from tpmon.trace.compare import read_conditions
from tpmon.trace.figures.breakdown import (
    STRAY_PCT,
    Activity,
    HostCauses,
    break_down,
    find_activity,
    find_causes,
    find_gaps,
    split_host,
)
from tpmon.trace.figures.comms import sum_communication
from tpmon.trace.figures.kernels import (
    LaunchFigures,
    figure_launches,
    find_hot_kernel,
    sum_copies,
    sum_kernels,
    use_card,
)
from tpmon.trace.figures.matmuls import count_work, sum_products
from tpmon.trace.figures.memory import draw_memory, sum_allocations, sum_memory
from tpmon.trace.figures.operators import group_by_shape, nest_operators, sum_operators
from tpmon.trace.figures.patterns import Parts, find_patterns
from tpmon.trace.figures.program import group_by_line, nest_python, sum_frames, sum_modules, sum_ranges
from tpmon.trace.figures.steps import TraceSteps, find_steps
from tpmon.trace.ranks import RankParts, compare_ranks, take_parts
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
from tpmon.trace.verdict import advise, judge_device, judge_host

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
    figures: LaunchFigures


Keep = Callable[[Findings], None]
"""Is given the findings of each trace that was analysed."""


def analyze(
    paths: Sequence[str],
    progress: Progress | None = None,
    skip: Callable[[str, TpmonError], bool] | None = None,
    keep: Keep | None = None,
    wanted: Collection[str] = (),
) -> TraceReport:
    """Analyse the traces at ``paths``, one after the other, so that one alone is held.

    ``skip`` is asked whether the others are wanted without one that cannot be read. ``keep`` takes
    what a trace was analysed from, which is gone otherwise. ``wanted`` names tables of ``ON_REQUEST``.
    TpmonError where ``read_trace`` raises one, UsageError where no trace is left.
    """
    files = []
    parts: list[RankParts] = []
    for path in paths:
        try:
            trace = read_trace(path, progress)
        except TpmonError as error:
            if skip is None or not skip(path, error):
                raise
            continue
        file, part = analyze_trace(trace, keep, wanted)
        del trace
        files.append(file)
        parts.append(part)
    if not files:
        raise UsageError("none of the files is a trace", "tpmon trace FILE...")
    ranks: Applicable[RankTable] = compare_ranks(parts) if len(files) > 1 else NOT_APPLICABLE
    return TraceReport(TRACE_SCHEMA, tuple(files), ranks)


def analyze_trace(
    trace: Trace, keep: Keep | None = None, wanted: Collection[str] = ()
) -> tuple[TraceFile, RankParts]:
    """Analyse one trace that is read; ``wanted`` names tables of ``ON_REQUEST``."""
    steps = find_steps(trace)
    ops = nest_operators(trace)
    activity = find_activity(trace)
    causes = find_causes(trace, activity, steps.host_window[1])
    figures = figure_launches(trace)
    window = steps.window if len(trace.work.start) else steps.host_window
    gaps: tuple[DeviceGaps, ...] = ()
    judged: tuple[DeviceGaps, ...] = ()
    host: Applicable[HostTime] = NOT_APPLICABLE
    if len(trace.work.start):
        gaps = find_gaps(trace, causes, ops, window, int(steps.host_start[0]))
        judged = tuple(gap for gap in gaps if gap.device not in activity.strays)
        verdict = judge_device(trace, activity, judged, window, steps.host_window[1])
    else:
        host = split_host(trace, activity, causes, window)
        verdict = judge_host(trace, host, window, marked=steps.marked)
    counted = count_work(trace, ops)
    products = sum_products(trace, ops, counted)
    kernels = sum_kernels(trace, figures, counted, ops)
    peaks = sum_memory(trace, steps)
    overview = _overview(trace, steps, activity, figures)
    cards = tuple(card for card in overview.gpus if card.device not in activity.strays)
    parts = Parts(trace, steps, ops, activity, causes, counted, judged, products, peaks)
    verdict, patterns = advise(parts, verdict, cards, find_patterns(parts))
    stacks = nest_python(trace)
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
        operators=sum_operators(trace, ops),
        kernels=kernels,
        copies=sum_copies(trace),
        memory=MemoryUse(peaks, sum_allocations(trace, ops), draw_memory(trace, int(steps.host_start[0]))),
        communication=sum_communication(trace, activity),
        launched_before=int((trace.work.call < 0).sum()),
        conditions=read_conditions(trace, activity.strays),
        verdict=verdict,
        lost=trace.lost,
        products=products,
        hot_kernel=find_hot_kernel(trace, kernels, len(steps.names) if steps.marked else 0),
        patterns=patterns,
        modules=sum_modules(trace, ops) if stacks else NOT_APPLICABLE,
        frames=sum_frames(trace, stacks) if stacks else NOT_APPLICABLE,
        shapes=group_by_shape(trace, ops) if "shapes" in wanted else _NOT_ASKED,
        lines=group_by_line(trace, ops, stacks) if "lines" in wanted or stacks is None else _NOT_ASKED,
        ranges=sum_ranges(trace),
    )
    if keep is not None:
        keep(Findings(trace, steps, activity, causes, figures))
    return file, take_parts(trace, file, steps, activity)


def group_operators(found: Findings, by: str) -> Applicable[tuple[OperatorGroupRow, ...]]:
    """Make one table of ``ON_REQUEST`` of a trace that is analysed; its events must still be there."""
    trace = found.trace
    ops = nest_operators(trace)
    return group_by_shape(trace, ops) if by == "shapes" else group_by_line(trace, ops, nest_python(trace))


def _overview(trace: Trace, steps: TraceSteps, activity: Activity, figures: LaunchFigures) -> Overview:
    lengths = (steps.end - steps.start) / 1e6
    marks = (steps.host_end - steps.host_start) / 1e6
    starts = ((steps.start - steps.host_start[0]) / 1e6).tolist()
    rows = list(zip(steps.names, starts, marks.tolist(), lengths.tolist(), strict=True))
    strays = f"device{'s' if len(activity.strays) > 1 else ''} {', '.join(map(str, activity.strays))}"
    why = f"less than {STRAY_PCT:g} % of the work of the busiest"
    left_out = (f"left out of means, shares and verdict, with {why}: {strays}",) if activity.strays else ()
    return Overview(
        steps=len(steps.names) if steps.marked else 0,
        step_ms=float(lengths.mean()),
        step_p50_ms=float(np.percentile(lengths, 50)),
        step_p95_ms=float(np.percentile(lengths, 95)),
        host_step_ms=float(marks.mean()),
        window_us=(steps.window[1] - steps.window[0]) / 1000,
        step_table=tuple(StepRow(clean_name(name, 80), *times) for name, *times in rows[:MOST_STEPS]),
        breakdown_us=break_down(activity, steps, exclusive=True),
        overlapping_us=break_down(activity, steps, exclusive=False),
        gpus=tuple(use_card(trace, figures, steps.window, device) for device in trace.list_devices()),
        notes=tuple(map(clean_name, (*steps.notes, *left_out, *describe_slice(trace.header)))),
    )


def _versions(header: TraceHeader) -> str:
    nvidia = (("CUDA", header.cuda_runtime), ("driver", header.cuda_driver))
    amd = (("HIP", header.hip_runtime), ("HIP driver", header.hip_driver))
    told = (f"{name} {value}" for name, value in (*nvidia, *amd) if value is not None)
    return clean_name(", ".join(told), 120)
