"""What is no recording, a damaged one, or one in the way is refused in one line, and nothing of others is touched."""

import os
import random
import sqlite3
import stat
from contextlib import closing

import pytest

from tests.recordings import FRAME, ROOMY, SUBJECT, judge_steps, pass_by, run_seconds, write_recording
from tpmon.errors import NoTargetError, TpmonError, UsageError
from tpmon.record import schema
from tpmon.record.recording import Recording
from tpmon.record.rejudge import rejudge
from tpmon.record.shelf import Shelved, list_recordings, move_recording, read_shelved, stop_recorder
from tpmon.record.writer import RecordingWriter


def read_all(path) -> int:
    """Use every way to read a recording, and count its Frames."""
    with Recording(str(path)) as recording:
        found = sum(1 for _ in rejudge(recording))
        recording.frame(recording.last.n)
        recording.pulses(recording.last.n)
        recording.verdicts(), recording.events(), recording.holes()
        recording.dump_near(1), recording.sample_near(1)
        recording.find(10**18), recording.step(1, 5), recording.refresh(), recording.is_live()
    return found


def make_sqlite(path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as base:
        for one in statements:
            base.execute(one)
        base.commit()


OURS = f"PRAGMA application_id = {schema.APPLICATION_ID}"
FOREIGN = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("step 12 loss 0.3\n" * 99),
    "another database": lambda path: make_sqlite(path, "CREATE TABLE a (b)"),
    "no tables": lambda path: make_sqlite(path, OURS, "CREATE TABLE frame (n)"),
    "a folder": lambda path: path.mkdir(),
    "nothing": lambda path: None,
    "a pipe": os.mkfifo,
    "a newer version": lambda path: make_sqlite(
        path, OURS, f"PRAGMA user_version = {schema.VERSION + 1}", "CREATE TABLE a (b)"
    ),
    "no frame": lambda path: RecordingWriter(str(path), SUBJECT, ROOMY).close(),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_recording_is_refused_in_one_line(kind, tmp_path):
    path = tmp_path / "a.tpmon"
    FOREIGN[kind](path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(UsageError) as caught:
        read_all(path)
    assert caught.value.what.startswith(str(path))
    assert "\n" not in caught.value.what
    assert (path.read_bytes() if path.is_file() else b"") == before
    assert not os.path.exists(f"{path}-wal")


def test_a_newer_version_is_named_with_both_numbers(tmp_path):
    path = write_recording(tmp_path / "a.tpmon", pass_by([FRAME]))
    make_sqlite(path, "PRAGMA user_version = 9")
    with pytest.raises(UsageError, match=f"of version 9, and this tpmon reads up to {schema.VERSION}"):
        Recording(str(path))


ATTACKS = {
    "an endless table": (
        "DROP TABLE verdict",
        "CREATE TABLE verdict (id)",
        "DROP TABLE pulse",
        "CREATE VIEW pulse AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS n FROM c",
    ),
    "numbers that are texts": ("UPDATE frame SET wall_ns = 'noon'",),
    "numbers without an end": ("UPDATE frame SET wall_ns = 9e999",),
    "a body that is text": ("UPDATE frame SET body = 'x'",),
    "a body of nothing": ("UPDATE frame SET body = zeroblob(20)",),
    "no beginning": ("DELETE FROM frame WHERE n = 1",),
    "a kind that is none": ("UPDATE verdict SET kind = 'fine'", "UPDATE event SET kind = 'fine'"),
    "a time that is none": ("UPDATE event SET time = '2026-99-99'",),
    "another subject": ("UPDATE meta SET value = '[]' WHERE key = 'subject'",),
    "no subject": ("DELETE FROM meta",),
    "escapes": ("UPDATE meta SET value = char(27) || '[2J'",),
    "memory of others": ("UPDATE memory SET body = x'28b52ffd'",),
    "an artifact of nothing": ("INSERT INTO artifact (n, kind, body) VALUES (1, 'dump', zeroblob(9))",),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_file_made_to_harm_is_refused_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.setattr(schema, "QUERY_S", 0.5)
    path = write_recording(tmp_path / "a.tpmon", judge_steps(run_seconds(3)))
    make_sqlite(path, *ATTACKS[name])
    with pytest.raises(UsageError) as caught:
        read_all(path)
    assert caught.value.what.isprintable()


def test_a_line_that_unpacks_to_gigabytes_is_refused(tmp_path, monkeypatch):
    from tpmon.record import line

    monkeypatch.setattr(line, "MOST_LINE_BYTES", 1000)
    path = write_recording(tmp_path / "a.tpmon", pass_by([FRAME]))
    with pytest.raises(UsageError, match="a line larger than"):
        read_all(path)


@pytest.mark.parametrize("seed", [*range(40), *(pytest.param(one, marks=pytest.mark.long) for one in range(40, 240))])
def test_a_file_with_other_bytes_is_read_or_refused_and_never_more(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(schema, "QUERY_S", 2.0)
    draw = random.Random(seed)
    path = write_recording(tmp_path / "a.tpmon", judge_steps(run_seconds(6)))
    data = bytearray(path.read_bytes())
    if seed % 4 == 0:
        del data[draw.randrange(100, len(data)) :]
    for _ in range(draw.choice((1, 4, 40, 400))):
        data[draw.randrange(len(data))] = draw.randrange(256)
    path.write_bytes(data)
    try:
        found = read_all(path)
    except UsageError:
        found = 0  # any other error is a fault
    assert found <= 6


def test_nothing_is_written_over_and_no_link_is_followed(tmp_path):
    there, link, dead = tmp_path / "there", tmp_path / "link", tmp_path / "dead"
    there.write_text("my thesis")
    link.symlink_to(there)
    dead.symlink_to(tmp_path / "nowhere")
    own = write_recording(tmp_path / "a.tpmon", pass_by([FRAME]))
    linked = tmp_path / "linked.tpmon"
    linked.symlink_to(own)
    for path in (there, link, dead, tmp_path, linked):
        with pytest.raises(UsageError) as caught:
            RecordingWriter(str(path), SUBJECT, ROOMY)
        assert caught.value.what.startswith(str(path))
    assert there.read_text() == "my thesis"
    assert not (tmp_path / "nowhere").exists()


def test_the_file_is_for_its_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        path = write_recording(tmp_path / "a.tpmon", pass_by([FRAME]))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_writers_and_other_jobs_are_refused(tmp_path):
    path = str(tmp_path / "a.tpmon")
    writer = RecordingWriter(path, SUBJECT, ROOMY)
    writer.write(pass_by([FRAME])[0])
    with pytest.raises(UsageError, match="is being recorded by another tpmon"):
        RecordingWriter(path, SUBJECT, ROOMY)
    writer.close()
    for other in ({"pid": 1}, {"start_ticks": 1}, {"boot": "other"}, {"host": "other"}):
        with pytest.raises(UsageError, match=r"is of another job: 4210 train\.py on node1"):
            write_recording(tmp_path / "a.tpmon", [], **other)
    assert read_all(path) == 1


def test_a_folder_that_cannot_be_written_is_said_and_its_recordings_are_read(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = write_recording(folder / "a.tpmon", pass_by([FRAME]))
    folder.chmod(0o500)
    try:
        assert read_all(path) == 1
        if os.geteuid():
            with pytest.raises(UsageError, match="Permission denied"):
                RecordingWriter(str(folder / "b.tpmon"), SUBJECT, ROOMY)
    finally:
        folder.chmod(0o700)


def test_the_name_of_a_file_is_no_part_of_an_address(tmp_path):
    path = write_recording(tmp_path / "a?mode=rwc&x#%20.tpmon", pass_by([FRAME]))
    assert read_all(path) == 1


def test_the_shelf_lists_what_is_there_and_names_what_is_not_readable(tmp_path):
    first = write_recording(tmp_path / "a.tpmon", pass_by(run_seconds(5)))
    os.utime(first, (1, 1))
    (tmp_path / "b.tpmon").write_text("no")
    (tmp_path / "notes.txt").write_text("no")
    one, other = list_recordings(str(tmp_path))
    assert isinstance(one, Shelved)
    assert (one.path, one.frames, one.subject.script) == (str(first), 5, "train.py")
    assert (one.to_ns - one.from_ns, one.size_bytes) == (4 * 10**9, first.stat().st_size)
    assert isinstance(other, UsageError)
    assert list(list_recordings(str(tmp_path / "none"))) == []


def test_the_shelf_lists_the_recordings_of_a_fleet_too(tmp_path):
    (tmp_path / "tpmon-fleet-20260314T030741").mkdir()
    (tmp_path / "other").mkdir()
    path = write_recording(tmp_path / "tpmon-fleet-20260314T030741" / "n1.tpmon", pass_by([FRAME]), node="n1")
    write_recording(tmp_path / "other" / "n1.tpmon", pass_by([FRAME]))
    (one,) = list_recordings(str(tmp_path))
    assert (one.path, one.subject.node) == (str(path), "n1")


def test_a_recording_that_is_written_names_its_writer_and_is_not_moved(tmp_path):
    writer = RecordingWriter(str(tmp_path / "a.tpmon"), SUBJECT, ROOMY)
    writer.write(pass_by([FRAME])[0])
    assert read_shelved(str(tmp_path / "a.tpmon")).writer == os.getpid()
    with pytest.raises(UsageError, match="is being recorded"):
        move_recording(str(tmp_path / "a.tpmon"), str(tmp_path / "b.tpmon"))
    writer.close()
    assert move_recording(str(tmp_path / "a.tpmon"), str(tmp_path / "b.tpmon")) == (tmp_path / "b.tpmon").stat().st_size
    assert os.listdir(tmp_path) == ["b.tpmon"]
    assert stat.S_IMODE((tmp_path / "b.tpmon").stat().st_mode) == 0o600
    assert read_all(tmp_path / "b.tpmon") == 1
    write_recording(tmp_path / "c.tpmon", pass_by([FRAME]))
    with pytest.raises(UsageError, match="is there already"):
        move_recording(str(tmp_path / "c.tpmon"), str(tmp_path / "b.tpmon"))
    assert read_all(tmp_path / "c.tpmon") == 1


@pytest.mark.parametrize("wanted", ["1", "999999999", "a.tpmon", "/nowhere.tpmon"])
def test_only_a_process_that_writes_the_recording_is_sent_a_signal(wanted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sent = []
    monkeypatch.setattr("signal.pidfd_send_signal", lambda *given: sent.append(given))
    writer = RecordingWriter(str(tmp_path / "a.tpmon"), SUBJECT, ROOMY)
    writer.write(pass_by([FRAME])[0])
    writer._base.execute("UPDATE meta SET value = '1' WHERE key = 'writer'")  # a foreign file may name any process
    with pytest.raises(TpmonError):
        stop_recorder(wanted, str(tmp_path))
    writer.close()
    with pytest.raises(NoTargetError, match="is not being recorded"):
        stop_recorder("a.tpmon", str(tmp_path))
    assert not sent


def test_network_file_systems_are_known_by_their_numbers(tmp_path, monkeypatch):
    assert schema.name_network(str(tmp_path)) == ""
    monkeypatch.setattr(schema, "read_file_system", lambda _folder: 0x6969)
    assert schema.name_network(str(tmp_path)) == "NFS"
    monkeypatch.undo()
    assert schema.read_file_system("/proc") == 0x9FA0
    with pytest.raises(FileNotFoundError):
        schema.read_file_system("/nowhere")
