"""Stand in for a training job of many processes and threads: one launcher, ranks, loader workers.

Nothing computes: threads sleep, and ``--waking`` of them wake ten times a second. Prints "ready
PID" when the whole tree stands. Ends after ``--seconds`` or with the process that started it.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
WORKERS_PER_RANK = 16
WAKE_EVERY_S = 0.1


def name_and_bind(name: str, parent: int, seconds: int) -> None:
    """Take a process name, die with the parent, and end after a bounded time."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.alarm(seconds)
    if os.getppid() != parent:
        os._exit(1)


def share(total: int, parts: int, index: int) -> int:
    """Split a number into parts that differ by at most one."""
    return total // parts + (index < total % parts)


def start_threads(count: int, waking: int) -> None:
    """Start sleeping threads, of which the first ``waking`` wake up ten times a second."""
    threading.stack_size(64 * 1024)
    for i in range(count):
        threading.Thread(target=wake if i < waking else threading.Event().wait, daemon=True).start()


def wake() -> None:
    while True:
        time.sleep(WAKE_EVERY_S)


def map_torch(path: str) -> mmap.mmap:
    """Map a file that is called libtorch, which is what /proc/PID/maps shows of the real one."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def run_rank(options: argparse.Namespace) -> None:
    """Fork the workers of one rank, then sleep in its own threads."""
    me, ranks = options.rank, options.ranks
    if options.torch:
        import torch  # noqa: F401
    else:
        options.held = map_torch(options.library)
    workers = share(options.processes - 1 - ranks, ranks, me)
    spare = max(0, options.threads - options.processes)
    own = share(spare // 2 if workers else spare, ranks, me)
    rest = share(spare - spare // 2, ranks, me)
    ready, done = os.pipe()
    parent = os.getpid()
    # A loader makes its data queue first, and an index queue before each worker; all of them are pipes.
    options.queues = [os.pipe()]
    for number in range(workers):
        options.queues.append(os.pipe())
        if os.fork() == 0:
            name_and_bind("pt_data_worker", parent, options.seconds)
            waking = share(options.waking - options.waking // 2, ranks, me)
            start_threads(share(rest, workers, number), share(waking, workers, number))
            os.write(done, b".")
            signal.pause()
    start_threads(own, share(options.waking // 2 if workers else options.waking, ranks, me))
    for _ in range(workers):
        os.read(ready, 1)
    print("ready", flush=True)
    signal.pause()


def run_launcher(options: argparse.Namespace) -> None:
    """Start the ranks with their environment, say when all stand, and wait."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:]]
        library = Path(folder, "libtorch_cpu.so")
        library.write_bytes(bytes(mmap.PAGESIZE))
        started = []
        for rank in range(options.ranks):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(options.ranks)}
            started.append(
                subprocess.Popen(
                    [*command, "--rank", str(rank), "--library", str(library)],
                    env={**os.environ, **place},
                    stdout=subprocess.PIPE,
                )
            )
        for one in started:
            if one.stdout is None or not one.stdout.readline():
                sys.exit("a rank did not start")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print(f"ready {os.getpid()}", flush=True)
        signal.pause()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=137, help="all of them, the launcher included")
    parser.add_argument("--threads", type=int, default=3000, help="all of them, main threads included")
    parser.add_argument("--waking", type=int, default=0, help="threads that wake ten times a second")
    parser.add_argument("--torch", action="store_true", help="import the real torch: 800 mappings a process")
    parser.add_argument("--seconds", type=int, default=900, help="lifetime")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--library", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.ranks = max(1, min(8, (options.processes - 1) // (WORKERS_PER_RANK + 1)))
    if options.processes < 1 + options.ranks:
        parser.error("--processes: at least 2, a launcher and a rank")
    parent = os.getppid()
    if options.rank < 0:
        name_and_bind("pt_elastic", parent, options.seconds)
        run_launcher(options)
    else:
        name_and_bind("python", parent, options.seconds)
        run_rank(options)


if __name__ == "__main__":
    main()
