"""The reader of traces: generations, layouts, damage, and what is counted as lost."""

import gzip
import json
import random
from pathlib import Path

import pytest

from tests.traces import BASE_US, HOST, V100, TraceBuilder
from tpmon.errors import TpmonError, UsageError
from tpmon.model.codec import encode
from tpmon.model.known import is_known
from tpmon.model.results.trace import TraceReport
from tpmon.report.trace import write_report
from tpmon.trace.analysis import analyze
from tpmon.trace.child import summarize
from tpmon.trace.reading import chunks
from tpmon.trace.reading.read import read_trace


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
    assert trace.events == len(small_trace().events)
    assert trace.phases == {"X": 28, "i": 4}
    assert [len(table.start) for table in (trace.host, trace.calls, trace.work)] == [12 + 8, 4, 4]
    assert (trace.rank, trace.header.trace_name) == (3, "t")
    assert [device.sms for device in trace.header.devices or []] == [80]
    assert (trace.lost.events, trace.lost.bytes, trace.lost.broken_off) == (0, 0, False)
    assert trace.host.start[0] == round(BASE_US * 1000)
    assert len(trace.memory.time) == 4


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


def test_a_bare_list_of_events_is_a_trace(tmp_path):
    path = tmp_path / "list.json"
    path.write_text(json.dumps(small_trace().events))
    assert read_trace(str(path)).events == 32
    path.write_text("[]")
    assert read_trace(str(path)).events == 0


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


def test_categories_that_are_not_known_are_kept(tmp_path):
    trace = TraceBuilder().step(0, 0, 10).add("some_new_thing", "x", 1, 2)
    read = read_trace(trace.write(tmp_path / "t.json"))
    assert [read.names[name] for name in read.host.name] == ["ProfilerStep#0", "x"]


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
def test_what_is_no_trace_is_refused_with_its_name(data, tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"t\.json"):
        read_trace(str(path))


def test_a_file_that_is_not_there_or_not_readable_is_said(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_trace(str(tmp_path / "none.json"))
    with pytest.raises(UsageError, match="directory"):
        read_trace(str(tmp_path))


def test_escape_sequences_never_reach_the_terminal(tmp_path):
    trace = small_trace().op("evil\x1b[2J\u202e", 650, 300)
    lines = write_report(analyze([trace.write(tmp_path / "t.json")]))
    assert "evil" in "\n".join(lines)
    assert all(line.isprintable() for line in lines if line)


def test_the_summary_of_a_capture(tmp_path):
    summary = summarize(small_trace().write(tmp_path / "t.json"))
    assert (summary.steps, summary.kernels) == (4, 4)
    assert summary.step_ms == pytest.approx(0.99)
    assert summary.split_us.kernel == 300
    assert summary.split_us.data_loader == 100
    assert [row.name for row in summary.operators] == ["aten::mm", "aten::empty"]
    assert (summary.operators[0].host_total_us, summary.operators[0].host_self_us) == (2000, 1920)
    assert summary.operators[0].device_self_us == 1200
    assert not summary.lost.broken_off


def test_names_with_addresses_of_objects_are_one_name(tmp_path):
    trace = TraceBuilder().step(0, 0, 100)
    for at in range(20):
        trace.add("python_function", f"<built-in method f of type object at 0x7f{at:08x}>", at, 1)
    assert len(set(read_trace(trace.write(tmp_path / "t.json")).python.name.tolist())) == 1


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


def survive(path: Path, data: bytes) -> None:
    """Analyse hostile bytes: a clear error or a whole report, whatever they are."""
    path.write_bytes(data)
    said = "t.json"
    try:
        check_report(analyze([str(path)]))
    except TpmonError as error:
        said = error.what
    assert "t.json" in said


def check_report(report: TraceReport) -> None:
    encode(report)
    write_report(report)
    for file in report.files:
        for gaps in file.gaps:
            assert sum(us for _cause, us in gaps.causes()) == pytest.approx(gaps.idle, abs=1)
        assert all(is_known(card.utilization_pct) for card in file.overview.gpus)


@pytest.mark.parametrize("seed", [*range(80), *(pytest.param(at, marks=pytest.mark.long) for at in range(1000, 2000))])
def test_mutated_files_give_an_error_or_a_report(seed, tmp_path):
    data = mutate(
        small_trace().text({"distributedInfo": {"rank": 0}}, {"traceName": "x"}).encode(), random.Random(seed)
    )
    survive(tmp_path / "t.json", gzip.compress(data, 1) if seed % 4 == 0 else data)


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
