"""The pipe to the child: bounded lines, and children that die, flood, stammer or sleep."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from tests.waiting import wait_until
from tpmon.model.known import Missing, is_known
from tpmon.probe.gpu import child_link as gpu_link
from tpmon.probe.gpu.card_readings import GpuReading
from tpmon.probe.gpu.child_link import ChildLink, GpuProbe, LineSplitter, Listener
from tpmon.probe.gpu.wire import DriverLine, Line, encode_line

PYTHON = (sys.executable, "-c")
DRIVER = encode_line(Line(driver=DriverLine("580", "13.0", 0)))


def is_gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


@pytest.mark.parametrize(
    ("pieces", "lines", "dropped"),
    [
        ([b"a\nb\n"], [b"a", b"b"], 0),
        ([b"a", b"b\nc"], [b"ab"], 0),
        ([b"\n\na\n"], [b"a"], 0),
        ([b"x" * 9 + b"\nok\n"], [b"ok"], 1),
        ([b"x" * 9, b"x" * 100, b"x\nok\n"], [b"ok"], 1),
        ([b"x" * 9, b"x" * 9, b"\n", b"ok\n"], [b"ok"], 1),
        ([b"x" * 8, b"\n"], [b"x" * 8], 0),
    ],
)
def test_splitter_drops_overlong_lines_whole(pieces, lines, dropped):
    splitter = LineSplitter(limit=8)
    found = [line for piece in pieces for line in splitter.feed(piece)]
    assert (found, splitter.dropped) == (lines, dropped)


class Run:
    """Start a child again and again, ``times`` in all; what it says and how it ends is kept."""

    def __init__(self, *command: str, times: int = 1, fails: bool = False) -> None:
        self.lines: list[bytes] = []
        self.pids: list[object] = []
        self.ends: list[tuple[str, int]] = []
        self.ended = threading.Event()
        self._times, self._fails = times, fails
        listener = Listener(on_start=lambda: None, on_lines=self._on_lines, on_end=self._on_end)
        self.link = ChildLink(command, listener)
        self.link.start()

    def wait(self) -> Run:
        """Wait for the last end, and stop the link."""
        assert self.ended.wait(30)
        self.link.stop()
        return self

    def _on_lines(self, found: Sequence[bytes]) -> None:
        self.pids.append(self.link.pid)
        if self._fails:
            raise ValueError("a line that nobody foresaw")
        self.lines.extend(found)

    def _on_end(self, how: str, attempt: int) -> float:
        self.ends.append((how, attempt))
        if len(self.ends) < self._times:
            return 0.0
        self.ended.set()
        return 60.0


def run_link(code: str, **more) -> Run:
    return Run(*PYTHON, code, **more)


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ([*PYTHON, "raise SystemExit(3)"], "exit 3"),
        ([*PYTHON, "import os; os.kill(os.getpid(), 9)"], "SIGKILL"),
        ([*PYTHON, "import os; os.abort()"], "SIGABRT"),
        # A child that closes its pipe and lives on is killed: nobody can hear it any more.
        ([*PYTHON, "import os, time; os.close(1); time.sleep(600)"], "SIGKILL"),
        (["/nonexistent/python"], "cannot start: No such file or directory"),
    ],
)
def test_the_end_of_a_child_is_told_in_words(command, how):
    run = Run(*command).wait()
    assert run.ends == [(how, 1)]
    assert not is_known(run.link.pid)


def test_half_a_line_is_waited_for_and_dropped_at_the_end():
    code = "import sys; sys.stdout.write('whole\\nhal'); sys.stdout.flush(); sys.stdout.write('f\\nrest')"
    assert run_link(code).wait().lines == [b"whole", b"half"]


def test_a_child_that_floods_bytes_is_killed_and_one_that_floods_lines_is_thinned_and_counted():
    run = run_link("import os\nwhile True: os.write(1, b'x' * 65535 + b'\\n')").wait()
    assert run.ends == [("it flooded its pipe", 1)]
    assert len(run.lines) <= gpu_link.MAX_LINES_PER_S
    run = run_link("print('x\\n' * 100_000, end='')").wait()
    assert len(run.lines) + run.link.dropped_lines == 100_000
    assert len(run.lines) <= 2 * gpu_link.MAX_LINES_PER_S


def test_stop_kills_a_child_that_ignores_everything():
    code = (
        "import signal, time\n"
        "for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(600)"
    )
    run = run_link(code)
    assert wait_until(lambda: run.lines == [b"ready"])
    (pid,) = run.pids
    started = time.monotonic()
    run.link.stop()
    assert time.monotonic() - started < 10
    assert is_gone(pid)
    assert run.ends == []


def test_stop_before_the_child_runs_leaves_none():
    before = set(threading.enumerate())
    run = run_link("import time; time.sleep(600)")
    run.link.stop()
    assert wait_until(lambda: set(threading.enumerate()) <= before)
    assert run.ends == []
    assert run.link._process is None or run.link._process.returncode is not None


def start_probe(code: str, **settings: object) -> GpuProbe:
    probe = GpuProbe([*PYTHON, code], **settings)
    probe.start()
    return probe


def read_until(probe: GpuProbe, condition: Callable[[GpuReading], bool]) -> GpuReading:
    found: list[GpuReading] = []

    def check() -> bool:
        found.append(probe.read({}))
        return condition(found[-1])

    assert wait_until(check)
    return found[-1]


NO_LINES = (
    b"not json",
    b"[" * 50_000,
    b'{"card":{"index":1e999}}',
    b'{"driver":{"driver_version":"1","cuda_version":"1","cards":NaN}}',
    b'{"driver":5}',
    b"\xff\xfe",
)


@pytest.mark.parametrize(
    ("bad", "note"),
    [
        (repr(b"\n".join(NO_LINES)), "6 lines of the GPU child were not understood"),
        ("b'x' * 300_000", "1 lines of the GPU child were too many or too long"),
    ],
    ids=["garbage", "overlong"],
)
def test_what_is_no_line_is_counted_and_does_no_harm(bad, note):
    probe = start_probe(f"import os, time; os.write(1, {bad} + b'\\n' + {DRIVER!r}); time.sleep(600)")
    reading = read_until(probe, lambda one: is_known(one.driver))
    probe.stop()
    assert (reading.gpus, reading.notes) == ((), (note,))


def test_restarts_back_off_while_a_child_keeps_dying_and_anew_after_a_long_life(monkeypatch):
    waited: list[float] = []
    probe = start_probe("raise SystemExit(7)", backoff_s=(0.01, 0.02, 0.03))
    listener = probe._on_end

    def on_end(how, attempt):
        waited.append(listener(how, attempt))
        return waited[-1]

    object.__setattr__(probe._link._listener, "on_end", on_end)
    assert wait_until(lambda: len(waited) >= 5)
    probe.stop()
    assert waited[-2:] == [0.03, 0.03]
    assert waited == sorted(waited)
    assert probe.read({}).gpus == Missing("the GPU child ended before it answered (exit 7) (doctor: nvml)")
    monkeypatch.setattr(gpu_link, "STEADY_S", 0.0)
    assert [attempt for _, attempt in run_link("", times=3).wait().ends] == [1, 1, 1]


def test_a_reading_that_fails_leaves_no_child_and_the_next_one_is_tried_as_was_said():
    run = run_link("print('x', flush=True); import time; time.sleep(60)", times=3, fails=True).wait()
    assert [how for how, _ in run.ends] == ["reading it failed: ValueError: a line that nobody foresaw"] * 3
    assert wait_until(lambda: all(map(is_gone, run.pids)))
