"""Ask a question at a terminal, or read from a pipe, where nobody answers."""

import os
import pty
import sys

from hang import Hang


def ask() -> None:
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
program.train_and_end()
ask()
