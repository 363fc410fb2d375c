"""Run several hung programs side by side: so many at a turn, those that compute no more than CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from tests.hangs.judging import look, watch_alive
from tests.hangs.programs import Trees, start_trees
from tests.hangs.results import Result
from tests.programs.causes.running import CannotBeMadeError
from tests.programs.hangs.table import AliveRow, Row
from tpmon.model.known import known_or
from tpmon.probe.host.machine import parse_meminfo

MORE_S = 1200.0
"""How long a program lives beyond the time that it hangs: starting, and waiting for its turn."""
PROCESS_BYTES = 250e6
"""What a Python with torch keeps of memory for itself, measured 110 to 180 MB with its workers."""
SPARE_RATIO = 0.7
"""How much of the free memory hung programs may take."""

Run = tuple[Row | AliveRow, int]
Tell = Callable[[Result], None]


class EndedError(Exception):
    """Say that the matrix is ended by its user."""


class Abreast:
    """Run programs in threads, at most ``jobs`` of them busy: starting, or looked at.

    Args:
        jobs: programs that start or are looked at at once. A fresh hang has its turn from start to end.
        cores: of them those that compute.
        at_once: programs that hang beside each other until they are old enough.
        old_s: how long each hangs before tpmon starts; 0 for fresh.
        tell: takes each result, from several threads.
    """

    def __init__(self, jobs: int, cores: int, at_once: int, old_s: float, tell: Tell) -> None:
        self.failed = 0
        self._old_s = old_s
        self._tell = tell
        self._turns = threading.Semaphore(jobs)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._live: list[Trees] = []
        self._quiet = ThreadPoolExecutor(at_once if old_s else jobs)
        self._computing = ThreadPoolExecutor(cores if old_s else min(cores, jobs))

    def run(self, runs: Sequence[Run]) -> None:
        futures: list[Future[None]] = []
        try:
            for row, seed in runs:
                pool = self._computing if row.burns else self._quiet
                futures.append(pool.submit(self._run_one, row, seed))
            for future in futures:
                future.result()
        except BaseException:
            self._end(futures)
            raise
        finally:
            self._quiet.shutdown()
            self._computing.shutdown()

    def _end(self, futures: Sequence[Future[None]]) -> None:
        self._ended.set()
        for future in futures:
            future.cancel()
        with self._lock:
            for trees in self._live:
                trees.end()
        wait([future for future in futures if not future.cancelled()])

    def _run_one(self, row: Row | AliveRow, seed: int) -> None:
        try:
            result = self._run_old(row, seed) if self._old_s else self._run_fresh(row, seed)
        except EndedError:
            return
        except CannotBeMadeError as error:
            result = Result(row.name, seed, self._old_s, "", (), -1.0, (), "", skipped=str(error))
        except (RuntimeError, subprocess.SubprocessError) as error:
            if not self._ended.is_set():
                self.failed += 1
                print(f"{row.name} seed {seed}: not looked at: {error}", file=sys.stderr, flush=True)
            return
        if not self._ended.is_set():
            with self._lock:
                self._tell(result)

    def _run_fresh(self, row: Row | AliveRow, seed: int) -> Result:
        with self._turns, self._start(row, seed) as trees:
            trees.wait_until_ready()
            return look(row, seed, 0.0, trees) if isinstance(row, Row) else watch_alive(row, seed, trees)

    def _run_old(self, row: Row | AliveRow, seed: int) -> Result:
        assert isinstance(row, Row), "only what hangs grows old"
        self._turns.acquire()
        is_mine = True
        try:
            with self._start(row, seed) as trees:
                trees.wait_until_ready()
                since = time.monotonic()
                self._turns.release()
                is_mine = False
                self._ended.wait(self._old_s)
                self._turns.acquire()
                is_mine = True
                return look(row, seed, time.monotonic() - since, trees)
        finally:
            if is_mine:
                self._turns.release()

    @contextmanager
    def _start(self, row: Row | AliveRow, seed: int) -> Iterator[Trees]:
        if self._ended.is_set():
            raise EndedError
        with start_trees(row, seed, MORE_S + self._old_s) as trees:
            with self._lock:
                self._live.append(trees)
            if self._ended.is_set():
                raise EndedError
            yield trees


def count_room() -> int:
    """Return how many hung programs fit into the free memory beside each other, three processes each."""
    free = known_or(parse_meminfo(Path("/proc/meminfo").read_bytes(), b"MemAvailable"), 0)
    return max(2, int(free * SPARE_RATIO / (3 * PROCESS_BYTES)))


def count_cores() -> int:
    return len(os.sched_getaffinity(0))
