"""Sample traces against an independent reading of each; skipped where the samples are not there."""

import json
import os
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpmon.model.known import NOT_APPLICABLE, is_known, sum_known
from tpmon.model.results.trace import TraceFile, TraceReport
from tpmon.model.verdict import Kind
from tpmon.trace.analysis import Findings, analyze
from tpmon.trace.reading.spans import grow, split_windows

SAMPLES = Path(os.environ.get("TPMON_SAMPLE_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
PATHS = sorted(SAMPLES.glob("*/*.json.gz")) if SAMPLES.is_dir() else []

pytestmark = pytest.mark.skipif(not PATHS, reason="no sample traces here (TPMON_SAMPLE_TRACES=DIR)")


def read_facts(path: Path) -> dict[str, Any]:
    name = f"{path.parent.name}~{path.name.removesuffix('.gz')}.facts.json"
    facts: dict[str, Any] = json.loads((SAMPLES / "facts" / name).read_text())
    return facts


@cache
def analyse(name: str) -> TraceFile:
    return analyze([str(SAMPLES / name)]).files[0]


def near(value: float) -> Any:
    """Compare to 0.1 % or 1 us."""
    return pytest.approx(value, rel=1e-3, abs=1.0)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name[:40])
def test_counts_unions_kernels_memory_and_overlap_are_those_of_the_facts(path):
    facts = read_facts(path)
    file = analyse(f"{path.parent.name}/{path.name}")
    assert file.events == facts["n_events"]
    assert file.json_bytes == facts["raw_bytes"]
    assert (file.lost.events, file.lost.values, file.lost.broken_off) == (0, 0, False)
    steps = facts["host_steps"]
    assert file.overview.steps == len(steps) - 1 + steps[-1].get("more", 1) if steps else not file.overview.steps
    for row, step in zip(file.overview.step_table, steps, strict=False):
        if "name" in step:
            assert (row.name, row.host_ms * 1000) == (step["name"], near(step["dur"]))
    for card in file.overview.gpus:
        said = facts["per_device"][str(card.device)]
        assert card.kernels == said["kernels"]
        assert card.kernel_us == near(said["kernel_time_sum"])
        assert card.kernel_busy_us == near(said["kernel_busy_union"])
        assert card.busy_us == near(said["all_gpu_busy_union"])
        # The facts count work from before the first step, where there is some.
        if "occupancy_dur_weighted_pct" in said and not file.launched_before:
            assert card.occupancy_reported_pct == pytest.approx(said["occupancy_dur_weighted_pct"], abs=0.05)
        else:
            assert is_known(card.occupancy_reported_pct) == ("occupancy_dur_weighted_pct" in said)
        again = facts.get("occupancy_recomputed", {}).get(str(card.device))
        if again and again["recomputed_pct"] is not None and not file.launched_before:
            assert card.occupancy_pct == pytest.approx(again["recomputed_pct"], rel=2e-3, abs=0.01)
    assert {str(card.device) for card in file.overview.gpus} == set(facts["per_device"])
    by_name = {row.name: row for row in file.kernels}
    for kernel in facts.get("top_kernels", []):
        if "name" not in kernel or len(kernel["name"]) > 590:
            continue
        row = by_name[kernel["name"]]
        assert (row.count, row.total_us) == (kernel["count"], near(kernel["total"]))
        assert (row.min_us, row.max_us) == (near(kernel["min"]), near(kernel["max"]))
    for key, said in facts.get("memory", {}).items():
        kind, device = map(int, key.split(":"))
        rows = [row for row in file.memory.peaks if row.device == device and (row.kind == "cpu") == (kind == 0)]
        assert [row.events for row in rows] == [said["events"]]
        assert (rows[0].allocations_bytes, rows[0].frees_bytes) == (said["alloc_bytes"], said["free_bytes"])
        peak = rows[0].allocated_bytes
        assert (peak if is_known(peak) else None) == said["peak_allocated"]
    comm = facts.get("comm")
    if comm and comm["kernels"]:
        assert file.communication.events == comm["kernels"]
        assert file.communication.comm_us == near(comm["comm_union"])
        assert file.communication.overlap_us == near(comm["overlap"])
    operators = {row.name: row for row in file.operators}
    for op in facts["cpu_ops"]["top_by_host_self"]:
        if "name" in op:
            row = operators[op["name"]]
            assert (row.calls, row.host_total_us) == (op["calls"], near(op["host_total"]))
            assert row.host_self_us == near(op["host_self_excl_child_ops_only"])
    idle = facts.get("idle_attribution_proposed")
    for parts in _split_marks(path) if idle and file.overview.steps else ():
        for name, said in (("busy", "busy"), ("data", "idle_data"), ("cpu_op", "idle_cpu_op"), ("other", "idle_other")):
            assert parts[name] == pytest.approx(idle[f"{said}%"], abs=0.1)
    for gaps in file.gaps:
        assert sum_known(us for _name, us in gaps.causes()) == near(gaps.idle if is_known(gaps.launch) else 0)


def _split_marks(path: Path) -> list[dict[str, float]]:
    """Split the marks of the host in percent by what the host did while a device was idle, as the facts do.

    They neither ask whether work was queued, nor what a wait costs behind it.
    """
    kept: list[Findings] = []
    analyze([str(path)], keep=kept.append)
    window = kept[0].steps.host_window
    begin, end = np.array(window[:1]), np.array(window[1:])
    names = ("busy", "data", "explicit", "implicit", "alloc", "launch", "cpu_op", "comms", "other")
    found = []
    for device in kept[0].devices:
        rows = split_windows(device.busy, grow(device.busy, kept[0].causes.layers), begin, end)
        found.append(
            {name: 100 * float(row[0]) / (window[1] - window[0]) for name, row in zip(names, rows, strict=True)}
        )
    return found


@pytest.mark.parametrize(
    ("name", "utilization", "sm", "occupancy", "loader_us"),
    [("nw0_a", 55.5, 54.7, 49.1, 59_262), ("nw4_a", 70.3, 69.2, 48.9, 1_186)],
)
def test_figures_of_resnet_are_those_of_the_plugin(name, utilization, sm, occupancy, loader_us):
    overview = analyse(f"kineto_resnet50/{name}.pt.trace.json.gz").overview
    card = overview.gpus[0]
    assert card.utilization_pct == pytest.approx(utilization, abs=0.06)
    assert card.sm_efficiency_pct == pytest.approx(sm, abs=0.06)
    assert card.occupancy_reported_pct == pytest.approx(occupancy, abs=0.06)
    assert overview.breakdown_us.data_loader == pytest.approx(loader_us, abs=1)


@pytest.mark.parametrize(
    ("name", "kind", "cause"),
    [
        ("kineto_resnet50/nw0_a.pt.trace.json.gz", Kind.DATA_BOUND, "no-workers"),
        ("fresh_torch213_ours/cpu_nw0.pt.trace.json.gz", Kind.DATA_BOUND, "no-workers"),
        ("fresh_torch213_ours/cpu_nw2.pt.trace.json.gz", Kind.COMPUTE_BOUND, "cpu"),
        ("dlrm_ddp8/worker1_step_12.1694128201556.pt.trace.json.gz", Kind.COMMS_BOUND, "unknown"),
        ("hta/nccl_parser_config_nccl_data.json.gz", Kind.LAUNCH_BOUND, "main-thread"),
        ("fresh_torch213_ours/ddp_gloo_rank0.pt.trace.json.gz", Kind.COMMS_BOUND, "unknown"),
    ],
)
def test_verdicts_with_a_known_cause(name, kind, cause):
    verdict = analyse(name).verdict
    assert (verdict.kind, verdict.cause) == (kind, cause)


@cache
def compare(pattern: str) -> TraceReport:
    return analyze([str(path) for path in sorted(SAMPLES.glob(pattern))])


def test_the_rank_that_waits_least_is_the_straggler():
    slowed = compare("fresh_torch213_ours/ddp_gloo_rank*.gz").ranks
    assert slowed.straggler == 1
    assert [row.wait_ms for row in slowed.ranks] == [pytest.approx(118.9 - 24.1, abs=0.2), near(0)]
    assert [row.transfer_ms for row in slowed.ranks] == [pytest.approx(24.1, abs=0.1)] * 2
    ranks = compare("dlrm_ddp8/*.gz").ranks
    assert ranks.straggler == 7
    assert (ranks.missing, [row.rank for row in ranks.ranks]) == ((), list(range(8)))


def test_the_job_of_each_sample_with_several_ranks():
    slowed = compare("fresh_torch213_ours/ddp_gloo_rank*.gz").job
    assert (slowed.cause, slowed.late, slowed.held.kind) == ("straggler", 1, Kind.PYTHON_BOUND)
    assert slowed.held.longer[0].name == "other"
    assert slowed.held.longer[0].ms == pytest.approx(30, abs=2), "it was slowed by 30 ms a step"
    job = compare("dlrm_ddp8/*.gz").job
    assert (job.cause, job.late, job.held.kind) == ("straggler", 7, Kind.LAUNCH_BOUND)
    assert "ranks 0 to 6 wait for rank 7, 4.9 ms of a step" in job.summary
    assert {rate.name: rate.calls for rate in job.rates} == {"all_to_all": 5, "all_reduce": 3}
    few = compare("dlrm_ddp8/worker[05]*.gz").job
    assert (few.cause, few.late) == ("unknown", NOT_APPLICABLE)
    sampled = compare("hta/trace_filter*.gz").job
    assert (sampled.cause, sampled.late) == ("unknown", NOT_APPLICABLE)
    two = [*SAMPLES.glob("dlrm_ddp8/worker0*.gz"), *SAMPLES.glob("fresh_torch213_ours/ddp_gloo_rank1*.gz")]
    assert analyze(list(map(str, two))).job.kind is Kind.NOT_ENOUGH_EVIDENCE


H100 = "tracelens/h100_gaunernst_bert-small-uncased__1016001.json.gz"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name[:40])
def test_sums_and_links_agree_and_nothing_is_beyond_what_can_be(path):
    facts = read_facts(path)
    file = analyse(f"{path.parent.name}/{path.name}")
    linked = facts["correlation"]
    assert linked["gpu_events"] - file.launched_before == linked["matched_to_runtime_or_driver"]
    kernel_us = sum(card.kernel_us for card in file.overview.gpus)
    work_us = kernel_us + sum(copy.total_us for copy in file.copies)
    assert sum(row.share_pct for row in file.products) <= 100.001
    if file.kernels:
        assert sum(row.total_us for row in file.products) <= kernel_us * 1.001
    for row in file.products:
        assert not is_known(row.peak_pct) or 0 < row.peak_pct <= 100
        assert not is_known(row.tflop_s) or row.tflop_s > 0
        assert not is_known(row.misaligned_pct) or 0 <= row.misaligned_pct <= 100
    for kernel in file.kernels:
        for pct in (kernel.gb_s_peak_pct, kernel.tflop_s_peak_pct):
            assert not is_known(pct) or 0 < pct <= 100
    for pattern in file.patterns:
        assert 0 < pattern.share_pct <= 100
    allocated: defaultdict[str, int] = defaultdict(int)
    at_peak: defaultdict[str, int] = defaultdict(int)
    for use in file.memory.by_operator:
        kind = "0" if use.kind == "cpu" else "1"
        allocated[kind] += use.allocated_bytes
        at_peak[kind] += use.at_peak_bytes if is_known(use.at_peak_bytes) else 0
    for key, said in facts.get("memory", {}).items():
        kind = "0" if key.startswith("0:") else "1"
        assert allocated[kind] == said["alloc_bytes"]
        if said["peak_allocated"] is not None and any(at_peak.values()):
            # torch counts the host from the start of the capture: frees of older blocks make it less
            assert at_peak[kind] == pytest.approx(said["peak_allocated"], rel=1e-3)
    modules = file.modules if is_known(file.modules) else ()
    for module in modules:
        assert module.host_self_us <= module.host_total_us
        if is_known(module.forward_total_us) and is_known(module.forward_self_us):
            assert module.forward_self_us <= module.forward_total_us <= work_us + 1
    frames = file.frames if is_known(file.frames) else ()
    assert all(frame.self_us <= frame.total_us + 0.001 for frame in frames)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (H100, {("matmul", "bf16"), ("attention", "bf16")}),
        ("tracelens/torch_compile_triton_trace.json.gz", {("matmul", "bf16"), ("attention", "bf16")}),
        ("kineto_resnet50/nw4_a.pt.trace.json.gz", {("convolution", "fp32"), ("matmul", "fp32")}),
        ("fresh_torch213_ours/cpu_nw0.pt.trace.json.gz", {("matmul", "fp32")}),
    ],
)
def test_number_types_of_the_products(name, expected):
    found = {(row.kind, row.dtype if is_known(row.dtype) else "") for row in analyse(name).products}
    assert expected <= found
    assert ("matmul", "") not in found


def test_the_vocabulary_of_bert_is_misaligned_and_its_modules_have_device_time():
    file = analyse(H100)
    row = next(row for row in file.products if row.kind == "matmul")
    assert row.misaligned_pct == pytest.approx(20.9, abs=0.1)  # 30,522 words: 41 of 198 us
    root = file.modules[0]
    kernels_us = sum(kernel.total_us for kernel in file.kernels)
    assert root.name == "BertLMHeadModel_0"
    assert root.forward_total_us == pytest.approx(kernels_us, rel=0.02)
    assert not is_known(root.backward_total_us)
    assert sum(module.calls for module in file.modules) == 84


def test_habits_of_the_samples():
    seen = {
        name: {row.name for row in analyse(f"kineto_resnet50/{name}.pt.trace.json.gz").patterns}
        for name in ("nw0_a", "nw4_a")
    }
    assert seen == {
        "nw0_a": {"fp32-products", "unfused-optimizer"},
        "nw4_a": {"fp32-products", "launch-heavy", "elementwise-heavy", "unfused-optimizer"},
    }
    fp16 = "run forward and loss under fp16 autocast with a GradScaler"  # a V100, as tb advises AMP
    assert analyse("kineto_resnet50/nw4_a.pt.trace.json.gz").verdict.advice[0] == fp16
    loader = analyse("kineto_resnet50/nw0_a.pt.trace.json.gz")
    assert any(row.advice == (fp16,) for row in loader.patterns)


def test_a_trace_of_torch_with_stacks_gives_modules_functions_and_lines():
    kept: list[Findings] = []
    path = str(SAMPLES / "fresh_torch213_ours/cpu_nw0_stack.pt.trace.json.gz")
    file = analyze([path], wanted=("lines",), keep=kept.append).files[0]
    assert len(kept[0].trace.python.start) == 5874
    modules = {row.name: row for row in file.modules}
    assert (modules["Linear_4"].calls, modules["Linear_4"].inside) == (4, "M_0")
    whole = modules["M_0"].backward_total_us
    assert whole >= sum(row.backward_self_us for row in file.modules if is_known(row.backward_self_us)) - 1
    sleep = next(row for row in file.frames if "sleep" in row.name)
    assert (sleep.calls, sleep.called_by) == (64, "gen.py(9): __getitem__")
    assert any((row.name, row.group) == ("aten::addmm", "gen.py(18): forward") for row in file.lines)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name[:40])
def test_tables_of_device_work_sum_to_the_busy_time(path):
    """Kinds of work and phases by unions in the judged steps; operators, kernels and copies in the whole trace."""
    file = analyse(f"{path.parent.name}/{path.name}")
    work, strays = file.step_work, {gap.device for gap in file.gaps if not gap.busy}
    judged = [gap for gap in file.gaps if gap.device not in strays]
    busy_us = sum(gap.busy for gap in judged) / max(len(judged), 1) / work.steps
    assert sum(row.us for row in work.categories) == pytest.approx(busy_us, rel=1e-3)
    assert work.busy_us <= work.step_us
    assert all(row.us <= row.overlapping_us + 0.001 for row in work.categories)
    if is_known(work.phases):
        assert sum(row.host_us for row in work.phases if is_known(row.host_us)) > 0
        if file.gaps:
            assert sum(row.device_us for row in work.phases) == pytest.approx(busy_us, rel=1e-3)
    whole_us = sum(card.busy_us for card in file.overview.gpus)
    if file.gaps and file.operators:
        assert sum(row.device_self_us for row in file.operators) - work.at_once_us == near(whole_us)
    counted_us = sum(row.total_us for row in (*file.kernels, *file.copies))
    assert counted_us - work.at_once_us == near(whole_us)
    others = [row.share_pct for row in work.categories if row.category == "other"]
    assert sum(others) < 5


@pytest.mark.parametrize(
    ("name", "categories", "samples"),
    [
        ("kineto_resnet50/nw4_a.pt.trace.json.gz", ("convolution", "norm", "elementwise"), 32),
        ("dlrm_ddp8/worker7_step_12.1694128201553.pt.trace.json.gz", ("communication", "elementwise", "indexing"), 16),
        (H100, ("GEMM", "attention", "norm"), 1),
        ("fresh_torch213_ours/cpu_nw0.pt.trace.json.gz", (), 16),
        ("fresh_torch213_ours/ddp_gloo_rank1.pt.trace.json.gz", (), 64),
    ],
)
def test_what_the_steps_of_the_samples_are_made_of(name, categories, samples):
    work = analyse(name).step_work
    assert tuple(row.category for row in work.categories)[:3] == categories
    assert work.rates.samples == samples


def test_phases_of_resnet_are_told_apart_as_torch_1_8_names_them():
    rows = {row.phase: row for row in analyse("kineto_resnet50/nw0_a.pt.trace.json.gz").step_work.phases}
    assert rows["backward"].device_us > 1.5 * rows["forward"].device_us
    assert rows["data"].host_us == pytest.approx(69_299, abs=1)
    assert rows["other"].device_us < 100
