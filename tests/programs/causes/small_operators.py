"""Train a tiny network on tiny batches with a thread pool: its operators take microseconds, and the pool spins.

Fixed: one thread.
"""

import torch
from loop import CPUS, Program
from torch import Tensor, nn
from torch.distributions import Categorical

program = Program(__doc__)
width, rows = program.draw.choice((48, 64, 96)), program.draw.choice((16, 32))
actor = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10))
torch.set_num_threads(1 if program.fix else CPUS)


def play(count: int) -> list[tuple[Tensor, Tensor]]:
    """Act for some turns of a made-up world, as an on-policy learner does."""
    seen, state = [], torch.rand(rows, 8)
    with torch.no_grad():
        for _ in range(count):
            action = Categorical(logits=actor(state)).sample()
            seen.append((state, action))
            state = state.mul(0.9).add(action[:, None], alpha=0.01)
    return seen


def play_and_learn() -> object:
    while True:
        yield from play(32)


program.train(play_and_learn(), actor)
