"""Make recordings for tests: Frames judged one by one, as a session does, and written by the recorder's writer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.frames import later, make_frame
from tpmon.judge.judge import judge
from tpmon.model.frame import Frame, Window
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.results.recording import Subject
from tpmon.record.rejudge import begin_standing
from tpmon.record.step import JudgedFrame
from tpmon.record.writer import RecordingBounds, RecordingWriter

SUBJECT = Subject("node1", "user", "train.py", 4210, 77, "boot", "0.1.0", 1.0, 0.0, NOT_APPLICABLE, True, True)
FRAME = make_frame()
ROOMY = RecordingBounds(least_free_bytes=0)


def run_seconds(count: int, frame: Frame = FRAME, every_s: float = 1.0) -> list[Frame]:
    """Return Frames one after the other, the first of them when it was taken."""
    return [later(frame, second * every_s) for second in range(count)]


def judge_steps(frames: Iterable[Frame], subject: Subject = SUBJECT) -> list[JudgedFrame]:
    """Judge Frames as a session does."""
    window, standing, steps = Window(), None, []
    for read in frames:
        window.append(read)
        judged = judge(tuple(window), standing or begin_standing(subject))
        steps.append(JudgedFrame(read, judged.frame, standing))
        standing = judged.standing
    return steps


def pass_by(frames: Iterable[Frame]) -> list[JudgedFrame]:
    """Hand on Frames that nobody judged."""
    return [JudgedFrame(frame, frame, None if at == 0 else begin_standing(SUBJECT)) for at, frame in enumerate(frames)]


def write_recording(path: Path, steps: Sequence[JudgedFrame], bounds: RecordingBounds = ROOMY, **subject: Any) -> Path:
    """Write steps into a new recording, or on in one of the same job."""
    writer = RecordingWriter(str(path), replace(SUBJECT, **subject), bounds)
    try:
        for step in steps:
            writer.write(step)
    finally:
        writer.close()
    return path
