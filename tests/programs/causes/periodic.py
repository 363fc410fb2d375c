"""Wait long for one batch in many, as when a new shard is opened. Fixed: a longer queue hides it."""

import time

from loop import Images, Network, Program, make_loader, rounds_for
from torch import Tensor


class Shards(Images):
    """Open a new shard every so many images."""

    def __init__(self, rounds: int, shard: int, open_s: float) -> None:
        super().__init__(rounds)
        self.shard, self.open_s = shard, open_s

    def read(self, index: int) -> Tensor:
        if index % self.shard == 0:
            time.sleep(self.open_s)
        return super().read(index)


program = Program(__doc__)
batch = program.draw.choice((8, 16))
step_ms = program.draw.uniform(25, 50)
every = program.draw.randint(30, 60)
open_s = every * step_ms / 1000 * program.draw.uniform(1.5, 2.0)
data = Shards(rounds_for(step_ms / 4, batch), every * batch, open_s)
loader = make_loader(data, batch, 2, shuffle=False, prefetch_factor=every if program.fix else 2)
program.train(loader, Network(step_ms, batch))
