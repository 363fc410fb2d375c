"""Every rank is asked wherever it offers its record; one that hangs or refuses costs its own answer alone."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from tests.children import started
from tests.collectives import make_entry, make_raw
from tests.members import made_up
from tests.probe.records.test_servers import BEHIND
from tpmon.model.known import Missing
from tpmon.model.results.collectives import CollectivesReading, RecordSource
from tpmon.probe.records import collectives
from tpmon.probe.records.collectives import read_collectives

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
STARTED = datetime.now(timezone.utc) - timedelta(hours=1)


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
