"""A bundle of a real process with torch is private, redacted, never written over anything, and keeps what it has."""

import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from tests.command_line import ONE_FILE, SECONDS, call, start
from tests.dumps import make_rank, make_round
from tests.frames import NOW, NOW_NS, make_frame
from tests.looks import RECORDS, Look, update
from tests.model.text.secret_lists import HEX40, KINDS, OTHERS, S
from tests.recordings import SUBJECT, judge_steps, run_seconds
from tests.spying import may_sample
from tests.stacks import IN_LOCK
from tests.waiting import wait_until
from tpmon import evidence
from tpmon.evidence import RECORDING, ROUNDS, Bundler, SharedLook, default_name, start_bundle
from tpmon.model.codec import decode, encode
from tpmon.model.dump import Dump
from tpmon.model.frame import Frame, Pulse, pulse_of
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.doctor import Checkup
from tpmon.probe.job.resolve import find_job
from tpmon.probe.spy.failure import find_spies
from tpmon.record.line import unpack_once
from tpmon.record.recording import Recording
from tpmon.record.rejudge import rejudge
from tpmon.report.bundle import README, FolderSink

pytestmark = pytest.mark.usefixtures("small_environment")

SECRET = "hunter2-and-more"
TRAINING = (
    "import torch, sys; print('loaded', flush=True); print('api_key=' + sys.argv[2], flush=True);"
    " open(sys.argv[3], 'w').close(); sys.stdin.read()"
)
PARTS = {
    *("README.txt", "versions.txt", "processes.txt", "log.txt", "pulses.jsonl"),
    *(() if ONE_FILE else ("recording.tpmon",)),  # which the one file writes on Python 3.14 alone
    *(
        f"{name}.{end}"
        for name in ("doctor", "verdict", "once", "dump-1", "dump-2", "dump-3", "fold")
        for end in ("txt", "json")
    ),
}


@contextmanager
def training(folder: Path, *words: str, written: str = "", **environment: str) -> Iterator[int]:
    """Run a process with torch that waits, with a secret in its arguments, environment and log."""
    ready = folder / "ready"
    folder.mkdir(exist_ok=True)
    with (folder / "train.log").open("wb") as log:
        log.write(written.encode())
        log.flush()
        process = subprocess.Popen(
            [sys.executable, "-c", TRAINING, "--token", SECRET, str(ready), *words],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "3", "WANDB_API_KEY": SECRET, "MASTER_ADDR": "127.0.0.1"}
            | environment,
        )
        try:
            assert wait_until(ready.exists, SECONDS)
            yield process.pid
        finally:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def job_pid(tmp_path_factory):
    """Give the PID of a training that lives as long as the tests of this file."""
    if reason := may_sample():
        pytest.skip(reason)
    with training(tmp_path_factory.mktemp("job")) as pid:
        yield pid


@pytest.fixture
def job(job_pid):
    return find_job(job_pid)


def read_file(path: Path) -> str:
    """Return all text in a file of a bundle: of a recording every row, unpacked."""
    if path.name != RECORDING:
        return path.read_text()
    with sqlite3.connect(path) as base:
        tables = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [row for table in tables for row in base.execute(f"SELECT * FROM {table}")]
    with Recording(str(path)) as recording:
        frames = [encode(frame) for frame in recording.frames(1, recording.last.n)]
    packed = [unpack_once(cell) for row in rows for cell in row if isinstance(cell, bytes) and cell and len(row) != 5]
    return "\n".join((*map(str, rows), *frames, *(one.decode() for one in packed)))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# the command


@pytest.mark.torch
def test_a_bundle_is_a_private_folder_without_secrets(job_pid, tmp_path):
    before = set(tmp_path.iterdir())
    done = call("bundle", str(job_pid), "--seconds", "3", cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert done.returncode == 0, done.stderr
    assert "none of which stops it" in done.stderr
    (folder,) = set(tmp_path.iterdir()) - before
    assert folder.name.startswith("tpmon-bundle-")
    assert f"-{job_pid}-" in folder.name
    assert done.stdout.startswith(f"bundle   {folder.name} (")
    assert mode_of(folder) == 0o700
    files = {path.name for path in folder.iterdir()}
    assert files >= PARTS
    for path in folder.iterdir():
        assert mode_of(path) == 0o600, path.name
        assert SECRET not in read_file(path), path.name
    text = (folder / README).read_text()
    for name in files - {README}:
        assert f"  {name} " in text
    assert "stopped  the job, by tpmon: never" in text
    if not ONE_FILE:
        with Recording(str(folder / RECORDING)) as recording:
            frames = list(recording.frames(1, recording.last.n))
            assert recording.subject.script == frames[-1].target.script
            assert recording.dump_near(1).dump.rounds == ROUNDS
            assert [one.is_equal for one in rejudge(recording)] == [True] * len(frames), "judged again as it was"
        assert len(frames) >= 2
        assert {frame.target.pid for frame in frames} == {job_pid}
    assert decode(Frame, (folder / "once.json").read_text()).target.pid == job_pid
    fold = decode(Dump, (folder / "fold.json").read_text())
    assert (fold.rounds, fold.paused_ms) == (ROUNDS, 0.0)
    assert decode(Dump, (folder / "dump-2.json").read_text()).rounds == 1
    assert decode(Checkup, (folder / "doctor.json").read_text()).jobs[0].pid == job_pid
    processes = (folder / "processes.txt").read_text()
    assert [one for one in ("--token ***", "MASTER_ADDR=127.0.0.1", "OMP_NUM_THREADS=3") if one not in processes] == []
    assert "api_key=***" in (folder / "log.txt").read_text()
    versions = (folder / "versions.txt").read_text()
    assert re.search(r"torch of the job: +\d", versions)
    assert re.search(rf"Python of the job: +{re.escape(find_job(job_pid).python_version)}", versions)
    assert json.loads((folder / "verdict.json").read_text())
    assert wait_until(lambda: job_pid not in find_spies())


@pytest.mark.torch
def test_bundle_json_and_text_hide_the_same_secrets_of_every_kind(tmp_path):
    """In arguments, environment, log, and the folder of the log."""
    if reason := may_sample():
        pytest.skip(reason)
    secrets = (*KINDS, *OTHERS)
    words = [one.text for one in secrets if "\n" not in one.text]
    conf = {"NCCL_DEBUG_FILE": "/tmp/token=" + S, "NCCL_SOCKET_IFNAME": f"password:{S}"}
    log = "\n".join(f"step {number}\n{one.text}" for number, one in enumerate(secrets))
    with training(tmp_path / f"runs-{HEX40}", *words, written=f"{log}\n", **conf) as pid:
        said = [
            call("attach", str(pid), "--once", "--json"),
            call("attach", str(pid), "--once"),
            call("bundle", str(pid), "--seconds", "2", "--out", str(tmp_path / "out")),
        ]
    texts = {f"command {at}": done.stdout for at, done in enumerate(said)}
    texts |= {path.name: read_file(path) for path in (tmp_path / "out").iterdir()}
    assert [done.returncode for done in said] == [0, 0, 0]
    assert "/***/train.log" in texts["command 0"]
    assert "NCCL_DEBUG_FILE=/tmp/token=***" in texts["processes.txt"]
    parts = {part for one in secrets for part in one.parts if len(part) >= 9 and not part.isalpha()}
    assert [(name, part) for name, text in texts.items() for part in parts if part in text] == []


@pytest.mark.torch
def test_a_tar_file_holds_the_same_and_is_never_written_over(job_pid, tmp_path):
    path = tmp_path / "ticket.tar.gz"
    arguments = ("bundle", str(job_pid), "--seconds", "2", "--no-stacks", "--tar", str(path))
    done = call(*arguments, code=0)
    assert "with no stacks" in done.stderr
    assert mode_of(path) == 0o600
    with tarfile.open(path) as tar:
        members = {member.name: member for member in tar.getmembers()}
        assert members["ticket"].mode == 0o700
        readme = tar.extractfile("ticket/README.txt")
        assert "dumps: not read: --no-stacks" in readme.read().decode()
    assert {member.mode for name, member in members.items() if name != "ticket"} == {0o600}
    assert {f"ticket/{name}" for name in PARTS if not name.startswith(("dump", "fold"))} <= set(members)
    content = path.read_bytes()
    again = call(*arguments, code=2)
    assert again.stderr.startswith(f"tpmon: {path} is there already, and nothing is written over")
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.torch
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_there_is_stays_when_a_signal_ends_it(job_pid, tmp_path, number, code):
    folder = tmp_path / "out"
    with start("bundle", str(job_pid), "--seconds", "60", "--out", str(folder)) as running:
        assert wait_until((folder / "doctor.json").exists, SECONDS)
        running.send_signal(number)
        assert running.wait(SECONDS) == code
        assert f"what there is of the bundle is in {folder}" in running.stderr.read()
    text = (folder / README).read_text()
    assert "the rest: it was interrupted before the rest was written" in text.replace("\n         ", " ")
    assert "doctor.json" in text
    assert wait_until(lambda: job_pid not in find_spies())


@pytest.mark.torch
def test_a_job_that_ends_meanwhile_is_still_a_bundle(tmp_path):
    with training(tmp_path) as pid:
        folder = tmp_path / "out"
        with start("bundle", str(pid), "--seconds", "20", "--out", str(folder)) as running:
            assert wait_until((folder / "doctor.json").exists, SECONDS)
            os.kill(pid, signal.SIGKILL)
            assert running.wait(SECONDS) == 0
    assert (folder / RECORDING).exists() or ONE_FILE
    assert "ended" in (folder / "once.txt").read_text()


@pytest.mark.torch
def test_a_folder_and_a_tar_file_exclude_each_other_and_a_place_must_take_it(job_pid, tmp_path):
    both = call("bundle", str(job_pid), "--out", str(tmp_path / "a"), "--tar", str(tmp_path / "b"), code=2)
    assert both.stderr.startswith("tpmon: --out and --tar exclude each other")
    nowhere = call("bundle", str(job_pid), "--out", str(tmp_path / "no" / "such" / "folder"), code=2)
    assert "No such file or directory" in nowhere.stderr
    assert list(tmp_path.iterdir()) == []


# the parts


@pytest.mark.torch
def test_a_part_that_fails_or_hangs_is_named_and_the_rest_is_written(job, tmp_path, monkeypatch):
    def hang():
        time.sleep(30)
        return []

    def fail(_pids):
        raise ZeroDivisionError("by design")

    monkeypatch.setattr(evidence, "PART_S", 0.3)
    monkeypatch.setattr(evidence, "read_kernel_lines", hang)
    monkeypatch.setattr(evidence, "read_logs", fail)
    monkeypatch.setattr(evidence.Bundler._add, "__defaults__", (0.3,))
    look = Look(Missing("py-spy is not installed"))
    folder = tmp_path / "out"
    contents = Bundler(job, FolderSink(str(folder)), look).run()
    failures = dict(contents.failures)
    assert failures["kernel.txt"] == "no answer within 0.3 s"
    assert failures["log.txt"] == "ZeroDivisionError: by design"
    assert failures["dumps"] == "py-spy is not installed"
    assert look.stopped
    names = {path.name for path in folder.iterdir()}
    assert {"versions.txt", "processes.txt", RECORDING, "verdict.txt", "once.txt", README} <= names
    assert "log.txt: ZeroDivisionError: by design" in (folder / README).read_text()
    with Recording(str(folder / RECORDING)) as recording:
        assert recording.count_frames() == 2


@pytest.mark.torch
def test_a_disk_that_is_full_costs_parts_and_is_said(job, tmp_path):
    class Full(FolderSink):
        def add(self, name, data):
            if name != "versions.txt":
                raise OSError(28, "No space left on device")
            super().add(name, data)

    folder = tmp_path / "out"
    contents = Bundler(job, Full(str(folder)), Look(Missing("none"))).run()
    assert [name for name, _, _ in contents.files] == ["versions.txt"]
    assert dict(contents.failures)[README] == "No space left on device"
    assert [path.name for path in folder.iterdir()] == ["versions.txt"]


@pytest.mark.torch
def test_who_hurries_gets_the_verdict_and_what_is_not_in_it(job, tmp_path):
    folder = tmp_path / "out"
    begun_s = time.monotonic()
    contents = Bundler(job, FolderSink(str(folder)), Look(Missing("none")), hurries=lambda: True).run()
    assert time.monotonic() - begun_s < 15
    assert [name for name, _, _ in contents.files] == ["verdict.txt", "verdict.json", "once.txt", "once.json"]
    assert "doctor.txt: tpmon was left before it was written" in (folder / README).read_text()


@pytest.mark.torch
def test_a_disk_without_any_room_is_an_error(job_pid, tmp_path):
    tpmon = f"exec {sys.executable} -m tpmon bundle {job_pid} --no-stacks --seconds 2 --out {tmp_path}/out"
    done = subprocess.run(["sh", "-c", f"ulimit -f 0; {tpmon}"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    what, advice = done.stderr.splitlines()[-2:]
    assert what == f"tpmon: {tmp_path}/out: no whole bundle: File too large; nothing of it is there"
    assert advice == "Try: --out with a place that has space"
    assert not (tmp_path / "out").exists()


@pytest.mark.torch
def test_the_folder_is_named_after_host_job_and_time(job):
    name = default_name(job, NOW)
    assert name.endswith(f"-{job.root.pid}-20260314T030741")
    assert "/" not in name


@pytest.mark.torch
def test_the_fold_and_the_last_look_hold_what_the_job_recorded(job, tmp_path):
    rounds = [make_round(make_rank(0), make_rank(1, frames=IN_LOCK), at_s=5.0 * number) for number in range(3)]
    log = tmp_path / "own.log"
    log.write_text("03:07:41 this reading took 2.7 ms\n")
    Bundler(job, FolderSink(str(tmp_path / "out")), Look(rounds, RECORDS), own_log=str(log)).run()
    assert (tmp_path / "out" / "tpmon.log").read_text() == log.read_text()
    dumps = {
        name: decode(Dump, (tmp_path / "out" / f"{name}.json").read_text())
        for name in ("dump-1", "dump-2", "dump-3", "fold")
    }
    assert {one.last_write for one in dumps.values()} == {make_frame().output[0].last_write}
    held = {name: one.collectives for name, one in dumps.items()}
    assert (held["dump-1"], held["dump-2"]) == (NOT_APPLICABLE, NOT_APPLICABLE)
    for name in ("dump-3", "fold"):
        assert is_known(held[name])
        assert held[name].findings[0].missing == (1,)
    said = "all_reduce number 4 of default_pg"
    assert f"calls    {said}" in (tmp_path / "out" / "fold.txt").read_text()
    assert said in (tmp_path / "out" / README).read_text()


@pytest.mark.torch
def test_a_screen_gets_its_bundle_in_the_background_and_a_line_about_it(job, tmp_path):
    def ask(request):
        look(update(request, running=False, rounds=3))

    def write(name, look, find=lambda: job):
        told = SimpleQueue()
        start_bundle(find, lambda _: FolderSink(str(tmp_path / name)), look, told.put)
        return told.get(timeout=SECONDS)

    def gone():
        raise ZeroDivisionError("by design")

    session = SimpleNamespace(pulses=tuple, recall=lambda: judge_steps(run_seconds(3)), ask_dump=ask)
    look, blind = SharedLook(session, SUBJECT, 0.1), SharedLook(session, SUBJECT, 0.1, stacks=False)
    write("blind", blind)
    assert "not read: --no-stacks" in (tmp_path / "blind" / README).read_text()
    checkup = decode(Checkup, (tmp_path / "blind" / "doctor.json").read_text())
    checks = {one.name: one for one in (*(one for job in checkup.jobs for one in job.checks), *checkup.machine)}
    assert checks["stacks"].why == "not tried: --no-stacks"
    path = tmp_path / "out"
    assert write("out", look).startswith(f"bundle   {path} (")
    assert (path / "fold.json").exists()
    other = "tpmon bundle PID --out FOLDER takes another"
    assert write("out", look) == f"no bundle: {path} is there already, and nothing is written over; {other}"
    assert write("out", look, gone) == "the bundle failed: ZeroDivisionError: by design"


# what it holds of the time before


@pytest.fixture
def bundler(tmp_path):
    return Bundler(None, FolderSink(str(tmp_path / "out")), Look(Missing("none")))  # the looks ask no job


def said_of(bundler: Bundler) -> dict[str, str]:
    return {name: said for name, _, said in bundler.contents.files}


def test_the_recording_says_how_far_back_it_goes_how_it_is_read_and_leaves_nothing_elsewhere(
    bundler, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bundler._write_looks()
    said = "the last 1.0 s as the screen showed them: tpmon replay recording.tpmon"
    assert said_of(bundler)[RECORDING] == said
    assert [one.name for one in tmp_path.iterdir()] == ["out"]
    with Recording(str(tmp_path / "out" / RECORDING)) as recording:
        assert [frame.verdict for frame in recording.frames(1, 2)] == [
            one.judged.verdict for one in bundler._look.steps()
        ]


def test_a_python_without_sqlite_costs_the_recording_alone(bundler, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tpmon.record.writer", None)
    bundler._write_looks()
    assert "ModuleNotFoundError" in dict(bundler.contents.failures)[RECORDING]
    assert decode(Frame, (tmp_path / "out" / "once.json").read_text()) == decode(
        Frame, encode(bundler._look.steps()[-1].judged)
    )


def test_the_main_figures_reach_further_back_than_the_frames(bundler, tmp_path):
    bundler._write_looks()
    assert said_of(bundler)["pulses.jsonl"] == "the main figures of the last 10m00s, one reading a line"
    lines = (tmp_path / "out" / "pulses.jsonl").read_text().splitlines()
    assert len(lines) == 601
    assert lines[-1] == encode(pulse_of(make_frame()))
    assert decode(Pulse, lines[0]).taken_ns == NOW_NS - 600 * 10**9


def test_where_nothing_was_read_no_file_is_promised(bundler, monkeypatch):
    monkeypatch.setattr(Look, "pulses", lambda _: ())
    bundler._write_looks()
    assert "pulses.jsonl" not in said_of(bundler)
