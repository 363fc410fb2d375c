"""Steps in the text reports: what --once and --plain say of them, and nothing without a hook."""

from dataclasses import replace
from typing import Any

import pytest

from tests.frames import make_frame
from tests.paces import make_hook, make_pace, with_hooks
from tpmon.model.frame import Frame
from tpmon.model.known import Missing
from tpmon.model.text.job_words import (
    format_ms,
    is_evaluating,
    is_stalled,
    say_rate,
    say_samples,
    say_split,
    state_facts,
)
from tpmon.report.once import write_once
from tpmon.report.plain import FIGURES, PlainReport

SECOND = 1_000_000_000


def hooked(**fields: Any) -> Frame:
    return with_hooks(make_frame(), make_hook(pace=make_pace(**fields)))


def once(frame: Frame) -> str:
    return " ".join(" ".join(write_once(frame)).split())


def test_once_says_rates_times_and_split():
    text = once(hooked())
    assert "steps 2,840 by rank 0, 4.00 steps/s, a step ends batch after update, samples 128" in text
    assert "step times p50 248 ms p95 270 ms p99 312 ms longest" in text
    assert "data 20 %, forward 24 %, backward 46 %, optimizer 8.0 %, other 2.0 %" in text


def test_once_says_why_there_are_no_steps():
    text = once(make_frame())
    assert "steps (no hook in the training process)" in text
    assert "steps/s" not in text


def test_the_facts_begin_with_the_steps():
    frame = hooked()
    facts = state_facts(1, 2, frame.cpu, frame.gpus, steps=frame.steps)
    assert facts.startswith("4.00 steps/s · 128 samples/s · 2 workers")
    stalled = make_pace(step_age_s=840.0)
    assert state_facts(1, 2, frame.cpu, frame.gpus, steps=stalled).startswith("no step for 14m00s · 2 workers")
    assert "step" not in state_facts(1, 2, frame.cpu, frame.gpus)


def test_plain_says_when_the_rate_of_steps_changes():
    report = PlainReport()
    frame = hooked()
    lines = []
    for second in range(80):
        rate = 4.0 if second < 40 else 2.0
        pace = make_pace(rate_hz=rate)
        now = replace(with_hooks(frame, make_hook(pace=pace)), taken_ns=frame.taken_ns + second * SECOND, events=())
        lines += report.read(now)
    assert any("steps a second fell from 4 to 2" in line for line in lines)


def test_without_a_hook_plain_follows_no_step():
    figures = [one for one in FIGURES if "step" in one.name]
    assert len(figures) == 2
    assert all(isinstance(one.read(make_frame()), Missing) for one in figures)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rate_hz": 4.0}, "4.00 steps/s"),
        ({"rate_hz": 41.26}, "41.3 steps/s"),
        ({"rate_hz": 1234.0}, "1234 steps/s"),
        ({"rate_hz": 1 / 30, "longest_ms": 31_000.0}, "a step in 30 s"),
        ({"rate_hz": 0.0, "eval_hz": 8.0, "eval_pct": 100.0}, "evaluation, 8 batches/s"),
        ({"rate_hz": 0.0, "step_age_s": 840.0}, "no step for 14m00s"),
    ],
)
def test_a_rate_is_said_as_a_person_says_it(fields, words):
    assert say_rate(make_pace(**fields)) == words


def test_a_long_step_is_no_stall_where_steps_are_long():
    assert not is_stalled(make_pace(longest_ms=30_000.0, step_age_s=100.0))
    assert is_stalled(make_pace(longest_ms=300.0, step_age_s=10.5))
    assert not is_stalled(make_pace(longest_ms=300.0, step_age_s=9.0))
    assert is_evaluating(make_pace(eval_pct=60.0))


def test_what_is_not_known_is_left_out():
    assert say_samples(make_pace(samples_hz=Missing("no"))) == ""
    assert say_samples(make_pace(samples_hz=256.0, ranks=2)) == "256 samples/s, sum of 2 ranks"
    nothing = dict.fromkeys(("data_pct", "forward_pct", "backward_pct", "optimizer_pct", "other_pct"), Missing("none"))
    assert say_split(make_pace(**nothing)) == ""


@pytest.mark.parametrize(
    ("ms", "words"), [(0.42, "0.42 ms"), (4.2, "4.2 ms"), (311.4, "311 ms"), (4120.0, "4.1 s"), (64_000.0, "1m04s")]
)
def test_times_are_written_with_two_or_three_figures(ms, words):
    assert format_ms(ms) == words
