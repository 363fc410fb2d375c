"""Put a slow link that loses packets between a host of the bed and its bridge; or cut a host off.

Not every kernel has netem. So two TAP devices stand for the wire, and this program carries each frame from one to
the other: late, and some of them never. What TCP makes of that is the kernel's own.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.fleet import bed

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_FRAME_BYTES = 1 << 16


def open_tap(name: str) -> int:
    """Make a TAP device that lasts as long as its descriptor."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return descriptor


def carry(taps: tuple[int, int], delay_s: float, loss: float) -> None:
    """Carry frames both ways until standard input ends, each after a delay, a share of them never."""
    chance, due = random.Random(1), list[tuple[float, int, int, bytes]]()
    poll = select.poll()
    for one in (0, *taps):
        poll.register(one, select.POLLIN)
    number = 0
    while True:
        wait_s = max(0.0, due[0][0] - time.monotonic()) if due else 1.0
        for ready, _ in poll.poll(1000 * wait_s):
            if ready == 0:
                return
            frame = os.read(ready, _FRAME_BYTES)
            number += 1
            if chance.random() >= loss:
                other = taps[1] if ready == taps[0] else taps[0]
                heapq.heappush(due, (time.monotonic() + delay_s, number, other, frame))
        while due and due[0][0] <= time.monotonic():
            _, _, other, frame = heapq.heappop(due)
            with suppress(OSError):  # the device is down
                os.write(other, frame)


@contextmanager
def roughen(host: bed.Host, delay_s: float, loss: float) -> Iterator[None]:
    """Replace the link of a host by one with a delay each way, which loses a share of the packets each way."""
    outer, inner = f"far-{host.name}", f"near-{host.name}"
    words = [sys.executable, "-m", "tests.fleet.rough_link", outer, inner, str(delay_s), str(loss)]
    carrier = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=bed.ROOT)
    try:
        assert carrier.stdout.readline() == b"up\n"
        bed.run(*host.enter("ip", "link", "del", "eth0"))
        bed.run("ip", "link", "set", outer, "master", bed.BRIDGE, "up")
        bed.run("ip", "link", "set", inner, "netns", str(host.init), "name", "eth0")
        bed.run(*host.enter("sh", "-c", f"ip addr add {host.address}/24 dev eth0 && ip link set eth0 up"))
        yield
    finally:
        carrier.communicate()


@contextmanager
def cut_off(host: bed.Host) -> Iterator[None]:
    """Take a host off the bridge: no packet comes through, and nobody is told."""
    bed.run("ip", "link", "set", host.link, "nomaster")
    try:
        yield
    finally:
        bed.run("ip", "link", "set", host.link, "master", bed.BRIDGE)


if __name__ == "__main__":
    wire = open_tap(sys.argv[1]), open_tap(sys.argv[2])
    print("up", flush=True)
    carry(wire, float(sys.argv[3]), float(sys.argv[4]))
