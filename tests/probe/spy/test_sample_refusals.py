"""Sample what cannot be sampled: gone, traced, another user's, and with py-spys that fail in every way."""

import os
import signal

import pytest

from tests.children import child
from tests.members import member
from tests.nobody import needs_setpriv, run_as_nobody
from tests.probe.spy.test_dump_probe import FAILING, GARBAGE, HANGING, NAP, script, traced
from tests.probe.spy.test_sample_probe import functions_of, read_state, run
from tests.spying import spies_of
from tests.waiting import wait_until
from tpmon.model.dump import ErrorKind
from tpmon.model.known import Missing, is_known
from tpmon.model.results.sample import SampleRequest
from tpmon.probe.spy import failure as spy_failure
from tpmon.probe.spy import sample
from tpmon.probe.spy.failure import find_spy
from tpmon.probe.spy.sample import Sampler


@pytest.mark.usefixtures("sampling_works")
def test_gone_zombie_and_traced_processes_are_said_and_the_others_are_sampled(monkeypatch):
    monkeypatch.setattr(sample, "HELD_S", 0.05)
    with child(NAP) as one, child(NAP) as two, child(NAP) as three:
        gone, zombie, held = member(one.pid), member(two.pid, 1), member(three.pid, 2)
        one.kill()
        two.process.send_signal(signal.SIGKILL)
        assert wait_until(lambda: read_state(two.pid) == "Z")
        with traced(three.pid), child(NAP) as four:
            reading = run(gone, zombie, held, member(four.pid, 3))
    assert [process.rank for process in reading.processes] == [3]
    assert reading.ended == 2
    assert [(error.rank, error.kind) for error in reading.errors] == [
        (0, ErrorKind.GONE),
        (1, ErrorKind.GONE),
        (2, ErrorKind.TRACED),
    ]


@pytest.mark.usefixtures("sampling_works")
def test_a_tracer_that_is_there_for_an_instant_ends_nothing(monkeypatch):
    looked = 0
    read = spy_failure.read_file

    def held_once(path, limit=65536):
        nonlocal looked
        looked += 1
        return b"TracerPid:\t7\n" if looked == 1 else read(path, limit)

    monkeypatch.setattr(sample, "HELD_S", 0.05)
    monkeypatch.setattr(spy_failure, "read_file", held_once)
    with child(NAP) as one:
        reading = run(member(one.pid))
    assert looked >= 2
    assert reading.errors == ()
    assert functions_of(reading.processes[0]) == {"nap"}


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        *FAILING,
        pytest.param(*HANGING, marks=pytest.mark.long),
        ("echo 'thread garbage (;;)) 12 x'; echo 7", ErrorKind.FAILED, GARBAGE),
        ("head -c 5000 /dev/urandom", ErrorKind.FAILED, GARBAGE),
        ("kill -9 $$", ErrorKind.FAILED, "py-spy was killed (out of memory?) (doctor: stacks)"),
    ],
)
@pytest.mark.usefixtures("sampling_works")
def test_a_py_spy_that_fails_costs_its_process_alone(tmp_path, monkeypatch, text, kind, words):
    others_work = kind is not ErrorKind.LATE  # with so short a grace the other may be late too
    monkeypatch.setattr(sample, "GRACE_S", 20.0 if others_work else 0.2)
    monkeypatch.setattr(sample, "TRIES", 2)
    monkeypatch.setattr(spy_failure, "ENDING_S", 0.02)
    monkeypatch.setattr(sample, "_TICK_S", 0.02)

    def look(part):
        if part.errors and len(part.processes) == 1:
            sampler.finish()

    with child(NAP) as one, child(NAP) as two:
        begin = 'n=$(cat "$0.n" 2>/dev/null); echo "$n." > "$0.n"'
        works = 'exec $PYSPY "$@"'
        fake = script(tmp_path, f'case "$*" in *"--pid {one.pid}") {begin}; {text};; *) {works};; esac')
        members = (member(one.pid), member(two.pid, 1))[: 1 + others_work]
        sampler = Sampler(lambda: members, SampleRequest(seconds=30.0), spy=lambda: fake)
        reading = sampler.run(look)
    (error,) = reading.errors
    assert (error.pid, error.rank, error.kind) == (one.pid, 0, kind)
    assert words in error.reason
    assert [process.rank for process in reading.processes] == ([1] if others_work else [])
    again = kind in (ErrorKind.LATE, ErrorKind.FAILED) and "more stacks" not in words
    assert (tmp_path / "fake-spy.n").read_text().count(".") == (2 if again else 1)
    assert wait_until(lambda: spies_of(os.getpid()) == [])


def test_a_missing_py_spy_is_said_for_each_process():
    with child(NAP) as one:
        reading = run(member(one.pid), spy=lambda: Missing("py-spy is not installed"))
        assert [(error.kind, error.reason) for error in reading.errors] == [
            (ErrorKind.NO_SPY, "py-spy is not installed")
        ]
        absent = run(member(one.pid), spy=lambda: "/no/such/py-spy")
        assert [error.kind for error in absent.errors] == [ErrorKind.NO_SPY]
        assert absent.processes == ()


@needs_setpriv
@pytest.mark.usefixtures("sampling_works")
def test_another_user_is_refused_with_the_reason(tmp_path):
    spy = find_spy()
    assert is_known(spy)
    with run_as_nobody(spy) as command, child(NAP) as one:
        fake = script(tmp_path, f'echo x >> "$0.n"; exec {command} "$@"')
        reading = run(member(one.pid), seconds=5.0, spy=lambda: fake)
    (error,) = reading.errors
    assert error.kind is ErrorKind.DENIED
    assert error.reason.startswith("not permitted")
    assert (tmp_path / "fake-spy.n").read_text() == "x\n", "it is not tried again"
