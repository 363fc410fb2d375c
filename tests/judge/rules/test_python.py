"""Python itself as the cause, on made-up Windows: its lock, its one thread, and what only looks like it."""

from dataclasses import replace

import pytest

from tests.frames import make_cpu, make_frame, make_gpu, make_loader, make_process, make_worker
from tests.judging import make_looks, make_phases
from tests.starving import line_up
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.snapshot import see
from tpmon.judge.finding import rate_confidence
from tpmon.judge.rules.python import judge_gil, judge_single_thread
from tpmon.judge.stacks.profile import Phase
from tpmon.model.known import Missing
from tpmon.model.process import ThreadGroup, ThreadKind
from tpmon.model.verdict import Confidence, Kind, Origin

RANK = 4211
GONE = Missing("permission denied")


def groups(main, others, kind=ThreadKind.OTHER):
    return (ThreadGroup(ThreadKind.MAIN, 1, main), ThreadGroup(kind, 3, others))


def fight(timed=9, run=0.98, kind=ThreadKind.OTHER, others=0.97, phases=None, **frame):
    """See a rank whose main thread waits in a timed lock while other threads run."""
    rank = make_process(
        runnable=run + 0.27, waiting=0.27, busy_threads=2, thread_groups=groups(0.01, others, kind), state="S"
    )
    looks = (make_looks(RANK, 10, timed_lock=timed),)
    fields = {"processes": (rank,), "loader": (), "main_threads": looks, **frame}
    return see(line_up([make_frame(**fields)] * 12), {RANK: phases} if phases else {})


TRAINS = make_phases({Phase.FORWARD: 0.4, Phase.BACKWARD: 0.5, Phase.OTHER: 0.1})


def test_threads_that_share_one_core_while_the_main_thread_waits_fight_for_the_lock():
    one = judge_gil(fight(phases=TRAINS))
    assert (one.kind, one.cause) == (Kind.PYTHON_BOUND, "gil")
    assert one.share == pytest.approx(0.9)
    assert Need.GIL_WAIT in one.observed
    assert one.origins == {Origin.PROC, Origin.PROC, Origin.STACKS}
    assert rate_confidence(one, 60.0) is Confidence.HIGH


@pytest.mark.parametrize("phases", [None, replace(TRAINS, samples=9)])
def test_without_stacks_a_fight_for_the_lock_is_a_guess(phases):
    """Any wait with a time-out beside a busy thread looks the same from outside."""
    one = judge_gil(fight(timed=10, phases=phases))
    assert one.origins == {Origin.PROC}
    assert rate_confidence(one, 600.0) is Confidence.LOW


def test_a_wait_at_a_queue_beside_a_thread_that_trains_is_no_fight_for_the_lock():
    waits = make_phases({Phase.OTHER: 1.0}, where="wait_for_trainer train.py:20", waits_ratio=0.95)
    answer = judge_gil(fight(phases=waits))
    assert type(answer) is Cleared
    assert "waits 95 % of its time at a queue, a lock or a future: wait_for_trainer" in answer.text
    # SimpleQueue and locks are made of C: their wait has no frame, and stands in one line.
    in_c = make_phases({Phase.OTHER: 1.0}, where="poll train.py:7", unchanged_s=30.0, distinct=1)
    answer = judge_gil(fight(phases=in_c))
    assert type(answer) is Cleared
    assert "has stood in one line for 30 s: poll train.py:7" in answer.text
    # A fight also takes place where the main thread is at a queue now and then.
    assert isinstance(judge_gil(fight(phases=replace(TRAINS, waits_ratio=0.2))), Suspicion)


NO_FIGHTS = {
    "main runs": (fight(timed=2), Cleared),
    "threads run side by side": (fight(run=2.4), Cleared),
    "nobody else runs": (fight(others=0.1), Cleared),
    "a collective waits": (fight(kind=ThreadKind.COMM), Unsure),
    "no looks": (fight(main_threads=GONE), Unsure),
    "no schedstat": (fight(run=0.98, processes=(make_process(runnable=GONE),)), Unsure),
    "a pin thread": (
        fight(processes=(*fight().frame.processes, make_worker()), loader=(make_loader(pin_thread=True),)),
        Unsure,
    ),
    "the GPU is busy": (fight(gpus=(make_gpu(sm_pct=97.0, pids=(RANK,)),)), Cleared),
}


@pytest.mark.parametrize(("scene", "expected"), NO_FIGHTS.values(), ids=NO_FIGHTS)
def test_what_is_no_fight(scene, expected):
    assert isinstance(judge_gil(scene), expected)


def alone(phases, *, busy=1, running=10, run=0.98, free=6.0, **frame):
    rank = make_process(runnable=run, waiting=0.0, busy_threads=busy)
    fields = {
        "processes": (rank,),
        "loader": (),
        "main_threads": (make_looks(RANK, 10, other=10 - running),),
        "cpu": make_cpu(runnable=8.0 - free, used_cores=8.0 - free),
        **frame,
    }
    taken = {RANK: make_phases(phases)} if phases else {}
    return see(line_up([make_frame(**fields)] * 12), taken)


PYTHON = {Phase.OTHER: 0.8, Phase.FORWARD: 0.2}


def test_one_thread_of_python_is_the_cause_when_cores_are_free():
    one = judge_single_thread(alone(PYTHON))
    assert (one.kind, one.cause) == (Kind.PYTHON_BOUND, "single-thread")
    assert one.weight == pytest.approx(0.8)
    assert Need.ONE_THREAD_BUSY in one.observed
    assert Need.LOGGING_IN_STACK not in one.observed


def test_logging_is_named():
    one = judge_single_thread(alone({Phase.LOGGING: 0.6, Phase.OTHER: 0.1, Phase.FORWARD: 0.3}))
    assert Need.LOGGING_IN_STACK in one.observed
    assert "logging" in one.summary


def test_one_long_call_is_said_to_be_one():
    still = make_phases({Phase.OTHER: 1.0}, where="look slow.py:15", same_place_s=48.0, distinct=1)
    frame = make_frame(
        processes=(make_process(runnable=0.98, waiting=0.0, busy_threads=1),),
        loader=(),
        main_threads=(make_looks(RANK, 10),),
        cpu=make_cpu(runnable=1.0, used_cores=1.0),
    )
    one = judge_single_thread(see(line_up([frame] * 12), {RANK: still}))
    assert one.summary == "one thread has been in one call for 48 s (look slow.py:15), 7.0 CPUs are free"
    moving = judge_single_thread(see(line_up([frame] * 12), {RANK: replace(still, same_place_s=0.0)}))
    assert moving.summary.startswith("one thread runs Python for 100 %")


def test_one_thread_whose_cpu_others_take_is_not_surely_the_cause():
    taken = make_cpu(
        budget_cores=2.0, runnable=1.0, demand_ratio=0.5, run_delay_ratio=0.97, used_cores=0.03, host_used_cores=2.0
    )
    one = judge_single_thread(alone(PYTHON, cpu=taken))
    assert one.summary.endswith("its threads get 0.03 of the 1.0 CPUs that they want: other processes use the rest")
    assert rate_confidence(one, 60.0) is Confidence.LOW
    assert rate_confidence(judge_single_thread(alone(PYTHON)), 60.0) is Confidence.HIGH


INNOCENT = {
    "one thread computes": (alone({Phase.FORWARD: 0.4, Phase.BACKWARD: 0.5, Phase.OTHER: 0.1}), Cleared),
    "half of it computes": (alone({Phase.FORWARD: 0.5, Phase.OTHER: 0.5}), Cleared),
    "a pool computes": (alone(PYTHON, busy=4, run=3.8), Cleared),
    "it waits": (alone(PYTHON, running=5), Cleared),
    "no core is free": (alone(PYTHON, free=0.1), Cleared),
    "no stacks": (alone(None), Unsure),
    "the GPU is busy": (alone(PYTHON, gpus=(make_gpu(sm_pct=95.0, pids=(RANK,)),)), Cleared),
    "the GPU was not read": (alone(PYTHON, gpus=(make_gpu(sm_pct=GONE, pids=(RANK,)),)), Unsure),
    "the budget was not read": (alone(PYTHON, cpu=make_cpu(budget_cores=GONE)), Unsure),
}


@pytest.mark.parametrize(("scene", "expected"), INNOCENT.values(), ids=INNOCENT)
def test_what_is_no_single_thread(scene, expected):
    assert isinstance(judge_single_thread(scene), expected)


def test_a_starved_card_limits_the_gain():
    one = judge_single_thread(alone(PYTHON, gpus=(make_gpu(sm_pct=60.0, pids=(RANK,)),)))
    assert one.share == pytest.approx(0.4)


def test_the_worst_rank_is_named():
    scene = alone(PYTHON)
    frame = scene.frame
    healthy = make_process(99, rank=1, runnable=3.0, busy_threads=3)
    frames = line_up([replace(frame, processes=(healthy, *frame.processes))] * 12)
    one = judge_single_thread(see(frames, {RANK: make_phases(PYTHON)}))
    assert isinstance(one, Suspicion)
    assert one.pid == RANK


MIXED = {Phase.OTHER: 0.55, Phase.FORWARD: 0.25, Phase.BACKWARD: 0.2}
"""One thread for half of the time, a pool for the rest: 4.2 threads on average."""


def test_one_thread_is_not_ruled_out_by_the_pool_of_the_other_half():
    answer = judge_single_thread(alone(MIXED, run=4.2, busy=8, free=3.8))
    assert isinstance(answer, Unsure)
    assert "55 % outside of the step" in answer.text


NO_ROOM = {
    "the pool has every core": alone(MIXED, run=7.9, busy=8, free=0.1),
    "little is outside of the step": alone({Phase.OTHER: 0.2, Phase.FORWARD: 0.8}, run=4.2, busy=8),
    "the GPU is busy": alone(MIXED, run=4.2, busy=8, gpus=(make_gpu(sm_pct=97.0, pids=(RANK,)),)),
}


@pytest.mark.parametrize("scene", NO_ROOM.values(), ids=NO_ROOM)
def test_one_thread_beside_a_pool_is_ruled_out_where_nothing_could_wait_for_it(scene):
    assert isinstance(judge_single_thread(scene), Cleared)
