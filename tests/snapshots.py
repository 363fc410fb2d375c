"""Build memory snapshots as torch.cuda.memory._dump_snapshot writes them, with known bytes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

MB = 1 << 20
TORCH = "/opt/env/lib/python3.11/site-packages/torch/nn/modules/linear.py"


def frame(name: str, line: int = 1, file: str = "/home/me/train.py") -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


def stack(*names: str) -> list[dict[str, Any]]:
    """Make a stack with a C++ and a torch frame inside of the program's own; innermost first."""
    inner = [frame("at::empty", 0, "??"), frame("forward", 125, TORCH)]
    return inner + [frame(name, 10 * at + 10) for at, name in enumerate(names)]


class SnapshotBuilder:
    """Play an allocator: what is asked for, freed, reserved and recorded."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.segments: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self._time_us = 1_700_000_000_000_000

    def segment(self, *blocks: tuple[int, int, str, list[dict[str, Any]]]) -> SnapshotBuilder:
        """Add a segment of blocks: size, requested size, state, stack. Addresses follow one another."""
        start = at = 0x7F0000000000 + len(self.segments) * (1 << 32)
        made = []
        for size, requested, state, frames in blocks:
            made.append({"address": at, "size": size, "requested_size": requested, "state": state, "frames": frames})
            at += size
        place = {"device": self.device, "address": start, "total_size": at - start, "segment_pool_id": (0, 0)}
        rest = {"stream": 0, "segment_type": "large", "is_expandable": False, "frames": []}
        sizes = {
            "allocated_size": sum(b["size"] for b in made if b["state"] == "active_allocated"),
            "active_size": sum(b["size"] for b in made if b["state"] != "inactive"),
        }
        self.segments.append({**place, **sizes, **rest, "blocks": made})
        return self

    def event(self, action: str, addr: int, size: int, frames: list[dict[str, Any]], **more: Any) -> SnapshotBuilder:
        self._time_us += 1000
        place = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": self._time_us}
        self.events.append({**place, "frames": frames, **more})
        return self

    def plain(self) -> dict[str, Any]:
        return {
            "segments": self.segments,
            "device_traces": [[]] * self.device + [self.events],
            "allocator_settings": {"expandable_segments": False, "max_split_size": -1},
            "external_annotations": [],
        }

    def write(self, path: Path, protocol: int = 4) -> str:
        path.write_bytes(pickle.dumps(self.plain(), protocol))
        return str(path)


def training() -> SnapshotBuilder:
    """Make 100 MB of weights that stay, and 300 MB of activations that are gone when it is taken."""
    weights, step, grads = stack("build"), stack("forward_pass", "main"), stack("backward_pass", "main")
    made = SnapshotBuilder()
    made.segment((100 * MB, 100 * MB - 10, "active_allocated", weights), (28 * MB, 0, "inactive", []))
    made.segment((300 * MB, 0, "inactive", []))
    made.segment(
        (2 * MB, 0, "inactive", []),
        (4 * MB, 4 * MB, "active_pending_free", grads),
        (6 * MB, 6 * MB - 2, "active_allocated", grads),
    )
    base = made.segments[2]["address"]
    made.event("segment_alloc", 1, 300 * MB, step)
    made.event("free_requested", 77, 50 * MB, step)  # allocated before the history begins
    made.event("alloc", 1, 200 * MB, step).event("alloc", 2, 100 * MB, stack("other", "main"))
    made.event("free_requested", 1, 200 * MB, grads).event("free_completed", 1, 200 * MB, grads)
    made.event("alloc", base + 6 * MB, 6 * MB - 2, grads)
    made.event("oom", 0, 900 * MB, grads, device_free=7 * MB)
    made.event("free_requested", 2, 100 * MB, grads)
    return made
