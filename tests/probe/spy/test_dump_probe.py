"""Dump real small Python programs: what is joined, what is refused, what one failing process costs."""

import ctypes
import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.children import child, started
from tests.members import member
from tests.probe.spy.test_stacks import NAP
from tests.spying import spies_of
from tests.waiting import wait_until, wait_until_at_rest
from tests.waits import wait_of
from tpmon.model.dump import Asker, DumpRequest, DumpRound, ErrorKind, ProcessLook, ThreadLook
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Identity, Role, ThreadKind
from tpmon.probe.base.procread import read_stat
from tpmon.probe.proc.pipe_peers import OtherEnds
from tpmon.probe.proc.wchan import ON_CPU, name_call
from tpmon.probe.spy import dump
from tpmon.probe.spy import failure as spy_failure
from tpmon.probe.spy.dump import WITHOUT_STOP, Dumper, is_held, watch_pause
from tpmon.probe.spy.dump_threads import read_threads, read_toll
from tpmon.probe.spy.failure import LENGTH_FLAGS, PID_FLAGS, find_spies, find_spy, parse_number

pytestmark = pytest.mark.usefixtures("sampling_works")

GARBAGE = "py-spy printed what tpmon does not understand (doctor: py-spy)"
BLOCK = DumpRequest(Asker.KEY, block=True)
NATIVE = DumpRequest(Asker.KEY, native=True)
X86 = os.uname().machine == "x86_64"


def main_of(process: ProcessLook) -> ThreadLook:
    return next(thread for thread in process.threads if thread.kind is ThreadKind.MAIN)


def functions(thread: ThreadLook) -> list[str]:
    return [frame.function for frame in thread.frames]


def read_one(pid: int, how: DumpRequest = WITHOUT_STOP, **options) -> DumpRound:
    return Dumper([member(pid)], how, **options).read_round()


def script(folder: Path, text: str) -> str:
    """Make a program that stands for py-spy; PYSPY is the real one."""
    path = folder / "fake-spy"
    spy = find_spy()
    assert is_known(spy)
    path.write_text(f"#!/bin/sh\nPYSPY='{spy}'\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_round_joins_the_stacks_of_each_process_with_its_threads():
    with child(NAP) as one, child(NAP) as two:
        look = Dumper([member(one.pid), member(two.pid, 1)]).read_round()
        assert (look.errors, look.paused_ms) == ((), 0.0)
        assert look.spy_cpu_ms > 0
        assert [process.pid for process in look.processes] == [one.pid, two.pid]
        assert [process.rank for process in look.processes] == [0, 1]
        for process in look.processes:
            main = main_of(process)
            assert functions(main) == ["<module>", "train", "nap"]
            assert (main.tid, main.name, main.state) == (process.pid, "MainThread", "S")
            assert main.waits_for == wait_of("sleep")
            assert main.run_ns > 0
            other = next(thread for thread in process.threads if thread.kind is ThreadKind.OTHER)
            assert (other.name, functions(other)[-1]) == ("loader; (x) ?[2J", "nap")
            if X86:
                assert main.call == "clock_nanosleep"


def test_idle_native_threads_are_counted_and_those_that_run_are_listed():
    code = "start_burning(3)\nsay('up')\ntime.sleep(60)\n"
    with child(code) as one:
        threads = read_threads(one.pid, Role.RANK, Missing("not asked"))
        assert (threads.looks[0].kind, threads.looks[0].frames) == (ThreadKind.MAIN, Missing("not asked"))
        assert len(threads.looks) - 1 + threads.idle == 3
        for thread in threads.looks[1:]:
            assert thread.frames is NOT_APPLICABLE


def test_where_a_native_thread_waits_is_read_for_a_person_and_not_for_the_watch(tmp_path):
    for tid, name, state, call in (
        (7, "python", "S", "202 0x0 0x0 0x0 0x0 0x0 0x0 0x7ffe 0x7f00"),
        (8, "pt_gloo_runloop", "S", "232 0x4 0x0 0x0 0x0 0x0 0x0 0x7ffe 0x7f00"),
        (9, "pt_nccl_watchdg", "R", "running"),
    ):
        folder = tmp_path / "7" / "task" / str(tid)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{tid} ({name}) {state} 1 {'0 ' * 50}")
        (folder / "wchan").write_text("ep_poll" if state == "S" else "0")
        (folder / "syscall").write_text(call)
        (folder / "schedstat").write_text("5 6 7")

    def read(asker):
        proc, of = str(tmp_path), replace(member(os.getpid()), identity=Identity(7, 1))
        look = Dumper([of], DumpRequest(asker), proc=proc)._look(of, Missing("not asked"), OtherEnds({}, proc))
        return {one.tid: one for one in look.threads}

    asked, watched = read(Asker.KEY), read(Asker.WATCH)
    assert [(asked[tid].wchan, asked[tid].call) for tid in (8, 9)] == [
        ("ep_poll", "epoll_wait" if X86 else name_call(232, os.uname().machine)),
        ("0", ON_CPU),
    ]
    assert all(isinstance(watched[tid].wchan, Missing) for tid in (8, 9))
    assert all(isinstance(watched[tid].call, Missing) for tid in (8, 9))
    assert watched[7].wchan == asked[7].wchan == "ep_poll", "of a thread of Python both are always read"


def test_processes_that_ended_are_errors_and_cost_the_others_nothing():
    with child(NAP) as one, child(NAP) as two, child(NAP) as three:
        gone, zombie, there = member(one.pid), member(two.pid, 1), member(three.pid, 2)
        reused = replace(there, rank=3, identity=Identity(three.pid, 1))
        one.kill()
        two.process.send_signal(signal.SIGKILL)
        assert wait_until(lambda: read_stat(two.pid).state == "Z")
        look = Dumper([gone, zombie, there, reused]).read_round()
    assert [process.pid for process in look.processes] == [three.pid]
    assert [(error.pid, error.kind, error.rank) for error in look.errors] == [
        (one.identity.pid, ErrorKind.GONE, one.rank) for one in (gone, zombie, reused)
    ]
    assert "another process has its number" in look.errors[2].reason


def test_a_process_that_ends_while_py_spy_looks_is_gone(tmp_path):
    with child(NAP) as one:
        fake = script(tmp_path, f'kill -9 {one.pid}; sleep 0.2; exec $PYSPY "$@"')
        look = read_one(one.pid, spy=lambda: fake)
        assert [error.kind for error in look.errors] == [ErrorKind.GONE]
        assert look.processes == ()


@contextmanager
def traced(pid: int) -> Iterator[None]:
    """Attach to a process without stopping it."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    if ptrace(0x4206, pid, 0, 0) != 0:  # PTRACE_SEIZE
        pytest.skip(f"ptrace: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)  # only a stopped one can be detached from


def test_a_process_with_a_tracer_is_left_alone():
    with child(NAP) as one:
        with traced(one.pid):
            look = read_one(one.pid)
        (error,) = look.errors
        assert error.kind is ErrorKind.TRACED
        assert f"pid {os.getpid()} traces it ({Path('/proc/self/comm').read_text().strip()}, " in error.reason
        (process,) = look.processes
        assert (main_of(process).waits_for, main_of(process).frames) == (wait_of("sleep"), Missing(error.reason))


FAILING = (
    ("echo 'Error: Failed to merge' >&2; exit 1", ErrorKind.FAILED, "py-spy failed: Failed to merge (doctor: stacks)"),
    ("echo 'Error: Failed to find python version' >&2; exit 1", ErrorKind.UNKNOWN_PYTHON, "does not know"),
    ("echo 'Permission Denied: Try running again' >&2; exit 1", ErrorKind.DENIED, "not permitted"),
    ("exec yes", ErrorKind.FAILED, "more stacks than tpmon reads (doctor: stacks)"),
)
"""What a program in the place of py-spy does, and of what kind and with which words that is told."""
HANGING = ("exec sleep 60", ErrorKind.LATE, "no answer within")


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        *FAILING,
        HANGING,
        ("echo garbage", ErrorKind.FAILED, GARBAGE),
        ("echo '[{\"frames\": 3}, 7]'", ErrorKind.FAILED, GARBAGE),
        ("echo '[]'", ErrorKind.FAILED, "py-spy saw no Python thread (doctor: stacks)"),
    ],
)
def test_a_py_spy_that_fails_costs_its_stack_alone(tmp_path, monkeypatch, text, kind, words):
    monkeypatch.setattr(dump, "DEADLINE_S", 1.0)
    with child(NAP) as one, child(NAP) as two:
        fake = script(tmp_path, f'case "$*" in *"--pid {one.pid}") {text};; *) exec $PYSPY "$@";; esac')
        look = Dumper([member(one.pid), member(two.pid, 1)], spy=lambda: fake).read_round()
        (error,) = look.errors
        assert (error.pid, error.kind) == (one.pid, kind)
        assert words in error.reason
        assert [process.pid for process in look.processes] == [one.pid, two.pid]
        main = main_of(look.processes[0])
        assert (main.waits_for, main.frames) == (wait_of("sleep"), Missing(error.reason))
        assert functions(main_of(look.processes[1]))[-1] == "nap"
    assert wait_until(lambda: spies_of(os.getpid()) == [])


def test_a_missing_py_spy_is_said_for_each_process():
    with child(NAP) as one:
        assert wait_until_at_rest(one.pid)
        for spy in (Missing("py-spy is not installed"), "/no/such/py-spy"):
            look = read_one(one.pid, spy=lambda spy=spy: spy)
            assert [error.kind for error in look.errors] == [ErrorKind.NO_SPY]
            assert main_of(look.processes[0]).state == "S"


def test_a_round_ends_in_time_and_says_who_was_not_reached(tmp_path):
    with child(NAP) as one:
        fake = script(tmp_path, "exec sleep 60")
        members = [member(one.pid, rank) for rank in range(dump.MOST_AT_ONCE + 2)]
        begun = time.monotonic()
        look = Dumper(members, spy=lambda: fake).read_round(limit_s=0.5)
        assert time.monotonic() - begun < 30
        assert [error.kind for error in look.errors] == [ErrorKind.LATE] * len(members)
        assert sum("not reached" in error.reason for error in look.errors) == 2
    assert wait_until(lambda: spies_of(os.getpid()) == [])


def test_what_has_come_is_told_while_one_process_takes_its_time(tmp_path):
    with child(NAP) as quick, child(NAP) as slow:
        fake = script(tmp_path, f'case "$*" in *"--pid {slow.pid}") sleep 2;; esac; exec $PYSPY "$@"')
        told: list[tuple[float, int]] = []
        began_s = time.monotonic()
        dumper = Dumper([member(quick.pid), member(slow.pid)], spy=lambda: fake)
        whole = dumper.read_round(progress=lambda _, count: told.append((time.monotonic() - began_s, count)))
    assert whole.errors == ()
    assert [count for _, count in told] == [1]
    assert told[0][0] < 2.0


EMPTY = '[{"pid": %d, "thread_id": 7, "thread_name": "MainThread", "os_thread_id": %d, "active": %s, "owns_gil": true, "frames": []}]'


TORN = Missing("it ran on while its stack was read")


@pytest.mark.parametrize(
    ("active", "how", "functions", "tries"),
    [
        ("true", WITHOUT_STOP, ["<module>", "train", "nap"], 2),
        ("true", WITHOUT_STOP, TORN, 3),
        # It is no reason for a stop: it may be a thread of C++ that took the lock, and runs no Python.
        ("true", BLOCK, TORN, 3),
        ("false", BLOCK, [], 1),
    ],
    ids=["read again", "never known", "no reason for a stop", "one that waits has lost none"],
)
def test_a_stack_without_frames_of_who_runs_with_the_interpreters_lock_is_torn(tmp_path, active, how, functions, tries):
    tried, times = tmp_path / "tried", 1 if tries == 2 else 9
    with child(NAP) as one:
        empty = EMPTY % (one.pid, one.pid, active)
        answers = f"if [ $(wc -l < {tried}) -le {times} ]; then echo '{empty}'; else exec $PYSPY \"$@\"; fi"
        fake = script(tmp_path, f'echo "$*" >> {tried}; {answers}')
        look = read_one(one.pid, how, spy=lambda: fake)
        assert (look.errors, look.paused_ms) == ((), 0.0)
        frames = main_of(look.processes[0]).frames
        assert frames == functions or [frame.function for frame in frames] == functions
    assert ["--nonblocking" in line for line in tried.read_text().splitlines()] == [True] * tries


def test_only_block_stops_a_process_and_the_stop_is_counted(tmp_path):
    """The first try fails for one that cannot be read without a stop; --block then stops it."""
    text = 'case "$*" in *--nonblocking*) echo "Error: torn" >&2; exit 1;; *) exec $PYSPY "$@";; esac'
    fake = script(tmp_path, text)
    with child(NAP) as one:
        plain = read_one(one.pid, spy=lambda: fake)
        assert [error.reason for error in plain.errors] == ["py-spy failed: torn (doctor: stacks)"]
        assert plain.paused_ms == 0.0
        blocked = read_one(one.pid, BLOCK, spy=lambda: fake)
        assert blocked.errors == ()
        assert blocked.paused_ms > 0.0, "also where no look was quick enough to meet the stop"
        assert functions(main_of(blocked.processes[0]))[-1] == "nap"
        assert wait_until(lambda: read_stat(one.pid).state == "S")


def held_now_and_then(folder: Path, monkeypatch: pytest.MonkeyPatch, states: str) -> dump.Pause:
    """Let a look a state find it in a process whose stat is made up, 5 ms apart, and return what was counted."""
    stat = folder / "7" / "task" / "7" / "stat"
    stat.parent.mkdir(parents=True)
    stat.write_text("7 (a) S 1")
    found = iter(states)
    monkeypatch.setattr(dump, "_EVERY_S", 0.005)
    monkeypatch.setattr(dump, "is_held", lambda _: next(found, "S") == "t")
    with watch_pause(7, str(folder)) as pause:
        time.sleep(0.1)
    return pause


def test_a_stop_counts_from_the_look_before_to_the_look_after_or_as_the_time_between_two(tmp_path, monkeypatch):
    unmet = held_now_and_then(tmp_path / "unmet", monkeypatch, "SSS")
    assert unmet.paused_ms == 0.0
    assert unmet.most_ms == unmet.gap_ms >= 5.0
    met = held_now_and_then(tmp_path / "met", monkeypatch, "SStSS")
    assert met.most_ms == met.paused_ms >= 10.0, "it may have begun right after the one and ended right before"


def test_a_dump_that_is_ended_while_it_holds_a_process_lets_it_go():
    code = "for _ in range(40):\n threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    with child(f"{code}say('up')\ntime.sleep(60)\n") as one:
        held = 0
        for _ in range(3):
            dumper = Dumper([member(one.pid)], NATIVE)
            looking = threading.Thread(target=dumper.read_round)
            looking.start()
            end_s = time.monotonic() + 10
            while looking.is_alive() and time.monotonic() < end_s:
                if read_stat(one.pid).state == "t":
                    held += 1
                    break
                time.sleep(0.0005)
            dumper.stop()
            looking.join()
            assert wait_until(lambda: read_stat(one.pid).state == "S")
            assert wait_until(lambda: b"TracerPid:\t0\n" in Path(f"/proc/{one.pid}/status").read_bytes())
        assert held, "nothing was ever held"


HOLDER = """
import ctypes
libc = ctypes.CDLL(None)
libc.ptrace(0x4206, int(sys.argv[1]), 0, 0)
libc.ptrace(0x4207, int(sys.argv[1]), 0, 0)
say("held")
time.sleep(60)
"""


def test_a_process_that_a_tracer_holds_counts_as_paused_and_one_that_a_signal_stopped_does_not():
    assert is_held(b"7 (a) b) t 1 2")
    assert not is_held(b"7 (t t) S 1 2")
    with child(NAP) as one:
        os.kill(one.pid, signal.SIGSTOP)
        assert wait_until(lambda: read_stat(one.pid).state == "T")
        with watch_pause(one.pid) as stopped:
            time.sleep(0.05)
        assert stopped.paused_ms == 0.0, "a stop by a signal is not ours"
    with child(NAP) as one, child(HOLDER, str(one.pid)):
        if not wait_until(lambda: read_stat(one.pid).state == "t", 2.0):
            pytest.skip("ptrace is not permitted here")
        with watch_pause(one.pid) as pause:
            assert wait_until(lambda: pause.paused_ms > 20.0)


@pytest.mark.parametrize(
    ("words", "flags", "number"),
    [
        ("dump --pid 77", PID_FLAGS, 77),
        ("record -p 8 --rate 3", PID_FLAGS, 8),
        ("record --pid=9", PID_FLAGS, 9),
        ("record -- python --pid 5", PID_FLAGS, None),
        ("dump --pid", PID_FLAGS, None),
        ("dump --pid -1", PID_FLAGS, None),
        ("", PID_FLAGS, None),
        ("record --duration 11 --pid 7", LENGTH_FLAGS, 11),
        ("record -d 3", LENGTH_FLAGS, 3),
        ("record --duration=unlimited -p 7", LENGTH_FLAGS, None),
        (f"record -d {'9' * 5000}", LENGTH_FLAGS, None),
        ("dump --pid 7", LENGTH_FLAGS, None),
    ],
)
def test_whom_a_py_spy_looks_at_and_how_long_it_was_told_to(words, flags, number):
    assert parse_number(["py-spy", *words.split()], flags) == number


def test_a_sampler_that_never_stops_is_shared_and_waited_for_before_a_stop(monkeypatch):
    monkeypatch.setattr(spy_failure, "YIELD_S", 0.3)
    spy = find_spy()
    assert is_known(spy)
    with child(NAP) as one:
        record = [spy, "record", "--nonblocking", "--idle", "--format", "raw", "--rate", "5", "--duration", "30"]
        command = [*record, "--output", "/dev/null", "--pid", str(one.pid)]
        with started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
            assert wait_until(lambda: one.pid in find_spies())
            assert [(found.pid, found.nonblocking) for found in find_spies()[one.pid]] == [(other.pid, True)]
            assert read_one(one.pid).errors == ()
            assert read_one(one.pid, BLOCK).errors == (), "it needs no stop"
            begun = time.monotonic()
            refused = read_one(one.pid, NATIVE)
            assert time.monotonic() - begun > 0.3
            assert [error.kind for error in refused.errors] == [ErrorKind.BUSY]
            assert str(other.pid) in refused.errors[0].reason


def test_a_process_is_read_with_what_it_used(tmp_path):
    before = read_toll(os.getpid())
    with open(os.devnull, "wb", buffering=0) as null:
        null.write(bytes(1_000_000))
    after = read_toll(os.getpid())
    assert 1_000_000 <= after.moved_bytes - before.moved_bytes < 50_000_000
    assert after.faults >= before.faults > 0
    assert after.cpu_ns >= before.cpu_ns > 0
    assert isinstance(read_toll(os.getpid(), str(tmp_path)), Missing)
