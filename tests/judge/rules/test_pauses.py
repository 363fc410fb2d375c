"""Validation and checkpoints that take more than a fifth of the time, and those that do not."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.frames import NOW, NOW_NS, make_frame, make_process
from tests.judging import SECOND, said, scene_of
from tests.stacks import BACKWARD, MAIN
from tpmon.judge.answers.result import Answer, Suspicion
from tpmon.judge.rules import lifecycle
from tpmon.judge.stacks.profile import read_slices
from tpmon.judge.watch.stints import MOST_STINTS, Stint, follow_stints
from tpmon.model.stacks import StackCount, StackFrame, StackSlice
from tpmon.model.verdict import Kind, pick_code

OTHER = (MAIN,)
PAUSED = {
    "validation": (MAIN, StackFrame("validate", "/run/a.py", 7), StackFrame("metric", "/run/a.py", 9)),
    "checkpoint": (MAIN, StackFrame("save", "/v/site-packages/torch/serialization.py", 700)),
}
RULES = dict(zip(PAUSED, lifecycle.PAUSES, strict=True))
EVERY_S = 2.0


def watch(kinds: str, pause: str) -> tuple[Stint, ...]:
    """Follow a slice every two seconds: "t" is training, "p" the pause, "m" a third of it, "o" neither."""
    rows = {"t": {BACKWARD: 12}, "p": {PAUSED[pause]: 12}, "m": {BACKWARD: 8, PAUSED[pause]: 4}, "o": {OTHER: 12}}
    stints: tuple[Stint, ...] = ()
    for number, kind in enumerate(kinds):
        at_ns = NOW_NS - round((len(kinds) - 1 - number) * EVERY_S * SECOND)
        counts = tuple(StackCount(4211, "MainThread", frames, samples) for frames, samples in rows[kind].items())
        look = read_slices([StackSlice(4211, 0, NOW, at_ns, 1.0, 12.0, 12, counts)], ())
        stints = follow_stints(stints, look, 4211)
    return stints


def judge(stints: tuple[Stint, ...], pause: str, age_s: float = 7200.0) -> Answer:
    frame = make_frame(processes=(make_process(started=NOW - timedelta(seconds=age_s)),))
    scene = scene_of(frame)
    return RULES[pause](replace(scene, watch=replace(scene.watch, stints=stints)))


OFTEN = 3 * (20 * "t" + 10 * "p")
CASES = {
    "a third, three times": (OFTEN, True),
    "the last one goes on for long: only whole turns count": (2 * (40 * "t" + 4 * "p") + 40 * "t" + 60 * "p", False),
    "a tenth, three times": (3 * (45 * "t" + 5 * "p"), False),
    "one, shorter than what was trained": (60 * "t" + 30 * "p" + 10 * "t", False),
    "one, longer than that, but late in a long life": (10 * "t" + 40 * "p", False),
    "a program that only evaluates": (3 * (20 * "o" + 10 * "p"), False),
    "shorter than a slice, all the time": (40 * "m", True),
    "two in the first seconds": ("tptp", False),
}


@pytest.mark.parametrize("pause", PAUSED)
@pytest.mark.parametrize("case", CASES)
def test_pauses_are_a_finding_where_they_take_a_fifth_again_and_again(case, pause):
    kinds, found = CASES[case]
    answer = judge(watch(kinds, pause), pause)
    assert isinstance(answer, Suspicion) == found
    if found:
        assert said(answer) == (Kind.PAUSED, f"{pause}-share")
        assert pick_code(answer.kind, answer.cause) == 10
        assert 0.3 <= answer.share <= 0.36
        assert "takes 3" in answer.summary
    other = next(one for one in PAUSED if one != pause)
    assert not isinstance(judge(watch(kinds, pause), other), Suspicion)


def test_one_pause_is_a_finding_once_it_is_most_of_the_life_that_was_seen():
    stints = watch(20 * "t" + 45 * "p", "validation")
    answer = judge(stints, "validation", age_s=140.0)
    assert said(answer) == (Kind.PAUSED, "validation-share")
    assert "takes at least 6" in answer.summary
    assert not isinstance(judge(stints, "validation", age_s=3600.0), Suspicion)


def test_what_is_remembered_is_bounded_and_of_one_rank():
    stints = watch(200 * "tp", "validation")
    assert len(stints) == MOST_STINTS
    assert follow_stints(stints, (), 7) == ()
    long = watch(500 * "t", "validation")
    assert len(long) == 1, "what goes on is one"
