"""kineto on demand: its messages, where it asks, who answers, what becomes of what it writes, and of what a killed tpmon left."""

import gzip
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.captures import make_updates
from tests.children import child
from tests.hooks import ROOT
from tests.traces import TraceBuilder
from tpmon.capture import files, kineto_window
from tpmon.capture import kineto_window as kineto_run
from tpmon.capture.dialog import STAYS_SLOWER, CaptureAsker
from tpmon.capture.files import hold, name_part, sweep
from tpmon.capture.kineto_daemon import (
    DAEMON,
    LONGEST_FOLDER,
    Daemon,
    KinetoAsk,
    KinetoClient,
    Order,
    Socket,
    TakenError,
    find_client,
    find_holder,
    is_sayable,
    parse_ask,
    parse_folder,
    parse_sockets,
    write_answer,
)
from tpmon.capture.kineto_window import KinetoWindow
from tpmon.errors import UsageError
from tpmon.foreign_file import Owner
from tpmon.model.known import NOT_APPLICABLE, Known, Missing
from tpmon.model.process import Identity
from tpmon.model.results.capture import CaptureAsked, CaptureKind, CaptureStage, CaptureState
from tpmon.model.results.trace_tables import MarkedSteps
from tpmon.probe.base.procread import read_stat
from tpmon.trace.child import write_marked
from tpmon.trace.figures.steps import UNCOUNTED

MIB = 1 << 20
ORDER = Order("/tmp/x/trace.json", 5, False, True, False)
HEAD = struct.Struct("<Q32s")


def say(kind: bytes, body: bytes) -> bytes:
    return HEAD.pack(len(body), kind) + body


def ask(bits: int = 3, *pids: int) -> bytes:
    return say(b"req", struct.pack(f"<iiq{len(pids)}i", bits, len(pids), 0, *pids))


def test_what_libkineto_sends_is_understood_and_nothing_else():
    assert parse_ask(ask(3, 10, 1)) == KinetoAsk(registers=False, free=True)
    assert parse_ask(ask(1, 10, 1)) == KinetoAsk(registers=False, free=False)
    assert parse_ask(say(b"ctxt", struct.pack("<iiq", 0, 10, 0))) == KinetoAsk(registers=True, free=False)
    for odd in (b"", b"x" * 39, ask()[:-1], ask() + b"1", say(b"data", b""), say(b"ctxt", b"1")):
        assert parse_ask(odd) is None


def test_an_answer_has_its_size_and_the_kind_of_the_question():
    free = KinetoAsk(registers=False, free=True)
    assert write_answer(free, None) == say(b"req", b"")
    assert write_answer(KinetoAsk(registers=True, free=False), None) == say(b"ctxt", struct.pack("<i", 1))
    size, kind = HEAD.unpack_from(told := write_answer(free, ORDER))
    assert (size, kind.rstrip(b"\0")) == (len(told) - HEAD.size, b"req")
    lines = told[HEAD.size :].decode().splitlines()
    assert "ACTIVITIES_LOG_FILE=/tmp/x/trace.json" in lines
    assert "ACTIVITIES_ITERATIONS=5" in lines
    assert "PROFILE_REPORT_INPUT_SHAPES=true" in lines
    assert "PROFILE_WITH_STACK=false" in lines


@pytest.mark.parametrize("path", ["relative", "/a\nACTIVITIES_ITERATIONS=9", "/a=b", "/a#b", "/a ", ""])
def test_no_path_says_more_than_a_path(path):
    assert not is_sayable(path)
    with pytest.raises(ValueError, match="cannot be given"):
        write_answer(KinetoAsk(registers=False, free=True), Order(path, 1, False, False, False))


def test_the_list_of_sockets_is_read_as_the_kernel_writes_it():
    text = (
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        "0000000000000000: 00000003 00000000 00000000 0001 03  1677\n"
        "0000000000000000: 00000002 00000000 00000000 0002 01  1678 @dynolog@\n"
        "0000000000000000: 00000002 00000000 00000000 0002 01 71455 /tmp/a b/dynoconfigclient1\n"
    )
    assert parse_sockets(text) == [Socket(1678, "@dynolog@"), Socket(71455, "/tmp/a b/dynoconfigclient1")]
    assert parse_folder("/tmp/a b/dynoconfigclient1") == "/tmp/a b"
    assert parse_folder("@dynoconfigclient1@") == ""
    assert [parse_folder(one) for one in ("@dynolog@", "/tmp/x", "dynoconfigclient1")] == [None] * 3


@pytest.fixture
def folder(tmp_path_factory):
    """Give a folder that is short enough for sockets."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="tpmon-kineto-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def me():
    return Identity(os.getpid(), read_stat(os.getpid()).start_ticks)


class Libkineto:
    """Play libkineto in this process: ask, and write what is ordered."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "dynoconfigclient1"))
        self.socket.settimeout(10)
        self.orders: list[dict[str, str]] = []

    def ask(self, bits: int = 3) -> dict[str, str]:
        self.socket.sendto(ask(bits, os.getpid()), str(self.folder / DAEMON))
        data, sender = self.socket.recvfrom(1 << 16)
        assert sender == str(self.folder / DAEMON)  # any other name ends a real process
        size, _ = HEAD.unpack_from(data)
        assert size == len(data) - HEAD.size
        return dict(line.split("=", 1) for line in data[HEAD.size :].decode().splitlines())

    def record(self, times: int, *, writes: bool = True) -> None:
        """Do what is ordered, so often."""
        while len(self.orders) < times:
            if order := self.ask():
                self.orders.append(order)
                stem = order["ACTIVITIES_LOG_FILE"].removesuffix(".json")
                if writes:
                    self.ask(1)
                    make_updates(int(order["ACTIVITIES_ITERATIONS"])).write(Path(f"{stem}_7.json.tmp"))
                    os.rename(f"{stem}_7.json.tmp", f"{stem}_7.json")
                else:  # a profiler of the program began before it asked again
                    Path(f"{stem}_7.json.tmp").touch()
                    self.ask()


@pytest.fixture
def libkineto(folder):
    one = Libkineto(folder)
    yield one
    one.socket.close()


def test_a_client_is_known_by_its_socket_and_its_folder(libkineto, folder, me):
    client = find_client(me)
    assert (client.folder, client.is_ours, client.daemon) == (str(folder), True, f"{folder}/dynolog")
    libkineto.socket.close()
    assert find_client(me) == Missing(
        "no thread of kineto asks for profiles: it was not started with KINETO_USE_DAEMON=1"
    )
    assert isinstance(find_client(Identity(1 << 22, 1)), Missing)


def test_the_daemon_answers_all_and_orders_from_one_once(libkineto, folder, me):
    daemon = Daemon(KinetoClient(me, str(folder)))
    try:
        daemon.orders[me.pid + 1] = ORDER
        answers = []
        with aside(lambda: answers.extend(libkineto.ask(bits) for bits in (3, 1, 3, 3))):
            heard = [daemon.listen(10)]
            daemon.orders[me.pid] = ORDER
            heard += [daemon.listen(10) for _ in range(3)]
        assert [bool(one) for one in answers] == [False, False, True, False]
        assert [one and (one.pid, one.free, one.ordered) for one in heard] == [
            (me.pid, True, False), (me.pid, False, False), (me.pid, True, True), (me.pid, True, False),
        ]  # fmt: skip
        libkineto.socket.sendto(b"nonsense", str(folder / DAEMON))
        assert daemon.listen(10) is None
        assert os.stat(folder / DAEMON).st_mode & 0o777 == 0o600
    finally:
        daemon.close()
    assert not (folder / DAEMON).exists()


def test_a_taken_place_is_said_by_whom_and_one_left_behind_is_taken(folder, me):
    client = KinetoClient(me, str(folder))
    daemon = Daemon(client)
    with pytest.raises(TakenError, match=rf"process {os.getpid()} \(.+\) answers it already"):
        Daemon(client)
    assert find_holder(client.daemon).startswith(f"process {os.getpid()} ")
    daemon._socket.close()  # as if it had been killed
    Daemon(client).close()
    (folder / DAEMON).write_text("no socket")
    with pytest.raises(TakenError, match="Address already in use"):
        Daemon(client)


@contextmanager
def lead(
    process: Identity,
    folder: Path,
    out: Path,
    tell: Callable[[str], object] = lambda _line: None,
    *,
    memory_left: Callable[[], Known[int]] = lambda: 1 << 40,
    stays_slower: bool = False,
    **asker: Any,
) -> Iterator[KinetoWindow]:
    """Make a window of five updates, and close it."""
    asked = CaptureAsked(CaptureKind.TRACE, 5, 60.0, False, False, False, NOT_APPLICABLE, str(out))
    client = KinetoClient(process, str(folder))
    asker = CaptureAsker(tell, **asker)
    with closing(KinetoWindow(client, asked, asker, memory_left=memory_left, stays_slower=stays_slower)) as window:
        yield window


@contextmanager
def aside(work: Callable[..., object], *words: object, **more: object) -> Iterator[threading.Thread]:
    """Do something in another thread meanwhile."""
    thread = threading.Thread(target=work, args=words, kwargs=more)
    thread.start()
    yield thread
    thread.join()


def test_a_window_sizes_itself_by_one_update_and_leaves_nothing_else(libkineto, folder, me, tmp_path):
    said: list[str] = []
    with lead(me, folder, tmp_path / "out", said.append, stays_slower=True) as window:
        with aside(libkineto.record, 2):
            told = window.run()
        assert (told.state, told.reason) == (CaptureState.VERIFIED, "")
        assert said[:2] == [STAYS_SLOWER, "asking kineto for one update first, to size the rest"]
        assert [one["ACTIVITIES_ITERATIONS"] for one in libkineto.orders] == ["1", "5"]
        assert window.price.steps == 5
        assert any(line.startswith("5 updates: about") for line in said)
        marked = write_marked(f"/proc/self/fd/{told.source}", str(tmp_path / "marked.json.gz"), 5)
        assert marked == MarkedSteps(5, UNCOUNTED, "")
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("left", "orders", "why"),
    [
        ([256 * MIB - 1], [], "needs 256 MiB of memory beside the run, 255 are left"),
        ([256 * MIB] * 2, ["1"], "needs 262 MiB of memory beside the run, 256 are left"),
        ([Missing("no /proc")], [], "how much memory is left could not be read: no /proc"),
    ],
)
def test_what_does_not_fit_into_the_memory_that_is_left_is_not_ordered(
    libkineto, folder, me, tmp_path, *, left,
    orders, why, monkeypatch,
) :  # fmt: skip
    monkeypatch.setattr(kineto_window.wire_capture, "count_events", lambda trace: (1000, os.fstat(trace).st_size))
    window = lead(me, folder, tmp_path / "out", memory_left=lambda: left.pop(0))
    with window as one, aside(libkineto.record, len(orders)):
        told = one.run()
    assert (told.state, told.reason) == (CaptureState.REFUSED, why)
    assert [one["ACTIVITIES_ITERATIONS"] for one in libkineto.orders] == orders
    assert left == []
    assert (tmp_path / "out").exists() is bool(orders)


def test_kineto_is_ordered_nothing_before_a_yes_and_answered_while_a_price_stands(libkineto, folder, me, tmp_path):
    asked_at: list[tuple[CaptureStage, int]] = []

    def agreed(stage, said):
        assert said[0].startswith("5 updates")
        asked_at.append((stage, len(libkineto.orders)))
        return len(asked_at) in (3, 6)

    with lead(me, folder, tmp_path / "out", agreed=agreed) as window, aside(libkineto.record, 2):
        assert window.run().state is CaptureState.VERIFIED
    assert asked_at == [(CaptureStage.PLANNED, 0)] * 3 + [(CaptureStage.PRICED, 1)] * 3
    with lead(Identity(me.pid, 1), folder, tmp_path / "never", agreed=lambda *_: False) as window:
        assert window.run().state is CaptureState.GONE
    assert not (tmp_path / "never").exists(), "nothing is made before a yes"


@pytest.mark.parametrize("there", [False, True])
def test_what_root_makes_for_a_user_is_the_users_and_no_link_is_followed(folder, me, tmp_path, monkeypatch, there):
    given: list[tuple[str, int, int]] = []
    out = tmp_path / "out"
    if there:
        out.mkdir()
    for module in (files, kineto_window):
        monkeypatch.setattr(module, "read_owner", lambda _pid: Owner(os.getuid() + 1, os.getgid()))
    monkeypatch.setattr(
        kineto_window.os, "fchown", lambda at, uid, gid: given.append((os.readlink(f"/proc/self/fd/{at}"), uid, gid))
    )
    make = os.mkdir

    def make_link(name, *rest, dir_fd=None):
        if dir_fd is None:
            make(name, *rest)
            return
        make(name + "-elsewhere", *rest, dir_fd=dir_fd)
        os.symlink(name + "-elsewhere", name, dir_fd=dir_fd)

    with lead(me, folder, out) as window, monkeypatch.context() as patch:
        window._make_folder()
        paths = [window._folder] if there else [str(out), window._folder]
        assert given == [(path, os.getuid() + 1, os.getgid()) for path in paths]
        window._folder += "2"
        patch.setattr(kineto_window.os, "mkdir", make_link)
        with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
            window._make_folder()
        assert len(given) == len(paths)


def test_the_socket_is_its_users_alone_and_no_mode_is_changed_by_its_name(folder, me, monkeypatch):
    monkeypatch.delattr(os, "chmod")
    before = os.umask(0o022)
    try:
        daemon = Daemon(KinetoClient(me, str(folder)))
        assert os.stat(folder / DAEMON).st_mode & 0o777 == 0o600
        assert os.umask(0o022) == 0o022
        daemon.close()
    finally:
        os.umask(before)


def test_a_recording_that_the_program_takes_over_is_given_up(libkineto, folder, me, tmp_path, monkeypatch):
    monkeypatch.setattr(kineto_window, "_SETTLES_S", 0.0)
    with lead(me, folder, tmp_path / "out") as window, aside(libkineto.record, 1, writes=False):
        assert window.run().state is CaptureState.YIELDED


def test_a_kineto_that_does_not_ask_a_process_that_ended_and_a_stop_end_the_window(folder, me, tmp_path, monkeypatch):
    monkeypatch.setattr(kineto_window, "_ASKS_S", 0.0)
    for process, stopped, state in (
        (me, False, CaptureState.REFUSED),
        (Identity(me.pid, 1), False, CaptureState.GONE),
        (me, True, CaptureState.CANCELLED),
    ):
        with lead(process, folder, tmp_path, stopped=lambda stop=stopped: stop) as window:
            assert window.run().state is state
    with pytest.raises(TakenError, match="cannot be given this folder"), lead(me, folder, Path("/tmp/a=b")):
        pass


def test_steps_are_marked_from_update_to_update_and_events_stay(tmp_path):
    source = tmp_path / "trace.json"
    make_updates(4).write(source)
    assert write_marked(str(source), str(tmp_path / "out.json.gz"), 3) == MarkedSteps(3, UNCOUNTED, "")
    with gzip.open(tmp_path / "out.json.gz") as file:
        written = json.load(file)["traceEvents"]
    marks = [one for one in written if one["name"].startswith("ProfilerStep#")]
    assert [(one["name"], round(one["ts"], 6), round(one["dur"], 6)) for one in marks] == [
        ("ProfilerStep#0", 5, 95), ("ProfilerStep#1", 100, 100), ("ProfilerStep#2", 200, 100),
    ]  # fmt: skip
    assert [one for one in written if one not in marks] == json.loads(source.read_text())["traceEvents"]
    assert os.stat(tmp_path / "out.json.gz").st_mode & 0o777 == 0o600
    for name, trace in (("marked", make_updates(1).step(3, 0, 9)), ("bare", TraceBuilder().op("aten::mm", 0, 9))):
        trace.write(tmp_path / f"{name}.json")
        assert write_marked(str(tmp_path / f"{name}.json"), str(tmp_path / f"{name}.gz"), 3).marks == 0


def test_run_kineto_arms_a_run_and_says_its_price(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(kineto_run.tempfile, "tempdir", "/tmp")
    armed = kineto_run.prepare({"A": "1"})
    place = Path(armed["KINETO_IPC_SOCKET_DIR"])
    try:
        assert (armed["KINETO_USE_DAEMON"], armed["KINETO_LOG_LEVEL"], armed["A"]) == ("1", "99", "1")
        assert place.stat().st_mode & 0o777 == 0o700
        assert len(str(place)) <= LONGEST_FOLDER
        if not os.path.exists(kineto_run.SYSTEM_CONFIG):
            assert "INTERVAL_SECS=1\n" in Path(armed["KINETO_CONFIG"]).read_text()
        told = capfd.readouterr()
        assert told.out == ""
        assert "one more thread, of libkineto" in told.err
        theirs = kineto_run.prepare({"KINETO_CONFIG": "/mine", "KINETO_LOG_LEVEL": "1"})
        assert (theirs["KINETO_CONFIG"], theirs["KINETO_LOG_LEVEL"]) == ("/mine", "1")
        os.rmdir(theirs["KINETO_IPC_SOCKET_DIR"])
        with pytest.raises(UsageError, match="is set already"):
            kineto_run.prepare({"KINETO_USE_DAEMON": "1"})
    finally:
        for one in place.iterdir():
            one.unlink()
        place.rmdir()


def test_only_old_folders_in_which_nobody_asks_are_removed(tmp_path):
    for name in ("tpmon-kineto-old", "tpmon-kineto-new", "other-old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "conf").write_text("")
    used = tmp_path / "tpmon-kineto-used"
    used.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(f"/proc/self/fd/{os.open(used, os.O_RDONLY)}/s" if len(str(used)) > 100 else str(used / "s"))
        for name in ("tpmon-kineto-old", "other-old", "tpmon-kineto-used"):
            os.utime(tmp_path / name, (0, 0))
        kineto_run.sweep(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "other-old", "tpmon-kineto-new", "tpmon-kineto-used",
    ]  # fmt: skip


HOLDS = f"""
sys.path.insert(0, {str(ROOT)!r})
from tpmon.capture.files import hold
hold(os.open(sys.argv[1], os.O_RDONLY))
say("held"); hear()
"""


def leave(folder: Path, name: str = "") -> Path:
    """Leave a folder as a tpmon that is killed does, with what kineto had begun to write."""
    part = folder / (name or name_part(5))
    part.mkdir(parents=True, mode=0o700)
    (part / "probe_7.json").touch()
    (part / "trace_7.json.tmp").touch()
    return part


def test_what_was_left_goes(tmp_path):
    part = leave(tmp_path)
    assert sweep(f"{tmp_path}/") == [str(part)]
    assert os.listdir(tmp_path) == []
    assert sweep(str(tmp_path / "not there")) == []


def test_what_a_tpmon_holds_stays_until_it_is_killed(tmp_path):
    part = leave(tmp_path)
    with child(HOLDS, str(part)) as tool:
        assert sweep(str(tmp_path)) == []
        assert len(os.listdir(part)) == 2
        tool.kill()
    assert sweep(str(tmp_path)) == [str(part)]


@pytest.mark.parametrize("name", ["kineto-elsewhere-5.part", "kineto-5.part", "mine.part", name_part(5) + "x"])
def test_other_names_stay(tmp_path, name):
    leave(tmp_path, name)
    assert sweep(str(tmp_path)) == []
    assert len(os.listdir(tmp_path / name)) == 2


def test_what_kineto_did_not_write_stays_with_its_folder(tmp_path):
    part = leave(tmp_path)
    (part / "notes").touch()
    (part / "trace").mkdir()
    os.symlink("/", part / "trace_8.json")
    assert sweep(str(tmp_path)) == []
    assert sorted(os.listdir(part)) == ["notes", "trace", "trace_8.json"]


def test_a_link_in_its_place_is_not_followed(tmp_path):
    other = leave(tmp_path / "elsewhere", "other")
    os.symlink(other, tmp_path / name_part(5))
    assert sweep(str(tmp_path)) == []
    assert len(os.listdir(other)) == 2


def test_another_users_stays(tmp_path, monkeypatch):
    part = leave(tmp_path)
    monkeypatch.setattr(files.os, "geteuid", lambda: os.stat(part).st_uid + 1)
    assert sweep(str(tmp_path)) == []
    assert len(os.listdir(part)) == 2


def test_a_file_system_without_locks_keeps_them(tmp_path, monkeypatch):
    part = leave(tmp_path)

    def fail(folder, how):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", fail)
    hold(0)
    assert sweep(str(tmp_path)) == []
    assert part.exists()


def test_new_folders_beside_a_new_one_are_swept_and_go_when_they_are_empty(tmp_path):
    first, second = leave(tmp_path / "tpmon-capture-a-1"), leave(tmp_path / "tpmon-capture-a-2")
    (second.parent / "kept.json.gz").touch()
    other = leave(tmp_path / "mine")
    os.symlink(other.parent, tmp_path / "tpmon-capture-link")
    assert sweep(str(tmp_path / "tpmon-capture-a-3")) == [str(first), str(second)]
    assert sorted(os.listdir(tmp_path)) == ["mine", "tpmon-capture-a-2", "tpmon-capture-link"]
    assert os.listdir(second.parent) == ["kept.json.gz"]
    assert other.exists()
