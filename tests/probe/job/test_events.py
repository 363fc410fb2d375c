"""Word what tpmon attached to, and what happened in one second, the most important last."""

from dataclasses import replace

import pytest

from tests.frames import NOW, make_process, make_worker
from tests.probe.job.test_exits import EXIT_1, LAUNCHER, gone, rank, worker
from tpmon.model.frame import Event, EventKind
from tpmon.model.known import Missing
from tpmon.model.process import Freezer, Role
from tpmon.probe.host.cgroup import CgroupReading
from tpmon.probe.job.events import Changes, EventTracker, describe_attach

QUIET = Changes()
UNREAD = Missing("not read")
GROUP = CgroupReading(
    **dict.fromkeys(CgroupReading.__dataclass_fields__, UNREAD)
    | {"memory_source": "/job", "limit_source": "/job", "oom_kills": 0}
)


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
    changes = replace(gone((rank(1), EXIT_1), (worker(0), 9)), born=(worker(5),))
    texts = tell(teller, changes, others=others, group=replace(GROUP, oom_kills=1))
    assert [text.split(" (")[0] for text in texts] == [
        "tpmon is over its CPU budget",
        "epoch respawn: 1 worker of rank 0 replaced",
        "worker 0",
        "the OOM killer ended 1 process in the job's control group",
        "Xid 79 on GPU 0",
        "rank 1",
    ]


def test_a_stop_and_its_end_are_one_event_each(teller):
    stopped = make_process(state="T")
    assert tell(teller, processes=[make_process(), make_worker()]) == []
    assert tell(teller, processes=[stopped, make_worker()]) == ["rank 0 (4211) stopped by a signal"]
    assert tell(teller, processes=[stopped, make_worker()]) == []
    both = [stopped, make_worker(4221, 0, state="T")]
    assert tell(teller, processes=both) == ["worker 0 (4221) of rank 0 stopped by a signal"]
    assert tell(teller, processes=[make_process(), make_worker(4221, 0)]) == [
        "worker 0 (4221) of rank 0 running again",
        "rank 0 (4211) running again",
    ]
    assert tell(teller, processes=[make_process(), make_worker(4221, 0)]) == []


def test_a_freeze_of_a_group_is_told_with_the_group_and_its_end(teller):
    frozen = make_process(state="D", frozen=Freezer(1, "/train", "/sys/fs/cgroup/freezer/train"))
    assert tell(teller, processes=[frozen]) == ["rank 0 (4211) frozen by control group /train"]
    assert tell(teller, processes=[frozen]) == []
    assert tell(teller, processes=[make_process(state="t")]) == ["rank 0 (4211) running again"]


def test_a_stopped_process_that_ends_does_not_run_again(teller):
    tell(teller, processes=[make_process(state="T")])
    assert tell(teller, processes=[]) == []
    assert tell(teller, processes=[make_process(start_ticks=99)]) == [], "another one of the same PID"


def test_many_stops_at_once_are_counted_and_those_of_helpers_are_none(teller):
    workers = [make_worker(4300 + i, i, state="T") for i in range(8)]
    helper = make_process(9, role=Role.HELPER, state="T")
    assert tell(teller, processes=[*workers, helper]) == ["8 workers of rank 0 stopped by a signal"]


def test_that_the_root_runs_another_program_is_one_event(teller):
    assert tell(teller, Changes(root_runs="resume.py")) == [
        "the root of the job replaced itself (exec) and now runs resume.py"
    ]
