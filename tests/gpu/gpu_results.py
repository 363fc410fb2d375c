"""Where the tests of a GPU keep what they read, and what a rehearsal without a card changes."""

from __future__ import annotations

import os
from pathlib import Path

RESULTS = Path(os.environ.get("TPMON_GPU_RESULTS", "gpu-results")).absolute()
"""make test-gpu GPU_RESULTS=DIR; ``keep`` makes it."""
DEVICE = os.environ.get("TPMON_GPU_DEVICE", "cuda")
"""``cpu`` rehearses the programs without a card: what only a card can answer is skipped all the same."""
IS_REHEARSED = DEVICE == "cpu"
SECONDS_OF_EPOCH = "2" if IS_REHEARSED else "10"
RECORDED_S = 6.0 if IS_REHEARSED else 35.0


def keep(name: str, text: str) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / name).write_text(text)
