"""What may be stopped and what not, and who makes way: threads that take no stop, our own sampler."""

from __future__ import annotations

import os
import time

from tests.children import child
from tests.spying import spies_of
from tests.unit.test_dump_probe import NAP, member, read_one, script
from tests.unit.test_stacks import collect, sampling, subject
from tests.waiting import wait_until
from tpmon.model.dump import ErrorKind
from tpmon.probe import dump, spy_failure
from tpmon.probe.dump import Depth, Dumper
from tpmon.probe.spy_failure import find_sleeper

ASLEEP = """
import ctypes, platform
def hold():
    time.sleep(0.3)  # until the main thread sleeps without the lock of the interpreter: the child needs it
    number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    parent = os.getpid()
    # clone(CLONE_VFORK | SIGCHLD): who calls it sleeps uninterruptibly until its child ends.
    if ctypes.CDLL(None).syscall(number, 0x4000 | 17, 0, 0, 0, 0) == 0:
        while os.getppid() == parent and not os.path.exists(sys.argv[1]):
            time.sleep(0.05)
        os._exit(0)
threading.Thread(target=hold, daemon=True).start()
time.sleep(0.8)
say("up")
time.sleep(60)
"""


def test_a_process_whose_thread_takes_no_stop_is_read_without_one_or_not_at_all(monkeypatch, tmp_path):
    monkeypatch.setattr(spy_failure, "SLEEPS_S", 0.2)
    torn = script(tmp_path, 'case "$*" in *--nonblocking*) echo "Error: torn" >&2; exit 1;; esac; exit 7')
    awake = tmp_path / "awake"
    with child(ASLEEP, str(awake)) as one:
        assert read_one(one.pid).errors == ()
        for options in ({"depth": Depth(native=True)}, {"block": True, "spy": lambda: torn}):
            look = read_one(one.pid, **options)
            (error,) = look.errors
            assert error.kind is ErrorKind.BUSY
            assert "sleeps uninterruptibly: a stop would hold all others" in error.reason
            assert look.paused_ms == 0.0
        awake.touch()
        assert wait_until(lambda: find_sleeper(one.pid) is None)


def test_of_several_processes_only_those_that_were_named_are_stopped(tmp_path):
    tried = tmp_path / "tried"
    fake = script(tmp_path, f'echo "$*" >> {tried}; echo "Error: torn" >&2; exit 1')
    with child(NAP) as one, child(NAP) as two:
        depth = Depth(block=True, block_pids=(two.pid,))
        look = Dumper([member(one.pid), member(two.pid, 1)], depth, spy=lambda: fake).read_round()
        stops = [line for line in tried.read_text().splitlines() if "--nonblocking" not in line]
        assert len(look.errors) == 2
        assert [line.split()[-1] for line in stops] == [str(two.pid)]


def test_what_was_given_up_is_not_tried_again_with_a_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(dump, "DEADLINE_S", 30.0)
    tried = tmp_path / "tried"
    fake = script(tmp_path, f'echo "$*" >> {tried}; exec sleep 60')
    with child(NAP) as one:
        look = Dumper([member(one.pid)], block=True, spy=lambda: fake).read_round(0.5)
        assert [error.kind for error in look.errors] == [ErrorKind.LATE]
        assert wait_until(lambda: spies_of(os.getpid()) == [])
        time.sleep(0.3)
        assert len(tried.read_text().splitlines()) == 1


def test_a_sampler_that_is_held_ends_its_slice_and_goes_on_afterwards():
    with child(NAP) as one, sampling(subject(one.pid)) as sampler:
        assert wait_until(lambda: bool(spies_of(os.getpid())))
        with sampler.hold():
            assert wait_until(lambda: not spies_of(os.getpid()))
            before = len(collect(sampler, []))
            time.sleep(0.6)
            assert not spies_of(os.getpid())
            assert collect(sampler, []) == [], f"{before} before"
        assert wait_until(lambda: bool(spies_of(os.getpid())))
        assert "rank 0" not in sampler.source(), "being held is no refusal"
        with sampler.hold():
            sampler.stop()
        assert wait_until(lambda: not spies_of(os.getpid()))
