"""Ask each source whether tpmon may read it: every check in a thread and a deadline of its own.

A check that hangs or fails becomes one line that says so; the others are not touched by it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known
from tpmon.model.process import Role
from tpmon.model.results.doctor import DOCTOR_SCHEMA, Access, Check, CheckName, Checkup, JobCheckup
from tpmon.probe.base.procread import PROC
from tpmon.probe.doctor.job import check_cards, check_groups, check_inside, check_ras
from tpmon.probe.doctor.nvml import NOT_ASKED, NvmlAnswer, ask_nvml, check_counters, check_nvml
from tpmon.probe.doctor.permissions_tools import check_clipboard, check_log, check_spy
from tpmon.probe.doctor.process import (
    MOST_PROCESSES,
    SOURCES,
    check_memory,
    check_source,
    check_stacks,
)
from tpmon.probe.doctor.rules import (
    ANY_JOB,
    CAP_SYS_ADMIN,
    check_capability,
    check_container,
    check_hidepid,
    check_perf,
    check_profile,
    check_seccomp,
    check_yama,
    make_check,
    read_own,
)
from tpmon.probe.job.job import Job, Member, user_name
from tpmon.probe.proc.access import parse_capability
from tpmon.probe.spy.child import find_spy

CHECK_S = 2.0
SPY_S = 8.0
NVML_S = 8.0
_NO_STACKS = "not tried: --no-stacks"
_NO_PYTHON = "not tried: it is no Python process of a training"


@dataclass(frozen=True, slots=True)
class Plan:
    """Name a check, how long it may take, and whether tpmon needs what it asks for."""

    name: CheckName
    check: Callable[[], Check]
    limit_s: float = CHECK_S
    needed: bool = False


@dataclass(frozen=True, slots=True)
class Patient:
    """Name a job, or a single process, whose sources are tried; no ``member``: its stacks are not."""

    pid: int
    name: str
    user: str
    pids: tuple[int, ...]
    member: Applicable[Member]
    remark: str


def run_plans(plans: Sequence[Plan]) -> tuple[Check, ...]:
    """Run every check at once, each within its own limit; the answers come in the order of the plans."""
    begun_s = time.monotonic()
    found: dict[int, Check] = {}

    def run(number: int, plan: Plan) -> None:
        try:
            found[number] = plan.check()
        except Exception as error:  # noqa: BLE001  # one check fails alone, and says why
            words = str(getattr(error, "strerror", "") or error)
            why = f"the check failed: {type(error).__name__}: {words}"
            found[number] = make_check(plan.name, Access.UNKNOWN, why, needed=plan.needed)

    threads = [
        threading.Thread(target=run, args=(number, plan), name=f"tpmon-doctor-{plan.name}", daemon=True)
        for number, plan in enumerate(plans)
    ]
    for thread in threads:
        thread.start()
    for thread, plan in zip(threads, plans, strict=True):
        thread.join(max(0.0, begun_s + plan.limit_s - time.monotonic()))
    return tuple(found.get(number) or _late(plan) for number, plan in enumerate(plans))


def _late(plan: Plan) -> Check:
    why = f"no answer within {plan.limit_s:g} s"
    return make_check(plan.name, Access.UNKNOWN, why, needed=plan.needed)


class NvmlOnce:
    """Ask NVML once and let several checks wait for the answer."""

    def __init__(self, ask: Callable[[], NvmlAnswer]) -> None:
        """Ask nothing until ``get``."""
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
    """List the checks of this machine and of tpmon itself; ``whom`` is the PID that its commands name."""

    def counters() -> Check:
        own = read_own(proc)
        return check_counters(own, parse_capability(own.status, CAP_SYS_ADMIN), proc)

    return (
        Plan("py-spy", partial(check_spy, spy), SPY_S, needed=True),
        Plan("yama", partial(check_yama, proc, whom)),
        Plan("capability", partial(check_capability, proc, whom)),
        Plan("container", partial(check_container, proc)),
        Plan("hidepid", partial(check_hidepid, proc)),
        Plan("seccomp", partial(check_seccomp, proc)),
        Plan("lsm", partial(check_profile, proc)),
        Plan("perf", partial(check_perf, proc)),
        Plan("kernel-log", partial(check_log, whom)),
        Plan("nvml", lambda: check_nvml(nvml.get(), proc, whom), NVML_S),
        Plan("counters", counters),
        Plan("clipboard", partial(check_clipboard, dict(os.environ))),
    )


def plan_job(
    patient: Patient,
    nvml: NvmlOnce,
    spy: Callable[[], Known[str]],
    proc: str = PROC,
    *,
    stacks: bool = True,
) -> tuple[Plan, ...]:
    """List the checks of one job; without ``stacks`` nothing touches its memory."""
    pids = patient.pids[:MOST_PROCESSES]
    member = patient.member
    plans = [Plan(one.name, partial(check_source, one, pids, proc), needed=one.needed) for one in SOURCES]

    def stacks_of() -> Check:
        if not stacks:
            return make_check("stacks", Access.UNKNOWN, _NO_STACKS, needed=True)
        if not isinstance(member, Member):
            return make_check("stacks", Access.UNKNOWN, _NO_PYTHON, needed=True)
        return check_stacks(member, spy, SPY_S - 1.0, proc)

    def memory() -> Check:
        if not stacks:
            return make_check("memory", Access.UNKNOWN, _NO_STACKS)
        return check_memory(pids, proc)

    return (
        *plans,
        Plan("memory", memory),
        Plan("stacks", stacks_of, SPY_S, needed=True),
        Plan("cgroup", partial(check_groups, pids, proc)),
        Plan("cards", lambda: check_cards(pids, nvml.get(), proc), NVML_S),
        Plan("ras", partial(check_ras, pids[0], proc)),
        Plan("place", partial(check_inside, pids[0], proc)),
    )


def read_checkup(
    patients: Sequence[Patient],
    *,
    stacks: bool = True,
    proc: str = PROC,
    spy: Callable[[], Known[str]] = find_spy,
    ask: Callable[[], NvmlAnswer] = ask_nvml,
) -> Checkup:
    """Try every source of this machine and of each job, all at once; 8 s at most."""
    nvml = NvmlOnce(ask)
    machine = plan_machine(nvml, spy, proc, str(patients[0].pid) if patients else ANY_JOB)
    jobs = [plan_job(patient, nvml, spy, proc, stacks=stacks) for patient in patients]
    answers = run_plans([*machine, *(plan for job in jobs for plan in job)])
    at = len(machine)
    checked: list[JobCheckup] = []
    for patient, plans in zip(patients, jobs, strict=True):
        checks = answers[at : at + len(plans)]
        at += len(plans)
        checked.append(
            JobCheckup(patient.pid, patient.name, patient.user, patient.pids, patient.remark, checks)
        )
    return Checkup(
        schema=DOCTOR_SCHEMA,
        taken=datetime.now().astimezone(),
        host=os.uname().nodename,
        user=user_name(os.geteuid()),
        machine=settle_machine(answers[: len(machine)], checked),
        jobs=tuple(checked),
    )


_ABOUT_LOOKING: tuple[CheckName, ...] = ("yama", "capability", "container", "seccomp", "lsm")
"""The checks of the machine that only matter for looking into processes."""


def settle_machine(machine: Sequence[Check], jobs: Sequence[JobCheckup]) -> tuple[Check, ...]:
    """Take the remedies off rules that stood in nobody's way: every job could be looked into."""
    if not jobs or not all(map(_could_look, jobs)):
        return tuple(machine)
    return tuple(
        replace(check, fix=NOT_APPLICABLE) if check.name in _ABOUT_LOOKING else check for check in machine
    )


def _could_look(job: JobCheckup) -> bool:
    found = {check.name: check.access for check in job.checks}
    if found.get("stacks") in (Access.ALLOWED, Access.DENIED):
        return found["stacks"] is Access.ALLOWED
    return found.get("memory") is Access.ALLOWED


def make_patient(job: Job) -> Patient:
    """Name the processes of a job to try: its ranks first, then its launcher and the rest."""
    order = (Role.RANK, Role.LAUNCHER, Role.WORKER, Role.HELPER, Role.COMPILE)
    members = sorted(job.members, key=lambda member: order.index(member.role))
    ranks = [member for member in members if member.role is Role.RANK]
    member: Applicable[Member] = ranks[0] if ranks else NOT_APPLICABLE
    # What is no Python need not be read: slurmstepd is root's, above the ranks of every user.
    needless = {pid for pid, fact in job.facts.items() if fact.denied and not fact.python}
    pids = tuple(pid for one in members if (pid := one.identity.pid) not in needless) or (job.root.pid,)
    return Patient(job.root.pid, job.script, job.user, pids[:MOST_PROCESSES], member, job.remark)
