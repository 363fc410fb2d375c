"""Profile four small CPU trainings, one after the other, and write their traces: workers 0 and 2, a stack."""

import sys
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

out = Path(sys.argv[1])
STEPS = 3


class Samples(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, at: int) -> torch.Tensor:
        time.sleep(0.004)
        return torch.ones(64)


def train(name: str, workers: int, **options: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Samples(), batch_size=8, num_workers=workers)
    path = str(out / f"{name}.pt.trace.json")
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=STEPS),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(path),
        **options,
    ) as profiler:
        for at, batch in enumerate(loader):
            optimizer.zero_grad()
            model(batch).sum().backward()
            if name == "python":
                time.sleep(0.05)
            optimizer.step()
            profiler.step()
            if at == STEPS + 2:
                break


torch.set_num_threads(1)
train("workers0", 0)
train("python", 2, with_stack=True, profile_memory=True, record_shapes=True)
