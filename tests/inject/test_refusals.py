"""What must not be written into is refused with its word: a real process of each kind."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.freezing import freezing
from tests.hook.test_hook_install import find_pythons
from tests.inject.targets import LOOP, LOOP_ENDS, build_stand_in, find, looping, refuse, require_mounts, running
from tests.waiting import wait_until
from tpmon.commands.hook import HookOptions, run
from tpmon.errors import ExitCode, UsageError
from tpmon.foreign_file import own
from tpmon.inject import folder, layout
from tpmon.inject.late_hook import LateHook
from tpmon.inject.memory import TargetMemory
from tpmon.inject.payload import make_payload, make_script
from tpmon.inject.refusal import REFUSALS, RefusalReason, RefusedError
from tpmon.inject.request import TEXT_BYTES
from tpmon.model.results.late import LateState
from tpmon.probe.base.procread import read_stat

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")

WAITS = """
import os
print("ready", flush=True)
os.read(0, 1)
"""
SAYS = 'print(sorted(name for name in __import__("sys").modules if "tpmon" in name), flush=True)'


def is_reading(pid: int) -> bool:
    """Tell whether the main thread is in its read of standard input: call 0 on x86-64, descriptor 0."""
    return Path(f"/proc/{pid}/syscall").read_text().startswith("0 0x0 ")


QUEUES = """
import ctypes, threading, time
held = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 0)
def ask():
    time.sleep(0.3)
    ctypes.pythonapi.Py_AddPendingCall(held, None)
    print("ready", flush=True)
threading.Thread(target=ask).start()
time.sleep(60)
"""

OWN = sys.version_info[:2]
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Compile the hook's modules before a program counts the seconds until its request."""
    make_payload(os.getpid(), OWN, own())


def test_every_refusal_says_what_and_what_to_do():
    assert set(REFUSALS) == set(RefusalReason)
    for reason in RefusalReason:
        told = RefusedError(reason, "detail")
        assert told.what.startswith(f"{reason.value}: ")
        assert "(detail)" in told.what
        assert told.try_this
    assert RefusedError(RefusalReason.OTHER_USER).exit_code is ExitCode.NOT_PERMITTED
    assert RefusedError(RefusalReason.GONE).exit_code is ExitCode.NO_TARGET
    assert RefusedError(RefusalReason.QUEUE).exit_code is ExitCode.USAGE


def test_an_ended_process_and_one_of_the_same_pid():
    with looping() as job:
        process = find(job)
        assert refuse(replace(process, start_ticks=1)) is RefusalReason.GONE
        job.kill()
        wait_until(lambda: read_stat(job.pid).state == "Z")
        assert refuse(process) is RefusalReason.GONE


def test_a_training_whose_environment_forbids_it():
    with looping(TPMON_NO_LATE_HOOK="1") as job:
        assert refuse(find(job)) is RefusalReason.TURNED_OFF


def test_readonly_forbids_it():
    with pytest.raises(UsageError, match="--readonly"):
        run(HookOptions(os.getpid(), readonly=True))


def test_who_interrupts_it_is_told_how_to_take_it_out(monkeypatch, capfd):
    def interrupt(_hook: LateHook) -> None:
        raise KeyboardInterrupt

    with looping() as job:
        member = SimpleNamespace(identity=find(job))
        monkeypatch.setattr("tpmon.commands.hook.find_job", lambda _pid: SimpleNamespace(asked_pid=job.pid))
        monkeypatch.setattr("tpmon.commands.hook.choose_ranks", lambda *_, **__: [member])
        monkeypatch.setattr(LateHook, "install", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(HookOptions(job.pid, yes=True))
        assert f"tpmon hook {job.pid} --remove takes it out" in capfd.readouterr().err


def test_a_stopped_process():
    with looping() as job:
        os.kill(job.pid, signal.SIGSTOP)
        assert wait_until(lambda: read_stat(job.pid).state == "T")
        assert refuse(find(job)) is RefusalReason.STOPPED


def test_a_traced_process():
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    with looping() as job:
        if call(PTRACE_SEIZE, job.pid, None, None):
            pytest.skip("nothing may be traced here")
        assert refuse(find(job)) is RefusalReason.TRACED


def test_a_frozen_process():
    with looping() as job, freezing([job.pid], 2):
        assert refuse(find(job)) is RefusalReason.FROZEN


@needs_root
def test_a_process_of_another_user():
    program = (
        "import os, sys; from tpmon.inject.late_hook import LateHook; from tpmon.model.process import Identity\n"
        "from tpmon.inject.refusal import RefusedError\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: LateHook(Identity(int(sys.argv[1]), int(sys.argv[2]))).check()\n"
        "except RefusedError as error: print(error.reason.value)\n"
    )
    with looping() as job:
        process = find(job)
        asked = [sys.executable, "-c", program, str(process.pid), str(process.start_ticks)]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.stdout == "other-user\n", done.stderr


def test_a_program_that_is_no_python():
    with running(["sh", "-c", "echo ready; exec sleep 60"]) as job:
        wait_until(lambda: b"sleep" in Path(f"/proc/{job.pid}/comm").read_bytes())
        assert refuse(find(job)) is RefusalReason.NOT_PYTHON


@pytest.mark.parametrize(
    ("version", "more", "threaded", "expected"),
    [
        pytest.param(0x030B07F0, "", 0, RefusalReason.INTERPRETERS, id="a state that is not begun"),
        pytest.param(0x030D00F0, "", 0, RefusalReason.INTERPRETERS, id="one with the table of 3.13"),
        pytest.param(0x030E08F0, "", 0, RefusalReason.OFFSETS, id="a table of nothing"),
        pytest.param(0x030D00F0, "", 1, RefusalReason.FREE_THREADED, id="free-threaded"),
        pytest.param(0x030B07F0, "void _Py_NegativeRefcount(void) {}", 0, RefusalReason.DEBUG, id="debug"),
        pytest.param(0x031000F0, "", 0, RefusalReason.VERSION, id="a version of the future"),
        pytest.param(0x030909F0, "", 0, RefusalReason.VERSION, id="3.9"),
        pytest.param(0x030E00B1, "", 0, RefusalReason.VERSION, id="a beta"),
    ],
)
def test_a_python_that_is_not_known(tmp_path, version, more, threaded, expected):
    with running([build_stand_in(tmp_path, version, more, threaded)]) as job:
        assert refuse(find(job)) is expected


STATE, QUEUE = layout.STATES.get(OWN), layout.QUEUES.get(OWN)
FIELDS = [("STATES", name) for name in layout.StateLayout._fields] + [
    ("QUEUES", name) for name in ("lock", "first", "last")
]


@pytest.mark.skipif(STATE is None, reason="this Python names its offsets itself")
@pytest.mark.parametrize(("table", "name"), FIELDS)
@pytest.mark.parametrize("off_by", [-16, -8, 8, 16])
def test_offsets_that_do_not_check_out(monkeypatch, shared_loop, table, name, off_by):
    """Whatever is read in place of the right word does not agree with the rest, or is the same word."""
    right = getattr(layout, table)[OWN]
    monkeypatch.setitem(getattr(layout, table), OWN, right._replace(**{name: getattr(right, name) + off_by}))
    with pytest.raises(RefusedError) if name not in SAME_WORDS else suppress(RefusedError):
        LateHook(shared_loop).check()


SAME_WORDS = {"of_initialized", "of_head", "of_main", "of_finalizing", "next", "id", "first", "last"}
"""Their neighbours may hold the same, or also zero, in a process that is not ending."""


@pytest.fixture(scope="module")
def shared_loop():
    waits = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    with looping(program=waits + LOOP) as job:
        yield find(job)


@pytest.mark.skipif(OWN >= (3, 14), reason="Python takes scripts itself")
def test_a_queue_with_the_programs_own_call():
    with looping(program=QUEUES) as job:
        assert refuse(find(job)) is RefusalReason.QUEUE


@pytest.mark.skipif(OWN >= (3, 13), reason="no semaphore guards its queue")
@pytest.mark.parametrize("used_s", [0.02, None], ids=["for a moment", "for longer"])
def test_a_queue_that_a_thread_uses(used_s):
    """A main thread that has answered may lose its CPU as it looks for the next call, and hold the lock meanwhile."""
    with looping() as job:
        process, memory = find(job), TargetMemory(job.pid)
        python = LateHook(process).check().python
        base = python.runtime if QUEUE.in_runtime else layout.find_state(memory, python).interpreter
        semaphore = memory.read_u64(base + QUEUE.lock)
        memory.write((semaphore, bytes(4)))
        if used_s is None:
            assert refuse(process) is RefusalReason.QUEUE
            return
        release = threading.Timer(used_s, memory.write, [(semaphore, (1).to_bytes(4, "little"))])
        release.start()
        assert LateHook(process).install().state is LateState.INSTALLED
        release.join()
        assert LateHook(process).remove().state is LateState.REMOVED
        assert job.communicate(timeout=60) == (LOOP_ENDS, "")


@pytest.mark.skipif(OWN >= (3, 14), reason="Python takes scripts itself")
def test_bytes_behind_the_data_that_are_in_use():
    with looping() as job:
        process = find(job)
        python = LateHook(process).check().python
        TargetMemory(job.pid).write((python.slack + 8, b"x"))
        assert refuse(process) is RefusalReason.SLACK


def test_a_process_in_a_call_in_c_is_told_and_the_request_taken_back():
    with looping(program=WAITS + SAYS) as job:
        assert wait_until(lambda: is_reading(job.pid))
        process, said = find(job), []
        python = LateHook(process).check().python
        with pytest.raises(RefusedError) as caught:
            LateHook(process, deadline_s=3, tell=said.append).install()
        assert caught.value.reason is RefusalReason.BLOCKED
        assert said == ["its main thread is in a call in C: it will run when the call returns"]
        assert not any(TargetMemory(job.pid).read(python.slack, python.slack_bytes))
        assert job.communicate(timeout=60) == ("[]\n", "")
    assert job.returncode == 0


def test_a_call_that_was_taken_back_makes_room_for_the_next():
    with looping(program=WAITS + LOOP) as job:
        assert wait_until(lambda: is_reading(job.pid))
        process = find(job)
        assert refuse(process, deadline_s=0.5) is RefusalReason.BLOCKED
        assert job.stdin is not None
        job.stdin.write("x")
        job.stdin.flush()
        assert LateHook(process).install().pid == job.pid
        assert LateHook(process).remove().pid == job.pid


def test_a_container_without_a_folder_that_can_be_written():
    require_mounts()
    mounts = " && ".join(f"mount -t tmpfs -o ro none /{one}" for one in folder._PLACES)
    command = f"mount --make-rprivate / && {mounts} && exec {os.path.realpath(sys.executable)} -c '{LOOP}'"
    with running(["unshare", "-m", "sh", "-c", command]) as job:
        assert refuse(find(job)) is RefusalReason.NO_PLACE


def test_no_link_of_a_container_is_followed(tmp_path):
    """Root would write where it leads on the host."""
    (tmp_path / "here").mkdir()
    (tmp_path / "away").symlink_to(tmp_path / "here")
    os.close(folder._open_below(str(tmp_path), "here"))
    with pytest.raises(OSError, match="Not a directory"):
        folder._open_below(str(tmp_path), "away")


@pytest.mark.long
def test_a_python_that_takes_no_scripts():
    python = find_pythons().get("3.14") or shutil.which("python3.14") or pytest.skip("no Python 3.14 here")
    with looping(python, PYTHON_DISABLE_REMOTE_DEBUG="1") as job:
        assert refuse(find(job)) is RefusalReason.REMOTE_DEBUG


def test_what_the_main_thread_compiles_is_short():
    """What the program's signal handler raises meanwhile is lost, as it cannot be raised again."""
    assert len(make_script("/tmp/.tpmon-1-2-3", "install", 1 << 60, "1.0.0", "0" * 16)) < 1000


def test_a_text_fits_into_its_bytes():
    from tpmon.inject.request import TEXT

    assert len(TEXT.format(path=f"/var/tmp/.tpmon-{1 << 22}-{1 << 32}-{'0' * 12}/run.py")) < TEXT_BYTES


def test_folders_that_a_killed_tpmon_left_go_and_those_of_another_pid_namespace_stay():
    nobody = 1 << 30
    left = [Path("/tmp", f".tpmon-{nobody}-{space}-test{os.getpid()}") for space in (folder._name_space(), "7")]
    try:
        for one in left:
            one.mkdir(mode=0o700)
        folder.PrivateFolder(os.getpid(), own(), b"").remove()
        assert [one.exists() for one in left] == [False, True]
    finally:
        for one in left:
            with suppress(FileNotFoundError):
                one.rmdir()
