"""Which open file of a rank was written last: a sign of life after the log, of local file systems only."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.dumps import IN_LOCK, make_rank
from tests.frames import NOW
from tests.hanging import conclude, run, stand
from tpmon.judge.hang_memory import file_age_s
from tpmon.model.frame import Frame
from tpmon.model.host import FileWrite
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.verdict import Kind, SinceIs
from tpmon.probe import open_files
from tpmon.probe.open_files import list_written, read_newest_write
from tpmon.probe.wait_mount import read_mount

LOCKED = make_rank(0, frames=IN_LOCK)
PATH = "/runs/7/events.out.tfevents"


def written(frames: list[Frame], ago_s: float) -> list[Frame]:
    """Let a rank have written into a file ``ago_s`` before the last Frame."""
    one = FileWrite(4000, PATH, NOW - timedelta(seconds=ago_s))
    return [replace(frame, written=one) for frame in frames]


def test_what_this_process_has_open_for_writing_is_listed_and_what_it_reads_is_not(tmp_path: Path):
    log, data = tmp_path / "events", tmp_path / "data"
    data.write_text("x")
    with log.open("w") as one, data.open() as other:
        listed = dict(list_written(os.getpid()))
        assert listed[one.fileno()] == str(log)
        assert other.fileno() not in listed
        assert not any(path.startswith(("/dev/", "pipe:", "socket:")) for path in listed.values())


def test_the_newest_file_is_told_and_no_network_file_system_is_asked(tmp_path: Path, monkeypatch):
    old, new = tmp_path / "old", tmp_path / "new"
    with old.open("w") as first, new.open("w") as second:
        if read_mount(os.getpid(), first.fileno(), "/proc")[1] not in open_files.LOCAL:
            pytest.skip("the folder of this test is on no local file system")
        later = 2_000_000_000
        os.utime(second.fileno(), (later, later))
        found = read_newest_write([os.getpid()])
        assert is_known(found)
        assert (found.pid, found.path, found.last_write.timestamp()) == (os.getpid(), str(new), later)
        monkeypatch.setattr(open_files, "LOCAL", frozenset())
        assert read_newest_write([os.getpid()]) is NOT_APPLICABLE


def test_a_process_that_is_gone_has_none(tmp_path: Path):
    assert read_newest_write([1, 2], str(tmp_path)) is NOT_APPLICABLE


def test_a_file_that_was_written_after_the_log_makes_the_hang_younger():
    frames = stand(LOCKED, seconds=10, log_age_s=1560.0)
    finding = conclude(written(frames, 400.0))
    assert (finding.kind, finding.cause) == (Kind.HUNG, "lock")
    assert (finding.since, finding.since_is) == (NOW - timedelta(seconds=400), SinceIs.LOWER_BOUND)
    assert finding.since_source.startswith("last write of events.out.tfevents ")
    older = conclude(written(frames, 4000.0))
    assert older.since == NOW - timedelta(seconds=1560)
    assert older.since_source.startswith("last log write ")


def test_a_file_that_was_written_just_now_takes_the_word_of_an_old_log_back():
    frames = written(stand(LOCKED, seconds=10, log_age_s=1560.0), 20.0)
    assert run(frames)[-1].frame.verdict.kind is not Kind.HUNG
    assert conclude(written(stand(LOCKED, log_age_s=1560.0), 20.0)).kind is Kind.HUNG


def test_a_file_alone_is_no_sign_of_silence():
    frames = written(stand(LOCKED, seconds=10, log_age_s=None), 9e5)
    assert run(frames)[-1].frame.verdict.kind is not Kind.HUNG
    assert file_age_s(frames[-1]) == 9e5
    assert file_age_s(replace(frames[-1], written=NOT_APPLICABLE)) is None
