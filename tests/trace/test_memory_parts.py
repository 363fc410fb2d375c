"""What the stacks of a memory snapshot tell: the line, the category, what fills the device, what to try."""

import pytest

from tests.snapshots import MB, SnapshotBuilder, frame
from tpmon.model.known import Missing, is_known
from tpmon.model.results.snapshot import DeviceSnapshot
from tpmon.report.trace import write_snapshots
from tpmon.trace.memory_parts import CATEGORIES, REMEDIES, own_line, show_frames, sort_stack
from tpmon.trace.snapshot import analyze_snapshots

SITE = "/opt/conda/lib/python3.10/site-packages/torch/"
C_FRAMES = (
    "torch::unwind::unwind()",
    "/opt/pytorch/c10/cuda/CUDACachingAllocator.cpp:3000 malloc",
    "/opt/pytorch/aten/src/ATen/native/cuda/Blas.cpp:9 at::native::addmm_out_cuda_impl",
    "torch::autograd::VariableType::(anonymous namespace)::addmm(c10::DispatchKeySet)",
    "/usr/local/src/conda/python-3.10.8/Objects/descrobject.c:344 method_vectorcall_VARARGS",
    "/croot/python-split_1680/build/Objects/methodobject.c:543 cfunction_call",
    "/usr/local/src/conda/python-3.10.8/Python/ceval.c:5943 _PyEval_EvalFrameDefault",
)
FORWARD = (*C_FRAMES, f"{SITE}nn/modules/linear.py:125 forward", f"{SITE}nn/modules/module.py:1750 _call_impl")
ENGINE = "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)"
WINDOWS = r"C:\Users\me\miniconda3\envs\t\lib"
OWN_LINES = {
    "/home/me/train.py:7 main": (*FORWARD, "/home/me/train.py:7 main", "/home/me/train.py:90 <module>"),
    "train.py:3 f": ("train.py:3 f",),
    r"C:\src\my model\train.py:12 step": (
        rf"{WINDOWS}\site-packages\torch\nn\functional.py:5 linear",
        rf"{WINDOWS}\threading.py:9 run",
        rf"{WINDOWS}\asyncio\base_events.py:9 run",
        r"C:\src\my model\train.py:12 step",
    ),
    r"D:\src\lib\loop.py:4 go": (r"C:\Python311\Lib\runpy.py:1 _run", r"D:\src\lib\loop.py:4 go"),
    "/tmp/ipykernel_4021/1234.py:2 <module>": (*FORWARD, "/tmp/ipykernel_4021/1234.py:2 <module>"),
    "<ipython-input-7-0aa1b>:2 fit": (*FORWARD, "<ipython-input-7-0aa1b>:2 fit"),
    "<command-4120>:8 <module>": ("<frozen runpy>:88 _run_code", "<command-4120>:8 <module>"),
    "<string>:1 <module>": ("<string>:3 __init__", "<string>:1 <module>"),
    "/home/me/torch/train.py:5 f": ("/home/me/pytorch/torch/nn/functional.py:9 f", "/home/me/torch/train.py:5 f"),
    "/usr/local/bin/train:5 main": ("/usr/lib/python3/dist-packages/x.py:1 f", "/usr/local/bin/train:5 main"),
    "/home/me/loop.py:6 f": ("/tmp/torchinductor_me/ab/cab.py:40 call", "/home/me/loop.py:6 f"),
    "": (*C_FRAMES, f"{SITE}nn/functional.py:5 linear", "/opt/conda/lib/python3.10/runpy.py:9 run", "<frozen x>:1 f"),
}


@pytest.mark.parametrize("line", OWN_LINES)
def test_the_line_of_the_program_is_found_between_those_of_c_and_of_packages(line):
    found = own_line(OWN_LINES[line])
    assert (found if is_known(found) else "") == line
    assert is_known(found) is bool(line)


def test_of_a_long_stack_the_lines_of_python_are_shown():
    frames = (*C_FRAMES * 30, "/home/me/train.py:7 main", *C_FRAMES * 30)
    assert "/home/me/train.py:7 main" in show_frames(frames)
    assert (show_frames(frames)[:8], show_frames(FORWARD)) == (frames[:8], FORWARD)


SORTED = {
    "parameters": (
        (f"{SITE}nn/modules/linear.py:110 __init__", "/home/me/train.py:7 build"),
        (f"{SITE}nn/modules/module.py:1150 convert", f"{SITE}nn/modules/module.py:780 _apply", "train.py:9 main"),
        (rf"{WINDOWS}\site-packages\torch\nn\modules\module.py:1150 convert", r"C:\train.py:9 main"),
        (f"{SITE}serialization.py:1400 load_tensor", "train.py:9 resume"),
        ("/x/site-packages/transformers/modeling_utils.py:700 _load_state_dict_into_meta_model",),
        ("/home/me/model.py:12 __init__", "/home/me/train.py:7 main"),
    ),
    "gradients": (
        (*C_FRAMES[:3], "torch::autograd::AccumulateGrad::apply(...)", ENGINE),
        (*C_FRAMES[:3], "torch::autograd::generated::AddmmBackward0::apply(...)", ENGINE),
        ("/home/me/ops.py:30 backward", f"{SITE}autograd/function.py:300 apply"),
        ("/tmp/torchinductor_me/ab/cab.py:40 call", f"{SITE}_functorch/_aot_autograd/runtime_wrappers.py:9 backward"),
        (f"{SITE}nn/parallel/distributed.py:1100 _ddp_init_helper", "train.py:4 main"),
        ("c10d::Reducer::initialize_buckets(...)", *FORWARD),
    ),
    "optimizer state": (
        (f"{SITE}optim/adamw.py:180 _init_group", f"{SITE}optim/adamw.py:220 step", "train.py:40 main"),
        ("/home/me/mine.py:9 step", f"{SITE}optim/optimizer.py:480 wrapper", "train.py:40 main"),
        ("/x/site-packages/bitsandbytes/optim/optimizer.py:300 init_state",),
    ),
    "activations": (
        FORWARD,
        (f"{SITE}nn/functional.py:1500 relu", "train.py:9 main"),
        ("/home/me/model.py:30 forward", "train.py:9 main"),
        (*FORWARD, f"{SITE}utils/checkpoint.py:300 unpack_hook", ENGINE),  # computed again in a backward pass
        (*FORWARD, "train.py:20 closure", f"{SITE}optim/lbfgs.py:300 step"),
    ),
    "other": ((*C_FRAMES, "/home/me/train.py:30 main"), ("at::cuda::getCurrentCUDABlasHandle()", *FORWARD)),
    "untold": ((),),
}


@pytest.mark.parametrize(("category", "stack"), [(name, one) for name, stacks in SORTED.items() for one in stacks])
def test_the_innermost_frame_that_tells_anything_names_the_category(category, stack):
    assert sort_stack(stack) == category


# what fills the device


def frames_of(*texts: str) -> list[dict[str, object]]:
    """Return frames as a snapshot has them, of texts like those that a report has."""
    made = []
    for text in texts:
        place, _, name = text.rpartition(" ") if ":" in text and " " in text else ("", "", text)
        file, _, line = place.rpartition(":")
        made.append(frame(name, int(line), file) if line.isdecimal() else frame(text, 0, "??"))
    return made


MODEL, ACTS = frames_of(*SORTED["parameters"][0]), frames_of(*FORWARD, "/home/me/train.py:20 loss")
GRADS, STATE = frames_of(*SORTED["gradients"][1]), frames_of(*SORTED["optimizer state"][0])
KEPT = frames_of(*C_FRAMES, "/home/me/train.py:31 main")


def train(
    *, passes: int = 8, acts_mb: int = 300, kept_mb: int = 0, expandable: bool = False, grads: object = GRADS
) -> SnapshotBuilder:
    """Play passes of a training: 40 MB of weights and gradients, 80 of state, and what stays of each pass."""
    made = SnapshotBuilder()
    alive = [(40 * MB, MODEL), (40 * MB, grads), (80 * MB, STATE), *[(kept_mb * MB, KEPT)] * (passes if kept_mb else 0)]
    made.segment(*((size, size, "active_allocated", stack) for size, stack in alive))
    made.segment((acts_mb * MB, 0, "inactive", []))
    base = [block["address"] for block in made.segments[0]["blocks"]]
    scratch = made.segments[1]["address"]
    made.event("alloc", base[0], 40 * MB, MODEL)
    for number in range(passes):
        made.event("alloc", scratch, acts_mb * MB, ACTS)
        if number:
            made.event("free_requested", base[1], 40 * MB, [])
        made.event("alloc", base[1], 40 * MB, grads)
        made.event("free_requested", scratch, acts_mb * MB, ACTS)
        if not number:
            made.event("alloc", base[2], 80 * MB, STATE)
        if kept_mb:
            made.event("alloc", base[3 + number], kept_mb * MB, KEPT)
    for segment in made.segments:
        segment["is_expandable"] = expandable
    return made


def device_of(made: SnapshotBuilder, tmp_path) -> DeviceSnapshot:
    return analyze_snapshots([made.write(tmp_path / "s.pickle")]).files[0].devices[0]


def test_categories_add_up_to_what_is_alive_and_to_the_peak(tmp_path):
    device = device_of(train(), tmp_path)
    held = {row.name: (row.live_bytes // MB, row.peak_bytes // MB) for row in device.categories}
    assert held == {"parameters": (40, 40), "gradients": (40, 40), "optimizer state": (80, 80), "activations": (0, 300)}
    assert sum(row.live_bytes for row in device.categories) == device.pieces.allocated_bytes
    assert sum(row.peak_bytes for row in device.categories) == device.peak.requested_bytes
    assert device.verdict.cause == "held"
    assert device.verdict.summary == "activations are 65 % of the peak, 300M, the most from /home/me/train.py:20 loss"
    assert device.verdict.try_this == REMEDIES["activations"]


def test_without_frames_of_c_a_thread_of_the_backward_pass_has_none_and_its_bytes_are_gradients(tmp_path):
    device = device_of(train(grads=[]), tmp_path)
    assert {row.name: row.live_bytes // MB for row in device.categories}["gradients"] == 40
    bare = SnapshotBuilder().segment((MB, MB, "active_allocated", []))
    found = device_of(bare, tmp_path)
    assert [(row.name, row.live_bytes) for row in found.categories] == [("untold", MB)]
    assert "_record_memory_history" in found.verdict.try_this
    assert isinstance(found.categories[0].peak_bytes, Missing)


@pytest.mark.parametrize(
    ("kept_mb", "passes", "cause"), [(10, 8, "grows"), (1, 8, "held"), (10, 3, "held"), (0, 8, "held")]
)
def test_one_more_block_with_each_pass_is_growth_and_its_line_is_named(kept_mb, passes, cause, tmp_path):
    verdict = device_of(train(kept_mb=kept_mb, passes=passes), tmp_path).verdict
    assert verdict.cause == cause
    if cause == "grows":
        assert "80.0M in 8 blocks stay" in verdict.summary
        assert "/home/me/train.py:31 main" in verdict.summary
        assert "loss.item()" in verdict.try_this


def test_layers_that_stay_until_the_backward_pass_are_no_growth(tmp_path):
    made = SnapshotBuilder()
    made.segment(*((10 * MB, 10 * MB, "active_allocated", KEPT) for _layer in range(20)))
    for block in made.segments[0]["blocks"]:
        made.event("alloc", block["address"], 10 * MB, KEPT)
    made.event("alloc", 5, MB, GRADS)
    assert device_of(made, tmp_path).verdict.cause == "held"


@pytest.mark.parametrize(
    ("asked_mb", "acts_mb", "expandable", "cause"),
    [(250, 300, False, "fragmented"), (250, 300, True, "full"), (900, 300, False, "full")],
)
def test_a_request_that_failed_beside_enough_free_memory_is_fragmentation(
    asked_mb, acts_mb, expandable, cause, tmp_path
):
    made = train(acts_mb=acts_mb, expandable=expandable)
    made.event("oom", 0, asked_mb * MB, ACTS, device_free=MB)
    verdict = device_of(made, tmp_path).verdict
    assert verdict.cause == cause
    assert verdict.summary.startswith(f"{asked_mb}M were asked for in vain; ")
    assert ("expandable_segments:True" in verdict.try_this) is (cause == "fragmented")


def test_what_is_free_when_a_request_fails_is_what_was_not_asked_for_then(tmp_path):
    """What the error itself freed on its way up was not free when the request failed."""
    made = train()
    scratch = made.segments[1]["address"]
    made.event("alloc", scratch, 300 * MB, ACTS)
    made.event("oom", 0, 250 * MB, ACTS, device_free=MB)
    made.event("free_requested", scratch, 300 * MB, [])
    device = device_of(made, tmp_path)
    assert device.pieces.free_bytes == 300 * MB
    assert (device.verdict.cause, device.verdict.try_this) == ("full", REMEDIES["activations"])


def test_what_the_allocator_gives_back_by_itself_is_not_out_of_reach(tmp_path):
    made = SnapshotBuilder()
    for size in (100, 200, 300):  # each alone in its segment: a request of 600 gets it all
        made.segment((size * MB, 0, "inactive", []))
    made.segment((10 * MB, 10 * MB, "active_allocated", MODEL), (50 * MB, 0, "inactive", []))
    pieces = device_of(made, tmp_path).pieces
    assert (pieces.releasable_bytes, pieces.stuck_bytes) == (600 * MB, 50 * MB)
    assert pieces.fragmentation_pct == pytest.approx(100 * 50 / 650)
    made.segments[-1]["is_expandable"] = True  # of which free pages go back, too
    pieces = device_of(made, tmp_path).pieces
    assert (pieces.releasable_bytes, pieces.stuck_bytes, pieces.fragmentation_pct) == (650 * MB, 0, 0)
    text = "\n".join(write_snapshots(analyze_snapshots([str(tmp_path / "s.pickle")]), 10))
    assert "650M the allocator gives back by itself" in " ".join(text.split())


def test_much_that_is_stuck_without_a_failed_request_is_fragmentation_too(tmp_path):
    made = SnapshotBuilder()
    for _segment in range(10):
        made.segment((10 * MB, 10 * MB, "active_allocated", MODEL), (20 * MB, 0, "inactive", []))
    verdict = device_of(made, tmp_path).verdict
    assert (verdict.cause, "expandable_segments:True" in verdict.try_this) == ("fragmented", True)


@pytest.mark.parametrize("pieces", [1, 4])
def test_what_the_peak_was_made_of_is_no_fragmentation_between_two_steps(pieces, tmp_path):
    """The activations of the last step are freed: the next one takes the same blocks again."""
    made = SnapshotBuilder()
    for _segment in range(pieces):
        made.segment((10 * MB, 10 * MB, "active_allocated", MODEL), (400 * MB, 0, "inactive", []))
    assert device_of(made, tmp_path).verdict.cause == ("held" if pieces == 1 else "fragmented")
    for segment in made.segments:
        made.event("alloc", segment["address"], 10 * MB, MODEL)
        made.event("alloc", segment["address"] + 10 * MB, 400 * MB, ACTS)
    for segment in made.segments:
        made.event("free_requested", segment["address"] + 10 * MB, 400 * MB, [])
        made.event("free_completed", segment["address"] + 10 * MB, 400 * MB, [])
    verdict = device_of(made, tmp_path).verdict
    assert (verdict.cause, verdict.try_this) == ("held", REMEDIES["activations"])
    scratch = [frame("softmax", 70), *ACTS]
    made = SnapshotBuilder().segment((10 * MB, 10 * MB, "active_allocated", ACTS), (400 * MB, 0, "inactive", []))
    base = made.segments[0]["address"]
    made.event("alloc", base, 10 * MB, ACTS).event("alloc", base + 10 * MB, 400 * MB, scratch)
    made.event("free_requested", base + 10 * MB, 400 * MB, []).event("free_completed", base + 10 * MB, 400 * MB, [])
    summary = device_of(made, tmp_path).verdict.summary
    assert summary.startswith("activations are 100 % of the peak")
    assert summary.endswith("train.py:70 softmax"), "not the line that holds most at the end"


def test_each_category_has_a_remedy_and_the_report_begins_with_the_verdict(tmp_path):
    assert set(REMEDIES) == set(CATEGORIES) - {"untold"}
    lines = write_snapshots(analyze_snapshots([train().write(tmp_path / "s.pickle")]), 10)
    text = "\n".join(lines)
    assert text.index("HELD: activations are 65 %") < text.index("460M reserved")
    assert "what GPU 0 holds" in text
