"""How a job ended: its root's end, and the member that failed before, not the last one to go."""

import signal
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from tests.frames import make_process
from tests.members import describe_changes
from tpmon.model.known import NOT_APPLICABLE, Known, Missing
from tpmon.model.process import Identity, Outcome, Role
from tpmon.probe.job.events import DYING_NS, OUTLIVED_NS, Changes, Departure, MemberEnds, OomKills
from tpmon.probe.job.exit_status import UNSEEN
from tpmon.probe.job.job import Member

LAUNCHER = Member(
    identity=Identity(100, 1),
    parent=1,
    role=Role.LAUNCHER,
    rank=NOT_APPLICABLE,
    local_rank=NOT_APPLICABLE,
    worker=NOT_APPLICABLE,
    rank_pid=NOT_APPLICABLE,
    name="pt_elastic",
    label="torchrun",
    started=datetime(2026, 1, 1, tzinfo=timezone.utc),
    environment=(),
)
EXIT_1 = 1 << 8


def rank(number: int) -> Member:
    return replace(LAUNCHER, identity=Identity(101 + number, 2), role=Role.RANK, rank=number, label="train.py")


def worker(number: int) -> Member:
    return replace(LAUNCHER, identity=Identity(200 + number, 3), role=Role.WORKER, rank=0, worker=number, rank_pid=101)


def gone(*ends: tuple[Member, Known[int]]) -> Changes:
    return Changes(gone=tuple(Departure(member, status) for member, status in ends))


@pytest.fixture
def ends():
    return MemberEnds(LAUNCHER.identity)


def test_workers_that_outlive_the_root_do_not_tell_how_the_job_ended(ends):
    ends.add(gone((rank(0), signal.SIGKILL), (rank(1), signal.SIGTERM)), 0)
    ends.add(gone((LAUNCHER, EXIT_1)), 0)
    ends.add(gone((worker(0), 0)), 0)
    assert ends.describe() == "exit 1, after rank 0 (101): SIGKILL"


def test_the_first_failure_is_named_whatever_it_brought_down(ends):
    ends.add(gone((worker(1), signal.SIGKILL)), 0)
    ends.add(gone((rank(0), EXIT_1), (LAUNCHER, EXIT_1)), 0)
    assert ends.describe() == "exit 1, after worker 1 (201) of rank 0: SIGKILL"


def test_an_oom_kill_is_named_with_its_proof(ends):
    ends.add(gone((rank(0), signal.SIGKILL)), 0, oom_kills=1)
    ends.add(gone((LAUNCHER, EXIT_1)), 0)
    assert ends.describe() == ("exit 1, after rank 0 (101): SIGKILL; OOM kill counted in its control group")


def test_a_good_end_needs_no_story(ends):
    ends.add(gone((worker(0), signal.SIGKILL)), 0)
    ends.add(gone((rank(0), 0), (rank(1), 0), (LAUNCHER, 0)), 0)
    assert ends.describe() == "exit 0"


def test_a_failure_that_the_job_survived_is_not_its_end(ends):
    ends.add(gone((rank(0), signal.SIGKILL)), 0)
    ends.add(Changes(born=(replace(rank(0), identity=Identity(300, 9)),)), 0)
    ends.add(gone((LAUNCHER, signal.SIGINT)), 0)
    assert ends.describe() == "SIGINT"


def test_a_failure_before_a_restart_with_other_numbers_is_not_the_jobs_end(ends):
    old = [make_process(120 + number, start_ticks=2, rank=number) for number in (10, 11)]
    unseen = Missing("reaped")
    ends.add(gone((rank(11), signal.SIGKILL)), 0, living=old[:1])
    ends.add(gone((rank(10), signal.SIGTERM)), 1)
    assert ends.describe() == "SIGTERM, after rank 11 (112): SIGKILL"
    new = [make_process(300 + number, start_ticks=900, rank=number) for number in (2, 3)]
    ends.add(Changes(born=(replace(rank(2), identity=Identity(302, 900)),)), 2, living=new)
    ends.add(gone((LAUNCHER, unseen)), 3)
    assert ends.outcome is Outcome.UNKNOWN
    assert ends.describe() == UNSEEN


def test_a_failure_is_kept_while_a_rank_of_its_time_lives(ends):
    old, late = make_process(101, start_ticks=2), make_process(103, start_ticks=3, rank=2)
    ends.add(gone((rank(1), signal.SIGKILL)), 0, living=(old, late))
    ends.add(Changes(), 1, living=(late,))
    ends.add(Changes(), 2, living=(old, make_process(300, start_ticks=900, rank=5)))
    ends.add(gone((LAUNCHER, Missing("reaped"))), 3)
    assert ends.outcome is Outcome.FAILED


@pytest.mark.parametrize(("after_ns", "outcome"), [(OUTLIVED_NS, Outcome.FAILED), (OUTLIVED_NS + 1, Outcome.UNKNOWN)])
def test_a_failure_that_the_job_outlived_for_long_is_not_its_end(ends, after_ns, outcome):
    living = (make_process(101, start_ticks=2),)
    ends.add(gone((rank(1), signal.SIGKILL)), 7, living=living)
    ends.add(Changes(), 8, living=living)
    ends.add(gone((LAUNCHER, Missing("reaped"))), 7 + after_ns)
    assert ends.outcome is outcome
    ends.add(gone((worker(0), 0)), 7 + 2 * after_ns)
    assert ends.outcome is outcome, "the root has ended, and time changes nothing any more"


def test_what_happens_after_the_end_of_the_root_did_not_cause_it(ends):
    ends.add(gone((LAUNCHER, signal.SIGKILL)), 0)
    ends.add(gone((rank(0), signal.SIGABRT)), 0)
    assert ends.describe() == "SIGKILL"


def test_an_end_that_the_kernel_does_not_tell_is_said_to_be_unseen(ends):
    ends.add(gone((rank(0), Missing("this kernel keeps no exit status"))), 0)
    ends.add(gone((LAUNCHER, Missing("this kernel keeps no exit status"))), 0)
    assert ends.describe() == UNSEEN


def test_a_restart_names_who_made_it_necessary():
    born = tuple(replace(rank(number), identity=Identity(300 + number, 9)) for number in (0, 1))
    both = gone((rank(0), signal.SIGKILL), (rank(1), signal.SIGTERM))
    assert describe_changes(replace(both, born=born)) == (
        "elastic restart: 2 ranks replaced",
        "rank 0 (101) gone: SIGKILL",
    )
    respawn = gone((worker(0), 0), (worker(1), 0))
    assert describe_changes(replace(respawn, born=(worker(2), worker(3)))) == (
        "epoch respawn: 2 workers of rank 0 replaced",
    )


def test_oom_kills_of_the_past_and_of_another_place_are_not_new():
    kills = OomKills()
    looks = [("/job", 3), ("/job", 3), ("/job", 5), ("host", 90), ("host", 91), ("/job", 5), ("/job", 4)]
    assert [kills.count_new(*look, now_ns=0) for look in looks] == [0, 0, 2, 0, 1, 0, 0]
    assert kills.count_new("/job", Missing("gone"), 0) == 0
    assert kills.count_new("/job", 6, 0) == 2


def test_a_kill_is_counted_before_its_victim_is_gone():
    kills = OomKills()
    kills.count_new("/job", 0, 0)
    kills.count_new("/job", 1, 0)
    kills.count_new("/job", 1, DYING_NS - 1)
    assert kills.count_recent(DYING_NS - 1) == 1
    assert kills.count_recent(DYING_NS) == 0
    kills.count_new("/other", 7, DYING_NS - 1)
    assert kills.count_recent(DYING_NS - 1) == 0


def test_only_exit_0_of_the_root_is_a_good_end(ends):
    told = ends.add(gone((worker(0), signal.SIGKILL), (rank(0), 0)), 0)
    assert [(end.outcome, end.signal, end.how) for end in told] == [
        (Outcome.FAILED, "SIGKILL", "SIGKILL"),
        (Outcome.WELL, NOT_APPLICABLE, "exit 0"),
    ]
    ends.add(gone((LAUNCHER, 0)), 0)
    assert ends.outcome is Outcome.WELL


@pytest.mark.parametrize("status", [EXIT_1, signal.SIGTERM, signal.SIGKILL])
def test_a_root_that_failed_or_was_ended_is_a_failure(ends, status):
    ends.add(gone((LAUNCHER, status)), 0)
    ends.add(gone((worker(0), 0)), 0)
    assert ends.outcome is Outcome.FAILED


def test_an_end_that_nobody_saw_is_a_failure_only_where_another_saw_one(ends):
    unseen = Missing("reaped")
    ends.add(gone((LAUNCHER, unseen)), 0)
    assert ends.outcome is Outcome.UNKNOWN
    other = MemberEnds(LAUNCHER.identity)
    other.add(gone((rank(0), signal.SIGSEGV)), 0)
    other.add(gone((LAUNCHER, unseen)), 0)
    assert other.outcome is Outcome.FAILED


def test_ranks_without_their_launchers_word_ended_as_the_worst_of_them(ends):
    assert ends.ranks_outcome is Outcome.UNKNOWN
    ends.add(gone((rank(0), EXIT_1), (rank(1), 0)), 0)
    assert ends.ranks_outcome is Outcome.FAILED
    ends.add(Changes(born=(rank(0), rank(1))), 0)
    ends.add(gone((rank(0), 0)), 0)
    ends.add(gone((rank(1), 0)), 0)
    assert ends.ranks_outcome is Outcome.WELL
    ends.add(gone((rank(2), Missing("reaped"))), 0)
    assert ends.ranks_outcome is Outcome.UNKNOWN
