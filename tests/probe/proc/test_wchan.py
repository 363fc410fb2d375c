"""Turn captured triples of state, wchan and syscall into words, and catch real threads in the act."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.children import child
from tests.waiting import wait_until
from tpmon.model.known import Missing, map_known
from tpmon.model.process import Role
from tpmon.model.waits import PIPES, WaitReason, describe_wait, is_wait_in
from tpmon.probe.base.procread import read_stat
from tpmon.probe.proc.wchan import Syscall, parse_syscall, read_wait

X86 = "x86_64"
ARM = "aarch64"
FUTEX_FOR_EVER = b"202 0x7f1f9c000bf8 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd7f1c4a50 0x7f1fa6c91117\n"
FUTEX_TIMED = b"202 0x55d0c1f4e6f0 0x89 0x0 0x7ffd7f1c4a30 0x0 0xffffffff 0x7ffd7f1c49d0 0x7f1fa6c91117\n"
POLL_LOADER = b"7 0x7f1f9c0a2f10 0x1 0x1388 0x0 0x0 0x7f1f9c0a2f10 0x7ffd7f1c4a50 0x7f1fa6d0c4cd\n"
POLL_OTHER = b"7 0x7f1f9c0a2f10 0x2 0x3e8 0x0 0x0 0x7f1f9c0a2f10 0x7ffd7f1c4a50 0x7f1fa6d0c4cd\n"
POLL_FOR_EVER = b"7 0x7f1f9c0a2f10 0x1 0xffffffff 0x0 0x0 0x0 0x7ffd7f1c4a50 0x7f1fa6d0c4cd\n"
READ = b"0 0x5 0x7ffd7f1c4b80 0x4 0x0 0x0 0x0 0x7ffd7f1c4a50 0x7f1fa6d0c4cd\n"
READ_INPUT = b"0 0x0 0x7ffd7f1c4b80 0x2000 0x0 0x0 0x0 0x7ffd7f1c4a50 0x7f1fa6d0c4cd\n"
OUTSIDE = b"-1 0x7ffd7f1c4a50 0x7f1fa6c91117\n"
NO_CALL = Missing("permission denied")


def read_words_of(*readings):
    """Return in words what a thread waits for."""
    return map_known(describe_wait, read_wait(*readings))


CASES = [
    # state, wchan, syscall, role, words
    ("R", "0", b"running\n", Role.RANK, "running"),
    ("R", Missing("permission denied"), b"running\n", Role.RANK, "running"),
    ("S", "futex_do_wait", FUTEX_FOR_EVER, Role.RANK, "lock or queue (futex)"),
    ("S", "futex_wait_queue_me", FUTEX_TIMED, Role.RANK, "lock with a time-out (futex)"),
    ("S", "futex_wait_queue", None, Role.RANK, "lock or queue (futex)"),
    ("S", "poll_schedule_timeout.constprop.0", POLL_LOADER, Role.RANK, "a batch (loader queue)"),
    ("S", "do_sys_poll", POLL_LOADER, Role.WORKER, "work from its rank (loader queue)"),
    ("S", "do_sys_poll", POLL_LOADER, Role.LAUNCHER, "poll"),
    ("S", "do_sys_poll", POLL_LOADER, Role.HELPER, "poll"),
    ("S", "do_sys_poll", POLL_OTHER, Role.RANK, "poll"),
    ("S", "do_sys_poll", POLL_FOR_EVER, Role.WORKER, "poll"),
    ("S", "poll_schedule_timeout.constprop.0", None, Role.RANK, "poll"),
    ("S", "unix_stream_read_generic", READ, Role.RANK, "unix socket"),
    ("S", "unix_stream_data_wait", READ, Role.RANK, "unix socket"),
    ("S", "anon_pipe_read", READ, Role.RANK, "pipe read"),
    ("S", "pipe_read", READ, Role.WORKER, "pipe read"),
    ("S", "pipe_write", READ, Role.WORKER, "pipe write (full)"),
    ("S", "anon_pipe_write", READ, Role.WORKER, "pipe write (full)"),
    ("S", "wait_for_partner", READ, Role.WORKER, "FIFO without a partner"),
    ("S", "wait_woken", READ, Role.WORKER, "socket or tty"),
    ("S", "sk_wait_data", READ, Role.WORKER, "socket receive"),
    ("S", "tcp_recvmsg_locked", READ, Role.WORKER, "TCP socket"),
    ("S", "request_wait_answer", READ, Role.WORKER, "FUSE file system"),
    ("D", "request_wait_answer", OUTSIDE, Role.WORKER, "FUSE file system"),
    ("D", "folio_wait_bit_common", OUTSIDE, Role.WORKER, "page from disk"),
    ("D", "wait_on_page_bit_common", READ, Role.WORKER, "page from disk"),
    ("D", "__iomap_dio_rw", READ, Role.WORKER, "direct disk read"),
    ("D", "rpc_wait_bit_killable", READ, Role.WORKER, "NFS"),
    ("D", "nfs_wait_bit_killable", READ, Role.WORKER, "NFS"),
    ("D", "io_schedule", READ, Role.WORKER, "disk"),
    ("S", "hrtimer_nanosleep", READ, Role.RANK, "sleep"),
    ("S", "do_wait", READ, Role.LAUNCHER, "child process"),
    ("S", "ep_poll", READ, Role.LAUNCHER, "epoll"),
    ("S", "do_select", READ, Role.RANK, "select"),
    ("S", "n_tty_read", READ, Role.RANK, "terminal input"),
    ("S", "anon_pipe_read", READ_INPUT, Role.RANK, "standard input (pipe)"),
    ("S", "wait_woken", READ_INPUT, Role.RANK, "terminal input"),
    ("S", "unix_stream_read_generic", READ_INPUT, Role.RANK, "standard input (socket)"),
    ("S", "anon_pipe_read", READ_INPUT, Role.HELPER, "pipe read"),
    ("S", "anon_pipe_read", None, Role.RANK, "pipe read"),
    ("T", "do_signal_stop", READ, Role.RANK, "stopped by a signal"),
    ("t", "ptrace_stop", READ, Role.RANK, "stopped by a debugger"),
    ("Z", "0", b"0 0 0\n", Role.WORKER, "zombie: ended, not reaped by its parent"),
    ("S", "do_freezer_trap", READ, Role.RANK, "frozen by its control group"),
    ("D", "nvidia_wait_for_something", READ, Role.RANK, "nvidia_wait_for_something"),
]


def test_a_pipe_of_an_old_kernel_is_one_of_the_end_that_its_call_tells():
    names = ("pipe_wait", "pipe_wait", "pipe_wait_readable", "pipe_wait_writable")
    calls = (parse_syscall(READ), NO_CALL, NO_CALL, NO_CALL)
    ends = [read_wait("S", *look, Role.WORKER, X86) for look in zip(names, calls, strict=True)]
    read, write = WaitReason.PIPE_READ, WaitReason.PIPE_WRITE
    assert [one.reason for one in ends] == [read, write, read, write]
    assert all(is_wait_in(one, PIPES) for one in ends)
    assert describe_wait(ends[0]) == "pipe_wait", "its name is kept"


@pytest.mark.parametrize(("state", "wchan", "raw", "role", "words"), CASES)
def test_a_captured_wait_reads_as_a_person_would_say_it(state, wchan, raw, role, words):
    call = NO_CALL if raw is None else parse_syscall(raw)
    assert read_words_of(state, wchan, call, role, X86) == words


def test_a_hidden_wait_is_missing_with_its_reason():
    assert read_words_of("S", "0", NO_CALL, Role.RANK, X86) == Missing("the kernel does not say (wchan is 0)")
    awake = parse_syscall(b"running\n")
    assert read_words_of("S", "0", awake, Role.RANK, X86) == "running", "it woke up since its state was read"
    assert read_words_of("S", "futex_do_wait", awake, Role.RANK, X86) == "running", "since its wait was read"
    refused = Missing("permission denied")
    assert read_words_of("S", refused, NO_CALL, Role.RANK, X86) == refused
    assert read_words_of("D", "", NO_CALL, Role.RANK, X86) == Missing("the kernel does not say (wchan is 0)")


def test_numbers_of_one_machine_mean_nothing_on_another():
    """202 is futex on x86-64 and accept on arm64; ppoll of arm64 has its time-out behind a pointer."""
    futex = parse_syscall(FUTEX_FOR_EVER)
    assert read_words_of("S", "some_new_function", futex, Role.RANK, X86) == "lock or queue (futex)"
    assert read_words_of("S", "some_new_function", futex, Role.RANK, ARM) == "some_new_function"
    ppoll = Syscall(73, (1, 1, 5000, 0, 0, 0), 0)
    assert read_words_of("S", "do_sys_poll", ppoll, Role.RANK, ARM) == "poll"


def test_syscall_lines_of_the_kernel_parse_and_others_are_refused():
    futex = parse_syscall(FUTEX_FOR_EVER)
    assert (futex.number, futex.arguments[1], futex.user_pc) == (202, 0x189, 0x7F1FA6C91117)
    assert len(futex.arguments) == 6
    assert parse_syscall(OUTSIDE) == Syscall(-1, (), 0x7F1FA6C91117)
    assert parse_syscall(b"running\n") == Missing("running")
    for raw in (b"", b"\n", b"seven 0x0", b"7 0xzz 1 2"):
        with pytest.raises(ValueError):
            parse_syscall(raw)


NUMBERS = st.integers(0, 2**64 - 1)
CALLS = st.builds(Syscall, st.integers(-1, 500), st.lists(NUMBERS, max_size=6).map(tuple), NUMBERS)


@given(
    st.sampled_from("RSDTtZXIPW"),
    st.text(max_size=40) | st.just(Missing("refused")),
    CALLS | st.just(NO_CALL),
    st.sampled_from(list(Role)),
    st.sampled_from([X86, ARM, "riscv64"]),
)
def test_every_wait_has_words_or_a_reason(state, wchan, call, role, machine):
    words = read_words_of(state, wchan, call, role, machine)
    assert isinstance(words, (str, Missing))
    assert words.reason if isinstance(words, Missing) else words


REAL = {
    "sleep": ("say('up'); time.sleep(50)", {"sleep"}),
    "pipe": ("r, w = os.pipe(); say('up'); os.read(r, 1)", {"pipe read"}),
    "full pipe": ("r, w = os.pipe(); say('up'); os.write(w, bytes(1 << 20))", {"pipe write (full)"}),
    "fifo": ("say('up'); open(sys.argv[1])", {"FIFO without a partner"}),
    "lock": ("l = threading.Lock(); l.acquire(); say('up'); l.acquire()", {"lock or queue (futex)"}),
    "lock with a time-out": (
        "l = threading.Lock(); l.acquire(); say('up'); l.acquire(timeout=50)",
        {"lock with a time-out (futex)"},
    ),
    "loader queue": (
        "import multiprocessing as m\nr, w = m.Pipe(False); say('up'); r.poll(5.0); r.poll(50)",
        {"a batch (loader queue)"},
    ),
    "child": ("p = os.fork()\nif not p: time.sleep(50)\nsay('up'); os.waitpid(p, 0)", {"child process"}),
    "socket": (
        """import socket
s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname())
say('up'); c.recv(1)""",
        {"socket or tty", "socket receive", "TCP socket"},
    ),
    "unix socket": ("import socket\na, b = socket.socketpair(); say('up'); a.recv(1)", {"unix socket"}),
    "signal": ("say('up'); signal.pause()", {"signal"}),
    "select": ("import select\nr, w = os.pipe(); say('up'); select.select([r], [], [], 50)", {"select", "poll"}),
    "epoll": ("import select\ne = select.epoll(); say('up'); e.poll(50)", {"epoll"}),
    "stopped": ("say('up'); os.kill(os.getpid(), signal.SIGSTOP)", {"stopped by a signal"}),
    "spinning": ("say('up')\nwhile True: pass", {"running"}),
}


@pytest.mark.parametrize("name", REAL)
def test_a_real_thread_says_what_it_waits_for(name, tmp_path):
    code, expected = REAL[name]
    os.mkfifo(tmp_path / "fifo")
    with child(code, str(tmp_path / "fifo")) as one:
        assert wait_until(lambda: describe_now(one.pid) in expected, 5), describe_now(one.pid)


def describe_now(pid: int):
    wchan, call = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("wchan", "syscall"))
    return read_words_of(read_stat(pid).state, wchan.decode(), parse_syscall(call), Role.RANK, os.uname().machine)
