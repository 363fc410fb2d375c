"""What keeps a process of the job from running at all: the freezer of its control group, a debugger."""

from __future__ import annotations

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known

FROZEN = "frozen by its control group"
"""What ``waits_for`` says of the threads of a frozen process."""


@dataclass(frozen=True, slots=True)
class Freezer:
    """Name the control group that a person froze: the process's own, or one above it.

    ``directory`` holds ``freezer.state`` (``version`` 1) or ``cgroup.freeze`` (2). It is missing where a
    group froze them that is above what this container sees; ``group`` is then the uppermost in view.
    """

    version: int
    group: str
    directory: Known[str]


@dataclass(frozen=True, slots=True)
class Tracer:
    """Name the process that holds another by ptrace; ``command`` is its command line, secrets hidden."""

    pid: int
    name: str
    command: Known[str]
