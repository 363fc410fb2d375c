"""The timeline adds up to the gaps at any zoom, and a row of the analysis leads to its line of Python."""

import json
from pathlib import Path

import pytest

from tests.goldens.trace_views import build_cpu_run, make_run
from tests.traces import A100, TraceBuilder
from tpmon.hook.capture.conditions import _read_places
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.trace import TraceFile
from tpmon.model.results.trace_tables import CodePlace, Stretch
from tpmon.model.verdict import Kind
from tpmon.trace.analysis import Findings, analyze
from tpmon.trace.figures.program import NO_FRAME, NO_STACKS, NOT_THERE, find_line, parse_frame, read_folders
from tpmon.trace.timeline import lay_timelines
from tpmon.trace.verdict import TRY_CPU, TRY_DEVICE, TRY_WHOLE

ALL = Stretch(0, 1 << 30)


def keep_one(builder, path, header=None) -> Findings:
    kept = []
    analyze([builder.write(path, header)], keep=kept.append)
    return kept[0]


@pytest.mark.parametrize("cells", [1, 7, 100, 110])
def test_the_shares_of_all_steps_are_those_of_the_gaps_and_of_the_device_in_the_mean_of_the_columns(cells):
    run = make_run("one")
    timeline = run.timelines[0].look(0, ALL, cells)
    gaps, card = run.report.files[0].gaps[0], run.report.files[0].overview.gpus[0]
    shares = {share.name: share.pct for share in timeline.shares}
    assert shares["busy"] == pytest.approx(100 * gaps.busy / gaps.window)
    for cause in ("data", "sync_explicit", "sync_implicit", "alloc", "launch", "cpu_op", "other"):
        assert shares[cause] == pytest.approx(100 * getattr(gaps, cause) / gaps.window, abs=1e-6)
    assert len(timeline.cells) == cells
    assert (timeline.start_ms, timeline.end_ms, timeline.said) == (0.0, 50.0, "all 5 steps")
    assert sum(cell.busy_pct for cell in timeline.cells) / cells == pytest.approx(card.busy_pct, abs=0.01)
    sm = [cell.sm_pct for cell in timeline.cells if is_known(cell.sm_pct)]
    assert sum(sm) / cells == pytest.approx(card.sm_efficiency_pct, abs=0.01)


def test_a_column_says_what_held_most_of_its_idle_time():
    timeline = make_run("one").timelines[0].look(0, Stretch(0, 1), 10)
    assert [cell.cause for cell in timeline.cells[:3]] == ["data"] * 3
    assert timeline.cells[8].cause == "queued", "the host waits for what was not recorded"
    assert timeline.cells[4].busy_pct == pytest.approx(74.0)


def test_communication_that_nothing_hides_is_told_apart_in_the_busy_time():
    run = make_run("ranks")
    timeline = run.timelines[0].look(0, Stretch(0, 1), 100)
    comms = run.report.files[0].communication
    assert timeline.exposed_pct == pytest.approx(100 * comms.exposed_us / 50_000)
    assert [round(cell.exposed_pct) for cell in timeline.cells[72:83]] == [0, *[100] * 9, 0]
    assert make_run("one").timelines[0].look(0, ALL, 10).exposed_pct == 0.0


def test_the_host_takes_the_device_s_place_as_in_the_split_of_its_time():
    run = make_run("cpu")
    timeline = run.timelines[0].look(0, ALL, 30)
    host = run.report.files[0].host_us
    assert is_known(host)
    shares = {share.name: share.pct for share in timeline.shares}
    assert timeline.device is NOT_APPLICABLE
    assert shares["busy"] == pytest.approx(100 * host.compute / 30_000)
    assert shares["data"] == pytest.approx(100 * host.data / 30_000)
    assert timeline.cells[0].sm_pct == Missing("no device work in the trace")


@pytest.mark.parametrize(
    ("stretch", "said", "steps", "span"),
    [
        (Stretch(1, 1), "step 8", ["8"], (10.0, 20.0)),
        (Stretch(1, 2), "steps 8 to 9", ["8", "9"], (10.0, 30.0)),
        (Stretch(4, 9), "step 11", ["11"], (40.0, 50.0)),
        (Stretch(99, 1), "step 11", ["11"], (40.0, 50.0)),
        (Stretch(2, 1, 1, 4), "part 2 of 4 of step 9", [], (22.5, 25.0)),
        (Stretch(2, 1, 9, 2), "part 2 of 2 of step 9", [], (25.0, 30.0)),
    ],
)
def test_a_stretch_is_steps_or_a_part_of_one_and_stays_in_the_trace(stretch, said, steps, span):
    timeline = make_run("one").timelines[0].look(0, stretch, 40)
    assert timeline.said == said
    assert [one.name for one in timeline.steps] == steps
    assert (timeline.start_ms, timeline.end_ms) == span


def test_every_step_begins_in_its_column_although_times_are_absolute(tmp_path):
    builder = TraceBuilder(base_us=1_694_128_201_545_000.25)
    for number in range(4):
        builder.step(number, number * 1000.0, 1000.0).op("aten::add", number * 1000.0 + 10, 100)
    found = keep_one(builder, tmp_path / "t.json")
    timeline = lay_timelines(found).look(0, ALL, 40)
    assert [(one.name, one.cell) for one in timeline.steps] == [("0", 0), ("1", 10), ("2", 20), ("3", 30)]


def test_a_trace_without_steps_or_events_has_a_timeline_too(tmp_path):
    found = keep_one(TraceBuilder().op("aten::add", 0, 100), tmp_path / "t.json")
    timeline = lay_timelines(found).look(0, ALL, 4)
    assert (timeline.said, timeline.steps, timeline.steps_in_all) == ("the whole trace", (), 0)
    assert [cell.busy_pct for cell in timeline.cells] == [100.0] * 4
    assert len(lay_timelines(keep_one(TraceBuilder(), tmp_path / "empty.json")).look(0, ALL, 4).cells) == 4


# Lines of Python


def test_an_operator_a_kernel_and_a_frame_lead_to_the_line_that_called_them():
    trace = make_run("one").findings[0].trace
    train = CodePlace("train", "train.py", 88)
    assert find_line(trace, "aten::addmm") == train
    assert find_line(trace, "volta_sgemm_128x64_nn") == train
    assert find_line(trace, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__") == train
    assert find_line(trace, "dataset.py(41): __getitem__") == CodePlace("__getitem__", "dataset.py", 41)
    assert find_line(trace, "aten::nothing") == NOT_THERE


def test_without_stacks_or_a_frame_around_it_there_is_no_line_and_the_users_own_comes_first(tmp_path):
    assert find_line(make_run("cpu").findings[0].trace, "aten::addmm") == NO_STACKS
    builder = TraceBuilder().op("aten::mm", 100, 10).add("python_function", "train.py(1): f", 500, 10)
    assert find_line(keep_one(builder, tmp_path / "t.json").trace, "aten::mm") == NO_FRAME
    around = ("train.py(7): step", "functools.py(3): wrapper", "torch/nn/modules/module.py(5): _call_impl")
    for depth, name in enumerate(around):
        builder.add("python_function", name, 50 + depth, 100 - depth)
    assert find_line(keep_one(builder, tmp_path / "t.json").trace, "aten::mm") == CodePlace("step", "train.py", 7)


def test_the_folders_of_the_run_are_what_the_capture_wrote(tmp_path):
    told = {"folder": "/home/usr/run", "sys_path": ["/home/usr/run", "relative", 7, "/opt/site-packages"]}

    def read_of(told):
        return read_folders(keep_one(TraceBuilder().op("aten::mm", 0, 1), tmp_path / "t.json", {"tpmon": told}).trace)

    folders = ("/home/usr/run", "/opt/site-packages")
    assert read_of(told) == read_of(json.dumps(told)) == folders
    assert parse_frame("a.py(3): f", folders) == CodePlace("f", "a.py", 3, folders)
    for odd in ("{", ["a"], 3, None, {"sys_path": "x", "folder": "/a\0b"}):
        assert read_of(odd) == ()


def test_a_capture_writes_its_folders_under_the_names_that_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", "beside", "/opt/lib"])
    trace = keep_one(TraceBuilder().op("aten::mm", 0, 1), tmp_path / "t.json", {"tpmon": _read_places()}).trace
    assert read_folders(trace) == (str(tmp_path), f"{tmp_path}/", f"{tmp_path}/beside", "/opt/lib")


@pytest.mark.parametrize("text", ["aten::mm", "<built-in method x>", "a.py(x): f", "nn.Module: Linear_0", ""])
def test_what_is_no_frame_is_none(text):
    assert isinstance(parse_frame(text), Missing)


# traces that lack a part of the run: nothing is said of what was not recorded, and what lacks is named


def analyse(builder: TraceBuilder, tmp_path: Path, **header: object) -> TraceFile:
    return builder.analyse(tmp_path, **{"deviceProperties": [A100], **header})


def device_alone(steps: int = 20) -> TraceBuilder:
    """Write what activities=[CUDA] records: calls and kernels, of each millisecond 300 us."""
    trace = TraceBuilder()
    for number in range(steps):
        trace.kernel(number * 1000 + 10, 300, launch=number * 1000)
    return trace


def test_without_operators_idle_time_is_not_called_python_and_the_timeline_leaves_it_without_a_cause(tmp_path):
    kept: list[Findings] = []
    (file,) = analyze([device_alone().write(tmp_path / "t.json", {"deviceProperties": [A100]})], keep=kept.append).files
    verdict = file.verdict
    assert (verdict.kind, verdict.advice) == (Kind.NOT_ENOUGH_EVIDENCE, (TRY_CPU,))
    assert "operators and loader, which may say why, were not recorded" in verdict.summary
    split, gaps = file.overview.breakdown_us, file.gaps[0]
    assert (split.kernel, split.runtime) == (6000, 20)
    untold = (split.data_loader, split.cpu, gaps.data, gaps.cpu_op, gaps.other)
    assert all(isinstance(one, Missing) for one in untold)
    assert (gaps.sync_explicit, gaps.sync_implicit, gaps.alloc, gaps.launch) == (0, 0, 0, 20)
    assert isinstance(gaps.largest[0].cause, Missing)
    shares = {share.name: share.pct for share in lay_timelines(kept[0]).look(0, Stretch(0, 1), 50).shares}
    assert shares["launch"] == pytest.approx(100 * gaps.launch / gaps.window)
    assert shares["idle"] == pytest.approx(100 * (gaps.idle - gaps.launch) / gaps.window)
    assert set(shares) == {"busy", "queued", "sync_explicit", "sync_implicit", "alloc", "launch", "idle"}


def test_calls_alone_tell_what_they_hold(tmp_path):
    trace = device_alone(5)
    for number in range(5):
        trace.kernel(number * 1000 + 310, 300, launch=number * 1000 + 20)
        trace.call("cudaStreamSynchronize", number * 1000 + 30, 600)
    file = analyse(trace, tmp_path)
    assert (file.verdict.kind, file.verdict.cause) == (Kind.SYNC_BOUND, "explicit")
    assert file.gaps[0].largest[0].cause == "sync_explicit"
    shares = {share.name: share.pct for share in file.verdict.shares}
    assert sum(shares.values()) == pytest.approx(100)
    assert "idle" in shares


@pytest.mark.parametrize("name", ["forward", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"])
def test_a_shadow_of_the_host_on_the_device_tells_nothing_of_the_host(name, tmp_path):
    trace = TraceBuilder()
    for number in range(20):
        trace.kernel(number * 1000 + 10, 300)
    trace.add("gpu_user_annotation", name, 0, 19000, pid=0, tid=7, args={"device": 0, "stream": 7})
    file = analyse(trace, tmp_path)
    assert file.verdict.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert isinstance(file.overview.breakdown_us.data_loader, Missing)


def waiting_run() -> TraceBuilder:
    """Write the host of a run on a device that waits for it in ``item``, without the device's work."""
    trace = TraceBuilder()
    for number in range(5):
        at = number * 10_000
        trace.step(number, at, 10_000).op("aten::mm", at, 500)
        trace.call("cudaLaunchKernel", at + 100, 5, correlation=number + 1)
        trace.op("aten::item", at + 1000, 8900)
        trace.call("cudaStreamSynchronize", at + 1010, 8800, correlation=100 + number)
    return trace


def test_a_device_whose_work_lacks_is_not_called_a_cpu(tmp_path):
    file = analyse(waiting_run(), tmp_path)
    verdict = file.verdict
    assert (verdict.kind, verdict.try_, verdict.advice) == (Kind.NOT_ENOUGH_EVIDENCE, TRY_DEVICE, (TRY_DEVICE,))
    assert "cudaLaunchKernel" in verdict.summary
    split = file.overview.breakdown_us
    assert all(isinstance(one, Missing) for one in (split.kernel, split.memcpy, split.memset))
    assert (split.runtime, split.cpu) == (8805, 595)
    assert (file.host_us.sync, file.host_us.compute) == (44_000, 3_000)
    path = tmp_path / "t.json"
    path.write_text(waiting_run().text()[:-200])
    verdict = analyze([str(path)]).files[0].verdict
    assert (verdict.kind, verdict.try_) == (Kind.NOT_ENOUGH_EVIDENCE, TRY_WHOLE), "it breaks off before that work"


@pytest.mark.parametrize(
    "name",
    [
        "aten::cudnn_convolution",
        "aten::record_stream",
        "nccl:all_reduce",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_efficient_attention_forward",
        "flash_attn::_flash_attn_forward",
        "triton_poi_fused_add_0",
        "an allocation on cuda",
    ],
)
def test_operators_and_memory_of_devices_give_a_device_away(name, tmp_path):
    trace = build_cpu_run()
    if name == "an allocation on cuda":
        trace.memory(100, 4096, 4096, kind=1, device=0)
    else:
        trace.op(name, 8600, 5)
    verdict = analyse(trace, tmp_path).verdict
    assert verdict.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert name in verdict.summary


def test_a_cpu_that_trains_beside_a_card_is_one(tmp_path):
    """The card is described, and the profiler itself synchronises it when it ends."""
    trace = build_cpu_run().op("aten::cudnn_is_acceptable", 8600, 5).call("cudaDeviceSynchronize", 30_000, 9)
    trace.op("aten::_scaled_dot_product_flash_attention_for_cpu", 8610, 5)
    trace.memory(100, 4096, 4096)
    file = analyse(trace, tmp_path)
    assert file.verdict.kind is Kind.DATA_BOUND
    assert isinstance(file.overview.breakdown_us.kernel, Missing)
