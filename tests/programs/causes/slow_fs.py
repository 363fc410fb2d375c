"""Serve a read-only file system by FUSE whose opens and reads take their time, as a distant one's do.

usage: slow_fs.py FD FILE_BYTES LATENCY_MS MB_PER_S. FD is the open /dev/fuse of the mount. Every
decimal name is a file of FILE_BYTES bytes. Serves until it is killed or unmounted. No libfuse.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from limits import enter_own_mounts, mount

THREADS = 16
# Opcodes and layouts: linux/fuse.h, protocol 7.31.
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH = 1, 2, 3, 14, 15, 17, 18, 25
INIT, OPENDIR, READDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = 26, 27, 28, 29, 36, 42
IN_HEADER = struct.Struct("=IIQQIIII")
OUT_HEADER = struct.Struct("=IiQ")
DIRECT_IO = 1
ROOT_NODE = 1
REQUEST_BYTES = (1 << 20) + 4096


def mount_slow_fs(file_bytes: int, latency_ms: float, mb_s: float) -> str:
    """Mount the file system where only this process and its children see it; return the place."""
    enter_own_mounts()
    place = tempfile.mkdtemp(prefix="tpmon-slow-")
    descriptor = os.open("/dev/fuse", os.O_RDWR)
    mount("fuse", place, f"fd={descriptor},rootmode=40755,user_id=0,group_id=0,max_read=1048576")
    words = map(str, (descriptor, file_bytes, latency_ms, mb_s))
    subprocess.Popen([sys.executable, str(Path(__file__)), *words], pass_fds=[descriptor])
    os.close(descriptor)
    return place


class Server:
    """Answer the kernel's requests, each thread one at a time."""

    def __init__(self, descriptor: int, file_bytes: int, latency_s: float, bytes_s: float) -> None:
        self.descriptor = descriptor
        self.file_bytes = file_bytes
        self.latency_s = latency_s
        self.bytes_s = bytes_s
        self.pages = memoryview(os.urandom(1 << 20))
        self.line = threading.Lock()
        self.line_free_at = 0.0

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self.descriptor, REQUEST_BYTES)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EAGAIN):  # the asker gave up
                    continue
                return
            _, opcode, unique, node, *_ = IN_HEADER.unpack_from(request)
            if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
                continue
            self.reply(unique, self.answer(opcode, node, request[IN_HEADER.size :]))

    def reply(self, unique: int, answer: bytes | memoryview | int) -> None:
        """Send data, or a negative error number."""
        code, data = (answer, b"") if isinstance(answer, int) else (0, answer)
        try:
            os.writev(self.descriptor, [OUT_HEADER.pack(OUT_HEADER.size + len(data), code, unique), data])
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # the asker was killed meanwhile
                raise

    def answer(self, opcode: int, node: int, body: bytes) -> bytes | memoryview | int:
        if opcode == INIT:
            flags = struct.unpack_from("=IIII", body)[3] & 1  # FUSE_ASYNC_READ
            return struct.pack("=IIIIHHIIHHI28x", 7, 31, 1 << 20, flags, 64, 48, 1 << 20, 1, 256, 0, 0)
        if opcode == LOOKUP:
            name = body.rstrip(b"\0")
            if not name.isdigit():
                return -errno.ENOENT
            return struct.pack("=QQQQII", int(name) + 2, 0, 0, 0, 0, 0) + self.attributes(int(name) + 2)
        if opcode == GETATTR:
            return struct.pack("=QII", 3600, 0, 0) + self.attributes(node)
        if opcode in (OPEN, OPENDIR):
            time.sleep(self.latency_s)
            return struct.pack("=QII", 0, DIRECT_IO, 0)
        if opcode == READ:
            _, offset, size = struct.unpack_from("=QQI", body)
            return self.read(offset, size)
        if opcode in (RELEASE, RELEASEDIR, FLUSH, READDIR):
            return b""
        if opcode == STATFS:
            return struct.pack("=QQQQQIIII24x", 1 << 20, 0, 0, 1 << 20, 0, 4096, 255, 4096, 0)
        return -errno.ENOSYS

    def read(self, offset: int, size: int) -> memoryview:
        """Return file content after the latency, at the line's speed, which all readers share."""
        size = max(0, min(size, self.file_bytes - offset, len(self.pages)))
        with self.line:
            now = time.monotonic()
            self.line_free_at = max(now, self.line_free_at) + size / self.bytes_s
            wait_s = self.line_free_at - now
        time.sleep(self.latency_s + wait_s)
        return self.pages[:size]

    def attributes(self, node: int) -> bytes:
        folder = node == ROOT_NODE
        mode, size = (stat.S_IFDIR | 0o755, 0) if folder else (stat.S_IFREG | 0o444, self.file_bytes)
        return struct.pack("=6Q10I", node, size, size // 512 + 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    server = Server(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1e3, float(sys.argv[4]) * 1e6)
    threads = [threading.Thread(target=server.serve) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
