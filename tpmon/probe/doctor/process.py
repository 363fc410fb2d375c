"""Try what tpmon reads of the processes of a job: the files of /proc, their memory, and their stacks.

Looking is the trial: files are opened as the probes open them, process_vm_readv is called without
touching a page, and py-spy reads one rank without stopping it. Nothing attaches.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial

from tpmon.model.dump import DumpRound, ErrorKind
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.doctor import Access, Check, CheckName
from tpmon.probe.base.procread import PROC, read_file, read_or, read_stat
from tpmon.probe.doctor.rules import make_check
from tpmon.probe.job.job import Member
from tpmon.probe.proc.access import (
    OUTSIDE_USERS,
    AccessStanding,
    call_as_user,
    call_with_capability,
    read_refusal,
    read_standing,
)
from tpmon.probe.proc.memory import try_memory
from tpmon.probe.spy.dump import Dumper
from tpmon.probe.spy.failure import install_spy

MOST_PROCESSES = 16
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ProcSource:
    """Name one file of /proc/PID that tpmon reads, what it tells, and how to try it."""

    name: CheckName
    tells: str
    needed: bool
    attach: bool
    """It asks for the right to look into memory, not just for the same user."""
    read: Callable[[str], object]


def _read_some(path: str) -> object:
    return read_file(path, 64)


def _open(path: str) -> object:
    """Open and close: the kernel asks for permission when smaps_rollup is opened, and reading it is dear."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.close(fd)
    return fd


def _list(path: str) -> object:
    for name in os.listdir(path)[:1]:
        try:
            os.readlink(f"{path}/{name}")
        except FileNotFoundError:
            continue  # closed meanwhile; it was permitted
    return path


SOURCES = (
    ProcSource("stat", "state, CPU time and threads", True, False, _read_some),
    ProcSource("io", "bytes read and written", False, False, _read_some),
    ProcSource("smaps_rollup", "shared and private memory", False, False, _open),
    ProcSource("environ", "rank, world size and thread settings", True, False, _read_some),
    ProcSource("fd", "loader queues, log files, cards and what a blocked call waits on", True, False, _list),
    ProcSource("wchan", "the kernel function that a thread sleeps in", False, False, _read_some),
    ProcSource("syscall", "the system call that a thread is in", False, True, _read_some),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """Hold what came of one source at one process: "" as ``refusal`` where it may be read."""

    pid: int
    refusal: str
    gone: bool = False


def try_source(source: ProcSource, pid: int, proc: str = PROC) -> Trial:
    """Read one file of one process the way the probes do."""
    try:
        answer = source.read(f"{proc}/{pid}/{source.name}")
    except OSError as error:
        gone = not os.path.exists(f"{proc}/{pid}/stat") or error.errno == errno.ESRCH
        return Trial(pid, error.strerror or str(error), gone)
    shows_none = source.name == "wchan" and answer == b"0"
    # proc(5): to whoever may not read it, the kernel says 0 instead of refusing, as it does for io.
    hidden = shows_none and read_or(None, lambda: read_file(f"{proc}/{pid}/io", 64)) is None
    return Trial(pid, "the kernel shows 0 to other users" if hidden else "")


def judge_source(
    source: ProcSource, trials: Sequence[Trial], why_not: Callable[[int], tuple[str, str]]
) -> Check:
    """Sum the trials of one source up; ``why_not`` says of a PID why and what would change it."""
    alive = [trial for trial in trials if not trial.gone]
    refused = [trial for trial in alive if trial.refusal]
    if not alive:
        return make_check(source.name, Access.UNKNOWN, "no process of the job was left to try")
    if not refused:
        return make_check(source.name, Access.ALLOWED, source.tells)
    first = refused[0]
    why, fix = why_not(first.pid)
    whom = _name_refused(refused, len(alive))
    return make_check(
        source.name, Access.DENIED, f"{source.tells}: {first.refusal.lower()}{whom}; {why}", fix
    )


def _name_refused(refused: Sequence[Trial], tried: int) -> str:
    if len(refused) == tried:
        return ""
    names = ", ".join(str(trial.pid) for trial in refused[:_SHOWN])
    more = ", ..." if len(refused) > _SHOWN else ""
    return f" of {len(refused)} of {tried} processes ({names}{more})"


def explain_read(standing: AccessStanding, pid: int) -> tuple[str, str]:
    """Say why a file that asks for the same user is refused, and what would change it; pure."""
    attach = f"attach {pid}"
    capable = call_with_capability(standing.caller, attach)
    if standing.may_ptrace:
        return ("a sandbox forbids it" if standing.all_users else OUTSIDE_USERS), ""
    if is_known(standing.uid) and standing.uid != standing.own_uid:
        as_user = call_as_user(standing.caller, standing.uid, standing.gid, attach)
        return f"the process belongs to uid {standing.uid}, tpmon runs as {standing.own_uid}", as_user
    if is_known(standing.dumpable) and not standing.dumpable:
        return "the process protects itself (not dumpable)", capable
    if standing.own_uid == 0:
        return "root without CAP_SYS_PTRACE, and the process has more capabilities", capable
    return "the process has more capabilities than tpmon, or a sandbox forbids it", capable


def _explain(source: ProcSource, proc: str, pid: int) -> tuple[str, str]:
    if source.attach:
        refused = read_refusal(pid, proc)
        return refused.why, refused.fix
    return explain_read(read_standing(pid, proc), pid)


def check_source(source: ProcSource, pids: Sequence[int], proc: str = PROC) -> Check:
    """Try one file of every process."""
    return judge_source(
        source, [try_source(source, pid, proc) for pid in pids], partial(_explain, source, proc)
    )


def _read_state(pid: int, proc: str) -> str:
    return read_stat(pid, proc).state


def check_memory(pids: Sequence[int], proc: str = PROC) -> Check:
    """Try process_vm_readv on every process. Where a filter forbids it alone, py-spy has /proc/PID/mem."""
    source = ProcSource("memory", "its memory, which stacks are read from", False, True, _read_some)
    trials = []
    for pid in pids:
        answer = try_memory(pid)
        state = read_or("X", partial(_read_state, pid, proc))
        trials.append(Trial(pid, answer.reason if isinstance(answer, Missing) else "", state in "ZX"))
    return judge_source(source, trials, partial(_explain, source, proc))


def judge_stacks(look: DumpRound, fix: str, install: str) -> Check:
    """Say from one dump of one process whether its stacks can be read.

    ``fix`` helps a denied one, ``install`` one whose py-spy is missing or too old.
    """
    if not look.errors:
        why = f"py-spy read them without a stop, with {look.spy_cpu_ms:.0f} ms of CPU"
        return make_check("stacks", Access.ALLOWED, why)
    error = look.errors[0]
    again = f"tpmon dump {error.pid}"
    access, remedy = {
        ErrorKind.DENIED: (Access.DENIED, fix),
        ErrorKind.NO_SPY: (Access.ABSENT, install),
        ErrorKind.UNKNOWN_PYTHON: (Access.DENIED, install),
        ErrorKind.FAILED: (Access.DENIED, again),
        ErrorKind.LATE: (Access.UNKNOWN, again),
        ErrorKind.BUSY: (Access.UNKNOWN, again),
    }.get(error.kind, (Access.UNKNOWN, ""))
    return make_check("stacks", access, error.reason, remedy)


def check_stacks(member: Member, spy: Callable[[], Known[str]], limit_s: float, proc: str = PROC) -> Check:
    """Have py-spy read the stacks of one process once, without a stop."""
    look = Dumper((member,), proc=proc, spy=spy).read_round(limit_s)
    fix = ""
    if look.errors and look.errors[0].kind is ErrorKind.DENIED:
        fix = read_refusal(member.identity.pid, proc).fix
    return judge_stacks(look, fix, install_spy())
