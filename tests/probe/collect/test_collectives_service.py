"""Read the records of a job in the background, of which each Frame has what is new."""

import threading

import pytest

from tests.collectives import make_record
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.results.collectives import CollectivesReading, DumpRecords
from tpmon.probe.collect import collector
from tpmon.probe.collect.collector import CollectivesService
from tpmon.probe.records import collectives

READING = CollectivesReading((make_record(0),), (), ())


class Bench:
    """Hold a service whose reader answers at once, or breaks where it has no answer."""

    def __init__(self) -> None:
        self.answers: list[CollectivesReading] = []
        self.asked: list[object] = []
        self.changed = threading.Semaphore(0)
        self.service = CollectivesService(lambda: "job", self.read)
        self.service.on_change = self.changed.release

    def read(self, job: object) -> CollectivesReading:
        self.asked.append(job)
        return self.answers.pop()

    def finish(self, dump_ns: int) -> None:
        self.service.ask(dump_ns)
        assert self.changed.acquire(timeout=20)


@pytest.fixture
def bench():
    return Bench()


def test_a_reading_enters_one_frame_and_says_for_which_dump_it_is(bench):
    assert (bench.service.state, bench.service.take()) == (NOT_APPLICABLE, NOT_APPLICABLE)
    bench.answers.append(READING)
    bench.finish(77)
    assert bench.asked == ["job"]
    assert bench.service.state == DumpRecords(77, READING)
    assert [bench.service.take(), bench.service.take()] == [READING, NOT_APPLICABLE]
    assert bench.service.state == DumpRecords(77, READING), "a dump is not drawn from the Frames"


def test_nothing_is_asked_of_a_pipe(monkeypatch):
    asked = []
    monkeypatch.setattr(collectives, "read_collectives", lambda *job, **options: asked.append((job, options)))
    collector._read_records("job")
    assert asked == [(("job",), {"someone_waits": True})]


def test_a_reader_that_fails_says_why_for_each_source_and_the_next_one_works(bench):
    bench.finish(1)
    assert [note.reason for note in bench.service.take().notes] == ["IndexError: pop from empty list"] * 3
    bench.answers.append(READING)
    bench.finish(2)
    assert bench.service.take() == READING
