"""On a machine with an NVIDIA GPU: three real runs that one reading alone would misjudge."""

from __future__ import annotations

import pytest

from tests.gpu.running import run_tpmon, train

pytestmark = pytest.mark.usefixtures("card")

LOOK = "25s"
HEALTHY = {"balanced", "compute-bound"}


def diagnose(pid: int) -> dict[str, object]:
    return run_tpmon("diagnose", str(pid), "--for", LOOK, "--json")


def test_a_loader_that_the_gpu_hides_is_not_data_bound() -> None:
    with train("queue-work") as one:
        verdict = diagnose(one.pid)
    assert verdict["kind"] in HEALTHY, verdict


def test_reserved_memory_without_retries_is_a_note_and_no_fault() -> None:
    with train("fill-memory") as one:
        frame = run_tpmon("attach", str(one.pid), "--once", "--json")
        verdict = diagnose(one.pid)
    assert any(note.startswith("memory-full") for note in frame["notes"]), frame["notes"]
    assert verdict["kind"] in HEALTHY, verdict


@pytest.mark.usefixtures("sampling_works")
def test_ten_thousand_tiny_kernels_a_second_are_launch_bound() -> None:
    with train("tiny-kernels") as one:
        verdict = diagnose(one.pid)
    assert (verdict["kind"], verdict["cause"]) == ("launch-bound", "tiny-kernels"), verdict
