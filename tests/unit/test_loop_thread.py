"""Which thread of a process runs the training loop, told from its stacks, and what is then read of it."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from tests.children import child
from tests.members import member
from tests.spying import may_sample
from tests.waiting import wait_until
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Identity, LoopThread, Role, ThreadKind
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.probe import loop_thread
from tpmon.probe.dump import Dumper
from tpmon.probe.dump_threads import read_threads
from tpmon.probe.loop_thread import MAIN_S, LoopThreads, describe_loops, find_loop, read_loop
from tpmon.probe.main_threads import MainThreadProbe
from tpmon.probe.population import Population
from tpmon.probe.stack_plan import Subject
from tpmon.probe.stacks import StackSampler

PID, LOOP, OTHER = 100, 107, 108
SECOND = 10**9
SITE = "/opt/env/lib/python3.12/site-packages/"
JOIN = ("join", "/usr/lib/python3.12/threading.py")
WAIT = ("wait", "/usr/lib/python3.12/threading.py")
GET = ("get", "/usr/lib/python3.12/queue.py")
MAIN = ("<module>", "/home/me/train.py")
TRAIN = ("train", "/home/me/train.py")
STEP = ("step", SITE + "torch/optim/adamw.py")
BACKWARD = ("Tensor.backward", SITE + "torch/_tensor.py")
NEXT = ("__next__", SITE + "torch/utils/data/dataloader.py")
FORWARD = ("Module._call_impl", SITE + "torch/nn/modules/module.py")
PINS = ("_pin_memory_loop", SITE + "torch/utils/data/_utils/pin_memory.py")
RAY = ("Worker.main_loop", SITE + "ray/_private/worker.py")


def stack(tid: int, *frames: tuple[str, str], samples: int = 1, name: str = "") -> StackCount:
    return StackCount(tid, name, tuple(StackFrame(function, file, 3) for function, file in frames), samples)


RESTING = stack(PID, MAIN, JOIN, samples=40)


@pytest.mark.parametrize(
    ("stacks", "loop"),
    [
        ([stack(PID, MAIN, STEP)], None),
        ([RESTING], None),
        ([RESTING, stack(LOOP, TRAIN, STEP)], LOOP),
        ([RESTING, stack(LOOP, TRAIN, BACKWARD)], LOOP),
        ([RESTING, stack(LOOP, TRAIN, NEXT)], LOOP),
        ([RESTING, stack(LOOP, TRAIN, FORWARD)], LOOP),
        ([stack(PID, MAIN, RAY), stack(LOOP, TRAIN, NEXT)], LOOP),
        # A main thread that asks every second whether the thread still runs.
        ([stack(PID, MAIN), stack(LOOP, TRAIN, STEP)], LOOP),
        # What waits at a queue waits for what comes out of it: a thread that prefetches batches.
        ([stack(PID, MAIN, GET, WAIT), stack(LOOP, TRAIN, NEXT)], None),
        ([stack(PID, MAIN, GET, WAIT), stack(LOOP, TRAIN, STEP)], LOOP),
        ([stack(PID, MAIN), stack(LOOP, TRAIN, NEXT)], None),
        # The main thread trains in one of its samples.
        ([RESTING, stack(PID, MAIN, BACKWARD), stack(LOOP, TRAIN, STEP)], None),
        ([stack(PID, MAIN, NEXT, GET, WAIT), stack(LOOP, TRAIN, STEP)], None),
        ([RESTING, stack(LOOP, PINS)], None),
        ([RESTING, stack(LOOP, TRAIN), stack(OTHER, PINS)], None),
        # Of an actor that only computes forward and a learner, the learner.
        ([RESTING, stack(LOOP, TRAIN, FORWARD, samples=40), stack(OTHER, TRAIN, STEP, samples=2)], OTHER),
        ([RESTING, stack(LOOP, TRAIN, STEP, samples=2), stack(OTHER, TRAIN, BACKWARD, samples=3)], OTHER),
        # Without the main thread's stack nothing is known of it.
        ([stack(LOOP, TRAIN, STEP)], None),
        ([], None),
        ([stack(PID), stack(LOOP, TRAIN, NEXT)], None),
    ],
)
def test_the_thread_that_trains_is_told_by_its_frames(stacks, loop):
    found = find_loop(stacks, PID)
    assert (None if found is None else found.tid) == loop


@pytest.fixture
def loops(tmp_path):
    for tid in (PID, LOOP, OTHER):
        (tmp_path / f"{PID}/task/{tid}").mkdir(parents=True)
    return LoopThreads(str(tmp_path))


def member_of(pid: int):
    return replace(member(os.getpid()), identity=Identity(pid, 7))


TRAINS = [RESTING, stack(LOOP, TRAIN, STEP, name="Thread-1 (train)")]
ME = Identity(PID, 7)


def test_a_loop_once_found_stays_while_its_thread_does_something_else(loops):
    assert loops.learn(ME, TRAINS, 0) == LOOP
    assert loops.learn(ME, [RESTING, stack(LOOP, TRAIN), stack(OTHER, TRAIN, STEP)], SECOND) == LOOP
    assert loops.tids() == {ME: LOOP}
    # Its thread ended, and the next one trains.
    assert loops.learn(ME, [RESTING, stack(OTHER, TRAIN, STEP)], 2 * SECOND) == OTHER
    assert loops.learn(ME, [RESTING], 3 * SECOND) == PID
    assert loops.tids() == {}


def test_a_main_thread_that_trained_lately_is_the_loop_also_when_a_slice_does_not_show_it(loops):
    assert loops.learn(ME, [stack(PID, MAIN, BACKWARD)], 0) == PID
    assert loops.learn(ME, TRAINS, int(MAIN_S * SECOND) - 1) == PID
    assert loops.learn(ME, TRAINS, int(MAIN_S * SECOND)) == LOOP
    assert loops.learn(ME, [stack(PID, MAIN, NEXT), *TRAINS[1:]], int(200 * SECOND)) == PID
    assert loops.tids() == {}


def test_a_thread_whose_number_cannot_be_told_is_not_taken(loops):
    assert loops.learn(ME, [RESTING, stack(999, TRAIN, STEP)], 0) == PID
    assert loops.learn(Identity(5, 1), [stack(5, MAIN, JOIN), stack(LOOP, TRAIN, STEP)], 0) == 5


def test_members_are_marked_and_stay_one_tuple(loops):
    members = (member_of(PID), member_of(55))
    assert loops.mark(members) is members
    loops.learn(ME, TRAINS, 0)
    marked = loops.mark(members)
    assert [one.loop for one in marked] == [LoopThread(LOOP, "Thread-1 (train)"), NOT_APPLICABLE]
    assert [one.loop_tid for one in marked] == [LOOP, 55]
    assert marked[1] is members[1]
    assert loops.mark(members) is marked
    assert describe_loops(marked) == (
        "rank 0 trains in its thread Thread-1 (train) (107): what is said of a main thread is said of that one",
    )
    assert loops.mark(members[1:]) == members[1:]
    assert loops.tids() == {}  # its process is gone


THREADED = """
source = "def step(held):\\n while True:\\n  sum(range(20000)); held.wait(0.001)\\n"
space = {}
exec(compile(source, "/x/site-packages/torch/optim/sgd.py", "exec"), space)
held = threading.Event()
say("up")
def train():
    say(str(threading.get_native_id()))
    space["step"](held)
trainer = threading.Thread(target=train, name="trainer", daemon=True)
trainer.start()
trainer.join()
"""


@pytest.fixture(scope="module")
def threaded():
    if reason := may_sample():
        pytest.skip(reason)
    with child(THREADED) as one:
        tid = int(one.hear())
        yield one, tid


def test_a_dump_takes_the_thread_that_trains_for_the_main_one(threaded):
    one, tid = threaded
    look = Dumper([member(one.pid)]).read_round()
    kinds = {thread.tid: thread.kind for thread in look.processes[0].threads}
    assert kinds[tid] is ThreadKind.MAIN
    assert kinds[one.pid] is ThreadKind.OTHER
    # Of a worker or a helper nothing is looked for.
    look = Dumper([replace(member(one.pid), role=Role.WORKER)]).read_round()
    assert {thread.tid: thread.kind for thread in look.processes[0].threads}[one.pid] is ThreadKind.MAIN


def test_where_no_stack_comes_the_thread_that_is_known_is_read(threaded):
    one, tid = threaded
    threads = read_threads(one.pid, Role.RANK, Missing("not asked"), loop_tid=tid)
    (first,) = [look for look in threads.looks if look.kind is ThreadKind.MAIN]
    assert (first.tid, first.frames) == (tid, Missing("not asked"))


def test_slices_teach_which_thread_it_is(threaded):
    one, tid = threaded
    loops = LoopThreads()
    sampler = StackSampler(loops=loops)
    me = member(one.pid)
    sampler.start()
    try:
        sampler.watch([Subject(me.identity, 0)])
        slices = []

        def sampled() -> bool:
            taken = sampler.take()
            slices.extend(taken if is_known(taken) else ())
            return any(piece.seconds > 0 for piece in slices)

        wait_until(sampled, 20)
    finally:
        sampler.stop()
    assert {piece.loop_tid for piece in slices} == {tid}
    assert slices[-1].samples == sum(found.samples for found in slices[-1].stacks if found.tid == tid)
    assert loops.mark((me,))[0].loop == LoopThread(tid, "trainer")


def test_state_waits_and_demand_are_those_of_the_thread_that_trains(threaded):
    one, tid = threaded
    me = member(one.pid)
    population = Population()

    def demand(named) -> tuple[float, str]:
        population.read((named,), skip_threads=False)
        time.sleep(0.5)
        ((now),) = population.read((named,), skip_threads=False)
        kinds = {group.kind: group.runnable for group in now.now.threads.groups}
        assert is_known(kinds[ThreadKind.MAIN])
        return kinds[ThreadKind.MAIN], now.now.waits_for

    try:
        resting, _ = demand(me)
        assert resting < 0.05
        training, _ = demand(replace(me, loop=LoopThread(tid, "trainer")))
        assert training > 0.1
        again, _ = demand(me)
        assert again < 0.05
        # A thread that is gone leaves the process readable, and its own wait unknown.
        population.read((replace(me, loop=LoopThread(1 << 22, "gone")),), skip_threads=False)
        (reading,) = population.read((replace(me, loop=LoopThread(1 << 22, "gone")),), skip_threads=False)
        assert isinstance(reading.now.waits_for, Missing)
        assert reading.now.state in "RS"
    finally:
        population.close()


def test_looks_go_to_the_thread_that_trains(threaded):
    one, tid = threaded
    me = member(one.pid).identity
    probe = MainThreadProbe(machine="x86_64")
    probe.watch([(me, 0)])
    probe.look()
    assert len(probe._threads) == 1
    probe.watch([(me, 0)], loops={me: tid})
    probe.look()
    assert set(probe._threads) == {(me, tid)}
    probe.stop()
    for thread in probe._threads.values():
        thread.close()


def test_a_number_that_proc_does_not_have_is_no_thread():
    assert read_loop(os.getpid(), stack(os.getpid())) == LoopThread(os.getpid(), "")
    assert read_loop(os.getpid(), stack(1 << 22)) is NOT_APPLICABLE
    assert read_loop(1 << 22, stack(1 << 22)) is NOT_APPLICABLE


def test_frames_are_weighed_once(monkeypatch):
    loop_thread._weigh.cache_clear()
    find_loop([stack(PID, MAIN, JOIN, samples=3), stack(LOOP, TRAIN, TRAIN, STEP)], PID)
    assert loop_thread._weigh.cache_info().misses == 4
