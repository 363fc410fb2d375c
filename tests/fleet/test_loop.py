"""What is asked of a fleet while it runs: whole Frames of a node, stacks and samples, from any thread."""

import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import wait_until
from tpmon.fleet import loop as loops
from tpmon.fleet.launch import AgentLaunch
from tpmon.fleet.loop import Fleet
from tpmon.model.frame import Frame
from tpmon.model.known import is_known
from tpmon.model.results.fleet import FleetReport, FleetStacks, NodeState

ODD = (sys.executable, str(Path(__file__).with_name("odd_agent.py")))


@contextmanager
def start(*modes: str, monkeypatch, told: int = 0):
    """Run a fleet of agents that obey, or are odd; go on once all are live, or the first ``told``."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    fleet = Fleet([AgentLaunch((*ODD, mode, "--node", f"n{at}"), (f"n{at}",)) for at, mode in enumerate(modes)])
    reports, errors, live = list[FleetReport](), list[BaseException](), threading.Event()

    def take(report: FleetReport) -> bool:
        reports.append(report)
        if all(node.state is NodeState.LIVE for node in report.nodes[: told or None]):
            live.set()
        return False

    fleet.start(take, errors.append)
    try:
        assert live.wait(60.0)
        yield fleet, lambda: reports[-1]
    finally:
        fleet.stop(30.0)
    assert not errors
    assert not any(thread.name == "tpmon-fleet" for thread in threading.enumerate())


def ask_stacks(fleet: Fleet, *nodes: str) -> FleetStacks:
    taken, come = list[FleetStacks](), threading.Event()
    fleet.ask_stacks(nodes, lambda stacks: (taken.append(stacks), come.set()))
    assert come.wait(60.0)
    return taken[0]


def test_a_node_sends_whole_frames_while_somebody_follows_it_and_after_it_came_again(monkeypatch):
    monkeypatch.setattr("tpmon.fleet.head.AGAIN_S", 0.5)
    frames, others = list[tuple[str, Frame]](), list[Frame]()

    def take(node: str, frame: Frame) -> None:
        frames.append((node, frame))

    def take_too(_node: str, frame: Frame) -> None:
        others.append(frame)

    with start("obeys", "obeys", monkeypatch=monkeypatch) as (fleet, _):
        fleet.follow("n1", take)
        fleet.follow("n1", take_too)
        assert wait_until(lambda: len(frames) >= 2 and others, 60.0)
        assert {node for node, _ in frames} == {"n1"}
        fleet.unfollow("n1", take_too)
        (link,) = [one for one in fleet.head._links if "n1" in one.nodes]
        link.process.kill()
        link.process.wait()
        frames.clear()
        assert wait_until(lambda: len(frames) >= 2, 60.0)
        fleet.unfollow("n1", take)
        assert wait_until(lambda: settled(frames), 60.0, 0.0)


def settled(frames: list[tuple[str, Frame]]) -> bool:
    """Tell whether no Frame comes for some seconds."""
    frames.clear()
    threading.Event().wait(3.0)
    return not frames


def test_stacks_of_all_nodes_are_folded_with_their_hosts_and_of_one_too(monkeypatch):
    with start("obeys", "obeys", monkeypatch=monkeypatch) as (fleet, _):
        stacks = ask_stacks(fleet)
        assert (stacks.unread, is_known(stacks.dump)) == ((), True)
        assert stacks.dump.host == "n0, n1"
        assert (stacks.dump.odd_one_out.host, stacks.dump.odd_one_out.rank) == ("n1", 1)
        assert ask_stacks(fleet, "n1").dump.host == "n1"


def test_a_node_that_denies_and_one_that_is_silent_are_named_and_keep_nobody(monkeypatch):
    monkeypatch.setattr(loops, "ANSWER_S", 3.0)
    with start("obeys", "shy", "live", monkeypatch=monkeypatch) as (fleet, _):
        stacks = ask_stacks(fleet)
        assert stacks.dump.host == "n0"
        assert stacks.unread == (("n1", "may not be read"), ("n2", "no answer"))
        alone = ask_stacks(fleet, "n1")
        assert (is_known(alone.dump), alone.unread) == (False, (("n1", "may not be read"),))


def test_a_sample_comes_from_the_node_that_was_asked(monkeypatch):
    with start("obeys", monkeypatch=monkeypatch) as (fleet, _):
        said, come = [], threading.Event()
        fleet.ask_sample("n0", 2.0, lambda hot: (said.append(hot), come.set()))
        assert come.wait(60.0)
        assert said[0].reason == "nothing in 2 s"
