"""Name the function of the program in which most of a phase goes by. Pure."""

from __future__ import annotations

from tpmon.judge.features.snapshot import Scene
from tpmon.judge.stacks.busiest import Spot
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.stacks.profile import RankPhases
from tpmon.model.known import Known, is_known
from tpmon.model.units import format_pct
from tpmon.model.verdict import Evidence


def name_hot(phases: Known[RankPhases], phase: Phase, scene: Scene) -> tuple[Evidence, ...]:
    """Name the function of the program that takes most of ``phase``, as a row of evidence."""
    spot = phases.spots.get(phase) if is_known(phases) else None
    return name_spot(spot, scene) if spot is not None else ()


def name_spot(spot: Spot, scene: Scene) -> tuple[Evidence, ...]:
    """Name a function with its share of the time, as a row of evidence."""
    where = spot.where
    for phase in Phase:
        where = where.removeprefix(f"{phase.value}: ").removeprefix(f"{phase.value} ")
    text = f"{where}, {format_pct(100 * spot.ratio)} % of the time"
    sources = scene.frame.sources
    return (Evidence("most of it", 100 * spot.ratio, "%", text, sources.stacks, scene.frame.ages_s.stacks),)
