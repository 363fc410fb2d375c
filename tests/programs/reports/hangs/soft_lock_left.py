"""A download that was killed on another machine left its soft lock file in the cache, and nobody deletes it.

Report: huggingface/huggingface_hub#3944
"""

import signal
import tempfile
from pathlib import Path

import torch
from filelock import SoftFileLock


def fetch(cache: Path, name: str) -> Path:
    target = cache / name
    with SoftFileLock(f"{target}.lock"):
        if not target.exists():
            torch.save(torch.nn.Linear(64, 64).state_dict(), target)
    return target


if __name__ == "__main__":
    signal.alarm(600)
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        (cache / "adapter.pt.lock").write_text("4711\nnode-without-power\n")
        network = torch.nn.Linear(64, 64)
        network.load_state_dict(torch.load(fetch(cache, "base.pt")))
        for _ in range(60):
            network(torch.rand(64, 64)).square().mean().backward()
        print("step 60, the adapter is next", flush=True)
        network.load_state_dict(torch.load(fetch(cache, "adapter.pt")))
        print("not reached", flush=True)
