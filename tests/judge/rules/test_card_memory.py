"""Memory of cards: retries and growth are faults, a full card is none; whose memory it is must be known."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.frames import GIB, MIB, NOW, make_frame, make_gpu, make_process
from tests.judging import make_phases
from tests.paces import make_hook, with_hooks
from tests.starving import line_up
from tests.view.test_hook import make_settings
from tpmon.judge.advice.choose import choose
from tpmon.judge.advice.context import observe
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Cleared, Suspicion, Unsure
from tpmon.judge.features.snapshot import Scene, see
from tpmon.judge.finding import rate_confidence
from tpmon.judge.rules.card_faults import judge_gpu_memory
from tpmon.judge.stacks.profile import Phase, RankPhases
from tpmon.model.frame import Frame
from tpmon.model.gpu import GpuProcess, GpuSample, MigInstance
from tpmon.model.hook import AllocatorFigures
from tpmon.model.known import Missing
from tpmon.model.verdict import Confidence, Kind, Origin

UNREAD = Missing("not supported")
TOTAL = 80 * GIB
OURS, THEIRS = 4211, 9001
MB = 1_000_000


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


def growing(mb_s: float, *, start: float = 60 * GIB, seconds: int = 60, **fields: Any) -> Answer:
    """Answer of a job without a hook whose memory on its card grows in pieces of 20 MiB."""

    def at(i: int) -> Frame:
        return make_frame(gpus=(card((start + i * mb_s * MB) // (20 * MIB) * 20 * MIB),), **fields)

    return judge_gpu_memory(over(seconds, at))


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
    assert isinstance(one, Suspicion)
    assert (one.kind, one.cause, one.card, one.pid) == (Kind.MEMORY_PRESSURE, "gpu", 0, OURS)
    assert one.summary == (
        "the allocator of the job gave back its cache to find room 5 times in 59 steps, GPU 0 is 97 % full"
    )
    assert rate_confidence(one, 10.0) is Confidence.HIGH
    told = {row.name: row.value for row in one.evidence}
    assert told["allocator retries"] == 5
    assert told["free in pieces of the cache"] == 9 * 1024
    chosen = choose(one.kind, one.cause, observe(scene, one), RunFacts())
    assert [(each.remedy.id, each.certain) for each in chosen[:2]] == [
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


def test_retries_beside_memory_of_others_name_it():
    scene = over(30, lambda i: frame_of(shared(50 * GIB, 28 * GIB), retries=i // 5))
    one = judge_gpu_memory(scene)
    assert isinstance(one, Suspicion)
    assert {row.name: row.value for row in one.evidence}["memory of others on it"] == 28 * 1024


def test_memory_that_grows_to_the_end_of_the_card_is_a_leak_with_its_time():
    one = growing(60.0)
    assert isinstance(one, Suspicion)
    assert (one.cause, one.origins) == ("gpu", {Origin.DRIVER})
    assert one.summary.startswith("the job's memory on GPU 0 grows by 5")
    assert one.summary.endswith("its 80.0G are full in about 5 min")
    assert Need.CARD_MEMORY_GROWS in one.observed
    assert rate_confidence(one, 60.0) is Confidence.MEDIUM
    first = choose(one.kind, one.cause, one.observed | {Need.GPU_PRESENT}, RunFacts())[0]
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
    assert isinstance(growing(mb_s, **more), expected)


def test_a_cache_that_settles_or_grows_in_large_steps_is_no_leak():
    def settles(i):
        return make_frame(gpus=(card(76 * GIB - 12 * GIB * 0.93**i),))

    def steps(i):
        return make_frame(gpus=(card(60 * GIB + 2 * GIB * ((i + 7) // 15)),))

    def comes_and_goes(i):
        return make_frame(gpus=(card(60 * GIB + 10 * GIB * (i % 7) / 7),))

    for frame_at in (settles, steps, comes_and_goes):
        assert not isinstance(judge_gpu_memory(over(60, frame_at)), Suspicion), frame_at.__name__


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
    assert isinstance(one, Suspicion)
    assert one.origins == {Origin.DRIVER, Origin.HOOK}
    cache = judge_gpu_memory(at(0.0))
    assert isinstance(cache, Cleared)
    assert "the cache of the allocator grows, what it holds does not" in cache.text
    early = over(60, lambda i: frame_of(card(60 * GIB + i * 60 * MB), steps=i // 10, held=i * 60 * MB))
    assert isinstance(judge_gpu_memory(early), Cleared)


def test_growth_of_others_on_a_shared_card_is_not_the_jobs():
    def at(ours, theirs, **fields):
        sample = [shared(30 * GIB + i * ours * MB, 30 * GIB + i * theirs * MB, **fields) for i in range(60)]
        train = [make_phases({Phase.FORWARD: 0.9, Phase.DATA_WAIT: 0.1})]
        return judge_gpu_memory(over(60, lambda i: make_frame(gpus=(sample[i],)), train))

    assert isinstance(at(0.0, 60.0), Cleared)
    own = at(60.0, 0.0)
    assert isinstance(own, Suspicion)
    assert "memory of others on it" in {row.name for row in own.evidence}
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
    assert isinstance(own, Suspicion)
    assert "its 40.0G are full in about 2 min" in own.summary
    retries = over(30, lambda i: frame_of(sliced(39 * GIB, GIB), retries=i // 5))
    assert isinstance(judge_gpu_memory(retries), Suspicion)
    room = over(30, lambda i: frame_of(sliced(10 * GIB, 39 * GIB), retries=i // 5))
    assert isinstance(judge_gpu_memory(room), Unsure)


def test_the_rank_whose_card_is_full_is_named():
    def at(i):
        processes = (make_process(OURS, rank=0), make_process(4212, rank=1))
        gpus = (card(60 * GIB), make_gpu(1, pids=(4212,), memory_used_bytes=79 * GIB))
        figures = AllocatorFigures(GIB, GIB, 0, GIB, GIB, i // 5, 0, UNREAD)
        calm = make_hook(settings=make_settings(allocator=replace(figures, alloc_retries=0)))
        full = make_hook(4212, rank=1, settings=make_settings(allocator=figures))
        return with_hooks(make_frame(processes=processes, gpus=gpus), calm, full)

    one = judge_gpu_memory(over(30, at))
    assert isinstance(one, Suspicion)
    assert (one.rank, one.pid, one.card) == (1, 4212, 1)
    assert one.summary.startswith("the allocator of rank 1 gave back its cache")
