"""No thread can be started any more: the limit is told, and that the job shares it."""

import os
import resource
import threading

import pytest

from tests.cgroups import Tree
from tpmon.cli import main, tell_failure
from tpmon.errors import ExitCode, UsageError
from tpmon.model.known import Missing
from tpmon.probe.base.worker import Background, Worker, explain_limit, read_within

FULL = RuntimeError("can't start new thread")


@pytest.fixture
def no_thread(monkeypatch):
    """Let no thread be started, as the kernel does where the limit is used up."""

    def refuse(_thread):
        raise FULL

    monkeypatch.setattr(threading.Thread, "start", refuse)


def limit_user(monkeypatch: pytest.MonkeyPatch, soft: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (soft, soft))


def test_the_fullest_group_is_named_with_the_limit_of_the_user(tmp_path, monkeypatch):
    limit_user(monkeypatch, 4096)
    tree = Tree(tmp_path)
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


def test_without_a_limit_the_machine_is_named_and_another_error_is_none_of_these(tmp_path, monkeypatch):
    limit_user(monkeypatch, resource.RLIM_INFINITY)
    error = explain_limit(FULL, Tree(tmp_path).proc)
    assert "the machine, or its memory limit, lets none be made" in error.what
    assert explain_limit(RuntimeError("a bug")) is None
    assert explain_limit(ValueError("can't start new thread")) is None


@pytest.mark.usefixtures("no_thread")
def test_a_source_that_needs_a_thread_says_why_there_is_none():
    assert read_within(1, lambda: 1) == Missing("not read: can't start new thread")
    with pytest.raises(UsageError, match="no thread can be started"):
        Background("log", lambda: 1, 1).start()


@pytest.mark.usefixtures("no_thread")
def test_a_command_does_without_the_threads_that_only_guard_a_read(capfd):
    assert main(["ps"]) == ExitCode.OK
    assert "configuration read without a deadline" in capfd.readouterr().err


def test_what_needs_a_thread_is_refused_and_no_bug_is_reported(capfd):
    assert tell_failure(FULL) is ExitCode.USAGE
    said = capfd.readouterr().err
    assert said.startswith("tpmon: no thread can be started: ")
    assert "bug" not in said
    assert said.splitlines()[1].startswith("Try: ")


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
