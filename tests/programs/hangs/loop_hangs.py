"""Let the loop spin for what never comes, or compute for more than a minute after each step, in the way that is named.

Run: loop_hangs.py --way NAME; the ways are those of WAYS.
"""

import contextlib
import queue
import select
import socket
import time

import torch
from hang import Hang
from loop import take_cpu_ms
from torch import Tensor

SMALL = 1000
ready = False


def wait_for_flag() -> None:
    program.tell(2)
    while not ready:
        pass


def wait_for_queue() -> None:
    results: queue.Queue[int] = queue.Queue()
    program.tell(3)
    while True:
        with contextlib.suppress(queue.Empty):
            results.get_nowait()


def wait_for_socket() -> None:
    one, _other = pair
    program.tell(2)
    while not select.select([one], [], [], 0)[0]:
        pass


def is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def count_pairs(seconds: float) -> int:
    end, number, pairs = time.thread_time() + seconds, 3, 0
    while time.thread_time() < end:
        pairs += is_prime(number) and is_prime(number + 2)
        number += 2
    return pairs


def mine() -> None:
    """Mine hard negatives, say, in plain Python."""
    program.tell()
    count_pairs(seconds)


def look_at_spectrum(side: int) -> Tensor:
    return torch.linalg.eigvals(torch.rand(side, side)).abs().amax()


def measure() -> None:
    """Look at the curvature of the loss, say."""
    program.tell()
    look_at_spectrum(side)


WAYS = {"spin": (wait_for_flag, wait_for_queue, wait_for_socket), "python": (mine,), "library": (measure,)}
program = Hang(__doc__, ("--way", str, "spin"))
pair = socket.socketpair()
seconds = program.draw.uniform(65, 90)
if program.options.way == "library":
    small_ms = take_cpu_ms(lambda: look_at_spectrum(SMALL), tries=1)
    side = round(SMALL * (1.4 * seconds * 1000 / small_ms) ** (1 / 3))
program.train_until(program.draw.choice(WAYS[program.options.way]))
