"""What may be stopped and what not, and who makes way: threads that take no stop, our own sampler."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from tests.children import child
from tests.probe.spy.test_dump_probe import BLOCK, NAP, NATIVE, member, read_one, script
from tests.probe.spy.test_sample_probe import run_beside, sampler_of
from tests.probe.spy.test_stacks import collect, sampling, subject
from tests.spying import spies_of
from tests.waiting import wait_until
from tpmon.model.dump import ErrorKind
from tpmon.model.results.sample import SampleRequest
from tpmon.probe.base.procread import read_stat
from tpmon.probe.spy import dump, sample
from tpmon.probe.spy import failure as spy_failure
from tpmon.probe.spy.dump import Dumper
from tpmon.probe.spy.failure import Failure, Spy, find_obstacle, find_sleeper, yield_time_s
from tpmon.probe.spy.pool import SpyChild
from tpmon.probe.spy.sample import Sampler, SampleTally

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
        for how, options in ((NATIVE, {}), (BLOCK, {"spy": lambda: torn})):
            look = read_one(one.pid, how, **options)
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
        how = replace(BLOCK, block_pids=(two.pid,))
        look = Dumper([member(one.pid), member(two.pid, 1)], how, spy=lambda: fake).read_round()
        stops = [line for line in tried.read_text().splitlines() if "--nonblocking" not in line]
        assert len(look.errors) == 2
        assert [line.split()[-1] for line in stops] == [str(two.pid)]


def test_what_was_given_up_is_not_tried_again_with_a_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(dump, "DEADLINE_S", 30.0)
    tried = tmp_path / "tried"
    fake = script(tmp_path, f'echo "$*" >> {tried}; exec sleep 60')
    with child(NAP) as one:
        look = Dumper([member(one.pid)], BLOCK, spy=lambda: fake).read_round(0.5)
        assert [error.kind for error in look.errors] == [ErrorKind.LATE]
        assert wait_until(lambda: spies_of(os.getpid()) == [])
        time.sleep(0.3)
        assert len(tried.read_text().splitlines()) == 1


def test_before_a_stop_the_slice_of_another_sampler_is_waited_for_to_its_end(monkeypatch):
    """A program that sleeps stands for the py-spy of a screen."""
    monkeypatch.setattr(spy_failure, "YIELD_S", 0.1)
    with subprocess.Popen(["sleep", "0.6"]) as reader, subprocess.Popen(["sleep", "60"]) as long:
        began, long_began = (read_stat(one.pid).start_ticks for one in (reader, long))
        spy = Spy(reader.pid, began, nonblocking=True, seconds=1)
        assert 0.0 < spy.left_s() <= 1.0
        assert yield_time_s([spy], stops=False) == 0.1, "a reader is in nobody's way who only reads"
        assert find_obstacle(os.getpid(), [spy], stops=True) is None
        assert not spy.lives()
        other = Spy(long.pid, long_began, nonblocking=True, seconds=60)
        busy = find_obstacle(os.getpid(), [other], stops=True)
        long.kill()
    assert busy.kind is ErrorKind.BUSY
    assert re.search(r"reads it for (59 s|1m00s) more: try again", busy.reason)


def test_a_sampling_that_is_held_ends_its_slices_and_goes_on_afterwards():
    with child(NAP) as one:
        sampler = sampler_of(one.pid, seconds=30.0)
        with run_beside(sampler) as got:
            assert wait_until(lambda: bool(spies_of(os.getpid())))
            with sampler.suspend():
                assert wait_until(lambda: not spies_of(os.getpid()))
                time.sleep(0.5)
                assert (spies_of(os.getpid()), got) == ([], [])
            assert wait_until(lambda: bool(spies_of(os.getpid())))
            time.sleep(0.3)  # some looks
            sampler.finish()
    assert got[0].errors == ()
    assert got[0].processes[0].looks > 0


@contextmanager
def ending(sampler: Sampler, *, is_held: bool) -> Iterator[Callable[[], None]]:
    """Give what holds a sampler until the block is left, or ends it."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(sampler.suspend()) if is_held else sampler.finish()


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("begun", [True, False])
def test_a_slice_about_to_begin_does_not_in_a_hold_or_at_the_end_and_one_just_started_ends(monkeypatch, begun, is_held):
    run, outcomes = SpyChild.run, []

    def begin(spy, *_):
        assert begun, "py-spy was started"
        end()
        outcomes.append(run(spy, ("/bin/sleep", "60"), 5))
        return outcomes[-1]

    monkeypatch.setattr(SpyChild, "run", begin)
    sampler = Sampler(lambda: (), SampleRequest())
    with ending(sampler, is_held=is_held) as end:
        if not begun:
            monkeypatch.setattr(sample, "read_thread", lambda *_: end())
        answer = sampler._sample(SampleTally(member(os.getpid())), "py-spy", (), 1)
    assert isinstance(answer, Failure)
    assert begun or answer.kind is (ErrorKind.BUSY if is_held else ErrorKind.LATE)
    assert [(one.status, one.late) for one in outcomes] == [(-signal.SIGKILL, False)] * begun


def test_a_sampler_that_is_held_ends_its_slice_and_goes_on_afterwards():
    with child(NAP) as one, sampling(subject(one.pid)) as sampler:
        assert wait_until(lambda: bool(spies_of(os.getpid())))
        with sampler.suspend():
            assert wait_until(lambda: not spies_of(os.getpid()))
            before = len(collect(sampler, []))
            time.sleep(0.6)
            assert not spies_of(os.getpid())
            assert collect(sampler, []) == [], f"{before} before"
        assert wait_until(lambda: bool(spies_of(os.getpid())))
        assert "rank 0" not in sampler.source(), "being held is no refusal"
        with sampler.suspend():
            sampler.stop()
        assert wait_until(lambda: not spies_of(os.getpid()))
