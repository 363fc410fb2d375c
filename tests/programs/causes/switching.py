"""Train well until SIGUSR1 comes, and at each one suffer from the next cause of ``--causes``.

Causes: healthy, cpu-transform, single-thread, rank-pool. The cause in force is the last signal's.
"""

import multiprocessing
import signal

import torch
from loop import CPUS, SIDE, Images, Network, Program, blur, make_loader, rounds_for, take_cpu_ms
from torch import Tensor

THREADS = 16
TIMES = 8

program = Program(__doc__, ("--causes", str, "healthy,cpu-transform,healthy,single-thread,healthy,rank-pool"))
causes = program.options.causes.split(",")
batch = program.draw.choice((8, 16))
step_ms = program.draw.uniform(30, 60)
light, heavy = (rounds_for(step_ms * times, batch) for times in (0.1, TIMES))
now = 0


class Switched(Images):
    """Transform images at the cost that the rank says, so that all workers follow at once."""

    def __init__(self) -> None:
        super().__init__()
        self.cost = multiprocessing.get_context("fork").Value("i", light)

    def transform(self, image: Tensor) -> Tensor:
        return blur(image, self.cost.value)


data = Switched()


def next_cause(_number: int, _frame: object) -> None:
    global now  # noqa: PLW0603
    now = (now + 1) % len(causes)
    apply(causes[now])


def apply(cause: str) -> None:
    data.cost.value = heavy if cause == "cpu-transform" else light
    torch.set_num_threads(THREADS if cause == "rank-pool" else 1)
    print(f"cause: {cause}", flush=True)


def deviate(images: Tensor) -> float:
    values = images[:8].flatten().tolist()
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)


def measure(images: Tensor, _loss: Tensor) -> None:
    if causes[now] == "single-thread":
        for _ in range(rounds):
            deviate(images)


torch.set_num_threads(1)
some = torch.rand(batch, 3, SIDE, SIDE)
rounds = max(1, round(TIMES * step_ms / take_cpu_ms(lambda: deviate(some))))
apply(causes[0])
signal.signal(signal.SIGUSR1, next_cause)
program.train(make_loader(data, batch, CPUS), Network(step_ms, batch), measure)
