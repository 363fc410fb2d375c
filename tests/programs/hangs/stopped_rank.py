"""Train one model on all ranks until one of them is stopped by SIGSTOP.

Run by torchrun with two to four processes.
"""

import os
import signal

import torch.distributed as dist
from hang import Hang
from loop import Images, Network, make_loader
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


def stop(_images: Tensor, _loss: Tensor) -> None:
    """Stop this rank after the last step."""
    if program.truth.steps >= last and program.rank == culprit:
        program.tell()
        os.kill(os.getpid(), signal.SIGSTOP)


program = Hang(__doc__)
dist.init_process_group("gloo")
culprit = program.draw.randrange(dist.get_world_size())
last = program.draw.randint(10, 30)
batch = program.draw.choice((8, 16))
network = Network(0, batch, depth=program.draw.randint(2, 8))
program.train(make_loader(Images(), batch, 0), DistributedDataParallel(network), stop)
