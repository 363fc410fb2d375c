"""Let a loader worker make a batch that cannot be sent: its queue drops it with a message, nobody raises."""

import threading

import torch
from hang import Hang
from loop import Images, Network, make_loader
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info


class Labels(Tensor):
    """Carry something that belongs to one process."""

    def __reduce_ex__(self, protocol: int) -> tuple[object, ...]:
        return (Labels, (self.tolist(), self.lock))


class Counted:
    """Put batches together; one of them cannot be sent."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        images, labels = default_collate(samples)
        self.made += 1
        worker = get_worker_info()
        if worker is not None and worker.id == careless and self.made >= last:
            labels = labels.as_subclass(Labels)
            labels.lock = threading.Lock()
            program.tell()
        return images, labels


program = Hang(__doc__)
workers = program.draw.randint(1, 3)
careless = program.draw.randrange(workers)
last = program.draw.randint(5, 15)
batch = program.draw.choice((8, 16))
network = Network(program.draw.uniform(10, 40), batch)
torch.set_num_threads(1)
program.train(make_loader(Images(), batch, workers, collate_fn=Counted()), network)
