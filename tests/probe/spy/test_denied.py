"""Where looking is refused, the pane says what, why and what to do, and everything else goes on.

A real process with torch, watched by a real session; py-spy is replaced by a program that prints what a
refused, broken, silent or raving one prints.
"""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.command_line import SECONDS, call_behind
from tests.nobody import AS_NOBODY, WITHOUT_PTRACE, needs_setpriv
from tests.spying import BROKEN_SPIES, BrokenSpy, spies_of
from tests.waiting import wait_until
from tpmon.model.codec import decode
from tpmon.model.dump import Asker, DumpRequest, ErrorKind
from tpmon.model.frame import Frame
from tpmon.model.known import Missing, is_known
from tpmon.model.results.doctor import DumpUpdate, Update
from tpmon.probe.collect.collector import Collector
from tpmon.probe.job.resolve import find_job
from tpmon.probe.proc import access as stack_refusal
from tpmon.probe.proc.access import AccessStanding, Caller, read_standing
from tpmon.probe.spy import dump, stacks
from tpmon.report.once import write_once
from tpmon.session import Session

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("small_environment")]

REFUSAL = """\
Permission Denied: Try running again with elevated permissions by going 'sudo env "PATH=$PATH" !!'
Error: Permission denied (os error 13)
Reason: Permission denied (os error 13)
"""
YAMA = "not permitted: ptrace_scope 1 (Yama) (doctor: stacks); sudo sysctl kernel.yama.ptrace_scope=0"
INTERVAL_S = 0.5


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Put another program, or none, where tpmon looks for py-spy; ptrace_scope is 1 for whom it refuses."""
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.setattr(stack_refusal, "read_standing", under_yama)

    def put(case):
        case.put(tmp_path)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        monkeypatch.setenv("PATH", "/usr/bin:/bin")

    return put


def under_yama(pid: int, proc: str = "/proc") -> AccessStanding:
    """Stand as a sibling of the process under kernel.yama.ptrace_scope=1, without any capability."""
    found = read_standing(pid, proc)
    return replace(
        found,
        ptrace_scope=1,
        own_uid=1000,
        uid=1000,
        may_ptrace=False,
        dumpable=True,
        caller=Caller(),
        more_capabilities=False,
        confined="",
    )


class Watched:
    """Run a session and keep what it says."""

    def __init__(self, pid: int) -> None:
        self.frames: list[Frame] = []
        self.dumps: list[DumpUpdate] = []
        self.errors: list[BaseException] = []
        self._lock = threading.Lock()
        collector = Collector(find_job(pid), INTERVAL_S)
        self.session = Session(collector, (self._take,), INTERVAL_S, (self.dumps.append,))
        self.session.start(self.errors.append)

    def _take(self, update: Update) -> None:
        with self._lock:
            self.frames.append(update.frame)

    def last(self) -> Frame:
        with self._lock:
            return self.frames[-1]

    def count(self) -> int:
        with self._lock:
            return len(self.frames)

    def says_of_stacks(self, words: str) -> bool:
        if not self.count():
            return False
        frame = self.last()
        reason = frame.stacks.reason if isinstance(frame.stacks, Missing) else ""
        return words in reason or words in frame.sources.stacks

    def ended_dump(self) -> DumpUpdate | None:
        return next((one for one in self.dumps if not one.state.running), None)


REFUSED = BrokenSpy(f"cat >&2 <<'EOF'\n{REFUSAL}EOF\nexit 1", YAMA, "stacks", "", ErrorKind.DENIED)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.long] if name == "hanging" else [])
        for name, case in {"refused": REFUSED, **BROKEN_SPIES}.items()
    ],
)
def test_the_pane_says_why_and_the_rest_lives(job, install, monkeypatch, case):
    install(case)
    monkeypatch.setattr(dump, "DEADLINE_S", 1.0)
    if case.kind is ErrorKind.LATE:
        monkeypatch.setattr(stacks, "GRACE_S", 0.5)
    watched = Watched(job)
    try:
        assert wait_until(lambda: watched.says_of_stacks(case.why), SECONDS)
        seen = watched.count()
        assert wait_until(lambda: watched.count() >= seen + 3, SECONDS)
        watched.session.ask_dump(DumpRequest(Asker.KEY))
        assert wait_until(lambda: watched.ended_dump() is not None, SECONDS)
    finally:
        watched.session.stop()
    assert watched.errors == []
    frame = watched.last()
    # The verdict names what it could not see; rows, CPU and memory are there as ever.
    assert is_known(frame.verdict)
    (row,) = frame.processes
    assert row.pid == job
    assert is_known(row.cpu_pct)
    assert is_known(row.waits_for)
    assert is_known(frame.cpu.used_cores)
    assert is_known(frame.memory.rss_bytes)
    said = " ".join(" ".join(write_once(frame)).split())
    assert "(doctor: " in said
    assert ("ptrace_scope 1" in said) == (case.kind is ErrorKind.DENIED)
    update = watched.ended_dump()
    (error,) = update.dump.errors
    assert error.kind is case.kind
    assert "\x1b" not in error.reason
    assert [thread.pid for group in update.dump.groups for thread in group.threads] == [job]
    assert wait_until(lambda: spies_of(os.getpid()) == [], SECONDS)


@needs_setpriv
def test_root_without_the_capability_sees_all_but_stacks(job):
    words = "not permitted: root without CAP_SYS_PTRACE, and "
    done = call_behind(WITHOUT_PTRACE, "dump", str(job))
    assert done.returncode == 4, done.stderr
    assert words in " ".join(done.stdout.split())
    with subprocess.Popen(
        [*WITHOUT_PTRACE, sys.executable, "-B", "-m", "tpmon", "attach", str(job), "--json", "-i", "0.5"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as attached:
        assert attached.stdout is not None
        end = time.monotonic() + SECONDS
        found = None
        for line in attached.stdout:
            frame = decode(Frame, line)
            if isinstance(frame.stacks, Missing) and words in frame.stacks.reason:
                found = frame
                break
            assert time.monotonic() < end
        attached.terminate()
        attached.stdout.close()
        assert attached.wait(SECONDS) == 143
    assert is_known(found.processes[0].rss_bytes)
    assert is_known(found.verdict)


@needs_setpriv
@pytest.mark.parametrize("command", ["attach", "dump", "diagnose", "bundle"])
def test_another_user_is_told_who_may_and_who_knows_more(job, command):
    if subprocess.run([*AS_NOBODY, sys.executable, "-c", ""], check=False, capture_output=True).returncode:
        pytest.skip("another user may not start this Python")
    text = ("--once",) if command == "attach" else ()
    done = call_behind(AS_NOBODY, command, str(job), *text)
    assert (done.returncode, done.stdout) == (4, "")
    first, second = done.stderr.splitlines()
    assert first == f"tpmon: process {job} belongs to user root; this user may not read it"
    assert f"tpmon attach {job}" in second
    assert second.endswith(f"run tpmon as root; tpmon doctor {job} says more")
