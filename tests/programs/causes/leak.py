"""Keep something of every batch for ever, under a memory limit. Fixed: keep a number of it."""

import time

import torch
from limits import enter_memory_limit
from loop import Images, Network, Program, make_loader
from torch import Tensor

MB = 1 << 20
kept: list[Tensor] = []
kept_from = time.monotonic()


def keep(_images: Tensor, loss: Tensor) -> None:
    """Keep activations with the loss, as a metric that holds its graph does."""
    grown_mb = rate_mb_s * (time.monotonic() - kept_from) - sum_mb[0]
    if grown_mb >= 1 and not program.fix and sum_mb[0] < limit_mb * 3 // 4:
        # In place: what a product frees again leaves holes in the heap, and twice the growth that was meant.
        kept.append(torch.ones(int(grown_mb) * MB // 4).mul_(loss.detach()))
        sum_mb[0] += int(grown_mb)


program = Program(__doc__)
rate_mb_s = program.draw.uniform(8, 20)
limit_mb = program.draw.choice((3072, 4096))
sum_mb = [0]
program.make(enter_memory_limit, limit_mb * MB)
batch = program.draw.choice((8, 16))
program.train(make_loader(Images(), batch, 1), Network(program.draw.uniform(30, 80), batch), keep)
