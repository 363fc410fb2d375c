"""Build looks at made-up threads: a rank in its training loop unless a field says otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.frames import NOW, NOW_NS
from tpmon.model.dump import DumpError, DumpRound, ProcessLook, ThreadLook, WaitKind, WaitTarget
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame

SITE = "/env/lib/python3.11/site-packages"
LIB = "/env/lib/python3.11"
HOST = "node-01"

MAIN = StackFrame("<module>", "/run/train.py", 90)
TRAIN = StackFrame("train", "/run/train.py", 40)
ALL_REDUCE = (
    MAIN,
    TRAIN,
    StackFrame("wrapper", f"{SITE}/torch/distributed/c10d_logger.py", 81),
    StackFrame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 2800),
)
BROADCAST = (
    MAIN,
    StackFrame("train", "/run/train.py", 55),
    StackFrame("broadcast", f"{SITE}/torch/distributed/distributed_c10d.py", 2500),
)
BACKWARD = (
    MAIN,
    TRAIN,
    StackFrame("Tensor.backward", f"{SITE}/torch/_tensor.py", 623),
    StackFrame("_engine_run_backward", f"{SITE}/torch/autograd/graph.py", 979),
)
DECODE = (
    MAIN,
    TRAIN,
    StackFrame("__next__", f"{SITE}/torch/utils/data/dataloader.py", 700),
    StackFrame("fetch", f"{SITE}/torch/utils/data/_utils/fetch.py", 54),
    StackFrame("Images.__getitem__", "/run/data.py", 60),
    StackFrame("decode", "/run/data.py", 88),
)
NEXT_BATCH = (
    MAIN,
    TRAIN,
    StackFrame("_BaseDataLoaderIter.__next__", f"{SITE}/torch/utils/data/dataloader.py", 700),
    StackFrame("_try_get_data", f"{SITE}/torch/utils/data/dataloader.py", 1200),
    StackFrame("get", f"{LIB}/multiprocessing/queues.py", 113),
    StackFrame("poll", f"{LIB}/multiprocessing/connection.py", 257),
)
IN_LOCK = (MAIN, TRAIN, StackFrame("hold", "/run/train.py", 12))
_LOOP = StackFrame("_worker_loop", f"{SITE}/torch/utils/data/_utils/worker.py", 250)
WORKER_WAITS = (MAIN, _LOOP, StackFrame("get", f"{LIB}/multiprocessing/queues.py", 113))
WORKER_READS = (
    MAIN,
    _LOOP,
    StackFrame("fetch", f"{SITE}/torch/utils/data/_utils/fetch.py", 54),
    StackFrame("Images.__getitem__", "/run/data.py", 60),
    StackFrame("decode", "/run/data.py", 88),
)
NFS = WaitTarget("read", 7, WaitKind.FILE, "/data/7.bin", "/data", "nfs4", NOT_APPLICABLE)
FUTEX = "lock or queue (futex)"


def make_thread(tid: int, **fields: Any) -> ThreadLook:
    """Build the main thread of rank 0 in an all_reduce."""
    plain = ThreadLook(
        tid=tid,
        name="MainThread",
        kind=ThreadKind.MAIN,
        state="S",
        wchan="futex_wait_queue",
        call="futex",
        waits_for=FUTEX,
        waits_on=NOT_APPLICABLE,
        run_ns=5_000_000,
        delay_ns=1_000_000,
        frames=ALL_REDUCE,
    )
    return replace(plain, **fields)


def make_native(tid: int, name: str, kind: ThreadKind = ThreadKind.COMM, **fields: Any) -> ThreadLook:
    """Build a thread that runs no Python."""
    return make_thread(tid, **({"name": name, "kind": kind, "frames": NOT_APPLICABLE} | fields))


def make_rank(rank: int, *others: ThreadLook, pid: int = 0, **fields: Any) -> ProcessLook:
    """Build rank ``rank`` with its main thread and ``others``; ``fields`` are of the main thread."""
    pid = pid or 4000 + 10 * rank
    return ProcessLook(
        pid=pid,
        start_ticks=100,
        role=Role.RANK,
        rank=rank,
        worker=NOT_APPLICABLE,
        rank_pid=NOT_APPLICABLE,
        label="train.py",
        idle=0,
        threads=(make_thread(pid, **fields), *others),
    )


def make_worker(rank: int, worker: int, **fields: Any) -> ProcessLook:
    """Build a loader worker of rank ``rank``."""
    pid = 4000 + 10 * rank + worker + 1
    return ProcessLook(
        pid=pid,
        start_ticks=100,
        role=Role.WORKER,
        rank=rank,
        worker=worker,
        rank_pid=4000 + 10 * rank,
        label=f"loader worker {worker}",
        idle=0,
        threads=(make_thread(pid, **({"frames": WORKER_WAITS} | fields)),),
    )


def make_round(
    *processes: ProcessLook, at_s: float = 0.0, host: str = HOST, errors: Iterable[DumpError] = ()
):
    """Build one look, ``at_s`` seconds after the first."""
    return DumpRound(
        host=host,
        taken=NOW + timedelta(seconds=at_s),
        taken_ns=NOW_NS + round(at_s * 1e9),
        processes=processes,
        errors=tuple(errors),
        paused_ms=0.0,
        spy_cpu_ms=10.0,
    )
