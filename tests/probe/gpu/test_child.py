"""The real main of the NVML child, run as a process with a fake pynvml in the driver's place; the pipe to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.waiting import wait_until
from tpmon.model.gpu import GpuState
from tpmon.model.known import Missing, is_known
from tpmon.probe.base.procread import read_stat
from tpmon.probe.gpu import child_link as gpu_link
from tpmon.probe.gpu.card_readings import NOT_YET, GpuReading
from tpmon.probe.gpu.child_link import ChildLink, GpuProbe, LineSplitter, Listener, child_command
from tpmon.probe.gpu.wire import DriverLine, FailureLine, Line, encode_line

ROOT = str(Path(__file__).parents[3])
PYTHON = (sys.executable, "-c")
STUB = """
import sys, time, threading
sys.path.append({root!r})
from tests.fake_nvml import *
from tpmon.probe.gpu.child import main

cards = [FakeCard(uuid=f"GPU-{{i}}", minor=i, processes=[(100 + i, 1 << 30)]) for i in range(3)]
nvml = FakeNvml(*cards)
{body}
main(lambda: nvml)
"""


def is_gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def read_until(probe: GpuProbe, condition: Callable[[GpuReading], bool]) -> GpuReading:
    found: list[GpuReading] = []

    def check() -> bool:
        found.append(probe.read({}))
        return condition(found[-1])

    assert wait_until(check)
    return found[-1]


def start_probe(code: str, **settings: object) -> GpuProbe:
    probe = GpuProbe([*PYTHON, code], **settings)
    probe.start()
    return probe


def start_child(body: str = "", **settings: object) -> GpuProbe:
    """Start the real child on three fake cards; ``body`` bends them first."""
    return start_probe(STUB.format(root=ROOT, body=body), **settings)


def listen(probe: GpuProbe, condition: Callable[[GpuReading, list[str]], bool]) -> tuple[GpuReading, list[str]]:
    """Return the first reading of which something holds, and the events until then."""
    told: list[str] = []

    def check(reading: GpuReading) -> bool:
        told.extend(reading.events)
        return condition(reading, told)

    return read_until(probe, check), told


def read_child(body: str, condition: Callable[[GpuReading, list[str]], bool]) -> tuple[GpuReading, list[str]]:
    """Start such a child, listen to it, and stop it."""
    probe = start_child(body)
    try:
        return listen(probe, condition)
    finally:
        probe.stop()


def states(reading: GpuReading) -> list[GpuState]:
    return [card.state for card in reading.gpus] if is_known(reading.gpus) else []


def has_all(reading: GpuReading, _told: object = None) -> bool:
    return len(states(reading)) == 3


WEDGE_ONE = """
def wedge():
    nvml.hang.update({{name: {{1}} for name in dir(FakeNvml) if name.startswith("nvmlDevice")}})
threading.Timer({after}, wedge).start()
if not {after}:
    wedge()
"""


@pytest.fixture(scope="module")
def wedging():
    """Start a child whose card wedges after its first lines, and one whose card never answers."""
    probes = (start_child(WEDGE_ONE.format(after=0.5)), start_child(WEDGE_ONE.format(after=0)))
    yield probes
    for probe in probes:
        probe.stop()


def test_one_wedged_card_ages_alone_and_quitting_does_not_wait_for_it(wedging):
    probe, _ = wedging
    read_until(probe, has_all)
    reading = read_until(probe, lambda one: states(one) == [GpuState.OK, GpuState.STALE, GpuState.OK])
    assert is_known(reading.gpus)
    first, wedged, third = reading.gpus
    assert max(first.age_s, third.age_s) < wedged.age_s
    assert wedged.age_s >= 3
    assert wedged.sm_pct == Missing("the card does not answer")
    assert first.power_w == third.power_w == 412.5
    pid = probe.child_pid()
    assert is_known(pid)
    started = time.monotonic()
    probe.stop()
    assert time.monotonic() - started < 10
    assert is_gone(pid)


def test_a_card_wedged_from_the_start_has_its_place(wedging):
    _, probe = wedging
    reading = read_until(probe, lambda one: states(one) == [GpuState.OK, GpuState.STALE, GpuState.OK])
    assert reading.gpus[1].uuid == "card-1"


def test_a_call_that_never_returns_costs_its_own_reading():
    hang = {"nvmlDeviceGetName": {0}, "nvmlDeviceGetRemappedRows": {1}, "nvmlDeviceGetPowerUsage": {2}}
    body = f"nvml.hang.update({hang})\nFakeNvml.nvmlSystemGetDriverVersion = lambda self: time.sleep(600)"
    seen, _ = read_child(body, lambda one, _: states(one) == [GpuState.OK] * 3)
    stuck = Missing("the driver does not return from this call")
    nameless, unmapped, powerless = seen.gpus
    assert [card.sm_pct for card in seen.gpus] == [50.0] * 3
    assert nameless.name == "unknown card"
    assert (unmapped.remapped_rows_failed, unmapped.ecc_uncorrected) == (stuck, 2)
    assert (powerless.power_limit_w, powerless.power_w) == (700.0, stuck)
    assert seen.driver.driver_version == stuck


def test_an_init_that_never_returns_blocks_nobody():
    started = time.monotonic()
    probe = start_child("FakeNvml.nvmlInit = lambda self: time.sleep(600)")
    assert time.monotonic() - started < 5
    assert wait_until(lambda: is_known(probe.child_pid()))
    assert probe.read({}).gpus == NOT_YET
    pid = probe.child_pid()
    assert is_known(pid)
    probe.stop()
    assert is_gone(pid)


def test_a_killed_child_is_started_again_and_the_gap_is_told():
    probe = start_child(backoff_s=(0.1, 0.1, 0.1))
    read_until(probe, has_all)
    first = probe.child_pid()
    assert is_known(first)
    os.kill(first, signal.SIGKILL)
    _, told = listen(probe, lambda _, told: any("restarted" in text for text in told))
    assert told[0] == "GPU child ended (SIGKILL); next try in 0.1 s"
    assert told[1].startswith("GPU child restarted after SIGKILL, gap ")
    read_until(probe, lambda one: states(one) == [GpuState.OK] * 3)
    second = probe.child_pid()
    assert is_known(second)
    assert second != first
    probe.stop()
    assert is_gone(first)
    assert is_gone(second)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("nvml.failures['nvmlInit'] = 12", "no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)"),
        ("nvml.failures['nvmlInit'] = 4", "no permission to use the NVIDIA driver"),
        ("nvml.failures['nvmlInit'] = 9", "the NVIDIA driver is not loaded"),
        ("nvml.failures['nvmlDeviceGetCount'] = 999", "unknown driver error"),
    ],
)
def test_no_driver_is_said_and_not_asked_in_a_hot_loop(body, reason):
    probe = start_child(body, backoff_s=(0.01,))
    reading = read_until(probe, lambda one: one.driver != NOT_YET)
    assert (reading.gpus.reason, reading.events) == (f"{reason} (doctor: nvml)", ())
    assert wait_until(lambda: not is_known(probe.child_pid()))
    ended = probe._link._process
    time.sleep(0.2)
    assert probe._link._process is ended
    probe.stop()


def test_a_driver_that_stays_away_is_asked_less_and_less_often():
    probe = GpuProbe(["true"])
    probe._on_start()
    probe._on_lines([encode_line(Line(failure=FailureLine(12, "")))])
    assert [probe._on_end("exit 1", attempt) for attempt in (1, 2, 3, 4, 5, 2000)] == [30, 60, 120, 240, 300, 300]


@pytest.mark.parametrize(
    ("module", "start"),
    [
        (None, "the nvidia-ml-py package is not installed (doctor: nvml)"),
        ("raise SyntaxError('for python 2')", "pynvml cannot be imported: SyntaxError: for python 2 ("),
        ("raise ImportError('no such name')", "pynvml cannot be imported: ImportError: no such name ("),
        ("nvmlInit = nvmlDeviceGetCount = lambda: {}", "asking NVML failed: TypeError"),
    ],
)
def test_a_module_that_is_missing_or_breaks_is_named_with_its_file(tmp_path, module, start):
    file = tmp_path / "pynvml.py"
    file.write_text(module or "")
    hide = "" if module else "sys.modules['pynvml'] = None\n"
    start_up = f"import sys\nsys.path[:0] = [{str(tmp_path)!r}, {ROOT!r}]\n"
    probe = start_probe(f"{start_up}from tpmon.probe.gpu.child import main\n{hide}main()")
    reading = read_until(probe, lambda one: one.gpus != NOT_YET)
    probe.stop()
    assert isinstance(reading.gpus, Missing)
    assert reading.gpus.reason.startswith(start)
    assert module is None or str(file)[:60] in reading.gpus.reason


def test_a_module_that_answers_in_bytes_is_read_with_its_xid_events():
    body = """
def raw(name):
    call = getattr(FakeNvml, name)
    setattr(FakeNvml, name, lambda *args: call(*args).encode())
for name in ("nvmlSystemGetDriverVersion", "nvmlDeviceGetUUID", "nvmlDeviceGetName"):
    raw(name)
nvml.xids = [(cards[2], 79)]
"""
    reading, told = read_child(body, lambda reading, told: bool(told) and has_all(reading))
    assert [card.uuid for card in reading.gpus] == ["GPU-0", "GPU-1", "GPU-2"]
    assert (reading.gpus[0].name, reading.gpus[2].xids) == ("NVIDIA H100 80GB HBM3", (79,))
    assert (reading.source, reading.driver.cuda_version) == ("NVML, driver 580.65.06", "13.0")
    assert told == ["Xid 79 on GPU 2 (NVIDIA H100 80GB HBM3)"]


def test_a_driver_upgrade_ends_the_child_and_starts_a_fresh_one():
    body = """
def upgrade():
    nvml.failures.update({name: 18 for name in dir(FakeNvml) if name.startswith("nvml")})
threading.Timer(0.3, upgrade).start()
"""
    probe = start_child(body, backoff_s=(0.1,))
    _, told = listen(probe, lambda _, told: any("restarted" in text for text in told))
    probe.stop()
    assert told[0].startswith("NVIDIA driver went away: the NVIDIA driver was replaced")
    assert told[1] == "GPU child ended (exit 1); next try in 0.1 s"


def test_a_lost_card_is_told_by_its_codes():
    body = """
class Falling(FakeNvml):
    def __getattribute__(self, name):
        call = FakeNvml.__getattribute__(self, name)
        if name.startswith("nvmlDevice") and time.monotonic() - began > 0.5:
            def lost(*args):
                if args and args[0] in (1, self.cards[1]):
                    raise pynvml.NVMLError(15)
                return call(*args)
            return lost
        return call
began = time.monotonic()
nvml = Falling(*cards)
"""
    probe = start_child(body)
    read_until(probe, has_all)
    _, told = listen(probe, lambda one, _: states(one) == [GpuState.OK, GpuState.LOST, GpuState.OK])
    assert told == ["GPU 1 (NVIDIA H100 80GB HBM3) is lost: GPU is lost"]
    probe.stop()


def test_xid_events_that_cannot_be_watched_are_a_note_and_what_a_library_prints_does_not_reach_the_lines():
    prints = "FakeNvml.nvmlInit = lambda self: print('NVML: warning', flush=True)"
    body = f"{prints}\nnvml.failures['nvmlEventSetCreate'] = 3"
    reading, _ = read_child(body, lambda one, _: bool(one.notes) and has_all(one))
    assert reading.notes == ("Xid events are not watched: not supported by this card",)


def test_a_reader_that_breaks_costs_its_card_and_says_so():
    body = """
class Broken(FakeNvml):
    def nvmlDeviceGetSamples(self, card, kind, since):
        return None if card is self.cards[1] else FakeNvml.nvmlDeviceGetSamples(self, card, kind, since)
nvml = Broken(*cards)
"""
    probe = start_child(body)
    reading = read_until(probe, lambda one: bool(one.notes) and len(states(one)) >= 2)
    assert reading.notes[0].startswith("reading card 1 failed: TypeError")
    assert list(probe._board._notes.values()) != [None], "a note that passes"
    assert states(reading)[0] is GpuState.OK
    probe.stop()


def test_the_child_ends_when_its_parent_is_killed():
    code = (
        f"import sys, time; sys.path.append({ROOT!r})\n"
        "from tests.probe.gpu.test_child import WEDGE_ONE, start_child\n"
        "probe = start_child(WEDGE_ONE.format(after=0))\n"
        "while not isinstance(probe.child_pid(), int): time.sleep(0.01)\n"
        "print(probe.child_pid(), flush=True)\n"
        "time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert not is_gone(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    # Without an init that reaps, an ended orphan stays as a zombie.
    assert wait_until(lambda: is_gone(child) or read_stat(child).state == "Z")


def test_files_beside_the_user_do_not_take_the_place_of_modules(tmp_path, monkeypatch):
    for name in ("json", "pynvml", "threading", "queue", "network", "codec", "tpmon"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    probe = GpuProbe()
    probe.start()
    reading = read_until(probe, lambda one: one.gpus != NOT_YET)
    probe.stop()
    assert is_known(reading.gpus) or "ended" not in reading.gpus.reason


def test_the_child_loads_neither_psutil_nor_a_screen():
    code = child_command()[2].replace("main()", "import sys; print(*sorted(sys.modules))")
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(loaded.stdout.split())
    assert "tpmon.probe.gpu.nvml" in modules
    assert not {"psutil", "textual", "rich", "asyncio", "pynvml", "multiprocessing"} & modules


# The pipe to the child: bounded lines, and children that die, flood, stammer or sleep.


DRIVER = encode_line(Line(driver=DriverLine("580", "13.0", 0)))


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
