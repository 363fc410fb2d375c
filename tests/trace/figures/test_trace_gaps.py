"""Idle time, its causes and the verdict, on traces with known microseconds."""

from dataclasses import astuple
from itertools import pairwise
from pathlib import Path

import pytest

from tests.traces import A100, TraceBuilder
from tpmon.model.known import NOT_APPLICABLE, Known, Missing
from tpmon.model.results.trace import GAP_CAUSES
from tpmon.model.results.trace_tables import CountedSteps
from tpmon.model.verdict import Kind
from tpmon.report.trace import write_csv, write_report
from tpmon.trace.advice import TRY_WORKERS
from tpmon.trace.analysis import analyze
from tpmon.trace.compare import compare_traces
from tpmon.trace.figures.steps import UNCOUNTED, number_first
from tpmon.view.trace import KINDS


def busy_trace() -> TraceBuilder:
    """One step of 1,000 us: 300 us of kernels, and an idle gap of 100 us for each of seven causes."""
    trace = TraceBuilder().step(1, 0, 1000).loader(0, 100)
    trace.kernel(100, 50, launch=90)
    trace.call("cudaStreamSynchronize", 150, 100).kernel(250, 50, launch=240)
    trace.kernel(300, 1, launch=299, name="Memcpy HtoD (Pageable -> Device)", category="gpu_memcpy", bytes=4)
    trace.call("cudaStreamCreate", 301, 99).kernel(400, 50, launch=397)
    trace.call("cudaFree", 450, 100).kernel(550, 50, launch=540)
    trace.call("cudaLaunchKernelExC", 600, 100).kernel(700, 50, launch=690)
    trace.op("aten::nonzero", 750, 100).kernel(850, 50, launch=850)
    return trace


def test_every_idle_microsecond_has_one_cause_the_first_of_the_order(tmp_path):
    (gaps,) = busy_trace().analyse(tmp_path).gaps
    assert (gaps.window, gaps.busy, gaps.idle) == (1000, 301, 699)
    assert dict(gaps.causes()) == {**dict.fromkeys(GAP_CAUSES, 100), "sync_implicit": 99, "comms": 0, "queued": 0}
    trace = TraceBuilder().step(1, 0, 100).loader(10, 50).op("aten::copy_", 10, 80)
    trace.call("cudaMalloc", 40, 40).kernel(0, 10, launch=0).kernel(90, 10, launch=89)
    gaps = trace.analyse(tmp_path).gaps[0]
    assert (gaps.data, gaps.alloc, gaps.launch, gaps.cpu_op, gaps.other) == (50, 20, 1, 9, 0)


def test_a_pageable_copy_that_the_call_waits_for_is_an_implicit_sync(tmp_path):
    trace = TraceBuilder().step(1, 0, 100)
    trace.call("cudaMemcpyAsync", 10, 50, correlation=5)
    args = {"device": 0, "stream": 7, "correlation": 5, "bytes": 100}
    trace.add("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 40, 20, args=args)
    gaps = trace.analyse(tmp_path).gaps[0]
    assert (gaps.sync_implicit, gaps.launch, gaps.other) == (30, 0, 50)
    trace.events[-1]["name"] = "Memcpy HtoD (Pinned -> Device)"
    gaps = trace.analyse(tmp_path).gaps[0]
    assert (gaps.sync_implicit, gaps.launch) == (0, 30)


def test_large_gaps_are_named_with_call_operator_and_line_from_the_first_mark_on(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000).kernel(0, 800, launch=0).kernel(900, 100, launch=899)
    trace.op("aten::item", 10, 889).call("cudaStreamSynchronize", 20, 790)
    trace.add("python_function", "train.py(12): step", 5, 950)
    trace.add("python_function", "torch/_tensor.py(40): item", 8, 900)
    trace.add("python_function", "monitor.py(7): watch", 9, 940, tid=7)
    largest = trace.analyse(tmp_path).gaps[0].largest[0]
    assert (largest.start_ms, largest.us, largest.cause) == (0.8, 100, "sync_explicit")
    assert (largest.call, largest.operator) == ("cudaStreamSynchronize", "aten::item")
    assert largest.source == "train.py(12): step"
    trace = TraceBuilder().kernel(0, 300, launch=-10).step(1, 100, 500)
    gaps = trace.kernel(350, 50, launch=110).kernel(500, 100, launch=120).analyse(tmp_path).gaps[0]
    assert gaps.window == 300
    assert [(gap.start_ms, gap.us) for gap in gaps.largest] == [(0.3, 100), (0.2, 50)]


def test_work_of_one_device_hides_no_communication_of_another(tmp_path):
    """Device 0 communicates while device 1 computes: half of the time of both is exposed."""
    trace = TraceBuilder().step(1, 0, 1000)
    trace.kernel(0, 1000, launch=0, name="ncclDevKernel_AllReduce", **{"Collective name": "allreduce"})
    trace.kernel(0, 1000, launch=1, device=1)
    file = trace.analyse(tmp_path)
    shares = {share.name: share.pct for share in file.verdict.shares}
    assert (shares["comms"], shares["compute"]) == (50, 50)
    assert file.verdict.kind is Kind.COMMS_BOUND
    assert (file.communication.overlap_us, file.communication.exposed_us) == (0, 1000)
    assert (file.overview.breakdown_us.kernel, file.overview.breakdown_us.communication) == (500, 500)


def test_a_stray_copy_to_another_card_halves_nothing(tmp_path):
    found = []
    for stray in (False, True):
        trace = TraceBuilder()
        for number in range(5):
            at = number * 10_000
            trace.step(number, at, 10_000).op("aten::mm", at, 9000)
            trace.kernel(at + 200, 9700, launch=at + 50, device=1)
            if stray:
                name = "Memcpy HtoD (Pageable -> Device)"
                trace.kernel(at + 100, 3, launch=at + 20, name=name, category="gpu_memcpy")
        found.append(trace.analyse(tmp_path, deviceProperties=[A100, {**A100, "id": 1}]))
    alone, beside = found
    assert (beside.verdict.kind, beside.verdict.cause) == (Kind.COMPUTE_BOUND, "gpu")
    assert beside.verdict.share_pct == pytest.approx(alone.verdict.share_pct, abs=0.1)
    assert beside.overview.breakdown_us.kernel == alone.overview.breakdown_us.kernel
    assert [gap.device for gap in beside.gaps] == [0, 1]
    assert any("less than 1 % of the work of the busiest: device 0" in note for note in beside.overview.notes)
    assert alone.overview.notes == ()
    comparison = compare_traces(*found)
    assert comparison.differences == ()
    idle = {change.name: change for change in comparison.changes if change.part == "idle"}
    assert idle["cpu_op"].after_us == pytest.approx(idle["cpu_op"].before_us, abs=10)


def test_ranks_with_several_devices_give_the_mean_of_them(tmp_path):
    paths = []
    for rank in range(2):
        trace = TraceBuilder().step(1, 0, 1000)
        trace.kernel(0, 600, launch=0).kernel(400, 600, launch=1, device=1, name="ncclKernel_AllReduce")
        paths.append(trace.write(tmp_path / f"rank{rank}.json"))
    table = analyze(paths).ranks
    row = table.ranks[0]
    assert (row.compute_ms, row.comm_ms, row.overlap_ms, row.other_ms) == (0.3, 0.3, 0.0, 0.4)


@pytest.mark.parametrize(
    ("cause", "kind", "named"),
    [
        ("loader", Kind.DATA_BOUND, "no-workers"),
        ("cudaDeviceSynchronize", Kind.SYNC_BOUND, "explicit"),
        ("cudaModuleLoadData", Kind.SYNC_BOUND, "implicit"),
        ("aten::add", Kind.LAUNCH_BOUND, "tiny-kernels"),
        ("python", Kind.PYTHON_BOUND, "single-thread"),
    ],
)
def test_the_verdict_is_the_largest_cause(cause, kind, named, tmp_path):
    trace = TraceBuilder().step(1, 0, 1000)
    for start in range(0, 1000, 100):
        trace.kernel(start, 5, launch=start)
        if cause == "loader":
            trace.loader(start + 10, 80)
        elif cause.startswith("aten"):
            trace.op(cause, start + 10, 80)
        elif cause != "python":
            trace.call(cause, start + 10, 80)
    verdict = trace.analyse(tmp_path).verdict
    assert (verdict.kind, verdict.cause) == (kind, named)
    assert verdict.share_pct == pytest.approx(95 if cause == "python" else 80, abs=10)
    assert sum(share.pct for share in verdict.shares) == pytest.approx(100)


def test_a_busy_device_is_compute_bound_and_names_what_is_next(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000).kernel(0, 800, launch=0).loader(800, 150)
    verdict = trace.analyse(tmp_path).verdict
    assert (verdict.kind, verdict.cause, verdict.second) == (Kind.COMPUTE_BOUND, "gpu", "data-bound")
    compiles = TraceBuilder().op("fx_codegen_and_compile (dynamo_timed)", 0, 90_000).op("aten::mm", 90_000, 9_000)
    verdict = compiles.analyse(tmp_path, deviceProperties=[]).verdict
    assert (verdict.kind, verdict.cause) == (Kind.STARTING, "compile")
    assert {share.name: round(share.pct) for share in verdict.shares} == {"compile": 91, "other": 9}


def test_a_host_that_runs_ahead_is_judged_by_the_work_that_it_launched(tmp_path):
    """The mark ends before the communication begins: the verdict is of the step that the breakdown is of."""
    trace = TraceBuilder().step(1, 0, 100).kernel(10, 490, launch=5)
    trace.kernel(500, 500, launch=6, name="ncclDevKernel_AllReduce")
    file = trace.analyse(tmp_path)
    assert file.gaps[0].window == file.overview.window_us == 1000
    assert file.verdict.kind is Kind.COMMS_BOUND
    assert file.verdict.share_pct == pytest.approx(50)
    graph = TraceBuilder().step(1, 0, 90).op("CompiledFxGraph", 0, 80).kernel(81, 900, launch=80)
    assert graph.analyse(tmp_path).verdict.kind is Kind.COMPUTE_BOUND


def test_exposed_communication_counts_where_no_kernel_computes(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000).kernel(0, 300, launch=0)
    said = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1000, "Out msg nelems": 1000}
    trace.kernel(100, 900, launch=1, name="ncclDevKernel_AllReduce", **said, **{"Group size": 4})
    file = trace.analyse(tmp_path)
    assert file.verdict.kind is Kind.COMMS_BOUND
    comms = file.communication
    assert (comms.comm_us, comms.overlap_us, comms.exposed_us) == (900, 200, 700)
    row = comms.collectives[0]
    assert (row.name, row.bytes) == ("allreduce", 4000)
    assert row.bus_gb_s == pytest.approx(4000 * 1.5 / 900e3)


def test_gloo_beside_a_card_is_communication_and_not_python(tmp_path):
    trace = TraceBuilder()
    for number in range(5):
        at = number * 10_000
        trace.step(number, at, 10_000).op("aten::mm", at, 50).kernel(at + 20, 1500, launch=at + 10)
        trace.op("aten::copy_", at + 9000, 500)
        trace.add("user_annotation", "gloo:all_reduce", at + 1600, 8200, tid=77)
    file = trace.analyse(tmp_path, deviceProperties=[A100])
    assert (file.verdict.kind, file.verdict.cause) == (Kind.COMMS_BOUND, "unknown")
    gaps = file.gaps[0]
    assert (gaps.comms, gaps.cpu_op) == (5 * 7700, 5 * 519)
    assert gaps.largest[0].cause == "comms"
    assert file.overview.breakdown_us.communication == 7700
    assert file.overview.overlapping_us.communication == 8200
    comms = file.communication
    assert (comms.events, comms.comm_us, comms.exposed_us) == (5, 41_000, 41_000)


def shaped(name: str, start: float, dims: list[list[int]], kind: str, **more: object) -> TraceBuilder:
    """Begin a step with a collective that tells the shape of what it was given."""
    given = {"Input Dims": dims, "Input type": [kind]}
    return TraceBuilder().step(1, 0, 1000).add("user_annotation", name, start, 50, args=given, **more)


def test_the_annotation_around_a_launch_tells_what_a_collective_moves_and_each_table_is_csv(tmp_path):
    trace = shaped("nccl:all_reduce", 90, [[1000]], "float").kernel(0, 300, launch=0)
    trace.kernel(500, 200, launch=100, name="ncclDevKernel_AllReduce")
    trace.kernel(950, 20, launch=945, name="ncclDevKernel_Broadcast")
    report = analyze([trace.write(tmp_path / "t.json")])
    moved = {row.name: row.bytes for row in report.files[0].communication.collectives}
    assert moved["ncclDevKernel_AllReduce"] == 4000
    assert isinstance(moved["ncclDevKernel_Broadcast"], Missing)
    assert write_csv(report, "collectives") == [
        "path,rank,name,count,total_us,bytes,bus_gb_s",
        f"{tmp_path / 't.json'},,ncclDevKernel_AllReduce,1,200.0,4000,",
        f"{tmp_path / 't.json'},,ncclDevKernel_Broadcast,1,20.0,,",
    ]
    idle = [line.split(",")[2:6] for line in write_csv(report, "idle")]
    assert idle[:2] == [["device", "start_ms", "us", "cause"], ["0", "0.7", "250.0", "other"]]
    shares = [line.split(",")[2:] for line in write_csv(report, "shares")[1:]]
    assert sum(float(pct) for _, pct in shares) == pytest.approx(100)
    assert len(write_csv(report, "host")) == 1
    assert [line.split(",")[:3] for line in write_csv(report, "ranks")] == [["rank", "path", "step_ms"]]
    other = trace.write(tmp_path / "other.json")
    ranks = write_csv(analyze([str(tmp_path / "t.json"), other]), "ranks")
    assert ranks[0].startswith("rank,path,step_ms,")
    assert len(ranks) == 3


def test_communication_on_the_host_says_what_its_tensors_hold(tmp_path):
    trace = shaped("gloo:all_reduce", 400, [[10, 10]], "double", tid=7).op("aten::mm", 100, 300)
    trace.events += shaped("gloo:all_reduce", 600, [[20]], "double", tid=7).events[1:]
    trace.events += shaped("gloo:barrier", 800, [[1]], "byte", tid=7).events[1:]
    file = trace.analyse(tmp_path, deviceProperties=[])
    moved = {row.name: row.bytes for row in file.communication.collectives}
    assert moved["gloo:all_reduce"] == 960
    assert isinstance(moved["gloo:barrier"], Missing)


def test_what_a_trace_does_not_hold_is_not_zero(tmp_path):
    on_cpu = TraceBuilder().step(1, 0, 1000).op("aten::mm", 0, 300).analyse(tmp_path, deviceProperties=[])
    split = on_cpu.overview.breakdown_us
    assert all(isinstance(one, Missing) for one in (split.kernel, split.memcpy, split.memset, split.runtime))
    assert split.cpu == 300
    alone = TraceBuilder()
    for start in (0, 2000):
        alone.add("kernel", "k", start, 500, args={"device": 0, "stream": 7})
    file = alone.analyse(tmp_path)
    split = file.overview.breakdown_us
    assert split.kernel == 1000
    assert all(isinstance(one, Missing) for one in (split.runtime, split.data_loader, split.cpu))
    assert file.verdict.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert "no host events say why" in file.verdict.summary
    assert all(isinstance(us, Missing) for _name, us in file.gaps[0].causes())
    assert isinstance(file.gaps[0].largest[0].cause, Missing)
    assert [line.split(",")[5] for line in write_csv(analyze([str(tmp_path / "t.json")]), "idle")] == ["cause", ""]


def test_a_busy_device_without_host_events_is_compute_bound_and_its_idle_time_has_no_cause(tmp_path):
    alone = TraceBuilder()
    for start in (0, 1000):
        alone.add("kernel", "k", start, 900, args={"device": 0, "stream": 7})
    path = alone.write(tmp_path / "t.json")
    report = analyze([path])
    verdict = report.files[0].verdict
    assert (verdict.kind, verdict.cause) == (Kind.COMPUTE_BOUND, "gpu")
    assert {share.name: round(share.pct) for share in verdict.shares} == {"compute": 95, "idle": 5, "comms": 0}
    assert "idle time that no host events explain, 5 %" in verdict.summary
    written = [line for line in write_report(report) if line.strip().startswith(("data ", "CPU operator "))]
    assert [line.split()[-2:] for line in written] == [["n/a", "n/a"], ["n/a", "n/a"]]
    assert not [change for change in compare_traces(*report.files * 2).changes if change.part == "idle"]
    busy = busy_trace().analyse(tmp_path)
    assert [change.name for change in compare_traces(busy, busy).changes if change.part == "idle"] == [*GAP_CAUSES]


def test_an_empty_trace_has_no_numbers_and_a_moment_without_steps_no_evidence(tmp_path):
    file = TraceBuilder().analyse(tmp_path, deviceProperties=[])
    assert file.host_us is NOT_APPLICABLE
    assert all(isinstance(getattr(file.overview.breakdown_us, kind), Missing) for kind in KINDS)
    moment = TraceBuilder().op("aten::ones", 0, 36).analyse(tmp_path, deviceProperties=[])
    for verdict in (file.verdict, moment.verdict):
        assert (verdict.kind, verdict.shares) == (Kind.NOT_ENOUGH_EVIDENCE, ())


def test_without_a_device_the_host_is_split(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000).loader(0, 400).op("aten::copy_", 100, 50)
    trace.op("aten::mm", 400, 300).op("aten::item", 700, 100)
    trace.add("user_annotation", "gloo:all_reduce", 650, 250, tid=7)
    file = trace.analyse(tmp_path, deviceProperties=[])
    assert file.gaps == ()
    assert file.host_us is not NOT_APPLICABLE
    assert astuple(file.host_us) == (400, 100, 0, 0, 400, 100)
    assert (file.verdict.kind, file.verdict.cause) == (Kind.DATA_BOUND, "no-workers")
    assert file.verdict.second == "comms-bound"


@pytest.mark.parametrize("kind", ["alone", "of torchdata", "beside another one"])
@pytest.mark.parametrize(("single", "cause"), [(True, "no-workers"), (False, NOT_APPLICABLE)])
def test_the_loader_that_holds_the_window_is_the_one_with_or_without_workers(kind, single, cause, tmp_path):
    trace = TraceBuilder().step(1, 0, 1000).loader(0, 800, single).op("aten::mm", 800, 100)
    if kind == "of torchdata":
        trace.events[1]["name"] = trace.events[1]["name"].replace("#_", "#_Stateful")
    elif kind == "beside another one":
        trace.kernel(810, 90, launch=801).loader(950, 5, not single)
    verdict = trace.analyse(tmp_path).verdict
    assert (verdict.kind, verdict.cause) == (Kind.DATA_BOUND, cause)
    assert ("num_workers=" in "".join(verdict.advice)) is single
    if kind == "alone" and single:
        assert verdict.advice
        assert all(text.startswith("if ") for text in verdict.advice), "a trace cannot prove it in full"
    elif kind == "alone":
        assert verdict.advice == (TRY_WORKERS,)


def test_the_profilers_own_wait_for_the_device_holds_nothing(tmp_path):
    """One graph a step, launched long before the device comes to it."""
    trace = TraceBuilder()
    for number in range(3):
        at = 300 * number
        trace.step(number, at, 290).op("aten::add", at + 5, 10)
        for kernel in range(50):
            trace.kernel(5000 + 32 * (50 * number + kernel), 20, launch=at + 50 + kernel)
    trace.call("cudaDeviceSynchronize", 950, 9000)
    file = trace.analyse(tmp_path)
    assert (file.verdict.kind, file.gaps[0].sync_explicit) == (Kind.COMPUTE_BOUND, 0)


# where steps begin and end, and which step of the loop a recording of kineto's begins with


def step_lengths(trace: TraceBuilder, tmp_path: Path) -> list[float]:
    return [row.ms * 1000 for row in trace.analyse(tmp_path).overview.step_table]


def test_work_of_the_warm_up_whose_calls_were_dropped_is_of_no_step(tmp_path):
    trace = TraceBuilder()
    trace.kernel(0, 500).kernel(500, 400, stream=9)
    trace.step(0, 0, 300).kernel(500, 300, launch=10).kernel(900, 100, launch=20, stream=9)
    trace.step(1, 300, 300).kernel(1000, 200, launch=310).kernel(1200, 100, launch=320)
    assert step_lengths(trace, tmp_path) == [100, 300]


def test_work_without_calls_is_of_its_step_and_moves_none(tmp_path):
    """Work of before, work on a stream of its own, kernels of Triton where the driver's launches are not recorded."""
    trace = TraceBuilder().kernel(-5, 905, launch=-10, stream=9)
    trace.step(0, 0, 100).kernel(20, 1, launch=10).step(1, 100, 100).kernel(120, 1, launch=110)
    file = trace.analyse(tmp_path)
    assert file.gaps[0].window == file.overview.window_us >= 0, "that outlasts all steps"
    trace = TraceBuilder().step(0, 0, 300).kernel(10, 280, launch=5).kernel(20, 500, stream=9)
    trace.step(1, 300, 300).kernel(310, 280, launch=305).kernel(560, 20, launch=306, stream=9)
    assert step_lengths(trace, tmp_path) == [300, 300]
    trace = TraceBuilder()
    for at in (0, 1000):
        trace.step(at // 1000, at, 1000).kernel(at + 10, 800).kernel(at + 820, 100, launch=at + 815)
    assert step_lengths(trace, tmp_path) == [1000, 1000]


MS = 1_000_000
BASE = 1_790_000_000 * 10**9


def spans(*ends_ms: float) -> list[tuple[int, int]]:
    """Steps from update to update."""
    return [(int(start * MS), int(end * MS)) for start, end in pairwise(ends_ms)]


def counted(*ends_ms: float, first: int = 7, at_update: bool = False, each: int = 1) -> CountedSteps:
    return CountedSteps(
        tuple(BASE + int(ms * MS) for ms in ends_ms), tuple(first + each * at for at in range(len(ends_ms))), at_update
    )


@pytest.mark.parametrize(
    ("found", "loop", "first"),
    [
        # The next batch is asked for 2 ms after the update.
        (spans(100, 110, 120, 130), counted(102, 112, 122, 132), 7),
        # ... or 60 us after it, and the clocks are 40 us off.
        (spans(100, 110, 120, 130), counted(100.02, 110.02, 120.02, 130.02), 7),
        # A step ends in its update, a moment before that is over.
        (spans(100, 110, 120), counted(99.99, 109.99, 119.99, at_update=True), 7),
        # The window began late: its first step is short.
        (spans(108, 110, 120), counted(100, 110.1, 120.1), 7),
        # A program that sleeps asks for its batch only 0.8 ms before its update.
        (spans(100, 111, 122), counted(99.2, 110.2, 121.2, 132.2), 8),
        # An evaluation between them, whose records count the same step.
        (spans(100, 110, 120), CountedSteps(tuple(BASE + ms * MS for ms in (102, 104, 112, 122)), (7, 7, 8, 9), False), 7),
    ],
)  # fmt: skip
def test_a_step_has_the_number_of_those_that_had_ended_before_it(found, loop, first):
    assert number_first(found, BASE, loop) == first


@pytest.mark.parametrize(
    ("found", "base", "loop", "why"),
    [
        (spans(100, 110), BASE, UNCOUNTED, "no hook counts them"),
        (spans(100, 110), None, counted(100, 110), "does not say when"),
        ([], BASE, counted(100, 110), "no step is marked"),
        (spans(100, 110), BASE, counted(120, 130), "do not go back"),
        (spans(100, 110), BASE, counted(90, 100), "ended after it"),
        (spans(100, 110), BASE, counted(90, 112, each=4), "share one record"),
        (spans(100, 105, 110, 115, 120), BASE, counted(101, 111, 121), "not those that the hook counts"),
    ],
)
def test_what_is_not_certain_has_no_number_but_a_reason(found, base, loop, why):
    told: Known[int] = number_first(found, base, loop)
    assert why in (told.reason if isinstance(told, Missing) else "a number")
