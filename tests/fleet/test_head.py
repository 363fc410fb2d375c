"""The head holds its own against agents that are late, gone, older, mute and hostile; the others go on."""

import os
import re
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tests.fleet.watching import watching
from tests.frames import NOW
from tests.waiting import wait_until
from tpmon.fleet import head as heads
from tpmon.fleet.head import FleetHead, find_last_words
from tpmon.fleet.launch import AgentLaunch
from tpmon.model.known import is_known
from tpmon.model.results.fleet import NodeState

ODD = (sys.executable, str(Path(__file__).with_name("odd_agent.py")))


@contextmanager
def start(*modes: str):
    """Start an agent of each mode, the first one named n0."""
    launches = [
        AgentLaunch((*ODD, mode, "--node", f"n{at}"), (f"n{at}",))
        if mode != "absent"
        else AgentLaunch(("/no/such/program",), (f"n{at}",))
        for at, mode in enumerate(modes)
    ]
    head = FleetHead(launches)
    try:
        yield head
    finally:
        begun_s = time.monotonic()
        head.close()
        assert time.monotonic() - begun_s < 4 * heads.END_S


@pytest.fixture(autouse=True)
def see_the_tests(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def watch(head: FleetHead, at: int, state: NodeState, limit_s: float = 60.0):
    """Poll until a node is in a state; return what is known of it then."""
    rows = []

    def is_there() -> bool:
        head.poll(0.1)
        rows[:] = head.rows()
        return rows[at].state is state

    assert wait_until(is_there, limit_s, 0.0), rows[at]
    return rows[at]


STATES = {
    "live": (NodeState.LIVE, ""),
    "older": (NodeState.OTHER_VERSION, "tpmon 0.0.1 there"),
    "jobless": (NodeState.NO_JOB, "no training job"),
    "denied": (NodeState.REFUSED, "me@n1: Permission denied (publickey)."),
    "dies": (NodeState.GONE, "SIGKILL"),
    "stops": (NodeState.LATE, "answers no more"),
    "mute": (NodeState.STARTING, ""),
    "hostile": (NodeState.GONE, "no message of tpmon"),
    "endless": (NodeState.REFUSED, "no message of tpmon"),
    "absent": (NodeState.REFUSED, "No such file"),
    "deaf": (NodeState.LIVE, ""),
}


@pytest.mark.parametrize("mode", STATES)
def test_each_state_has_its_reason_and_the_other_node_goes_on(mode):
    state, reason = STATES[mode]
    with start("live", mode) as head:
        watch(head, 0, NodeState.LIVE)
        row = watch(head, 1, state)
        said = row.reason if is_known(row.reason) else ""
        assert reason in said
        assert said.isprintable()
        assert head.rows()[0].age_s < heads.LATE_S
        assert is_known(head.rows()[1].summary) is (mode in ("live", "deaf", "dies", "stops"))


def test_a_node_whose_first_words_were_lost_says_them_again():
    with start("prompts") as head:
        watch(head, 0, NodeState.LIVE)


def test_of_a_node_that_sends_too_many_whole_frames_some_are_kept():
    with start("gushes") as head:
        head.ask_frames(frozenset({"n0"}))
        assert wait_until(lambda: head.poll(0.1) or head.take_answers(), 60.0, 0.0)
        head.poll(2.0)
        assert len(head.take_answers()) == heads.MOST_FRAMES


def test_a_clock_that_is_ahead_is_measured():
    with start("ahead") as head:
        watch(head, 0, NodeState.LIVE)
        assert wait_until(lambda: head.poll(0.1) or is_known(head.rows()[0].clock_skew_s), 30.0, 0.0)
        assert 300 * 86_400 < head.rows()[0].clock_skew_s < 400 * 86_400


@pytest.mark.parametrize(
    ("way_s", "back_s", "ahead_s", "said_s"),
    [
        (0.0, 0.0, 0.0, 0.0),
        (0.2, 0.2, 0.0, 0.0),
        (3.0, 0.0, 0.0, 0.0),
        (0.0, 3.0, 0.0, 0.0),
        (0.2, 0.2, 5.0, 5.0),
        (0.2, 0.2, -5.0, -5.0),
        (0.0, 0.0, 0.5, 0.5),
        (0.2, 0.2, 0.1, 0.0),
    ],
)
def test_the_way_of_a_message_is_no_difference_of_clocks(way_s, back_s, ahead_s, said_s):
    def at(seconds):
        return NOW + timedelta(seconds=seconds)

    thought_s = 0.7
    came_s, answered_s = way_s + ahead_s, way_s + thought_s + ahead_s
    said = heads.measure_skew(NOW, at(came_s), at(answered_s), at(way_s + thought_s + back_s))
    assert said == pytest.approx(said_s)


def test_one_that_never_answers_is_told_so_after_a_while(monkeypatch):
    monkeypatch.setattr(heads, "START_S", 0.5)
    with start("mute") as head:
        assert wait_until(lambda: head.poll(0.1) or is_known(head.rows()[0].reason), 30.0, 0.0)
        assert head.rows()[0].reason == "no answer within 0.5 s"


def test_one_that_was_lost_is_started_again_and_one_that_was_refused_is_not(monkeypatch):
    monkeypatch.setattr(heads, "AGAIN_S", 1.0)
    with start("dies", "denied") as head:
        watch(head, 0, NodeState.GONE)
        watch(head, 0, NodeState.LIVE)
        assert watch(head, 1, NodeState.REFUSED).state is NodeState.REFUSED


def test_a_connection_that_was_lost_is_tried_again_and_in_the_end_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr(heads, "AGAIN_S", 0.3)
    gate = tmp_path / "gate"
    gate.touch()
    speak = " ".join((*ODD, "dies", "--node", "n0"))
    command = ("sh", "-c", f"test -e {gate} || {{ echo no route to host >&2; exit 255; }}; rm {gate}; exec {speak}")
    head = FleetHead([AgentLaunch(command, ("n0",), tries=3)])
    try:
        watch(head, 0, NodeState.LIVE)
        assert watch(head, 0, NodeState.GONE).reason != ""
        assert wait_until(lambda: head.poll(0.1) or "no route" in str(head.rows()[0].reason), 30.0, 0.0)
        assert head.rows()[0].state is NodeState.GONE
        assert "no route" in watch(head, 0, NodeState.REFUSED).reason
    finally:
        head.close()


SSH = ("ssh", "--", "n1", "tpmon agent --node n1")
LAST = {
    "bash": ("Welcome\nbash: line 1: tpmon: command not found\n", "bash: line 1: tpmon: command not found"),
    "fish": ("fish: Unknown command: tpmon\nfish: \ntpmon agent --node n1\n^~~~^\n", "fish: Unknown command: tpmon"),
    "marks below a line": (
        "  File x\n    f(\n    ^\nSyntaxError: '(' was never closed\n     ^^\n",
        "SyntaxError: '(' was never closed",
    ),
    "a word": ("Killed\n", "Killed"),
    "only marks": ("^^^\n", "^^^"),
    "nothing": ("", ""),
}


@pytest.mark.parametrize(("said", "words"), LAST.values(), ids=LAST)
def test_the_last_words_are_those_that_say_something(said, words):
    assert find_last_words(said, SSH) == words


def test_a_secret_in_the_last_words_of_a_launcher_is_hidden():
    command = ("sh", "-c", "echo 'login failed: password=hunter2hunter2' >&2; exit 1")
    head = FleetHead([AgentLaunch(command, ("n0",))])
    try:
        assert watch(head, 0, NodeState.REFUSED).reason == "login failed: password=***"
    finally:
        head.close()


def test_a_silent_node_of_a_step_is_started_again_beside_those_that_speak(monkeypatch):
    monkeypatch.setattr(heads, "AGAIN_S", 3.0)
    one, other = (" ".join((*ODD, mode, "--node", node)) for mode, node in (("live", "n0"), ("dies", "n1")))
    step = ("sh", "-c", f"{one} & exec {other}")
    again = []

    def plan(nodes):
        again.append(nodes)
        return AgentLaunch((*ODD, "live", "--node", *nodes), nodes)

    head = FleetHead([AgentLaunch(step, ("n0", "n1"), again=plan)])
    try:
        watch(head, 1, NodeState.LIVE)
        assert wait_until(lambda: head.poll(0.1) or again, 60.0, 0.0)
        watch(head, 1, NodeState.LIVE)
        assert [row.state for row in head.rows()] == [NodeState.LIVE, NodeState.LIVE]
        assert again == [("n1",)]
    finally:
        head.close()


def test_mute_ones_keep_no_other_from_its_start(monkeypatch):
    monkeypatch.setattr(heads, "AT_ONCE", 1)
    monkeypatch.setattr(heads, "START_S", 0.5)
    with start("mute", "live") as head:
        watch(head, 1, NodeState.LIVE)


def test_no_more_than_some_are_started_at_a_time(monkeypatch):
    monkeypatch.setattr(heads, "AT_ONCE", 1)
    with start("mute", "live") as head:
        head.poll(0.3)
        assert [one.age_s > 0 for one in head.rows()] == [True, False]


MOST_MB = 150
"""It takes 30 without them."""


@pytest.mark.long
def test_junk_without_end_and_what_nobody_asked_for_take_no_memory_and_no_other_node():
    exec_ = ("--exec", "env HOST={host}", "--agent", " ".join((*ODD, "crowd")))
    with watching("--hosts", "n[0-6]", *exec_) as watch:
        left = dict.fromkeys(("n1", "n2", "n3", "n4", "n6"), "gone")
        watch.await_states(**left, n0="live", n5="refused")
        (head,) = map(int, Path(f"/proc/{watch.head.pid}/task/{watch.head.pid}/children").read_text().split())
        (most,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{head}/status").read_text())
        assert int(most) < MOST_MB << 10
        rows = {one["node"]: one for one in watch.reports[-1]["nodes"]}
        assert rows["n2"]["torn"] > 0
        assert rows["n3"]["torn"] > 0
        assert rows["n0"]["torn"] == 0
        assert all(one.get("reason", "").isprintable() for one in rows.values())
        assert all(report["verdict"].get("kind") != "hung" for report in watch.reports), "n4 spoke for n0"


def test_nothing_that_was_started_is_left():
    mine = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    before = set(Path(mine).read_text().split())
    with start("live", "deaf", "mute", "stops") as head:
        watch(head, 3, NodeState.LATE)
    assert set(Path(mine).read_text().split()) <= before
