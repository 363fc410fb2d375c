"""Read what the job recorded of its collectives in a daemon thread, one reading at a time; nobody waits.

Nothing is written into a pipe of the job here: that is for a person to ask for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Protocol

from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.results.collectives import CollectivesReading, DumpRecords, RecordSource, SourceNote
from tpmon.model.text.redaction import admit_text
from tpmon.probe.job.job import Job

_SOURCES = (RecordSource.SERVER, RecordSource.FILE, RecordSource.RAS)
_REASON_CHARS = 200


class Read(Protocol):
    """Read the records of a job; in bounded time."""

    def __call__(self, job: Job, *, someone_waits: bool) -> CollectivesReading:
        """Return what was found."""
        ...


def _read(job: Job, *, someone_waits: bool) -> CollectivesReading:
    # Sockets and pickles that a session without a dump never needs cost its first picture some ms.
    from tpmon.probe.records.collectives import read_collectives

    return read_collectives(job, someone_waits=someone_waits)


class CollectivesService:
    """Own the daemon thread of a reading. Every method returns at once."""

    def __init__(self, job: Callable[[], Job], read: Read = _read) -> None:
        """Read nothing until ``ask``; ``job`` tells, in any thread, which processes there are."""
        self.on_change: Callable[[], None] = lambda: None
        self._job = job
        self._read = read
        self._lock = threading.Lock()
        self._newest: Applicable[DumpRecords] = NOT_APPLICABLE
        self._fresh: Applicable[DumpRecords] = NOT_APPLICABLE
        self._running = False
        self._stopped = False

    @property
    def newest(self) -> Applicable[DumpRecords]:
        """Return the last reading that ended; not applicable before the first."""
        with self._lock:
            return self._newest

    def take(self) -> Applicable[CollectivesReading]:
        """Return the reading that ended since the last call."""
        with self._lock:
            fresh, self._fresh = self._fresh, NOT_APPLICABLE
        return fresh.reading if is_known(fresh) else NOT_APPLICABLE

    def ask(self, dump_ns: int) -> None:
        """Start to read for a dump in which a rank waits; nothing while another reading runs."""
        with self._lock:
            if self._running or self._stopped:
                return
            self._running = True
        threading.Thread(target=self._run, args=(dump_ns,), name="tpmon-collectives", daemon=True).start()

    def stop(self) -> None:
        """Start no reading any more; one that runs ends by its own deadlines."""
        with self._lock:
            self._stopped = True

    def _run(self, dump_ns: int) -> None:
        try:
            reading = self._read(self._job(), someone_waits=True)
        except Exception as error:  # noqa: BLE001  # shown where the records would be
            host, reason = os.uname().nodename, admit_text(f"{type(error).__name__}: {error}", _REASON_CHARS)
            notes = tuple(SourceNote(host, source, reason) for source in _SOURCES)
            reading = CollectivesReading((), (), notes)
        with self._lock:
            self._newest = self._fresh = DumpRecords(dump_ns, reading)
            self._running = False
        self.on_change()
