"""The reader of traces: generations, layouts, damage, and what is counted as lost."""

import gzip
import importlib
import importlib.util
import json
import random
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.snapshots import training
from tests.traces import BASE_US, HOST, V100, TraceBuilder
from tpmon.errors import TpmonError, UsageError
from tpmon.model.codec import encode
from tpmon.model.known import is_known
from tpmon.model.results.trace import TraceReport
from tpmon.report.trace import write_report
from tpmon.trace.analysis import analyze
from tpmon.trace.child import STEP, Marks, find_updates, summarize, write_marked
from tpmon.trace.reading import chunks
from tpmon.trace.reading.read import read_trace
from tpmon.trace.reading.schema import CallClass, class_of_call, is_comm_kernel, uses_tensor_cores
from tpmon.trace.reading.slice import choose_steps, write_slice
from tpmon.trace.reading.sources import are_snapshots, find_files, is_remote
from tpmon.trace.snapshot import analyze_snapshots


def small_trace() -> TraceBuilder:
    trace = TraceBuilder()
    for number in range(4):
        start = number * 1000
        trace.step(number, start, 990).loader(start, 100).op("aten::mm", start + 100, 500)
        trace.op("aten::empty", start + 110, 20).kernel(start + 200, 300, launch=start + 150, name="gemm")
        trace.add("user_annotation", "Optimizer.step#SGD.step", start + 700, 100)
        trace.memory(start + 120, 1024, 1024 * (number + 1))
    return trace


@pytest.mark.parametrize("name", ["rank3.json", "rank3.pt.trace.json.gz"])
def test_plain_and_packed_files_are_read_whole(name, tmp_path):
    trace = read_trace(small_trace().write(tmp_path / name, traceName="t"))
    assert trace.events == len(small_trace().events) == 32
    assert trace.phases == {"X": 28, "i": 4}
    assert [len(table.start) for table in (trace.host, trace.calls, trace.work)] == [12 + 8, 4, 4]
    assert (trace.rank, trace.header.trace_name) == (3, "t")
    assert [device.sms for device in trace.header.devices or []] == [80]
    assert (trace.lost.events, trace.lost.bytes, trace.lost.broken_off) == (0, 0, False)
    assert trace.host.start[0] == round(BASE_US * 1000)
    assert len(trace.memory.time) == 4
    bare = tmp_path / "list.json"
    for events in (small_trace().events, []):
        bare.write_text(json.dumps(events))
        assert read_trace(str(bare)).events == len(events)


def test_pieces_of_any_size_give_the_same(tmp_path, monkeypatch):
    path = small_trace().write(tmp_path / "t.json", after="x")
    whole = read_trace(path)
    for size in (300, 1000, 5000):
        monkeypatch.setattr(chunks, "PIECE_BYTES", size)
        monkeypatch.setattr(chunks, "READ_BYTES", max(size // 3, 1))
        again = read_trace(path)
        assert (again.phases, again.lost) == (whole.phases, whole.lost)
        assert again.host.start.tolist() == whole.host.start.tolist()


def test_what_stands_behind_the_events_is_read_too(tmp_path):
    distributed = {"backend": "nccl", "rank": 5, "world_size": 8}
    path = small_trace().write(
        tmp_path / "t.json", {"deviceProperties": []}, distributedInfo=distributed, deviceProperties=[V100, V100]
    )
    trace = read_trace(path)
    assert trace.rank == 5
    assert len(trace.header.devices or []) == 2
    assert (trace.events, trace.lost.events) == (32, 0)


@pytest.mark.parametrize("size", range(300, 3000, 150))
def test_cards_behind_the_events_survive_a_cut_between_them(size, tmp_path, monkeypatch):
    cards = [{**V100, "id": number, "name": f"card {number}"} for number in range(8)]
    path = TraceBuilder().step(0, 0, 10).write(tmp_path / "t.json", {}, tpmon_none=1, deviceProperties=cards)
    monkeypatch.setattr(chunks, "PIECE_BYTES", size)
    monkeypatch.setattr(chunks, "READ_BYTES", size // 3)
    trace = read_trace(path)
    assert [card.name for card in trace.header.devices or []] == [f"card {number}" for number in range(8)]
    assert (trace.events, trace.lost.values) == (1, 0)


def test_absolute_times_of_old_traces_stay_exact(tmp_path):
    trace = TraceBuilder(base_us=1623142623460072)
    for at in range(50):
        trace.add("Kernel", "k", at * 3, 3, pid=0, tid="stream 7", args={"correlation": at + 1})
    trace.add("Operator", "aten::mm", 0, 10, tid=str(HOST)).add("Runtime", "cudaLaunchKernel", 1, 2)
    read = read_trace(trace.write(tmp_path / "t.json"))
    assert read.work.start[1] - read.work.start[0] == 3000
    assert set(read.work.stream.tolist()) == {7}
    assert read.host.track[0] == read.calls.track[0]
    card = analyze([trace.write(tmp_path / "t.json")]).files[0].overview.gpus[0]
    assert card.kernel_busy_us == 150


def test_categories_that_are_not_known_are_kept_and_names_with_addresses_of_objects_are_one(tmp_path):
    trace = TraceBuilder().step(0, 0, 10).add("some_new_thing", "x", 1, 2)
    read = read_trace(trace.write(tmp_path / "t.json"))
    assert [read.names[name] for name in read.host.name] == ["ProfilerStep#0", "x"]
    trace = TraceBuilder().step(0, 0, 100)
    for at in range(20):
        trace.add("python_function", f"<built-in method f of type object at 0x7f{at:08x}>", at, 1)
    assert len(set(read_trace(trace.write(tmp_path / "t.json")).python.name.tolist())) == 1


def damage(text: str, old: str, new: str, times: int = 1) -> bytes:
    assert old in text
    return text.replace(old, new, times).encode()


@pytest.mark.parametrize(
    ("old", "new", "events", "values"),
    [
        ('"name": "aten::mm"', '"name": "lambda "x" at <y>"', 0, 0),
        ('"name": "aten::mm"', '"name": "a\x01b\nc"', 0, 0),
        ('"stream": 7', '"memory bandwidth (GB/s)": inf, "stream": 7', 0, 1),
        ('"correlation": 101', '"correlation": N/A', 0, 1),
        ('"correlation": 101', '"correlation": "101"', 0, 0),
        ('"correlation": 101', '"correlation": {"a": [1]}', 0, 1),
        *(
            ('"dur": 300', new, 1, 0)
            for new in ('"dur": NaN', '"dur": -50', '"x": 1', '"dur": "soon"', '"dur": -Infinity')
        ),
        ('"ts": 4356516282533.0', '"ts": 1e300', 1, 0),
        ('"ts": 4356516282533.0', '"ts": "soon"', 1, 0),
        ('"cat": "kernel"', '"cat": [], "x": }', 1, 0),
    ],
)
def test_damage_costs_its_own_event_at_most(old, new, events, values, tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(damage(small_trace().text(), old, new))
    trace = read_trace(str(path))
    assert (trace.lost.events, trace.lost.values, trace.lost.broken_off) == (events, values, False)
    kept = len(trace.host.start) + len(trace.calls.start) + len(trace.work.start)
    assert kept == 28 - events


def test_a_file_that_breaks_off_gives_what_is_there(tmp_path):
    text = small_trace().text().encode()
    path = tmp_path / "t.json"
    path.write_bytes(text[: len(text) // 2])
    trace = read_trace(str(path))
    assert trace.lost.broken_off
    assert 10 < trace.events < 25
    path.write_bytes(gzip.compress(text)[:-200])
    packed = read_trace(str(path))
    assert packed.lost.broken_off
    assert packed.lost.reason == "the gzip file breaks off"
    assert "the file is not whole" in "\n".join(write_report(analyze([str(path)])))


@pytest.mark.parametrize("data", [b"", b"hello", b"{}", b'{"a": 1}', b"\x1f\x8b", b"\x80\x04\x95K", b"[1, 2]"])
def test_what_is_no_trace_or_not_there_is_refused_with_its_name(data, tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(data)
    for name, said in (("t.json", r"t\.json"), ("none.json", "No such file"), ("", "directory")):
        with pytest.raises(UsageError, match=said):
            read_trace(str(tmp_path / name))


def test_escape_sequences_never_reach_the_terminal(tmp_path):
    trace = small_trace().op("evil\x1b[2J\u202e", 650, 300)
    lines = write_report(analyze([trace.write(tmp_path / "t.json")]))
    assert "evil" in "\n".join(lines)
    assert all(line.isprintable() for line in lines if line)


def test_the_summary_of_a_capture(tmp_path):
    summary = summarize(small_trace().write(tmp_path / "t.json"))
    assert (summary.steps, summary.kernels, summary.lost.broken_off) == (4, 4, False)
    assert summary.step_ms == pytest.approx(0.99)
    assert (summary.split_us.kernel, summary.split_us.data_loader) == (300, 100)
    told = [(row.name, row.host_total_us, row.host_self_us, row.device_self_us) for row in summary.operators]
    assert told[0] == ("aten::mm", 2000, 1920, 1200)
    assert [name for name, *_ in told] == ["aten::mm", "aten::empty"]


HOSTILE = (
    b'"' * 3,
    b"\x00\xff\xfe",
    b"[" * 2000,
    b'{"a":' * 500,
    b"1e999",
    b"NaN",
    b"-9223372036854775809",
    b'"' + b"x" * 100_000 + b'"',
    b"}]",
    b"null",
)


def mutate(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _time in range(chance.randint(1, 6)):
        at = chance.randrange(len(out))
        kind = chance.randrange(4)
        if kind == 0:
            out[at : at + chance.randint(1, 40)] = chance.choice(HOSTILE)
        elif kind == 1:
            del out[at : at + chance.randint(1, 400)]
        elif kind == 2:
            out[at] = chance.randrange(256)
        else:
            digits = chance.choice((b"-1", b"1e308", b"99999999999999999999", b'"7"', b"[]"))
            colon = out.find(b": ", at)
            out[colon + 2 : colon + 4] = digits
    return bytes(out[: chance.randint(len(out) // 3, len(out))] if chance.random() < 0.2 else out)


def whole() -> bytes:
    return small_trace().text({"distributedInfo": {"rank": 0}}, {"traceName": "x"}).encode()


def check_report(report: TraceReport) -> None:
    encode(report)
    write_report(report)
    for file in report.files:
        for gaps in file.gaps:
            assert sum(us for _cause, us in gaps.causes()) == pytest.approx(gaps.idle, abs=1)
        assert all(is_known(card.utilization_pct) for card in file.overview.gpus)


@pytest.mark.parametrize("seed", [*range(80), *(pytest.param(at, marks=pytest.mark.long) for at in range(1000, 2000))])
def test_mutated_files_give_an_error_or_a_report(seed, tmp_path):
    """A clear error or a whole report, whatever the bytes are."""
    data, path = mutate(whole(), random.Random(seed)), tmp_path / "t.json"
    path.write_bytes(gzip.compress(data, 1) if seed % 4 == 0 else data)
    said = "t.json"
    try:
        check_report(analyze([str(path)]))
    except TpmonError as error:
        said = error.what
    assert "t.json" in said


@pytest.mark.parametrize("value", [2**31, 2**63, -(10**30), 10**400])
def test_numbers_that_no_column_holds_are_counted(value, tmp_path):
    trace = small_trace()
    trace.memory(5.0, value, value)
    trace.kernel(10, 5, launch=8)
    changed = {"correlation": value, "device": value, "stream": value, "bytes": value}
    trace.events[-1]["args"].update(changed)
    card = {**V100, "maxThreadsPerMultiprocessor": value}
    report = analyze([trace.write(tmp_path / "t.json", {"deviceProperties": [card]})])
    check_report(report)
    assert report.files[0].lost.values >= 2


@pytest.mark.parametrize("types", [7, True, None, {"a": 1}])
def test_types_of_inputs_that_are_no_list_say_nothing(types, tmp_path):
    trace = TraceBuilder().step(1, 0, 100)
    trace.op("aten::mm", 0, 90, **{"Input Dims": [[8, 8], [8, 8]], "Input type": types})
    check_report(analyze([trace.write(tmp_path / "t.json")]))


def test_times_at_both_ends_of_what_fits_give_no_negative_time(tmp_path):
    trace = TraceBuilder(0.0).step(1, 0, 100).kernel(10, 5, launch=8).op("aten::mm", 0, 90)
    trace.op("aten::mm", 4.5e15, 1e10).op("aten::add", -4.5e15, 10).op("aten::mul", 9e15, 4e15)
    report = analyze([trace.write(tmp_path / "t.json")])
    check_report(report)
    overview = report.files[0].overview
    assert report.files[0].lost.events == 1
    assert min(overview.step_ms, overview.window_us, overview.breakdown_us.other) >= 0


# what names of kernels and calls stand for

COMMUNICATE = (
    "multimem_one_shot_all_reduce_kernel",
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)",
    "multimem_all_gather_kernel",
    "allreduce_fusion_kernel_oneshot_lamport",
    "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int)",
    "mscclKernel_Sum_half_Simple_false",
    "void quickreduce::allreduce_prototype_twoshot<__half>",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16>",
    "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel",
    "void aiter::reduce_scatter_cross_device_store<>",
    "void lamport_style_kernel",
)
CALLS = {
    CallClass.EXPLICIT: ("urEventWait", "zeEventHostSynchronize", "cudaStreamSynchronize"),
    CallClass.IMPLICIT: ("zeModuleCreate", "hipModuleLoadData"),
    CallClass.ALLOCATOR: ("zeMemAllocDevice", "urUSMDeviceAlloc", "urUSMFree", "hipFree"),
    CallClass.LAUNCH: (
        *("urEnqueueEventsWait", "urEnqueueKernelLaunch", "hipModuleLaunchKernel"),
        "hipModuleLaunchCooperativeKernel",
    ),
}
TENSOR_CORES = {
    "yes": (
        "void marlin::Marlin<__nv_bfloat16, 1125899906909960l, 256, 1, 8>",
        "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_tensor16x8x8",
        *("flash_fwd_kernel", "bmm_Bfloat16_E4m3", "Cijk_Ailk_Bljk_MI16x16x16"),
    ),
    "no": (
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)",
        "void cutlass::Kernel<cutlass::reduction::kernel::ReduceSplitK<x>>",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4",
        "cutlass_80_simt_sgemm_128x64_8x5_tn_align1",
        "void marlin::gptq_marlin_repack_kernel<256, 4, false>",
        "void vllm::moe::moe_align_block_size_kernel<int>",
        "triton_poi_fused_add_0",
        "multimem_one_shot_all_reduce_kernel",
        "void at::native::vectorized_elementwise_kernel<4>(int)",
    ),
    "unknown": (
        *("fused_moe_kernel", "_fwd_kernel", "void mha_fwd_kernel<128>(Params)"),
        "chunk_gated_delta_rule_h_blockdim64",
    ),
}


def test_kernels_of_symmetric_memory_communicate():
    others = ("gemm_one_shot_all_reduce_kernel", "gemm_oneshot_allreduce_kernel", "reduce_kernel")
    assert tuple(name for name in (*COMMUNICATE, *others) if is_comm_kernel(name)) == COMMUNICATE


@pytest.mark.parametrize("kind", CALLS)
def test_calls_of_level_zero_and_unified_runtime_are_told_apart(kind):
    assert {name: class_of_call(name) for name in CALLS[kind]} == dict.fromkeys(CALLS[kind], kind)


@pytest.mark.parametrize("answer", TENSOR_CORES)
def test_a_name_that_does_not_tell_tensor_cores_is_unknown(answer):
    names = TENSOR_CORES[answer]
    assert {name: uses_tensor_cores(name) for name in names} == dict.fromkeys(names, answer)


# which updates of optimizers end a step, in traces that mark none

NODE = "autograd::engine::evaluate_function: MulBackward0"


def update(trace: TraceBuilder, name: str, start: float, length: float = 50) -> None:
    trace.add("user_annotation", f"Optimizer.step#{name}.step", start, length)


def find(tmp_path: Path, updates: list[tuple[str, float]], nodes: list[float], length: float = 100) -> Marks:
    """Find the steps of a loop with these updates, and nodes of the backward pass of a length."""
    trace = TraceBuilder(base_us=0).op("aten::mm", 0, 100)
    for start in nodes:
        trace.op(NODE, start, length)
    for name, start in updates:
        update(trace, name, start)
    return find_updates(read_trace(trace.write(tmp_path / "t.json")), 20)


PAIRS = [(name, at + start) for at in range(0, 4000, 1000) for name, start in (("Muon", 800), ("AdamW", 860))]
NETWORKS = [("Adam" if at % 4000 == 3000 else "RMSprop", at + 800) for at in range(0, 16_000, 1000)]
EIGHTS = [("SGD", number * 1000 + 400 + at * 60) for number in range(3) for at in range(8)]


@pytest.mark.parametrize(
    ("updates", "nodes", "ends"),
    [
        pytest.param(PAIRS, [], range(910, 4000, 1000), id="two optimizers without a backward pass"),
        pytest.param(PAIRS, [500, 1500, 2500, 3500], range(910, 4000, 1000), id="two optimizers"),
        pytest.param(PAIRS[1:], [], range(910, 4000, 1000), id="two optimizers, the first update cut off"),
        pytest.param(PAIRS[1:], [500, 1500, 2500, 3500], range(910, 4000, 1000), id="the same with a backward pass"),
        pytest.param(NETWORKS, [*range(500, 16_000, 1000)], range(3850, 16_000, 4000), id="three updates of a critic"),
        pytest.param(EIGHTS, [300, 1300, 2300], range(870, 3000, 1000), id="updates one after the other"),
    ],
)
def test_a_step_ends_once(updates, nodes, ends, tmp_path):
    assert [step[1] for step in find(tmp_path, updates, nodes).steps] == [1000 * end for end in ends]


def test_updates_within_the_backward_pass_are_no_steps_and_a_recording_begins_with_a_whole_one(tmp_path):
    marks = find(tmp_path, [("AdamW", at + 20) for at in range(0, 2000, 100)], [*range(0, 2000, 100)], 90)
    assert (marks.steps, "within the backward pass" in marks.why) == ((), True)
    steps = find(tmp_path, [("AdamW", 150), *PAIRS[:6]], [500, 1500, 2500]).steps
    assert [step[0] for step in steps] == [200_000, 910_000, 1_910_000]


def test_marks_of_neighbours_touch_and_hold_their_updates_also_in_doubles(tmp_path):
    """TensorBoard's plugin drops a range that begins 1 ns before the one before it ends."""
    trace = TraceBuilder(base_us=BASE_US + 0.818).op("aten::mm", 0, 100)
    for number in range(500):
        trace.op(NODE, number * 1000.137 + 500, 100.01)
        update(trace, "SGD", number * 1000.137 + 800.003, 50.011)
    source, target = trace.write(tmp_path / "t.json"), tmp_path / "marked.json.gz"
    assert write_marked(str(source), str(target), 600).marks == 500
    events = json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]
    ends = {
        kind: [(one["ts"], one["ts"] + one["dur"]) for one in events if one["name"].startswith(kind)]
        for kind in (STEP, "Optimizer.step#")
    }
    steps = ends[STEP]
    assert steps[0][0] < min(one["ts"] for one in events if one["name"] == "aten::mm")
    assert [end for _, end in steps[:-1]] == [start for start, _ in steps[1:]]
    assert all(end <= step_end for (_, end), (_, step_end) in zip(ends["Optimizer.step#"], steps, strict=True))


# object stores: a real local S3 server where moto is here, and clear words where the extra is not

HAS_MOTO = all(importlib.util.find_spec(name) for name in ("moto", "flask", "s3fs", "boto3"))
needs_moto = pytest.mark.skipif(not HAS_MOTO, reason="no moto server here: pip install -e '.[cloud-test]'")


def test_only_stores_are_remote():
    assert all(map(is_remote, ("s3://b/t.json", "gs://b/t.json", "abfs://c@a.dfs/t.json", "az://c/t")))
    assert not any(map(is_remote, ("s3:/b", "/tmp/s3://x", "t.json", "file:///t.json", "https://x/t.json", "s3")))


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfs"])
def test_a_store_without_its_package_names_the_extra(scheme, monkeypatch):
    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=ImportError("No module named 's3fs'")))
    with pytest.raises(UsageError, match=f"{scheme}:// needs the extra cloud") as error:
        read_trace(f"{scheme}://bucket/rank0.json")
    assert "'.[cloud]'" in error.value.try_this


@pytest.fixture
def store(monkeypatch):
    """Start an S3 server on this machine, and give a client of it."""
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    for key, value in (
        ("AWS_ENDPOINT_URL", url),
        ("AWS_ACCESS_KEY_ID", "nobody"),
        ("AWS_SECRET_ACCESS_KEY", "nothing"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_CONFIG_FILE", "/dev/null"),
    ):
        monkeypatch.setenv(key, value)
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client("s3", endpoint_url=url)
    client.create_bucket(Bucket="runs")
    yield client
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@needs_moto
def test_traces_in_a_bucket_are_read_like_files(store, tmp_path):
    for rank in range(2):
        built = TraceBuilder()
        for number in range(3):
            built.step(number, number * 100, 90).op("aten::mm", number * 100, 50)
        path = Path(built.write(tmp_path / f"rank{rank}.json.gz"))
        store.put_object(Bucket="runs", Key=f"night/rank{rank}.json.gz", Body=path.read_bytes())
    snapshot = Path(training().write(tmp_path / "s.pickle")).read_bytes()
    store.put_object(Bucket="runs", Key="night/s.pickle", Body=snapshot)
    store.put_object(Bucket="runs", Key="night/broken.json", Body=b"{}")
    names = [f"s3://runs/night/rank{rank}.json.gz" for rank in range(2)]
    assert find_files(["s3://runs/night/rank*.gz"]) == names
    assert find_files(["s3://runs/night"]) == ["s3://runs/night/broken.json", *names]
    report = analyze(names)
    assert [file.rank for file in report.files] == [0, 1]
    assert [file.overview.steps for file in report.files] == [3, 3]
    assert report.files[0].file_bytes == (tmp_path / "rank0.json.gz").stat().st_size
    assert are_snapshots(["s3://runs/night/s.pickle"])
    assert analyze_snapshots(["s3://runs/night/s.pickle"]).files[0].file_bytes == len(snapshot)
    choice = choose_steps(read_trace(names[1]), "1")
    write_slice(names[1], str(tmp_path / "part.json"), choice)
    assert analyze([str(tmp_path / "part.json")]).files[0].overview.steps == 1
    for wrong in ("s3://runs/night/none.json", "s3://none/t.json", "s3://runs/night/broken.json"):
        with pytest.raises(UsageError, match=wrong):
            read_trace(wrong)
    with pytest.raises(UsageError, match="nothing matches"):
        find_files(["s3://runs/x*.json"])
