"""Look into a phase that keeps its insides: what a checkpoint, a validation or a load waits for. Pure.

For a verdict such a phase is one thing, whatever happens in it. In a dump it matters that rank 3 writes a
file while the others wait for it in a barrier of the same save.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.judge.stacks.classify import Reading, is_users, mark_frame, name_line, read_stack
from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.model.frozen import dataclass
from tpmon.model.stacks import StackFrame

_KEEPS = frozenset((Phase.CHECKPOINT, Phase.VALIDATION, Phase.LOAD))
_WAITS = frozenset((Phase.COMMS, Phase.DATA_WAIT, Phase.SYNC))


@dataclass(frozen=True, slots=True)
class Inside:
    """Say what a phase waits for. ``word`` names both: "barrier (checkpoint)"; ``text`` has the line, too."""

    phase: Phase
    part: DataPart | None
    word: str
    text: str
    place: tuple[str, str, int]


def read_inside(frames: Sequence[StackFrame], reading: Reading) -> Inside | None:
    """Read what the phase of a stack waits for; None where it waits for nothing that the stack tells."""
    if reading.phase not in _KEEPS:
        return None
    marks = [mark_frame(frame.function, frame.file) for frame in frames]
    own = [index for index, mark in enumerate(marks) if mark is not None and mark.phase is reading.phase]
    if not own:
        return None
    # A load and a save share files, so frames of both are left out.
    rest = [
        frame
        for frame, mark in zip(frames[own[0] + 1 :], marks[own[0] + 1 :], strict=True)
        if mark is None or mark.phase not in _KEEPS
    ]
    inner = read_stack(rest)
    if inner.phase not in _WAITS:
        return None
    users = [frame for frame in rest if is_users(frame)]
    word = inner.where
    if users and word.endswith(f" {name_line(users[-1])}"):
        word = word.removesuffix(f" {name_line(users[-1])}")
    word = f"{word} ({reading.phase.value})"
    last = next((frame for frame in reversed(frames) if is_users(frame)), None)
    text = f"{word} {name_line(last)}" if last is not None and name_line(last) not in word else word
    return Inside(inner.phase, inner.part, word, text, (inner.phase.value, *reading.place[1:]))
