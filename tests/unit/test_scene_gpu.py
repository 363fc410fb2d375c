"""The job's cards over a span: steps of seconds, cards that others use too, contexts that do nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.frames import make_frame, make_gpu, make_process
from tests.gpu_scenes import IN_MODEL
from tests.judging import SECOND, make_phases
from tpmon.judge.medians import NO_FRAMES, mean_known
from tpmon.judge.phases import Phase
from tpmon.judge.rules_gpu import judge_gpu_compute
from tpmon.judge.scene import see
from tpmon.judge.starvation import find_gpu_idle, find_starved
from tpmon.judge.suspicion import Cleared
from tpmon.model.known import Missing

UNREAD = Missing("not supported")


def second_by_second(cards_at, seconds=60, phases=None):
    """See one rank on the cards that ``cards_at`` makes of each second."""
    frames = []
    for t in range(seconds):
        frame = make_frame(gpus=cards_at(t), processes=(make_process(),), loader=())
        taken = frame.taken + timedelta(seconds=t)
        frames.append(replace(frame, taken=taken, taken_ns=frame.taken_ns + t * SECOND))
    return see(frames, {4211: make_phases(IN_MODEL if phases is None else phases)})


def step(t, length_s, work_s):
    """Make the card of a loop that computes for ``work_s`` of each step and rests for the remainder."""
    works = t % length_s < work_s
    return make_gpu(
        sm_pct=100.0 if works else 0.0,
        sm_active_pct=90.0 if works else 0.0,
        power_w=650.0 if works else 130.0,
        sm_clock_mhz=1980.0 if works else 345.0,
    )


@pytest.mark.parametrize("length_s", [5, 8, 12])
@pytest.mark.parametrize("later_s", range(0, 12, 3))
def test_long_steps_do_not_hide_what_the_card_waits(length_s, later_s):
    work_s = round(0.6 * length_s)
    scene = second_by_second(
        lambda t: (step(t, length_s, work_s),),
        seconds=50 + later_s,
        phases={Phase.DATA_WAIT: 0.4, Phase.SYNC: 0.4, Phase.BACKWARD: 0.2},
    )
    card = scene.gpus[0]
    assert card.busy_pct == pytest.approx(100 * work_s / length_s, abs=12)
    assert card.sm_active_pct == pytest.approx(0.9 * card.busy_pct)
    assert card.clock_ratio == 1.0
    assert type(judge_gpu_compute(scene)) is Cleared
    assert find_starved(scene).share.ratio == pytest.approx(0.4, abs=0.1)


def test_a_card_that_has_stopped_is_not_seen_by_what_it_did_before():
    for length_s, work_s in ((5, 3), (12, 7)):
        scene = second_by_second(lambda t: (step(t, length_s, work_s if t < 40 else 0),))  # noqa: B023
        assert scene.gpus[0].busy_pct == 0
        again = second_by_second(lambda t: (step(t, length_s, work_s if t < 40 else length_s),))  # noqa: B023
        assert again.gpus[0].busy_pct == 100


def test_one_pause_is_seen_over_the_plain_span():
    scene = second_by_second(lambda t: (make_gpu(sm_pct=0.0 if 40 <= t < 45 else 100.0),))
    assert scene.gpus[0].busy_pct == 100


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_shares_do_not_change_with_the_unit_of_power_and_clock(scale):
    def card(t, factor):
        one = step(t, 5, 3)
        names = ("power_w", "power_limit_w", "sm_clock_mhz", "sm_clock_max_mhz")
        return (replace(one, **{name: factor * getattr(one, name) for name in names}),)

    plain, scaled = (second_by_second(lambda t, f=f: card(t, f)).gpus[0] for f in (1.0, scale))
    assert scaled.power_ratio == pytest.approx(plain.power_ratio)
    assert scaled.clock_ratio == pytest.approx(plain.clock_ratio)


def test_a_mean_needs_half_of_its_readings():
    assert mean_known([1.0, UNREAD, 3.0]) == 2.0
    assert mean_known([1.0, UNREAD, UNREAD]) is UNREAD
    assert mean_known([]) is NO_FRAMES


def test_idle_is_not_told_of_seconds_that_were_not_read():
    scene = second_by_second(lambda t: (make_gpu(sm_pct=UNREAD if t % 3 else 40.0),))
    assert find_gpu_idle(scene.ranks[0], scene) is UNREAD
