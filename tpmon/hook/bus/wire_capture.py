"""Lay out what tpmon asks of the hook and what the hook says of a capture: the rest of ``wire``.

A request lies in the mailbox page, which any process of the user can write:

    offset  size     what
    64      128      14 u64 of a ``Request``, its check, its number again; its number is written last
    1024    1024     folder, UTF-8, zero-padded: where the hook writes
    2048    128      name of the files, the same

The check is the CRC-32 of those words, of folder and name: stray bytes and half a request do not count.

Where ``owned`` is 1, the process that asked holds a lock (fcntl(2), F_OFD_SETLK) on one byte of the mailbox's
file, at the number of the request. It ends with that process, and is seen across PID namespaces.

The outcome lies in the telemetry page, which the process itself alone can write:

    576     16       number of the request answered last, and the answer: ANSWER_*
    640     128      15 u64 of a ``Progress``, and a spare one
    768     256      its reason, UTF-8, zero-padded, of the states that have one
    2688    8        number of the request whose answer follows, 0 while that is being written
    2696    1400     the conditions that were asked for: JSON, UTF-8, zero-padded

Times are CLOCK_MONOTONIC in ns. Pure functions on buffers, but for that lock, the libraries of other tools
and the files of traces. Valid Python 3.8.
"""

from __future__ import annotations

import fcntl
import os
import struct
from binascii import crc32

from tpmon.hook.bus.wire import REQUEST_OFFSET, Words, read_text

REQUEST_LAYOUT = 1
"""Raise it whenever a hook of the old layout would misread a new request."""

_REQUEST = struct.Struct("<16Q")
_CHECKED = struct.Struct("<14Q")
FOLDER_OFFSET = 1024
FOLDER_BYTES = 1024
NAME_OFFSET = 2048
NAME_BYTES = 128
CAPTURE_OFFSET = 640
_CAPTURE = struct.Struct("<15Q8x256s")
REASON_BYTES = 256
TOLD_OFFSET = 2688
TOLD_BYTES = 1400
_LOCK = struct.Struct("hhqqi4x")
"""struct flock: type, whence, start, length, PID."""
_OFD_GETLK, _OFD_SETLK = 36, 37
"""Linux 3.15; Python names them since 3.9."""

NSYS_LIBRARIES = ("libToolsInjection", "libnsys", "/nsight-systems/")
CUPTI_LIBRARIES = (
    # Nsight Compute and compute-sanitizer, by what either maps into a program; nvprof.
    *("libcuda-injection", "libTreeLauncher", "libInterceptorInjection", "/nsight-compute/", "libsanitizer-"),
    *("libcuinj64", "libaccinj64"),
    # Triton's Proton, HPCToolkit, TAU, Score-P, Extrae; parcagpu and others name CUPTI within their own name.
    *("libproton.", "libhpcrun.", "libTAU", "libscorep_adapter_cuda", "libcudatrace", "libcudampitrace"),
    *("gpucupti", "cupti_", "_cupti", "-cupti", "-CUPTI"),
)
"""Parts of names, or folders, of libraries that take CUPTI's only slot; torch's own is libcupti.so."""
INJECTED = "CUDA_INJECTION64_PATH"
"""The driver loads the library that it names, which is how tools get into a program."""

TRACE_ENDING = ".pt.trace.json"
"""TensorBoard's profiler plugin looks for it, packed or not."""
_EVENT = b'"ph": "X"'

# Kinds of requests.
KIND_PROBE = 2
KIND_CAPTURE = 3
KIND_SNAPSHOT = 4
KIND_RANGE = 5
KIND_CANCEL = 6
KIND_DESCRIBE = 7
"""Write the conditions of the run (``conditions``); nothing is recorded."""

KIND_COUNTS = 8
"""Tell how many steps ended, and how many collectives the default process group began until then."""

PROFILES = (KIND_PROBE, KIND_CAPTURE)
"""The kinds that torch's profiler records."""

CLOCK_STEPS = 0
"""``start`` counts training steps since the hook's first event."""
CLOCK_COLLECTIVES = 1
"""``start`` counts collectives of the default process group, which all ranks count alike, whenever they got
the hook: the window begins at the first end of a step with so many."""

OPTION_STACKS = 1
OPTION_SHAPES = 2
OPTION_MEMORY = 4
OPTION_TIMED = 8
"""Begin at a signal and end by time: for loops without steps."""
OPTIONS = OPTION_STACKS | OPTION_SHAPES | OPTION_MEMORY | OPTION_TIMED

EVENT_MEMORY = 1_300
EVENT_MEMORY_DETAILED = 3_500
"""Bytes of memory for a recorded event; the larger with shapes, stacks or memory.

Measured on torch 2.13 as growth of resident memory over 82,000 to 231,000 events: 1.2 KB, and 2 to 3 KB.
"""

MEMORY_SPARE = 256 << 20
"""Bytes that stay free beside a capture, for a batch and its activations."""

ENTRY_BYTES = 4096
"""Of an allocation in a snapshot with its stack; torch's documentation says "several KB"."""

# States, in order.
STATE_NONE = 0
STATE_REGISTERED = 1
STATE_ARMED = 2
STATE_WARMING = 3
STATE_RECORDING = 4
STATE_WRITING = 5
STATE_VERIFIED = 6
# These end a request without a file; ``reason`` says why.
STATE_REFUSED = 16
STATE_MISSED = 17
STATE_CANCELLED = 18
STATE_EXPIRED = 19
STATE_FAILED = 20
STATE_YIELDED = 21

BEGAN_TO_TRAIN = "the loop began to train within the window: ask again"
"""A window that began in an evaluation before the first step is cancelled; tpmon asks again by itself."""

TAKES_STEPS = "the loop takes steps now: ask again"
"""A window by time in which a step ended is cancelled; tpmon asks again by itself."""

NOBODY_WAITS = "the tpmon that asked for it has ended"
"""A request whose lock nobody holds any more is cancelled."""

FINAL_STATES = frozenset((STATE_VERIFIED, *range(STATE_REFUSED, STATE_YIELDED + 1)))


class Request(Words):
    """Hold what is asked for, and the folder and the name to write it to."""

    number: int = 0
    kind: int = 0
    layout: int = REQUEST_LAYOUT
    clock: int = CLOCK_STEPS
    start: int = 0
    steps: int = 0
    longest_ns: int = 0
    most_events: int = 0
    most_bytes: int = 0
    expires_ns: int = 0
    options: int = 0
    subject: int = 0
    """Of a cancel: the number of the request to end. By collectives: the number of the first step, so that
    all ranks write the same into their traces."""
    entries: int = 0
    owned: int = 0
    """1: the process that asked holds the request's lock; 0 from an older tpmon. Old hooks ignore it."""
    folder: str = ""
    name: str = ""

    @property
    def is_timed(self) -> bool:
        """Tell whether it is bounded by time and not by steps."""
        return bool(self.options & OPTION_TIMED)


class Progress(Words):
    """Hold the state of a request; ``sequence`` is odd while it is being written."""

    sequence: int = 0
    request: int = 0
    state: int = STATE_NONE
    changed_ns: int = 0
    steps_asked: int = 0
    steps_done: int = 0
    first_step: int = 0
    events: int = 0
    bytes: int = 0
    began_ns: int = 0
    ended_ns: int = 0
    paused_ns: int = 0
    step_now: int = 0
    rss_bytes: int = 0
    rank: int = 0
    """One more than the rank that names the file; 0 before that and where it is unknown."""
    reason: str = ""


def write_request(page: memoryview, request: Request) -> None:
    """Write a request into a mailbox page, its number last; ValueError where folder or name do not fit."""
    *words, folder, name = request
    folder, name = (one.encode("utf-8", "surrogateescape") for one in (folder, name))
    if len(folder) > FOLDER_BYTES or len(name) > NAME_BYTES:
        raise ValueError("folder or name too long")
    folder, name = folder.ljust(FOLDER_BYTES, b"\0"), name.ljust(NAME_BYTES, b"\0")
    page[FOLDER_OFFSET : FOLDER_OFFSET + FOLDER_BYTES] = folder
    page[NAME_OFFSET : NAME_OFFSET + NAME_BYTES] = name
    data = _REQUEST.pack(*words, _check(words, folder + name), request.number)
    page[REQUEST_OFFSET + 8 : REQUEST_OFFSET + len(data)] = data[8:]
    page[REQUEST_OFFSET : REQUEST_OFFSET + 8] = data[:8]


def parse_request(page: memoryview) -> Request | None:
    """Parse the request of a mailbox page; None where the bytes are no whole request."""
    data = bytes(page[REQUEST_OFFSET : REQUEST_OFFSET + _REQUEST.size])
    folder = bytes(page[FOLDER_OFFSET : FOLDER_OFFSET + FOLDER_BYTES])
    name = bytes(page[NAME_OFFSET : NAME_OFFSET + NAME_BYTES])
    *words, check, number_again = _REQUEST.unpack(data)
    texts = (one.split(b"\0", 1)[0].decode("utf-8", "surrogateescape") for one in (folder, name))
    request = Request(*words, *texts)
    whole = request.number == number_again and request.layout == REQUEST_LAYOUT
    return request if whole and check == _check(words, folder + name) else None


def hold_request(descriptor: int, number: int) -> bool:
    """Hold the lock of a request until the mailbox's ``descriptor`` is closed; False where that fails."""
    try:
        fcntl.fcntl(descriptor, _OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, 0, number, 1, 0))
    except (OSError, ValueError, struct.error):
        return False
    return True


def is_left(descriptor: int, request: Request) -> bool:
    """Tell whether a request has a lock that nobody holds; False where that cannot be read."""
    try:
        lock = _LOCK.pack(fcntl.F_WRLCK, 0, request.number, 1, 0)
        told = fcntl.fcntl(descriptor, _OFD_GETLK, lock)
    except (OSError, ValueError, struct.error):
        return False
    return bool(request.owned) and _LOCK.unpack(told)[0] == fcntl.F_UNLCK


def write_progress(page: memoryview, told: Progress) -> None:
    """Write the state of a request, and count its ``sequence`` on."""
    sequence = (told.sequence | 1) + 2
    page[CAPTURE_OFFSET : CAPTURE_OFFSET + 8] = sequence.to_bytes(8, "little")
    told.sequence = sequence + 1
    *words, reason = told
    data = _CAPTURE.pack(*words, reason.encode("utf-8", "replace"))
    page[CAPTURE_OFFSET + 8 : CAPTURE_OFFSET + len(data)] = data[8:]
    page[CAPTURE_OFFSET : CAPTURE_OFFSET + 8] = data[:8]


def parse_progress(page: memoryview) -> Progress | None:
    """Return the state of the request that was taken last; None while it is being written."""
    for _ in range(8):
        data = bytes(page[CAPTURE_OFFSET : CAPTURE_OFFSET + _CAPTURE.size])
        again = bytes(page[CAPTURE_OFFSET : CAPTURE_OFFSET + 8])
        *words, reason = _CAPTURE.unpack(data)
        if words[0] % 2 == 0 and data[:8] == again:
            return Progress(*words, read_text(reason))
    return None


def write_told(page: memoryview, number: int, text: bytes) -> None:
    """Write the answer to a request to describe, its number last, so that no half of it counts."""
    page[TOLD_OFFSET : TOLD_OFFSET + 8] = bytes(8)
    page[TOLD_OFFSET + 8 : TOLD_OFFSET + 8 + TOLD_BYTES] = text[:TOLD_BYTES].ljust(TOLD_BYTES, b"\0")
    page[TOLD_OFFSET : TOLD_OFFSET + 8] = number.to_bytes(8, "little")


def parse_told(page: memoryview, number: int) -> bytes:
    """Return the hook's answer to this request to describe; empty where there is none."""
    wanted = number.to_bytes(8, "little")
    before = bytes(page[TOLD_OFFSET : TOLD_OFFSET + 8])
    text = bytes(page[TOLD_OFFSET + 8 : TOLD_OFFSET + 8 + TOLD_BYTES])
    after = bytes(page[TOLD_OFFSET : TOLD_OFFSET + 8])
    return text.split(b"\0", 1)[0] if before == after == wanted else b""


def file_name(name: str, rank: int, first_step: int, ending: str) -> str:
    """Name a file of a capture; a rank below 0 is unknown and left out."""
    who = f"-rank{rank}" if rank >= 0 else ""
    return f"{name}{who}-step{first_step}{ending}"


def reckon_memory(options: int, events: int) -> int:
    """Estimate the bytes of memory for so many events with these options."""
    return events * (EVENT_MEMORY_DETAILED if options & ~OPTION_TIMED else EVENT_MEMORY)


def name_shortage(size: int, left: int) -> str:
    """Say that so many bytes do not fit into the ``left`` ones beside the run, "" where they do."""
    need = size + MEMORY_SPARE
    if need <= left:
        return ""
    return f"needs {need >> 20} MiB of memory beside the run, {left >> 20} are left"


def _check(words: list[int], texts: bytes) -> int:
    return crc32(texts, crc32(_CHECKED.pack(*words)))


def find_mapped(names: tuple[str, ...], path: str = "/proc/self/maps") -> str:
    """Return the file name of the first library of ``names`` that a process maps, "" for none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as maps:
            for line in maps:
                file = line.rsplit("/", 1)[-1]
                if any(name in (line if name[0] == "/" else file) for name in names):
                    return file.strip()
    except OSError:
        return ""
    return ""


def count_events(trace: int) -> tuple[int, int]:
    """Count the events with a duration in an open trace of torch, and its bytes."""
    found, at, rest, size = 0, 0, b"", os.fstat(trace).st_size
    while at < size:
        chunk = os.pread(trace, 1 << 20, at)
        if not chunk:
            break
        data = rest + chunk
        found += data.count(_EVENT)
        rest = data[-(len(_EVENT) - 1) :]
        at += len(chunk)
    return found, at


def is_whole(trace: int) -> bool:
    """Tell whether an open trace ends with its last brace."""
    return os.pread(trace, 64, max(os.fstat(trace).st_size - 64, 0)).rstrip().endswith(b"}")
