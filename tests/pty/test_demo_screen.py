"""`tpmon demo` on a real terminal, without torch: recordings on the live screen, one bottleneck after the other."""

import pytest

from tests.command_line import TPMON

pytestmark = pytest.mark.pty


def test_a_recording_says_so_and_n_goes_on_to_the_next(open_terminal):
    terminal = open_terminal(command=[*TPMON, "demo", "--recorded"])
    terminal.until("recorded, not live, ")
    terminal.until("n next bottleneck")
    terminal.until("DATA-BOUND")
    terminal.press("n")
    terminal.until("OpenMP pools")
    terminal.quit()
    said = terminal.raw.decode(errors="replace")
    assert "the demo training (slow-storage), recorded, not live" in said
    assert "the demo training (oversubscribed), recorded, not live" in said


def test_on_forty_columns_too(open_terminal):
    terminal = open_terminal(command=[*TPMON, "demo", "--recorded", "--bottleneck", "hang"], columns=40, rows=24)
    terminal.until("recorded, not live")
    terminal.until("HUNG")
    terminal.quit()
