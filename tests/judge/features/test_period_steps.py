"""Bursts of waiting are told by steps, too, where a hook counts these and they come at a steady rate."""

from dataclasses import replace

import pytest

from tests.judge.rules.test_data import bursts
from tests.paces import make_hook, make_pace, with_hooks
from tests.starving import RANK
from tpmon.judge.features.snapshot import see
from tpmon.judge.rules.data import judge_periodic, round_steps, say_nth
from tpmon.judge.watch.tracker import find_pace
from tpmon.model.known import Missing


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
        (7, 2, 7, "every 7 s, about every 35th step, between"),
        (5, 2, 1, "every 5 s, about every 3rd step, between"),
        (6, 3, 1, "every 6 s, about every 3rd step, between"),
        (10, 4, 200, "every 10 s, about every 1,200th step, between"),
        (12, 5, 3, "every 12 s, about every 21st step, between"),
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


@pytest.mark.parametrize(
    ("steps", "period_s", "rounded", "words"),
    [
        (34.2, 7.0, 34, "34th"),
        (137.0, 7.0, 135, "135th"),
        (8.4, 4.0, 8, "8th"),
        (41.0, 3.0, 40, "40th"),
        (1284.0, 7.0, 1300, "1,300th"),
        (111.6, 60.0, 112, "112th"),
        (22.0, 30.0, 22, "22nd"),
    ],
)
def test_steps_are_rounded_to_what_a_period_of_whole_readings_can_tell(steps, period_s, rounded, words):
    assert round_steps(steps, period_s, 1.0) == rounded
    assert say_nth(rounded) == words
