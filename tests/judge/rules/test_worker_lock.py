"""Workers that wait for each other at a lock, and those that only look like it, on made-up Windows."""

from dataclasses import replace

import pytest

from tests.data_rules import LOADER
from tests.frames import make_gpu
from tests.starving import COMPUTES, DISK, IDLES, SLEEPS, line_up, make_second
from tpmon.judge.advice.choose import choose
from tpmon.judge.advice.context import gather_facts, observe
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.snapshot import see
from tpmon.judge.features.workers import StackEnd, name_place
from tpmon.judge.finding import rate_confidence
from tpmon.judge.hysteresis import key_of
from tpmon.judge.ranking import find_explained
from tpmon.judge.rules.loader import judge_too_few_workers, judge_worker_lock
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.process import ThreadGroup, ThreadKind
from tpmon.model.stacks import StackCount, StackFrame, StackSlice
from tpmon.model.verdict import Confidence, Kind

LIB = "/usr/lib/python3.11"
PACKAGES = "/opt/venv/lib/python3.11/site-packages"
TORCH = f"{PACKAGES}/torch/utils/data/_utils"
FUTEX = {**SLEEPS, "waits_for": "lock or queue (futex)"}
TIMED = {**SLEEPS, "waits_for": "lock with a time-out (futex)"}
FLOCK = {**SLEEPS, "waits_for": "locks_lock_inode_wait"}
READS = {**FUTEX, "asked_read_bytes_s": 45e6, "read_calls_s": 400.0}
POOL_COMPUTES = {
    **FUTEX,
    "runnable": 0.45,
    "thread_groups": (ThreadGroup(ThreadKind.MAIN, 1, 0.02), ThreadGroup(ThreadKind.POOL, 4, 0.43)),
}


def frames_of(*calls):
    return tuple(StackFrame(function, file, 30) for function, file in calls)


LOOP = frames_of(("<module>", "/home/u/train.py"), ("_worker_loop", f"{TORCH}/worker.py"))
LINE = (*LOOP, *frames_of(("fetch", f"{TORCH}/fetch.py"), ("__getitem__", "/home/u/data.py")))


def below(*calls, stack=LINE):
    return (*stack, *frames_of(*calls))


WAIT = ("wait", f"{LIB}/threading.py")
FUTURES = f"{LIB}/concurrent/futures/_base.py"
ENTER = ("__enter__", f"{LIB}/multiprocessing/synchronize.py")
ACQUIRE = below(ENTER)
RESULT = below(("result_iterator", FUTURES), ("result", FUTURES), WAIT)
PLACES = {
    "with multiprocessing.Lock()": (ACQUIRE, StackEnd.LOCK),
    "a shared value": (below(("get_obj", f"{LIB}/multiprocessing/sharedctypes.py"), ENTER), StackEnd.LOCK),
    "filelock": (below(("acquire", f"{PACKAGES}/filelock/_api.py")), StackEnd.LOCK),
    "Lock.acquire, which is C": (LINE, StackEnd.LINE),
    "executor.map": (RESULT, StackEnd.OWN),
    "as_completed": (below(("as_completed", FUTURES), WAIT), StackEnd.OWN),
    "futures.wait": (below(("wait", FUTURES), WAIT), StackEnd.OWN),
    "boto3": (below(("result", f"{PACKAGES}/s3transfer/futures.py"), WAIT), StackEnd.OWN),
    "multiprocessing.Pool": (below(("get", f"{LIB}/multiprocessing/pool.py"), WAIT), StackEnd.OWN),
    "an event of processes": (below(("wait", f"{LIB}/multiprocessing/synchronize.py")), StackEnd.OWN),
    "a queue of the data set": (below(("get", f"{LIB}/multiprocessing/queues.py"), ENTER), StackEnd.OWN),
    "a batch for a full queue": (below(("put", f"{LIB}/multiprocessing/queues.py"), stack=LOOP), StackEnd.HANDS),
    "the lock of a SimpleQueue": (
        below(("put", f"{LIB}/multiprocessing/queues.py"), ENTER, stack=LOOP),
        StackEnd.HANDS,
    ),
    "grpc": (below(("_blocking", f"{PACKAGES}/grpc/_channel.py")), StackEnd.LIBRARY),
}


@pytest.mark.parametrize(("frames", "place"), PLACES.values(), ids=PLACES)
def test_the_innermost_frames_tell_a_lock_from_the_end_of_a_queue(frames, place):
    assert name_place(frames) is place


def see_workers(kinds, *counted, wait=0.6, **more):
    """See workers that do as ``kinds`` say; each of the first two is sampled in the stacks ``counted``."""
    seconds = line_up([make_second(wait, kinds, **more)] * 20)
    out = []
    for number, one in enumerate(seconds):
        pid = 5000 + number // 4 % min(2, len(kinds))
        stacks = tuple(StackCount(pid, "MainThread", frames, samples) for frames, samples in counted)
        taken = StackSlice(
            pid=pid,
            rank=NOT_APPLICABLE,
            ended=one.taken,
            ended_ns=one.taken_ns,
            seconds=3.0,
            rate_hz=7.0,
            samples=sum(samples for _, samples in counted),
            stacks=stacks,
        )
        out.append(replace(one, stacks=(taken,) if stacks and number % 4 == 3 else ()))
    return see(out)


def stated(scene):
    """Return the one cause that is suspected and not explained by another one, and how sure it is."""
    found = [one for one in (rule(scene) for rule in LOADER) if isinstance(one, Suspicion)]
    explained = find_explained(key_of(one) for one in found)
    (one,) = (one for one in found if key_of(one) not in explained)
    return one.cause, rate_confidence(one, 60.0)


HIGH, MEDIUM, LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
LOCK, FEW = "worker-lock", "too-few-workers"
HELD = ((ACQUIRE, 15), (LINE, 5))
HALF = ((ACQUIRE, 10), (LINE, 10))
CASES = {
    # A: what has the word of a lock
    "a pool of threads": (see_workers([FUTEX] * 4, (RESULT, 20)), (FEW, HIGH)),
    "a pool of threads that reads": (see_workers([READS] * 4), (FEW, HIGH)),
    "a pool of threads that computes": (see_workers([POOL_COMPUTES] * 4), (FEW, HIGH)),
    "a pool of threads, lines of decoding": (see_workers([FUTEX] * 3 + [SLEEPS], (RESULT, 12), (LINE, 8)), (FEW, HIGH)),
    "a queue of the data set's own": (
        see_workers([FUTEX] * 4, (below(("get", f"{LIB}/queue.py"), WAIT), 20)),
        (FEW, HIGH),
    ),
    "no stacks": (see_workers([FUTEX] * 3 + [SLEEPS]), (LOCK, LOW)),
    "no stacks, with a time-out": (see_workers([TIMED] * 4), (LOCK, LOW)),
    "a library": (see_workers([TIMED] * 4, (PLACES["grpc"][0], 20)), (LOCK, LOW)),
    "a queue of C: nobody has the lock": (see_workers([FUTEX] * 4, (LINE, 20)), (LOCK, LOW)),
    # C: two workers
    "one of two has it and sleeps": (see_workers([FUTEX, SLEEPS], *HALF), (LOCK, HIGH)),
    "one of two has it and computes": (see_workers([FUTEX, COMPUTES], *HALF), (LOCK, HIGH)),
    "one of two has it and reads": (see_workers([FUTEX, DISK], *HALF), (LOCK, HIGH)),
    "of two, without stacks": (see_workers([FUTEX, SLEEPS]), (LOCK, LOW)),
    "of two that compute in turns, without stacks": (see_workers([FUTEX, COMPUTES]), (LOCK, LOW)),
    "two pools of threads": (see_workers([FUTEX, FUTEX], (RESULT, 12), (LINE, 8)), (FEW, HIGH)),
    "two in lines of C": (see_workers([FUTEX, SLEEPS], (LINE, 20)), (LOCK, LOW)),
    "one worker": (see_workers([FUTEX]), (FEW, MEDIUM)),
    "one worker at the lock of another rank's": (see_workers([FUTEX], (ACQUIRE, 20)), (LOCK, HIGH)),
    "half of eight out of it at once": (see_workers([FUTEX] * 4 + [SLEEPS] * 4, (LINE, 20)), (LOCK, LOW)),
    "three samples of ten of two that compute": (
        see_workers([COMPUTES, COMPUTES], (ACQUIRE, 3), (LINE, 7)),
        (FEW, HIGH),
    ),
    # D: a lock
    "a lock of four": (see_workers([FUTEX] * 3 + [SLEEPS], *HELD), (LOCK, HIGH)),
    "a lock of four in C": (see_workers([FUTEX] * 3 + [SLEEPS], (LINE, 20)), (LOCK, HIGH)),
    "who has it computes": (see_workers([FUTEX] * 3 + [COMPUTES], *HELD), (LOCK, HIGH)),
    "who has it reads": (see_workers([FUTEX] * 3 + [DISK], *HELD), (LOCK, HIGH)),
    "who has it reads, in C": (see_workers([FUTEX] * 3 + [DISK], (LINE, 20)), (LOCK, HIGH)),
    "a lock on a file": (see_workers([FLOCK] * 3 + [SLEEPS]), (LOCK, HIGH)),
    "a lock on a file that is polled": (
        see_workers([SLEEPS] * 4, (PLACES["filelock"][0], 15), (LINE, 5)),
        (LOCK, HIGH),
    ),
}


@pytest.mark.parametrize(("scene", "expected"), CASES.values(), ids=CASES)
def test_a_lock_is_accused_where_something_shows_it(scene, expected):
    assert stated(scene) == expected


def test_a_worker_on_a_card_may_wait_for_its_driver():
    cards = {"gpus": (make_gpu(sm_pct=30.0, pids=(4211, 5000, 5001)),)}
    scene = see_workers([FUTEX] * 3 + [SLEEPS], (LINE, 20), frame=cards)
    answer = judge_worker_lock(scene)
    assert rate_confidence(answer, 60.0) is LOW


@pytest.mark.parametrize("kind", [FUTEX, TIMED])
@pytest.mark.parametrize("place", ["a batch for a full queue", "the lock of a SimpleQueue"])
def test_a_worker_that_hands_over_its_batch_is_at_no_lock(kind, place):
    scene = see_workers([kind] * 4, (PLACES[place][0], 20))
    answer = judge_worker_lock(scene)
    assert isinstance(answer, Cleared)
    assert "hand over" in answer.text
    assert isinstance(judge_too_few_workers(scene), Unsure)


def test_a_worker_that_has_no_work_is_at_no_lock():
    idle = below(("get", f"{LIB}/multiprocessing/queues.py"), stack=LOOP)
    assert isinstance(judge_worker_lock(see_workers([DISK] * 4, (idle, 20))), Cleared)
    # Stacks of a worker without work say nothing of what it does when it has some.
    assert stated(see_workers([FUTEX] * 3 + [SLEEPS], (idle, 60), *HELD)) == (LOCK, HIGH)


def test_a_worker_without_work_is_not_the_one_that_has_the_lock():
    one = judge_worker_lock(see_workers([FUTEX] * 3 + [IDLES], (LINE, 20)))
    assert rate_confidence(one, 60.0) is LOW


def advise(scene):
    one = judge_worker_lock(scene)
    chosen = choose(Kind.DATA_BOUND, "worker-lock", observe(scene, one), gather_facts(scene, one))
    return one, chosen[0]


def test_what_is_left_open_is_left_open_by_the_advice_too():
    one, first = advise(see_workers([FUTEX] * 4))
    assert "for a lock, or for threads of their own" in one.summary
    assert one.observed >= {Need.WORKERS_IN_FUTEX}
    assert (first.remedy.id, first.certain) == ("lock-or-threads", True)


def test_what_is_shown_is_said_and_proven():
    one, first = advise(see_workers([FUTEX] * 3 + [SLEEPS], *HELD))
    assert one.summary.endswith("its 4 workers wait 75 % of their time for a lock")
    assert [row.value for row in one.evidence if row.name == "their stacks at a lock"] == [75.0]
    assert (first.remedy.id, first.certain) == ("free-the-lock", True)
    alone = judge_worker_lock(see_workers([FUTEX], (ACQUIRE, 20)))
    assert alone.summary.endswith("of its time for a lock of another process")


def test_workers_that_wait_for_their_own_threads_are_said_to():
    one = judge_too_few_workers(see_workers([FUTEX] * 4, (RESULT, 20)))
    assert "its 4 workers always have work and wait for threads of their own," in one.summary
    assert Need.WORKERS_ASLEEP in one.observed
