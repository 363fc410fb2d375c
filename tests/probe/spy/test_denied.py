"""Where looking is refused or py-spy is broken, the pane and every command say what, why and what to do."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.command_line import SECONDS, call_behind
from tests.nobody import AS_NOBODY, WITHOUT_PTRACE, needs_setpriv
from tests.spying import BROKEN_SPIES, BrokenSpy, spies_of
from tests.waiting import wait_until
from tpmon.model.codec import decode
from tpmon.model.dump import Asker, Dump, DumpRequest, ErrorKind
from tpmon.model.frame import Frame
from tpmon.model.known import Missing, is_known
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


def says_of_stacks(frame: Frame, words: str) -> bool:
    reason = frame.stacks.reason if isinstance(frame.stacks, Missing) else ""
    return words in reason or words in frame.sources.stacks


REFUSED = BrokenSpy(f"cat >&2 <<'EOF'\n{REFUSAL}EOF\nexit 1", YAMA, "stacks", "", ErrorKind.DENIED)


@pytest.mark.parametrize(
    "spy",
    [
        pytest.param(case, id=name, marks=[pytest.mark.long] if name == "hanging" else [])
        for name, case in {"refused": REFUSED, **BROKEN_SPIES}.items()
    ],
)
def test_the_pane_says_why_and_the_rest_lives(job, monkeypatch, tmp_path, spy):
    (tmp_path / "python").symlink_to(sys.executable)
    spy.put(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(stack_refusal, "read_standing", under_yama)
    monkeypatch.setattr(dump, "DEADLINE_S", 1.0)
    if spy.kind is ErrorKind.LATE:
        monkeypatch.setattr(stacks, "GRACE_S", 0.5)
    frames, dumps, errors = [], [], []
    takers = (lambda update: frames.append(update.frame),)
    session = Session(Collector(find_job(job), INTERVAL_S), takers, INTERVAL_S, (dumps.append,))
    session.start(errors.append)
    try:
        assert wait_until(lambda: any(says_of_stacks(one, spy.why) for one in frames[-1:]), SECONDS)
        seen = len(frames)
        assert wait_until(lambda: len(frames) >= seen + 3, SECONDS)
        session.ask_dump(DumpRequest(Asker.KEY))
        assert wait_until(lambda: any(not one.state.running for one in dumps), SECONDS)
    finally:
        session.stop()
    assert errors == []
    frame = frames[-1]
    # The verdict names what it could not see; rows, CPU and memory are there as ever.
    assert is_known(frame.verdict)
    (row,) = frame.processes
    assert row.pid == job
    assert all(map(is_known, (row.cpu_pct, row.waits_for, frame.cpu.used_cores, frame.memory.rss_bytes)))
    said = in_one_line(" ".join(write_once(frame)))
    assert "(doctor: " in said
    assert ("ptrace_scope 1" in said) == (spy.kind is ErrorKind.DENIED)
    update = next(one for one in dumps if not one.state.running)
    (error,) = update.dump.errors
    assert error.kind is spy.kind
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
@pytest.mark.parametrize(
    "command",
    ["attach --once", "attach --json --once", "attach --json", "attach --plain", "dump", "diagnose", "bundle"],
)
def test_another_user_is_told_who_may_and_who_knows_more(job, command):
    if subprocess.run([*AS_NOBODY, sys.executable, "-c", ""], check=False, capture_output=True).returncode:
        pytest.skip("another user may not start this Python")
    done = call_behind(AS_NOBODY, *command.split(), str(job))
    assert (done.returncode, done.stdout) == (4, "")
    first, second = done.stderr.splitlines()
    assert first == f"tpmon: process {job} belongs to user root; this user may not read it"
    assert f"tpmon attach {job}" in second
    assert second.endswith(f"run tpmon as root; tpmon doctor {job} says more")


SHORT = {
    "test_dump_says_what_why_and_what_to_try": BROKEN_SPIES,
    "test_diagnose_judges_by_the_rest_and_says_what_it_could_not_see": ("raving",),
}
"""What make test tries with each of them, or with some, as it takes seconds; the others with all but "hanging"."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        short = SHORT.get(metafunc.function.__name__, ("missing", "failing", "raving"))
        cases = [name if name in short else pytest.param(name, marks=pytest.mark.long) for name in BROKEN_SPIES]
        metafunc.parametrize("case", cases, indirect=True)


@pytest.fixture
def case(request):
    return BROKEN_SPIES[request.param]


@pytest.fixture
def call(case, tmp_path):
    """Give what runs tpmon with the py-spy of the case."""
    folder = tmp_path / "bin"
    folder.mkdir()
    # Not that of a virtual environment, which has a py-spy of its own.
    (folder / "python").symlink_to(os.path.realpath(sys.executable))
    case.put(folder)
    paths = os.pathsep.join((str(Path(__file__).parents[3]), *(one for one in sys.path if one.endswith("-packages"))))

    def run(*arguments):
        return subprocess.run(
            [str(folder / "python"), "-B", "-m", "tpmon", *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={**os.environ, "PYTHONPATH": paths, "PATH": "/usr/bin:/bin"},
        )

    return run


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def test_dump_says_what_why_and_what_to_try(case, call, job):
    done = call("dump", str(job))
    said = in_one_line(done.stdout)
    assert (done.returncode, done.stderr) == (2, "")
    assert f"not read rank {job} (rank 0): {case.why}" in said
    assert f"(doctor: {case.line})" in said
    assert case.tip in said.partition(" try ")[2]
    assert f"tpmon doctor {job}" in said.partition(" try ")[2]
    # /proc is read all the same.
    assert "rank 0: stack not read state S, " in said


def test_dump_as_json_has_the_threads_and_the_error(case, call, job):
    done = call("dump", str(job), "--json")
    dump = decode(Dump, done.stdout)
    assert (done.returncode, done.stderr) == (2, "")
    assert [error.kind for error in dump.errors] == [case.kind]
    assert [group.state for group in dump.groups] == ["S"]


def test_sample_ends_with_2_what_why_and_what_to_try(case, call, job):
    done = call("sample", str(job), "--seconds", "1")
    price, *_, what, tip = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert price.startswith("tpmon: samples 1 process")
    assert case.why in what
    assert f"(doctor: {case.line})" in what
    assert tip.startswith("Try: ")
    assert case.tip in tip


def test_diagnose_judges_by_the_rest_and_says_what_it_could_not_see(case, call, job):
    if case.kind is ErrorKind.LATE:
        pytest.skip("the first slice may take as long as the whole look")
    done = call("diagnose", str(job), "--for", "3s")
    said = in_one_line(done.stdout)
    assert done.returncode in (0, 11)
    assert "Traceback" not in done.stderr
    assert said.startswith("verdict ")
    assert f"data wait (stacks: {case.why} (doctor: {case.line})" in said


def test_once_has_rows_and_cpu_and_says_why_there_are_no_stacks(case, call, job):
    done = call("attach", str(job), "--once")
    said = in_one_line(done.stdout)
    undecided = done.stdout.startswith("verdict  NOT-ENOUGH-EVIDENCE")
    where = f"tpmon: no verdict after two readings; tpmon diagnose {job} gives one within 15 s\n"
    assert (done.returncode, done.stderr) == (0, where if undecided else "")
    assert f" 0 {job} S " in said
    assert "cpu budget " in said
    if case.kind is not ErrorKind.LATE:
        assert f"stacks ({case.why} (doctor: {case.line})" in said


@pytest.mark.long
def test_a_bundle_has_all_but_stacks_and_the_doctor_of_it(case, call, job, tmp_path):
    done = call("bundle", str(job), "--out", str(tmp_path / "evidence"))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    dump = decode(Dump, (tmp_path / "evidence" / "dump-1.json").read_text())
    assert [error.kind for error in dump.errors] == [case.kind]
    fold = in_one_line((tmp_path / "evidence" / "fold.txt").read_text())
    assert case.why in fold
    assert case.tip in fold
    doctor = in_one_line((tmp_path / "evidence" / "doctor.txt").read_text())
    assert "not allowed or not there: " in doctor or "not known: " in doctor
    assert "(doctor: " not in doctor
    assert (tmp_path / "evidence" / "recording.tpmon").stat().st_size
