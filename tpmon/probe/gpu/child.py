"""The child process that talks to NVML: one daemon thread a card, JSON lines on stdout.

NVML calls hang for good when a card dies, and NVML has crashed its process on lost cards and at exit. Here
that costs one card, or a restart. The process ends with its stdin, by ``os._exit``: nvmlShutdown crashes
while a thread is inside NVML, and nothing needs waiting for.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any, NoReturn

from tpmon.model.known import Missing, is_known, map_known
from tpmon.model.results.doctor import point_to
from tpmon.probe.gpu.nvml import CLOSED_S, CardReader
from tpmon.probe.gpu.nvml_queries import STUCK, Calls, Question, code_of, describe_code, describe_error
from tpmon.probe.gpu.wire import DriverLine, FailureLine, Line, NoteLine, XidLine, encode_line

MAX_CARDS = 64
_VERSIONS_WAIT_S, _LOOK_S = 0.5, 0.25
_STUCK_S = 1.5  # with _LOOK_S less than the time after which a card without lines is called stale
_MOST_STUCK = 3
_OPENING = (
    "nvmlDeviceGetHandleByIndex"  # nothing is read without it, and of a card that slept it takes seconds
)
_XID_EVENTS = 0x8
_XID_WAIT_MS = 1000
_TIMEOUT = 10

_Opened = queue.SimpleQueue[tuple[int, str, Any]]  # cards that their threads opened: index, UUID, handle


def load_pynvml() -> Any:
    """Import the module of the nvidia-ml-py package; ImportError where it is not installed."""
    import pynvml  # noqa: PLC0415  # 30 ms, and only the child needs it

    return pynvml


class _Pipe:
    """Write whole lines to the parent, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, line: Line) -> None:
        """Write one line; end the process if nobody reads it."""
        raw = memoryview(encode_line(line))
        with self._lock:
            try:
                while raw:
                    raw = raw[os.write(self._descriptor, raw) :]
            except OSError:
                os._exit(0)

    def end(self, failure: FailureLine) -> NoReturn:
        """Report why the child ends, and end it."""
        self.send(Line(failure=failure))
        os._exit(1)


def main(load: Callable[[], Any] = load_pynvml) -> NoReturn:
    """Run the child until its stdin ends; ``load`` returns the pynvml module."""
    # Libraries print to stdout; the pipe is for lines alone.
    pipe = _Pipe(os.dup(1))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    _start("nvml", _run, load, pipe)
    while os.read(0, 4096):
        pass
    os._exit(0)


def _run(load: Callable[[], Any], pipe: _Pipe) -> None:
    try:
        nvml = load()
    except Exception as error:  # noqa: BLE001  # a broken module raises anything
        pipe.end(FailureLine(0, _describe_import_error(error)))
    try:
        _serve(nvml, pipe)
    except Exception as error:  # noqa: BLE001  # reported to the parent, which learns it no other way
        file = getattr(nvml, "__file__", "a module without a file")
        pipe.end(FailureLine(0, f"asking NVML failed: {describe_error(error)} (by {file})"))


def _describe_import_error(error: Exception) -> str:
    spec = PathFinder.find_spec("pynvml")
    if spec is None or (isinstance(error, ModuleNotFoundError) and error.name == "pynvml"):
        return point_to("the nvidia-ml-py package is not installed", "nvml")
    return f"pynvml cannot be imported: {describe_error(error)} ({spec.origin})"


def _serve(nvml: Any, pipe: _Pipe) -> None:
    try:
        nvml.nvmlInit()
    except Exception as error:  # noqa: BLE001  # the parent shows any
        pipe.end(FailureLine(max(code_of(error), 0), describe_error(error)))
    calls = Calls(nvml)
    cards = calls.ask("nvmlDeviceGetCount")
    if isinstance(cards, Missing):
        pipe.end(FailureLine(calls.gone_code(), cards.reason))
    count = min(int(cards), MAX_CARDS)
    teller = _start("versions", _send_versions, nvml, count, pipe)
    teller.join(_VERSIONS_WAIT_S)
    if teller.is_alive():
        pipe.send(Line(driver=DriverLine(STUCK, STUCK, count)))
    opened: _Opened = queue.SimpleQueue()
    watches = [_CardWatch(nvml, index, pipe, opened) for index in range(count)]
    _start("xids", _watch_xids, calls, pipe, opened)
    while True:
        time.sleep(_LOOK_S)
        for watch in watches:
            watch.look(time.monotonic_ns())


def _start(name: str, work: Callable[..., object], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, name=name, daemon=True)
    thread.start()
    return thread


def _send_versions(nvml: Any, cards: int, pipe: _Pipe) -> None:
    calls = Calls(nvml)
    version = calls.ask("nvmlSystemGetDriverVersion")
    cuda = calls.ask("nvmlSystemGetCudaDriverVersion_v2")
    cuda_version = map_known(lambda number: f"{number // 1000}.{number % 1000 // 10}", cuda)
    pipe.send(Line(driver=DriverLine(version, cuda_version, cards)))


class _CardWatch:
    """Read one card in its own thread, and in another one beside each call that hangs.

    A call that hangs alone costs only its readings. A card with several hanging calls does not answer: it
    gets no more threads, and its lines stop.
    """

    def __init__(self, nvml: Any, index: int, pipe: _Pipe, opened: _Opened) -> None:
        self._nvml = nvml
        self._index = index
        self._pipe = pipe
        self._opened = opened
        self._stuck: dict[Question, Missing] = {}
        self._left: dict[CardReader, Question] = {}
        self._go_on()

    def look(self, now_ns: int) -> None:
        """Abandon a reader whose call does not return, and read on without that call."""
        asking = self._reader.calls.asking
        if asking is None or len(self._stuck) >= _MOST_STUCK:
            return
        question, since_ns = asking
        if now_ns - since_ns >= _STUCK_S * 1e9 and question[0] != _OPENING:
            self._stuck[question] = STUCK
            self._left[self._reader] = question
            self._go_on()

    def _go_on(self) -> None:
        self._reader = CardReader(self._nvml, self._index, stuck=self._stuck)
        _start(f"card-{self._index}", self._watch, self._reader)

    def _watch(self, reader: CardReader) -> None:
        announced: Any = None
        while True:
            started = time.monotonic()
            wait_s = self._read(reader)
            if reader is not self._reader:
                break
            if reader.handle is not None and reader.handle is not announced:
                announced = reader.handle
                self._opened.put((self._index, reader.uuid, announced))
            time.sleep(max(0.05, wait_s - (time.monotonic() - started)))
        reader.close()
        del self._stuck[self._left.pop(reader)]

    def _read(self, reader: CardReader) -> float:
        """Send a line of the card; return the seconds until the next is due."""
        try:
            line = reader.read()
            gone = reader.calls.gone_code()
            if not gone and reader is self._reader:
                self._pipe.send(Line(card=line))
        except Exception as error:  # noqa: BLE001  # reported to the parent; the other cards go on
            text = f"reading card {self._index} failed: {type(error).__name__}: {error}"
            self._pipe.send(Line(note=NoteLine(text, passing=True)))
            reader.close()
            return CLOSED_S
        if gone:
            self._pipe.end(FailureLine(gone, describe_code(gone)))
        return line.next_s


def _watch_xids(calls: Calls, pipe: _Pipe, opened: _Opened) -> None:
    cards: dict[int, tuple[str, Any]] = {}
    while True:
        events = calls.ask("nvmlEventSetCreate")
        if isinstance(events, Missing):
            pipe.send(Line(note=NoteLine(f"Xid events are not watched: {events.reason}")))
            return
        watched = sum(_register(calls, pipe, events, index, card) for index, card in cards.items())
        while True:
            while not watched or not opened.empty():
                index, uuid, handle = opened.get()
                cards[index] = (uuid, handle)
                watched += _register(calls, pipe, events, index, cards[index])
            failed = _wait_for_xid(calls, pipe, events)
            if failed is not None:
                break
        # A card that fell off the bus makes the whole set fail: build it anew without that card.
        text = f"Xid events were not watched for a while: {failed}"
        pipe.send(Line(note=NoteLine(text, passing=True)))
        calls.ask("nvmlEventSetFree", events)
        time.sleep(CLOSED_S)
        calls.start_round(retry_silent=True)


def _register(calls: Calls, pipe: _Pipe, events: Any, index: int, card: tuple[str, Any]) -> bool:
    uuid, handle = card
    answer = calls.ask("nvmlDeviceRegisterEvents", handle, _XID_EVENTS, events, kind=index)
    if isinstance(answer, Missing):
        text = f"Xid events of card {index} ({uuid}) are not watched: {answer.reason}"
        pipe.send(Line(note=NoteLine(text)))
    return is_known(answer)


def _wait_for_xid(calls: Calls, pipe: _Pipe, events: Any) -> str | None:
    event = calls.ask("nvmlEventSetWait_v2", events, _XID_WAIT_MS)
    if isinstance(event, Missing):
        return None if event.reason == describe_code(_TIMEOUT) else event.reason
    uuid = calls.ask("nvmlDeviceGetUUID", event.device)
    if is_known(uuid):
        pipe.send(Line(xid=XidLine(str(uuid), int(event.eventData))))
    return None
