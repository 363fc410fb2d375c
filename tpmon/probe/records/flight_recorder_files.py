"""Read the files into which torch writes its FlightRecorder: one a rank, at a timeout or on request.

Where they lie is told by the environment that the rank was started with, as torch itself decides it:
<prefix><rank>. A file that is older than the rank is of an earlier run and is not read.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

from tpmon.foreign_file import Owner, open_foreign, read_owner
from tpmon.model.frozen import dataclass
from tpmon.probe.base.procread import PROC, read_file

PREFIX_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
PIPE_VARIABLES = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DEBUG_INFO_PIPE_FILE")
DEFAULT_NAME = "torch/comm_lib_trace_rank_"
OLD_PREFIX = "/tmp/nccl_trace_rank_"  # noqa: S108  # where torch before 2.8 wrote it
MOST_BYTES = 64 << 20
WRITTEN_S = 20.0
"""How long a file is waited for after it was asked for: NCCL looks at its pipe every few seconds."""
_SETTLED_S = 0.3
_CLOCK_STEP = timedelta(seconds=0.05)
"""File times come from a clock that ticks, so a new file can look a little older than it is."""
_LOOK_AGAIN_S = 0.1
_NAMES = re.compile(
    rb"(?:\A|\0)(HOME|XDG_CACHE_HOME|TORCH_FR_\w+|TORCH_NCCL_\w+|NCCL_RAS_\w+|TORCH_WORKER_SERVER_SOCKET)"
    rb"=([^\0]*)"
)


@dataclass(frozen=True, slots=True)
class RecordFile:
    """Hold what a file held, its name as the rank sees it, and when it was written."""

    path: str
    data: bytes
    written: datetime


def read_environment(pid: int, proc: str = PROC) -> dict[str, str]:
    """Read the variables that say where a rank puts its records; those of its start, not set later.

    Raises:
        OSError: when it may not be read, or the process is gone.
    """
    data = read_file(f"{proc}/{pid}/environ")
    return {name.decode(): value.decode("utf-8", "surrogateescape") for name, value in _NAMES.findall(data)}


def list_paths(environment: Mapping[str, str], rank: int) -> tuple[str, ...]:
    """List where the file of a rank may lie, as the rank sees it, the likeliest first. Pure."""
    told = next((environment[name] for name in PREFIX_VARIABLES if environment.get(name)), "")
    if told:
        return (f"{told}{rank}",) if told.startswith("/") else ()
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME') or '/tmp'}/.cache"  # noqa: S108
    return (f"{cache}/{DEFAULT_NAME}{rank}", f"{OLD_PREFIX}{rank}")


def pipe_path(environment: Mapping[str, str], rank: int) -> str:
    """Return the named pipe of a rank that asks for a dump when it is written to; "" for none. Pure."""
    stem = next((environment[name] for name in PIPE_VARIABLES if environment.get(name)), "")
    return f"{stem}{rank}.pipe" if stem.startswith("/") else ""


def read_record_file(
    pid: int, rank: int, environment: Mapping[str, str], started: datetime, proc: str = PROC
) -> RecordFile:
    """Read the newest file of one rank that is not older than the rank.

    Raises:
        OSError: when there is none, or it cannot be read; the words say why.
    """
    paths = list_paths(environment, rank)
    if not paths:
        raise FileNotFoundError("the path of its record is relative to a folder that is not known")
    old = False
    owner = read_owner(pid, proc)
    for path in paths:
        try:
            found = _read_newer(f"{proc}/{pid}/root{path}", path, started, owner)
        except FileNotFoundError:
            continue
        if found is not None:
            return found
        old = True
    if old:
        raise FileNotFoundError(f"{paths[0]} is older than the job: of an earlier run")
    raise FileNotFoundError(f"no file {paths[0]}: torch writes it when a collective times out")


def _read_newer(seen: str, path: str, started: datetime, owner: Owner) -> RecordFile | None:
    with os.fdopen(open_foreign(seen, owner, MOST_BYTES), "rb") as file:
        written = datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, tz=timezone.utc).astimezone()
        return RecordFile(path, file.read(MOST_BYTES), written) if written >= started else None


def ask_pipe(pid: int, rank: int, environment: Mapping[str, str], proc: str = PROC) -> None:
    """Write a byte into the pipe of a rank: its NCCL watchdog then writes its record to the file.

    Raises:
        OSError: when it has no pipe, or nobody reads it.
    """
    path = pipe_path(environment, rank)
    if not path:
        raise FileNotFoundError(f"it has no pipe: start the job with {PIPE_VARIABLES[0]}=/tmp/fr_pipe_")
    # Without a reader the open fails at once (ENXIO) instead of waiting for one.
    seen, owner = f"{proc}/{pid}/root{path}", read_owner(pid, proc)
    fd = open_foreign(seen, owner, flags=os.O_WRONLY, is_kind=stat.S_ISFIFO)
    try:
        os.write(fd, b"1")
    finally:
        os.close(fd)


def wait_for_record(
    pid: int,
    rank: int,
    environment: Mapping[str, str],
    asked: datetime,
    proc: str = PROC,
    *,
    seconds: float = WRITTEN_S,
) -> RecordFile:
    """Wait until a rank has written its record after ``asked``, and has written all of it.

    Raises:
        OSError: when it did not within ``seconds``.
    """
    end_s = time.monotonic() + seconds
    since = asked - _CLOCK_STEP
    size = -1
    while time.monotonic() < end_s:
        try:
            found = read_record_file(pid, rank, environment, since, proc)
        except FileNotFoundError:
            time.sleep(_LOOK_AGAIN_S)
            continue
        if found.data and len(found.data) == size:
            return found
        size = len(found.data)
        time.sleep(_SETTLED_S)
    raise TimeoutError(f"it wrote no record within {seconds:g} s")
