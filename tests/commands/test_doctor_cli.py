"""``tpmon doctor`` as a person calls it: text, JSON, exit codes, refusals, nothing left behind."""

import os
import re
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.children import child
from tests.command_line import SECONDS, as_said, call_behind
from tests.nobody import AS_NOBODY, WITHOUT_PTRACE, needs_setpriv
from tests.permissions import fix_of
from tests.spying import BROKEN_SPIES, may_sample
from tests.waiting import wait_until
from tpmon.model.codec import decode, encode
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.results.doctor import DOCTOR_SCHEMA, Access, Check, Checkup, JobCheckup, is_obstacle, list_obstacles
from tpmon.probe.doctor.checks import settle_machine
from tpmon.probe.spy.failure import find_spies
from tpmon.report.doctor import ALL_WELL, write_checkup

pytestmark = pytest.mark.usefixtures("small_environment")

NAP = "say('up')\ntime.sleep(50)\n"
ON_THE_HOST = rf"(docker exec -it --privileged -u 0 CONTAINER .*{as_said('tpmon attach')} {{}}  # on the host)?"
"""Where no engine is around, nothing that could be printed would give root the capability."""
LIFT = "sudo sysctl kernel.yama.ptrace_scope=0"

STAT = Check("stat", Access.ALLOWED, True, "state, CPU time and threads", NOT_APPLICABLE)
STACKS = Check("stacks", Access.DENIED, True, "not permitted: ptrace_scope 1", LIFT)
MEMORY = Check("memory", Access.DENIED, True, "not permitted: ptrace_scope 1", LIFT)
CARDS = Check("cards", Access.ABSENT, False, "the job holds no NVIDIA card open", NOT_APPLICABLE)
SPY = Check("py-spy", Access.ALLOWED, True, "py-spy 0.4.1 at /bin/py-spy", NOT_APPLICABLE)
PERF = Check("perf", Access.DENIED, False, "kernel.perf_event_paranoid is 4", "sudo sysctl x=2")


def make_checkup(*jobs: JobCheckup, machine: tuple[Check, ...] = (SPY, PERF)) -> Checkup:
    now = datetime(2026, 3, 14, 3, 7, tzinfo=timezone.utc)
    return Checkup(DOCTOR_SCHEMA, now, "node-07", "grace", machine, jobs)


def make_job(*checks: Check, pid: int = 4211, remark: str = "") -> JobCheckup:
    return JobCheckup(pid, "train.py", "grace", (pid, pid + 1), remark, checks)


# text


def test_what_is_needed_and_forbidden_comes_first_with_its_command_once():
    lines = write_checkup(make_checkup(make_job(STAT, MEMORY, STACKS, CARDS)))
    assert lines[0] == "doctor   not allowed or not there: memory, stacks (grace on node-07)"
    assert lines[1] == f"try      {LIFT}"
    text = "\n".join(lines)
    assert text.count(f"try: {LIFT}") == 1
    assert "job      4211 train.py of grace, 2 processes tried" in text
    assert re.search(r"^ +yes stat +state", text, re.MULTILINE)
    assert re.search(r"^ +!NO +stacks +not permitted", text, re.MULTILINE)
    assert re.search(r"^machine +yes py-spy", text, re.MULTILINE)
    # perf is forbidden, but nothing needs it.
    assert re.search(r"^ +NO +perf", text, re.MULTILINE)
    assert all(len(line) <= 100 for line in lines)


UNKNOWN = Check("stacks", Access.UNKNOWN, True, "not tried: --no-stacks", NOT_APPLICABLE)


def test_when_all_is_well_it_says_so_and_tries_nothing_and_what_is_not_known_is_said():
    lines = write_checkup(make_checkup(make_job(STAT, remark="4211 is a thread of process 4210")))
    assert lines[0] == f"doctor   {ALL_WELL} (grace on node-07)"
    assert lines[1] == ""
    assert "         4211 is a thread of process 4210" in lines
    unknown = write_checkup(make_checkup(make_job(UNKNOWN)))
    assert unknown[0].startswith("doctor   nothing is forbidden, but not known: stacks")
    assert any(line.startswith("jobs     none of this user's") for line in write_checkup(make_checkup()))


def test_several_jobs_show_only_what_is_not_allowed():
    text = "\n".join(write_checkup(make_checkup(make_job(STAT, CARDS), make_job(STACKS, pid=5000))))
    assert "may be read: stat\n" in text
    assert "yes stat" not in text
    assert "5000 train.py" in text


def test_control_characters_of_a_reason_do_not_reach_the_terminal():
    evil = Check("stacks", Access.DENIED, True, "why \x1b[2J", NOT_APPLICABLE)
    assert "\x1b" not in "\n".join(write_checkup(make_checkup(make_job(evil))))


def test_obstacles_are_what_is_needed_and_each_is_told_once():
    checkup = make_checkup(make_job(MEMORY, STACKS), make_job(STACKS, pid=5000))
    assert list_obstacles(checkup) == (MEMORY, STACKS)
    assert not is_obstacle(PERF)
    assert decode(Checkup, encode(checkup)) == checkup


RULES = tuple(
    Check(name, Access.DENIED, False, "it forbids", "the remedy")
    for name in ("yama", "capability", "container", "seccomp", "lsm", "perf")
)


def test_rules_that_stood_in_nobodys_way_ask_for_nothing():
    read = Check("stacks", Access.ALLOWED, True, "py-spy read them", NOT_APPLICABLE)
    tried = Check("memory", Access.ALLOWED, False, "its memory", NOT_APPLICABLE)
    for checks in ((read, MEMORY), (UNKNOWN, tried)):
        settled = settle_machine(RULES, (make_job(*checks), make_job(*checks, pid=5000)))
        assert [fix_of(check) for check in settled] == ["", "", "", "", "", "the remedy"]
        assert [check.why for check in settled] == [check.why for check in RULES]
    for jobs in ((), (make_job(STACKS, tried),), (make_job(read), make_job(UNKNOWN, MEMORY, pid=5000))):
        assert settle_machine(RULES, jobs) == RULES


# the command


def doctor(pid: int, *arguments: str, before: tuple[str, ...] = (), code: int = 0) -> tuple[Checkup, dict[str, Check]]:
    """Call doctor as JSON, behind a command that takes rights away; return what it found, and by name."""
    done = call_behind(before, "doctor", str(pid), "--json", *arguments)
    assert (done.returncode, done.stderr) == (code, "")
    checkup = decode(Checkup, done.stdout)
    return checkup, checks_of(checkup)


def checks_of(checkup: Checkup) -> dict[str, Check]:
    (job,) = checkup.jobs
    return {check.name: check for check in (*checkup.machine, *job.checks)}


def test_of_an_own_process_everything_is_allowed_and_it_notices_nothing():
    if reason := may_sample():
        pytest.skip(reason)
    with child(NAP) as one:
        checkup, checks = doctor(one.pid)
        assert checkup.schema == DOCTOR_SCHEMA
        assert checkup.jobs[0].pids == (one.pid,)
        assert checkup.jobs[0].remark.endswith("is Python without torch (yet)")
        for name in ("stat", "io", "smaps_rollup", "environ", "fd", "syscall", "memory", "stacks", "py-spy"):
            assert checks[name].access is Access.ALLOWED, name
        names = {"yama", "capability", "container", "hidepid", "seccomp", "lsm", "perf", "kernel-log", "nvml"}
        assert names | {"counters", "clipboard", "cgroup", "cards", "ras", "place"} <= set(checks)
        assert one.process.poll() is None
        assert wait_until(lambda: one.pid not in find_spies())


def test_without_stacks_nothing_touches_its_memory():
    with child(NAP) as one:
        _, checks = doctor(one.pid, "--no-stacks")
    for name in ("memory", "stacks"):
        assert (checks[name].access, checks[name].why) == (Access.UNKNOWN, "not tried: --no-stacks")


@needs_setpriv
def test_another_users_process_is_4_with_what_permits_it():
    with child(NAP) as one:
        probe = subprocess.run([*AS_NOBODY, sys.executable, "-c", ""], check=False, capture_output=True)
        if probe.returncode:
            pytest.skip("another user may not start this Python")
        checkup, checks = doctor(one.pid, before=AS_NOBODY, code=4)
    assert checkup.user == "nobody" or checkup.user.isdigit()
    assert checks["stat"].access is Access.ALLOWED
    assert checks["cgroup"].access is not Access.DENIED
    for name in ("io", "smaps_rollup", "environ", "fd", "wchan", "syscall", "memory"):
        assert checks[name].access is Access.DENIED, name
        assert as_said(f"tpmon attach {one.pid}") in fix_of(checks[name])
        assert "uid 0" in checks[name].why
    assert "stacks" in {check.name for check in list_obstacles(checkup)}


@needs_setpriv
def test_root_without_the_capability_is_told_what_runs_beside_the_live_job():
    with child(NAP) as one:
        _, checks = doctor(one.pid, before=WITHOUT_PTRACE, code=4)
    for name in ("capability", "syscall", "memory", "stacks"):
        assert checks[name].access is Access.DENIED, name
        assert "root" in checks[name].why
        assert re.fullmatch(ON_THE_HOST.format(one.pid), fix_of(checks[name])), checks[name]
    assert checks["stat"].access is Access.ALLOWED
    assert "doctor" not in checks["stacks"].why


@pytest.mark.parametrize(
    ("name", "access", "words"),
    [
        ("missing", Access.ABSENT, "py-spy is not installed beside tpmon or on PATH"),
        ("failing", Access.DENIED, "does not work: Error: no luck"),
        ("raving", Access.DENIED, "does not work: "),
        ("hanging", Access.UNKNOWN, "no answer within 0.5 s"),
    ],
)
def test_a_py_spy_that_is_missing_or_broken_costs_its_own_lines(tmp_path, name, access, words):
    """The Python that runs tpmon is told to lie elsewhere, beside another py-spy."""
    BROKEN_SPIES[name].put(tmp_path)
    hurry = "checks.SPY_S = 0.5; checks.SPY_ANSWER_S = 2.0" if access is Access.UNKNOWN else ""
    code = (
        f"import sys; sys.executable = {str(tmp_path / 'python')!r}\n"
        f"from tpmon.probe.doctor import checks\n{hurry}\n"
        "from tpmon.cli import main; main()"
    )
    with child(NAP) as one:
        done = subprocess.run(
            [sys.executable, "-c", code, "doctor", str(one.pid), "--json"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PATH": "/usr/bin:/bin"},
        )
        checks = checks_of(decode(Checkup, done.stdout))
        assert wait_until(lambda: one.pid not in find_spies())
    spy = checks["py-spy"]
    assert spy.access is access
    assert words in spy.why
    assert is_known(spy.fix)
    assert checks["stacks"].access is not Access.ALLOWED
    others = {one: checks[one].access for one in ("stat", "io", "environ", "fd", "syscall", "memory")}
    assert others == dict.fromkeys(others, Access.ALLOWED)
