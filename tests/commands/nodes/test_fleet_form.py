"""Which form a fleet is shown in: a screen on a terminal, text where that was asked for or nobody looks."""

import pytest

from tests.command_line import read
from tpmon.commands.nodes.fleet import FleetOptions, is_screen
from tpmon.ui.terminal_io import terminal

FLAGS = ({"once": True}, {"json": True}, {"plain": True}, {"check": True}, {"until": "hung"})


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_an_output_flag_is_text_also_on_a_terminal(flags, monkeypatch):
    monkeypatch.setattr(terminal, "has_terminal", lambda: True)
    assert not is_screen(read(FleetOptions, **flags))


@pytest.mark.parametrize("is_there", [True, False])
def test_without_one_it_is_a_screen_where_there_is_a_terminal(is_there, monkeypatch):
    monkeypatch.setattr(terminal, "has_terminal", lambda: is_there)
    assert is_screen(read(FleetOptions)) is is_there
