"""Train a small convolutional network on made-up images by the Trainer of Lightning."""

import lightning
import torch
from faults import CHECKPOINT_STEPS, Fault
from lightning.pytorch.callbacks import ModelCheckpoint
from parts import Program, Source, blur
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

BATCH = 16
SIDE = 32
CLASSES = 10
WIDTH = 32
HIDDEN = 1024


class Images(Dataset):
    def __init__(self, rounds: int, source: Source | None) -> None:
        self.rounds = rounds
        self.source = source

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.source is not None:
            image = torch.frombuffer(self.source.read(index), dtype=torch.uint8).view(3, SIDE, SIDE) / 255
        else:
            image = torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(index))
        return blur(image, self.rounds), index % CLASSES


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = []
        for _ in range(6):
            layers += [nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU()]
        self.net = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, padding=1),
            *layers,
            nn.AdaptiveAvgPool2d(8),
            nn.Flatten(),
            nn.Linear(64 * WIDTH, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, CLASSES),
        )

    def training_step(self, batch: tuple[Tensor, Tensor], _number: int) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Count(lightning.Callback):
    def on_train_batch_end(self, *_: object) -> None:
        program.note_step()


program = Program(__doc__)
lightning.seed_everything(0)
model = Classifier()
example = torch.rand(BATCH, 3, SIDE, SIDE)
rounds = program.count_rounds(lambda: model.net(example).sum().backward(), lambda: blur(example[0], 1), BATCH)
callbacks = [Count()]
if program.fault is Fault.CHECKPOINTS:
    callbacks.append(ModelCheckpoint(program.folder, every_n_train_steps=CHECKPOINT_STEPS, save_last=True))
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=1,
    logger=False,
    enable_checkpointing=program.fault is Fault.CHECKPOINTS,
    callbacks=callbacks,
)
images = Images(rounds, program.open_source(3 * SIDE * SIDE))
workers = program.fault.workers
trainer.fit(model, DataLoader(images, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0))
