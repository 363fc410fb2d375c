"""Processes whose first thread has ended while others live: they hold cards, and none of them has ended."""

import os
import sys
from contextlib import closing

import pytest

from tests.children import MAP_TORCH, child
from tests.fake_proc import FakeProc
from tests.members import member
from tests.targets import refusal
from tests.waiting import wait_until
from tpmon.errors import NoTargetError
from tpmon.model.dump import ErrorKind
from tpmon.model.process import Identity, Role, ThreadKind
from tpmon.model.waits import Wait, WaitReason
from tpmon.probe.base.procread import has_ended, read_stat, read_table
from tpmon.probe.collect.processes import ProcessProbe
from tpmon.probe.job.discovery import FactCache
from tpmon.probe.job.exit_status import find_dead
from tpmon.probe.job.job import find_descendants
from tpmon.probe.job.process_facts import find_left
from tpmon.probe.job.resolve import find_job
from tpmon.probe.proc.threads import Allowance
from tpmon.probe.spy.dump import Dumper
from tpmon.probe.spy.failure import find_gone

NUMBER = {"x86_64": 60, "aarch64": 93}.get(os.uname().machine, 0)
needs_exit = pytest.mark.skipif(
    not (sys.platform == "linux" and NUMBER), reason="the number of the system call is known of two machines"
)
END_MAIN = f"""
threading.Thread(target=time.sleep, args=(50,)).start()
say("ready")
hear()
ctypes.CDLL(None).syscall({NUMBER}, 0)
"""
STUCK = 701
TID = STUCK * 100
STUCK_IN = f"killed or ended, but thread {TID} is still in"
HEADLESS = f"its main thread has ended; thread {TID}"


@pytest.fixture
def headless(tmp_path):
    """Run a child with torch whose main thread ends alone."""
    with child(MAP_TORCH + END_MAIN, str(tmp_path)) as one:
        one.say("end")
        assert wait_until(lambda: read_stat(one.pid).state == "Z")
        yield one


@pytest.fixture
def stuck(fake):
    """Hold a rank that was killed and has a thread that is stuck in the driver."""
    fake.add(STUCK, 1, (), name="pt_main_thread", threads=("pt_main_thread",), state="Z")
    set_thread(fake, "D", "nvidia_ioctl", pending=0x100)
    return fake


def set_thread(fake: FakeProc, state: str, wchan: str, *, pending: int = 0, flags: int = 0) -> None:
    """Write what the kernel tells of the thread that is left."""
    folder = fake.path / str(STUCK) / "task" / str(TID)
    folder.mkdir(exist_ok=True)
    fields = [state, 1, 0, 0, 0, -1, flags, *[0] * 43]
    (folder / "stat").write_text(f"{TID} (pt_main_thread) {' '.join(map(str, fields))}\n")
    (folder / "wchan").write_text(wchan)
    (folder / "syscall").write_text("16 0x5 0x0 0x0 0x0 0x0 0x0 0x0 0x0\n")
    (folder / "status").write_text(f"SigPnd:\t{pending:016x}\n")


@pytest.mark.parametrize(
    ("state", "threads", "ended"),
    [("Z", 1, True), ("Z", 0, True), ("X", 2, True), ("Z", 2, False), ("D", 1, False), ("S", 9, False)],
)
def test_a_zombie_whose_threads_live_has_not_ended(state, threads, ended):
    assert has_ended(state, threads) is ended


def test_a_killed_rank_that_cannot_die_is_told_with_its_thread(stuck):
    words = f"killed, but thread {TID} is stuck in nvidia_ioctl (D)"
    error = refusal(STUCK, stuck.proc)
    assert isinstance(error, NoTargetError)
    assert error.what == f"process {STUCK} (pt_main_thread): {words}"
    files = stuck.path / str(STUCK) / "task" / str(TID) / "fd"
    files.mkdir()
    (files / "5").symlink_to("/dev/nvidia3")
    left = find_left(STUCK, proc=stuck.proc)
    assert left.stuck == Wait(WaitReason.KILLED_IN_DRIVER, f"{words} and holds its cards")
    assert STUCK in find_descendants(1, read_table(stuck.proc))
    failure = find_gone(Identity(STUCK, read_stat(STUCK, stuck.proc).start_ticks), stuck.proc)
    assert (failure.kind, failure.reason) == (ErrorKind.FAILED, left.stuck.detail)


@pytest.mark.parametrize(
    ("thread", "words"),
    [
        ({"state": "D", "wchan": "rpc_wait", "flags": 0x4}, f"{STUCK_IN} rpc_wait (D)"),
        ({"state": "D", "wchan": "0", "pending": 0x100}, f"killed, but thread {TID} is stuck in the kernel (D)"),
        ({"state": "D", "wchan": "folio_wait"}, f"{HEADLESS} goes on"),
        ({"state": "S", "wchan": "futex_do_wait"}, f"{HEADLESS} goes on"),
        ({"state": "R", "wchan": "0", "flags": 0x4}, f"{HEADLESS} is just ending"),
    ],
)
def test_only_a_thread_that_was_told_to_end_and_sleeps_is_stuck(stuck, thread, words):
    set_thread(stuck, **thread)
    left = find_left(STUCK, proc=stuck.proc)
    assert left.words == words


@needs_exit
def test_a_process_without_its_main_thread_stays_in_its_job(headless):
    job = find_job(headless.pid)
    assert [one.identity.pid for one in job.members if one.role is Role.RANK] == [headless.pid]
    assert headless.pid not in {one.pid for one in find_dead({os.getpid()})}
    fact = FactCache(read_table(), "/proc").get(headless.pid)
    assert (fact.stat.pid, fact.python, fact.torch) == (headless.pid, True, True)


@needs_exit
def test_its_reading_and_its_look_are_those_of_the_thread_that_lives(headless):
    tid = next(int(one) for one in os.listdir(f"/proc/{headless.pid}/task") if one != str(headless.pid))
    with closing(ProcessProbe(headless.pid, lambda _: ThreadKind.OTHER, Allowance(100))) as probe:
        reading = probe.read(Role.RANK, skip_threads=False)
    assert (reading.stat.state, reading.state) == ("Z", "S")
    assert "zombie" not in str(reading.waits_for)
    assert "zombie" not in str(reading.threads)
    look = Dumper([member(headless.pid)]).read_round()
    assert [one.reason for one in look.errors] == [f"its main thread has ended; thread {tid} goes on"]
    assert [one.threads[0].tid for one in look.processes] == [tid]
