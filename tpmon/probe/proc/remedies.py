"""Build the commands that give tpmon a right, each for the place where it is printed. Pure.

"" stands for none: no command that could be printed there would work.
"""

from __future__ import annotations

from tpmon.model.frozen import dataclass
from tpmon.probe.base.environment import Around

ON_HOST = "  # on the host"
ELSEWHERE = "  # in a shell that may become root: this one may not"
NEXT_TIME = "  # at its next start"
LIFT_YAMA = "sysctl kernel.yama.ptrace_scope=0"
ADD_CAPABILITY = "docker run --cap-add SYS_PTRACE"
"""Its seccomp profile then lets process_vm_readv and ptrace pass, too. Only root has what is added."""
_CONTAINED = (Around.ENGINE, Around.TOOLBOX, Around.LXC, Around.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Caller:
    """Say who calls tpmon, and from where.

    ``program``: the word that starts it also under sudo. ``root_may``: root may trace here, because
    CAP_SYS_PTRACE is within the bounds of this process and sudo may still give it.
    """

    uid: int = 1000
    around: Around = Around.HOST
    program: str = "tpmon"
    root_may: bool = True


USUAL = Caller()
"""A user at the host itself."""


def administer(caller: Caller, command: str) -> str:
    """Return a command that changes the kernel of the machine, which no container may."""
    if caller.around in _CONTAINED:
        return f"sudo {command}{ON_HOST}" if caller.uid else f"{command}{ON_HOST}, as root"
    if caller.uid == 0:
        return command
    # Under no_new_privs (Apptainer, a hardened service) sudo refuses, whoever may call it elsewhere.
    return f"sudo {command}" if caller.root_may else f"sudo {command}{ELSEWHERE}"


def lift_yama(caller: Caller) -> str:
    """Return the command that lets every user look into their own processes, until the next start.

    The kernel asks for CAP_SYS_PTRACE over the whole machine (yama_dointvec_minmax of security/yama).
    """
    if caller.uid == 0 and caller.around not in _CONTAINED:
        return ""  # the shell of this root lacks it
    return administer(caller, LIFT_YAMA)


def call_with_capability(caller: Caller, arguments: str) -> str:
    """Return the call of tpmon that has CAP_SYS_PTRACE, which leaves the run and the machine alone."""
    if caller.around is Around.ENGINE:
        privileged = "" if caller.root_may else " --privileged"
        return f"docker exec -it{privileged} -u 0 CONTAINER {caller.program} {arguments}{ON_HOST}"
    if caller.uid == 0 or not caller.root_may or caller.around is Around.TOOLBOX:
        return ""
    return f"sudo {caller.program} {arguments}"


def pass_yama(caller: Caller, scope: int, arguments: str) -> tuple[str, ...]:
    """Return what gets past a ptrace_scope while the run goes on, what fits best first."""
    found = [lift_yama(caller), call_with_capability(caller, arguments)]
    if scope > 1 or caller.around is Around.LXC:
        found.reverse()
    return tuple(filter(None, found))


def start_with(caller: Caller, flags: str) -> str:
    """Return the flags that a container of an engine needs from its start on: none helps a live one."""
    return f"{flags}{NEXT_TIME}" if caller.around is Around.ENGINE else ""


def call_as_user(caller: Caller, uid: int, gid: int, arguments: str) -> str:
    """Return the call of tpmon as the user of a job: root changes to that user, others ask for root."""
    if caller.uid == 0:
        return f"setpriv --reuid={uid} --regid={gid} --clear-groups {caller.program} {arguments}"
    if caller.around is Around.ENGINE:
        return f"docker exec -it -u {uid} CONTAINER {caller.program} {arguments}{ON_HOST}"
    return call_with_capability(caller, arguments)
