"""Every reason that sends to the doctor names a line that the doctor prints."""

import ast
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import tpmon
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.doctor import CHECK_NAMES, NOT_PERMITTED, Access, drop_pointers, point_to, say_refusal
from tpmon.probe.doctor.checks import CheckupSubject, NvmlOnce, plan_job, plan_machine
from tpmon.probe.doctor.nvml import NOT_ASKED
from tpmon.probe.doctor.rules import make_check
from tpmon.probe.gpu.card_readings import Board
from tpmon.probe.gpu.wire import FailureLine, Line
from tpmon.probe.spy.failure import SpyOutcome, explain_empty, explain_outcome
from tpmon.probe.spy.text import Sampled

COLUMNS = 40
"""What a narrow pane has."""
PACKAGE = Path(tpmon.__file__).parent
TAKES_NAME = {"point_to": 1, "say_refusal": 1, "_Optional": 2}
"""The functions that end a reason with a line of the doctor, and which argument names it."""


def no_spy() -> Missing:
    return Missing("no py-spy")


def modules() -> Iterator[tuple[Path, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, path.read_text(encoding="utf-8")


def names_in_calls() -> Iterator[tuple[str, object]]:
    """Yield where a reason is sent to the doctor, and what line it names; None for one that is not spelled out."""
    for path, text in modules():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            place = TAKES_NAME.get(node.func.id)
            if place is None:
                continue
            named = node.args[place] if len(node.args) > place else None
            yield f"{path.name}:{node.lineno}", named.value if isinstance(named, ast.Constant) else None


def test_the_table_of_names_is_that_of_the_checks_that_the_doctor_runs():
    nvml = NvmlOnce(lambda: NOT_ASKED)
    patient = CheckupSubject(os.getpid(), "train.py", "ada", (os.getpid(),), NOT_APPLICABLE, "")
    plans = (*plan_machine(nvml, no_spy), *plan_job(patient, nvml, no_spy))
    assert sorted(plan.name for plan in plans) == sorted(CHECK_NAMES)
    assert {plan.name for plan in plans if plan.needed} == {"py-spy", "stacks", "stat", "environ", "fd"}


def test_every_reason_names_a_line_of_the_doctor_and_is_spelled_in_one_place():
    found = dict(names_in_calls())
    assert len(found) > 30
    # Two pass on what their caller names.
    passed_on = {place.partition(":")[0] for place, name in found.items() if name is None}
    assert passed_on == {"doctor.py", "processes.py"}
    named = {name for name in found.values() if name is not None}
    assert named <= set(CHECK_NAMES)
    for needed in ("py-spy", "stacks", "fd", "io", "smaps_rollup", "environ", "wchan", "syscall", "memory"):
        assert needed in named
    assert {"cgroup", "nvml", "cards", "kernel-log", "hidepid"} <= named
    spelled = {path.name for path, text in modules() if "(doctor:" in text or "doctor says more" in text}
    assert spelled == {"doctor.py"}


SPY_ENDS = {
    "late": SpyOutcome(b"", b"", 0, 0.0, 5.0, late=True, flooded=False),
    "out of its CPU": SpyOutcome(b"", b"", -signal.SIGXCPU, 2.0, 2.0, late=False, flooded=False),
    "too much": SpyOutcome(b"", b"", 0, 0.1, 0.1, late=False, flooded=True),
    "killed": SpyOutcome(b"", b"", -signal.SIGKILL, 0.1, 0.1, late=False, flooded=False),
    "failed": SpyOutcome(b"", b"Error: no luck", 1, 0.1, 0.1, late=False, flooded=False),
    "another Python": SpyOutcome(b"", b"Error: no python version", 1, 0.1, 0.1, late=False, flooded=False),
}


@pytest.mark.parametrize("outcome", SPY_ENDS.values(), ids=SPY_ENDS.keys())
def test_however_py_spy_ends_a_pane_without_stacks_names_their_line(outcome):
    failure = explain_outcome(os.getpid(), outcome, 5.0)
    assert failure is not None
    assert failure.reason != drop_pointers(failure.reason)


def test_stacks_without_a_thread_name_their_line():
    assert explain_empty(Sampled(0, (), 0), b"[]") == "py-spy saw no Python thread (doctor: stacks)"


@pytest.mark.parametrize("code", [0, 3, 4, 9, 12, 15, 18, 999])
def test_a_pane_without_cards_names_the_line_of_nvml(code):
    board = Board(0)
    board.on_line(Line(failure=FailureLine(code, "what NVML said")), 0)
    gpus = board.read({}, {}, True, 10**9).gpus
    assert isinstance(gpus, Missing)
    assert gpus.reason.endswith(" (doctor: nvml)")
    waiting = Board(0).read({}, {}, True, 60 * 10**9).gpus
    assert isinstance(waiting, Missing)
    assert waiting.reason.endswith(" (doctor: nvml)")


@pytest.mark.parametrize("name", CHECK_NAMES)
def test_a_refusal_fits_a_narrow_pane_and_the_doctor_does_not_point_to_itself(name):
    reason = say_refusal(PermissionError(13, "Permission denied"), name)
    assert reason == point_to(NOT_PERMITTED, name)
    assert len(reason) <= COLUMNS
    assert reason.endswith(f"(doctor: {name})")
    assert drop_pointers(f"PSS: {reason}; more") == "PSS: not permitted; more"
    assert make_check(name, Access.DENIED, reason).why == NOT_PERMITTED


def test_what_no_check_explains_points_nowhere():
    assert say_refusal(FileNotFoundError(2, "No such file or directory"), "io") == "no such file or directory"
    assert say_refusal(OSError(), "io") == "refused"
