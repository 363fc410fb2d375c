"""Which updates of optimizers end a step, in traces that mark none."""

import gzip
import json
from pathlib import Path

import pytest

from tests.traces import BASE_US, TraceBuilder
from tpmon.trace.child import STEP, Marks, find_updates, write_marked
from tpmon.trace.reading.read import read_trace

NODE = "autograd::engine::evaluate_function: MulBackward0"


def find(trace: TraceBuilder, tmp_path: Path) -> Marks:
    return find_updates(read_trace(trace.write(tmp_path / "t.json")), 20)


def update(trace: TraceBuilder, name: str, start: float, length: float = 50) -> TraceBuilder:
    return trace.add("user_annotation", f"Optimizer.step#{name}.step", start, length)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("cut", [0, 1])
def test_two_optimizers_end_a_step_once(backward, cut, tmp_path):
    trace = TraceBuilder(base_us=0).op("aten::mm", 0, 100)
    for number in range(4):
        if backward:
            trace.op(NODE, number * 1000 + 500, 100)
        if number or not cut:
            update(trace, "Muon", number * 1000 + 800)
        update(trace, "AdamW", number * 1000 + 860)
    steps = find(trace, tmp_path).steps
    assert [step[1] for step in steps] == [910_000, 1_910_000, 2_910_000, 3_910_000]


def test_optimizers_of_two_networks_end_a_step_once(tmp_path):
    """Each has a backward pass of its own, and the critic updates three times."""
    trace = TraceBuilder(base_us=0).op("aten::mm", 0, 100)
    for at in range(0, 16_000, 1000):
        trace.op(NODE, at + 500, 100)
        update(trace, "Adam" if at % 4000 == 3000 else "RMSprop", at + 800)
    steps = find(trace, tmp_path).steps
    assert [step[1] for step in steps] == [850_000 + at for at in range(3_000_000, 16_000_000, 4_000_000)]


def test_updates_one_after_the_other_are_one(tmp_path):
    trace = TraceBuilder(base_us=0).op("aten::mm", 0, 100)
    for number in range(3):
        trace.op(NODE, number * 1000 + 300, 100)
        for at in range(8):
            update(trace, "SGD", number * 1000 + 400 + at * 60)
    assert [step[1] for step in find(trace, tmp_path).steps] == [870_000, 1_870_000, 2_870_000]


def test_updates_within_the_backward_pass_are_no_steps(tmp_path):
    trace = TraceBuilder(base_us=0).op("aten::mm", 0, 100)
    for at in range(20):
        trace.op(NODE, at * 100, 90)
        update(trace, "AdamW", at * 100 + 20)
    marks = find(trace, tmp_path)
    assert (marks.steps, "within the backward pass" in marks.why) == ((), True)


def test_a_recording_that_begins_between_two_updates_begins_with_a_whole_step(tmp_path):
    trace = TraceBuilder(base_us=0).op("aten::mm", 0, 100)
    update(trace, "AdamW", 150)
    for number in range(3):
        trace.op(NODE, number * 1000 + 500, 100)
        update(trace, "Muon", number * 1000 + 800)
        update(trace, "AdamW", number * 1000 + 860)
    steps = find(trace, tmp_path).steps
    assert [step[0] for step in steps] == [200_000, 910_000, 1_910_000]


def test_marks_of_neighbours_touch_and_hold_their_updates_also_in_doubles(tmp_path):
    """TensorBoard's plugin drops a range that begins 1 ns before the one before it ends."""
    trace = TraceBuilder(base_us=BASE_US + 0.818).op("aten::mm", 0, 100)
    for number in range(500):
        trace.op(NODE, number * 1000.137 + 500, 100.01)
        update(trace, "SGD", number * 1000.137 + 800.003, 50.011)
    source, target = trace.write(tmp_path / "t.json"), tmp_path / "marked.json.gz"
    assert write_marked(str(source), str(target), 600).marks == 500
    events = json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]
    ends = {
        kind: [(one["ts"], one["ts"] + one["dur"]) for one in events if one["name"].startswith(kind)]
        for kind in (STEP, "Optimizer.step#")
    }
    steps = ends[STEP]
    assert steps[0][0] < min(one["ts"] for one in events if one["name"] == "aten::mm")
    assert [end for _, end in steps[:-1]] == [start for start, _ in steps[1:]]
    assert all(end <= step_end for (_, end), (_, step_end) in zip(ends["Optimizer.step#"], steps, strict=True))
