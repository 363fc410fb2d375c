"""The screen beside cards that never answer: it draws, and ``q`` leaves it at once."""

import pytest

from tests.cards import Cards
from tests.children import MAP_TORCH, child
from tests.command_line import TPMON

pytestmark = pytest.mark.pty


@pytest.mark.parametrize("fault", ["1 * block", "* * block after 2", "driver nvmlInitWithFlags block"])
def test_q_does_not_wait_for_a_card_that_blocks(open_terminal, tmp_path, fault):
    with child(MAP_TORCH + 'say("ready")\nhear()', str(tmp_path)) as job:
        cards = Cards(tmp_path, 2, [job.pid] * 2)
        cards.fail(fault)
        command = [*TPMON, "attach", str(job.pid)]
        terminal = open_terminal(command=command, **cards.environment)
        terminal.until("driver has not answered" if "driver" in fault else "STALE")
        terminal.leave("q", 0, 3.0)
