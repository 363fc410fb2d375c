"""Take more than a minute for each step in a loop of plain Python."""

import time

from hang import Hang
from loop import Images, Network, make_loader
from torch import Tensor


def is_prime(number: int) -> bool:
    """Try all divisors."""
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def count_pairs(seconds: float) -> int:
    """Count twin primes for some time."""
    end, number, pairs = time.thread_time() + seconds, 3, 0
    while time.thread_time() < end:
        pairs += is_prime(number) and is_prime(number + 2)
        number += 2
    return pairs


def mine(_images: Tensor, _loss: Tensor) -> None:
    """Mine hard negatives, say, after the first steps."""
    if program.truth.steps >= last:
        program.tell()
        count_pairs(seconds)


program = Hang(__doc__)
last = program.draw.randint(10, 40)
batch = program.draw.choice((8, 16))
seconds = program.draw.uniform(65, 90)
loader = make_loader(Images(), batch, program.draw.choice((0, 1, 2)))
program.train(loader, Network(program.draw.uniform(10, 40), batch), mine)
