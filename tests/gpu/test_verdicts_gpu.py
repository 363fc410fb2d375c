"""On a machine with an NVIDIA GPU: real runs that one reading alone would misjudge, and causes no CPU can make."""

from __future__ import annotations

import importlib.util

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


@pytest.mark.usefixtures("sampling_works")
@pytest.mark.parametrize(
    ("way", "kind", "cause"),
    [
        ("python-between", "launch-bound", "main-thread"),
        ("synchronize", "sync-bound", "explicit"),
        ("copy", "sync-bound", "implicit"),
        ("empty-cache", "sync-bound", "allocator"),
        ("pin", "data-bound", "pin"),
    ],
)
def test_what_keeps_a_gpu_waiting_is_named(way: str, kind: str, cause: str) -> None:
    if way == "copy" and importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed: a plain copy leaves no frame of its own")
    with train(way) as one:
        verdict = diagnose(one.pid)
    assert (verdict["kind"], verdict["cause"]) == (kind, cause), verdict


def test_additions_of_what_no_cache_holds_are_bound_by_the_memory_of_the_card() -> None:
    with train("stream-memory") as one:
        cards = run_tpmon("attach", str(one.pid), "--once", "--json")["gpus"]
        verdict = diagnose(one.pid)
    # Without the counters of GPM nothing tells memory from arithmetic, and the verdict says "gpu".
    has_counters = all(isinstance(card["dram_pct"], (int, float)) for card in cards)
    expected = "gpu-memory-bandwidth" if has_counters else "gpu"
    assert (verdict["kind"], verdict["cause"]) == ("compute-bound", expected), verdict
