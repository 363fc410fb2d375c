"""Say which rules of this machine and of tpmon's own process stand in the way of looking at a job.

Each rule has a pure half (``parse_``, ``judge_``) on captured text. "allowed" means: it forbids nothing
here. Whether a certain process may be read is tried in ``permissions_process``.
"""

from __future__ import annotations

import os
import shlex

from tpmon.model.doctor import Access, Check
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, map_known
from tpmon.probe.memory_trial import try_memory
from tpmon.probe.procread import PROC, read_file
from tpmon.probe.stack_child import find_spy
from tpmon.probe.stack_refusal import (
    ADD_CAPABILITY,
    CAP_SYS_PTRACE,
    LIFT_YAMA,
    UNCONFINED,
    in_container,
    parse_capability,
    parse_field,
    read_all_users,
    read_profile,
    read_ptrace_scope,
)

CAP_SYS_ADMIN, CAP_SYSLOG, CAP_PERFMON = 21, 34, 38  # linux/capability.h
HOST_PIDS = "docker run --pid=host"
_HIDING = {"1": 1, "noaccess": 1, "2": 2, "invisible": 2, "4": 4, "ptraceable": 4}


def make_check(
    name: str,
    access: Access,
    why: str,
    fix: str = "",
    *,
    needed: bool = False,
) -> Check:
    """Build a check; "" as ``fix`` means that nothing is to be done."""
    command: Applicable[str] = fix or NOT_APPLICABLE
    return Check(name, access, needed, why, command)


@dataclass(frozen=True, slots=True)
class Own:
    """Hold what decides on tpmon's side: its user, capabilities, container and user namespace."""

    uid: int
    capable: bool
    """CAP_SYS_PTRACE is effective."""
    contained: bool
    all_users: bool
    """tpmon is in no user namespace of its own."""
    status: bytes


def read_own(proc: str = PROC) -> Own:
    """Read what decides on tpmon's side.

    Raises:
        OSError: when /proc cannot be read.
    """
    status = read_file(f"{proc}/self/status", 65536)
    return Own(
        uid=os.geteuid(),
        capable=parse_capability(status, CAP_SYS_PTRACE),
        contained=in_container(proc),
        all_users=read_all_users(proc),
        status=status,
    )


def judge_yama(scope: Known[int], own: Own, spy: Known[str]) -> Check:
    """Say what kernel.yama.ptrace_scope allows (Documentation/admin-guide/LSM/Yama.rst).

    ``spy`` is the file of the py-spy that tpmon starts: it can be given the right alone.
    """
    if isinstance(scope, Missing):
        return make_check(
            "yama", Access.ALLOWED, f"{scope.reason}: nothing beyond the same user is asked for"
        )
    words = f"kernel.yama.ptrace_scope is {scope}"
    if scope >= 3:
        why = f"{words}: nobody may look into a process until the machine starts anew"
        return make_check("yama", Access.DENIED, why)
    if scope <= 0:
        return make_check("yama", Access.ALLOWED, f"{words}: the same user may look")
    if own.capable:
        return make_check("yama", Access.ALLOWED, f"{words}, and tpmon has CAP_SYS_PTRACE")
    # A run may open itself: scope 1 asks for it (tpmon.hook.ptracer), the stricter ones do not.
    ancestors = "only a process's own ancestors, or all where tpmon run --allow-stacks started it,"
    who = ancestors if scope == 1 else "only who has CAP_SYS_PTRACE"
    if own.contained:
        return make_check("yama", Access.DENIED, f"{words}: {who} may look", ADD_CAPABILITY)
    fix = LIFT_YAMA if scope == 1 else "sudo tpmon attach PID"
    give = f"; for py-spy alone: sudo setcap cap_sys_ptrace+ep {shlex.quote(spy)}" if is_known(spy) else ""
    return make_check("yama", Access.DENIED, f"{words}: {who} may look{give}", fix)


def judge_capability(own: Own) -> Check:
    """Say whether tpmon has CAP_SYS_PTRACE, which only other users' jobs and strict machines ask for."""
    if own.capable:
        where = "" if own.all_users else ", inside its own user namespace"
        return make_check("capability", Access.ALLOWED, f"tpmon has CAP_SYS_PTRACE{where}")
    if own.uid == 0:
        why = "root, but without CAP_SYS_PTRACE (a container's default)"
        return make_check("capability", Access.DENIED, why, ADD_CAPABILITY)
    why = "tpmon has no CAP_SYS_PTRACE; your own jobs do not need it"
    return make_check("capability", Access.ALLOWED, why)


def judge_container(own: Own) -> Check:
    """Say what a container or a user namespace around tpmon takes away."""
    if not own.contained and own.all_users:
        return make_check(
            "container", Access.ALLOWED, "tpmon runs outside of containers, with the host's users"
        )
    if not own.all_users:
        why = "tpmon is in a user namespace: root and capabilities reach no process outside of it"
        return make_check("container", Access.UNKNOWN, why)
    why = "tpmon is in a container: it sees the processes of this container alone, by their numbers in it"
    return make_check("container", Access.UNKNOWN, why, HOST_PIDS)


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
    """Say whether /proc hides other users' processes (proc(5), hidepid)."""
    if not hidden:
        return make_check("hidepid", Access.ALLOWED, "/proc shows the processes of all users")
    if own.capable or (group is not None and group in groups and hidden != 4):
        return make_check("hidepid", Access.ALLOWED, f"/proc has hidepid={hidden}, which does not bind tpmon")
    why = f"/proc has hidepid={hidden}: other users' processes are hidden; your own are not"
    return make_check("hidepid", Access.DENIED, why, "sudo mount -o remount,hidepid=0 /proc")


def judge_seccomp(status: bytes, trial: Known[int]) -> Check:
    """Say whether a filter forbids process_vm_readv; ``trial`` is what the call said of tpmon itself."""
    mode = parse_field(status, b"Seccomp") or b"0"
    filtered = mode == b"2"
    if isinstance(trial, Missing):
        why = f"process_vm_readv fails even on tpmon itself ({trial.reason}): " + (
            "a seccomp filter forbids it" if filtered else "a sandbox does not have it"
        )
        return make_check("seccomp", Access.DENIED, why, ADD_CAPABILITY)
    words = (
        "a seccomp filter binds tpmon, but lets process_vm_readv pass"
        if filtered
        else "no filter binds tpmon"
    )
    return make_check("seccomp", Access.ALLOWED, words)


def judge_profile(modules: str, profile: str, deny_ptrace: str) -> Check:
    """Say whether AppArmor or SELinux binds tpmon; what they forbid is only seen when it is tried."""
    if deny_ptrace.strip()[:1] == "1":
        why = "SELinux forbids all looking into processes (deny_ptrace is on)"
        return make_check("lsm", Access.DENIED, why, "sudo setsebool deny_ptrace off")
    if profile:
        why = f"the security profile {profile} binds tpmon; what it forbids shows when it is tried"
        fix = "" if ":" in profile else UNCONFINED
        return make_check("lsm", Access.UNKNOWN, why, fix)
    names = modules.strip() or "none listed"
    return make_check("lsm", Access.ALLOWED, f"no security profile binds tpmon (modules: {names})")


def judge_perf(paranoid: Known[int], own: Own) -> Check:
    """Say whether perf may count one's own processes; tpmon does without it."""
    if isinstance(paranoid, Missing):
        return make_check("perf", Access.ABSENT, "this kernel has no perf events; tpmon does without")
    words = f"kernel.perf_event_paranoid is {paranoid}"
    privileged = any(parse_capability(own.status, number) for number in (CAP_PERFMON, CAP_SYS_ADMIN))
    if paranoid <= 2 or privileged:
        return make_check("perf", Access.ALLOWED, f"{words}: own processes may be counted")
    why = f"{words}: only CAP_PERFMON may count; tpmon does without"
    return make_check("perf", Access.DENIED, why, "sudo sysctl kernel.perf_event_paranoid=2")


def _read_text(path: str) -> str:
    try:
        return read_file(path, 1 << 20).decode("utf-8", "replace")
    except OSError:
        return ""  # not there, which is an answer too


def read_number(path: str, otherwise: str) -> Known[int]:
    """Read a file that holds one number; Missing with ``otherwise`` where it is not there."""
    try:
        return int(read_file(path, 64))
    except (OSError, ValueError):
        return Missing(otherwise)


def check_yama(proc: str = PROC) -> Check:
    """Read and judge kernel.yama.ptrace_scope."""
    # setcap takes no link, and an installer may have put one on PATH.
    return judge_yama(read_ptrace_scope(proc), read_own(proc), map_known(os.path.realpath, find_spy()))


def check_capability(proc: str = PROC) -> Check:
    """Read and judge tpmon's own capabilities."""
    return judge_capability(read_own(proc))


def check_container(proc: str = PROC) -> Check:
    """Read and judge the namespaces that tpmon is in."""
    return judge_container(read_own(proc))


def check_hidepid(proc: str = PROC) -> Check:
    """Read and judge how /proc is mounted."""
    hidden, group = parse_hidepid(_read_text(f"{proc}/self/mountinfo"))
    return judge_hidepid(hidden, group, read_own(proc), frozenset((*os.getgroups(), os.getegid())))


def check_seccomp(proc: str = PROC) -> Check:
    """Try process_vm_readv on tpmon itself, which no rule but a filter forbids."""
    return judge_seccomp(read_own(proc).status, try_memory(os.getpid()))


def check_profile(proc: str = PROC) -> Check:
    """Read and judge the security profile of tpmon."""
    deny = _read_text("/sys/fs/selinux/booleans/deny_ptrace")
    return judge_profile(_read_text("/sys/kernel/security/lsm"), read_profile(proc), deny)


def check_perf(proc: str = PROC) -> Check:
    """Read and judge kernel.perf_event_paranoid."""
    return judge_perf(read_number(f"{proc}/sys/kernel/perf_event_paranoid", "no such file"), read_own(proc))


def may_read_log(restrict: Known[int], own: Own) -> bool:
    """Tell by its setting whether the kernel log is open to tpmon."""
    closed = is_known(restrict) and restrict > 0
    return not closed or any(parse_capability(own.status, number) for number in (CAP_SYSLOG, CAP_SYS_ADMIN))
