"""Dumps as the screen gets them: of eight ranks with an odd one, while it is read, of a denied job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from tests.collectives import make_call, make_group, make_record
from tests.dumps import add_run, make_native, make_rank, make_round, make_thread, make_worker
from tests.frames import NOW
from tests.stacks import NFS, SITE, WORKER_READS
from tpmon.judge.folds.groups import DumpOrigin, fold_rounds
from tpmon.judge.folds.hot import add_records, build_tree, show_stacks
from tpmon.model.dump import Asker, DumpError, DumpRequest, DumpRound, DumpState, ErrorKind, ProcessLook
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.results.collectives import CollectivesReading
from tpmon.model.results.doctor import DumpUpdate, point_to
from tpmon.model.stacks import StackFrame

RANKS = range(8, 16)
ODD = 11
NODE = "gpu-rack2-node17.cluster.internal"
LAST_WRITE = NOW - timedelta(seconds=1574)
"""As the verdict of the hung node has it."""
YAMA = "kernel.yama.ptrace_scope is 1: only a parent may read"
_LOOP = StackFrame("main", "/srv/runs/vitl/train.py", 214)
_STEP = StackFrame("train_step", "/srv/runs/vitl/engine.py", 88)
IN_ALL_REDUCE = (
    StackFrame("<module>", "/srv/runs/vitl/train.py", 260),
    _LOOP,
    _STEP,
    StackFrame("wrapper", f"{SITE}/torch/distributed/c10d_logger.py", 81),
    StackFrame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 2800),
)
IN_SAVE = (
    StackFrame("<module>", "/srv/runs/vitl/train.py", 260),
    _LOOP,
    StackFrame("save_shard", "/srv/runs/vitl/checkpoint.py", 212),
)
FEEDER = (
    StackFrame("_bootstrap", "/env/lib/python3.11/threading.py", 1002),
    StackFrame("_feed", "/env/lib/python3.11/multiprocessing/queues.py", 231),
)


def make_update(
    *rounds: DumpRound, world_size: int = 64, last_write: Applicable[datetime] = NOT_APPLICABLE, **state: object
) -> DumpUpdate:
    """Build what the session hands to the screen for these looks, all of them read."""
    request = DumpRequest(Asker.KEY, rounds=max(1, len(rounds)))
    asked = len(rounds[-1].processes) + len(rounds[-1].errors) if rounds else 0
    plain = DumpState(request, rounds, answered=asked, asked=asked, running=False, refused="")
    state_now = replace(plain, **state)
    if not rounds:
        return DumpUpdate(state_now, Missing("nothing was read yet"))
    not_asked = len(RANKS) if state_now.request.pids else NOT_APPLICABLE
    dump = fold_rounds(rounds, DumpOrigin(51_100, "pretrain_vision.py", world_size, not_asked))
    dump = replace(dump, last_write=last_write)
    return DumpUpdate(state_now, dump, show_stacks(dump.groups), build_tree(dump.groups))


def look_at(processes: Sequence[ProcessLook], ago_s: float, errors: Sequence[DumpError] = ()) -> DumpRound:
    """Build one look at processes of the hung node, ``ago_s`` before its picture."""
    one = make_round(*processes, errors=errors, host=NODE, at_s=-ago_s)
    return replace(one, spy_cpu_ms=27.0 * max(1, len(processes)))


def hung_processes() -> list[ProcessLook]:
    """Return seven ranks in an all_reduce, one that writes a shard, two workers each."""
    watchdog = make_native(77, "pt_nccl_watchdg", wchan="hrtimer_nanosleep", waits_for="sleep")
    feeder = make_thread(78, name="QueueFeederThread", kind=ThreadKind.OTHER, frames=FEEDER)
    found = []
    for rank in RANKS:
        pid = 51_192 + rank
        if rank == ODD:
            disk = replace(NFS, call="write", name="/ckpt/step_91220/shard_11.pt", mount="/ckpt")
            fields = {"frames": IN_SAVE, "state": "D", "waits_on": disk, "waits_for": "write"}
        else:
            fields = {"frames": IN_ALL_REDUCE, "state": "R", "waits_for": "running"}
        one = make_rank(rank, watchdog, feeder, pid=pid, **fields)
        found.append(replace(one, idle=14))
    found += [
        replace(make_worker(rank, n), pid=52_000 + 16 * (rank - 8) + n, rank_pid=51_192 + rank)
        for rank in RANKS
        for n in range(2)
    ]
    return found


def hung_once() -> DumpUpdate:
    """One look at the hung node, twelve seconds ago."""
    return make_update(look_at(hung_processes(), 12.0), last_write=LAST_WRITE)


def hung_recorded() -> DumpUpdate:
    """The same look with what the ranks recorded of their collectives."""
    group = make_group(18_203, 18_204, [make_call(18_204, ago_s=262.0)], ranks=tuple(range(64)))
    away = replace(group, last_called=18_203, calls=())
    taken = NOW - timedelta(seconds=12)
    records = tuple(make_record(rank, away if rank == ODD else group, host=NODE, taken=taken) for rank in RANKS)
    return add_records(hung_once(), CollectivesReading(records, (), ()))


def hung_three_looks(asker: Asker = Asker.KEY) -> DumpUpdate:
    """Three looks at the hung node, the last two seconds ago."""
    looks = [look_at([add_run(one, 10.0 - ago) for one in hung_processes()], 2.0 + ago) for ago in (10.0, 5.0, 0.0)]
    return make_update(*looks, last_write=LAST_WRITE, request=DumpRequest(asker, rounds=3))


def hung_running() -> DumpUpdate:
    """Twelve of 24 processes of the first look are read."""
    part = look_at(hung_processes()[:12], 0.2)
    return make_update(part, last_write=LAST_WRITE, answered=12, asked=24, running=True)


def hung_waiting() -> DumpUpdate:
    """A dump that was asked for and has nothing yet."""
    return make_update(answered=0, asked=24, running=True)


def denied() -> DumpUpdate:
    """A job of somebody else: no stack can be read, /proc tells the threads' states."""
    reason = point_to(f"not permitted: {YAMA}", "stacks")
    ranks = [
        make_rank(rank, pid=4211 + rank, frames=Missing(reason), waits_for=Missing("no permission")) for rank in (0, 1)
    ]
    errors = [
        DumpError(NODE, 4211 + rank, Role.RANK, rank, NOT_APPLICABLE, ErrorKind.DENIED, reason) for rank in (0, 1)
    ]
    return make_update(look_at(ranks, 1.0, errors), world_size=2)


def torn() -> DumpUpdate:
    """Two ranks, one of which changes its stacks faster than py-spy reads them."""
    reason = point_to("py-spy failed: failed to copy a frame: it ran on", "stacks")
    busy = make_rank(1, pid=4212, frames=Missing(reason), state="R", waits_for="running")
    error = DumpError(NODE, 4212, Role.RANK, 1, NOT_APPLICABLE, ErrorKind.FAILED, reason)
    ranks = [make_rank(0, pid=4211), busy]
    return make_update(look_at(ranks, 1.0, [error]), world_size=2)


def one_worker() -> DumpUpdate:
    worker = make_worker(0, 1, frames=WORKER_READS, state="D", waits_on=NFS)
    request = DumpRequest(Asker.KEY, pids=(worker.pid,))
    return make_update(look_at([worker], 1.0), request=request)


def mark_of(update: DumpUpdate, rank: int) -> int:
    assert is_known(update.dump)
    for group, stack in zip(update.dump.groups, update.stacks, strict=True):
        first = group.threads[0]
        if first.role is Role.RANK and first.kind is ThreadKind.MAIN and first.rank == rank:
            return stack.mark
    raise AssertionError(f"no group of rank {rank}")
