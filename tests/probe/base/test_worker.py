"""Do what can block off the tick: who hangs ages, who fails says why, and where no thread can be started it is told."""

import os
import resource
import threading
import time
from pathlib import Path

import pytest

from tests.waiting import wait_until
from tpmon.cli import main, tell_failure
from tpmon.errors import ExitCode, UsageError
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.probe.base import worker as background
from tpmon.probe.base.worker import Background, Turns, Worker, explain_limit, find_silent, read_all, read_within


def is_running(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())


def test_a_quick_read_returns_its_value_a_refusal_is_missing_and_a_bug_is_raised_here():
    for value in (42, (), Missing("said so itself")):
        assert read_within(5, lambda value=value: value) == value
    assert read_within(5, Path("/nonexistent/file").read_bytes) == Missing("No such file or directory")
    with pytest.raises(ZeroDivisionError):
        read_within(5, lambda: 1 / 0)


def test_a_read_that_hangs_is_left_behind(tmp_path):
    """Opening a FIFO without a writer blocks like a file on a dead mount."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    started, others = time.monotonic(), set(threading.enumerate())
    assert read_within(0.1, fifo.read_bytes) == Missing("no answer within 0.1 s")
    assert time.monotonic() - started < 5
    (left,) = set(threading.enumerate()) - others
    assert (left.name, left.daemon) == ("tpmon-read", True)
    os.close(os.open(fifo, os.O_WRONLY))
    left.join(30)
    assert not left.is_alive()


def test_a_source_that_hangs_ages_is_soon_no_value_and_holds_nobody_up(monkeypatch):
    """What it said before would be shown as if it were read now."""
    monkeypatch.setattr(background, "OVERDUE_S", 0.4)
    held, seen = threading.Event(), list[int]()

    def read():
        seen.append(len(seen) + 1)
        if len(seen) > 1:
            held.wait(30)
        return min(seen[-1], 2)

    source = Background("hanging", read, 0.0)
    source.start()
    assert wait_until(lambda: len(seen) == 2)
    time.sleep(0.1)
    value, age_s = source.latest()
    assert value in (1, Missing("no answer within 0.4 s"))
    assert age_s >= 0.1
    assert wait_until(lambda: source.latest()[0] == Missing("no answer within 0.4 s"))
    before = time.monotonic()
    source.stop()
    assert time.monotonic() - before < 5
    held.set()
    assert wait_until(lambda: source.latest()[0] == 2)
    assert wait_until(lambda: not is_running("tpmon-hanging"))


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


def test_a_refused_source_is_missing_and_tried_again():
    answers, seen = iter([OSError(13, "Permission denied"), OSError("bare"), 7, 8, 9]), []

    def read():
        if isinstance(answer := next(answers), OSError):
            raise answer
        return answer

    source = Background("refused", read, 0.02)
    source.start()
    assert wait_until(lambda: seen.append(source.latest()[0]) or source.latest()[0] == 7, every_s=0.002)
    source.stop()
    assert {Missing("Permission denied"), Missing("bare")} <= set(seen)


def test_two_bugs_in_a_row_turn_a_source_off_with_the_reason():
    answers = iter(["bug", 1, "bug", "bug", 2])

    def read():
        if (answer := next(answers)) == "bug":
            raise KeyError("field")
        return answer

    source = Background("buggy", read, 0.001)
    source.start()
    assert wait_until(lambda: source.off and not is_running("tpmon-buggy"))
    assert source.off == "buggy failed: KeyError: 'field'"
    assert source.latest()[0] == Missing(source.off)
    assert next(answers) == 2, "nothing was read after it was turned off"


def test_stop_before_start_reads_nothing():
    reads = []
    source = Background("stopped", lambda: reads.append(1), 0.0)
    source.stop()
    source.start()
    assert wait_until(lambda: not is_running("tpmon-stopped"))
    assert reads == []


def keep(_: Applicable[object], answer: Known[object]) -> Known[object]:
    return answer


def test_a_worker_does_one_request_at_a_time_and_its_state_is_the_answer():
    worker, changes, go = Worker[object]("working"), list[int](), threading.Event()
    worker.on_change = lambda: changes.append(1)
    assert worker.state is NOT_APPLICABLE
    assert worker.begin(lambda: go.wait(20) and 7, keep, "begun")
    assert not worker.begin(lambda: 8, keep)
    assert (worker.state, worker.is_busy, len(changes)) == ("begun", True, 1)
    go.set()
    assert wait_until(lambda: not is_running("tpmon-working"))
    assert (worker.state, worker.is_busy, len(changes)) == (7, False, 2)
    assert worker.begin(lambda: 1 / 0, keep), "the next request"
    assert wait_until(lambda: worker.state == Missing("ZeroDivisionError: division by zero"))
    worker.stop()
    assert not worker.begin(lambda: 9, keep)


def test_what_repeats_waits_as_long_as_it_says_or_until_it_is_woken_and_ends_at_once():
    worker, steps = Worker[None]("stepping"), list[float]()

    def step():
        steps.append(time.monotonic())
        return 0.05 if len(steps) < 3 else 60.0

    worker.repeat(step, lambda _: 0.0)
    assert wait_until(lambda: len(steps) == 3)
    assert steps[1] - steps[0] >= 0.05
    worker.wake()
    assert wait_until(lambda: len(steps) == 4)
    worker.stop()
    assert wait_until(lambda: not is_running("tpmon-stepping"))
    assert worker.off == ""


def test_of_many_reads_some_run_at_once_and_who_is_late_costs_its_own_answer_alone():
    hold, running, most = threading.Event(), list[int](), list[int]()

    def read():
        running.append(1)
        most.append(len(running))
        time.sleep(0.01)
        running.pop()
        return 5

    started = time.monotonic()
    answers = read_all("many", [(lambda: hold.wait(20) and 1, 0.2), *[(read, 10.0)] * 8], 3)
    assert answers == [None, *[5] * 8]
    assert time.monotonic() - started < 8
    assert max(most) <= 3
    hold.set()
    assert wait_until(lambda: not is_running("tpmon-many"))
    assert read_all("none", [], 0) == []
    assert read_all("many", [(lambda: hold.wait(20), 0.0)], 1) == [None], "no time: it is not begun"


def test_an_answer_that_comes_after_it_was_given_up_is_none():
    hold = threading.Event()
    turns = Turns[str, bool]("turning", lambda _: hold.wait(20))
    turns.begin("one", time.monotonic() + 0.05)
    assert turns.wait(time.monotonic() + 0.05) is None
    assert turns.give_up(time.monotonic() + 60) == ["one"]
    assert (turns.active, turns.late) == ({}, {"one"})
    hold.set()
    assert wait_until(lambda: turns.wait(time.monotonic() + 0.1) is None and not turns.late)


def test_no_other_module_of_the_probes_starts_a_thread():
    """The NVML child is a process of its own, and starts its threads itself."""
    probe = Path(background.__file__).parents[1]
    starts = {path.name for path in probe.rglob("*.py") if "threading.Thread(" in path.read_text()}
    assert starts == {"worker.py", "child.py"}


FULL = RuntimeError("can't start new thread")


@pytest.fixture
def no_thread(monkeypatch):
    """Let no thread be started, as the kernel does where the limit is used up."""

    def refuse(_thread):
        raise FULL

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_the_fullest_group_is_named_with_the_limit_of_the_user_or_else_the_machine(tree, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (4096, 4096))
    tree.mount("cg", "", version=2)
    for group, current, most in (("pod", 512, "512"), ("pod/main", 500, "1000"), ("pod/main/sh", 3, "max")):
        tree.write(f"cg/{group}/cgroup.events", "")
        tree.write(f"cg/{group}/pids.current", f"{current}\n")
        tree.write(f"cg/{group}/pids.max", f"{most}\n")
    tree.process(os.getpid(), "0::/pod/main/sh\n")
    error = explain_limit(FULL, tree.proc)
    assert isinstance(error, UsageError)
    assert error.what == (
        "no thread can be started: 512 of 512 processes and threads of /pod are used (pids.max), "
        "this user may have 4096 (ulimit -u); the job may fail for the same reason, at its next worker"
    )
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    tree.process(os.getpid(), "0::/\n")
    assert "the machine, or its memory limit, lets none be made" in explain_limit(FULL, tree.proc).what
    for other in (RuntimeError("a bug"), ValueError("can't start new thread")):
        assert explain_limit(other) is None


@pytest.mark.usefixtures("no_thread")
def test_a_source_that_needs_a_thread_says_why_there_is_none_and_a_command_does_without_a_guard_of_a_read(capfd):
    assert read_within(1, lambda: 1) == Missing("not read: can't start new thread")
    with pytest.raises(UsageError, match="no thread can be started"):
        Background("log", lambda: 1, 1).start()
    assert main(["ps"]) == ExitCode.OK
    assert "configuration read without a deadline" in capfd.readouterr().err


def test_what_needs_a_thread_is_refused_and_no_bug_is_reported(capfd):
    assert tell_failure(FULL) is ExitCode.USAGE
    said, way_out = capfd.readouterr().err.splitlines()[:2]
    assert said.startswith("tpmon: no thread can be started: ")
    assert "bug" not in said + way_out
    assert way_out.startswith("Try: ")


def test_a_refusal_in_a_service_is_kept_for_the_command_in_its_own_words():
    said = []
    worker = Worker("test")
    over = threading.Event()
    worker.on_change = over.set

    def refuse():
        raise UsageError("no thread can be started: pids.max", "end what is left over")

    worker.begin(refuse, lambda _state, answer: said.append(answer))
    assert over.wait(10)
    assert said == [Missing("no thread can be started: pids.max")]
    assert isinstance(worker.failure, UsageError)
