"""Which updates of optimizers end a step, in traces that mark none."""

import gzip
import json
from pathlib import Path

import pytest

from tests.traces import BASE_US, TraceBuilder
from tpmon.trace.child import STEP, Marks, find_updates, write_marked
from tpmon.trace.reading.read import read_trace

NODE = "autograd::engine::evaluate_function: MulBackward0"


def update(trace: TraceBuilder, name: str, start: float, length: float = 50) -> TraceBuilder:
    return trace.add("user_annotation", f"Optimizer.step#{name}.step", start, length)


def find(tmp_path: Path, updates: list[tuple[str, float]], nodes: list[float], length: float = 100) -> Marks:
    """Find the steps of a loop with these updates, and nodes of the backward pass of a length."""
    trace = TraceBuilder(base_us=0).op("aten::mm", 0, 100)
    for start in nodes:
        trace.op(NODE, start, length)
    for name, start in updates:
        update(trace, name, start)
    return find_updates(read_trace(trace.write(tmp_path / "t.json")), 20)


PAIRS = [(name, at + start) for at in range(0, 4000, 1000) for name, start in (("Muon", 800), ("AdamW", 860))]
NETWORKS = [("Adam" if at % 4000 == 3000 else "RMSprop", at + 800) for at in range(0, 16_000, 1000)]
EIGHTS = [("SGD", number * 1000 + 400 + at * 60) for number in range(3) for at in range(8)]


@pytest.mark.parametrize(
    ("updates", "nodes", "ends"),
    [
        pytest.param(PAIRS, [], range(910, 4000, 1000), id="two optimizers without a backward pass"),
        pytest.param(PAIRS, [500, 1500, 2500, 3500], range(910, 4000, 1000), id="two optimizers"),
        pytest.param(PAIRS[1:], [], range(910, 4000, 1000), id="two optimizers, the first update cut off"),
        pytest.param(PAIRS[1:], [500, 1500, 2500, 3500], range(910, 4000, 1000), id="the same with a backward pass"),
        pytest.param(
            NETWORKS, [*range(500, 16_000, 1000)], range(3850, 16_000, 4000), id="a critic updates three times"
        ),
        pytest.param(EIGHTS, [300, 1300, 2300], range(870, 3000, 1000), id="updates one after the other"),
    ],
)
def test_a_step_ends_once(updates, nodes, ends, tmp_path):
    assert [step[1] for step in find(tmp_path, updates, nodes).steps] == [1000 * end for end in ends]


def test_updates_within_the_backward_pass_are_no_steps(tmp_path):
    marks = find(tmp_path, [("AdamW", at + 20) for at in range(0, 2000, 100)], [*range(0, 2000, 100)], 90)
    assert (marks.steps, "within the backward pass" in marks.why) == ((), True)


def test_a_recording_that_begins_between_two_updates_begins_with_a_whole_step(tmp_path):
    steps = find(tmp_path, [("AdamW", 150), *PAIRS[:6]], [500, 1500, 2500]).steps
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
