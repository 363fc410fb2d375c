"""What a verdict is made of: the steady part alone, and idle time by what the device waits for."""

from pathlib import Path

import pytest

from tests.traces import A100, TraceBuilder
from tpmon.model.known import Missing
from tpmon.model.results.trace import GAP_CAUSES, TraceFile
from tpmon.model.verdict import Kind
from tpmon.report.trace import write_report
from tpmon.trace.analysis import analyze, analyze_trace
from tpmon.trace.child import summarize
from tpmon.trace.compare import compare_traces
from tpmon.trace.late import find_longer
from tpmon.trace.reading.read import read_trace
from tpmon.trace.verdict import TRY_CYCLE, TRY_QUEUED, TRY_SCHEDULE

ZERO_GRAD = "Optimizer.zero_grad#AdamW.zero_grad"
GRAPH = "cudaGraphLaunch"


def analyse(trace: TraceBuilder, tmp_path: Path, **header: object) -> TraceFile:
    return trace.analyse(tmp_path, **{"deviceProperties": [A100], **header})


def share_of(file: TraceFile, name: str) -> float:
    return next((share.pct for share in file.verdict.shares if share.name == name), 0.0)


def train(
    trace: TraceBuilder, at: float, *, kernels: int = 20, each: float = 25, gap: float = 75, mark: str = ZERO_GRAD
) -> float:
    """Write one step that the host launches too slowly; return when it ends."""
    if mark:
        trace.add("user_annotation", mark, at, 5)
    for number in range(kernels):
        begin = at + 10 + number * (each + gap)
        trace.op("aten::linear", begin, gap - 2).kernel(begin + gap, each, launch=begin + gap - 5)
    return at + 10 + kernels * (each + gap)


def start_up(trace: TraceBuilder, at: float = 0) -> float:
    """Write what the first use of CUDA takes: a context, handles of libraries, modules of kernels. 1.2 s."""
    trace.op("aten::linear", at, 1_200_000)
    trace.call("cudaFree", at + 10, 300_000).call("cudaMalloc", at + 300_100, 400_000)
    trace.call("cudaLaunchKernel", at + 700_200, 499_000, correlation=7)
    args = {"device": 0, "stream": 7, "correlation": 7}
    trace.add("kernel", "first", at + 1_199_210, 20, args=args)
    return at + 1_200_000


# start-up, warm-up and captures are a part of their own


def test_start_up_before_what_repeats_is_left_out_and_the_repeats_are_judged(tmp_path):
    trace = TraceBuilder()
    at = start_up(trace)
    for _step in range(40):
        at = train(trace, at)
    trace.call("cudaDeviceSynchronize", at, 500)
    file = analyse(trace, tmp_path)
    verdict = file.verdict
    assert (verdict.kind, verdict.cause) == (Kind.LAUNCH_BOUND, "main-thread")
    assert verdict.share_pct == pytest.approx(100 * 20 * 73 / 2010, abs=0.5)
    assert verdict.summary.startswith("1.2 s (94 %) is one-off start-up and left out; 73 % of the 40 repeats of ")
    assert (file.overview.steps, file.overview.repeats) == (0, 40)
    assert file.overview.step_ms == pytest.approx(2.01, rel=0.01)
    assert file.overview.left_out_us == pytest.approx(1_200_000, rel=1e-3)
    assert file.overview.gpus[0].utilization_pct == pytest.approx(25, abs=0.5)
    assert sum(share.pct for share in verdict.shares) == pytest.approx(100)
    assert "40 repeats stand in for them, mean 2.0" in "\n".join(write_report(analyze([str(tmp_path / "t.json")])))


def test_start_up_inside_of_the_first_repeats_and_longer_ones_leave_these_out(tmp_path):
    trace = TraceBuilder().add("user_annotation", ZERO_GRAD, 0, 5)
    at = start_up(trace, 10)
    at = train(trace, at, gap=300)
    for _step in range(10):
        at = train(trace, at)
    file = analyse(trace, tmp_path)
    assert (file.overview.repeats, file.verdict.kind) == (10, Kind.LAUNCH_BOUND)
    assert file.overview.step_p95_ms == pytest.approx(2.01, rel=0.01)


@pytest.mark.parametrize(("before_us", "said"), [(1500, "before the first repeat"), (9000, "one-off start-up")])
def test_a_part_of_an_iteration_before_the_first_mark_is_no_start_up(before_us, said, tmp_path):
    trace = TraceBuilder()
    for begin in range(0, before_us, 100):
        trace.op("aten::linear", begin, 73).kernel(begin + 75, 25, launch=begin + 70)
    at = float(before_us)
    for _step in range(10):
        at = train(trace, at)
    file = analyse(trace, tmp_path)
    assert file.verdict.kind is Kind.LAUNCH_BOUND
    assert f" %) is {said} and left out; 73 % of the 10 repeats of" in file.verdict.summary


def test_no_more_than_half_of_the_repeats_are_left_out_for_being_slow(tmp_path):
    """The first eight of twelve wait for a busy machine: which of them are as usual is not known."""
    trace = TraceBuilder()
    at = 0.0
    for number in range(12):
        at = train(trace, at, gap=300 if number < 8 else 75)
    assert analyse(trace, tmp_path).overview.repeats == 6


def test_with_nothing_steady_behind_the_start_it_says_how_to_record(tmp_path):
    trace = TraceBuilder()
    train(trace, start_up(trace), mark="")
    verdict = analyse(trace, tmp_path).verdict
    assert (verdict.kind, verdict.cause) == (Kind.STARTING, "first-steps")
    assert verdict.share_pct == pytest.approx(100 * 1_200_000 / 1_202_010, abs=0.1)
    assert verdict.advice == (TRY_SCHEDULE,)
    assert "; of the rest 81 % is operators and launches" in verdict.summary
    assert sum(share.pct for share in verdict.shares) == pytest.approx(100)
    marked = TraceBuilder().step(0, 0, 1_202_010)
    train(marked, start_up(marked), mark="")
    assert analyse(marked, tmp_path).verdict.kind is Kind.STARTING


def test_little_start_up_is_cut_out_of_a_trace_that_repeats_nothing(tmp_path):
    trace = TraceBuilder()
    at = 0.0
    for number in range(100):
        if number == 50:
            trace.call("cudaLaunchKernel", at, 40_000)
            at += 40_000
        at = train(trace, at, mark="")
    file = analyse(trace, tmp_path)
    assert file.verdict.kind is Kind.LAUNCH_BOUND
    assert file.gaps[0].window == pytest.approx(at - 40_000 - 10, abs=5)
    assert file.gaps[0].idle == pytest.approx(file.gaps[0].window - 100 * 20 * 25, abs=5)
    assert "40.0 ms (17 %) is one-off start-up and left out" in file.verdict.summary


def test_a_call_that_is_long_in_each_repeat_is_no_start_up(tmp_path):
    trace = TraceBuilder()
    at = 0.0
    for _step in range(10):
        at = train(trace, at)
        trace.call("cudaFree", at, 3000)
        at += 3000
    file = analyse(trace, tmp_path)
    assert (file.verdict.kind, file.verdict.cause) == (Kind.SYNC_BOUND, "allocator")
    assert file.overview.left_out_us < 100
    assert any("empty_cache" in text for text in file.verdict.advice)


@pytest.mark.parametrize("steps", [3, 4, 5])
def test_a_call_that_is_long_in_each_of_few_marked_steps_is_no_start_up(steps, tmp_path):
    trace = TraceBuilder()
    at = 0.0
    for number in range(steps):
        begin = at
        at = train(trace, at, mark="") + 3000
        trace.call("cudaFree", at - 3000, 3000).step(number, begin, at - begin)
    verdict = analyse(trace, tmp_path).verdict
    assert (verdict.kind, verdict.cause) == (Kind.SYNC_BOUND, "allocator")


def test_one_late_call_in_few_repeats_is_left_out(tmp_path):
    trace = TraceBuilder()
    at = 0.0
    for number in range(5):
        at = train(trace, at)
        if number == 3:
            trace.call("cudaLaunchKernel", at, 300_000)
            at += 300_000
    file = analyse(trace, tmp_path)
    assert file.overview.left_out_us == pytest.approx(300_000, rel=0.01)
    assert file.verdict.share_pct == pytest.approx(100 * 20 * 73 / 2010, abs=2)


def test_the_start_of_the_workers_is_no_wait_for_data(tmp_path):
    """The first batch comes after 1.9 s, each later one after 0.3 ms, and computing takes 2 ms."""
    trace = TraceBuilder().loader(0, 1_900_000, single=False)
    at = train(trace, 1_900_000, mark="")
    for _step in range(20):
        trace.loader(at, 300, single=False)
        at = train(trace, at + 300, mark="", each=90, gap=10)
    file = analyse(trace, tmp_path)
    assert file.verdict.kind is Kind.COMPUTE_BOUND
    assert share_of(file, "data") == pytest.approx(100 * 300 / 2310, abs=1)
    assert file.overview.repeats == 20


def test_the_first_marked_step_is_apart_where_it_is_long_or_starts_up(tmp_path):
    trace = TraceBuilder()
    at = start_up(trace)
    at = train(trace, at, mark="")
    trace.step(0, 0, at)
    for number in range(1, 5):
        begin = at
        at = train(trace, at, mark="", each=80, gap=20)
        trace.step(number, begin, at - begin)
    file = analyse(trace, tmp_path)
    assert file.verdict.kind is Kind.COMPUTE_BOUND
    assert "is the first step and left out" in file.verdict.summary
    assert (file.overview.steps, len(file.overview.step_table), file.overview.judged_steps) == (5, 5, 4)
    assert file.gaps[0].window == pytest.approx(4 * 2010, abs=20)


def mark(trace: TraceBuilder, number: int, at: float, *, first: float = 0) -> float:
    """Write one marked step that begins with ``first`` us of something else; return when it ends."""
    end = train(trace, at + first, mark="")
    trace.step(number, at, end - at)
    return end


def test_the_first_of_two_marked_steps_is_judged_where_it_is_merely_longer(tmp_path):
    """It waits 20 of 30 ms for a batch, and the second one of 10 ms for none."""
    trace = TraceBuilder().step(0, 0, 30_000).step(1, 30_000, 10_000).loader(0, 20_000)
    for number in range(200):
        at = 20_000 + number * 100
        trace.op("aten::linear", at, 8).kernel(at + 10, 88, launch=at + 4)
    file = analyse(trace, tmp_path)
    assert (file.verdict.kind, file.verdict.cause) == (Kind.DATA_BOUND, "no-workers")
    assert (file.overview.steps, file.overview.judged_steps) == (2, 2)


@pytest.mark.parametrize("starts", [True, False], ids=["first use of the card", "Python"])
def test_behind_a_first_step_that_is_left_out_one_is_enough(starts, tmp_path):
    trace = TraceBuilder()
    at = mark(trace, 0, 0, first=start_up(trace) if starts else 1_200_000)
    mark(trace, 1, at)
    file = analyse(trace, tmp_path)
    assert file.verdict.kind is Kind.LAUNCH_BOUND
    assert file.verdict.summary.startswith("1.2 s (100 %) is the first step and left out; 73 % of the window is ")
    assert (file.overview.steps, file.overview.judged_steps) == (2, 1)
    assert file.verdict.share_pct == pytest.approx(100 * 20 * 73 / 2010, abs=0.5)


@pytest.mark.parametrize(("steps", "loading"), [(6, 1), (6, 3), (3, 1), (3, 2), (4, 2), (4, 3), (5, 3), (5, 4)])
def test_start_up_in_a_later_marked_step_is_left_out_too(steps, loading, tmp_path):
    """A kernel that is used for the first time in the second step, or at a validation, loads its module there."""
    trace = TraceBuilder()
    at = mark(trace, 0, 0, first=start_up(trace))
    later = loading > 1
    for number in range(1, steps):
        loads = number == loading
        if loads:
            trace.call("cudaLaunchKernel", at + 1, 300_000)
        at = mark(trace, number, at, first=300_001 if loads else 0)
    file = analyse(trace, tmp_path)
    assert file.verdict.share_pct == pytest.approx(100 * 20 * 73 / 2010, abs=0.5)
    left = "the first step and one-off start-up" if later else "the first 2 steps"
    assert f"1.5 s ({99 if steps > 4 else 100} %) is {left} and left out" in file.verdict.summary
    assert file.overview.left_out_us == pytest.approx(1_500_000, rel=0.01)
    assert (file.overview.steps, file.overview.judged_steps) == (steps, steps - (1 if later else 2))


def test_means_and_shares_of_the_step_are_without_what_is_left_out(tmp_path):
    trace = TraceBuilder()
    at = mark(trace, 0, 0, first=start_up(trace))
    for number in range(1, 5):
        at = mark(trace, number, at)
    overview = analyse(trace, tmp_path).overview
    assert (overview.steps, len(overview.step_table), overview.step_table[0].host_ms) == (5, 5, pytest.approx(1202.01))
    assert (overview.step_ms, overview.step_p95_ms) == (pytest.approx(2.01, rel=1e-3), pytest.approx(2.01, rel=1e-3))
    assert overview.breakdown_us.runtime == pytest.approx(20, abs=1)
    assert overview.gpus[0].utilization_pct == pytest.approx(25, abs=0.5)
    text = "\n".join(write_report(analyze([str(tmp_path / "t.json")])))
    assert "steps    5, mean 2.010 ms over the usual 4, p50" in text


@pytest.mark.parametrize("marked", [True, False])
def test_what_is_said_right_after_a_capture_is_of_the_same_steps(marked, tmp_path):
    trace = TraceBuilder()
    first = start_up(trace)
    if marked:
        at = mark(trace, 0, 0, first=first)
        for number in range(1, 5):
            at = mark(trace, number, at)
    else:
        at = first
        for _step in range(40):
            at = train(trace, at)
    overview, summary = analyse(trace, tmp_path).overview, summarize(str(tmp_path / "t.json"))
    assert (summary.steps, summary.repeats) == ((5, 0) if marked else (0, overview.repeats))
    assert (summary.judged_steps, summary.left_out_us) == (overview.judged_steps, overview.left_out_us)
    assert (summary.step_ms, summary.split_us) == (overview.step_ms, overview.breakdown_us)


def late_load(load_us: float = 300_000) -> TraceBuilder:
    """Write six marked steps, of which the first starts up and the fourth loads a kernel."""
    trace = TraceBuilder()
    at = mark(trace, 0, 0, first=start_up(trace))
    for number in range(1, 6):
        loads = load_us if number == 3 else 0
        if loads:
            trace.call("cudaLaunchKernel", at + 1, loads)
        at = mark(trace, number, at, first=loads + 1 if loads else 0)
    return trace


def test_what_is_cut_out_of_a_later_step_is_in_no_mean_and_in_no_part_of_it(tmp_path):
    overview = analyse(late_load(), tmp_path).overview
    step = pytest.approx(2.01, rel=1e-3)
    assert (overview.step_ms, overview.step_p50_ms, overview.step_p95_ms) == (step, step, step)
    assert overview.host_step_ms == step
    assert overview.window_us == pytest.approx(1000 * overview.step_ms * 5)
    assert overview.breakdown_us.runtime == pytest.approx(20, abs=1)
    assert overview.overlapping_us.runtime == pytest.approx(20, abs=1)
    parts = overview.breakdown_us
    names = ("kernel", "memcpy", "memset", "communication", "runtime", "data_loader", "cpu", "other")
    assert sum(getattr(parts, name) for name in names) == pytest.approx(1000 * overview.step_ms)
    rows = overview.step_table
    assert (rows[3].ms, rows[3].left_ms) == (pytest.approx(302.01, rel=1e-3), pytest.approx(300, rel=1e-3))
    assert [row.ms - row.left_ms for row in rows] == pytest.approx([0, *[2.01] * 5], rel=1e-3)


def test_a_late_load_in_one_of_two_traces_is_no_difference(tmp_path):
    before = analyse(late_load(), tmp_path)
    comparison = compare_traces(before, analyse(late_load(0), tmp_path))
    assert comparison.ratio == pytest.approx(1, abs=1e-3)
    assert comparison.ratio_high == pytest.approx(1, abs=1e-3)
    assert comparison.helped is False


def test_a_late_load_makes_nothing_longer_than_on_the_other_ranks(tmp_path):
    late, other = analyse(late_load(), tmp_path), analyse(late_load(0), tmp_path)
    assert max((part.ms for part in find_longer(late, [other])), default=0) < 0.01
    assert analyze_trace(read_trace(late_load().write(tmp_path / "t.json")))[1].judged_ms == pytest.approx(2.01, 1e-3)


def test_a_trace_without_a_mark_is_said_whole(tmp_path):
    trace = TraceBuilder()
    train(trace, start_up(trace), mark="")
    overview = analyse(trace, tmp_path).overview
    assert 1000 * overview.step_ms == pytest.approx(overview.window_us)
    text = "\n".join(write_report(analyze([str(tmp_path / "t.json")])))
    assert "steps    none marked; the whole trace is 1,202.010 ms" in text


def test_the_capture_of_graphs_is_start_up(tmp_path):
    trace = TraceBuilder()
    for number in range(10):
        at = number * 50_000
        trace.call("cudaStreamBeginCapture", at, 5).op("aten::linear", at + 5, 48_000)
        trace.call("cudaStreamEndCapture", at + 48_000, 100).call("cudaGraphInstantiate", at + 48_100, 900)
        trace.kernel(at + 49_500, 400, launch=at + 49_490)
    verdict = analyse(trace, tmp_path).verdict
    assert (verdict.kind, verdict.cause) == (Kind.STARTING, "first-steps")
    assert " %) is capture of graphs and left out" in verdict.summary
    assert not any("CUDA graphs" in text for text in verdict.advice)


@pytest.mark.parametrize(("loads", "said"), [(False, ""), (True, "one-off start-up and ")])
@pytest.mark.parametrize("marked", [False, True], ids=["repeats", "marked steps"])
def test_start_up_is_said_only_where_more_than_captures_of_graphs_is_cut(marked, loads, said, tmp_path):
    trace = TraceBuilder()
    at = 0.0
    for number in range(10):
        begin = at
        if number == 7:
            trace.call("cudaStreamBeginCapture", at, 5).op("aten::linear", at + 5, 48_000)
            trace.call("cudaStreamEndCapture", at + 48_000, 100).call("cudaGraphInstantiate", at + 48_100, 900)
            if loads:
                trace.call("cudaLaunchKernel", at + 49_100, 40_000)
            at += 90_000 if loads else 49_100
        at = train(trace, at, mark="" if marked else ZERO_GRAD)
        if marked:
            trace.step(number, begin, at - begin)
    assert f" %) is {said}capture of graphs and left out" in analyse(trace, tmp_path).verdict.summary


def test_what_repeats_on_the_cpu_stands_in_for_steps_too(tmp_path):
    trace = TraceBuilder().op("aten::load", 0, 900_000)
    for number in range(10):
        at = 900_000 + number * 10_000
        trace.add("user_annotation", ZERO_GRAD, at, 50).op("aten::mm", at + 100, 4900)
    file = analyse(trace, tmp_path, deviceProperties=[])
    assert file.overview.repeats in (9, 10)
    assert (file.verdict.kind, file.verdict.share_pct) == (Kind.PYTHON_BOUND, pytest.approx(51, abs=6))


# idle time by what the device waits for


def test_idle_time_with_the_next_work_already_launched_is_no_fault_of_the_host(tmp_path):
    """A slice of a server: the host ran ahead, and sits in a synchronise or in Python meanwhile."""
    for host in ("sync", "python", "operators"):
        trace = TraceBuilder().step(0, 0, 100_000)
        for number in range(20):
            trace.kernel(5000 + number * 4500, 2000, launch=100 + number * 10)
        if host == "sync":
            trace.call("cudaEventSynchronize", 400, 95_000)
        elif host == "operators":
            trace.op("vllm::rms_norm", 400, 95_000)
        file = analyse(trace, tmp_path)
        gaps = file.gaps[0]
        assert gaps.queued == pytest.approx(19 * 2500 + 7500 * (host == "sync"), abs=10), host
        assert sum(us for _name, us in gaps.causes()) == pytest.approx(gaps.idle)
        verdict = file.verdict
        assert (verdict.kind, verdict.second) != (Kind.SYNC_BOUND, "sync-bound")
        assert verdict.kind is Kind.NOT_ENOUGH_EVIDENCE
        assert "already launched" in verdict.summary
        assert verdict.advice == (TRY_QUEUED,)
        assert share_of(file, "queued") >= 47
        assert gaps.largest[2].cause == "queued"


def test_inside_of_a_graph_the_graph_holds_the_device_also_before_its_launch_has_returned(tmp_path):
    trace = TraceBuilder()
    for number in range(5):
        at = number * 10_000
        trace.step(number, at, 10_000).call(GRAPH, at + 10, 3000, correlation=900 + number)
        for node in range(100):
            args = {"device": 0, "stream": 7, "correlation": 900 + number}
            trace.add("kernel", "node", at + 100 + node * 95, 40, args=args)
        trace.call("cudaMemcpy", at + 3100, 6500)
    file = analyse(trace, tmp_path)
    gaps = file.gaps[0]
    assert gaps.in_graphs == pytest.approx(5 * 99 * 55)
    assert gaps.queued == gaps.in_graphs
    assert (file.verdict.kind, file.verdict.cause) == (Kind.COMPUTE_BOUND, "gpu")
    assert "one CUDA graph" in file.verdict.summary
    assert not any("CUDA graphs" in text for text in file.verdict.advice)


def test_what_is_launched_as_the_device_runs_out_is_not_queued(tmp_path):
    trace = TraceBuilder().step(0, 0, 3000)
    for number in range(100):
        trace.op("aten::add", number * 30, 28).kernel(number * 30 + 12, 8, launch=number * 30 + 1)
    file = analyse(trace, tmp_path)
    assert file.gaps[0].queued == 0
    assert (file.verdict.kind, file.verdict.cause) == (Kind.LAUNCH_BOUND, "tiny-kernels")


@pytest.mark.parametrize(
    ("call", "cause", "named"),
    [
        ("cudaStreamSynchronize", "sync_explicit", "explicit"),
        ("cudaMemcpy", "sync_implicit", "implicit"),
        ("cudaFree", "alloc", "allocator"),
    ],
)
def test_a_wait_costs_the_bubble_behind_it(call, cause, named, tmp_path):
    """Of each 10 ms: 5 ms of kernels that the host waits for, then 4 ms of Python before the next launch."""
    trace = TraceBuilder()
    for number in range(5):
        at = number * 10_000
        trace.step(number, at, 10_000).op("aten::linear", at + 10, 100)
        trace.kernel(at + 100, 5000, launch=at + 50).call(call, at + 200, 4910)
    file = analyse(trace, tmp_path)
    assert (file.verdict.kind, file.verdict.cause) == (Kind.SYNC_BOUND, named)
    assert getattr(file.gaps[0], cause) == pytest.approx(4 * 4890 + 5, abs=110)
    assert file.verdict.share_pct == pytest.approx(40, abs=2)


def test_a_wait_costs_no_more_than_the_host_could_have_run_ahead(tmp_path):
    """The host waits for 0.5 ms in each step, and then takes 8 ms for its Python."""
    trace = TraceBuilder()
    for number in range(5):
        at = number * 10_000
        trace.step(number, at, 10_000).kernel(at + 100, 1000, launch=at + 50)
        trace.call("cudaStreamSynchronize", at + 600, 505)
    file = analyse(trace, tmp_path)
    assert (file.verdict.kind, file.verdict.cause) == (Kind.PYTHON_BOUND, "single-thread")
    assert file.gaps[0].sync_explicit == pytest.approx(4 * 505, abs=110)
    assert not any("read the loss" in text for text in file.verdict.advice)


def test_a_synchronise_in_which_the_device_idles_waits_for_what_was_not_recorded(tmp_path):
    trace = TraceBuilder()
    for number in range(5):
        at = number * 10_000
        trace.step(number, at, 10_000).kernel(at + 100, 1000, launch=at + 50)
        trace.call("cudaStreamSynchronize", at + 200, 9700)
    file = analyse(trace, tmp_path)
    assert file.verdict.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert file.gaps[0].queued == pytest.approx(4 * 8800 + 8800, abs=10)
    assert file.gaps[0].sync_explicit == pytest.approx(4 * 200, abs=10)


def test_a_thread_that_launches_nothing_holds_no_device_with_its_waits(tmp_path):
    trace = TraceBuilder()
    for number in range(5):
        at = number * 10_000
        trace.step(number, at, 10_000).kernel(at + 100, 1000, launch=at + 50)
        trace.add("cuda_runtime", "cudaEventSynchronize", at + 500, 9000, tid=99)
    file = analyse(trace, tmp_path)
    assert file.gaps[0].sync_explicit == 0
    assert file.verdict.kind is Kind.PYTHON_BOUND


def computes_on_the_host(name: str, inner: str = "") -> TraceBuilder:
    """Of each 10 ms 6 ms are an operator that launches nothing."""
    trace = TraceBuilder()
    for number in range(5):
        at = number * 10_000
        trace.step(number, at, 10_000).op(name, at + 100, 6000)
        if inner:
            trace.op(inner, at + 110, 5900)
        trace.op("aten::linear", at + 6200, 200).kernel(at + 6400, 3000, launch=at + 6300)
    return trace


def test_an_operator_that_computes_on_the_host_is_named_and_is_no_launch(tmp_path):
    file = analyse(computes_on_the_host("aten::randn", "aten::normal_"), tmp_path)
    verdict = file.verdict
    assert (verdict.kind, verdict.cause) == (Kind.PYTHON_BOUND, "single-thread")
    assert share_of(file, "host") == pytest.approx(60, abs=1)
    assert file.gaps[0].computing == pytest.approx(5 * 6000)
    assert file.gaps[0].cpu_op == pytest.approx(5 * 6200, abs=600)
    assert "aten::normal_" in verdict.summary
    assert "on the device" in verdict.advice[0]
    assert "aten::normal_" in verdict.advice[0]


def test_an_operator_that_only_copies_when_it_has_computed_is_one_too(tmp_path):
    trace = computes_on_the_host("aten::to", "aten::copy_")
    for number in range(5):
        copy = {"category": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "bytes": 8}
        trace.kernel(number * 10_000 + 6005, 20, launch=number * 10_000 + 6000, **copy)
    verdict = analyse(trace, tmp_path).verdict
    assert (verdict.kind, verdict.cause) == (Kind.PYTHON_BOUND, "single-thread")
    assert verdict.advice[0].startswith("move the batch to the device as it is")
    assert "aten::copy_" in verdict.advice[0]


def test_nine_causes_are_told_or_missing(tmp_path):
    alone = TraceBuilder()
    for start in (0, 2000):
        alone.add("kernel", "k", start, 500, args={"device": 0, "stream": 7})
    gaps = analyse(alone, tmp_path).gaps[0]
    assert [name for name, _us in gaps.causes()] == [*GAP_CAUSES]
    assert isinstance(gaps.queued, Missing)
    assert isinstance(gaps.in_graphs, Missing)


def test_copies_of_one_step_are_not_said_of_each(tmp_path):
    trace = TraceBuilder()
    for number in range(8):
        at = number * 4000
        trace.step(number, at, 4000).op("aten::linear", at, 50).kernel(at + 40, 1950, launch=at + 20)
    for place in range(8):
        begin = 14_000 + 220 * place
        trace.kernel(begin, 215, launch=begin - 1, name="Memcpy DtoH (Device -> Pageable)", category="gpu_memcpy")
        trace.kernel(begin + 16_000, 200, launch=begin + 15_999, category="gpu_memcpy", name="Memcpy DtoH")
    row = next(one for one in analyse(trace, tmp_path).patterns if one.name == "copy-heavy")
    assert row.seen.startswith("16 copies in 2 of 8 steps that kernels do not hide")
    assert row.advice == (), "the batches are not what is copied"


@pytest.mark.parametrize(("steps", "python", "empty"), [(1, False, True), (1, True, False), (3, False, False)])
def test_the_mark_that_a_new_cycle_of_the_profiler_begins_is_no_step(steps, python, empty, tmp_path):
    trace = TraceBuilder()
    for number in range(steps):
        trace.step(number, number * 5000, 5000)
    if python:
        trace.add("python_function", "train.py(1): train", 0, 5000)
    verdict = trace.analyse(tmp_path).verdict
    assert (verdict.kind is Kind.NOT_ENOUGH_EVIDENCE) is empty
    assert (verdict.advice == (TRY_CYCLE,)) is empty
    short = TraceBuilder().step(4, 0, 56).analyse(tmp_path)
    assert short.verdict.advice == (TRY_CYCLE,)
    assert "none ran" in short.step_work.phases.reason


def test_an_optimizer_on_the_host_is_no_work_for_the_loader_and_its_operators_have_their_own_shares(tmp_path):
    trace = TraceBuilder()
    for number in range(4):
        at = trace.update(number, "CPUAdam", 8000)
        for place, name in enumerate(("aten::mul_", "aten::addcmul_", "aten::sqrt", "aten::addcdiv_")):
            trace.op(name, at + 2000 + 1990 * place, 1980 if place != 1 else 1985)
    verdict = analyse(trace, tmp_path).verdict
    assert verdict.kind is Kind.PYTHON_BOUND
    assert verdict.summary.endswith("; longest aten::addcmul_, 25 % of it")
    assert verdict.advice[0].startswith("keep parameters and states of the optimizer on the device")
    assert verdict.advice[0].endswith("for 20 % of the window")
