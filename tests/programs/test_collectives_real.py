"""Read the records of real jobs that hang in a collective: over the debug server, from files, by the pipe."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.command_line import call
from tests.programs.conftest import TORCHRUN, Program, run_program
from tests.programs.test_dump_real import dump
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.model.codec import decode
from tpmon.model.dump import Dump
from tpmon.model.known import is_known
from tpmon.model.results.collectives import CollectiveCause, CollectiveFinding, Collectives, RecordSource
from tpmon.model.text.unpickle import load_plain
from tpmon.probe.base.procread import read_table
from tpmon.probe.job.resolve import find_job
from tpmon.probe.records.collectives import read_collectives

pytestmark = [pytest.mark.usefixtures("sampling_works"), pytest.mark.torch, needs_torch]
TIMEOUT_S = 900.0
PATIENCE_S = 120.0


@contextmanager
def hung(tmp_path: Path, *arguments: str, ranks: int = 2) -> Iterator[Program]:
    command = (*TORCHRUN, "--standalone", "--nproc-per-node", str(ranks), "rank_hang.py")
    with run_program((*command, "--ready", "{ready}", *arguments), tmp_path, ranks) as program:
        yield program


def recorded(program: Program, *arguments: str) -> Collectives:
    """Dump until the records of all ranks are there, with all that was called before the hang."""
    found: list[Dump] = []

    def is_open() -> bool:
        found.append(dump(program.pid, *arguments))
        view = found[-1].collectives
        return is_known(view) and bool(view.findings) and len(view.records) == len(program.trainers)

    assert wait_until(is_open, PATIENCE_S), found[-1].collectives
    view = found[-1].collectives
    assert is_known(view)
    return view


def check_missing(view: Collectives, source: RecordSource) -> CollectiveFinding:
    (found,) = view.findings
    assert (found.cause, found.backend, found.name) == (CollectiveCause.MISSING_RANK, "gloo", "all_reduce")
    assert (found.sequence, found.waiting, found.missing, found.unread) == (4, (0,), (1,), ())
    assert is_known(found.abort_s)
    assert not found.abort_assumed
    assert 0 < found.abort_s <= TIMEOUT_S
    assert found.abort_s + found.waited_s == pytest.approx(TIMEOUT_S, abs=0.01)
    assert {one.source for one in view.records} == {source}
    assert [one.groups[0].last_done for one in view.records] == [3, 3]
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Start a job with the debug server of torch, of which one rank never calls what the other waits in."""
    with hung(tmp_path_factory.mktemp("served"), "--record", "server") as program:
        yield program


def test_the_debug_server_of_torch_tells_which_rank_never_called(served: Program):
    found = check_missing(recorded(served), RecordSource.SERVER)
    assert "rank_hang.py" in found.summary, "the stack of the missing rank"
    assert "gloo gives up in about 14m" in found.summary or "15m" in found.summary or found.waited_s < 2
    text = call("dump", str(served.pid)).stdout
    assert "calls    all_reduce number 4 of default_pg: 1 of 2 ranks waits in it" in text
    assert "rank 1 done up to 3 all_reduce (4x4 Float), called no more" in text
    # Asking left the ranks as they were, and the server answers again.
    assert {read_table()[pid].state for pid in served.trainers} <= {"S", "R", "D"}
    check_missing(recorded(served), RecordSource.SERVER)


def test_a_bundle_holds_what_was_read_after_its_last_look(served: Program, tmp_path):
    recorded(served)  # both ranks are where they hang
    call("bundle", str(served.pid), "--seconds", "3", "--out", str(tmp_path / "out"), code=0)
    for name in ("dump-3", "fold"):
        view = decode(Dump, (tmp_path / "out" / f"{name}.json").read_text()).collectives
        assert is_known(view)
        check_missing(view, RecordSource.SERVER)


@pytest.mark.long
def test_a_call_that_does_not_fit_is_named_on_both_sides(tmp_path):
    with hung(tmp_path, "--record", "server", "--fault", "mismatch") as program:
        (found,) = recorded(program).findings
        assert found.cause is CollectiveCause.MISMATCH
        assert found.sequence == 4
        assert {(one.ranks, one.words) for one in found.differences} == {((0,), "all_reduce"), ((1,), "broadcast")}


@pytest.mark.long
def test_files_that_torch_wrote_are_read_with_the_lines_of_the_calls(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", f"{tmp_path}/record_")
    with hung(tmp_path, "--record", "file") as program:
        view = recorded(program)
        check_missing(view, RecordSource.FILE)
        lines = {call.line.file for one in view.records for call in one.groups[0].calls if is_known(call.line)}
        assert {path.rpartition("/")[2] for path in lines} == {"rank_hang.py"}
        plain = load_plain((tmp_path / "record_0").read_bytes())
        assert isinstance(plain, dict)
        assert len(plain["entries"]) == 4
        for name in ("record_0", "record_1"):
            os.utime(tmp_path / name, (time.time() - 9000, time.time() - 9000))
        old = dump(program.pid).collectives
        assert old.records == ()
        assert any("of an earlier run" in note.reason for note in old.notes)


@pytest.mark.long
def test_the_pipe_is_written_on_request_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", f"{tmp_path}/record_")
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", f"{tmp_path}/pipe_")
    with hung(tmp_path, "--record", "pipe") as program:
        view = dump(program.pid).collectives
        assert view.records == ()
        assert not (tmp_path / "record_0").exists(), "nobody asked for it"
        refused = call("dump", str(program.pid), "--fr-pipe", "--readonly", code=2)
        assert "--readonly forbids" in refused.stderr
        assert not (tmp_path / "record_0").exists()
        done = call("dump", str(program.pid), "--fr-pipe", code=0)
        assert "--fr-pipe: a byte is written into the pipe of each rank" in done.stderr
        assert "from flight recorder file, written on request (2 ranks" in done.stdout
        check_missing(recorded(program, "--fr-pipe"), RecordSource.PIPE)


@pytest.mark.long
def test_a_job_that_offers_nothing_is_told_what_it_could(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with hung(tmp_path, "--record", "none") as program:
        assert wait_until(lambda: is_known(dump(program.pid).collectives), PATIENCE_S)
        reading = read_collectives(find_job(program.pid), someone_waits=True)
        assert reading.records == ()
        reasons = {note.source: note.reason for note in reading.notes}
        assert reasons[RecordSource.SERVER].startswith("no debug server in it")
        assert f"{tmp_path}/cache/torch/comm_lib_trace_rank_0" in reasons[RecordSource.FILE]
        assert reasons[RecordSource.RAS] == "no rank uses NCCL"
        text = call("dump", str(program.pid), "--rounds", "2", "--every", "0.5").stdout
        assert "no record of its collectives; gloo gives up in about" in text
