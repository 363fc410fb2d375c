"""Many nodes: what an agent tells of its node, and the document of all that ``tpmon fleet --json`` prints."""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from tpmon.model.dump import Dump
from tpmon.model.frame import TargetState
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known
from tpmon.model.results.sample import HotSample
from tpmon.model.verdict import Finding, Kind

FLEET_SCHEMA = "tpmon.fleet/1"


@dataclass(frozen=True, slots=True)
class Hello:
    """Hold what an agent says first: its tpmon, its machine, and the clock there.

    It says so again for a ping with a number, with that number and the time at which it came.
    """

    version: str
    host: str
    clock: datetime
    ping: int = 0
    pinged: Applicable[datetime] = NOT_APPLICABLE


class NodeState(str, Enum):
    """Say what is known of a node of a fleet."""

    STARTING = "starting"
    """Its agent was started, and has not answered so far."""
    LIVE = "live"
    LATE = "late"
    """Its agent answered, and has said nothing for some seconds."""
    GONE = "gone"
    """Its agent has ended, or its connection is broken."""
    OTHER_VERSION = "other version"
    """The tpmon there is another one, whose readings may mean something else."""
    REFUSED = "refused"
    """No agent could be started there, or it may not read the job."""
    NO_JOB = "no job"


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """Say why an agent tells nothing of a job."""

    state: NodeState
    reason: str


@dataclass(frozen=True, slots=True)
class RankSummary:
    """Hold one rank in a line of a node.

    ``own_ms``: data and forward of a step, by its hook; ``wait_ratio``: share of the last seconds that it was
    in collectives, by its stacks and locks.
    """

    rank: Applicable[int]
    pid: int
    own_ms: Applicable[float]
    step_ms: Applicable[float]
    wait_ratio: Known[float]


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """Hold one second of a node; a line of the wire is enough for it.

    ``still_s``: for how long none of its ranks was seen to move, 0 where one does; ``hang_after_s``: from
    when on that is too long, by the run's own rhythm.
    """

    taken: datetime
    state: TargetState
    pid: int
    script: str
    world_size: Applicable[int]
    kind: Known[Kind]
    cause: Applicable[str]
    still_s: float
    hang_after_s: float
    ranks: tuple[RankSummary, ...]
    workers: int
    step_rate_hz: Known[float]
    gpu_pct: Known[tuple[Known[float], ...]]
    """SM utilisation of each card of the job there, in the order of NVML."""
    used_cores: Known[float]
    budget_cores: Known[float]
    own_cpu_pct: Known[float]


@dataclass(frozen=True, slots=True)
class NodeDump:
    """Answer a request for looks at all stacks of a node."""

    request: int
    dump: Known[Dump]


@dataclass(frozen=True, slots=True)
class FleetStacks:
    """Hold the stacks of some nodes, folded, and of each node that is not in it its name and why."""

    dump: Known[Dump]
    unread: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class NodeSample:
    """Answer a request for samples of a node."""

    request: int
    hot: Known[HotSample]


@dataclass(frozen=True, slots=True)
class FleetNode:
    """Hold one node of a fleet: its state with the reason and age, and the last that it told.

    ``age_s`` counts since its agent last said something, else since it was started. ``torn``: messages of it
    that did not come whole.
    """

    node: str
    state: NodeState
    reason: Applicable[str]
    age_s: float
    host: Applicable[str]
    version: Applicable[str]
    clock_skew_s: Applicable[float]
    """How far its clock is ahead of the one here, 0 where the way of the messages may explain that."""
    summary: Applicable[NodeSummary]
    verdict: Applicable[Finding]
    torn: int = 0


@dataclass(frozen=True, slots=True)
class NodeView:
    """Name the nodes whose own verdict is the same."""

    kind: Kind
    cause: Applicable[str]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FleetReport:
    """Hold one second of a fleet: one verdict of the job, which nodes see it otherwise, and each node.

    ``node`` is where the verdict points. ``views`` are the nodes' own verdicts, the worst first. ``dump`` has
    the stacks of all nodes, where they were looked at because nothing moves.
    """

    schema: str
    taken: datetime
    script: Applicable[str]
    world_size: Applicable[int]
    ranks: int
    """Ranks on the nodes that answer."""
    verdict: Known[Finding]
    node: Applicable[str]
    views: tuple[NodeView, ...]
    nodes: tuple[FleetNode, ...]
    dump: Applicable[Dump] = NOT_APPLICABLE
