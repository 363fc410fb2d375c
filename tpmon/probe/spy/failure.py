"""Say why py-spy must not be started at a process, or what went wrong when it was."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence

from tpmon.model.dump import DumpError, ErrorKind
from tpmon.model.frozen import dataclass
from tpmon.model.process import Identity
from tpmon.model.results.doctor import point_to
from tpmon.model.units import format_seconds
from tpmon.probe.base.procread import PROC, has_ended, read_file, read_stat
from tpmon.probe.job.job import Member
from tpmon.probe.job.leaderless import find_left
from tpmon.probe.proc.access import explain_refusal, parse_tracer, read_refusal
from tpmon.probe.proc.files import parse_stat
from tpmon.probe.proc.tracer import name_tracer
from tpmon.probe.spy.child import CPU_LIMIT_S, Outcome, install_spy
from tpmon.probe.spy.deleted_python import explain_deleted
from tpmon.probe.spy.other_spies import Spy
from tpmon.probe.spy.text import Refusal, Sampled, parse_complaint

YIELD_S = 2.0
"""How long another py-spy that is in the way is waited for; one that reads, from the end of its slice on."""
LONGEST_SLICE_S = 11.0
"""Of tpmon's screen, which begins the next one soon: one that takes longer is not waited for."""
FLOODED = point_to("more stacks than tpmon reads", "stacks")
_LOOK_AGAIN_S = 0.1
SLEEPS_S = 1.0
"""A thread that sleeps uninterruptibly for so long may do so for ever; a disk answers in milliseconds."""
_SPYS_OWN = (b"py-spy>", b"[]")
_NO_FILE = "No such file or directory"


@dataclass(frozen=True, slots=True)
class Failure:
    """Say why there are no stacks; ``torn``: another try may work."""

    kind: ErrorKind
    reason: str
    torn: bool = False


def report_failure(host: str, member: Member, failure: Failure) -> DumpError:
    """Say of which process there are no stacks, and why."""
    return DumpError(
        host=host,
        pid=member.identity.pid,
        role=member.role,
        rank=member.rank,
        worker=member.worker,
        kind=failure.kind,
        reason=failure.reason,
    )


def find_gone(identity: Identity, proc: str = PROC) -> Failure | None:
    """Say that a process ended, or that it lives without its first thread; None where py-spy may look."""
    try:
        stat = read_stat(identity.pid, proc)
    except OSError:
        return Failure(ErrorKind.GONE, "it ended")
    if stat.start_ticks != identity.start_ticks:
        return Failure(ErrorKind.GONE, "it ended, and another process has its number")
    if has_ended(stat.state, stat.threads):
        return Failure(ErrorKind.GONE, "it ended and was not reaped by its parent")
    left = find_left(identity.pid, proc=proc) if stat.state == "Z" else None
    if left is None:
        return None
    is_there = left.stuck or not left.is_ending
    return Failure(ErrorKind.FAILED if is_there else ErrorKind.GONE, left.words)


def patience_s(others: Sequence[Spy], *, stops: bool) -> float:
    """Say how long other py-spys are waited for; ``stops`` as for ``find_obstacle``."""
    left_s = max((one.left_s() for one in others if stops and one.nonblocking), default=0.0)
    return YIELD_S + (left_s if left_s <= LONGEST_SLICE_S else 0.0)


def find_obstacle(
    pid: int, others: Sequence[Spy], proc: str = PROC, *, stops: bool = False
) -> Failure | None:
    """Say why py-spy must not be started at a process now; a py-spy that may stop it is waited for.

    ``stops``: ours will stop it, so one that only reads is in the way as well.

    Raises:
        OSError: when the process is gone.
    """
    tracer = parse_tracer(read_file(f"{proc}/{pid}/status", 65536))
    if tracer:
        name = name_tracer(tracer, proc).name
        return Failure(ErrorKind.TRACED, f"pid {tracer} traces it ({name}, a debugger?): end that first")
    end_s = time.monotonic() + patience_s(others, stops=stops)
    while hindering := [one for one in others if (stops or not one.nonblocking) and one.lives(proc)]:
        if time.monotonic() >= end_s:
            first, left_s = hindering[0], hindering[0].left_s()
            more = f" for {format_seconds(left_s)} more" if left_s else ""
            return Failure(ErrorKind.BUSY, f"another py-spy ({first.pid}) looks at it{more}: try again")
        time.sleep(_LOOK_AGAIN_S)
    return None


def find_sleeper(pid: int, proc: str = PROC) -> Failure | None:
    """Say that a thread cannot be stopped now: a tracer waits for it, and holds the others meanwhile.

    In the state "D" (proc(5)) a thread takes no signal and no PTRACE_INTERRUPT (ptrace(2)) before it wakes.

    Raises:
        OSError: when the process is gone.
    """
    end_s = time.monotonic() + SLEEPS_S
    asleep = _list_asleep(pid, proc)
    while asleep and time.monotonic() < end_s:
        time.sleep(_LOOK_AGAIN_S)
        asleep &= _list_asleep(pid, proc)
    if not asleep:
        return None
    reason = f"thread {min(asleep)} sleeps uninterruptibly: a stop would hold all others until it wakes"
    return Failure(ErrorKind.BUSY, reason)


def _list_asleep(pid: int, proc: str) -> set[int]:
    found = set()
    for name in os.listdir(f"{proc}/{pid}/task"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if parse_stat(read_file(f"{proc}/{pid}/task/{name}/stat", 4096)).state == "D":
                found.add(int(name))
    return found


def say_failed(text: str) -> str:
    """Say that py-spy gave up; ``text`` is what it said of that."""
    return point_to(f"py-spy failed: {text}", "stacks")


def explain_empty(sampled: Sampled, output: bytes) -> str:
    """Say why a py-spy that ended well gave no stack: it saw none, or ``output`` is nothing of py-spy's."""
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith(_SPYS_OWN)]
    if sampled.lost or lines:
        return point_to("py-spy printed what tpmon does not understand", "py-spy")
    return point_to("py-spy saw no Python thread", "stacks")


def say_costly(cpu_limit_s: int) -> str:
    """Say that py-spy was ended for the CPU that it used."""
    return point_to(f"py-spy needs more than {cpu_limit_s} s of CPU here", "stacks")


def explain_outcome(
    pid: int, outcome: Outcome, deadline_s: float, proc: str = PROC, cpu_limit_s: int = CPU_LIMIT_S
) -> Failure | None:
    """Say what went wrong in a run of py-spy, None where nothing did."""
    if outcome.late:
        return Failure(ErrorKind.LATE, point_to(f"py-spy gave no answer within {deadline_s:g} s", "stacks"))
    if outcome.status == -signal.SIGXCPU:
        return Failure(ErrorKind.LATE, say_costly(cpu_limit_s))
    if outcome.flooded:
        return Failure(ErrorKind.FAILED, FLOODED)
    if outcome.status == -signal.SIGKILL:
        killed = point_to("py-spy was killed (out of memory?)", "stacks")
        return Failure(ErrorKind.FAILED, killed, torn=True)
    if not outcome.status:
        return None
    refusal, text = parse_complaint(outcome.errors)
    if refusal is Refusal.PERMISSION:
        return Failure(ErrorKind.DENIED, explain_refusal(read_refusal(pid, proc)))
    if refusal is Refusal.UNKNOWN_PYTHON:
        reason = f"{point_to(f'py-spy does not know its Python: {text}', 'stacks')}; {install_spy()}"
        return Failure(ErrorKind.UNKNOWN_PYTHON, reason)
    if refusal is Refusal.GONE:
        return Failure(ErrorKind.GONE, "it ended")
    if _NO_FILE in text and (deleted := explain_deleted(pid, proc)):
        return Failure(ErrorKind.UNKNOWN_PYTHON, deleted)
    return Failure(ErrorKind.FAILED, say_failed(text), torn=True)
