"""What a rank that the others wait for does longer than they do, in which line or operator, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.results.trace import LongerPart, TraceFile
from tpmon.model.units import clean_text
from tpmon.trace.advice import EVEN_WORK
from tpmon.trace.reading.schema import is_comm_kernel
from tpmon.trace.verdict import SHARES, name_first

SAME_WORK = 0.02
"""Ranks whose numbers of kernels differ by no more than this share (0-1) do the same work."""


def _ms_by_cause(file: TraceFile) -> dict[str, float]:
    step = file.overview.step_ms
    return {
        one.name: one.pct / 100 * step for one in file.verdict.shares if one.name not in ("comms", "start-up")
    }


def find_longer(late: TraceFile, others: Sequence[TraceFile]) -> tuple[LongerPart, ...]:
    """Return what takes longer on a rank than on the median of the others, the most first."""
    own = _ms_by_cause(late)
    rest = [_ms_by_cause(file) for file in others if file.verdict.shares]
    if not rest:
        return ()
    more = {name: ms - median(one.get(name, 0.0) for one in rest) for name, ms in own.items()}
    rows = [LongerPart(name, ms) for name, ms in more.items() if ms > 0]
    return tuple(sorted(rows, key=lambda row: -row.ms))


def find_place(file: TraceFile, first: str, others: Sequence[TraceFile]) -> Applicable[str]:
    """Name the line of the program, else the operator or the kernel, in which a cause takes most."""
    verdict = file.verdict
    if first == name_first(verdict) and verdict.lines:
        return verdict.lines[0].name
    if first == "compute":
        rows = (
            [(row.name, row.total_us) for row in file.kernels]
            if file.overview.gpus
            else [(row.name, row.host_self_us) for row in file.operators]
        )
        before = [
            {row.name: row.total_us for row in one.kernels}
            if one.overview.gpus
            else {row.name: row.host_self_us for row in one.operators}
            for one in others
        ]
        more = {name: us - median([one.get(name, 0.0) for one in before] or [0.0]) for name, us in rows}
        return clean_text(max(more, key=lambda name: more[name]), 120) if more else NOT_APPLICABLE
    found: Counter[str] = Counter()
    causes = SHARES.get(first, ())
    wanted = {"cpu_op" if cause == "host" else cause for cause in causes}
    for gaps in file.gaps:
        for gap in gaps.largest:
            # What waits for a batch is the loader in any case: only a line of the program says more.
            told = (gap.source,) if first == "data" else (gap.source, gap.operator, gap.call)
            where = next((one for one in told if is_known(one) and one), "")
            if where and is_known(gap.cause) and gap.cause in wanted:
                found[where] += round(gap.us)
    return found.most_common(1)[0][0] if found else NOT_APPLICABLE


def compare_work(late: TraceFile, others: Sequence[TraceFile], name: str) -> str:
    """Say whether a rank that computes longer has more work, or the same on a slower card."""
    own, usual = _count_calls(late), median(map(_count_calls, others))
    same = abs(own - usual) <= SAME_WORK * usual
    inputs = [file.conditions.inputs for file in (late, *others)]
    alike = all(is_known(one) and one == inputs[0] for one in inputs)
    where = "card (nvidia-smi -q -d PERFORMANCE,CLOCK)" if late.overview.gpus else "CPUs (tpmon attach PID)"
    slower = f"look at the {where} of {name}: the same work takes longer there"
    if not same:
        what = "kernels" if late.overview.gpus else "operators"
        return f"{EVEN_WORK}: {name} runs {own:,.0f} {what} in a step, the others {usual:,.0f}"
    return slower if alike else f"{EVEN_WORK}; where its batches are as large as the others', {slower}"


def _count_calls(file: TraceFile) -> float:
    """Count the kernels that compute in a step, or without a device the operators."""
    overview = file.overview
    count = overview.steps or overview.repeats or 1
    if not overview.gpus:
        return sum(row.calls for row in file.operators) / count
    return sum(row.count for row in file.kernels if not is_comm_kernel(row.name)) / count
