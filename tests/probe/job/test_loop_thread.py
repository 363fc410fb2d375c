"""Which thread of a process runs the training loop, told from its stacks, and what is then read of it."""

import os
import time
from contextlib import closing
from dataclasses import replace

import pytest

from tests.children import child
from tests.members import member
from tests.spying import may_sample
from tests.waiting import wait_until
from tpmon.judge.folds.groups import DumpOrigin
from tpmon.judge.folds.hot import hot_functions
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Identity, LoopThread, Role, ThreadKind
from tpmon.model.results.sample import SampleRequest
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.probe.collect.processes import Population
from tpmon.probe.job import loop_thread
from tpmon.probe.job.job import Loop
from tpmon.probe.job.loop_thread import MAIN_S, LoopThreads, describe_loops, find_loop, read_loop
from tpmon.probe.proc.main_threads import MainThreadProbe
from tpmon.probe.spy.dump import Dumper
from tpmon.probe.spy.dump_threads import read_threads
from tpmon.probe.spy.plan import SpySubject
from tpmon.probe.spy.sample import Sampler
from tpmon.probe.spy.stacks import StackSampler

PID, LOOP, OTHER = 100, 107, 108
SECOND = 10**9
SITE = "/opt/env/lib/python3.12/site-packages/"
JOIN = ("join", "/usr/lib/python3.12/threading.py")
WAIT = ("wait", "/usr/lib/python3.12/threading.py")
GET = ("get", "/usr/lib/python3.12/queue.py")
MAIN = ("<module>", "/home/me/train.py")
TRAIN = ("train", "/home/me/train.py")
STEP = ("step", SITE + "torch/optim/adamw.py")
STATE = ("Optimizer.state_dict", SITE + "torch/optim/optimizer.py")
BACKWARD = ("Tensor.backward", SITE + "torch/_tensor.py")
NEXT = ("__next__", SITE + "torch/utils/data/dataloader.py")
FORWARD = ("Module._call_impl", SITE + "torch/nn/modules/module.py")
PINS = ("_pin_memory_loop", SITE + "torch/utils/data/_utils/pin_memory.py")
REDUCE = ("all_reduce", SITE + "torch/distributed/distributed_c10d.py")
SCHEDULE = ("custom_backward", SITE + "megatron/core/pipeline_parallel/schedules.py")
POOL = ("_worker", "/usr/lib/python3.12/concurrent/futures/thread.py")
GRADIO = ("Blocks.block_thread", SITE + "gradio/blocks.py")
RAY_V1 = ("_TrainSession.get_next", SITE + "ray/train/_internal/session.py")
EXIT = ("_shutdown", "/usr/lib/python3.12/threading.py")
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
        # A server computes in the threads of its pool.
        ([RESTING, stack(LOOP, TRAIN, FORWARD)], None),
        ([stack(PID, MAIN, FORWARD), stack(LOOP, TRAIN, STEP)], None),
        # Who saves an optimizer's state takes no step.
        ([RESTING, stack(LOOP, TRAIN, STATE)], None),
        ([RESTING, stack(LOOP, TRAIN, REDUCE)], LOOP),
        ([stack(PID, MAIN, SCHEDULE), stack(LOOP, TRAIN, STEP)], None),
        ([stack(PID, MAIN, RAY), stack(LOOP, TRAIN, NEXT)], LOOP),
        # The actor of Ray Train v1 waits at a queue for what its thread reports.
        ([stack(PID, MAIN, RAY_V1, GET, WAIT), stack(LOOP, TRAIN, NEXT)], LOOP),
        ([stack(PID, MAIN, GRADIO), stack(LOOP, TRAIN, NEXT)], LOOP),
        # The program has finished, and a thread of its pool has not.
        ([stack(PID, EXIT, JOIN), stack(LOOP, TRAIN, NEXT)], None),
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
        # It was torn while it was read.
        ([stack(PID), stack(LOOP, TRAIN, STEP)], None),
        ([stack(PID), RESTING, stack(LOOP, TRAIN, NEXT)], LOOP),
    ],
)
def test_the_thread_that_trains_is_told_by_its_frames(stacks, loop):
    found = find_loop(stacks, PID)
    assert (None if found is None else found.tid) == loop


@pytest.fixture
def loops(tmp_path):
    for tid in (PID, LOOP, OTHER):
        folder = tmp_path / f"{PID}/task/{tid}"
        folder.mkdir(parents=True)
        (folder / "comm").write_text("python\n")
    return LoopThreads(str(tmp_path))


def loop_of(tid: int) -> Loop:
    return Loop(LoopThread(tid, "trainer"), tid)


def member_of(pid: int):
    return replace(member(os.getpid()), identity=Identity(pid, 7))


TRAINS = [RESTING, stack(LOOP, TRAIN, STEP, name="Thread-1 (train)")]
ME = Identity(PID, 7)


SAVES = [RESTING, stack(LOOP, TRAIN, REDUCE)]
LIBRARY, SAVE = ("train", SITE + "mycompany/train.py"), ("save", SITE + "torch/serialization.py")
OWN_STEP = [stack(PID, MAIN, STEP)]
RUNS = {
    "a loop once found stays while its thread does something else, and ends with it": [
        *((0, TRAINS, LOOP), (1, [RESTING, stack(LOOP, TRAIN), stack(OTHER, TRAIN, STEP)], LOOP)),
        *((2, [RESTING, stack(OTHER, TRAIN, STEP)], OTHER), (3, [RESTING], PID)),
    ],
    "a thread of a pool that waits for its next task is no loop any more": [
        *((0, TRAINS, LOOP), (1, [RESTING, stack(LOOP, POOL), stack(OTHER, TRAIN, STEP)], OTHER)),
        (2, [RESTING, stack(LOOP, POOL), stack(OTHER, POOL)], PID),
    ],
    # The function that trains may be one of a library, and save, log or only compute for a while.
    "code of an installed package is no pool": [
        (1, [RESTING, stack(LOOP, LIBRARY, *more)], LOOP) for more in ([STEP], [FORWARD], [STEP], [SAVE], [])
    ],
    "a checkpoint that a thread saves for a main thread that trained is no loop": [
        *((0, OWN_STEP, PID), *((second, SAVES, PID) for second in (70, 125, 190, 260)))
    ],
    "a main thread that trained lately is the loop also when a slice does not show it": [
        *((0, [stack(PID, MAIN, BACKWARD)], PID), (1, TRAINS, PID)),
        *((MAIN_S - 1e-9, TRAINS, PID), (MAIN_S, TRAINS, LOOP)),
    ],
    # With many ranks a slice of each comes every two or three minutes.
    "the first slice after a long time changes nothing": [
        *((0, [stack(PID, MAIN, BACKWARD)], PID), (200, TRAINS, PID), (400, TRAINS, LOOP))
    ],
    "a main thread that evaluates or saves takes nothing over, one that surely trains does": [
        (0, TRAINS, LOOP),
        *((1, [stack(PID, MAIN, frame), *TRAINS[1:]], LOOP) for frame in (FORWARD, NEXT, REDUCE)),
        *((2, [stack(PID, MAIN, NEXT), stack(LOOP, TRAIN)], PID), (3, TRAINS, PID), (300, TRAINS, LOOP)),
        (301, [*OWN_STEP, *TRAINS[1:]], PID),
    ],
    "a thread whose number cannot be told is not taken": [(0, [RESTING, stack(999, TRAIN, STEP)], PID)],
}


@pytest.mark.parametrize("run", RUNS)
def test_the_thread_of_the_loop_is_remembered(loops, run):
    for second, stacks, tid in RUNS[run]:
        assert loops.learn(ME, stacks, round(second * SECOND)) == tid
        assert loops.tids() == ({} if tid == PID else {ME: tid})
        assert loops.said(ME) == tid


def test_neither_a_thread_of_autograd_nor_one_that_proc_does_not_have_is_the_loop(loops, tmp_path):
    assert loops.learn(Identity(5, 1), [stack(5, MAIN, JOIN), stack(LOOP, TRAIN, STEP)], 0) == 5
    (tmp_path / f"{PID}/task/{LOOP}/comm").write_text("pt_autograd_0\n")
    assert loops.learn(ME, TRAINS, 0) == PID
    own = os.getpid()
    assert read_loop(own, stack(own)) == Loop(LoopThread(own, ""), own)
    assert read_loop(own, stack(1 << 22)) is NOT_APPLICABLE
    assert read_loop(1 << 22, stack(1 << 22)) is NOT_APPLICABLE


def test_a_thread_that_has_the_address_of_one_that_ended_is_another(loops, tmp_path, monkeypatch):
    """Before Python 3.11 py-spy tells threads by their address, which the next thread gets again."""
    address = 0x7F0000001000
    numbers = iter((LOOP, OTHER))
    monkeypatch.setattr(loop_thread, "number_stacks", lambda _pid, stacks, _here, _proc: [(next(numbers), stacks[0])])
    stacks = [RESTING, stack(address, TRAIN, STEP)]
    assert loops.learn(ME, stacks, 0) == address
    assert loops.learn(ME, stacks, SECOND) == address
    assert loops.tids() == {ME: LOOP}
    (tmp_path / f"{PID}/task/{LOOP}/comm").unlink()
    (tmp_path / f"{PID}/task/{LOOP}").rmdir()
    assert loops.learn(ME, stacks, 2 * SECOND) == address
    assert loops.tids() == {ME: OTHER}


def test_members_are_marked_and_stay_one_tuple(loops):
    members = (member_of(PID), member_of(55), member_of(56))
    assert loops.mark(members) is members
    loops.learn(ME, TRAINS, 0)
    loops.learn(Identity(56, 7), [stack(56, MAIN, STEP)], 0)
    marked = loops.mark(members)
    loop = Loop(LoopThread(LOOP, "Thread-1 (train)"), LOOP)
    assert [one.loop for one in marked] == [loop, NOT_APPLICABLE, NOT_APPLICABLE]
    assert [one.is_loop_told for one in marked] == [True, False, True]
    assert [one.loop_tid for one in marked] == [LOOP, 55, 56]
    assert marked[1] is members[1]
    assert loops.mark_some(members[:1]) == marked[:1]
    loops.learn(ME, TRAINS, SECOND)
    assert loops.mark(members) is marked
    assert describe_loops(marked) == (
        "rank 0 trains in its thread Thread-1 (train) (107): what is said of a main thread is said of that one",
    )
    assert loops.mark(members[1:2]) == members[1:2]
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


def dump_kinds(one):
    return {thread.tid: thread.kind for thread in Dumper([one]).read_round().processes[0].threads}


def test_a_dump_takes_the_thread_that_trains_for_the_main_one_or_the_one_that_is_known(threaded):
    one, tid = threaded
    kinds = dump_kinds(member(one.pid))
    assert (kinds[tid], kinds[one.pid]) == (ThreadKind.MAIN, ThreadKind.OTHER)
    # Of a worker or a helper nothing is looked for.
    assert dump_kinds(replace(member(one.pid), role=Role.WORKER))[one.pid] is ThreadKind.MAIN
    main = replace(member(one.pid), is_loop_told=True)
    assert dump_kinds(main)[one.pid] is ThreadKind.MAIN
    assert dump_kinds(replace(main, loop=loop_of(1 << 22)))[tid] is ThreadKind.MAIN
    # Also where no stack comes.
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
        sampler.watch([SpySubject(me.identity, 0)])
        slices = []

        def sampled():
            taken = sampler.take()
            slices.extend(taken if is_known(taken) else ())
            return any(piece.seconds > 0 for piece in slices)

        wait_until(sampled, 20)
    finally:
        sampler.stop()
    assert {piece.loop_tid for piece in slices} == {tid}
    assert slices[-1].samples == sum(found.samples for found in slices[-1].stacks if found.tid == tid)
    assert loops.mark((me,))[0].loop == loop_of(tid)


def test_state_waits_and_demand_are_those_of_the_thread_that_trains(threaded):
    one, tid = threaded
    me = member(one.pid)

    def demand(named):
        population.read((named,), skip_threads=False)
        time.sleep(0.5)
        ((now),) = population.read((named,), skip_threads=False)
        kinds = {group.kind: group.runnable for group in now.now.threads.groups}
        assert is_known(kinds[ThreadKind.MAIN])
        return kinds[ThreadKind.MAIN]

    with closing(Population()) as population:
        assert demand(me) < 0.05
        assert demand(replace(me, loop=loop_of(tid))) > 0.1
        assert demand(me) < 0.05
        # A thread that is gone leaves the process readable, and its own wait unknown.
        for _ in range(2):
            (reading,) = population.read((replace(me, loop=loop_of(1 << 22)),), skip_threads=False)
        assert isinstance(reading.now.waits_for, Missing)
        assert reading.now.state in "RS"


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


@pytest.mark.long
def test_samples_of_a_while_are_of_the_thread_that_trains(threaded):
    one, tid = threaded
    me = member(one.pid)
    for named in (me, replace(me, loop=loop_of(tid), is_loop_told=True)):
        reading = Sampler(lambda named=named: (named,), SampleRequest(seconds=3.0)).run()
        (process,) = reading.processes
        assert process.loop_tid == tid
        assert process.cpu_s > 0.2  # of the thread that trains, not of the one that rests
        assert process.watched_s > 0
        main, others = hot_functions(reading, DumpOrigin(1, "train.py", 1)).groups
        assert main.main
        assert main.looks > 10
        assert not others.main
