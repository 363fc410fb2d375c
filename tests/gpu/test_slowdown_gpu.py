"""On a machine with an NVIDIA GPU: what a capture leaves of the speed of the steps after it."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from tests.gpu.running import Stepping, step
from tests.programs.capturing import captured
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("card")

STEPS = 4
COMPARED = 300
"""Steps before the window and after it whose medians are compared."""
LEFT_OUT = 50
"""Steps between the end of the window and those that are compared."""
SAME = 0.10


def wait_for_steps(run: Stepping, count: int) -> None:
    assert wait_until(lambda: len(run.read()) >= count, 120, 0.5), "the loop does not get on"


def median_ms(run: Stepping, first: int) -> float:
    return median(one.host_ms for one in run.read()[first : first + COMPARED])


@pytest.mark.parametrize(
    ("before", "flags", "slower"),
    [((), (), True), (("env", "TEARDOWN_CUPTI=1"), (), False), ((), ("--snapshot",), False)],
    ids=["trace", "trace, detached", "snapshot"],
)
def test_steps_after_the_first_window_are_slower_only_where_that_was_said(
    tmp_path: Path, before: tuple[str, ...], flags: tuple[str, ...], slower: bool
) -> None:
    """A torch of CUDA before 12.6 may crash where it detaches."""
    with step("layers", tmp_path, *before) as fresh:
        wait_for_steps(fresh, COMPARED + LEFT_OUT)
        usual_ms = median_ms(fresh, len(fresh.read()) - COMPARED)
        told, said = captured(fresh.pid, *flags, "--steps", str(STEPS), "--out", str(tmp_path / "out"))
        first = len(fresh.read()) + LEFT_OUT
        wait_for_steps(fresh, first + COMPARED)
        after_ms = median_ms(fresh, first)
    assert ("launches may stay slower" in said) is slower
    if not slower:
        assert after_ms == pytest.approx(usual_ms, rel=SAME), told["ranks"]
