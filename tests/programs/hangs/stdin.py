"""Ask a question at a terminal, or read from a pipe, where nobody answers."""

import os
import pty
import sys

from hang import Hang
from loop import Images, Network, make_loader


def ask() -> None:
    """Wait for an answer."""
    if debugged:
        program.tell(2)
        breakpoint()  # noqa: T100
    program.tell()
    input("overwrite the last run? [y/n] ")


program = Hang(__doc__)
prompt, answers = pty.openpty() if program.draw.random() < 0.7 else os.pipe()[::-1]
debugged = program.draw.random() < 0.3
os.dup2(answers, 0)
sys.stdin = open(0)  # noqa: SIM115  # for the life of the program
batch = program.draw.choice((8, 16))
workers = program.draw.choice((0, 1))
program.train(
    make_loader(Images(), batch, workers),
    Network(program.draw.uniform(10, 40), batch),
    steps=program.draw.randint(10, 40),
)
ask()
