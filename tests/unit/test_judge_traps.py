"""Real jobs that invite a wrong verdict: what was not read, what is on purpose, what belongs to another."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.frames import GIB, NOW, NOW_NS, make_frame, make_gpu, make_memory, make_process
from tests.judging import hold, make_phases
from tests.starving import COMPUTES, RANK, line_up, make_second
from tpmon.judge.judgement import judge
from tpmon.judge.phases import DataPart, Phase
from tpmon.judge.rules_data import judge_no_workers
from tpmon.judge.scene import see
from tpmon.judge.standing import Standing
from tpmon.judge.suspicion import Suspicion, Unsure
from tpmon.model.known import Missing
from tpmon.model.verdict import Confidence, Kind, SinceIs

BUSY_ELSEWHERE = make_gpu(pids=(9999,), sm_pct=99.0)
UNSEEN_CARDS = {
    "driver silent": {"gpus": Missing("NVML has not answered yet")},
    "cards of another container": {
        "gpus": (),
        "notes": ("GPUs not visible from this shell (container or Slurm step)",),
    },
    "processes not listed": {"gpus": (make_gpu(pids=Missing("no permission")),)},
    "another rank's card": {"gpus": (BUSY_ELSEWHERE,)},
}


def loads_itself(**frame):
    phases = make_phases({Phase.DATA_WAIT: 0.6, Phase.FORWARD: 0.4}, parts={DataPart.FETCH: 0.6})
    return see(line_up([make_second(0.0, [], frame=frame)] * 12), {RANK: phases})


@pytest.mark.parametrize("name", UNSEEN_CARDS)
def test_a_wait_that_a_card_nobody_read_may_hide_is_no_fault(name):
    answer = judge_no_workers(loads_itself(**UNSEEN_CARDS[name]))
    assert isinstance(answer, Unsure)
    assert "GPU" in answer.text


def test_a_job_without_cards_on_a_machine_with_cards_is_judged_by_its_cpus():
    idle_machine = {"gpus": (make_gpu(pids=(), processes=()),)}
    assert isinstance(judge_no_workers(loads_itself(**idle_machine)), Suspicion)


def conclude(frames):
    standing = Standing()
    for count in range(1, len(frames) + 1):
        judged = judge(frames[max(0, count - 61) : count], standing)
        standing = judged.standing
    return judged.frame.verdict


def leaking(calm_s, growing_s):
    base = make_frame(memory=make_memory(limit_bytes=8 * GIB, anon_growth_bytes_s=30e6))
    frames = hold(base, calm_s + growing_s)
    return [
        replace(
            frame,
            memory=replace(frame.memory, anon_bytes=GIB + grown, rss_bytes=GIB + grown),
        )
        for i, frame in enumerate(frames)
        for grown in (int(30e6) * max(0, i - calm_s),)
    ]


def test_what_takes_a_minute_to_tell_did_not_begin_when_it_was_told():
    older = conclude(leaking(0, 70))
    assert (older.cause, older.since_is) == ("leak", SinceIs.LOWER_BOUND)
    seen = conclude(leaking(70, 70))
    assert (seen.cause, seen.since_is) == ("leak", SinceIs.ONSET)


def space(frames, interval_s):
    """Set Frames ``interval_s`` apart, a little late each time, as they come when asked for that."""
    apart = interval_s + 0.01
    last = len(frames) - 1
    return [
        replace(
            one,
            interval_s=interval_s,
            taken=NOW - timedelta(seconds=apart * (last - i)),
            taken_ns=NOW_NS - round(apart * (last - i) * 1e9),
        )
        for i, one in enumerate(frames)
    ]


@pytest.mark.parametrize("interval_s", [0.5, 1.0, 3.0, 5.0, 10.0])
def test_slow_readings_come_to_the_same_verdict_and_may_be_sure_of_it(interval_s):
    second = make_second(0.7, [COMPUTES] * 2, cpu={"budget_cores": 2.0}, rank={"runnable": 0.3})
    found = conclude(space([second] * max(5, round(30 / interval_s)), interval_s))
    assert (found.kind, found.cause, found.confidence) == (
        Kind.DATA_BOUND,
        "cpu-transform",
        Confidence.HIGH,
    )


def test_a_new_process_with_an_old_pid_has_no_past():
    stranger = make_frame(processes=(make_process(start_ticks=1, runnable=9.0),))
    scene = see(line_up([stranger] * 9 + [make_frame(processes=(make_process(runnable=1.0),))] * 2))
    assert scene.ranks[0].demand == 1.0
