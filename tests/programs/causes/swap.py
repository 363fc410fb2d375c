"""Walk through a table that is larger than the memory limit, so that it comes from swap. Fixed: no limit.

It needs a swap disk or file with room for the table.
"""

import torch
from limits import enter_memory_limit
from loop import Images, Network, Program, make_loader
from torch import Tensor

MB = 1 << 20


class Looked(Images):
    """Add a row of a large table to each image, as an embedding kept on the host does."""

    def __init__(self, table: Tensor, rows: int) -> None:
        super().__init__()
        self.table, self.rows = table, rows

    def transform(self, image: Tensor) -> Tensor:
        chosen = torch.randint(len(self.table), (self.rows,))
        return image + self.table[chosen].mean()


def read_free_swap_mb() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("SwapFree:"))


program = Program(__doc__)
table_mb = program.draw.choice((768, 1024))
if read_free_swap_mb() < 2 * table_mb:
    program.cannot(f"no swap with room for {2 * table_mb} MiB")
if not program.fix:
    program.make(enter_memory_limit, (table_mb // 2 + 256) * MB)  # half of the table, and torch
table = torch.ones(table_mb * MB // 4096, 1024)
batch = program.draw.choice((8, 16))
data = Looked(table, program.draw.choice((32, 64)))
program.train(make_loader(data, batch, 0), Network(program.draw.uniform(10, 20), batch))
