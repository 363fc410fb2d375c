"""Build members of a job out of PIDs."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.process import Identity, Role
from tpmon.probe.base.procread import read_stat
from tpmon.probe.job.events import Changes, describe_by_role
from tpmon.probe.job.job import Member


def made_up(pid: int, rank: int = 0, **fields: Any) -> Member:
    """Build a rank that no process stands for."""
    plain: dict[str, Any] = {
        "identity": Identity(pid, 1),
        "parent": 1,
        "role": Role.RANK,
        "rank": rank,
        "local_rank": rank,
        "worker": NOT_APPLICABLE,
        "rank_pid": NOT_APPLICABLE,
        "name": "python",
        "label": "train.py",
        "started": datetime.now().astimezone(),
        "environment": (),
    }
    return Member(**{**plain, **fields})


def member(pid: int, rank: int = 0, role: Role = Role.RANK) -> Member:
    """Build the member that a child of this process is."""
    return made_up(pid, rank, role=role, identity=Identity(pid, read_stat(pid).start_ticks), parent=os.getpid())


def describe_changes(changes: Changes) -> tuple[str, ...]:
    return tuple(line for _role, line in describe_by_role(changes))
