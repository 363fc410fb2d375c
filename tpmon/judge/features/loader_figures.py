"""Read the figures of a starved rank, and make the rules about it: one cause a row. Pure."""

from __future__ import annotations

from collections.abc import Callable

from tpmon.judge.answers.result import Suspicion
from tpmon.judge.features.engine import Conjunction, Needs, Proof, Rows, Term, Text
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.features.starvation import (
    LEAST_WAIT,
    MAIN_PART,
    Starved,
    find_main_part,
    name_hot,
    need_starved,
    part_of,
    suspect_loader,
)
from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.judge.stacks.profile import Share
from tpmon.model.figures import Figure, Origin
from tpmon.model.frozen import dataclass
from tpmon.model.units import format_pct
from tpmon.model.verdict import Kind

NO_SHARE = Share(0.0, 0.0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class MainPart:
    """Hold the condition that one part of the loading takes half of the wait in the main thread."""

    part: DataPart
    figure: Figure

    def measure(self, found: Starved) -> Share:
        """Return the share of the part by the stacks."""
        return part_of(found, self.part) or NO_SHARE

    def take(self, proof: Proof, found: Starved) -> None:
        """Add the part to the proof; where it is not the main one, that ends the rule."""
        share = self.measure(found)
        proof.doubt(Origin.STACKS not in found.wait.origins, "no stacks")
        is_main = find_main_part(found) is self.part and share.low >= LEAST_WAIT
        proof.clear(not is_main, f"{format_pct(100 * share.ratio)} %")
        proof.add(self.figure, share.ratio, share.ratio / (MAIN_PART * found.wait.share.ratio))


def name_hot_load(found: Starved, scene: Scene) -> Rows:
    """Name the function of the main thread that loads."""
    return name_hot(found.rank.phases, Phase.DATA_WAIT, scene)


def starves(
    cause: str,
    name: str,
    *holds: Term[Starved],
    says: Text[Starved],
    about: Callable[[Scene], Starved] = need_starved,
    part: Callable[[Starved], Share | None] = lambda _: None,
    proves: Needs[Starved] = (),
    shows: tuple[Callable[[Starved, Scene], Rows], ...] = (),
) -> Conjunction[Starved]:
    """Make the rule of a cause for which a rank starves; ``part`` is its share where it is not all."""

    def suspect(rule: Conjunction[Starved], found: Starved, proof: Proof) -> Suspicion:
        scene = proof.scene
        needs, share = rule.observed(found, scene), part(found)
        return suspect_loader(found, proof, cause, rule.say(found, scene), observed=needs, part=share)

    return Conjunction(Kind.DATA_BOUND, cause, name, about, suspect, holds, says, proves, shows)
