"""Record a session while it runs: a thread of its own writes, so that a slow disk never delays a reading."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Union

from tpmon.model.frozen import dataclass
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate
from tpmon.model.results.recording import Subject
from tpmon.model.units import clean_text
from tpmon.record.step import JudgedFrame
from tpmon.record.writer import RecordingBounds, RecordingWriter, StoppedError

WAITING = 180
"""Frames that wait for a slow disk; further ones become a hole."""

Kept = Union[JudgedFrame, DumpUpdate, SampleUpdate]


@dataclass(frozen=True, slots=True)
class RecorderState:
    """Say how far a recording is; ``stopped`` is why it ended before it was told to, "" where it did not."""

    path: str
    frames: int
    size_bytes: int
    lost: int
    stopped: str


class FrameRecorder:
    """Take judged Frames from a session, and write them in a thread."""

    def __init__(
        self,
        path: str,
        subject: Subject,
        bounds: RecordingBounds = RecordingBounds(),  # noqa: B008  # frozen
        on_stop: Callable[[RecorderState], None] = lambda _state: None,
    ) -> None:
        """Open the file; UsageError where that cannot be. ``on_stop`` is called where writing has to end."""
        self._writer = RecordingWriter(path, subject, bounds)
        self._on_stop = on_stop
        self._waiting: queue.Queue[tuple[Kept, ...] | None] = queue.Queue(WAITING)
        self._lost = 0
        self._stopped = ""
        self._ended = threading.Event()
        threading.Thread(target=self._work, name="tpmon-recorder", daemon=True).start()

    @property
    def state(self) -> RecorderState:
        """Return how far it is."""
        return RecorderState(
            self._writer.path, self._writer.frames, self._writer.size_bytes, self._lost, self._stopped
        )

    def take(self, *those: Kept) -> None:
        """Hand over Frames, a dump or samples, in one piece; never wait."""
        if self._ended.is_set():
            return
        try:
            self._waiting.put_nowait(those)
        except queue.Full:
            self._lost += len(those)

    def finish(self, within_s: float) -> RecorderState:
        """Write what waits, close the file, and return how that ended; wait for a dead disk no longer."""
        try:
            self._waiting.put(None, timeout=within_s)
        except queue.Full:
            self._stopped = self._stopped or "the disk gives no answer"
        if not self._ended.wait(within_s):
            self._stopped = self._stopped or "the disk gives no answer"
        return self.state

    def _work(self) -> None:
        try:
            self._write_all()
        except StoppedError as error:
            self._stopped = str(error)
        except Exception as error:  # noqa: BLE001  # told to whoever records; the job is watched on
            self._stopped = f"{type(error).__name__}: {clean_text(str(error))}"
        if self._stopped:
            self._writer.note(f"recording stopped: {self._stopped}")
        self._writer.close()
        self._ended.set()
        if self._stopped:
            self._on_stop(self.state)

    def _write_all(self) -> None:
        while (those := self._waiting.get()) is not None:
            for one in those:
                if isinstance(one, JudgedFrame):
                    self._writer.write(one)
                else:
                    self._writer.keep(one)
