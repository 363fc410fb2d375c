"""Gather the cold facts of processes within deadlines, and the place of a rank from its environment.

A process whose first thread has ended has that thread's state, "Z". Killed while another thread is stuck in a
driver or a file system, it stays so: it keeps its memory and its cards, and its parent cannot reap it. A
living thread shows its command line, maps and program file.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import WORKER_NAME
from tpmon.model.results.doctor import NOT_PERMITTED, point_to
from tpmon.model.text.redaction import admit_text, name_failure
from tpmon.model.waits import Wait, WaitReason, describe_wait
from tpmon.probe.base.procread import (
    PROC,
    Mapped,
    StatLine,
    each_process,
    has_ended,
    is_python_name,
    parse_cmdline,
    parse_environ,
    parse_field,
    parse_maps,
    parse_stat,
    read_exe,
    read_file,
    read_links,
    read_or,
    read_stat,
    read_thread_names,
)
from tpmon.probe.base.worker import read_within
from tpmon.probe.job.programs import Program, identify
from tpmon.probe.proc.wchan import is_in_driver

BY_ENVIRONMENT = "environment"
BY_MPI = "MPI environment"
BY_SLURM = "Slurm environment"

_PLACES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", BY_ENVIRONMENT),
    ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE", "Horovod environment"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", BY_MPI),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", BY_MPI),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", BY_SLURM),
)
"""The variables of the rank, the rank on its machine and the world size."""
_MOST_DIGITS = 6  # no job has a million ranks; counting up to a number from outside must end
_NO_STEP = 1 << 31  # Slurm numbers batch, extern and interactive steps from 0xfffffff0 on (slurm.h)


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Hold the place in a process group that a launcher wrote into a rank's environment."""

    rank: int | None
    local_rank: int | None
    world_size: int | None
    source: str


def parse_count(text: str) -> int | None:
    """Return the number that foreign text writes in ASCII digits; None for other text and absurd lengths."""
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdecimal() else None


def parse_place(environ: Mapping[str, str]) -> RankPlace | None:
    """Read a rank's place, torch's names first; Slurm's only in a numbered step: batch has SLURM_PROCID=0."""
    number = {name: count for name, value in environ.items() if (count := parse_count(value)) is not None}
    if number.get("SLURM_STEP_ID", _NO_STEP) >= _NO_STEP:
        number.pop("SLURM_PROCID", None)
    if "LOCAL_RANK" in number and not number.get("NODE_RANK"):
        # Lightning starts its other ranks with only LOCAL_RANK and NODE_RANK.
        number.setdefault("RANK", number["LOCAL_RANK"])
    for rank, local_rank, world_size, source in _PLACES:
        if rank in number or (rank == "RANK" and local_rank in number):
            return RankPlace(number.get(rank), number.get(local_rank), number.get(world_size), source)
    return None


T = TypeVar("T")

WORKER_UNREAD = Missing("not read of a loader worker")
STILL_BLOCKED = Missing("an earlier reading of it has not ended")
_DENIED = point_to(NOT_PERMITTED, "environ")
_MAPS_LIMIT = 8 << 20
IMPORT_S = 600.0
_CHUNK = 32
_CHUNK_S = 1.0
_ALL_S = 3.0
_MORE_S = 0.01  # for each process: a crowded machine answers in some milliseconds
_MOST_S = 10.0


@dataclass(frozen=True, slots=True)
class Facts:
    """Hold what one process says of itself, read once and again after exec.

    ``environ`` has only the variables of interest. ``mapped`` is read of Python alone, ``thread_names`` of
    processes without a rank or a worker's name.
    """

    stat: StatLine
    argv: tuple[str, ...]
    environ: Known[Mapping[str, str]]
    exe: Known[str]
    mapped: Known[Mapped]
    thread_names: tuple[str, ...]

    @property
    def python(self) -> bool:
        """Tell whether a Python interpreter runs here, by file name, library or script line."""
        if isinstance(self.exe, str):
            return is_python_name(self.exe) or (isinstance(self.mapped, Mapped) and bool(self.mapped.python))
        return bool(self.argv) and is_python_name(self.argv[0])

    @property
    def program(self) -> Program:
        """Identify the program by its name and command line."""
        return identify(self.stat.name, self.argv)

    @property
    def place(self) -> RankPlace | None:
        """Return the place in a process group that the start environment tells, if it was read."""
        return None if isinstance(self.environ, Missing) else parse_place(self.environ)

    @property
    def torch(self) -> bool:
        """Tell whether libtorch is mapped or, where maps may not be read, torch named a thread."""
        if isinstance(self.mapped, Mapped):
            return bool(self.mapped.torch)
        return self.stat.name.startswith("pt_") or any(name.startswith("pt_") for name in self.thread_names)

    @property
    def denied(self) -> bool:
        """Tell whether this user may not read the process."""
        return isinstance(self.environ, Missing) and self.environ.reason == _DENIED

    @property
    def unanswered(self) -> str:
        """Say why a readable process was not read: no answer in time, or unforeseen text."""
        return self.environ.reason if isinstance(self.environ, Missing) and not self.denied else ""

    def is_stale(self, now: StatLine, age_s: float, *, retry: bool = False) -> bool:
        """Tell whether a process may have run another program or loaded torch since it was read.

        One that was killed but is held by a thread has an empty address space: what was read before stands.
        """
        if now.state in "ZX":
            return False
        if now.name != self.stat.name or self.is_replaced(now):
            return True
        if isinstance(self.environ, Missing):
            return retry and not self.denied
        if not self.python or not isinstance(self.mapped, Mapped):
            return False
        importing = not self.torch and age_s < IMPORT_S
        return importing or ("RANK" not in self.environ and now.threads != self.stat.threads)

    def is_replaced(self, now: StatLine) -> bool:
        """Tell whether the process ran another program since (exec); False where that may not be seen."""
        return bool(now.image and self.stat.image) and now.image != self.stat.image

    def says_the_same(self, other: Facts) -> bool:
        """Tell whether nothing that decides the part differs."""
        return replace(self, stat=other.stat) == other and self.stat.name == other.stat.name


def read_facts(stat: StatLine, proc: str = PROC, *, deep: bool = False) -> Facts:
    """Read the cold facts of one process; OSError when it is gone. ``deep``: find Python under any name."""
    pid = stat.pid
    argv = parse_cmdline(read_file(f"{proc}/{pid}/cmdline", 1 << 16))
    environ = _permitted(lambda: parse_environ(read_file(f"{proc}/{pid}/environ")))
    exe = read_exe(pid, proc)
    mapped: Known[Mapped] = Missing("not a Python process")
    names: tuple[str, ...] = ()
    if stat.name.startswith(WORKER_NAME):
        mapped = WORKER_UNREAD
    elif deep or is_python_name(exe if isinstance(exe, str) else argv[0] if argv else ""):
        mapped = _permitted(lambda: parse_maps(read_file(f"{proc}/{pid}/maps", _MAPS_LIMIT)))
        if not isinstance(environ, dict) or "RANK" not in environ:
            names = read_thread_names(pid, proc)
    facts = Facts(stat, argv, environ, exe, mapped, names)
    _ = facts.program, facts.place  # unforeseen text fails here, where it costs one process alone
    return facts


def read_all_facts(
    stats: Iterable[StatLine],
    proc: str = PROC,
    *,
    deep: bool = False,
    each_s: float = _CHUNK_S,
    all_s: float = 0.0,
) -> dict[int, Facts]:
    """Read the facts of many processes with a deadline; those that are gone are left out.

    Without ``all_s`` the deadline grows with their number, up to 10 s. One whose address space does not
    answer keeps its name, program file and thread names.
    """
    by_pid = {stat.pid: stat for stat in stats}
    all_s = all_s or min(_MOST_S, _ALL_S + _MORE_S * len(by_pid))
    read = read_each(
        by_pid,
        lambda pid: read_facts(by_pid[pid], proc, deep=deep),
        each_s=each_s,
        all_s=all_s,
        blocked=_blocked.setdefault(proc, {}),
    )
    facts: dict[int, Facts] = {}
    for pid, answer in read.items():
        if isinstance(answer, Facts):
            facts[pid] = answer
            continue
        try:
            exe = read_exe(pid, proc)
        except OSError:
            continue  # gone since
        facts[pid] = Facts(by_pid[pid], (), answer, exe, answer, read_thread_names(pid, proc))
    return facts


_blocked: dict[str, dict[int, _Course[Facts]]] = {}
"""By the folder of /proc: readings that were left behind, each with a thread and a descriptor."""


def read_each(
    pids: Iterable[int],
    read: Callable[[int], T],
    *,
    each_s: float = _CHUNK_S,
    all_s: float = _ALL_S,
    blocked: dict[int, _Course[T]] | None = None,
) -> dict[int, Known[T]]:
    """Call ``read`` for each PID in a daemon thread and go on without those that block.

    OSError leaves a PID out as gone; any other exception is its reason. A PID that kept 32 reads from ending
    within ``each_s`` is Missing, and so is all that is left after ``all_s``. For a PID in ``blocked`` no
    other thread is started while the old one lives.
    """
    blocked = {} if blocked is None else blocked
    for pid in [pid for pid, course in tuple(blocked.items()) if not course.running]:
        blocked.pop(pid, None)
    asked = tuple(pids)
    answers: dict[int, Known[T]] = {pid: STILL_BLOCKED for pid in asked if pid in blocked}
    waiting = deque(pid for pid in asked if pid not in answers)
    end = time.monotonic() + all_s
    while waiting:
        left_s = end - time.monotonic()
        if left_s <= 0:
            answers.update((pid, Missing("no time left to read it")) for pid in waiting)
            break
        chunk = [waiting.popleft() for _ in range(min(_CHUNK, len(waiting)))]
        course = _Course(chunk, read)
        done = read_within(min(each_s, left_s), course.run)
        course.abandoned = True
        outcomes = list(course.outcomes)
        answers.update(
            (pid, outcome)
            for pid, outcome in zip(chunk, outcomes, strict=False)
            if not isinstance(outcome, OSError)
        )
        if isinstance(done, Missing) and len(outcomes) < len(chunk):
            answers[chunk[len(outcomes)]] = done
            if course.running:
                blocked[chunk[len(outcomes)]] = course
            waiting.extendleft(reversed(chunk[len(outcomes) + 1 :]))
    return answers


class _Course(Generic[T]):
    """Walk through one chunk of PIDs in a thread that may be left behind at any of them."""

    def __init__(self, pids: list[int], read: Callable[[int], T]) -> None:
        self._pids = pids
        self._read = read
        self.outcomes: list[Known[T] | OSError] = []
        self.abandoned = False
        self.running = False

    def run(self) -> bool:
        """Read until the end or until the caller has given up; return True."""
        self.running = True
        try:
            for pid in self._pids:
                if self.abandoned:
                    break
                try:
                    self.outcomes.append(self._read(pid))
                except OSError as error:
                    self.outcomes.append(error)
                except Exception as error:  # noqa: BLE001  # one process fails alone, and says why
                    self.outcomes.append(Missing(name_failure(error)))
        finally:
            self.running = False
        return True


def _permitted(read: Callable[[], T]) -> Known[T]:
    """Turn a refusal into Missing; a process that is gone still raises."""
    try:
        return read()
    except PermissionError:
        return Missing(_DENIED)


_MOST_THREADS = 512
_PF_EXITING = 0x4  # include/linux/sched.h
_CARD = "/dev/nvidia"
_MAY_END = "killed or ended"  # where nothing says how a process came to its end


@dataclass(frozen=True, slots=True)
class LeftThread:
    """Hold the thread that keeps a process whose first one has ended; a stuck thread goes first."""

    tid: int
    state: str
    wchan: Known[bytes]
    call: Known[bytes]
    is_ending: bool
    stuck: Wait | None  # it was to end with the process and has not; None where it does not sleep

    @property
    def words(self) -> str:
        """Say why the process lives."""
        goes_on = "is just ending" if self.is_ending else "goes on"
        if self.stuck is not None:
            return describe_wait(self.stuck)
        return f"its main thread has ended; thread {self.tid} {goes_on}"


def find_left(pid: int, loop_tid: int = 0, proc: str = PROC) -> LeftThread | None:
    """Find the thread that keeps a process whose first one has ended: a stuck one, else ``loop_tid``."""
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
    stuck = _make_wait(how, tid, wchan, folder) if how and states[tid] == "D" else None
    return LeftThread(tid, states[tid], wchan, _read(f"{folder}/syscall"), bool(how), stuck)


def pick_reader(stat: StatLine, proc: str = PROC) -> int:
    """Return the process's own number, or a living thread's under which /proc can be read."""
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
    """Say why a process with a thread that must end is ending: "killed", "exit 1"; "" for none."""
    status = read_or(b"", lambda: read_file(f"{folder}/status", 65536))  # b"": it ended meanwhile
    if int(parse_field(status, b"SigPnd") or b"0", 16) >> (signal.SIGKILL - 1) & 1:
        return "killed"
    thread = _read(f"{folder}/stat")
    fields = thread[thread.rindex(b")") + 2 :].split() if is_known(thread) and b")" in thread else []
    if len(fields) <= 6 or not int(fields[6]) & _PF_EXITING:
        return ""
    # 0: this user may not see it, or the process ended well.
    if stat.wait_status & 0x7F:
        return "killed"
    return f"exit {stat.wait_status >> 8}" if stat.wait_status else _MAY_END


def _make_wait(how: str, tid: int, wchan: Known[bytes], folder: str) -> Wait:
    """Describe the thread that keeps an ending process: "killed, but thread 7 is stuck in nv_ioctl (D)"."""
    named = admit_text(wchan.decode("ascii", "replace"), 64) if is_known(wchan) and wchan != b"0" else ""
    driver, verb, reason = is_in_driver(named), "stuck", WaitReason.KILLED
    if how == _MAY_END:
        verb, reason = "still", WaitReason.ENDING_IN_DRIVER if driver else WaitReason.ENDING
    elif driver:
        reason = WaitReason.KILLED_IN_DRIVER
    # {}: not ours to read, or its files are closed already
    links = read_or({}, lambda: read_links(tid, os.path.dirname(folder)))
    cards = " and holds its cards" if any(link.startswith(_CARD) for link in links.values()) else ""
    return Wait(reason, f"{how}, but thread {tid} is {verb} in {named or 'the kernel'} (D){cards}")
