"""Ask which job a process belongs to, as this user or as one who may not read all of it."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from typing import Any

import pytest

from tests.children import MAP_TORCH, Child
from tpmon.errors import TpmonError
from tpmon.probe.job.resolve import find_job


def refusal(pid: int, proc: str) -> TpmonError:
    with pytest.raises(TpmonError) as caught:
        find_job(pid, proc)
    return caught.value


def place_of_rank(rank: int, *, run: str = "", port: int = 29500, world: int = 3) -> dict[str, str]:
    """Return the start environment of a rank that meets the others at one address of this host."""
    environ = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    return environ | ({"TORCHELASTIC_RUN_ID": run} if run else {})


HOLD_TORCH = (
    MAP_TORCH
    + """
if len(sys.argv) > 2:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: as unreadable as another user's
say("ready")
hear()
"""
)
AS_ANOTHER = """
import json
sys.path[:0] = sys.argv[2:]
from tpmon.errors import NotPermittedError
from tpmon.model.codec import to_plain
from tpmon.probe.job.discovery import list_jobs
from tpmon.probe.job.resolve import find_job
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    find_job(int(sys.argv[1]))
    refusal = []
except NotPermittedError as error:
    refusal = [error.what, error.try_this]
say(json.dumps([refusal, to_plain(list_jobs())]))
"""


def ask_as_another(pid: int) -> tuple[list[str], dict[str, Any]]:
    with closing(Child(AS_ANOTHER, str(pid), *sys.path)) as one:
        refusal, jobs = json.loads(one.hear())
    return refusal, jobs


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
