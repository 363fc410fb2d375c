"""One verdict of many nodes: a hang, a rank that all wait for, else the worst; nobody is held by another."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from tests.dumps import make_rank, make_round
from tests.fleet.nodes import look_at, look_at_pair, make_node, make_pair, make_rank_summary, make_silent, make_verdict
from tests.frames import NOW
from tests.stacks import BROADCAST, IN_LOCK, PEER
from tpmon.judge.folds.groups import DumpOrigin, fold_rounds
from tpmon.judge.nodes import (
    AGAIN_S,
    ANSWER_S,
    WINDOW_S,
    FleetMemory,
    find_late,
    find_straggler,
    has_settled,
    is_over,
    join_fleet,
    list_views,
    measure_still,
    note_answer,
    note_asked,
    observe,
    plan_look,
)
from tpmon.model.dump import OtherEnd
from tpmon.model.frame import TargetState
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.fleet import NodeState
from tpmon.model.verdict import Kind
from tpmon.model.waits import Wait, WaitReason

T = 1000.0
QUIET = [
    NodeState.LATE,
    NodeState.GONE,
    NodeState.REFUSED,
    NodeState.NO_JOB,
    NodeState.OTHER_VERSION,
    NodeState.STARTING,
]


def test_stacks_are_asked_for_once_nothing_moves_on_any_node():
    assert plan_look(FleetMemory(), make_pair(5.0), T) == ()
    assert plan_look(FleetMemory(), make_pair(25.0, 3.0), T) == ()
    assert plan_look(FleetMemory(), make_pair(25.0), T) == ("n1", "n2")
    assert plan_look(FleetMemory(), make_pair(25.0, hang_after_s=120.0), T) == (), "the run itself pauses so long"
    asked = note_asked(FleetMemory(), ("n1", "n2"), T)
    assert plan_look(asked, make_pair(60.0), T + 30) == ()
    assert plan_look(asked, make_pair(250.0), T + AGAIN_S) == ("n1", "n2")


@pytest.mark.parametrize("state", QUIET)
def test_a_node_that_does_not_answer_holds_nobody(state):
    nodes = (*make_pair(25.0), make_silent("n3", state))
    assert plan_look(FleetMemory(), nodes, T) == ("n1", "n2")


def test_the_agent_of_a_single_node_judges_it_alone():
    assert plan_look(FleetMemory(), make_pair(25.0)[:1], T) == ()
    ended = make_node("n2", make_rank_summary(1), still_s=90.0, state=NodeState.LIVE)
    ended = replace(ended, summary=replace(ended.summary, state=TargetState.ENDED))
    assert plan_look(FleetMemory(), (make_pair(25.0)[0], ended), T) == ()


def stand(seconds: float, looks=None, world_size=2, **fields) -> tuple[FleetMemory, tuple]:
    """Let two nodes stand so long, with looks that were asked for ten seconds before."""
    nodes = make_pair(seconds, world_size=world_size, **fields)
    memory = note_asked(FleetMemory(), ("n1", "n2"), T - 10.0)
    for node, dump in (look_at_pair() if looks is None else looks).items():
        memory = note_answer(memory, node, dump)
    return observe(memory, nodes, T), nodes


def test_a_hang_is_named_with_node_rank_and_line():
    memory, nodes = stand(33.0)
    report = join_fleet(memory, nodes, NOW)
    assert report.verdict.kind is Kind.HUNG
    assert report.node == "n2"
    assert report.verdict.rank == 1
    assert report.verdict.pid == 4010
    assert "train.py:" in report.verdict.where
    assert report.verdict.summary.startswith("n2: ")
    assert "rank 1 is in hold train.py:12" in report.verdict.summary
    assert "on n2" in report.verdict.try_
    assert report.dump.host == "n1, n2"


@pytest.mark.parametrize(("told_s", "stands"), [(1e12, True), (1e300, True), (-1e300, False)])
def test_a_node_that_tells_an_odd_age_brings_nothing_down(told_s, stands):
    memory, nodes = stand(told_s)
    verdict = join_fleet(memory, nodes, NOW).verdict
    assert (is_known(verdict) and verdict.kind is Kind.HUNG) == stands
    assert plan_look(FleetMemory(), make_pair(told_s), T) == (("n1", "n2") if stands else ())


def test_nodes_that_tell_an_odd_date_bring_nothing_down():
    first = datetime.min.replace(tzinfo=timezone.utc)
    memory, nodes = stand(33.0, {node: replace(look, taken=first) for node, look in look_at_pair().items()})
    assert join_fleet(memory, nodes, NOW).verdict.since == first


def test_ranks_of_several_nodes_that_wait_for_each_other_hang_together():
    looks = {"n1": look_at(make_rank(0)), "n2": look_at(make_rank(1, frames=BROADCAST))}
    memory, nodes = stand(33.0, looks)
    report = join_fleet(memory, nodes, NOW)
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, "missing-rank")
    assert "different collectives" in report.verdict.summary
    assert not is_known(report.node)


def test_machines_of_one_name_and_ranks_of_one_pid_are_told_apart():
    memory, nodes = stand(33.0, look_at_pair((7, 7)))
    report = join_fleet(memory, nodes, NOW)
    assert (report.verdict.kind, report.node, report.verdict.pid) == (Kind.HUNG, "n2", 7)


def test_ten_seconds_of_looks_are_no_hang_where_nobody_watched_for_longer():
    memory, nodes = stand(12.0)
    verdict = join_fleet(memory, nodes, NOW).verdict
    assert verdict.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert "if it stays so, hung" in verdict.summary


def test_it_is_a_hang_as_soon_as_it_has_lasted_long_enough():
    memory, nodes = stand(28.0)
    assert join_fleet(memory, nodes, NOW).verdict.kind is Kind.NOT_ENOUGH_EVIDENCE
    memory = observe(memory, make_pair(34.0), T + 6.0)
    assert join_fleet(memory, make_pair(34.0), NOW).verdict.kind is Kind.HUNG


def test_a_run_that_pauses_for_long_is_given_twice_as_long():
    memory, nodes = stand(90.0, hang_after_s=200.0)
    assert join_fleet(memory, nodes, NOW).verdict.kind is Kind.NOT_ENOUGH_EVIDENCE
    memory, nodes = stand(201.0, hang_after_s=200.0)
    assert join_fleet(memory, nodes, NOW).verdict.kind is Kind.HUNG


@pytest.mark.parametrize(
    ("reason", "seconds", "kind"),
    [
        (WaitReason.SLEEP, 60.0, Kind.NOT_ENOUGH_EVIDENCE),
        (WaitReason.SLEEP, 80.0, Kind.HUNG),
        (WaitReason.READ_WRITE, 80.0, Kind.NOT_ENOUGH_EVIDENCE),
    ],
)
def test_a_rank_that_sleeps_and_looks_again_is_a_hang_after_as_long_as_on_one_node(reason, seconds, kind):
    looks = [
        make_round(make_rank(1, frames=IN_LOCK, waits_for=Wait(reason), slices=100 * number), at_s=5.0 * number)
        for number in range(3)
    ]
    polling = fold_rounds(looks, DumpOrigin(1, "train.py", 2))
    memory, nodes = stand(seconds, {"n1": look_at(make_rank(0)), "n2": polling})
    assert join_fleet(memory, nodes, NOW).verdict.kind is kind


def test_movement_disproves_the_looks():
    memory, _ = stand(33.0)
    moved = make_pair(1.0)
    memory = observe(memory, moved, T + 1.0)
    assert not is_known(memory.folded)
    assert not memory.looks
    assert isinstance(join_fleet(memory, moved, NOW).verdict, Missing)
    assert plan_look(memory, make_pair(25.0), T + 40.0) == ("n1", "n2"), "the next standstill is another one"


def test_a_node_that_gives_no_stacks_is_waited_for_and_then_left_out():
    nodes = make_pair(40.0)
    memory = note_asked(FleetMemory(), ("n1", "n2"), T)
    memory = note_answer(memory, "n1", look_at_pair()["n1"])
    assert not is_known(observe(memory, nodes, T + 5).folded)
    late = observe(memory, nodes, T + ANSWER_S)
    assert is_known(late.folded)
    assert late.folded.verdict.kind is Kind.NOT_ENOUGH_EVIDENCE, "the other rank is elsewhere"
    refused = note_answer(memory, "n2", Missing("py-spy may not"))
    assert is_known(observe(refused, nodes, T + 5).folded)


def test_what_nobody_asked_for_is_no_look():
    memory = note_asked(FleetMemory(), ("n1",), T)
    assert note_answer(memory, "n3", look_at(make_rank(0))) is memory
    twice = note_answer(note_answer(memory, "n1", look_at(make_rank(0))), "n1", look_at(make_rank(0)))
    assert len(twice.looks) == 1


def lose(other, after_s: float = 41.0, looks=None) -> tuple[FleetMemory, tuple]:
    """Let rank 1 on n2 be seen, and so much later be gone, while rank 0 on n1 stands."""
    memory = observe(FleetMemory(), make_pair(), T - after_s)
    nodes = (make_pair(after_s)[0], other)
    memory = observe(memory, nodes, T - 12.0)
    asked = plan_look(memory, nodes, T - 12.0)
    memory = note_asked(memory, asked, T - 12.0)
    for node in asked:
        memory = note_answer(memory, node, looks or look_at(make_rank(0)))
    return observe(memory, nodes, T), nodes


KILLED = make_verdict(Kind.IDLE, "failed", summary="the job has ended: SIGKILL")
ENDED = replace(make_node("n2", verdict=KILLED, state=TargetState.ENDED), state=NodeState.NO_JOB)
LOST = {
    "it has ended": (ENDED, "n2: rank 1 has ended (the job has ended: SIGKILL); "),
    "its node is gone": (
        make_silent("n2", NodeState.GONE, "No route to host"),
        "n2: it answers no more, and has rank 1 (No route to host); ",
    ),
    "its agent is started again": (
        replace(make_silent("n2", NodeState.STARTING), reason=NOT_APPLICABLE),
        "n2: it answers no more, and has rank 1; ",
    ),
}


@pytest.mark.parametrize(("other", "said"), LOST.values(), ids=LOST)
def test_a_rank_that_is_nowhere_any_more_is_what_those_in_a_collective_wait_for(other, said):
    memory, nodes = lose(other)
    report = join_fleet(memory, nodes, NOW)
    assert (report.verdict.kind, report.verdict.cause) == (Kind.HUNG, "missing-rank")
    assert (report.node, report.verdict.rank, report.verdict.pid) == ("n2", 1, NOT_APPLICABLE)
    assert report.verdict.summary == f"{said}the rank that is left waits in all_reduce train.py:40, for 41 s"


def at_socket(peer: str, pid: int):
    """Let rank 0 wait at a socket whose other end a process of its host has."""
    ends = (OtherEnd(pid, NOT_APPLICABLE, "rank 0"),)
    target = replace(PEER, peer=peer, others=ends)
    return look_at(make_rank(0, frames=IN_LOCK, waits_for=Wait(WaitReason.READ_WRITE), waits_on=target))


@pytest.mark.parametrize(("pid", "node"), [(4000, "n2"), (77, None)])
def test_who_waits_at_the_store_that_a_rank_serves_waits_for_ranks_too(pid, node):
    memory, nodes = lose(ENDED, looks=at_socket("10.0.0.7:29500", pid))
    report = join_fleet(memory, nodes, NOW)
    assert (report.node if is_known(report.node) else None) == node


def test_what_a_node_says_of_its_own_rank_waits_until_the_stacks_of_all_are_there():
    hung = make_verdict(Kind.HUNG, "blocked-io")
    memory, nodes = lose(ENDED, 31.0)
    nodes = (replace(nodes[0], verdict=hung), nodes[1])
    unread = replace(memory, folded=NOT_APPLICABLE)
    assert join_fleet(unread, nodes, NOW).verdict.kind is not Kind.HUNG
    assert join_fleet(replace(unread, absent=()), nodes, NOW).verdict.kind is Kind.HUNG
    later = (make_node("n1", make_rank_summary(0), still_s=36.0, verdict=hung), nodes[1])
    assert join_fleet(unread, later, NOW).node == "n1"


def test_a_node_that_is_silent_for_less_than_its_next_agent_needs_is_not_gone():
    memory, nodes = lose(make_silent("n2", NodeState.GONE), 36.0)
    assert memory.absent == ()
    assert join_fleet(memory, nodes, NOW).verdict.kind is not Kind.HUNG


def test_whoever_is_left_and_waits_for_no_rank_may_itself_be_to_blame():
    memory, nodes = lose(ENDED, looks=look_at(make_rank(0, frames=IN_LOCK)))
    report = join_fleet(memory, nodes, NOW)
    assert report.node != "n2"
    assert report.verdict.cause != "missing-rank"


def test_a_rank_that_is_now_on_another_node_is_not_absent():
    memory = observe(FleetMemory(), make_pair(), T)
    moved = (make_pair()[0], make_silent("n2", NodeState.GONE), make_node("n3", make_rank_summary(1)))
    assert [one.node for one in observe(memory, moved[:2], T + 60).absent] == ["n2"]
    assert observe(memory, moved, T + 60).absent == ()


def wait(*ratios: float, per_node: int = 1) -> list:
    ranks = [make_rank_summary(rank, wait_ratio=ratio) for rank, ratio in enumerate(ratios)]
    return [
        make_node(f"n{at}", *ranks[at : at + per_node], world_size=len(ratios))
        for at in range(0, len(ratios), per_node)
    ]


LATE = {
    "three wait for one": (wait(0.7, 0.72, 0.05, 0.69), 2),
    "two on each node": (wait(0.7, 0.72, 0.69, 0.05, per_node=2), 3),
    "all wait alike": (wait(0.7, 0.72, 0.68, 0.69), None),
    "nobody waits long": (wait(0.2, 0.2, 0.01, 0.2), None),
    "one is not known": ([*wait(0.7, 0.05), make_node("n9", make_rank_summary(2))], None),
    "one node has all": (wait(0.7, 0.05, per_node=2), None),
    "nobody is there": ([], None),
    "one saves, and the others stand": (
        [
            replace(one, summary=replace(one.summary, still_s=15.0 * (at != 1)))
            for at, one in enumerate(wait(0.9, 0.0, 0.9))
        ],
        None,
    ),
    "two jobs": ([*wait(0.7, 0.72), *wait(0.05, 0.06)], None),
    "two jobs of other sizes": (
        [wait(0.7, 0.72)[0], make_node("n9", make_rank_summary(2, wait_ratio=0.05), world_size=4)],
        None,
    ),
    "one validates": (
        [replace(one, summary=replace(one.summary, kind=Kind.PAUSED)) for one in wait(0.9, 0.0, 0.9)],
        None,
    ),
}


@pytest.mark.parametrize(("nodes", "rank"), LATE.values(), ids=LATE)
def test_the_rank_that_others_wait_for_waits_least(nodes, rank):
    late = find_late(nodes)
    assert (None if late is None else late.rank) == rank


@pytest.mark.parametrize(("own", "rank"), [((40, 41, 90), 2), ((40, 41, 45), None), ((90, 40, 41), 0)])
def test_by_their_hooks_it_is_the_rank_whose_own_part_of_a_step_is_longest(own, rank):
    nodes = [make_node(f"n{at}", make_rank_summary(at, own_ms=float(ms), step_ms=120.0)) for at, ms in enumerate(own)]
    late = find_late(nodes)
    assert (None if late is None else late.rank) == rank


def test_three_of_five_windows_make_a_straggler():
    slow, even = wait(0.7, 0.05), wait(0.6, 0.6)
    memory, seen = FleetMemory(), []
    for number, nodes in enumerate((slow, even, slow, even, slow, even, even)):
        memory = observe(memory, nodes, T + WINDOW_S * number)
        late = find_straggler(memory.windows)
        seen.append(late.rank if late else None)
    assert seen == [None, None, None, None, 1, None, None]


def test_a_straggler_is_named_with_its_node_and_rank():
    nodes = wait(0.7, 0.05)
    memory = FleetMemory()
    for number in range(3):
        memory = observe(memory, nodes, T + WINDOW_S * number)
    report = join_fleet(memory, nodes, NOW)
    assert (report.verdict.kind, report.verdict.cause) == (Kind.COMMS_BOUND, "straggler")
    assert (report.node, report.verdict.rank, report.verdict.pid) == ("n1", 1, 4010)
    assert "5.0 % of the time, the others 70 %" in report.verdict.summary


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (make_verdict(Kind.DATA_BOUND, "too-few-workers"), "; its node is data-bound (too-few-workers)"),
        (make_verdict(Kind.COMMS_BOUND, "unknown"), "they wait for it"),
        (make_verdict(Kind.BALANCED), "they wait for it"),
    ],
)
def test_what_holds_the_node_of_a_late_rank_may_be_why(own, why):
    nodes = wait(0.7, 0.05)
    nodes[1] = replace(nodes[1], verdict=own)
    late = find_late(nodes)
    summary = join_fleet(FleetMemory(windows=(late, late, late)), nodes, NOW).verdict.summary
    assert summary.endswith(why)


STARVED = make_verdict(Kind.DATA_BOUND, "too-few-workers", share_pct=30.0)
WAITS = make_verdict(Kind.COMMS_BOUND, "unknown", share_pct=60.0)
GOOD = make_verdict(Kind.BALANCED)
ELSEWHERE = make_verdict(Kind.HUNG, "remote-rank")
STOPPED = make_verdict(Kind.HUNG, "stopped")
OPEN = make_verdict()
JOINED = {
    "all are well": ((GOOD, GOOD), Kind.BALANCED, None),
    "one starves, and the other waits for it": ((WAITS, STARVED), Kind.DATA_BOUND, "n2"),
    "one does something alone, and the other waits for it": ((WAITS, OPEN), Kind.NOT_ENOUGH_EVIDENCE, "n2"),
    "both wait": ((WAITS, WAITS), Kind.COMMS_BOUND, None),
    "both starve": ((STARVED, STARVED), Kind.DATA_BOUND, None),
    "one is stopped": ((STOPPED, WAITS), Kind.HUNG, "n1"),
    "each waits for ranks elsewhere, and all are seen": ((ELSEWHERE, ELSEWHERE), None, None),
    "one waits for ranks elsewhere, which are well": ((ELSEWHERE, GOOD), Kind.BALANCED, "n2"),
    "one is undecided": ((GOOD, OPEN), Kind.NOT_ENOUGH_EVIDENCE, "n2"),
    "none told so far": ((NOT_APPLICABLE, NOT_APPLICABLE), None, None),
}


STRANGERS = {
    "one rank twice": (
        (make_node("n1", make_rank_summary(0)), make_node("n2", make_rank_summary(0))),
        "rank 0 is on n1 and on n2: ",
    ),
    "two sizes": (
        (make_node("n1", make_rank_summary(0)), make_node("n2", make_rank_summary(1), world_size=8)),
        "n1 is of 2 ranks, n2 of 8: ",
    ),
    "one job": (make_pair(), ""),
    "no numbers of their launcher": (
        (
            make_node("n1", make_rank_summary(0), world_size=1),
            make_node("n2", make_rank_summary(0), world_size=NOT_APPLICABLE),
        ),
        "",
    ),
}


@pytest.mark.parametrize(("nodes", "said"), STRANGERS.values(), ids=STRANGERS)
def test_of_several_jobs_each_node_is_judged_alone(nodes, said):
    still = tuple(replace(one, summary=replace(one.summary, still_s=60.0), verdict=make_verdict()) for one in nodes)
    assert bool(plan_look(FleetMemory(), still, T)) == (not said)
    report = join_fleet(FleetMemory(), still, NOW)
    assert said in report.verdict.summary
    assert ("each node is judged alone" in report.verdict.summary) == bool(said)


def test_a_run_that_was_started_again_with_fewer_ranks_waits_for_none_of_those_before():
    memory = observe(FleetMemory(), make_pair(), T)
    left = (make_node("n1", make_rank_summary(0), world_size=1), make_silent("n2", NodeState.GONE))
    assert observe(memory, left, T + 60).absent == ()


def test_the_worst_of_some_nodes_is_not_said_of_each():
    nodes = (*(replace(one, verdict=make_verdict()) for one in make_pair()), make_silent("n3", NodeState.REFUSED))
    assert join_fleet(FleetMemory(), nodes, NOW).verdict.summary.startswith("on 2 of 3 nodes, such as n1: ")


@pytest.mark.parametrize(("verdicts", "kind", "node"), JOINED.values(), ids=JOINED)
def test_of_the_nodes_own_verdicts_the_worst_that_no_other_explains_is_stated(verdicts, kind, node):
    nodes = [replace(one, verdict=verdict) for one, verdict in zip(make_pair(), verdicts, strict=True)]
    report = join_fleet(FleetMemory(), nodes, NOW)
    assert (report.verdict.kind if is_known(report.verdict) else None) is kind
    assert (report.node if is_known(report.node) else None) == node


def test_of_a_job_that_stands_it_is_said_when_that_is_a_hang_here():
    nodes = [replace(one, verdict=OPEN) for one in make_pair(12.0)]
    verdict = join_fleet(FleetMemory(), nodes, NOW).verdict
    assert verdict.summary == "no rank of 2 nodes has moved for 12 s; called a hang from 30 s on"
    assert verdict.try_ is NOT_APPLICABLE
    nodes = [replace(one, verdict=OPEN) for one in make_pair(73.0)]
    said = "no rank of 2 nodes has moved for 1m13s; no stacks of all nodes tell so far whether it hangs"
    assert join_fleet(FleetMemory(), nodes, NOW).verdict.summary == said


def test_ranks_elsewhere_are_to_blame_while_these_are_not_seen():
    nodes = [replace(one, verdict=ELSEWHERE) for one in make_pair(world_size=4)]
    assert join_fleet(FleetMemory(), nodes, NOW).verdict.cause == "remote-rank"


@pytest.mark.parametrize(
    ("try_", "code", "marked", "pasted"),
    [
        ("ls", NOT_APPLICABLE, "ls  # on n2", NOT_APPLICABLE),
        ("ls", "ls", "ls  # on n2", "ls  # on n2"),
        ("look: ls", "ls", "look: ls  # on n2", "ls  # on n2"),
        ("look:\nls\ncd", "ls\ncd", "look:\nls  # on n2\ncd", "ls  # on n2\ncd"),
        (NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE),
    ],
)
def test_what_to_paste_says_on_which_node_once(try_, code, marked, pasted):
    held = make_verdict(Kind.DATA_BOUND, "storage-latency", try_=try_, try_code=code)
    nodes = (make_node("n1", make_rank_summary(0), verdict=GOOD), make_node("n2", make_rank_summary(1), verdict=held))
    found = join_fleet(FleetMemory(), nodes, NOW).verdict
    assert (found.try_, found.try_code) == (marked, pasted)


def test_nodes_that_differ_are_shown_the_worst_first():
    nodes = [
        make_node("a", verdict=GOOD),
        make_node("b", verdict=STARVED),
        make_node("c", verdict=GOOD),
        make_node("d", verdict=STOPPED),
        make_silent("e", NodeState.GONE),
    ]
    assert [(one.kind, one.nodes) for one in list_views(nodes)] == [
        (Kind.HUNG, ("d",)),
        (Kind.DATA_BOUND, ("b",)),
        (Kind.BALANCED, ("a", "c")),
    ]


def test_once_ends_when_every_node_has_answered_in_some_way():
    told = make_node("a", verdict=GOOD)
    assert has_settled([told, make_silent("b", NodeState.REFUSED)])
    assert not has_settled([told, make_node("b")])
    starting = replace(make_silent("b", NodeState.STARTING), reason=NOT_APPLICABLE)
    assert not has_settled([told, starting])
    assert has_settled([told, replace(starting, reason="no answer within 30 s")])


def end(node, state=NodeState.LIVE):
    return replace(node, state=state, summary=replace(node.summary, state=TargetState.ENDED), verdict=FINISHED)


FINISHED = make_verdict(Kind.IDLE, "finished")
OVER = {
    "both run": (make_pair(), False),
    "one has ended": ([end(make_pair()[0]), make_pair()[1]], False),
    "both have ended": ([end(one) for one in make_pair()], True),
    "their agents look for another job": ([end(one, NodeState.NO_JOB) for one in make_pair()], True),
    "one may come back": ([end(make_pair()[0]), make_silent("n2", NodeState.GONE)], False),
    "one was never there": ([end(make_pair()[0]), make_silent("n2", NodeState.REFUSED)], True),
    "no agent runs anywhere": (
        [make_silent("n1", NodeState.REFUSED), make_silent("n2", NodeState.OTHER_VERSION)],
        True,
    ),
    "it has not begun": ([make_silent("n1", NodeState.NO_JOB)], False),
}


@pytest.mark.parametrize(("nodes", "over"), OVER.values(), ids=OVER)
def test_it_is_over_when_the_job_has_ended_wherever_it_ran(nodes, over):
    assert is_over(nodes) is over


def test_what_is_said_last_is_how_it_ended():
    nodes = [end(one, NodeState.NO_JOB) for one in make_pair()]
    assert join_fleet(FleetMemory(), nodes, NOW).verdict.cause == "finished"


@pytest.mark.parametrize("asked_s", [10.0, 1200.0])
def test_the_time_that_the_user_gave_decides_when_it_is_a_hang(asked_s):
    assert (
        measure_still(make_pair(25.0, hang_after_s=asked_s), FleetMemory(hang_after_s=asked_s)).hang_after_s == asked_s
    )
