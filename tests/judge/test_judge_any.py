"""The whole judge on any finite Window, with readings gone in any place: a verdict of the table, from what was read."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.any_windows import GONE, blank, fields_to_blank, likely_windows, values_of
from tests.data_rules import ALL
from tests.frames import set_all
from tests.judging import follow
from tests.waits import wait_of
from tpmon.judge.advice.choose import EXPLANATIONS
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.features.snapshot import see
from tpmon.judge.judge import RULES
from tpmon.judge.rules import comms, gpu, health
from tpmon.judge.stacks.profile import read_phases
from tpmon.model.codec import decode, encode
from tpmon.model.frame import Frame, TargetState
from tpmon.model.known import Missing, is_known, known_or
from tpmon.model.process import Outcome
from tpmon.model.verdict import TABLE, Finding

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


def judge_each(frames: Sequence[Frame]) -> Frame:
    """Judge second by second, as the session does, and return the last Frame with its verdict."""
    (*_, last) = follow(frames)
    return last.frame


def verdict_of(frame: Frame) -> Finding:
    assert is_known(frame.verdict)
    return frame.verdict


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


@given(torn_windows())
def test_any_window_gives_a_verdict_of_the_table_from_what_was_read(frames):
    frame = judge_each(frames)
    finding = verdict_of(frame)
    assert (finding.cause in ROWS[finding.kind]) if is_known(finding.cause) else not ROWS[finding.kind]
    assert_from_readings(finding)
    for share in (finding.share_pct, finding.share_low_pct, finding.share_high_pct):
        assert not is_known(share) or 0 <= share <= 100
    assert decode(Frame, encode(frame)).verdict is not None
    assert not any(value != value for value in values_of(finding))  # noqa: PLR0124  # no NaN  # fmt: skip


@given(torn_windows())
def test_each_rule_gives_an_answer_in_bounds_to_any_window(frames):
    slices = [one for frame in frames for one in known_or(frame.stacks, ())]
    scene = see(frames, read_phases(slices, frames[-1].taken_ns) if slices else {})
    for answer in (rule(scene) for rule in RULES):
        if not isinstance(answer, Suspicion):
            assert answer.text
            continue
        assert (answer.kind, answer.cause) in EXPLANATIONS
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
        slices = [one for frame in frames for one in known_or(frame.stacks, ())]
        scene = see(frames, read_phases(slices, frames[-1].taken_ns) if slices else {})
        return [rule(scene) for rule in (*comms.RULES, *health.RULES)]

    for before, after in zip(answers(frames), answers([replace(one, **{group: GONE}) for one in frames]), strict=True):
        if isinstance(before, Suspicion) and isinstance(after, Suspicion) and before.cause == after.cause:
            assert len(after.origins) <= len(before.origins)


@pytest.mark.parametrize("group", sorted(WORDS_OF))
@given(frames=likely_windows(seconds=12))
def test_what_was_not_read_at_all_is_cited_by_no_row(group, frames):
    finding = verdict_of(judge_each([blank(one, "", group) for one in frames]))
    assert_from_readings(finding)
    sources = [row.source.lower() for row in finding.evidence + finding.against]
    assert [one for one in sources if any(word in one for word in WORDS_OF[group])] == []


@given(frames=likely_windows(seconds=12))
def test_where_nothing_at_all_was_read_nobody_is_accused(frames):
    for group, name in FIELDS:
        frames = [blank(one, group, name) for one in frames]
    frames = [replace(set_all(one, state="S"), loader=()) for one in frames]
    finding = verdict_of(judge_each(frames))
    assert (finding.kind.value, finding.evidence) == ("not-enough-evidence", ())
