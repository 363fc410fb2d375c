"""Word what happened in one second, the most important last, and how a job ended."""

import signal
from dataclasses import replace

import pytest

from tests.frames import NOW, make_process, make_worker
from tests.members import describe_changes, made_up
from tpmon.model.frame import Event, EventKind
from tpmon.model.known import NOT_APPLICABLE, Known, Missing
from tpmon.model.process import Freezer, Identity, Outcome, Role
from tpmon.probe.host.cgroup import CgroupReading
from tpmon.probe.job.events import (
    DYING_NS,
    OUTLIVED_NS,
    Changes,
    Departure,
    EventTracker,
    MemberEnds,
    OomKills,
    describe_attach,
)
from tpmon.probe.job.exit_status import UNSEEN
from tpmon.probe.job.job import Member

QUIET = Changes()
UNREAD = Missing("reaped")
PLACED = {"memory_source": "/job", "limit_source": "/job", "oom_kills": 0}
GROUP = CgroupReading(**dict.fromkeys(CgroupReading.__dataclass_fields__, UNREAD) | PLACED)


@pytest.mark.parametrize(
    ("ranks", "workers", "words"),
    [
        (1, 0, "1 rank, 0 loader workers"),
        (1, 1, "1 rank, 1 loader worker"),
        (2, 4, "2 ranks, 4 loader workers"),
        (0, 0, "0 ranks, 0 loader workers"),
    ],
)
def test_the_first_event_counts_ranks_and_workers(ranks, workers, words):
    assert describe_attach(4211, ranks, workers, NOW) == Event(NOW, EventKind.ATTACH, f"attached to pid 4211: {words}")


@pytest.fixture
def teller():
    return EventTracker(LAUNCHER.identity)


def tell(teller: EventTracker, changes: Changes = QUIET, processes=(), others=(), group=GROUP):
    events = teller.tell(NOW, changes, group, 0, processes=processes, others=others)
    return [event.text for event in events]


def test_events_of_one_second_stand_by_weight_the_most_important_last(teller):
    tell(teller)
    others = [Event(NOW, EventKind.GPU, "Xid 79 on GPU 0"), Event(NOW, EventKind.PROBE, "tpmon is over its CPU budget")]
    changes = replace(gone((rank(1), EXIT_1), (worker(0), 9)), born=(worker(5),), root_runs="resume.py")
    texts = tell(teller, changes, others=others, group=replace(GROUP, oom_kills=1))
    assert [text.split(" (")[0] for text in texts] == [
        "tpmon is over its CPU budget",
        "epoch respawn: 1 worker of rank 0 replaced",
        "worker 0",
        "the OOM killer ended 1 process in the job's control group",
        "Xid 79 on GPU 0",
        "rank 1",
        "the root of the job replaced itself",
    ]


def test_a_stop_and_its_end_are_one_event_each_and_a_freeze_is_told_with_its_group(teller):
    stopped = make_process(state="T")
    assert tell(teller, processes=[make_process(), make_worker()]) == []
    assert tell(teller, processes=[stopped, make_worker()]) == ["rank 0 (4211) stopped by a signal"]
    assert tell(teller, processes=[stopped, make_worker()]) == []
    both = [stopped, make_worker(4221, 0, state="T")]
    assert tell(teller, processes=both) == ["worker 0 (4221) of rank 0 stopped by a signal"]
    again = ["worker 0 (4221) of rank 0 running again", "rank 0 (4211) running again"]
    assert tell(teller, processes=[make_process(), make_worker(4221, 0)]) == again
    assert tell(teller, processes=[make_process(), make_worker(4221, 0)]) == []
    frozen = make_process(state="D", frozen=Freezer(1, "/train", "/sys/fs/cgroup/freezer/train"))
    assert tell(teller, processes=[frozen]) == ["rank 0 (4211) frozen by control group /train"]
    assert tell(teller, processes=[frozen]) == []
    assert tell(teller, processes=[make_process(state="t")]) == ["rank 0 (4211) running again"]


def test_a_stopped_process_that_ends_does_not_run_again_and_many_stops_at_once_are_counted(teller):
    assert tell(teller, processes=[make_process(state="T")]) == ["rank 0 (4211) stopped by a signal"]
    assert tell(teller, processes=[]) == []
    assert tell(teller, processes=[make_process(start_ticks=99)]) == [], "another one of the same PID"
    workers = [make_worker(4300 + i, i, state="T") for i in range(8)]
    helper = make_process(9, role=Role.HELPER, state="T")
    counted = ["8 workers of rank 0 stopped by a signal"]
    assert tell(teller, processes=[*workers, helper]) == counted, "those of helpers are none"


LAUNCHER = made_up(100, role=Role.LAUNCHER, rank=NOT_APPLICABLE, label="torchrun")
EXIT_1 = 1 << 8
KILL, TERM = signal.SIGKILL, signal.SIGTERM
FAILED, WELL, UNKNOWN = Outcome.FAILED, Outcome.WELL, Outcome.UNKNOWN


def rank(number: int, pid: int = 0, start_ticks: int = 2) -> Member:
    return made_up(pid or 101 + number, number, identity=Identity(pid or 101 + number, start_ticks))


def worker(number: int) -> Member:
    return made_up(200 + number, role=Role.WORKER, worker=number, rank_pid=101)


def gone(*ends: tuple[Member, Known[int]]) -> Changes:
    return Changes(gone=tuple(Departure(member, status) for member, status in ends))


def born(*members: Member) -> Changes:
    return Changes(born=members)


def lives(pid: int, start_ticks: int = 2, rank: int = 0):
    return make_process(pid, start_ticks=start_ticks, rank=rank)


@pytest.fixture
def ends():
    return MemberEnds(LAUNCHER.identity)


RESTARTED = (lives(302, 900, 2), lives(303, 900, 3))
STORIES = {
    "workers that outlive the root do not tell how the job ended": (
        [gone((rank(0), KILL), (rank(1), TERM)), gone((LAUNCHER, EXIT_1)), gone((worker(0), 0))],
        *("exit 1, after rank 0 (101): SIGKILL", FAILED),
    ),
    "the first failure is named whatever it brought down": (
        [gone((worker(1), KILL)), gone((rank(0), EXIT_1), (LAUNCHER, EXIT_1))],
        *("exit 1, after worker 1 (201) of rank 0: SIGKILL", FAILED),
    ),
    "a good end needs no story": (
        [gone((worker(0), KILL)), gone((rank(0), 0), (rank(1), 0), (LAUNCHER, 0))],
        *("exit 0", WELL),
    ),
    "a failure that the job survived is not its end": (
        [gone((rank(0), KILL)), born(rank(0, 300, 9)), gone((LAUNCHER, signal.SIGINT))],
        *("SIGINT", FAILED),
    ),
    "what happens after the end of the root did not cause it": (
        [gone((LAUNCHER, KILL)), gone((rank(0), signal.SIGABRT))],
        *("SIGKILL", FAILED),
    ),
    "an end that the kernel does not tell is said to be unseen": (
        [gone((rank(0), UNREAD)), gone((LAUNCHER, UNREAD))],
        *(UNSEEN, UNKNOWN),
    ),
    "it is a failure only where another saw one": (
        [gone((rank(0), signal.SIGSEGV)), gone((LAUNCHER, UNREAD))],
        *(f"{UNSEEN}, after rank 0 (101): SIGSEGV", FAILED),
    ),
    "a root that was ended is a failure": ([gone((LAUNCHER, TERM)), gone((worker(0), 0))], "SIGTERM", FAILED),
    "before a restart with other numbers it is the end": (
        [(gone((rank(11), KILL)), [lives(130, rank=10)]), gone((rank(10), TERM))],
        *("SIGTERM, after rank 11 (112): SIGKILL", FAILED),
    ),
    "after a restart with other numbers it is not": (
        [
            *((gone((rank(11), KILL)), [lives(130, rank=10)]), gone((rank(10), TERM))),
            *((born(rank(2, 302, 900)), RESTARTED), gone((LAUNCHER, UNREAD))),
        ],
        *(UNSEEN, UNKNOWN),
    ),
    "a failure is kept while a rank of its time lives": (
        [
            *((gone((rank(1), KILL)), [lives(101), lives(103, 3, 2)]), (Changes(), [lives(103, 3, 2)])),
            *((Changes(), [lives(101), lives(300, 900, 5)]), gone((LAUNCHER, UNREAD))),
        ],
        *(f"{UNSEEN}, after rank 1 (102): SIGKILL", FAILED),
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_the_end_of_a_job_is_that_of_its_root_and_of_who_failed_before(ends, story):
    steps, how, outcome = STORIES[story]
    for now_ns, step in enumerate(steps):
        changes, living = step if isinstance(step, tuple) else (step, ())
        ends.add(changes, now_ns, living=living)
    assert (ends.describe(), ends.outcome, ends.signal != NOT_APPLICABLE) == (how, outcome, "SIG" in how)


@pytest.mark.parametrize(
    ("steps", "how", "outcome"),
    [
        ([gone((rank(1), KILL), (LAUNCHER, 0))], "rank 1 (102): SIGKILL", FAILED),
        (
            [gone((worker(0), KILL)), gone((rank(0), EXIT_1)), gone((LAUNCHER, 0))],
            "worker 0 (200) of rank 0: SIGKILL",
            FAILED,
        ),
        ([gone((rank(0), TERM), (rank(1), 0)), gone((LAUNCHER, 0))], "rank 0 (101): SIGTERM", FAILED),
        (
            [gone((rank(0), KILL)), born(rank(0, 300, 9)), gone((rank(0, 300, 9), 0)), gone((LAUNCHER, 0))],
            "exit 0",
            WELL,
        ),
        ([gone((rank(0), 0), (rank(1), 0)), gone((LAUNCHER, 0))], "exit 0", WELL),
        ([gone((rank(0), UNREAD)), gone((LAUNCHER, 0))], UNSEEN, UNKNOWN),
        ([gone((rank(0), 0)), gone((LAUNCHER, KILL))], "SIGKILL", FAILED),
    ],
)
def test_what_starts_the_ranks_of_one_node_does_not_answer_for_them(steps, how, outcome):
    ends = MemberEnds(LAUNCHER.identity, answers=False)
    for now_ns, changes in enumerate(steps):
        ends.add(changes, now_ns)
    assert (ends.describe(), ends.outcome, ends.signal != NOT_APPLICABLE) == (how, outcome, "SIG" in how)


@pytest.mark.parametrize(("after_ns", "outcome"), [(OUTLIVED_NS, FAILED), (OUTLIVED_NS + 1, UNKNOWN)])
def test_a_failure_that_the_job_outlived_for_long_is_not_its_end(ends, after_ns, outcome):
    for now_ns, changes in ((7, gone((rank(1), KILL))), (8, Changes()), (7 + after_ns, gone((LAUNCHER, UNREAD)))):
        ends.add(changes, now_ns, living=[lives(101)] if now_ns < 9 else ())
    assert ends.outcome is outcome
    ends.add(gone((worker(0), 0)), 7 + 2 * after_ns)
    assert ends.outcome is outcome, "the root has ended, and time changes nothing any more"


def test_a_restart_names_who_made_it_necessary():
    both = gone((rank(0), KILL), (rank(1), TERM))
    assert describe_changes(replace(both, born=(rank(0, 300, 9), rank(1, 301, 9)))) == (
        *("elastic restart: 2 ranks replaced", "rank 0 (101) gone: SIGKILL"),
    )
    respawn = gone((worker(0), 0), (worker(1), 0))
    assert describe_changes(replace(respawn, born=(worker(2), worker(3)))) == (
        "epoch respawn: 2 workers of rank 0 replaced",
    )


def test_oom_kills_of_the_past_and_of_another_place_are_not_new_and_one_counts_before_its_victim_is_gone():
    kills = OomKills()
    looks = [("/job", 3), ("/job", 3), ("/job", 5), ("host", 90), ("host", 91), ("/job", 5), ("/job", 4)]
    looks += [("/job", Missing("gone")), ("/job", 6)]
    assert [kills.count_new(*look, now_ns=0) for look in looks] == [0, 0, 2, 0, 1, 0, 0, 0, 2]
    kills = OomKills()
    for look in ((0, 0), (1, 0), (1, DYING_NS - 1)):
        kills.count_new("/job", *look)
    assert (kills.count_recent(DYING_NS - 1), kills.count_recent(DYING_NS)) == (1, 0)
    kills.count_new("/other", 7, DYING_NS - 1)
    assert kills.count_recent(DYING_NS - 1) == 0


def test_each_end_is_told_with_its_signal_and_an_oom_kill_with_its_proof(ends):
    told = ends.add(gone((worker(0), KILL), (rank(0), 0)), 0)
    assert [(end.outcome, end.signal, end.how) for end in told] == [
        *((FAILED, "SIGKILL", "SIGKILL"), (WELL, NOT_APPLICABLE, "exit 0"))
    ]
    killed = MemberEnds(LAUNCHER.identity)
    killed.add(gone((rank(0), KILL)), 0, oom_kills=1)
    killed.add(gone((LAUNCHER, EXIT_1)), 0)
    assert killed.describe() == "exit 1, after rank 0 (101): SIGKILL; OOM kill counted in its control group"


def test_ranks_without_their_launchers_word_ended_as_the_worst_of_them(ends):
    outcomes = [ends.ranks_outcome]
    again = born(rank(0), rank(1))
    steps = (gone((rank(0), EXIT_1), (rank(1), 0)), again, gone((rank(0), 0), (rank(1), 0)), gone((rank(2), UNREAD)))
    for step in steps:
        ends.add(step, 0)
        outcomes.append(ends.ranks_outcome)
    assert outcomes == [UNKNOWN, FAILED, UNKNOWN, WELL, UNKNOWN]
