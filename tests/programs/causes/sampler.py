"""Search the whole data set for each batch, in the main thread. Fixed: the order of an epoch is made at once."""

from collections.abc import Iterator
from operator import itemgetter

from loop import Images, Network, Program, take_cpu_ms
from torch.utils.data import DataLoader


class Alike:
    """Make batches of images whose sizes are alike."""

    def __init__(self, sizes: list[float], batch: int, at_once: bool) -> None:
        self.sizes, self.batch, self.at_once = sizes, batch, at_once

    def search(self, first: int) -> list[int]:
        far = [(abs(size - self.sizes[first]), index) for index, size in enumerate(self.sizes)]
        return [index for _, index in sorted(far, key=itemgetter(0))[: self.batch]]

    def __iter__(self) -> Iterator[list[int]]:
        order = sorted(range(len(self.sizes)), key=self.sizes.__getitem__) if self.at_once else []
        while True:
            first = program.draw.randrange(len(self.sizes) - self.batch)
            yield order[first : first + self.batch] if self.at_once else self.search(first)


program = Program(__doc__)
batch = program.draw.choice((8, 16))
step_ms = program.draw.uniform(15, 40)
thousand = Alike([program.draw.random() for _ in range(1000)], batch, at_once=False)
choose_ms = step_ms * program.draw.uniform(1.5, 3)
count = round(1000 * choose_ms / take_cpu_ms(lambda: thousand.search(7)))
chosen = Alike([program.draw.random() for _ in range(count)], batch, program.fix)
loader = DataLoader(Images(), batch_sampler=chosen, num_workers=program.draw.choice((1, 2)))
program.train(loader, Network(step_ms, batch))
