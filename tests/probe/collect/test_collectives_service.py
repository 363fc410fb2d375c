"""Read the records of a job in the background with a reader that answers when the test says so."""

import threading
import time
from types import SimpleNamespace
from typing import Any

from tests.collectives import make_record
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.results.collectives import CollectivesReading, DumpRecords
from tpmon.probe.collect import collector
from tpmon.probe.collect.collector import CollectivesService
from tpmon.probe.records import collectives

READING = CollectivesReading((make_record(0),), (), ())


class Reader:
    """Keep what it was asked, and answer once ``go`` is set."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.fails = False

    def __call__(self, job: Any) -> CollectivesReading:
        self.asked.append(job)
        self.begun.release()
        self.go.wait(20)
        if self.fails:
            raise ZeroDivisionError("a\x1b bug")
        return READING


class Bench:
    def __init__(self) -> None:
        self.reader = Reader()
        self.job: Any = SimpleNamespace(members=())
        self.changed = threading.Semaphore(0)
        self.service = CollectivesService(lambda: self.job, self.reader)
        self.service.on_change = self.changed.release

    def finish(self, dump_ns: int) -> None:
        self.reader.go.set()
        self.service.ask(dump_ns)
        assert self.changed.acquire(timeout=20)


def test_a_reading_enters_one_frame_and_says_for_which_dump_it_is():
    bench = Bench()
    assert (bench.service.state, bench.service.take()) == (NOT_APPLICABLE, NOT_APPLICABLE)
    bench.finish(77)
    assert bench.service.state == DumpRecords(77, READING)
    assert bench.service.take() == READING
    assert bench.service.take() is NOT_APPLICABLE
    assert bench.service.state == DumpRecords(77, READING), "a dump is not drawn from the Frames"


def test_nothing_is_asked_of_a_pipe(monkeypatch):
    asked = []
    monkeypatch.setattr(collectives, "read_collectives", lambda *job, **options: asked.append((job, options)))
    collector._read_records("job")
    assert asked == [(("job",), {"someone_waits": True})]


def test_two_readings_never_run_at_once_and_nobody_waits_for_one():
    bench = Bench()
    began = time.monotonic()
    bench.service.ask(1)
    assert bench.reader.begun.acquire(timeout=20)
    bench.service.ask(2)
    assert time.monotonic() - began < 10, "a reader that hangs holds nobody"
    bench.reader.go.set()
    assert bench.changed.acquire(timeout=20)
    assert len(bench.reader.asked) == 1
    first = bench.service.state
    assert first.dump_ns == 1
    bench.finish(2)
    assert len(bench.reader.asked) == 2


def test_a_reader_that_fails_says_why_for_each_source_and_the_next_one_works():
    bench = Bench()
    bench.reader.fails = True
    bench.finish(1)
    failed = bench.service.take()
    assert {note.reason for note in failed.notes} == {"ZeroDivisionError: a? bug"}
    assert len(failed.notes) == 3
    bench.reader.fails = False
    bench.finish(2)
    assert bench.service.take() == READING


def test_after_the_end_nothing_is_read():
    bench = Bench()
    bench.service.stop()
    bench.service.ask(1)
    assert not bench.reader.begun.acquire(timeout=0.2)
