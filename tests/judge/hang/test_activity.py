"""A main thread that waits is no hang while what it may wait for works: a thread, a pool of C, a child, a card."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.dumps import IN_LOCK, LIB, MAIN, NEXT_BATCH, SITE, WORKER_READS, make_rank, make_thread, make_worker
from tests.frames import make_gpu, make_process
from tests.hanging import add_run, conclude, expect, said, sample, stand
from tpmon.judge.hang.causes import Patience
from tpmon.judge.hang.detection import need_s
from tpmon.judge.watch.tracker import WatchedTime
from tpmon.model.dump import OtherEnd, ProcessLook, ProcessToll, WaitKind, WaitTarget
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.process import Role, ThreadGroup, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Kind

RUNS = {"state": "R", "waits_for": "running", "wchan": "0", "call": ""}
JOIN = (MAIN, StackFrame("main", "/run/train.py", 120), StackFrame("join", f"{LIB}/threading.py", 1119))
SESSION = (
    StackFrame("main_loop", f"{SITE}/ray/_private/worker.py", 900),
    StackFrame("get_next", f"{SITE}/ray/train/_internal/session.py", 250),
    StackFrame("get", f"{LIB}/queue.py", 180),
)
IN_FORWARD = (
    StackFrame("run", f"{LIB}/threading.py", 980),
    StackFrame("fit", "/run/fit.py", 50),
    StackFrame("forward", f"{SITE}/torch/nn/modules/linear.py", 117),
)
IN_BACKWARD = (*IN_FORWARD[:1], StackFrame("fit", "/run/fit.py", 52))
TOKENIZE = (
    MAIN,
    StackFrame("tokenize", "/run/data.py", 30),
    StackFrame("encode_batch", f"{SITE}/transformers/tokenization_utils_fast.py", 500),
)
SUBPROCESS = (MAIN, StackFrame("upload", "/run/train.py", 70), StackFrame("run", f"{LIB}/subprocess.py", 550))
CPU_ADAM = (
    MAIN,
    StackFrame("train", "/run/train.py", 40),
    StackFrame("step", f"{SITE}/deepspeed/ops/adam/cpu_adam.py", 150),
)
SYNC = (
    MAIN,
    StackFrame("train", "/run/train.py", 40),
    StackFrame("synchronize", f"{SITE}/torch/cuda/__init__.py", 900),
)
FUTURE = (*WORKER_READS[:4], StackFrame("result", f"{LIB}/concurrent/futures/_base.py", 450))
FETCHED = (*WORKER_READS[:4], StackFrame("get", f"{LIB}/queue.py", 180))
EXECUTOR = StackFrame("_worker", f"{LIB}/concurrent/futures/thread.py", 83)


def thread(tid: int, frames: tuple[StackFrame, ...], **fields: Any) -> Any:
    return make_thread(tid, **({"name": f"thread-{tid}", "kind": ThreadKind.OTHER, "frames": frames} | fields))


def looks(frames: Sequence[Frame], *rounds: Sequence[ProcessLook]) -> list[Frame]:
    """Let each look in turn see other processes."""
    given = list(rounds)
    return [
        replace(frame, rounds=(replace(frame.rounds[0], processes=tuple(given.pop(0))),))
        if is_known(frame.rounds) and frame.rounds
        else frame
        for frame in frames
    ]


def read(frames: Sequence[Frame], pid: int, **fields: Any) -> list[Frame]:
    """Change the readings of one process."""
    return [
        replace(one, processes=tuple(replace(p, **fields) if p.pid == pid else p for p in one.processes))
        for one in frames
    ]


def moving(frames: tuple[StackFrame, ...], used_s: float, **fields: Any) -> list[Frame]:
    """Build minutes in which the main thread waits and another gets on, for ``used_s`` of CPU in each look."""
    state = RUNS if used_s else {"waits_for": "sleep"}
    one, two = (make_rank(0, thread(7, stack, **state), frames=frames) for stack in (IN_FORWARD, IN_BACKWARD))
    seen = [add_run(look, n * used_s) for n, look in enumerate((two, one, two))]
    return looks(stand(one, log_age_s=None, **fields), *((one,) for one in seen))


@pytest.mark.parametrize("frames", [JOIN, SESSION])
def test_a_training_in_a_thread_is_no_hang_however_long_the_main_thread_waits_for_it(frames):
    assert said(moving(frames, 3.0, seconds=90))[0] is not Kind.HUNG
    assert said(moving(frames, 3.0, seconds=400))[0] is not Kind.HUNG


def test_a_thread_that_moves_and_uses_little_gives_a_wait_five_minutes():
    assert said(moving(JOIN, 0.0, seconds=90))[0] is not Kind.HUNG
    expect("lock", moving(JOIN, 0.0, seconds=310), "meanwhile thread thread-7 (7) of it moves: fit fit.py:52")


def test_a_thread_that_only_wakes_up_and_sleeps_does_not_work():
    heart = StackFrame("beat", "/run/heart.py", 9)
    one, two = (
        make_rank(0, thread(7, (heart, *below), waits_for="sleep"), frames=IN_LOCK)
        for below in ((), (StackFrame("wait", f"{LIB}/threading.py", 331),))
    )
    frames = looks(stand(one, log_age_s=None), (one,), (two,), (one,))
    assert said(frames) == (Kind.HUNG, "lock")


@pytest.mark.parametrize(("cpus", "seconds", "hung"), [(1.0, 100, False), (1.0, 310, True), (16.0, 310, False)])
def test_a_thread_of_c_that_computes_gives_a_wait_five_minutes_and_a_pool_half_an_hour(cpus, seconds, hung):
    frames = stand(make_rank(0, frames=TOKENIZE), seconds=seconds, log_age_s=400.0)
    assert (said(read(frames, 4000, runnable=cpus, waiting=0.0))[0] is Kind.HUNG) is hung
    assert need_s(WatchedTime(), Patience.FLOWS) == 1800.0


def test_one_call_with_a_pool_of_threads_has_half_an_hour():
    rank = make_rank(0, frames=TOKENIZE, holds_gil=False, **RUNS)
    frames = sample(stand(rank, seconds=400, log_age_s=None), 4000, TOKENIZE)
    main = (ThreadGroup(ThreadKind.MAIN, 1, 1.0),)
    assert said(read(frames, 4000, runnable=1.0, thread_groups=main)) == (Kind.HUNG, "spin")
    assert said(read(frames, 4000, runnable=9.0, thread_groups=main))[0] is not Kind.HUNG


IDLE_CHILD = {"runnable": 0.0, "asked_read_bytes_s": 0.0, "asked_write_bytes_s": 0.0}


@pytest.mark.parametrize(
    ("fields", "hung"),
    [({"runnable": 0.5}, True), ({"runnable": 4.0}, False), ({"asked_write_bytes_s": 5e7}, False)],
    ids=["little", "compilers", "an upload"],
)
def test_a_child_that_works_much_gives_half_an_hour(fields, hung):
    child = make_process(4500, role=Role.HELPER, rank_pid=4000, parent=4000, **(IDLE_CHILD | fields))
    frames = [
        replace(one, processes=(*one.processes, child))
        for one in stand(make_rank(0, frames=IN_LOCK), seconds=400, log_age_s=None)
    ]
    assert (said(frames)[0] is Kind.HUNG) is hung


def test_a_store_that_stalls_in_the_middle_of_a_large_file_has_half_an_hour():
    saves = make_rank(0, frames=IN_LOCK)
    frames = stand(saves, seconds=400, log_age_s=None)
    before = read(frames[:-15], 4000, asked_write_bytes_s=2e8)
    assert said([*before, *frames[-15:]])[0] is not Kind.HUNG
    assert said(frames)[0] is Kind.HUNG


def test_a_worker_that_tries_again_and_again_is_named_after_half_an_hour():
    waits = make_rank(0, frames=NEXT_BATCH, waits_for="a batch (loader queue)")
    one, two = (
        make_worker(0, 0, frames=(*WORKER_READS[:4], StackFrame("fetch", "/run/data.py", line)), **RUNS)
        for line in (60, 90)
    )
    for seconds, hung in ((400, False), (1830, True)):
        tries = looks(stand(waits, one, seconds=seconds, log_age_s=None), *((waits, x) for x in (one, two, one)))
        finding = conclude(tries)
        assert (finding.kind is Kind.HUNG) is hung
    assert "waits for a batch; worker 0 of rank 0 (4001) moves: fetch data.py:" in finding.summary


def test_cpu_that_was_used_while_it_was_looked_at_counts_as_that_of_now():
    rank = replace(make_rank(0, frames=TOKENIZE), toll=ProcessToll(10**9, 0, 0))
    assert said(stand(rank, seconds=100, log_age_s=None))[0] is not Kind.HUNG


def test_threads_that_talk_to_other_ranks_are_no_work():
    groups = (ThreadGroup(ThreadKind.MAIN, 1, 0.0), ThreadGroup(ThreadKind.COMM, 1, 1.0))
    frames = read(
        stand(make_rank(0, frames=IN_LOCK), log_age_s=None), 4000, runnable=1.0, waiting=0.0, thread_groups=groups
    )
    assert said(frames) == (Kind.HUNG, "lock")


def test_a_card_that_is_known_to_work_gives_a_wait_five_minutes():
    works, idle = ((make_gpu(pids=(4000,), sm_pct=busy),) for busy in (60.0, 0.0))
    rank = make_rank(0, frames=IN_LOCK)
    assert said(stand(rank, seconds=90, log_age_s=None, gpus=works))[0] is not Kind.HUNG
    assert said(stand(rank, seconds=90, log_age_s=None, gpus=idle)) == (Kind.HUNG, "lock")


@pytest.mark.parametrize("frames", [FUTURE, FETCHED])
def test_a_worker_that_waits_for_threads_of_its_own_is_not_stuck_while_they_work(frames):
    batch = make_rank(0, frames=NEXT_BATCH, waits_for="a batch (loader queue)")
    worker = make_worker(0, 0, frames=frames)
    decodes = [thread(4055, (EXECUTOR, StackFrame("decode", "/run/data.py", line)), **RUNS) for line in (88, 91)]
    one, two = (replace(worker, threads=(*worker.threads, decode)) for decode in decodes)
    seen = [add_run(look, 3.0 * n) for n, look in enumerate((two, one, two))]
    job = stand(batch, one, seconds=60, log_age_s=None)
    assert said(looks(job, *((batch, one) for one in seen)))[0] is not Kind.HUNG


def test_a_batch_that_threads_of_the_rank_make_is_waited_for():
    threads = read(
        stand(make_rank(0, frames=NEXT_BATCH, waits_for="a batch"), seconds=100, log_age_s=None),
        4000,
        runnable=6.0,
        waiting=0.0,
    )
    assert said(threads)[0] is not Kind.HUNG


def child(**fields: Any) -> Any:
    return make_process(
        4999,
        **(
            {
                "role": Role.HELPER,
                "rank": NOT_APPLICABLE,
                "local_rank": NOT_APPLICABLE,
                "parent": 4000,
                "label": "aws",
                "thread_groups": (),
                "waiting": 0.0,
                "asked_read_bytes_s": 0.0,
                "asked_write_bytes_s": 0.0,
            }
            | fields
        ),
    )


def with_processes(frames: Sequence[Frame], *processes: Any) -> list[Frame]:
    return [replace(one, processes=(*one.processes, *processes)) for one in frames]


@pytest.mark.parametrize(
    ("fields", "hung"),
    [
        ({"runnable": 1.2}, False),
        ({"runnable": 0.05}, False),
        ({"runnable": 0.0, "asked_read_bytes_s": 5e6}, False),
        ({"runnable": 0.0}, True),
        ({"runnable": 1.2, "parent": 1}, True),
    ],
)
def test_a_program_that_was_started_and_works_is_waited_for(fields, hung):
    waits = make_rank(0, frames=SUBPROCESS, waits_for="child process", call="wait4")
    frames = with_processes(stand(waits, seconds=100, log_age_s=None), child(**fields))
    assert (said(frames)[0] is Kind.HUNG) is hung


def test_the_child_of_a_child_counts_as_one():
    waits = make_rank(0, frames=SUBPROCESS, waits_for="child process", call="wait4")
    shell, tool = child(runnable=0.0), child(runnable=1.0)
    job = with_processes(stand(waits, seconds=400, log_age_s=None), shell, replace(tool, pid=5001, parent=4999))
    assert said(job)[0] is not Kind.HUNG


def test_what_a_shell_started_counts_as_a_child():
    """The shell itself is no process of the job."""
    waits = make_rank(0, frames=SUBPROCESS, waits_for="child process", call="wait4")
    tool = child(runnable=1.0, parent=4998, rank_pid=4000)
    assert said(with_processes(stand(waits, seconds=400, log_age_s=None), tool))[0] is not Kind.HUNG


@pytest.mark.parametrize(("name", "hung"), [("python", False), ("pt_data_worker", True)])
def test_a_pool_of_an_older_torch_works_though_its_processes_look_like_workers(name, hung):
    pool = child(role=Role.WORKER, name=name, runnable=1.0, worker=NOT_APPLICABLE)
    frames = with_processes(stand(make_rank(0, frames=IN_LOCK), seconds=100, log_age_s=None), pool)
    assert (said(frames)[0] is Kind.HUNG) is hung


def test_a_logger_that_ticks_beside_a_lock_is_no_work():
    frames = with_processes(stand(make_rank(0, frames=IN_LOCK), log_age_s=None), child(runnable=0.1))
    assert said(frames) == (Kind.HUNG, "lock")


def test_a_rank_that_computes_beside_an_idle_card_does_not_wait_for_it():
    rank = make_rank(0, frames=CPU_ADAM, holds_gil=False, **RUNS)
    idle = (make_gpu(pids=(4000,), sm_pct=0.0),)
    for seconds, expected in ((45, False), (320, True)):
        frames = sample(stand(rank, seconds=seconds, log_age_s=None, gpus=idle), 4000, CPU_ADAM)
        assert (said(frames)[0] is Kind.HUNG) is expected


def test_a_rank_that_synchronizes_with_an_idle_card_does():
    rank = make_rank(0, frames=SYNC, holds_gil=False, **RUNS)
    idle = (make_gpu(pids=(4000,), sm_pct=0.0),)
    assert said(sample(stand(rank, log_age_s=None, gpus=idle), 4000, SYNC)) == (Kind.HUNG, "gpu-wait")


ASKED = WaitTarget("recvfrom", 7, WaitKind.SOCKET, "tcp", NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE)


@pytest.mark.parametrize(
    "below",
    [StackFrame("send", f"{SITE}/requests/adapters.py", 667), StackFrame("getresponse", f"{LIB}/http/client.py", 1411)],
)
def test_who_asked_a_server_waits_for_minutes_for_its_answer(below):
    asks = {"frames": (*IN_LOCK, below), "waits_for": "socket receive", "waits_on": ASKED, "call": "recvfrom"}
    rank = make_rank(0, **asks)
    assert said(stand(rank, seconds=120, log_age_s=None))[0] is not Kind.HUNG
    assert said(stand(rank, seconds=310, log_age_s=None)) == (Kind.HUNG, "blocked-io")
    bare = make_rank(0, **(asks | {"frames": IN_LOCK}))
    assert said(stand(bare, seconds=40, log_age_s=None)) == (Kind.HUNG, "blocked-io")
    worker = make_worker(0, 0, **asks)
    waits = make_rank(0, frames=NEXT_BATCH, waits_for="a batch (loader queue)")
    assert said(stand(waits, worker, seconds=120, log_age_s=None))[0] is not Kind.HUNG
    assert said(stand(waits, worker, seconds=310, log_age_s=None)) == (Kind.HUNG, "blocked-io")


@pytest.mark.parametrize(
    ("below", "target"),
    [
        (StackFrame("get", f"{SITE}/ray/_private/worker.py", 2600), ASKED),
        (
            StackFrame("send", f"{SITE}/requests/adapters.py", 667),
            replace(ASKED, others=(OtherEnd(7777, NOT_APPLICABLE, "vllm"),)),
        ),
    ],
    ids=["actors", "a model on this machine"],
)
def test_rollouts_have_half_an_hour(below, target):
    asks = {"frames": (*IN_LOCK, below), "waits_for": "socket receive", "waits_on": target, "call": "recvfrom"}
    assert said(stand(make_rank(0, **asks), seconds=400, log_age_s=None))[0] is not Kind.HUNG
    assert said(stand(make_rank(0, **asks), seconds=1810, log_age_s=None)) == (Kind.HUNG, "blocked-io")


def test_ranks_at_a_barrier_may_wait_minutes_for_one_elsewhere():
    barrier = (*IN_LOCK[:2], StackFrame("barrier", f"{SITE}/torch/distributed/distributed_c10d.py", 4000))
    ranks = [make_rank(rank, frames=barrier) for rank in (0, 1)]
    assert said(stand(*ranks, world_size=4, seconds=100, log_age_s=None))[0] is not Kind.HUNG
    assert said(stand(*ranks, world_size=4, seconds=310, log_age_s=None)) == (Kind.HUNG, "remote-rank")
