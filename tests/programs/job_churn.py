"""Look like a training process and start short-lived children at a steady rate, for bounded time.

It maps a file that is called libtorch, which is all that a look from outside sees of torch.
"""

from __future__ import annotations

import argparse
import mmap
import os
import subprocess
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--ready", required=True, help="folder for the file READY/PID")
parser.add_argument("--seconds", type=float, default=40)
parser.add_argument("--rate-hz", type=float, default=100)
options = parser.parse_args()

library = Path(options.ready, "libtorch_cpu.so")
library.write_bytes(bytes(mmap.PAGESIZE))
with library.open("rb") as file:
    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
Path(options.ready, str(os.getpid())).touch()
end = time.monotonic() + options.seconds
due = time.monotonic()
running: list[subprocess.Popen[bytes]] = []
while time.monotonic() < end:
    running = [one for one in running if one.poll() is None]
    running.append(subprocess.Popen(["/bin/sleep", "0.02"]))
    due += 1 / options.rate_hz
    time.sleep(max(0.0, due - time.monotonic()))
