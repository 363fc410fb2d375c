"""Compute statistics of each batch in Python, one number at a time. Fixed: as tensor operations."""

from loop import Images, Network, Program, make_loader, rounds_for, take_cpu_ms
from torch import Tensor


def spread(values: list[float]) -> float:
    mean = sum(values) / len(values)
    total = 0.0
    for value in values:
        total += (value - mean) ** 2
    return (total / len(values)) ** 0.5


def measure(images: Tensor, _loss: Tensor) -> list[float]:
    if program.fix:
        return [float((images * exposure).std()) for exposure in range(1, exposures + 1)]
    return [spread((images * exposure).flatten().tolist()) for exposure in range(1, exposures + 1)]


program = Program(__doc__)
batch = program.draw.choice((8, 16))
step_ms = program.draw.uniform(15, 30)
data = Images(rounds_for(step_ms / 8, batch))
pixels = data.read(0).repeat(batch, 1, 1).flatten().tolist()
exposures = max(1, round(step_ms * program.draw.uniform(3, 5) / take_cpu_ms(lambda: spread(pixels))))
workers = program.draw.choice((1, 2))
program.train(make_loader(data, batch, workers), Network(step_ms, batch), measure)
