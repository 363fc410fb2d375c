"""Try whether tpmon may read each source, each check within a deadline.

A check that hangs or fails becomes one line that says so; the others are not affected.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice

from tpmon.errors import NoTargetError, NotPermittedError, TpmonError
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.process import Identity, Role
from tpmon.model.results.doctor import DOCTOR_SCHEMA, Access, Check, CheckName, Checkup, JobCheckup
from tpmon.model.text.redaction import admit_text
from tpmon.own_command import call_as_root
from tpmon.probe.base.procread import (
    PROC,
    is_python_name,
    read_exe,
    read_file,
    read_or,
    read_stat,
    read_status,
)
from tpmon.probe.base.worker import read_all
from tpmon.probe.doctor.job import (
    MOST_PROCESSES,
    SOURCES,
    check_cards,
    check_groups,
    check_inside,
    check_memory,
    check_ras,
    check_source,
    check_stacks,
)
from tpmon.probe.doctor.nvml import NOT_ASKED, NvmlAnswer, ask_nvml, check_counters, check_nvml
from tpmon.probe.doctor.rules import (
    ANY_JOB,
    check_hidepid,
    check_profile,
    check_yama,
    judge_capability,
    judge_container,
    judge_perf,
    judge_seccomp,
    make_check,
    read_own,
)
from tpmon.probe.host.machine import try_log
from tpmon.probe.job.job import Job, Member, user_name
from tpmon.probe.job.resolve import find_job
from tpmon.probe.proc.memory import try_memory
from tpmon.probe.spy.failure import SpyOutcome, find_spy, install_spy
from tpmon.probe.spy.pool import SpyChild

SPY_S = 5.0
_OLDEST_SPY = (0, 4)  # since then it knows Python 3.13; tpmon's own package requires it
_VERSION = re.compile(r"py-spy (\d+)\.(\d+)[\w.]*")
_TMUX_S = 2.0
ALLOW_CLIPBOARD = "tmux set-option -s set-clipboard on"


def judge_spy(path: Known[str], outcome: Known[SpyOutcome], privileges: str, install: str) -> Check:
    """Judge whether py-spy is there, starts, and is new enough.

    ``privileges`` are its file's own, or ""; ``install`` is the command that puts a new one there.
    """
    if isinstance(path, Missing):
        return make_check("py-spy", Access.ABSENT, path.reason, install)
    reinstall = f"{install} --force-reinstall" if " install " in install else install
    if isinstance(outcome, Missing):
        why = f"{path} cannot be started: {outcome.reason}"
        return make_check("py-spy", Access.DENIED, why, reinstall)
    if outcome.late:
        why = f"{path} --version gave no answer within {SPY_S:g} s"
        return make_check("py-spy", Access.UNKNOWN, why, f"{path} --version")
    said = admit_text(outcome.output.decode("utf-8", "replace").strip(), 80)
    found = _VERSION.match(said)
    if outcome.status or found is None:
        told = admit_text(outcome.errors.decode("utf-8", "replace").strip().partition("\n")[0], 120)
        why = f"{path} does not work: {told or said or f'status {outcome.status}'}"
        return make_check("py-spy", Access.DENIED, why, reinstall)
    words = f"{found.group()} at {path}{f' ({privileges})' if privileges else ''}"
    if (int(found[1]), int(found[2])) < _OLDEST_SPY:
        why = f"{words}; newer Pythons ask for {'.'.join(map(str, _OLDEST_SPY))} or newer"
        return make_check("py-spy", Access.ALLOWED, why, install)
    return make_check("py-spy", Access.ALLOWED, words)


def read_privileges(path: str) -> str:
    """Say whether a program's file grants rights of its own: setuid root, or capabilities."""
    try:
        found = os.stat(path)
        if found.st_mode & stat.S_ISUID and found.st_uid == 0:
            return "setuid root"
        os.getxattr(path, "security.capability")
    except OSError:
        return ""  # none, which is usual
    return "with capabilities of its own"


def check_spy(find: Callable[[], Known[str]] = find_spy) -> Check:
    """Find py-spy and have it say its version."""
    path = find()
    outcome: Known[SpyOutcome] = Missing("not started")
    if isinstance(path, Missing):
        return judge_spy(path, outcome, "", install_spy())
    try:
        outcome = SpyChild().run((path, "--version"), SPY_S)
    except OSError as error:
        outcome = Missing(error.strerror or str(error))
    return judge_spy(path, outcome, read_privileges(path), install_spy())


def judge_log(trial: Known[int], fix: str) -> Check:
    """Judge whether the kernel's log (GPUs, killed processes) may be read, and by which ``fix`` if not."""
    what = "GPU faults (Xid) and killed processes in the kernel's log"
    if isinstance(trial, Missing):
        return make_check("kernel-log", Access.DENIED, f"{what}: {trial.reason.lower()}", fix)
    return make_check("kernel-log", Access.ALLOWED, what)


def judge_clipboard(environment: Mapping[str, str], tmux: Known[str]) -> Check:
    """Judge whether ``y`` reaches the clipboard; ``tmux`` is the value of its set-clipboard."""
    if not environment.get("TMUX"):
        if environment.get("STY"):
            why = "GNU screen passes nothing on to the clipboard; what is copied is printed on exit"
            return make_check("clipboard", Access.DENIED, why)
        why = "no terminal reports whether it takes OSC 52; what is copied is printed on exit, too"
        return make_check("clipboard", Access.UNKNOWN, why)
    if isinstance(tmux, Missing):
        return make_check("clipboard", Access.UNKNOWN, f"tmux: {tmux.reason}")
    if tmux == "off":
        why = "tmux keeps what is copied in its own buffer (set-clipboard off)"
        return make_check("clipboard", Access.DENIED, why, ALLOW_CLIPBOARD)
    return make_check("clipboard", Access.ALLOWED, f"tmux passes it on (set-clipboard {tmux})")


def _ask_tmux() -> Known[str]:
    command = ("tmux", "show-options", "-sv", "set-clipboard")
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TMUX_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Missing(f"no answer within {_TMUX_S:g} s")
    except OSError as error:
        return Missing(error.strerror or str(error))
    text = admit_text(done.stdout.decode("utf-8", "replace").strip(), 40)
    return text or Missing(f"it refused ({done.returncode})")


CHECK_S = 2.0
SPY_ANSWER_S = 8.0
NVML_S = 8.0
_NO_PERF = Missing("no such file")
_NO_STACKS = "not tried: --no-stacks"
_NO_PYTHON = "not tried: it is no Python process of a training"


@dataclass(frozen=True, slots=True)
class Plan:
    """Name a check, its time limit, and whether tpmon needs what it checks."""

    name: CheckName
    check: Callable[[], Check]
    limit_s: float = CHECK_S
    needed: bool = False


@dataclass(frozen=True, slots=True)
class CheckupSubject:
    """Name a job or a single process whose sources are tried; without ``member`` no stacks are."""

    pid: int
    name: str
    user: str
    pids: tuple[int, ...]
    member: Applicable[Member]
    remark: str


def run_plans(plans: Sequence[Plan]) -> tuple[Check, ...]:
    """Run every check at once, each within its own limit; the answers come in the order of the plans."""
    answers = read_all("doctor", [(partial(_run, plan), plan.limit_s) for plan in plans], len(plans))
    return tuple(
        _leave_open(plan, f"no answer within {plan.limit_s:g} s") if check is None else check
        for plan, check in zip(plans, answers, strict=True)
    )


def _run(plan: Plan) -> Check:
    try:
        return replace(plan.check(), needed=plan.needed)
    except Exception as error:  # noqa: BLE001  # one check fails alone, and says why
        words = str(getattr(error, "strerror", "") or error)
        return _leave_open(plan, f"the check failed: {type(error).__name__}: {words}")


def _leave_open(plan: Plan, why: str) -> Check:
    return replace(make_check(plan.name, Access.UNKNOWN, why), needed=plan.needed)


class NvmlOnce:
    """Ask NVML once and let several checks wait for the answer."""

    def __init__(self, ask: Callable[[], NvmlAnswer]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._answer = NOT_ASKED

    def get(self) -> NvmlAnswer:
        """Return what NVML said; the first caller asks."""
        with self._lock:
            if self._answer is NOT_ASKED:
                self._answer = self._ask()
            return self._answer


def plan_machine(
    nvml: NvmlOnce, spy: Callable[[], Known[str]], proc: str = PROC, whom: str = ANY_JOB
) -> tuple[Plan, ...]:
    """List the checks of this machine and of tpmon itself; its commands name the PID ``whom``."""
    own, in_tmux = partial(read_own, proc), os.environ.get("TMUX")
    perf = f"{proc}/sys/kernel/perf_event_paranoid"
    return (
        Plan("py-spy", partial(check_spy, spy), SPY_ANSWER_S, needed=True),
        Plan("yama", partial(check_yama, proc, whom)),
        Plan("capability", lambda: judge_capability(own(), whom)),
        Plan("container", lambda: judge_container(own())),
        Plan("hidepid", partial(check_hidepid, proc)),
        # Only a filter can forbid process_vm_readv on tpmon itself.
        Plan("seccomp", lambda: judge_seccomp(own(), try_memory(os.getpid()))),
        Plan("lsm", partial(check_profile, proc)),
        Plan("perf", lambda: judge_perf(read_or(_NO_PERF, lambda: int(read_file(perf, 64))), own())),
        Plan("kernel-log", lambda: judge_log(try_log(), call_as_root(f"bundle {whom}"))),
        Plan("nvml", lambda: check_nvml(nvml.get(), proc, whom), NVML_S),
        Plan("counters", lambda: check_counters(own(), proc)),
        Plan(
            "clipboard", lambda: judge_clipboard(os.environ, _ask_tmux() if in_tmux else Missing("not asked"))
        ),
    )


def plan_job(
    subject: CheckupSubject,
    nvml: NvmlOnce,
    spy: Callable[[], Known[str]],
    proc: str = PROC,
    *,
    stacks: bool = True,
) -> tuple[Plan, ...]:
    """List the checks of one job; without ``stacks`` nothing touches its memory."""
    pids = subject.pids[:MOST_PROCESSES]
    member = subject.member
    memory = partial(check_memory, pids, proc)
    of_stacks = partial(make_check, "stacks", Access.UNKNOWN, _NO_PYTHON)
    if isinstance(member, Member):
        of_stacks = partial(check_stacks, member, spy, SPY_ANSWER_S - 1.0, proc)
    if not stacks:
        memory, of_stacks = (
            partial(make_check, name, Access.UNKNOWN, _NO_STACKS) for name in ("memory", "stacks")
        )
    return (
        *(Plan(one.name, partial(check_source, one, pids, proc), needed=one.needed) for one in SOURCES),
        Plan("memory", memory),
        Plan("stacks", of_stacks, SPY_ANSWER_S, needed=True),
        Plan("cgroup", partial(check_groups, pids, proc)),
        Plan("cards", lambda: check_cards(pids, nvml.get(), proc), NVML_S),
        Plan("ras", partial(check_ras, pids[0], proc)),
        Plan("place", partial(check_inside, pids[0], proc)),
    )


def read_checkup(subjects: Sequence[CheckupSubject], *, stacks: bool = True) -> Checkup:
    """Try every source of this machine and of each job, all at once; 8 s at most."""
    nvml = NvmlOnce(ask_nvml)
    machine = plan_machine(nvml, find_spy, whom=str(subjects[0].pid) if subjects else ANY_JOB)
    jobs = [plan_job(subject, nvml, find_spy, stacks=stacks) for subject in subjects]
    answers = iter(run_plans([*machine, *(plan for job in jobs for plan in job)]))
    of_machine = tuple(islice(answers, len(machine)))
    checked = [
        JobCheckup(one.pid, one.name, one.user, one.pids, one.remark, tuple(islice(answers, len(plans))))
        for one, plans in zip(subjects, jobs, strict=True)
    ]
    return Checkup(
        schema=DOCTOR_SCHEMA,
        taken=datetime.now().astimezone(),
        host=os.uname().nodename,
        user=user_name(os.geteuid()),
        machine=settle_machine(of_machine, checked),
        jobs=tuple(checked),
    )


_ABOUT_ACCESS: tuple[CheckName, ...] = ("yama", "capability", "container", "seccomp", "lsm")
"""The checks of the machine that matter only for reading other processes."""


def settle_machine(machine: Sequence[Check], jobs: Sequence[JobCheckup]) -> tuple[Check, ...]:
    """Remove the remedies of rules that prevented nothing: every job could be read."""
    if not jobs or not all(map(_could_read, jobs)):
        return tuple(machine)
    return tuple(
        replace(check, fix=NOT_APPLICABLE) if check.name in _ABOUT_ACCESS else check for check in machine
    )


def _could_read(job: JobCheckup) -> bool:
    found = {check.name: check.access for check in job.checks}
    if found.get("stacks") in (Access.ALLOWED, Access.DENIED):
        return found["stacks"] is Access.ALLOWED
    return found.get("memory") is Access.ALLOWED


def make_subject(job: Job) -> CheckupSubject:
    """Name the processes of a job to try: its ranks first, then its launcher and the rest."""
    order = (Role.RANK, Role.LAUNCHER, Role.WORKER, Role.HELPER, Role.COMPILE)
    members = sorted(job.members, key=lambda member: order.index(member.role))
    ranks = [member for member in members if member.role is Role.RANK]
    member: Applicable[Member] = ranks[0] if ranks else NOT_APPLICABLE
    # Only Python need be readable: slurmstepd is root's, above the ranks of every user.
    needless = {pid for pid, fact in job.facts.items() if fact.denied and not fact.python}
    pids = tuple(pid for one in members if (pid := one.identity.pid) not in needless) or (job.root.pid,)
    return CheckupSubject(job.root.pid, job.script, job.user, pids[:MOST_PROCESSES], member, job.remark)


def find_subject(pid: int) -> CheckupSubject:
    """Name the job around a process, or the process alone where it is in none that may be read.

    NoTargetError when nothing of it is there, NotPermittedError when it is hidden.
    """
    try:
        return make_subject(find_job(pid))
    except (NoTargetError, NotPermittedError) as error:
        if (alone := _make_lone_subject(pid, error)) is None:
            raise
        return alone


def _make_lone_subject(pid: int, error: TpmonError) -> CheckupSubject | None:
    """Name a process that is in no readable job; None where there is nothing to try."""
    facts = read_or(None, lambda: (read_stat(pid), read_status(pid).uid, read_exe(pid, PROC)))
    if facts is None:
        return None
    stat, uid, exe = facts
    if stat.kernel or stat.state in "ZX":
        return None
    member: Applicable[Member] = NOT_APPLICABLE
    if not is_known(exe) or is_python_name(exe):
        member = Member(
            identity=Identity(pid, stat.start_ticks),
            parent=stat.parent,
            role=Role.RANK,
            rank=NOT_APPLICABLE,
            local_rank=NOT_APPLICABLE,
            worker=NOT_APPLICABLE,
            rank_pid=NOT_APPLICABLE,
            name=stat.name,
            label=stat.name,
            started=datetime.now().astimezone(),
            environment=(),
        )
    return CheckupSubject(pid, stat.name, user_name(uid), (pid,), member, error.what)
