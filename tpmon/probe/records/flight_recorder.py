"""Read the files of torch's FlightRecorder, and turn a dump of it into typed records.

Dumps differ by version: sizes and names are the same since 2.5; gloo (2.9) has "retired" instead of NCCL's
state, and names no members. What does not fit is left out, never guessed.

torch records each call of a batch (batch_isend_irecv, coalesced collectives) and one entry that closes it,
all with one collective number. Only the closing entry's state is updated; the calls before it stay
"scheduled" for ever. A batch of sends and receives uses a collective number too, and the ranks of a pipeline
make different numbers of batches.

The rank's start environment says where the files are, as torch decides it: <prefix><rank>. A file that is
older than the rank is of an earlier run and is not read.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import groupby

from tpmon.foreign_file import Owner, open_foreign, read_owner
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing
from tpmon.model.results.collectives import CallState, CollectiveCall, GroupRecord, RankRecord
from tpmon.model.stacks import StackFrame
from tpmon.model.text.redaction import admit_text
from tpmon.model.text.unpickle import Limits, load_plain
from tpmon.probe.base.procread import PROC, read_file

_CLOSES = (":coalesced", "_coalesced")
_GLOO = "gloo:"  # it makes no batches


@dataclass(frozen=True, slots=True)
class Entry:
    """Hold what decides whether an entry is shown; ``collective`` is the number of its batch.

    Most entries are done and only counted. ``sequence`` counts collectives, or transfers where it is one.
    """

    group: tuple[str, str]
    name: str
    sequence: int
    collective: int | None
    is_transfer: bool
    is_done: bool
    raw: Mapping[object, object]


@dataclass(frozen=True, slots=True)
class Settled:
    """Hold the calls of one process group, the number of its transfer batches, and the last entry."""

    entries: tuple[Entry, ...]
    batches: int
    newest: Entry


def settle_batches(entries: Sequence[Entry], *, renumber: bool) -> Settled:
    """Give the calls of each batch the state of its closing entry; ``entries`` are of one group.

    A batch of collectives becomes its closing entry. With ``renumber`` the numbers of collectives leave
    out batches of transfers.
    """
    settled: list[Entry] = []
    batches = 0
    for _, run in groupby(entries, key=lambda one: one.collective):
        same = list(run)
        end = next((index for index, one in enumerate(same) if one.name.endswith(_CLOSES)), None)
        if end is None:
            # The last one may be under way: its end is recorded when all its calls are made.
            found, dropped = (same, []) if same[-1] is entries[-1] else _divide_unclosed(same)
            number = len({one.sequence for one in dropped if one.is_transfer})
        else:
            found = [*_close(same[:end], same[end]), *same[end + 1 :]]
            number = int(_is_of_transfers(same[:end], same[end]))
        settled += (_shift(one, batches) for one in found) if renumber else found
        batches += number
    return Settled(tuple(settled), batches, entries[-1])


def _is_of_transfers(members: Sequence[Entry], closing: Entry) -> bool:
    return all(one.is_transfer for one in members) if members else closing.is_transfer


def _close(members: Sequence[Entry], closing: Entry) -> Iterable[Entry]:
    if not members:
        return (closing,)
    transfers = [replace(one, is_done=closing.is_done) for one in members if one.is_transfer]
    return transfers if _is_of_transfers(members, closing) else (*transfers, closing)


def _divide_unclosed(same: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Return single calls, and those of an unclosed batch, which may be done: CUDA graphs record no end."""
    counts = Counter((one.is_transfer, one.sequence) for one in same if not one.name.startswith(_GLOO))
    single = [one for one in same if counts[one.is_transfer, one.sequence] < 2]
    return single, [one for one in same if counts[one.is_transfer, one.sequence] >= 2]


def _shift(entry: Entry, batches: int) -> Entry:
    return entry if entry.is_transfer or not batches else replace(entry, sequence=entry.sequence - batches)


MOST_ENTRIES = 20_000
MOST_GROUPS = 256
CALLS_BEFORE, CALLS_AFTER = 4, 28  # calls of a group that are kept around its first that is not done
MOST_CALLS = CALLS_BEFORE + CALLS_AFTER
_LAST_NS = 1 << 62  # in the year 2116: no call is later
_LIMITS = Limits(file_bytes=64 << 20, values=4_000_000)
_MOST_SIZES, _MOST_DIMENSIONS, _MOST_RANKS = 16, 16, 16_384
_NO_RANKS = Missing("the record does not name its members")
_NO_TIMEOUT = Missing("the record has no timeout")
_PACKAGES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3", "<frozen ")


class RecordError(ValueError):
    """Say why a dump is not understood."""


def parse_pickle(data: bytes, origin: RankRecord) -> RankRecord:
    """Parse a FlightRecorder file's dump; ``origin`` is an empty record of the rank.

    PlainError when it is no pickle of plain containers, RecordError when it is no such dump.
    """
    return parse_record(load_plain(data, _LIMITS), origin)


def parse_json(data: bytes, origin: RankRecord) -> RankRecord:
    """Parse a dump as the debug server answers; RecordError when it is none, no JSON, or too large."""
    # Each value follows a comma or the start of its container; those within texts count as well.
    if sum(data.count(sign) for sign in b",[{") > _LIMITS.values:
        raise RecordError(f"more than {_LIMITS.values} values")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"no JSON: {error}") from error
    return parse_record(value, origin)


def parse_record(value: object, origin: RankRecord) -> RankRecord:
    """Parse a loaded dump; RecordError when it is none of a FlightRecorder."""
    dump = _mapping(value)
    if "version" not in dump or not ("entries" in dump or "pg_status" in dump):
        raise RecordError("it has no version or no entries: no dump of a FlightRecorder")
    entries = _sequence(dump.get("entries", ()))[-MOST_ENTRIES:]
    members = _read_members(_mapping(dump.get("pg_config")))
    status = _mapping(dump.get("pg_status"))
    groups: dict[tuple[str, str], list[Entry]] = {}
    for raw in entries:
        entry = _read_entry(raw)
        if entry is not None and (entry.group in groups or len(groups) < MOST_GROUPS):
            groups.setdefault(entry.group, []).append(entry)
    # Entry numbers begin at 0, and the buffer overwrites the oldest.
    from_start = all(_integer(_mapping(raw).get("record_id")) == 0 for raw in entries[:1])
    made = (
        _make_group(settle_batches(those, renumber=from_start), members, status) for those in groups.values()
    )
    return replace(origin, from_start=from_start, groups=tuple(made))


def _read_entry(value: object) -> Entry | None:
    raw = _mapping(value)
    group = _sequence(raw.get("process_group"))
    is_transfer = raw.get("is_p2p") is True
    sequence = _integer(raw.get("p2p_seq_id" if is_transfer else "collective_seq_id"))
    if len(group) != 2 or sequence is None or _read_created(raw) is None:
        return None
    # gloo does not update the state, and retires a call when it is done.
    done = raw.get("retired") is True or raw.get("state") == CallState.COMPLETED.value
    name, description = group
    return Entry(
        group=(_text(name), _text(description)),
        name=_text(raw.get("profiling_name")),
        sequence=sequence,
        collective=sequence if not is_transfer else _integer(raw.get("collective_seq_id")),
        is_transfer=is_transfer,
        is_done=done,
        raw=raw,
    )


def _read_created(raw: Mapping[object, object]) -> float | None:
    """Return when a call was made in seconds since 1970; None for an impossible time."""
    created_ns = _integer(raw.get("time_created_ns"))
    return created_ns / 1e9 if created_ns is not None and 0 < created_ns < _LAST_NS else None


def _make_group(
    settled: Settled, members: Mapping[str, tuple[int, ...]], status: Mapping[object, object]
) -> GroupRecord:
    entries = settled.entries
    collectives = sorted((one for one in entries if not one.is_transfer), key=lambda one: one.sequence)
    unfinished = [one.sequence for one in collectives if not one.is_done]
    newest = settled.newest
    if collectives:
        last_called = collectives[-1].sequence
        last_done = unfinished[0] - 1 if unfinished else last_called
    elif settled.batches:
        last_called = last_done = 0  # its status counts the batches
    else:
        told = _mapping(status.get(_text(newest.raw.get("pg_id"))))
        last_called = max(0, _integer(told.get("last_enqueued_collective")) or 0)
        last_done = min(last_called, max(0, _integer(told.get("last_completed_collective")) or 0))
    shown = [one for one in collectives if last_done - CALLS_BEFORE < one.sequence <= last_done + CALLS_AFTER]
    waits = [one for one in entries if one.is_transfer and not one.is_done]
    name, description = newest.group
    return GroupRecord(
        name=name,
        description=description,
        backend=newest.name.partition(":")[0],
        ranks=members.get(name, _NO_RANKS),
        last_called=last_called,
        last_done=last_done,
        calls=tuple(map(_make_call, (*shown[-MOST_CALLS:], *waits[:CALLS_AFTER]))),
        batches=settled.batches,
    )


def _make_call(entry: Entry) -> CollectiveCall:
    raw = entry.raw
    started = raw.get("state") == CallState.STARTED.value
    timeout_ms = _integer(raw.get("timeout_ms"))
    created_s = _read_created(raw) or 0.0
    return CollectiveCall(
        sequence=entry.sequence,
        name=entry.name.rpartition(":")[2],
        is_transfer=entry.is_transfer,
        state=CallState.COMPLETED if entry.is_done else CallState.STARTED if started else CallState.SCHEDULED,
        input_sizes=_read_sizes(raw.get("input_sizes")),
        output_sizes=_read_sizes(raw.get("output_sizes")),
        input_types=_read_types(raw.get("input_dtypes")),
        output_types=_read_types(raw.get("output_dtypes")),
        created=datetime.fromtimestamp(created_s, tz=timezone.utc).astimezone(),
        timeout_s=timeout_ms / 1e3 if timeout_ms is not None and timeout_ms > 0 else _NO_TIMEOUT,
        line=_find_line(_sequence(raw.get("frames"))),
    )


def _read_members(config: Mapping[object, object]) -> dict[str, tuple[int, ...]]:
    """Read the ranks of each group, written there as text: "[0, 1, 2]"."""
    members: dict[str, tuple[int, ...]] = {}
    for name, raw in config.items():
        words = _text(_mapping(raw).get("ranks"), _MOST_RANKS * 8).strip("[] ").split(",")
        ranks = [int(word) for word in words if word.strip().isdecimal() and len(word) < 12]
        if ranks:
            members[_text(name)] = tuple(ranks)
    return members


def _read_sizes(raw: object) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(size for one in _sequence(sizes)[:_MOST_DIMENSIONS] if (size := _integer(one)) is not None)
        for sizes in _sequence(raw)[:_MOST_SIZES]
    )


def _read_types(raw: object) -> tuple[str, ...]:
    return tuple(_text(one, 40) for one in _sequence(raw)[:_MOST_SIZES])


def _find_line(frames: Sequence[object]) -> Applicable[StackFrame]:
    """Return the innermost frame outside installed packages; frames come innermost first."""
    for raw in frames:
        frame = _mapping(raw)
        file, line = _text(frame.get("filename"), 400), _integer(frame.get("line"))
        if file and line is not None and not any(part in file for part in _PACKAGES):
            return StackFrame(_text(frame.get("name")), file, line)
    return NOT_APPLICABLE


def _mapping(value: object) -> Mapping[object, object]:
    return value if isinstance(value, dict) else {}


def _sequence(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else ()


def _integer(value: object) -> int | None:
    """Return a number; torch's JSON writes some as text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return int(value) if value.lstrip("-").isdecimal() and len(value) < 20 else None
    return value if isinstance(value, int) and abs(value) < 1 << 63 else None


def _text(value: object, limit: int = 120) -> str:
    if isinstance(value, int):
        return str(value)
    return admit_text(value, limit) if isinstance(value, str) else ""


PREFIX_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
PIPE_VARIABLES = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DEBUG_INFO_PIPE_FILE")
DEFAULT_NAME = "torch/comm_lib_trace_rank_"
OLD_PREFIX = "/tmp/nccl_trace_rank_"  # noqa: S108  # where torch before 2.8 wrote it
MOST_BYTES = 64 << 20
WRITTEN_S = 20.0  # for a file that was asked for: NCCL checks its pipe every few seconds
_SETTLED_S = 0.3
_CLOCK_STEP = timedelta(seconds=0.05)  # file times come in ticks, so a new file can look a little older
_LOOK_AGAIN_S = 0.1
_NAMES = re.compile(
    rb"(?:\A|\0)(HOME|XDG_CACHE_HOME|TORCH_FR_\w+|TORCH_NCCL_\w+|NCCL_RAS_\w+|TORCH_WORKER_SERVER_SOCKET)"
    rb"=([^\0]*)"
)


@dataclass(frozen=True, slots=True)
class RecordFile:
    """Hold what a file held, and when it was written."""

    data: bytes
    written: datetime


def read_environment(pid: int, proc: str = PROC) -> dict[str, str]:
    """Read the variables of a rank's start that say where its records are; OSError if unreadable."""
    data = read_file(f"{proc}/{pid}/environ")
    return {name.decode(): value.decode("utf-8", "surrogateescape") for name, value in _NAMES.findall(data)}


def list_paths(environment: Mapping[str, str], rank: int) -> tuple[str, ...]:
    """List where a rank's file may be, as the rank sees it, the likeliest first. Pure."""
    told = next((environment[name] for name in PREFIX_VARIABLES if environment.get(name)), "")
    if told:
        return (f"{told}{rank}",) if told.startswith("/") else ()
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME') or '/tmp'}/.cache"  # noqa: S108
    return (f"{cache}/{DEFAULT_NAME}{rank}", f"{OLD_PREFIX}{rank}")


def pipe_path(environment: Mapping[str, str], rank: int) -> str:
    """Return a rank's named pipe that asks for a dump when written to; "" for none. Pure."""
    stem = next((environment[name] for name in PIPE_VARIABLES if environment.get(name)), "")
    return f"{stem}{rank}.pipe" if stem.startswith("/") else ""


def read_record_file(
    pid: int, rank: int, environment: Mapping[str, str], started: datetime, proc: str = PROC
) -> RecordFile:
    """Read a rank's newest file that is not older than it; OSError with the reason where there is none."""
    paths = list_paths(environment, rank)
    if not paths:
        raise FileNotFoundError("the path of its record is relative to a folder that is not known")
    old = False
    owner = read_owner(pid, proc)
    for path in paths:
        try:
            found = _read_newer(f"{proc}/{pid}/root{path}", started, owner)
        except FileNotFoundError:
            continue
        if found is not None:
            return found
        old = True
    if old:
        raise FileNotFoundError(f"{paths[0]} is older than the job: of an earlier run")
    raise FileNotFoundError(f"no file {paths[0]}: torch writes it when a collective times out")


def _read_newer(seen: str, started: datetime, owner: Owner) -> RecordFile | None:
    with os.fdopen(open_foreign(seen, owner, MOST_BYTES), "rb") as file:
        written = datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, tz=timezone.utc).astimezone()
        return RecordFile(file.read(MOST_BYTES), written) if written >= started else None


def ask_pipe(pid: int, rank: int, environment: Mapping[str, str], proc: str = PROC) -> None:
    """Write to a rank's pipe, so that NCCL's watchdog writes its file; OSError without a pipe or a reader."""
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
    """Wait until a rank has written its whole record after ``asked``; OSError after ``seconds``."""
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
