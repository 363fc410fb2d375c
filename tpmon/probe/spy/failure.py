"""Say why py-spy must not be started at a process, or what went wrong.

py-spy opens the file that /proc/PID/maps names, in the job's mounts; a deleted one is named "PATH (deleted)".
What is still mapped can be copied back to that very name, in the job's root folder.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import tpmon
from tpmon.model.dump import DumpError, ErrorKind
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing
from tpmon.model.process import Identity
from tpmon.model.results.doctor import point_to
from tpmon.model.text.redaction import admit_text
from tpmon.model.units import format_seconds
from tpmon.own_command import install_command
from tpmon.probe.base.procread import (
    PROC,
    TICKS_PER_S,
    each_process,
    has_ended,
    list_pids,
    parse_cmdline,
    read_file,
    read_or,
    read_stat,
)
from tpmon.probe.job.job import Member, now_ticks
from tpmon.probe.job.process_facts import find_left
from tpmon.probe.proc.access import explain_refusal, name_tracer, parse_tracer, read_refusal
from tpmon.probe.spy.text import Refusal, Sampled, parse_complaint

CPU_LIMIT_S = 2  # after which the kernel ends a py-spy; a slice of 10 s uses some 0.08 s
NO_ANSWER = point_to("py-spy gave no answer in time", "stacks")
_NAME = "py-spy"
PID_FLAGS = ("--pid", "-p")
LENGTH_FLAGS = ("--duration", "-d")
_DIGITS = 10


@dataclass(frozen=True, slots=True)
class SpyOutcome:
    """Hold what one run of py-spy gave; ``cpu_s`` is its user and system time, from rusage."""

    output: bytes
    errors: bytes
    status: int
    cpu_s: float
    wall_s: float
    late: bool  # it was killed at its deadline
    flooded: bool  # it was killed because it wrote more than ``MAX_OUTPUT_BYTES``


def find_spy() -> Known[str]:
    """Find the py-spy program: beside tpmon's Python, on PATH, and of a tpmon.pyz beside it and in it."""
    beside = os.path.join(os.path.dirname(sys.executable), _NAME)
    found = choose_spy(beside, shutil.which(_NAME), tpmon.archive, os.path.dirname(tpmon.__path__[0]))
    missing = point_to("py-spy is not installed beside tpmon or on PATH", "py-spy")
    return found or Missing(f"{missing}: {install_spy()}")


def choose_spy(beside: str, on_path: str | None, archive: str, laid_out: str) -> str:
    """Return the first py-spy that can be started; "" for none.

    Args:
        beside: where it would be beside tpmon's Python.
        on_path: the one on PATH.
        archive: the tpmon.pyz that runs, whose choice is the one of PATH before any other; "" for none.
        laid_out: the folder into which the tpmon.pyz was laid out, with a py-spy for some processors.
    """
    packed = os.path.join(laid_out, "py-spy", os.uname().machine, _NAME)
    of_archive = (on_path, os.path.join(os.path.dirname(archive), _NAME), beside, packed)
    places = of_archive if archive else (beside, on_path)
    return next((one for one in places if one and os.path.isfile(one) and os.access(one, os.X_OK)), "")


def install_spy() -> str:
    """Return the command that installs or updates the py-spy that tpmon starts."""
    return install_command("py-spy")


@dataclass(frozen=True, slots=True)
class Spy:
    """Hold one py-spy; ``nonblocking``: it never stops its target; ``seconds``: its length, 0 if unknown."""

    pid: int
    start_ticks: int
    nonblocking: bool
    seconds: int = 0

    def left_s(self) -> float:
        """Return how long it should still run; 0 where that is over or unknown."""
        return max(0.0, self.seconds - (now_ticks() - self.start_ticks) / TICKS_PER_S)

    def lives(self, proc: str = PROC) -> bool:
        """Tell whether it still runs."""
        stat = read_or(None, lambda: read_stat(self.pid, proc))
        return stat is not None and stat.start_ticks == self.start_ticks and stat.state not in "ZX"


def parse_number(argv: Sequence[str], flags: Sequence[str]) -> int | None:
    """Return the number that a py-spy command line has for an option; None for none. Pure.

    A py-spy without ``PID_FLAGS`` starts a program itself.
    """
    for at, word in enumerate(argv):
        flag, _, value = word.partition("=")
        if flag in flags:
            value = value or (argv[at + 1] if at + 1 < len(argv) else "")
            return int(value) if value.isascii() and value.isdecimal() and len(value) <= _DIGITS else None
        if word == "--":
            return None
    return None


def find_spies(proc: str = PROC) -> dict[int, tuple[Spy, ...]]:
    """Return the py-spy processes by the PID that they read."""
    found: dict[int, tuple[Spy, ...]] = {}
    for pid in list_pids(proc):
        try:
            if not read_file(f"{proc}/{pid}/comm", 64).startswith(_NAME.encode()):
                continue
            argv = parse_cmdline(read_file(f"{proc}/{pid}/cmdline", 65536))
            began = read_stat(pid, proc).start_ticks
            spy = Spy(pid, began, "--nonblocking" in argv, parse_number(argv, LENGTH_FLAGS) or 0)
        except OSError:
            continue  # it ended meanwhile, or is hidden
        if (subject := parse_number(argv, PID_FLAGS)) is not None:
            found[subject] = (*found.get(subject, ()), spy)
    return found


_DELETED = " (deleted)"
_PYTHON = re.compile(r"/(?:libpython3[\d.]*t?\.so[\d.]*|python[\d.]*t?) \(deleted\)$")
_MOST_MAPS_BYTES = 8 << 20
_REASON_CHARS = 400


def parse_deleted(maps: bytes) -> tuple[str, str] | None:
    """Return name and first range of a deleted Python in /proc/PID/maps, library first; else None. Pure."""
    found = None
    for line in maps.decode("utf-8", "replace").splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and _PYTHON.search(fields[5]):
            begin, _, end = fields[0].partition("-")
            # Names in map_files have no leading zeros.
            one = fields[5], f"{int(begin, 16):x}-{int(end, 16):x}"
            if "/libpython" in fields[5]:
                # With a library the program is a stub, which py-spy can do without.
                return one
            found = found or one
    return found


def explain_deleted(pid: int, proc: str = PROC) -> str:
    """Say that the Python of a process was deleted; "" where it was not, or that is unknown."""
    found = read_or(None, lambda: parse_deleted(read_file(f"{proc}/{pid}/maps", _MOST_MAPS_BYTES)))
    if found is None:
        return ""
    name, span = found
    copy = f"cp --remove-destination {proc}/{pid}/map_files/{span} {shlex.quote(f'{proc}/{pid}/root{name}')}"
    gone = f"{name.removesuffix(_DELETED)} was deleted or replaced while it runs"
    whole = f"{gone}; as root: {copy}"
    # A command that is cut or has other characters than the name would do something else.
    return whole if admit_text(whole, _REASON_CHARS) == whole else admit_text(gone, _REASON_CHARS)


YIELD_S = 2.0  # wait for a py-spy that is in the way; for one that reads, from the end of its slice on
LONGEST_SLICE_S = 11.0  # of tpmon's screen, which soon begins the next; a longer one is not waited for
_LOOK_AGAIN_S = 0.1
ENDING_S = 0.3
SLEEPS_S = 1.0  # an uninterruptible sleep so long may last for ever; a disk answers in milliseconds
_SPYS_OWN = (b"py-spy>", b"[]")
_NO_FILE = "No such file or directory"


@dataclass(frozen=True, slots=True)
class Failure:
    """Say why there are no stacks; ``torn``: another try may work, ``is_final``: none soon."""

    kind: ErrorKind
    reason: str
    torn: bool = False
    is_final: bool = False
    cpu_s: float = 0.0  # what py-spy used in vain


def report_failure(host: str, member: Member, failure: Failure) -> DumpError:
    """Name a process without stacks, and say why."""
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
    """Say that a process ended, or lives without its first thread; None where py-spy may read it."""
    stat = read_or(None, lambda: read_stat(identity.pid, proc))
    if stat is None:
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


def confirm(identity: Identity, failure: Failure, proc: str = PROC) -> Failure:
    """Return why a process gave no stacks: that it ended, or what py-spy said."""
    if failure.torn:
        time.sleep(ENDING_S)  # one that is ending takes a moment to be gone
    gone = find_gone(identity, proc)
    return failure if gone is None else replace(gone, cpu_s=failure.cpu_s)


def yield_time_s(others: Sequence[Spy], *, stops: bool) -> float:
    """Return how long to wait for other py-spys; ``stops`` as in ``find_obstacle``."""
    left_s = max((one.left_s() for one in others if stops and one.nonblocking), default=0.0)
    return YIELD_S + (left_s if left_s <= LONGEST_SLICE_S else 0.0)


def find_obstacle(
    pid: int, others: Sequence[Spy], proc: str = PROC, *, stops: bool = False
) -> Failure | None:
    """Say why py-spy must not be started at a process now, after waiting for one that may stop it.

    ``stops``: ours will stop it, so one that only reads is in the way as well. OSError when it is gone.
    """
    tracer = parse_tracer(read_file(f"{proc}/{pid}/status", 65536))
    if tracer:
        name = name_tracer(tracer, proc).name
        return Failure(ErrorKind.TRACED, f"pid {tracer} traces it ({name}, a debugger?): end that first")
    end_s = time.monotonic() + yield_time_s(others, stops=stops)
    while hindering := [one for one in others if (stops or not one.nonblocking) and one.lives(proc)]:
        if time.monotonic() >= end_s:
            first, left_s = hindering[0], hindering[0].left_s()
            more = f" for {format_seconds(left_s)} more" if left_s else ""
            return Failure(ErrorKind.BUSY, f"another py-spy ({first.pid}) reads it{more}: try again")
        time.sleep(_LOOK_AGAIN_S)
    return None


def find_sleeper(pid: int, proc: str = PROC) -> Failure | None:
    """Say that a thread cannot be stopped now, so that a tracer would wait and hold the others meanwhile.

    In state "D" (proc(5)) a thread takes no signal and no PTRACE_INTERRUPT (ptrace(2)) before it wakes.
    OSError when the process is gone.
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
    path = f"{proc}/{pid}/task"
    stats = each_process(os.listdir(path), lambda name: read_stat(name, path).state)
    return {int(name) for name, state in stats.items() if state == "D"}


def explain_empty(sampled: Sampled, output: bytes) -> str:
    """Say why a py-spy that ended well gave no stack: there was none, or ``output`` is not py-spy's."""
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith(_SPYS_OWN)]
    if sampled.lost or lines:
        return point_to("py-spy printed what tpmon does not understand", "py-spy")
    return point_to("py-spy saw no Python thread", "stacks")


def explain_outcome(
    pid: int, outcome: SpyOutcome, deadline_s: float, proc: str = PROC, cpu_limit_s: int = CPU_LIMIT_S
) -> Failure | None:
    """Say what went wrong in a run of py-spy; None for nothing."""
    if outcome.late:
        return _fail(ErrorKind.LATE, f"py-spy gave no answer within {deadline_s:g} s")
    if outcome.status == -signal.SIGXCPU:
        return _fail(ErrorKind.LATE, f"py-spy needs more than {cpu_limit_s} s of CPU here", is_final=True)
    if outcome.flooded:
        return _fail(ErrorKind.FAILED, "more stacks than tpmon reads", is_final=True)
    if outcome.status == -signal.SIGKILL:
        return _fail(ErrorKind.FAILED, "py-spy was killed (out of memory?)", torn=True)
    if not outcome.status:
        return None
    refusal, text = parse_complaint(outcome.errors)
    if refusal is Refusal.PERMISSION:
        return Failure(ErrorKind.DENIED, explain_refusal(read_refusal(pid, proc)), is_final=True)
    if refusal is Refusal.UNKNOWN_PYTHON:
        unknown = _fail(ErrorKind.UNKNOWN_PYTHON, f"py-spy does not know its Python: {text}")
        return replace(unknown, reason=f"{unknown.reason}; {install_spy()}")
    if refusal is Refusal.GONE:
        return Failure(ErrorKind.GONE, "it ended")
    if _NO_FILE in text and (deleted := explain_deleted(pid, proc)):
        return Failure(ErrorKind.UNKNOWN_PYTHON, deleted)
    return _fail(ErrorKind.FAILED, f"py-spy failed: {text}", torn=True)


def _fail(kind: ErrorKind, why: str, *, torn: bool = False, is_final: bool = False) -> Failure:
    return Failure(kind, point_to(why, "stacks"), torn, is_final)
