"""Build what the head of a fleet knows of its nodes: a rank on each that trains, unless a field says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.dumps import make_rank, make_round
from tests.frames import NOW, make_finding
from tests.stacks import IN_LOCK
from tpmon import __version__
from tpmon.judge.folds.groups import DumpOrigin, fold_rounds
from tpmon.model.dump import Dump, ProcessLook
from tpmon.model.frame import TargetState
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.fleet import FleetNode, NodeState, NodeSummary, RankSummary
from tpmon.model.verdict import Finding, Kind


def make_rank_summary(rank: int, **fields: Any) -> RankSummary:
    plain = RankSummary(rank, 4000 + 10 * rank, NOT_APPLICABLE, NOT_APPLICABLE, Missing("not measured"))
    return replace(plain, **fields)


def make_summary(*ranks: RankSummary, **fields: Any) -> NodeSummary:
    plain = NodeSummary(
        taken=NOW,
        state=TargetState.RUNNING,
        pid=1,
        script="train.py",
        world_size=2,
        kind=Kind.NOT_ENOUGH_EVIDENCE,
        cause=NOT_APPLICABLE,
        still_s=0.0,
        hang_after_s=30.0,
        ranks=ranks,
        workers=0,
        step_rate_hz=Missing("no hook in the training process"),
        gpu_pct=(),
        used_cores=1.5,
        budget_cores=8.0,
        own_cpu_pct=1.0,
    )
    return replace(plain, **fields)


def make_verdict(kind: Kind = Kind.NOT_ENOUGH_EVIDENCE, cause: Any = NOT_APPLICABLE, **fields: Any) -> Finding:
    return make_finding(kind=kind, cause=cause, **fields)


def make_node(name: str, *ranks: RankSummary, verdict: Any = NOT_APPLICABLE, **fields: Any) -> FleetNode:
    """Build a node that answers; fields of its summary are given by their names."""
    own = {key: fields.pop(key) for key in list(fields) if key in NodeSummary.__slots__}
    plain = FleetNode(
        node=name,
        state=NodeState.LIVE,
        reason=NOT_APPLICABLE,
        age_s=0.4,
        host=name,
        version=__version__,
        clock_skew_s=0.0,
        summary=make_summary(*ranks, **own),
        verdict=verdict,
    )
    return replace(plain, **fields)


def make_silent(name: str, state: NodeState, reason: str = "why") -> FleetNode:
    plain = make_node(name)
    return replace(plain, state=state, reason=reason, summary=NOT_APPLICABLE, verdict=NOT_APPLICABLE)


def make_pair(still_s: float = 0.0, other_s: float | None = None, **fields: Any) -> tuple[FleetNode, FleetNode]:
    """Build two nodes of a rank each."""
    last_s = still_s if other_s is None else other_s
    return (
        make_node("n1", make_rank_summary(0), still_s=still_s, **fields),
        make_node("n2", make_rank_summary(1), still_s=last_s, **fields),
    )


def look_at(*processes: ProcessLook, host: str = "localhost", rounds: int = 3, world: int = 2) -> Dump:
    """Build what one node answers when nothing moves: looks at its stacks, five seconds apart."""
    looks = [make_round(*processes, at_s=5.0 * number, host=host) for number in range(rounds)]
    return fold_rounds(looks, DumpOrigin(1, "train.py", world))


def look_at_pair(pids: Sequence[int] = (4000, 4010)) -> dict[str, Dump]:
    """Build the looks at a rank that waits for a lock on n2, and one on n1 that waits for it."""
    return {"n1": look_at(make_rank(0, pid=pids[0])), "n2": look_at(make_rank(1, pid=pids[1], frames=IN_LOCK))}
