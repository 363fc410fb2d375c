"""Read what is left of a process whose first thread has ended while others of it live.

The kernel shows the state of the first thread as that of the process: "Z". Killed with a thread that is
stuck in a driver or a file system, a process stays so: it keeps its memory and its cards, and its parent
cannot reap it. What it says of itself (command line, maps, program file) is told by a thread that lives.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import replace

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.text.redaction import admit_text
from tpmon.model.waits import Wait, WaitReason, describe_wait
from tpmon.probe.base.procread import (
    PROC,
    StatLine,
    each_process,
    has_ended,
    parse_stat,
    read_file,
    read_stat,
)
from tpmon.probe.job.facts import Facts, read_all_facts
from tpmon.probe.proc.wchan import is_in_driver

_MOST_THREADS = 512
_MOST_FILES = 4096
_PF_EXITING = 0x4  # include/linux/sched.h
_CARD = "/dev/nvidia"
_MAY_END = "killed or ended"
"""How a process comes to its end where nothing says it."""


@dataclass(frozen=True, slots=True)
class LeftThread:
    """Hold the thread that keeps a process whose first thread has ended: one that is stuck goes first.

    ``stuck`` tells that the process was to end and this thread has not; None where it does not sleep.
    """

    tid: int
    state: str
    wchan: Known[bytes]
    call: Known[bytes]
    is_ending: bool
    stuck: Wait | None

    @property
    def words(self) -> str:
        """Say why the process lives."""
        goes_on = "is just ending" if self.is_ending else "goes on"
        if self.stuck is not None:
            return describe_wait(self.stuck)
        return f"its main thread has ended; thread {self.tid} {goes_on}"


def find_left(pid: int, loop_tid: int = 0, proc: str = PROC) -> LeftThread | None:
    """Find the thread that keeps a process; None where the first one lives, or none does.

    ``loop_tid`` is preferred among those that are not stuck.
    """
    try:
        stat = read_stat(pid, proc)
    except OSError:
        return None
    if stat.state != "Z" or has_ended(stat.state, stat.threads):
        return None
    states = _read_states(pid, proc)
    if not states:
        return None
    tid = min(states, key=lambda one: (states[one] != "D", one != loop_tid, one))
    folder = f"{proc}/{pid}/task/{tid}"
    wchan = _read(f"{folder}/wchan")
    how = _why_ending(stat, folder)
    stuck = _tell_stuck(how, tid, wchan, folder) if how and states[tid] == "D" else None
    return LeftThread(tid, states[tid], wchan, _read(f"{folder}/syscall"), bool(how), stuck)


def pick_reader(stat: StatLine, proc: str = PROC) -> int:
    """Return the number under which a process tells of itself: its own, or that of a thread that lives."""
    left = find_left(stat.pid, proc=proc) if stat.state == "Z" and stat.threads > 1 else None
    return stat.pid if left is None else left.tid


def read_facts_of(stats: Iterable[StatLine], proc: str = PROC, *, deep: bool = False) -> dict[int, Facts]:
    """Read the facts of many processes (``read_all_facts``), also where the first thread has ended."""
    asked = {pick_reader(stat, proc): stat for stat in stats}
    read = read_all_facts((replace(stat, pid=tid) for tid, stat in asked.items()), proc, deep=deep)
    return {asked[tid].pid: replace(fact, stat=asked[tid]) for tid, fact in read.items()}


def _read_states(pid: int, proc: str) -> dict[int, str]:
    """Return the state of each thread that lives."""
    try:
        names = os.listdir(f"{proc}/{pid}/task")
    except OSError:
        return {}
    path = f"{proc}/{pid}/task/%s/stat"
    stats = each_process(names[:_MOST_THREADS], lambda name: parse_stat(read_file(path % name, 4096)))
    return {int(name): one.state for name, one in stats.items() if is_known(one) and one.state not in "ZX"}


def _read(path: str) -> Known[bytes]:
    try:
        return read_file(path, 256)
    except OSError as error:
        return Missing(error.strerror or str(error))


def _why_ending(stat: StatLine, folder: str) -> str:
    """Say how a process with a thread that was told to end came to it: "killed", "exit 1"; "" for none."""
    pending = next(
        (line.split()[1] for line in _read_status(folder).splitlines() if line.startswith(b"SigPnd:")), b"0"
    )
    if int(pending, 16) >> (signal.SIGKILL - 1) & 1:
        return "killed"
    thread = _read(f"{folder}/stat")
    fields = thread[thread.rindex(b")") + 2 :].split() if is_known(thread) and b")" in thread else []
    if len(fields) <= 6 or not int(fields[6]) & _PF_EXITING:
        return ""
    # 0 is what those read who may not see it, and what a process that ended well leaves.
    if stat.wait_status & 0x7F:
        return "killed"
    return f"exit {stat.wait_status >> 8}" if stat.wait_status else _MAY_END


def _read_status(folder: str) -> bytes:
    try:
        return read_file(f"{folder}/status", 65536)
    except OSError:
        return b""  # it ended meanwhile


def _tell_stuck(how: str, tid: int, wchan: Known[bytes], folder: str) -> Wait:
    """Tell which thread keeps a process that was to end: "killed, but thread 7 is stuck in nv_ioctl (D)"."""
    named = admit_text(wchan.decode("ascii", "replace"), 64) if is_known(wchan) and wchan != b"0" else ""
    driver, verb, reason = is_in_driver(named), "stuck", WaitReason.KILLED
    if how == _MAY_END:
        verb, reason = "still", WaitReason.ENDING_IN_DRIVER if driver else WaitReason.ENDING
    elif driver:
        reason = WaitReason.KILLED_IN_DRIVER
    cards = " and holds its cards" if _holds_cards(folder) else ""
    return Wait(reason, f"{how}, but thread {tid} is {verb} in {named or 'the kernel'} (D){cards}")


def _holds_cards(folder: str) -> bool:
    try:
        for name in os.listdir(f"{folder}/fd")[:_MOST_FILES]:
            if os.readlink(f"{folder}/fd/{name}").startswith(_CARD):
                return True
    except OSError:
        return False  # not ours to read, or its files are closed already
    return False
