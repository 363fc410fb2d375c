"""What the workers of a loader tell, on made-up Windows: each cause, the pairs that are confused, what kills them."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests import starving
from tests.any_windows import make_slice
from tests.frames import make_gpu
from tests.judge.rules.test_lifecycle import make_end
from tests.judging import advise, clears, doubts, make_looks, make_phases
from tests.starving import COMPUTES, DISK, IDLES, LOADER, SLEEPS, SMALL_FILES, line_up, make_second, starve
from tpmon.judge.advice.context import gather_facts
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.snapshot import see
from tpmon.judge.features.workers import StackEnd, name_place
from tpmon.judge.finding import rate_confidence
from tpmon.judge.hysteresis import key_of
from tpmon.judge.ranking import find_explained
from tpmon.judge.rules.cpu import judge_oversubscription
from tpmon.judge.rules.loader import (
    judge_killed_workers,
    judge_one_slow_worker,
    judge_respawn,
    judge_too_few_workers,
    judge_uneven_workers,
    judge_worker_lock,
)
from tpmon.judge.stacks.phases import Phase
from tpmon.model.figures import Origin
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Outcome, Role, ThreadGroup, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Confidence, Kind

GONE = Missing("permission denied")


def suspects(scene):
    """Return the causes that are suspected and not explained by another one."""
    found = [one for one in (rule(scene) for rule in LOADER) if isinstance(one, Suspicion)]
    explained = find_explained(key_of(one) for one in found)
    return {one.cause: one for one in found if key_of(one) not in explained}


LOCKED = {**SLEEPS, "waits_for": "lock or queue (futex)"}


def slow_one(kind):
    return starve(0.7, [IDLES, kind, IDLES])


UNFED = {**IDLES, "runnable": 0.0}
DELAYED = {**IDLES, "runnable": 0.02, "waiting": 0.0199}
FULL = {"budget_cores": 2.0}
CASES = {
    "cpu-transform": (starve(0.8, [COMPUTES] * 2, cpu=FULL), "cpu-transform"),
    "three compute on two cores": (starve(0.8, [COMPUTES] * 3, cpu=FULL), "cpu-transform"),
    "one computes, a core is free": (starve(0.66, [COMPUTES], cpu=FULL), "too-few-workers"),
    "four compute on eight cores": (starve(0.5, [COMPUTES] * 4), "too-few-workers"),
    "workers sleep": (starve(0.8, [SLEEPS] * 2), "too-few-workers"),
    "threads of theirs compute meanwhile": (starve(0.6, [{**LOCKED, "runnable": 0.9}] * 2), "too-few-workers"),
    "large reads past the cache": (starve(0.8, [DISK] * 2), "storage-bandwidth"),
    "large reads over a narrow line": (starve(0.8, [starving.LINE] * 2), "storage-bandwidth"),
    "small files": (starve(0.8, [SMALL_FILES] * 2), "storage-latency"),
    "small files of a disk": (starve(0.8, [{**SMALL_FILES, "state": "D", "waits_for": "disk"}]), "storage-latency"),
    "sockets": (starve(0.8, [starving.SOCKET] * 2), "network-store"),
    "a file system far away": (starve(0.8, [starving.DISTANT] * 2), "network-store"),
    "page cache": (starving.thrash(), "page-cache-thrash"),
    "page cache by PSI alone": (starving.thrash(refault_bytes_s=GONE), "page-cache-thrash"),
    "one computes, the others idle": (slow_one(COMPUTES), "one-slow-worker"),
    "one sleeps, the other idles": (starve(0.7, [SLEEPS, IDLES]), "one-slow-worker"),
    "one reads, the others idle": (slow_one(DISK), "one-slow-worker"),
    "two of eight have shards": (starve(0.75, [COMPUTES] * 2 + [IDLES] * 6), "uneven-workers"),
    "four of eight have shards": (starve(0.75, [COMPUTES] * 4 + [IDLES] * 4), "uneven-workers"),
    "two of eight have shards, and read": (starve(0.75, [IDLES] * 6 + [DISK] * 2), "uneven-workers"),
    "one of three has shards": (starve(0.7, [UNFED, COMPUTES, UNFED]), "uneven-workers"),
    "one of three has shards, on a full machine": (starve(0.7, [DELAYED, COMPUTES, UNFED]), "uneven-workers"),
    "one of three has not made its batch for long": (
        starve(0.9, [UNFED, COMPUTES, UNFED], rank={"runnable": 0.0, "waiting": 0.0}),
        "one-slow-worker",
    ),
    "one is stopped": (slow_one({**IDLES, "state": "T", "waits_for": "stopped by a signal"}), "one-slow-worker"),
}


@pytest.mark.parametrize(("scene", "cause"), CASES.values(), ids=CASES)
def test_each_cause_is_told_from_the_others(scene, cause):
    found = suspects(scene)
    assert set(found) == {cause}
    one = found[cause]
    assert one.kind is Kind.DATA_BOUND
    assert one.share_low <= one.share <= one.share_high
    assert one.weight == one.share
    assert len(one.origins) >= 2
    assert one.margin >= 1
    assert one.needed_ratio == pytest.approx(1 / (1 - one.share))


HEALTHY = {
    "batches lie ready": starve(0.0, [IDLES] * 2, loader={"ready_batches": 4.0, "empty_ratio": 0.0}),
    "workers compute but keep up": starve(0.02, [COMPUTES] * 4, cpu=FULL, loader={"ready_batches": 2.0}),
    "workers read but keep up": starve(0.04, [DISK] * 2),
    "every eighth second waits a little": starve(0.05, [SLEEPS] * 2),
}


@pytest.mark.parametrize("scene", HEALTHY.values(), ids=HEALTHY)
def test_a_run_that_does_not_wait_is_cleared_of_every_cause(scene):
    answers = [rule(scene) for rule in LOADER]
    assert all(isinstance(one, Cleared) for one in answers)


def test_a_third_of_the_time_is_data_bound_and_a_tenth_too_close_to_call():
    one = judge_too_few_workers(starve(0.3, [COMPUTES] * 2))
    assert (one.share, one.needed_ratio) == (pytest.approx(0.3), pytest.approx(1 / 0.7))
    assert one.share_low >= 0.1
    frames = line_up([make_second(0.1, [COMPUTES] * 2)] * 14 + [make_second(0.2, [COMPUTES] * 2)] * 6)
    assert doubts(judge_too_few_workers(see(frames)), "too close")


def test_pools_of_the_workers_a_lost_batch_and_workers_that_cannot_be_read_accuse_no_loader():
    pools = [{**COMPUTES, "busy_threads": 4, "runnable": 4.0}] * 2
    scene = starve(0.9, pools, cpu={**FULL, "oversubscription": 4.0, "run_delay_ratio": 0.75})
    pools_fight, slow = judge_oversubscription(scene), suspects(scene)["cpu-transform"]
    assert find_explained((key_of(pools_fight), key_of(slow))) == {key_of(slow)}
    scene = starve(1.0, [IDLES] * 2)
    assert suspects(scene) == {}
    assert "lost" in judge_too_few_workers(scene).text
    hidden = {"waits_for": GONE, "runnable": GONE, "waiting": GONE}
    scene = starve(0.7, [hidden] * 2, cpu={"runnable": 2.0, "used_cores": 2.0})
    assert suspects(scene) == {}
    assert isinstance(judge_one_slow_worker(scene), Unsure)
    assert isinstance(judge_uneven_workers(scene), Unsure)


def test_free_cores_decide_between_more_workers_and_cheaper_transforms():
    few = judge_too_few_workers(starve(0.6, [COMPUTES] * 2))
    assert Need.CORES_FREE in few.observed
    assert Need.WORKERS_CPU_BOUND in few.observed
    full = suspects(starve(0.6, [COMPUTES] * 2, cpu=FULL))["cpu-transform"]
    assert Need.CORES_FULL in full.observed
    unread = starve(0.6, [COMPUTES] * 2, cpu={"budget_cores": GONE})
    assert set(suspects(unread)) == {"cpu-transform"}
    assert not suspects(unread)["cpu-transform"].observed & {Need.CORES_FREE, Need.CORES_FULL}
    assert isinstance(judge_too_few_workers(unread), Unsure)


def test_the_slow_worker_is_named_its_backlog_counts_and_two_are_not_one():
    one = judge_one_slow_worker(slow_one(COMPUTES))
    assert one.pid == 5001
    assert "worker 1" in one.summary
    assert Origin.PIPES in one.origins
    assert Need.ONE_WORKER_SLOW in one.observed
    assert Need.STOPPED in judge_one_slow_worker(slow_one({**IDLES, "state": "T"})).observed
    assert isinstance(judge_one_slow_worker(starve(0.7, [COMPUTES, COMPUTES, IDLES])), Cleared)
    assert isinstance(judge_one_slow_worker(starve(0.7, [COMPUTES])), Cleared)
    beside_many = starve(0.97, [COMPUTES] + [IDLES] * 31)
    assert isinstance(judge_one_slow_worker(beside_many), Suspicion), "no lost batch"


def lives(life_s, births, wait, late_wait=None):
    """See workers that live so long; they wait ``wait`` in the first half of it, then ``late_wait``."""
    ages_s = [i % life_s + 0.3 for i in range(50)]
    waits = [wait if late_wait is None or age_s < life_s / 2 else late_wait for age_s in ages_s]
    frames = line_up([make_second(one, [COMPUTES] * 2, loader={"births": births}) for one in waits])
    for i, age_s in enumerate(ages_s):
        rank, *workers = frames[i].processes
        workers = [replace(one, started=frames[i].taken - timedelta(seconds=age_s)) for one in workers]
        frames[i] = replace(frames[i], processes=(rank, *workers))
    return see(frames)


def test_workers_that_are_born_again_and_again_are_the_cause():
    for scene in (lives(1, 40, 0.6), lives(4, 24, 0.9, 0.1), lives(12, 10, 0.9, 0.2)):
        found = suspects(scene)
        assert set(found) == {"respawn"}
        assert Need.RESPAWN_SEEN in found["respawn"].observed
    # One generation, a wait that goes on late in their life, births without a wait.
    for scene in (lives(40, 2, 0.6), lives(12, 10, 0.6), lives(1, 40, 0.0)):
        assert isinstance(judge_respawn(scene), Cleared)


def test_the_onset_is_found_where_the_window_reaches_back_to_it():
    seconds = [make_second(0.0, [IDLES] * 2)] * 30 + [make_second(0.8, [SLEEPS] * 2)] * 25
    frames = line_up(seconds)
    one = judge_too_few_workers(see(frames))
    assert abs(one.since_ns - frames[30].taken_ns) <= 2e9
    assert judge_too_few_workers(see(frames[-20:])).since_ns is NOT_APPLICABLE


def two_loaders(wait, first, second, *, old_in_use=False, **more):
    """See a rank with two persistent loaders: the older one has the workers ``first``."""
    one = make_second(wait, [*first, *second], **more)
    whole = one.loader[0]
    parts = (whole.queues[: len(first)], whole.queues[len(first) :])
    loaders = tuple(
        replace(
            whole,
            loader=number,
            workers=len(queues),
            queues=queues,
            empty_ratio=wait if (number == 0) is old_in_use else 0.0,
            ready_bytes=0 if (number == 0) is old_in_use else 4000,
        )
        for number, queues in enumerate(parts)
    )
    return see(line_up([replace(one, loader=loaders)] * 20))


BUSY = {**COMPUTES, "runnable": 0.9}
TWO = {
    "a validation loader rests, cores are free": ([IDLES] * 8, [BUSY] * 8, 32.0, "too-few-workers"),
    "a validation loader rests, no core is free": ([IDLES] * 8, [BUSY] * 8, 8.0, "cpu-transform"),
    "one worker each": ([IDLES], [BUSY], 8.0, "too-few-workers"),
    "most workers rest": ([IDLES] * 8, [BUSY] * 4, 32.0, "too-few-workers"),
}


@pytest.mark.parametrize(("rests", "works", "cores", "cause"), TWO.values(), ids=TWO)
@pytest.mark.parametrize("old_in_use", [False, True])
def test_a_loader_that_rests_is_no_part_of_the_one_in_use(rests, works, cores, cause, old_in_use):
    cpu = {"budget_cores": cores, "host_cores": int(cores)}
    order = (works, rests) if old_in_use else (rests, works)
    scene = two_loaders(0.6, *order, old_in_use=old_in_use, cpu=cpu)
    found = suspects(scene)
    assert set(found) == {cause}
    assert Origin.PIPES in found[cause].origins, "the queue of the loader in use"
    assert not found[cause].against, "batches that lie ready in the other one say nothing"
    assert gather_facts(scene, found[cause]).workers_per_rank == len(works)


def test_the_workers_of_the_loader_in_use_are_counted_and_where_both_rest_queues_tell_it():
    one = judge_too_few_workers(two_loaders(0.6, [IDLES] * 8, [BUSY] * 8, cpu={"budget_cores": 32.0}))
    assert "of the loader in use, its 8 workers always have work" in one.summary
    one = make_second(0.0, [IDLES] * 2)
    whole = one.loader[0]
    first, second = (
        replace(whole, loader=number, queues=(replace(whole.queues[number], pending_bytes=0),)) for number in (0, 1)
    )
    frames = [replace(one, loader=(first, replace(second, ready_bytes=100 * (number % 3)))) for number in range(20)]
    assert see(line_up(frames)).ranks[0].loader.loader == 1


def hand_on(kinds, *, waits=0.6, empty=1.0, **more):
    """See a rank whose own thread iterates the loader: its main thread waits at a queue of its own."""
    second = make_second(0.0, kinds, loader={"empty_ratio": empty}, rank={"runnable": 1 - waits}, **more)
    looks = (make_looks(4211, 10, lock=round(10 * waits)),)
    phases = make_phases({Phase.OTHER: waits, Phase.FORWARD: 1 - waits}, plain_waits_ratio=waits)
    return see(line_up([replace(second, main_threads=looks)] * 20), {4211: phases})


def test_a_wait_for_a_thread_that_iterates_the_loader_is_one_for_data_and_without_stacks_not_ruled_out():
    found = suspects(hand_on([COMPUTES] * 4))
    assert set(found) == {"too-few-workers"}
    one = found["too-few-workers"]
    assert one.share == pytest.approx(0.6)
    assert one.origins >= {Origin.STACKS, Origin.PIPES, Origin.PROC}
    assert one.since_ns is NOT_APPLICABLE, "no look at the main thread dates it"

    def look(kinds, **loader):
        second = make_second(0.0, kinds, loader=loader, rank={"runnable": 0.4})
        return see(line_up([replace(second, main_threads=(make_looks(4211, 10, lock=6),))] * 20))

    assert doubts(judge_too_few_workers(look([COMPUTES] * 4, empty_ratio=1.0)), "the loader is behind")
    assert isinstance(judge_too_few_workers(look([COMPUTES] * 4, empty_ratio=0.0)), Cleared)
    assert isinstance(judge_too_few_workers(look([IDLES] * 4, empty_ratio=1.0)), Cleared)


NOT_HANDED = {
    "the loader keeps up": hand_on([IDLES] * 4, empty=0.0),
    "its workers rest at times": hand_on([COMPUTES] * 2 + [IDLES] * 2),
    "batches lie ready": hand_on([COMPUTES] * 4, empty=0.1),
    "the wait is short": hand_on([COMPUTES] * 4, waits=0.1),
    "no workers": hand_on([]),
}


@pytest.mark.parametrize("scene", NOT_HANDED.values(), ids=NOT_HANDED)
def test_a_wait_at_a_queue_beside_a_loader_that_is_not_behind_is_none_for_data(scene):
    assert suspects(scene) == {}


def test_workers_without_data_are_told_by_each_of_them():
    one = judge_uneven_workers(starve(0.75, [COMPUTES] * 2 + [IDLES] * 6))
    assert "only 2 of its 8 workers have work" in one.summary
    assert Need.FEW_WORKERS_FED in one.observed
    at_times = line_up([make_second(0.75, [COMPUTES] * 2 + [IDLES, [SLEEPS, IDLES][i % 2]]) for i in range(20)])
    assert isinstance(judge_uneven_workers(see(at_times)), Cleared)
    assert isinstance(judge_uneven_workers(starve(0.75, [COMPUTES] * 3)), Cleared)
    assert isinstance(judge_uneven_workers(starve(0.75, [COMPUTES, IDLES, IDLES])), Cleared), "one is a slow one"
    lumped = starve(0.75, [COMPUTES] * 2 + [IDLES] * 6, loader={"ready_bytes": GONE})
    assert isinstance(judge_uneven_workers(lumped), Unsure), "those that rest may be another loader's"


KILLED = make_end(pid=5001, role=Role.WORKER, worker=1, how="SIGKILL; OOM killer (kernel log)")


GONE_WORKERS = {
    "one of four": ([COMPUTES], 4, "uneven-workers"),
    "one of four, on a full machine": ([{**COMPUTES, "waiting": 0.6}], 4, "uneven-workers"),
    "one of four, which sleeps": ([SLEEPS], 4, "uneven-workers"),
    "two of four, which read": ([DISK] * 2, 4, "uneven-workers"),
    "none has ended": ([COMPUTES], 1, "too-few-workers"),
    "it was not counted": ([COMPUTES], GONE, "too-few-workers"),
}


@pytest.mark.parametrize(("kinds", "made", "cause"), GONE_WORKERS.values(), ids=GONE_WORKERS)
def test_workers_that_have_ended_had_no_data_and_more_of_them_would_have_none(kinds, made, cause):
    scene = starve(0.8, kinds, loader={"made": made})
    ((found, one),) = suspects(scene).items()
    assert found == cause
    if cause == "uneven-workers":
        assert f"only {len(kinds)} of its 4 workers" in one.summary
        assert [each.remedy.id for each in advise(scene, one)] == ["more-shards"]


def test_workers_that_end_with_their_epoch_or_while_none_is_waited_for_are_none_without_data():
    ending = [make_second(0.8, [COMPUTES] * 2, loader={"made": 2})] * 15
    ending += [make_second(0.8, [COMPUTES], loader={"made": 2})] * 3
    assert "uneven-workers" not in suspects(see(line_up(ending)))
    assert not isinstance(judge_uneven_workers(starve(0.8, [IDLES], loader={"made": 4})), Suspicion)
    assert isinstance(judge_uneven_workers(starve(0.02, [COMPUTES], loader={"made": 4})), Cleared)


def ending(*ends, every=5):
    """See 40 s of a starved rank whose workers end like ``ends``, in turn, every so many seconds."""
    frames = [make_second(0.6, [COMPUTES] * 2, loader={"births": 12})] * 40
    told = [
        replace(frame, ends=(ends[i // every % len(ends)],)) if ends and i % every == 0 else frame
        for i, frame in enumerate(frames)
    ]
    return see(line_up(told))


def test_workers_that_are_killed_again_and_again_are_named_by_their_signals_and_are_no_respawn():
    scene = ending(KILLED)
    found = judge_killed_workers(scene)
    assert (found.kind, found.cause) == (Kind.DATA_BOUND, "killed-workers")
    assert found.summary == "workers are killed again and again: 8 by SIGKILL in the last minute"
    assert (found.rank, found.pid) == (0, 5001)
    assert found.evidence[1].text == "worker 1 (5001): SIGKILL; OOM killer (kernel log)"
    assert found.observed == {Need.WORKER_DIED}
    assert isinstance(judge_respawn(scene), Cleared)
    assert (Kind.DATA_BOUND, "respawn") in find_explained([key_of(found), (Kind.DATA_BOUND, "respawn")])
    crashed = replace(KILLED, signal="SIGSEGV", how="SIGSEGV (core dumped)")
    assert "6 by SIGKILL, 2 by SIGSEGV" in judge_killed_workers(ending(KILLED, KILLED, KILLED, crashed)).summary


def test_one_death_ends_of_epochs_and_polite_ends_accuse_nobody():
    well = replace(KILLED, outcome=Outcome.WELL, signal=NOT_APPLICABLE, how="exit 0")
    asked = replace(KILLED, signal="SIGTERM", how="SIGTERM")
    unseen = replace(KILLED, outcome=Outcome.UNKNOWN, signal=NOT_APPLICABLE)
    rank = replace(KILLED, role=Role.RANK)
    for ends in ((), (well,), (asked,), (unseen,), (rank,)):
        assert isinstance(judge_killed_workers(ending(*ends)), Cleared)
    assert isinstance(judge_killed_workers(ending(KILLED, every=40)), Cleared)


# workers that wait for each other at a lock, and those that only look like it

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


def decode(others):
    """Do as a worker whose main thread waits in turns with the threads of a decoder, on a full machine."""
    groups = (ThreadGroup(ThreadKind.MAIN, 1, 0.42), ThreadGroup(ThreadKind.OTHER, 18, others))
    return {**FUTEX, "runnable": 0.42 + others, "waiting": 0.4, "thread_groups": groups}


def frames_of(*calls):
    return tuple(StackFrame(function, file, 30) for function, file in calls)


LOOP = frames_of(("<module>", "/home/u/train.py"), ("_worker_loop", f"{TORCH}/worker.py"))
AT_LINE = (*LOOP, *frames_of(("fetch", f"{TORCH}/fetch.py"), ("__getitem__", "/home/u/data.py")))


def below(*calls, stack=AT_LINE):
    return (*stack, *frames_of(*calls))


RETRY = ("sleep_for_retry", f"{PACKAGES}/urllib3/util/retry.py")
WAIT = ("wait", f"{LIB}/threading.py")
FUTURES = f"{LIB}/concurrent/futures/_base.py"
PUT = ("put", f"{LIB}/multiprocessing/queues.py")
ENTER = ("__enter__", f"{LIB}/multiprocessing/synchronize.py")
ACQUIRE = below(ENTER)
RESULT = below(("result_iterator", FUTURES), ("result", FUTURES), WAIT)
PLACES = {
    "with multiprocessing.Lock()": (ACQUIRE, StackEnd.LOCK),
    "a shared value": (below(("get_obj", f"{LIB}/multiprocessing/sharedctypes.py"), ENTER), StackEnd.LOCK),
    "filelock": (below(("acquire", f"{PACKAGES}/filelock/_api.py")), StackEnd.LOCK),
    "Lock.acquire, which is C": (AT_LINE, StackEnd.LINE),
    "executor.map": (RESULT, StackEnd.OWN),
    "as_completed": (below(("as_completed", FUTURES), WAIT), StackEnd.OWN),
    "futures.wait": (below(("wait", FUTURES), WAIT), StackEnd.OWN),
    "boto3": (below(("result", f"{PACKAGES}/s3transfer/futures.py"), WAIT), StackEnd.OWN),
    "multiprocessing.Pool": (below(("get", f"{LIB}/multiprocessing/pool.py"), WAIT), StackEnd.OWN),
    "an event of processes": (below(("wait", f"{LIB}/multiprocessing/synchronize.py")), StackEnd.OWN),
    "a queue of the data set": (below(("get", f"{LIB}/multiprocessing/queues.py"), ENTER), StackEnd.OWN),
    "a batch for a full queue": (below(PUT, stack=LOOP), StackEnd.HANDS),
    "the lock of a SimpleQueue": (below(PUT, ENTER, stack=LOOP), StackEnd.HANDS),
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
        taken = replace(make_slice(pid, NOT_APPLICABLE, dict(counted)), ended=one.taken, ended_ns=one.taken_ns)
        out.append(replace(one, stacks=(taken,) if counted and number % 4 == 3 else ()))
    return see(out)


def stated(scene):
    """Return the one cause that is suspected and not explained by another one, and how sure it is."""
    ((cause, one),) = suspects(scene).items()
    return cause, rate_confidence(one, 60.0)


HIGH, MEDIUM, LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
LOCK, FEW = "worker-lock", "too-few-workers"
ONE_SLEEPS = [FUTEX] * 3 + [SLEEPS]
THREADS = ((RESULT, 12), (AT_LINE, 8))
HELD = ((ACQUIRE, 15), (AT_LINE, 5))
HALF = ((ACQUIRE, 10), (AT_LINE, 10))
TAKES = below(("get", f"{LIB}/queue.py"), WAIT)
POLLS = PLACES["filelock"][0]
NO_WORK = below(("get", f"{LIB}/multiprocessing/queues.py"), stack=LOOP)
CARDS = {"gpus": (make_gpu(sm_pct=30.0, pids=(4211, 5000, 5001)),)}
LOCK_CASES = {
    # A: what has the word of a lock
    "a pool of threads": (see_workers([FUTEX] * 4, (RESULT, 20)), (FEW, HIGH)),
    "a pool of threads that reads": (see_workers([READS] * 4), (FEW, HIGH)),
    "a pool of threads that computes": (see_workers([POOL_COMPUTES] * 4), (FEW, HIGH)),
    "a pool of threads, lines of decoding": (see_workers(ONE_SLEEPS, *THREADS), (FEW, HIGH)),
    "the threads of a decoder": (see_workers([decode(0.12)] * 2, (AT_LINE, 20)), (FEW, HIGH)),
    "no threads of a decoder": (see_workers([decode(0.03)] * 2, (AT_LINE, 20)), (LOCK, LOW)),
    "a queue of the data set's own": (see_workers([FUTEX] * 4, (TAKES, 20)), (FEW, HIGH)),
    "no stacks": (see_workers(ONE_SLEEPS), (LOCK, LOW)),
    "no stacks, with a time-out": (see_workers([TIMED] * 4), (LOCK, LOW)),
    "a library": (see_workers([TIMED] * 4, (PLACES["grpc"][0], 20)), (LOCK, LOW)),
    "a queue of C: nobody has the lock": (see_workers([FUTEX] * 4, (AT_LINE, 20)), (LOCK, LOW)),
    # C: two workers
    "one of two has it and sleeps": (see_workers([FUTEX, SLEEPS], *HALF), (LOCK, HIGH)),
    "one of two has it and computes": (see_workers([FUTEX, COMPUTES], *HALF), (LOCK, HIGH)),
    "one of two has it and reads": (see_workers([FUTEX, DISK], *HALF), (LOCK, HIGH)),
    "of two, without stacks": (see_workers([FUTEX, SLEEPS]), (LOCK, LOW)),
    "of two that compute in turns, without stacks": (see_workers([FUTEX, COMPUTES]), (LOCK, LOW)),
    "two pools of threads": (see_workers([FUTEX, FUTEX], *THREADS), (FEW, HIGH)),
    "on cards, whose driver may have it": (see_workers(ONE_SLEEPS, (AT_LINE, 20), frame=CARDS), (LOCK, LOW)),
    "two in lines of C": (see_workers([FUTEX, SLEEPS], (AT_LINE, 20)), (LOCK, LOW)),
    "one worker": (see_workers([FUTEX]), (FEW, MEDIUM)),
    "one worker at the lock of another rank's": (see_workers([FUTEX], (ACQUIRE, 20)), (LOCK, HIGH)),
    "half of eight out of it at once": (see_workers([FUTEX] * 4 + [SLEEPS] * 4, (AT_LINE, 20)), (LOCK, LOW)),
    "three samples of ten of two": (see_workers([COMPUTES] * 2, (ACQUIRE, 3), (AT_LINE, 7)), (FEW, HIGH)),
    # D: a lock
    "a lock of four": (see_workers(ONE_SLEEPS, *HELD), (LOCK, HIGH)),
    "a lock of four, once they have work": (see_workers(ONE_SLEEPS, (NO_WORK, 60), *HELD), (LOCK, HIGH)),
    "a lock of four in C": (see_workers(ONE_SLEEPS, (AT_LINE, 20)), (LOCK, HIGH)),
    "who has it computes": (see_workers([FUTEX] * 3 + [COMPUTES], *HELD), (LOCK, HIGH)),
    "who has it reads": (see_workers([FUTEX] * 3 + [DISK], *HELD), (LOCK, HIGH)),
    "who has it reads, in C": (see_workers([FUTEX] * 3 + [DISK], (AT_LINE, 20)), (LOCK, HIGH)),
    "a lock on a file": (see_workers([FLOCK] * 3 + [SLEEPS]), (LOCK, HIGH)),
    "a lock on a file that is polled": (see_workers([SLEEPS] * 4, (POLLS, 15), (AT_LINE, 5)), (LOCK, HIGH)),
}


@pytest.mark.parametrize(("scene", "expected"), LOCK_CASES.values(), ids=LOCK_CASES)
def test_a_lock_is_accused_where_something_shows_it(scene, expected):
    assert stated(scene) == expected


@pytest.mark.parametrize("kind", [FUTEX, TIMED])
@pytest.mark.parametrize("place", ["a batch for a full queue", "the lock of a SimpleQueue"])
def test_a_worker_that_hands_over_its_batch_or_has_no_work_is_at_no_lock(kind, place):
    scene = see_workers([kind] * 4, (PLACES[place][0], 20))
    assert clears(judge_worker_lock(scene), "hand over")
    assert isinstance(judge_too_few_workers(scene), Unsure)
    assert isinstance(judge_worker_lock(see_workers([DISK] * 4, (NO_WORK, 20))), Cleared)
    one_idles = judge_worker_lock(see_workers([FUTEX] * 3 + [IDLES], (AT_LINE, 20)))
    assert rate_confidence(one_idles, 60.0) is LOW, "it has no lock either"


WAITS_LONG = {**SLEEPS, "waits_for": "lock with a time-out (futex)"}
RETRIES = {
    "urllib3, below requests": (SLEEPS, below(("send", f"{PACKAGES}/requests/adapters.py"), RETRY)),
    "urllib3, vendored": (SLEEPS, below(("sleep", f"{PACKAGES}/pip/_vendor/urllib3/util/retry.py"))),
    "botocore": (SLEEPS, below(("_needs_retry", f"{PACKAGES}/botocore/endpoint.py"))),
    "the hub's client": (SLEEPS, below(("_http_backoff_base", f"{PACKAGES}/huggingface_hub/utils/_http.py"))),
    "tenacity": (SLEEPS, below(("sleep", f"{PACKAGES}/tenacity/nap.py"))),
    "tenacity, by an event": (WAITS_LONG, below(("sleep", f"{PACKAGES}/tenacity/nap.py"), WAIT)),
    "backoff": (SLEEPS, below(("retry", f"{PACKAGES}/backoff/_sync.py"))),
}


@pytest.mark.parametrize(("kind", "frames"), RETRIES.values(), ids=RETRIES)
def test_workers_asleep_before_a_retry_wait_for_a_store_that_refuses_and_more_of_them_are_refused_too(kind, frames):
    scene = see_workers([kind] * 4, (frames, 18), (AT_LINE, 2))
    ((cause, one),) = suspects(scene).items()
    assert (cause, rate_confidence(one, 60.0)) == ("network-store", HIGH)
    chosen = [each.remedy for each in advise(scene, one)]
    assert chosen[0].id == "fewer-requests"
    assert not any(each.adds_workers for each in chosen)


PAUSES = {
    "a line of the program": AT_LINE,
    "a file that is called like a client's": below(("sleep", "/home/u/urllib3/util/retry.py")),
}


@pytest.mark.parametrize("frames", PAUSES.values(), ids=PAUSES)
def test_workers_that_sleep_on_purpose_are_refused_by_somebody_no_surer_than_medium(frames):
    scene = see_workers([SLEEPS] * 4, (frames, 20))
    ((cause, one),) = suspects(scene).items()
    assert (cause, rate_confidence(one, 60.0)) == ("network-store", MEDIUM)
    assert "sleep in a line of the program, as before they ask again" in one.summary
    chosen = [each.remedy for each in advise(scene, one)]
    assert [each.id for each in chosen[:2]] == ["fewer-requests", "look-at-sleepers"]
    assert not any(each.adds_workers for each in chosen)


@pytest.mark.parametrize(
    ("kinds", "frames"),
    [
        ([SLEEPS] * 4, below(("send", f"{PACKAGES}/requests/adapters.py"))),
        ([SLEEPS, *[IDLES] * 3], AT_LINE),
        ([TIMED] * 4, AT_LINE),  # an event, for anything
        ([{**POOL_COMPUTES, "waits_for": "sleep"}] * 4, AT_LINE),  # for threads of its own
        ([COMPUTES] * 4, AT_LINE),
        ([COMPUTES] * 4, below(("retry", f"{PACKAGES}/backoff/_sync.py"))),
    ],
)
def test_no_other_sleep_and_no_other_wrapper_is_a_retry(kinds, frames):
    assert "network-store" not in suspects(see_workers(kinds, (frames, 20)))


@pytest.mark.parametrize("waits_for", ["lock or queue (futex)", "unix socket", "pipe read", "poll", "sleep"])
def test_a_worker_whose_other_threads_run_computes_whatever_its_main_thread_waits_for(waits_for):
    groups = (ThreadGroup(ThreadKind.MAIN, 1, 0.05), ThreadGroup(ThreadKind.OTHER, 16, 1.3))
    kind = {**SLEEPS, "waits_for": waits_for, "runnable": 1.35, "thread_groups": groups}
    assert set(suspects(see_workers([kind] * 2, (AT_LINE, 20), cpu=FULL))) == {"cpu-transform"}
    assert set(suspects(see_workers([kind] * 2, (AT_LINE, 20)))) == {"too-few-workers"}


def test_what_is_shown_of_a_lock_or_of_threads_is_said_and_proven_and_what_is_open_left_open():
    one = judge_too_few_workers(see_workers([FUTEX] * 4, (RESULT, 20)))
    assert "its 4 workers always have work and wait for threads of their own," in one.summary
    assert Need.WORKERS_ASLEEP in one.observed
    scene = see_workers([FUTEX] * 4)
    one = judge_worker_lock(scene)
    first = advise(scene, one)[0]
    assert "for a lock, or for threads of their own" in one.summary
    assert one.observed >= {Need.WORKERS_IN_FUTEX}
    assert (first.remedy.id, first.certain) == ("lock-or-threads", True)
    scene = see_workers(ONE_SLEEPS, *HELD)
    one = judge_worker_lock(scene)
    first = advise(scene, one)[0]
    assert one.summary.endswith("its 4 workers wait 75 % of their time for a lock")
    assert [row.value for row in one.evidence if row.name == "their stacks at a lock"] == [75.0]
    assert (first.remedy.id, first.certain) == ("free-the-lock", True)
    alone = judge_worker_lock(see_workers([FUTEX], (ACQUIRE, 20)))
    assert alone.summary.endswith("of its time for a lock of another process")
