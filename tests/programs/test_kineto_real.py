"""kineto on demand in a real torch: whole updates, no hook needed, and nothing that the run would notice."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.budget.measure import find_working
from tests.captures import read_told
from tests.programs.capturing import ENVIRONMENT, TPMON, capture, captured, run, start, started
from tests.programs.conftest import READY_S, TORCHRUN, run_program
from tests.torch_build import needs_torch, read_torch_version
from tests.waiting import wait_until
from tpmon.capture.files import name_part

pytestmark = [pytest.mark.torch, needs_torch]

COMMAND = (sys.executable, "-W", "ignore", str(Path(__file__).with_name("kineto_train.py")))
FROM_KINETO = "kineto on demand, from a thread of its own"
FROM_HOOK = "torch.profiler from the step hook"
RANKS = 4


@contextmanager
def recorded_by_kineto(command: Sequence[str], **options: object) -> Iterator[subprocess.Popen[str]]:
    """Start a command by ``tpmon run --kineto``; what it prints on standard error is kept."""
    with started([*TPMON, "run", "--kineto", "--", *command], **options) as job:
        folder = read_folder(job.pid)
        try:
            yield job
        finally:
            shutil.rmtree(folder)


def training(*flags: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return recorded_by_kineto((*COMMAND, *flags))


@contextmanager
def training_pid() -> Iterator[int]:
    """The same, by its process alone."""
    with training() as job:
        yield job.pid


def torch_version() -> str:
    """Return the version as the bus has room for it."""
    return read_torch_version()[:24]


def read_folder(pid: int) -> str:
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return next(word.partition("=")[2] for word in words if word.startswith("KINETO_IPC_SOCKET_DIR="))


@pytest.mark.parametrize(
    "flags",
    [pytest.param((), marks=pytest.mark.long), ("--loader",), pytest.param(("--compiled",), marks=pytest.mark.long)],
    ids=["eager", "a DataLoader", "compiled"],
)
def test_kineto_records_whole_updates_and_says_which_back_end(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with training(*flags) as job:
        code, told, said = capture(job.pid, "--steps", "3", "--out", str(tmp_path / "out"))
        assert code == 0, said
        assert (told["state"], told["backend"], told["notes"]) == ("done", FROM_KINETO, [])
        (file,) = told["files"]
        assert file["steps"] == 3
        found = read_told(file["path"])
        # The program says in the trace which steps they are.
        truth = sorted(int(name[16:]) for name in found.names if name.startswith("forward of step "))
        assert (found.marks, found.optimizer, found.wrong) == (tuple(truth), 3, ())
        assert file["first_step"] == told["ranks"][0]["first_step"] == truth[0] > 4
        assert f"-step{truth[0]}-kineto-" in file["path"]
        assert any("Compiled" in name for name in found.names) is ("--compiled" in flags)
        assert os.stat(file["path"]).st_mode & 0o777 == 0o600
        assert os.listdir(tmp_path / "out") == [os.path.basename(file["path"])]
        written = found.conditions
        assert written["first_step"] == truth[0]
        assert (written["mode"], written["threads"], written["torch"]) == ("training", 1, torch_version())
        assert (written["model"], written["dtype"], written["device"]) == ("Sequential", "torch.float32", "cpu")
        assert (written["parameters"], written["training"]) == (64 * 64 + 64 + 64 + 1, True)
        if "--loader" in flags:
            assert written["inputs"] == ["float32[32, 64]"]
        else:
            assert "no batch" in written["inputs"]["missing"]
        assert all(written[f"step_{when}_ms"] > 10.0 for when in ("before", "during", "after")), "it sleeps 10 ms"
        assert (written["steps_before"] > 2, written["steps_during"], written["steps_after"] > 0) == (True, 3, True)
        assert told["conditions"]["model"] == "Sequential"
        assert told["conditions"]["threads"] == 1
        assert written["clocks"] == told["conditions"]["clocks"]
        assert job.poll() is None
        assert "conf" in os.listdir(read_folder(job.pid))
        assert "dynolog" not in os.listdir(read_folder(job.pid))
        job.kill()
        # The price, before the program began; a torch for CUDA may complain of the machine itself.
        assert [line[:6] for line in job.stderr.read().splitlines() if "torch/" not in line] == ["tpmon:"]


@pytest.mark.long
def test_one_rank_of_several_is_recorded_as_asked(tmp_path: Path) -> None:
    command = (*TORCHRUN, "--standalone", "--nproc-per-node", str(RANKS), "capture_ranks.py", "{ready}")
    with run_program((*TPMON, "run", "--kineto", "--", *command), tmp_path / "ready", RANKS) as program:
        folder = read_folder(program.pid)
        try:
            for rank in (RANKS - 1, 0):
                out = tmp_path / f"out{rank}"
                code, told, said = capture(program.pid, "--rank", str(rank), "--steps", "3", "--out", str(out))
                assert (code, told["state"], told["backend"], told["notes"]) == (0, "done", FROM_KINETO, []), said
                (file,) = told["files"]
                assert (file["rank"], file["steps"]) == (rank, 3)
                found = read_told(file["path"])
                own = sorted(int(name[9:]) for name in found.names if name.startswith("own step "))
                assert own == list(range(own[0], own[0] + 3))
                assert (found.optimizer, found.wrong) == (3, ())
                assert list(found.marks) == list(range(file["first_step"], file["first_step"] + 3))
                others = [tmp_path / "ready" / f"losses-{one}" for one in range(RANKS) if one != rank]
                for other in others:
                    trained = other.stat().st_size
                    assert wait_until(lambda one=other, was=trained: one.stat().st_size > was)
        finally:
            shutil.rmtree(folder)


@pytest.mark.long
def test_a_taken_place_falls_back_to_the_hook_where_there_is_one(tmp_path: Path) -> None:
    import socket

    with training() as job, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taken:
        taken.bind(f"{read_folder(job.pid)}/dynolog")
        code, told, said = capture(job.pid, "--out", str(tmp_path / "out"))
        # This loop has no DataLoader, so the hook counts its updates.
        assert code == 0, said
        assert told["backend"] == FROM_HOOK
        assert f"process {os.getpid()} (" in said
        assert "torch.profiler records from the step hook instead" in said


@pytest.mark.long
def test_kineto_goes_first_in_a_hooked_run_that_asks_for_profiles_anyway(tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
    armed = {**ENVIRONMENT, "KINETO_USE_DAEMON": "1", "KINETO_CONFIG": str(tmp_path / "conf")}
    with started([*TPMON, "run", "--", *COMMAND], env=armed) as job:
        for flags, backend in (((), FROM_KINETO), (("--seconds", "9"), FROM_HOOK)):
            code, told, said = capture(job.pid, "--steps", "2", *flags, "--out", str(tmp_path / "out"))
            assert (code, told["backend"], told["files"][0]["steps"]) == (0, backend, 2), said
        job.kill()
        # A CUDA build on a machine without a driver says so at each profile.
        lines = [line for line in job.stderr if "gpuGetDeviceCount failed" not in line]
        assert len(lines) <= 1, "torch says once that it asks; a capture adds nothing"


@pytest.mark.long
def test_without_a_hook_kineto_is_enough_and_losses_are_the_same(tmp_path: Path) -> None:
    folder = Path("/tmp") / f"tpmon-kineto-test{os.getpid()}"
    folder.mkdir(mode=0o700)
    try:
        (folder / "conf").write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
        armed = {
            **ENVIRONMENT, "KINETO_USE_DAEMON": "1", "KINETO_LOG_LEVEL": "99",
            "KINETO_IPC_SOCKET_DIR": str(folder), "KINETO_CONFIG": str(folder / "conf"),
        }  # fmt: skip
        command = [*COMMAND, "--steps", "1500"]
        with started(command, env=armed) as job:
            code, told, said = capture(job.pid, "--steps", "3", "--shapes", "--out", str(tmp_path / "out"))
            assert (code, told["backend"]) == (0, FROM_KINETO), said
            with gzip.open(told["files"][0]["path"]) as file:
                whole = file.read()
            assert b"Input Dims" in whole
            around = json.loads(whole)["tpmon"]
            assert around["step_during_ms"] > 10.0
            assert (
                around["step_before_ms"]
                == around["step_after_ms"]
                == {"missing": "no hook counts the steps of this run"}
            )
            with_capture, noise = job.communicate(timeout=READY_S)
        assert noise == ""
        plain = run(command)
        assert with_capture == plain.stdout.partition("\n")[2]
    finally:
        shutil.rmtree(folder)


NSYS = """#!/bin/sh
while [ "${1#-}" != "$1" ] || [ "$1" = profile ]; do shift; done
"$@"
"""


@pytest.mark.long
def test_a_range_is_asked_for_under_the_line_of_run_which_lets_the_run_live(tmp_path: Path) -> None:
    nsys = tmp_path / "nsys"
    nsys.write_text(NSYS)
    nsys.chmod(0o755)
    env = {**ENVIRONMENT, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with started([*TPMON, "run", "--nsys", "--", *COMMAND], env=env, stderr=None) as job:
        pid = int(Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()[0])
        code, told, said = capture(pid, "--cuda-profiler")
        assert (code, told["state"]) == (2, "refused"), said
        assert "this process does not use CUDA" in told["notes"][0]
        assert job.poll() is None


@pytest.mark.long
def test_a_profiler_of_the_program_takes_over_and_is_whole(tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    with training("--profile", str(mine)) as job:
        done: list[tuple[int, dict[str, object], str]] = []
        thread = threading.Thread(
            target=lambda: done.append(capture(job.pid, "--steps", "600", "--out", str(tmp_path / "out")))
        )
        thread.start()
        part = tmp_path / "out" / name_part(job.pid)
        while not (part.is_dir() and any(one.startswith("trace") for one in os.listdir(part))):
            assert thread.is_alive(), done
        os.kill(job.pid, signal.SIGUSR1)
        assert job.stdout.readline() == "profiled\n"
        assert json.loads(mine.read_text())["traceEvents"]
        thread.join(READY_S)
        code, told, _ = done[0]
        assert (code, told["state"]) == (2, "yielded")
        assert os.listdir(tmp_path / "out") == []
        assert job.poll() is None
        captured(job.pid, "--steps", "2", "--out", str(tmp_path / "out"))


@pytest.mark.long
def test_what_a_killed_tpmon_left_goes_with_the_next_capture(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with training() as job:
        part = out / name_part(job.pid)
        with start([*TPMON, "capture", str(job.pid), "--steps", "300", "--out", str(out)]) as tool:
            assert any("recording 300 updates" in line for line in tool.stderr)
            os.kill(find_working(tool.pid), signal.SIGKILL)  # whom the shell waits for would end it in order
        assert part.is_dir()
        told, said = captured(job.pid, "--steps", "2", "--out", str(out))
        assert f"removed {part}, which a tpmon that was killed left" in said
        assert os.listdir(out) == [os.path.basename(told["files"][0]["path"])]
        assert job.poll() is None
