"""Dumps of torch's FlightRecorder become typed records; what is none, or is of another run, is refused."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.children import started
from tests.collectives import NOW, make_entry, make_raw
from tests.members import made_up
from tests.probe.records.test_servers import BEHIND
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.collectives import CallState, CollectivesReading, RankRecord, RecordSource
from tpmon.model.stacks import StackFrame
from tpmon.model.text.unpickle import Limits, PlainError
from tpmon.probe.records import collectives, flight_recorder
from tpmon.probe.records.collectives import read_collectives
from tpmon.probe.records.flight_recorder import (
    RecordError,
    ask_pipe,
    list_paths,
    parse_json,
    parse_pickle,
    parse_record,
    pipe_path,
    read_environment,
    read_record_file,
    wait_for_record,
)

ORIGIN = RankRecord("node-01", 4000, 0, RecordSource.FILE, NOW, False, ())
AGO = timedelta(minutes=5)


def test_a_record_of_gloo_tells_done_by_retired_and_names_no_members():
    raw = make_raw([make_entry(one, retired=one < 7) for one in range(1, 8)])
    (group,) = parse_record(raw, ORIGIN).groups
    assert (group.name, group.description, group.backend) == ("0", "default_pg", "gloo")
    assert (group.last_called, group.last_done) == (7, 6)
    assert isinstance(group.ranks, Missing)
    assert [call.sequence for call in group.calls] == list(range(3, 8))
    last = group.calls[-1]
    told = ("all_reduce", CallState.SCHEDULED, ((4, 4),), 900.0, NOW)
    assert (last.name, last.state, last.input_sizes, last.timeout_s, last.created) == told


def test_a_record_of_nccl_tells_states_members_and_lines():
    frames = [
        {"name": "all_reduce", "filename": "/env/site-packages/torch/distributed/c.py", "line": 9},
        {"name": "train", "filename": "/run/train.py", "line": 40},
        {"name": "<module>", "filename": "/run/train.py", "line": 90},
    ]
    entries = [
        make_entry(1, "nccl:all_reduce", state="completed"),
        make_entry(2, "nccl:all_reduce", state="started", frames=frames),
        make_entry(3, "nccl:broadcast"),
    ]
    raw = make_raw(entries, pg_config={"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}})
    (group,) = parse_pickle(pickle.dumps(raw, 2), ORIGIN).groups
    assert (group.backend, group.ranks, group.last_called, group.last_done) == ("nccl", (0, 1, 2, 3), 3, 1)
    assert [call.state for call in group.calls] == [CallState.COMPLETED, CallState.STARTED, CallState.SCHEDULED]
    assert (group.calls[1].line, group.calls[0].line) == (StackFrame("train", "/run/train.py", 40), NOT_APPLICABLE)


def test_the_json_of_the_server_tells_the_same_as_the_pickle():
    raw = make_raw([make_entry(1, retired=True), make_entry(2)])
    assert parse_json(json.dumps(raw).encode(), ORIGIN) == parse_pickle(pickle.dumps(raw, 4), ORIGIN)


def test_groups_are_kept_apart_and_transfers_out_of_the_count():
    entries = [
        make_entry(1, retired=True),
        make_entry(1, group=("1", "tp"), pg_id=1),
        make_entry(9, "nccl:send 0->1", is_p2p=True, p2p_seq_id=9, collective_seq_id=0),
        make_entry(8, "nccl:recv 0<-1", is_p2p=True, p2p_seq_id=8, retired=True),
    ]
    world, pair = parse_record(make_raw(entries), ORIGIN).groups
    assert (world.last_called, world.last_done) == (1, 1)
    assert [(call.name, call.is_transfer) for call in world.calls] == [("all_reduce", False), ("send 0->1", True)]
    assert (pair.description, pair.last_called, pair.last_done) == ("tp", 1, 0)


def test_only_calls_around_the_open_one_are_kept():
    entries = [make_entry(one, retired=one <= 500) for one in range(1, 1001)]
    (group,) = parse_record(make_raw(entries), ORIGIN).groups
    assert (group.last_called, group.last_done) == (1000, 500)
    assert [call.sequence for call in group.calls] == list(range(497, 529))


def test_a_record_that_was_overwritten_is_told_from_a_whole_one():
    assert parse_record(make_raw([make_entry(1, record_id=0)]), ORIGIN).from_start
    assert parse_record(make_raw([]), ORIGIN).from_start
    assert not parse_record(make_raw([make_entry(1, record_id=9)]), ORIGIN).from_start
    assert not parse_record(make_raw([make_entry(1, record_id=None)]), ORIGIN).from_start


def test_without_calls_of_a_group_its_status_tells():
    raw = make_raw(
        [make_entry(3, "gloo:send 0->1", is_p2p=True, p2p_seq_id=3)],
        pg_status={"0": {"last_enqueued_collective": 41, "last_completed_collective": "-1"}},
    )
    (group,) = parse_record(raw, ORIGIN).groups
    assert (group.last_called, group.last_done) == (41, 0)


@pytest.mark.parametrize("value", [None, [], {}, {"version": "2.10"}, {"entries": []}, 7, "text"])
def test_what_is_no_dump_is_refused(value):
    with pytest.raises(RecordError):
        parse_record(value, ORIGIN)
    with pytest.raises(RecordError):
        parse_json(json.dumps(value).encode(), ORIGIN)


@pytest.mark.parametrize(
    ("parse", "data", "words"),
    [
        (parse_pickle, pickle.dumps(make_raw([make_entry(1)]), 2)[:-5], "cut"),
        (parse_pickle, b"cos\nsystem\n.", "GLOBAL in it"),
        (parse_json, b"<html>", "no JSON"),
        (parse_json, b"[" * 100_000, "no JSON"),
    ],
)
def test_broken_files_are_refused_with_a_reason(parse, data, words):
    with pytest.raises((PlainError, RecordError), match=words):
        parse(data, ORIGIN)


def test_json_has_no_more_values_than_a_pickle_may_have(monkeypatch):
    raw = json.dumps(make_raw([make_entry(1)])).encode()
    assert parse_json(raw, ORIGIN).groups
    monkeypatch.setattr(flight_recorder, "_LIMITS", Limits(values=5))
    for data in (raw, b"[" * 6, b"[" + b"{}," * 5 + b"{}]"):
        with pytest.raises(RecordError, match="more than 5 values"):
            parse_json(data, ORIGIN)


_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(make_entry(1))), _junk), _junk, _junk)
def test_any_entry_is_read_or_left_out(fields, config, status):
    raw = make_raw([make_entry(1) | fields], pg_config=config, pg_status=status)
    record = parse_record(raw, ORIGIN)
    assert all(group.last_done <= group.last_called or group.calls for group in record.groups)


def test_text_of_the_record_is_cleaned():
    raw = make_raw([make_entry(1, "gloo:\x1b[2Jall", group=("0", "a\x1b]0;x\x07"))])
    (group,) = parse_record(raw, ORIGIN).groups
    assert "\x1b" not in group.description + group.calls[0].name


@pytest.mark.parametrize(
    ("environment", "paths"),
    [
        ({"TORCH_FR_DUMP_TEMP_FILE": "/d/fr_", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/d/old_"}, ("/d/fr_3",)),
        ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/d/old_"}, ("/d/old_3",)),
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, ("/c/torch/comm_lib_trace_rank_3", "/tmp/nccl_trace_rank_3")),
        ({"HOME": "/h"}, ("/h/.cache/torch/comm_lib_trace_rank_3", "/tmp/nccl_trace_rank_3")),
        ({}, ("/tmp/.cache/torch/comm_lib_trace_rank_3", "/tmp/nccl_trace_rank_3")),
        ({"TORCH_FR_DUMP_TEMP_FILE": "relative_"}, ()),
    ],
)
def test_the_path_is_where_torch_puts_it(environment, paths):
    assert list_paths(environment, 3) == paths


def test_the_environment_is_read_for_the_names_that_matter(tmp_path):
    (tmp_path / "7").mkdir()
    data = b"HOME=/h\0SECRET=1\0TORCH_FR_BUFFER_SIZE=20\0NCCL_RAS_ADDR=localhost:1\0XHOME=2\0"
    (tmp_path / "7" / "environ").write_bytes(data)
    told = {"HOME": "/h", "TORCH_FR_BUFFER_SIZE": "20", "NCCL_RAS_ADDR": "localhost:1"}
    assert read_environment(7, str(tmp_path)) == told


def named(path) -> dict[str, str]:
    return {"TORCH_FR_DUMP_TEMP_FILE": f"{path}/fr_", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{path}/pipe_"}


def now() -> datetime:
    return datetime.now(timezone.utc)


def test_a_file_is_read_unless_it_is_older_than_the_job_and_no_pipe_or_folder_is_opened(tmp_path):
    pid = os.getpid()
    with pytest.raises(FileNotFoundError, match="torch writes it when a collective times out"):
        read_record_file(pid, 0, named(tmp_path), now() - AGO)
    (tmp_path / "fr_0").write_bytes(b"data")
    found = read_record_file(pid, 0, named(tmp_path), now() - AGO)
    assert found.data == b"data"
    with pytest.raises(FileNotFoundError, match="of an earlier run"):
        read_record_file(pid, 0, named(tmp_path), now() + AGO)
    os.mkfifo(tmp_path / "fr_1")
    (tmp_path / "fr_2").mkdir()
    for rank in (1, 2):
        with pytest.raises(OSError, match="no plain file"):
            read_record_file(pid, rank, named(tmp_path), now() - AGO)


def test_a_pipe_is_written_only_where_the_job_reads_it(tmp_path):
    pid = os.getpid()
    environment = named(tmp_path)
    assert pipe_path(environment, 2) == f"{tmp_path}/pipe_2.pipe"
    with pytest.raises(OSError, match="it has no pipe"):
        ask_pipe(pid, 2, {})
    with pytest.raises(FileNotFoundError):
        ask_pipe(pid, 2, environment)
    (tmp_path / "pipe_2.pipe").write_bytes(b"")
    with pytest.raises(OSError, match="no plain file, or a link"):
        ask_pipe(pid, 2, environment)
    (tmp_path / "pipe_2.pipe").unlink()
    os.mkfifo(tmp_path / "pipe_2.pipe")
    with pytest.raises(OSError, match="No such device"):
        ask_pipe(pid, 2, environment)  # nobody reads it
    reader = os.open(tmp_path / "pipe_2.pipe", os.O_RDONLY | os.O_NONBLOCK)
    ask_pipe(pid, 2, environment)
    assert os.read(reader, 16) == b"1"
    os.close(reader)


def test_a_record_that_was_asked_for_is_waited_for(tmp_path):
    pid, asked = os.getpid(), now()
    (tmp_path / "fr_0").write_bytes(b"old")
    os.utime(tmp_path / "fr_0", (time.time() - 60, time.time() - 60))
    with pytest.raises(TimeoutError, match="wrote no record"):
        wait_for_record(pid, 0, named(tmp_path), asked, seconds=0.3)
    writer = threading.Timer(0.4, lambda: (tmp_path / "fr_0").write_bytes(b"new"))
    writer.start()
    assert wait_for_record(pid, 0, named(tmp_path), asked, seconds=30).data == b"new"
    writer.join()


# Every rank is asked wherever it offers its record; one that hangs or refuses costs its own answer alone.


RANK = """
import json, os, socket, sys, threading
names, door, answers = json.loads(sys.argv[1])

def rest(name):
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
        file.write(name)
    named.release()
    threading.Event().wait()

named = threading.Semaphore(0)
for name in names:
    threading.Thread(target=rest, args=(name,), daemon=True).start()
    named.acquire()
with socket.socket(socket.AF_INET6 if door == "::" else socket.AF_INET) as listening:
    listening.bind((door, 0))
    listening.listen(5)
    print(listening.getsockname()[1], flush=True)
    while True:
        link, _ = listening.accept()
        with link, link.makefile("rb") as lines:
            for answer in answers:
                if not lines.readline():
                    break
                link.sendall(answer.encode())
"""
STARTED = now() - timedelta(hours=1)


@contextmanager
def rank_process(
    names: list[str], door: str, answers: list[str], environment: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start what looks like a rank from outside: named threads, a listening socket, an environment."""
    command = [sys.executable, "-c", RANK, json.dumps([names, door, answers])]
    with started(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}) as process:
        yield process, int(process.stdout.readline())


def read(*pids: int, world_size: int = 2) -> CollectivesReading:
    members = tuple(
        made_up(pid, rank, started=STARTED, environment=Missing("not read here")) for rank, pid in enumerate(pids)
    )
    job: Any = SimpleNamespace(members=members, world_size=world_size)
    return read_collectives(job, someone_waits=True)


def reasons(reading: CollectivesReading) -> dict[RecordSource, str]:
    return {note.source: note.reason for note in reading.notes}


def test_ras_is_asked_on_the_port_of_the_job_and_only_where_the_job_listens():
    answers = ["SERVER PROTOCOL 2\n", "OK\n", BEHIND]
    with rank_process(["pt_nccl_watchdg"], "127.0.0.1", answers, {}) as (process, port):
        assert reasons(read(process.pid))[RecordSource.RAS].startswith("no rank of this job listens on port 28028")
        told = {"NCCL_RAS_ADDR": f"localhost:{port}"}
        with rank_process(["pt_nccl_watchdg"], "127.0.0.1", answers, told) as (other, _):
            # The port of another job is left alone; with the one that listens in the job it is asked.
            assert f"port {port}" in reasons(read(other.pid))[RecordSource.RAS]
            (report,) = read(other.pid, process.pid).ras
            assert report.ranks[0].rank == 3
    with rank_process([], "127.0.0.1", answers, {}) as (process, _):
        assert reasons(read(process.pid))[RecordSource.RAS] == "no rank uses NCCL"


def test_a_report_of_nccl_that_breaks_its_parser_costs_no_record(tmp_path, monkeypatch):
    def break_down(*_given, **_more):
        raise ValueError("Exceeds the limit of digits")

    monkeypatch.setattr(collectives, "read_ras", break_down)
    (tmp_path / "fr_0").write_bytes(pickle.dumps(make_raw([make_entry(1)]), 2))
    told = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/fr_"}
    with rank_process(["pt_nccl_watchdg"], "127.0.0.1", [], told) as (process, port):
        monkeypatch.setattr(collectives, "find_port", lambda _: port)
        reading = read(process.pid)
    assert reasons(reading)[RecordSource.RAS] == "not understood: ValueError: Exceeds the limit of digits"
    assert [one.rank for one in reading.records] == [0]


def test_a_server_that_answers_nonsense_costs_that_rank_alone(tmp_path):
    told = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/fr_"}
    body = json.dumps(make_raw([make_entry(1)]))
    good = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    with (
        rank_process(["pt_workerserver"], "::", [good], told) as (first, _),
        rank_process(["pt_workerserver"], "::", ["HTTP/1.1 500 Oh\r\n\r\n"], told) as (second, _),
    ):
        reading = read(first.pid, second.pid)
        assert [(one.rank, one.source) for one in reading.records] == [(0, RecordSource.SERVER)]
        assert reasons(reading)[RecordSource.SERVER] == "1 of 2: its debug server answered 500"
        assert reasons(reading)[RecordSource.FILE].startswith(f"no file {tmp_path}/fr_1")
        # Where the server fails, the file is read.
        (tmp_path / "fr_1").write_bytes(pickle.dumps(make_raw([make_entry(1)]), 2))
        (tmp_path / "fr_0").write_bytes(b"cos\nsystem\n.")
        both = read(first.pid, second.pid)
        assert [(one.rank, one.source) for one in both.records] == [(0, RecordSource.SERVER), (1, RecordSource.FILE)]


def test_a_file_that_is_no_record_is_told_with_the_reason(tmp_path):
    told = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/fr_"}
    with rank_process([], "127.0.0.1", [], told) as (process, _):
        for data, words in (
            (b"cos\nsystem\n.", "GLOBAL in it: more than plain containers"),
            (b"", "it is cut"),
            (pickle.dumps({"a": 1}, 2), "no dump of a FlightRecorder"),
        ):
            (tmp_path / "fr_0").write_bytes(data)
            assert words in reasons(read(process.pid))[RecordSource.FILE]


def test_a_rank_that_ended_is_told_and_a_lone_process_is_asked_nothing():
    with rank_process([], "127.0.0.1", [], {}) as (process, _):
        pid = process.pid
    reading = read(pid)
    assert reading.records == ()
    assert "its environment" in reasons(reading)[RecordSource.SERVER]
    assert read(os.getpid(), world_size=1) == CollectivesReading((), (), ())


@pytest.mark.parametrize("seconds", [0.2])
def test_a_server_that_hangs_does_not_hold_the_others(monkeypatch, tmp_path, seconds):
    monkeypatch.setattr("tpmon.probe.records.collectives.SERVERS_S", seconds)
    told = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/fr_"}
    with rank_process(["pt_workerserver"], "::", [""], told) as (process, _):
        os.kill(process.pid, signal.SIGSTOP)
        begun_s = time.monotonic()
        reading = read(process.pid)
        os.kill(process.pid, signal.SIGCONT)
        assert time.monotonic() - begun_s < 20
    assert reasons(reading)[RecordSource.SERVER] == "no answer in time"
