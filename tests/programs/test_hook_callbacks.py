"""Each callback that the hook gives to Python or torch raises once: the training goes on, and tpmon says why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hooks import find_page, open_page
from tests.programs.capturing import ENVIRONMENT, HERE, PYTHON, ROOT, run
from tests.programs.conftest import READY_S
from tests.torch_build import needs_torch
from tpmon.hook.bus import wire_capture as w
from tpmon.model.hook import HookState
from tpmon.model.known import is_known
from tpmon.model.process import Identity
from tpmon.probe.base.procread import read_stat
from tpmon.probe.hooked.page import StepReader

pytestmark = [pytest.mark.torch, pytest.mark.long, needs_torch]

ENDED_WELL = 7

CALLBACKS = {
    "patches.__next__": ("plain=steps.data_begins", "plain=steps.data_ended", "plain=steps.data_stopped"),
    "patches._engine_run_backward": ("plain=steps.backward_begins", "plain=steps.backward_ended"),
    "patches.update": ("scaled=steps.scaler_updated",),
    "patches.__init__": ("ddp=counters.wrapper_made", "fsdp=counters.wrapper_made"),
    "steps.optimizer_stepped": ("plain=steps.optimizer_stepped",),
    "installation.find_spec": ("imported=installation.find_spec",),
    "installation.exec_module": ("imported=installation.exec_module", "imported=installation._torch_came"),
    "installation._forked": ("forked=installation._forked",),
    "mailbox._woken": ("woken=mailbox._woken",),
    "mailbox._ring": ("timed=mailbox._ring",),
    "mailbox._at_exit": ("asked=mailbox._at_exit",),
    "guard.begin": ("profiled=guard._begins", "profiled_elsewhere=guard._begins"),
    "guard.__exit__": ("profiled=guard._ends", "profiled_elsewhere=guard._ends"),
    "__init__.step": ("said=steps.step_called",),
    "profiling.__exit__": ("said=profiling.__exit__",),
    "__init__.install": ("plain=installation.install",),
    "__init__.uninstall": ("put_in=installation.uninstall",),
}
"""What is called from outside the hook, and the functions below it in which an error is made."""

WITHIN = ("asked=capture.at_boundary", "asked=mailbox.requested", "plain=pages.__init__")
"""The same for what is called by one of these at times alone."""

CANNOT_FAIL = {
    "__init__.__getattr__",  # names of this package
    "__init__.problem",
    "profiling.__enter__",  # of torch, which the program asked for
    "profiling.__init__",
}

BROKEN = [one for several in CALLBACKS.values() for one in several]
CAPTURES = ("mailbox._ring", "guard._begins", "guard._ends", "capture.at_boundary", "mailbox.requested")
"""An error there ends capturing, and steps are counted as before."""


def start(folder: Path, *asked: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PYTHON, "-W", "ignore", "-m", "tests.programs.hook_callbacks", str(folder), *asked],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def read_line(job: subprocess.Popen[str]) -> dict[str, object]:
    return json.loads(job.stdout.readline() or "{}")


def go_on(job: subprocess.Popen[str]) -> None:
    job.stdin.write("\n")
    job.stdin.flush()


def see(pid: int) -> tuple[HookState, str, str]:
    """Return what tpmon sees of a hook: its state, its error, and the reason of the last capture."""
    process = Identity(pid, read_stat(pid).start_ticks)
    reader = StepReader()
    reading = reader.read_steps([process])[process]
    reader.close()
    assert is_known(reading), reading
    with open_page(find_page(pid)) as page:
        return reading.state, reading.error, w.parse_progress(page).reason


def test_an_error_in_any_callback_is_never_the_trainings(tmp_path: Path) -> None:
    together = [one for one in (*BROKEN, *WITHIN) if not one.startswith("imported")]
    alone = [one for one in BROKEN if one.startswith("imported")]
    wrong = {}
    with start(tmp_path, *together) as job:
        for number, one in enumerate(together):
            wrong[one] = judge(job, one, tmp_path / f"{number}.out")
            if (code := read_line(job).get("code")) != ENDED_WELL:
                wrong[one].append(f"ended with {code}")
    for one in alone:
        with start(tmp_path, "--alone", one) as job:
            wrong[one] = judge(job, one, tmp_path / "alone.out")
        if job.returncode != ENDED_WELL:
            wrong[one].append(f"ended with {job.returncode}")
    assert "\n".join(f"{one}: {'; '.join(found)}" for one, found in wrong.items() if found) == ""


def judge(job: subprocess.Popen[str], one: str, output: Path) -> list[str]:
    """Say what is not as it should be with one broken callback."""
    _, _, where = one.partition("=")
    told = read_line(job)
    if not told:
        return [f"it did not train to its end: {output.read_text()[-2000:]}"]
    own = told["own"]
    state, error, reason = see(told["pid"])
    if where == "mailbox.requested":
        reason = own["first"][1]  # the next request may load what this one could not
    broken = f"broken on purpose in {where.partition('.')[2]}"
    found = {}
    if where == "installation._forked":
        (child,) = told["look_at"]
        found["the parent's hook is hurt"] = (state, error) != (HookState.RUNNING, "")
        found["the parent's capture is"] = own["state"][0] != w.STATE_VERIFIED
        state, error, _ = see(child)
    if where in CAPTURES:
        found["steps are counted no more"] = (state, error) != (HookState.RUNNING, "")
        found[f"tpmon cannot say why: {reason!r}"] = broken not in reason
    elif where != "mailbox._at_exit":
        found[f"tpmon cannot say why: {error!r}"] = state is not HookState.DISABLED or broken not in error
    if where == "mailbox._woken":
        found["the program's own handler was not called"] = own["rung"] < 9
    if where.startswith("guard."):
        found["the program's own profile is not whole"] = own["own"] is not True
    go_on(job)
    found["other losses"] = read_line(job).get("same") is not True
    found[f"it wrote {output.read_text()!r}"] = output.read_text() != ""
    return [what for what, holds in found.items() if holds]


def test_no_other_callback_is_handed_out(tmp_path: Path) -> None:
    """What a training calls of the hook, with nothing broken, is what is broken above."""
    scenarios = sorted({one.partition("=")[0] + "=" for one in (*BROKEN, *WITHIN)})
    together = [one for one in scenarios if one != "imported="]
    with start(tmp_path, *together) as job:
        for number, one in enumerate(together):
            told = read_line(job)
            assert told, (tmp_path / f"{number}.out").read_text()
            assert see(told["pid"])[:2] == (HookState.RUNNING, ""), one
            go_on(job)
            assert read_line(job) == {"same": True}, one
            assert read_line(job) == {"code": ENDED_WELL}, one
            assert (tmp_path / f"{number}.out").read_text() == ""
    with start(tmp_path, "--alone", "imported=") as job:
        read_line(job)
        go_on(job)
        assert read_line(job) == {"same": True}
    entered = set((tmp_path / "entries").read_text().split())
    of_the_layout = {one for one in entered if one.startswith("wire")}  # read by the program, as tpmon reads it
    assert entered - of_the_layout == CALLBACKS.keys() | CANNOT_FAIL


def test_an_error_at_each_ninth_line_of_the_hook_leaves_the_training_alone(tmp_path: Path) -> None:
    done = run([sys.executable, "-W", "ignore", str(HERE / "hook_faults.py"), str(tmp_path / "out"), "9"], 6 * READY_S)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    assert report["lines"]["captured"] > 100
