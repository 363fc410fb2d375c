"""Make labelled images for the demo training and feed them to the loop, well or badly.

Plain torch, no files and no downloads: an image is a template of its class plus noise.
"""

from __future__ import annotations

import math
import socket
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CLASSES = 10
SIDE = 64
LENGTH = 50_000
BATCH = 32


class Images(Dataset):
    """Serve images of 3 x 64 x 64 floats with their class.

    ``full_side`` is the resolution at which an image is rotated and blurred before it is scaled
    down (0: not at all); ``store_port`` fetches the pixels from the store instead of making them.
    """

    def __init__(self, full_side: int = 0, store_port: int = 0) -> None:
        coarse = torch.rand(CLASSES, 3, 4, 4, generator=torch.Generator().manual_seed(0))
        self.templates = functional.interpolate(coarse, (SIDE, SIDE), mode="bilinear")
        self.full_side = full_side
        self.store_port = store_port
        self.connection: socket.socket | None = None

    def __len__(self) -> int:
        """Count the images of one epoch."""
        return LENGTH

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Make, or fetch, image ``index`` and augment it."""
        chance = torch.Generator().manual_seed(index)
        label = index % CLASSES
        noise = self.fetch(index) if self.store_port else torch.rand(3, SIDE, SIDE, generator=chance)
        image = 0.4 * self.templates[label] + 0.6 * noise
        if self.full_side:
            image = self.rotate_and_blur(image, float(torch.rand(1, generator=chance)) - 0.5)
        return self.augment(image, chance), label

    def augment(self, image: Tensor, chance: torch.Generator) -> Tensor:
        """Flip, shift and normalise: what a light input pipeline does."""
        flip, down, right = torch.randint(0, 8, (3,), generator=chance).tolist()
        if flip < 4:
            image = image.flip(-1)
        image = image.roll((down - 4, right - 4), dims=(1, 2))
        return (image - image.mean()) / (image.std() + 1e-5)

    def rotate_and_blur(self, image: Tensor, angle: float) -> Tensor:
        """Rotate and blur at full resolution, then scale down: what a costly pipeline does."""
        size = (self.full_side, self.full_side)
        large = functional.interpolate(image[None], size, mode="bilinear")
        turn = [[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]]
        grid = functional.affine_grid(torch.tensor([turn]), list(large.shape), align_corners=False)
        turned = functional.grid_sample(large, grid, padding_mode="reflection", align_corners=False)
        kernel = torch.full((3, 1, 5, 5), 1 / 25)
        blurred = functional.conv2d(turned, kernel, padding=2, groups=3)
        return functional.interpolate(blurred, (SIDE, SIDE), mode="area")[0]

    def fetch(self, index: int) -> Tensor:
        """Ask the store for the pixels of image ``index`` and wait for them."""
        if self.connection is None:  # first sample of this worker: a connection is not shared by fork
            self.connection = socket.create_connection(("127.0.0.1", self.store_port))
        self.connection.sendall(index.to_bytes(4, "big"))
        size = 3 * SIDE * SIDE
        pixels = bytearray()
        while len(pixels) < size:
            part = self.connection.recv(size - len(pixels))
            if not part:
                raise ConnectionError("the sample store went away")
            pixels += part
        return torch.frombuffer(pixels, dtype=torch.uint8).view(3, SIDE, SIDE) / 255


def start_store() -> tuple[subprocess.Popen[bytes], int]:
    """Start the slow sample store as a process of its own; it ends when its stdin closes."""
    store = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("store.py")), str(3 * SIDE * SIDE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert store.stdout is not None  # noqa: S101  # PIPE was asked for
    return store, int(store.stdout.readline())


def make_loader(images: Images, workers: int, world_size: int) -> DataLoader:
    """Build the DataLoader of one rank, workers kept from epoch to epoch."""
    sampler = DistributedSampler(images) if world_size > 1 else None
    return DataLoader(
        images,
        batch_size=BATCH,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=True,
    )
