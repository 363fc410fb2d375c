"""Train with all CPUs beside two processes of others for each CPU: they take most of its time."""

import os
import subprocess
import sys

import torch
from loop import CPUS, Network, Program, same_batch

BURN = "import os, sys\nwhile os.path.exists('/proc/' + sys.argv[1]):\n    sum(range(200_000))"
"""What the others do, until this program ends."""
LEAVE = "import subprocess, sys\nsubprocess.Popen(sys.argv[1:], start_new_session=True)"
"""Start a process that is nobody's child: a child would be of the job."""

program = Program(__doc__)
batch = program.draw.choice((8, 16, 32))
network = Network(program.draw.uniform(60, 150), batch, width=program.draw.choice((16, 32)))
torch.set_num_threads(CPUS)
if not program.fix:
    for _ in range(2 * CPUS):
        subprocess.run([sys.executable, "-c", LEAVE, sys.executable, "-c", BURN, str(os.getpid())], check=True)
program.train(same_batch(batch), network)
