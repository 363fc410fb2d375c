"""Train like a Trainer does: accumulation, a log line, a short evaluation now and then: healthy."""

import torch
from loop import Images, Network, Program, make_loader
from torch import Tensor

program = Program(__doc__)
batch = program.draw.choice((8, 16))
network = Network(program.draw.uniform(40, 80), batch)
every = program.draw.randint(60, 120)
history: list[float] = []


def callbacks(images: Tensor, loss: Tensor) -> None:
    history.append(loss.item())
    if len(history) % 20 == 0:
        print(f"{{'loss': {sum(history[-20:]) / 20:.4f}, 'step': {len(history)}}}", flush=True)
    if len(history) % every == 0:
        with torch.no_grad():
            for _ in range(4):
                network(images)


program.train(make_loader(Images(2), batch, program.draw.choice((0, 1, 2))), network, callbacks)
