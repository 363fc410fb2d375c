"""Say what may be read of a job beside its processes' files: control group, cards, NCCL's port, container."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence

from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.results.doctor import Access, Check
from tpmon.own_command import call_as_root
from tpmon.probe.base.cgroup_tree import NOT_MOUNTED, OUTSIDE_VIEW, Group, JobGroups
from tpmon.probe.base.procread import PROC, read_file, read_or, read_status
from tpmon.probe.doctor.nvml import NvmlAnswer, find_cards, list_minors
from tpmon.probe.doctor.rules import make_check
from tpmon.probe.gpu.mapping import open_device_indices
from tpmon.probe.proc.access import USUAL, Caller, read_caller, start_with
from tpmon.probe.records.flight_recorder import read_environment
from tpmon.probe.records.servers import PORT, find_port

SHOW_GROUPS = "docker run --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:ro"
"""With a control group namespace of its own, groups beside it are outside of its view, mounted or not."""


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
    """Say whether NCCL's status port of a job can be asked; ``port`` is what the job was told to use."""
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
    """Look, without a connection, whether NCCL's status port is open where the job runs."""
    ports: Known[frozenset[int]]
    try:
        ports = parse_listeners(_read_table(pid, "tcp", proc))
        with contextlib.suppress(FileNotFoundError):  # ipv6.disable=1
            ports |= parse_listeners(_read_table(pid, "tcp6", proc))
    except (OSError, ValueError) as error:
        ports = Missing(str(error))
    told = read_or({}, lambda: read_environment(pid, proc))  # then NCCL's own port is looked for
    return judge_ras(ports, is_same_network(pid, proc), pid, find_port([told]), read_caller(proc))


def _read_table(pid: int, name: str, proc: str) -> str:
    return read_file(f"{proc}/{pid}/net/{name}", 4 << 20).decode(errors="replace")


def is_same_network(pid: int, proc: str = PROC) -> Known[bool]:
    """Tell whether a process is in tpmon's network namespace."""
    try:
        return os.readlink(f"{proc}/{pid}/ns/net") == os.readlink(f"{proc}/self/ns/net")
    except OSError as error:
        return Missing(str(error.strerror or error))


def judge_inside(
    ns_pids: Sequence[int], pid: int, same_network: Known[bool] = True, caller: Caller = USUAL
) -> Check:
    """Say whether the process has PIDs of its own (a container), or a network of its own.

    With PIDs of its own its files lie elsewhere, too.
    """
    why = "the job runs in the same PID namespace as tpmon"
    if len(ns_pids) > 1:
        why = f"the job runs in a container below: {pid} is {ns_pids[-1]} inside; stacks may need root here"
    if not is_known(same_network) or same_network:
        return make_check("place", Access.ALLOWED, why)
    why += "; its network namespace is its own: its connections are read from inside of it alone"
    return make_check("place", Access.DENIED, why, _enter_network(pid, caller))


def check_inside(pid: int, proc: str = PROC) -> Check:
    """Read whether a process is in a container below tpmon, or in a network namespace of its own."""
    ns_pids = read_status(pid, proc).ns_pids
    return judge_inside(ns_pids, pid, is_same_network(pid, proc), read_caller(proc))


_STEP = re.compile(rb"(?:\A|\0)SLURM_JOB_ID=(\d+)")


def parse_step(environ: bytes) -> str:
    """Return the number of the Slurm job that /proc/PID/environ names; "" outside of Slurm."""
    found = _STEP.search(environ)
    return found[1].decode() if found else ""


def judge_cards(held: Known[frozenset[int]], shown: Known[frozenset[int]], expose: str) -> Check:
    """Say whether the cards that a job holds open are among those that NVML shows to this shell.

    ``expose`` is what shows the others.
    """
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
