"""Put batches together number by number in Python. Fixed: samples are tensors already."""

import torch
from loop import CLASSES, SIDE, Images, Network, Program, make_loader, take_cpu_ms
from torch import Tensor

PIXELS = 3 * SIDE * SIDE


class Lists(Images):
    """Serve frames of a clip as the lists of numbers that a text file or a JSON store gives."""

    def __init__(self, frames: int) -> None:
        super().__init__()
        self.sample = [super().read(0).flatten().tolist()] * frames

    def __getitem__(self, index: int) -> tuple[list[list[float]], int]:
        return self.sample, index % CLASSES


def pad_and_scale(samples: list[tuple[list[list[float]], int]]) -> tuple[Tensor, Tensor]:
    rows = []
    for clip, _ in samples:
        row = [0.0] * PIXELS
        for values in clip:
            for place, value in enumerate(values):
                row[place] = max(-1.0, min(1.0, row[place] + 2.0 * value - 1.0))
        rows.append(row)
    images = torch.tensor(rows).view(len(rows), 3, SIDE, SIDE)
    return images, torch.tensor([label for _, label in samples])


program = Program(__doc__)
batch = program.draw.choice((8, 16))
step_ms = program.draw.uniform(15, 30)
one = Lists(1)
one_ms = take_cpu_ms(lambda: pad_and_scale([one[index] for index in range(batch)]))
frames = max(1, round(step_ms * program.draw.uniform(6, 9) / one_ms))
workers = program.draw.choice((1, 2))
if program.fix:
    loader = make_loader(Images(), batch, workers)
else:
    loader = make_loader(Lists(frames), batch, workers, collate_fn=pad_and_scale)
program.train(loader, Network(step_ms, batch))
