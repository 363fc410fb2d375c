"""Two traces of the same training, before and after a change: what got faster, and whether it helped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import fields

from tpmon.model.known import Known, Missing, is_known, sum_known
from tpmon.model.results.trace import Change, DeviceGaps, TraceComparison, TraceConditions, TraceFile
from tpmon.trace.conditions import BATCH, PARAMETERS, SHAPES
from tpmon.trace.figures.breakdown import STRAY_PCT
from tpmon.trace.figures.steps import UNMARKED

COMPARISON_SCHEMA = "tpmon.trace-comparison/1"
LEAST_STEPS = 3
"""Fewer steps tell nothing of how much they vary."""
STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)
"""The 97.5 % points of Student's t by degrees of freedom from 1 on, as tables of it have them."""
NORMAL = 1.96
"""That of the normal distribution; beyond the table 1.96 + 2.6 / freedom is within 0.01 of Student's t."""
MOST_CHANGES = 40
LEAST_CHANGE_US = 1.0


def compare_traces(before: TraceFile, after: TraceFile, target: float = 1.0) -> TraceComparison:
    """Compare ``after`` to ``before``; ``target`` is the speed-up that was hoped for."""
    differences, unchecked = compare_conditions(before.conditions, after.conditions)
    if before.events == 0 or after.events == 0:
        differences = ("a trace that holds no events", *differences)
    old, new = before.overview.step_ms, after.overview.step_ms
    ratio = old / new if new > 0 else 1.0
    low, high = _interval(before, after, ratio)
    helped: Known[bool]
    change = f"mean step {old:.3f} ms before, {new:.3f} ms after"
    unmarked = [file.path for file in (before, after) if not file.overview.steps]
    if unmarked:
        helped = Missing("no steps are marked")
        summary = f"not comparable: no steps are marked in {unmarked[0]} ({UNMARKED})"
    elif differences:
        helped = Missing("the conditions differ")
        summary = f"not comparable: {differences[0]} ({change})"
    elif not (is_known(low) and is_known(high)):
        helped = Missing(f"fewer than {LEAST_STEPS} steps in one of them")
        summary = f"{change}, {ratio:.2f}x; too few steps to tell it from noise"
    else:
        sure = f"{ratio:.2f}x (95 %: {low:.2f} to {high:.2f})"
        helped = low > 1 and ratio >= target
        # Where the batch may be another one, so may be the reason for what got faster.
        if unchecked:
            sure += f", if {' and '.join(unchecked)} are the same"
        if low <= 1 <= high:
            said = "no difference beyond the noise"
        elif ratio < 1:
            said = "slower"
        elif helped:
            said = "it helped"
        else:
            said = f"faster, but less than the {target:g}x hoped for"
        summary = f"{said}: {change}, {sure}"
    return TraceComparison(
        schema=COMPARISON_SCHEMA,
        before=before.path,
        after=after.path,
        before_ms=old,
        after_ms=new,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        target=target,
        helped=helped,
        summary=summary,
        differences=differences,
        unchecked=unchecked,
        changes=_changes(before, after),
    )


def compare_conditions(
    one: TraceConditions, other: TraceConditions
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what differs, and what could not be compared."""
    differences, unchecked = [], []
    if is_known(one.world_size) and is_known(other.world_size):
        if one.world_size != other.world_size:
            differences.append(f"world size {one.world_size} and {other.world_size}")
    elif is_known(one.world_size) or is_known(other.world_size):
        unchecked.append("world size")
    if is_known(one.devices) and is_known(other.devices):
        if one.devices != other.devices:
            names = (", ".join(devices) or "no device" for devices in (one.devices, other.devices))
            differences.append(" and ".join(names))
    elif is_known(one.devices) or is_known(other.devices):
        unchecked.append("cards")
    if is_known(one.mode) and is_known(other.mode):
        if one.mode != other.mode:
            differences.append(f"{one.mode} and {other.mode}")
    elif is_known(one.mode) or is_known(other.mode):
        unchecked.append("training or not")
    mine, theirs = ({had.name: had.value for had in of.told} for of in (one, other))
    told = [name for name in mine if name in theirs]
    differences += [f"{name} {mine[name]} and {theirs[name]}" for name in told if mine[name] != theirs[name]]
    difference, untold = _compare_inputs(one, other, told)
    differences += difference
    unchecked += untold
    return tuple(differences), tuple(unchecked)


def _compare_inputs(
    one: TraceConditions, other: TraceConditions, told: list[str]
) -> tuple[list[str], list[str]]:
    """Return what differs of batch, shapes and types, and what of them could not be compared.

    A compiler calls other operators for the same model: with one side compiled they tell nothing. Where a
    capture wrote down batch and model, another operator for the same products is what was changed.
    """
    written = BATCH in told and SHAPES in told
    both = is_known(one.compiled) and is_known(other.compiled)
    if both and one.compiled != other.compiled:
        return [], [] if written else ["batch, shapes and types (one is compiled: its operators are others)"]
    if is_known(one.inputs) and is_known(other.inputs):
        here, there = set(one.inputs), set(other.inputs)
        if here == there or (written and PARAMETERS in told):
            return [], []
        named = [min(left) if left else "nothing" for left in (here - there, there - here)]
        return [f"batch, shapes or types: {named[0]} and {named[1]}"], []
    return [], [] if written else ["batch, shapes and types (not recorded: record_shapes=True)"]


def _interval(before: TraceFile, after: TraceFile, ratio: float) -> tuple[Known[float], Known[float]]:
    """Return the 95 % interval of the ratio of two means, by the spread of the steps of each."""
    spreads, counts = [], []
    for file in (before, after):
        steps = [row.ms for row in file.overview.step_table]
        if file.overview.steps < LEAST_STEPS:
            few = Missing(f"fewer than {LEAST_STEPS} steps")
            return few, few
        mean = sum(steps) / len(steps)
        variance = sum((step - mean) ** 2 for step in steps) / (len(steps) - 1)
        spreads.append(variance / len(steps) / mean**2 if mean else 0.0)
        counts.append(len(steps))
    width = _student(spreads, counts) * math.sqrt(sum(spreads))
    return ratio * math.exp(-width), ratio * math.exp(width)


def _student(spreads: list[float], counts: list[int]) -> float:
    """Return the 97.5 % point of Student's t for the sum of two variances (Welch-Satterthwaite)."""
    parts = sum(spread**2 / (count - 1) for spread, count in zip(spreads, counts, strict=True))
    freedom = int(sum(spreads) ** 2 / parts) if parts else len(STUDENT) + 1
    return STUDENT[max(freedom, 1) - 1] if freedom <= len(STUDENT) else NORMAL + 2.6 / freedom


def _changes(before: TraceFile, after: TraceFile) -> tuple[Change, ...]:
    """List phases and causes of idle time, then the operators and kernels that changed the most."""
    steps = (max(before.overview.steps, 1), max(after.overview.steps, 1))
    found = []
    for field in fields(before.overview.breakdown_us):
        old, new = (getattr(file.overview.breakdown_us, field.name) for file in (before, after))
        if is_known(old) and is_known(new):
            found.append(Change("phase", field.name, old, new))
    old_causes, new_causes = (dict(_sum_causes(file.gaps)) for file in (before, after))
    found += [
        Change("idle", cause, us / steps[0], new_causes[cause] / steps[1])
        for cause, us in old_causes.items()
        if cause in new_causes
    ]
    found += _pair(
        "operator",
        ((row.name, row.host_self_us / steps[0]) for row in before.operators),
        ((row.name, row.host_self_us / steps[1]) for row in after.operators),
    )
    found += _pair(
        "kernel",
        ((row.name, row.total_us / steps[0]) for row in before.kernels),
        ((row.name, row.total_us / steps[1]) for row in after.kernels),
    )
    return tuple(found)


def _sum_causes(gaps: tuple[DeviceGaps, ...]) -> Iterator[tuple[str, float]]:
    """Yield the causes of idle time, summed over devices but strays; none where they are not told."""
    least = STRAY_PCT / 100 * max((device.busy for device in gaps), default=0.0)
    for same in zip(*(device.causes() for device in gaps if device.busy >= least), strict=True):
        values = [us for _name, us in same]
        if all(map(is_known, values)):
            yield same[0][0], sum_known(values)


def _pair(part: str, before: Iterable[tuple[str, float]], after: Iterable[tuple[str, float]]) -> list[Change]:
    old, new = dict(before), dict(after)
    rows = [Change(part, name, old.get(name, 0.0), new.get(name, 0.0)) for name in {**old, **new}]
    rows = [row for row in rows if abs(row.after_us - row.before_us) >= LEAST_CHANGE_US]
    return sorted(rows, key=lambda row: -abs(row.after_us - row.before_us))[:MOST_CHANGES]
