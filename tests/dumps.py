"""Build looks at made-up threads: a rank in its training loop unless a field says otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, replace
from datetime import timedelta
from typing import Any

from tests.frames import NOW, NOW_NS
from tests.stacks import ALL_REDUCE, IN_LOCK, SITE, WORKER_WAITS
from tests.waits import read_words, wait_of
from tpmon.judge.folds.groups import DumpOrigin, fold_rounds
from tpmon.model.dump import Dump, DumpError, DumpRound, ProcessLook, ProcessToll, ThreadLook
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame

HOST = "node-01"
FUTEX = "lock or queue (futex)"
ONCE = " (seen once: --rounds 3 shows whether it moves)"


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
        toll = ProcessToll(*(round(count * (1 + seconds)) for count in astuple(toll)))
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
