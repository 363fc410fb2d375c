"""Train on a batch in memory with all CPUs: healthy, compute-bound."""

import torch
from loop import CPUS, Network, Program, same_batch

program = Program(__doc__)
batch = program.draw.choice((8, 16, 32))
network = Network(program.draw.uniform(60, 150), batch, width=program.draw.choice((16, 32)))
torch.set_num_threads(CPUS)
program.train(same_batch(batch), network)
