"""Read what /proc says of processes on the cold path, each process by itself.

``proc`` is the root of the tree, so that tests bring their own. What touches another address space (cmdline,
environ, maps) can block for ever on a stuck mmap lock: ``process_facts.read_each`` calls it with a deadline.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from itertools import islice
from typing import TypeVar

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.text.redaction import admit_text, name_failure

K = TypeVar("K")
T = TypeVar("T")
U = TypeVar("U")


_READ_LIMIT = 1 << 20
_CHUNK_BYTES = 1 << 16  # a read allocates all that it may return, and most files come a page at a time


def read_apart(read: Callable[[], T]) -> Known[T]:
    """Call ``read``; any exception of it is the reason why there is no answer."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001  # text of others can be anything
        return Missing(name_failure(error))


def read_or(otherwise: U, read: Callable[[], T]) -> T | U:
    """Call ``read``; return ``otherwise`` where what it reads is gone, hidden or cut short."""
    try:
        return read()
    except (OSError, ValueError):
        return otherwise


def read_text(path: str, limit: int = 64 << 20, errors: str = "replace") -> str:
    """Read a text file; "" where it is not there, or not for this user."""
    return read_or("", lambda: read_file(path, limit).decode("utf-8", errors))


def each_process(processes: Iterable[K], read: Callable[[K], T]) -> dict[K, Known[T]]:
    """Call ``read`` for each one; OSError leaves it out as gone, any other exception becomes its reason."""
    found: dict[K, Known[T]] = {}
    for one in processes:
        try:
            found[one] = read(one)
        except OSError:
            continue
        except Exception as error:  # noqa: BLE001  # text of others can be anything
            found[one] = Missing(name_failure(error))
    return found


TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PROC = "/proc"

_ARGUMENTS = 4096
_VARIABLES = 512
_VALUE_BYTES = 4096
_THREADS_LIMIT = 1024
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of include/linux/proc_ns.h
CLOCK_STEP_S = 1.0  # a wall clock that moves further against the time since boot was set, not adjusted
_PF_KTHREAD = 0x00200000  # include/linux/sched.h
_PF_FORKNOEXEC = 0x00000040

_SHOWN = (
    r"(?:OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS|OMP_WAIT_POLICY|KMP_\w+|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER"
    r"|CUDA_LAUNCH_BLOCKING|TORCH_DISTRIBUTED_DEBUG|(?:TORCH_)?NCCL_\w+|GLOO_SOCKET_IFNAME|TORCH_LOGS"
    r"|PYTORCH_NO_CUDA_MEMORY_CACHING|PYTORCH_(?:CUDA_)?ALLOC_CONF|(?:LOCAL_|NODE_|GROUP_)?RANK"
    r"|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|SLURM_JOB_ID|TORCHELASTIC_RESTART_COUNT"
)
_RANKING = (
    r"OMPI_COMM_WORLD_(?:RANK|LOCAL_RANK|SIZE)|PMI_(?:RANK|SIZE|JOBID)|MPI_LOCALRANKID|PMIX_NAMESPACE|PALS_APID"
    r"|SLURM_(?:PROCID|LOCALID|STEP_ID|STEP_NUM_TASKS)|FLUX_JOB_ID|HOROVOD_(?:RANK|LOCAL_RANK|SIZE)"
    r"|TORCHELASTIC_RUN_ID"
)
_ENVIRON = re.compile(rf"(?:\A|\0)({_SHOWN}|{_RANKING})=([^\0]*)".encode())
SHOWN_NAME = re.compile(_SHOWN)

_TORCH = re.compile(
    rb"^\S+ \S+ \S+ \S+ \d+ +(/[^\n]*/)libtorch(?:_cpu|_cuda|_hip|_xpu|_python|_global_deps)?\.so[^\n]*\n",
    re.MULTILINE,  # each line is gone through once: a name may hold thousands of " /"
)
_PYTHON = re.compile(
    rb"(?:libpython|/bin/python|/python(?=3\.\d+t?/(?:lib-dynload|site-packages|dist-packages)/))(3\.\d+)"
)


@dataclass(frozen=True, slots=True)
class StatLine:
    """Hold the fields of /proc/PID/stat that tpmon uses.

    ``start_ticks`` (field 22) are clock ticks since boot, ``kernel_ticks`` (15) those of CPU inside the
    kernel. ``wait_status`` (52) is 0 while the process lives. ``image`` (28) is where the stack begins, which
    each exec changes. Both are 0 for a reader without ptrace read permission. ``children_faults`` (cminflt)
    grows only when a child is reaped. ``forked``: it was forked and runs its parent's program still.
    """

    pid: int
    name: str
    state: str
    parent: int
    kernel: bool
    threads: int
    start_ticks: int
    wait_status: int
    image: int = 0
    kernel_ticks: int = 0
    cpu_s: float = 0.0
    minor_faults: int = 0
    children_faults: int = 0
    major_faults: int = 0
    rss_bytes: int = 0
    forked: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """Hold uid and PIDs of /proc/PID/status; ``ns_pids`` go inwards from ours: one is no container below."""

    thread_group: int
    uid: int
    ns_pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mapped:
    """Hold the mapped libtorch's folder and the Python, "" for none; ``replaced``: torch changed on disk."""

    torch: str
    replaced: bool
    python: str


def is_python_name(path: str) -> bool:
    """Tell by its name whether a program file is an interpreter."""
    return os.path.basename(path).startswith(("python", "pypy"))


def read_file(path: str, limit: int = _READ_LIMIT, flags: int = 0) -> bytes:
    """Read a file of /proc, at most ``limit`` bytes; OSError as the kernel says."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    parts: list[bytes] = []
    left = limit
    try:
        while left > 0 and (data := os.read(fd, min(left, _CHUNK_BYTES))):
            parts.append(data)
            left -= len(data)
        return b"".join(parts)
    finally:
        os.close(fd)


def parse_stat(data: bytes) -> StatLine:
    """Parse /proc/PID/stat, ValueError where it is cut; the name may hold spaces and parentheses."""
    start, end = data.index(b"("), data.rindex(b")")
    rest = data[end + 2 :].split()
    if len(rest) < 22:
        raise ValueError("short stat line")
    wait_status = int(rest[49]) if len(rest) > 49 else 0
    image = int(rest[25]) if len(rest) > 25 else 0
    kernel_ticks = int(rest[12])
    cpu_s = (int(rest[11]) + kernel_ticks) / TICKS_PER_S
    # By position, as names take a quarter longer: this runs for each process each second.
    return StatLine(
        int(data[:start]),
        parse_name(data[start + 1 : end]),
        rest[0].decode("ascii", "replace"),
        int(rest[1]),
        bool((flags := int(rest[6])) & _PF_KTHREAD),
        int(rest[17]),
        int(rest[19]),
        wait_status,
        image,
        kernel_ticks,
        cpu_s,
        int(rest[7]),
        int(rest[8]),
        int(rest[9]),
        int(rest[21]) * PAGE_BYTES,
        bool(flags & _PF_FORKNOEXEC),
    )


def read_stat(pid: int | str, proc: str = PROC) -> StatLine:
    """Read /proc/PID/stat; OSError when there is no such process or it may not be seen."""
    try:
        return parse_stat(read_file(f"{proc}/{pid}/stat", 4096))
    except ValueError as error:  # an empty read: the process went away under us
        raise ProcessLookupError(3, "no such process") from error


def has_ended(state: str, threads: int) -> bool:
    """Tell whether a process has ended, not just its first thread: another may be stuck in the kernel."""
    return state == "X" or (state == "Z" and threads < 2)


def list_pids(proc: str = PROC) -> list[int]:
    """List the processes of this machine that this user may see."""
    return [int(name) for name in os.listdir(proc) if name.isdigit()]


def read_table(proc: str = PROC) -> dict[int, StatLine]:
    """Read the stat line of every process; those that go meanwhile are left out."""
    read = each_process(list_pids(proc), lambda pid: read_stat(pid, proc))
    return {pid: stat for pid, stat in read.items() if is_known(stat)}


def parse_cmdline(data: bytes) -> tuple[str, ...]:
    """Split /proc/PID/cmdline; a title that the process set itself is one argument."""
    words = data.rstrip(b"\0").split(b"\0", _ARGUMENTS)[:_ARGUMENTS] if data else ()
    return tuple(word.decode(errors="replace") for word in words)


def parse_environ(data: bytes) -> dict[str, str]:
    """Pick the variables of interest out of /proc/PID/environ: their values at exec, not later ones."""
    return {
        name.decode(): value[:_VALUE_BYTES].decode(errors="replace")
        for name, value in islice(_ENVIRON.findall(data), _VARIABLES)
    }


def parse_field(text: bytes, name: bytes) -> bytes:
    """Return what follows "name:" in a file of such lines; b"" where there is no such line."""
    start = name + b":"
    return next((line[len(start) :].strip() for line in text.splitlines() if line.startswith(start)), b"")


def parse_status(data: bytes) -> Status:
    """Parse /proc/PID/status. NSpid is there since Linux 4.1."""
    fields = dict(line.split(b":", 1) for line in data.splitlines() if b":" in line)
    group = int(fields[b"Tgid"])
    inner = fields.get(b"NSpid", b"%d" % group).split()
    return Status(group, int(fields[b"Uid"].split()[1]), tuple(map(int, inner)))


def read_status(pid: int, proc: str = PROC) -> Status:
    """Read /proc/PID/status, also of a thread; OSError when there is none or it may not be seen."""
    try:
        return parse_status(read_file(f"{proc}/{pid}/status", 65536))
    except (KeyError, ValueError, IndexError) as error:  # cut short: the process went away under us
        raise ProcessLookupError(3, "no such process") from error


def parse_maps(data: bytes) -> Mapped:
    """Find libtorch and the Python version among the mappings of /proc/PID/maps."""
    torch = _TORCH.search(data)
    python = _PYTHON.search(data)
    return Mapped(
        torch=torch.group(1).decode(errors="surrogateescape").rstrip("/") if torch else "",
        replaced=bool(torch) and torch.group().endswith(b" (deleted)\n") if torch else False,
        python=python.group(1).decode() if python else "",
    )


def read_thread_names(pid: int, proc: str = PROC) -> tuple[str, ...]:
    """Read the names of all threads but the main one, at most 1,024; () when the process is gone."""
    folder = f"{proc}/{pid}/task"
    try:
        threads = os.listdir(folder)[:_THREADS_LIMIT]
    except OSError:
        return ()
    others = [thread for thread in threads if thread != str(pid)]
    names = each_process(others, lambda thread: parse_name(read_file(f"{folder}/{thread}/comm", 64)))
    return tuple(name for name in names.values() if is_known(name))


def read_links(pid: int | str, proc: str = PROC, most: int = 4096) -> dict[str, str]:
    """Read where the descriptors of a process lead; OSError where they may not be listed."""
    folder = f"{proc}/{pid}/fd"
    links = each_process(os.listdir(folder)[:most], lambda name: os.readlink(f"{folder}/{name}"))
    return {name: link for name, link in links.items() if is_known(link)}


def parse_name(data: bytes) -> str:
    """Parse a comm: at most 15 bytes, of any kind, and a line feed."""
    name = data.rstrip(b"\n").decode(errors="replace")
    return name if name.isascii() and name.isprintable() else admit_text(name, 64)


def in_first_pid_namespace(proc: str = PROC) -> bool:
    """Tell whether PIDs are the host's own here, unlike in a container."""
    return read_or(False, lambda: os.readlink(f"{proc}/self/ns/pid") == _FIRST_PID_NAMESPACE)


def read_boot_id() -> str:
    """Return the random name of this boot of the machine; "" where it cannot be read."""
    try:
        return read_file("/proc/sys/kernel/random/boot_id", 64).decode("ascii", "replace").strip()
    except OSError:
        return ""


def boot_time_s() -> float:
    """Return the time of boot in epoch seconds; lxcfs replaces btime of /proc/stat in containers."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def follow_boot_time_s(before_s: float) -> float:
    """Return ``before_s``, or the time of boot anew where the wall clock was set since."""
    now_s = boot_time_s()
    return now_s if abs(now_s - before_s) > CLOCK_STEP_S else before_s


def started_at(start_ticks: int, boot_s: float) -> datetime:
    """Return when a process started, in local time with its offset."""
    return datetime.fromtimestamp(boot_s + start_ticks / TICKS_PER_S, tz=timezone.utc).astimezone()


def date_file(modified_s: float) -> Known[datetime]:
    """Return the time of a file in local time; Missing for a year out of range, which its owner can set."""
    try:
        return datetime.fromtimestamp(modified_s, tz=timezone.utc).astimezone()
    except (OSError, OverflowError, ValueError):
        return Missing("the file has the time of no year that there is")


def read_exe(pid: int, proc: str) -> Known[str]:
    """Read which program file runs; "" for a kernel thread or a zombie, OSError for one that is gone."""
    try:
        return os.readlink(f"{proc}/{pid}/exe").removesuffix(" (deleted)")
    except PermissionError as error:
        from tpmon.model.results.doctor import say_refusal  # noqa: PLC0415  # its module is large

        return Missing(say_refusal(error, "environ"))
    except FileNotFoundError:
        if os.path.exists(f"{proc}/{pid}"):
            return ""
        raise
