"""Start loader workers again and again because something kills them. Fixed: nothing does."""

import os
import signal

from loop import Images, Network, Program, make_loader, rounds_for
from torch import Tensor


class Deadly(Images):
    """Kill the worker that reads a sample far into the epoch, as the OOM killer does."""

    def __init__(self, rounds: int, length: int, last: int) -> None:
        super().__init__(rounds, length)
        self.last = last

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Make one sample, or die."""
        if index == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Retrying:
    """Begin the epoch anew when a worker is gone, as a loop does that has to run over the weekend."""

    def __init__(self, loader) -> None:
        self.loader = loader

    def __iter__(self):
        while True:
            try:
                yield from self.loader
            except RuntimeError as error:
                print(f"again: {error}", flush=True)
            else:
                return


def main() -> None:
    """Train with workers that die every few seconds."""
    program = Program(__doc__)
    batch = program.draw.choice((8, 16))
    step_ms = program.draw.uniform(20, 50)
    deadly = int(program.draw.uniform(3, 8) * 1000 / step_ms) * batch
    data = Deadly(rounds_for(step_ms / 4, batch), 1 << 20, -1 if program.fix else deadly)
    loader = make_loader(data, batch, program.draw.choice((1, 2)), shuffle=False, persistent_workers=False)
    program.train(Retrying(loader), Network(step_ms, batch))


if __name__ == "__main__":
    main()
