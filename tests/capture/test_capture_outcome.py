"""How a capture ended: whole, or with part of what was asked for, and why."""

import json
from dataclasses import replace

import pytest

from tests.captures import parse_conditions
from tpmon.capture.outcome import IS_BUSY, find_use, judge_end, note_kernels
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.capture import CaptureAsked, CapturedFile, CaptureKind, CaptureState, RankCapture

ASKED = CaptureAsked(CaptureKind.TRACE, 5, 60.0, False, False, False, NOT_APPLICABLE, "/tmp/x")
RANK = RankCapture(1, 0, CaptureState.VERIFIED, "", 100, 5, 20.0, 10.0, 12.0, 10.0)
FILE = CapturedFile("/a", "/a", 0, 100, 5, 900, 0, 1000, CaptureKind.TRACE)


def test_a_set_is_partial_where_a_rank_or_a_step_is_not_there():
    missed = replace(RANK, rank=1, state=CaptureState.MISSED, first_step=Missing("x"))
    assert judge_end(ASKED, [RANK], [FILE]) is CaptureState.DONE
    assert judge_end(ASKED, [RANK, missed], [FILE]) is CaptureState.PARTIAL
    assert judge_end(ASKED, [RANK], [replace(FILE, steps=4)]) is CaptureState.PARTIAL
    assert judge_end(ASKED, [RANK, replace(RANK, first_step=101)], [FILE, FILE]) is CaptureState.PARTIAL
    assert judge_end(ASKED, [missed], []) is CaptureState.MISSED
    assert judge_end(ASKED, [RANK], []) is CaptureState.FAILED


def test_a_trace_without_a_kernel_is_partial_where_a_gpu_worked_and_says_why():
    assert judge_end(ASKED, [RANK], [FILE], {RANK.pid}) is CaptureState.PARTIAL
    assert judge_end(replace(ASKED, timed=True), [RANK], [FILE], {RANK.pid}) is CaptureState.PARTIAL
    assert judge_end(ASKED, [RANK], [replace(FILE, kernels=3)], {RANK.pid}) is CaptureState.DONE
    assert judge_end(ASKED, [RANK], [replace(FILE, kernels=Missing("x"))], {RANK.pid}) is CaptureState.DONE
    assert judge_end(ASKED, [RANK], [FILE], {RANK.pid + 1}) is CaptureState.DONE
    both = [RANK, replace(RANK, pid=2, rank=1)]
    assert judge_end(ASKED, both, [replace(FILE, kernels=3), FILE], {1, 2}) is CaptureState.PARTIAL
    assert note_kernels(IS_BUSY, Missing("x")) == [
        "no GPU kernel in the trace, although NVML saw a GPU work for it: another tool may hold CUPTI"
    ]
    for gpu, words in (("H100", "nothing says that a GPU worked meanwhile"), ("", ""), (None, "")):
        told = parse_conditions(f'{{"tpmon": {json.dumps({"gpu": gpu})}}}'.encode(), b"")
        assert words in "".join(note_kernels("", told))
        assert bool(note_kernels("", told)) is bool(words)


@pytest.mark.parametrize(
    ("told", "steps", "used"),
    [
        ({"device": "cuda:0", "mode": "training"}, 5, True),
        ({"device": "cpu", "mode": "training", "gpu": "H100"}, 5, False),
        ({"device": "cuda:0", "mode": "evaluation"}, 5, False),
        ({"device": "cuda:0", "mode": "training"}, 0, False),
        ({"mode": "training", "gpu": "H100"}, 5, False),
    ],
)
def test_a_step_of_training_on_a_gpu_has_kernels_and_cuda_alone_says_nothing(told, steps, used):
    conditions = parse_conditions(json.dumps({"tpmon": told}).encode(), b"")
    assert bool(find_use(replace(RANK, steps=steps), conditions)) is used
