"""The further tables on sample traces: sums that must agree, and no figure beyond what can be."""

from collections import defaultdict

import pytest

from tests.trace.figures.test_trace_samples import PATHS, SAMPLES, analyse, read_facts
from tpmon.model.known import is_known
from tpmon.trace.analysis import analyze

pytestmark = pytest.mark.skipif(not PATHS, reason="no sample traces here (TPMON_SAMPLE_TRACES=DIR)")
H100 = "tracelens/h100_gaunernst_bert-small-uncased__1016001.json.gz"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name[:40])
def test_sums_agree_and_nothing_is_beyond_what_can_be(path):
    facts = read_facts(path)
    file = analyse(f"{path.parent.name}/{path.name}")
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
        "nw4_a": {"fp32-products", "launch-heavy", "unfused-optimizer"},
    }
    fp16 = "run forward and loss under fp16 autocast with a GradScaler"  # a V100, as tb advises AMP
    assert analyse("kineto_resnet50/nw4_a.pt.trace.json.gz").verdict.advice[0] == fp16
    loader = analyse("kineto_resnet50/nw0_a.pt.trace.json.gz")
    assert any(row.advice == (fp16,) for row in loader.patterns)


def test_a_trace_of_torch_with_stacks_gives_modules_functions_and_lines():
    name = "fresh_torch213_ours/cpu_nw0_stack.pt.trace.json.gz"
    file = analyze([str(SAMPLES / name)], wanted=("lines",)).files[0]
    modules = {row.name: row for row in file.modules}
    assert (modules["Linear_4"].calls, modules["Linear_4"].inside) == (4, "M_0")
    whole = modules["M_0"].backward_total_us
    assert whole >= sum(row.backward_self_us for row in file.modules if is_known(row.backward_self_us)) - 1
    sleep = next(row for row in file.frames if "sleep" in row.name)
    assert (sleep.calls, sleep.called_by) == (64, "gen.py(9): __getitem__")
    assert any((row.name, row.group) == ("aten::addmm", "gen.py(18): forward") for row in file.lines)
