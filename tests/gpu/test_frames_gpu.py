"""Keep real Frames: each way of ``gpu_train.py`` recorded for a while, all in one archive for the rules to be judged by."""

from __future__ import annotations

import importlib.util
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.gpu_results import IS_REHEARSED, RECORDED_S, RESULTS
from tests.gpu.running import list_ways, train
from tests.programs.capturing import ENVIRONMENT, TPMON
from tpmon.model.codec import decode
from tpmon.model.frame import Frame
from tpmon.model.known import is_known

pytestmark = pytest.mark.long

FOLDER = RESULTS / "frames"
LEAST_RATIO = 0.6
"""Frames of so many seconds: the first comes after a start, and a busy machine leaves some out."""


@pytest.fixture(scope="module", autouse=True)
def archive(device: str) -> Iterator[None]:
    """Pack what was recorded, whatever failed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    yield
    with tarfile.open(RESULTS / "frames.tar.gz", "w:gz") as packed:
        packed.add(FOLDER, arcname="frames")


def record(pid: int, path: Path) -> list[Frame]:
    """Write the Frames of a while to a file, one a line, and return them."""
    with path.open("wb") as file:
        watching = subprocess.Popen(
            [*TPMON, "attach", str(pid), "--json"], env=ENVIRONMENT, stdout=file, stdin=subprocess.DEVNULL
        )
        time.sleep(RECORDED_S)
        watching.terminate()
        watching.wait(timeout=20)
    lines = path.read_bytes().split(b"\n")[:-1]
    return [decode(Frame, line.decode()) for line in lines]


@pytest.mark.parametrize("way", list_ways())
def test_frames_of_each_way_are_kept(device: str, way: str) -> None:
    if way == "copy" and importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    with train(way, device) as one:
        frames = record(one.pid, FOLDER / f"{way}.jsonl")
    assert len(frames) >= LEAST_RATIO * RECORDED_S
    assert all(is_known(frame.verdict) for frame in frames)
    assert IS_REHEARSED or is_known(frames[-1].gpus), frames[-1].gpus
