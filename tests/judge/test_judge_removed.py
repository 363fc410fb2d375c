"""A source that is taken away never makes a verdict surer: what is not known speaks for nothing, and may speak against."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.any_windows import GONE, blank, fields_to_blank, likely_windows, make_slice, sample_stacks
from tests.frames import make_cpu, make_frame, make_gpu, make_process
from tests.judging import conclude, make_looks
from tests.phase_stacks import stack
from tests.starving import COMPUTES, line_up, make_second
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.finding import rate_confidence
from tpmon.model.frame import Frame
from tpmon.model.known import Applicable, Missing, is_known
from tpmon.model.verdict import Confidence, Finding, Kind, Origin

LEVELS = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)
FIELDS = fields_to_blank()


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


@pytest.mark.parametrize("name", ["budget_cores", "used_cores", "runnable", "demand_ratio", "run_delay_ratio"])
def test_a_healthy_run_is_no_surer_where_nobody_knows_who_has_its_cpus(name):
    whole, blind = conclude(held()), conclude([blank(one, "cpu", name) for one in held()])
    assert (whole.kind, whole.confidence) == (Kind.BALANCED, Confidence.LOW)
    assert (blind.kind, blind.confidence) == (Kind.BALANCED, Confidence.LOW)
    assert any("whether others have the CPUs" in words for words in blind.unknown)
    assert any("taken away" in words for words in blind.unknown)


def test_a_figure_that_clears_everybody_asks_for_no_other():
    free = held(run_delay_ratio=0.02, used_cores=1.0)
    assert conclude(free).confidence is Confidence.HIGH
    blind = conclude([blank(one, "cpu", "used_cores") for one in free])
    assert (blind.confidence, blind.unknown[:1]) == (Confidence.HIGH, conclude(free).unknown[:1])


def test_a_healthy_run_without_stacks_may_be_in_a_validation():
    free = held(run_delay_ratio=0.02, used_cores=1.0)
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


def test_a_queue_that_was_not_read_may_have_been_full():
    full, unread = conclude(starving(empty_ratio=0.0)), conclude(starving(empty_ratio=GONE))
    assert full.kind is unread.kind is Kind.DATA_BOUND
    assert [row.name for row in full.against] == ["queue empty"]
    assert unread.against == ()
    assert full.confidence is unread.confidence is Confidence.LOW
    assert "whether batches are ready (taken away: not read)" in unread.unknown
    assert conclude(starving(empty_ratio=0.7)).confidence is Confidence.HIGH


def test_a_hook_that_could_not_be_read_may_disagree_and_one_that_is_not_there_cannot():
    frames = starving(empty_ratio=0.7)
    gone = [blank(one, "", "hook", Missing("not permitted to read the hook's page")) for one in frames]
    assert conclude(frames).confidence is Confidence.HIGH
    blind = conclude(gone)
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
