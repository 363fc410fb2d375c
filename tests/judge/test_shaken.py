"""Whether the ranks have just changed what they do, as far as each second's readings tell."""

import random

import pytest

from tests.starving import COMPUTES, IDLES, SOCKET, line_up, make_looks, make_second
from tpmon.judge.hysteresis import is_shaken
from tpmon.model.known import Missing

LIGHT = {**IDLES, "runnable": 0.18}
RESTING = {**IDLES, "runnable": 0.02}


def seconds(*parts):
    """Line up (wait, kinds, count) one after the other."""
    return line_up([make_second(wait, kinds) for wait, kinds, count in parts for _ in range(count)])


def test_a_run_that_goes_on_as_before_is_not_shaken():
    assert not is_shaken(seconds((0.7, [COMPUTES] * 2, 40)))


def test_chance_does_not_shake():
    draw = random.Random(3)
    frames = line_up(
        [make_second(0.3, [{**COMPUTES, "runnable": 0.9 + draw.uniform(-0.1, 0.1)}] * 2) for _ in range(300)]
    )
    shaken = sum(is_shaken(frames[:end]) for end in range(20, 300))
    assert shaken <= 6


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((0.7, [COMPUTES] * 2), (0.0, [COMPUTES] * 2)),
        ((0.0, [COMPUTES] * 2), (0.7, [COMPUTES] * 2)),
        ((0.0, [LIGHT] * 2), (0.0, [RESTING] * 2)),
        ((0.7, [COMPUTES] * 2), (0.7, [SOCKET] * 2)),
    ],
    ids=["waits no more", "begins to wait", "its workers have less to do", "its workers wait for a store"],
)
def test_a_change_shakes_within_three_readings_and_is_over_when_it_is_the_rule(before, after):
    frames = seconds((*before, 30), (*after, 30))
    first = next(end for end in range(20, 61) if is_shaken(frames[:end]))
    assert 31 <= first <= 33
    assert not is_shaken(frames)


def test_one_second_of_another_kind_does_not_shake():
    frames = seconds((0.3, [COMPUTES] * 2, 30), (0.5, [LIGHT] * 2, 1), (0.3, [COMPUTES] * 2, 2))
    assert not is_shaken(frames)


def test_with_few_readings_or_none_of_the_looks_nothing_is_told():
    assert not is_shaken(seconds((0.7, [COMPUTES], 5), (0.0, [COMPUTES], 3)))
    blind = {"main_threads": Missing("not read")}
    frames = line_up([make_second(wait, [], frame=blind) for wait in (0.5,) * 30])
    assert not is_shaken(frames)


def test_of_many_ranks_the_few_looks_at_each_are_told_together():
    """At the pace of a settled verdict eight ranks have ten looks a second between them."""

    def look(waits):
        looks = tuple(make_looks(4211 + rank, 2, batch_wait=waits) for rank in range(8))
        return {"main_threads": looks}

    frames = line_up([make_second(0.5, [], frame=look(waits)) for waits in (0,) * 20 + (2,) * 3])
    assert is_shaken(frames)
    assert not is_shaken(frames[:-3])
