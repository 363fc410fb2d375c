"""Wait for a server or another program in each step. Fixed: in each fiftieth step."""

import socket
import subprocess
from collections.abc import Callable

from loop import Network, Program, same_batch
from store import fetch, start_store
from torch import Tensor

BYTES = 1024
program = Program(__doc__)
batch = program.draw.choice((8, 16))
step_ms = program.draw.uniform(15, 40)
wait_ms = step_ms * program.draw.uniform(1.5, 3)


def ask_server() -> Callable[[], object]:
    """Return a call that waits for the answer of a server, as of one that keeps metrics."""
    connection = socket.create_connection(("127.0.0.1", start_store(BYTES, wait_ms)))
    return lambda: fetch(connection, BYTES)


def run_program() -> Callable[[], object]:
    return lambda: subprocess.run(["sleep", str(wait_ms / 1000)], check=True)


call = program.draw.choice((ask_server, run_program))()
every = 50 if program.fix else 1


def report(images: Tensor, loss: Tensor) -> None:
    if program.truth.steps % every == 0:
        call()


program.train(same_batch(batch), Network(step_ms, batch), report)
