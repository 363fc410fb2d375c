"""Who keeps a job from going on, on made-up looks at it: each cause, and each job that is only slow."""

from dataclasses import replace

import pytest

from tests.dumps import (
    BACKWARD,
    BROADCAST,
    DECODE,
    IN_LOCK,
    LIB,
    MAIN,
    NEXT_BATCH,
    NFS,
    SITE,
    TRAIN,
    WORKER_READS,
    make_native,
    make_rank,
    make_thread,
    make_worker,
)
from tests.frames import make_gpu, make_loader, make_process
from tests.hanging import conclude, expect, hung, run, said, sample, stand
from tpmon.judge.watch.tracker import RankMemory, WatchedTime, observe
from tpmon.model.dump import DeadChild, OtherEnd, ProcessToll, WaitKind, WaitTarget
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import EnvironmentSetting, Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Kind, SinceIs

READS = {"state": "D", "waits_for": "NFS", "waits_on": NFS, "call": "read"}
BATCH = {"frames": NEXT_BATCH, "waits_for": "a batch (loader queue)"}
FLUSH = (MAIN, StackFrame("flush", "/run/logs.py", 19))
EXIT = (StackFrame("_shutdown", f"{LIB}/threading.py", 1590),)
LOOP = (MAIN, StackFrame("wait_for_flag", "/run/train.py", 50))
RESULT = (MAIN, TRAIN, StackFrame("get", f"{LIB}/multiprocessing/queues.py", 103))
LSTM = (*LOOP, StackFrame("forward", f"{SITE}/torch/nn/modules/rnn.py", 917))
SAVE = (MAIN, TRAIN, StackFrame("save", f"{SITE}/torch/serialization.py", 700))
ITEM = (MAIN, StackFrame("train", "/run/train.py", 77))
NAP = (MAIN, StackFrame("train", "/run/train.py", 78))
RUNS = {"state": "R", "waits_for": "running", "wchan": "0", "call": ""}


def thread(tid, frames, **fields):
    """Make a Python thread of a rank that is not its main one."""
    return make_thread(tid, **({"name": f"thread-{tid}", "kind": ThreadKind.OTHER, "frames": frames} | fields))


def test_the_rank_that_is_not_in_the_collective_is_named_with_its_line_and_what_it_waits_for():
    others = [make_rank(rank) for rank in (0, 1, 2)]
    finding = expect("missing-rank", stand(*others, make_rank(3, frames=DECODE, **READS), log_age_s=1560.0))
    assert finding.summary.startswith(
        "3 of 4 ranks wait in all_reduce train.py:40; rank 3 is in decode data.py:88 (data wait), "
        "blocked in a read of /data/7.bin on NFS (/data)"
    )
    assert finding.since_is is SinceIs.LOWER_BOUND
    assert finding.since_source.startswith("last log write")
    # Since when stands beside the verdict, and nowhere a second time.
    assert "at least" not in finding.summary
    assert not any("log" in row.name for row in finding.evidence)
    assert any("(4030)" in row.name and "decode data.py:88" in row.text for row in finding.evidence)


def test_no_rank_here_is_accused_where_all_wait_and_others_run_elsewhere():
    finding = expect(
        "remote-rank",
        stand(make_rank(0), make_rank(1), world_size=4, log_age_s=400.0),
        "of ranks 2-3",
        "tpmon dump --job --json there",
        asked_s=30.0,
    )
    assert "tpmon fold" in finding.try_


def test_a_rank_that_ended_here_is_missing():
    frames = stand(make_rank(0), make_rank(1), world_size=3)
    gone = stand(make_rank(0), make_rank(1), make_rank(2), world_size=3)[0]
    frames[0] = replace(gone, taken=frames[0].taken, taken_ns=frames[0].taken_ns)
    expect("missing-rank", frames, "rank 2 has ended")


def test_a_job_that_goes_on_with_fewer_ranks_does_not_miss_those_that_it_had():
    three = stand(make_rank(0), make_rank(1), make_rank(2), world_size=3)
    two = stand(make_rank(0), make_rank(1), world_size=2)
    expect("no-progress", [replace(three[0], taken=two[0].taken, taken_ns=two[0].taken_ns), *two[1:]])
    old = three[0].processes
    for here in (replace(three[0], processes=()), three[0]):
        anew = [replace(one, start_ticks=7, pid=one.pid + 500) for one in old]
        watch = observe(observe(WatchedTime(), three[0]), replace(here, processes=()))
        assert watch.numbers == {0, 1, 2}
        assert observe(watch, replace(here, processes=tuple(anew[:2]))).numbers == {0, 1}


def test_a_gap_in_the_local_ranks_is_one_that_ended_before_tpmon_came():
    above = make_process(900, role=Role.LAUNCHER, rank=NOT_APPLICABLE, local_rank=NOT_APPLICABLE)
    frames = stand(make_rank(0), make_rank(2), world_size=3)
    expect("missing-rank", [replace(one, processes=(above, *one.processes)) for one in frames], "rank 1 has ended")


@pytest.mark.parametrize(
    ("told", "launcher", "missing"),
    [("3", True, "rank 2 has ended"), ("3", False, ""), ("9", True, ""), ("nonsense", True, "")],
    ids=["as the launcher says", "of who knows whom", "more than the job has", "no number"],
)
def test_a_last_rank_that_ended_well_is_missed_where_the_launcher_says_how_many_it_started(told, launcher, missing):
    frames = []
    for frame in stand(make_rank(0), make_rank(1), world_size=4, log_age_s=400.0):
        ranks = tuple(
            replace(one, environment=(EnvironmentSetting("LOCAL_WORLD_SIZE", told),)) for one in frame.processes
        )
        above = make_process(900, role=Role.LAUNCHER, rank=NOT_APPLICABLE, local_rank=NOT_APPLICABLE)
        frames.append(replace(frame, processes=(above, *ranks) if launcher else ranks))
    expect("missing-rank" if missing else "remote-rank", frames, missing, asked_s=30.0)


def test_ranks_in_different_collectives_wait_for_each_other():
    expect(
        "missing-rank",
        stand(make_rank(0), make_rank(1, frames=BROADCAST), world_size=2),
        "different collectives: rank 0 in all_reduce train.py:40, rank 1 in broadcast",
    )


def test_all_ranks_in_one_collective_with_none_outside_is_no_progress():
    expect("no-progress", stand(make_rank(0), make_rank(1), world_size=2), "none is outside of it")


def test_a_wait_for_gradients_in_c_is_a_wait_for_ranks():
    gloo = make_native(9001, "pt_gloo_runloop")
    ranks = [make_rank(rank, replace(gloo, tid=9000 + rank), frames=BACKWARD) for rank in (0, 1)]
    assert said(stand(*ranks, world_size=4, seconds=310, log_age_s=None)) == hung("remote-rank")


def test_the_holder_of_a_lock_is_named_where_it_is_known():
    target = WaitTarget(
        "futex", NOT_APPLICABLE, WaitKind.LOCK, "thread-7 (7)", NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE,
        others=(OtherEnd(4000, 7, "thread-7"),),
    )  # fmt: skip
    flusher, other = thread(7, FLUSH, waits_for="sleep"), thread(8, FLUSH)
    expect(
        "lock",
        stand(make_rank(0, other, flusher, frames=IN_LOCK, waits_on=target)),
        "waits for a lock that thread-7 (7) holds; that thread is in flush logs.py:19",
    )


def test_another_thread_that_stands_may_hold_the_lock():
    expect(
        "lock",
        stand(make_rank(0, thread(7, FLUSH), frames=IN_LOCK)),
        "waiting for a lock; perhaps held by thread thread-7 (7), which is in flush logs.py:19",
    )
    alone = conclude(stand(make_rank(0, frames=IN_LOCK)))
    assert "who holds it cannot be seen" in alone.summary


def test_a_library_that_keeps_the_interpreter_is_a_lock_and_its_thread_the_holder():
    waits = {"waits_for": "lock with a time-out (futex)", "holds_gil": False}
    decoder = thread(7, FLUSH, waits_for="sleep", holds_gil=True)
    expect(
        "lock",
        stand(make_rank(0, decoder, frames=IN_LOCK, **waits)),
        "rank 0 waits for the interpreter's lock (GIL): thread thread-7 (7) holds it in flush",
    )
    alone = conclude(stand(make_rank(0, frames=IN_LOCK, waits_for="sleep", holds_gil=True)))
    assert "rank 0 holds the interpreter's lock (GIL)" in alone.summary


def test_a_program_that_has_finished_waits_for_a_thread_that_does_not_end():
    writer = thread(7, FLUSH)
    expect(
        "lock",
        stand(make_rank(0, writer, frames=EXIT)),
        "rank 0 has finished, but thread thread-7 (7) of it has not: it is in flush logs.py:19",
    )


def monitor(tid):
    """Make the thread that looks after the bars of tqdm, which is a daemon and older than most others."""
    return thread(
        tid,
        (StackFrame("run", f"{SITE}/tqdm/_monitor.py", 60), StackFrame("wait", f"{LIB}/threading.py", 655)),
        waits_for="lock with a time-out (futex)",
    )


def test_of_threads_that_are_left_the_programs_own_is_named_and_no_daemon():
    finding = expect(
        "lock",
        stand(make_rank(0, monitor(5), thread(7, FLUSH), frames=EXIT)),
        "rank 0 has finished, but thread thread-7 (7) of it has not: it is in flush logs.py:19",
    )
    assert "perhaps Python waits for it" in finding.summary, "nothing tells for which of them"
    assert "daemon" not in finding.summary
    assert not any("thread-5" in row.name for row in finding.evidence)
    target = WaitTarget(
        "futex", NOT_APPLICABLE, WaitKind.LOCK, "thread-8 (8)", NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE,
        others=(OtherEnd(4000, 8, "thread-8"),),
    )  # fmt: skip
    left = (monitor(5), thread(7, FLUSH), thread(8, FLUSH))
    finding = conclude(stand(make_rank(0, *left, frames=EXIT, waits_on=target)))
    assert "but thread thread-8 (8) of it has not" in finding.summary
    assert finding.summary.endswith("Python waits for it because it is no daemon thread")


def test_where_only_daemons_are_left_what_keeps_a_program_was_not_seen():
    left = make_rank(0, monitor(5), frames=EXIT)
    assert said(stand(left, seconds=60, log_age_s=None))[0] is not Kind.HUNG
    expect("lock", stand(left, seconds=90, log_age_s=None), "waits for threads that were not seen")


def test_a_thread_that_still_works_after_the_end_is_no_hang():
    writer = thread(7, FLUSH, **RUNS)
    moved = make_rank(0, thread(7, (*FLUSH, StackFrame("write", "/run/logs.py", 30)), **RUNS), frames=EXIT)
    assert said(stand(make_rank(0, writer, frames=EXIT), moved=(moved,)))[0] is not Kind.HUNG


def test_a_worker_that_reads_for_ever_is_named_and_not_its_rank():
    expect(
        "blocked-io",
        stand(make_rank(0, **BATCH), make_worker(0, 0), make_worker(0, 1, frames=WORKER_READS, **READS)),
        "rank 0 waits for a batch; worker 1 of rank 0 (4002) is in decode data.py:88",
    )


def test_a_worker_in_a_lock_that_it_inherited():
    stuck = make_worker(0, 0, frames=(*WORKER_READS[:-1], StackFrame("log", "/run/data.py", 12)))
    assert said(stand(make_rank(0, **BATCH), stuck)) == hung("lock")


def test_a_batch_is_lost_when_everybody_waits_for_work():
    job = (make_rank(0, **BATCH), make_worker(0, 0), make_worker(0, 1))
    expect("lost-batch", stand(*job), "all its 2 workers wait for work")


def test_a_batch_that_is_ready_is_not_lost():
    job = (make_rank(0, **BATCH), make_worker(0, 0))
    frames = [replace(one, loader=(make_loader(4000, 1, ready_batches=2.0),)) for one in stand(*job)]
    assert said(frames)[0] is not Kind.HUNG


@pytest.mark.parametrize(("name", "cause"), [("tensorboard", "lost-batch"), ("python", "dead-worker")])
def test_a_program_that_failed_long_ago_is_no_worker_whose_batch_is_awaited(name, cause):
    dead = (DeadChild(4444, 4000, name, "exit 1"),)
    assert said(stand(make_rank(0, **BATCH), make_worker(0, 0), dead=dead)) == hung(cause)


def test_a_child_that_was_killed_is_the_reason_that_no_result_comes():
    dead = (DeadChild(4444, 4000, "python", "SIGKILL"),)
    expect(
        "dead-worker",
        stand(make_rank(0, frames=RESULT, waits_for="pipe read"), dead=dead),
        "a process that is dead (4444: SIGKILL)",
    )
    of_another = (replace(dead[0], parent=1),)
    assert said(stand(make_rank(0, frames=RESULT, waits_for="pipe read"), dead=of_another)) != hung("dead-worker")


@pytest.mark.parametrize(
    "frames",
    [
        (StackFrame("share_outputs", f"{SITE}/nvidia/dali/pipeline.py", 1),),
        (StackFrame("__next__", f"{SITE}/ffcv/loader/epoch_iterator.py", 1), StackFrame("get", f"{LIB}/queue.py", 1)),
        (StackFrame("__next__", f"{SITE}/ray/data/iterator.py", 1),),
    ],
)
def test_a_loader_with_threads_of_its_own_has_no_dead_worker(frames):
    waits = make_rank(0, frames=(MAIN, TRAIN, *frames))
    assert said(stand(waits, seconds=35, log_age_s=None))[0] is not Kind.HUNG
    expect(
        "no-progress",
        stand(waits, seconds=90, log_age_s=None),
        "the loader is not torch's, what fills its queue is not known",
    )
    assert said(stand(make_rank(0, **BATCH), seconds=90, log_age_s=None)) == hung("dead-worker")


def test_a_rank_blocked_in_a_file_of_a_dead_server():
    assert said(stand(make_rank(0, frames=DECODE, **READS))) == hung("blocked-io")


def test_a_read_leads_to_the_process_at_its_other_end():
    target = WaitTarget(
        "read", 9, WaitKind.UNIX, "socket:[1]", NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE,
        others=(OtherEnd(4001, NOT_APPLICABLE, "worker 0 of rank 0"),),
    )  # fmt: skip
    worker = make_worker(0, 0, frames=WORKER_READS, **READS)
    expect(
        "blocked-io",
        stand(make_rank(0, frames=IN_LOCK, waits_for="unix socket", waits_on=target), worker),
        "worker 0 of rank 0 (4001) is in decode data.py:88",
    )


QUIET = {"pcie_tx_bytes_s": 1e4, "pcie_rx_bytes_s": 1e4, "nvlink_tx_bytes_s": 0.0, "nvlink_rx_bytes_s": 0.0}


def card(busy_pct, **fields):
    return {"gpus": (make_gpu(pids=(4000,), sm_pct=busy_pct, **QUIET, **fields),)}


def test_a_card_that_is_busy_and_does_nothing_is_no_excuse_for_a_wait():
    waits = make_rank(0, frames=ITEM, holds_gil=False, **RUNS)
    hollow = card(100.0, sm_active_pct=1.0, power_w=90.0)
    expect("gpu-wait", sample(stand(waits, **hollow), 4000, ITEM), "card 0 is busy and does next to nothing")
    assert said(sample(stand(waits, seconds=310, log_age_s=None, **card(0.0)), 4000, ITEM)) == hung("spin")


def test_a_card_that_is_hollow_by_its_power_alone_may_run_a_slow_kernel():
    waits = make_rank(0, frames=ITEM, holds_gil=False, **RUNS)
    hollow = card(100.0, sm_active_pct=Missing("no GPM"), power_w=90.0)
    for seconds, expected in ((60, False), (85, True)):
        frames = sample(stand(waits, seconds=seconds, log_age_s=None, **hollow), 4000, ITEM)
        assert (said(frames) == hung("gpu-wait")) is expected


def test_a_rank_that_waits_for_a_card_at_work_is_not_hung():
    waits = make_rank(0, frames=ITEM, holds_gil=False, **RUNS)
    frames = sample(stand(waits, seconds=400, log_age_s=4000.0, **card(99.0)), 4000, ITEM)
    assert said(frames)[0] is not Kind.HUNG


def test_a_kernel_that_does_not_end_is_told_after_half_an_hour():
    waits = make_rank(0, frames=ITEM, holds_gil=False, **RUNS)
    expect(
        "gpu-wait",
        sample(stand(waits, seconds=1830, log_age_s=None, **card(99.0)), 4000, ITEM),
        "rank 0 waits for its card",
        "card 0 works",
    )


def busy(seconds, log_age_s, frames=LOOP, **fields):
    """Build a rank that runs in one place, and is known to by its stack samples."""
    look = make_rank(0, frames=frames, **{"holds_gil": True, **RUNS, **fields})
    lines = (frames, (*frames[:-1], replace(frames[-1], line=51))) if frames is LOOP else (frames,)
    return sample(stand(look, seconds=seconds, log_age_s=log_age_s), 4000, *lines)


@pytest.mark.parametrize(("log_age_s", "expected"), [(400.0, True), (60.0, False), (200.0, False)])
def test_a_loop_without_end_is_a_hang_after_minutes(log_age_s, expected):
    verdict = said(busy(30, log_age_s))
    assert (verdict == hung("spin")) is expected


def test_a_loop_without_end_that_tpmon_saw_itself():
    assert said(busy(310, None)) == hung("spin")
    assert said(busy(130, None))[0] is not Kind.HUNG
    trained = RankMemory(4000, 100, trained=True)
    assert conclude(busy(130, None), ranks=(trained,)).cause == "spin"
    assert conclude(busy(100, None), ranks=(trained,)).kind is not Kind.HUNG


def test_a_loop_without_end_that_gets_no_cpu_does_not_rest():
    starved = []
    for frame in busy(310, None):
        rounds = frame.rounds
        if is_known(rounds):
            looks = [
                replace(one, threads=tuple(replace(t, run_ns=10**9) for t in one.threads))
                for one in rounds[0].processes
            ]
            rounds = (replace(rounds[0], processes=tuple(looks)),)
        starved.append(replace(frame, rounds=rounds))
    assert said(starved) == hung("spin")


def test_a_long_call_of_a_library_that_lets_others_run_has_five_minutes():
    assert said(busy(130, 4000.0, holds_gil=False))[0] is not Kind.HUNG
    assert said(busy(130, 4000.0, frames=LSTM, holds_gil=False))[0] is not Kind.HUNG
    assert said(busy(310, None, frames=LSTM, holds_gil=False)) == hung("spin")


def polling(cpu_ns=10**9, faults=0, moved_bytes=0, seconds=30, **fields):
    """Build a rank that asks the kernel all the time, without the interpreter's lock, silent for minutes.

    The toll of its process is of each second.
    """
    fields = {"holds_gil": False, "kernel_ns": 10**9} | fields
    look = make_rank(0, frames=LOOP, **(RUNS | fields))
    look = replace(look, toll=ProcessToll(cpu_ns, faults, moved_bytes))
    return sample(stand(look, seconds=seconds, log_age_s=400.0), 4000, LOOP)


def test_a_loop_that_asks_the_kernel_again_and_again_is_no_long_call():
    finding = expect("spin", polling(), "runs without end in wait_for_flag train.py:50")
    assert "50 % of it in the kernel" in finding.evidence[0].text


@pytest.mark.parametrize(
    "gets", [{"moved_bytes": 50_000_000}, {"faults": 1000}, {"cpu_ns": 2 * 10**9}, {"kernel_ns": Missing("not read")}]
)
def test_a_call_that_gets_something_from_the_kernel_may_take_its_time(gets):
    assert said(polling(**gets))[0] is not Kind.HUNG
    # What it got while it was looked at counts as long as it is there, not what it gets now.
    assert said(polling(seconds=120, **gets))[0] is not Kind.HUNG


def test_a_wait_for_a_card_asks_the_kernel_and_is_no_endless_loop():
    frames = [replace(frame, **card(99.0)) for frame in polling()]
    assert said(frames)[0] is not Kind.HUNG


def test_a_rank_that_moves_excuses_those_that_wait_for_it():
    slow = make_rank(1, frames=DECODE, **RUNS)
    moved = make_rank(1, frames=(*DECODE[:-1], StackFrame("resize", "/run/data.py", 120)), **RUNS)
    frames = stand(make_rank(0), slow, moved=(make_rank(0), moved), seconds=120, log_age_s=400.0)
    assert said(frames)[0] is not Kind.HUNG


@pytest.mark.parametrize("log_age_s", [45.0, 200.0])
def test_a_checkpoint_may_stand_for_five_minutes(log_age_s):
    saves = make_rank(0, frames=SAVE, waits_for="pipe write (full)")
    assert said(stand(saves, log_age_s=log_age_s))[0] is not Kind.HUNG
    assert said(stand(make_rank(1), saves, log_age_s=log_age_s))[0] is not Kind.HUNG
    # Who looks because a run pauses finds its log old.
    assert said(stand(make_rank(1), saves, log_age_s=400.0))[0] is not Kind.HUNG
    assert said(stand(make_rank(1), saves, log_age_s=1900.0))[0] is Kind.HUNG
    assert said(stand(make_rank(1), saves, seconds=310, log_age_s=400.0))[0] is Kind.HUNG


def test_a_nap_of_a_minute_is_no_hang_but_one_that_does_not_end_is():
    naps = make_rank(0, frames=NAP, waits_for="sleep")
    assert said(stand(naps, seconds=60, log_age_s=65.0))[0] is not Kind.HUNG
    assert said(stand(make_rank(1), naps, seconds=60, log_age_s=65.0))[0] is not Kind.HUNG
    assert said(stand(naps, seconds=80, log_age_s=85.0))[0] is not Kind.HUNG
    assert said(stand(make_rank(1), naps, seconds=80, log_age_s=85.0)) == hung("missing-rank")
    assert said(stand(naps, seconds=310, log_age_s=None)) == hung("no-progress")


def test_who_waits_for_a_person_is_idle():
    prompt = make_rank(0, frames=ITEM, waits_for="terminal input")
    assert said(stand(prompt)) == (Kind.IDLE, "waiting-for-input")


def test_a_stop_says_more_than_the_stacks():
    frames = stand(make_rank(0), make_rank(1, frames=IN_LOCK, state="T", waits_for="stopped by a signal"))
    assert said(frames) == hung("stopped")


def test_stacks_that_cannot_be_read_leave_the_word_to_the_readings():
    denied = Missing("permission denied")
    assert said(stand(make_rank(0, frames=denied)))[0] is not Kind.HUNG
    assert said(stand(make_rank(0, frames=denied), seconds=90, log_age_s=None)) == hung("no-progress")


def test_a_look_at_a_worker_that_failed_accuses_nobody_by_stacks():
    job = (make_rank(0, **BATCH), make_worker(0, 0, frames=Missing("late")), make_worker(0, 1))
    finding = conclude(stand(*job))
    assert (finding.kind, finding.cause) != hung("lost-batch")


def test_before_the_time_is_up_nothing_is_said():
    last = run(stand(make_rank(0), make_rank(1, frames=IN_LOCK), seconds=26, log_age_s=27.0))[-1]
    assert last.frame.verdict.kind is not Kind.HUNG
    assert any("of the 30 s that it takes" in text for text in last.frame.verdict.unknown)


def test_an_idle_thread_of_a_logger_beside_a_deadlock_gives_it_no_more_time():
    site = f"{SITE}/tqdm/_monitor.py"
    idle = make_thread(
        4009,
        name="tqdm_monitor",
        kind=ThreadKind.OTHER,
        frames=(StackFrame("run", site, 60), StackFrame("wait", f"{LIB}/threading.py", 655)),
    )
    expect("lock", stand(make_rank(0, idle, frames=IN_LOCK), log_age_s=None, seconds=60))
