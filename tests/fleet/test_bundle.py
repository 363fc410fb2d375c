"""A bundle of all nodes: the joint verdict, stacks and a Frame of each; what a node did not give is named."""

import json
import stat
import threading

import pytest

from tests.fleet.nodes import make_node
from tests.fleet.test_loop import start
from tests.frames import NOW
from tpmon.fleet import bundle
from tpmon.fleet.bundle import name_fleet_bundle, start_fleet_bundle
from tpmon.judge.nodes import FleetMemory, join_fleet
from tpmon.model.codec import decode
from tpmon.model.dump import Dump
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.results.fleet import FleetReport, NodeState

WITHIN_S = 90.0


def write_bundle(fleet, newest, hurries=lambda: False):
    """Write a bundle into the working directory, and return the line that is told at the end."""
    said, told = list[str](), threading.Event()
    start_fleet_bundle(fleet, newest, lambda line: (said.append(line), told.set()), hurries)
    assert told.wait(WITHIN_S)
    return said[0]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_the_nodes_give_is_there_and_what_they_do_not_is_named(folder, monkeypatch):
    monkeypatch.setattr("tpmon.fleet.loop.ANSWER_S", 3.0)
    with start("obeys", "obeys", "live", "jobless", monkeypatch=monkeypatch, told=3) as (fleet, newest):
        line = write_bundle(fleet, newest)
    (made,) = folder.iterdir()
    assert line.startswith(f"bundle   {made.name} (7 files, ")
    assert line.endswith("not in it the stacks of n2, a Frame of n3, a Frame of n2; README.txt says why")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()} == {0o600}
    report = decode(FleetReport, (made / "report.json").read_text())
    assert [one.state for one in report.nodes] == [*3 * [NodeState.LIVE], NodeState.NO_JOB]
    dump = decode(Dump, (made / "dump.json").read_text())
    assert (dump.host, dump.odd_one_out.host) == ("n0, n1", "n1")
    assert "n1" in (made / "dump.txt").read_text()
    for node in ("n0", "n1"):
        assert decode(Frame, (made / f"frame-{node}.json").read_text()).target.script == "train.py"
    assert "n[0-1]\ntpmon:" in (made / "versions.txt").read_text()
    readme = (made / "README.txt").read_text()
    assert "a Frame of n3: no job: this user runs no training job on this machine" in readme
    assert "the stacks of n2: no answer" in readme
    assert "a Frame of n2: it sent none in time" in readme
    assert json.loads((made / "report.json").read_text())["schema"] == "tpmon.fleet/1"


def test_a_screen_that_is_left_waits_for_no_node(folder, monkeypatch):
    with start("live", monkeypatch=monkeypatch) as (fleet, newest):
        line = write_bundle(fleet, newest, lambda: True)
    assert "(3 files, " in line
    assert "not in it dump.txt, a Frame of n0" in line


class Quiet:
    """Stand for a fleet that hands on nothing."""

    may_look = False

    def follow(self, _node, _take):
        pass

    unfollow = follow


def test_without_stacks_none_are_asked_for_and_a_reason_is_given(folder, monkeypatch):
    monkeypatch.setattr(bundle, "FRAMES_S", 0.1)
    monkeypatch.setattr(bundle, "MOST_FRAMES", 2)
    report = join_fleet(FleetMemory(), tuple(make_node(f"n{at}") for at in range(5)), NOW)
    line = write_bundle(Quiet(), lambda: report)
    assert "not in it dump.txt, a Frame of n[0-4]" in line
    (made,) = folder.iterdir()
    assert "dump.txt: not read: --no-stacks or --readonly" in (made / "README.txt").read_text()


def test_nothing_is_written_over(folder, monkeypatch):
    monkeypatch.setattr(bundle, "name_fleet_bundle", lambda _script, _now: "there")
    (folder / "there").mkdir()
    report = join_fleet(FleetMemory(), (make_node("n1"),), NOW)
    assert write_bundle(Quiet(), lambda: report) == "no bundle: there is there already, and nothing is written over"


def test_a_bundle_is_named_after_job_and_time():
    assert name_fleet_bundle("a b/../train $x.py", NOW) == "tpmon-fleet-bundle-a-20260314T030741"
    assert name_fleet_bundle("src/train\x1b.py --lr 1", NOW) == "tpmon-fleet-bundle-train_.py-20260314T030741"
    assert name_fleet_bundle(NOT_APPLICABLE, NOW) == "tpmon-fleet-bundle-job-20260314T030741"
