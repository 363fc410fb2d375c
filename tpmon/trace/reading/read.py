"""Read a trace of torch.profiler into columns: the one parser of traces.

Events are decoded in pieces: a file of a gigabyte takes a fraction of it in memory. What cannot be read is
counted in ``Lost``; only what is no trace at all is an error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Mapping

import msgspec

from tpmon.errors import UsageError
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing
from tpmon.model.results.trace import Lost
from tpmon.model.units import clean_text
from tpmon.trace.reading.chunks import LossTally
from tpmon.trace.reading.columns import (
    CallTable,
    Collective,
    EventTable,
    HostTable,
    Launch,
    Mask,
    MemoryTable,
    PythonTable,
    WorkTable,
    distinct,
)
from tpmon.trace.reading.parts import Decoded, Jobs, decode_file, one_job
from tpmon.trace.reading.schema import (
    UNREADABLE,
    Category,
    Device,
    Distributed,
    Id,
    TraceHeader,
    begins,
    flag,
)
from tpmon.trace.reading.sources import open_bytes
from tpmon.trace.reading.tables import Tables, parse_collective, parse_launch, parse_shape

Progress = Callable[[int, int], None]
"""Is told how many bytes of the file are read, and how many it has."""

_HEADER = msgspec.json.Decoder(TraceHeader, strict=False)
_HEADER_FIELDS = msgspec.structs.fields(TraceHeader)
_RANK = re.compile(r"rank[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
_WORKER = re.compile(r"worker[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
_NAMESPACES = (
    r"aten prims? \w*prims autograd torch\w* c10 _?c10d\w* inductor profiler cudnn quantized\w* _quantized "
    r"sparse mkldnn\w* mkl onednn xnnpack symm_mem fsdp fbgemm static_runtime"
).replace(" ", "|")
"""Whose operators torch and its domain libraries name so; those of a program never come without them."""
_is_of_torch = begins(
    rf"(?:{_NAMESPACES})::|ProfilerStep#|Optimizer\.|enumerate\(|Distributed|\w*Backward\d*$"
)
_UNREAD = ("B", "E")
"""Phases of events that begin and end apart, which torch does not write: counted, not paired."""
_TRY = "tpmon trace FILE, with a file that torch.profiler wrote and that is whole"
UNSAID = Missing("the trace does not say it")


@dataclass(frozen=True, slots=True)
class Trace:
    """Hold a trace: tables in nanoseconds, and the lists that their numbers stand for.

    ``names`` are of events; ``tracks`` are (process, thread); ``shapes`` are the raw texts of
    "Input Dims" and "Input type". ``rank`` is -1 where neither trace nor file name tells it.
    """

    path: str
    header: TraceHeader
    rank: int
    host: HostTable
    calls: CallTable
    work: WorkTable
    python: PythonTable
    memory: MemoryTable
    names: list[str]
    tracks: list[tuple[Id, Id]]
    shapes: list[tuple[bytes, bytes]]
    launches: list[Launch]
    collectives: list[Collective]
    phases: Mapping[str, int]
    events: int
    file_bytes: int
    json_bytes: int
    lost: Lost
    answers: dict[Callable[[str], bool], Mask] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )
    """What tests said of the names: several tables ask the same."""

    def named(self, table: EventTable, test: Callable[[str], bool]) -> Mask:
        """Tell of each event of a table whether its name passes a test."""
        if test not in self.answers:
            self.answers[test] = flag(self.names, test)
        return self.answers[test][table.name]

    def select(self, category: Category, device: int | None = None) -> Mask:
        """Tell which rows of device work are of a category, and of one device."""
        rows: Mask = self.work.category == category
        return rows if device is None else rows & (self.work.device == device)

    def list_devices(self) -> list[int]:
        """List the devices that worked."""
        devices: list[int] = distinct(self.work.device).tolist()
        return devices


def read_trace(path: str, progress: Progress | None = None, jobs: Jobs = one_job) -> Trace:
    """Read the trace at ``path``, plain or gzip, of this machine or of an object store (``sources``).

    UsageError where there is no file, or it is no trace; NotPermittedError where it may not be read.
    """
    with open_bytes(path) as (file, size):
        try:
            tables, found = decode_file(file, size, progress, jobs)
        except UsageError as error:
            raise UsageError(f"{path}: {error.what}", error.try_this) from error
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}", "tpmon trace FILE...") from error
    if why := _refuse(tables, found):
        raise UsageError(f"{path}: {why}", _TRY)
    trace = _make_trace(path, size, tables, found)
    if _is_of_another(trace, tables.guessed):
        why = "none of its events has a category or a name of torch.profiler"
        raise UsageError(f"{path}: {why}", _TRY)
    return trace


def _is_of_another(trace: Trace, guessed: int) -> bool:
    """Tell whether all that a file has are whole events of no category or name that torch writes.

    What has no category, as ``guessed`` events have not, counts as an operator.
    """
    host = trace.host
    others = (trace.calls.start, trace.work.start, trace.python.start, trace.memory.time)
    beside = (getattr(trace.header, field.name) for field in _HEADER_FIELDS)
    if not len(host.start) or any(map(len, others)) or any(beside):
        return False
    known = int((host.category != Category.OTHER).sum())
    operators = int((host.category == Category.OP).sum())
    return known == operators <= guessed and not bool(trace.named(host, _is_of_torch).any())


def _refuse(tables: Tables, found: Decoded) -> str:
    """Say why nothing that was read is of torch.profiler; "" where something may be, or nothing was there."""
    phases = tables.phases
    if not phases and not found.closed and found.tally.events:
        return "none of its events could be read"
    if set(phases) == {""}:
        return "the file is no trace of torch.profiler but a JSON list of something else: no item has a ph"
    apart = sum(phases[one] for one in _UNREAD)
    if apart and not phases["X"]:
        return (
            f"its {apart:,} events begin and end apart (ph B and E): it is of another tracer; "
            "torch.profiler writes whole events (ph X), which alone are read"
        )
    return ""


def _make_trace(path: str, size: int, tables: Tables, found: Decoded) -> Trace:
    tally = found.tally
    header = _read_header(found.beside, tally)
    rank = _find_rank(path, header, tables.rank)
    host, calls, work, python, memory = tables.finish()
    apart = sum(tables.phases[one] for one in _UNREAD)
    return Trace(
        path=path,
        header=header,
        rank=rank,
        host=host,
        calls=calls,
        work=work,
        python=python,
        memory=memory,
        names=tables.names.kept,
        tracks=tables.tracks.kept,
        shapes=[parse_shape(key) for key in tables.shapes.kept],
        launches=[parse_launch(key) for key in tables.launches.kept],
        collectives=[parse_collective(key) for key in tables.collectives.kept],
        phases=dict(tables.phases),
        events=found.events,
        file_bytes=size,
        json_bytes=found.unpacked_bytes,
        lost=Lost(
            events=tally.events + tables.odd_times + apart,
            values=tally.values + tables.odd_values,
            bytes=tally.bytes,
            broken_off=bool(found.broken) or not found.closed,
            reason=found.broken or ("" if found.closed else "the list of events is not closed"),
            apart=apart,
        ),
    )


def _read_header(beside: list[bytes], tally: LossTally) -> TraceHeader:
    """Read what stands before and after the events; the later one wins where both say it."""
    header = TraceHeader()
    for text in beside:
        read = _read_part(text, tally)
        for field in _HEADER_FIELDS:
            value = getattr(read, field.name)
            if isinstance(value, msgspec.Raw):
                if not value:
                    continue
                value = value.copy()  # it would hold all that stands beside the events
            if value is not None:
                setattr(header, field.name, value)
    return header


def _read_part(text: bytes, tally: LossTally) -> TraceHeader:
    try:
        return _HEADER.decode(b"{" + text + b"}")
    except UNREADABLE:
        pass
    header = TraceHeader()
    for field in _HEADER_FIELDS:  # one bad value does not cost the others
        found = re.search(rb'"' + field.encode_name.encode() + rb'"\s*:\s*', text)
        if found is None:
            continue
        try:
            rest = text[found.end() :].decode("utf-8", "replace")
            value = rest[: json.JSONDecoder(strict=False).raw_decode(rest)[1]].encode()
            setattr(header, field.name, msgspec.json.decode(value, type=field.type, strict=False))
        except UNREADABLE:
            tally.values += 1
    return header


def _find_rank(path: str, header: TraceHeader, said: int) -> int:
    """Find the rank: what the trace says, else the name of the file, else its communication calls.

    A worker in the name comes last: of a pod that is called so all ranks have the same.
    """
    if header.distributed is not None and header.distributed.rank >= 0:
        return header.distributed.rank
    name = os.path.basename(path)
    if found := _RANK.findall(name):
        return int(found[-1])
    if said >= 0:
        return said
    return int(found[-1]) if (found := _WORKER.findall(name)) else -1


def find_device(trace: Trace, device: int) -> Device | None:
    """Return what the trace says of a card; the only one described where numbers do not match."""
    known = trace.header.devices or []
    return next((one for one in known if one.id == device), known[0] if len(known) == 1 else None)


def read_distributed(trace: Trace) -> Distributed:
    """Return what the trace says of its job; empty where it says nothing."""
    return trace.header.distributed or Distributed()


def read_world_size(trace: Trace) -> Known[int]:
    """Return of how many ranks the job is."""
    size = read_distributed(trace).world_size
    return size if size > 0 else UNSAID


def read_rank(trace: Trace) -> Known[int]:
    """Return which rank the trace is of."""
    return trace.rank if trace.rank >= 0 else Missing("neither the trace nor its name has the rank")


def clean_name(text: str, limit: int = 400) -> str:
    """Make a name of a trace fit for a terminal."""
    return clean_text(text, limit)
