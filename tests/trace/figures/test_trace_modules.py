"""Modules, Python functions, allocations and ranges of a trace, with known microseconds and bytes."""

import re
from dataclasses import replace

import pytest

from tests.traces import TraceBuilder
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.trace_tables import RangeRow
from tpmon.report.trace import TABLES, explain_empty, write_csv, write_report, write_tables
from tpmon.trace.analysis import analyze
from tpmon.trace.figures.program import find_line
from tpmon.trace.own_lines import LineOwner, find_program, owner_of_line
from tpmon.trace.reading.read import read_trace
from tpmon.ui.traces.state import Tab
from tpmon.ui.traces.tabs import has_data, list_tab
from tpmon.view.blocks import Sheet

NODE = "autograd::engine::evaluate_function: MmBackward0"


def python(trace: TraceBuilder, name: str, start: float, length: float, **more: object) -> TraceBuilder:
    return trace.add("python_function", name, start, length, **more)


def two_layers() -> TraceBuilder:
    """A model of two layers in one step: forward kernels of 30 and 50 us, backward ones of 70 and 90."""
    trace = TraceBuilder().step(1, 0, 1000)
    python(trace, "train.py(3): main", 0, 1000)
    python(trace, "nn.Module: Net_0", 10, 200)
    python(trace, "nn.Module: Linear_0", 20, 80)
    trace.op("aten::mm", 30, 40, **{"Sequence number": 7}).kernel(300, 30, launch=40)
    python(trace, "nn.Module: Linear_1", 110, 60)
    trace.op("aten::t", 112, 2, **{"Sequence number": 8})
    trace.op("aten::mm", 120, 40, **{"Sequence number": 8}).kernel(340, 50, launch=130)
    trace.kernel(395, 5, launch=180)  # by Net_0 itself
    for number, at, length in ((8, 420, 90), (7, 560, 70)):
        trace.add("cpu_op", NODE, at, 100, tid=77, args={"Sequence number": number})
        trace.add("cpu_op", "aten::mm", at + 10, 50, tid=77)
        trace.call("cudaLaunchKernel", at + 20, 5, correlation=number)
        trace.events[-1]["tid"] = 77
        place = {"device": 0, "stream": 7, "correlation": number}
        trace.add("kernel", "k", at + 200, length, pid=0, tid=7, args=place)
    return trace


def test_modules_have_host_forward_and_backward_time(tmp_path):
    rows = two_layers().analyse(tmp_path).modules
    found = {row.name: row for row in rows}
    assert [row.name for row in rows] == ["Net_0", "Linear_1", "Linear_0"]
    net, first, second = found["Net_0"], found["Linear_0"], found["Linear_1"]
    assert (net.inside, first.inside) == (NOT_APPLICABLE, "Net_0")
    assert (net.calls, net.host_total_us, net.host_self_us) == (1, 200, 60)
    assert (net.forward_total_us, net.forward_self_us) == (85, 5)
    assert (first.forward_total_us, first.backward_total_us) == (30, 70)
    assert (second.forward_self_us, second.backward_self_us) == (50, 90)
    assert (net.backward_total_us, net.backward_self_us) == (160, 0)


def test_functions_of_process_0_stand_for_the_thread_with_operators_and_without_a_device_the_host_goes_back(tmp_path):
    trace = two_layers()
    for event in trace.events:
        if event["cat"] == "python_function":
            event |= {"pid": 0, "tid": 0}
    rows = trace.analyse(tmp_path).modules
    assert next(row for row in rows if row.name == "Linear_0").forward_total_us == 30
    trace = two_layers()
    trace.events = [one for one in trace.events if one["cat"] not in ("kernel", "cuda_runtime")]
    rows = trace.analyse(tmp_path, deviceProperties=[]).modules
    layer = next(row for row in rows if row.name == "Linear_0")
    assert (layer.host_total_us, layer.forward_total_us, layer.backward_total_us) == (80, NOT_APPLICABLE, 100)


def test_python_functions_count_recursion_once_and_name_their_caller(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000)
    python(trace, "train.py(9): main", 0, 1000)
    python(trace, "tree.py(2): walk", 100, 400)
    python(trace, "tree.py(2): walk", 200, 200)
    python(trace, "<built-in method item of Tensor object at 0x7f0000001234>", 250, 100)
    python(trace, "contextlib.py(70): inner", 600, 100)
    python(trace, "torch/_tensor.py(40): backward", 610, 80)
    trace.op("aten::item", 260, 80)
    python(trace, "tree.py(2): walk", 300, 10, tid=9).op("aten::add", 301, 2)
    trace.events[-1]["tid"] = 9
    python(trace, "threading.py(359): wait", 0, 1000, tid=10)
    frames = trace.analyse(tmp_path).frames
    found = {row.name.split(" of ")[0]: row for row in frames}
    walk = found["tree.py(2): walk"]
    assert (walk.calls, walk.total_us, walk.self_us) == (3, 410, 310)
    assert (found["train.py(9): main"].self_us, found["train.py(9): main"].called_by) == (500, NOT_APPLICABLE)
    assert found["<built-in method item"].called_by == "tree.py(2): walk"
    assert found["torch/_tensor.py(40): backward"].called_by == "train.py(9): main"
    assert frames[0].name == "train.py(9): main"
    assert not any("threading" in row.name for row in frames)  # a thread without operators only waits


def test_lines_of_the_program():
    own = ["train.py(3): main", "lib/nets/model.py(3): forward"]
    library = ["torch/nn/functional.py(3): linear", "contextlib.py(3): inner", "json/decoder.py(3): decode"]
    none = ["<built-in method item>", "nn.Module: Linear_0", "<frozen importlib._bootstrap>(3): _find"]
    assert [name for name in own + library + none if find_program(()).is_own(name)] == own


OWNERS = {
    LineOwner.PROGRAM: (
        r"C:\Users\me\proj\train.py(90): main",
        r"proj\augment.py(12): heavy",
        "/tmp/ipykernel_33/1234.py(5): fit",
        "<ipython-input-7-0aa1b>(5): fit",
        "<command-4120>(5): fit",
        "<stdin>(1): <module>",
        "/usr/local/bin/train(9): <module>",
        "/home/me/torch/train.py(5): fit",
        "code/train.py(5): fit",
        "html/model.py(5): fit",
        "re/train.py(5): fit",
        "datasets.py(5): fit",
        "mycorp/torch/utils/loop.py(30): run_epoch",
    ),
    LineOwner.PACKAGE: (
        r"transformers\trainer.py(9): train",
        "IPython/core/interactiveshell.py(3526): run_code",
        "/opt/conda/lib/python3.11/site-packages/mine/x.py(1): f",
    ),
    LineOwner.PYTHON: (
        r"threading.py(1): wait",
        r"asyncio\base_events.py(5): run",
        "json/decoder.py(5): decode",
        "re/_compiler.py(5): compile",
        "logging/__init__.py(5): info",
        "/opt/conda/lib/python3.11/queue.py(5): get",
        r"C:\Python311\Lib\queue.py(5): get",
    ),
    LineOwner.TORCH: (
        r"torch\nn\modules\module.py(1500): _call_impl",
        "torch/contrib/x.py(1): f",
        "/home/me/pytorch/torch/nn/modules/module.py(1500): _call_impl",
        "/opt/conda/lib/python3.11/site-packages/torch/nn/functional.py(5): linear",
        "/tmp/torchinductor_me/ab/cab.py(40): call",
    ),
}


@pytest.mark.parametrize(("owner", "line"), [(owner, line) for owner, lines in OWNERS.items() for line in lines])
def test_a_line_is_found_whatever_the_system_the_shell_and_the_folder(owner, line):
    assert owner_of_line(line) is owner


@pytest.mark.parametrize("start", [(), ("<frozen runpy>(88): _run_code",), ("runpy.py(88): _run_code",)])
@pytest.mark.parametrize("script", ["trace.py", "profile.py", "train.py", r"C:\Lib\trace.py"])
def test_a_script_is_the_program_whatever_it_is_called(start, script, tmp_path):
    trace = TraceBuilder()
    for number in range(5):
        trace.step(number, number * 10_000, 10_000).op("aten::mm", number * 10_000 + 10, 80)
        trace.kernel(number * 10_000 + 100, 900, launch=number * 10_000 + 50)
    own = f"{script}(5): synchronize"
    for depth, line in enumerate((*start, f"{script}(30): <module>", own, "queue.py(3): get")):
        python(trace, line, depth, 50_000 - 2 * depth)
    file = trace.analyse(tmp_path, with_stack=1)
    assert [line.name for line in file.verdict.lines] == [own]
    assert file.gaps[0].largest[0].source == own
    place = find_line(read_trace(str(tmp_path / "t.json")), "aten::mm")
    assert place.file == script


RUN_CELL = ("traitlets/config/application.py(1075): launch_instance", OWNERS[LineOwner.PACKAGE][1])
EVENT_LOOP = "sglang/srt/managers/scheduler.py(700): event_loop_normal"
BUSY_LOOP = "vllm/v1/engine/core.py(300): run_busy_loop"
STARTED = {
    "a spawned worker": ("<string>(1): <module>", "multiprocessing/spawn.py(122): spawn_main", EVENT_LOOP),
    "a worker of the program": (
        "<string>(1): <module>",
        "multiprocessing/spawn.py(122): spawn_main",
        "train.py(5): fit",
    ),
    "a class that was made": ("<string>(1): <module>", EVENT_LOOP, "<string>(3): __init__"),
    "python -c": ("<string>(1): <module>",),
    "a script of pip's": ("/usr/local/bin/vllm(8): <module>", BUSY_LOOP),
    "python -m": ("vllm/entrypoints/api_server.py(9): <module>", "vllm/entrypoints/api_server.py(5): serve", BUSY_LOOP),
    "python -m of a program": ("mine/train.py(9): <module>", "mine/train.py(5): fit", BUSY_LOOP),
    "a notebook": ("ipykernel_launcher.py(18): <module>", *RUN_CELL, "/tmp/ipykernel_33/1.py(2): <module>"),
    "a package in a notebook": ("ipykernel_launcher.py(18): <module>", *RUN_CELL, "<command-7>(2): fit", BUSY_LOOP),
    "a script alone": ("train.py(30): <module>", "threading.py(1): wait"),
    "a flat script": ("train.py(30): <module>", "tqdm/std.py(1180): __iter__"),
    "a script's function": ("train.py(30): <module>", "train.py(5): fit", "tqdm/std.py(1180): __iter__"),
}
OWN = {
    "a spawned worker": EVENT_LOOP,
    "a worker of the program": "train.py(5): fit",
    "a class that was made": EVENT_LOOP,
    "python -c": "<string>(1): <module>",
    "a script of pip's": BUSY_LOOP,
    "python -m": BUSY_LOOP,
    "python -m of a program": "mine/train.py(5): fit",
    "a notebook": "/tmp/ipykernel_33/1.py(2): <module>",
    "a package in a notebook": "<command-7>(2): fit",
    "a script alone": "train.py(30): <module>",
    "a flat script": "train.py(30): <module>",
    "a script's function": "train.py(5): fit",
}


@pytest.mark.parametrize("start", [(), ("<frozen runpy>(88): _run_code", "<built-in method exec of module>")])
@pytest.mark.parametrize("case", STARTED)
def test_where_a_program_is_launched_is_its_line_only_where_it_has_no_other(start, case, tmp_path):
    trace = TraceBuilder()
    for number in range(5):
        trace.step(number, number * 10_000, 10_000).op("aten::mm", number * 10_000 + 10, 80)
        trace.kernel(number * 10_000 + 100, 900, launch=number * 10_000 + 50)
    for depth, line in enumerate((*start, *STARTED[case], OWNERS[LineOwner.TORCH][0])):
        python(trace, line, depth, 50_000 - 2 * depth)
    file = trace.analyse(tmp_path, with_stack=1)
    assert [line.name for line in file.verdict.lines] == [OWN[case]]
    assert file.gaps[0].largest[0].source == OWN[case]


@pytest.mark.parametrize("own", OWNERS[LineOwner.PROGRAM])
def test_the_line_of_idle_time_is_between_those_of_packages_and_of_python(own, tmp_path):
    trace = TraceBuilder()
    for number in range(5):
        trace.step(number, number * 10_000, 10_000).op("aten::mm", number * 10_000 + 10, 80)
        trace.kernel(number * 10_000 + 100, 900, launch=number * 10_000 + 50)
    lines = (OWNERS[LineOwner.PACKAGE][1], own, *OWNERS[LineOwner.TORCH][:2], *OWNERS[LineOwner.PYTHON][:2])
    for depth, line in enumerate(lines):
        python(trace, line, depth, 50_000 - 2 * depth)
    file = trace.analyse(tmp_path, with_stack=1)
    assert [(line.name, round(line.share_pct)) for line in file.verdict.lines] == [(own, 100)]
    assert file.gaps[0].largest[0].source == own
    assert f"what is in {own}: 100 %" in file.verdict.try_


def test_operators_by_shape_and_by_line_come_when_they_are_asked_for(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000)
    python(trace, "a.py(1): f", 0, 100)
    python(trace, "b.py(2): g", 200, 100)
    for at, size in ((10, 8), (210, 16), (250, 16)):
        trace.op("aten::mm", at, size, **{"Input Dims": [[size, 2]], "Input type": ["float"]})
    assert not is_known(trace.analyse(tmp_path).shapes)
    file = trace.analyse(tmp_path, "shapes", "lines", deviceProperties=[])
    assert [(row.group, row.calls, row.host_self_us) for row in file.shapes] == [
        ('[[16,2]] ["float"]', 2, 32),
        ('[[8,2]] ["float"]', 1, 8),
    ]
    assert [(row.group, row.host_total_us) for row in file.lines] == [("b.py(2): g", 32), ("a.py(1): f", 8)]
    report = analyze([trace.write(tmp_path / "t.json")], wanted=("lines",))
    assert re.search(r"aten::mm +b\.py\(2\): g", "\n".join(write_tables(report, "lines", 10)))
    assert write_tables(report, "shapes", 10)[1].startswith("shapes   none")
    assert write_csv(report, "lines")[1].split(",")[2:5] == ["aten::mm", "b.py(2): g", "2"]
    assert len(write_csv(report, "shapes")) == 1
    assert explain_empty(report, "shapes").startswith("shapes: none")
    assert explain_empty(report, "lines") == ""


@pytest.mark.parametrize("table", TABLES)
def test_an_empty_table_keeps_its_header_and_has_a_reason(table, tmp_path):
    full = analyze([TraceBuilder().step(1, 0, 500).op("aten::mm", 0, 100).write(tmp_path / "t.json")])
    report = replace(full, files=(), ranks=Missing("only one trace"))
    header = write_csv(report, table)
    assert header == write_csv(full, table)[:1]
    assert len(header[0].split(",")) > 3
    if table == "ranks":
        assert explain_empty(report, table) == "ranks: only one trace"
    if table == "operators":
        assert header[0].startswith("path,rank,name,calls,")
    told = explain_empty(full, table)
    assert bool(told) == (len(write_csv(full, table)) == 1)
    assert not told or told.startswith(("ranks: ", f"{table}: ", "no "))


def test_allocations_belong_to_the_operator_that_uses_them(tmp_path):
    trace = TraceBuilder().step(1, 0, 500).step(2, 500, 500)
    trace.op("aten::mm", 0, 100).op("aten::empty", 5, 10).op("aten::add", 200, 50)
    trace.op("aten::empty_strided", 600, 50)
    trace.memory(8, 100, 1100, kind=1, device=0, address=0xA)  # of mm by way of empty; 1,000 bytes are older
    trace.memory(210, 300, 1400, kind=1, device=0, address=0xB)
    trace.memory(300, -300, 1100, kind=1, device=0, address=0xB)
    trace.memory(310, 50, 1150, kind=1, device=0, address=0xB)  # the same address again, by nobody
    trace.memory(620, 200, 1350, kind=1, device=0, address=0xC)
    file = trace.analyse(tmp_path)
    rows = {row.operator: row for row in file.memory.by_operator}
    assert rows["aten::mm"].allocated_bytes == 100
    assert (rows["aten::mm"].kept_bytes, rows["aten::mm"].at_peak_bytes) == (100, 100)
    assert (rows["aten::add"].kept_bytes, rows["aten::add"].at_peak_bytes) == (0, 300)
    assert (rows["(outside of operators)"].kept_bytes, rows["(outside of operators)"].allocations) == (50, 1)
    assert rows["aten::empty_strided"].allocated_bytes == 200
    assert rows["(before the capture)"].at_peak_bytes == 1000
    peak = file.memory.peaks[0]
    assert sum(row.at_peak_bytes for row in rows.values() if is_known(row.at_peak_bytes)) == 1400
    assert (peak.allocated_bytes, peak.growth_bytes, peak.unused_pct) == (1400, 200, 50)
    points = file.memory.curves[0].points
    totals = {round(point.ms, 3): point.allocated_bytes for point in points}
    assert totals == {0.008: 1100, 0.21: 1400, 0.3: 1100, 0.31: 1150, 0.62: 1350}
    assert (points[0].reserved_bytes, len(write_csv(analyze([trace.write(tmp_path / "t.json")]), "curve"))) == (2200, 6)


def test_traces_without_addresses_or_totals_say_so(tmp_path):
    trace = TraceBuilder().step(1, 0, 500).op("aten::mm", 0, 100)
    trace.memory(10, 64, 64)
    for key in ("Addr", "Total Allocated", "Total Reserved"):
        del trace.events[-1]["args"][key]
    use = trace.analyse(tmp_path).memory
    row, peak = use.by_operator[0], use.peaks[0]
    assert (row.operator, row.allocated_bytes, use.curves) == ("aten::mm", 64, ())
    assert not any(map(is_known, (row.kept_bytes, row.at_peak_bytes, peak.growth_bytes, peak.unused_pct)))


def test_a_curve_is_short_and_keeps_its_highest_point(tmp_path):
    trace = TraceBuilder().step(1, 0, 20_000)
    for at in range(2000):
        trace.memory(at * 10, 1, 10**9 if at == 1234 else at, kind=1, device=0, address=at + 1)
    points = trace.analyse(tmp_path).memory.curves[0].points
    assert len(points) == 200
    assert max(point.allocated_bytes for point in points) == 10**9
    assert [point.ms for point in points] == sorted(point.ms for point in points)


def marked() -> TraceBuilder:
    trace = TraceBuilder()
    for number in range(2):
        at = 1000.0 * number
        trace.step(number, at, 1000).loader(at, 100)
        trace.add("user_annotation", "my range", at + 200, 400)
        trace.add("user_annotation", "inner", at + 250, 100)
        trace.add("gpu_user_annotation", "my range", at + 300, 300, pid=0, tid=7)
        trace.add("gpu_user_annotation", "graph", at + 700, 50, pid=0, tid=7)
        trace.kernel(at + 300, 60, at + 260).kernel(at + 400, 30, at + 450).kernel(at + 800, 5, at + 700)
        for name in ("Optimizer.step#SGD.step", "nccl:all_reduce", "gloo:broadcast"):
            trace.add("user_annotation", name, at + 900, 10)
    return trace


def test_text_csv_and_screen_show_only_ranges_of_the_program_with_the_work_launched_inside(tmp_path):
    report = analyze([marked().write(tmp_path / "a.json")])
    for text in (write_report(report), write_tables(report, "ranges", 10)):
        at = text.index("ranges of the program (record_function)")
        assert text[at + 1].split() == ["host", "ms", "host", "self", "ms", "mean", "ms", "gpu", "ms", "count", "range"]
        assert text[at + 2].split() == ["0.800", "0.600", "0.400", "0.180", "2", "my", "range"]
    csv = write_csv(report, "ranges")
    assert csv[0] == "path,rank,name,count,host_total_us,host_self_us,host_mean_us,device_total_us"
    assert [line.split(",")[2:] for line in csv[1:]] == [
        ["my range", "2", "800.0", "600.0", "400.0", "180.0"],
        ["inner", "2", "200.0", "200.0", "100.0", "120.0"],
        ["graph", "2", "", "", "", "100.0"],
    ]
    sheets = [block for block in list_tab(report, 0, Tab.OPS) if isinstance(block, Sheet)]
    assert report.files[0].ranges in [sheet.rows for sheet in sheets]
    on_host = TraceBuilder().add("user_annotation", "my range", 0, 400).analyse(tmp_path, deviceProperties=[])
    assert on_host.ranges == (RangeRow("my range", 1, 400.0, 400.0, 400.0, NOT_APPLICABLE),)
    assert has_data(on_host, NOT_APPLICABLE, Tab.OPS)
