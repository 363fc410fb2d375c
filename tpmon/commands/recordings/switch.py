"""Record a job that is watched anyway: ``attach --record``, and the key of the screen for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpmon.commands.command import WatchOptions, describe_subject
from tpmon.commands.recordings.record import FINISH_S, name_recording, open_recorder, say_end
from tpmon.errors import TpmonError, UsageError
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing
from tpmon.model.units import format_bytes, format_seconds
from tpmon.probe.base.worker import read_within
from tpmon.report.text import complain

if TYPE_CHECKING:
    from tpmon.probe.job.job import Job
    from tpmon.record.recorder import FrameRecorder, RecorderState
    from tpmon.session import Session

OPEN_S = 10.0
BUSY = "the recording is being begun or ended already"
_ANOTHER = "--record FILE, a new one in a folder of your own on a local disk"

Tell = Callable[[str, Applicable[bool]], None]
"""Take a line, and whether the job is recorded from now on where that has changed."""


def open_for(
    job: Job, options: WatchOptions, path: str, on_stop: Callable[[RecorderState], None]
) -> FrameRecorder:
    """Open a recording of a job that is watched, "" for a new one in the folder for recordings.

    Raises:
        UsageError: where that cannot be, or not in time.
    """

    def begin() -> FrameRecorder:
        return open_recorder(path or name_recording(job), describe_subject(job, options), on_stop=on_stop)

    try:
        recorder = read_within(OPEN_S, begin)
    except UsageError as error:
        raise UsageError(error.what, _ANOTHER) from error
    if isinstance(recorder, Missing):
        raise UsageError(f"no recording: {recorder.reason}", _ANOTHER)
    return recorder


@contextmanager
def recorded(session: Session, job: Job, options: WatchOptions, path: str) -> Iterator[None]:
    """Record a session of a text command into a file, and say on standard error what came of it."""
    recorder = open_for(job, options, path, lambda state: complain(f"tpmon: {say_end(state)}"))
    complain(f"tpmon: recording in {recorder.state.path}")
    session.record(recorder)
    try:
        yield
    finally:
        if not recorder.state.stopped:  # which was told
            complain(f"tpmon: {say_end(recorder.finish(FINISH_S))}")


class RecordingSwitch:
    """Begin and end the recording of one session beside a screen; what waits for a disk runs in a thread."""

    def __init__(self, job: Job, options: WatchOptions, tell: Tell) -> None:
        """Record nothing so far."""
        self._job = job
        self._options = options
        self._tell = tell
        self._recorder: FrameRecorder | None = None
        self._session: Session | None = None
        self._is_over = False
        self.busy = False
        """The file is being opened or closed."""
        self.path = ""
        """What was recorded into last."""

    def open(self, path: str) -> None:
        """Open the file; UsageError where that cannot be."""
        self._recorder = open_for(self._job, self._options, path, self._take_stop)
        self.path = self._recorder.state.path

    def follow(self, session: Session) -> None:
        """Record this session, from its first Frame on where the file is open already."""
        self._session = session
        if self._recorder is not None:
            session.record(self._recorder)
            self._tell(f"records in {self.path}; ctrl-r ends it", True)

    def turn(self) -> None:
        """Begin to record, or end it."""
        if self.busy:
            self._tell(BUSY, NOT_APPLICABLE)
        elif self._session is not None:
            self._start(self._begin if self._recorder is None else self._end)

    def end(self) -> None:
        """End what is recorded: the job is over, or the screen is left."""
        self._is_over = True
        if self._recorder is not None and not self.busy:
            self._start(self._end)

    def _start(self, work: Callable[[], None]) -> None:
        self.busy = True

        def run() -> None:
            try:
                work()
                if self._is_over:
                    self._end()
            except Exception as error:  # noqa: BLE001  # the screen goes on, and shows it
                why = error.what if isinstance(error, TpmonError) else f"{type(error).__name__}: {error}"
                self._tell(f"not recorded: {why}", False)
            finally:
                self.busy = False

        threading.Thread(target=run, name="tpmon-record", daemon=True).start()

    def _begin(self) -> None:
        self.open("")
        if self._session is None:
            return
        steps = self._session.recall()
        self._session.record(self._recorder)
        if not self._is_over:
            since_s = (time.monotonic_ns() - steps[0].read.taken_ns) / 1e9 if steps else 0.0
            self._tell(f"records in {self.path}, from {format_seconds(since_s)} ago on; ctrl-r ends it", True)

    def _end(self) -> None:
        recorder, self._recorder = self._recorder, None
        if self._session is not None:
            self._session.record(None)
        if recorder is not None:
            state = recorder.finish(FINISH_S)
            self._tell(f"{say_end(state)}, {format_bytes(state.size_bytes)}", False)

    def _take_stop(self, state: RecorderState) -> None:
        """Say that the recorder has ended by itself; the screen goes on."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return  # it was told to end, and whoever did that says how it did
        if self._session is not None:
            self._session.record(None)
        self._tell(say_end(state), False)
