"""Real programs that hang, beside each other, and one that is slow: tpmon says who hangs, where and why.

Ten runs of each, fresh and five minutes old: ``make hangs``.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.hangs.looking import look, watch_alive
from tests.hangs.programs import start_trees
from tests.hangs.results import Result
from tests.programs.causes.running import CannotBeMadeError
from tests.programs.hangs.table import ALIVE_ROWS, ROWS, AliveRow, Row
from tests.spying import may_sample

pytestmark = [pytest.mark.torch]

NAMES = ("lock_held", "blocked_fifo", "missing_rank", "remote_rank", "slow_step")
LIFE_S = 400.0
CROWDED_S = 150.0
"""How long a verdict may take on the machine of a test, which has other things to do; 31 s when it has none."""
SLOW_S = 40.0
"""The matrix looks at slow programs for longer."""
SEED = 3
"""With this seed every job is of two ranks."""


def _look(row: Row | AliveRow, trees) -> Result:
    return (
        look(row, SEED, 0.0, trees, CROWDED_S)
        if isinstance(row, Row)
        else watch_alive(row, SEED, trees, SLOW_S)
    )


@pytest.fixture(scope="module")
def results() -> dict[str, Result | str]:
    """Start all of them, and attach to all of them at the same time: most of it is waiting."""
    if reason := may_sample():
        pytest.skip(reason)
    rows = [row for row in (*ROWS, *ALIVE_ROWS) if row.name in NAMES]
    found: dict[str, Result | str] = {}
    with ExitStack() as stack, ThreadPoolExecutor(len(rows)) as pool:
        started = [(row, stack.enter_context(start_trees(row, SEED, LIFE_S))) for row in rows]
        looks = {}
        for row, trees in started:
            try:
                trees.wait_until_ready()
            except CannotBeMadeError as error:
                found[row.name] = str(error)
                continue
            looks[row.name] = pool.submit(_look, row, trees)
        found |= {name: one.result() for name, one in looks.items()}
    return found


@pytest.mark.parametrize("name", NAMES)
def test_who_hangs_and_why_is_said_and_nothing_else_is_called_hung(name: str, results) -> None:
    result = results[name]
    if isinstance(result, str):
        pytest.skip(result)
    assert result.misses == (), (result.said, result.summary)
