"""What the main thread of a starved rank tells, on made-up Windows, and how stacks and looks are combined."""

import random
from dataclasses import replace
from datetime import timedelta
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.any_windows import make_slice, with_slice
from tests.frames import make_frame, make_gpu, make_process, make_rank
from tests.judging import advise, doubts, make_looks, make_phases, read_phases
from tests.paces import make_hook, make_pace, with_hooks
from tests.starving import ALL, COMPUTES, IDLES, RANK, SLEEPS, causes, line_up, load_itself, make_second, starve
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.data_wait import combine_wait, measure_share
from tpmon.judge.features.snapshot import see
from tpmon.judge.features.starvation import Starved, find_starved, see_waits
from tpmon.judge.ranking import find_explained
from tpmon.judge.rules import loader as rules_loader
from tpmon.judge.rules.data import (
    find_period,
    judge_collate,
    judge_decode_engine,
    judge_drain,
    judge_no_workers,
    judge_periodic,
    judge_pin,
    judge_sampler,
    judge_skipping,
    note_skipping,
)
from tpmon.judge.rules.lifecycle import judge_starting
from tpmon.judge.rules.loader import judge_respawn
from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.judge.watch.tracker import find_pace
from tpmon.model.figures import Origin
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Role, ThreadGroup, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Kind

NO_STACKS = Missing("stacks: not permitted")


def test_a_rank_that_fetches_its_samples_itself_has_no_workers():
    scene = load_itself()
    assert causes(scene) == {"no-workers"}
    one = judge_no_workers(scene)
    assert (one.share, one.needed_ratio) == (pytest.approx(0.6), NOT_APPLICABLE)
    assert Need.NO_WORKERS in one.observed
    assert len(one.origins) == 2


def test_without_stacks_waiting_in_files_is_proof_of_loading_and_one_busy_thread_or_writing_is_not():
    scene = see(line_up([make_second(0.0, [])] * 12))
    assert causes(scene) == set()
    assert isinstance(judge_no_workers(scene), Unsure)
    reads = {"waits_for": "FUSE file system", "asked_read_bytes_s": 4e6, "asked_write_bytes_s": 0.0}
    assert causes(see(line_up([make_second(0.0, [], rank=reads)] * 12))) == {"no-workers"}
    writes = {**reads, "asked_read_bytes_s": 1e3, "asked_write_bytes_s": 80e6}
    assert causes(see(line_up([make_second(0.0, [], rank=writes)] * 12))) == set()


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ({DataPart.FETCH: 0.2, DataPart.COLLATE: 0.4}, {"collate"}),
        ({DataPart.FETCH: 0.4, DataPart.COLLATE: 0.2}, {"no-workers"}),
        ({DataPart.FETCH: 0.2, DataPart.SAMPLER: 0.4}, {"sampler"}),
        ({DataPart.FETCH: 0.4, DataPart.SAMPLER: 0.2}, {"no-workers"}),
        ({DataPart.START: 0.5, DataPart.FETCH: 0.1}, set()),
        ({DataPart.QUEUE: 0.6}, set()),
    ],
)
def test_collating_is_told_from_fetching_and_a_queue_is_no_lack_of_workers(parts, cause):
    scene = load_itself(0.6, parts)
    assert causes(scene) == cause
    assert cause != {"collate"} or judge_collate(scene).share == 0.4


def with_worker_stacks(function, samples, worker=COMPUTES):
    """See two workers, whose stacks were sampled in one second."""
    place = StackFrame(function, "/site/torch/utils/data/_utils/collate.py", 120)
    idle = StackFrame("get", "/lib/multiprocessing/queues.py", 103)
    root = StackFrame("_worker_loop", "/site/torch/utils/data/_utils/worker.py", 320)
    other = StackFrame("__getitem__", "train.py", 12)
    taken = make_slice(5000, 0, {(root, place): samples, (root, other): 40 - samples, (root, idle): 50})
    second = make_second(0.7, [worker] * 2, cpu={"budget_cores": 2.0})
    return see(with_slice(line_up([second] * 12), taken))


def test_collating_in_the_workers_is_told_by_their_stacks():
    assert causes(with_worker_stacks("default_collate", 30)) == {"collate"}
    assert causes(with_worker_stacks("default_collate", 10)) == {"cpu-transform"}
    unsampled = starve(0.7, [COMPUTES] * 2, cpu={"budget_cores": 2.0})
    assert isinstance(judge_collate(unsampled), Unsure)
    idle = with_worker_stacks("default_collate", 30, IDLES)
    assert "they wait for work" in judge_collate(idle).text


def test_a_drain_is_seen_where_batches_are_ready_and_the_main_thread_copies():
    phases = make_phases({Phase.DATA_WAIT: 0.4, Phase.FORWARD: 0.6}, parts={DataPart.COPY: 0.35, DataPart.QUEUE: 0.05})
    second = make_second(0.05, [IDLES] * 2, loader={"ready_batches": 4.0, "empty_ratio": 0.0})
    scene = see(line_up([second] * 12), {RANK: phases})
    assert causes(scene) == {"drain"}
    one = judge_drain(scene)
    assert one.share == pytest.approx(0.35)
    assert Need.BATCHES_READY in one.observed
    assert isinstance(judge_drain(starve(0.7, [COMPUTES] * 2)), Unsure)


def busy_itself(parts, kinds, births=0, **more):
    """See a rank with workers whose main thread's wait for data is in ``parts`` of the loader."""
    wait = sum(parts.values())
    phases = make_phases({Phase.DATA_WAIT: wait, Phase.FORWARD: 1 - wait}, parts=parts)
    at_queue = parts.get(DataPart.QUEUE, 0.0)
    loader = {"births": births, "empty_ratio": at_queue, "ready_batches": 2.0}
    frames = line_up([make_second(at_queue, kinds, loader=loader, **more)] * 20)
    if births:
        frames = [replace(one, processes=tuple(map(renew, one.processes, repeat(one.taken)))) for one in frames]
    return see(frames, {RANK: phases})


def renew(process, now):
    """Let a worker be two seconds old."""
    return replace(process, started=now - timedelta(seconds=2)) if process.role is Role.WORKER else process


CHOOSES = {DataPart.SAMPLER: 0.7, DataPart.COPY: 0.15, DataPart.QUEUE: 0.1}
MAIN_PARTS = {
    "a sampler": (busy_itself(CHOOSES, [IDLES] * 2), {"sampler"}),
    "a sampler, while workers start again and again": (busy_itself(CHOOSES, [IDLES] * 2, births=8), {"sampler"}),
    "a sampler beside busy workers": (busy_itself(CHOOSES, [COMPUTES] * 2), {"sampler"}),
    "a sampler, on a full machine": (
        busy_itself({DataPart.SAMPLER: 0.35, DataPart.COPY: 0.3, DataPart.QUEUE: 0.1}, [IDLES] * 2),
        {"sampler"},
    ),
    "less of a sampler than of late workers": (
        busy_itself({DataPart.SAMPLER: 0.2, DataPart.QUEUE: 0.6}, [COMPUTES] * 2),
        {"too-few-workers"},
    ),
    "starts of workers, each of which takes long": (
        busy_itself({DataPart.START: 0.8, DataPart.QUEUE: 0.1}, [COMPUTES] * 2, births=3),
        {"respawn"},
    ),
    "the one start of its workers": (
        busy_itself({DataPart.START: 0.8, DataPart.QUEUE: 0.1}, [COMPUTES] * 2, births=2),
        set(),
    ),
    "starts of workers": (busy_itself({DataPart.START: 0.5, DataPart.QUEUE: 0.2}, [SLEEPS] * 2, births=8), {"respawn"}),
}


@pytest.mark.parametrize(("scene", "cause"), MAIN_PARTS.values(), ids=MAIN_PARTS)
def test_the_part_that_takes_half_of_the_wait_is_its_cause_whatever_workers_do(scene, cause):
    assert causes(scene) == cause


def test_a_sampler_costs_its_own_share_and_restarts_theirs():
    one = judge_sampler(busy_itself(CHOOSES, [IDLES] * 2))
    assert one.share == pytest.approx(0.7)
    assert {Origin.PROC, Origin.STACKS} <= one.origins
    assert one.against == (), "a queue that is never empty is no batch that is waited for"
    assert next(chosen.remedy.id for chosen in advise(busy_itself(CHOOSES, [IDLES] * 2), one)) == "choose-at-once"
    parts = {DataPart.START: 0.15, DataPart.QUEUE: 0.3, DataPart.SAMPLER: 0.25}
    assert judge_respawn(busy_itself(parts, [SLEEPS] * 2, births=8)).share == pytest.approx(0.45)
    hardly = {DataPart.START: 0.02, DataPart.SAMPLER: 0.25, DataPart.COPY: 0.3}
    assert "hardly any wait" in judge_respawn(busy_itself(hardly, [SLEEPS] * 2, births=8)).text


def pinned(pin, kinds, phases=None):
    groups = (ThreadGroup(ThreadKind.MAIN, 1, 0.3), ThreadGroup(ThreadKind.PIN, 1, pin))
    second = make_second(0.0, kinds, loader={"pin_thread": True, "empty_ratio": 1.0}, rank={"thread_groups": groups})
    second = replace(second, main_threads=(make_looks(RANK, 10, timed_lock=7),))
    return see(line_up([second] * 12), {RANK: phases} if phases else {})


def test_behind_a_pin_thread_its_work_late_workers_or_stacks_tell_a_wait_for_data():
    scene = pinned(0.97, [IDLES] * 2)
    assert causes(scene) == {"pin"}
    assert Need.PIN_THREAD_BUSY in judge_pin(scene).observed
    assert causes(pinned(0.05, [IDLES] * 2)) == set()
    assert causes(pinned(0.05, [COMPUTES] * 2)) == {"too-few-workers"}
    waits = make_phases({Phase.DATA_WAIT: 0.0, Phase.FORWARD: 1.0})
    assert not isinstance(judge_pin(pinned(0.05, [IDLES] * 2, waits)), Suspicion)
    second = make_second(0.0, [COMPUTES] * 2, loader={"pin_thread": True})
    locked = replace(second, main_threads=(make_looks(RANK, 10, timed_lock=5),))
    elsewhere = make_phases({Phase.FORWARD: 1.0})
    assert isinstance(find_starved(see(line_up([locked] * 12), {RANK: elsewhere})), Cleared)
    waiting = make_phases({Phase.FORWARD: 0.5, Phase.DATA_WAIT: 0.5}, parts={DataPart.QUEUE: 0.5})
    assert isinstance(find_starved(see(line_up([locked] * 12), {RANK: waiting})), Starved)


def bursts(period, late, seconds=40, sure=1.0):
    busy = make_second(0.0, [IDLES] * 2, loader={"empty_ratio": 0.4, "ready_batches": 2.0})
    stall = make_second(sure, [SLEEPS, IDLES], loader={"empty_ratio": 0.4})
    return see(line_up([stall if i % period < late else busy for i in range(seconds)]))


@pytest.mark.parametrize(("period", "late"), [(5, 2), (6, 3), (10, 4), (12, 5)])
def test_bursts_are_periodic_after_three_periods(period, late):
    scene = bursts(period, late, seconds=3 * period + 5)
    assert "periodic" in causes(scene)
    assert "one-slow-worker" not in causes(scene)
    one = judge_periodic(scene)
    assert Need.PERIODIC_SEEN in one.observed
    assert f"every {period} s" in one.summary


def test_bursts_that_ceased_a_steady_wait_and_a_noisy_one_have_no_period():
    waits = [(i, float(i % 5 < 2)) for i in range(40)]
    assert is_known(find_period(waits))
    assert is_known(find_period([*waits, *((i, 0.0) for i in range(40, 47))]))
    over = find_period([*waits, *((i, 0.1) for i in range(40, 60))])
    assert not is_known(over)
    assert over.reason == "the bursts are over"
    noise = random.Random(7)
    steady = [(i, 0.6 + noise.uniform(-0.1, 0.1)) for i in range(60)]
    assert not is_known(find_period(steady))
    for seed in range(20):
        noise = random.Random(seed)
        wild = [(i, float(noise.random() < 0.4)) for i in range(60)]
        found = find_period(wild)
        assert not is_known(found) or found[1] >= 0.5


def test_bursts_of_workers_that_always_have_work_are_a_slow_loader():
    busy = make_second(0.0, [COMPUTES] * 2, loader={"empty_ratio": 0.9})
    stall = make_second(1.0, [COMPUTES] * 2, loader={"empty_ratio": 1.0})
    scene = see(line_up([stall if i % 5 < 4 else busy for i in range(40)]))
    assert is_known(find_period(see_waits(scene.ranks[0], scene)))
    assert "keeps up" in judge_periodic(scene).text
    assert causes(scene) & {"too-few-workers", "cpu-transform"}
    well = make_second(0.0, [IDLES] * 2, loader={"empty_ratio": 0.0, "ready_batches": 4.0})
    changed = see(line_up([well] * 30 + [stall if i % 5 < 4 else busy for i in range(20)]))
    assert not isinstance(judge_periodic(changed), Suspicion)


def test_late_batches_that_all_fall_to_one_worker_or_of_a_loader_that_is_ahead_at_times_come_in_bursts():
    """As where every 40th batch opens a shard, and there are two workers."""
    seconds = [make_second(0.7, [SLEEPS if i % 5 else IDLES, IDLES], loader={"empty_ratio": 0.6}) for i in range(20)]
    scene = see(line_up(seconds))
    one = judge_periodic(scene)
    assert (one.cause, "bursts" in one.summary) == ("periodic", True)
    assert not isinstance(rules_loader.judge_too_few_workers(scene), Suspicion)
    # The mean of the two is just below what is called idle.
    less = [make_second(0.7, [SLEEPS if i % 5 else IDLES, IDLES if i % 8 else SLEEPS]) for i in range(20)]
    assert "no work" in rules_loader.judge_too_few_workers(see(line_up(less))).text
    always = [make_second(0.7, [SLEEPS, IDLES], loader={"empty_ratio": 0.6}) for _ in range(20)]
    assert not isinstance(judge_periodic(see(line_up(always))), Suspicion)
    ahead = [
        make_second(wait, [IDLES if i % 2 else SLEEPS, IDLES if i % 3 else COMPUTES], loader={"empty_ratio": 0.4})
        for i, wait in enumerate((0.3, 0.5, 0.4, 0.6) * 5)
    ]
    one = judge_periodic(see(line_up(ahead)))
    assert (one.cause, "bursts" in one.summary) == ("periodic", True)


def gpu_job(wait, busy, kinds=(SLEEPS, SLEEPS), **more):
    return starve(wait, list(kinds), frame={"gpus": (make_gpu(sm_pct=busy, pids=(RANK,)),)}, **more)


def test_a_run_gains_no_more_than_its_card_idles_and_a_card_that_was_not_read_decides_nothing():
    scene = gpu_job(0.5, 97.0)
    assert causes(scene) == set()
    assert "hidden" in judge_periodic(scene).text
    idle = gpu_job(0.5, 45.0)
    assert causes(idle) == {"too-few-workers"}
    assert Origin.DRIVER in rules_loader.judge_too_few_workers(idle).origins
    one = rules_loader.judge_too_few_workers(gpu_job(0.7, 80.0))
    assert (one.share, one.needed_ratio) == (pytest.approx(0.2), pytest.approx(1.25))
    scene = gpu_job(0.7, Missing("stale"))
    assert causes(scene) == set()
    assert "stale" in rules_loader.judge_too_few_workers(scene).text


def test_each_rank_is_held_against_its_own_card():
    """In DDP the cards of the ranks that wait in a collective read 100 % busy."""
    starved = make_second(0.6, [SLEEPS], pid=11, rank={"rank": 3, "runnable": 0.4})
    others = [make_process(pid, rank=pid - 20) for pid in (20, 21, 22)]
    cards = (make_gpu(0, sm_pct=35.0, pids=(11,)), *(make_gpu(i, sm_pct=100.0, pids=(19 + i,)) for i in (1, 2, 3)))
    looks = (*starved.main_threads, *(make_looks(pid) for pid in (20, 21, 22)))
    second = replace(
        starved, processes=(*starved.processes, *others), gpus=cards, main_threads=looks, ranks=(make_rank(11),)
    )
    found = find_starved(see(line_up([second] * 12)))
    assert isinstance(found, Starved)
    assert found.rank.process.pid == 11
    one = rules_loader.judge_too_few_workers(see(line_up([second] * 12)))
    assert (one.rank, one.pid) == (3, 11)
    assert one.summary.startswith("rank 3")


def test_stacks_and_looks_are_pooled_and_what_stacks_alone_see_keeps_their_interval():
    stacks = make_phases({Phase.DATA_WAIT: 0.5, Phase.FORWARD: 0.5}, parts={DataPart.QUEUE: 0.4, DataPart.COPY: 0.1})
    looks = measure_share(0.4, 100)
    both = combine_wait(looks, stacks)
    assert (both.origins, both.share.ratio) == ({Origin.STACKS, Origin.PROC}, pytest.approx(0.5))
    assert both.share.high - both.share.low < looks.high - looks.low
    assert combine_wait(looks, NO_STACKS).origins == {Origin.PROC}
    assert combine_wait(NO_STACKS, stacks).origins == {Origin.STACKS}
    assert combine_wait(NO_STACKS, NO_STACKS) == NO_STACKS
    stacks = make_phases({Phase.DATA_WAIT: 0.4, Phase.FORWARD: 0.6}, parts={DataPart.COPY: 0.4}, samples=30)
    both = combine_wait(measure_share(0.0, 1000), stacks)
    alone = combine_wait(NO_STACKS, stacks)
    assert both.share.low == pytest.approx(alone.share.low, abs=0.02)
    assert both.share.high >= alone.share.high - 0.02
    assert both.told == {Origin.STACKS: pytest.approx(0.4), Origin.PROC: 0.0}


@given(st.floats(0, 1), st.integers(20, 400), st.floats(0, 1), st.integers(20, 400), st.floats(1, 5))
def test_taking_a_source_away_never_makes_a_wait_surer(one, looks, other, samples, design):
    stacks = make_phases(
        {Phase.DATA_WAIT: other, Phase.FORWARD: 1 - other},
        parts={DataPart.QUEUE: other},
        samples=samples,
        design=design,
    )
    seen = measure_share(one, looks)
    both = combine_wait(seen, stacks)
    for less in (combine_wait(seen, NO_STACKS), combine_wait(NO_STACKS, stacks)):
        assert less.origins < both.origins
        assert less.surest_low <= both.surest_low


def test_a_source_that_sees_half_of_the_wait_is_no_second_source():
    second = make_second(0.6, [COMPUTES] * 2)
    phases = make_phases({Phase.OTHER: 0.9, Phase.DATA_WAIT: 0.1}, parts={DataPart.QUEUE: 0.1})
    alone = find_starved(see(line_up([second] * 12), {RANK: phases}))
    assert alone.wait.origins == {Origin.STACKS, Origin.PROC}
    suspicion = rules_loader.judge_too_few_workers(see(line_up([second] * 12), {RANK: phases}))
    assert Origin.STACKS not in suspicion.origins
    assert Origin.PROC in suspicion.origins


def test_a_scene_without_ranks_is_unknown():
    scene = see([make_frame(processes=())])
    assert all(not isinstance(rule(scene), Suspicion) for rule in ALL)
    assert isinstance(judge_periodic(scene), Unsure)


@pytest.mark.parametrize("reads", [100, 156], ids=["60 %", "92 %"])
def test_a_loop_that_reads_its_files_without_a_data_set_has_no_workers(reads):
    main = StackFrame("main", "/home/usr/train/train.py", 60)
    load = (main, StackFrame("load", "/usr/lib/python3/dist-packages/torch/serialization.py", 1500))
    step = (main, StackFrame("backward", "/usr/lib/python3/dist-packages/torch/_tensor.py", 630))
    taken = make_slice(RANK, 0, {load: reads, step: 170 - reads})
    frames = line_up([make_second(0.0, [])] * 55)
    slices = [replace(taken, ended_ns=frames[number].taken_ns) for number in (10, 21, 32, 43, 54)]
    scene = see(frames, read_phases(slices, frames[-1].taken_ns))
    assert causes(scene) == {"no-workers"}
    assert judge_no_workers(scene).share == pytest.approx(reads / 170)
    assert isinstance(judge_starting(scene), Cleared)


def stepped(period, late, steps_s, pace=None):
    """See bursts of a rank whose hook counts so many steps in each second without one."""
    counts = 0
    hooked = []
    for i, frame in enumerate(bursts(period, late, seconds=60).history):
        counts += 0 if i % period < late else steps_s
        told = make_pace(count=counts, step_age_s=0.5, **(pace(i) if pace else {}))
        hooked.append(with_hooks(frame, make_hook(pace=told)))
    return see(hooked)


@pytest.mark.parametrize(
    ("period", "late", "steps_s", "words"),
    [
        (7, 2, 7, "every 7 s, about every 35 steps, between"),
        (5, 2, 1, "every 5 s, about every 3 steps, between"),
        (10, 4, 201, "every 10 s, about every 1,200 steps, between"),
        (12, 5, 3, "every 12 s, about every 21 steps, between"),
    ],
)
def test_bursts_are_told_by_steps_where_a_hook_counts_them(period, late, steps_s, words):
    scene = stepped(period, late, steps_s)
    one = judge_periodic(scene)
    assert words in one.summary
    told = [(row.value, row.source) for row in one.evidence if row.unit == "steps"]
    assert told == [(pytest.approx(steps_s * (period - late)), "hook")]


def test_steps_that_are_not_counted_for_long_or_not_steady_are_not_told():
    plain = "every 6 s, between"
    assert plain in judge_periodic(bursts(6, 3, seconds=40)).summary
    assert plain in judge_periodic(stepped(6, 3, 10, pace=lambda i: {"eval_pct": 100.0})).summary
    assert plain in judge_periodic(stepped(6, 3, 0)).summary
    young = stepped(6, 3, 10).history
    late = [replace(one, hook=Missing("no hook yet")) if i < 45 else one for i, one in enumerate(young)]
    assert plain in judge_periodic(see(late)).summary
    faster = stepped(6, 3, 10)
    counts = [find_pace(one, RANK).count for one in faster.history]
    quick = [
        with_hooks(one, make_hook(pace=make_pace(count=count if i < 30 else 4 * count)))
        for i, (one, count) in enumerate(zip(faster.history, counts, strict=True))
    ]
    assert plain in judge_periodic(see(quick)).summary


def decode(video=97.0, jpeg=0.0, sm=30.0, wait=0.7, **more):
    """See a rank that waits for its data while the engines of its card are in use like this."""
    card = make_gpu(sm_pct=sm, decoder_pct=video, jpeg_pct=jpeg, pids=(RANK,))
    return starve(wait, [IDLES] * 2, frame={"gpus": (card,), **more})


def test_full_decoding_engines_hold_a_rank_whose_card_waits_for_data():
    one = judge_decode_engine(decode())
    assert one.cause == "decode-engine"
    assert "the card decodes for it and is full with that (NVDEC 97 % busy), while its SMs idle" in one.summary
    assert Origin.DRIVER in one.origins
    assert Need.DECODE_ENGINE_BUSY in one.observed
    assert "JPEG engine 92 % busy" in judge_decode_engine(decode(video=3.0, jpeg=92.0)).summary
    assert advise(decode(), one)[0].remedy.id == "share-decoding"


@pytest.mark.parametrize(
    ("scene", "answer"),
    [
        (decode(video=40.0), Cleared),
        (decode(sm=97.0), Cleared),  # the card computes meanwhile
        (decode(wait=0.0), Cleared),
        (decode(video=NO_STACKS, jpeg=NO_STACKS), Unsure),
        (decode(video=NOT_APPLICABLE, jpeg=NOT_APPLICABLE), Unsure),  # a recording of before
        (starve(0.7, [IDLES] * 2), Cleared),  # no card
    ],
)
def test_engines_that_have_room_or_hold_nobody_are_no_cause(scene, answer):
    assert type(judge_decode_engine(scene)) is answer


def unpack(idle, ready=0.0):
    """See a rank that takes batches out for most of its wait while its workers rest for so many of ten readings."""
    phases = make_phases({Phase.DATA_WAIT: 0.7, Phase.FORWARD: 0.3}, parts={DataPart.COPY: 0.6, DataPart.QUEUE: 0.1})
    seconds = [make_second(0.7, [IDLES if number % 10 < idle else COMPUTES] * 2) for number in range(20)]
    seconds = [replace(one, loader=(replace(one.loader[0], ready_batches=ready),)) for one in seconds]
    return see(line_up(seconds), {RANK: phases})


def test_unpacking_is_the_cause_before_what_workers_do_but_not_while_they_never_rest():
    assert judge_drain(unpack(4)).cause == "drain"
    assert doubts(judge_drain(unpack(0)), "or it waits for busy workers to hand them over")
    assert judge_drain(unpack(0, ready=2.0)).cause == "drain", "finished batches lie in the queue"
    keys = [(Kind.DATA_BOUND, cause) for cause in ("drain", "cpu-transform", "too-few-workers", "periodic")]
    assert find_explained(keys) == set(keys[1:])
    keys[0] = (Kind.DATA_BOUND, "sampler")
    assert find_explained(keys) == set(keys[1:])


def skip(ratio=0.98, parts=None, samples=200, span_s=30.0, **ratios):
    rest = {Phase[name.upper()]: share for name, share in ratios.items()}
    phases = make_phases(
        {Phase.DATA_WAIT: ratio, **rest}, parts=parts or {DataPart.COPY: 0.1}, samples=samples, span_s=span_s
    )
    return see(line_up([make_second(0.9, [COMPUTES])] * 20), {RANK: phases})


@pytest.mark.parametrize(
    ("scene", "taken"),
    [
        (skip(), 20),
        (skip(parts={DataPart.FETCH: 0.8, DataPart.COLLATE: 0.1}), 20),
        (skip(parts={DataPart.FETCH: 0.9, DataPart.COPY: 0.05}), 10),
        (skip(0.95, forward=0.05), 0),  # it makes steps
        (skip(0.95, validation=0.05), 0),
        (skip(0.5, other=0.5), 0),  # it does something with them
        (skip(parts={DataPart.QUEUE: 0.98}), 0),  # the first batch has not come
        (skip(span_s=9.0), 0),
        (skip(samples=40), 0),
    ],
)
def test_batches_of_which_no_step_is_made_are_skipped_and_few_of_them_a_note(scene, taken):
    answer = judge_skipping(scene)
    assert (type(answer) is Suspicion) is (taken >= 20)
    assert bool(note_skipping(scene)) is (0 < taken < 20)


def test_skipping_explains_what_loads_slowly_and_its_remedy_keeps_the_place():
    scene = skip()
    one = judge_skipping(scene)
    assert "takes batch after batch, and no step is seen" in one.summary
    assert advise(scene, one)[0].remedy.id == "skip-indices"
    keys = [(one.kind, cause) for cause in ("skipping", "cpu-transform", "no-workers", "periodic")]
    assert find_explained(keys) == set(keys[1:])
