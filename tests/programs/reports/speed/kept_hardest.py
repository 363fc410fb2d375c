"""The hardest sample of each batch is kept: each holds a descriptor of its worker's shared memory open.

Report: pytorch/pytorch#11201
"""

import resource
import signal

import torch
from torch.utils.data import DataLoader, Dataset


class Patches(Dataset):
    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.full((64,), float(number % 11))


if __name__ == "__main__":
    signal.alarm(600)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    torch.set_num_threads(1)
    layers = (torch.nn.Linear(64, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048), torch.nn.Linear(2048, 1))
    network = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-5)
    hardest = []
    for step, batch in enumerate(DataLoader(Patches(), batch_size=256, num_workers=2)):
        losses = network(batch).square().mean(1)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        hardest.append(batch[losses.argmax()])
        if step % 10 == 0:
            print(f"step {step} ", flush=True)
