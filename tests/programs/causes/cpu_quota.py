"""Train on two threads under a quota of less than one CPU. Fixed: a quota of two."""

import torch
from limits import enter_cpu_quota
from loop import CPUS, Images, Network, Program, make_loader

program = Program(__doc__)
batch = program.draw.choice((8, 16))
network = Network(program.draw.uniform(40, 80), batch)
quota = program.draw.uniform(0.4, 0.9)
program.make(enter_cpu_quota, 2 * CPUS if program.fix else quota)
torch.set_num_threads(CPUS)
program.train(make_loader(Images(), batch, program.draw.choice((0, 1))), network)
