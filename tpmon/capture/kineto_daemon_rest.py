"""Answer the libkineto of a training in the place of the daemon that it was told to ask.

The socket is there while a capture is under way and no longer. Every process that asks is answered at
once, with nothing; only the one that is meant gets an order, once.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import struct

from tpmon.capture.kineto_daemon import DAEMON, MOST_BYTES, Ask, Order, parse_ask, write_answer
from tpmon.capture.kineto_target import KinetoClient, find_holder
from tpmon.errors import UsageError
from tpmon.foreign_file import open_foreign, read_owner
from tpmon.model.frozen import dataclass
from tpmon.own_command import call_as_owner

_CREDENTIALS = struct.Struct("iII")


class TakenError(UsageError):
    """Say that somebody else answers kineto already, or that nobody may."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Hold a question, who asked it, and whether an order went back."""

    pid: int
    ask: Ask
    ordered: bool


class Daemon:
    """Hold the socket that kineto asks; ``orders`` are what is to go to which process next."""

    def __init__(self, client: KinetoClient) -> None:
        """Take the place of the daemon.

        Raises:
            TakenError: when somebody has it, saying who.
        """
        self.orders: dict[int, Order] = {}
        self._path = f"{client.folder}/{DAEMON}" if client.folder else ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._bind(client)
        except OSError as error:
            self._socket.close()
            holder = find_holder(client.daemon)
            why = f"{holder} answers it already" if holder else f"its socket: {error.strerror or error}"
            raise TakenError(
                f"kineto cannot be asked: {why}",
                f"{call_as_owner(client.process.pid)} records with the hook instead",
            ) from error

    def close(self) -> None:
        """Give the place back: a socket that nobody reads would hold up the end of the training."""
        self._socket.close()
        if self._path:
            try:
                os.unlink(self._path)
            except OSError:
                return  # the folder went before

    def listen(self, seconds: float) -> Heard | None:
        """Wait for one question and answer it; None where none came in time, or nonsense."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        if not waiting.poll(round(1e3 * seconds)):
            return None
        try:
            data, extra, _, sender = self._socket.recvmsg(
                MOST_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_DONTWAIT
            )
        except OSError:
            return None
        ask = parse_ask(data)
        pid = next(
            (
                int(_CREDENTIALS.unpack(value)[0])
                for level, kind, value in extra
                if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS
            ),
            0,
        )
        if ask is None or not pid or not self._is_beside(sender):
            return None
        order = self.orders.get(pid) if ask.free else None
        try:
            self._socket.sendto(write_answer(ask, order), socket.MSG_DONTWAIT, sender)
        except OSError:
            return None  # it has ended, or its own folder is gone
        if order is not None:
            del self.orders[pid]
        return Heard(pid, ask, order is not None)

    def _is_beside(self, sender: str | bytes) -> bool:
        """Tell whether a socket has its name where kineto makes them: an answer goes nowhere else."""
        if isinstance(sender, bytes):
            return not self._path
        return bool(sender) and os.path.dirname(sender) == os.path.dirname(self._path)

    def _bind(self, client: KinetoClient) -> None:
        if not self._path:
            self._socket.bind(f"\0{DAEMON}\0".encode())
            return
        owner = read_owner(client.process.pid)
        # Where others decide what the name leads to, root would make and remove files for them.
        os.close(open_foreign(client.folder, owner, is_kind=stat.S_ISDIR))
        self._clear(client)
        # No chmod afterwards: it would follow a link that somebody put there meanwhile.
        before = os.umask(0o177)
        try:
            self._socket.bind(self._path)
        finally:
            os.umask(before)
        if owner.uid != os.geteuid():
            os.chown(self._path, owner.uid, owner.gid, follow_symlinks=False)

    def _clear(self, client: KinetoClient) -> None:
        """Remove the socket of a daemon that was killed."""
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            return
        if stat.S_ISSOCK(found.st_mode) and not find_holder(client.daemon):
            os.unlink(self._path)
