"""The main figures of every Frame as columns, for SQL, timelines and histories; they outlive the Frames."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from tpmon.model.frame import Frame, Pulse, pulse_of
from tpmon.model.gpu import GpuSample
from tpmon.model.hook import StepPace
from tpmon.model.known import Applicable, Known, Missing, is_known

NOT_KEPT = Missing("not in the recording")

Cell = float | int | str | None


def _of_cards(
    read: Callable[[GpuSample], Applicable[float]], pick: Callable[[list[float]], float]
) -> Callable[[Frame], Cell]:
    def take(frame: Frame) -> Cell:
        cards = frame.gpus if is_known(frame.gpus) else ()
        values = [value for value in map(read, cards) if is_known(value)]
        return pick(values) if values else None

    return take


def _of_steps(read: Callable[[StepPace], Applicable[float]]) -> Callable[[Frame], Cell]:
    def take(frame: Frame) -> Cell:
        value = read(frame.steps) if is_known(frame.steps) else NOT_KEPT
        return value if is_known(value) else None

    return take


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


HISTORY = tuple(name for name in Pulse.__slots__ if name != "taken_ns")
"""The columns that histories are drawn from: the fields of ``Pulse``."""
FIGURES: dict[str, Callable[[Frame], Cell]] = {
    "rate_hz": _of_steps(lambda pace: pace.rate_hz),
    "samples_hz": _of_steps(lambda pace: pace.samples_hz),
    "step_p50_ms": _of_steps(lambda pace: pace.p50_ms),
    "step_p95_ms": _of_steps(lambda pace: pace.p95_ms),
    "gpu_mean_pct": _of_cards(lambda card: card.sm_pct, _mean),
    "gpu_least_pct": _of_cards(lambda card: card.sm_pct, min),
    "sm_active_mean_pct": _of_cards(lambda card: card.sm_active_pct, _mean),
    "power_w": _of_cards(lambda card: card.power_w, sum),
    "sm_clock_least_mhz": _of_cards(lambda card: card.sm_clock_mhz, min),
    "temperature_most_c": _of_cards(lambda card: card.temperature_c, max),
    "processes": lambda frame: len(frame.processes),
}
"""Further columns, and how each is read off the Frame."""
COLUMNS = (*HISTORY, *FIGURES)


def _to_cell(value: Known[float] | tuple[Known[float], ...]) -> Cell:
    if isinstance(value, tuple):
        return json.dumps([one if is_known(one) else None for one in value])
    return value if is_known(value) else None


def read_cells(frame: Frame) -> tuple[Cell, ...]:
    """Return the values of ``COLUMNS``; NULL for what was not read, percentages of the cards as JSON."""
    pulse = pulse_of(frame)
    return (
        *(_to_cell(getattr(pulse, name)) for name in HISTORY),
        *(read(frame) for read in FIGURES.values()),
    )


def _of_cell(cell: Cell) -> Known[float]:
    return float(cell) if isinstance(cell, (int, float)) else NOT_KEPT


def parse_pulse(taken_ns: int, cells: Sequence[Cell]) -> Pulse:
    """Build a Pulse from the cells of ``HISTORY``; ValueError where they are damaged."""
    found = dict(zip(HISTORY, cells, strict=False))
    cards = json.loads(str(found.pop("gpu_pct") or "[]"))
    memory = found.pop("memory_bytes")
    numbers = {name: _of_cell(cell) for name, cell in found.items()}
    return Pulse(
        taken_ns=taken_ns,
        memory_bytes=memory if isinstance(memory, int) else NOT_KEPT,
        gpu_pct=tuple(map(_of_cell, cards if isinstance(cards, list) else ())),
        **numbers,
    )
