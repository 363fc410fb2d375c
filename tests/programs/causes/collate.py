"""Put batches together number by number in Python. Fixed: samples are tensors already."""

import torch
from loop import CLASSES, SIDE, Images, Network, Program, make_loader, take_cpu_ms
from torch import Tensor

PIXELS = 3 * SIDE * SIDE


class Lists(Images):
    """Serve images as the lists of numbers that a text file or a JSON store gives."""

    def __init__(self) -> None:
        super().__init__()
        self.sample = super().read(0).flatten().tolist()

    def __getitem__(self, index: int) -> tuple[list[float], int]:
        return self.sample, index % CLASSES


def pad_and_scale(samples: list[tuple[list[float], int]]) -> tuple[Tensor, Tensor]:
    """Build a batch from lists, one number after the other."""
    rows = []
    for values, _ in samples:
        row = [0.0] * PIXELS
        for place, value in enumerate(values):
            row[place] = max(-1.0, min(1.0, 2.0 * value - 1.0))
        rows.append(row)
    images = torch.tensor(rows).view(len(rows), 3, SIDE, SIDE)
    return images, torch.tensor([label for _, label in samples])


program = Program(__doc__)
batch = program.draw.choice((16, 32, 64))
lists = Lists()
load_ms = take_cpu_ms(lambda: pad_and_scale([lists[index] for index in range(batch)]))
network = Network(load_ms / program.draw.uniform(6, 9), batch)
workers = program.draw.choice((1, 2))
if program.fix:
    program.train(make_loader(Images(), batch, workers), network)
else:
    program.train(make_loader(lists, batch, workers, collate_fn=pad_and_scale), network)
