"""What root opens for a look at another user's job: nothing that is not that user's, and nothing that blocks."""

import os
import socket
import stat
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from tempfile import gettempdir

import pytest

from tests.nobody import NOBODY
from tests.traces import TraceBuilder
from tpmon.capture import kineto_capture
from tpmon.capture.dialog import CaptureAsker
from tpmon.capture.files import CapturePlace, describe_snapshot, make_anew, verify_trace
from tpmon.capture.kineto_daemon import Daemon, KinetoClient
from tpmon.capture.kineto_window import KinetoWindow, Recorded
from tpmon.errors import UsageError
from tpmon.foreign_file import Owner, open_foreign, read_owner
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Identity
from tpmon.model.results.capture import CaptureAsked, CaptureKind, CaptureState, RankCapture
from tpmon.model.stacks import StackFrame
from tpmon.own_command import call_as_owner
from tpmon.probe.base.procread import read_file, read_stat
from tpmon.probe.host.network import ListeningSocket, read_listeners
from tpmon.probe.host.output import OutputReader
from tpmon.probe.job.discovery import is_armed, write_restart
from tpmon.probe.proc.access import _is_refused
from tpmon.probe.records.flight_recorder import ask_pipe, read_record_file
from tpmon.probe.records.servers import Door, ask_server
from tpmon.trace.child import STEP
from tpmon.ui.terminal_io.editor import plan_edit

THEIRS = Owner(NOBODY, NOBODY)
NAME = "host-1-rank0-step3.pt.trace.json"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root meets what another user made")


@contextmanager
def process_of_nobody(code: str, **more: object) -> Iterator[int]:
    """Run a program as nobody until the test is done with it; it says a line once it is where it should be."""
    program = f"import ctypes, os\nos.setgid({NOBODY})\nos.setuid({NOBODY})\n{code}\nos.write(2, b'x')\nos.read(0, 1)"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.PIPE, **more
    ) as one:
        assert one.stderr.read(1) == b"x"
        yield one.pid
        one.kill()


def give(path: Path) -> Path:
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return path


def make_file(path: Path, mode: int = 0o600, *, theirs: bool = False) -> Path:
    path.write_bytes(b"secret")
    path.chmod(mode)
    return give(path) if theirs else path


def make_link(path: Path) -> Path:
    path.symlink_to("/etc/passwd")
    return give(path)


def make_fifo(path: Path) -> Path:
    os.mkfifo(path)
    return give(path)


def make_device(path: Path) -> Path:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("no devices may be made here")
    return give(path)


ODD = {"a file of root's": make_file, "a link": make_link, "a FIFO": make_fifo, "a device": make_device}


@needs_root
@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_what_is_not_a_plain_file_of_the_user_is_not_opened(tmp_path, make):
    with pytest.raises(OSError, match=r"no plain file|not a file of the user"):
        open_foreign(str(make(tmp_path / "x")), THEIRS)


@needs_root
def test_a_file_of_the_user_or_one_for_everybody_is_opened_within_its_bound(tmp_path):
    for path in (make_file(tmp_path / "a", theirs=True), make_file(tmp_path / "b", 0o644)):
        with os.fdopen(open_foreign(str(path), THEIRS, 6)) as file:
            assert file.read() == "secret"
    with pytest.raises(OSError, match="larger than"):
        open_foreign(str(tmp_path / "a"), THEIRS, 5)
    with pytest.raises(PermissionError):
        open_foreign(str(tmp_path / "b"), THEIRS, flags=os.O_RDWR)


@needs_root
def test_whose_a_process_is_it_cannot_hide():
    undumpable = "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)"
    with process_of_nobody(undumpable) as pid:
        assert os.stat(f"/proc/{pid}/environ").st_uid == 0
        assert read_owner(pid) == THEIRS


@needs_root
def test_a_log_that_its_holder_may_not_read_is_not_shown(tmp_path):
    tmp_path.chmod(0o755)
    for folder in takewhile(lambda one: one != Path(gettempdir()), tmp_path.parents):
        folder.chmod(folder.stat().st_mode | 0o055)
    secret = make_file(tmp_path / "secret")
    with process_of_nobody(f"os.dup2(os.open({str(secret)!r}, os.O_PATH), 1)") as pid:
        (sample,) = OutputReader().read([pid])
        assert sample.lines == ()
        assert isinstance(sample.size_bytes, Missing)


@needs_root
def test_a_log_that_who_started_the_job_opened_for_it_is_shown(tmp_path):
    """As by sudo -u USER python train.py > train.log: the job may write into it, and root may read its own."""
    path = tmp_path / "train.log"
    with path.open("w") as log:
        path.chmod(0o600)
        log.write("epoch 3\n")
        log.flush()
        with process_of_nobody("", stdout=log) as pid:
            (sample,) = OutputReader().read([pid])
            assert sample.lines == ("epoch 3",)


def test_a_zip_that_claims_a_huge_directory_is_not_believed(tmp_path):
    claimed, path = 1 << 28, tmp_path / "hook.zip"
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, claimed, 0, 0)
    with path.open("wb") as file:
        file.truncate(claimed)
        file.seek(claimed)
        file.write(end)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "root").symlink_to("/")
    (tmp_path / "7" / "environ").write_bytes(b"PYTHONPATH=" + os.fsencode(path) + b"\0")
    tracemalloc.start()
    try:
        assert not is_armed(7, str(tmp_path))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@needs_root
def test_a_program_of_a_user_is_started_as_that_user(tmp_path):
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "cmdline").write_bytes(b"python\0train.py\0")
    (tmp_path / "12" / "cwd").symlink_to("/home/me")
    (tmp_path / "12" / "exe").symlink_to("/usr/bin/python3.11")
    with process_of_nobody("") as pid:
        give(tmp_path / "12")
        again = write_restart(12, str(tmp_path))
        assert again.startswith("cd /home/me && sudo -u nobody ")
        assert again.endswith(" run -- python train.py")
        assert call_as_owner(pid).startswith("sudo -u nobody ")
    assert call_as_owner(os.getpid()) == "tpmon run -- COMMAND"


def test_a_socket_of_another_process_hears_nothing(tmp_path):
    path = str(tmp_path / "door")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(1)
        with pytest.raises(PermissionError, match="another process than 1 listens there"):
            ask_server(Door(0, path, 1), seconds=5.0)
        link, _ = listening.accept()
        with link:
            assert link.recv(64) == b""


def test_what_a_job_names_is_opened_without_waiting(tmp_path):
    fifo = str(tmp_path / "x.py")
    os.mkfifo(fifo)
    assert read_file(fifo, flags=os.O_NONBLOCK) == b""
    assert not _is_refused(fifo)
    frame = StackFrame("f", fifo, 1)
    assert plan_edit(frame, {"EDITOR": "true"}) == Missing(f"cannot open {fifo}:1 here: no plain file, or a link")


def test_a_port_on_which_somebody_else_listens_too_is_nobodys():
    with socket.create_server(("127.0.0.1", 0)) as mine:
        inode = os.fstat(mine.fileno()).st_ino
        others = (ListeningSocket(inode, 1, "::", 5), ListeningSocket(inode + 10**7, 1, "127.0.0.1", 5))
        assert read_listeners(os.getpid(), (*others, ListeningSocket(inode, 2, "::", 5))) == (
            ListeningSocket(inode, 2, "::", 5),
        )


@needs_root
@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_a_record_that_the_user_swapped_is_not_read(tmp_path, make):
    make(tmp_path / "fr_0")
    make(tmp_path / "pipe_0.pipe")
    environment = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/fr_", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_"}
    with process_of_nobody("") as pid:
        began = read_record_file.__globals__["datetime"].fromtimestamp(0).astimezone()
        with pytest.raises(OSError, match=r"no plain file|not a file of the user"):
            read_record_file(pid, 0, environment, began)
        with pytest.raises(OSError, match=r"no plain file|No such device"):
            ask_pipe(pid, 0, environment)


@needs_root
@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_a_trace_that_the_user_swapped_is_neither_read_nor_packed(tmp_path, make):
    place = CapturePlace("/x", str(tmp_path), THEIRS)
    make(tmp_path / NAME)
    make(tmp_path / "host-1-rank0-step3.pickle")
    before = sorted(os.listdir(tmp_path))
    for look in (
        lambda: verify_trace(place, "host-1", 0, 3, (), steps={}),
        lambda: describe_snapshot(place, "host-1", 0, 3),
    ):
        with pytest.raises(OSError, match=r"no plain file|not a file of the user"):
            look()
    assert sorted(os.listdir(tmp_path)) == before


@needs_root
def test_what_root_packed_is_its_users(tmp_path):
    TraceBuilder().step(0, 0, 900).write(tmp_path / NAME)
    give(tmp_path / NAME)
    file, _, _ = verify_trace(CapturePlace("/x", str(tmp_path), THEIRS), "host-1", 0, 3, (), steps={})
    packed = os.stat(file.host_path)
    assert (packed.st_uid, packed.st_gid, packed.st_mode & 0o777) == (NOBODY, NOBODY, 0o600)


def test_a_folder_of_a_capture_is_made_anew_or_not_at_all(tmp_path):
    me, new = os.getpid(), str(tmp_path / "new")
    make_anew(new, (me, me))  # two ranks, one folder
    assert stat.S_IMODE(os.stat(new).st_mode) == 0o700
    with pytest.raises(UsageError, match="File exists"):
        make_anew(new, (me,))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in ("link", "link/new"):
        with pytest.raises(UsageError, match=r"File exists|Not a directory|symbolic"):
            make_anew(f"{tmp_path}/{path}", (me,))
    assert os.listdir(tmp_path / "elsewhere") == []


def make_window(pid: int, folder: Path, out: Path) -> KinetoWindow:
    asked = CaptureAsked(CaptureKind.TRACE, 2, 60.0, False, False, False, NOT_APPLICABLE, str(out))
    client = KinetoClient(Identity(pid, read_stat(pid).start_ticks), str(folder))
    return KinetoWindow(client, asked, CaptureAsker(print), memory_left=lambda: 1 << 40)


RANK = RankCapture(1, 0, CaptureState.VERIFIED, "", 0, 0, 0.0, 1.0, Missing("x"), 1.0)


@needs_root
def test_what_kineto_wrote_for_root_is_its_users(tmp_path):
    (tmp_path / "asks").mkdir()
    give(tmp_path / "asks")
    trace = TraceBuilder(base_us=0).op("aten::mm", 5, 10)
    for at in range(2):
        trace.add("user_annotation", "Optimizer.step#SGD.step", 100 * at + 80, 20)
    trace.write(tmp_path / "trace.json")
    with process_of_nobody("") as pid, (tmp_path / "trace.json").open("rb") as source:
        window = make_window(pid, tmp_path / "asks", tmp_path / "out")
        try:
            window._make_folder()
            recorded = Recorded(CaptureState.VERIFIED, "", source.fileno())
            kept = kineto_capture._keep(window, recorded, "h-1", kineto_capture.KnownBeside({}), RANK)
            assert kept.file.steps == 2, STEP
            found = os.stat(kept.file.host_path)
            assert (found.st_uid, found.st_mode & 0o777) == (NOBODY, 0o600)
            make_link(tmp_path / "out" / os.path.basename(window._folder) / "probe_1.json")
            with pytest.raises(OSError, match="no plain file"):
                window._find_whole("probe")
        finally:
            window.close()
        assert [one.suffix for one in (tmp_path / "out").iterdir()] == [".gz"]


def test_ctrl_c_while_steps_are_marked_leaves_no_half_file(tmp_path, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(kineto_capture, "mark_steps", fail)
    (tmp_path / "asks").mkdir()
    with (tmp_path / "trace.json").open("w+b") as source:
        window = make_window(os.getpid(), tmp_path / "asks", tmp_path / "out")
        try:
            window._make_folder()
            recorded = Recorded(CaptureState.VERIFIED, "", source.fileno())
            with pytest.raises(KeyboardInterrupt):
                kineto_capture._keep(window, recorded, "h-1", kineto_capture.KnownBeside({}), RANK)
        finally:
            window.close()
    assert list((tmp_path / "out").rglob("*.part")) == []


@needs_root
def test_kineto_is_not_answered_in_a_folder_of_another(tmp_path):
    private = tmp_path / "private"
    private.mkdir(0o700)
    link = tmp_path / "link"
    link.symlink_to(private)
    with process_of_nobody("") as pid:
        for folder in (private, link):
            client = KinetoClient(Identity(pid, 1), str(folder))
            with pytest.raises(UsageError, match=r"kineto cannot be asked: its socket"):
                Daemon(client)
    assert os.listdir(private) == []
