"""Find why a process may not be read, who traces it, and what would change that here: host, WSL, container.

Reading another process's memory needs PTRACE_MODE_ATTACH (ptrace(2)): the same user, CAP_SYS_PTRACE
where Yama or a container takes that away, and a process that did not protect itself. py-spy also opens the
program and its library, which a FUSE mount without allow_root and NFS with root_squash refuse to root.
A command that would not work here is "".
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.process import Tracer
from tpmon.model.results.doctor import NOT_PERMITTED, point_to
from tpmon.model.text.redaction import admit_text, hide_words
from tpmon.model.units import clean_text
from tpmon.own_command import own_program
from tpmon.probe.base.procread import (
    PROC,
    in_first_pid_namespace,
    parse_field,
    read_file,
    read_or,
    read_status,
    read_text,
)
from tpmon.probe.proc.memory import try_memory

_MARKS = ("/.dockerenv", "/run/.containerenv")  # files of Docker and of Podman in their containers
_TOOLBOX = "/run/.toolboxenv"
_MANAGER = "/run/systemd/container"  # where systemd writes what it was started in


class RuntimeKind(str, Enum):
    """Name what tpmon runs in, as far as other commands help there."""

    HOST = "host"
    WSL = "WSL"  # a virtual machine whose distributions have PIDs of their own; root is root
    ENGINE = "engine"  # Docker or Podman: ``docker exec`` and ``docker run`` reach it from outside
    TOOLBOX = "toolbox"  # a container of this user with the host's PIDs; its root is nobody outside
    LXC = "LXC"  # a container with an init of its own, whose root may trace what runs in it
    UNKNOWN = "unknown"  # PIDs of its own without a mark of an engine, or driven by Kubernetes


@dataclass(frozen=True, slots=True)
class RuntimePlace:
    """Say what tpmon runs in, and whether it has its own PIDs there: ``--pid=host`` makes it two things."""

    runtime: RuntimeKind = RuntimeKind.HOST
    own_pids: bool = False


def parse_place(
    marks: frozenset[str], manager: str, release: str, *, pods: bool, own_pids: bool
) -> RuntimePlace:
    """Tell what tpmon runs in by files of engines, its init's variable ``container``, and osrelease."""
    if _TOOLBOX in marks:
        return RuntimePlace(RuntimeKind.TOOLBOX, own_pids)
    if marks and not pods:
        return RuntimePlace(RuntimeKind.ENGINE, own_pids)
    if manager.startswith("lxc"):
        return RuntimePlace(RuntimeKind.LXC, own_pids)
    if marks or pods:
        return RuntimePlace(RuntimeKind.UNKNOWN, own_pids)
    if not own_pids:
        return RuntimePlace(RuntimeKind.HOST, own_pids)
    return RuntimePlace(RuntimeKind.WSL if "microsoft" in release.lower() else RuntimeKind.UNKNOWN, own_pids)


def read_place(proc: str = PROC, environment: Mapping[str, str] = os.environ) -> RuntimePlace:
    """Read what tpmon runs in."""
    init = dict(entry.split("=", 1) for entry in read_text(f"{proc}/1/environ").split("\0") if "=" in entry)
    return parse_place(
        marks=frozenset(filter(os.path.exists, (*_MARKS, _TOOLBOX))),
        manager=environment.get("container") or read_text(_MANAGER).strip() or init.get("container", ""),
        release=read_text(f"{proc}/sys/kernel/osrelease"),
        pods="KUBERNETES_SERVICE_HOST" in environment,
        own_pids=proc == PROC and not in_first_pid_namespace(),
    )


_PYTHON = re.compile(r"/(?:libpython3[\d.]*t?\.so[\d.]*|python[\d.]*t?)$")
_MOST_MAPS_BYTES = 8 << 20
_PATH_CHARS = 200


def parse_pythons(maps: bytes) -> tuple[str, ...]:
    """Return the paths of the Python program and library in /proc/PID/maps. Pure."""
    fields = (line.split(None, 5) for line in maps.decode("utf-8", "replace").splitlines())
    return tuple(dict.fromkeys(row[5] for row in fields if len(row) == 6 and _PYTHON.search(row[5])))


def find_unreadable(pid: int, proc: str = PROC) -> str:
    """Return the path of a process's Python that tpmon may not open; "" for none."""
    maps = read_or(b"", lambda: read_file(f"{proc}/{pid}/maps", _MOST_MAPS_BYTES))
    refused = (path for path in parse_pythons(maps) if _is_refused(f"{proc}/{pid}/root{path}"))
    return admit_text(next(refused, ""), _PATH_CHARS)


def _is_refused(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:  # any other: it was deleted, or is gone with its process
        return isinstance(error, PermissionError)
    return False


ON_HOST = "  # on the host"
ELSEWHERE = "  # in a shell that may become root: this one may not"
NEXT_TIME = "  # at its next start"
LIFT_YAMA = "sysctl kernel.yama.ptrace_scope=0"
ADD_CAPABILITY = "docker run --cap-add SYS_PTRACE"  # for root alone; seccomp then permits ptrace too
_CONTAINED = (RuntimeKind.ENGINE, RuntimeKind.TOOLBOX, RuntimeKind.LXC, RuntimeKind.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Caller:
    """Say who calls tpmon, and from where."""

    uid: int = 1000
    runtime: RuntimeKind = RuntimeKind.HOST
    program: str = "tpmon"  # starts it under sudo, too
    root_may: bool = True  # sudo can still give CAP_SYS_PTRACE here


USUAL = Caller()  # a user on the host itself


def administer(caller: Caller, command: str) -> str:
    """Return a command that changes the machine's kernel, which no container may."""
    if caller.runtime in _CONTAINED:
        return f"sudo {command}{ON_HOST}" if caller.uid else f"{command}{ON_HOST}, as root"
    if caller.uid == 0:
        return command
    # Under no_new_privs (Apptainer, a hardened service) sudo refuses everybody.
    return f"sudo {command}" if caller.root_may else f"sudo {command}{ELSEWHERE}"


def lift_yama(caller: Caller) -> str:
    """Return the command that lets users trace their own processes until the next boot.

    The kernel asks for CAP_SYS_PTRACE over the whole machine (yama_dointvec_minmax of security/yama).
    """
    if caller.uid == 0 and caller.runtime not in _CONTAINED:
        return ""  # this root's shell lacks it
    return administer(caller, LIFT_YAMA)


def call_with_capability(caller: Caller, arguments: str) -> str:
    """Return the call of tpmon with CAP_SYS_PTRACE, which changes neither the run nor the machine."""
    if caller.runtime is RuntimeKind.ENGINE:
        privileged = "" if caller.root_may else " --privileged"
        return f"docker exec -it{privileged} -u 0 CONTAINER {caller.program} {arguments}{ON_HOST}"
    if caller.uid == 0 or not caller.root_may or caller.runtime is RuntimeKind.TOOLBOX:
        return ""
    return f"sudo {caller.program} {arguments}"


def pass_yama(caller: Caller, scope: int, arguments: str) -> tuple[str, ...]:
    """Return what gets past a ptrace_scope while the run goes on, the best first."""
    found = [lift_yama(caller), call_with_capability(caller, arguments)]
    if scope > 1 or caller.runtime is RuntimeKind.LXC:
        found.reverse()
    return tuple(filter(None, found))


def start_with(caller: Caller, flags: str) -> str:
    """Return the flags that an engine's container needs from its start: none helps a running one."""
    return f"{flags}{NEXT_TIME}" if caller.runtime is RuntimeKind.ENGINE else ""


def call_as_user(caller: Caller, uid: int, gid: int, arguments: str) -> str:
    """Return the call of tpmon as a job's user: root changes to that user, others ask for root."""
    if caller.uid == 0:
        return f"setpriv --reuid={uid} --regid={gid} --clear-groups {caller.program} {arguments}"
    if caller.runtime is RuntimeKind.ENGINE:
        return f"docker exec -it -u {uid} CONTAINER {caller.program} {arguments}{ON_HOST}"
    return call_with_capability(caller, arguments)


CAP_SYS_PTRACE = 19  # linux/capability.h
OUTSIDE_USERS = "it is outside of tpmon's user namespace: run tpmon outside of it"
UNCONFINED = "docker run --security-opt apparmor=unconfined"
UNLABELLED = "docker run --security-opt label=disable"
LET_PTRACE = "setsebool deny_ptrace off"
_FORBIDS_NOTHING = (" (unconfined)", " (complain)")  # modes of AppArmor (apparmor(7)); complain only logs
_DENY_PTRACE = "/sys/fs/selinux/booleans/deny_ptrace"
_ALL_USERS = "0 0 4294967295"
_NOT_READ = Missing("not read")
_HIDDEN = Missing("the process is hidden")


@dataclass(frozen=True, slots=True)
class AccessStanding:
    """Hold what decides whether one process may be read."""

    ptrace_scope: Known[int]
    own_uid: int
    uid: Known[int]
    may_ptrace: bool
    call_works: bool = True  # process_vm_readv works on tpmon itself
    dumpable: Known[bool] = _NOT_READ
    confined: str = ""  # a security profile that binds tpmon
    more_capabilities: bool = False  # the process has capabilities that tpmon lacks
    all_users: bool = True  # tpmon is in no user namespace of its own, where its capabilities would end
    gid: int = 0  # of the process; whoever becomes its user takes this group too
    caller: Caller = USUAL
    deny_ptrace: bool = False  # SELinux forbids all tracing


@dataclass(frozen=True, slots=True)
class Refused:
    """Say why a process may not be read, and the one command that would change it; "" for none."""

    why: str
    fix: str


def parse_capabilities(status: bytes, name: bytes = b"CapEff") -> int:
    """Return a capability set of /proc/PID/status as a bit mask; 0 where it is absent."""
    return int(parse_field(status, name) or b"0", 16)


def parse_capability(status: bytes, number: int) -> bool:
    """Tell from /proc/PID/status whether capability ``number`` is effective."""
    return bool(parse_capabilities(status) >> number & 1)


def parse_tracer(status: bytes) -> int:
    """Return TracerPid of /proc/PID/status; 0 when nobody traces the process."""
    return int(parse_field(status, b"TracerPid") or 0)


def parse_profile(attribute: bytes) -> str:
    """Return the AppArmor or SELinux name of /proc/PID/attr/current; "" for one that forbids nothing."""
    text = admit_text(attribute.rstrip(b"\0\n ").decode("utf-8", "replace"), 100)
    harmless = text in ("unconfined", "kernel") or "unconfined_t" in text or text.endswith(_FORBIDS_NOTHING)
    return "" if harmless else text


def read_profile(proc: str = "/proc") -> str:
    """Return the name of the security profile that binds tpmon; "" for none."""
    return read_or("", lambda: parse_profile(read_file(f"{proc}/self/attr/current", 4096)))


def read_deny_ptrace(path: str = _DENY_PTRACE) -> bool:
    """Tell whether SELinux forbids all tracing; its file holds the present and the pending value."""
    return read_or(False, lambda: read_file(path, 64).strip()[:1] == b"1")  # no SELinux


def read_ptrace_scope(proc: str = "/proc") -> Known[int]:
    """Return kernel.yama.ptrace_scope."""
    path = f"{proc}/sys/kernel/yama/ptrace_scope"
    return read_or(Missing("this kernel has no Yama"), lambda: int(read_file(path, 16)))


def read_dumpable(pid: int, proc: str = "/proc") -> Known[bool]:
    """Tell by PR_SET_DUMPABLE whether others of its user may read a process.

    Its files in /proc belong to its user then, else to root (proc(5)); of root's own processes nothing shows
    it.
    """
    try:
        uid = read_status(pid, proc).uid
        owner = os.stat(f"{proc}/{pid}/environ").st_uid
    except OSError:
        return _HIDDEN
    return owner == uid if uid else Missing("not known for a process of root")


def may_root_trace(status: bytes) -> bool:
    """Tell from tpmon's own /proc/PID/status whether sudo can still give it CAP_SYS_PTRACE."""
    bounds = parse_capabilities(status, b"CapBnd")
    return bool(bounds >> CAP_SYS_PTRACE & 1) and parse_field(status, b"NoNewPrivs") != b"1"


def read_caller(proc: str = "/proc") -> Caller:
    """Read who calls tpmon, from where, and what root may do."""
    root_may = read_or(True, lambda: may_root_trace(read_file(f"{proc}/self/status", 65536)))
    return Caller(os.geteuid(), read_place(proc).runtime, own_program(), root_may)


def read_group(pid: int, proc: str = "/proc") -> int:
    """Return the effective group of a process; 0 where it is gone."""
    gid = parse_field(_read_status(pid, proc), b"Gid").split()
    return int(gid[1]) if len(gid) > 1 else 0


def _read_status(pid: int | str, proc: str) -> bytes:
    return read_or(b"", lambda: read_file(f"{proc}/{pid}/status", 65536))


def read_all_users(proc: str = "/proc") -> bool:
    """Tell whether tpmon is in the first user namespace, or in one that maps all its users."""
    words = read_text(f"{proc}/self/uid_map").split()  # none in a kernel without user namespaces
    return " ".join(words) in ("", _ALL_USERS)


def read_standing(pid: int, proc: str = "/proc") -> AccessStanding:
    """Read what decides whether tpmon may read ``pid``."""
    own, wanted = _read_status("self", proc), parse_capabilities(_read_status(pid, proc), b"CapPrm")
    return AccessStanding(
        ptrace_scope=read_ptrace_scope(proc),
        own_uid=os.geteuid(),
        uid=read_or(_HIDDEN, lambda: read_status(pid, proc).uid),
        may_ptrace=parse_capability(own, CAP_SYS_PTRACE),
        call_works=not isinstance(try_memory(os.getpid()), Missing),
        dumpable=read_dumpable(pid, proc),
        confined=read_profile(proc),
        more_capabilities=bool(wanted & ~parse_capabilities(own, b"CapPrm")),
        all_users=read_all_users(proc),
        gid=read_group(pid, proc),
        caller=read_caller(proc),
        deny_ptrace=read_deny_ptrace(),
    )


def judge_refusal(standing: AccessStanding, pid: int) -> Refused:
    """Say why a process may not be read and the one command that would permit it. Pure."""
    scope = known_or(standing.ptrace_scope, 0)
    uid = known_or(standing.uid, standing.own_uid)
    caller = standing.caller
    attach = f"attach {pid}"
    capable = call_with_capability(caller, attach)
    root = "root without CAP_SYS_PTRACE, and " if standing.own_uid == 0 else ""
    if scope >= 3:
        return Refused("ptrace_scope 3: nobody may read until the next start of the machine", "")
    if not standing.call_works:
        why = "a filter of system calls (seccomp) or a sandbox forbids it"
        return Refused(why, start_with(caller, ADD_CAPABILITY))
    if standing.deny_ptrace:
        why = "SELinux forbids all looking into processes (deny_ptrace is on)"
        return Refused(why, administer(caller, LET_PTRACE))
    if standing.may_ptrace:
        if not standing.all_users:
            return Refused(OUTSIDE_USERS, "")
        if standing.confined:
            return _blame_profile(standing.confined, caller)
        why = "a sandbox forbids it although tpmon has CAP_SYS_PTRACE"
        return Refused(why, capable if standing.own_uid else "")
    if uid != standing.own_uid:
        # Where Yama is strict, even the job's user may not trace.
        fix = capable if scope else call_as_user(caller, uid, standing.gid, attach)
        return Refused(f"{root}it is a process of uid {uid}", fix)
    if is_known(standing.dumpable) and not standing.dumpable:
        return Refused(f"{root}the process protects itself (not dumpable)", capable)
    if standing.more_capabilities:
        return Refused(f"{root}the process has capabilities that tpmon has not", capable)
    if scope:
        return Refused(f"{root}ptrace_scope {scope} (Yama)", next(iter(pass_yama(caller, scope, attach)), ""))
    if standing.confined:
        return _blame_profile(standing.confined, caller)
    return Refused(f"{root}a sandbox forbids it, or the process protects itself (not dumpable)", capable)


def _blame_profile(profile: str, caller: Caller) -> Refused:
    fix = free_profile(profile, caller)
    if _is_selinux(profile):
        return Refused(f"SELinux may forbid it ({profile})", fix)
    return Refused(f"the security profile {profile} may forbid it", fix)


def free_profile(profile: str, caller: Caller) -> str:
    """Return what starts a container without its security profile; on a host the profile is the machine's."""
    return start_with(caller, UNLABELLED if _is_selinux(profile) else UNCONFINED)


def _is_selinux(profile: str) -> bool:
    """Tell by its form an SELinux name (user:role:type:level) from AppArmor's."""
    return profile.count(":") >= 2 and " " not in profile


def explain_refusal(refused: Refused) -> str:
    """Say in one line why reading is not permitted, what would permit it, and what tells more. Pure."""
    fix = f"; {refused.fix}" if refused.fix else ""
    return point_to(f"{NOT_PERMITTED}: {refused.why}", "stacks") + fix


def read_refusal(pid: int, proc: str = "/proc") -> Refused:
    """Find why a process may not be read, and the one command that would permit it."""
    standing = read_standing(pid, proc)
    if is_known(try_memory(pid)) and (path := find_unreadable(pid, proc)):
        return judge_file(standing, path, pid)
    return judge_refusal(standing, pid)


def judge_file(standing: AccessStanding, path: str, pid: int) -> Refused:
    """Say that py-spy may not open a file of the process's Python, which the job's user may. Pure."""
    uid = known_or(standing.uid, standing.own_uid)
    who = "root" if standing.own_uid == 0 else f"uid {standing.own_uid}"
    why = f"py-spy may not read {path} as {who}"
    if uid == standing.own_uid:
        return Refused(why, "")
    return Refused(why, call_as_user(standing.caller, uid, standing.gid, f"attach {pid}"))


_COMMAND_CHARS = 160
_READ_BYTES = 4096
_ELSEWHERE = Missing("its tracer is in another container: its PID is not visible here")


def read_tracer(pid: int, tid: int, proc: str = PROC) -> Known[Tracer]:
    """Read who traces one thread; each thread may have its own tracer."""
    try:
        tracer = parse_tracer(read_file(f"{proc}/{pid}/task/{tid}/status", 65_536))
    except (OSError, ValueError) as error:
        return Missing(f"its tracer: {error}")
    return name_tracer(tracer, proc) if tracer else _ELSEWHERE


def name_tracer(pid: int, proc: str = PROC) -> Tracer:
    """Name a tracer by PID, name and command line."""
    name = admit_text(read_text(f"{proc}/{pid}/comm").strip(), 32)
    return Tracer(pid, name or "?", _read_command(pid, proc))


def _read_command(pid: int, proc: str) -> Known[str]:
    try:
        raw = read_file(f"{proc}/{pid}/cmdline", _READ_BYTES)
    except OSError as error:
        return Missing(f"its command line: {error.strerror}")
    words = [word.decode("utf-8", "replace") for word in raw.rstrip(b"\0").split(b"\0") if word]
    if not words:
        return Missing("it has no command line")
    return clean_text(" ".join(hide_words(words)), _COMMAND_CHARS)
