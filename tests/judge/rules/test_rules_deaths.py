"""Workers that a signal ends again and again: named as such, and no restart of an epoch."""

from dataclasses import replace

from tests.judge.rules.test_rules_end import make_end
from tests.starving import COMPUTES, line_up, make_second
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion
from tpmon.judge.features.snapshot import see
from tpmon.judge.hysteresis import key_of
from tpmon.judge.ranking import find_explained
from tpmon.judge.rules.loader import judge_killed_workers, judge_respawn
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.process import Outcome, Role
from tpmon.model.verdict import Kind

KILLED = make_end(pid=5001, role=Role.WORKER, worker=1, how="SIGKILL; OOM killer (kernel log)")


def ending(*ends, every=5):
    """See 40 s of a starved rank whose workers end like ``ends``, in turn, every so many seconds."""
    frames = [make_second(0.6, [COMPUTES] * 2, loader={"births": 12})] * 40
    told = [
        replace(frame, ends=(ends[i // every % len(ends)],)) if ends and i % every == 0 else frame
        for i, frame in enumerate(frames)
    ]
    return see(line_up(told))


def test_workers_that_are_killed_again_and_again_are_named_and_are_no_respawn():
    scene = ending(KILLED)
    found = judge_killed_workers(scene)
    assert isinstance(found, Suspicion)
    assert (found.kind, found.cause) == (Kind.DATA_BOUND, "killed-workers")
    assert found.summary == "workers are killed again and again: 8 by SIGKILL in the last minute"
    assert (found.rank, found.pid) == (0, 5001)
    assert found.evidence[1].text == "worker 1 (5001): SIGKILL; OOM killer (kernel log)"
    assert found.observed == {Need.WORKER_DIED}
    assert isinstance(judge_respawn(scene), Cleared)
    assert (Kind.DATA_BOUND, "respawn") in find_explained([key_of(found), (Kind.DATA_BOUND, "respawn")])


def test_signals_are_told_apart():
    crashed = replace(KILLED, signal="SIGSEGV", how="SIGSEGV (core dumped)")
    assert "6 by SIGKILL, 2 by SIGSEGV" in judge_killed_workers(ending(KILLED, KILLED, KILLED, crashed)).summary


def test_one_death_ends_of_epochs_and_polite_ends_accuse_nobody():
    well = replace(KILLED, outcome=Outcome.WELL, signal=NOT_APPLICABLE, how="exit 0")
    asked = replace(KILLED, signal="SIGTERM", how="SIGTERM")
    unseen = replace(KILLED, outcome=Outcome.UNKNOWN, signal=NOT_APPLICABLE)
    rank = replace(KILLED, role=Role.RANK)
    for ends in ((), (well,), (asked,), (unseen,), (rank,)):
        assert isinstance(judge_killed_workers(ending(*ends)), Cleared)
    assert isinstance(judge_killed_workers(ending(KILLED, every=40)), Cleared)
