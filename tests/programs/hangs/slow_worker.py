"""Take more than a minute for one image in a loader worker: the loop waits for its batch."""

import time

from hang import Hang, Sticky
from loop import Network, blur, make_loader
from torch import Tensor


class Huge(Sticky):
    """Serve images of which some are very large."""

    def stick(self) -> None:
        """Work on a very large image."""
        self.made = 0
        program.tell()
        self.shrink()

    def shrink(self) -> Tensor:
        """Blur for a long time."""
        image, end = super().read(0), time.thread_time() + seconds
        while time.thread_time() < end:
            image = blur(image, 100)
        return image


program = Hang(__doc__)
workers = program.draw.randint(1, 3)
seconds = program.draw.uniform(65, 90)
batch = program.draw.choice((8, 16))
network = Network(program.draw.uniform(10, 40), batch)
program.train(make_loader(Huge(program, workers), batch, workers), network)
