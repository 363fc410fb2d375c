"""Lay out the bus between the hook in a training process and tpmon outside (docs/hook-bus.md).

Two memfds of the training process, found through /proc/PID/fd. ``tpmon``, 200,704 bytes, telemetry;
only the process itself can write it (F_SEAL_FUTURE_WRITE). All numbers little-endian:

    offset  size     what
    0       240      header, written once, its magic last: ``_HEADER``
    240     8        1 while SIGURG is the hook's
    256     16       state, patches: u64 each
    272     240      error text, UTF-8, zero-padded, written before the state that it explains
    512     64       live words, u64: LIVE_*
    576     16       answered mailbox request, its answer: u64 each, the answer first
    640     384      what became of a capture: ``wire_capture``
    1024    1024     16 marks of 64 bytes: name 40 bytes, then u64 calls, total ns, longest ns
    2048    640      settings and device times: ``wire_settings``
    2688    1408     the conditions of the run, where they were asked for: ``wire_capture``
    4096    196608   ring of 1,024 records of 24 u64: REC_*

``tpmon-ctl``, 4,096 bytes, the mailbox, writable by the same user: magic, version, pid, and at 64
the request: its number (written last), its kind, then what ``wire_capture`` says. Nothing in it is trusted.

Where neither can be made, the reason may lie at WORD_ADDRESS of the process's memory: a magic, then text.

Every value is cumulative: a reader that comes late or skips records loses no total. **Records** are the
sequence lock: each carries its number as first and last word, is written whole, and then the count of records
(LIVE_RECORDS) is stored. A reader copies, reads the count again, and drops what may have been overwritten
meanwhile; a writer that stops in the middle leaves 1,023 whole records. Live words are single aligned stores.
Marks and error text are read until two readings agree.

A record is written at the end of a step, and now and then in a long one: REC_ENDED_NS is when the last
step ended that has a record, and equals REC_TIME_NS in that record alone.

Times are CLOCK_MONOTONIC in ns. Pure functions on buffers. tpmon imports this module, ``wire_settings`` and
``wire_capture``, and nothing else of the hook. Valid Python 3.8.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

LAYOUT = 2
"""Raise it whenever a reader of the old layout would misread the new one."""

TELEMETRY_NAME = "tpmon"
MAILBOX_NAME = "tpmon-ctl"

MAGIC = b"tpmonbus"
WORD_MAGIC = b"tpmonoff"
WORD_ADDRESS = 0x7470_6D6F_0000
WORD_BYTES = 256
MAILBOX_MAGIC = b"tpmonctl"

RECORD_WORDS = 24
RECORD_BYTES = RECORD_WORDS * 8
RING_RECORDS = 1024
RING_OFFSET = 4096
TELEMETRY_BYTES = RING_OFFSET + RING_RECORDS * RECORD_BYTES
MAILBOX_BYTES = 4096

_HEADER = struct.Struct("<8sIIIIQQiii16s24s16sQ16s")
SIGNAL_OFFSET = 240
STATUS_OFFSET = 256
_STATUS = struct.Struct("<QQ240s")
ERROR_BYTES = 240
LIVE_OFFSET = 512
LIVE_WORDS = 8
_LIVE = struct.Struct("<8Q")
ANSWER_OFFSET = 576
MARKS_OFFSET = 1024
MARK_BYTES = 64
MARKS = 16
_MARK_TIMES = struct.Struct("<QQQ")
_MARK = struct.Struct("<40sQQQ")
MARK_NAME_BYTES = 40
REQUEST_OFFSET = 64
_MAILBOX_HEADER = struct.Struct("<8sII")

# Words of a record. Totals count from the first event on.
RECORD = struct.Struct("<24Q")
REC_NUMBER = 0
REC_TIME_NS = 1
REC_RULE = 2
REC_STEPS = 3
REC_EVAL_STEPS = 4
REC_BATCHES = 5
REC_BACKWARDS = 6
REC_OPTIMIZER_CALLS = 7
REC_UPDATES = 8
REC_SKIPPED = 9
REC_SAMPLES = 10
REC_EVAL_SAMPLES = 11
REC_DATA_NS = 12
REC_FORWARD_NS = 13
REC_BACKWARD_NS = 14
REC_OPTIMIZER_NS = 15
REC_OTHER_NS = 16
REC_EVAL_DATA_NS = 17
REC_EVAL_FORWARD_NS = 18
REC_EVAL_OTHER_NS = 19
REC_ELSEWHERE = 20
REC_BATCH_SIZE = 21
REC_ENDED_NS = 22
REC_NUMBER_AGAIN = 23

# Live words: the count of records, when each event last happened (LEFT: ``step()`` or the end of a DataLoader
# ended what came before), the count of marks.
LIVE_RECORDS = 0
LIVE_DATA_BEGAN = 1
LIVE_DATA_ENDED = 2
LIVE_BACKWARD_BEGAN = 3
LIVE_BACKWARD_ENDED = 4
LIVE_OPTIMIZER = 5
LIVE_LEFT = 6
LIVE_MARKS = 7

# What ends a step.
RULE_NONE = 0
RULE_DATA_AFTER_UPDATE = 1
RULE_UPDATE = 2
RULE_BACKWARD = 3
RULE_BATCH = 4
RULE_CALL = 5

BACKWARDS_WITHOUT_UPDATE = 64
"""After so many batches with a backward and no update since the start, no torch optimizer is at work."""

STATE_RUNNING = 1
STATE_DISABLED = 2
STATE_UNSEEN, STATE_UNINSTALLED = 4, 3

# What is patched, as bits.
PATCH_DATA = 1
PATCH_BACKWARD = 2
PATCH_OPTIMIZER = 4
PATCH_SCALER = 8

FLAG_WRITE_SEALED = 1
FLAG_CAPTURES = 2
"""This hook takes the requests of ``wire_capture``."""

KIND_PING = 1
"""Ask for an answer alone; the other kinds are in ``wire_capture``."""

ANSWER_DONE = 1
ANSWER_UNKNOWN = 2
ANSWER_TAKEN = 3
ANSWER_BUSY = 4

UNKNOWN_RANK = -1


class NotABusError(ValueError):
    """Refuse bytes that are no page of the hook."""


class OtherLayoutError(ValueError):
    """Refuse a page of the hook in a layout that this module does not know."""


class Words:
    """Hold the words of a block by name; the order of the annotations is its layout."""

    def __init__(self, *words: Any, **named: Any) -> None:
        vars(self).update(zip(type(self).__annotations__, words), **named)

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, name) for name in type(self).__annotations__)


class Header(Words):
    """Say whose page it is: ``pid`` as the process itself sees it, ``start_ticks`` of /proc/PID/stat.

    ``put_in_ns``: when a tpmon of version ``put_in_by`` put the hook into the running process, since 1970; 0
    where it came with the run, and in pages of hooks before these fields.
    """

    pid: int = 0
    flags: int = 0
    start_ticks: int = 0
    created_ns: int = 0
    rank: int = UNKNOWN_RANK
    world_size: int = UNKNOWN_RANK
    local_rank: int = UNKNOWN_RANK
    hook_version: str = ""
    torch_version: str = ""
    python_version: str = ""
    put_in_ns: int = 0
    put_in_by: str = ""


def read_text(data: bytes) -> str:
    """Read UTF-8 that is padded with zeros."""
    return data.split(b"\0", 1)[0].decode("utf-8", "replace")


def pack_header(header: Header) -> bytes:
    """Return the header; write its first 8 bytes, the magic, last."""
    words = [one.encode("utf-8", "replace") if isinstance(one, str) else one for one in header]
    return _HEADER.pack(MAGIC, LAYOUT, TELEMETRY_BYTES, *words)


def parse_header(page: memoryview) -> Header:
    """Parse the header of a telemetry page.

    Raises:
        NotABusError: when it is no page of the hook, or not written yet.
        OtherLayoutError: when its layout is another one.
    """
    if len(page) < _HEADER.size:
        raise NotABusError("too short")
    magic, layout, size, *words = _HEADER.unpack_from(page, 0)
    _check(magic == MAGIC, layout)
    if size != TELEMETRY_BYTES or len(page) < TELEMETRY_BYTES:
        raise NotABusError("wrong size")
    return Header(*(read_text(one) if isinstance(one, bytes) else one for one in words))


def _check(known: bool, layout: int) -> None:
    if not known:
        raise NotABusError("no magic")
    if layout != LAYOUT:
        raise OtherLayoutError(f"bus layout {layout}, not {LAYOUT}")


def pack_mailbox(pid: int) -> bytes:
    """Return the beginning of a mailbox page."""
    return _MAILBOX_HEADER.pack(MAILBOX_MAGIC, LAYOUT, pid)


def parse_mailbox(page: memoryview) -> int:
    """Return the PID that a mailbox page names; raise as ``parse_header``."""
    if len(page) < MAILBOX_BYTES:
        raise NotABusError("too short")
    magic, layout, pid = _MAILBOX_HEADER.unpack_from(page, 0)
    _check(magic == MAILBOX_MAGIC, layout)
    return int(pid)


def pack_status(state: int, patches: int, error: str) -> bytes:
    """Return the status; write its first 8 bytes, the state, last."""
    return _STATUS.pack(state, patches, error.encode("utf-8", "replace"))


def write_signal(page: memoryview, *, ours: bool) -> None:
    """Write whether the hook would handle a SIGURG."""
    page[SIGNAL_OFFSET : SIGNAL_OFFSET + 8] = int(ours).to_bytes(8, "little")


def parse_signal(page: memoryview) -> bool:
    """Tell whether the hook would handle a SIGURG, by what it wrote last."""
    return page[SIGNAL_OFFSET] == 1


def parse_status(page: memoryview) -> tuple[int, int, str]:
    """Return state, patches and error text."""
    state, patches, error = _STATUS.unpack(read_twice(page, STATUS_OFFSET, _STATUS.size))
    return state, patches, read_text(error)


def parse_live(page: memoryview) -> tuple[int, ...]:
    """Return the live words: LIVE_*."""
    return _LIVE.unpack_from(page, LIVE_OFFSET)


def pack_mark(name: str) -> bytes:
    """Return a mark without calls."""
    return _MARK.pack(name.encode("utf-8", "replace"), 0, 0, 0)


def write_mark(page: memoryview, place: int, calls: int, total_ns: int, longest_ns: int) -> None:
    """Write the counters of a mark behind its name."""
    _MARK_TIMES.pack_into(page, place + MARK_NAME_BYTES, calls, total_ns, longest_ns)


def parse_marks(page: memoryview) -> list[tuple[str, int, int, int]]:
    """Return name, calls, total ns and longest ns of every mark."""
    count = min(parse_live(page)[LIVE_MARKS], MARKS)
    data = read_twice(page, MARKS_OFFSET, count * MARK_BYTES)
    return [(read_text(one[0]), one[1], one[2], one[3]) for one in _MARK.iter_unpack(data)]


def parse_records(page: memoryview, known: int, most: int) -> tuple[int, list[tuple[int, ...]]]:
    """Return the count of records and the whole ones from number ``known`` on, at most the ``most`` newest.

    The record before ``known`` is included where it still is, so that its followers can be compared with it.
    """
    count = parse_live(page)[LIVE_RECORDS]
    first = max(known - 1, count - most, count - RING_RECORDS, 0)
    data = [bytes(page[at : at + RECORD_BYTES]) for at in map(record_offset, range(first, count))]
    whole = max(parse_live(page)[LIVE_RECORDS] - RING_RECORDS + 1, 0)
    records = []
    for number, one in enumerate(data, first):
        words = RECORD.unpack(one)
        if number >= whole and words[REC_NUMBER] == words[REC_NUMBER_AGAIN] == number:
            records.append(words)
    return count, records


def record_offset(number: int) -> int:
    """Return the offset of a record in the page."""
    return RING_OFFSET + number % RING_RECORDS * RECORD_BYTES


def read_twice(page: memoryview, offset: int, size: int) -> bytes:
    """Copy bytes until two copies agree; the last copy after eight tries."""
    before = bytes(page[offset : offset + size])
    for _ in range(8):
        again = bytes(page[offset : offset + size])
        if again == before:
            break
        before = again
    return before
