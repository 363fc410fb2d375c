"""The job is over: whether it ended well, failed, or nobody saw how, and what it said last."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.frames import NOW, make_frame, make_output, make_process, make_target
from tests.judging import hold, scene_of
from tests.starving import line_up
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.snapshot import see
from tpmon.judge.rules.lifecycle import find_last_words, judge_finished
from tpmon.model.frame import TargetState
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.process import Outcome, ProcessEnd, Role
from tpmon.model.verdict import Kind, Origin, pick_code


def said(answer):
    assert isinstance(answer, Suspicion), answer
    return answer.kind, answer.cause


def make_end(**fields):
    plain = ProcessEnd(
        pid=4211,
        role=Role.RANK,
        rank=0,
        worker=NOT_APPLICABLE,
        outcome=Outcome.FAILED,
        signal="SIGKILL",
        how="SIGKILL; OOM killer (kernel log)",
    )
    return replace(plain, **fields)


@pytest.mark.parametrize(
    ("outcome", "how", "cause", "code"),
    [
        (Outcome.WELL, "exit 0", "finished", 0),
        (Outcome.FAILED, "exit 1", "failed", 10),
        (Outcome.FAILED, "SIGTERM", "failed", 10),
        (Outcome.UNKNOWN, "ended (exit status not visible to tpmon)", "ended", 11),
    ],
)
def test_an_ended_job_says_how_and_only_exit_0_is_success(outcome, how, cause, code):
    target = make_target(state=TargetState.ENDED, ended=how, outcome=outcome)
    answer = judge_finished(scene_of(make_frame(target=target, processes=())))
    assert said(answer) == (Kind.IDLE, cause)
    assert pick_code(answer.kind, answer.cause) == code
    assert answer.summary.endswith(how)
    assert answer.seen
    assert (Need.KILLED in answer.observed) == ("SIG" in how)
    assert answer.origins == {Origin.PROC}


def test_a_launcher_without_its_ranks_is_over_as_well_as_they_ended():
    frames = hold(make_frame())
    launcher = make_process(4200, role=Role.LAUNCHER, rank=NOT_APPLICABLE)
    restart = [*frames, *hold(make_frame(processes=(launcher,)), 15)]
    assert type(judge_finished(see(line_up(restart)))) is Unsure
    for outcome, cause in ((Outcome.WELL, "finished"), (Outcome.FAILED, "failed"), (Outcome.UNKNOWN, "ended")):
        alone = make_frame(processes=(launcher,), target=make_target(outcome=outcome))
        answer = judge_finished(see(line_up([*frames, *hold(alone, 25)])))
        assert said(answer) == (Kind.IDLE, cause)
        assert not answer.seen
    long_ago = make_frame(processes=(launcher,), facts="no rank left · no loader workers")
    assert said(judge_finished(scene_of(long_ago, seconds=60))) == (Kind.IDLE, "ended")
    zombies = make_frame(processes=(make_process(state="Z"),))
    assert said(judge_finished(scene_of(zombies))) == (Kind.IDLE, "ended")
    assert type(judge_finished(scene_of(make_frame()))) is Cleared
    assert type(judge_finished(scene_of(make_frame(processes=(launcher,))))) is Cleared


def test_the_rank_that_failed_is_named():
    launcher = make_process(4200, role=Role.LAUNCHER, rank=NOT_APPLICABLE)
    alone = make_frame(processes=(launcher,), target=make_target(outcome=Outcome.FAILED))
    frames = line_up([*hold(make_frame()), replace(alone, ends=(make_end(),)), *hold(alone, 25)])
    answer = judge_finished(see(frames))
    assert answer.summary == "every rank has ended; rank 0 (4211): SIGKILL; OOM killer (kernel log)"
    assert Need.KILLED in answer.observed


def test_the_last_words_are_the_error_else_the_newest_line():
    old = make_output(fd=1, path="out", lines=("step 1", "step 2", ""), last_write=NOW - timedelta(60))
    new = make_output(fd=2, path="err", lines=("warning: slow", "  "), last_write=NOW)
    error = make_output(path="e", lines=("ValueError: nan", "====="), last_write=NOW - timedelta(90))

    def words(*logs):
        found = find_last_words(make_frame(output=logs))
        return found and (found[0].path, found[1])

    assert words(old, new) == ("err", "warning: slow")
    assert words(new, error, old) == ("e", "ValueError: nan")
    assert words(make_output(lines=())) is None
    assert words() is None
