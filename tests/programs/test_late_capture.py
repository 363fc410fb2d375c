"""A capture of a run that has no hook: it is put in, records exactly the steps asked for, and is out again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.captures import read_told
from tests.hooks import list_pages
from tests.inject.targets import require_mounts
from tests.programs.capturing import HERE, PYTHON, TPMON, capture, captured, run, start
from tests.programs.causes.running import end_tree
from tests.programs.conftest import READY_S, TORCHRUN, run_program
from tests.programs.test_capture_asked import PLANNED, RECORDING, YES, Screen
from tests.programs.test_capture_exact import read_losses
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.inject.late_hook import LateHook
from tpmon.inject.refusal import RefusalReason, RefusedError
from tpmon.model.process import Identity
from tpmon.model.results.capture import CaptureAnswer, CaptureChoice, CaptureStage
from tpmon.model.results.late import LateState
from tpmon.probe.base.procread import read_stat, read_table
from tpmon.probe.hooked.page import StepReader

pytestmark = [pytest.mark.torch, needs_torch]

RUN = (PYTHON, "-W", "ignore:Failed to initialize NumPy")
"""Without numpy torch warns, on its own account."""
PLAIN = str(HERE / "late_capture_train.py")
HOOKLESS, HOOKING = CaptureStage.HOOKLESS, CaptureStage.HOOKING
TWICE = {stage: CaptureAnswer(stage, goes=True) for stage in (HOOKLESS, HOOKING)}


@contextmanager
def plain(folder: Path, *before: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Start the plain loop behind the words ``before``, and kill it with all that it started."""
    command = [*before, *RUN, PLAIN, str(folder / "losses")]
    with start(command, stdin=subprocess.PIPE, env={**os.environ, **more}) as job:
        try:
            assert job.stdout.readline() == "ready\n"
            yield job
        finally:
            end_tree(job)


def find(pid: int) -> Identity:
    return Identity(pid, read_stat(pid).start_ticks)


def is_out(pid: int) -> bool:
    """Tell whether nothing is left of a hook but its code."""
    return list_pages(pid) == [] and LateHook(find(pid)).remove().state is LateState.ABSENT


def check_steps(path: str, steps: int) -> list[str]:
    """Return the program's own names of the steps in a trace, once they are so many and nothing else is wrong."""
    found = read_told(path)
    own = [name for name in found.names if name.startswith("own step")]
    assert (len(own), len(found.marks), found.optimizer, found.wrong) == (steps, steps, steps, ())
    return sorted(own)


def check_losses(folder: Path) -> None:
    """Train as many steps again without a hook, and compare each loss bit by bit."""
    seen = (folder / "losses").read_text().split("\n")[:-1]
    subprocess.run([*RUN, PLAIN, str(folder / "plain"), str(len(seen))], check=True, timeout=READY_S)
    assert seen == (folder / "plain").read_text().split("\n")[:-1]


def test_five_steps_of_a_plain_run_and_it_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    with plain(tmp_path) as job:
        told, said = captured(job.pid, "--steps", "5", "--yes", "--out", str(tmp_path / "out"))
        assert told["notes"] == []
        (file,) = told["files"]
        check_steps(file["path"], 5)
        assert "written into its memory: " in said
        assert "the hook is out: patches undone" in said
        assert is_out(job.pid)
        before = (tmp_path / "losses").stat().st_size
        assert wait_until(lambda: (tmp_path / "losses").stat().st_size > before + 1000, READY_S)
        assert job.communicate("", timeout=READY_S) == ("", "")
    assert job.returncode == 0
    check_losses(tmp_path)


def test_nothing_is_written_where_nobody_agrees_or_it_is_forbidden(tmp_path: Path) -> None:
    with plain(tmp_path, TPMON_NO_LATE_HOOK="1") as job:
        code, _, said = capture(job.pid, "--yes")
        assert (code, f"process {job.pid} has no hook, and none is put in: turned-off: " in said) == (2, True), said
        assert "start it again: " in said
        assert "tpmon run -- " in said
        screen = Screen(job.pid, TWICE)
        assert screen.wait().line.startswith(f"no capture: process {job.pid} has no hook, and none is put in: turned")
        assert screen.stages() == [CaptureStage.ASKED, CaptureStage.ENDED]
    with plain(tmp_path) as job:
        code, _, said = capture(job.pid)
        assert (code, "nothing was written: nobody agreed" in said, "written into its memory" in said) == (
            2,
            True,
            True,
        )
        code, _, said = capture(job.pid, "--at", "9", "--yes")
        assert (code, "no hook has counted them" in said) == (2, True)
        held = Screen(job.pid, {HOOKLESS: TWICE[HOOKLESS]})
        assert wait_until(lambda: HOOKING in held.stages(), READY_S), held.told
        assert held.told[-1].plan[0].startswith(f"the hook into pid {job.pid} ")
        held.talk.answer(CaptureAnswer(HOOKING, goes=False))
        assert held.wait().line == ""
        assert is_out(job.pid)


@pytest.mark.long
def test_t_puts_it_in_after_two_yeses_keeps_it_over_other_choices_and_takes_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.chdir(out)
    with plain(tmp_path) as job:
        screen = Screen(job.pid, TWICE)
        assert screen.planned(CaptureChoice()).plan[0].startswith(f"5 steps of process {job.pid}, by torch.profiler")
        assert "a step takes " in screen.told[-1].plan[1]
        with closing(StepReader()) as reader:
            process = find(job.pid)
            put_in = reader.read_steps([process])[process].put_in
            assert put_in.at.timestamp() > read_stat(job.pid).start_ticks / os.sysconf("SC_CLK_TCK")
        screen.press("-")
        screen.planned(CaptureChoice(steps=2))
        assert [one.stage for one in screen.told].count(HOOKING) == 1, "asked once for all choices"
        screen.press("t")
        assert wait_until(lambda: screen.told[-1].stage is CaptureStage.PRICED, READY_S), screen.told
        screen.press("t")
        end = screen.wait()
        assert re.match(r"capture done: 2 steps(, the usual one)? of \d+\.\d+ ms, ", end.line), end
        check_steps(end.trace, 2)
        assert is_out(job.pid)

        left = Screen(job.pid, TWICE | {PLANNED: CaptureAnswer(PLANNED, goes=False)})
        assert left.wait().line == ""
        assert is_out(job.pid)
        many = CaptureChoice(steps=100)
        yes = {stage: CaptureAnswer(stage, True, many) for stage in TWICE | YES}
        cancelled = Screen(job.pid, yes | {RECORDING: CaptureAnswer(RECORDING, goes=False)})
        cancelled.talk.choose(many)
        assert cancelled.wait().line.startswith("capture cancelled: ")
        assert is_out(job.pid)
        job.communicate("", timeout=READY_S)
    check_losses(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("after", ["the hook is in", "profiling one step", "recording step"])
def test_ctrl_c_takes_it_out_too(tmp_path: Path, after: str) -> None:
    with plain(tmp_path) as job:
        command = [*TPMON, "capture", str(job.pid), "--steps", "300", "--yes", "--out", str(tmp_path / "out")]
        with start(command) as tool:
            assert any(after in line for line in tool.stderr)
            tool.send_signal(signal.SIGINT)
            said = tool.communicate(timeout=READY_S)
        assert tool.returncode == 130, said
        assert is_out(job.pid)
        job.communicate("", timeout=READY_S)
    check_losses(tmp_path)


@pytest.mark.long
def test_while_it_records_it_stays_in_and_after_a_killed_tpmon_it_can_be_taken_out(tmp_path: Path) -> None:
    """A recording ends at the end of a step: a script of tpmon may run in the middle of a backward."""
    with plain(tmp_path) as job:
        command = [*TPMON, "capture", str(job.pid), "--steps", "1000", "--yes", "--out", str(tmp_path / "out")]
        with start(command) as tool:
            assert any("recording step" in line for line in tool.stderr)
            for _ in range(5):
                with pytest.raises(RefusedError) as refused:
                    LateHook(find(job.pid), deadline_s=0.4).remove()
                assert refused.value.reason is RefusalReason.BUSY
            tool.kill()
            tool.communicate(timeout=READY_S)
        assert LateHook(find(job.pid)).remove().state in (LateState.REMOVED, LateState.ABSENT), "or a child did"
        assert is_out(job.pid)
        assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []
        job.communicate("", timeout=READY_S)
    check_losses(tmp_path)


@pytest.mark.long
def test_a_run_in_namespaces_of_its_own(tmp_path: Path) -> None:
    """With mounts, a /tmp and process numbers of its own, as in a container."""
    require_mounts()
    inside = (
        'mount --make-rprivate / && mkdir -p "$0" && mount -t tmpfs none "$0" && mount -t proc none /proc && exec "$@"'
    )
    before = ("unshare", "-mp", "--fork", "--kill-child", "sh", "-c", inside, "/dev/shm")
    with plain(tmp_path, *before) as job:
        (pid,) = [one.pid for one in read_table().values() if one.parent == job.pid]
        told, said = captured(pid, "--steps", "5", "--yes")
        (file,) = told["files"]
        assert file["path"].startswith("/tmp/"), said
        check_steps(file["host_path"], 5)
        assert is_out(pid)
        for left in Path(file["host_path"]).parent.iterdir():
            left.unlink()
        Path(file["host_path"]).parent.rmdir()


@pytest.mark.long
def test_two_ranks_record_the_same_steps_though_each_counts_from_another(tmp_path: Path) -> None:
    """By the program's own number of each step; the traces number them alike, so that they can be compared."""
    command = (*RUN, *TORCHRUN[1:], "--standalone", "--nproc-per-node", "2", "capture_ranks.py")
    seen = tmp_path / "ready"
    with run_program((*command, "{ready}", "1000000"), seen, 2) as program:
        for trial in range(5):
            flags = ("--all-ranks", "--steps", "5", "--yes", "--out", str(tmp_path / f"out{trial}"))
            told, said = captured(program.pid, *flags)
            first, second = (check_steps(file["path"], 5) for file in told["files"])
            assert first == second, (trial, said)
            marks = [read_told(file["path"]).marks for file in told["files"]]
            assert marks[0] == marks[1], (trial, said)
            assert all(is_out(pid) for pid in program.trainers)
        losses = [read_losses(seen, rank) for rank in range(2)]
    steps = max(map(len, losses))
    (tmp_path / "plain").mkdir()
    run((*command[:-1], str(HERE / command[-1]), str(tmp_path / "plain"), str(steps)), GLOO_SOCKET_IFNAME="lo")
    for rank, mine in enumerate(losses):  # gloo may end that run with SIGABRT, after its last step
        without = read_losses(tmp_path / "plain", rank)
        assert (len(without), without[: len(mine)]) == (steps, mine), rank
