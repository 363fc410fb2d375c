"""Whatever happens within a capture, the run goes its way and tpmon says what became of it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.budget.measure import find_working
from tests.captures import read_told
from tests.hooks import list_pages
from tests.programs.capturing import HERE, PYTHON, TPMON, capture, captured, run, run_json, start, training
from tests.programs.conftest import READY_S, run_program
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.capture.bus import open_bus
from tpmon.hook.bus import wire
from tpmon.hook.bus import wire_capture as w
from tpmon.model.known import is_known
from tpmon.model.process import Identity
from tpmon.probe.base.procread import read_stat
from tpmon.probe.hooked.page import StepReader

pytestmark = [pytest.mark.torch, pytest.mark.long, needs_torch]

CYCLES = 500


def may_mount() -> bool:
    """Tell whether this user can have a mount namespace of its own, with a file system in it."""
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    trial = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return os.path.isdir("/mnt") and subprocess.run(trial, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def hooked() -> Iterator[int]:
    """Give the PID of a hooked training that every test but the last leaves as it is."""
    with training() as pid:
        yield pid


needs_mounts = pytest.mark.skipif(not may_mount(), reason="needs root and a mount namespace of its own")


def test_captures_end_as_they_should_whatever_happens(tmp_path: Path) -> None:
    """One process goes through every situation; it ends within a capture, by SystemExit."""
    done = run([PYTHON, "-W", "ignore", str(HERE / "capture_loops.py"), str(tmp_path / "out"), "--leave"], 2 * READY_S)
    assert (done.returncode, done.stderr) == (7, "")
    report = json.loads(done.stdout)
    state = {name: {key: one["state"] for key, one in told.items() if isinstance(one, dict) and "state" in one}
             for name, told in report.items() if isinstance(told, dict)}  # fmt: skip
    exact = report["exact"]
    assert state["exact"] == {"unprobed": w.STATE_REFUSED, "probe": w.STATE_VERIFIED, "capture": w.STATE_VERIFIED}
    conditions = exact["file"].pop("conditions")
    assert exact["file"] == {"marks": 3, "optimizer": 3, "mode": 0o600, "wrong": []}
    assert conditions["inputs"] == ["float32[2, 8]", "float32[2, 1]"]
    assert (conditions["mode"], conditions["dtype"], conditions["autocast"]) == (
        "training",
        "torch.float32",
        {"missing": "it was off where the backward began"},
    )
    assert exact["same_losses"] is True
    assert len(exact["files"]) == 1
    assert report["without_a_loader"]["file"]["marks"] == 4
    assert report["without_a_loader"]["file"]["optimizer"] == 4
    assert state["requests"] == {
        "missed": w.STATE_MISSED,
        "busy": w.STATE_RECORDING,
        "cancelled": w.STATE_CANCELLED,
        "expired": w.STATE_EXPIRED,
        "late": w.STATE_VERIFIED,
    }
    assert report["requests"]["busy"]["answer"] == [22, wire.ANSWER_BUSY]
    assert (report["hostile"]["counted"], report["hostile"]["problem"]) == (200, "")
    assert report["hostile"]["after"]["state"] == w.STATE_VERIFIED
    assert state["places"] == {
        "gone": w.STATE_REFUSED,
        "full": w.STATE_REFUSED,
        "removed": w.STATE_FAILED,
        "after": w.STATE_VERIFIED,
    }
    assert report["places"]["left"] == []
    assert state["foreign"] == {
        "active": w.STATE_REFUSED,
        "warming": w.STATE_REFUSED,
        "during": w.STATE_YIELDED,
        "elsewhere": w.STATE_YIELDED,
        "after": w.STATE_VERIFIED,
    }
    assert report["foreign"]["active_own"]
    assert report["foreign"]["during_own"]
    assert report["foreign"]["during_losses"] is True
    assert state["nested"] == {
        "across": w.STATE_VERIFIED,
        "legacy": w.STATE_REFUSED,
        "itt": w.STATE_REFUSED,
        "after": w.STATE_VERIFIED,
    }
    assert (report["nested"]["file"]["marks"], report["nested"]["file"]["optimizer"]) == (4, 4)
    assert report["nested"]["legacy_own"]
    assert report["forked"]["children"] == [0]
    assert report["forked"]["told"]["state"] == w.STATE_VERIFIED
    assert report["problem"] == ""


def test_twenty_captures_in_a_row_take_no_more_memory_than_the_first(tmp_path: Path) -> None:
    """Where nobody gives back what torch keeps, the process is a quarter larger from the first on."""
    report = run_json(PYTHON, "capture_loops.py", tmp_path / "out", "repeated")
    assert report["states"] == [w.STATE_VERIFIED] * 21
    assert report["bytes"] > 10_000_000
    assert max(map(abs, report["grown"])) < 0.05 * report["before"], report
    assert (report["threads"], report["problem"]) == (1, "")


ONCE = "gpuGetDeviceCount failed"


def test_torch_writes_nothing_for_a_capture_and_for_the_programs_own_profiler_what_it_ever_wrote(
    tmp_path: Path,
) -> None:
    done = run([PYTHON, "-W", "ignore", str(HERE / "capture_loops.py"), str(tmp_path / "out"), "quiet"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == w.STATE_VERIFIED
    nothing, before, captured, after = done.stderr.split("== ")
    assert (nothing, captured) == ("", "captured\n")
    # A CUDA build without a driver says once that it asked for the cards.
    lines = [[one for one in said.splitlines() if ONCE not in one] for said in (before, after)]
    assert len(lines[0]) == len(lines[1]) > 1


def test_a_program_that_took_the_signal_is_sent_none(tmp_path: Path) -> None:
    command = (PYTHON, "capture_ways.py", "{ready}", "taking-the-signal")
    with run_program(command, tmp_path / "ready", 1) as program:
        code, told, said = capture(program.pid, "--seconds", "1", "--out", str(tmp_path / "out"))
        assert (code, told["state"]) == (2, "refused"), said
        assert "no signal was sent" in told["notes"][0]
        assert not (tmp_path / "ready" / "signal").exists()
        assert Path(f"/proc/{program.pid}").exists()


def test_a_loop_without_steps_is_captured_by_time(tmp_path: Path) -> None:
    command = (PYTHON, "capture_ways.py", "{ready}", "stepless")
    with run_program(command, tmp_path / "ready", 1) as program:
        told, said = captured(program.pid, "--seconds", "1", "--out", str(tmp_path / "out"))
        assert "woken by SIGURG" in said
        assert told["files"][0]["events"] > 10
        again = capture(program.pid, "--seconds", "1", "--out", str(tmp_path / "again"))
        assert again[1]["state"] == "done"


WAYS = {
    "exec": ("gone", "the process became another program", 3, None),
    "os._exit": ("gone", "the process ended", 3, 5),
    "SystemExit": ("cancelled", "the program ended", 2, 7),
    "error": ("cancelled", "the program ended", 2, 1),
    "uninstall": ("cancelled", "the hook was taken out", 2, None),
}
"""What tpmon says of it: state, reason, exit code; and with what the program itself ends, if it does."""


@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_ends_within_a_capture_ends_as_it_would(tmp_path: Path, way: str) -> None:
    state, reason, code, ends_with = WAYS[way]
    ready, out = tmp_path / "ready", tmp_path / "out"
    ready.mkdir()
    with start([sys.executable, str(HERE / "capture_ways.py"), str(ready), way]) as job:
        try:
            assert wait_until(lambda: bool(os.listdir(ready)), READY_S)
            done = run([*TPMON, "capture", str(job.pid), "--json", "--steps", "500", "--yes", "--out", str(out)])
            told = json.loads(done.stdout)
            assert (done.returncode, told["state"]) == (code, state), done.stderr
            assert told["notes"] == [reason]
            assert os.listdir(out) == []
            if ends_with is None:
                assert job.poll() is None
            else:
                said = job.communicate(timeout=READY_S)[1]
                assert job.returncode == ends_with
                assert "tpmon" not in said
                assert (said == "") == (way != "error")
        finally:
            job.kill()


@needs_mounts
def test_a_place_that_fails_within_a_capture_costs_the_file_alone(tmp_path: Path) -> None:
    done = run(
        ["unshare", "--mount", sys.executable, "-W", "ignore", str(HERE / "capture_places.py"), str(tmp_path / "small")]
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for name in ("full", "full_at_writing"):
        found = report[name]
        assert (found["state"], found["left"], found["same"]) == (w.STATE_FAILED, [], True), name
        assert "space" in found["reason"] or "disk full" in found["reason"]
    during, before = report["readonly"]["during"], report["readonly"]["before"]
    assert (during["state"], before["state"]) == (w.STATE_FAILED, w.STATE_REFUSED)
    assert "Read-only" in during["reason"]
    assert "not writable" in before["reason"]
    assert during["same"]
    assert before["same"]
    assert (report["link"]["state"], report["link"]["kept"]) == (w.STATE_FAILED, "kept")
    assert report["after"]["state"] == w.STATE_VERIFIED
    assert len(report["after"]["left"]) == 1
    assert report["problem"] == ""


@needs_mounts
def test_files_of_another_mount_namespace_are_reached_and_both_paths_told(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    script = f'mount -t tmpfs none {own} && exec {sys.executable} capture_ways.py "$0" validating'
    command = ("unshare", "--mount", "sh", "-c", script, "{ready}")
    with run_program(command, tmp_path / "ready", 1) as program:
        done = run([*TPMON, "capture", str(program.pid), "--steps", "3", "--out", str(own / "out")])
        assert done.returncode == 0, done.stderr
        assert os.listdir(own) == []  # here it is another folder
        (name,) = os.listdir(f"/proc/{program.pid}/root{own}/out")
        here = f"/proc/{program.pid}/root{own}/out/{name}"
        assert f"{own}/out/{name}" in done.stdout
        assert f"from this shell: {here}" in done.stdout
        assert read_told(here).wrong == ()
        assert len(read_told(here).marks) == 3


def test_coming_and_going_leaves_nothing_on_either_side(hooked: int) -> None:
    process = Identity(hooked, read_stat(hooked).start_ticks)

    def come_and_go() -> None:
        bus = open_bus(process)
        bus.read_records()
        bus.close()
        reader = StepReader()
        assert is_known(reader.read_steps([process])[process])
        reader.close()

    come_and_go()
    ours, theirs = len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{hooked}/fd"))
    for _ in range(CYCLES):
        come_and_go()
    assert len(os.listdir("/proc/self/fd")) == ours
    # Its worker comes and goes with some of them: between two workers there are as few as ever.
    assert wait_until(lambda: len(os.listdir(f"/proc/{hooked}/fd")) <= theirs)
    with open(f"/proc/{hooked}/status") as file:
        assert "State:\tZ" not in file.read()


_libc = ctypes.CDLL(None, use_errno=True)
_ADD_SEALS, _SEAL_WRITE = 1033, 0x8
_KEEP_SIZE, _PUNCH_HOLE = 0x1, 0x2


def punch(descriptor: int) -> None:
    """Drop the memory of a page, size kept, as fallocate(2) does."""
    size = ctypes.c_int64(os.fstat(descriptor).st_size)
    if _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(0), size):
        raise OSError(ctypes.get_errno(), "fallocate")


RESIZES = {
    "to nothing": lambda descriptor: os.ftruncate(descriptor, 0),
    "to twice": lambda descriptor: os.ftruncate(descriptor, 2 * os.fstat(descriptor).st_size),
    "by its path": lambda descriptor: os.truncate(f"/proc/self/fd/{descriptor}", 1),
    "more": lambda descriptor: os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, 4096),
    "sealed anew": lambda descriptor: fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL_WRITE),
}
WRITES = {
    "written": lambda descriptor: os.pwrite(descriptor, b"x", 0),
    "mapped": lambda descriptor: mmap.mmap(descriptor, os.fstat(descriptor).st_size),
    "holes": punch,
}


def test_a_hostile_reader_cannot_take_the_pages_from_a_training(hooked: int, tmp_path: Path) -> None:
    """Through the descriptors of the training itself, from another process, while it goes on."""
    process = Identity(hooked, read_stat(hooked).start_ticks)
    reader = StepReader()

    def steps() -> int:
        reading = reader.read_steps([process])[process]
        assert is_known(reading), reading
        return reading.counts.steps

    before = steps()
    for name, attacks in ((wire.TELEMETRY_NAME, {**RESIZES, **WRITES}), (wire.MAILBOX_NAME, RESIZES)):
        pages = list_pages(hooked, name)
        assert pages
        for path in pages:
            descriptor = os.open(path, os.O_RDWR)
            size = os.fstat(descriptor).st_size
            for attack in attacks.values():
                with pytest.raises(PermissionError) as caught:
                    attack(descriptor)
                assert caught.value.errno == errno.EPERM  # by the seals: the descriptor may be written to
            assert os.fstat(descriptor).st_size == size
            os.close(descriptor)
    assert wait_until(lambda: steps() > before + 20, READY_S)
    reader.close()
    captured(hooked, "--steps", "2", "--out", str(tmp_path / "out"))


def test_tpmon_killed_in_the_middle_takes_its_request_with_it(hooked: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with start([*TPMON, "capture", str(hooked), "--steps", "1000", "--stacks", "--yes", "--out", str(out)]) as tool:
        assert any("recording step" in line for line in tool.stderr)
        os.kill(find_working(tool.pid), signal.SIGKILL)  # whom the shell waits for would end it in order
    bus = open_bus(Identity(hooked, read_stat(hooked).start_ticks))
    number = w.parse_progress(bus.page).request
    assert wait_until(lambda: (now := bus.read_progress(number)) is not None and now.state in w.FINAL_STATES)
    now = bus.read_progress(number)
    assert (now.state, now.reason) == (w.STATE_CANCELLED, w.NOBODY_WAITS)
    assert now.steps_done < 1000
    before = bus.read_records(1)[-1][wire.REC_STEPS]
    assert wait_until(lambda: bus.read_records(1)[-1][wire.REC_STEPS] > before + 20)
    bus.close()
    assert os.listdir(out) == []


def test_a_second_capture_is_told_so_and_a_training_killed_in_the_middle_leaves_nothing(
    hooked: int, tmp_path: Path
) -> None:
    """The last of this training."""
    out = tmp_path / "out"
    with start([*TPMON, "capture", str(hooked), "--steps", "1000", "--yes", "--out", str(out)]) as tool:
        assert any("recording step" in line for line in tool.stderr)
        code, told, _ = capture(hooked, "--out", str(tmp_path / "second"))
        assert (code, told["state"]) == (2, "busy")
        os.kill(hooked, signal.SIGKILL)
        tool.stderr.read()
        assert tool.wait() == 3
        assert os.listdir(out) == []
