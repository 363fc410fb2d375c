"""Talk over one socket of this host with a deadline for the whole, and a limit to what is listened to."""

from __future__ import annotations

import errno
import socket
import struct
import time

LOOPBACK = "127.0.0.1"
_CREDENTIALS = struct.Struct("iII")
"""struct ucred: PID, user, group."""
_CHUNK = 1 << 16


class Conversation:
    """Hold one conversation; every method raises OSError once its time is over."""

    def __init__(self, link: socket.socket, seconds: float) -> None:
        """Begin to count the time."""
        self._link = link
        self._end_s = time.monotonic() + seconds
        self._read = b""

    def _wait_no_longer(self) -> None:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        self._link.settimeout(left_s)

    def connect(self, address: str | tuple[str, int]) -> None:
        """Connect to a port or to a socket in the file system."""
        self._wait_no_longer()
        self._link.connect(address)

    def check_peer(self, pid: int) -> None:
        """Look who listens at the other end of a socket in the file system, before the first byte."""
        told = self._link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(told)[0] != pid:
            raise PermissionError(errno.EACCES, f"another process than {pid} listens there")

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._wait_no_longer()
        self._link.sendall(data)

    def read_line(self, limit: int) -> bytes:
        """Read up to the end of a line, and without it."""
        while b"\n" not in self._read:
            if len(self._read) > limit:
                raise OSError("a line of the answer is too long")
            if not self._hear():
                raise OSError("the other end closed the connection")
        line, _, self._read = self._read.partition(b"\n")
        return line

    def read_all(self, limit: int) -> bytes:
        """Read until the other end closes."""
        parts = [self._read]
        size = len(self._read)
        self._read = b""
        while self._hear():
            parts.append(self._read)
            size += len(self._read)
            self._read = b""
            if size > limit:
                raise OSError(f"the answer has more than {limit >> 20} MiB")
        return b"".join(parts)

    def _hear(self) -> bool:
        """Read some more; False at the end."""
        self._wait_no_longer()
        data = self._link.recv(_CHUNK)
        self._read += data
        return bool(data)
