"""Play an agent from a file: ``player.py FOLDER SECONDS TIMES``, with the standard library alone, as 64 of them start.

FOLDER has a file for each node: what it says at first, and then each time, with an empty line between. A player ends
when its standard input does. It says something so many times, 0 for always. Slurm cuts what is left of the output of
a task that ends anywhere.
"""

from __future__ import annotations

import os
import select
import sys
import time


def play(folder: str, seconds: float, times: int) -> None:
    """Speak for the node that Slurm names."""
    with open(os.path.join(folder, os.environ["SLURMD_NODENAME"]), "rb") as file:
        first, *later = file.read().rstrip(b"\n").split(b"\n\n")
    os.write(1, first + b"\n")
    said, due_s = 0, time.monotonic()
    while True:
        if not times or said < times:
            data = later[said % len(later)] + b"\n"
            while data:
                data = data[os.write(1, data) :]
            said, due_s = said + 1, due_s + seconds
        else:
            due_s = time.monotonic() + 1.0
        while (rest_s := due_s - time.monotonic()) > 0:
            if select.select([0], [], [], rest_s)[0] and not os.read(0, 4096):
                return


if __name__ == "__main__":
    play(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
