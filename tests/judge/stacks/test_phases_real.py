"""Stacks that py-spy read from real small programs: every one was looked at and labelled by hand.

The programs: plain loops with and without workers (validation, torch.save and torch.load in the
loop), Hugging Face Trainer 5.23, Lightning 2.6, Accelerate 1.15, DDP and FSDP2 with activation
checkpointing over gloo, torch.compile, and a breakpoint; torch 2.13 on CPython 3.11.
"""

from pathlib import Path

import pytest

from tpmon.judge.stacks.classify import read_stack
from tpmon.judge.stacks.profile import DataPart, Phase, classify
from tpmon.model.stacks import StackCount
from tpmon.probe.spy.text import parse_raw

FILES = sorted((Path(__file__).parents[2] / "data").glob("stacks_*.tsv"))
PID = 100


def _read(path: Path) -> list[tuple[str, str, StackCount]]:
    """Return label, words and stack of every line."""
    rows = []
    for line in path.read_text().splitlines():
        label, words, raw = line.split("\t")
        (stack,) = parse_raw(raw.encode(), PID).stacks
        rows.append((label, words, stack))
    return rows


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_real_stacks_are_read_as_labelled(path):
    for label, words, stack in _read(path):
        phase, part = classify(stack.frames)
        assert "/".join(one.value for one in (phase, part) if one is not None) == label, words
        assert read_stack(stack.frames).where == words


def test_the_captured_programs_show_every_phase_that_has_frames_on_a_cpu():
    labels = {label for path in FILES for label, _, _ in _read(path)}
    phases = {label.partition("/")[0] for label in labels}
    assert phases == {phase.value for phase in Phase} - {Phase.SYNC.value}
    parts = {label.partition("/")[2] for label in labels if "/" in label}
    assert parts >= {part.value for part in DataPart} - {DataPart.SAMPLER.value}
