"""What hooks add to verdicts: an exact wait, a second word, progress, the late rank, the first steps."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.frames import later, make_frame, make_gpu, make_output, make_process, make_rank
from tests.judging import SECOND, conclude, hold, make_looks, make_phases, scene_of
from tests.paces import make_hook, make_pace, split_of, with_hooks
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.features.data_wait import DataWait, exact_wait, join_hook
from tpmon.judge.features.snapshot import Scene, see
from tpmon.judge.judge import RULES
from tpmon.judge.rules.hook import find_late, weigh_in
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.clock import LAST_STEP, see_quiet
from tpmon.judge.watch.tracker import NO_WATCH, WatchedTime, event_age_s, last_event_ns, longest_step_s, observe
from tpmon.model.figures import Origin
from tpmon.model.frame import Frame
from tpmon.model.hook import HookSample, HookState, LoopPhase, PutIn, StepRule
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import ThreadGroup, ThreadKind
from tpmon.model.verdict import Confidence, Kind, SinceIs

LEVELS = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)


def hooked(frame: Frame | None = None, data: float = 20.0, **fields: Any) -> Frame:
    """Return a Frame whose only rank has a hook that measured ``data`` percent of waiting."""
    frame = frame if frame is not None else make_frame()
    return with_hooks(frame, make_hook(pace=make_pace(**(split_of(data) | fields))))


def suspect(kind: Kind, cause: str, **fields: Any) -> Suspicion:
    plain = Suspicion(kind, cause, 0.5, 2.0, frozenset(("stacks",)), "something", ())
    return replace(plain, **fields)


def suspected(scene: Scene) -> list[Suspicion]:
    return [one for rule in RULES if isinstance(one := rule(scene), Suspicion)]


# --- the wait for data


def wait_of(ratio: float, samples: int = 100) -> DataWait:
    share = make_phases({Phase.DATA_WAIT: ratio}, samples=samples).share(Phase.DATA_WAIT)
    return DataWait(share, {}, frozenset((Origin.STACKS,)), share.low)


def test_the_wait_is_exact_unless_stacks_see_more_than_the_hook():
    joined = join_hook(wait_of(0.55), make_pace(**split_of(58.0)))
    assert (joined.share.ratio, joined.share.low, joined.share.high) == (0.58, 0.58, 0.58)
    assert joined.origins == {Origin.STACKS, Origin.HOOK}
    assert joined.told == {Origin.STACKS: pytest.approx(0.55), Origin.HOOK: 0.58}
    joined = join_hook(Missing("Yama"), make_pace(**split_of(58.0)))
    assert (joined.share.ratio, joined.origins) == (0.58, {Origin.HOOK})
    sampled = wait_of(0.6)
    joined = join_hook(sampled, make_pace(**split_of(5.0)))
    assert joined.share == sampled.share
    assert joined.told[Origin.HOOK] == pytest.approx(0.05)


@pytest.mark.parametrize(
    "fields",
    [
        {"rule": StepRule.UPDATE},
        {"rule": StepRule.CALL, "data_pct": 0.0},
        {"step_age_s": 200.0},
        {"rate_hz": 0.0, "eval_hz": 8.0, "eval_pct": 100.0},
        {"rate_hz": 0.1},
        {"data_pct": Missing("no training step lately")},
    ],
)
def test_a_hook_that_cannot_tell_the_wait_says_nothing_of_it(fields):
    pace = make_pace(**(split_of(70.0) | fields))
    assert isinstance(exact_wait(pace), Missing)
    assert join_hook(Missing("no"), pace) == Missing("no")


def loads_itself(data: float) -> list[Frame]:
    """Return a minute of a rank without workers whose hook measured ``data`` percent of loading."""
    frame = make_frame(processes=(make_process(),), loader=())
    return hold(hooked(frame, data), 20)


def test_a_rank_that_loads_itself_is_told_without_stacks():
    finding = conclude(loads_itself(64.0))
    assert (finding.kind, finding.cause) == (Kind.DATA_BOUND, "no-workers")
    assert (finding.share_pct, finding.share_low_pct) == (pytest.approx(64.0), NOT_APPLICABLE)
    assert [row.source for row in finding.evidence if "hook" in row.source] == ["the hook, 40 steps"]


def stands_still() -> list[Frame]:
    """Return half a minute of a rank that waits in a lock and took its last step 14 minutes ago."""
    return [later(stands(840.0 - back), -back) for back in range(32, -1, -1)]


def computes() -> list[Frame]:
    """Return some seconds of a rank that is healthy by its looks and by its hook."""
    return hold(hooked(make_frame(main_threads=(make_looks(looks=20),), loader=()), 4.0), 14)


@pytest.mark.parametrize("build", [lambda: loads_itself(64.0), stands_still, computes])
def test_without_the_hook_no_verdict_is_surer(build):
    frames = build()
    whole = conclude(frames)
    hidden = Missing("hidden")
    blind = conclude([replace(one, hook=hidden, steps=hidden) for one in frames])
    if (blind.kind, blind.cause) == (whole.kind, whole.cause):
        assert LEVELS.index(blind.confidence) <= LEVELS.index(whole.confidence)
    else:
        assert blind.confidence is not Confidence.HIGH


# --- its word on what others suspect


def test_agreement_is_a_source_disagreement_a_row_against_and_ignorance_no_word():
    scene = scene_of(hooked(data=58.0))
    word = weigh_in(suspect(Kind.DATA_BOUND, "cpu-transform", share=0.55), scene)
    assert Origin.HOOK in word.origins
    assert word.evidence[-1].value == pytest.approx(58.0)
    other = weigh_in(suspect(Kind.DATA_BOUND, "cpu-transform", share=0.55), scene_of(hooked(data=4.0)))
    assert other.origins == {Origin.STACKS}
    assert [row.source for row in other.against] == ["hook"]
    healthy = suspect(Kind.BALANCED, "none")
    assert Origin.HOOK in weigh_in(healthy, scene_of(hooked(data=5.0))).origins
    assert weigh_in(healthy, scene_of(hooked(data=40.0))).against
    word = weigh_in(suspect(Kind.STARTING, "compile"), scene_of(hooked()))
    assert [row.name for row in word.against] == ["steps go on"]
    one = suspect(Kind.PYTHON_BOUND, "gil")
    assert weigh_in(one, scene_of(hooked())) is one


def test_a_hook_that_is_missing_or_off_is_never_evidence():
    plain = make_frame()
    off = make_hook(state=HookState.DISABLED, error="KeyError", pace=Missing("it turned itself off"))
    for frame in (plain, with_hooks(plain, off)):
        scene = scene_of(frame)
        for kind in Kind:
            one = suspect(kind, "straggler" if kind is Kind.COMMS_BOUND else "validation")
            assert weigh_in(one, scene) is one
        assert event_age_s(frame) is None
        answers = [rule(scene) for rule in RULES]
        rows = [row for one in answers if isinstance(one, Suspicion) for row in (*one.evidence, *one.against)]
        assert all(row.source != "hook" for row in rows)
    assert [rule(scene_of(plain)) for rule in RULES] == [rule(scene_of(with_hooks(plain, off))) for rule in RULES]


# --- progress and its end


def stands(age_s: float, **fields: Any) -> Frame:
    hook = make_hook(phase=LoopPhase.BACKWARD, phase_s=age_s, pace=make_pace(step_age_s=age_s + 0.2, **fields))
    resting = make_process(
        state="S",
        waits_for="lock",
        waits_unchanged_s=age_s,
        asked_read_bytes_s=0.0,
        runnable=0.0,
        waiting=0.0,
        thread_groups=(ThreadGroup(ThreadKind.MAIN, 1, 0.0),),
    )
    return with_hooks(make_frame(processes=(resting,), output=(), loader=()), hook)


def test_a_loop_that_gets_on_does_not_stand_still():
    watch = observe(WatchedTime(begun_ns=1), stands(0.3))
    assert see_quiet(watch, stands(0.3)).own_s == pytest.approx(0.3)


def test_a_late_comer_knows_for_how_long_no_step_was_taken_or_how_long_steps_are():
    frame = stands(840.0)
    quiet = see_quiet(observe(NO_WATCH, frame), frame)
    assert (quiet.sign, round(quiet.seconds)) == (LAST_STEP, 840)
    assert last_event_ns(frame) == frame.taken_ns - 840 * SECOND
    frame = replace(stands(840.0), output=(make_output(last_write_age_s=2.0),))
    assert see_quiet(observe(NO_WATCH, frame), frame).sign == ""
    frame = stands(5.0, longest_ms=60_000.0)
    assert longest_step_s(frame) == 60.0
    assert observe(NO_WATCH, frame).hang_after_s == 120.0


def test_the_hang_began_with_the_last_step():
    frame = stands(840.0)
    word = weigh_in(suspect(Kind.HUNG, "no-progress"), scene_of(frame))
    assert Origin.HOOK in word.origins
    assert word.since_ns == frame.taken_ns - 840 * SECOND
    assert word.evidence[-1].text == "step 2840, in backward for 14m00s"
    moving = weigh_in(suspect(Kind.HUNG, "no-progress"), scene_of(stands(0.5)))
    assert moving.against
    assert moving.since_ns is NOT_APPLICABLE
    # Only waits and the hook are read: half a minute is watched, the loop stands for 14 minutes.
    frames = stands_still()
    finding = conclude(frames)
    assert (finding.kind, finding.since_is) == (Kind.HUNG, SinceIs.ONSET)
    assert round((frames[-1].taken - finding.since).total_seconds()) == 840


# --- what only the hook sees


def ranks_of(*own_ms: float, rate_hz: float = 2.0, cards: bool = False, **fields: Any) -> Scene:
    """Return ranks that go in step; what is left of it is their backward unless a field says otherwise."""
    hooks: list[HookSample] = []
    processes, rows = [], []
    for rank, own in enumerate(own_ms):
        pid = 4211 + rank
        backward = {"p50_ms": 500.0, "backward_pct": 100 - own * rate_hz / 10}
        pace = make_pace(pid, rank=rank, own_ms=own, rate_hz=rate_hz, **(split_of(10.0) | backward | fields))
        hooks.append(make_hook(pid, rank=rank, pace=pace))
        processes.append(make_process(pid, rank=rank))
        rows.append(make_rank(pid, rank=rank))
    held = {"gpus": (make_gpu(pids=(4211, 4212)),)} if cards else {}
    frame = make_frame(processes=tuple(processes), ranks=tuple(rows), loader=(), **held)
    return see(hold(with_hooks(frame, *hooks), 12))


def test_the_late_rank_is_the_one_whose_backward_is_shorter_than_that_of_the_others():
    late = find_late(ranks_of(100.0, 110.0, 330.0, 105.0))
    assert (late.rank.process.rank, late.own_ms, late.others_ms) == (2, 330.0, 105.0)
    straggler = next(one for one in suspected(ranks_of(100.0, 330.0)) if one.cause == "straggler")
    assert (straggler.rank, straggler.origins, straggler.observed) == (1, {Origin.HOOK}, {Need.RANK_BEHIND})
    # Rank 0 reads a loss from its card after its step, rank 1 waits in its forward for a full queue.
    assert find_late(ranks_of(100.0, 330.0, backward_pct=20.0)) is None
    assert find_late(ranks_of(100.0, 330.0, backward_pct=Missing("no training step lately"))) is None


def test_none_is_late_of_equal_ranks_of_unequal_rates_beside_cards_and_where_one_has_no_hook():
    assert find_late(ranks_of(100.0, 120.0)) is None
    assert find_late(ranks_of(330.0)) is None
    scene = ranks_of(100.0, 330.0)
    slow = replace(scene.frame.hook[1], pace=make_pace(4212, rank=1, own_ms=330.0, rate_hz=1.0))
    alone = with_hooks(scene.frame, scene.frame.hook[0], slow)
    assert find_late(see(hold(alone, 12))) is None
    scene = ranks_of(100.0, 330.0, 100.0)
    assert find_late(see(hold(with_hooks(scene.frame, *scene.frame.hook[:2]), 12))) is None
    scene = ranks_of(100.0, 330.0, cards=True)
    assert scene.cards
    assert find_late(scene) is not None
    assert not [one for one in suspected(scene) if one.cause == "straggler" and one.origins == {Origin.HOOK}]


def first_steps(steps: int, age_s: float = 40.0, **turns: int) -> Frame:
    counts = replace(make_hook().counts, **{"batches": 5, "backwards": 5, "optimizer_calls": 0} | turns, steps=steps)
    frame = make_frame()
    young = make_process(started=frame.taken - timedelta(seconds=age_s))
    hook = make_hook(counts=counts, pace=Missing("one step ended so far"))
    return with_hooks(replace(frame, processes=(young,), loader=()), hook)


@pytest.mark.parametrize(
    ("frame", "said"), [(first_steps(1), True), (first_steps(3), False), (first_steps(1, 4000), False)]
)
def test_a_loop_with_few_steps_is_starting(frame, said):
    starts = [(one.kind, one.cause) == (Kind.STARTING, "first-steps") for one in suspected(scene_of(frame))]
    assert any(starts) is said


def test_a_hook_that_was_put_in_by_hand_did_not_count_the_first_steps():
    frame = first_steps(1)
    by_hand = replace(frame.hook[0], put_in=PutIn(frame.taken, "1.0"))
    assert not [one for one in suspected(scene_of(with_hooks(frame, by_hand))) if one.cause == "first-steps"]


def test_before_the_first_step_a_loop_must_have_begun():
    begun, counts = first_steps(0), replace(make_hook().counts, steps=0)
    found = next(one for rule in RULES if isinstance(one := rule(scene_of(begun)), Suspicion) and one.cause)
    assert found.summary == "the loop runs and has taken no step yet"
    nothing = Missing("nothing happened yet")
    idle = with_hooks(begun, make_hook(counts=counts, pace=nothing, phase=nothing, phase_s=nothing))
    # Nor is one that goes round and whose steps are not counted.
    rounds = (first_steps(0, **{turns: 200}) for turns in ("batches", "backwards", "elsewhere"))
    for frame in (idle, *rounds):
        assert all(one.kind is not Kind.STARTING for one in suspected(scene_of(frame)))


def test_evaluation_steps_are_a_validation_and_inference_is_none():
    fields = {"rate_hz": 0.0, "eval_hz": 8.0, "eval_pct": 100.0, "eval_count": 40}
    finding = conclude(hold(hooked(**fields), 12))
    assert (finding.kind, finding.cause) == (Kind.PAUSED, "validation")
    assert all(one.kind is not Kind.PAUSED for one in suspected(scene_of(hooked(count=0, **fields))))
