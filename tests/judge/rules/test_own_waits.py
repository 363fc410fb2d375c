"""What a loop waits for in its own code, on made-up Windows: a queue that it fills, a call that blocks."""

from dataclasses import replace

import pytest

from tests.frames import make_cpu, make_gpu, make_loader, make_process, make_worker
from tests.judging import make_phases
from tests.loop_stacks import LIB, RANK, WAIT, see_waiting, slice_of, stack
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.finding import rate_confidence
from tpmon.judge.rules.python import judge_blocking_call, judge_own_loader, judge_single_thread
from tpmon.judge.stacks.classify import receives
from tpmon.judge.stacks.profile import Phase, Spot, read_phases
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.verdict import Confidence, Kind

GONE = Missing("permission denied")
MINE = ("hand_on", "/home/u/feed.py", 53)
QUEUE = stack(MINE, ("get", f"{LIB}/queue.py"), WAIT)
RECEIVING = {
    "queue": QUEUE,
    "a library around a queue": stack(
        MINE, ("__next__", f"{LIB}/site-packages/prefetch_generator/__init__.py"), ("get", f"{LIB}/queue.py"), WAIT
    ),
    "pool": stack(MINE, ("next", f"{LIB}/multiprocessing/pool.py"), WAIT),
    "pipe": stack(
        MINE, ("recv", f"{LIB}/multiprocessing/connection.py"), ("_recv", f"{LIB}/multiprocessing/connection.py")
    ),
    "future": stack(MINE, ("result", f"{LIB}/concurrent/futures/_base.py"), WAIT),
    "whichever future is first": stack(MINE, ("as_completed", f"{LIB}/concurrent/futures/_base.py"), WAIT),
    "all futures": stack(MINE, ("wait", f"{LIB}/concurrent/futures/_base.py"), WAIT),
    "whichever pipe is ready": stack(
        MINE, ("wait", f"{LIB}/multiprocessing/connection.py"), ("select", f"{LIB}/selectors.py")
    ),
    "joblib": stack(MINE, ("_retrieve", f"{LIB}/site-packages/joblib/parallel.py")),
    "ray": stack(
        MINE,
        ("wrapper", f"{LIB}/site-packages/ray/_private/client_mode_hook.py"),
        ("get_objects", f"{LIB}/site-packages/ray/_private/worker.py"),
    ),
    "zmq": stack(MINE, ("recv_pyobj", f"{LIB}/site-packages/zmq/sugar/socket.py")),
}
NOT_RECEIVING = {
    "a full queue": stack(MINE, ("put", f"{LIB}/queue.py"), WAIT),
    "the end of a queue": stack(MINE, ("join", f"{LIB}/queue.py"), WAIT),
    "the end of a thread": stack(MINE, ("join", f"{LIB}/threading.py")),
    "the end of a process": stack(
        MINE,
        ("join", f"{LIB}/multiprocessing/process.py"),
        ("wait", f"{LIB}/multiprocessing/popen_fork.py"),
        ("wait", f"{LIB}/multiprocessing/connection.py"),
        ("select", f"{LIB}/selectors.py"),
    ),
    "an event": stack(MINE, WAIT),
    "an object elsewhere": stack(
        MINE, ("_callmethod", f"{LIB}/multiprocessing/managers.py"), ("recv", f"{LIB}/multiprocessing/connection.py")
    ),
    "a function of the program that is named so": stack(("get", "/home/u/feed.py")),
    "a socket": stack(MINE, ("readinto", f"{LIB}/socket.py")),
}


@pytest.mark.parametrize("frames", RECEIVING.values(), ids=RECEIVING)
def test_the_taking_end_is_known(frames):
    assert receives(frames)


@pytest.mark.parametrize("frames", NOT_RECEIVING.values(), ids=NOT_RECEIVING)
def test_other_waits_take_nothing(frames):
    assert not receives(frames)


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
    assert phases.handed_ratio == pytest.approx(14 / 28)
    assert phases.handed == Spot("hand_on feed.py:53", 14 / 28)
    assert phases.spots[Phase.OTHER] == Spot("parse feed.py:20", 8 / 28)


def test_a_queue_behind_a_name_that_tells_of_data_is_the_programs_own_where_no_loader_is():
    named = stack(("next_batch", "/home/u/feed.py", 53), *(("get", f"{LIB}/queue.py"), WAIT))
    module = f"{LIB}/site-packages/torch/nn/modules"
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


BUSY = {"gpus": (make_gpu(sm_pct=97.0, pids=(RANK,)),)}
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


@pytest.mark.parametrize(("scene", "expected"), NO_OWN_LOADERS.values(), ids=NO_OWN_LOADERS)
def test_what_is_no_loader_of_its_own(scene, expected):
    assert isinstance(judge_own_loader(scene), expected)


CALLS = make_phases({Phase.OTHER: 0.75, Phase.FORWARD: 0.25}, spots={Phase.OTHER: Spot("log track.py:46", 0.7)})


def test_a_loop_that_sleeps_in_a_call_of_its_own_is_held_by_that_call():
    one = judge_blocking_call(see_waiting(CALLS, other=8))
    assert (one.kind, one.cause) == (Kind.PYTHON_BOUND, "blocking-call")
    assert one.share == pytest.approx(0.75)
    assert one.summary == "the loop sleeps 75 % of its time in a call of its own: log track.py:46"
    assert any(row.text == "log track.py:46, 70 % of the time" for row in one.evidence)
    assert {Need.BLOCKING_CALL} == one.observed
    # Without a card and alone a rank computes its backward pass itself.
    beside = make_phases({Phase.OTHER: 0.5, Phase.BACKWARD: 0.4, Phase.FORWARD: 0.1})
    assert judge_blocking_call(see_waiting(beside, other=5)).share == pytest.approx(0.5)
    synced = judge_blocking_call(see_waiting(CALLS, io=8))
    assert "waits for a disk or a socket 75 % of its time" in synced.summary


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


@pytest.mark.parametrize(("scene", "expected"), NO_CALLS.values(), ids=NO_CALLS)
def test_what_is_no_blocking_call(scene, expected):
    assert isinstance(judge_blocking_call(scene), expected)


def test_one_busy_thread_is_told_by_its_hottest_function():
    busy = make_phases({Phase.OTHER: 0.8, Phase.FORWARD: 0.2}, spots={Phase.OTHER: Spot("update metric.py:40", 0.78)})
    rank = make_process(RANK, runnable=1.0, waiting=0.0, busy_threads=1)
    scene = see_waiting(busy, asleep=0, frame={"processes": (rank,), "cpu": make_cpu(runnable=2.0, used_cores=2.0)})
    one = judge_single_thread(scene)
    assert isinstance(one, Suspicion)
    assert [row.text for row in one.evidence if row.text] == ["update metric.py:40, 78 % of the time"]
    assert busy.handed == NOT_APPLICABLE
