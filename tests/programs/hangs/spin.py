"""Look again and again, without a pause, for something that never comes."""

import contextlib
import queue
import select
import socket

from hang import Hang
from loop import Images, Network, make_loader
from torch import Tensor

ready = False


def wait_for_flag() -> None:
    """Look at a variable."""
    program.tell(2)
    while not ready:
        pass


def wait_for_queue() -> None:
    """Look into a queue."""
    results: queue.Queue[int] = queue.Queue()
    program.tell(3)
    while True:
        with contextlib.suppress(queue.Empty):
            results.get_nowait()


def wait_for_socket() -> None:
    """Look at a socket."""
    one, _other = pair
    program.tell(2)
    while not select.select([one], [], [], 0)[0]:
        pass


def wait(_images: Tensor, _loss: Tensor) -> None:
    """Spin after the last step."""
    if program.truth.steps >= last:
        how()


program = Hang(__doc__)
pair = socket.socketpair()
how = program.draw.choice((wait_for_flag, wait_for_queue, wait_for_socket))
last = program.draw.randint(10, 40)
batch = program.draw.choice((8, 16))
workers = program.draw.choice((0, 1, 2))
network = Network(program.draw.uniform(10, 40), batch)
program.train(make_loader(Images(), batch, workers), network, wait)
