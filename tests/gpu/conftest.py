"""Skip what needs torch on a CUDA device, or nsys, where there is none."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.gpu.gpu_results import DEVICE, IS_REHEARSED

FIND_CARD = """
try:
    import torch
except ImportError as error:
    print(f"torch does not load: {error}")
else:
    print("" if torch.cuda.is_available() else f"torch {torch.__version__} finds no CUDA device")
"""
"""Run in another process: pytest with torch in it would be the job around every program it starts."""


@pytest.fixture(scope="session")
def card() -> None:
    found = subprocess.run([sys.executable, "-c", FIND_CARD], capture_output=True, text=True, check=False)
    if found.returncode or found.stdout.strip():
        pytest.skip(found.stdout.strip() or found.stderr.strip()[-300:])


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """Return the device to train on; skip where that is a card and there is none."""
    if not IS_REHEARSED:
        request.getfixturevalue("card")
    return DEVICE


@pytest.fixture(scope="session")
def nsys() -> str:
    path = shutil.which("nsys")
    if path is None:
        pytest.skip("nsys is not in PATH: Nsight Systems is not installed")
    return path
