"""A bundle is private, redacted, never written over anything, and keeps what it has when a part fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.collectives import make_group, make_record
from tests.dumps import IN_LOCK, make_rank, make_round
from tests.frames import make_frame
from tests.unit.test_cli import SECONDS, call, small_environment, start
from tests.unit.test_stacks import may_sample, wait_for
from tpmon import bundle
from tpmon.bundle import Bundler, default_name, open_sink, start_bundle
from tpmon.errors import UsageError
from tpmon.judge.collectives import add_collectives
from tpmon.judge.fold import Origin, fold_rounds
from tpmon.looking import ROUNDS, RoundKeeper, SharedLook
from tpmon.model.codec import decode
from tpmon.model.collectives import CollectivesReading
from tpmon.model.doctor import Checkup
from tpmon.model.dump import Asker, Dump, DumpRequest, DumpRound, DumpState
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.results import DumpUpdate
from tpmon.probe import bundle_sources
from tpmon.probe.bundle_sources import describe_processes, list_versions, read_cards, read_logs
from tpmon.probe.job import Job
from tpmon.probe.other_spies import find_spies
from tpmon.probe.target import find_job
from tpmon.report.bundle import README, Contents, FolderSink, TarSink, say_result, write_readme

__all__ = ["small_environment"]  # a fixture of every test here too

SECRET = "hunter2-and-more"
TRAINING = (
    "import torch, sys; print('loaded', flush=True); print('api_key=' + sys.argv[2], flush=True);"
    " open(sys.argv[3], 'w').close(); sys.stdin.read()"
)
PARTS = {
    "README.txt",
    "versions.txt",
    "processes.txt",
    "log.txt",
    "doctor.txt",
    "doctor.json",
    "frames.jsonl",
    "verdict.txt",
    "verdict.json",
    "once.txt",
    "dump-1.txt",
    "dump-1.json",
    "dump-2.txt",
    "dump-2.json",
    "dump-3.txt",
    "dump-3.json",
    "fold.txt",
    "fold.json",
}
NOW = datetime(2026, 3, 14, 3, 7, 41, tzinfo=timezone.utc)


@contextmanager
def training(folder: Path) -> Iterator[int]:
    """Run a process with torch that waits, with a secret in its arguments, environment and log."""
    ready = folder / "ready"
    with (folder / "train.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", TRAINING, "--token", SECRET, str(ready)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "3", "WANDB_API_KEY": SECRET, "MASTER_ADDR": "127.0.0.1"},
        )
        try:
            assert wait_for(ready.exists, SECONDS)
            yield process.pid
        finally:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def job_pid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Give the PID of a training that lives as long as the tests of this file."""
    if reason := may_sample():
        pytest.skip(reason)
    with training(tmp_path_factory.mktemp("job")) as pid:
        yield pid


@pytest.fixture
def job(job_pid: int) -> Job:
    return find_job(job_pid)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


class Look:
    """Stand for a session: two Frames and what came of the looks."""

    def __init__(
        self,
        rounds: Known[Sequence[DumpRound]],
        records: Applicable[CollectivesReading] = NOT_APPLICABLE,
    ) -> None:
        self._rounds = rounds
        self._records = records
        self.stopped = False

    def start(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True

    def frames(self) -> Sequence[Frame]:
        return (make_frame(), make_frame())

    def rounds(self) -> Known[Sequence[DumpRound]]:
        return self._rounds

    def records(self) -> Applicable[CollectivesReading]:
        return self._records


# the command


@pytest.mark.torch
def test_a_bundle_is_a_private_folder_without_secrets(job_pid: int, tmp_path):
    before = set(tmp_path.iterdir())
    done = call(
        "bundle", str(job_pid), "--seconds", "3", cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
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
        assert SECRET not in path.read_text(), path.name
    text = (folder / README).read_text()
    for name in files - {README}:
        assert f"  {name} " in text
    assert "stopped  the job, by tpmon: never" in text
    frames = [decode(Frame, line) for line in (folder / "frames.jsonl").read_text().splitlines()]
    assert len(frames) >= 2
    assert {frame.target.pid for frame in frames} == {job_pid}
    fold = decode(Dump, (folder / "fold.json").read_text())
    assert (fold.rounds, fold.paused_ms) == (ROUNDS, 0.0)
    assert decode(Dump, (folder / "dump-2.json").read_text()).rounds == 1
    assert decode(Checkup, (folder / "doctor.json").read_text()).jobs[0].pid == job_pid
    assert "OMP_NUM_THREADS=3" in (folder / "processes.txt").read_text()
    assert "api_key=***" in (folder / "log.txt").read_text()
    assert "torch of the job" in (folder / "versions.txt").read_text()
    assert json.loads((folder / "verdict.json").read_text())
    assert wait_for(lambda: job_pid not in find_spies())


@pytest.mark.torch
def test_a_tar_file_holds_the_same_and_is_never_written_over(job_pid: int, tmp_path):
    path = tmp_path / "ticket.tar.gz"
    arguments = ("bundle", str(job_pid), "--seconds", "2", "--no-stacks", "--tar", str(path))
    done = call(*arguments)
    assert done.returncode == 0, done.stderr
    assert "with no stacks" in done.stderr
    assert mode_of(path) == 0o600
    with tarfile.open(path) as tar:
        members = {member.name: member for member in tar.getmembers()}
        assert members["ticket"].mode == 0o700
        readme = tar.extractfile("ticket/README.txt")
        assert readme is not None
        assert "dumps: not read: --no-stacks" in readme.read().decode()
    assert {member.mode for name, member in members.items() if name != "ticket"} == {0o600}
    assert {f"ticket/{name}" for name in PARTS if not name.startswith(("dump", "fold"))} <= set(members)
    content = path.read_bytes()
    again = call(*arguments)
    assert again.returncode == 2
    assert again.stderr.startswith(f"tpmon: {path} is there already, and nothing is written over")
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.torch
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_there_is_stays_when_a_signal_ends_it(job_pid: int, tmp_path, number: int, code: int):
    folder = tmp_path / "out"
    with start("bundle", str(job_pid), "--seconds", "60", "--out", str(folder)) as running:
        assert wait_for((folder / "doctor.json").exists, SECONDS)
        running.send_signal(number)
        assert running.wait(SECONDS) == code
        assert running.stderr is not None
        assert f"what there is of the bundle is in {folder}" in running.stderr.read()
    text = (folder / README).read_text()
    assert "the rest: it was interrupted before the rest was written" in text.replace("\n         ", " ")
    assert "doctor.json" in text
    assert wait_for(lambda: job_pid not in find_spies())


@pytest.mark.torch
def test_a_job_that_ends_meanwhile_is_still_a_bundle(tmp_path):
    with training(tmp_path) as pid:
        folder = tmp_path / "out"
        with start("bundle", str(pid), "--seconds", "20", "--out", str(folder)) as running:
            assert wait_for((folder / "doctor.json").exists, SECONDS)
            os.kill(pid, signal.SIGKILL)
            assert running.wait(SECONDS) == 0
    assert (folder / "frames.jsonl").exists()
    assert "ended" in (folder / "once.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["bundle"], 2, "which job? PID is missing"),
        (["bundle", "x"], 2, "a PID is a number"),
        (["bundle", "1", "--seconds", "1"], 2, "--seconds: expected a number from 2 to 600"),
    ],
)
def test_wrong_calls_are_refused(arguments, code, what):
    done = call(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"tpmon: {what}")


@pytest.mark.torch
def test_a_folder_and_a_tar_file_exclude_each_other_and_a_place_must_take_it(job_pid: int, tmp_path):
    both = call("bundle", str(job_pid), "--out", str(tmp_path / "a"), "--tar", str(tmp_path / "b"))
    assert both.returncode == 2
    assert both.stderr.startswith("tpmon: --out and --tar exclude each other")
    nowhere = call("bundle", str(job_pid), "--out", str(tmp_path / "no" / "such" / "folder"))
    assert nowhere.returncode == 2
    assert "No such file or directory" in nowhere.stderr
    assert list(tmp_path.iterdir()) == []


# the parts


@pytest.mark.torch
def test_a_part_that_fails_or_hangs_is_named_and_the_rest_is_written(job: Job, tmp_path, monkeypatch):
    def hang() -> list[str]:
        time.sleep(30)
        return []

    def fail(_pids: Sequence[int]) -> list[str]:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr(bundle, "PART_S", 0.3)
    monkeypatch.setattr(bundle, "read_kernel_lines", hang)
    monkeypatch.setattr(bundle, "read_logs", fail)
    monkeypatch.setattr(bundle.Bundler._add, "__defaults__", (0.3,))
    look = Look(Missing("py-spy is not installed"))
    folder = tmp_path / "out"
    contents = Bundler(job, FolderSink(str(folder)), look, stacks=False).run()
    failures = dict(contents.failures)
    assert failures["kernel.txt"] == "no answer within 0.3 s"
    assert failures["log.txt"] == "ZeroDivisionError: by design"
    assert failures["dumps"] == "py-spy is not installed"
    assert look.stopped
    names = {path.name for path in folder.iterdir()}
    assert {"versions.txt", "processes.txt", "frames.jsonl", "verdict.txt", "once.txt", README} <= names
    assert "log.txt: ZeroDivisionError: by design" in (folder / README).read_text()
    assert (folder / "frames.jsonl").read_text().count("\n") == 2


@pytest.mark.torch
def test_a_disk_that_is_full_costs_parts_and_is_said(job: Job, tmp_path):
    class Full(FolderSink):
        def add(self, name: str, data: bytes) -> None:
            if name != "versions.txt":
                raise OSError(28, "No space left on device")
            super().add(name, data)

    folder = tmp_path / "out"
    contents = Bundler(job, Full(str(folder)), Look(Missing("none")), stacks=False).run()
    assert [name for name, _, _ in contents.files] == ["versions.txt"]
    assert dict(contents.failures)[README] == "No space left on device"
    assert [path.name for path in folder.iterdir()] == ["versions.txt"]


@pytest.mark.torch
def test_of_the_processes_nothing_secret_is_told(job: Job):
    text = "\n".join(describe_processes(job))
    assert SECRET not in text
    assert "--token ***" in text
    assert "MASTER_ADDR=127.0.0.1" in text
    assert SECRET not in "\n".join(read_logs([job.root.pid]))
    versions = dict(list_versions(job))
    assert is_known(versions["torch of the job"])
    assert versions["Python of the job"] == job.python_version


def test_a_job_without_a_log_file_has_no_log(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as one:
        with pytest.raises(FileNotFoundError, match="no process of the job writes"):
            list(read_logs([one.pid]))
        one.kill()


def test_nvidia_smi_may_be_missing_fail_or_hang(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no nvidia-smi"):
        read_cards()
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0 \033[2J'\necho password=abc\n")
    smi.chmod(0o755)
    assert read_cards() == ("GPU 0 ?[2J", "password=***")
    monkeypatch.setattr(bundle_sources, "_SMI_S", 0.3)
    sleep = shutil.which("sleep", path="/usr/bin:/bin")
    smi.write_text(f"#!/bin/sh\nexec {sleep} 30\n")
    with pytest.raises(TimeoutError, match="no answer within"):
        read_cards()


# the sinks


def test_a_folder_is_never_written_into_twice(tmp_path):
    path = str(tmp_path / "out")
    sink = FolderSink(path)
    sink.add("a", b"1")
    with pytest.raises(FileExistsError):
        sink.add("a", b"2")
    sink.close()
    with pytest.raises(UsageError, match="is there already"):
        FolderSink(path)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is there already"):
        TarSink(str(tmp_path / "link"))
    assert not (tmp_path / "elsewhere").exists()


def test_files_are_private_whatever_the_umask_is(tmp_path):
    before = os.umask(0)
    try:
        folder, tar = FolderSink(str(tmp_path / "out")), TarSink(str(tmp_path / "a.tar"))
        for sink in (folder, tar):
            sink.add("a", b"1")
            sink.close()
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "out") == 0o700
    assert mode_of(tmp_path / "out" / "a") == 0o600
    assert mode_of(tmp_path / "a.tar") == 0o600
    with tarfile.open(tmp_path / "a.tar") as opened:
        assert opened.getnames() == ["a", "a/a"]


def test_the_readme_names_what_is_there_and_what_is_not():
    contents = Contents([("fold.txt", 2048, "all looks folded")], [("kernel.txt", "operation not permitted")])
    text = "\n".join(write_readme([("job", "4211 train.py")], contents))
    assert "job      4211 train.py" in text
    assert "fold.txt             2.0K  all looks folded" in text
    assert "kernel.txt: operation not permitted" in text
    assert "replaced by ***" in text
    assert say_result("/x", contents) == [
        "bundle   /x (1 files, 2.0K)",
        "not in it kernel.txt; README.txt says why",
    ]


@pytest.mark.torch
def test_the_folder_is_named_after_host_job_and_time(job: Job, monkeypatch, tmp_path):
    name = default_name(job, NOW)
    assert name.endswith(f"-{job.root.pid}-20260314T030741")
    assert "/" not in name
    monkeypatch.chdir(tmp_path)
    sink = open_sink(job)
    sink.close()
    assert [path.name for path in tmp_path.iterdir()] == [sink.path]


# looks that a session reads for us


def update(request: DumpRequest, *, running: bool, rounds: int = 0, refused: str = "") -> DumpUpdate:
    one = DumpRound("node-07", NOW, 0, (), (), 0.0, 1.0)
    return DumpUpdate(DumpState(request, (one,) * rounds, 0, 1, running, refused), Missing("not folded"))


def test_a_dump_of_somebody_else_ends_first_and_then_ours_is_asked_for_again():
    keeper = RoundKeeper(0.1)
    other = DumpRequest(Asker.WATCH)
    asked: list[DumpRequest] = []

    def ask(request: DumpRequest) -> None:
        asked.append(request)
        if len(asked) == 1:
            keeper(update(other, running=True, refused="a dump is being read already"))
            keeper(update(other, running=False, rounds=1))
        else:
            keeper(update(request, running=True, rounds=2))
            keeper(update(request, running=False, rounds=3))

    keeper.read(ask, time.monotonic() + 20)
    assert len(asked) == 2
    assert asked[0].block is False
    rounds = keeper.rounds()
    assert is_known(rounds)
    assert len(rounds) == 3


def with_dump(request: DumpRequest, reading: CollectivesReading | None = None) -> DumpUpdate:
    """Say that our looks are done, with the records of the job or before they were read."""
    rounds = tuple(make_round(make_rank(0), make_rank(1, frames=IN_LOCK), at_s=at_s) for at_s in (0.0, 5.0))
    dump = fold_rounds(rounds, Origin(1, "train.py", 2))
    dump = add_collectives(dump, reading) if reading is not None else dump
    state = DumpState(request, rounds, 2, 2, running=False, refused="")
    return DumpUpdate(state, dump, awaits_records=reading is None)


RECORDS = CollectivesReading((make_record(0, make_group(3, 4)), make_record(1, make_group(3, 3))), (), ())


def test_the_looks_are_done_when_the_records_that_the_job_keeps_are_read_too():
    keeper = RoundKeeper(0.1)
    request = capture(keeper)
    keeper(with_dump(request))
    assert not keeper.done.is_set()
    assert keeper.records() is NOT_APPLICABLE
    keeper(with_dump(request, RECORDS))
    assert keeper.done.is_set()
    assert keeper.records() == RECORDS


def test_records_that_another_dump_came_before_are_not_waited_for():
    keeper = RoundKeeper(0.1)
    keeper(with_dump(capture(keeper)))
    keeper(update(DumpRequest(Asker.KEY), running=True))
    assert keeper.done.is_set()
    assert keeper.records() is NOT_APPLICABLE
    rounds = keeper.rounds()
    assert is_known(rounds)
    assert len(rounds) == 2


def capture(keeper: RoundKeeper) -> DumpRequest:
    """Return what a keeper asks a session for."""
    asked: list[DumpRequest] = []
    keeper.read(asked.append, time.monotonic() + 0.05)
    return asked[0]


@pytest.mark.torch
def test_the_fold_and_the_last_look_hold_what_the_job_recorded(job: Job, tmp_path):
    rounds = [
        make_round(make_rank(0), make_rank(1, frames=IN_LOCK), at_s=5.0 * number) for number in range(3)
    ]
    Bundler(job, FolderSink(str(tmp_path / "out")), Look(rounds, RECORDS)).run()
    held = {
        name: decode(Dump, (tmp_path / "out" / f"{name}.json").read_text()).collectives
        for name in ("dump-1", "dump-2", "dump-3", "fold")
    }
    assert (held["dump-1"], held["dump-2"]) == (NOT_APPLICABLE, NOT_APPLICABLE)
    for name in ("dump-3", "fold"):
        assert is_known(held[name])
        assert held[name].findings[0].missing == (1,)
    said = "all_reduce number 4 of default_pg"
    assert f"calls    {said}" in (tmp_path / "out" / "fold.txt").read_text()
    assert said in (tmp_path / "out" / README).read_text()


def test_looks_that_do_not_come_are_given_up_and_said():
    keeper = RoundKeeper(0.1)
    keeper.read(lambda _: None, time.monotonic() + 0.2)
    assert keeper.rounds() == Missing("no look at the stacks was done in time")
    refused = RoundKeeper(0.1)
    refused.read(
        lambda one: refused(update(one, running=False, refused="no process to look at")), time.monotonic() + 5
    )
    assert refused.rounds() == Missing("no process to look at")


@pytest.mark.torch
def test_a_screen_gets_its_bundle_in_the_background_and_a_line_about_it(job: Job, tmp_path):
    told: list[str] = []
    done = threading.Event()
    keeper = RoundKeeper(0.1)

    def tell(text: str) -> None:
        told.append(text)
        done.set()

    def ask(request: DumpRequest) -> None:
        keeper(update(request, running=False, rounds=3))

    look = SharedLook(lambda: (make_frame(),), keeper, ask)
    path = tmp_path / "out"
    start_bundle(lambda: job, lambda _: FolderSink(str(path)), look, tell)
    assert done.wait(SECONDS)
    assert told[0].startswith(f"bundle   {path} (")
    assert (path / "fold.json").exists()
    done.clear()
    start_bundle(lambda: job, lambda _: FolderSink(str(path)), look, tell)
    assert done.wait(SECONDS)
    assert told[1] == f"no bundle: {path} is there already, and nothing is written over"
    done.clear()

    def gone() -> Job:
        raise ZeroDivisionError("by design")

    start_bundle(gone, lambda _: FolderSink(str(path)), look, tell)
    assert done.wait(SECONDS)
    assert told[2] == "the bundle failed: ZeroDivisionError: by design"
