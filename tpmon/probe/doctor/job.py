"""Try what tpmon reads of a job: files, memory and stacks of its processes, its groups, cards and port.

Files are opened as the probes open them, process_vm_readv is called without touching a page, and py-spy reads
one rank without stopping it. Nothing attaches.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from tpmon.model.dump import DumpRound, ErrorKind
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.results.doctor import Access, Check, CheckName
from tpmon.own_command import call_as_root
from tpmon.probe.base.cgroup_tree import NOT_MOUNTED, OUTSIDE_VIEW, Group, JobGroups
from tpmon.probe.base.procread import PROC, read_file, read_or, read_stat, read_status
from tpmon.probe.doctor.nvml import NvmlAnswer, find_cards, list_minors
from tpmon.probe.doctor.rules import make_check
from tpmon.probe.gpu.mapping import open_device_indices
from tpmon.probe.host.network import same_network_namespace
from tpmon.probe.job.job import Member
from tpmon.probe.proc.access import (
    OUTSIDE_USERS,
    USUAL,
    AccessStanding,
    Caller,
    call_as_user,
    call_with_capability,
    read_caller,
    read_refusal,
    read_standing,
    start_with,
)
from tpmon.probe.proc.memory import try_memory
from tpmon.probe.records.flight_recorder import read_environment
from tpmon.probe.records.servers import PORT, find_port
from tpmon.probe.spy.dump import Dumper
from tpmon.probe.spy.failure import install_spy

MOST_PROCESSES = 16
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ProcSource:
    """Name one file of /proc/PID that tpmon reads, what it is for, and how to try it."""

    name: CheckName
    tells: str
    needed: bool
    attach: bool  # it needs the right to read memory, not just the same user
    read: Callable[[str], object]


def _read_some(path: str) -> object:
    return read_file(path, 64)


def _open(path: str) -> object:
    """Open and close: smaps_rollup checks permission when it is opened, and reading it is expensive."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.close(fd)
    return fd


def _list(path: str) -> object:
    for name in os.listdir(path)[:1]:
        try:
            os.readlink(f"{path}/{name}")
        except FileNotFoundError:
            continue  # closed meanwhile, so it was permitted
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
    """Hold the result of one source at one process; ``refusal`` is "" where it may be read."""

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
    # proc(5): to those without permission the kernel shows 0 here instead of refusing, as it does for io.
    hidden = shows_none and read_or(None, lambda: read_file(f"{proc}/{pid}/io", 64)) is None
    return Trial(pid, "the kernel shows 0 to other users" if hidden else "")


def judge_source(
    source: ProcSource, trials: Sequence[Trial], why_not: Callable[[int], tuple[str, str]]
) -> Check:
    """Sum up the trials of one source; ``why_not`` gives for a PID the reason and what would change it."""
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
    """Say why a file that requires the same user is refused, and what would change it. Pure."""
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
    """Try process_vm_readv on every process; if only a filter forbids it, py-spy uses /proc/PID/mem."""
    source = ProcSource("memory", "its memory, which stacks are read from", False, True, _read_some)
    trials = []
    for pid in pids:
        answer = try_memory(pid)
        state = read_or("X", partial(_read_state, pid, proc))
        trials.append(Trial(pid, answer.reason if isinstance(answer, Missing) else "", state in "ZX"))
    return judge_source(source, trials, partial(_explain, source, proc))


def judge_stacks(look: DumpRound, fix: str, install: str) -> Check:
    """Judge from one dump of one process whether its stacks can be read.

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


SHOW_GROUPS = "docker run --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:ro"
"""In its own control group namespace a container cannot see the groups beside it, mounted or not."""


def check_groups(pids: Sequence[int], proc: str = PROC) -> Check:
    """Read the control group of the job: limits, throttling, pressure."""
    groups = JobGroups(pids, proc)
    memory = groups.common("memory")
    cpu = groups.common("cpu")
    found = [group for group in (memory, cpu) if is_known(group)]
    if not found:
        reason = memory.reason if isinstance(memory, Missing) else "not found"
        why = f"limits, throttling and memory of the job's control group: {reason}"
        if memory not in (OUTSIDE_VIEW, NOT_MOUNTED):
            return make_check("cgroup", Access.ABSENT, why)
        fix = start_with(read_caller(proc), SHOW_GROUPS)
        return make_check("cgroup", Access.ABSENT, f"{why}; seen from the job's own container", fix)
    refused = [reason for group in found if (reason := _try_group(group))]
    if refused:
        why = f"limits and throttling of the job: {refused[0]}"
        return make_check("cgroup", Access.DENIED, why, call_as_root(f"attach {pids[0]}"))
    return make_check("cgroup", Access.ALLOWED, f"limits, throttling and memory of {found[0].label()}")


_GROUP_FILES = ("memory.stat", "cpu.stat")


def _try_group(group: Group) -> str:
    """Return why no file of a group may be read; "" where one may."""
    reasons = []
    for name in _GROUP_FILES:
        try:
            read_file(f"{group.directory}/{name}", 64)
        except OSError as error:
            reasons.append(str(error.strerror or error).lower())
        else:
            return ""
    return reasons[0]


_LISTEN = "0A"


def parse_listeners(table: str) -> frozenset[int]:
    """Return the ports that /proc/net/tcp or tcp6 lists as listening."""
    rows = (line.split() for line in table.splitlines()[1:])
    return frozenset(int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == _LISTEN)


def judge_ras(
    ports: Known[frozenset[int]],
    same_network: Known[bool],
    pid: int,
    port: Known[int] = PORT,
    caller: Caller = USUAL,
) -> Check:
    """Judge whether NCCL's status port can be asked; ``port`` is what the job was told to use."""
    if isinstance(port, Missing):
        return make_check("ras", Access.ABSENT, f"NCCL's status port: {port.reason}")
    if isinstance(ports, Missing):
        return make_check("ras", Access.UNKNOWN, f"NCCL's status port: {ports.reason}")
    if port not in ports:
        why = f"nothing listens on port {port}: NCCL 2.24 or newer does, from the first collective on"
        return make_check("ras", Access.ABSENT, why)
    if is_known(same_network) and not same_network:
        why = f"NCCL's status port {port} is open in a network namespace of the job's own"
        return make_check("ras", Access.DENIED, why, _enter_network(pid, caller))
    return make_check("ras", Access.ALLOWED, f"NCCL's status port {port} is open")


def _enter_network(pid: int, caller: Caller) -> str:
    enter = f"nsenter --net --target {pid} {caller.program} attach {pid}"
    return f"sudo {enter}" if caller.uid else enter


def check_ras(pid: int, proc: str = PROC) -> Check:
    """Check, without a connection, whether NCCL's status port is open where the job runs."""
    ports: Known[frozenset[int]]
    try:
        ports = parse_listeners(_read_table(pid, "tcp", proc))
        with contextlib.suppress(FileNotFoundError):  # ipv6.disable=1
            ports |= parse_listeners(_read_table(pid, "tcp6", proc))
    except (OSError, ValueError) as error:
        ports = Missing(str(error))
    told = read_or({}, lambda: read_environment(pid, proc))  # {}: NCCL's default port is tried
    return judge_ras(ports, same_network_namespace(pid, proc), pid, find_port([told]), read_caller(proc))


def _read_table(pid: int, name: str, proc: str) -> str:
    return read_file(f"{proc}/{pid}/net/{name}", 4 << 20).decode(errors="replace")


def judge_inside(
    ns_pids: Sequence[int], pid: int, same_network: Known[bool] = True, caller: Caller = USUAL
) -> Check:
    """Judge whether the process has its own PIDs (a container, whose files lie elsewhere) or own network."""
    why = "the job runs in the same PID namespace as tpmon"
    if len(ns_pids) > 1:
        why = f"the job runs in a container below: {pid} is {ns_pids[-1]} inside; stacks may need root here"
    if not is_known(same_network) or same_network:
        return make_check("place", Access.ALLOWED, why)
    why += "; its network namespace is its own: its connections are read from inside of it alone"
    return make_check("place", Access.DENIED, why, _enter_network(pid, caller))


def check_inside(pid: int, proc: str = PROC) -> Check:
    """Check whether a process is in a container below tpmon, or in its own network namespace."""
    ns_pids = read_status(pid, proc).ns_pids
    return judge_inside(ns_pids, pid, same_network_namespace(pid, proc), read_caller(proc))


_STEP = re.compile(rb"(?:\A|\0)SLURM_JOB_ID=(\d+)")


def parse_step(environ: bytes) -> str:
    """Return the number of the Slurm job that /proc/PID/environ names; "" outside of Slurm."""
    found = _STEP.search(environ)
    return found[1].decode() if found else ""


def judge_cards(held: Known[frozenset[int]], shown: Known[frozenset[int]], expose: str) -> Check:
    """Judge whether NVML shows this shell the cards that a job holds open; ``expose`` shows the others."""
    if isinstance(held, Missing):
        return make_check("cards", Access.UNKNOWN, f"which cards the job holds: {held.reason}")
    if not held:
        return make_check("cards", Access.ABSENT, "the job holds no NVIDIA card open")
    if isinstance(shown, Missing):
        return make_check("cards", Access.UNKNOWN, f"the job holds {_name_cards(held)}; {shown.reason}")
    hidden = held - shown
    if not hidden:
        why = f"the job holds {_name_cards(held)}, and NVML shows it all"
        return make_check("cards", Access.ALLOWED, why)
    why = f"the job holds {_name_cards(held)}, but NVML does not show {_name_cards(hidden)} to this shell"
    return make_check("cards", Access.DENIED, why, expose)


def _name_cards(minors: Iterable[int]) -> str:
    return ", ".join(f"/dev/nvidia{minor}" for minor in sorted(minors))


def check_cards(pids: Sequence[int], answer: NvmlAnswer, proc: str = PROC) -> Check:
    """Compare the device files of the processes with what NVML shows."""
    found = [open_device_indices(pid, proc) for pid in pids]
    held = frozenset(minor for minors in found for minor in known_or(minors, ()))
    refused = next((one for one in found if isinstance(one, Missing)), held)
    step = read_or("", lambda: parse_step(read_file(f"{proc}/{pids[0]}/environ")))
    return judge_cards(
        held or refused, list_minors(answer), find_cards(read_caller(proc), step, str(pids[0]))
    )
