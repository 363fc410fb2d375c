"""The settings that the hook tells are those that a program made, on a real torch without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.programs.capturing import run_json
from tests.torch_build import needs_torch
from tpmon.hook.bus import wire_capture, wire_settings
from tpmon.model.hook import DdpSettings, TrainSettings
from tpmon.model.known import is_known
from tpmon.probe.hooked.settings import parse_settings

pytestmark = [pytest.mark.torch, pytest.mark.long, needs_torch]

OFF = {
    "matmul_tf32": False,
    "cudnn_tf32": True,
    "cudnn_benchmark": False,
    "cudnn_deterministic": False,
    "deterministic": False,
    "anomaly": False,
    "autocast": False,
    "sdpa": ("flash", "mem-efficient", "math", "cudnn"),
    "profiler": False,
}
"""What torch has where nothing was turned."""

TURNED = {
    "plain": {},
    "allow_tf32": {"matmul_tf32": True},
    "precision high": {"matmul_tf32": True},
    "no TF32 in cuDNN": {"cudnn_tf32": False},
    "benchmark": {"cudnn_benchmark": True},
    "cudnn.deterministic": {"cudnn_deterministic": True},
    "deterministic": {"deterministic": True},
    "anomaly": {"anomaly": True},
    "bf16": {"autocast": True, "autocast_dtype": "bfloat16"},
    "fp16": {"autocast": True, "autocast_dtype": "float16"},
    "bf16 in the forward": {"autocast": False},
    "math alone": {"sdpa": ("math",)},
    "flash or math": {"sdpa": ("flash", "math")},
    "three threads": {"threads": 3},
    "theirs": {"profiler": True},
    "DDP": {"ddp": DdpSettings(3 << 20, 1, find_unused=True, static_graph=False)},
}


def run(folder: Path, *flags: str) -> dict[str, Any]:
    return run_json(sys.executable, "settings_train.py", folder, *flags)


def parse(words: list[int]) -> TrainSettings:
    page = memoryview(bytearray(4096))
    wire_settings.write_settings(page, words)
    settings = parse_settings(page, words[wire_settings.SET_TIME_NS])
    assert is_known(settings)
    return settings


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("settings"))


def test_each_switch_is_told_as_it_was_turned_and_no_other_moves(report: dict[str, Any]) -> None:
    threads, interop = report["threads"]
    for name, turned in TURNED.items():
        settings = parse(report[name])
        expected = {**OFF, "threads": threads, "interop_threads": interop, **turned}
        assert {key: getattr(settings, key) for key in expected} == expected, name
    assert report["problem"] == ""


def test_without_autocast_ddp_or_cuda_nothing_of_them_is_told(report: dict[str, Any]) -> None:
    settings = parse(report["plain"])
    for name in ("autocast_dtype", "ddp", "fsdp", "allocator"):
        assert not is_known(getattr(settings, name)), name
    assert (settings.sizes.parameter_bytes, settings.sizes.gradient_bytes) == (36, 36)
    assert not is_known(settings.sizes.activation_bytes)


def test_tpmons_own_capture_is_no_profiler_of_the_program(report: dict[str, Any]) -> None:
    """Looks at the beginning of each step: readings, what the last one told, whether torch records then."""
    captured = report["captured"]
    assert captured["state"] == wire_capture.STATE_VERIFIED
    ours = captured["ours"]
    assert {told for _, told, _ in ours} == {0}
    assert len({number for number, _, records in ours if records}) > 2, "it was read while ours recorded"


def test_one_that_the_program_prepares_is_told_before_it_records(report: dict[str, Any]) -> None:
    theirs = report["captured"]["theirs"]
    prepared = [told for _, told, records in theirs if not records]
    assert [prepared[0], max(prepared), prepared[-1]] == [0, 1, 0]
    assert {told for _, told, records in theirs if records} <= {0}, "the probe, which is ours"


def test_graph_breaks_and_hits_of_the_recompile_limit_are_counted(tmp_path: Path) -> None:
    report = run(tmp_path, "--compile")
    broken, varied = (parse(report[name]).compiled for name in ("broken", "varied"))
    assert is_known(broken)
    assert is_known(varied)
    assert (broken.graph_breaks, broken.limit_hits) == (1, 0)
    assert (broken.frames, broken.frames_ok, broken.graphs) == (2, 2, 2)
    assert (varied.graph_breaks, varied.limit_hits) == (0, 1)
    assert varied.frames > varied.frames_ok == varied.graphs == 2
