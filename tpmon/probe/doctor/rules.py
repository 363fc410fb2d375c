"""Judge which rules of this machine and of tpmon's own process prevent reading a job.

Each rule has a pure half (``parse_``, ``judge_``) on captured text. "allowed" means that it forbids nothing
here; whether a certain process may be read is tried in ``job``.
"""

from __future__ import annotations

import os
import shlex

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, map_known
from tpmon.model.results.doctor import Access, Check, CheckName, drop_pointers
from tpmon.own_command import own_program
from tpmon.probe.base.procread import PROC, parse_field, read_file, read_text
from tpmon.probe.proc.access import (
    ADD_CAPABILITY,
    CAP_SYS_PTRACE,
    LET_PTRACE,
    Caller,
    RuntimeKind,
    administer,
    call_with_capability,
    free_profile,
    may_root_trace,
    parse_capability,
    pass_yama,
    read_all_users,
    read_caller,
    read_deny_ptrace,
    read_place,
    read_profile,
    read_ptrace_scope,
    start_with,
)
from tpmon.probe.spy.failure import find_spy

CAP_SYS_ADMIN, CAP_SYSLOG, CAP_PERFMON = 21, 34, 38  # linux/capability.h
HOST_PIDS = "docker run --pid=host"
ANY_JOB = "--job"  # in commands without a PID: the only job of the user
_HIDING = {"1": 1, "noaccess": 1, "2": 2, "invisible": 2, "4": 4, "ptraceable": 4}


def make_check(name: CheckName, access: Access, why: str, fix: str = "") -> Check:
    """Build a check; an empty ``fix``: nothing is to be done. Its plan says whether it is needed."""
    command: Applicable[str] = fix or NOT_APPLICABLE
    return Check(name, access, needed=False, why=drop_pointers(why), fix=command)


@dataclass(frozen=True, slots=True)
class Own:
    """Hold what decides on tpmon's side: its user, capabilities, container and namespaces."""

    caller: Caller
    capable: bool  # CAP_SYS_PTRACE is effective
    own_pids: bool  # PIDs are not the machine's, as in a container without ``--pid=host``
    all_users: bool  # it is in no user namespace of its own
    status: bytes


def read_own(proc: str = PROC) -> Own:
    """Read what decides on tpmon's side; OSError when /proc cannot be read."""
    status = read_file(f"{proc}/self/status", 65536)
    place = read_place(proc)
    return Own(
        caller=Caller(os.geteuid(), place.runtime, own_program(), may_root_trace(status)),
        capable=parse_capability(status, CAP_SYS_PTRACE),
        own_pids=place.own_pids,
        all_users=read_all_users(proc),
        status=status,
    )


def judge_yama(scope: Known[int], own: Own, spy: Known[str], whom: str) -> Check:
    """Judge what kernel.yama.ptrace_scope allows (Documentation/admin-guide/LSM/Yama.rst).

    ``spy`` is the py-spy that tpmon starts, which alone can be given the right; ``whom`` is the PID or option
    to attach to.
    """
    if isinstance(scope, Missing):
        why = f"{scope.reason}: nothing beyond the same user is asked for"
        return make_check("yama", Access.ALLOWED, why)
    words = f"kernel.yama.ptrace_scope is {scope}"
    if scope >= 3:
        why = f"{words}: nobody may read a process until the next start of the machine"
        return make_check("yama", Access.DENIED, why)
    if scope <= 0:
        return make_check("yama", Access.ALLOWED, f"{words}: the same user may read")
    if own.capable:
        return make_check("yama", Access.ALLOWED, f"{words}, and tpmon has CAP_SYS_PTRACE")
    # A run may permit it itself under scope 1 (tpmon.hook.installation), not under stricter ones.
    ancestors = "only a process's own ancestors, or all where tpmon run --allow-stacks started it,"
    who = ancestors if scope == 1 else "only who has CAP_SYS_PTRACE"
    ways = pass_yama(own.caller, scope, f"attach {whom}")
    fix = ways[0] if ways else ""
    more = ""
    if own.caller.runtime is RuntimeKind.ENGINE:
        others = "; or ".join(way.partition("  # ")[0] for way in ways[1:])
        more = f"; or there: {others}; at the next start of the container, as root in it: {ADD_CAPABILITY}"
    elif own.caller.root_may and own.caller.uid and is_known(spy):
        more = f"; for py-spy alone: sudo setcap cap_sys_ptrace+ep {shlex.quote(spy)}"
    return make_check("yama", Access.DENIED, f"{words}: {who} may read{more}", fix)


def judge_capability(own: Own, whom: str) -> Check:
    """Judge whether tpmon has CAP_SYS_PTRACE, which only other users' jobs and strict machines need."""
    if own.capable:
        where = "" if own.all_users else ", inside its own user namespace"
        return make_check("capability", Access.ALLOWED, f"tpmon has CAP_SYS_PTRACE{where}")
    if own.caller.uid == 0:
        why = "root, but without CAP_SYS_PTRACE (a container's default)"
        if own.caller.runtime is RuntimeKind.ENGINE:
            why += f"; at its next start: {ADD_CAPABILITY}"
        fix = call_with_capability(own.caller, f"attach {whom}")
        return make_check("capability", Access.DENIED, why, fix)
    why = "tpmon has no CAP_SYS_PTRACE; your own jobs do not need it"
    return make_check("capability", Access.ALLOWED, why)


def judge_container(own: Own) -> Check:
    """Judge what a container or a user namespace around tpmon prevents."""
    runtime = own.caller.runtime
    if not own.all_users:
        why = "tpmon is in a user namespace: root and capabilities reach no process outside of it"
        return make_check("container", Access.UNKNOWN, why)
    if runtime is RuntimeKind.HOST:
        why = "tpmon runs outside of containers, with the host's users"
        return make_check("container", Access.ALLOWED, why)
    if not own.own_pids:
        why = "tpmon is in a container with the host's PIDs and users"
        return make_check("container", Access.ALLOWED, why)
    special = {RuntimeKind.WSL: "a distribution of WSL", RuntimeKind.LXC: "a container of LXC"}
    where = special.get(runtime, "a container")
    why = f"tpmon is in {where}: it sees the processes in there alone, by their numbers in it"
    return make_check("container", Access.UNKNOWN, why, HOST_PIDS if runtime is RuntimeKind.ENGINE else "")


def parse_hidepid(mountinfo: str) -> tuple[int, int | None]:
    """Return hidepid and gid of the mount of /proc from /proc/self/mountinfo; 0 and None without them."""
    hidden, group = 0, None
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if not dash or len(fields) < 6 or len(kind) < 3 or fields[4] != "/proc" or kind[0] != "proc":
            continue
        options = dict(one.partition("=")[::2] for one in kind[2].split(","))
        hidden = _HIDING.get(options.get("hidepid", ""), 0)
        number = options.get("gid", "")
        group = int(number) if number.isdigit() else None
    return hidden, group


def judge_hidepid(hidden: int, group: int | None, own: Own, groups: frozenset[int]) -> Check:
    """Judge whether /proc hides other users' processes (proc(5), hidepid)."""
    if not hidden:
        return make_check("hidepid", Access.ALLOWED, "/proc shows the processes of all users")
    if own.capable or (group is not None and group in groups and hidden != 4):
        return make_check("hidepid", Access.ALLOWED, f"/proc has hidepid={hidden}, which does not bind tpmon")
    why = f"/proc has hidepid={hidden}: other users' processes are hidden; your own are not"
    remount = "mount -o remount,hidepid=0 /proc"
    return make_check("hidepid", Access.DENIED, why, f"sudo {remount}" if own.caller.uid else remount)


def judge_seccomp(own: Own, trial: Known[int]) -> Check:
    """Judge whether a filter forbids process_vm_readv; ``trial`` is its result on tpmon itself."""
    filtered = parse_field(own.status, b"Seccomp") == b"2"
    if isinstance(trial, Missing):
        why = f"process_vm_readv fails even on tpmon itself ({trial.reason}): " + (
            "a seccomp filter forbids it" if filtered else "a sandbox does not have it"
        )
        return make_check("seccomp", Access.DENIED, why, start_with(own.caller, ADD_CAPABILITY))
    passed = "a seccomp filter binds tpmon, but lets process_vm_readv pass"
    return make_check("seccomp", Access.ALLOWED, passed if filtered else "no filter binds tpmon")


def judge_profile(modules: str, profile: str, caller: Caller, *, deny_ptrace: bool) -> Check:
    """Judge whether AppArmor or SELinux binds tpmon; only a trial shows what they forbid."""
    if deny_ptrace:
        why = "SELinux forbids all looking into processes (deny_ptrace is on)"
        return make_check("lsm", Access.DENIED, why, administer(caller, LET_PTRACE))
    if profile:
        why = f"the security profile {profile} binds tpmon; what it forbids shows when it is tried"
        return make_check("lsm", Access.UNKNOWN, why, free_profile(profile, caller))
    names = modules.strip() or "none listed"
    return make_check("lsm", Access.ALLOWED, f"no security profile binds tpmon (modules: {names})")


def judge_perf(paranoid: Known[int], own: Own) -> Check:
    """Judge whether perf may count one's own processes; tpmon does not need it."""
    if isinstance(paranoid, Missing):
        return make_check("perf", Access.ABSENT, "this kernel has no perf events; tpmon does without")
    words = f"kernel.perf_event_paranoid is {paranoid}"
    privileged = any(parse_capability(own.status, number) for number in (CAP_PERFMON, CAP_SYS_ADMIN))
    if paranoid <= 2 or privileged:
        return make_check("perf", Access.ALLOWED, f"{words}: own processes may be counted")
    why = f"{words}: only CAP_PERFMON may count; tpmon does without"
    fix = administer(own.caller, "sysctl kernel.perf_event_paranoid=2")
    return make_check("perf", Access.DENIED, why, fix)


def check_yama(proc: str = PROC, whom: str = ANY_JOB) -> Check:
    """Read and judge kernel.yama.ptrace_scope."""
    # setcap does not follow links, and an installer may have put one on PATH.
    spy = map_known(os.path.realpath, find_spy())
    return judge_yama(read_ptrace_scope(proc), read_own(proc), spy, whom)


def check_hidepid(proc: str = PROC) -> Check:
    """Read and judge how /proc is mounted."""
    hidden, group = parse_hidepid(read_text(f"{proc}/self/mountinfo"))
    return judge_hidepid(hidden, group, read_own(proc), frozenset((*os.getgroups(), os.getegid())))


def check_profile(proc: str = PROC) -> Check:
    """Read and judge the security profile of tpmon."""
    modules = read_text("/sys/kernel/security/lsm")
    return judge_profile(modules, read_profile(proc), read_caller(proc), deny_ptrace=read_deny_ptrace())
