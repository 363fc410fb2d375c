"""Let one loader worker hang at an image, or work on it for more than a minute, in the way that is named.

Run: worker_hangs.py --way NAME; the ways are the classes of WAYS.
"""

import os
import signal
import socket
import tempfile
import time
from pathlib import Path

from hang import Hang, Sticky
from loop import Images, blur
from slow_fs import mount_slow_fs

NEVER_MS = 1e9
NEVER_MB_S = 1e-9


class Piped(Sticky):
    """Read one image from a FIFO into which nobody writes."""

    def stick(self) -> None:
        """Wait for somebody who opens the FIFO, or for the bytes of somebody who has."""
        fifo = Path(tempfile.mkdtemp(), "image.raw")
        os.mkfifo(fifo)
        if self.coin:
            descriptor = os.open(fifo, os.O_RDWR)
            program.tell()
            os.read(descriptor, 3072)
        program.tell()
        fifo.read_bytes()


class Mounted(Sticky):
    """Open or read one image of a network file system that does not answer any more."""

    def prepare(self) -> None:
        late_ms, mb_s = (NEVER_MS, 500.0) if self.coin else (0.0, NEVER_MB_S)
        self.place = program.make(mount_slow_fs, 3072, late_ms, mb_s)

    def stick(self) -> None:
        program.tell(2)
        with open(os.path.join(self.place, "7"), "rb", buffering=0) as file:
            file.read(3072)


class Distant(Sticky):
    """Fetch one image over TCP from a store that took the request and never answers."""

    def prepare(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))

    def stick(self) -> None:
        connection = socket.create_connection(self.server.getsockname())
        connection.sendall(b"GET /image.raw HTTP/1.0\r\n\r\n")
        program.tell()
        connection.recv(3072)


class Stopped(Sticky):
    def stick(self) -> None:
        program.tell()
        os.kill(os.getpid(), signal.SIGSTOP)


class Huge(Sticky):
    """Serve images of which some are very large, and take more than a minute."""

    def prepare(self) -> None:
        self.seconds = program.draw.uniform(65, 90)

    def stick(self) -> None:
        self.made = 0
        program.tell()
        self.shrink()

    def shrink(self) -> None:
        image, end = Images.read(self, 0), time.thread_time() + self.seconds
        while time.thread_time() < end:
            image = blur(image, 100)


WAYS = {"fifo": Piped, "fuse": Mounted, "socket": Distant, "stopped": Stopped, "slow": Huge}
program = Hang(__doc__, ("--way", str, "fifo"))
program.train_sticky(WAYS[program.options.way])
