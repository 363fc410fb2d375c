"""Start loader workers again and again because something kills them. Fixed: nothing does."""

import math
import os
import signal
import time

from loop import Images, Network, Program, make_loader, rounds_for
from torch import Tensor


class Deadly(Images):
    """Kill each worker some seconds after its first sample, as the OOM killer does."""

    def __init__(self, rounds: int, life_s: float) -> None:
        super().__init__(rounds)
        self.life_s = life_s
        self.end_s = math.inf

    def begin(self, _worker: int) -> None:
        self.end_s = time.monotonic() + self.life_s

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if time.monotonic() > self.end_s:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def main() -> None:
    program = Program(__doc__)
    batch = program.draw.choice((8, 16))
    step_ms = program.draw.uniform(20, 50)
    life_s = program.draw.uniform(3, 8)
    data = Deadly(rounds_for(step_ms / 4, batch), math.inf if program.fix else life_s)
    workers = program.draw.choice((1, 2))
    loader = make_loader(data, batch, workers, persistent_workers=False, worker_init_fn=data.begin)
    network = Network(step_ms, batch)
    while not program.is_over:
        try:
            program.train(loader, network)
        # As a loop does that has to run over the weekend; a worker may also die while it hands a batch over.
        except (RuntimeError, OSError) as error:
            print(f"again: {error}", flush=True)


if __name__ == "__main__":
    main()
