"""Find out why the kernel lets nobody look into a process, and say what would change it.

Reading another process's memory needs PTRACE_MODE_ATTACH (ptrace(2)): the same user, CAP_SYS_PTRACE
where Yama or a container takes that away, and a process that did not protect itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from tpmon.model.known import Known, Missing, known_or
from tpmon.probe.procread import read_file, read_status

CAP_SYS_PTRACE = 19  # linux/capability.h


@dataclass(frozen=True, slots=True)
class Standing:
    """Hold what decides: Yama's setting, both users, and whether tpmon may look into anything."""

    ptrace_scope: Known[int]
    own_uid: int
    uid: Known[int]
    may_ptrace: bool


def parse_capability(status: bytes, number: int) -> bool:
    """Tell from /proc/PID/status whether capability ``number`` is effective."""
    for line in status.splitlines():
        if line.startswith(b"CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def parse_tracer(status: bytes) -> int:
    """Return TracerPid of /proc/PID/status; 0 when nobody traces the process."""
    for line in status.splitlines():
        if line.startswith(b"TracerPid:"):
            return int(line.split()[1])
    return 0


def read_standing(pid: int, proc: str = "/proc") -> Standing:
    """Read what decides whether tpmon may look into ``pid``."""
    try:
        scope: Known[int] = int(read_file(f"{proc}/sys/kernel/yama/ptrace_scope", 16))
    except (OSError, ValueError):
        scope = Missing("this kernel has no Yama")
    try:
        uid: Known[int] = read_status(pid, proc).uid
    except (OSError, ValueError, KeyError):
        uid = Missing("the process is hidden")
    try:
        may = parse_capability(read_file(f"{proc}/self/status"), CAP_SYS_PTRACE)
    except (OSError, ValueError, IndexError):
        may = False
    return Standing(scope, os.geteuid(), uid, may)


def explain_refusal(standing: Standing) -> str:
    """Say why it is not permitted and what would permit it. Pure."""
    scope = known_or(standing.ptrace_scope, 0)
    uid = known_or(standing.uid, standing.own_uid)
    if scope >= 3:
        return "not permitted (ptrace_scope 3): nobody may look until the machine starts anew"
    if standing.may_ptrace:
        return "not permitted although tpmon has CAP_SYS_PTRACE: a sandbox or a user namespace forbids it"
    if standing.own_uid == 0:
        return "not permitted: root without CAP_SYS_PTRACE; start the container with --cap-add SYS_PTRACE"
    if uid != standing.own_uid:
        return f"not permitted: it is a process of uid {uid}; run tpmon as that user, or with sudo"
    if scope == 2:
        return "not permitted (ptrace_scope 2); run tpmon with sudo"
    if scope == 1:
        return "not permitted (ptrace_scope 1); run tpmon with sudo, or sysctl kernel.yama.ptrace_scope=0"
    return "not permitted: the process protects itself (not dumpable), or a sandbox forbids it"
