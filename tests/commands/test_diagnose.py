"""The verdict without a screen: when to stop, with which code, and what a command is told."""

import errno
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.frames import make_finding, make_frame, make_target
from tests.test_supervisor import read_state
from tests.waiting import wait_until
from tpmon import cli
from tpmon.commands import diagnose
from tpmon.commands.diagnose import OnChange, is_enough, parse_command
from tpmon.errors import UsageError
from tpmon.model.frame import Frame, TargetState
from tpmon.model.known import Missing
from tpmon.model.process import Outcome
from tpmon.model.results.doctor import Update
from tpmon.model.verdict import EXIT_CODES, Kind
from tpmon.report.once import pick_exit_code
from tpmon.report.text import Output

TELL = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"


def update(kind: Kind, **fields) -> Update:
    return Update(make_frame(verdict=make_finding(kind=kind), **fields), ())


def test_a_command_is_split_and_must_be_there():
    assert parse_command("echo 'two words'") == ("echo", "two words")
    for text in ("no-such-program-anywhere x", "'open", "   "):
        with pytest.raises(UsageError, match="--on-change"):
            parse_command(text)


ENDED = {"target": make_target(state=TargetState.ENDED, ended="exit 0")}


@pytest.mark.parametrize(
    ("kind", "fields", "left_s", "enough"),
    [
        pytest.param(Kind.DATA_BOUND, {}, 60.0, False, id="another verdict"),
        pytest.param(Kind.NOT_ENOUGH_EVIDENCE, {}, 60.0, False, id="none"),
        pytest.param(Kind.HUNG, {}, 60.0, True, id="what is waited for"),
        pytest.param(Kind.DATA_BOUND, ENDED, 60.0, True, id="the job ended"),
        pytest.param(Kind.DATA_BOUND, {}, 0.0, True, id="the time is over"),
    ],
)
def test_a_watch_ends_at_what_it_waits_for_with_the_job_and_with_its_time(kind, fields, left_s, enough):
    frame = update(kind, **fields).frame
    assert is_enough(frame, frozenset(("hung",)), time.monotonic() + left_s) is enough


def test_the_exit_code_is_that_of_the_kind():
    for kind, code in EXIT_CODES.items():
        assert pick_exit_code(update(kind).frame) == code
    assert pick_exit_code(make_frame(verdict=Missing("not judged"))) == 11
    for outcome, code in ((Outcome.WELL, 0), (Outcome.FAILED, 10), (Outcome.UNKNOWN, 11)):
        ended = make_target(state=TargetState.ENDED, ended="how", outcome=outcome)
        assert pick_exit_code(update(Kind.HUNG, target=ended).frame) == code
    failed = make_finding(kind=Kind.IDLE, cause="failed")
    assert pick_exit_code(make_frame(verdict=failed)) == 10


def test_a_command_is_told_each_verdict_once_as_json(tmp_path):
    told = tmp_path / "told"
    on_change = OnChange((sys.executable, "-c", TELL, str(told)))
    finding = make_finding(kind=Kind.DATA_BOUND, cause="no-workers")
    on_change.tell(finding)
    on_change.finish()
    on_change.tell(replace(finding, summary="other words, same verdict"))
    on_change.tell(make_finding(kind=Kind.HUNG, cause="lock"))
    on_change.finish()
    kinds = [json.loads(line)["kind"] for line in told.read_text().splitlines()]
    assert kinds == ["data-bound", "hung"]


@pytest.mark.parametrize(
    ("command", "limit_s", "said"),
    [
        pytest.param("sleep 600", 0.3, "tpmon: --on-change: sh took longer than 0 s and was ended\n", id="it is ended"),
        pytest.param("exit 7", 30.0, "tpmon: --on-change: sh ended with status 7\n", id="it fails"),
        pytest.param("cat > /dev/null; echo done", 30.0, "done\n", id="it prints, and not into the verdict"),
    ],
)
def test_what_becomes_of_a_command_is_said_on_stderr(monkeypatch, capfd, command, limit_s, said):
    monkeypatch.setattr(diagnose, "COMMAND_LIMIT_S", limit_s)
    on_change = OnChange(("sh", "-c", command))
    on_change.tell(make_finding(kind=Kind.HUNG, cause="lock"))
    on_change.finish()
    assert capfd.readouterr() == ("", said)


def test_a_command_ends_with_what_it_started_and_never_outlives_tpmon(tmp_path, monkeypatch):
    monkeypatch.setattr(diagnose, "END_WITHIN_S", 0.2)
    began = tmp_path / "began"
    on_change = OnChange(("sh", "-c", f"sleep 600 & echo $! > {began}.new; mv {began}.new {began}; wait"))
    on_change.tell(make_finding(kind=Kind.HUNG, cause="lock"))
    assert wait_until(began.exists)
    grandchild = int(began.read_text())
    on_change.close()
    assert wait_until(lambda: read_state(grandchild) in ("", "Z", "X"))
    on_change.tell(make_finding(kind=Kind.DATA_BOUND, cause="pin"))
    on_change.finish()


def test_a_command_that_reads_nothing_is_no_trouble(capfd):
    on_change = OnChange(("true",))
    for number in range(20):
        on_change.tell(make_finding(kind=Kind.HUNG, cause=f"cause {number}", summary="x" * 100_000))
    on_change.finish()
    on_change.close()
    assert capfd.readouterr().err == ""


def test_a_command_that_may_not_be_ended_is_told_and_the_next_verdict_too(tmp_path, monkeypatch, capfd):
    def refuse(pid, number):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(diagnose, "COMMAND_LIMIT_S", 0.3)
    monkeypatch.setattr(diagnose, "END_WITHIN_S", 0.1)
    monkeypatch.setattr(diagnose.os, "killpg", refuse)
    told, blocked = tmp_path / "told", tmp_path / "blocked"
    wait = f"while test -e {blocked}; do sleep 0.05; done"
    on_change = OnChange(("sh", "-c", f"cat >> {told}; {wait}"))
    blocked.touch()
    try:
        on_change.tell(make_finding(kind=Kind.DATA_BOUND, cause="pin"))
        assert wait_until(on_change._idle.is_set)
        on_change.tell(make_finding(kind=Kind.HUNG, cause="lock"))
        assert wait_until(lambda: told.exists() and told.read_text().count("\n") == 2)
        on_change.close()
    finally:
        blocked.unlink()
    kinds = [json.loads(line)["kind"] for line in told.read_text().splitlines()]
    assert kinds == ["data-bound", "hung"]
    assert "cannot be ended: Operation not permitted" in capfd.readouterr().err


def test_a_call_that_fails_in_an_odd_way_does_not_end_the_telling(monkeypatch, capfd):
    def fail(line):
        raise ValueError("odd")

    on_change = OnChange(("true",))
    monkeypatch.setattr(on_change, "_call", fail)
    for cause in ("lock", "spin"):
        on_change.tell(make_finding(kind=Kind.HUNG, cause=cause))
        assert wait_until(on_change._idle.is_set)
    assert capfd.readouterr().err.count("ValueError: odd") == 2


class Stopped:
    """Stand for a session that meets one verdict."""

    def __init__(self, sink: Callable[[Update], None], kind: Kind) -> None:
        self._sink = sink
        self._update = update(kind)

    def stop(self) -> None:
        pass

    def run(self) -> Frame:
        self._sink(self._update)
        return self._update.frame


class Slow:
    """Stand for a session whose first reading takes longer than the whole look."""

    def __init__(self, sink: Callable[[Update], None]) -> None:
        self._sink = sink
        self.readings = 0

    def stop(self) -> None:
        self.readings = -self.readings

    def run(self) -> Frame:
        time.sleep(1.2)
        while self.readings >= 0:
            self.readings += 1
            one = update(Kind.BALANCED)
            frame = replace(one.frame, taken_ns=time.monotonic_ns())
            self._sink(replace(one, frame=frame))
            time.sleep(0.02)
        return frame


@pytest.mark.usefixtures("small_environment")
def test_the_time_of_a_look_counts_from_the_first_reading(monkeypatch, capfd):
    sessions = []
    monkeypatch.setattr(diagnose, "find_job", lambda *_: None)
    monkeypatch.setattr(
        diagnose, "open_session", lambda _job, _options, sink: sessions.append(Slow(sink)) or sessions[-1]
    )
    assert cli.main(["diagnose", "1", "--for", "1s"]) == 0
    assert -sessions[0].readings >= 5
    assert "BALANCED" in capfd.readouterr().out


@pytest.fixture
def full():
    with open("/dev/full", "wb", buffering=0) as file:
        yield file.fileno()


@pytest.mark.usefixtures("small_environment")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_full_disk_costs_neither_the_exit_code_nor_the_alert(form, full, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(diagnose, "END_WITHIN_S", 0.1)
    monkeypatch.setattr(diagnose, "find_job", lambda *_: None)
    monkeypatch.setattr(diagnose, "open_session", lambda _job, _options, sink: Stopped(sink, Kind.HUNG))
    monkeypatch.setattr(diagnose, "Output", lambda _, ascii_only: Output(full, ascii_only))
    told = tmp_path / "told"
    command = f"sh -c 'sleep 1; cat > {told}'"
    asked = ["diagnose", "1", "--until", "hung", "--on-change", command, *form]
    assert cli.main(asked) == EXIT_CODES[Kind.HUNG]
    assert json.loads(told.read_text())["kind"] == "hung"
    assert "cannot write to standard output: No space left" in capfd.readouterr().err
