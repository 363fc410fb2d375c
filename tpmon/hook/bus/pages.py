"""Own the two memfds of the bus, and keep what nobody may free.

A forked child drops its copies at once, so that it never writes its parent's page.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
import time

from tpmon.hook.bus import wire, wire_capture
from tpmon.hook.bus.headroom import read_file_limit

_READ_WRITE = 0x1 | 0x2
_PRIVATE_ANONYMOUS_THERE_OR_NOWHERE = 0x2 | 0x20 | 0x100000
_NOT_IN_CHILDREN = 10  # MADV_DONTFORK


def keep_for_ever(one: object) -> None:
    """Keep an object until its process ends: in forked children too, and past the interpreter's end."""
    import ctypes  # noqa: PLC0415 torch imported it already

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def leave_word(text: str) -> None:
    """Leave a word in a private page of memory at an address that tpmon knows, once."""
    try:
        import ctypes  # noqa: PLC0415

        library = ctypes.CDLL(None)
        library.mmap.restype = ctypes.c_void_p
        at, size = ctypes.c_void_p(wire.WORD_ADDRESS), ctypes.c_size_t(wire.WORD_BYTES)
        flags = _PRIVATE_ANONYMOUS_THERE_OR_NOWHERE
        if library.mmap(at, size, _READ_WRITE, flags, -1, ctypes.c_long(0)) == wire.WORD_ADDRESS:
            word = (wire.WORD_MAGIC + text.encode("utf-8", "replace"))[: wire.WORD_BYTES]
            ctypes.memmove(wire.WORD_ADDRESS, word, len(word))
            library.madvise(at, size, _NOT_IN_CHILDREN)
    except Exception:
        return  # there is nowhere left to report it


_ADD_SEALS = 1033
_SEAL_SEAL = 0x1
_SEAL_SHRINK = 0x2
_SEAL_GROW = 0x4
_SEAL_FUTURE_WRITE = 0x10
"""Linux 5.1; only mappings made before can write."""

_CLOEXEC = 0x1
_ALLOW_SEALING = 0x2
_NOEXEC_SEAL = 0x8
"""Linux 6.3; where vm.memfd_noexec is 2 there is no memfd without it."""

_MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
_POPULATE = 0x8000
_REQUEST_BYTES = 16
"""Number and kind of a request, which the end of a step reads."""

_HIGH_DESCRIPTORS = (2000, 1000)
"""Loops that close all low descriptors miss ours; a limit of 1,024 leaves room for the second."""


class Pages:
    """Hold the mapped pages of this process; ``live``, ``answers`` and ``requests`` are u64 words of them."""

    def __init__(
        self,
        hook_version: str,
        torch_version: str,
        ranks: tuple[int, int, int],
        put_in: tuple[int, str] = (0, ""),
    ) -> None:
        """Make both pages; ``ranks`` are those of ``read_ranks``; OSError leaves no descriptor open.

        ``put_in``: when and by which tpmon the hook came into the running process.
        """
        self._descriptors: list[int] = []
        self._maps: list[mmap.mmap] = []
        try:
            self._fill(hook_version, torch_version, ranks, put_in)
        except BaseException:
            self._release()
            self._close()
            raise

    def _fill(
        self, hook_version: str, torch_version: str, ranks: tuple[int, int, int], put_in: tuple[int, str]
    ) -> None:
        most = read_file_limit()
        if most < wire.TELEMETRY_BYTES:  # the kernel may end a program that writes past it
            raise OSError(errno.EFBIG, f"a page has {wire.TELEMETRY_BYTES} bytes, ulimit -f allows {most}")
        page = self._make(wire.TELEMETRY_NAME, wire.TELEMETRY_BYTES)
        mailbox = self._make(wire.MAILBOX_NAME, wire.MAILBOX_BYTES)
        self._files = [_read_file(descriptor) for descriptor in self._descriptors]
        flags = wire.FLAG_CAPTURES | (wire.FLAG_WRITE_SEALED if self._seal() else 0)
        self.page = memoryview(page)
        self.mailbox = box = memoryview(mailbox)
        self.live = self.page[wire.LIVE_OFFSET : wire.LIVE_OFFSET + wire.LIVE_WORDS * 8].cast("Q")
        self.answers = self.page[wire.ANSWER_OFFSET : wire.ANSWER_OFFSET + 16].cast("Q")
        self.requests = box[wire.REQUEST_OFFSET : wire.REQUEST_OFFSET + _REQUEST_BYTES].cast("Q")
        pid = os.getpid()
        box[:16] = wire.pack_mailbox(pid)
        self.set_status(wire.STATE_RUNNING, 0, "")
        versions = (hook_version, torch_version, ".".join(map(str, sys.version_info[:3])))
        header = wire.pack_header(
            wire.Header(pid, flags, _read_start_ticks(), time.monotonic_ns(), *ranks, *versions, *put_in)
        )
        self.page[8 : len(header)] = header[8:]
        self.page[:8] = header[:8]

    def set_status(self, state: int, patches: int, error: str) -> None:
        """Write the hook's own status, the state last."""
        status = wire.pack_status(state, patches, error)
        at = wire.STATUS_OFFSET
        self.page[at + 8 : at + len(status)] = status[8:]
        self.page[at : at + 8] = status[:8]

    def is_left(self, request: wire_capture.Request) -> bool:
        """Tell whether the tpmon that asked has ended; False where the program closed our descriptor."""
        mailbox = self._descriptors[-1] if self._descriptors else -1
        return _read_file(mailbox) == self._files[1] and wire_capture.is_left(mailbox, request)

    def close(self) -> None:
        """Close both pages, unless something closed our descriptors: others may have their numbers now."""
        ours = [_read_file(descriptor) for descriptor in self._descriptors] == self._files
        whole = ours and (_KEEPS_NONE or _are_twice(self._files))
        self._release()
        if not whole:
            self._maps = []  # left open: closing a map closes its own descriptor
        if ours:
            self._close()

    def _release(self) -> None:
        """Release the views so that the maps can be closed; using one raises ValueError from then on."""
        for name in ("live", "answers", "requests", "page", "mailbox"):
            view: memoryview | None = getattr(self, name, None)
            if view is not None:
                view.release()

    def _make(self, name: str, size: int) -> mmap.mmap:
        self._descriptors.append(_create(name))
        low = self._descriptors[-1]
        # Allocated now, so that no write in the loop can fail for want of memory.
        os.posix_fallocate(low, 0, size)
        os.fchmod(low, 0o600)
        high = _copy_above(low)
        if high != low:
            # An alarm of the user may raise between any two of these: a leaked descriptor does no harm,
            # one closed twice may be another's file.
            self._descriptors[-1] = high
            os.close(low)
        flags = mmap.MAP_SHARED | _POPULATE
        if sys.version_info >= (3, 13):
            mapped = mmap.mmap(high, size, flags, trackfd=False)
        else:
            mapped = mmap.mmap(high, size, flags)
        self._maps.append(mapped)
        if not _KEEPS_NONE:
            keep_for_ever(mapped)  # the interpreter's end would close its descriptor, whosever that is then
        return mapped

    def _seal(self) -> bool:
        """Fix both sizes, so that no reader can truncate a page; return whether writing is sealed too."""
        telemetry, mailbox = self._descriptors
        sizes = _SEAL_SHRINK | _SEAL_GROW
        fcntl.fcntl(mailbox, _ADD_SEALS, sizes | _SEAL_SEAL)
        try:
            fcntl.fcntl(telemetry, _ADD_SEALS, sizes | _SEAL_FUTURE_WRITE | _SEAL_SEAL)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fcntl.fcntl(telemetry, _ADD_SEALS, sizes | _SEAL_SEAL)
            return False
        return True

    def _close(self) -> None:
        for mapped in self._maps:
            mapped.close()
        self._maps = []
        while self._descriptors:
            os.close(self._descriptors.pop())


_KEEPS_NONE = sys.version_info >= (3, 13)
"""Older Pythons keep a second descriptor a map, of the lowest free number; closing it may hit any file."""

_LINK = f"/memfd:{wire.TELEMETRY_NAME}"


def _are_twice(files: list[tuple[int, int]]) -> bool:
    """Tell whether each page is open twice, also by its map; no other file is asked: its server may hang."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(_LINK):
                found.append(_read_file(int(name)))
        except OSError:
            continue  # the listing's own
    return all(found.count(one) >= 2 for one in files)


def _create(name: str) -> int:
    """Make a memfd; a Python built on an old system has no os.memfd_create."""
    for flags in (_CLOEXEC | _ALLOW_SEALING | _NOEXEC_SEAL, _CLOEXEC | _ALLOW_SEALING):
        try:
            return os.memfd_create(name, flags) if hasattr(os, "memfd_create") else _call_kernel(name, flags)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _call_kernel(name: str, flags: int) -> int:
    import ctypes  # noqa: PLC0415 torch imported it already

    number = _MEMFD_CREATE.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    made = ctypes.CDLL(None, use_errno=True).syscall(number, name.encode(), flags)
    if made < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(made)


def _copy_above(low: int) -> int:
    """Copy a descriptor to a number that close-all loops seldom reach; return ``low`` where none is free."""
    for least in _HIGH_DESCRIPTORS:
        try:
            return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, least)
        except OSError:
            continue
    return low


def _read_file(descriptor: int) -> tuple[int, int]:
    """Return device and inode of an open descriptor; -1 where it is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return -1, -1
    return found.st_dev, found.st_ino


def _read_start_ticks() -> int:
    descriptor = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
    return int(data[data.rindex(b")") + 2 :].split()[19])
