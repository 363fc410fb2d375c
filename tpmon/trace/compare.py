"""Two traces of the same training: whether they can be compared, what changed, whether it helped."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from tpmon.model.known import Known, Missing, is_known, known_or, sum_known
from tpmon.model.results.trace import (
    Change,
    Condition,
    DeviceGaps,
    TraceComparison,
    TraceConditions,
    TraceFile,
)
from tpmon.model.text.redaction import hide
from tpmon.trace.figures.breakdown import STRAY_PCT
from tpmon.trace.figures.operators import write_shape
from tpmon.trace.figures.steps import UNMARKED
from tpmon.trace.reading.read import Trace, clean_name, find_device, read_world_size
from tpmon.trace.reading.schema import Category, is_optimizer, runs_compiled

MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::convolution")
PRODUCTS = (*MATMULS, "aten::scaled_dot_product_attention")
MOST_INPUTS = 200
NO_OPERATORS = Missing("the trace holds no operators")
_MOST_TOLD = 1 << 20
"""Bytes of what a capture wrote down; more is no capture of ours."""
BATCH, SHAPES, PARAMETERS = "batch size", "inputs of a batch", "parameters"
TOLD = {
    "batch_size": BATCH,
    "inputs": SHAPES,
    "model": "model",
    "parameters": PARAMETERS,
    "dtype": "type of the parameters",
    "autocast": "autocast",
    "autocast_dtype": "autocast to",
}
"""What is compared of that. Settings that a fix may well change (TF32, threads, torch.compile) are not."""


def read_conditions(trace: Trace, strays: Sequence[int] = ()) -> TraceConditions:
    """Read world size, cards but for ``strays``, whether it trains, and shapes and types of the products."""
    cards = [find_device(trace, device) for device in trace.list_devices() if device not in strays]
    names = tuple(clean_name(card.name, 80) for card in cards if card is not None and card.name)
    has_operators = bool((trace.host.category == Category.OP).any())
    mode = "training" if does_train(trace) else "no training"
    told = {name: value for name, value in read_told(trace).items() if isinstance(value, (str, int, list))}
    return TraceConditions(
        world_size=read_world_size(trace),
        devices=names if len(names) == len(cards) else Missing("the trace does not describe its cards"),
        mode=mode if has_operators else NO_OPERATORS,
        inputs=_read_inputs(trace),
        told=tuple(
            Condition(words, clean_name(hide(str(told[name])), 200))
            for name, words in TOLD.items()
            if name in told
        ),
        compiled=runs_compiled(trace.names) if has_operators else NO_OPERATORS,
    )


def read_told(trace: Trace) -> dict[str, Any]:
    """Return what a capture of tpmon wrote into the trace of its conditions; empty in any other trace."""
    raw = bytes(trace.header.conditions)
    if len(raw) > _MOST_TOLD:
        return {}
    try:
        told: Any = json.loads(raw or b"null")
        told = json.loads(told) if isinstance(told, str) else told
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def does_train(trace: Trace) -> bool:
    """Tell whether a trace has a backward pass or a step of an optimizer."""
    trains = trace.named(trace.host, lambda name: is_optimizer(name) or name.startswith("autograd::engine::"))
    return bool(trains.any())


def _read_inputs(trace: Trace) -> Known[tuple[str, ...]]:
    wanted = trace.named(trace.host, lambda name: name in PRODUCTS)
    rows = np.flatnonzero(wanted & (trace.host.shape >= 0))
    if not len(rows):
        return Missing("shapes were not recorded (record_shapes=True)")
    pairs = set(zip(trace.host.name[rows].tolist(), trace.host.shape[rows].tolist(), strict=True))
    texts = []
    for name, shape in pairs:
        sizes, kinds = write_shape(trace, shape)
        texts.append(clean_name(f"{trace.names[name]} {sizes.replace(',', ', ')} {kinds}", 300))
    return tuple(sorted(texts)[:MOST_INPUTS])


COMPARISON_SCHEMA = "tpmon.trace-comparison/1"
LEAST_STEPS = 3
"""Fewer steps tell nothing of how much they vary."""
STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)
"""The 97.5 % points of Student's t by degrees of freedom from 1 on, as tables of it have them."""
NORMAL = 1.96
"""That of the normal distribution; beyond the table 1.96 + 2.6 / freedom is within 0.01 of Student's t."""
MOST_CHANGES = 40
LEAST_CHANGE_US = 1.0


def compare_traces(
    before: TraceFile, after: TraceFile, target: float = 1.0, *, other_card: bool = False
) -> TraceComparison:
    """Compare ``after`` to ``before``; ``target`` is the speed-up that was hoped for.

    ``other_card``: that the cards are others is no reason to refuse an answer, but what is asked about.
    """
    differences, unchecked = compare_conditions(before.conditions, after.conditions, other_card=other_card)
    if before.events == 0 or after.events == 0:
        differences = ("a trace that holds no events", *differences)
    old, new = before.overview.step_ms, after.overview.step_ms
    ratio = old / new if new > 0 else 1.0
    low, high = _interval(before, after, ratio)
    helped: Known[bool]
    change = f"mean step {old:.3f} ms before, {new:.3f} ms after"
    unlike = _find_unlike_steps(before, after)
    if unlike:
        helped = Missing("no steps are marked")
        summary = f"not comparable: {unlike}"
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
    if other_card:
        cards = (known_or(_say_devices(file.conditions.devices), "cards untold") for file in (before, after))
        summary += f"; {' and '.join(cards)}"
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


def _find_unlike_steps(before: TraceFile, after: TraceFile) -> str:
    """Say why the steps of two traces are not alike; "" where both are marked, or repeat the same."""
    files = (before, after)
    unmarked = [file for file in files if not file.overview.steps]
    if not unmarked:
        return ""
    if len(unmarked) == 1 or not all(file.overview.repeats for file in files):
        least = min(unmarked, key=lambda file: file.overview.repeats)
        return f"no steps are marked in {least.path} ({UNMARKED})"
    mine, theirs = (file.overview.step_table[0].name.rpartition(" ")[0] for file in files)
    return "" if mine == theirs else f"no steps are marked, and what repeats is {mine} and {theirs}"


def compare_conditions(
    one: TraceConditions, other: TraceConditions, *, other_card: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what differs, and what could not be compared."""
    differences: list[str] = []
    unchecked: list[str] = []
    for name, begin, here, there in (
        ("world size", "world size ", one.world_size, other.world_size),
        ("cards", "", _say_devices(one.devices), _say_devices(other.devices)),
        ("training or not", "", one.mode, other.mode),
    ):
        if other_card and name == "cards":
            continue
        if is_known(here) and is_known(there):
            differences += [f"{begin}{here} and {there}"] if here != there else []
        elif is_known(here) or is_known(there):
            unchecked.append(name)
    mine, theirs = ({had.name: had.value for had in of.told} for of in (one, other))
    told = [name for name in mine if name in theirs]
    differences += [f"{name} {mine[name]} and {theirs[name]}" for name in told if mine[name] != theirs[name]]
    difference, untold = _compare_inputs(one, other, told)
    differences += difference
    unchecked += untold
    return tuple(differences), tuple(unchecked)


def _say_devices(devices: Known[tuple[str, ...]]) -> Known[str]:
    return ", ".join(devices) or "no device" if is_known(devices) else devices


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
        overview = file.overview
        steps = [row.ms - row.left_ms for row in overview.step_table if row.left_ms < row.ms]
        if (overview.judged_steps or overview.repeats) < LEAST_STEPS:
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
    """List phases and causes of idle time, then the operators and kernels that changed the most.

    The operators are compared by what they take of the device where both have one, then of the host. Like
    the kernels they are summed over the whole trace: theirs is the mean of all steps, with start-up.
    """
    steps = [max(file.overview.steps or file.overview.repeats, 1) for file in (before, after)]
    found = []
    for field in fields(before.overview.breakdown_us):
        old, new = (getattr(file.overview.breakdown_us, field.name) for file in (before, after))
        if is_known(old) and is_known(new):
            found.append(Change("phase", field.name, old, new))
    old_causes, new_causes = (dict(_sum_causes(file.gaps)) for file in (before, after))
    # Idle time is that of the steps that are judged: not of the first, where that is apart.
    judged = [max(file.overview.judged_steps or file.overview.repeats, 1) for file in (before, after)]
    found += [
        Change("idle", cause, us / judged[0], new_causes[cause] / judged[1])
        for cause, us in old_causes.items()
        if cause in new_causes
    ]
    counted = tuple(zip((before, after), steps, strict=True))
    own = ({row.name: row.host_self_us / count for row in file.operators} for file, count in counted)
    whole = ({row.name: row.total_us / count for row in file.kernels} for file, count in counted)
    if before.gaps and after.gaps:
        by_device = (
            {row.name: known_or(row.device_self_us, 0.0) / count for row in file.operators}
            for file, count in counted
        )
        found += _pair("device-operator", *by_device)
    return (*found, *_pair("operator", *own), *_pair("kernel", *whole))


def tells_better(comparison: TraceComparison) -> Known[bool]:
    """Tell whether the trace after is better, or worse; missing where that cannot be told."""
    low, high = comparison.ratio_low, comparison.ratio_high
    if is_known(low) and is_known(high) and is_known(comparison.helped) and low <= 1 <= high:
        return Missing("no difference beyond the noise")
    return comparison.helped


def _sum_causes(gaps: tuple[DeviceGaps, ...]) -> Iterator[tuple[str, float]]:
    """Yield the causes of idle time, summed over devices but strays; none where they are not told."""
    least = STRAY_PCT / 100 * max((device.busy for device in gaps), default=0.0)
    for same in zip(*(device.causes() for device in gaps if device.busy >= least), strict=True):
        values = [us for _name, us in same]
        if all(map(is_known, values)):
            yield same[0][0], sum_known(values)


def _pair(part: str, old: dict[str, float], new: dict[str, float]) -> list[Change]:
    rows = [Change(part, name, old.get(name, 0.0), new.get(name, 0.0)) for name in {**old, **new}]
    rows = [row for row in rows if abs(row.after_us - row.before_us) >= LEAST_CHANGE_US]
    return sorted(rows, key=lambda row: -abs(row.after_us - row.before_us))[:MOST_CHANGES]
