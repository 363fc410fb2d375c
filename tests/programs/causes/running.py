"""Start a program of this folder, wait until it shows its cause, ask tpmon, and end all of it."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.programs.causes import limits
from tests.programs.causes.table import FAULT, TENANTS, Row
from tpmon.model.verdict import EXIT_CODES, Kind
from tpmon.probe.base.procread import read_table
from tpmon.probe.job.job import find_descendants

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TPMON = (sys.executable, "-m", "tpmon")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
START_S = 120.0
CANNOT = 77
TRUTH = struct.Struct("=4q")
"""As in loop.py, which this must not import: it imports torch."""
SCRATCH = "/var/tmp"  # a real disk where /tmp is memory
BURNER = "while True: pass"
NOT_JUDGED = "not-judged"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class CannotBeMadeError(Exception):
    """Say why the cause cannot be made on this machine."""


@dataclass(frozen=True)
class TruthNow:
    """Hold what a program knows about itself: steps, their last end, and all waiting until then."""

    steps: int
    taken_ns: int
    waited_ns: int
    is_ready: bool


class Running:
    """Hold a running program; ``pid`` is its first process."""

    start_s = START_S

    def __init__(self, process: subprocess.Popen[bytes], steps_file: Path, log: Path) -> None:
        self.process = process
        self.pid = process.pid
        self.log = log
        with steps_file.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), TRUTH.size)

    def read_truth(self) -> TruthNow:
        """Read the program's own figures, none of them torn."""
        while True:
            raw = self._map[:]
            if raw == self._map[:]:
                steps, taken_ns, waited_ns, ready = TRUTH.unpack(raw)
                return TruthNow(steps, taken_ns, waited_ns, bool(ready))

    def is_ready(self) -> bool:
        return self.read_truth().is_ready

    def is_running(self) -> bool:
        return self.process.poll() is None

    def wait_until_ready(self) -> None:
        """Wait until the program shows its cause.

        Raises:
            CannotBeMadeError: when the program says so.
            RuntimeError: when it ended, or took too long.
        """
        deadline = time.monotonic() + self.start_s
        while not self.is_ready():
            code = self.process.poll()
            if code == CANNOT:
                raise CannotBeMadeError(self.log.read_text().rsplit("skip: ", 1)[-1].strip())
            if code is not None or time.monotonic() > deadline:
                raise RuntimeError(f"program did not start ({code}):\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def measure_rate(self, seconds: float) -> float:
        before = self.read_truth()
        time.sleep(seconds)
        after = self.read_truth()
        return (after.steps - before.steps) / max(1e-9, (after.taken_ns - before.taken_ns) / 1e9)


@contextmanager
def run_program(row: Row, seed: int, *more: str, seconds: float = 400.0) -> Iterator[Running]:
    start = (*TORCHRUN, str(row.ranks)) if row.ranks > 1 else (sys.executable,)
    with start_program((*start, str(HERE / row.script)), seed, *row.options, *more, seconds=seconds) as running:
        running.wait_until_ready()
        yield running


@contextmanager
def start_program(
    command: Sequence[str],
    seed: int,
    *more: str,
    seconds: float = 400.0,
    make: type[Running] = Running,
    environment: Mapping[str, str] = ONE_THREAD,
) -> Iterator[Running]:
    """Start a command with the options of a program, and end it with all that it started."""
    with tempfile.TemporaryDirectory(prefix="tpmon-causes-", dir=SCRATCH) as folder:
        steps_file, log = Path(folder, "steps"), Path(folder, "output.log")
        steps_file.write_bytes(bytes(TRUTH.size))
        options = ("--seed", str(seed), "--seconds", str(seconds), "--steps-file", str(steps_file))
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *options, *more],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": folder, "GLOO_SOCKET_IFNAME": "lo", **environment},
            )
        try:
            yield make(process, steps_file, log)
        finally:
            end_tree(process)
            limits.sweep()


def end_tree(process: subprocess.Popen[Any]) -> None:
    """Kill a program and all that descends from it, and wait until it is gone; ranks have sessions of their own."""
    members = find_descendants(process.pid, read_table())
    for pid in members or [process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{pid}/exe") for pid in members) and time.monotonic() < deadline:
        time.sleep(0.02)  # orphans that somebody else reaps


@contextmanager
def burner(is_wanted: bool) -> Iterator[None]:
    """Burn one of the CPUs that the programs use, at normal priority, while the block runs."""
    if not is_wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", BURNER])
    try:
        os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[:2])
        yield
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Verdict:
    """Hold what tpmon said at one moment; ``document`` is the Finding as it was written."""

    kind: str
    cause: str
    after_s: float
    document: dict[str, object] = field(default_factory=dict, repr=False)

    @property
    def accuses(self) -> bool:
        """Tell whether it finds fault with the program; what others take of its CPUs is none of its own."""
        is_fault = self.kind in {kind.value for kind in Kind} and EXIT_CODES[Kind(self.kind)] == FAULT
        return is_fault and not TENANTS.fits(self.kind, self.cause)

    def __str__(self) -> str:
        return f"{self.kind} {self.cause}".strip()


def read_verdict(document: object, after_s: float) -> Verdict:
    """Turn a Finding's JSON into a Verdict; a Missing one says that nothing was judged."""
    if not isinstance(document, dict) or "kind" not in document:
        return Verdict(NOT_JUDGED, "", after_s)
    return Verdict(str(document["kind"]), str(document.get("cause", "")), after_s, document)


def diagnose(pid: int, seconds: float) -> Verdict:
    """Ask ``tpmon diagnose`` once, as a user does.

    Raises:
        RuntimeError: when its exit code is not that of the kind it names.
    """
    begun = time.monotonic()
    done = subprocess.run(
        [*TPMON, "diagnose", str(pid), "--for", f"{seconds:g}s", "--json"],
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        cwd=ROOT,
        check=False,
    )
    try:
        verdict = read_verdict(json.loads(done.stdout.splitlines()[-1]), time.monotonic() - begun)
        expected = EXIT_CODES[Kind(verdict.kind)]
    except (IndexError, ValueError) as error:
        raise RuntimeError(f"no Finding from tpmon diagnose ({done.returncode}): {done.stderr}") from error
    if done.returncode != expected:
        raise RuntimeError(f"{verdict} came with exit code {done.returncode}, not {expected}")
    return verdict


@contextmanager
def attach(pid: int, *flags: str) -> Iterator[Iterable[str]]:
    """Give the lines of ``tpmon attach --json`` while the block runs."""
    process = subprocess.Popen(
        [*TPMON, "attach", str(pid), "--json", *flags], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        yield process.stdout
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def watch(
    pid: int, seconds: float, is_enough: Callable[[Verdict], bool] = lambda _verdict: False, flags: Sequence[str] = ()
) -> tuple[list[Verdict], set[str]]:
    """Follow ``tpmon attach --json``: the verdict of every second, and the notes' first words.

    Raises:
        RuntimeError: when tpmon printed no reading at all.
    """
    begun = 0.0  # the first reading is the moment of attaching
    verdicts: list[Verdict] = []
    notes: set[str] = set()
    with attach(pid, *flags) as lines:
        for line in lines:
            begun = begun or time.monotonic()
            after_s = time.monotonic() - begun
            frame = json.loads(line)
            verdicts.append(read_verdict(frame["verdict"], after_s))
            notes.update(str(note).split(":")[0] for note in frame["notes"])
            if after_s >= seconds or is_enough(verdicts[-1]):
                break
    if not verdicts:
        raise RuntimeError(f"tpmon attach {pid} --json printed nothing")
    return verdicts, notes
