"""What is judged is the usual step: not a few much longer ones, not a start alone."""

import pytest

from tests.trace.figures.test_trace_steady import analyse, train
from tests.traces import TraceBuilder
from tpmon.model.verdict import Kind


@pytest.mark.parametrize(("long", "apart"), [((3,), True), ((), False), ((3, 4, 5, 6), False)])
@pytest.mark.parametrize("device", [True, False], ids=["device", "host"])
def test_one_step_that_is_much_longer_than_the_others_is_left_out_and_said(device, long, apart, tmp_path):
    """A validation in one of eight steps: what holds the run in it is not what holds the others."""
    trace, at = TraceBuilder(), 0.0
    for number in range(8):
        length = 24_000 if number in long else 4000
        trace.step(number, at, length).op("aten::linear", at, 50 if device else 3950)
        if device:
            trace.kernel(at + 40, 3950, launch=at + 20)
            trace.kernel(at + 20_000, 3000, launch=at + 19_999) if apart and number in long else None
        at += length
    file = analyse(trace, tmp_path)
    words = "ProfilerStep#3 alone takes 46 % of the 8 steps, 6.0 x the median, and is left out"
    assert (words in file.verdict.summary) is apart
    assert any(note.startswith(words) for note in file.overview.notes) is apart
    overview = file.overview
    assert overview.judged_steps == (7 if apart else 8)
    assert overview.left_out_us == (24_000 if apart else 0)
    if long and not apart:
        return
    assert (file.verdict.kind, file.verdict.confidence) == (Kind.COMPUTE_BOUND, "medium")
    assert file.verdict.share_pct > 98
    assert overview.step_ms == pytest.approx(4.0, abs=0.02)
    assert [row.left_ms < row.ms for row in overview.step_table] == [number not in long for number in range(8)]
    split = overview.breakdown_us
    assert (split.kernel if device else split.cpu) == pytest.approx(3950, abs=1)
    if device:
        gap = file.gaps[0]
        assert gap.busy + gap.idle == pytest.approx(gap.window) == pytest.approx(28_000 if apart else 32_000, rel=0.01)
        assert sum(row.us for row in file.step_work.categories) == pytest.approx(3950, abs=1)
        assert sum(row.count for row in file.step_work.categories) == 8 - len(long)


def test_a_batch_that_is_late_every_few_steps_is_not_left_out(tmp_path):
    trace, at = TraceBuilder(), 0.0
    for number in range(16):
        wait = 20_000 if number in (3, 11) else 10
        trace.step(number, at, wait + 2000).loader(at, wait, single=False)
        trace.op("aten::linear", at + wait, 50).kernel(at + wait + 40, 1900, launch=at + wait + 20)
        at += wait + 2000
    file = analyse(trace, tmp_path)
    assert (file.verdict.kind, file.overview.judged_steps) == (Kind.DATA_BOUND, 16)
    assert "2 of 16 steps take 61 % of the time of all" in file.verdict.summary


@pytest.mark.parametrize(
    ("first", "steps", "mark", "said"),
    [
        (0, 1, True, "one step without warm-up"),
        (3, 1, True, ""),
        (0, 2, True, ""),
        (0, 1, False, "one step without warm-up"),
        (0, 2, False, "one or two steps without warm-up"),
    ],
)
def test_one_step_without_warm_up_is_trusted_little(first, steps, mark, said, tmp_path):
    trace, at = TraceBuilder(), 0.0
    for number in range(first, first + steps):
        end = train(trace, at, mark="")
        trace.add("user_annotation", "Optimizer.step#SGD.step", end, 10)
        if mark:
            trace.step(number, at, end + 10 - at)
        at = end + 10
    verdict = analyse(trace, tmp_path).verdict
    assert verdict.share_pct > 50
    assert verdict.confidence == ("low" if said else "medium")
    assert verdict.summary.endswith(f"; that is of {said}") is bool(said)


@pytest.mark.parametrize("compiles", [True, False])
def test_repeats_in_front_that_are_merely_slow_are_no_start_up(compiles, tmp_path):
    """Other processes took the CPU from the first iterations: nothing in them happens once."""
    trace, at = TraceBuilder(), 0.0
    for number in range(10):
        at = train(trace, at, gap=400 if number < 4 else 75)
    if compiles:
        trace.add("cpu_op", "compile_attempt_0 (dynamo_timed)", 100, 20_000)
    file = analyse(trace, tmp_path)
    assert file.overview.repeats == 6
    what = "the first 4 repeats and torch.compile at work" if compiles else "the first 4 repeats"
    assert f"%) is {what} and left out" in file.verdict.summary
