"""Open the hook's two pages in a running training process: telemetry and mailbox.

A page counts where its PID and its start time are those of the process. tpmon writes only into the mailbox.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import signal

from tpmon.errors import NoTargetError, NotPermittedError, UsageError
from tpmon.foreign_file import Owner, open_foreign, read_owner
from tpmon.hook.bus import wire, wire_capture, wire_settings
from tpmon.model.known import Known, Missing
from tpmon.model.process import Identity
from tpmon.model.results.capture import CaptureState
from tpmon.model.text.redaction import admit_text
from tpmon.own_command import call_as_owner, call_as_root


def is_running(process: Identity) -> bool:
    """Tell by state and start time in /proc/PID/stat: a zombie has ended, and a PID may be used again."""
    words = _read_stat(process.pid)
    return bool(words) and words[0] not in (b"Z", b"X") and int(words[19]) == process.start_ticks


def read_image(pid: int) -> list[bytes]:
    """Return where code and stack of a process begin, which only an exec changes."""
    return _read_stat(pid)[23:26]


def name_end(process: Identity, image: list[bytes]) -> str:
    """Say how a process with this image ended, "" while it runs."""
    now = read_image(process.pid)
    if not now or not is_running(process):
        return "the process ended"
    return "" if now == image else "the process became another program"


def _read_stat(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return []
    return data[data.rindex(b")") + 2 :].split()


_SEALS = 1034
_SEAL_SHRINK = 0x2
_MOST_DESCRIPTORS = 65_536
_MOST_PAGES = 128
"""Two a hook; a forked process has its parents' too."""


class NoHookError(UsageError):
    """Refuse a process without a hook that captures."""


class GoneError(NoTargetError):
    """Report that a process ended."""


class Bus:
    """Hold the mapped pages of one process."""

    def __init__(
        self, process: Identity, header: wire.Header, page: mmap.mmap, box: mmap.mmap, asker: int = -1
    ) -> None:
        """Hold what ``open_bus`` found; ``asker``, open on the mailbox, is for the locks of requests."""
        self.process = process
        self._image = read_image(process.pid)
        self._asker = asker
        self.header = header
        self._maps = (page, box)
        self.page = memoryview(page)
        self.mailbox = memoryview(box)
        self._descriptor = _hold(process.pid)

    def close(self) -> None:
        """Close both pages."""
        self.page.release()
        self.mailbox.release()
        for mapped in self._maps:
            mapped.close()
        for descriptor in (self._descriptor, self._asker):
            if descriptor >= 0:
                os.close(descriptor)

    def is_alive(self) -> bool:
        """Tell whether the process that was opened still runs."""
        return is_running(self.process)

    def find_end(self) -> tuple[CaptureState, str] | None:
        """Return state and reason where this hook will not act any more; None while it runs."""
        if end := name_end(self.process, self._image):
            return CaptureState.GONE, end
        state, _, error = wire.parse_status(self.page)
        if state != wire.STATE_RUNNING:
            why = (
                f"the hook turned itself off: {admit_text(error, 200)}" if error else "the hook was taken out"
            )
            return CaptureState.FAILED, why
        return None

    def read_progress(self, number: int) -> wire_capture.Progress | None:
        """Return the progress of this request; None before the hook writes one."""
        told = wire_capture.parse_progress(self.page)
        if told is None or told.request != number:
            return None
        told.reason = admit_text(told.reason, wire_capture.REASON_BYTES)
        return told

    def tells_of_another(self, number: int) -> bool:
        """Tell whether the hook's progress is whole and belongs to another request."""
        told = wire_capture.parse_progress(self.page)
        return told is not None and told.request != number

    def read_asked_number(self) -> int:
        """Return the number of the request in the mailbox, 0 for none."""
        return int.from_bytes(self.mailbox[wire.REQUEST_OFFSET : wire.REQUEST_OFFSET + 8], "little")

    def read_asked(self) -> wire_capture.Request | None:
        """Return the request in the mailbox, whoever wrote it; None where it is not whole."""
        return wire_capture.parse_request(self.mailbox)

    def read_answer(self) -> tuple[int, int]:
        """Return the number of the request that was answered last, and the answer."""
        number = int.from_bytes(self.page[wire.ANSWER_OFFSET : wire.ANSWER_OFFSET + 8], "little")
        answer = int.from_bytes(self.page[wire.ANSWER_OFFSET + 8 : wire.ANSWER_OFFSET + 16], "little")
        return number, answer

    def read_records(self, most: int = 256) -> list[tuple[int, ...]]:
        """Return the newest records, oldest first."""
        return wire.parse_records(self.page, 0, most)[1]

    def count_timed_steps(self) -> int:
        """Return how many steps the hook has timed on a CUDA device."""
        words = wire_settings.parse_device(self.page)
        return words[wire_settings.DEV_STEPS] if words else 0

    def read_timeout_s(self) -> Known[int]:
        """Return how long other ranks wait for this one, 0 for unknown; Missing where none has to wait."""
        words = wire_settings.parse_settings(self.page)
        if self.header.world_size < 2 or not words or words[wire_settings.SET_CUDA] <= 0:
            return Missing("it trains alone, or not on CUDA")
        return max(words[wire_settings.SET_TIMEOUT_S], 0)

    def post(self, request: wire_capture.Request) -> None:
        """Write a request, which the hook reads at the end of a step; hold its lock until this bus closes."""
        request.owned = int(wire_capture.hold_request(self._asker, request.number))
        wire_capture.write_request(self.mailbox, request)

    def is_left(self, request: wire_capture.Request) -> bool:
        """Tell whether the tpmon that wrote a request has ended."""
        return wire_capture.is_left(self._asker, request)

    def wake(self) -> bool:
        """Send SIGURG where the hook in the process handles it; return whether it was sent.

        A pidfd holds the process, so that its PID cannot become another's between check and signal. A handler
        that vanishes in between does no harm: SIGURG is ignored without one.
        """
        if self._descriptor < 0 or not self.is_alive():
            return False
        pid = self.process.pid
        try:
            status = _read_status(pid)
            caught = int(status["SigCgt"], 16) >> (signal.SIGURG - 1) & 1
            inner = int(status.get("NSpid", str(pid)).split()[-1])
            header = wire.parse_header(self.page)
        except (OSError, KeyError, ValueError):
            return False
        theirs = header.pid != inner or header.start_ticks != self.process.start_ticks
        if not caught or theirs or not wire.parse_signal(self.page):
            return False
        try:
            signal.pidfd_send_signal(self._descriptor, signal.SIGURG)
        except OSError:
            return False
        return True


def open_bus(process: Identity) -> Bus:
    """Open the pages of a process.

    Raises:
        NoHookError: when it has no hook, or one that does not capture.
        NotPermittedError: when this user may not.
        GoneError: when it ended.
    """
    pid = process.pid
    try:
        links, owner = _list_links(pid), read_owner(pid)
        inner = int(_read_status(pid).get("NSpid", str(pid)).split()[-1])
    except PermissionError as error:
        as_root = call_as_root(f"capture {pid}")
        raise NotPermittedError(
            f"process {pid} belongs to somebody else",
            f"run tpmon as its user{f', or {as_root}' if as_root else ''}",
        ) from error
    except OSError as error:
        raise _gone(pid) from error
    box, box_link = _find(links, wire.MAILBOX_NAME, inner, owner)
    page, _ = _find(links, wire.TELEMETRY_NAME, inner, owner)
    if page is None or box is None:
        for mapped in filter(None, (page, box)):
            mapped.close()
        raise NoHookError(f"process {pid} has no hook", "")
    with memoryview(page) as view:
        header = wire.parse_header(view)
        state, _, error_text = wire.parse_status(view)
    reason = ""
    if header.start_ticks != process.start_ticks:
        reason = f"process {pid} has a hook's page that is another's"
    elif not header.flags & wire.FLAG_CAPTURES:
        reason = f"the hook of process {pid} is of a tpmon that could not capture yet"
    elif state != wire.STATE_RUNNING:
        why = admit_text(error_text, 200) or "it was taken out"
        reason = f"the hook of process {pid} is off: {why}"
    if reason:
        page.close()
        box.close()
        raise NoHookError(reason, f"start the run again with this tpmon: {call_as_owner(pid)}")
    asker = -1
    with contextlib.suppress(OSError):  # it was closed since: a request works without a lock too
        asker = open_foreign(box_link, owner, flags=os.O_RDWR, follows=True)
    return Bus(process, header, page, box, asker)


def _list_links(pid: int) -> list[tuple[str, str]]:
    """List path and target of the descriptors that may be pages, highest first: ours lie high."""
    folder = f"/proc/{pid}/fd"
    found = []
    for number in sorted(map(int, os.listdir(folder)), reverse=True)[:_MOST_DESCRIPTORS]:
        path = f"{folder}/{number}"
        try:
            target = os.readlink(path)
        except OSError:
            continue  # closed between listing and reading
        if target.startswith("/memfd:tpmon"):
            found.append((path, target))
    return found[:_MOST_PAGES]


def _find(links: list[tuple[str, str]], name: str, pid: int, owner: Owner) -> tuple[mmap.mmap | None, str]:
    """Map the page of this name that names ``pid``, as the process sees itself; return it with its path."""
    writable = name == wire.MAILBOX_NAME
    for path in (path for path, target in links if target == f"/memfd:{name} (deleted)"):
        try:
            mapped = _map(path, owner, writable)
        except PermissionError as error:
            raise NotPermittedError(
                f"{path} may not be opened: it is another user's", "run tpmon as the user of the run"
            ) from error
        except OSError:
            continue
        if mapped is None:
            continue
        inner = -1
        try:
            with contextlib.suppress(wire.NotABusError), memoryview(mapped) as view:
                inner = wire.parse_mailbox(view) if writable else wire.parse_header(view).pid
        except wire.OtherLayoutError as error:
            mapped.close()
            raise NoHookError(
                f"{error}: the hook is of another version of tpmon", "update one of the two"
            ) from error
        if inner == pid:
            return mapped, path
        mapped.close()
    return None, ""


def _map(path: str, owner: Owner, writable: bool) -> mmap.mmap | None:
    size = wire.MAILBOX_BYTES if writable else wire.TELEMETRY_BYTES
    descriptor = open_foreign(path, owner, flags=os.O_RDWR if writable else os.O_RDONLY, follows=True)
    try:
        # A page that could shrink under us would end tpmon with SIGBUS.
        if os.fstat(descriptor).st_size < size or not fcntl.fcntl(descriptor, _SEALS) & _SEAL_SHRINK:
            return None
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return mmap.mmap(descriptor, size, mmap.MAP_SHARED, protection)
    finally:
        os.close(descriptor)


def _hold(pid: int) -> int:
    """Return a pidfd, -1 where there is none and no signal can be sent; GoneError where the process ended."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    except ProcessLookupError as error:
        raise _gone(pid) from error
    except OSError:
        return -1  # a kernel before 5.3, or a container that forbids it


def _gone(pid: int) -> GoneError:
    return GoneError(f"process {pid} ended", "tpmon ps lists the training jobs")


def _read_status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        pairs = (line.split(":", 1) for line in file if ":" in line)
        return {name: value.strip() for name, value in pairs}
