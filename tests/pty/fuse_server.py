"""Show a folder at another place through FUSE, and stop answering when told to: a mount that hangs.

``python fuse_server.py FOLDER MOUNT`` says "ready", then obeys the lines of its standard input: "hold" keeps
each request without an answer from then on, as sshfs does when its server is gone; "hold 65536" begins with the
read that comes so far in a file, and says "reached". The kernel then lets no
signal end whoever asked (request_wait_answer of fs/fuse/dev.c). When this process ends, the kernel fails
what waits. The layout of the messages is that of include/uapi/linux/fuse.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import sys

_IN, _OUT = struct.Struct("=IIQQIIII"), struct.Struct("=IiQ")
_ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("=QQQQII")
_ANSWER_BYTES = 1 << 17
_VALID_S = 0
"""Nothing is kept by the kernel: each look asks anew."""
_NO_ANSWER = frozenset((2, 36, 42))
"""FORGET, INTERRUPT, BATCH_FORGET."""
_FORGOTTEN_FLAGS = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class Server:
    """Answer the requests of one mount; a node is known by the path that it was looked up by."""

    def __init__(self, folder: str, mount: str) -> None:
        self.link = os.open("/dev/fuse", os.O_RDWR)
        self.held = False
        self.hold_at = 1 << 62
        self._paths = {1: folder}
        self._numbers = {folder: 1}
        options = f"fd={self.link},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"tpmon-test", mount.encode(), b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def turn(self) -> None:
        """Take one request, and answer it unless requests are held."""
        raw = os.read(self.link, _ANSWER_BYTES + 4096)
        _, opcode, unique, node, *_ = _IN.unpack_from(raw)
        if not self.held and opcode == 15 and struct.unpack_from("=Q", raw, _IN.size + 8)[0] >= self.hold_at:
            self.held = True
            print("reached", flush=True)
        if self.held or opcode in _NO_ANSWER:
            return
        try:
            body, error = self._answer(opcode, node, raw[_IN.size :]), 0
        except OSError as failed:
            body, error = b"", -(failed.errno or errno.EIO)
        os.write(self.link, _OUT.pack(_OUT.size + len(body), error, unique) + body)

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes:
        path = self._paths.get(node, "")
        name = os.path.join(path, body.split(b"\0", 1)[0].decode()) if opcode in (1, 10, 11) else ""
        match opcode:
            case 1:  # LOOKUP
                return self._entry(name)
            case 3:  # GETATTR
                return struct.pack("=QII", _VALID_S, 0, 0) + _attributes(os.lstat(path))
            case 4:  # SETATTR: of all that can be set, the size
                if struct.unpack_from("=I", body)[0] & 8:
                    os.truncate(path, struct.unpack_from("=Q", body, 16)[0])
                return struct.pack("=QII", _VALID_S, 0, 0) + _attributes(os.lstat(path))
            case 5:  # READLINK
                return os.readlink(path).encode()
            case 9:  # MKDIR
                made = os.path.join(path, body[8:].rstrip(b"\0").decode())
                os.mkdir(made)
                return self._entry(made)
            case 10 | 11:  # UNLINK, RMDIR
                (os.unlink if opcode == 10 else os.rmdir)(name)
                return b""
            case 14 | 27:  # OPEN, OPENDIR
                flags = struct.unpack_from("=I", body)[0] & ~_FORGOTTEN_FLAGS
                return struct.pack("=QII", os.open(path, flags & ~os.O_APPEND), 0, 0)
            case 15:  # READ
                handle, offset, size = struct.unpack_from("=QQI", body)
                return os.pread(handle, size, offset)
            case 16:  # WRITE
                handle, offset, size = struct.unpack_from("=QQI", body)
                return struct.pack("=II", os.pwrite(handle, body[40 : 40 + size], offset), 0)
            case 17:  # STATFS
                return struct.pack("=QQQQQIIII24x", 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 4096, 255, 4096, 0)
            case 18 | 29:  # RELEASE, RELEASEDIR
                os.close(struct.unpack_from("=Q", body)[0])
                return b""
            case 25:  # FLUSH
                return b""
            case 26:  # INIT: version 7.31, large reads
                major, minor = struct.unpack_from("=II", body)
                return struct.pack("=IIIIHHIIHHI28x", major, min(minor, 31), 1 << 17, 0, 16, 12, 1 << 17, 1, 32, 0, 0)
            case 28:  # READDIR
                return self._list(path, *struct.unpack_from("=QI", body, 8))
            case 35:  # CREATE
                flags, mode = struct.unpack_from("=II", body)
                made = os.path.join(path, body[16:].rstrip(b"\0").decode())
                handle = os.open(made, (flags & ~os.O_APPEND) | os.O_CREAT, mode & 0o7777)
                return self._entry(made) + struct.pack("=QII", handle, 0, 0)
        raise OSError(errno.ENOSYS, "not served")

    def _entry(self, path: str) -> bytes:
        found = os.lstat(path)
        number = self._numbers.setdefault(path, len(self._numbers) + 1)
        self._paths[number] = path
        return _ENTRY.pack(number, 0, _VALID_S, _VALID_S, 0, 0) + _attributes(found)

    @staticmethod
    def _list(path: str, offset: int, size: int) -> bytes:
        names = [".", "..", *sorted(os.listdir(path))]
        rows = b""
        for number, name in enumerate(names[offset:], offset + 1):
            raw = name.encode()
            row = struct.pack("=QQII", number, number, len(raw), 0) + raw
            row += bytes(-len(row) % 8)
            if len(rows) + len(row) > size:
                break
            rows += row
        return rows


def _attributes(found: os.stat_result) -> bytes:
    times = (int(found.st_atime), int(found.st_mtime), int(found.st_ctime))
    who = (found.st_mode, found.st_nlink, found.st_uid, found.st_gid)
    return _ATTR.pack(found.st_ino, found.st_size, found.st_blocks, *times, 0, 0, 0, *who, 0, 4096, 0)


def main() -> None:
    server = Server(sys.argv[1], sys.argv[2])
    print("ready", flush=True)
    ready = select.poll()
    ready.register(server.link, select.POLLIN)
    ready.register(0, select.POLLIN)
    while True:
        for descriptor, _ in ready.poll():
            if descriptor == server.link:
                server.turn()
            elif told := os.read(0, 100).split():
                server.held = len(told) == 1
                server.hold_at = int(told[-1]) if len(told) > 1 else server.hold_at
                print("held", flush=True)
            else:
                return


if __name__ == "__main__":
    main()
