"""All nodes recorded: a file each that replays, the joint reports beside them, and a disk that is slow or full."""

import json
import os
import signal
import sqlite3
import stat
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.command_line import call, start
from tests.fleet import bed
from tests.fleet.nodes import look_at_pair, make_node, make_pair, make_rank_summary, make_silent, make_verdict
from tests.fleet.test_loop import ODD
from tests.frames import NOW, later, make_frame, make_view
from tests.painted import screen_of
from tests.record.test_same_screen import play
from tests.recordings import ROOMY
from tests.waiting import wait_until
from tpmon.errors import ExitCode, UsageError
from tpmon.fleet import record
from tpmon.fleet.record import FleetRecorder, FleetSwitch, make_folder, pick_name
from tpmon.judge.nodes import FleetMemory, join_fleet, note_answer, note_asked, observe
from tpmon.model.codec import decode
from tpmon.model.frame import TargetState
from tpmon.model.known import is_known
from tpmon.model.results.fleet import FleetReport, NodeState
from tpmon.model.verdict import EXIT_CODES, Kind
from tpmon.record import schema
from tpmon.record.recording import Recording
from tpmon.record.writer import RecordingWriter
from tpmon.ui.kit.keys import Overlay

FRAME = make_frame(verdict=make_verdict(Kind.BALANCED))
WITHIN_S = 60.0


class Nodes:
    """Stand for a fleet: hand whole Frames to whoever follows."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = nodes
        self.may_look = True
        self.hang_after_s = None
        self._takers = {}

    def follow(self, node, take):
        self._takers[node] = take

    def unfollow(self, node, take):
        assert self._takers.pop(node) == take

    def send(self, node, second, frame=FRAME, **fields):
        self._takers[node](node, later(frame, second, **fields))


@contextmanager
def record_nodes(folder, *nodes):
    """Record some nodes; yield them, the recorder, and what it says."""
    folder.mkdir()
    fleet, said = Nodes(*nodes), list[str]()
    recorder = FleetRecorder(fleet, str(folder), lambda line, _records: said.append(line))
    try:
        yield fleet, recorder, said
    finally:
        recorder.finish(WITHIN_S)


def join(*nodes, memory=FleetMemory(), after_s=0.0):  # noqa: B008  # frozen
    return join_fleet(memory, nodes, NOW + timedelta(seconds=after_s))


def read_reports(folder):
    return [decode(FleetReport, line) for line in (folder / record.REPORTS).read_text().splitlines()]


def count_frames(path):
    with Recording(str(path)) as recording:
        return recording.count_frames()


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        (("n1", "n1.site", "me@n1"), ["n1", "n1.site", "me_n1"]),
        (("a/b", "a:b", "A_b"), ["a_b", "a_b-2", "A_b-3"]),
        (("..", "-", "/"), ["node", "node-2", "_"]),
        (("../../etc/passwd", "\x1b[2J"), ["_.._etc_passwd", "_2J"]),
        (("n" * 128, "n" * 127), ["n" * 100, "n" * 100 + "-2"]),
    ],
)
def test_files_of_nodes_are_named_safely_and_each_once(nodes, names):
    used = set()
    assert [pick_name(one, used) for one in nodes] == names


def test_each_node_has_a_file_of_its_own_from_its_first_frame_on(tmp_path):
    with record_nodes(tmp_path / "all", "n1", "n2") as (fleet, _, said):
        fleet.send("n1", 0)
        fleet.send("n2", 5)
        fleet.send("n1", 1)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "all").iterdir()} == dict.fromkeys(
        ("n1.tpmon", "n2.tpmon", "fleet.jsonl"), 0o600
    )
    assert said == [f"recorded 2 nodes, 3 Frames in {tmp_path}/all"]
    with Recording(str(tmp_path / "all" / "n1.tpmon")) as recording:
        assert (recording.subject.node, recording.subject.script) == ("n1", FRAME.target.script)
        assert recording.frame(2) == later(FRAME, 1)
        assert [one.kind for one in recording.verdicts()] == [Kind.BALANCED]
        streams = [one.begins for one in recording.recorded()]
    assert streams == [True, False]


def test_a_node_of_which_an_agent_comes_again_goes_on_in_its_file_with_a_hole(tmp_path):
    with record_nodes(tmp_path / "all", "n1") as (fleet, recorder, _):
        fleet.send("n1", 0)
        recorder.take(join(make_silent("n1", NodeState.GONE)))
        assert wait_until(lambda: not is_live(tmp_path / "all" / "n1.tpmon"))
        fleet.send("n1", 40, target=replace(FRAME.target, start=FRAME.target.start + timedelta(seconds=1)))
    with Recording(str(tmp_path / "all" / "n1.tpmon")) as recording:
        assert recording.count_frames() == 2
        assert [one.reason for one in recording.holes()] == ["nothing was recorded"]


def is_live(path):
    if not path.exists():
        return True  # not made so far
    try:
        with Recording(str(path)) as recording:
            return recording.is_live()
    except UsageError:
        return True


def test_a_job_that_ends_closes_the_file_and_the_next_one_gets_another(tmp_path):
    target = FRAME.target
    with record_nodes(tmp_path / "all", "n1") as (fleet, _, _):
        fleet.send("n1", 0)
        fleet.send("n1", 1, target=replace(target, state=TargetState.ENDED))
        assert wait_until(lambda: not is_live(tmp_path / "all" / "n1.tpmon"))
        fleet.send("n1", 60, target=replace(target, start=target.start + timedelta(seconds=60)))
    assert count_frames(tmp_path / "all" / "n1.tpmon") == 2
    assert count_frames(tmp_path / "all" / "n1-2.tpmon") == 1


def hang():
    """Return the nodes of a hang, and what was remembered of the looks at them."""
    nodes, memory = make_pair(33.0), note_asked(FleetMemory(), ("n1", "n2"), 990.0)
    for node, dump in look_at_pair().items():
        memory = note_answer(memory, node, dump)
    return nodes, observe(memory, nodes, 1000.0)


def test_the_looks_of_the_hang_watch_are_in_every_file_and_on_its_screen(tmp_path):
    nodes, memory = hang()
    with record_nodes(tmp_path / "all", "n1", "n2") as (fleet, recorder, _):
        for node in ("n1", "n2"):
            fleet.send(node, 0)
        for second in range(5):
            recorder.take(join(*nodes, memory=memory, after_s=second))
    for node in ("n1", "n2"):
        path = tmp_path / "all" / f"{node}.tpmon"
        assert sqlite3.connect(path).execute("SELECT count(*) FROM artifact").fetchone() == (1,)
        with Recording(str(path)) as recording:
            update = recording.dump_near(1)
        assert (update.dump.odd_one_out.host, update.dump.odd_one_out.rank) == ("n2", 1)
        view = replace(make_view(overlay=Overlay.STACKS), frame=play(path, 1).frame, dump=update)
        assert "n2" in screen_of(view)


def test_reports_are_kept_where_something_changes_and_else_every_ten_seconds(tmp_path):
    calm = (make_node("n1", make_rank_summary(0)), make_node("n2", make_rank_summary(1)))
    gone = (calm[0], make_silent("n2", NodeState.GONE))
    seconds = [calm] * 25 + [gone] * 4
    with record_nodes(tmp_path / "all", "n1", "n2") as (_, recorder, _):
        for second, nodes in enumerate(seconds):
            recorder.take(join(*nodes, after_s=second))
    assert [(one.taken - NOW).total_seconds() for one in read_reports(tmp_path / "all")] == [0, 10, 20, 25, 28]


def test_reports_beyond_their_bound_end_with_whole_lines_and_are_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "MOST_REPORT_BYTES", 8_000)
    calm, gone = make_node("n1", make_rank_summary(0)), make_silent("n1", NodeState.GONE)
    with record_nodes(tmp_path / "all", "n1") as (fleet, recorder, said):
        for second in range(40):
            recorder.take(join(calm if second % 2 else gone, after_s=second))
        fleet.send("n1", 0)
    assert len(read_reports(tmp_path / "all")) > 5
    assert (tmp_path / "all" / record.REPORTS).stat().st_size <= 8_000
    assert said == [
        "fleet.jsonl is recorded no longer: it holds 7.8K",
        f"recorded 1 node, 1 Frame in {tmp_path}/all; 1 of its files stopped: it holds 7.8K",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_a_full_disk_ends_the_recordings_with_its_reason_once_and_what_is_there_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "WAITING", 5_000)
    monkeypatch.setattr(RecordingWriter.__init__, "__defaults__", (ROOMY,))
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "none", disk], check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted: {done.stderr.decode().strip()}")
    try:
        noisy = [replace(FRAME, facts=os.urandom(4_000).hex()) for _ in range(200)]
        with record_nodes(disk / "all", "n1", "n2") as (fleet, _, said):
            for second, frame in enumerate(noisy):
                fleet.send("n1", second, frame)
                fleet.send("n2", second, frame)
        first, last = said
        assert first.split()[0] in ("n1", "n2")
        assert first.endswith("is recorded no longer: the disk is full")
        assert last.endswith("2 of its files stopped: the disk is full")
        assert min(count_frames(disk / "all" / f"{node}.tpmon") for node in ("n1", "n2")) > 5
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_disk_without_an_answer_holds_nobody_up_and_is_said(tmp_path, monkeypatch):
    free = threading.Event()
    monkeypatch.setattr(record, "WAITING", 8)
    monkeypatch.setattr(RecordingWriter, "write", lambda _self, _step: free.wait(WITHIN_S))
    (tmp_path / "all").mkdir()
    fleet, said = Nodes("n1"), list[str]()
    recorder = FleetRecorder(fleet, str(tmp_path / "all"), lambda line, _records: said.append(line))
    for second in range(100):
        fleet.send("n1", second)
        recorder.take(join(make_node("n1")))
    recorder.finish(0.2)
    assert said == [f"the recording in {tmp_path}/all is not finished: the disk gives no answer"]
    free.set()
    assert wait_until(lambda: not any(one.name == "tpmon-fleet-record" for one in threading.enumerate()))
    assert len(said) == 1


def test_frames_that_a_slow_disk_lost_are_counted(tmp_path, monkeypatch):
    free, write = threading.Event(), RecordingWriter.write
    monkeypatch.setattr(record, "WAITING", 8)
    monkeypatch.setattr(RecordingWriter, "write", lambda self, step: (free.wait(WITHIN_S), write(self, step)))
    with record_nodes(tmp_path / "all", "n1") as (fleet, recorder, said):
        fleet.send("n1", 0)
        assert wait_until(recorder._waiting.empty)
        for second in range(1, 21):
            fleet.send("n1", second)
        free.set()
    assert said == [f"recorded 1 node, 9 Frames in {tmp_path}/all; 12 Frames lost to a slow disk"]


@pytest.mark.parametrize(
    ("there", "said"),
    [("there", "is there already, and nothing is written over"), ("no/such", "No such file or directory")],
)
def test_a_folder_that_cannot_be_is_refused(there, said, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError, match=said):
        make_folder(str(tmp_path / there))


def test_a_network_file_system_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(schema, "read_file_system", lambda _folder: 0x0BD00BD0)
    with pytest.raises(UsageError, match="is on Lustre"):
        make_folder(str(tmp_path / "all"))


@pytest.mark.parametrize(
    ("place", "said"),
    [("tpmon.record.find_spec", "built without SQLite"), ("tpmon.record.line.zstd", "Zstandard|backports.zstd")],
)
def test_a_python_that_lacks_a_part_is_told_before_anything_is_made(place, said, tmp_path, monkeypatch):
    monkeypatch.setattr(place, None if place.endswith("zstd") else lambda _name: None)
    with pytest.raises(UsageError, match=said):
        FleetSwitch(Nodes("n1"), lambda _line, _records: None).open(str(tmp_path / "all"))
    assert not (tmp_path / "all").exists()


def test_more_nodes_than_are_recorded_are_refused_with_their_number():
    switch = FleetSwitch(Nodes(*(f"n{at}" for at in range(65))), lambda _line, _records: None)
    with pytest.raises(UsageError, match="65 nodes are too many to record: 64 at most"):
        switch.open("")


def test_a_key_begins_and_ends_it_and_says_both(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    fleet, said = Nodes("n1"), list[tuple[str, object]]()
    switch = FleetSwitch(fleet, lambda line, records: said.append((line, records)))
    switch.take(join(make_node("n1")))
    for at in (0, 1):
        switch.turn()
        assert wait_until(lambda: not switch.busy)
        switch.take(join(make_node("n1")))
        assert len(said) == at + 1
        if at == 0:
            fleet.send("n1", 0)
    folder = switch.path
    assert os.path.dirname(folder) == str(tmp_path / "tpmon")
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert said == [(f"records 1 node in {folder}", True), (f"recorded 1 node, 1 Frame in {folder}", False)]
    (tmp_path / "tpmon").rename(tmp_path / "other")
    (tmp_path / "tpmon").write_text("no folder")
    switch.turn()
    assert wait_until(lambda: len(said) == 3)
    assert said[2] == (f"not recorded: {tmp_path}/tpmon: File exists", False)


@pytest.fixture
def reach(tmp_path, monkeypatch):
    """Return the words that watch two agents that obey."""
    monkeypatch.setenv("PYTHONPATH", str(bed.ROOT))
    command = f"{' '.join(ODD)} obeys --node {{host}}"
    return ("fleet", "--hosts", "n0,n1", "--exec", command, "--record", str(tmp_path / "all"))


def test_the_command_records_and_each_file_replays(reach, tmp_path):
    call(*reach, "--once", code=ExitCode.USAGE)
    assert not (tmp_path / "all").exists()
    head = start(*reach, "--json", env=os.environ)
    assert wait_until(lambda: len(list((tmp_path / "all").glob("*.tpmon"))) == 2, WITHIN_S)
    assert json.loads(head.stdout.readline())["schema"] == "tpmon.fleet/1"
    files = sorted((tmp_path / "all").glob("*.tpmon"))
    assert wait_until(lambda: all(map(has_frames, files)), WITHIN_S)
    head.send_signal(signal.SIGINT)
    _, errors = head.communicate(timeout=WITHIN_S)
    assert f"tpmon: records 2 nodes in {tmp_path}/all" in errors
    assert "tpmon: recorded 2 nodes, " in errors
    for path in files:
        assert call("replay", str(path), "--check", code=EXIT_CODES[Kind.BALANCED]).stdout.startswith("balanced")
        said = call("replay", str(path), "--rejudge", code=ExitCode.USAGE).stderr
        assert f"cannot be judged again: the agent on {path.stem} judged it" in said
    assert all(is_known(one.verdict) for one in read_reports(tmp_path / "all")[-1:])


def has_frames(path):
    try:
        return count_frames(path) > 3
    except UsageError:
        return False


def test_a_killed_head_leaves_files_that_can_be_read(reach, tmp_path):
    head = start(*reach, "--plain", env=os.environ)
    files = [tmp_path / "all" / f"{node}.tpmon" for node in ("n0", "n1")]
    assert wait_until(lambda: all(path.exists() and has_frames(path) for path in files), WITHIN_S)
    head.kill()
    head.communicate()
    assert all(map(has_frames, files))
    assert read_reports(tmp_path / "all")[0].schema == "tpmon.fleet/1"


def test_what_the_nodes_show_together_is_kept_also_where_the_reports_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "MOST_REPORT_BYTES", 1)
    nodes, memory = hang()
    with record_nodes(tmp_path / "all", "n1", "n2") as (fleet, recorder, _):
        fleet.send("n1", 0)
        for second in range(2):
            recorder.take(join(*nodes, memory=memory, after_s=second))
        recorder.take(join(make_silent("n1", NodeState.GONE)))
        assert wait_until(lambda: not is_live(tmp_path / "all" / "n1.tpmon"))
    with Recording(str(tmp_path / "all" / "n1.tpmon")) as recording:
        assert recording.dump_near(1).dump.odd_one_out.host == "n2"
