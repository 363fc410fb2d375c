"""Parts of a trace decoded in several processes, numbers written as texts, and files that are no trace."""

import json
import os
import sqlite3
import zipfile
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.traces import V100, TraceBuilder
from tpmon.commands.trace import TraceOptions, choose_jobs, run_trace
from tpmon.errors import UsageError
from tpmon.model.known import NOT_APPLICABLE
from tpmon.report.trace import write_report
from tpmon.trace.analysis import analyze
from tpmon.trace.reading import chunks, parts
from tpmon.trace.reading.foreign import KINDS
from tpmon.trace.reading.read import Trace, read_trace

TABLES = ("host", "calls", "work", "python", "memory")
LISTS = {"name": "names", "track": "tracks", "shape": "shapes", "launch": "launches", "collective": "collectives"}


def a_training(steps: int = 12) -> TraceBuilder:
    """Make a trace with every kind of row; names, threads and shapes differ from step to step."""
    trace = TraceBuilder()
    for number in range(steps):
        at = number * 1000
        shapes = {"Input Dims": [[number, 8], [8, 8]], "Input type": ["float", "float"]}
        trace.step(number, at, 990).op(f"aten::op{number % 5}", at + 100, 500, **shapes)
        launch = {"grid": [number + 1, 1, 1], "block": [128, 1, 1], "registers per thread": 32}
        trace.kernel(at + 200, 300, launch=at + 150, name=f"kernel_{number % 7}", **launch)
        said = {"Collective name": "allreduce", "Seq": number, "Process Group Name": "0"}
        trace.kernel(at + 600, 50, launch=at + 160, name="ncclDevKernel_AllReduce", **said)
        trace.add("python_function", f"train.py({number}): step", at, 900, tid=number)
        trace.memory(at + 120, 1024, 1024 * (number + 1))
    return trace


def unfold(trace: Trace) -> list[object]:
    """Return everything that a trace holds, with the values that its numbers stand for."""
    columns: list[object] = [trace.phases, trace.events, trace.lost, trace.rank, trace.json_bytes]
    for table in (getattr(trace, name) for name in TABLES):
        for column in type(table).__dataclass_fields__:
            values = getattr(table, column).tolist()
            kept = [*getattr(trace, LISTS[column]), None] if column in LISTS else []
            columns.append([repr(kept[value]) for value in values] if kept else values)
    return columns


def same(one: Trace, other: Trace) -> bool:
    return unfold(one) == unfold(other)


@pytest.mark.parametrize("count", [2, 3, 7, 40])
@pytest.mark.parametrize("beside", [{}, {"deviceProperties": [{**V100, "id": at} for at in range(30)]}])
def test_parts_decoded_apart_give_the_same_tables(count, beside, tmp_path, monkeypatch):
    """Cards stand before and behind the events: a part may begin in them."""
    monkeypatch.setattr(chunks, "PIECE_BYTES", 3000)
    monkeypatch.setattr(chunks, "READ_BYTES", 1000)
    path = a_training().write(tmp_path / "t.json", {"deviceProperties": [V100] * 20}, **beside)
    whole = read_trace(path)
    assert len(whole.header.devices or []) == (30 if beside else 20)
    found = read_trace(path, jobs=lambda _size: count)
    assert same(whole, found)
    assert [card.id for card in found.header.devices or []] == [card.id for card in whole.header.devices or []]


@pytest.mark.parametrize("count", [2, 5])
def test_damage_costs_the_same_in_parts(count, tmp_path):
    text = a_training().text()
    path = tmp_path / "t.json"
    for damaged in (text[:-2000], text.replace('"dur": 300', '"dur": "soon"'), text.replace("kernel_3", 'a "b" c')):
        path.write_text(damaged)
        assert same(read_trace(str(path)), read_trace(str(path), jobs=lambda _size: count))


def test_a_part_whose_process_is_killed_or_does_not_start_is_decoded_here(tmp_path, monkeypatch):
    path = a_training().write(tmp_path / "t.json")
    whole = read_trace(path)
    own = os.getpid()
    decode = parts._decode_part

    def die_in_a_child(*given):
        if os.getpid() != own:
            os.kill(os.getpid(), 9)
        return decode(*given)

    monkeypatch.setattr(parts, "_decode_part", die_in_a_child)
    assert same(whole, read_trace(path, jobs=lambda _size: 3))

    def refuse():
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    assert same(whole, read_trace(path, jobs=lambda _size: 3))


def test_no_child_is_left_whatever_happens(tmp_path):
    path = a_training(200).write(tmp_path / "t.json")

    def stop(_done, _whole):
        raise KeyboardInterrupt

    before = psutil.Process().children()  # other tests may have left some
    with pytest.raises(KeyboardInterrupt):
        read_trace(path, stop, lambda _size: 4)
    assert [one for one in psutil.Process().children() if one not in before] == []


def test_small_and_packed_files_are_decoded_in_one_process(tmp_path, monkeypatch):
    assert choose_jobs(TraceOptions())(99_000_000) == 1
    with pytest.raises(UsageError, match="--jobs takes a number from 1 to 64"):
        choose_jobs(TraceOptions(jobs="many"))
    packed = a_training().write(tmp_path / "t.json.gz")
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("no process is wanted"))
    assert read_trace(packed, jobs=lambda _size: 4).events == len(a_training().events)


@pytest.mark.parametrize("free", [0, 1, 6, 64])
def test_no_more_processes_than_cores_are_free(free, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    monkeypatch.setattr(os, "getloadavg", lambda: (64.0 - free, 0.0, 0.0))
    monkeypatch.setattr("tpmon.probe.host.cgroup.read_quota", lambda _group: NOT_APPLICABLE)
    monkeypatch.setattr("tpmon.probe.host.cgroup.read_affinity", lambda *_given: 64)
    monkeypatch.setattr("tpmon.probe.host.machine.read_memory_left", lambda _pid: 1 << 40)
    assert choose_jobs(TraceOptions())(1_000_000_000) == max(min(free, 10), 1)


# numbers that ROCm writes as texts


def test_numbers_that_are_texts_are_read_on_the_fast_path(tmp_path, monkeypatch):
    trace = TraceBuilder().step(0, 0, 1000)
    for at in range(50):
        trace.kernel(at * 10, 5, launch=at * 10 - 5, name="Memcpy HtoD", category="gpu_memcpy", bytes=1024, stream=31)
    plain = read_trace(trace.write(tmp_path / "plain.json"))
    for event in trace.events:
        for key, write in (("bytes", str), ("stream", hex), ("device", str), ("correlation", str)):
            if key in event["args"]:
                event["args"][key] = write(event["args"][key])
    path = trace.write(tmp_path / "texts.json")
    monkeypatch.setattr(chunks, "read_pieces", lambda *_given: pytest.fail("event by event"))
    texts = read_trace(path)
    assert texts.lost == plain.lost
    assert all(
        np.array_equal(getattr(texts.work, name), getattr(plain.work, name))
        for name in ("device", "stream", "moved_bytes", "correlation", "call", "start")
    )
    assert set(texts.work.stream.tolist()) == {31}


@pytest.mark.parametrize("value", ["", "N/A", "many", "-5", "0xzz"])
def test_a_text_that_is_no_number_costs_no_event(value, tmp_path):
    trace = TraceBuilder().step(0, 0, 1000).kernel(10, 5, launch=5, bytes=value, stream=value, device=value)
    found = read_trace(trace.write(tmp_path / "t.json"))
    assert (len(found.work.start), found.lost.events) == (1, 0)
    assert (found.work.moved_bytes.tolist(), found.work.device.tolist()) in (([0], [0]), ([0], [5]))


# names in full


def test_names_that_differ_at_their_end_are_two_rows(tmp_path):
    same_begin = "void cutlass::Kernel<" + "Shape<128, 64>, " * 400
    trace = TraceBuilder().step(0, 0, 1000)
    for at, end in enumerate(("float>", "half>")):
        trace.op(same_begin + end, at * 100, 50).kernel(
            at * 100 + 10, 30 + at, launch=at * 100 + 5, name=same_begin + end
        )
    file = trace.analyse(tmp_path)
    assert sorted(row.total_us for row in file.kernels) == [30, 31]
    assert {row.name for row in file.kernels} == {same_begin + end for end in ("float>", "half>")}
    assert len({row.name for row in file.operators}) == 2
    assert max(map(len, write_report(analyze([file.path])))) < 1000, "the text cuts them"


# files that are no trace: what each is, in one line

SAID = {
    '{"rocprofiler-sdk-tool": [{"metadata": {}, "buffer_records": {"kernel_dispatch": []}}]}': "rocprofv3",
    '{\n    "rocprofiler-sdk-tool": [\n        {': "rocprofv3",
    '{"schema": "tpmon.trace/1", "files": []}': "tpmon itself",
    '{"$schema": "https://www.speedscope.app/file-format-schema.json", "shared": {}}': "speedscope",
    '{"schema": "1.1.1-chakra.0.0.4", "pid": 4, "nodes": []}': "Chakra",
    '{"cells": [], "metadata": {}, "nbformat": 4}': "notebook",
    '{"model_type": "bert", "hidden_size": 768}': "configuration of a model",
    '{"learning_rate": 0.1, "epochs": 3}': r"keys: learning_rate, epochs\)",
    '{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1}': r"keys: a, b, c, d, e, f, \.\.\.",
    "{}": "an empty JSON object",
    '{"a": 1}\n{"a": 2}\n': "JSON of something else, or not whole",
    "[1, 2, 3]": "a JSON list of something else",
    '[{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]': "a JSON list of something else: no item has a ph",
    '[{"input": "x", "label": 0}]': "a JSON list of something else",
    "hello": "no JSON",
    "": "the file is empty",
    "\x0a\x05\x01\x02\x03": "pftrace",
}


@pytest.mark.parametrize("text", SAID)
def test_what_is_no_trace_is_refused_in_one_line_that_says_what_it_is(text, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=SAID[text]) as refused:
        read_trace(str(path))
    assert refused.value.what.startswith(f"{path}: ")
    assert "\n" not in refused.value.what + refused.value.try_this
    packed = tmp_path / "other.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(path)
    with pytest.raises(UsageError, match="ZIP"):
        read_trace(str(packed))


def test_a_database_and_the_json_of_rocprofv3_name_the_command_that_makes_a_trace(tmp_path):
    with sqlite3.connect(tmp_path / "results.db") as database:
        database.execute("create table rocpd_kernel (id integer)")
    (tmp_path / "results.json").write_text(next(iter(SAID)))
    for name in ("results.db", "results.json"):
        with pytest.raises(UsageError, match="rocprofv3") as refused:
            read_trace(str(tmp_path / name))
        assert "tpmon capture PID" in refused.value.try_this
    assert len({row.known_by for row in KINDS}) == len(KINDS)


def test_events_that_begin_and_end_apart_are_named_as_such(tmp_path):
    apart = [{"ph": ph, "name": "f", "cat": "c", "pid": 1, "tid": 1, "ts": ts} for ph, ts in (("B", 1), ("E", 5))]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": apart * 3}))
    with pytest.raises(UsageError, match="its 6 events begin and end apart"):
        read_trace(str(path))
    trace = TraceBuilder().step(0, 0, 10).op("aten::mm", 0, 5)
    trace.events += apart
    report = analyze([trace.write(path)])
    assert (report.files[0].lost.events, report.files[0].lost.apart) == (2, 2)
    text = " ".join(" ".join(write_report(report)).split())
    assert "2 of them begin and end apart (ph B and E): another tracer wrote them" in text


OF_OTHERS = {
    "viztracer": {"cat": "FEE", "name": "main (train.py:3)"},
    "JAX": {"name": "fusion.3", "args": {"hlo_module": "jit_step"}},
    "Chrome": {"cat": "devtools.timeline", "name": "RunTask"},
    "V8": {"cat": "v8", "name": "v8::run"},
    "C++": {"name": "std::thread::run"},
    "unknown": {"name": "fbgemm_lookup"},
}


@pytest.mark.parametrize("tracer", OF_OTHERS)
def test_whole_events_of_another_tracer_are_no_trace(tracer, tmp_path):
    events = [{"ph": "X", "pid": 1, "tid": 1, "ts": at * 10, "dur": 5, **OF_OTHERS[tracer]} for at in range(2000)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}))
    with pytest.raises(UsageError, match=r"none of its events has a category or a name of torch\.profiler"):
        read_trace(str(path))
    for name in ("aten::mm", "torchvision::nms", "_c10d_functional::all_reduce", "ProfilerStep#3", "MmBackward0"):
        mine = {"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 5, "name": name}
        path.write_text(json.dumps([*events, mine]))
        assert read_trace(str(path)).events == 2001


def test_empty_lists_of_events_are_traces_and_a_directory_leaves_others_out(tmp_path, capfd):
    for name, text in (("a.json", "[]"), ("b.json", '{"traceEvents": []}'), ("c.json", '[{"id": 1}]')):
        (tmp_path / name).write_text(text)
    assert run_trace(TraceOptions((str(tmp_path),), csv="steps")) == 0
    assert "c.json: the file is no trace of torch.profiler" in capfd.readouterr().err


def test_the_options_that_a_snapshot_has_not_are_refused(tmp_path):
    path = Path(tmp_path / "s.pickle")
    path.write_bytes(b"\x80\x04}.")
    with pytest.raises(UsageError, match="--jobs is for traces"):
        run_trace(TraceOptions((str(path),), jobs="2"))
