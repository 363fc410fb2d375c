"""What a trace may take of memory and time: caps that hold, and what is beyond them told as lost."""

import gzip
import io
import json
import os
import random
import time
import zlib
from pathlib import Path

import pytest

from tests.trace.reading.test_trace_read import small_trace
from tests.traces import TraceBuilder
from tpmon.errors import UsageError
from tpmon.report.trace import write_report
from tpmon.trace.analysis import analyze
from tpmon.trace.figures.operators import MOST_INPUTS, MOST_SIZES, parse_inputs
from tpmon.trace.figures.program import read_folders
from tpmon.trace.figures.steps import find_steps
from tpmon.trace.reading import chunks, columns
from tpmon.trace.reading.read import Trace, read_trace
from tpmon.trace.reading.sources import find_files, is_snapshot

MB = 1 << 20


def read(path: Path, data: bytes) -> Trace:
    path.write_bytes(data)
    return read_trace(str(path))


def event(number: int, args: dict[str, object] | None = None, **more: object) -> dict[str, object]:
    plain = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1000 + 10 * number}
    return {**plain, "dur": 5, **more, "args": args or {}}


def dump(events: list[dict[str, object]]) -> bytes:
    return json.dumps({"traceEvents": events}).encode()


def test_one_event_never_takes_more_than_its_cap(monkeypatch):
    monkeypatch.setattr(chunks, "EVENT_BYTES", 4 * MB)
    first, last = json.dumps(event(1)).encode(), json.dumps(event(2)).encode()
    filler = [b"a" * MB] * 40
    fed = [b'{"traceEvents": [', first, b', {"ph": "X", "name": "', *filler, b'"}, ', last, b"]}"]
    pieces = chunks.FilePieces(chunks.ByteSource(io.BytesIO(b"".join(fed))))
    given = [*pieces]
    assert max(map(len, given)) < 6 * MB
    assert pieces.dropped_bytes + sum(map(len, given)) > 40 * MB
    assert last in given[-1]


@pytest.mark.parametrize("filler", [b" ", b"a", b"{", b'"'])
def test_what_is_dropped_is_counted_and_spaces_are_nothing(filler, tmp_path):
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    parts = [
        packer.compress(b'{"traceEvents": ['),
        *(packer.compress(filler * MB) for _mb in range(100)),
        packer.compress(b"]}"),
    ]
    path = tmp_path / "t.json.gz"
    path.write_bytes(b"".join([*parts, packer.flush()]))
    began = time.process_time()
    if filler == b" ":
        lost = read_trace(str(path)).lost
        assert (lost.bytes, lost.broken_off) == (0, False)
    else:
        with pytest.raises(UsageError, match="none of its events"):
            read_trace(str(path))
    assert time.process_time() - began < 8


@pytest.mark.parametrize(
    "end", [b"]" + b" " * 200_000 + b"x", b'"name":"' * 100_000, b'[1],"' * 100_000], ids=["spaces", "names", "lists"]
)
def test_damage_that_repeats_takes_no_square_of_time(end, tmp_path):
    began = time.process_time()
    with pytest.raises(UsageError, match="none of its events"):
        read(tmp_path / "t.json", b'{"traceEvents": [{"ph": "X", "x": }' + end)
    assert time.process_time() - began < 5


def test_a_large_event_that_is_no_clean_json_is_not_built(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "MEND_BYTES", 1000)
    odd = b'{"ph": "X", "name": "x", "ts": 1, "dur": nan, "args": {"a": [' + b"[1]," * 500 + b"2]}}"
    first, last = (json.dumps(event(number)).encode() for number in (1, 2))
    trace = read(tmp_path / "t.json", b'{"traceEvents": [' + b", ".join((first, odd, last)) + b"]}")
    assert (trace.events, trace.lost.events, trace.lost.broken_off) == (2, 1, False)


def test_arguments_beyond_their_cap_are_left_out_and_counted(tmp_path):
    wide = [[1, 2]] * 20_000
    launch = {"grid": [1, 1, 1], "block": [1, 1, 1], "blocks per SM": "9" * 100_000}
    events = [
        event(1, {"Input Dims": wide, "Input type": ["float"]}),
        event(2, {"Input Dims": [[1, 2]], "Input type": ["float"]}),
        event(3, launch, cat="kernel", name="k"),
        event(4, {"Collective name": "x" * 100_000}, cat="kernel", name="nccl"),
    ]
    trace = read(tmp_path / "t.json", dump(events))
    assert trace.host.shape.tolist() == [-1, 0]
    assert (trace.work.launch.tolist(), trace.work.collective.tolist()) == ([-1, -1], [-1, -1])
    assert (trace.events, trace.lost.events, trace.lost.values) == (4, 0, 3)


def test_names_and_arguments_together_take_no_more_than_their_room(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "KEPT_BYTES", 500_000)
    events = [
        event(number, {"Input Dims": [[number]] * 50, "Input type": ["float"]}, name=f"{number}" + "x" * 3000)
        for number in range(400)
    ]
    trace = read(tmp_path / "t.json", dump(events))
    kept = sum(map(len, trace.names)) + sum(len(dims) + len(types) for dims, types in trace.shapes)
    assert 250_000 < kept < 500_000
    without_name = int((trace.host.name == trace.names.index("")).sum())
    without_shape = int((trace.host.shape < 0).sum())
    assert min(without_name, without_shape) > 200
    assert trace.lost.values == without_name + without_shape
    assert len(trace.host.start) == 400
    report = analyze([str(tmp_path / "t.json")])
    assert "without some of their values" in "\n".join(write_report(report))


def test_kinds_without_end_are_counted_as_others(tmp_path):
    events = [event(number, ph=f"p{number}") for number in range(3000)]
    events += [event(number, cat=f"c{number}") for number in range(3000)] + [event(1, cat="c" * 1000)]
    trace = read(tmp_path / "t.json", dump(events))
    assert len(trace.phases) < 1100
    assert trace.phases["(others)"] > 1900
    assert len(trace.host.start) == 3001


def test_inputs_that_no_operator_has_are_not_built():
    many = b"[" + b"[1,2]," * MOST_INPUTS + b"[1]]"
    assert parse_inputs((many, b"[]")).dims == ()
    deep = b"[[" + b"1," * MOST_SIZES + b"1], [2, 3]]"
    inputs = parse_inputs((deep, b'["float", "float"]'))
    assert (inputs.dims, inputs.whole) == (((), (2, 3)), False)


def test_five_thousand_long_names_are_analysed_in_a_second(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(dump([event(number, name=f"{number}" + "x" * 3900) for number in range(5000)]))
    began = time.process_time()
    analyze([str(path)])
    assert time.process_time() - began < 2.5  # it took 4.5 s


def test_a_duration_of_zero_is_one_and_moments_need_none(tmp_path):
    trace = read(tmp_path / "t.json", small_trace().text().replace('"dur": 300', '"dur": 0').encode())
    assert (trace.work.duration.tolist(), len(trace.memory.time), trace.lost.events) == ([0] * 4, 4, 0)


@pytest.mark.parametrize("base_us", [0.0, -1500.0, -3000.0, -1e9])
def test_steps_are_the_same_wherever_the_clock_begins(base_us, tmp_path):
    def build(base):
        trace = TraceBuilder(base)
        trace.kernel(-500, 20, launch=-600)
        for number in range(4):
            trace.step(number, number * 1000, 990)
            if number != 2:
                trace.kernel(number * 1000 + 700, 600, launch=number * 1000 + 100)
        found = read(tmp_path / "t.json", trace.text().encode())
        steps = find_steps(found)
        origin = round(base * 1000)
        return (steps.start - origin).tolist(), (steps.end - origin).tolist()

    assert build(base_us) == build(1e6)


@pytest.mark.parametrize("times", [1, 5000])
def test_a_packed_file_with_a_wrong_sum_is_read_whole(times, tmp_path):
    events = [event(number, name=f"op{random.Random(number).random()}") for number in range(10 * times)]
    data = bytearray(gzip.compress(dump(events)))
    data[-8] ^= 0xFF
    trace = read(tmp_path / "t.json.gz", bytes(data))
    assert (trace.events, trace.lost.events) == (10 * times, 0)
    assert (trace.lost.broken_off, trace.lost.reason) == (True, "the gzip file is damaged")


def test_what_stands_before_the_damage_is_read(tmp_path):
    events = [event(number, name=f"op{random.Random(number).random()}") for number in range(2000)]
    data = bytearray(gzip.compress(dump(events)))
    data[len(data) // 2 :] = b"\xff" * 100
    trace = read(tmp_path / "t.json.gz", bytes(data))
    assert 900 < trace.events < 1100
    assert trace.lost.broken_off


@pytest.mark.parametrize("keep", [3, 20])
def test_a_damaged_file_is_not_called_empty(keep, tmp_path):
    data = gzip.compress(dump([event(1)]))[:keep] + (b"\xff" * 50 if keep > 10 else b"")
    with pytest.raises(UsageError, match=r"the gzip file (is damaged|breaks off) before the first event"):
        read(tmp_path / "t.json.gz", data)


def test_a_fifo_hangs_nothing(tmp_path):
    good = small_trace().write(tmp_path / "a.json")
    fifo = str(tmp_path / "x.json")
    os.mkfifo(fifo)
    assert find_files([str(tmp_path)]) == [good]
    assert not is_snapshot(fifo)
    with pytest.raises(UsageError, match="FIFO"):
        read_trace(fifo)


@pytest.mark.parametrize("after", ["", ', "traceName": "x"'])
def test_a_list_with_items_that_are_no_events_is_closed(after, tmp_path):
    items = [1, "a", None, [], event(1), event(2), 5, event(3), {}, True, "]"]
    trace = read(tmp_path / "t.json", (f'{{"traceEvents": {json.dumps(items)}' + after + "}").encode())
    assert (len(trace.host.start), trace.lost.events, trace.lost.broken_off) == (3, 7, False)
    assert trace.header.trace_name == ("x" if after else None)


def test_events_that_begin_and_end_apart_are_told_as_not_read(tmp_path):
    events = [event(1), event(2, ph="B"), event(3, ph="E"), event(4, ph="i")]
    trace = read(tmp_path / "t.json", dump(events))
    assert (len(trace.host.start), trace.lost.events) == (1, 2)
    assert "2 events could not be read" in "\n".join(write_report(analyze([str(tmp_path / "t.json")])))


@pytest.mark.parametrize(("said", "known"), [(-3, False), (1e300, False), (0, True), (25, True), (100, True)])
def test_a_share_outside_of_its_whole_is_not_known(said, known, tmp_path):
    args = {"grid": [1, 1, 1], "est. achieved occupancy %": said, "blocks per SM": said or 1}
    trace = read(tmp_path / "t.json", dump([event(1, args, cat="kernel", name="k")]))
    launch = trace.launches[0]
    assert (launch.occupancy_pct == said) is known
    assert (launch.blocks_per_sm > 0) is known


def test_what_tpmon_wrote_beside_the_events_is_not_built_before_it_is_asked_for(tmp_path):
    trace = read(tmp_path / "t.json", small_trace().text({"tpmon": [[1]] * 500_000}).encode())
    assert (read_folders(trace), trace.lost.values) == ((), 0)
    assert read_folders(read(tmp_path / "t.json", small_trace().text().encode())) == ()
