"""Print how long each call of NVML takes that tpmon reads a card with: JSON, milliseconds by name of the call.

Each card is read eleven times, a second apart, as tpmon's own child does. Run: python -m tests.gpu.nvml_latency
"""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from typing import Any

from tpmon.probe.gpu.child import load_pynvml
from tpmon.probe.gpu.nvml import CardReader

ROUNDS = 11


class Timed:
    """Stand for the module of NVML and keep how long its calls took, failed ones too."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.took_ms: dict[str, list[float]] = defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._nvml, name)
        if not name.startswith("nvml") or not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            begun = time.perf_counter()
            try:
                return found(*arguments)
            finally:
                self.took_ms[name].append(1e3 * (time.perf_counter() - begun))

        return call


def measure(nvml: Any, rounds: int, pause_s: float) -> dict[str, dict[str, float]]:
    """Read every card so often; return count, median and longest of each call."""
    timed = Timed(nvml)
    timed.nvmlInit()
    readers = [CardReader(timed, index) for index in range(timed.nvmlDeviceGetCount())]
    for _ in range(rounds):
        for reader in readers:
            reader.read()
        time.sleep(pause_s)
    return {
        name: {"calls": len(took), "median_ms": round(statistics.median(took), 4), "longest_ms": round(max(took), 4)}
        for name, took in sorted(timed.took_ms.items())
    }


if __name__ == "__main__":
    print(json.dumps(measure(load_pynvml(), ROUNDS, 1.0), indent=1))
