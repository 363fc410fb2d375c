"""Slices: a small trace of some steps or gaps that tpmon reads like the whole, and Perfetto opens."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces import TraceBuilder
from tpmon.commands.trace import TraceOptions, run_slice
from tpmon.errors import UsageError
from tpmon.model.results.trace import TraceFile
from tpmon.report.text import Output
from tpmon.trace.analysis import analyze
from tpmon.trace.reading import chunks
from tpmon.trace.reading.read import read_trace
from tpmon.trace.reading.slice import Written, choose_gaps, choose_steps, write_slice

RANK = {"distributedInfo": {"backend": "nccl", "rank": 2, "world_size": 4}}


def make_trace() -> TraceBuilder:
    """Make ten steps of 1 ms whose last kernel runs on into the next step, and a long gap in step 6."""
    trace = TraceBuilder()
    trace.events.append({"ph": "M", "name": "process_name", "pid": 4000, "tid": 0, "args": {"name": "python"}})
    trace.add("python_function", "train.py(3): main", 0, 12_000)
    for number in range(10):
        start = number * 1000
        trace.step(number, start, 990).loader(start, 50 if number != 6 else 700)
        trace.add("gpu_user_annotation", f"ProfilerStep#{number}", start, 990, pid=0, tid=7)
        at = start + (100 if number != 6 else 720)
        trace.op("aten::mm", at, 200)
        trace.kernel(at + 20, 150, launch=at + 5, name="gemm")
        trace.kernel(start + 900, 150, launch=start + 880, name="late")
        trace.memory(start + 120, 1024, 1024 * (number + 1))
        flow = {"id": number, "pid": 4000, "tid": 4000, "ts": trace.base_us + start + 105, "cat": "ac2g"}
        trace.events.append({"ph": "s", "name": "ac2g", **flow})
    return trace


def cut(path: str, out: Path, steps: str = "", gaps: int = 0) -> tuple[Written, TraceFile]:
    trace = read_trace(path)
    choice = choose_steps(trace, steps) if steps else choose_gaps(trace, gaps)
    written = write_slice(path, str(out), choice)
    return written, analyze([str(out)]).files[0]


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_steps_of_a_slice_are_those_of_the_whole(ending, tmp_path):
    path = make_trace().write(tmp_path / "whole.json", RANK, traceName="x")
    whole = analyze([path]).files[0]
    written, part = cut(path, tmp_path / f"part{ending}", "3-5")
    assert [row.name for row in part.overview.step_table] == [f"ProfilerStep#{n}" for n in (3, 4, 5)]
    for mine, old in zip(part.overview.step_table, whole.overview.step_table[3:6], strict=True):
        assert (mine.ms, mine.host_ms) == (old.ms, old.host_ms)
    assert part.rank == 2
    assert (part.lost.events, part.lost.broken_off) == (0, False)
    assert written.events == whole.events
    assert 20 < written.kept < 50
    assert [(row.name, row.count) for row in part.kernels] == [("late", 4), ("gemm", 3)]
    assert part.launched_before == 0
    assert "a slice of whole.json: ProfilerStep#3 to ProfilerStep#5" in part.overview.notes


def test_a_slice_is_plain_json_with_the_events_as_they_were(tmp_path):
    built = make_trace()
    path = built.write(tmp_path / "whole.json", RANK, traceName="x")
    cut(path, tmp_path / "part.json.gz", "6")
    raw: dict[str, Any] = json.loads(gzip.decompress((tmp_path / "part.json.gz").read_bytes()))
    assert all(event in built.events for event in raw["traceEvents"])
    phases = [event["ph"] for event in raw["traceEvents"]]
    assert (phases.count("M"), phases.count("s"), phases.count("i")) == (1, 1, 1)
    assert raw["schemaVersion"] == 1
    assert raw["traceName"] == "x"
    assert raw["tpmon_slice"]["kept"] == "ProfilerStep#6"
    marks = [event["name"] for event in raw["traceEvents"] if event["name"].startswith("ProfilerStep")]
    assert set(marks) == {"ProfilerStep#6"}


def test_the_longest_gap_comes_with_its_surroundings(tmp_path):
    path = make_trace().write(tmp_path / "whole.json")
    whole, (written, part) = analyze([path]).files[0], cut(path, tmp_path / "gap.json", gaps=1)
    longest = whole.gaps[0].largest[0]
    mine = part.gaps[0].largest[0]
    assert (mine.us, mine.cause) == (longest.us, "data")
    assert [(row.name, round(row.ms, 6)) for row in part.overview.step_table] == [("around gap 1", 1.09)]
    assert part.gaps[0].window == 690 + 400
    assert written.kept < written.events / 3
    assert "the longest gap" in part.overview.notes[-1]


def test_several_gaps_say_that_the_time_between_is_cut_out(tmp_path):
    trace = TraceBuilder()
    for number in range(4):
        start = number * 50_000
        trace.step(number, start, 49_000).kernel(start + 10_000, 38_000, launch=start + 5)
        trace.op("aten::mm", start + 100, 200)
    _written, part = cut(trace.write(tmp_path / "whole.json"), tmp_path / "gaps.json", gaps=3)
    assert [round(row.ms, 6) for row in part.overview.step_table] == [14.4, 14.4, 14.4]
    assert part.overview.breakdown_us.kernel == 2400
    gaps, card = part.gaps[0], part.overview.gpus[0]
    assert (gaps.window, gaps.busy, gaps.idle) == (3 * 14_400, 3 * 2_400, 3 * 12_000)
    assert [gap.us for gap in gaps.largest] == [12_000] * 3
    assert card.utilization_pct == pytest.approx(100 * 2_400 / 14_400)
    assert "in 3 parts" in part.overview.notes[-1]


def test_pieces_of_any_size_give_the_same_slice(tmp_path, monkeypatch):
    path = make_trace().write(tmp_path / "whole.json", RANK, traceName="x")
    cut(path, tmp_path / "one.json", "2-7")
    monkeypatch.setattr(chunks, "PIECE_BYTES", 700)
    monkeypatch.setattr(chunks, "READ_BYTES", 300)
    cut(path, tmp_path / "many.json", "2-7")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "many.json").read_bytes()


def test_what_is_no_clean_json_is_left_out_and_counted(tmp_path):
    text = make_trace().text().replace('"dur": 990', '"dur": NaN', 1).replace("aten::mm", 'a"b', 1)
    (tmp_path / "whole.json").write_text(text)
    written, part = cut(str(tmp_path / "whole.json"), tmp_path / "part.json", "1-4")
    assert written.left_out == 2
    assert part.overview.steps == 4
    json.loads((tmp_path / "part.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (TraceOptions(steps="3"), "needs --slice"),
        (TraceOptions(slice="o.json"), "one of --steps and --top-gaps"),
        (TraceOptions(slice="o.json", steps="3", top_gaps="2"), "one of --steps and --top-gaps"),
        (TraceOptions(slice="o.txt", steps="3"), "neither .json nor"),
        (TraceOptions(slice="o.json", top_gaps="0"), "--top-gaps takes"),
        (TraceOptions(slice="o.json", steps="5-x"), "--steps takes"),
        (TraceOptions(slice="o.json", steps="77"), "there is no step 77; there are 0, 1"),
        (TraceOptions(slice="there.json", steps="3"), "is there already"),
        (TraceOptions(slice="none/o.json", steps="3"), "none/o.json"),
    ],
)
def test_what_cannot_be_cut_is_refused_and_leaves_no_file(asked, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = make_trace().write(tmp_path / "whole.json")
    (tmp_path / "there.json").write_text("mine")
    with pytest.raises(UsageError, match=message):
        run_slice([path], asked, Output(1, ascii_only=False))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["there.json", "whole.json"]
    assert (tmp_path / "there.json").read_text() == "mine"


def test_a_trace_without_device_work_has_no_gaps_and_without_marks_no_steps(tmp_path):
    path = TraceBuilder().op("aten::mm", 0, 10).write(tmp_path / "cpu.json")
    with pytest.raises(UsageError, match="no device work"):
        cut(path, tmp_path / "o.json", gaps=1)
    with pytest.raises(UsageError, match="marks no steps"):
        cut(path, tmp_path / "o.json", "1")
