"""Real trainings in a thread, while the main thread only waits for it: judged like any other."""

from __future__ import annotations

import sys

import pytest

from tests.programs.causes.running import HERE, Verdict, start_program, watch
from tests.programs.causes.table import find_row

pytestmark = [pytest.mark.usefixtures("sampling_works"), pytest.mark.torch, pytest.mark.long]
WITHIN_S = 45.0
"""Three times the 15 s that a verdict may take."""


@pytest.mark.parametrize("name", ["no_workers", "too_few_workers", "one_slow_worker", "compute"])
def test_a_training_in_a_thread_has_the_verdict_of_any_other(name: str) -> None:
    row = find_row(name)

    def is_right(verdict: Verdict) -> bool:
        return row.accepts(verdict.kind, verdict.cause)

    with start_program((sys.executable, str(HERE / "in_thread.py"), name), 0) as running:
        running.wait_until_ready()
        verdicts, notes = watch(running.pid, WITHIN_S, is_right)
    assert is_right(verdicts[-1]), [str(one) for one in verdicts]
    assert [note for note in notes if note.startswith("rank 0 trains in its thread trainer (")]
