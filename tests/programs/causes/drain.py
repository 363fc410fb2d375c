"""Hand each batch over as hundreds of small tensors, which the main thread unpacks one by one.

Fixed: one tensor a batch.
"""

import resource

import torch
from loop import Images, Network, Program, make_loader
from torch import Tensor


def keep_pieces(samples: list[tuple[Tensor, int]]) -> tuple[list[Tensor], list[Tensor]]:
    """Leave a batch in many pieces: rows of images, as boxes and masks often come."""
    rows = [row.clone() for image, _ in samples for row in image.flatten(0, 1).chunk(8)]
    return rows, [torch.tensor(label) for _, label in samples]


class Joined:
    def __init__(self, batches: object, batch: int) -> None:
        self.batches, self.batch = batches, batch

    def __iter__(self) -> object:
        for rows, labels in self.batches:
            yield torch.cat(rows).view(self.batch, 3, 32, 32), torch.stack(labels)


program = Program(__doc__)
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65536), most))  # each piece is an open file
batch = program.draw.choice((32, 64))
network = Network(program.draw.uniform(8, 16), batch)
if program.fix:
    program.train(make_loader(Images(), batch, 2), network)
else:
    loader = make_loader(Images(), batch, 2, collate_fn=keep_pieces)
    program.train(Joined(loader, batch), network)
