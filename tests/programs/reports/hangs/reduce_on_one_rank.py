"""Each rank counts its own samples until it validates: one is in the reduce of its validation, one trains on.

Report: lifeiteng/vall-e#93
"""

import random
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

VALIDATE_EVERY = 12_000


@torch.no_grad()
def validate(model: torch.nn.Module) -> float:
    loss = sum(model(torch.rand(64, 128)).square().mean() for _ in range(10)) / 10
    dist.reduce(loss, 0)
    return loss.item()


if __name__ == "__main__":
    signal.alarm(600)
    dist.init_process_group("gloo")
    sizes = random.Random(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.Linear(512, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen, step = 0, 0
    while True:
        batch = torch.rand(sizes.randint(8, 48 + 8 * dist.get_rank()), 128)  # as many as fit into so many seconds
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        seen, step = seen + len(batch), step + 1
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}", flush=True)
        if seen >= VALIDATE_EVERY:
            seen = 0
            print(f"rank {dist.get_rank()}: loss {validate(model.module):.4f}", flush=True)
