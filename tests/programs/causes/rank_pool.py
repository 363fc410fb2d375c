"""Compute with far more threads than there are CPUs. Fixed: as many as there are."""

import torch
from loop import CPUS, Network, Program, same_batch

program = Program(__doc__)
batch = program.draw.choice((8, 16, 32))
network = Network(program.draw.uniform(60, 150), batch, width=32)
threads = program.draw.randint(8, 24)
torch.set_num_threads(CPUS if program.fix else threads)
program.train(same_batch(batch), network)
