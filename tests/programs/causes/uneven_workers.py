"""Stream from fewer shards than there are workers: those without one only wait, or end where none are kept."""

import time
from collections.abc import Iterator

from loop import CLASSES, Images, Network, Program, make_loader
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info


class Shards(IterableDataset):
    """Stream images without end from each shard, ``wait_s`` for each; a worker reads every n-th shard."""

    def __init__(self, shards: int, wait_s: float) -> None:
        self.shards, self.wait_s = shards, wait_s
        self.images = Images()

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        info = get_worker_info()
        own = range(info.id, self.shards, info.num_workers)
        index = 0
        while own:
            time.sleep(self.wait_s)
            yield self.images.read(index), index % CLASSES
            index += 1


program = Program(__doc__, ("--shards", int, 2), ("--kept", int, 1))
batch = program.draw.choice((8, 16))
step_ms = program.draw.uniform(20, 40)
workers = program.draw.choice((8, 12))
wait_s = 2 * step_ms * program.draw.uniform(5, 8) / batch / 1000
shards = workers if program.fix else program.options.shards
data, kept = Shards(shards, wait_s), bool(program.options.kept)
program.train(make_loader(data, batch, workers, shuffle=False, persistent_workers=kept), Network(step_ms, batch))
