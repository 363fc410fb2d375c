"""Two traces against each other: the line that says whether it helped, and when it is refused."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import read
from tests.traces import A100, TraceBuilder
from tpmon.commands.trace import TraceOptions, run_trace
from tpmon.errors import UsageError
from tpmon.model.known import Missing
from tpmon.model.results.trace import TraceComparison, TraceFile
from tpmon.report.trace import write_changes_csv, write_comparison
from tpmon.trace.analysis import analyze
from tpmon.trace.compare import compare_traces

SHAPED = {"Input Dims": [[32, 64], [8, 64], [8]], "Input type": ["float"] * 3}
INNER = ("aten::addmm", 20, 200, {"Input Dims": [[8], [32, 64], [64, 8]], "Input type": ["float"] * 3})
PRODUCT = (("aten::mm", 100, 300, {}),)
"""One of which no shapes are recorded."""
EAGER = (("aten::linear", 10, 300, SHAPED), INNER)
COMPILED = (("Torch-Compiled Region: 0/0", 5, 400, {}), INNER)
"""A linear layer as torch runs it, and as compiled code does: without the operator around it."""


def run(path: Path, length: float, ops: Any = PRODUCT, *, kernels: bool = False, **header: object) -> TraceFile:
    """Write and analyse five steps of these operators."""
    trace = TraceBuilder()
    for number in range(5):
        at = number * length
        trace.step(number, at, length + number)
        for name, start, took, args in ops:
            trace.op(name, at + start, took, **args)
        if kernels:
            trace.kernel(at + 200, 100, launch=at + 150)
    return analyze([trace.write(path, {"deviceProperties": [], **header})]).files[0]


def train(path: Path, lengths: list[float], rows: int = 32, **header: object) -> str:
    trace = TraceBuilder()
    start = 0.0
    for number, length in enumerate(lengths):
        trace.step(number, start, length).loader(start, length - 500)
        shapes = {"Input Dims": [[rows, 64], [64, 8]], "Input type": ["float", "float"]}
        trace.op("aten::mm", start + length - 400, 300, **shapes)
        start += length
    return trace.write(path, {"deviceProperties": [], **header})


def compare(tmp_path: Path, old: list[float], new: list[float], target: float = 1.0) -> TraceComparison:
    paths = [train(tmp_path / "old.json", old), train(tmp_path / "new.json", new)]
    return compare_traces(*analyze(paths).files, target)


def test_a_fix_that_helps_is_said_with_its_noise(tmp_path):
    found = compare(tmp_path, [2000, 2010, 1990, 2000], [1000, 1010, 990, 1000], 1.5)
    assert found.helped is True
    assert found.ratio == pytest.approx(2.0)
    assert isinstance(found.ratio_low, float)
    assert 1.9 < found.ratio_low < 2 < found.ratio_high < 2.1
    assert found.summary.startswith("it helped: mean step 2.000 ms before, 1.000 ms after, 2.00x")
    loader = next(change for change in found.changes if change.name == "data_loader")
    assert (loader.before_us, loader.after_us) == (1500, 500)
    text = "\n".join(write_comparison(found, 5))
    words = {name: name in text for name in ("DataLoader", "CPU operators", "data_loader")}
    assert words == {"DataLoader": True, "CPU operators": True, "data_loader": False}, "those of the overview"
    lines = write_changes_csv(found)
    assert lines[0] == "part,name,before_us,after_us"
    assert "phase,data_loader,1500.0,500.0" in lines


def test_a_first_step_that_starts_up_is_in_neither_mean(tmp_path):
    found = compare(tmp_path, [900_000, 2000, 2010, 1990, 2000], [990_000, 1000, 1010, 990, 1000])
    assert (found.before_ms, found.after_ms) == (pytest.approx(2), pytest.approx(1))
    assert found.helped is True


@pytest.mark.parametrize(
    ("old", "new", "target", "says"),
    [
        ([2000, 2400, 1600], [1900, 2300, 1500], 1.0, "no difference beyond the noise"),
        ([1000, 1001, 999], [2000, 2001, 1999], 1.0, "slower"),
        ([1200, 1201, 1199], [1000, 1001, 999], 1.5, "faster, but less than the 1.5x hoped for"),
        ([1200], [1000], 1.0, "mean step 1.200 ms before, 1.000 ms after, 1.20x; too few steps"),
    ],
)
def test_what_is_no_help_is_not_called_so(old, new, target, says, tmp_path):
    found = compare(tmp_path, old, new, target)
    assert found.helped is not True
    assert found.summary.startswith(says)


def test_another_batch_or_world_is_refused_and_named(tmp_path):
    old = train(tmp_path / "old.json", [2000] * 4, distributedInfo={"rank": 0, "world_size": 2})
    new = train(tmp_path / "new.json", [1000] * 4, 16, distributedInfo={"rank": 0, "world_size": 4})
    found = compare_traces(*analyze([old, new]).files)
    assert isinstance(found.helped, Missing)
    assert found.differences[0] == "world size 2 and 4"
    assert "[[32, 64], [64, 8]]" in found.differences[1]
    assert "[[16, 64], [64, 8]]" in found.differences[1]
    assert found.summary.startswith("not comparable: world size 2 and 4")


def test_a_batch_that_is_not_recorded_and_cards_that_are_not_described_are_a_condition_of_the_answer(tmp_path):
    found = compare_traces(run(tmp_path / "old.json", 2000), run(tmp_path / "new.json", 1000))
    assert found.summary.endswith(", if batch, shapes and types (not recorded: record_shapes=True) are the same")
    before = run(tmp_path / "a.json", 2000, kernels=True)
    found = compare_traces(before, run(tmp_path / "b.json", 1000, kernels=True, deviceProperties=[A100]))
    assert (found.differences, found.unchecked[0], found.helped) == ((), "cards", True)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"batch_size": 16}, "batch size 64 and 16"),
        ({"model": "Mine"}, "model ResNet and Mine"),
        ({"dtype": "torch.bfloat16"}, "type of the parameters torch.float32 and torch.bfloat16"),
        ({"threads": 9}, ""),
    ],
)
def test_what_a_capture_wrote_of_its_conditions_is_compared(other, said, tmp_path):
    told = {"batch_size": 64, "inputs": ["float32[64, 8]"], "model": "ResNet", "dtype": "torch.float32"}
    before = run(tmp_path / "old.json", 2000, tpmon=json.dumps(told))
    found = compare_traces(before, run(tmp_path / "new.json", 1000, tpmon=json.dumps({**told, **other})))
    assert found.differences == ((said,) if said else ())
    assert found.unchecked == ()
    assert isinstance(found.helped, Missing) is bool(said)


TOLD = {"batch_size": 32, "inputs": ["float32[32, 64]"]}


@pytest.mark.parametrize("told", [True, False])
def test_compiling_the_model_is_a_fix_and_no_other_workload(told, tmp_path):
    header = {"tpmon": json.dumps(TOLD)} if told else {}
    before = run(tmp_path / "a.json", 2000, EAGER, **header)
    found = compare_traces(before, run(tmp_path / "b.json", 1000, COMPILED, **header))
    assert (found.differences, found.helped) == ((), True)
    assert ("if batch, shapes and types (one is compiled" in found.summary) is not told
    if told:
        other = json.dumps({**TOLD, "batch_size": 16})
        found = compare_traces(before, run(tmp_path / "b.json", 1000, COMPILED, tpmon=other))
        assert found.differences == ("batch size 32 and 16",)


@pytest.mark.parametrize(("more", "same"), [({"parameters": 520}, True), ({}, False)])
def test_other_operators_are_no_other_workload_where_a_capture_says_so(more, same, tmp_path):
    said = json.dumps({**TOLD, **more})
    before = run(tmp_path / "a.json", 2000, EAGER, tpmon=said)
    after = train(tmp_path / "b.json", [1000, 1001, 1002, 1003], tpmon=said)
    found = compare_traces(before, analyze([after]).files[0])
    assert (found.differences == ()) is same


def test_a_trace_that_is_empty_or_marks_no_steps_is_compared_to_nothing(tmp_path):
    new = train(tmp_path / "new.json", [1000] * 4)
    empty = TraceBuilder().write(tmp_path / "empty.json", {"deviceProperties": []})
    found = compare_traces(*analyze([empty, new]).files)
    assert found.differences == ("a trace that holds no events",)
    assert isinstance(found.helped, Missing)
    whole = TraceBuilder().op("aten::mm", 0, 900).write(tmp_path / "whole.json", {"deviceProperties": []})
    found = compare_traces(*analyze([whole, new]).files)
    assert isinstance(found.helped, Missing)
    assert found.summary == (
        f"not comparable: no steps are marked in {whole} "
        "(torch marks none without profiler.step(), or without a schedule)"
    )


@pytest.mark.parametrize("steps", [3, 4, 5, 10])
def test_noise_alone_seldom_leaves_the_interval(steps, tmp_path):
    """Of two runs of the same speed the 95 % interval misses 1 in about 5 % of the cases."""
    draw = random.Random(steps)
    old, new = analyze([train(tmp_path / f"{name}.json", [1000] * steps) for name in ("old", "new")]).files
    missed = 0
    for _ in range(1000):
        found = compare_traces(*(shake(file, draw) for file in (old, new)))
        missed += not found.ratio_low <= 1 <= found.ratio_high
    assert missed <= 70


def shake(file: TraceFile, draw: random.Random) -> TraceFile:
    """Give each step of a trace 5 % of noise."""
    table = tuple(replace(row, ms=draw.gauss(1.0, 0.05)) for row in file.overview.step_table)
    mean = sum(row.ms for row in table) / len(table)
    return replace(file, overview=replace(file.overview, step_table=table, step_ms=mean))


@pytest.mark.parametrize(
    ("asked", "json", "what"),
    [
        (TraceOptions(csv="colours"), False, "there is no table 'colours'"),
        (TraceOptions(csv="steps", against="x"), False, "there is no table 'steps' beside --against"),
        (TraceOptions(csv="changes"), False, "there is no table 'changes'"),
        (TraceOptions(top="many"), False, "--top"),
        (TraceOptions(target="2x"), False, "--target"),
        (TraceOptions(against="x", target="fast"), False, "--target"),
        (TraceOptions(("*.none",)), False, "nothing matches"),
        (TraceOptions(table="none"), False, "--table takes one of"),
        (TraceOptions(table="lines", csv="steps"), False, "without --csv"),
        (TraceOptions(csv="steps"), True, "--csv and --json exclude each other"),
        (TraceOptions(csv="steps", top="3"), False, "--csv writes every row"),
        (TraceOptions(top="3"), True, "--json writes every row"),
        (TraceOptions(table="patterns"), True, "--json writes every table"),
        (TraceOptions(slice="x.json", steps="1-2"), True, "--slice stands alone"),
        (TraceOptions(slice="x.json", steps="1-2", top="3"), False, "--slice stands alone"),
        (TraceOptions(slice="x.json", steps="1-2", table="patterns"), False, "--slice stands alone"),
        (TraceOptions(slice="x.json", steps="1-2", target="2x"), False, "--slice stands alone"),
    ],
)
def test_what_cannot_be_asked_or_would_be_ignored_is_refused(tmp_path, asked, json, what):
    path = train(tmp_path / "a.json", [1000])
    with pytest.raises(UsageError, match=what):
        run_trace(replace(asked, files=asked.files or (path,), json=json, json_is_flag=json))


def test_what_is_typed_wins_over_json_from_the_file(tmp_path, capfd):
    path = train(tmp_path / "a.json", [1000])
    tables = {"json": True}
    assert run_trace(read(TraceOptions, tables=tables, files=(path,), csv="steps")) == 0
    assert "ProfilerStep#0" in capfd.readouterr().out
    assert run_trace(read(TraceOptions, tables=tables, files=(path,), top="3")) == 0
    assert not capfd.readouterr().out.startswith("{")
    out = tmp_path / "small.json"
    assert run_trace(read(TraceOptions, tables=tables, files=(path,), slice=str(out), steps="0-0")) == 0
    assert out.exists()


def test_what_a_directory_brings_along_is_named_and_left_out(tmp_path, capfd):
    train(tmp_path / "a.json", [1000])
    other = tmp_path / "settings\x1b[31m.json"
    other.write_text("{}")
    assert run_trace(TraceOptions((str(tmp_path),), csv="steps")) == 0
    said = capfd.readouterr()
    assert f"left out: {other.parent}/settings?[31m.json: " in said.err, "no escape sequence comes with it"
    assert "ProfilerStep#0" in said.out
    with pytest.raises(UsageError, match="no trace"):
        run_trace(TraceOptions((str(other),)))


# by device time, across cards, and what the command ends with


def on_card(path: Path, kernel_us: float, card: str = "NVIDIA H100", steps: int = 5) -> str:
    """Write steps of one product, whose kernel takes so long and whose host time is always the same."""
    trace = TraceBuilder()
    for number in range(steps):
        at = number * 5000
        trace.step(number, at, 1000 + number).op("aten::mm", at + 10, 100, **SHAPED)
        trace.kernel(at + 60, kernel_us, launch=at + 50, name="gemm")
    return trace.write(path, {"deviceProperties": [{**A100, "name": card}]})


def test_operators_are_compared_by_what_they_take_of_the_device(tmp_path):
    found = compare_traces(*analyze([on_card(tmp_path / "a.json", 3000), on_card(tmp_path / "b.json", 2000)]).files)
    rows = {(row.part, row.name): (row.before_us, row.after_us) for row in found.changes}
    assert rows["device-operator", "aten::mm"] == (3000, 2000)
    assert ("operator", "aten::mm") not in rows, "its host time did not change"
    text = "\n".join(write_comparison(found, 5))
    assert "operators by device time, self of a step, start-up included" in text
    assert "kernels of a step, start-up included" in text
    cpu = compare_traces(
        *analyze([train(tmp_path / "c.json", [2000] * 4), train(tmp_path / "d.json", [999] * 4)]).files
    )
    assert not any(row.part == "device-operator" for row in cpu.changes)


def test_other_cards_are_compared_where_that_is_asked_for(tmp_path):
    paths = [on_card(tmp_path / "a.json", 3000), on_card(tmp_path / "b.json", 2000, "AMD Instinct MI300X")]
    files = analyze(paths).files
    refused = compare_traces(*files)
    assert (refused.differences, isinstance(refused.helped, Missing)) == (
        ("NVIDIA H100 and AMD Instinct MI300X",),
        True,
    )
    found = compare_traces(*files, other_card=True)
    assert (found.differences, found.helped) == ((), True)
    assert found.summary.endswith("; NVIDIA H100 and AMD Instinct MI300X")
    other = train(tmp_path / "c.json", [1000] * 4, 16)
    assert compare_traces(files[0], analyze([other]).files[0], other_card=True).differences, "the batch still counts"


@pytest.mark.parametrize(
    ("after_us", "more", "code"),
    [
        (2000, {}, 0),
        (4000, {}, 10),
        (3000, {}, 11),
        (2000, {"target": "2x"}, 10),
        (2000, {"card": "AMD Instinct MI300X"}, 11),
        (2000, {"card": "AMD Instinct MI300X", "other_card": True}, 0),
        (4000, {"card": "AMD Instinct MI300X", "other_card": True}, 10),
        (2000, {"steps": 2}, 11),
        (2000, {"json": True}, 0),
        (4000, {"csv": "changes"}, 10),
    ],
)
def test_a_comparison_ends_with_better_worse_or_cannot_be_told(after_us, more, code, tmp_path):
    made = {name: more.pop(name) for name in ("card", "steps") if name in more}
    before = on_card(tmp_path / "a.json", 3000)
    after = on_card(tmp_path / "b.json", after_us, **made)
    assert run_trace(TraceOptions((after,), against=before, **more)) == code


def test_other_cards_are_a_question_of_a_comparison_alone(tmp_path):
    with pytest.raises(UsageError, match="--other-card"):
        run_trace(TraceOptions((on_card(tmp_path / "a.json", 3000),), other_card=True))


def repeat(path: Path, length: float, mark: str = "Optimizer.step#SGD.step") -> str:
    """Train for ten steps that nothing marks but the optimizer."""
    trace = TraceBuilder()
    for number in range(10):
        at = number * length + number % 2
        trace.op("aten::mm", at, length - 200, **SHAPED).add("user_annotation", mark, at + length - 100, 90)
    return trace.write(path, {"deviceProperties": []})


def test_what_repeats_in_both_is_compared_where_neither_marks_steps(tmp_path):
    old, new = repeat(tmp_path / "old.json", 2000), repeat(tmp_path / "new.json", 1000)
    found = compare_traces(*analyze([old, new]).files)
    assert found.helped is True
    assert found.ratio == pytest.approx(2, rel=0.01)
    assert found.summary.startswith("it helped: mean step 2.000 ms before, 1.000 ms after")
    assert compare_traces(*analyze([new, old]).files).summary.startswith("slower")
    other = repeat(tmp_path / "other.json", 1000, "train_one_batch")
    found = compare_traces(*analyze([old, other]).files)
    assert isinstance(found.helped, Missing)
    assert "what repeats is Optimizer.step#SGD.step and train_one_batch" in found.summary
    marked = train(tmp_path / "marked.json", [1000] * 5)
    assert f"no steps are marked in {old} " in compare_traces(*analyze([old, marked]).files).summary
