"""Let one of the workers be many times slower: batches are handed out in order, so all wait for it."""

import time

from loop import Images, Network, Program, make_loader, rounds_for
from torch import Tensor
from torch.utils.data import get_worker_info


class Uneven(Images):
    """Give one worker more work for each image, or have it wait, as on a bad disk."""

    def __init__(self, rounds: int, slow: int, slow_rounds: int, slow_s: float) -> None:
        super().__init__(rounds)
        self.slow, self.slow_rounds, self.slow_s = slow, slow_rounds, slow_s

    def transform(self, image: Tensor) -> Tensor:
        if get_worker_info().id == self.slow:
            self.rounds = self.slow_rounds
            time.sleep(self.slow_s)
        return super().transform(image)


program = Program(__doc__)
batch = program.draw.choice((8, 16))
step_ms = program.draw.uniform(20, 40)
workers = program.draw.choice((3, 4))
light = rounds_for(step_ms / 4, batch)
slow_ms = workers * step_ms * program.draw.uniform(5, 8)
computes = program.draw.random() < 0.5
slow = -1 if program.fix else program.draw.randrange(workers)
data = Uneven(light, slow, rounds_for(slow_ms, batch) if computes else light, 0 if computes else slow_ms / batch / 1000)
program.train(make_loader(data, batch, workers), Network(step_ms, batch))
