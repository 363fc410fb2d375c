"""The whole judge on any finite Window, with readings gone in any place: a verdict of the table, from what was read."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.any_windows import GONE, blank, fields_to_blank, likely_windows, make_slice, sample_stacks, values_of
from tests.frames import make_cpu, make_frame, make_gpu, make_process, set_all
from tests.judging import conclude, follow, make_looks, read_phases
from tests.phase_stacks import stack
from tests.starving import ALL, COMPUTES, line_up, make_second
from tests.waits import wait_of
from tpmon.judge.advice.choose import REMEDIES
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.features.snapshot import Rule, Scene, see
from tpmon.judge.finding import rate_confidence
from tpmon.judge.judge import RULES
from tpmon.judge.rules import cards, comms, cpu, data, gpu, health, lifecycle, loader, python
from tpmon.model.codec import decode, encode
from tpmon.model.figures import Origin
from tpmon.model.frame import Frame, TargetState
from tpmon.model.known import Applicable, Missing, is_known, known_or, map_known
from tpmon.model.process import Outcome
from tpmon.model.verdict import TABLE, Confidence, Finding, Kind

ROWS = {row.kind: row.causes for row in TABLE}
FIELDS = fields_to_blank()
PAST_THRESHOLD = (*comms.RULES, *gpu.RULES, *health.RULES, *ALL)
"""Rules that suspect nothing below their threshold; those of the lifecycle begin at half of it."""
NUMBERS = st.sampled_from((0.0, 1e-9, 0.5, 3.0, 250.0, 1e6, 1e12))
WAITS = st.sampled_from(
    (*map(wait_of, ("a batch (loader queue)", "NFS", "terminal input", "running", "sleep", "frozen")), GONE)
)
ENDED = {"state": TargetState.ENDED, "ended": "exit 0", "outcome": Outcome.WELL}
WORDS_OF = {
    "gpus": ("nvml", "gpm", "nvlink"),
    "stacks": ("stack", "py-spy"),
    "hook": ("hook",),
    "network": ("interface counters",),
}
"""Words of the sources that a group of readings is cited by."""


def _numbers_of(sample: Any) -> list[str]:
    return [name for name in sample.__dataclass_fields__ if isinstance(getattr(sample, name), float)]


@st.composite
def torn_windows(draw: st.DrawFn) -> list[Frame]:
    """Draw a Window of which some readings are gone, always or at times, and some are of any size."""
    frames = draw(likely_windows(seconds=draw(st.sampled_from((1, 3, 14)))))
    for _ in range(draw(st.integers(0, 3))):
        place, value = draw(st.sampled_from(("cpu", "memory", "processes", "gpus", "loader"))), draw(NUMBERS)
        whole = getattr(frames[0], place)
        samples = whole if isinstance(whole, tuple) else () if isinstance(whole, Missing) else (whole,)
        names = sorted({name for one in samples for name in _numbers_of(one)})
        if names:
            name = draw(st.sampled_from(names))
            frames = [_put(one, place, name, value) for one in frames]
    if draw(st.booleans()):
        words = {"state": draw(st.sampled_from("RSDTtZI")), "waits_for": draw(WAITS)}
        ended = {"target": replace(frames[0].target, **ENDED)} if draw(st.booleans()) else {}
        frames = [replace(set_all(one, **words), **ended) for one in frames]
    for group, name in draw(st.lists(st.sampled_from(FIELDS), max_size=12, unique=True)):
        every = draw(st.sampled_from((1, 1, 2, 5)))
        frames = [blank(one, group, name) if at % every == 0 else one for at, one in enumerate(frames)]
    return frames


def _put(frame: Frame, place: str, name: str, value: float) -> Frame:
    whole = getattr(frame, place)
    if isinstance(whole, tuple):
        return replace(frame, **{place: tuple(replace(one, **{name: value}) for one in whole)})
    return frame if isinstance(whole, Missing) else replace(frame, **{place: replace(whole, **{name: value})})


def assert_from_readings(finding: Finding) -> None:
    """Check that each row of evidence holds a reading, and none the reason why there is none."""
    for row in finding.evidence + finding.against:
        assert is_known(row.value) or row.text, row
        assert GONE.reason not in row.name + row.text + row.source, row


def scene_of(frames: Sequence[Frame]) -> Scene:
    slices = [one for frame in frames for one in known_or(frame.stacks, ())]
    return see(frames, read_phases(slices, frames[-1].taken_ns) if slices else {})


@given(torn_windows())
def test_any_window_gives_a_verdict_of_the_table_from_what_was_read(frames):
    (*_, last) = follow(frames)
    frame, finding = last.frame, last.frame.verdict
    assert (finding.cause in ROWS[finding.kind]) if is_known(finding.cause) else not ROWS[finding.kind]
    assert finding.since <= frame.taken
    assert_from_readings(finding)
    for share in (finding.share_pct, finding.share_low_pct, finding.share_high_pct):
        assert not is_known(share) or 0 <= share <= 100
    assert decode(Frame, encode(frame)).verdict is not None
    assert not any(value != value for value in values_of(finding))  # noqa: PLR0124  # no NaN  # fmt: skip


@given(torn_windows())
def test_each_rule_gives_an_answer_in_bounds_to_any_window(frames):
    scene = scene_of(frames)
    for answer in (rule(scene) for rule in RULES):
        if not isinstance(answer, Suspicion):
            assert answer.text
            continue
        assert (answer.kind, answer.cause) in REMEDIES
        assert answer.summary
        assert answer.origins
        assert 0 <= answer.weight <= 1
        assert answer.margin >= 0.5
        assert not is_known(answer.share) or math.isfinite(answer.share)
        assert answer.cause != "no-progress" or scene.history_s >= 25
    # A late rank, a transfer and an unknown wait of ranks exclude each other.
    assert sum(isinstance(rule(scene), Suspicion) for rule in comms.RULES) <= 1
    for rule in PAST_THRESHOLD:
        answer = rule(scene)
        assert not isinstance(answer, Suspicion) or answer.margin >= 0.999


@given(torn_windows(), st.sampled_from(("main_threads", "stacks")))
def test_a_group_that_was_not_read_adds_no_origin_to_a_suspicion(frames, group):
    def answers(frames: Sequence[Frame]) -> list[object]:
        scene = scene_of(frames)
        return [rule(scene) for rule in (*comms.RULES, *health.RULES)]

    for before, after in zip(answers(frames), answers([replace(one, **{group: GONE}) for one in frames]), strict=True):
        if isinstance(before, Suspicion) and isinstance(after, Suspicion) and before.cause == after.cause:
            assert len(after.origins) <= len(before.origins)


@pytest.mark.parametrize("group", sorted(WORDS_OF))
@given(frames=likely_windows(seconds=12))
def test_what_was_not_read_at_all_is_cited_by_no_row(group, frames):
    finding = conclude([blank(one, "", group) for one in frames])
    assert_from_readings(finding)
    sources = [row.source.lower() for row in finding.evidence + finding.against]
    assert [one for one in sources if any(word in one for word in WORDS_OF[group])] == []


@given(frames=likely_windows(seconds=12))
def test_where_nothing_at_all_was_read_nobody_is_accused(frames):
    for group, name in FIELDS:
        frames = [blank(one, group, name) for one in frames]
    frames = [replace(set_all(one, state="S"), loader=()) for one in frames]
    finding = conclude(frames)
    assert (finding.kind.value, finding.evidence) == ("not-enough-evidence", ())


# a source that is taken away

LEVELS = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)


def claim_of(finding: Finding) -> Applicable[float]:
    """Return the share that a verdict speaks of: the wait for data before a card's idle time caps it."""
    wait = next((row.value for row in finding.evidence if row.name == "data wait"), finding.share_pct)
    return finding.share_pct if isinstance(wait, Missing) else wait


def is_smaller(less: Finding, more: Finding) -> bool:
    """Tell whether a verdict claims less than another: that may be surer, it is not the same claim.

    Two sources that differ are pooled; without the one that saw more the other speaks for less.
    """
    small, large = claim_of(less), claim_of(more)
    if not is_known(large):
        return is_known(small)
    return not is_known(small) or small < large - 1e-6


def assert_not_surer(whole: Finding, blind: Finding, name: str) -> None:
    if (whole.kind, whole.cause) != (blind.kind, blind.cause) or is_smaller(blind, whole):
        return
    assert LEVELS.index(blind.confidence) <= LEVELS.index(whole.confidence), (
        name, whole.summary, whole.confidence, blind.summary, blind.confidence,
    )  # fmt: skip


@given(likely_windows(), st.permutations(FIELDS))
def test_a_field_that_goes_missing_makes_no_verdict_surer(frames, order):
    whole = conclude(frames)
    assume(whole.kind is not Kind.NOT_ENOUGH_EVIDENCE)
    for group, name in order[:4]:
        blind = conclude([blank(one, group, name) for one in frames])
        assert_not_surer(whole, blind, f"{group}.{name}")


def held(**cpu: object) -> list[Frame]:
    """Build a healthy loop on a card whose threads wait for CPUs that others have."""
    taken = {"budget_cores": 2.0, "host_cores": 2, "runnable": 1.0, "demand_ratio": 0.5}
    taken |= {"run_delay_ratio": 0.84, "used_cores": 0.16, "host_used_cores": 1.9}
    frame = make_frame(
        processes=(make_process(),), loader=(), gpus=(make_gpu(sm_pct=80.0, sm_active_pct=60.0),),
        cpu=make_cpu(**(taken | cpu)), main_threads=(make_looks(),), stacks=(),
    )  # fmt: skip
    counts = {stack("main train step call linear"): 20, stack("main train backward engine"): 30}
    return sample_stacks(line_up([frame] * 16), [make_slice(4211, 0, counts)])


@pytest.mark.parametrize("name", ["budget_cores", "used_cores", "runnable", "oversubscription", "run_delay_ratio"])
def test_a_healthy_run_is_no_surer_where_nobody_knows_who_has_its_cpus(name):
    whole, blind = conclude(held()), conclude([blank(one, "cpu", name) for one in held()])
    assert (whole.kind, whole.confidence) == (Kind.BALANCED, Confidence.LOW)
    assert (blind.kind, blind.confidence) == (Kind.BALANCED, Confidence.LOW)
    assert any("whether others have the CPUs" in words for words in blind.unknown)
    assert any("taken away" in words for words in blind.unknown)


def test_a_figure_that_clears_everybody_asks_for_no_other_but_for_stacks():
    free = held(run_delay_ratio=0.02, used_cores=1.0)
    assert conclude(free).confidence is Confidence.HIGH
    blind = conclude([blank(one, "cpu", "used_cores") for one in free])
    assert (blind.confidence, blind.unknown[:1]) == (Confidence.HIGH, conclude(free).unknown[:1])
    blind = conclude([blank(one, "", "stacks") for one in free])
    assert (blind.kind, blind.confidence) == (Kind.BALANCED, Confidence.LOW)
    assert any(words.startswith("pauses and code outside of the step") for words in blind.unknown)


@pytest.mark.parametrize("idle", [0, 5, 7])
def test_a_host_that_waits_for_its_busy_card_makes_a_healthy_run_neither_surer_nor_less_sure(idle):
    free = [replace(one, main_threads=(make_looks(other=idle),)) for one in held(run_delay_ratio=0.02, used_cores=1.0)]
    assert conclude(free).confidence is Confidence.HIGH
    assert conclude([blank(one, "", "main_threads") for one in free]).confidence is Confidence.HIGH


def starving(**loader: object) -> list[Frame]:
    cpu = {"budget_cores": 2.0, "host_cores": 2}
    return line_up([make_second(0.7, [COMPUTES] * 2, cpu=cpu, loader=loader)] * 16)


def test_a_queue_that_was_not_read_may_have_been_full_and_a_hook_that_could_not_be_read_may_disagree():
    full, unread = conclude(starving(empty_ratio=0.0)), conclude(starving(empty_ratio=GONE))
    assert full.kind is unread.kind is Kind.DATA_BOUND
    assert [row.name for row in full.against] == ["queue empty"]
    assert unread.against == ()
    assert full.confidence is unread.confidence is Confidence.LOW
    assert "whether batches are ready (taken away: not read)" in unread.unknown
    frames = starving(empty_ratio=0.7)
    assert conclude(frames).confidence is Confidence.HIGH, "its hook is not there"
    blind = conclude([blank(one, "", "hook", Missing("not permitted to read the hook's page")) for one in frames])
    assert blind.confidence is Confidence.MEDIUM
    assert "what a hook tells (not permitted to read the hook's page)" in blind.unknown


@given(st.integers(0, 4), st.floats(1, 20), st.floats(0, 100), st.booleans())
def test_what_was_not_read_takes_a_level_at_most(count, margin, span_s, seen):
    names = frozenset(list(Origin)[:count])
    plain = Suspicion(Kind.DATA_BOUND, "pin", 0.5, margin, names, "it waits", (), seen=seen)
    doubted = Suspicion(Kind.DATA_BOUND, "pin", 0.5, margin, names, "it waits", (), unread=("x",), seen=seen)
    level, less = rate_confidence(plain, span_s), rate_confidence(doubted, span_s)
    assert LEVELS.index(less) <= LEVELS.index(level)
    assert LEVELS.index(level) - LEVELS.index(less) <= 1
    assert count > 1 or level is not Confidence.HIGH


# a run k times as slow, its shares the same; left out are the rules that compare with a rate or a time on purpose: reads
# and faults a second (storage, memory), bytes over links (transfer, what a full card exchanges), what stands or is young

BY_SHARES: tuple[Rule, ...] = (
    *data.RULES,
    *loader.RULES,
    *python.RULES,
    *cards.RULES,
    *gpu.RULES,
    *health.RULES,
    cpu.judge_quota,
    cpu.judge_oversubscription,
    comms.judge_straggler,
    cpu.judge_worker_affinity,
    lifecycle.judge_checkpoint,
    lifecycle.judge_validation,
)
OF_LINKS = (gpu.judge_gpu_compute, gpu.judge_launch_bound)
"""Rules that ask whether ranks exchange data, which a rate of their links tells: those links stay as they are."""


def _slower(sample: Any, k: float) -> Any:
    """Divide every rate of a sample, which ends in "_s", by k; ages and sums of time stay."""
    kept = ("pss_age_s", "waits_unchanged_s", "throttled_s", "age_s")
    names = [one for one in sample.__dataclass_fields__ if one.endswith("_s") and one not in kept]
    return replace(sample, **{name: map_known(lambda rate: rate / k, getattr(sample, name)) for name in names})


def slow_down(frame: Frame, k: float) -> Frame:
    """Make everything in a Frame k times as slow: rates fall, shares stay."""
    gpus, network = frame.gpus, frame.network
    return replace(
        frame,
        processes=tuple(_slower(one, k) for one in frame.processes),
        memory=_slower(frame.memory, k),
        gpus=tuple(_slower(one, k) for one in gpus) if is_known(gpus) else gpus,
        network=tuple(_slower(one, k) for one in network) if is_known(network) else network,
    )


@given(likely_windows(seconds=14, hooks=False), st.sampled_from((0.01, 0.3, 3.0, 100.0)))
def test_a_run_k_times_as_slow_gets_the_same_answers(frames, k):
    plain, slow = scene_of(frames), scene_of([slow_down(one, k) for one in frames])
    same_links = scene_of([replace(slow_down(one, k), gpus=one.gpus, network=one.network) for one in frames])
    for rule in BY_SHARES:
        other = same_links if rule in OF_LINKS else slow
        assert rule(plain) == rule(other), getattr(rule, "__name__", rule)
