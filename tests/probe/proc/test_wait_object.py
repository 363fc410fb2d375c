"""What a blocked call waits on, told of real small programs: files, pipes, sockets, locks and who can end the wait."""

import fcntl
import os
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.children import Child, child
from tests.waiting import wait_until_at_rest
from tests.waits import wait_of
from tpmon.model.dump import OtherEnd, ThreadLook, WaitKind, WaitTarget
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.text.dump_words import say_target
from tpmon.probe.proc.pipe_peers import MOST_ENDS, OtherEnds, parse_address, parse_tcp, parse_unix
from tpmon.probe.proc.wait_object import (
    FileLock,
    Waiter,
    find_lock_holders,
    parse_locks,
    parse_mount,
    parse_mount_of,
    pick_holders,
    read_target,
)
from tpmon.probe.proc.wchan import Syscall, find_child, find_descriptors, name_call, parse_epoll
from tpmon.probe.spy.dump_threads import read_threads

HIDDEN = Missing("not every process of this machine could be searched")
"""Only root can say that nobody has the other end."""


def look_at(pid: int, names: dict[int, str] | None = None) -> ThreadLook:
    """Read the main thread, once it sleeps in its call."""
    assert wait_until_at_rest(pid)
    threads = read_threads(pid, Role.RANK, Missing("not asked"), ends=OtherEnds(names or {pid: "rank 0"}))
    return next(thread for thread in threads.looks if thread.kind is ThreadKind.MAIN)


def target_of(pid: int, names: dict[int, str] | None = None) -> WaitTarget:
    """Read what the main thread waits on; skip where the kernel does not tell the call."""
    target: Applicable[WaitTarget] = look_at(pid, names).waits_on
    if isinstance(target, Missing) and "Permission" in target.reason:
        pytest.skip(f"the call of a thread is not told here: {target.reason}")
    assert is_known(target), target
    return target


@contextmanager
def blocked(code: str, *arguments: str) -> Iterator[Child]:
    """Start a program that says "up" and then calls its function ``block``."""
    with child(f"import select, socket\n{code}\nsay('up')\nblock()\n", *arguments) as one:
        yield one


def test_a_pipe_whose_other_end_a_child_has_names_the_child():
    code = """
a, b = os.pipe()
kid = os.fork()
if kid == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    os.close(a)
    time.sleep(60)
    os._exit(0)
os.close(b)
print(kid, flush=True)
def block():
    os.read(a, 1)
"""
    with blocked(code) as one:
        # The first line was the number of the child; "up" is the second.
        kid = int(Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text())
        assert one.hear() == "up"
        target = target_of(one.pid, {one.pid: "rank 0", kid: "worker 1 of rank 0"})
        assert (target.call, target.kind) == ("read", WaitKind.PIPE)
        assert [(end.pid, end.name) for end in target.others] == [(kid, "worker 1 of rank 0")]
        assert say_target(target).endswith(f", other end: worker 1 of rank 0 ({kid})")
        unnamed = target_of(one.pid)
        assert [(end.pid, end.name) for end in unnamed.others] == [(kid, "python")]
        os.kill(kid, signal.SIGKILL)


def test_a_pipe_that_nobody_else_has_says_so():
    with blocked("a, b = os.pipe()\ndef block():\n os.read(a, 1)") as one:
        target = target_of(one.pid)
        assert (target.kind, target.others) in ((WaitKind.PIPE, ()), (WaitKind.PIPE, HIDDEN))
        if target.others == ():
            assert say_target(target).endswith("and no process that can be seen from here has the other end")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("fifo", "f = os.open(sys.argv[1], os.O_RDWR)\ndef block():\n os.read(f, 1)"),
        ("open", "def block():\n open(sys.argv[1], 'rb')"),
    ],
)
def test_a_fifo_is_named_with_its_mount(name, code, tmp_path):
    path = tmp_path / "thing \x1b[2J"
    with blocked(f"os.mkfifo(sys.argv[1])\n{code}", str(path)) as one:
        target = target_of(one.pid)
        assert (target.kind, target.name) == (WaitKind.FILE, str(path).replace("\x1b", "?"))
        assert is_known(target.mount)
        assert is_known(target.file_system)
        assert str(path).startswith(target.mount)
        if name == "fifo":
            assert target.others in ((), HIDDEN)


def test_a_fifo_that_another_process_writes_names_that_process(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reads = "f = os.open(sys.argv[1], os.O_RDONLY)\ndef block():\n os.read(f, 1)"
    with path.open("r+b", buffering=0), blocked(reads, str(path)) as one:
        assert [end.pid for end in target_of(one.pid).others] == [os.getpid()]


def test_standard_input_names_who_should_type():
    with blocked("def block():\n sys.stdin.readline()") as one:
        target = target_of(one.pid)
        assert (target.fd, target.kind) == (0, WaitKind.PIPE)
        assert os.getpid() in [end.pid for end in target.others]
        assert say_target(target).startswith("blocked in a read of standard input (pipe:[")


PAIR = "a, b = os.pipe()\nc, d = os.pipe()\nx, y = socket.socketpair()\ndef block():\n "
POLL = "p = select.poll(); {}; p.poll()".format
EPOLL = "e = select.epoll(); {}; e.poll()".format


@pytest.mark.parametrize(
    ("code", "call", "words"),
    [
        (POLL("p.register(a, 1); p.register(c, 1)"), "poll", "2 pipes"),
        ("select.select([a, c], [], [])", "select", "2 pipes"),
        (EPOLL("e.register(a, 1); e.register(x, 1)"), "epoll", "1 pipe and 1 unix socket"),
        (POLL("e = select.epoll(); p.register(e, 1); p.register(a, 1)"), "poll", "1 pipe and 1 other descriptor"),
    ],
)
def test_a_call_that_watches_several_says_how_many_of_what(code, call, words):
    with blocked(PAIR + code) as one:
        target = target_of(one.pid)
        assert call in target.call
        assert (target.kind, target.name, len(target.fds)) == (WaitKind.SEVERAL, words, 2)
        assert target.fd is NOT_APPLICABLE


@pytest.mark.parametrize("code", [POLL("p.register(a, 1)"), "select.select([a], [], [])", EPOLL("e.register(a, 1)")])
def test_a_call_that_watches_one_pipe_names_it(code):
    with blocked(PAIR + code) as one:
        target = target_of(one.pid)
        assert target.kind is WaitKind.PIPE
        assert os.readlink(f"/proc/{one.pid}/fd/{target.fd}") == target.name


def test_a_tcp_connection_names_its_peer_and_the_process_that_has_it():
    server = """
import socket
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
a, _ = s.accept()
say("accepted")
def block():
    a.recv(1)
say("up")
block()
"""
    client = "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\ndef block():\n s.recv(1)"
    with closing(Child(server)) as one:
        port = one.hear()
        listens = target_of(one.pid)
        assert listens.peer == f"127.0.0.1:{port} (listens)"
        assert say_target(listens).startswith("waits for a connection to 127.0.0.1:")
        with blocked(client, port) as two:
            assert (one.hear(), one.hear()) == ("accepted", "up")
            target = target_of(two.pid, {two.pid: "rank 1", one.pid: "rank 0"})
            assert (target.kind, target.peer) == (WaitKind.SOCKET, f"127.0.0.1:{port}")
            assert [(end.pid, end.name) for end in target.others] == [(one.pid, "rank 0")]
            back = target_of(one.pid)
            assert [end.pid for end in back.others] == [two.pid]


def test_a_unix_socket_names_its_path_and_who_has_the_other_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a long path would be cut
    path = "socket"
    server = "s = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\ns.listen()\ndef block():\n s.accept()[0].recv(1)"
    client = "s = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\ndef block():\n s.recv(1)"
    with blocked(server, path) as one, blocked(client, path) as two:
        target = target_of(two.pid)
        if isinstance(target.others, Missing):
            pytest.skip(f"this kernel does not tell: {target.others.reason}")
        assert (target.kind, target.peer) == (WaitKind.UNIX, path)
        assert [end.pid for end in target.others] == [one.pid]
        assert say_target(target).startswith(f"blocked in recvfrom on a unix socket to {path} (fd ")


MUTEX = """
libc = ctypes.CDLL(None)
lock = ctypes.create_string_buffer(64)
held = threading.Event()
def hold():
    libc.pthread_mutex_lock(lock)
    held.set()
    time.sleep(60)
other = threading.Thread(target=hold, daemon=True)
other.start()
held.wait()
print(other.native_id, flush=True)
"""


def test_a_mutex_of_c_names_the_thread_that_holds_it():
    if sys.platform != "linux" or not os.confstr("CS_GNU_LIBC_VERSION"):
        pytest.skip("the layout is that of glibc")
    with blocked(f"{MUTEX}def block():\n libc.pthread_mutex_lock(lock)") as one:
        assert one.hear() == "up"
        target = target_of(one.pid)
        assert target.kind is WaitKind.LOCK
        assert is_known(target.others)
        (end,) = target.others
        assert end.pid == one.pid
        assert is_known(end.tid)
        assert end.tid != one.pid
        assert os.path.exists(f"/proc/{one.pid}/task/{end.tid}")
        assert say_target(target) == f"waits for a lock that thread {end.tid} (python) holds"


def test_a_join_names_the_thread_that_must_end():
    code = """
libc = ctypes.CDLL(None)
number = ctypes.c_ulong()
sleeper = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: time.sleep(60))
libc.pthread_create(ctypes.byref(number), None, sleeper, None)
def block():
    libc.pthread_join(number, None)
"""
    with blocked(code) as one:
        look = look_at(one.pid)
        if look.waits_on is NOT_APPLICABLE:
            pytest.skip("this C library joins in another way")
        assert look.waits_on.kind is WaitKind.THREAD
        assert say_target(look.waits_on).endswith(" to end")


def test_a_lock_of_python_names_nobody():
    with blocked("lock = threading.Lock()\nlock.acquire()\ndef block():\n lock.acquire()") as one:
        look = look_at(one.pid)
        assert look.waits_on is NOT_APPLICABLE
        assert look.waits_for == wait_of("lock or queue (futex)")


def test_a_wait_for_a_child_names_the_child():
    code = """
import subprocess
kid = subprocess.Popen(["sleep", "60"])
def block():
    kid.wait()
"""
    with blocked(code) as one:
        target = target_of(one.pid)
        kid = int(target.name.removeprefix("process "))
        assert say_target(target) == f"waits for process {kid} (sleep) to end"
        os.kill(kid, signal.SIGKILL)


def test_what_many_have_open_is_named_by_a_few():
    code = """
a, b = os.pipe()
for _ in range(6):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
        time.sleep(60)
        os._exit(0)
os.close(b)
def block():
    os.read(a, 1)
"""
    with blocked(code) as one:
        target = target_of(one.pid)
        assert is_known(target.others)
        assert len(target.others) == MOST_ENDS


# parsing


def test_mounts_are_found_by_number_and_their_names_unescaped():
    mounts = (
        b"21 1 0:19 / /proc rw - proc proc rw\n"
        b"36 35 98:0 /x /mnt/my\\040data rw,noatime master:1 shared:2 - nfs4 server:/x rw\n"
        b"37 35 0:5 / /cut rw\n"
    )
    assert parse_mount(mounts, 36) == ("/mnt/my data", "nfs4")
    assert parse_mount(mounts, 21) == ("/proc", "proc")
    assert parse_mount(mounts, 37) is None
    assert parse_mount(mounts, 3) is None
    assert parse_mount_of(mounts, "/mnt/my data/a/b") == ("/mnt/my data", "nfs4")
    assert parse_mount_of(mounts, "/mnt/my data") == ("/mnt/my data", "nfs4")
    assert parse_mount_of(mounts, "/mnt/my database") is None
    assert parse_mount_of(b"1 0 0:1 / / rw - ext4 d rw\n" + mounts, "/mnt/x") == ("/", "ext4")


def test_connections_are_read_from_the_kernels_table():
    if sys.byteorder != "little":
        pytest.skip("the samples are of a little-endian machine")
    head = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = b"   0: 0100007F:C350 0200000A:01BB 01 00000000:00000000 00:00000000 00000000     0        0 4711 1 x\n"
    listens = b"   1: 00000000:0016 00000000:0000 0A 0:0 0:0 0 0 0 12 1\n"
    one, two = parse_tcp(head + row + b"   2: cut\n" + listens)
    assert (one.inode, one.listens, two.inode, two.listens) == (4711, False, 12, True)
    assert parse_address(one.remote) == "10.0.0.2:443"
    assert parse_address(b"0000000000000000FFFF00000200000A:01BB") == "10.0.0.2:443"
    assert parse_address(b"B80D0120000000000000000001000000:0050") == "[2001:db8::1]:80"


def test_the_kernels_answer_about_a_unix_socket_is_read_and_bounded():
    def answer(body, kind=20):
        return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body

    message = bytes(16)
    peer = struct.pack("=HHI", 8, 2, 77)
    assert parse_unix(answer(message + struct.pack("=HH", 8, 0) + b"/a/b" + peer)) == ("/a/b", 77)
    assert parse_unix(answer(message + struct.pack("=HH", 6, 0) + b"\0x\0\0" + peer)) == ("@x", 77)
    assert parse_unix(answer(message + struct.pack("=HH", 0, 0))) == ("", 0)
    with pytest.raises(OSError, match="No such file"):
        parse_unix(answer(struct.pack("=i", -2), kind=2))
    with pytest.raises(ValueError, match="cut"):
        parse_unix(b"")


def test_calls_have_names_and_some_a_descriptor_or_an_epoll_with_several():
    assert name_call(0, "x86_64") == "read"
    assert name_call(63, "aarch64") == "read"
    assert name_call(-1, "x86_64") == ""
    assert name_call(9999, "x86_64") == "9999"
    assert find_descriptors(Syscall(0, (7, 1, 2), 0), "x86_64", 1) == (7,)
    assert find_descriptors(Syscall(202, (7, 1, 2), 0), "x86_64", 1) is None
    assert find_descriptors(Syscall(-1, (), 0), "x86_64", 1) is None
    assert isinstance(find_descriptors(Syscall(7, (16, 1, 0), 0), "x86_64", os.getpid()), Missing)
    epoll = b"pos:\t0\nflags:\t02\ntfd:        5 events:       19 data: 5\ntfd:       11 events:  1\n"
    assert parse_epoll(epoll) == (5, 11)
    assert parse_epoll(b"") == ()


def test_a_child_in_a_container_is_named_by_its_number_here(fake):
    """A rank in a PID namespace of its own waits for process 8 of that namespace."""
    fake.add(7, 1, ("python", "other.py"))
    fake.add(8, 1, ("sshd",))
    fake.add(100, 1, ("python", "train.py"), inside=(7,))
    fake.add(101, 100, ("cc1plus",), inside=(8,))
    for pid, name in ((8, "sshd"), (101, "cc1plus")):
        (fake.path / str(pid) / "comm").write_text(f"{name}\n")

    def target(pid, child):
        call = Syscall(61, (child, 0, 0), 0)
        waiter = Waiter(pid, pid, call, "wait", "x86_64", fake.proc)
        return read_target(waiter, OtherEnds({}, fake.proc))

    here = target(100, 8)
    assert here.others == (OtherEnd(101, NOT_APPLICABLE, "cc1plus"),)
    assert say_target(here) == "waits for process 101 (cc1plus) to end"
    unknown = target(100, 9)
    assert say_target(unknown) == "waits for process 9 of its container to end"
    assert isinstance(unknown.others, Missing)
    assert say_target(target(1, 8)) == "waits for process 8 (sshd) to end"


@pytest.mark.parametrize(
    ("number", "arguments", "child"),
    [
        (61, (4711, 0, 0), 4711),
        (61, (2**64 - 1, 0, 0), None),
        (247, (1, 4711), 4711),
        (247, (0, 0), None),
        (0, (7,), None),
    ],
)
def test_only_calls_for_one_child_name_one(number, arguments, child):
    assert find_child(Syscall(number, arguments, 0), "x86_64") == child


ROWS = b"""1: POSIX  ADVISORY  WRITE 11 fe:00:500 0 EOF
1: -> POSIX  ADVISORY  WRITE 12 fe:00:500 0 EOF
2: FLOCK  ADVISORY  WRITE 21 00:1f:600 0 EOF
2: -> FLOCK  ADVISORY  WRITE 12 00:1f:600 0 EOF
2: -> FLOCK  ADVISORY  WRITE 22 00:1f:600 0 EOF
3: OFDLCK ADVISORY  WRITE -1 fe:00:700 0 EOF
3: -> OFDLCK ADVISORY  WRITE 31 fe:00:700 0 EOF
4: LEASE  ACTIVE
x: FLOCK  ADVISORY  WRITE 1 fe:00:1 0 EOF
"""


def test_rows_are_parsed_and_those_that_are_cut_left_out_and_without_proc_locks_the_reason_is_told(tmp_path):
    locks = parse_locks(ROWS)
    assert (len(locks), *locks[1:3]) == (7, FileLock(1, True, 12, 500), FileLock(2, False, 21, 600))
    assert find_lock_holders(1, 3, str(tmp_path)).reason.startswith("locks: ")


@pytest.mark.parametrize(
    ("pid", "inode", "holders"),
    [(22, None, (21,)), (12, 500, (11,)), (12, 600, (21,)), (12, None, (11, 21)), (31, None, ()), (99, None, ())],
)
def test_the_holder_is_in_the_row_above_of_the_same_number(pid, inode, holders):
    assert pick_holders(parse_locks(ROWS), pid, inode) == holders


def test_the_process_that_holds_a_flock_is_named(tmp_path):
    path = tmp_path / "cache.lock"
    code = """
import fcntl
file = open(sys.argv[1], "w")
def block(): fcntl.flock(file, fcntl.LOCK_EX)
"""
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with blocked(code, str(path)) as one:
            target = target_of(one.pid)
    assert f"blocked in flock of {path}" in say_target(target)
    assert say_target(target).endswith(" holds")
