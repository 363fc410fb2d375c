"""Real programs that hang, beside each other, and one that is slow: tpmon says who hangs, where and why.

They hang beside the tests of the screen and the units: most of it is waiting. Ten runs of each, fresh
and five minutes old: ``make hangs``.
"""

from __future__ import annotations

import pytest

from tests.hangs.beside import NAMES, Beside
from tests.torch_build import needs_torch

pytestmark = [pytest.mark.torch, needs_torch]


@pytest.mark.parametrize("name", NAMES)
def test_who_hangs_and_why_is_said_and_nothing_else_is_called_hung(
    name: str, hung_programs: Beside, sampling_works: None
) -> None:
    result = hung_programs.wait_for(name)
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.misses == (), (result.said, result.summary)
