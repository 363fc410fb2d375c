"""A fleet on a real terminal: its nodes, the screen of one of them, stacks of all, an agent that dies, the end."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.command_line import TPMON
from tests.waiting import wait_until

pytestmark = pytest.mark.pty

ODD = Path(__file__).parents[1] / "fleet" / "odd_agent.py"
PROMISED_S = 1.0


def fleet_words(state: Path, *words: str) -> list[str]:
    reach = f"{sys.executable} {ODD} obeys {state} {{host}}"
    return [*TPMON, "fleet", "--hosts", "n0,n1", "--exec", reach, *words]


def find_agents(state: Path, node: str = "") -> list[int]:
    """Return the agents of this test, of a node or of all."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
        except OSError:
            continue
        if str(ODD) in words and str(state) in words and (not node or node in words):
            found.append(int(path.parent.name))
    return found


def test_a_node_is_opened_and_left_again_and_the_stacks_of_all_are_folded(open_terminal, state):
    terminal = open_terminal(command=fleet_words(state))
    terminal.until("0 of 2 nodes")
    terminal.until("2 of 2 nodes")
    terminal.until("BALANCED")
    terminal.press("d")
    terminal.until("rank 1 on n1")
    terminal.press("\x1b")
    terminal.until("enter node")
    terminal.press("l\r")
    terminal.until("esc back")
    terminal.until("train.py  pid 4211")
    terminal.press("b")
    terminal.until("b works on n1 itself: tpmon attach 4211 there")
    terminal.press("d")
    terminal.until("asked by key")
    terminal.press("\x1b")
    terminal.until("esc back")
    terminal.press("\x1b")
    terminal.until("2 of 2 nodes")
    terminal.leave("q", 0, 5 * PROMISED_S)
    assert wait_until(lambda: not find_agents(state), 30.0)


def test_a_node_that_goes_away_while_it_is_watched_says_so_and_can_be_left(open_terminal, state):
    terminal = open_terminal(command=fleet_words(state))
    terminal.until("2 of 2 nodes")
    terminal.press("\r")
    terminal.until("train.py  pid 4211")
    (agent,) = find_agents(state, "n0")
    os.kill(agent, signal.SIGKILL)
    terminal.until("n0: gone")
    terminal.until("LATE")
    terminal.press("\x1b")
    terminal.until("1 of 2 nodes")
    terminal.until("it was ended by SIGKILL")
    terminal.press("\r")
    terminal.until("only a live node has a screen")
    terminal.leave(signal.SIGTERM, 143)
    assert wait_until(lambda: not find_agents(state), 30.0)


def test_lines_are_written_on_a_terminal_where_they_are_asked_for(open_terminal, state):
    terminal = open_terminal(command=fleet_words(state, "--plain"))
    both = re.compile(r"n\[0-1\]: live|n0: live.*n1: live|n1: live.*n0: live", re.DOTALL)
    terminal.until(lambda: both.search(terminal.text()) is not None)
    assert b"\x1b[?1049h" not in terminal.raw
    terminal.signal(signal.SIGTERM)
    terminal.end()
    assert wait_until(lambda: not find_agents(state), 30.0)
