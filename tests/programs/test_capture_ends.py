"""Whatever happens within a capture, the run goes its way and tpmon says what became of it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.captures import read_told
from tests.hooks import list_pages
from tests.programs.capturing import HERE, TPMON, captured, run, start, training
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


needs_mounts = pytest.mark.skipif(not may_mount(), reason="needs root and a mount namespace of its own")


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


def test_coming_and_going_leaves_nothing_on_either_side() -> None:
    with training() as pid:
        process = Identity(pid, read_stat(pid).start_ticks)

        def come_and_go() -> None:
            bus = open_bus(process)
            bus.read_records()
            bus.close()
            reader = StepReader()
            assert is_known(reader.read_steps([process])[process])
            reader.close()

        come_and_go()
        ours, theirs = len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{pid}/fd"))
        for _ in range(CYCLES):
            come_and_go()
        assert len(os.listdir("/proc/self/fd")) == ours
        # Its worker comes and goes with some of them: between two workers there are as few as ever.
        assert wait_until(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= theirs)
        with open(f"/proc/{pid}/status") as file:
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


def test_a_hostile_reader_cannot_take_the_pages_from_a_training(tmp_path: Path) -> None:
    """Through the descriptors of the training itself, from another process, while it goes on."""
    with training() as pid:
        process = Identity(pid, read_stat(pid).start_ticks)
        reader = StepReader()

        def steps() -> int:
            reading = reader.read_steps([process])[process]
            assert is_known(reading), reading
            return reading.counts.steps

        before = steps()
        for name, attacks in ((wire.TELEMETRY_NAME, {**RESIZES, **WRITES}), (wire.MAILBOX_NAME, RESIZES)):
            pages = list_pages(pid, name)
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
        captured(pid, "--steps", "2", "--out", str(tmp_path / "out"))
