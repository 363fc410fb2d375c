"""The pipe to the child: bounded lines, and children that die, flood, stammer or sleep."""

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


def run_link(code: str) -> tuple[ChildLink, list[bytes], list[tuple[str, int]], threading.Event]:
    """Start a child that runs ``code``; the link stops at its first end."""
    lines: list[bytes] = []
    ends: list[tuple[str, int]] = []
    ended = threading.Event()

    def on_end(how: str, attempt: int) -> float:
        ends.append((how, attempt))
        ended.set()
        return 60.0

    def on_lines(found: Sequence[bytes]) -> None:
        lines.extend(found)

    listener = Listener(on_start=lambda: None, on_lines=on_lines, on_end=on_end)
    link = ChildLink([sys.executable, "-c", code], listener)
    link.start()
    return link, lines, ends, ended


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("raise SystemExit(3)", "exit 3"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import os; os.abort()", "SIGABRT"),
        # A child that closes its pipe and lives on is killed: nobody can hear it any more.
        ("import os, time; os.close(1); time.sleep(600)", "SIGKILL"),
    ],
)
def test_the_end_of_a_child_is_told_in_words(code, how):
    link, _, ends, ended = run_link(code)
    assert ended.wait(10)
    link.stop()
    assert ends == [(how, 1)]
    assert not is_known(link.pid())


def test_a_command_that_is_not_there_is_told():
    ended = threading.Event()
    ends: list[str] = []

    def on_end(how, attempt):
        ends.append(how)
        ended.set()
        return 60.0

    listener = Listener(on_start=lambda: None, on_lines=lambda lines: None, on_end=on_end)
    link = ChildLink(["/nonexistent/python"], listener)
    link.start()
    assert ended.wait(10)
    link.stop()
    assert ends == ["cannot start: No such file or directory"]


def test_half_a_line_is_waited_for_and_dropped_at_the_end():
    code = "import sys; sys.stdout.write('whole\\nhal'); sys.stdout.flush(); sys.stdout.write('f\\nrest')"
    link, lines, _, ended = run_link(code)
    assert ended.wait(10)
    link.stop()
    assert lines == [b"whole", b"half"]


def test_a_child_that_floods_bytes_is_killed():
    link, lines, ends, ended = run_link("import os\nwhile True: os.write(1, b'x' * 65535 + b'\\n')")
    assert ended.wait(20)
    link.stop()
    assert ends == [("it flooded its pipe", 1)]
    assert len(lines) <= gpu_link.MAX_LINES_PER_S


def test_a_child_that_floods_lines_is_thinned_and_counted():
    link, lines, _, ended = run_link("print('x\\n' * 100_000, end='')")
    assert ended.wait(20)
    link.stop()
    assert len(lines) + link.dropped_lines == 100_000
    assert len(lines) <= 2 * gpu_link.MAX_LINES_PER_S


def test_stop_kills_a_child_that_ignores_everything():
    code = (
        "import signal, time\n"
        "for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(600)"
    )
    link, lines, ends, _ = run_link(code)
    assert wait_until(lambda: lines == [b"ready"])
    pid = link.pid()
    assert is_known(pid)
    started = time.monotonic()
    link.stop()
    assert time.monotonic() - started < 10
    assert is_gone(pid)
    assert ends == []


def test_stop_before_the_child_runs_leaves_none():
    before = set(threading.enumerate())
    link, _, ends, _ = run_link("import time; time.sleep(600)")
    link.stop()
    assert wait_until(lambda: set(threading.enumerate()) <= before)
    assert ends == []
    assert link._process is None or link._process.returncode is not None


def start_probe(code: str, **settings: object) -> GpuProbe:
    probe = GpuProbe([sys.executable, "-c", code], **settings)
    probe.start()
    return probe


def read_until(probe: GpuProbe, condition: Callable[[GpuReading], bool]) -> GpuReading:
    found: list[GpuReading] = []

    def check() -> bool:
        found.append(probe.read({}))
        return condition(found[-1])

    assert wait_until(check)
    return found[-1]


def test_garbage_between_lines_is_counted_and_does_no_harm():
    bad = [
        b"not json\n",
        b"[" * 50_000 + b"\n",
        b'{"card":{"index":1e999}}\n',
        b'{"driver":{"driver_version":"1","cuda_version":"1","cards":NaN}}\n',
        b'{"driver":5}\n',
        b"\xff\xfe\n",
    ]
    written = b"".join(bad) + DRIVER
    probe = start_probe(f"import os, time; os.write(1, {written!r}); time.sleep(600)")
    reading = read_until(probe, lambda one: is_known(one.driver))
    probe.stop()
    assert reading.gpus == ()
    assert reading.notes == ("6 lines of the GPU child were not understood",)


def test_an_overlong_line_is_counted():
    code = f"import os, time; os.write(1, b'x' * 300_000 + b'\\n' + {DRIVER!r}); time.sleep(600)"
    probe = start_probe(code)
    reading = read_until(probe, lambda one: is_known(one.driver))
    probe.stop()
    assert reading.notes == ("1 lines of the GPU child were too many or too long",)


def test_restarts_back_off_while_a_child_keeps_dying():
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


def test_a_long_life_starts_the_back_off_anew(monkeypatch):
    monkeypatch.setattr(gpu_link, "STEADY_S", 0.0)
    attempts: list[int] = []
    third = threading.Event()

    def on_end(how, attempt):
        attempts.append(attempt)
        if len(attempts) == 3:
            third.set()
        return 0.0 if len(attempts) < 3 else 60.0

    listener = Listener(on_start=lambda: None, on_lines=lambda lines: None, on_end=on_end)
    link = ChildLink([sys.executable, "-c", ""], listener)
    link.start()
    assert third.wait(10)
    link.stop()
    assert attempts == [1, 1, 1]


def test_a_reading_that_fails_leaves_no_child_and_the_next_one_is_tried_as_was_said():
    hows: list[str] = []
    third = threading.Event()
    pids: list[int] = []

    def on_lines(_lines):
        pids.append(link.pid())
        raise ValueError("a line that nobody foresaw")

    def on_end(how, _attempt):
        hows.append(how)
        if len(hows) == 3:
            third.set()
        return 0.0 if len(hows) < 3 else 60.0

    code = "print('x', flush=True); import time; time.sleep(60)"
    link = ChildLink([sys.executable, "-c", code], Listener(on_start=lambda: None, on_lines=on_lines, on_end=on_end))
    link.start()
    assert third.wait(30)
    link.stop()
    assert hows == ["reading it failed: ValueError: a line that nobody foresaw"] * 3
    assert wait_until(lambda: all(map(is_gone, pids)))
