"""Fill a small /dev/shm with batches that wait in the queue. Fixed: a large one."""

from limits import enter_own_mounts, mount
from loop import Images, Network, Program, make_loader
from torch import Tensor
from torch.nn.functional import avg_pool2d

MB = 1 << 20


class Large(Images):
    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def transform(self, image: Tensor) -> Tensor:
        return image.repeat(1, self.side // 32, self.side // 32)


class Pooled(Network):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(avg_pool2d(images, images.shape[-1] // 32))


program = Program(__doc__)
batch = program.draw.choice((8, 16))
side = 256
batch_bytes = batch * 3 * side * side * 4
room = round(batch_bytes * program.draw.uniform(7.5, 8.5))  # four wait, one is trained, one is made
program.make(enter_own_mounts)
program.make(mount, "tmpfs", "/dev/shm", f"size={4 * room if program.fix else room}")
program.train(make_loader(Large(side), batch, 2), Pooled(program.draw.uniform(60, 100), batch))
