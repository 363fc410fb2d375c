"""Stop at a prompt or in the debugger after some steps, on a terminal where nobody answers."""

import os
import pty
import sys

from loop import Network, Program, same_batch

program = Program(__doc__)
prompt, terminal = pty.openpty()
os.dup2(terminal, 0)
sys.stdin = open(0)  # noqa: SIM115  # for the life of the program
program.train(same_batch(8), Network(program.draw.uniform(20, 60), 8), steps=50)
program.truth.ready()
if program.draw.random() < 0.5:
    input("overwrite the last run? [y/n] ")
else:
    breakpoint()  # noqa: T100
