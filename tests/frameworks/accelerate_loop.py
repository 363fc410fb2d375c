"""Train a small residual network on a folder of PNG images, one subfolder a class, by Accelerate."""

import random

import numpy as np
import torch
from accelerate import Accelerator
from faults import CHECKPOINT_STEPS, Fault
from parts import Program, Source
from PIL import Image, ImageFilter
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

BATCH = 16
SIDE = 48
CLASSES = 4
EACH = 100
WIDTH = 32
EPOCH = 200
"""How often each file is used in an epoch, so that no epoch ends while somebody looks."""


def write_folder() -> list[tuple[str, int]]:
    listed = []
    for label in range(CLASSES):
        place = program.folder / "train" / f"class_{label}"
        place.mkdir(parents=True)
        for number in range(EACH):
            path = place / f"{number:04d}.png"
            pixels = np.random.default_rng(label * EACH + number).integers(0, 256, (SIDE, SIDE, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(path)
            listed.append((str(path), label))
    return listed


def augment(image: Image.Image, rounds: int) -> Image.Image:
    """Mirror by chance and blur again and again: a transform of chosen cost."""
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for _ in range(rounds):
        image = image.filter(ImageFilter.GaussianBlur(1))
    return image


class Folder(Dataset):
    def __init__(self, rounds: int, source: Source | None) -> None:
        self.rounds = rounds
        self.source = source
        self.files = write_folder() * EPOCH

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.files[index]
        if self.source is not None:
            image = Image.frombytes("RGB", (SIDE, SIDE), bytes(self.source.read(index)))
        else:
            image = Image.open(path).convert("RGB")
        pixels = np.asarray(augment(image, self.rounds), dtype=np.float32) / 255
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), label


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.second = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        return images + self.second(functional.relu(self.first(images)))


program = Program(__doc__)
torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = nn.Sequential(
    nn.Conv2d(3, WIDTH, 3, padding=1, stride=2),
    Block(),
    Block(),
    Block(),
    nn.AdaptiveAvgPool2d(8),
    nn.Flatten(),
    nn.Linear(64 * WIDTH, 2048),
    nn.ReLU(),
    nn.Linear(2048, CLASSES),
)
example = torch.rand(BATCH, 3, SIDE, SIDE)
picture = Image.new("RGB", (SIDE, SIDE))
rounds = program.count_rounds(lambda: model(example).sum().backward(), lambda: augment(picture, 1), BATCH)
images = Folder(rounds, program.open_source(3 * SIDE * SIDE))
loader = DataLoader(images, BATCH, shuffle=True, drop_last=True, num_workers=program.fault.workers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
while True:
    for pictures, labels in loader:
        loss = functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        program.note_step()
        if program.fault is Fault.CHECKPOINTS and program.truth.steps % CHECKPOINT_STEPS == 0:
            accelerator.save_state(str(program.folder / "state"))
        if program.truth.steps % 50 == 0:
            print(f"step {program.truth.steps} loss {loss.item():.3f}", flush=True)
