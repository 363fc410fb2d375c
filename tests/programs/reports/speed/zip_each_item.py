"""The archive is opened anew for each item, and its directory of twenty thousand names is parsed each time.

Report: zarr-developers/zarr-python#66
"""

import signal
import tempfile
import zipfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


class Archived(Dataset):
    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, number: int) -> torch.Tensor:
        with zipfile.ZipFile(self.path) as archive:
            return torch.frombuffer(bytearray(archive.read(f"{number}.bin")), dtype=torch.uint8).float()


if __name__ == "__main__":
    signal.alarm(600)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "samples.zip")
        with zipfile.ZipFile(path, "w") as archive:
            for number in range(20_000):
                archive.writestr(f"{number}.bin", bytes([number % 256]) * 64)
        network = torch.nn.Linear(64, 1)
        for step, batch in enumerate(DataLoader(Archived(path), batch_size=4, num_workers=2, shuffle=True)):
            network.zero_grad()
            network(batch).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            print(f"step {step} ", flush=True)
