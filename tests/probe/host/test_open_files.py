"""Which open file of a rank was written last: a sign of life after the log, of local file systems only."""

import os
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.children import child
from tests.dumps import IN_LOCK, make_rank, make_worker
from tests.frames import NOW
from tests.hanging import conclude, run, stand
from tpmon.judge.hang.activity import file_age_s
from tpmon.model.frame import Frame
from tpmon.model.host import FileWrite, SocketSample
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Role
from tpmon.model.verdict import Kind, SinceIs
from tpmon.probe.host import output as open_files
from tpmon.probe.host.output import is_journal, list_written, read_newest_write
from tpmon.probe.proc.wait_object import read_mount

LOCKED = make_rank(0, frames=IN_LOCK)
PATH = "/runs/7/events.out.tfevents"


def written(frames: list[Frame], ago_s: float, *, journal: bool = False) -> list[Frame]:
    """Let a rank have written into a file ``ago_s`` before the last Frame."""
    one = FileWrite(4000, PATH, NOW - timedelta(seconds=ago_s), journal)
    return [replace(frame, written=one) for frame in frames]


def start_workers(frames: list[Frame], ago_s: float) -> list[Frame]:
    """Let all loader workers have started at one moment."""

    def start(process):
        return replace(process, started=NOW - timedelta(seconds=ago_s)) if process.role is Role.WORKER else process

    return [replace(frame, processes=tuple(map(start, frame.processes))) for frame in frames]


def test_what_this_process_has_open_for_writing_is_listed_and_what_it_reads_is_not(tmp_path):
    log, data = tmp_path / "events", tmp_path / "data"
    data.write_text("x")
    with log.open("w") as one, data.open() as other:
        listed = dict(list_written(os.getpid()))
        assert listed[one.fileno()] == str(log)
        assert other.fileno() not in listed
        assert not any(path.startswith(("/dev/", "pipe:", "socket:")) for path in listed.values())


def test_the_newest_file_is_told_and_no_network_file_system_is_asked(tmp_path, monkeypatch):
    old, new = tmp_path / "old", tmp_path / "new"
    with old.open("w") as first, new.open("w") as second:
        if read_mount(os.getpid(), first.fileno(), "/proc")[1] not in open_files.LOCAL:
            pytest.skip("the folder of this test is on no local file system")
        later = 2_000_000_000
        os.utime(second.fileno(), (later, later))
        found = read_newest_write([os.getpid()])
        assert (found.pid, found.path, found.last_write.timestamp()) == (os.getpid(), str(new), later)
        monkeypatch.setattr(open_files, "LOCAL", frozenset())
        assert read_newest_write([os.getpid()]) is NOT_APPLICABLE


def test_a_process_that_is_gone_has_none(tmp_path):
    assert read_newest_write([1, 2], str(tmp_path)) is NOT_APPLICABLE


OLD_LOG = stand(LOCKED, seconds=10, log_age_s=1560.0)
NO_LOG = stand(LOCKED, log_age_s=None, sockets=Missing("not read"))
TALKED = SocketSample(1, last_send_s=700.0, last_receive_s=900.0, retransmits=0, unsent_bytes=0)
WORKING = stand(LOCKED, make_worker(0, 0), log_age_s=1560.0)
A_WRITE = "last write of events.out.tfevents "


@pytest.mark.parametrize(
    ("frames", "since_s", "source"),
    [
        # A file that was written after the log makes the hang younger, an older one does not.
        (written(OLD_LOG, 400.0), 400, A_WRITE),
        (written(OLD_LOG, 4000.0), 1560, "last log write "),
        # A journal dates the hang of a run without a log; data on connections tells more.
        (written(NO_LOG, 1560.0, journal=True), 1560, A_WRITE),
        (written(stand(LOCKED, log_age_s=None, sockets=TALKED), 1560.0, journal=True), 700, ""),
        # Workers that started later make it younger; others live for an epoch, which says nothing.
        (start_workers(WORKING, 600), 600, "start of its youngest worker "),
        (start_workers(WORKING, 2000), 1560, "last log write "),
    ],
)
def test_a_hang_is_as_old_as_the_last_sign_of_life(frames, since_s, source):
    finding = conclude(frames)
    assert (finding.kind, finding.cause) == (Kind.HUNG, "lock")
    assert (finding.since, finding.since_is) == (NOW - timedelta(seconds=since_s), SinceIs.LOWER_BOUND)
    assert finding.since_source.startswith(source)


def test_a_sign_of_life_just_now_takes_the_word_of_an_old_log_back():
    assert run(written(OLD_LOG, 20.0))[-1].frame.verdict.kind is not Kind.HUNG
    assert conclude(written(stand(LOCKED, log_age_s=1560.0), 20.0)).kind is Kind.HUNG
    frames = stand(LOCKED, make_worker(0, 0), seconds=10, log_age_s=1560.0)
    assert conclude(frames).kind is Kind.HUNG
    assert run(start_workers(frames, 40))[-1].frame.verdict.kind is not Kind.HUNG


@pytest.mark.parametrize("journal", [False, True])
def test_a_file_alone_is_no_sign_of_silence(journal):
    frames = written(stand(LOCKED, seconds=10, log_age_s=None), 9e5, journal=journal)
    assert run(frames)[-1].frame.verdict.kind is not Kind.HUNG, "many get a line an epoch"
    assert file_age_s(frames[-1]) == 9e5
    assert file_age_s(replace(frames[-1], written=NOT_APPLICABLE)) is None


def test_a_file_that_is_no_journal_is_evidence_alone():
    lock_file = conclude(written(NO_LOG, 1560.0))
    assert lock_file.since >= NOW - timedelta(seconds=60), "it may have been written once, when the run began"
    rows = {row.name: row.value for row in lock_file.evidence}
    assert rows["last write of an open file"] == 1560.0


HOLDS = """
file = open(sys.argv[1], sys.argv[2])
file.write(sys.argv[3])
file.flush()
say("up")
hear()
"""


@pytest.mark.parametrize(
    ("mode", "text", "expected"), [("a", "{}", True), ("w", "{}", False), ("r+", "{}", False), ("a", "", False)]
)
def test_a_file_that_is_appended_to_is_a_journal_and_an_empty_one_is_none(tmp_path, mode, text, expected):
    path = tmp_path / "metrics.jsonl"
    path.touch()
    # In a process of its own: the output of this one may be a file that make has opened for appending.
    with child(HOLDS, str(path), mode, text) as one:
        fd = next(fd for fd, name in list_written(one.pid) if name == str(path))
        if read_mount(one.pid, fd, "/proc")[1] not in open_files.LOCAL:
            pytest.skip("the folder of this test is on no local file system")
        assert is_journal(one.pid, fd, str(path)) is (mode == "a")
        assert read_newest_write([one.pid]).journal is expected
    assert is_journal(one.pid, -1, "/runs/7/events.out.tfevents.1772.host.7.0")
