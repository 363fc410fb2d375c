"""Who is blamed, and how long it takes, where others of the job move, work or serve beside who stands."""

from dataclasses import replace
from typing import Any

import pytest

from tests.dumps import (
    ALL_REDUCE,
    IN_LOCK,
    LIB,
    MAIN,
    NEXT_BATCH,
    NFS,
    SITE,
    WORKER_READS,
    make_rank,
    make_thread,
    make_worker,
)
from tests.frames import make_gpu, make_process
from tests.hanging import add_run, conclude, expect, said, sample, stand
from tests.judge.hang.test_activity import ASKED, looks, read
from tests.judge.hang.test_devices import SPINS
from tpmon.model.dump import DeadChild, OtherEnd, ProcessLook
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.process import Outcome, ProcessEnd, Role
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Finding, Kind

RUNS = {"state": "R", "waits_for": "running", "wchan": "0", "call": ""}
ITEM = (MAIN, StackFrame("train", "/run/train.py", 77))
NAP = (MAIN, StackFrame("train", "/run/train.py", 78))
RESULT = (*ITEM, StackFrame("result", f"{LIB}/concurrent/futures/_base.py", 451))
WAITS = make_rank(0, frames=NEXT_BATCH, waits_for="a batch (loader queue)")
ACQUIRES = (*WORKER_READS[:4], StackFrame("__enter__", f"{LIB}/multiprocessing/synchronize.py", 95))


def beside_a_worker_that_moves(*others: ProcessLook, seconds: int = 40) -> Finding:
    one, two = (
        make_worker(0, 0, frames=(*WORKER_READS[:4], StackFrame("decode", "/run/data.py", line)), **RUNS)
        for line in (60, 90)
    )
    base = stand(WAITS, one, *others, seconds=seconds, log_age_s=None)
    moves = [(WAITS, add_run(worker, 3.0 * at), *others) for at, worker in enumerate((one, two, one))]
    return conclude(looks(base, *moves))


@pytest.mark.parametrize(
    "other",
    [
        make_worker(0, 1, frames=ACQUIRES),
        make_worker(0, 1, frames=WORKER_READS, state="D", waits_for="NFS", waits_on=NFS, call="read"),
    ],
    ids=["a lock", "a slow file"],
)
def test_while_one_worker_gets_on_no_other_hangs_its_rank(other):
    assert beside_a_worker_that_moves(other).kind is not Kind.HUNG
    alone = stand(WAITS, other, seconds=40, log_age_s=None)
    assert said(alone)[0] is Kind.HUNG
    late = beside_a_worker_that_moves(other, seconds=1830)
    assert (late.kind, late.cause) == (Kind.HUNG, "no-progress")
    assert "worker 0 of rank 0 (4001) moves" in late.summary


def test_a_pool_that_works_for_an_hour_is_no_hang():
    pool = (
        MAIN,
        StackFrame("prepare", "/run/train.py", 30),
        StackFrame("map", f"{LIB}/multiprocessing/pool.py", 367),
        StackFrame("wait", f"{LIB}/multiprocessing/pool.py", 765),
    )
    main = make_rank(0, frames=pool, waits_for="lock or queue (futex)")
    one, two = (_child(4500, "train.py", StackFrame("tokenize", "/run/data.py", line)) for line in (10, 20))
    frames = stand(main, one, seconds=3600, log_age_s=None)
    moves = [(main, add_run(child, 3.0 * at)) for at, child in enumerate((one, two, one))]
    assert said(looks(frames, *moves))[0] is not Kind.HUNG


def _child(pid: int, label: str, *frames: StackFrame, **fields: Any) -> ProcessLook:
    """Make a process that the rank started."""
    return ProcessLook(
        pid=pid,
        start_ticks=100,
        role=Role.HELPER,
        rank=NOT_APPLICABLE,
        worker=NOT_APPLICABLE,
        rank_pid=4000,
        label=label,
        idle=0,
        threads=(make_thread(pid, **({"frames": frames, **RUNS} | fields)),),
    )


@pytest.mark.parametrize("package", ["multiprocess", "joblib/externals/loky/backend"])
def test_a_copy_of_the_resource_tracker_is_left_out_as_the_original(package):
    waits = make_rank(
        0,
        frames=(
            StackFrame("<module>", "/run/train.py", 9),
            StackFrame("result", f"{LIB}/concurrent/futures/_base.py", 450),
        ),
    )

    def judged(file: str) -> tuple[Kind, str]:
        tracker = _child(
            4500,
            "train.py",
            StackFrame("main", file, 213),
            state="S",
            wchan="pipe_read",
            call="read",
            waits_for="pipe read",
        )
        return said(stand(waits, tracker, seconds=2000, log_age_s=None))

    original = judged(f"{LIB}/multiprocessing/resource_tracker.py")
    assert judged(f"{LIB}/site-packages/{package}/resource_tracker.py") == original
    assert judged("/run/pool.py") != original, "a child that the program started itself is blamed"


def test_what_a_run_read_and_wrote_before_it_stood_gives_a_hang_no_time():
    lock = make_rank(0, frames=IN_LOCK)
    trained = replace(lock, threads=(make_thread(4000, frames=ITEM, **RUNS),))
    before = read(stand(trained, seconds=59, log_age_s=None), 4000, asked_read_bytes_s=5e7)
    after = stand(lock, seconds=40, log_age_s=None)
    first_ns, last_ns = after[0].taken_ns, before[-1].taken_ns
    earlier = [
        replace(one, taken_ns=one.taken_ns + first_ns - last_ns - 10**9, rounds=NOT_APPLICABLE) for one in before
    ]
    assert said([*earlier, *after]) == (Kind.HUNG, "lock")


def test_a_card_that_works_may_do_what_the_others_wait_for():
    computes = make_rank(0, frames=ITEM, holds_gil=False, **RUNS)
    for other, seconds in ((make_rank(1, frames=IN_LOCK), 40), (make_rank(1, frames=NAP, waits_for="sleep"), 90)):
        for spins, hung in (({}, False), (SPINS, True)):
            cards = (
                make_gpu(0, pids=(computes.pid,), **({"sm_pct": 100.0} | spins)),
                make_gpu(1, pids=(other.pid,), sm_pct=0.0),
            )
            frames = stand(computes, other, world_size=2, gpus=cards, seconds=seconds, log_age_s=None)
            assert (said(sample(frames, computes.pid, ITEM))[0] is Kind.HUNG) is hung


def test_the_time_that_the_user_gave_holds_for_the_sleep_of_a_program_alone():
    sleeps = make_rank(0, frames=NAP, waits_for="sleep")
    frames = stand(sleeps, seconds=200, log_age_s=None)
    assert said(frames)[0] is not Kind.HUNG
    assert said(frames, asked_s=60.0) == (Kind.HUNG, "no-progress")


def test_the_command_that_is_advised_looks_as_long_as_it_takes():
    for seconds in (15, 40, 90):
        finding = conclude(stand(make_rank(0), world_size=2, seconds=seconds, log_age_s=None))
        assert finding.kind is not Kind.HUNG
        assert "--for 310s" in finding.try_
    asked = conclude(stand(make_rank(0), world_size=2, seconds=15, log_age_s=None), asked_s=60.0)
    assert "--for 70s" in asked.try_


LOOP = (
    StackFrame("run", f"{LIB}/asyncio/runners.py", 190),
    StackFrame("run_forever", f"{LIB}/asyncio/base_events.py", 608),
    StackFrame("_run_once", f"{LIB}/asyncio/base_events.py", 1898),
    StackFrame("select", f"{LIB}/selectors.py", 468),
)


def test_a_model_server_that_the_trainer_started_has_half_an_hour():
    asks = make_rank(
        0,
        frames=(*IN_LOCK, StackFrame("send", f"{SITE}/requests/adapters.py", 667)),
        waits_for="socket receive",
        waits_on=replace(ASKED, others=(OtherEnd(4500, NOT_APPLICABLE, "vllm"),)),
        call="recvfrom",
    )
    rests = {"state": "S", "waits_for": "epoll", "wchan": "ep_poll", "call": "epoll_wait"}
    server = _child(4500, "vllm", *LOOP, **rests)
    assert said(stand(asks, server, seconds=400, log_age_s=None))[0] is not Kind.HUNG
    assert said(stand(asks, server, seconds=1810, log_age_s=None))[0] is Kind.HUNG


@pytest.mark.parametrize("client", ["redis/connection.py", "wandb/sdk/lib/sock_client.py"])
def test_a_store_on_this_machine_has_five_minutes_as_any(client):
    target = replace(ASKED, others=(OtherEnd(7777, NOT_APPLICABLE, "server"),))
    asks = make_rank(
        0,
        frames=(*IN_LOCK, StackFrame("read", f"{SITE}/{client}", 500)),
        waits_for="socket receive",
        waits_on=target,
        call="recvfrom",
    )
    assert said(stand(asks, seconds=280, log_age_s=None))[0] is not Kind.HUNG
    assert said(stand(asks, seconds=320, log_age_s=None)) == (Kind.HUNG, "blocked-io")


def test_where_the_cards_of_all_ranks_work_none_is_named():
    ranks = [make_rank(rank, frames=ITEM, holds_gil=False, **RUNS) for rank in (0, 1)]
    cards = tuple(make_gpu(i, pids=(one.pid,), sm_pct=100.0) for i, one in enumerate(ranks))
    frames = stand(*ranks, world_size=2, gpus=cards, seconds=1830, log_age_s=None)
    each = [sample(frames, one.pid, ITEM) for one in ranks]
    both = [replace(a, stacks=(*a.stacks, *b.stacks)) for a, b in zip(*each, strict=True)]
    finding = conclude(both)
    assert (finding.kind, finding.cause, finding.rank) == (Kind.HUNG, "gpu-wait", NOT_APPLICABLE)


@pytest.mark.parametrize(("name", "dies"), [("git", False), ("python3.11", True), ("train.py", True)])
def test_of_a_queue_only_what_python_started_may_have_died(name, dies):
    get = StackFrame("get", f"{LIB}/multiprocessing/queues.py", 103)
    waits = make_rank(0, frames=(*ITEM, get), waits_for="pipe read")
    dead = (DeadChild(4444, 4000, name, "exit 0"),)
    frames = [
        replace(one, processes=tuple(replace(p, name="train.py") for p in one.processes))
        for one in stand(waits, seconds=100, log_age_s=None, dead=dead)
    ]
    kind, cause = said(frames)
    assert kind is Kind.HUNG
    assert (cause == "dead-worker") is dies


def test_a_loop_that_reads_a_shard_now_and_then_has_half_an_hour():
    build, parse = (StackFrame("build_index", "/run/train.py", line) for line in (50, 51))
    loops = make_rank(0, frames=(MAIN, build), holds_gil=True, **RUNS)
    still = stand(loops, seconds=330, log_age_s=None)
    reads = [*read(still[:-18], 4000, asked_read_bytes_s=5e7), *still[-18:]]
    assert said(sample(reads, 4000, (MAIN, build), (MAIN, parse)))[0] is not Kind.HUNG
    assert said(sample(still, 4000, (MAIN, build), (MAIN, parse))) == (Kind.HUNG, "spin")


@pytest.mark.parametrize(
    ("outer", "client"),
    [
        ("mlflow/utils/autologging_utils/safety.py", "requests/adapters.py"),
        ("requests/x.py", "huggingface_hub/inference/_client.py"),
    ],
)
def test_who_asks_a_model_through_other_libraries_has_half_an_hour(outer, client):
    asks = make_rank(
        0,
        frames=(StackFrame("wrapped", f"{SITE}/{outer}", 10), *IN_LOCK, StackFrame("send", f"{SITE}/{client}", 667)),
        waits_for="socket receive",
        waits_on=replace(ASKED, others=(OtherEnd(7777, NOT_APPLICABLE, "tgi"),)),
        call="recvfrom",
    )
    assert said(stand(asks, seconds=400, log_age_s=None))[0] is not Kind.HUNG


def test_a_monitor_that_moves_beside_a_queue_is_told_after_half_an_hour():
    get = StackFrame("get", f"{LIB}/multiprocessing/queues.py", 103)
    main = make_rank(0, frames=(*ITEM, get), waits_for="pipe read")
    one, two = (_child(4500, "train.py", StackFrame("watch", "/run/watch.py", line)) for line in (10, 20))
    for seconds, hung in ((400, False), (1830, True)):
        frames = stand(main, one, seconds=seconds, log_age_s=None)
        moves = [(main, add_run(child, 3.0 * at)) for at, child in enumerate((one, two, one))]
        assert (said(looks(frames, *moves))[0] is Kind.HUNG) is hung


END = ProcessEnd(
    pid=4500,
    role=Role.HELPER,
    rank=NOT_APPLICABLE,
    worker=NOT_APPLICABLE,
    outcome=Outcome.FAILED,
    signal="SIGKILL",
    how="SIGKILL; OOM killer (kernel log)",
)
POOL = (
    *ITEM,
    StackFrame("get", f"{LIB}/multiprocessing/pool.py", 768),
    StackFrame("wait", f"{LIB}/multiprocessing/pool.py", 765),
)


def ends_at(frames: list[Frame], second: int, end: ProcessEnd) -> list[Frame]:
    """Let a process that the rank started live until then, and be seen to end."""
    child = make_process(end.pid, role=end.role, rank=end.rank, local_rank=NOT_APPLICABLE, parent=4000, name="python")
    lived = [replace(one, processes=(*one.processes, child)) for one in frames[:second]]
    return [*lived, replace(frames[second], ends=(end,)), *frames[second + 1 :]]


def test_a_pool_whose_process_was_seen_to_be_killed_has_lost_its_result_with_it():
    task = StackFrame("worker", f"{LIB}/multiprocessing/pool.py", 114)
    idle = _child(
        4501, "train.py", task, StackFrame("get", f"{LIB}/multiprocessing/queues.py", 386), waits_for="pipe read"
    )
    idle = replace(idle, threads=tuple(replace(one, state="S", call="read") for one in idle.threads))
    main = make_rank(0, frames=POOL, waits_for="lock or queue (futex)")
    frames = stand(main, idle, seconds=45, log_age_s=None)
    assert said(frames) == (Kind.HUNG, "lost-batch")
    expect("dead-worker", ends_at(frames, 5, END), "(4500: SIGKILL; OOM killer (kernel log))")


def test_a_dead_child_is_told_as_it_was_seen_to_end():
    dead = (DeadChild(4500, 4000, "python", "SIGKILL"),)
    get = StackFrame("get", f"{LIB}/multiprocessing/queues.py", 103)
    waits = make_rank(0, frames=(*ITEM, get), waits_for="pipe read")
    frames = stand(waits, seconds=45, log_age_s=None, dead=dead)
    assert "4500: SIGKILL)" in conclude(frames).summary
    assert "4500: SIGKILL; OOM killer" in conclude(ends_at(frames, 5, END)).summary


def test_a_rank_that_was_seen_to_end_is_told_with_how():
    ended = replace(END, pid=4030, role=Role.RANK, rank=2, how="exit 1", signal=NOT_APPLICABLE)
    ranks = [make_rank(rank, frames=ALL_REDUCE) for rank in (0, 1)]
    frames = stand(*ranks, seconds=45, world_size=3, log_age_s=None)
    assert conclude(frames).kind is not Kind.HUNG, "the third may save alone elsewhere"
    gone = make_process(4030, rank=2, local_rank=2)
    seen = [replace(one, processes=(*one.processes, gone)) for one in frames[:5]]
    finding = conclude([*seen, replace(frames[5], ends=(ended,)), *frames[6:]])
    assert "rank 2 has ended (exit 1)" in finding.summary


POOL_LOOPS = [
    (StackFrame("_process_worker", f"{LIB}/concurrent/futures/process.py", 240),),
    (
        StackFrame("worker", f"{LIB}/multiprocessing/pool.py", 125),
        StackFrame("mapstar", f"{LIB}/multiprocessing/pool.py", 48),
    ),
]


@pytest.mark.parametrize("loop", POOL_LOOPS, ids=["executor", "pool"])
@pytest.mark.parametrize(
    "below", [(StackFrame("copyfile", f"{LIB}/shutil.py", 269),), ()], ids=["a library", "a call of C"]
)
def test_a_process_of_a_pool_at_a_task_of_a_library_has_not_lost_its_result(loop, below):
    reads = {"state": "D", "waits_for": "NFS", "waits_on": NFS, "call": "read"}
    child = _child(4500, "train.py", *loop, *below, **reads)
    main = make_rank(0, frames=RESULT, waits_for="lock or queue (futex)")
    finding = expect("blocked-io", stand(main, child, seconds=45, log_age_s=None))
    assert "the result was lost" not in finding.summary


@pytest.mark.parametrize(
    "stack",
    [(POOL_LOOPS[0][0], StackFrame("get", f"{SITE}/diskcache/core.py", 1135)), (POOL_LOOPS[1][0],)],
    ids=["called get", "a call of C by apply_async"],
)
def test_nor_has_one_at_a_task_that_is_called_get_or_that_the_loop_calls_itself(stack):
    reads = {"state": "D", "waits_for": "NFS", "waits_on": NFS, "call": "read"}
    main = make_rank(0, frames=RESULT, waits_for="lock or queue (futex)")
    expect("blocked-io", stand(main, _child(4500, "train.py", *stack, **reads), seconds=45, log_age_s=None))


@pytest.mark.parametrize("loop", POOL_LOOPS, ids=["executor", "pool"])
def test_a_process_of_a_pool_that_waits_for_a_task_has(loop):
    get = StackFrame("get", f"{LIB}/multiprocessing/queues.py", 103)
    child = _child(4500, "train.py", loop[0], get, waits_for="pipe read", state="S", call="read")
    main = make_rank(0, frames=RESULT, waits_for="lock or queue (futex)")
    assert said(stand(main, child, seconds=45, log_age_s=None)) == (Kind.HUNG, "lost-batch")


MEGATRON = f"{SITE}/megatron"
ASIDE = f"{MEGATRON}/core/dist_checkpointing/strategies"
ASYNC_SAVE = (
    MAIN,
    StackFrame("pretrain", "/run/train.py", 40),
    StackFrame("maybe_finalize_async_save", f"{MEGATRON}/training/async_utils.py", 60),
    StackFrame("close", f"{ASIDE}/async_utils.py", 270),
    StackFrame("join", f"{LIB}/multiprocessing/process.py", 149),
)


def test_the_end_of_a_save_aside_of_megatron_has_the_time_of_one():
    write = StackFrame("write_preloaded_data", f"{ASIDE}/filesystem_async.py", 9)
    reads = {"state": "D", "waits_for": "NFS", "waits_on": NFS, "call": "fsync"}
    writer = _child(4500, "train.py", write, **reads)
    main = make_rank(0, frames=ASYNC_SAVE, waits_for="child process", call="wait4")
    job = (main, writer, make_rank(1))
    assert said(stand(*job, world_size=2, seconds=100, log_age_s=None))[0] is not Kind.HUNG
    assert said(stand(*job, world_size=2, seconds=310, log_age_s=None)) == (Kind.HUNG, "missing-rank")
