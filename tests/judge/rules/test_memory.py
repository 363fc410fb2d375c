"""Memory of the host and of cards that runs out, on made-up Windows: growth, copies, swap, shared memory."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.frames import GIB, MIB, NOW, NOW_NS, make_frame, make_gpu, make_memory, make_process, make_worker
from tests.judging import SECOND, advise, clears, make_phases
from tests.paces import make_hook, with_hooks
from tests.starving import line_up
from tests.view.test_hook import make_settings
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.readings import pressure_origin
from tpmon.judge.features.snapshot import Scene, see
from tpmon.judge.finding import rate_confidence
from tpmon.judge.rules.card_faults import judge_gpu_memory
from tpmon.judge.rules.limits import RULES, judge_copy_on_write, judge_leak, judge_shm, judge_swap
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.stacks.profile import RankPhases
from tpmon.model.figures import Origin
from tpmon.model.frame import Frame
from tpmon.model.gpu import GpuProcess, GpuSample, MigInstance
from tpmon.model.hook import AllocatorFigures
from tpmon.model.host import SUMMED_ANON, ShmSample
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.text.job_words import say_value
from tpmon.model.verdict import Confidence, Kind

GONE = Missing("permission denied")
NO_GROUP = {"anon_source": SUMMED_ANON, "limit_bytes": NOT_APPLICABLE, "used_bytes": GONE}
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


def test_growth_that_reaches_the_limit_soon_is_a_leak_with_its_time_and_the_nearer_the_end_the_heavier():
    one = judge_leak(grow(15.0, limit_bytes=16 * GIB))
    assert (one.kind, one.cause) == (Kind.MEMORY_PRESSURE, "leak")
    assert "full in about 15 min" in one.summary
    assert Need.ANON_GROWS in one.observed
    assert one.pid == RANK.pid
    assert len(one.origins) == 2
    shown = {row.name: say_value(row) for row in one.evidence}["memory growth"]
    assert shown in one.summary, "one rate has one unit on the screen"
    # Anonymous memory and RSS are read from the same counters of the same processes.
    assert judge_leak(grow(15.0, **NO_GROUP)).origins == {Origin.PROC}
    far, near = judge_leak(grow(9.0)), judge_leak(grow(60.0))
    assert 0.2 <= far.weight < near.weight <= 1
    tight = judge_leak(grow(2.0, limit_bytes=3 * GIB))
    assert Need.MEMORY_LIMIT_NEAR in tight.observed


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
    first = advise(scene, one)[0]
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
    assert clears(beside, "grows, this job's processes do not")
    quiet = (make_worker(4221, 0, minor_faults_s=3.0), make_worker(4222, 1, minor_faults_s=2.0))
    copies = judge_copy_on_write(grow(15.0, rss_mb_s=0.1, workers=quiet, limit_bytes=16 * GIB))
    assert clears(copies, "the workers touch anew 5 pages/s, below 500 pages/s")


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
    # Batches that come and go are no leak, and hide none.
    (0.0, 60, {"noise_mb": 200.0, "anon_growth_bytes_s": 1.2 * MB}, False),
    (30.0, 60, {"noise_mb": 100.0}, True),
    (15.0, 60, {"workers": WORKERS}, True),
    (15.0, 60, {"workers": WORKERS, "rss_mb_s": 0.0, **NO_GROUP}, True),
    # Of a mapped data set RSS grows with each page that is touched, anonymous memory does not.
    (0.0, 60, {"workers": WORKERS, "rss_mb_s": 95.0, **NO_GROUP}, False),
]


@pytest.mark.parametrize(("mb_s", "seconds", "memory", "leak"), GROWTHS)
def test_a_leak_lasts_and_has_an_end_in_sight(mb_s, seconds, memory, leak):
    expected = {True: Suspicion, False: Cleared, None: Unsure}[leak]
    assert isinstance(judge_leak(grow(mb_s, seconds=seconds, **memory)), expected)


def test_a_cache_that_fills_and_stops_is_no_leak_and_a_healthy_job_has_no_memory_trouble():
    filling = grow(40.0, seconds=25)
    rest = [replace(filling.history[-1])] * 40
    assert isinstance(judge_leak(see(line_up([*filling.history, *rest]))), Cleared)
    scene = grow(0.0, workers=WORKERS)
    assert all(isinstance(rule(scene), Cleared) for rule in RULES)


def test_copies_grow_without_the_sum_of_rss_and_another_job_beside_many_workers_is_none():
    scene = grow(15.0, rss_mb_s=0.1, workers=WORKERS)
    one = judge_copy_on_write(scene)
    assert one.cause == "copy-on-write"
    assert Need.PAGES_COPIED in one.observed
    assert one.origins == {Origin.CGROUP, Origin.PROC}
    assert isinstance(judge_leak(scene), Cleared)
    # Every worker touches a few pages; what many of them touch together is still no growth like this.
    workers = tuple(make_worker(4221 + i, i, minor_faults_s=40.0) for i in range(16))
    answer = judge_copy_on_write(grow(60.0, rss_mb_s=0.0, workers=workers))
    assert clears(answer, "the workers touch 2.5M/s of the 57.2M/s by which memory grows")


@pytest.mark.parametrize(
    ("mb_s", "memory", "expected"),
    [
        (15.0, {"workers": ()}, Cleared),
        (1.5, {}, Cleared),
        (8.0, {"start": GIB, "limit_bytes": NOT_APPLICABLE}, Suspicion),
        (15.0, {"rss_mb_s": None}, Cleared),
        (15.0, {"rss_mb_s": None, "anon_bytes": GONE}, Unsure),
        # The sum of the processes tells no copies.
        (15.0, NO_GROUP, Unsure),
        # Three workers on a busy machine: 1,000 pages a second each, 12 MB/s together.
        (12.0, {"workers": [make_worker(4221 + i, i, minor_faults_s=1000.0) for i in range(3)]}, Suspicion),
    ],
)
def test_copies_need_workers_and_some_size(mb_s, memory, expected):
    scene = grow(mb_s, **({"rss_mb_s": 0.0, "workers": WORKERS} | memory))
    assert isinstance(judge_copy_on_write(scene), expected)


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


def test_swap_weighs_what_it_stalls_and_pressure_of_the_host_is_no_second_origin_beside_proc():
    one = judge_swap(held(swap_bytes=2 * GIB, major_faults_s=400.0, psi_some_pct=40.0))
    assert one.weight == pytest.approx(0.4)
    assert Need.SWAP_USED in one.observed
    assert one.origins == {Origin.CGROUP}
    swapped = {"swap_bytes": 2 << 30, "major_faults_s": 500.0, "psi_some_pct": 40.0}
    of_group = make_memory(**swapped, anon_source=SUMMED_ANON)
    of_host = replace(of_group, psi_of_host=True)
    assert [pressure_origin(one) for one in (of_group, of_host)] == [Origin.CGROUP, Origin.PROC]
    answers = [judge_swap(see(line_up([make_frame(memory=one)] * 14))) for one in (of_group, of_host)]
    assert [answer.origins for answer in answers] == [{Origin.PROC, Origin.CGROUP}, {Origin.PROC}]


SHM = [(48 * MIB, 64 * MIB, Suspicion), (20 * MIB, 64 * MIB, Cleared), (3 * GIB, 4 * GIB, Cleared), (0, 0, Unsure)]


@pytest.mark.parametrize(("used", "total", "expected"), SHM)
def test_a_small_mount_is_told_at_half(used, total, expected):
    assert isinstance(judge_shm(held(shm=ShmSample("/dev/shm", used, total))), expected)


def fill_shm(*sizes_gib, every_s=1.0, gap_after=None, gap_s=0.0):
    frames, at = [], 0.0
    for number, size in enumerate(sizes_gib):
        shm = ShmSample("/dev/shm", int(size * GIB), 4 * GIB)
        frames.append(make_frame(taken_ns=NOW_NS + round(at * SECOND), interval_s=every_s, memory=make_memory(shm=shm)))
        at += every_s + (gap_s if number == gap_after else 0.0)
    return see(frames)


def test_a_large_mount_is_told_when_two_steps_of_a_second_no_longer_fit():
    assert isinstance(judge_shm(fill_shm(2.0, 2.5, 3.0, 3.5)), Suspicion)
    assert isinstance(judge_shm(fill_shm(2.0, 2.5)), Cleared)
    assert isinstance(judge_shm(held(shm=GONE)), Unsure)
    # At -i 10 the mount fills as fast as a second ago, and has room for more than two seconds of it.
    one = judge_shm(fill_shm(2.0, 2.7, 3.4, every_s=1.0))
    told = {each.name: each.value for each in one.evidence}
    assert told["largest growth in a second"] == pytest.approx(0.7 * 1024, abs=1)
    assert isinstance(judge_shm(fill_shm(2.0, 2.7, 3.4, every_s=10.0)), Cleared)
    assert isinstance(judge_shm(fill_shm(2.0, 2.5, 2.6, every_s=0.5)), Cleared)
    assert isinstance(judge_shm(fill_shm(0.2, 0.2, 3.8, 3.8, gap_after=1, gap_s=4.0)), Cleared)
    # A full mount is no danger to a job that does not use it.
    full = ShmSample("/dev/shm", 60 * MIB, 64 * MIB)
    scene = see(line_up([make_frame(processes=(RANK,), memory=make_memory(shm=full))] * 12))
    assert isinstance(judge_shm(scene), Cleared)


# memory of cards

UNREAD = Missing("not supported")
TOTAL = 80 * GIB
OURS, THEIRS = 4211, 9001


def card(used: float, **fields: Any) -> GpuSample:
    return make_gpu(**({"memory_used_bytes": int(used), "memory_total_bytes": TOTAL} | fields))


def shared(ours: float, theirs: float, **fields: Any) -> GpuSample:
    processes = (GpuProcess(OURS, int(ours), 60.0, of_job=True), GpuProcess(THEIRS, int(theirs), 30.0, of_job=False))
    return card(ours + theirs, processes=processes, **fields)


def frame_of(sample: GpuSample, retries: int = 0, ooms: int = 0, *, steps: int = 2840, held: float = 0) -> Frame:
    """Build one second of a rank with a hook, whose allocator tells these counters."""
    figures = AllocatorFigures(int(held), 70 * GIB, 9 * GIB, 70 * GIB, 70 * GIB, retries, ooms, UNREAD)
    hook = make_hook(settings=make_settings(allocator=figures))
    hook = replace(hook, counts=replace(hook.counts, steps=steps))
    return with_hooks(make_frame(gpus=(sample,)), hook)


def over(seconds: int, frame_at: Callable[[int], Frame], phases: Sequence[RankPhases] = ()) -> Scene:
    return see(line_up([frame_at(i) for i in range(seconds)]), {one.pid: one for one in phases})


def growing(mb_s: float, *, start: float = 60 * GIB, seconds: int = 60, **fields: Any) -> Scene:
    """See a job without a hook whose memory on its card grows in pieces of 20 MiB."""
    used = [(start + i * mb_s * MB) // (20 * MIB) * 20 * MIB for i in range(seconds)]
    return over(seconds, lambda i: make_frame(gpus=(card(used[i]),), **fields))


def test_a_full_card_without_retries_is_never_the_verdict():
    full = over(60, lambda _: make_frame(gpus=(card(78 * GIB),)))
    assert isinstance(judge_gpu_memory(full), Unsure)
    assert isinstance(judge_gpu_memory(over(60, lambda _: make_frame(gpus=(card(60 * GIB),)))), Cleared)
    # The hook's counters, however high, prove nothing while they stand.
    stands = judge_gpu_memory(over(60, lambda _: frame_of(card(0.97 * TOTAL), retries=40, ooms=3)))
    assert isinstance(stands, Cleared)
    assert stands.text == "GPU memory (97 % of GPU 0, and its allocator finds room)"
    assert isinstance(judge_gpu_memory(over(60, lambda _: make_frame(gpus=()))), Cleared)


def test_retries_that_go_on_at_the_end_of_a_card_are_a_fault():
    scene = over(60, lambda i: frame_of(card(0.97 * TOTAL), retries=40 + i // 10, steps=2840 + i))
    one = judge_gpu_memory(scene)
    assert (one.kind, one.cause, one.card, one.pid) == (Kind.MEMORY_PRESSURE, "gpu", 0, OURS)
    assert one.summary == (
        "the allocator of the job gave back its cache to find room 5 times in 59 steps, GPU 0 is 97 % full"
    )
    assert rate_confidence(one, 10.0) is Confidence.HIGH
    told = {row.name: row.value for row in (*one.evidence, *one.shows)}
    assert told["allocator retries"] == 5
    assert told["free in pieces of the cache"] == 9 * 1024
    assert [(each.remedy.id, each.certain) for each in advise(scene, one)[:2]] == [
        ("expandable-segments", True),
        ("smaller-micro-batch", True),
    ]


@pytest.mark.parametrize(
    ("retries", "ooms", "fill", "expected"),
    [
        (1, 0, 0.97, Cleared),
        (2, 0, 0.97, Suspicion),
        (0, 1, 0.97, Suspicion),
        (2, 0, 0.91, Suspicion),
        (8, 0, 0.5, Unsure),
    ],
)
def test_one_retry_is_none_and_a_card_with_room_explains_no_retries(retries, ooms, fill, expected):
    scene = over(30, lambda i: frame_of(card(fill * TOTAL), retries * (i > 20), ooms * (i > 20)))
    assert isinstance(judge_gpu_memory(scene), expected)


def test_retries_empty_the_card_and_the_first_steps_have_them_anyway():
    # After a retry the cache is gone: how full it was before is what counts.
    emptied = over(40, lambda i: frame_of(card((0.97 if i < 39 else 0.6) * TOTAL), retries=i // 8))
    assert isinstance(judge_gpu_memory(emptied), Suspicion)
    young = over(40, lambda i: frame_of(card(0.97 * TOTAL), retries=i, steps=3))
    assert not isinstance(judge_gpu_memory(young), Suspicion)
    past = over(60, lambda i: frame_of(card(0.97 * TOTAL), retries=5))
    assert not isinstance(judge_gpu_memory(past), Suspicion)


def test_retries_name_the_memory_of_others_and_the_rank_whose_card_is_full():
    scene = over(30, lambda i: frame_of(shared(50 * GIB, 28 * GIB), retries=i // 5))
    one = judge_gpu_memory(scene)
    assert {row.name: row.value for row in one.shows}["memory of others on it"] == 28 * 1024

    def at(i):
        processes = (make_process(OURS, rank=0), make_process(4212, rank=1))
        gpus = (card(60 * GIB), make_gpu(1, pids=(4212,), memory_used_bytes=79 * GIB))
        figures = AllocatorFigures(GIB, GIB, 0, GIB, GIB, i // 5, 0, UNREAD)
        calm = make_hook(settings=make_settings(allocator=replace(figures, alloc_retries=0)))
        full = make_hook(4212, rank=1, settings=make_settings(allocator=figures))
        return with_hooks(make_frame(processes=processes, gpus=gpus), calm, full)

    one = judge_gpu_memory(over(30, at))
    assert (one.rank, one.pid, one.card) == (1, 4212, 1)
    assert one.summary.startswith("the allocator of rank 1 gave back its cache")


def test_memory_that_grows_to_the_end_of_the_card_is_a_leak_with_its_time():
    scene = growing(60.0)
    one = judge_gpu_memory(scene)
    assert (one.cause, one.origins) == ("gpu", {Origin.DRIVER})
    assert one.summary.startswith("the job's memory on GPU 0 grows by 5")
    assert one.summary.endswith("its 80.0G are full in about 5 min")
    assert Need.CARD_MEMORY_GROWS in one.observed
    assert rate_confidence(one, 60.0) is Confidence.MEDIUM
    first = advise(scene, one)[0]
    assert (first.remedy.id, first.certain) == ("detach-on-card", True)


@pytest.mark.parametrize(
    ("mb_s", "more", "expected"),
    [
        (60.0, {"seconds": 40}, Unsure),
        (2.0, {}, Cleared),
        (0.0, {}, Cleared),
        (60.0, {"start": GIB}, Cleared),
        (60.0, {"processes": (make_process(started=NOW - timedelta(seconds=100)),)}, Cleared),
    ],
)
def test_growth_that_is_short_slow_or_a_start_is_no_leak(mb_s, more, expected):
    assert isinstance(judge_gpu_memory(growing(mb_s, **more)), expected)


def test_a_cache_that_settles_or_grows_in_large_steps_is_no_leak():
    used = {
        "settles": lambda i: 76 - 12 * 0.93**i,
        "grows in large steps": lambda i: 60 + 2 * ((i + 7) // 15),
        "comes and goes": lambda i: 60 + 10 * (i % 7) / 7,
    }
    for name, gib_at in used.items():
        scene = over(60, lambda i, gib_at=gib_at: make_frame(gpus=(card(gib_at(i) * GIB),)))
        assert not isinstance(judge_gpu_memory(scene), Suspicion), name


def test_a_checkpoint_that_is_read_onto_the_card_is_no_leak():
    def loads(i, **fields):
        return make_frame(gpus=(card(60 * GIB + i * 60 * MB, **fields),))

    idle = over(60, lambda i: loads(i, sm_pct=1.0))
    assert isinstance(judge_gpu_memory(idle), Cleared)
    assert isinstance(judge_gpu_memory(over(60, lambda i: loads(i, sm_pct=UNREAD, sm_active_pct=UNREAD))), Unsure)
    stacks = [make_phases({Phase.LOAD: 0.9, Phase.FORWARD: 0.1})]
    assert isinstance(judge_gpu_memory(over(60, loads, stacks)), Cleared)
    trains = [make_phases({Phase.FORWARD: 0.5, Phase.BACKWARD: 0.4, Phase.DATA_WAIT: 0.1})]
    assert isinstance(judge_gpu_memory(over(60, loads, trains)), Suspicion)


def test_the_hook_tells_tensors_that_are_kept_from_a_cache_in_pieces():
    def at(held_mb_s):
        return over(
            60, lambda i: frame_of(card(60 * GIB + i * 60 * MB), steps=2840 + i, held=40 * GIB + i * held_mb_s * MB)
        )

    one = judge_gpu_memory(at(58.0))
    assert one.origins == {Origin.DRIVER, Origin.HOOK}
    cache = judge_gpu_memory(at(0.0))
    assert clears(cache, "the cache of the allocator grows, what it holds does not")
    early = over(60, lambda i: frame_of(card(60 * GIB + i * 60 * MB), steps=i // 10, held=i * 60 * MB))
    assert isinstance(judge_gpu_memory(early), Cleared)


def test_growth_of_others_on_a_shared_card_is_not_the_jobs():
    def at(ours, theirs, **fields):
        sample = [shared(30 * GIB + i * ours * MB, 30 * GIB + i * theirs * MB, **fields) for i in range(60)]
        train = [make_phases({Phase.FORWARD: 0.9, Phase.DATA_WAIT: 0.1})]
        return judge_gpu_memory(over(60, lambda i: make_frame(gpus=(sample[i],)), train))

    assert isinstance(at(0.0, 60.0), Cleared)
    own = at(60.0, 0.0)
    assert "memory of others on it" in {row.name for row in own.shows}
    # Nobody can say whose it is where the driver does not list the memory, or lists nobody.
    untold = [card(60 * GIB + i * 60 * MB, pids_are_visible_only=True) for i in range(60)]
    assert isinstance(judge_gpu_memory(over(60, lambda i: make_frame(gpus=(untold[i],)))), Unsure)
    both = (GpuProcess(OURS, UNREAD, 60.0, of_job=True), GpuProcess(THEIRS, UNREAD, 30.0, of_job=False))
    unlisted = [card(60 * GIB + i * 60 * MB, processes=both) for i in range(60)]
    assert isinstance(judge_gpu_memory(over(60, lambda i: make_frame(gpus=(unlisted[i],)))), Unsure)


def sliced(used: float, other: float) -> GpuSample:
    """Build a card in two slices; the job is on the first, of 40 GiB."""
    slices = (
        MigInstance("MIG-1", 1, int(used), 40 * GIB, 90.0, (OURS,)),
        MigInstance("MIG-2", 2, int(other), 40 * GIB, 90.0, (THEIRS,)),
    )
    return card(used + other, mig=True, mig_instances=slices, sm_pct=UNREAD)


def test_a_slice_is_judged_by_its_own_memory():
    neighbour = over(60, lambda i: make_frame(gpus=(sliced(20 * GIB, 20 * GIB + i * 60 * MB),)))
    assert isinstance(judge_gpu_memory(neighbour), Cleared)
    own = judge_gpu_memory(over(60, lambda i: make_frame(gpus=(sliced(30 * GIB + i * 60 * MB, GIB),))))
    assert "its 40.0G are full in about 2 min" in own.summary
    retries = over(30, lambda i: frame_of(sliced(39 * GIB, GIB), retries=i // 5))
    assert isinstance(judge_gpu_memory(retries), Suspicion)
    room = over(30, lambda i: frame_of(sliced(10 * GIB, 39 * GIB), retries=i // 5))
    assert isinstance(judge_gpu_memory(room), Unsure)
