"""Read what can block off the tick: a source that hangs ages, one that fails says why."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from tests.waiting import wait_until
from tpmon.model.known import Missing
from tpmon.probe.base import deadline as background
from tpmon.probe.base.deadline import Background, find_silent, read_within


def is_running(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())


def test_a_quick_read_returns_its_value_also_when_that_is_empty():
    assert read_within(5, lambda: 42) == 42
    assert read_within(5, tuple) == ()
    assert read_within(5, lambda: Missing("said so itself")) == Missing("said so itself")


def test_a_refusal_is_missing_and_a_bug_is_raised_here():
    assert read_within(5, Path("/nonexistent/file").read_bytes) == Missing("No such file or directory")

    def bug() -> None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        read_within(5, bug)


def test_a_thread_that_the_system_refuses_is_a_missing_value(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert read_within(5, lambda: 42) == Missing("not read: can't start new thread")


def test_a_read_that_hangs_is_left_behind(tmp_path):
    """Opening a FIFO without a writer blocks like a file on a dead mount."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    started = time.monotonic()
    assert read_within(0.1, fifo.read_bytes) == Missing("no answer within 0.1 s")
    assert time.monotonic() - started < 5
    assert is_running("tpmon-read")
    os.close(os.open(fifo, os.O_WRONLY))
    assert wait_until(lambda: not is_running("tpmon-read"))


def test_a_source_that_hangs_is_no_value_any_more(monkeypatch):
    """What it said before would be shown as if it were read now."""
    monkeypatch.setattr(background, "OVERDUE_S", 0.2)
    held, seen = threading.Event(), list[int]()

    def read() -> int:
        seen.append(len(seen) + 1)
        if len(seen) > 1:
            held.wait(30)
        return min(seen[-1], 2)

    source = Background("log", read, 0.05)
    source.start()
    assert wait_until(lambda: source.latest()[0] == 1)
    assert wait_until(lambda: source.latest()[0] == Missing("no answer within 0.2 s"))
    held.set()
    assert wait_until(lambda: source.latest()[0] == 2)
    source.stop()


def test_a_file_that_does_not_answer_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "_ask_file", lambda path: time.sleep(30 if "dead" in path else 0))
    assert find_silent(["/a", "/dead/b", "/c"], 0.1) == "/dead/b"
    monkeypatch.undo()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert not find_silent([str(tmp_path), str(fifo), str(tmp_path / "new"), "/nowhere/at/all", "\0"], 5)


def test_a_source_keeps_its_newest_value_and_tells_its_age():
    values = iter(range(1000))
    source = Background("counting", lambda: next(values), 0.01)
    value, age_s = source.latest()
    assert value == Missing("counting not read yet")
    assert age_s < 5
    source.start()
    assert wait_until(lambda: source.latest()[0] not in (Missing("counting not read yet"), 0, 1))
    source.stop()
    assert wait_until(lambda: not is_running("tpmon-counting"))
    last, age_s = source.latest()
    time.sleep(0.05)
    assert source.latest()[0] == last
    assert source.latest()[1] >= age_s + 0.05


def test_a_source_that_hangs_ages_and_neither_it_nor_stop_holds_anybody_up():
    hold = threading.Event()
    reads = []

    def read() -> int:
        reads.append(1)
        if len(reads) == 2:
            hold.wait(20)
        return len(reads)

    source = Background("hanging", read, 0.0)
    source.start()
    assert wait_until(lambda: len(reads) == 2)
    time.sleep(0.1)
    assert source.latest()[0] == 1
    assert source.latest()[1] >= 0.1
    before = time.monotonic()
    source.stop()
    assert time.monotonic() - before < 5
    hold.set()
    assert wait_until(lambda: not is_running("tpmon-hanging"))


def test_a_refused_source_is_missing_and_tried_again():
    answers = iter([OSError(13, "Permission denied"), OSError("bare"), 7, 8, 9])

    def read() -> int:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    seen = []
    source = Background("refused", read, 0.02)
    source.start()
    assert wait_until(lambda: seen.append(source.latest()[0]) or source.latest()[0] == 7, every_s=0.002)
    source.stop()
    assert Missing("Permission denied") in seen
    assert Missing("bare") in seen


def test_two_bugs_in_a_row_turn_a_source_off_with_the_reason():
    answers = iter(["bug", 1, "bug", "bug", 2])

    def read() -> int:
        answer = next(answers)
        if answer == "bug":
            raise KeyError("field")
        return answer

    source = Background("buggy", read, 0.0)
    source.start()
    assert wait_until(lambda: not is_running("tpmon-buggy"))
    assert source.latest()[0] == Missing("buggy failed: KeyError: 'field'")
    assert next(answers) == 2, "nothing was read after it was turned off"


def test_stop_before_start_reads_nothing():
    reads = []
    source = Background("stopped", lambda: reads.append(1), 0.0)
    source.stop()
    source.start()
    assert wait_until(lambda: not is_running("tpmon-stopped"))
    assert reads == []


def test_a_source_that_fails_twice_says_why_and_stays_off():
    calls = []

    def fail():
        calls.append(1)
        raise ValueError("no such thing")

    source = Background("loader", fail, 0.001)
    source.start()
    deadline = time.monotonic() + 8
    while not source.off and time.monotonic() < deadline:
        time.sleep(0.002)
    assert source.off == "loader failed: ValueError: no such thing"
    assert source.latest()[0] == Missing(source.off)
    assert len(calls) == 2
