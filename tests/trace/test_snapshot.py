"""Memory snapshots: what lives, what is cut up, what lived at the peak, and files that are hostile."""

import csv
import json
import os
import pickle
from pathlib import Path

import pytest

from tests.snapshots import MB, SnapshotBuilder, frame, stack, training
from tpmon.errors import UsageError
from tpmon.model.codec import encode
from tpmon.model.known import is_known
from tpmon.model.results.snapshot import DeviceSnapshot
from tpmon.report.trace import SNAPSHOT_TABLES, write_snapshot_csv, write_snapshots
from tpmon.trace import snapshot as snapshot_read
from tpmon.trace.reading.sources import are_snapshots
from tpmon.trace.snapshot import analyze_snapshots, own_line, parse_snapshot
from tpmon.view.snapshot import say_free


def analyse(built: SnapshotBuilder, tmp_path: Path) -> DeviceSnapshot:
    return analyze_snapshots([built.write(tmp_path / "s.pickle")]).files[0].devices[0]


def test_of_a_device_pieces_add_up_what_lives_is_summed_by_stack_and_the_peak_is_found_backwards(tmp_path):
    device = analyse(training(), tmp_path)
    pieces = device.pieces
    assert (pieces.segments, pieces.reserved_bytes) == (3, 440 * MB)
    assert (pieces.allocated_bytes, pieces.pending_bytes) == (106 * MB, 4 * MB)
    assert pieces.free_bytes == pieces.reserved_bytes - pieces.allocated_bytes - pieces.pending_bytes
    assert (pieces.free_blocks, pieces.largest_free_bytes) == (3, 300 * MB)
    assert (pieces.releasable_bytes, pieces.stuck_bytes) == (300 * MB, 30 * MB)
    assert pieces.rounding_bytes == 12
    assert pieces.fragmentation_pct == pytest.approx(100 * 30 / 330)
    live = device.live
    assert [(row.bytes, row.requested_bytes, row.blocks, row.line) for row in live] == [
        (100 * MB, 100 * MB - 10, 1, "/home/me/train.py:10 build"),
        (6 * MB, 6 * MB - 2, 1, "/home/me/train.py:10 backward_pass"),
    ]
    assert live[0].frames[0] == "at::empty"
    assert "linear.py:125 forward" in live[0].frames[1]
    peak = device.peak
    assert (peak.requested_bytes, peak.end_bytes) == (400 * MB - 10, 106 * MB - 12)
    assert (device.events, peak.at_event, peak.at_ms, peak.older_bytes) == (7, 2, 2.0, 0)
    assert [(row.bytes, row.line) for row in peak.alive] == [
        (200 * MB, "/home/me/train.py:10 forward_pass"),
        (100 * MB, "/home/me/train.py:10 other"),
        (100 * MB - 10, "/home/me/train.py:10 build"),
    ]
    assert sum(row.bytes for row in peak.alive) + peak.older_bytes == peak.requested_bytes


def test_what_is_free_in_the_pool_of_a_graph_is_neither_releasable_nor_cut_up(tmp_path):
    built = training()
    built.segment((64 * MB, 64 * MB, "inactive", []))
    built.segment((8 * MB, 8 * MB, "active_allocated", []), (24 * MB, 24 * MB, "inactive", []))
    for segment in built.segments[-2:]:
        segment["segment_pool_id"] = (3, 0)
    before, pieces = (analyse(one, tmp_path).pieces for one in (training(), built))
    assert (before.private_bytes, pieces.private_bytes) == (0, 88 * MB)
    assert pieces.releasable_bytes == before.releasable_bytes
    assert (pieces.free_bytes, pieces.stuck_bytes) == (before.free_bytes, before.stuck_bytes)
    assert pieces.fragmentation_pct == before.fragmentation_pct
    assert pieces.reserved_bytes == before.reserved_bytes + 96 * MB
    assert "88.0M are free in private pools" in say_free(pieces)
    assert "private" not in say_free(before)


def test_what_was_alive_before_the_history_and_freed_in_it_counts_as_older(tmp_path):
    built = SnapshotBuilder().segment((8 * MB, 8 * MB, "active_allocated", stack("keep")))
    built.event("alloc", 5, MB, stack("small")).event("free_requested", 9, 40 * MB, stack("release"))
    built.event("free_requested", 5, MB, stack("release"))
    peak = analyse(built, tmp_path).peak
    assert (peak.requested_bytes, peak.older_bytes, peak.at_event) == (49 * MB, 40 * MB, 0)
    assert {row.line for row in peak.alive} == {"/home/me/train.py:10 keep", "/home/me/train.py:10 small"}


def test_an_address_that_is_used_again_has_the_stack_of_its_time(tmp_path):
    built = SnapshotBuilder()
    built.segment((MB, MB, "active_allocated", stack("last")))
    address = built.segments[0]["address"]
    built.event("alloc", address, 10 * MB, stack("first")).event("free_requested", address, 10 * MB, [])
    built.event("alloc", address, 50 * MB, stack("second")).event("free_requested", address, 50 * MB, [])
    built.event("alloc", address, MB, stack("last"))
    peak = analyse(built, tmp_path).peak
    assert [(row.bytes, row.line) for row in peak.alive] == [(50 * MB, "/home/me/train.py:10 second")]


def test_no_history_and_no_stack_are_said_and_not_zero(tmp_path):
    built = SnapshotBuilder().segment((MB, MB, "active_allocated", []))
    device = analyse(built, tmp_path)
    assert not is_known(device.peak)
    assert not is_known(device.live[0].line)
    text = "\n".join(write_snapshots(analyze_snapshots([built.write(tmp_path / "s.pickle")]), 10))
    assert "_record_memory_history" in text and "no stack was recorded" in text  # noqa: PT018


def test_the_layout_of_torch_2_0_is_read(tmp_path):
    old = {"real_size": 900, "addr": 5, "frames": stack("build")}
    block = {"size": 1024, "state": "active_allocated", "history": [old]}
    segment = {"device": 1, "address": 4096, "total_size": 2048, "blocks": [block, {"size": 1024, "state": "inactive"}]}
    found = parse_snapshot(pickle.dumps({"segments": [segment], "device_traces": []}))
    used, idle = found.segments[0].blocks
    assert (used.size, used.requested, used.in_use) == (1024, 900, True)
    assert (idle.size, idle.requested, idle.in_use) == (1024, -1, False)
    assert found.stacks[used.stack][2] == "/home/me/train.py:10 build"


def test_the_own_line_is_of_no_package():
    inner = ["??:0 x", "torch/csrc/autograd/engine.cpp:9 run", "/x/site-packages/torch/a.py:1 f"]
    assert own_line([*inner, "/usr/lib/python3.11/threading.py:5 run", "/srv/model.py:7 g"]) == "/srv/model.py:7 g"
    assert not is_known(own_line(inner))


def test_text_json_and_csv_say_the_same(tmp_path):
    report = analyze_snapshots([training().write(tmp_path / "s.pickle")])
    text = "\n".join(write_snapshots(report, 1))
    said = (
        "440M reserved in 3 segments",
        "1 more (--top, --csv live)",
        "900M were asked for, the device had 7.0M left",
    )
    assert all(words in text for words in said)
    raw = json.loads(encode(report))
    assert raw["schema"] == "tpmon.snapshot/1"
    assert raw["files"][0]["devices"][0]["peak"]["requested_bytes"] == 400 * MB - 10
    for table in SNAPSHOT_TABLES:
        rows = list(csv.DictReader(write_snapshot_csv(report, table)))
        assert rows, table
        assert rows[0]["device"] == "0"
    assert next(csv.DictReader(write_snapshot_csv(report, "live")))["bytes"] == str(100 * MB)


def test_names_in_a_snapshot_reach_no_terminal(tmp_path):
    evil = [frame("f\x1b[2J\u202e", 3, "/home/me/a\x07.py")]
    built = SnapshotBuilder().segment((MB, MB, "active_allocated", evil))
    lines = write_snapshots(analyze_snapshots([built.write(tmp_path / "s.pickle")]), 10)
    assert all(line.isprintable() for line in lines)


def test_a_snapshot_is_told_from_a_trace(tmp_path):
    here = training().write(tmp_path / "dump")  # no ending: by its first bytes
    trace = tmp_path / "t.json"
    trace.write_text("[]")
    assert are_snapshots([here])
    assert not are_snapshots([str(trace)])
    with pytest.raises(UsageError, match="beside traces"):
        are_snapshots([here, str(trace)])


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


OF_CODE = (Evil(), {"segments": [Evil()], "device_traces": []}, {"segments": [], "device_traces": [[Evil()]]})
OTHERS = ([1, 2], {"segments": 5}, {"entries": [], "version": "2.4"})


@pytest.mark.parametrize("value", [*OF_CODE, *OTHERS])
def test_code_and_other_pickles_are_refused_with_the_name(value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(value))
    with pytest.raises(UsageError, match=r"s\.pickle"):
        analyze_snapshots([str(tmp_path / "s.pickle")])
    assert not (tmp_path / "executed").exists()


def test_values_of_a_wrong_type_are_left_out_and_counted():
    built = training().plain()
    built["segments"] += [5, {"blocks": 3}, {"total_size": -1, "blocks": []}]
    built["segments"][0]["blocks"] += [None, {"size": "x", "state": "inactive"}]
    built["device_traces"][0] += [7, {"action": 5}, {"action": "alloc", "size": 1 << 70}, {"action": "new"}]
    found = parse_snapshot(pickle.dumps(built))
    assert (found.lost.segments, found.lost.blocks, found.lost.events) == (3, 2, 4)
    assert len(found.segments) == 3


def test_parts_shared_a_million_times_are_read_a_bounded_number_of_times(monkeypatch):
    monkeypatch.setattr(snapshot_read, "MOST_EVENTS", 1000)
    monkeypatch.setattr(snapshot_read, "MOST_BLOCKS", 1000)
    events = [{"action": "alloc", "addr": 1, "size": 1, "frames": []}] * 900
    blocks = [{"size": 1, "state": "inactive"}] * 900
    raw = {"segments": [{"total_size": 900, "blocks": blocks}] * 50, "device_traces": [events] * 50}
    found = parse_snapshot(pickle.dumps(raw))
    assert sum(map(len, found.history.values())) == 1000
    assert found.lost.events == 50 * 900 - 1000
    assert sum(len(one.blocks) for one in found.segments) == 1000


def test_more_values_than_torch_packs_into_so_many_bytes_are_refused():
    bomb = b"\x80\x04](" + b"]" * 600_000 + b"e."
    with pytest.raises(ValueError, match="more than"):
        parse_snapshot(bomb)
