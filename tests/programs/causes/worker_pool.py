"""Give every loader worker a thread pool of its own. Fixed: one thread for each."""

import torch
from loop import Images, Network, Program, make_loader, take_cpu_ms
from torch import Tensor

WIDE = 512


def project(times: int) -> Tensor:
    """Multiply matrices, as a transform with BLAS or OpenCV inside does."""
    matrix = torch.rand(WIDE, WIDE)
    for _ in range(times):
        matrix = (matrix @ matrix).clamp(0, 1)
    return matrix


class Projected(Images):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def transform(self, image: Tensor) -> Tensor:
        return image + project(self.times)[:32, :32]


program = Program(__doc__)
batch = program.draw.choice((4, 8))
workers = program.draw.choice((3, 4))
threads = 1 if program.fix else program.draw.choice((3, 4, 6))
step_ms = program.draw.uniform(15, 30)
times = max(1, round(16 * step_ms / batch / take_cpu_ms(lambda: project(1))))
loader = make_loader(Projected(times), batch, workers, worker_init_fn=lambda _worker: torch.set_num_threads(threads))
program.train(loader, Network(step_ms, batch))
