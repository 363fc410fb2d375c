"""Train on more ranks than there are CPUs, each with a pool that fits. Fixed: one thread a rank.

Run by torchrun with four processes.
"""

import torch
import torch.distributed as dist
from loop import CPUS, Network, Program, same_batch
from torch.nn.parallel import DistributedDataParallel

program = Program(__doc__)
dist.init_process_group("gloo")
batch = program.draw.choice((8, 16))
network = Network(0, batch, width=program.draw.choice((32, 48)), depth=program.draw.randint(4, 8))
torch.set_num_threads(1 if program.fix else CPUS)
program.train(same_batch(batch), DistributedDataParallel(network))
