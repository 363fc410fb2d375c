"""Python itself as the cause, on made-up Windows: its lock, its one thread, waits of the loop's own."""

from dataclasses import replace

import pytest

from tests.frames import make_cpu, make_frame, make_gpu, make_loader, make_process, make_target, make_worker
from tests.judging import clears, doubts, make_looks, make_phases, read_phases
from tests.loop_stacks import LIB, RANK, WAIT, see_waiting, slice_of, stack
from tests.starving import line_up
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.snapshot import see
from tpmon.judge.finding import rate_confidence
from tpmon.judge.rules.health import judge_cpu_compute
from tpmon.judge.rules.python import (
    judge_blocking_call,
    judge_gil,
    judge_own_loader,
    judge_pace,
    judge_single_thread,
    judge_small_operators,
)
from tpmon.judge.stacks.classify import receives
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.stacks.profile import RankPhases, Spot
from tpmon.model.figures import Origin
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Role, ThreadGroup, ThreadKind
from tpmon.model.verdict import Confidence, Kind

GONE = Missing("permission denied")
BUSY = {"gpus": (make_gpu(sm_pct=97.0, pids=(RANK,)),)}


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
    # Without stacks it is a guess: any wait with a time-out beside a busy thread looks the same from outside.
    for phases in (None, replace(TRAINS, samples=9)):
        one = judge_gil(fight(timed=10, phases=phases))
        assert one.origins == {Origin.PROC}
        assert rate_confidence(one, 600.0) is Confidence.LOW


def test_a_wait_at_a_queue_beside_a_thread_that_trains_is_no_fight_for_the_lock():
    waits = make_phases({Phase.OTHER: 1.0}, where="wait_for_trainer train.py:20", waits_ratio=0.95)
    words = "waits 95 % of its time at a queue, a lock or a future: wait_for_trainer"
    assert clears(judge_gil(fight(phases=waits)), words)
    # SimpleQueue and locks are made of C: their wait has no frame, and stands in one line.
    in_c = make_phases({Phase.OTHER: 1.0}, where="poll train.py:7", unchanged_s=30.0, distinct=1)
    assert clears(judge_gil(fight(phases=in_c)), "has stood in one line for 30 s: poll train.py:7")
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
    "the GPU is busy": (fight(**BUSY), Cleared),
}


def alone(phases, *, busy=1, running=10, run=0.98, free=6.0, **frame):
    rank = make_process(runnable=run, waiting=0.0, busy_threads=busy)
    fields = {
        "processes": (rank,),
        "loader": (),
        "main_threads": (make_looks(RANK, 10, other=10 - running),),
        "cpu": make_cpu(runnable=8.0 - free, used_cores=8.0 - free),
        **frame,
    }
    stacks = phases if isinstance(phases, RankPhases) or not phases else make_phases(phases)
    return see(line_up([make_frame(**fields)] * 12), {RANK: stacks} if stacks else {})


PYTHON = {Phase.OTHER: 0.8, Phase.FORWARD: 0.2}


def test_one_thread_of_python_or_of_logging_is_the_cause_when_cores_are_free():
    one = judge_single_thread(alone(PYTHON))
    assert (one.kind, one.cause) == (Kind.PYTHON_BOUND, "single-thread")
    assert one.weight == pytest.approx(0.8)
    assert Need.ONE_THREAD_BUSY in one.observed
    assert Need.LOGGING_IN_STACK not in one.observed
    starved = judge_single_thread(alone(PYTHON, gpus=(make_gpu(sm_pct=60.0, pids=(RANK,)),)))
    assert starved.share == pytest.approx(0.4), "a starved card limits the gain"
    healthy = make_process(99, rank=1, runnable=3.0, busy_threads=3)
    worst = judge_single_thread(alone(PYTHON, processes=(healthy, *alone(PYTHON).frame.processes)))
    assert worst.pid == RANK
    logs = judge_single_thread(alone({Phase.LOGGING: 0.6, Phase.OTHER: 0.1, Phase.FORWARD: 0.3}))
    assert Need.LOGGING_IN_STACK in logs.observed
    assert "logging" in logs.summary


def test_one_busy_thread_is_told_by_its_one_long_call_or_its_hottest_function():
    still = make_phases({Phase.OTHER: 1.0}, where="look slow.py:15", same_place_s=48.0, distinct=1)
    one = judge_single_thread(alone(still, free=7.0))
    assert one.summary == "one thread has been in one call for 48 s (look slow.py:15), 7.0 CPUs are free"
    moving = judge_single_thread(alone(replace(still, same_place_s=0.0), free=7.0))
    assert moving.summary.startswith("one thread runs Python for 100 %")
    busy = make_phases({Phase.OTHER: 0.8, Phase.FORWARD: 0.2}, spots={Phase.OTHER: Spot("update metric.py:40", 0.78)})
    rank = make_process(RANK, runnable=1.0, waiting=0.0, busy_threads=1)
    scene = see_waiting(busy, asleep=0, frame={"processes": (rank,), "cpu": make_cpu(runnable=2.0, used_cores=2.0)})
    one = judge_single_thread(scene)
    assert [row.text for row in one.shows if row.text] == ["update metric.py:40, 78 % of the time"]
    assert busy.handed == NOT_APPLICABLE


def test_one_thread_is_not_surely_the_cause_where_others_take_its_cpu_nor_ruled_out_by_a_pool():
    taken = make_cpu(
        budget_cores=2.0, runnable=1.0, demand_ratio=0.5, run_delay_ratio=0.97, used_cores=0.03, host_used_cores=2.0
    )
    one = judge_single_thread(alone(PYTHON, cpu=taken))
    assert one.summary.endswith("its threads get 0.03 of the 1.0 CPUs that they want: other processes use the rest")
    assert rate_confidence(one, 60.0) is Confidence.LOW
    assert rate_confidence(judge_single_thread(alone(PYTHON)), 60.0) is Confidence.HIGH
    assert doubts(judge_single_thread(alone(MIXED, run=4.2, busy=8, free=3.8)), "55 % outside of the step")


MIXED = {Phase.OTHER: 0.55, Phase.FORWARD: 0.25, Phase.BACKWARD: 0.2}
"""One thread for half of the time, a pool for the rest: 4.2 threads on average."""
LITTLE = {Phase.OTHER: 0.2, Phase.FORWARD: 0.8}
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
    "the pool beside it has every core": (alone(MIXED, run=7.9, busy=8, free=0.1), Cleared),
    "beside a pool, little is outside of the step": (alone(LITTLE, run=4.2, busy=8), Cleared),
    "beside a pool, the GPU is busy": (alone(MIXED, run=4.2, busy=8, **BUSY), Cleared),
}


PACKAGES = f"{LIB}/site-packages"
CONNECTION = f"{LIB}/multiprocessing/connection.py"
FUTURES = f"{LIB}/concurrent/futures/_base.py"
SELECT = ("select", f"{LIB}/selectors.py")
MINE = ("hand_on", "/home/u/feed.py", 53)
QUEUE = stack(MINE, ("get", f"{LIB}/queue.py"), WAIT)
RECEIVING = {
    "queue": QUEUE,
    "a library around a queue": stack(
        MINE, ("__next__", f"{PACKAGES}/prefetch_generator/__init__.py"), ("get", f"{LIB}/queue.py"), WAIT
    ),
    "pool": stack(MINE, ("next", f"{LIB}/multiprocessing/pool.py"), WAIT),
    "pipe": stack(MINE, ("recv", CONNECTION), ("_recv", CONNECTION)),
    "future": stack(MINE, ("result", FUTURES), WAIT),
    "whichever future is first": stack(MINE, ("as_completed", FUTURES), WAIT),
    "all futures": stack(MINE, ("wait", FUTURES), WAIT),
    "whichever pipe is ready": stack(MINE, ("wait", CONNECTION), SELECT),
    "joblib": stack(MINE, ("_retrieve", f"{PACKAGES}/joblib/parallel.py")),
    "ray": stack(
        MINE,
        ("wrapper", f"{PACKAGES}/ray/_private/client_mode_hook.py"),
        ("get_objects", f"{PACKAGES}/ray/_private/worker.py"),
    ),
    "zmq": stack(MINE, ("recv_pyobj", f"{PACKAGES}/zmq/sugar/socket.py")),
}
NOT_RECEIVING = {
    "a full queue": stack(MINE, ("put", f"{LIB}/queue.py"), WAIT),
    "the end of a queue": stack(MINE, ("join", f"{LIB}/queue.py"), WAIT),
    "the end of a thread": stack(MINE, ("join", f"{LIB}/threading.py")),
    "the end of a process": stack(
        MINE,
        ("join", f"{LIB}/multiprocessing/process.py"),
        ("wait", f"{LIB}/multiprocessing/popen_fork.py"),
        ("wait", CONNECTION),
        SELECT,
    ),
    "an event": stack(MINE, WAIT),
    "an object elsewhere": stack(MINE, ("_callmethod", f"{LIB}/multiprocessing/managers.py"), ("recv", CONNECTION)),
    "a function of the program that is named so": stack(("get", "/home/u/feed.py")),
    "a socket": stack(MINE, ("readinto", f"{LIB}/socket.py")),
}


@pytest.mark.parametrize("name", [*RECEIVING, *NOT_RECEIVING])
def test_the_taking_end_is_known_and_other_waits_take_nothing(name):
    assert receives((RECEIVING | NOT_RECEIVING)[name]) is (name in RECEIVING)


def test_where_most_of_it_is_is_told_by_function_and_its_busiest_line():
    other_line = (*QUEUE[:1], replace(QUEUE[1], line=60), *QUEUE[2:])
    parse = stack(("parse", "/home/u/feed.py", 20))
    parse_below = stack(("parse", "/home/u/feed.py", 22))
    phases = read_phases(
        [
            slice_of(
                (QUEUE, 10), (other_line, 4), (stack(("log", "/home/u/log.py", 5)), 6), (parse, 5), (parse_below, 3)
            )
        ],
        10_500_000_000,
    )[RANK]
    assert (phases.handed_ratio, phases.handed) == (pytest.approx(14 / 28), Spot("hand_on feed.py:53", 14 / 28))
    assert phases.spots[Phase.OTHER] == Spot("parse feed.py:20", 8 / 28)


def test_a_queue_behind_a_name_that_tells_of_data_is_the_programs_own_where_no_loader_is():
    named = stack(("next_batch", "/home/u/feed.py", 53), *(("get", f"{LIB}/queue.py"), WAIT))
    module = f"{PACKAGES}/torch/nn/modules"
    step = stack(("_call_impl", f"{module}/module.py"), ("forward", f"{module}/linear.py"))
    phases = read_phases([slice_of((named, 60), (step, 20))], 10_500_000_000)[RANK]
    assert phases.handed_ratio == 0.0
    one = judge_own_loader(see_waiting(phases))
    assert one.cause == "own-loader"
    assert one.summary.endswith("hand over: queue feed.py:53")
    loader = {"loader": (make_loader(RANK, 1),), "processes": (make_process(RANK), make_worker(5000, 0, RANK))}
    assert isinstance(judge_own_loader(see_waiting(phases, frame=loader)), Cleared)


HANDED = make_phases({Phase.OTHER: 0.8, Phase.FORWARD: 0.2}, handed_ratio=0.8, handed=Spot("hand_on feed.py:53", 0.8))


def test_a_loop_at_the_end_of_its_own_queue_waits_for_a_loader_of_its_own():
    one = judge_own_loader(see_waiting(HANDED))
    assert (one.kind, one.cause) == (Kind.DATA_BOUND, "own-loader")
    assert one.share == pytest.approx(0.8)
    assert "waits 80 % of its time for what other threads or processes hand over" in one.summary
    assert one.summary.endswith("hand_on feed.py:53")
    assert Need.OWN_QUEUE_WAIT in one.observed
    assert rate_confidence(one, 60.0) is Confidence.HIGH
    # A queue is asked with a time-out by many.
    assert judge_own_loader(see_waiting(HANDED, timed_lock=8)).share == pytest.approx(0.8)


NO_OWN_LOADERS = {
    "no stacks": (see_waiting(None), Unsure),
    "no step beside it": (see_waiting(replace(HANDED, shares=make_phases({Phase.OTHER: 1.0}).shares)), Unsure),
    "hardly any of it": (see_waiting(replace(HANDED, handed_ratio=0.05)), Cleared),
    "close to the threshold": (see_waiting(replace(HANDED, handed_ratio=0.12)), Unsure),
    "the thread runs": (see_waiting(HANDED, asleep=0), Cleared),
    "the card computes meanwhile": (see_waiting(HANDED, frame=BUSY), Cleared),
    "a DataLoader stands behind it": (
        see_waiting(
            HANDED,
            frame={
                "processes": (make_process(RANK), make_worker(5000, 0, RANK, runnable=1.0, waits_for="running")),
                "loader": (make_loader(RANK, 1, pin_thread=True),),
            },
        ),
        Cleared,
    ),
}


CALLS = make_phases({Phase.OTHER: 0.75, Phase.FORWARD: 0.25}, spots={Phase.OTHER: Spot("log track.py:46", 0.7)})


def test_a_loop_that_sleeps_in_a_call_of_its_own_is_held_by_that_call():
    one = judge_blocking_call(see_waiting(CALLS, other=8))
    assert (one.kind, one.cause) == (Kind.PYTHON_BOUND, "blocking-call")
    assert one.share == pytest.approx(0.75)
    assert one.summary == "the loop sleeps 75 % of its time in a call of its own: log track.py:46"
    assert any(row.text == "log track.py:46, 70 % of the time" for row in one.shows)
    assert {Need.BLOCKING_CALL} == one.observed
    # Without a card and alone a rank computes its backward pass itself.
    beside = make_phases({Phase.OTHER: 0.5, Phase.BACKWARD: 0.4, Phase.FORWARD: 0.1})
    assert judge_blocking_call(see_waiting(beside, other=5)).share == pytest.approx(0.5)
    synced = judge_blocking_call(see_waiting(CALLS, io=8))
    assert "waits for a disk or a socket 75 % of its time" in synced.summary


TURN = make_phases({Phase.OTHER: 0.75, Phase.FORWARD: 0.25}, spots={Phase.OTHER: Spot("turn robot.py:18", 0.75)})


def see_clock(phases=TURN, *, waits="sleep", others=0.0, beside=(), **frame):
    """See a rank that sleeps for eight of ten looks, by a wait of these words, while others of the job want this."""
    rank = make_process(RANK, runnable=0.2, waiting=0.0, waits_for=waits, state="S", thread_groups=groups(0.2, others))
    cpu = make_cpu(runnable=0.2 + others + sum(one.runnable for one in beside))
    fields = {"processes": (rank, *beside), "cpu": cpu, "target": make_target(world_size=1), **frame}
    return see_waiting(phases, other=8, frame=fields)


def test_a_sleep_at_one_line_that_nobody_waits_for_is_a_pace_and_no_blocking_call():
    one = judge_pace(see_clock())
    assert (one.kind, one.cause) == (Kind.BALANCED, NOT_APPLICABLE)
    assert one.summary == (
        "a clock sets the pace: the loop sleeps 80 % of its time, at turn robot.py:18, and nothing of the job works "
        "or waits meanwhile"
    )
    assert rate_confidence(one, 60.0) is Confidence.HIGH
    assert clears(judge_blocking_call(see_clock()), "a clock sets the pace: turn robot.py:18")
    event = replace(TURN, call_waits_ratio=0.7)
    assert isinstance(judge_pace(see_clock(event, waits="lock with a time-out (futex)")), Suspicion)


NO_PACE = {
    "at several lines": see_clock(replace(TURN, spots={Phase.OTHER: Spot("turn robot.py:18", 0.4)})),
    "a child": see_clock(waits="child process"),
    "a server": see_clock(waits="socket receive"),
    "a lock of another thread": see_clock(waits="lock with a time-out (futex)"),
    "a thread that works for it": see_clock(others=0.6),
    "a process that works for it": see_clock(beside=(make_process(77, role=Role.HELPER, runnable=0.9),)),
    "a server that it asks again": see_clock(replace(TURN, retrying_ratio=0.7)),
    "another rank": see_clock(target=make_target(world_size=2)),
}


@pytest.mark.parametrize("name", NO_PACE)
def test_what_is_no_pace(name):
    assert isinstance(judge_pace(NO_PACE[name]), Cleared)


def test_a_pace_without_a_step_is_not_told():
    assert isinstance(judge_pace(see_clock(make_phases({Phase.OTHER: 1.0}))), Unsure)


NO_CALLS = {
    "no stacks": (see_waiting(None), Unsure),
    "no looks": (see_waiting(CALLS, frame={"main_threads": GONE}), Unsure),
    "no step beside it": (see_waiting(make_phases({Phase.OTHER: 1.0})), Unsure),
    "it computes": (see_waiting(CALLS, asleep=0), Cleared),
    "it waits for the interpreter": (see_waiting(CALLS, timed_lock=9), Cleared),
    "it sleeps in a collective": (
        see_waiting(make_phases({Phase.OTHER: 0.3, Phase.COMMS: 0.6, Phase.FORWARD: 0.1}), asleep=7),
        Cleared,
    ),
    "it waits for autograd's thread": (
        see_waiting(
            make_phases({Phase.OTHER: 0.4, Phase.BACKWARD: 0.5, Phase.FORWARD: 0.1}),
            asleep=6,
            frame={"gpus": (make_gpu(sm_pct=50.0, pids=(RANK,)),)},
        ),
        Cleared,
    ),
    "it is at a queue": (see_waiting(HANDED), Cleared),
    "the card computes meanwhile": (see_waiting(CALLS, frame=BUSY), Cleared),
}


NN, OPTIM = f"{PACKAGES}/torch/nn/modules", f"{PACKAGES}/torch/optim"
ACT = ("act", "/home/u/learner.py", 17)
CALL = ("Module._wrapped_call_impl", f"{NN}/module.py")


def read_learner(calling=12, computing=400, mine=ACT, leaf=CALL, one_line=0.5):
    """Read the stacks of a learner, ``calling`` samples of which are in the Python that leads to operators."""
    called = ("Module._call_impl", f"{NN}/module.py")
    linear = stack(mine, CALL, called, ("Linear.forward", f"{NN}/linear.py"))
    tanh = stack(mine, CALL, called, ("Tanh.forward", f"{NN}/activation.py"))
    in_linear = round(one_line * computing)
    computes = ((linear, in_linear), (tanh, computing - in_linear))
    leads = stack(mine, CALL, called, leaf)
    slices = [slice_of(*(one for one in computes if one[1]), (leads, calling), (stack(mine), 60))]
    return read_phases(slices, 10_500_000_000)[RANK]


def spin(phases, *, pool=1.0, busy=2, running=10, **frame):
    """See a rank whose main thread always runs, and so does its pool."""
    rank = make_process(
        RANK, runnable=1.0 + pool, waiting=0.0, busy_threads=busy, thread_groups=groups(1.0, pool, ThreadKind.OTHER)
    )
    fields = {
        "processes": (rank,),
        "loader": (),
        "main_threads": (make_looks(RANK, 10, timed_lock=10 - running),),
        "cpu": make_cpu(budget_cores=2.0, runnable=2.0, used_cores=2.0),
        **frame,
    }
    return see(line_up([make_frame(**fields)] * 12), {RANK: phases} if phases else {})


def test_a_pool_that_runs_between_operators_of_microseconds_spins():
    one = judge_small_operators(spin(read_learner()))
    assert (one.kind, one.cause, one.pid) == (Kind.PYTHON_BOUND, "small-operators", RANK)
    assert one.weight == pytest.approx(0.5), "half of the demand is the pool's"
    assert one.summary.endswith(
        "the other thread of its pool spins between them: 1.0 CPUs that compute next to nothing"
    )
    assert {Need.POOL_SPINS} == one.observed
    assert rate_confidence(one, 60.0) is Confidence.HIGH
    assert "3 threads of its pool spin" in judge_small_operators(spin(read_learner(), pool=3.0, busy=4)).summary
    # No name of the program decides, and other Python of torch between operators tells as well.
    renamed = judge_small_operators(spin(read_learner(mine=("forward_pass", "/srv/x/train_model.py", 3))))
    assert (renamed.weight, renamed.margin) == (one.weight, one.margin)
    linears = judge_small_operators(spin(read_learner(calling=30, one_line=1.0)))
    assert linears.cause == "small-operators", "a stack of nothing but small layers"
    in_optimizer = ("Adam._init_group", f"{OPTIM}/adam.py")
    assert judge_small_operators(spin(read_learner(leaf=in_optimizer))).margin == one.margin


def test_full_cores_are_not_called_computing_while_a_few_samples_may_show_small_operators():
    assert isinstance(judge_cpu_compute(spin(read_learner(calling=0, computing=240))), Suspicion)
    assert doubts(
        judge_cpu_compute(spin(read_learner(calling=1, computing=240))), "whether its operators take microsec"
    )
    assert isinstance(judge_cpu_compute(spin(read_learner(calling=1, computing=600))), Suspicion)


LARGE = read_learner(calling=0)
NOT_SMALL = {
    "operators of milliseconds": (spin(LARGE), Cleared),
    # 10 of 610 samples, as in a small batch of convolutions: each of them takes a millisecond
    "one large operator": (spin(read_learner(calling=10, computing=600, one_line=0.92)), Cleared),
    "no pool": (spin(read_learner(), busy=1, pool=0.0), Cleared),
    "a pool that sleeps between them": (spin(read_learner(), pool=0.4), Cleared),
    "too few samples": (spin(read_learner(calling=3, computing=100)), Unsure),
    "one sample in a thousand": (spin(read_learner(calling=1, computing=1000)), Cleared),
    # A scripted module computes in C below _call_impl: no frame of its own.
    "a module of C": (spin(read_learner(leaf=("Module._call_impl", f"{NN}/module.py"))), Cleared),
    "a function of the program named so": (spin(read_learner(leaf=("_init_group", "/home/u/optim/adam.py"))), Cleared),
    "threads that fight for the interpreter": (spin(read_learner(), running=2), Cleared),
    "a card": (spin(read_learner(), **BUSY), Cleared),
    "no stacks": (spin(None), Unsure),
}


CLEAR_OR_OPEN = {
    judge_small_operators: NOT_SMALL,
    judge_gil: NO_FIGHTS,
    judge_single_thread: INNOCENT,
    judge_own_loader: NO_OWN_LOADERS,
    judge_blocking_call: NO_CALLS,
}


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, rows in CLEAR_OR_OPEN.items() for name in rows])
def test_what_python_is_not_accused_of(rule, name):
    scene, expected = CLEAR_OR_OPEN[rule][name]
    assert isinstance(rule(scene), expected)
