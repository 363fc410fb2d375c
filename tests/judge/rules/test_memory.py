"""Memory that runs out, on made-up Windows: growth, copies, swap, shared memory."""

import random
from dataclasses import replace

import pytest

from tests.frames import GIB, MIB, NOW_NS, make_frame, make_memory, make_process, make_worker
from tests.judging import SECOND
from tests.starving import line_up
from tpmon.judge.advice.choose import choose
from tpmon.judge.advice.context import observe
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.readings import pressure_origin
from tpmon.judge.features.snapshot import see
from tpmon.judge.rules.memory import RULES, judge_copy_on_write, judge_leak, judge_shm, judge_swap
from tpmon.model.host import SUMMED_ANON, ShmSample
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.text.job_words import say_value
from tpmon.model.verdict import Kind, Origin

GONE = Missing("permission denied")
MB = 1e6
RANK = make_process()
WORKERS = (make_worker(4221, 0, minor_faults_s=5600.0), make_worker(4222, 1, minor_faults_s=5600.0))


def grow(mb_s, *, seconds=60, rss_mb_s=None, workers=(), noise_mb=0.0, start=2 * GIB, **memory):
    """See a job whose anonymous memory, working set and RSS grow by so many MB a second."""
    shake = random.Random(3)
    frames = []
    for i in range(seconds):
        grown = int(i * mb_s * MB + shake.uniform(0, noise_mb) * MB)
        rss = int(i * (mb_s if rss_mb_s is None else rss_mb_s) * MB)
        fields = {
            "anon_bytes": start + grown,
            "used_bytes": start + 600 * MIB + grown,
            "rss_bytes": start + rss,
            "anon_growth_bytes_s": mb_s * MB,
            **memory,
        }
        frames.append(make_frame(processes=(RANK, *workers), memory=make_memory(**fields)))
    return see(line_up(frames))


def test_growth_that_reaches_the_limit_soon_is_a_leak_with_its_time():
    one = judge_leak(grow(15.0, limit_bytes=16 * GIB))
    assert (one.kind, one.cause) == (Kind.MEMORY_PRESSURE, "leak")
    assert "full in about 15 min" in one.summary
    assert Need.ANON_GROWS in one.observed
    assert one.pid == RANK.pid
    assert len(one.origins) == 2
    shown = {row.name: say_value(row) for row in one.evidence}["memory growth"]
    assert shown in one.summary, "one rate has one unit on the screen"


def test_workers_that_grow_are_named_and_told_to_bound_their_caches():
    plain = grow(15.0, limit_bytes=16 * GIB, workers=WORKERS)
    frames = [
        replace(
            frame, processes=(RANK, WORKERS[0], replace(WORKERS[1], rss_bytes=WORKERS[1].rss_bytes + int(i * 15 * MB)))
        )
        for i, frame in enumerate(plain.history)
    ]
    scene = see(frames)
    one = judge_leak(scene)
    assert one.summary.startswith("memory of the loader workers grows by ")
    assert one.pid == WORKERS[1].pid
    assert Need.WORKERS_GROW in one.observed
    assert Need.ANON_GROWS not in one.observed
    first = choose(one.kind, one.cause, observe(scene, one), RunFacts())[0]
    assert (first.remedy.id, first.certain) == ("bounded-cache", True)
    assert Need.ANON_GROWS in judge_leak(plain).observed
    # Workers that map files grow too: where the rank explains what has no file, it is the rank.
    both = [
        replace(frame, processes=(replace(RANK, rss_bytes=RANK.rss_bytes + int(i * 12 * MB)), *frame.processes[1:]))
        for i, frame in enumerate(frames)
    ]
    assert Need.ANON_GROWS in judge_leak(see(both)).observed


def test_another_job_of_the_same_control_group_that_leaks_is_no_leak_of_this_one():
    beside = judge_leak(grow(15.0, rss_mb_s=0.1, limit_bytes=16 * GIB))
    assert type(beside) is Cleared
    assert "grows, this job's processes do not" in beside.text
    quiet = (make_worker(4221, 0, minor_faults_s=3.0), make_worker(4222, 1, minor_faults_s=2.0))
    copies = judge_copy_on_write(grow(15.0, rss_mb_s=0.1, workers=quiet, limit_bytes=16 * GIB))
    assert type(copies) is Cleared
    assert "touch 5 new pages a second" in copies.text


# MB/s, seconds of history, further readings, leak?
GROWTHS = [
    (61.0, 60, {}, True),
    (61.0, 40, {}, None),
    (0.5, 60, {}, False),
    (2.0, 60, {}, False),
    (2.0, 60, {"limit_bytes": 4 * GIB}, True),
    (2.0, 60, {"limit_bytes": 3 * GIB}, True),
    (15.0, 60, {"limit_bytes": NOT_APPLICABLE}, True),
    (15.0, 60, {"limit_bytes": GONE, "used_bytes": GONE}, True),
    (15.0, 60, {"anon_bytes": GONE}, None),
    (15.0, 60, {"anon_growth_bytes_s": 0.0}, False),
    (15.0, 60, {"host_available_bytes": GONE, "limit_bytes": GONE}, None),
]


@pytest.mark.parametrize(("mb_s", "seconds", "memory", "leak"), GROWTHS)
def test_a_leak_lasts_and_has_an_end_in_sight(mb_s, seconds, memory, leak):
    expected = {True: Suspicion, False: Cleared, None: Unsure}[leak]
    assert isinstance(judge_leak(grow(mb_s, seconds=seconds, **memory)), expected)


def test_the_nearer_the_end_the_heavier():
    far, near = judge_leak(grow(9.0)), judge_leak(grow(60.0))
    assert 0.2 <= far.weight < near.weight <= 1
    tight = judge_leak(grow(2.0, limit_bytes=3 * GIB))
    assert Need.MEMORY_LIMIT_NEAR in tight.observed


def test_a_cache_that_fills_and_stops_is_no_leak():
    filling = grow(40.0, seconds=25)
    rest = [replace(filling.history[-1])] * 40
    assert isinstance(judge_leak(see(line_up([*filling.history, *rest]))), Cleared)


def test_batches_that_come_and_go_are_no_leak():
    noisy = grow(0.0, noise_mb=200.0, anon_growth_bytes_s=1.2 * MB)
    assert isinstance(judge_leak(noisy), Cleared)


def test_a_leak_is_seen_through_batches_that_come_and_go():
    assert isinstance(judge_leak(grow(30.0, noise_mb=100.0)), Suspicion)


def test_copies_grow_without_the_sum_of_rss():
    scene = grow(15.0, rss_mb_s=0.1, workers=WORKERS)
    one = judge_copy_on_write(scene)
    assert one.cause == "copy-on-write"
    assert Need.PAGES_COPIED in one.observed
    assert one.origins == {Origin.CGROUP, Origin.PROC}
    assert isinstance(judge_leak(scene), Cleared)


def test_another_job_that_grows_beside_many_workers_is_no_copy_on_write():
    """Every worker touches a few pages; what many of them touch together is still no growth like this."""
    workers = tuple(make_worker(4221 + i, i, minor_faults_s=40.0) for i in range(16))
    answer = judge_copy_on_write(grow(60.0, rss_mb_s=0.0, workers=workers))
    assert type(answer) is Cleared
    assert "the workers touch 2.5M/s of the 57.2M/s by which memory grows" in answer.text


def test_copies_of_slow_workers_are_copies():
    """Three workers on a busy machine: 1,000 pages a second each, 12 MB/s together."""
    workers = tuple(make_worker(4221 + i, i, minor_faults_s=1000.0) for i in range(3))
    assert isinstance(judge_copy_on_write(grow(12.0, rss_mb_s=0.0, workers=workers)), Suspicion)


NO_GROUP = {"anon_source": SUMMED_ANON, "limit_bytes": NOT_APPLICABLE, "used_bytes": GONE}


def test_copies_are_not_told_by_the_sum_of_the_processes():
    summed = grow(15.0, rss_mb_s=0.0, workers=WORKERS, **NO_GROUP)
    assert isinstance(judge_copy_on_write(summed), Unsure)
    assert isinstance(judge_leak(summed), Suspicion)


def test_a_mapped_data_set_of_a_job_without_a_control_group_is_no_leak():
    """RSS grows with each page that is touched, anonymous memory does not."""
    mapped = grow(0.0, rss_mb_s=95.0, workers=WORKERS, **NO_GROUP)
    assert isinstance(judge_leak(mapped), Cleared)


def test_a_leak_of_a_job_without_a_control_group_has_one_source():
    """Anonymous memory and RSS are read from the same counters of the same processes."""
    assert judge_leak(grow(15.0, **NO_GROUP)).origins == {Origin.PROC}


def test_a_leak_beside_workers_is_a_leak():
    scene = grow(15.0, workers=WORKERS)
    assert isinstance(judge_copy_on_write(scene), Cleared)
    assert isinstance(judge_leak(scene), Suspicion)


def test_copies_need_workers_and_some_size():
    assert isinstance(judge_copy_on_write(grow(15.0, rss_mb_s=0.0)), Cleared)
    assert isinstance(judge_copy_on_write(grow(1.5, rss_mb_s=0.0, workers=WORKERS)), Cleared)
    much = grow(8.0, rss_mb_s=0.0, workers=WORKERS, start=GIB, limit_bytes=NOT_APPLICABLE)
    assert isinstance(judge_copy_on_write(much), Suspicion)
    assert isinstance(judge_copy_on_write(grow(15.0, workers=WORKERS, anon_bytes=GONE)), Unsure)


def held(**memory):
    return see(line_up([make_frame(memory=make_memory(**memory))] * 12))


SWAPS = [
    ({"swap_bytes": 0}, Cleared),
    ({"swap_bytes": 2 * GIB, "major_faults_s": 0.0}, Cleared),
    ({"swap_bytes": 2 * GIB, "major_faults_s": 400.0, "psi_some_pct": 40.0}, Suspicion),
    ({"swap_bytes": 2 * GIB, "major_faults_s": 400.0, "psi_some_pct": GONE}, Suspicion),
    ({"swap_bytes": 2 * GIB, "major_faults_s": 400.0, "psi_some_pct": 0.3}, Cleared),
    ({"swap_bytes": 2 * GIB, "major_faults_s": GONE}, Unsure),
    ({"swap_bytes": GONE}, Unsure),
]


@pytest.mark.parametrize(("memory", "expected"), SWAPS)
def test_swap_counts_when_it_is_touched(memory, expected):
    assert isinstance(judge_swap(held(**memory)), expected)


def test_swap_weighs_what_it_stalls():
    one = judge_swap(held(swap_bytes=2 * GIB, major_faults_s=400.0, psi_some_pct=40.0))
    assert one.weight == pytest.approx(0.4)
    assert Need.SWAP_USED in one.observed
    assert one.origins == {Origin.CGROUP}


SHM = [(48 * MIB, 64 * MIB, Suspicion), (20 * MIB, 64 * MIB, Cleared), (3 * GIB, 4 * GIB, Cleared), (0, 0, Unsure)]


@pytest.mark.parametrize(("used", "total", "expected"), SHM)
def test_a_small_mount_is_told_at_half(used, total, expected):
    assert isinstance(judge_shm(held(shm=ShmSample("/dev/shm", used, total))), expected)


def test_a_large_mount_is_told_when_two_steps_no_longer_fit():
    sizes = [2.0, 2.5, 3.0, 3.5]
    frames = [make_frame(memory=make_memory(shm=ShmSample("/dev/shm", int(size * GIB), 4 * GIB))) for size in sizes]
    assert isinstance(judge_shm(see(line_up(frames))), Suspicion)
    assert isinstance(judge_shm(see(line_up(frames[:2]))), Cleared)
    assert isinstance(judge_shm(held(shm=GONE)), Unsure)


def fill_shm(*sizes_gib, every_s=1.0, gap_after=None, gap_s=0.0):
    frames, at = [], 0.0
    for number, size in enumerate(sizes_gib):
        shm = ShmSample("/dev/shm", int(size * GIB), 4 * GIB)
        frames.append(make_frame(taken_ns=NOW_NS + round(at * SECOND), interval_s=every_s, memory=make_memory(shm=shm)))
        at += every_s + (gap_s if number == gap_after else 0.0)
    return see(frames)


def test_growth_between_readings_that_are_far_apart_is_told_for_a_second():
    """At -i 10 the mount fills as fast as a second ago, and has room for more than two seconds of it."""
    one = judge_shm(fill_shm(2.0, 2.7, 3.4, every_s=1.0))
    assert isinstance(one, Suspicion)
    told = {each.name: each.value for each in one.evidence}
    assert told["largest growth in a second"] == pytest.approx(0.7 * 1024, abs=1)
    assert isinstance(judge_shm(fill_shm(2.0, 2.7, 3.4, every_s=10.0)), Cleared)
    assert isinstance(judge_shm(fill_shm(2.0, 2.5, 2.6, every_s=0.5)), Cleared)


def test_growth_over_a_gap_is_left_out():
    assert isinstance(judge_shm(fill_shm(0.2, 0.2, 3.8, 3.8, gap_after=1, gap_s=4.0)), Cleared)


def test_a_full_mount_is_no_danger_to_a_job_that_does_not_use_it():
    full = ShmSample("/dev/shm", 60 * MIB, 64 * MIB)
    scene = see(line_up([make_frame(processes=(RANK,), memory=make_memory(shm=full))] * 12))
    assert isinstance(judge_shm(scene), Cleared)


def test_a_healthy_job_has_no_memory_trouble():
    scene = grow(0.0, workers=WORKERS)
    assert all(isinstance(rule(scene), Cleared) for rule in RULES)


def test_pressure_of_the_host_is_no_second_origin_beside_proc():
    swapped = {"swap_bytes": 2 << 30, "major_faults_s": 500.0, "psi_some_pct": 40.0}
    of_group = make_memory(**swapped, anon_source=SUMMED_ANON)
    of_host = replace(of_group, psi_of_host=True)
    assert [pressure_origin(one) for one in (of_group, of_host)] == [Origin.CGROUP, Origin.PROC]
    answers = [judge_swap(see(line_up([make_frame(memory=one)] * 14))) for one in (of_group, of_host)]
    assert [answer.origins for answer in answers] == [{Origin.PROC, Origin.CGROUP}, {Origin.PROC}]
