"""Load shards of a data set into memory before the first step."""

import tempfile
from pathlib import Path

import torch
from loop import Network, Program, same_batch

program = Program(__doc__)
count, shards, values = (program.draw.randint(2_000, 8_000), program.draw.randint(4, 12), program.draw.randint(8, 64))
with tempfile.TemporaryDirectory(prefix="tpmon-cause-") as folder:
    for number in range(shards):
        samples = [{"id": index, "values": torch.rand(values)} for index in range(count)]
        torch.save(samples, Path(folder, f"shard_{number}.pt"))
    program.truth.ready()
    number = 0
    while not program.is_over:
        samples = torch.load(Path(folder, f"shard_{number % shards}.pt"), weights_only=False)
        number += 1
program.train(same_batch(4), Network(10, 4), steps=1)
