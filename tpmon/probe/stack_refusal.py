"""Find out why the kernel lets nobody look into a process, and say what would change it.

Reading another process's memory needs PTRACE_MODE_ATTACH (ptrace(2)): the same user, CAP_SYS_PTRACE
where Yama or a container takes that away, and a process that did not protect itself.
"""

from __future__ import annotations

import os

from tpmon.model.doctor import SAYS_MORE
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.units import clean_text
from tpmon.probe.memory_trial import try_memory
from tpmon.probe.procread import in_first_pid_namespace, read_file, read_status

CAP_SYS_PTRACE = 19  # linux/capability.h
ADD_CAPABILITY = "docker run --cap-add SYS_PTRACE"
"""Its seccomp profile then lets process_vm_readv and ptrace pass, too."""
OUTSIDE_USERS = "it is outside of tpmon's user namespace: run tpmon outside of it"
LIFT_YAMA = "sudo sysctl kernel.yama.ptrace_scope=0"
UNCONFINED = "docker run --security-opt apparmor=unconfined"
_ALL_USERS = "0 0 4294967295"
_MARKS = ("/.dockerenv", "/run/.containerenv")
"""Files that Docker and Podman lay into their containers."""
_NOT_READ = Missing("not read")


@dataclass(frozen=True, slots=True)
class Standing:
    """Hold what decides whether one process may be looked into.

    ``call_works``: process_vm_readv works at all, tried on tpmon itself. ``dumpable``: the process did
    not protect itself. ``confined``: the name of a security profile that binds tpmon, "" for none.
    """

    ptrace_scope: Known[int]
    own_uid: int
    uid: Known[int]
    may_ptrace: bool
    call_works: bool = True
    dumpable: Known[bool] = _NOT_READ
    in_container: bool = False
    confined: str = ""
    more_capabilities: bool = False
    """The process has capabilities that tpmon has not."""
    all_users: bool = True
    """tpmon is in no user namespace of its own, where its capabilities would end."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Say why a process may not be looked into, and the one command that would change it; "" for none."""

    why: str
    fix: str


def parse_field(status: bytes, name: bytes) -> bytes:
    """Return the text of one line of /proc/PID/status; b"" where there is no such line."""
    for line in status.splitlines():
        if line.startswith(name + b":"):
            return line[len(name) + 1 :].strip()
    return b""


def parse_capabilities(status: bytes, name: bytes = b"CapEff") -> int:
    """Return a set of capabilities of /proc/PID/status as a bit mask; 0 where it is not there."""
    text = parse_field(status, name)
    return int(text, 16) if text else 0


def parse_capability(status: bytes, number: int) -> bool:
    """Tell from /proc/PID/status whether capability ``number`` is effective."""
    return bool(parse_capabilities(status) >> number & 1)


def parse_tracer(status: bytes) -> int:
    """Return TracerPid of /proc/PID/status; 0 when nobody traces the process."""
    return int(parse_field(status, b"TracerPid") or 0)


def parse_profile(attribute: bytes) -> str:
    """Return the AppArmor or SELinux name of /proc/PID/attr/current; "" for one that forbids nothing."""
    text = clean_text(attribute.rstrip(b"\0\n ").decode("utf-8", "replace"), 100)
    return "" if text == "unconfined" or "unconfined_t" in text or text == "kernel" else text


def read_profile(proc: str = "/proc") -> str:
    """Return the name of the security profile that binds tpmon; "" for none."""
    try:
        return parse_profile(read_file(f"{proc}/self/attr/current", 4096))
    except OSError:
        return ""  # a kernel without such a module


def read_ptrace_scope(proc: str = "/proc") -> Known[int]:
    """Return kernel.yama.ptrace_scope."""
    try:
        return int(read_file(f"{proc}/sys/kernel/yama/ptrace_scope", 16))
    except (OSError, ValueError):
        return Missing("this kernel has no Yama")


def read_dumpable(pid: int, proc: str = "/proc") -> Known[bool]:
    """Tell whether a process lets others of its user look into it (PR_SET_DUMPABLE).

    The files of one that does not belong to root in /proc (proc(5)), so of root's own nothing is told.
    """
    try:
        uid = read_status(pid, proc).uid
        owner = os.stat(f"{proc}/{pid}/environ").st_uid
    except (OSError, ValueError, KeyError):
        return Missing("the process is hidden")
    return owner == uid if uid else Missing("of a process of root it cannot be told")


def in_container(proc: str = "/proc") -> bool:
    """Tell whether tpmon runs in a container: PIDs of its own, or a mark that the engine left."""
    if proc == "/proc" and not in_first_pid_namespace():
        return True
    return any(map(os.path.exists, _MARKS))


def read_all_users(proc: str = "/proc") -> bool:
    """Tell whether tpmon is in the first user namespace, or in one that has every user of it."""
    try:
        return " ".join(read_file(f"{proc}/self/uid_map", 4096).decode().split()) == _ALL_USERS
    except OSError:
        return True  # a kernel without user namespaces


def read_standing(pid: int, proc: str = "/proc") -> Standing:
    """Read what decides whether tpmon may look into ``pid``."""
    try:
        uid: Known[int] = read_status(pid, proc).uid
    except (OSError, ValueError, KeyError):
        uid = Missing("the process is hidden")
    try:
        own = read_file(f"{proc}/self/status", 65536)
        may = parse_capability(own, CAP_SYS_PTRACE)
        held = parse_capabilities(own, b"CapPrm")
        wanted = parse_capabilities(read_file(f"{proc}/{pid}/status", 65536), b"CapPrm")
    except (OSError, ValueError, IndexError):
        may, held, wanted = False, 0, 0
    return Standing(
        ptrace_scope=read_ptrace_scope(proc),
        own_uid=os.geteuid(),
        uid=uid,
        may_ptrace=may,
        call_works=not isinstance(try_memory(os.getpid()), Missing),
        dumpable=read_dumpable(pid, proc),
        in_container=in_container(proc),
        confined=read_profile(proc),
        more_capabilities=bool(wanted & ~held),
        all_users=read_all_users(proc),
    )


def judge_refusal(standing: Standing, pid: str = "PID") -> Refused:
    """Say why a process may not be looked into and the one command that would permit it. Pure."""
    scope = known_or(standing.ptrace_scope, 0)
    uid = known_or(standing.uid, standing.own_uid)
    as_root = f"sudo tpmon attach {pid}"
    if scope >= 3:
        return Refused("ptrace_scope 3: nobody may look until the machine starts anew", "")
    if not standing.call_works:
        return Refused("a filter of system calls (seccomp) or a sandbox forbids it", ADD_CAPABILITY)
    if standing.may_ptrace:
        if not standing.all_users:
            return Refused(OUTSIDE_USERS, "")
        if standing.confined:
            return _blame_profile(standing.confined)
        why = "a sandbox forbids it although tpmon has CAP_SYS_PTRACE"
        return Refused(why, as_root if standing.own_uid else "")
    if standing.own_uid == 0:
        return Refused("root without CAP_SYS_PTRACE", ADD_CAPABILITY)
    if uid != standing.own_uid:
        return Refused(f"it is a process of uid {uid}", as_root)
    if is_known(standing.dumpable) and not standing.dumpable:
        return Refused("the process protects itself (not dumpable)", as_root)
    if standing.more_capabilities:
        return Refused("the process has capabilities that tpmon has not", as_root)
    if scope == 2:
        return Refused("ptrace_scope 2", ADD_CAPABILITY if standing.in_container else as_root)
    if scope == 1:
        return Refused("ptrace_scope 1", ADD_CAPABILITY if standing.in_container else LIFT_YAMA)
    if standing.confined:
        return _blame_profile(standing.confined)
    return Refused("a sandbox forbids it, or the process protects itself (not dumpable)", as_root)


def _blame_profile(profile: str) -> Refused:
    # SELinux names have colons: user:role:type:level.
    if ":" in profile:
        return Refused(f"SELinux may forbid it ({profile})", "sudo setsebool deny_ptrace off")
    return Refused(f"the security profile {profile} may forbid it", UNCONFINED)


def explain_refusal(standing: Standing) -> str:
    """Say in one line why it is not permitted, what would permit it, and who knows more. Pure."""
    refused = judge_refusal(standing)
    fix = f"; {refused.fix}" if refused.fix else ""
    return f"not permitted: {refused.why}{fix}; {SAYS_MORE}"
