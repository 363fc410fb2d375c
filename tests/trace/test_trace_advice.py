"""Advice has a cost in the trace, each decided verdict a thing to try and a ceiling, and the profiler its weight."""

from pathlib import Path

import pytest

from tests.traces import A100, V100, TraceBuilder
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.trace import TraceFile
from tpmon.model.verdict import Kind
from tpmon.report.trace import write_report
from tpmon.trace.advice import TRY_LARGER, TRY_RANKS, TRY_STACKS
from tpmon.trace.analysis import analyze

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def analyse(trace: TraceBuilder, tmp_path: Path, **header: object) -> TraceFile:
    return trace.analyse(tmp_path, **{"deviceProperties": [A100], **header})


def python_bound() -> TraceBuilder:
    """Of each 10 ms 2 ms are a kernel; then the program is in its metrics for 6 ms, and in its logger for 2."""
    trace = TraceBuilder()
    for number in range(5):
        at = number * 10_000
        trace.step(number, at, 10_000).op("aten::linear", at + 10, 80).kernel(at + 100, 1900, launch=at + 50)
    return trace


def with_stacks(trace: TraceBuilder) -> TraceBuilder:
    for number in range(5):
        at = number * 10_000
        trace.add("python_function", "train.py(10): train", at, 10_000)
        trace.add("python_function", "metrics.py(41): confusion", at + 2000, 6000)
        trace.add("python_function", "numpy/core/fromnumeric.py(12): sum", at + 2100, 5000)
        trace.add("python_function", "log.py(7): write", at + 8000, 1900)
        trace.add("python_function", "json/encoder.py(9): encode", at + 8100, 1700)
    return trace


def test_the_lines_that_stand_in_the_idle_time_are_named_and_one_is_to_be_changed(tmp_path):
    verdict = analyse(with_stacks(python_bound()), tmp_path).verdict
    assert (verdict.kind, verdict.cause) == (Kind.PYTHON_BOUND, "single-thread")
    named = [(line.name, round(line.share_pct), round(line.us, -3)) for line in verdict.lines]
    assert named[0] == ("metrics.py(41): confusion", 75, 30_000)
    assert [name for name, _pct, _us in named[1:]] == ["log.py(7): write", "train.py(10): train"]
    assert "metrics.py(41): confusion: 75 % of that time" in verdict.advice[0]
    assert verdict.ceiling == "5.1x if all of it goes away"
    assert verdict.advice_pct[0] == verdict.share_pct
    written = "\n".join(write_report(analyze([str(tmp_path / "t.json")])))
    assert "74.8 % of it in metrics.py(41): confusion" in written
    assert "5.1x if all of it goes away" in written


def test_slow_launches_are_made_fewer_before_the_line_that_they_are_in_is_shortened(tmp_path):
    trace = TraceBuilder().add("python_function", "run.py(28): run_on_input", 0, 50_000)
    for number in range(5):
        trace.step(number, number * 10_000, 10_000)
        for launch in range(100):
            at = number * 10_000 + launch * 100
            trace.op("aten::linear", at, 95).kernel(at + 85, 5, launch=at + 80)
    verdict = analyse(trace, tmp_path).verdict
    assert (verdict.kind, verdict.lines[0].name) == (Kind.LAUNCH_BOUND, "run.py(28): run_on_input")
    shorten = [at for at, text in enumerate(verdict.advice) if "run.py(28)" in text]
    assert "compile" in verdict.advice[0]
    assert shorten == [len(verdict.advice) - 1]


def test_without_stacks_it_says_what_would_name_the_lines(tmp_path):
    verdict = analyse(python_bound(), tmp_path).verdict
    assert (verdict.try_, verdict.lines) == (TRY_STACKS, ())


@pytest.mark.parametrize("loader_us", [100, 1500, 3900])
def test_a_loader_that_is_not_what_holds_the_run_is_no_first_advice(loader_us, tmp_path):
    trace = TraceBuilder()
    for number in range(5):
        at = number * 10_000
        trace.step(number, at, 10_000).loader(at, loader_us).op("aten::mm", at + 9000, 900)
    verdict = analyse(trace, tmp_path, deviceProperties=[]).verdict
    assert (verdict.kind, verdict.try_) == (Kind.PYTHON_BOUND, TRY_STACKS)
    costs = [pct for text, pct in zip(verdict.advice, verdict.advice_pct, strict=True) if "num_workers" in text]
    assert costs == ([pytest.approx(loader_us / 100)] if loader_us > 100 else [])


def communicating(tmp_path: Path, rank: int, waits_us: float, moves_us: float) -> str:
    trace = TraceBuilder()
    for number in range(3):
        at = number * 100_000
        length = waits_us + moves_us
        trace.step(number, at, 100_000).op("aten::linear", at + 10, 80)
        begin = at + 95_000 - length
        trace.kernel(at + 100, begin - at - 100, launch=at + 50)
        said = {"Collective name": "allreduce", "Process Group Name": "0", "dtype": "Float"}
        trace.kernel(begin, length, launch=at + 60, name=ALL_REDUCE, **said, **{"In msg nelems": 10})
    about = {"rank": rank, "world_size": 2, "backend": "nccl"}
    return trace.write(tmp_path / f"rank{rank}.json", {"distributedInfo": about, "deviceProperties": [A100]})


def test_ranks_beside_each_other_tell_whether_communication_waits_or_moves(tmp_path):
    late, waiting = communicating(tmp_path, 0, 0, 1000), communicating(tmp_path, 1, 50_000, 1000)
    alone = analyze([waiting]).files[0].verdict
    assert (alone.kind, alone.cause, alone.advice) == (Kind.COMMS_BOUND, "unknown", (TRY_RANKS,))
    first, second = (file.verdict for file in analyze([late, waiting]).files)
    assert first.kind is Kind.COMPUTE_BOUND
    assert (second.kind, second.cause) == (Kind.COMMS_BOUND, "straggler")
    assert second.summary.endswith("; it waits for rank 0")
    assert second.advice == ("look at rank 0: the others wait for it",)
    same = analyze([communicating(tmp_path, 0, 0, 60_000), communicating(tmp_path, 1, 500, 60_000)])
    assert [file.verdict.cause for file in same.files] == ["transfer", "transfer"]
    assert all(file.verdict.advice for file in same.files)


def test_a_busy_device_has_a_ceiling_too_and_no_advice_that_tells_nothing(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000).op("aten::mm", 0, 90).kernel(100, 900, launch=50)
    verdict = analyse(trace, tmp_path).verdict
    assert verdict.ceiling == "1.1x if nothing else took time; more only with less or faster computation"
    assert not any("fixed batch" in text for text in verdict.advice)


def test_what_is_merely_there_is_no_reason_for_advice(tmp_path):
    """25 synchronises that cost nothing, and the profiler's own; the host launches too slowly."""
    trace = TraceBuilder()
    for number in range(25):
        at = number * 10_000
        trace.step(number, at, 10_000)
        for launch in range(20):
            begin = at + launch * 490
            trace.op("aten::linear", begin, 90).op("aten::gelu", begin + 90, 90).op("aten::add", begin + 180, 90)
            trace.op("aten::mul", begin + 270, 90).kernel(begin + 400, 90, launch=begin + 390)
        trace.call("cudaStreamSynchronize", at + 9805, 4)
        trace.op("autograd::engine::evaluate_function: MulBackward0", at + 9850, 10)
    trace.call("cudaDeviceSynchronize", 250_010, 3000)
    verdict = analyse(trace, tmp_path).verdict
    assert verdict.kind in (Kind.LAUNCH_BOUND, Kind.PYTHON_BOUND)
    assert not any("read the loss" in text for text in verdict.advice)


def test_waits_of_pageable_copies_are_pinned_away(tmp_path):
    trace = TraceBuilder()
    for number in range(5):
        at = number * 10_000
        trace.step(number, at, 10_000).op("aten::copy_", at + 90, 6020).call(
            "cudaMemcpyAsync", at + 100, 6000, correlation=number + 1
        )
        args = {"device": 0, "stream": 7, "correlation": number + 1, "bytes": 100}
        trace.add("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", at + 5900, 200, args=args)
        trace.kernel(at + 6150, 3800, launch=at + 6120)
    verdict = analyse(trace, tmp_path).verdict
    assert (verdict.kind, verdict.cause) == (Kind.SYNC_BOUND, "implicit")
    assert "pin the batches" in verdict.advice[0]


def test_marks_of_an_optimizer_in_one_another_count_once(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000)
    for off, name in enumerate(("Accelerated", "Wrapped", "AdamW")):
        trace.add("user_annotation", f"Optimizer.step#{name}.step", 100 + off, 330 - 2 * off)
    for at in range(150):
        trace.kernel(110 + 2 * at, 1, launch=106 + 2 * at)
    file = analyse(trace, tmp_path)
    costs = dict(zip(file.verdict.advice, file.verdict.advice_pct, strict=True))
    assert costs.get("use the fused optimizer", 33) == 33, "what it costs stands beside a remedy"
    seen = next(row for row in file.patterns if row.name == "unfused-optimizer")
    assert (seen.share_pct, seen.seen) == (33, "150 kernels in one step of the optimizer")


@pytest.mark.parametrize(
    ("card", "known"),
    [
        (A100, True),
        (V100, True),
        ({**V100, "computeMajor": 6, "name": "Tesla P100"}, False),
        ({**A100, "warpSize": 64, "name": "MI300X"}, True),
    ],
)
def test_tensor_cores_are_not_zero_where_there_are_none(card, known, tmp_path):
    trace = TraceBuilder().step(1, 0, 1000).kernel(0, 900, launch=0, name="sgemm")
    use = analyse(trace, tmp_path, deviceProperties=[card]).overview.gpus[0]
    assert isinstance(use.tensor_core_pct, Missing) is not known
    assert isinstance(use.tensor_core_unknown_pct, Missing) is not known


# the weight of the profiler


@pytest.mark.parametrize("on", [1, True, "true"])
@pytest.mark.parametrize("switch", ["with_stack", "profile_memory"])
def test_what_inflates_the_host_is_said_and_caps_the_trust_in_verdicts_about_it(on, switch, tmp_path):
    verdict = analyse(python_bound(), tmp_path, **{switch: on}).verdict
    assert verdict.confidence == "low"
    assert ("stacks" if switch == "with_stack" else "memory") in verdict.weight
    assert "host times are inflated" in "\n".join(write_report(analyze([str(tmp_path / "t.json")])))


TOLD_NOT = {"missing": "too few steps to tell"}


@pytest.mark.parametrize(
    ("told", "said", "confidence"),
    [
        ({"step_before_ms": 4.0}, "inflated 2.5 x (4.0 ms a step before, 10.0 during)", "low"),
        ({"step_before_ms": 9.0}, "inflated 1.1 x (9.0 ms a step before, 10.0 during)", "medium"),
        (
            {"step_before_ms": 4.9, "step_during_ms": 11.8, "step_after_ms": 5.0},
            "inflated 2.4 x (4.9 ms a step before, 11.8 during)",
            "low",
        ),
        (
            {"step_before_ms": 0.4, "step_during_ms": 0.6, "step_after_ms": 0.5},
            "inflated 1.5 x (0.40 ms a step before, 0.60 during, 0.50 after)",
            "medium",
        ),
        (
            {"step_before_ms": TOLD_NOT, "step_during_ms": 12.0, "step_after_ms": 6.0},
            "inflated 2.0 x (12.0 ms a step during, 6.0 after)",
            "low",
        ),
        ({"step_before_ms": TOLD_NOT, "step_after_ms": TOLD_NOT}, "not known: too few steps to tell", "low"),
        ({"step_before_ms": -1.0, "step_after_ms": True}, "not known: the trace does not say it", "low"),
    ],
)
def test_a_capture_that_knows_the_steps_around_it_says_by_how_much(told, said, confidence, tmp_path):
    verdict = analyse(python_bound(), tmp_path, with_stack=1, tpmon=told).verdict
    assert said in verdict.weight
    assert verdict.confidence == confidence


def test_shapes_alone_or_a_busy_device_cap_nothing(tmp_path):
    plain = analyse(python_bound(), tmp_path, record_shapes=1, with_stack=0, profile_memory=False).verdict
    assert plain.confidence == "medium"
    assert plain.weight == "host times are inflated; by how much is not in the trace", "no recording is free"
    busy = TraceBuilder().step(1, 0, 1000).op("aten::mm", 0, 90).kernel(100, 900, launch=50)
    verdict = analyse(busy, tmp_path, with_stack=1).verdict
    assert (verdict.kind, verdict.confidence) == (Kind.COMPUTE_BOUND, "medium")
    assert analyse(busy, tmp_path).verdict.weight is NOT_APPLICABLE


def test_launches_that_wait_in_a_queue_and_an_empty_queue_are_figures(tmp_path):
    trace = (
        TraceBuilder()
        .step(1, 0, 1000)
        .kernel(10, 400, launch=0)
        .kernel(410, 100, launch=9)
        .kernel(900, 100, launch=879)
    )
    card = analyse(trace, tmp_path).overview.gpus[0]
    assert card.launch_delay_us == pytest.approx(20)
    assert card.queue_empty_pct == pytest.approx(100 * (1000 - 9 - 400 + 0 - 20) / 1000, abs=0.2)


def repeated(category: str, before_us: float = 900_000) -> TraceBuilder:
    """Sort a data set once, then train for 30 steps that nothing marks; on the host alone without kernels."""
    trace = TraceBuilder().op("aten::sort", 0, 3000 if category == "kernel" else before_us)
    if category == "kernel":
        trace.kernel(3000, before_us, launch=2000, name="radixSort")
    at = before_us + 4000
    for _step in range(30):
        for place in range(10):
            trace.op("aten::addmm", at + 100 * place, 90)
            if category == "kernel":
                trace.kernel(at + 100 * place + 5, 95, launch=at + 100 * place + 1, name="gemm")
        trace.add("user_annotation", "Optimizer.step#SGD.step", at + 900, 90)
        at += 1000
    return trace


@pytest.mark.parametrize(("category", "named"), [("kernel", "gemm, 100 %"), ("host", "aten::addmm, 100 %")])
def test_what_computes_longest_is_of_the_loop_and_not_of_what_stands_before_it(category, named, tmp_path):
    file = analyse(repeated(category), tmp_path)
    assert file.verdict.kind is Kind.COMPUTE_BOUND
    assert "one-off start-up" in file.verdict.summary
    assert named in file.verdict.try_
    if category == "kernel":
        assert (file.hot_kernel.name, round(file.hot_kernel.share_pct)) == ("gemm", 100)
        assert file.kernels[0].name == "radixSort", "the table is of the whole trace"


def test_convolutions_that_other_streams_hide_are_nothing_to_begin_with(tmp_path):
    trace = TraceBuilder()
    for number in range(4):
        at = number * 1000
        trace.step(number, at, 1000)
        for place in range(9):
            trace.op("aten::linear", at + 100 * place, 20).kernel(at + 100 * place + 20, 100, at + 100 * place, "gemm")
            trace.op("aten::conv2d", at + 100 * place + 30, 20)
            trace.kernel(at + 100 * place + 40, 70, launch=at + 100 * place + 31, name="conv", stream=20)
    verdict = analyse(trace, tmp_path).verdict
    assert verdict.kind is Kind.COMPUTE_BOUND
    assert "begin with what computes longest" in verdict.try_
    assert not any("cuDNN" in text for text in verdict.advice)
    assert "convolution" not in verdict.summary


@pytest.mark.parametrize(
    ("copy", "remedy"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "pin the batches"),
        ("Memcpy DtoH (Device -> Pageable)", "bring less back to the host"),
        ("Memcpy HtoD (Pinned -> Device)", "copy the next batch while the device computes"),
        ("Memcpy DtoH (Device -> Pinned)", "bring less back to the host"),
        ("CopyHostToDevice", "copy the next batch while the device computes"),
    ],
)
def test_copies_between_host_and_device_are_no_computation(copy, remedy, tmp_path):
    trace = TraceBuilder()
    for number in range(5):
        at = number * 6000
        trace.step(number, at, 6000).op("aten::copy_", at + 5, 3000).kernel(
            at + 20, 2950, launch=None, name=copy, category="gpu_memcpy", bytes=38_535_168
        )
        trace.call("cudaMemcpyAsync", at + 10, 2980, correlation=trace.events[-1]["args"]["correlation"])
        for place in range(10):
            trace.op("aten::linear", at + 3010 + 20 * place, 18)
            trace.kernel(at + 3020 + 290 * place, 290, launch=at + 3011 + 20 * place, name="gemm")
    verdict = analyse(trace, tmp_path).verdict
    assert (verdict.kind, verdict.cause) == (Kind.SYNC_BOUND, "implicit")
    assert verdict.share_pct == pytest.approx(49, abs=0.5)
    assert sum(share.pct for share in verdict.shares) == pytest.approx(100)
    assert verdict.try_.startswith(remedy)
    assert verdict.ceiling == "2.0x if all of it goes away"


def test_an_optimizer_that_launches_most_kernels_is_not_helped_by_compiling_the_model(tmp_path):
    trace = TraceBuilder()
    for number in range(4):
        at = trace.update(number, "AdamW", 7900)
        for place in range(700):
            begin = at + 2000 + 11 * place
            trace.op("aten::mul_", begin, 9).kernel(
                begin + 9, 2, launch=begin + 5, name="vectorized_elementwise_kernel"
            )
    file = analyse(trace, tmp_path)
    assert file.verdict.kind is Kind.LAUNCH_BOUND
    assert file.verdict.try_.startswith("use the fused optimizer")
    assert not any("compile" in text for row in file.patterns for text in (*row.advice, *file.verdict.advice))


@pytest.mark.parametrize(("operator", "offered"), [("aten::item", False), ("aten::nonzero", True)])
def test_indexing_by_a_mask_is_replaced_only_where_there_is_some(operator, offered, tmp_path):
    trace = TraceBuilder()
    for number in range(4):
        at = number * 1000
        trace.step(number, at, 1000).op("aten::linear", at, 20).kernel(at + 20, 400, launch=at + 10)
        trace.op(operator, at + 30, 400).call("cudaStreamSynchronize", at + 40, 385)
        trace.op("aten::linear", at + 800, 20).kernel(at + 825, 170, launch=at + 810)
    file = analyse(trace, tmp_path)
    row = next(one for one in file.patterns if one.name == "sync-per-step")
    assert any("torch.where" in text for text in row.advice) is offered


def test_a_range_of_the_program_that_the_idle_time_is_in_is_named_and_one_around_steps_is_not(tmp_path):
    trace = python_bound()
    for at in range(0, 50_000, 10_000):
        trace.add("user_annotation", "train_step", at + 5, 9990)
        trace.add("user_annotation", "metrics", at + 2000, 7900)
        trace.add("user_annotation", "forward", at + 8, 100)
    verdict = analyse(trace, tmp_path).verdict
    assert (verdict.kind, verdict.cause) == (Kind.PYTHON_BOUND, "single-thread")
    assert verdict.advice[0].startswith("shorten, or do less often, what is in the range metrics: 9")
    assert verdict.advice[1] == TRY_STACKS
    whole = python_bound()
    for at in range(0, 50_000, 10_000):
        whole.add("user_annotation", "train_step", at + 5, 9990)
    assert analyse(whole, tmp_path).verdict.advice == (TRY_STACKS,)


@pytest.mark.parametrize(
    ("within", "calls", "remedy"),
    [
        (True, ("cudaFree", "cudaMalloc"), "let the allocator grow its segments"),
        (True, ("cudaMalloc", "cudaMalloc"), "let the allocator grow its segments"),
        (False, ("cudaFree", "cudaMalloc"), "take torch.cuda.empty_cache()"),
        (False, ("hipFree", "hipFree"), "take torch.cuda.empty_cache()"),
    ],
)
def test_memory_that_the_allocator_gives_back_itself_is_no_empty_cache(within, calls, remedy, tmp_path):
    """It frees what it holds and asks again within the operator that needs memory; a program frees outside."""
    trace = TraceBuilder()
    for number in range(6):
        at = number * 6000
        trace.step(number, at, 6000).op("aten::linear", at + 5, 50).kernel(at + 20, 2900, launch=at + 10)
        if within:
            trace.op("aten::empty", at + 2900, 3050)
        for place, name in enumerate(calls):
            trace.call(name, at + 2930 + 1500 * place, 1490)
    verdict = analyse(trace, tmp_path).verdict
    assert (verdict.kind, verdict.cause) == (Kind.SYNC_BOUND, "allocator")
    assert verdict.try_.startswith(remedy)
    assert not any("limit_all_gathers" in text for text in verdict.advice), "no rank talks to another"


@pytest.mark.parametrize(("each_us", "small"), [(6, True), (40, False)])
def test_a_host_that_computes_in_operators_of_microseconds_needs_fewer_and_larger_ones(each_us, small, tmp_path):
    """Cells of a recurrent network in a loop: the longest operator is a few percent, and a product of little."""
    trace = TraceBuilder()
    for number in range(4):
        at = number * 20_000
        trace.step(number, at, 20_000).op("aten::linear", at, 5000)
        for place in range(300):
            name = ("aten::mm", "aten::sigmoid", "aten::mul")[place % 3]
            trace.op(name, at + 5000 + 48 * place, 5 * each_us).op(name, at + 5001 + 48 * place, each_us)
            for inner in range(1, 5):
                trace.op(name, at + 5001 + 48 * place + inner * each_us, each_us) if small else None
    verdict = analyse(trace, tmp_path).verdict
    assert verdict.kind is Kind.COMPUTE_BOUND
    assert (verdict.try_ == TRY_LARGER) is small
    assert ("% of their time in those below 10 us" in verdict.summary) is small


@pytest.mark.parametrize(
    ("innermost", "named"),
    [("watch.py(7): poll", True), ("threading.py(327): wait", False), ("queue.py(171): get", False)],
)
def test_a_second_thread_of_the_program_may_hold_the_gil(innermost, named, tmp_path):
    """torch writes the stacks of threads that run no operator one behind the other, as they stood at the start."""
    trace = with_stacks(python_bound())
    stacks = (("threading.py(1002): _bootstrap", "threading.py(982): run", innermost),)
    stacks += (("threading.py(1002): _bootstrap", "concurrent/futures/thread.py(81): _worker"),)
    for place, name in enumerate(name for stack in stacks for name in stack):
        trace.add("python_function", name, place, 50_000 - place, tid=0)
    verdict = analyse(trace, tmp_path).verdict
    assert verdict.kind is Kind.PYTHON_BOUND
    assert any("another thread holds the GIL" in text and innermost in text for text in verdict.advice) is named
    assert verdict.try_.startswith("shorten, or do less often, what is in metrics.py(41)")
