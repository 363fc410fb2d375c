"""Compute statistics of each batch in Python, one number at a time. Fixed: as one tensor operation."""

from loop import Images, Network, Program, make_loader, rounds_for
from torch import Tensor


def measure(images: Tensor, _loss: Tensor) -> float:
    """Return the spread of all pixels."""
    if program.fix:
        return float(images.std())
    values = images.flatten().tolist()
    mean = sum(values) / len(values)
    total = 0.0
    for value in values:
        total += (value - mean) ** 2
    return (total / len(values)) ** 0.5


program = Program(__doc__)
batch = program.draw.choice((128, 192, 256))
step_ms = batch / program.draw.uniform(10, 15)  # a batch's loop over its pixels takes some 0.3 ms an image
workers = program.draw.choice((1, 2))
data = Images(rounds_for(step_ms / 8, batch))
program.train(make_loader(data, batch, workers), Network(step_ms, batch), measure)
