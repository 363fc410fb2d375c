"""Build looks at made-up threads: a rank in its training loop unless a field says otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.frames import NOW, NOW_NS
from tests.waits import read_words, wait_of
from tpmon.judge.dumps.groups import DumpOrigin, fold_rounds
from tpmon.model.dump import Dump, DumpError, DumpRound, ProcessLook, ProcessToll, ThreadLook, WaitKind, WaitTarget
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame

SITE = "/env/lib/python3.11/site-packages"
LIB = "/env/lib/python3.11"
HOST = "node-01"

ONCE = " (seen once: --rounds 3 shows whether it moves)"
RUNNING = {"state": "R", "waits_for": "running", "wchan": Missing("running"), "call": Missing("running")}

MAIN = StackFrame("<module>", "/run/train.py", 90)
TRAIN = StackFrame("train", "/run/train.py", 40)


def stack_of(text: str) -> tuple[StackFrame, ...]:
    """Build a stack, outermost frame first: "main > train > get lib/queue.py:171 > step torch/x.py:7".

    A file is one of an installed package, of Python's library below "lib/", or has its whole path.
    """
    stack = []
    for one in text.split(" > "):
        function, _, place = one.partition(" ")
        path, _, line = place.rpartition(":")
        if path.startswith("lib/"):
            file = f"{LIB}/{path.removeprefix('lib/')}"
        else:
            file = path if path.startswith("/") else f"{SITE}/{path}"
        stack.append({"main": MAIN, "train": TRAIN}[one] if not place else StackFrame(function, file, int(line)))
    return tuple(stack)


ALL_REDUCE = stack_of(
    "main > train > wrapper torch/distributed/c10d_logger.py:81 > all_reduce torch/distributed/distributed_c10d.py:2800"
)
BROADCAST = stack_of("main > train /run/train.py:55 > broadcast torch/distributed/distributed_c10d.py:2500")
BACKWARD = stack_of(
    "main > train > Tensor.backward torch/_tensor.py:623 > _engine_run_backward torch/autograd/graph.py:979"
)
DECODE = stack_of(
    "main > train > __next__ torch/utils/data/dataloader.py:700"
    " > fetch torch/utils/data/_utils/fetch.py:54 > Images.__getitem__ /run/data.py:60"
    " > decode /run/data.py:88"
)
NEXT_BATCH = stack_of(
    "main > train > _BaseDataLoaderIter.__next__ torch/utils/data/dataloader.py:700"
    " > _try_get_data torch/utils/data/dataloader.py:1200 > get lib/multiprocessing/queues.py:113"
    " > poll lib/multiprocessing/connection.py:257"
)
IN_LOCK = (MAIN, TRAIN, StackFrame("hold", "/run/train.py", 12))
_LOOP = StackFrame("_worker_loop", f"{SITE}/torch/utils/data/_utils/worker.py", 250)
WORKER_WAITS = (MAIN, _LOOP, StackFrame("get", f"{LIB}/multiprocessing/queues.py", 113))
WORKER_READS = stack_of(
    "main > _worker_loop torch/utils/data/_utils/worker.py:250"
    " > fetch torch/utils/data/_utils/fetch.py:54 > Images.__getitem__ /run/data.py:60"
    " > decode /run/data.py:88"
)
NFS = WaitTarget("read", 7, WaitKind.FILE, "/data/7.bin", "/data", "nfs4", NOT_APPLICABLE)
READS = {"state": "D", "waits_for": "NFS", "waits_on": NFS, "call": "read"}
FUTEX = "lock or queue (futex)"


def make_thread(tid: int, **fields: Any) -> ThreadLook:
    """Build the main thread of rank 0 in an all_reduce. ``waits_for`` may be in words."""
    plain = ThreadLook(
        tid=tid,
        name="MainThread",
        kind=ThreadKind.MAIN,
        state="S",
        wchan="futex_wait_queue",
        call="futex",
        waits_for=wait_of(FUTEX),
        waits_on=NOT_APPLICABLE,
        run_ns=5_000_000,
        delay_ns=1_000_000,
        frames=ALL_REDUCE,
    )
    if "waits_for" in fields:
        fields["waits_for"] = read_words(fields["waits_for"])
    return replace(plain, **fields)


def make_native(tid: int, name: str, kind: ThreadKind = ThreadKind.COMM, **fields: Any) -> ThreadLook:
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


def add_run(look: ProcessLook, seconds: float) -> ProcessLook:
    """Let the threads that run, state R, use a CPU for ``seconds`` more; half in the kernel where that is known.

    A toll grows by the same CPU, and by what it holds of faults and bytes for each second.
    """

    def run(thread: ThreadLook) -> ThreadLook:
        if thread.state != "R" or not is_known(thread.run_ns):
            return thread
        used_ns = round(seconds * 1e9)
        inside = thread.kernel_ns + used_ns // 2 if is_known(thread.kernel_ns) else thread.kernel_ns
        return replace(thread, run_ns=thread.run_ns + used_ns, kernel_ns=inside)

    toll = look.toll
    if is_known(toll):
        toll = ProcessToll(
            round(toll.cpu_ns * (1 + seconds)),
            round(toll.faults * (1 + seconds)),
            round(toll.moved_bytes * (1 + seconds)),
        )
    return replace(look, threads=tuple(map(run, look.threads)), toll=toll)


def make_round(*processes: ProcessLook, at_s: float = 0.0, host: str = HOST, errors: Iterable[DumpError] = ()):
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


def fold(*processes: ProcessLook, world: int | None = None, **more: Any) -> Dump:
    ranks = sum(one.role is Role.RANK for one in processes)
    return fold_rounds([make_round(*processes, **more)], DumpOrigin(1, "train.py", world or ranks))


def rounds(*looks: list[ProcessLook], every_s: float = 5.0, world: int = 4) -> Dump:
    made = [make_round(*processes, at_s=number * every_s) for number, processes in enumerate(looks)]
    return fold_rounds(made, DumpOrigin(1, "train.py", world))


def odd_pid(dump: Dump) -> int:
    """Return the PID of the odd one out, 0 where none is named."""
    return dump.odd_one_out.pid if is_known(dump.odd_one_out) else 0


def inner(line: int) -> tuple[StackFrame, ...]:
    """Build a stack whose last line is a library's: the user's own line stays while that moves."""
    return (*IN_LOCK, StackFrame("inside", f"{SITE}/numpy/core.py", line))
