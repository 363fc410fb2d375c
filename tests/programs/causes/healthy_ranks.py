"""Train on two ranks with equal work, one thread each: healthy. Run by torchrun with two processes."""

import torch.distributed as dist
from loop import Images, Network, Program, make_loader
from torch.nn.parallel import DistributedDataParallel

program = Program(__doc__)
dist.init_process_group("gloo")
batch = program.draw.choice((8, 16))
network = Network(0, batch, depth=program.draw.randint(10, 20))
program.train(make_loader(Images(), batch, 1), DistributedDataParallel(network))
