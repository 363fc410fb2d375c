"""Train for some seconds, then write a checkpoint that takes longer than anyone looks."""

import os
import tempfile
from pathlib import Path

import torch
from loop import Images, Network, Program, make_loader


def save_checkpoint(folder: str) -> None:
    number = 0
    while not program.is_over:
        with open(Path(folder, f"shard_{number % 4}.pt"), "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        number += 1


program = Program(__doc__)
batch = program.draw.choice((8, 16))
network = Network(program.draw.uniform(20, 60), batch)
state = {str(number): torch.rand(program.draw.randint(2, 8) << 20) for number in range(8)}
loader = make_loader(Images(), batch, program.draw.choice((0, 1)))
program.train(loader, network, steps=100)
with tempfile.TemporaryDirectory(prefix="tpmon-cause-") as folder:
    program.truth.ready()
    save_checkpoint(folder)
