"""Train one model on four ranks in two process trees, as on two hosts, until a rank of one tree waits.

Run by torchrun twice with two processes each. The rank that waits is in the tree ``--culprit-node``.
"""

import threading

import torch.distributed as dist
from hang import Hang
from loop import Images, Network, make_loader
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

RANKS_OF_A_NODE = 2
lock = threading.Lock()


def hold(_images: Tensor, _loss: Tensor) -> None:
    """Take a lock, on one rank twice after the last step."""
    with lock:
        if program.truth.steps >= last and program.rank == culprit:
            program.tell()
            lock.acquire()


program = Hang(__doc__, ("--culprit-node", int, 1))
dist.init_process_group("gloo")
culprit = RANKS_OF_A_NODE * program.options.culprit_node + program.draw.randrange(RANKS_OF_A_NODE)
last = program.draw.randint(10, 30)
batch = program.draw.choice((8, 16))
network = Network(0, batch, depth=program.draw.randint(2, 8))
program.train(make_loader(Images(), batch, 0), DistributedDataParallel(network), hold)
