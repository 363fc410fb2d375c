"""What a finished capture prints and its JSON: steps before, during and after, the scp line; whose ranks."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.goldens.capture_views import PATH, result, summary
from tpmon.commands.capture import choose_ranks
from tpmon.errors import UsageError
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing
from tpmon.model.process import Role
from tpmon.model.results.capture import CaptureState
from tpmon.report.capture import write_capture, write_capture_line

NOT_TOLD = Missing("too few steps to tell")
(RANK,) = result().ranks


STOOD, WENT = "the loop paused for 34 ms", "the loop went on meanwhile"


@pytest.mark.parametrize(
    ("changes", "who", "said"),
    [
        ({}, "rank 0", f"steps 412-416; step before 12.00 ms, during 13.10 ms, after 12.05 ms; {STOOD}"),
        (
            {"rank": NOT_APPLICABLE, "step_after_ms": NOT_TOLD},
            "process 4211",
            f"steps 412-416; step before 12.00 ms, during 13.10 ms, after not known; {STOOD}",
        ),
        (
            {"first_step": Missing("kineto"), "paused_ms": Missing("kineto")},
            "rank 0",
            f"5 updates; step before 12.00 ms, during 13.10 ms, after 12.05 ms; {WENT}",
        ),
        ({"steps": 0}, "rank 0", f"a window by time; {STOOD}"),
        ({"state": CaptureState.GONE, "reason": "the process ended"}, "rank 0", "gone: the process ended"),
    ],
)
def test_a_rank_says_its_steps_before_during_and_after(changes, who, said):
    told = replace(result(), ranks=(replace(RANK, **changes),))
    assert write_capture(told, (summary(),), "node7")[1] == f"  {who}: {said}"


def test_the_files_are_fetched_by_one_line_that_can_be_pasted():
    lines = write_capture(result(), (summary(),), "node7")
    assert lines[-2] == f"fetch: scp node7:{PATH} ."
    (file,) = result().files
    odd = replace(file, host_path="/proc/7/root/tmp/a b;rm.json")
    lines = write_capture(replace(result(), files=(file, odd)), (), "node7")
    assert lines[-2] == f"fetch: scp node7:{PATH} 'node7:/proc/7/root/tmp/a b;rm.json' ."
    assert "  from this shell: /proc/7/root/tmp/a b;rm.json" in lines
    nothing = write_capture(replace(result(), files=()), (), "node7")
    assert not any("scp" in line for line in nothing)
    assert write_capture_line(result(), (summary(),)) == (
        f"capture done: 5 steps of 13.10 ms, most in aten::addmm, {PATH}"
    )


def make_member(pid: int, role: Role, rank: object, of: object = NOT_APPLICABLE) -> SimpleNamespace:
    return SimpleNamespace(identity=SimpleNamespace(pid=pid), role=role, rank=rank, rank_pid=of)


MEMBERS = (
    make_member(100, Role.LAUNCHER, NOT_APPLICABLE),
    make_member(103, Role.RANK, 3),
    make_member(102, Role.RANK, 2),
    make_member(104, Role.RANK, NOT_APPLICABLE),
    make_member(203, Role.WORKER, 3, 103),
)


def ask(
    meant: Applicable[int], asked_pid: int, *, every: bool = False, members: tuple[SimpleNamespace, ...] = MEMBERS
) -> list[int]:
    job = SimpleNamespace(root=SimpleNamespace(pid=100), asked_pid=asked_pid, members=members)
    return [one.identity.pid for one in choose_ranks(job, meant, every=every)]


@pytest.mark.parametrize(
    ("meant", "asked_pid", "pids"),
    [
        (NOT_APPLICABLE, 100, [102]),
        (NOT_APPLICABLE, 103, [103]),
        (NOT_APPLICABLE, 203, [103]),
        (NOT_APPLICABLE, 104, [104]),
        (3, 100, [103]),
        (3, 102, [103]),
        (2, 203, [102]),
    ],
    ids=str,
)
def test_the_rank_that_is_named_or_meant_is_captured(meant, asked_pid, pids):
    assert ask(meant, asked_pid) == pids
    assert ask(NOT_APPLICABLE, asked_pid, every=True) == [102, 103, 104]


def test_a_rank_that_is_not_here_is_refused():
    with pytest.raises(UsageError, match="--rank: rank 7 is not on this machine") as refused:
        ask(7, 103)
    assert refused.value.try_this == "here: 2-3"
    with pytest.raises(UsageError, match="the job of pid 100 has no rank on this machine"):
        ask(NOT_APPLICABLE, 100, members=MEMBERS[:1])
