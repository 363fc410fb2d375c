"""Build Windows of a rank that waits for its data, one second a Frame, for the rules of the loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.frames import make_cpu, make_frame, make_loader, make_memory, make_process, make_worker
from tests.judging import line_up, make_looks, make_phases
from tests.waits import wait_of
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.features.snapshot import Rule, Scene, see
from tpmon.judge.rules import data, limits, loader, python, storage
from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.model.frame import Frame
from tpmon.model.host import WorkerQueue
from tpmon.model.known import Applicable, known_or
from tpmon.model.process import ProcessSample

WORKER_WAIT = "work from its rank (loader queue)"
BATCH_WAIT = "a batch (loader queue)"
RANK = 4211

COMPUTES = {"state": "R", "waits_for": "running", "runnable": 1.0, "waiting": 0.05, "cpu_pct": 95.0, "busy_threads": 1}
IDLES = {"runnable": 0.02, "waiting": 0.0, "waits_for": WORKER_WAIT, "busy_threads": 0}
SLEEPS = {"runnable": 0.05, "waiting": 0.0, "waits_for": "sleep", "busy_threads": 0}
DISK = {
    "state": "D",
    "waits_for": "direct disk read",
    "runnable": 0.14,
    "waiting": 0.0,
    "busy_threads": 0,
    "asked_read_bytes_s": 150e6,
    "device_read_bytes_s": 150e6,
    "read_calls_s": 150.0,
}
SMALL_FILES = {
    "waits_for": "FUSE file system",
    "runnable": 0.06,
    "waiting": 0.0,
    "busy_threads": 0,
    "asked_read_bytes_s": 0.4e6,
    "read_calls_s": 130.0,
}
LINE = {**SMALL_FILES, "asked_read_bytes_s": 45e6, "read_calls_s": 45.0}
DISTANT = {**SMALL_FILES, "asked_read_bytes_s": 2e6, "read_calls_s": 4.0}
SOCKET = {**SMALL_FILES, "waits_for": "socket or tty", "asked_read_bytes_s": 3e3, "read_calls_s": 40.0}
THRASHES = {
    "state": "D",
    "waits_for": "page from disk",
    "runnable": 0.2,
    "waiting": 0.0,
    "busy_threads": 0,
    "asked_read_bytes_s": 1e3,
    "device_read_bytes_s": 540e6,
    "major_faults_s": 80.0,
}


def make_workers(kinds: Sequence[dict[str, Any]], rank_pid: int = RANK, first: int = 5000) -> list[ProcessSample]:
    return [make_worker(first + i, i, rank_pid, **kind) for i, kind in enumerate(kinds)]


def make_second(
    wait: float,
    kinds: Sequence[dict[str, Any]],
    *,
    pid: int = RANK,
    loader: dict[str, Any] | None = None,
    rank: dict[str, Any] | None = None,
    cpu: dict[str, Any] | None = None,
    frame: dict[str, Any] | None = None,
) -> Frame:
    """Build one second: a rank that waits ``wait`` of it, and workers that do as ``kinds`` say."""
    workers = make_workers(kinds, pid)
    queues = tuple(
        WorkerQueue(i, one.pid, 0 if one.waits_for == wait_of(WORKER_WAIT) else 40) for i, one in enumerate(workers)
    )
    own = {"runnable": 1 - wait, "waits_for": BATCH_WAIT if wait >= 0.5 else "running"} | (rank or {})
    demand = known_or(own["runnable"], 0.0) + sum(known_or(one.runnable, 0.0) for one in workers)
    starved = {"ready_batches": 0.0, "empty_ratio": max(wait, 0.02), "queues": queues} | (loader or {})
    plain: dict[str, Any] = {
        "processes": (make_process(pid, **own), *workers),
        "loader": (make_loader(pid, len(workers), **starved),) if workers else (),
        "main_threads": (make_looks(pid, 10, batch_wait=round(10 * wait)),),
        "cpu": make_cpu(**({"runnable": demand, "used_cores": demand} | (cpu or {}))),
    }
    return make_frame(**(plain | (frame or {})))


def starve(wait: float, kinds: Sequence[dict[str, Any]], *, seconds: int = 20, **more: Any) -> Scene:
    """See a Window in which nothing changes."""
    return see(line_up([make_second(wait, kinds, **more)] * seconds))


def thrash(wait: float = 0.9, **memory: Any) -> Scene:
    """See a rank that waits for workers whose page cache is too small."""
    fields = {"refault_bytes_s": 1.2e9, "major_faults_s": 150.0, "psi_some_pct": 28.0} | memory
    return starve(wait, [THRASHES] * 2, frame={"memory": make_memory(**fields)})


LOADER = (*data.RULES, *loader.RULES, *storage.RULES)
ALL = (*LOADER, *limits.RULES, *python.RULES)
"""Rules that a wait for data may come of."""


def causes(scene: Scene, rules: Sequence[Rule] = LOADER) -> set[Applicable[str]]:
    """Return the causes that rules suspect in a scene."""
    return {one.cause for one in (rule(scene) for rule in rules) if isinstance(one, Suspicion)}


def load_itself(wait: float = 0.6, parts: Mapping[DataPart, float] | None = None, **more: Any) -> Scene:
    """See a rank without workers whose stacks say how long it gets its batches."""
    rest = (1 - wait) / 2
    shares = {Phase.DATA_WAIT: wait, Phase.FORWARD: rest, Phase.BACKWARD: rest}
    phases = make_phases(shares, parts=parts or {DataPart.FETCH: wait})
    return see(line_up([make_second(0.0, [], **more)] * 12), {RANK: phases})
