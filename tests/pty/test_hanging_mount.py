"""Whatever hangs, every command ends, and the shell is there again.

The job's log and working directory are on a FUSE mount that takes requests and answers none, and so are the
files that are named: who asks stands in the kernel and no signal ends it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.children import MAP_TORCH
from tests.pty.conftest import SECONDS, environment, open_shell
from tests.test_supervisor import read_state
from tests.waiting import wait_until

SERVER = Path(__file__).with_name("fuse_server.py")
JOB = (
    "import ctypes, os, signal, sys, time\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)\n"
    "signal.alarm(120)\n"
    "print('ready', flush=True)\n"
    + MAP_TORCH
    + """
def train():
    while True:
        time.sleep(0.2)
        if not os.path.exists(sys.argv[1] + "/quiet"):
            print("step", time.time(), flush=True)

train()
"""
)


class HangingMount:
    """Hold a mount; ``hold`` makes it hang."""

    def __init__(self, source: Path, path: Path) -> None:
        self.source, self.path = source, path
        for folder in (source, path):
            folder.mkdir()
        self._server = subprocess.Popen(
            [sys.executable, str(SERVER), str(source), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.ready = self._server.stdout.readline() == "ready\n"

    def hold(self, at: str = "") -> None:
        """Answer no request from now on, or from the read on that comes as far as ``at`` bytes."""
        self._server.stdin.write(f"hold {at}\n")
        self._server.stdin.flush()
        assert self._server.stdout.readline() == "held\n"

    def await_reached(self) -> None:
        """Wait for the read from which on none is answered."""
        assert self._server.stdout.readline() == "reached\n"

    def close(self) -> None:
        """End the server, which frees whoever waits for it, and unmount."""
        self._server.communicate()
        subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)


@contextmanager
def job_on(
    mount: HangingMount, tmp_path: Path, python: str = sys.executable, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a job that writes its log on the mount and works there; it is taken for a training."""
    with open(mount.path / "train.log", "wb") as log:
        job = subprocess.Popen(
            [python, "-c", JOB, str(tmp_path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=mount.path,
            env={**os.environ, **variables},
        )
    try:
        end_s = time.monotonic() + 30
        while b"step" not in (mount.source / "train.log").read_bytes():
            assert time.monotonic() < end_s
            time.sleep(0.02)
        yield job
    finally:
        job.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(0.1)  # it may stand in a write


def mounts_can_hang() -> str:
    """Say why no such mount can be made here; "" where it can."""
    if not os.access("/dev/fuse", os.W_OK):
        return "no /dev/fuse"
    return "" if os.geteuid() == 0 else "only root may mount"


pytestmark = [pytest.mark.pty, pytest.mark.skipif(bool(mounts_can_hang()), reason=mounts_can_hang())]

TPMON = [sys.executable, "-P", "-m", "tpmon"]
"""Not from the working directory, which Python itself would look into before it runs a line of tpmon's."""
PROMISED_S = 3.0
"""Three times what is promised."""


@dataclass(frozen=True)
class Scene:
    mount: HangingMount
    pid: str
    state: Path

    def start(self, *words: str, **options: object) -> subprocess.Popen[str]:
        filled = [word.format(pid=self.pid, mount=self.mount.path) for word in words]
        return subprocess.Popen(
            [*TPMON, *filled],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **({"env": environment(self.state)} | options),
        )


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hanging")
    mount = HangingMount(folder / "source", folder / "mount")
    try:
        if not mount.ready:
            pytest.skip("a FUSE file system cannot be mounted here")
        with job_on(mount, folder) as job:
            mount.hold()
            yield Scene(mount, str(job.pid), folder)
    finally:
        mount.close()


def interrupt(process: subprocess.Popen[str]) -> float:
    """Send ^C as a terminal does, to all of it; return how long it and whoever holds its pipes then take."""
    begun_s = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=SECONDS)
    return time.monotonic() - begun_s


@dataclass(frozen=True)
class Case:
    words: str
    code: int
    says: str


BY_ITSELF = (
    Case("ps", 0, "SCRIPT"),
    Case("attach {pid} --once", 0, "rank 0"),
    Case("diagnose {pid} --for 3", 11, "verdict"),
    Case("dump {pid}", 0, "train.log"),
    Case("dump {pid} --locals", 0, "train.log"),
    Case("sample {pid} --seconds 1", 0, "train"),
    Case("doctor {pid}", 0, "py-spy"),
    Case("bundle {pid} --seconds 2 --out {out}", 0, "bundle"),
)


def test_commands_on_such_a_job_end_by_themselves(scene, tmp_path):
    """All at once: most of their time they wait."""
    out = str(tmp_path / "bundle")
    begun = [scene.start(*case.words.replace("{out}", out).split()) for case in BY_ITSELF]
    for case, process in zip(BY_ITSELF, begun, strict=True):
        output, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == case.code, (case, errors)
        assert case.says in output, case


STREAMS = ("attach {pid} --json", "attach {pid} --plain", "diagnose {pid} --until ended")


def test_streams_of_such_a_job_end_by_ctrl_c(scene):
    begun = [scene.start(*words.split()) for words in STREAMS]
    time.sleep(4.0)
    for words, process in zip(STREAMS, begun, strict=True):
        assert interrupt(process) < PROMISED_S, words
        assert process.returncode == 130, words


NAMED = (
    "fold {mount}/dump.json",
    "trace {mount}/trace.json",
    "trace {mount} --against {mount}/other.json",
    "trace /nowhere.json --slice {mount}/slice.json --steps 1",
    "sample {pid} --seconds 1 --out {mount}/hot.txt",
    "bundle {pid} --out {mount}/bundle",
    "bundle {pid} --tar {mount}/bundle.tar",
    "capture {pid} --out {mount}/capture",
    "hook export {mount}/hook.zip",
)


def test_a_file_that_was_named_and_does_not_answer_is_said_so(scene):
    """All at once: each takes ten seconds."""
    configured = scene.start("ps", env=environment(scene.state, XDG_CONFIG_HOME=str(scene.mount.path)))
    here = [scene.start(*words.split(), cwd=scene.mount.path) for words in ("capture {pid}", "bundle {pid}")]
    for process in [scene.start(*words.split()) for words in NAMED]:
        _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 2, (process.args, errors)
        assert f"tpmon: {scene.mount.path}" in errors
        assert "no answer within 10 s: it is on a mount that hangs" in errors
    for process in here:
        _, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, "the working directory gave no answer" in errors) == (2, True), errors
    _, errors = configured.communicate(timeout=SECONDS)
    assert (configured.returncode, "config.toml was not read: no answer" in errors) == (2, True)


def test_ctrl_c_ends_the_wait_for_a_file(scene):
    for words in NAMED[:2]:
        process = scene.start(*words.split())
        time.sleep(1.0)
        assert interrupt(process) < PROMISED_S
        assert process.returncode == 130


@pytest.fixture
def healthy(tmp_path):
    mount = HangingMount(tmp_path / "source", tmp_path / "mount")
    try:
        if not mount.ready:
            pytest.skip("a FUSE file system cannot be mounted here")
        yield mount
    finally:
        mount.close()


@pytest.mark.parametrize("command", ["fold", "trace"])
def test_ctrl_c_ends_a_command_whose_file_hangs_in_the_middle(healthy, tmp_path, command):
    """Its main thread stands in the kernel: nothing but another process can give the shell back."""
    (healthy.source / "large.json").write_text('{"traceEvents": [' + '{"ph": "X", "name": "a"},' * 100_000)
    healthy.hold("1000000")
    scene = Scene(healthy, "0", tmp_path)
    process = scene.start(command, "{mount}/large.json")
    (working,) = wait_for_children(process.pid)
    healthy.await_reached()
    begun_s = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS)
    assert time.monotonic() - begun_s < PROMISED_S
    assert process.returncode == 130
    said = f"tpmon: ended without process {working}: it waits for a file or device that does not answer\n"
    assert errors == said
    healthy.close()
    assert wait_until(lambda: read_state(working) in ("", "Z"))


def wait_for_children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    assert wait_until(children.read_text)
    return [int(one) for one in children.read_text().split()]


def test_py_spy_that_hangs_over_the_programs_file_is_left(healthy, tmp_path):
    """Its program is on the mount: py-spy reads it, and cannot be killed either."""
    real = os.path.realpath(sys.executable)
    home = os.path.dirname(os.path.dirname(real))
    python = healthy.path / "python3"
    (healthy.source / "python3").write_bytes(Path(real).read_bytes())
    (healthy.source / "python3").chmod(0o755)
    with job_on(healthy, tmp_path, str(python), PYTHONHOME=home) as job:
        healthy.hold()
        scene = Scene(healthy, str(job.pid), tmp_path)
        dumps = [scene.start("dump", "{pid}"), scene.start("sample", "{pid}", "--seconds", "1")]
        for process in dumps:
            output, errors = process.communicate(timeout=SECONDS)
            assert "py-spy gave no answer" in output + errors
            assert process.returncode == 2


@pytest.mark.parametrize("keys", ["q", "\x03", "dq", "sq"])
def test_the_screen_of_such_a_job_ends_at_once(open_terminal, scene, keys):
    terminal = open_terminal(command=[*TPMON, "attach", scene.pid])
    terminal.until("rank 0")
    for key in keys[:-1]:
        terminal.press(key)
        time.sleep(0.5)
    terminal.leave(keys[-1], 0, PROMISED_S)


def test_a_hang_up_and_a_kill_end_the_screen_of_such_a_job(open_terminal, scene):
    for number, code in ((signal.SIGHUP, 129), (signal.SIGTERM, 143)):
        terminal = open_terminal(command=[*TPMON, "attach", scene.pid])
        terminal.until("rank 0")
        terminal.leave(number, code, PROMISED_S)
    terminal = open_terminal(command=[*TPMON, "attach", scene.pid])
    terminal.until("rank 0")
    assert terminal.hang_up() == 129


def test_ctrl_z_gives_the_shell_back_and_fg_the_screen(open_terminal, scene):
    shell = open_shell(open_terminal)
    shell.press(f"{' '.join(TPMON)} attach {scene.pid}\n")
    shell.until("rank 0")
    shell.until("no answer")
    shell.press("\x1a")
    shell.until(lambda: b"Stopped" in shell.raw and shell.raw.endswith(b"$ "))
    shell.screen.reset()
    shell.press("fg\n")
    shell.until("rank 0")
    shell.press("q")
    shell.until(lambda: shell.raw.endswith(b"$ "))
    shell.press("echo code=$?\n")
    shell.until("code=0")


def test_a_shell_has_its_prompt_after_ctrl_c_and_its_pipe_ends(open_terminal, scene):
    shell = open_shell(open_terminal)
    shell.press(f"{' '.join(TPMON)} fold {scene.mount.path}/dump.json | cat\n")
    time.sleep(1.5)
    begun_s = time.monotonic()
    before = len(shell.raw)
    shell.press("\x03")
    shell.until(lambda: shell.raw[before:].endswith(b"$ "))
    assert time.monotonic() - begun_s < PROMISED_S
