"""Each of four workers multiplies matrices in NumPy, whose BLAS has a thread for every CPU in each of them.

Report: eduardoAcunaEspinoza/Hy2DL#48
"""

import signal

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Whitened(Dataset):
    def __init__(self) -> None:
        self.basis = np.random.default_rng(0).random((768, 768), dtype=np.float32) / 768

    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, number: int) -> torch.Tensor:
        image = np.full((768, 768), number % 5, dtype=np.float32)
        for _ in range(4):
            image = self.basis @ image
        return torch.from_numpy(image[:8, :8].copy())


if __name__ == "__main__":
    signal.alarm(600)
    torch.set_num_threads(1)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    for step, batch in enumerate(DataLoader(Whitened(), batch_size=8, num_workers=4)):
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()
        print(f"step {step} ", flush=True)
