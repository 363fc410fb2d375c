"""Train a small GPT-2 with random weights on made-up text by the Trainer of transformers."""

import zlib

import torch
from faults import CHECKPOINT_STEPS, Fault
from parts import Program, Source
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

BATCH = 16
LENGTH = 64
VOCABULARY = 4096


def tokenize(text: bytes, rounds: int) -> list[int]:
    """Split a text into words of a hash vocabulary, again and again: a tokenizer of chosen cost."""
    tokens = []
    for _ in range(rounds):
        tokens = [zlib.crc32(text[place : place + 2]) % VOCABULARY for place in range(0, len(text), 2)]
    return tokens


class Texts(Dataset):
    def __init__(self, rounds: int, source: Source | None) -> None:
        self.rounds = rounds
        self.source = source

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self.source is not None:
            text = bytes(self.source.read(index))
        else:
            text = index.to_bytes(4, "little") * (LENGTH // 2)
        tokens = torch.tensor(tokenize(text, self.rounds))
        return {"input_ids": tokens, "labels": tokens}


class Count(TrainerCallback):
    def on_step_end(self, args: object, state: object, control: object, **more: object) -> None:
        program.note_step()


program = Program(__doc__)
torch.manual_seed(0)
config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=96, n_layer=2, n_head=4)
model = GPT2LMHeadModel(config)
example = torch.randint(VOCABULARY, (BATCH, LENGTH))


def step() -> None:
    model(input_ids=example, labels=example).loss.backward()


rounds = program.count_rounds(step, lambda: tokenize(bytes(2 * LENGTH), 1), BATCH)
arguments = TrainingArguments(
    output_dir=str(program.folder),
    per_device_train_batch_size=BATCH,
    max_steps=1_000_000,
    dataloader_num_workers=program.fault.workers,
    logging_steps=20,
    save_strategy="steps" if program.fault is Fault.CHECKPOINTS else "no",
    save_steps=CHECKPOINT_STEPS,
    save_total_limit=1,
    report_to=[],
    use_cpu=True,
)
texts = Texts(rounds, program.open_source(2 * LENGTH))
Trainer(model=model, args=arguments, train_dataset=texts, callbacks=[Count()]).train()
