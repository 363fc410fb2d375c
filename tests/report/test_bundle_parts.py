"""The parts of a bundle, the folder that they go to, and the looks that a session reads for it."""

import os
import shutil
import stat
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.dumps import make_rank, make_round
from tests.looks import RECORDS, update
from tests.recordings import SUBJECT
from tests.stacks import IN_LOCK
from tpmon import evidence
from tpmon.errors import UsageError
from tpmon.evidence import SharedLook
from tpmon.judge.dumps.collectives import add_collectives
from tpmon.judge.folds.groups import DumpOrigin, fold_rounds
from tpmon.model.dump import Asker, DumpRequest, DumpState
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.collectives import CollectivesReading
from tpmon.model.results.doctor import DumpUpdate
from tpmon.probe.collect import bundle as bundle_sources
from tpmon.probe.collect.bundle import read_cards, read_logs
from tpmon.report import bundle as report
from tpmon.report.bundle import README, Contents, FolderSink, TarSink, add_part, check_written, say_result, write_readme

pytestmark = pytest.mark.usefixtures("small_environment")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_job_without_a_log_file_has_no_log(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
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


def test_a_file_that_cannot_be_finished_goes(tmp_path):
    code = (
        "import resource, sys; from tpmon.report.bundle import *; kind, path, room = sys.argv[1:]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(room),) * 2)\n"
        "sink = {'f': FolderSink, 't': TarSink}[kind](path)\n"
        "sink.add('a', b'x' * 5_000)\n"
        "for name in 'bc':\n"
        "    try: sink.add(name, b'x' * 50_000)\n"
        "    except OSError as error: print(error.strerror)\n"
        "try: sink.close()\n"
        "except OSError as error: print('close:', error.strerror)\n"
    )

    def fill(kind, path, room=20_000):
        words = [sys.executable, "-c", code, kind, str(path), str(room)]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    assert fill("f", tmp_path / "f") == "File too large\n" * 2
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["a"]
    assert fill("t", tmp_path / "t.tar") == "File too large\n" * 2
    with tarfile.open(tmp_path / "t.tar") as tar:
        assert tar.getnames() == ["t", "t/a"], "what was added before is there"
    assert fill("t", tmp_path / "u.tar", 7_000) == "File too large\n" * 2 + "close: File too large\n"
    assert not (tmp_path / "u.tar").exists(), "a tar file without its end is none"


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_a_signal_while_a_tar_file_is_written_costs_what_was_being_written(tmp_path, monkeypatch, name):
    sink = TarSink(str(tmp_path / name))
    sink.add("a", b"a" * 5_000)

    def interrupt(fd, data):
        os.write(fd, data[: len(data) // 2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(report, "_write_all", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sink.add("b", os.urandom(5_000))
    sink.add(README, b"why b is missing")
    sink.close()
    with tarfile.open(tmp_path / name) as tar:
        assert tar.getnames() == ["x", "x/a", f"x/{README}"]
        readme = tar.extractfile(f"x/{README}")
        assert readme.read() == b"why b is missing"
        assert (tar.getmember("x").mode, tar.getmember("x/a").size) == (0o700, 5_000)


@pytest.mark.parametrize(
    ("who", "euid", "given"),
    [(("1000", "100"), 0, (1000, 100)), (("1000", "100"), 7, ()), (("", ""), 0, ()), (("-1", "x"), 0, ())],
)
def test_a_bundle_that_sudo_wrote_is_given_to_who_called_it(tmp_path, monkeypatch, who, euid, given):
    owners = []
    monkeypatch.setenv("SUDO_UID", who[0])
    monkeypatch.setenv("SUDO_GID", who[1])
    monkeypatch.setattr(report.os, "geteuid", lambda: euid)
    monkeypatch.setattr(report.os, "fchown", lambda _fd, *owner: owners.append(owner))
    for sink in (FolderSink(str(tmp_path / "out")), TarSink(str(tmp_path / "a.tar"))):
        sink.add("a", b"1")
        sink.close()
    assert owners == ([given] * 3 if given else []), "the folder, its file, and the tar file"


def test_a_bundle_without_its_readme_or_any_file_is_none():
    whole = Contents([("a", 1, "a")], [("b", "gone")])
    check_written("/x", whole)
    for contents in (
        Contents([("a", 1, "a")], [("b", "gone"), (README, "No space left on device")]),
        Contents([], [("b", "No space left on device")]),
    ):
        with pytest.raises(UsageError, match=r"^/x: no whole bundle: No space left on device; "):
            check_written("/x", contents)


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
    assert say_result("/x", contents) == ["bundle   /x (1 file, 2.0K)", "not in it kernel.txt; README.txt says why"]


def begin_look(ask, round_s: float = 7.0) -> SharedLook:
    """Begin to look with a session that answers with ``ask``, and wait until it is done or given up."""
    session = SimpleNamespace(frames=tuple, pulses=tuple, recall=tuple, ask_dump=lambda request: ask(look, request))
    look = SharedLook(session, SUBJECT, 0.1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "ROUND_LIMIT_S", round_s)
        look.wait()
    return look


def test_a_dump_of_somebody_else_ends_first_and_then_ours_is_asked_for_again():
    other = DumpRequest(Asker.WATCH)
    asked: list[DumpRequest] = []

    def ask(look, request):
        asked.append(request)
        if len(asked) == 1:
            look(update(other, running=True, refused="a dump is being read already"))
            look(update(other, running=False, rounds=1))
        else:
            look(update(request, running=True, rounds=2))
            look(update(request, running=False, rounds=3))

    look = begin_look(ask)
    assert len(asked) == 2
    assert asked[0].block is False
    assert len(look.rounds()) == 3


def with_dump(request: DumpRequest, reading: CollectivesReading | None = None) -> DumpUpdate:
    """Say that our looks are done, with the records of the job or before they were read."""
    rounds = tuple(make_round(make_rank(0), make_rank(1, frames=IN_LOCK), at_s=at_s) for at_s in (0.0, 5.0))
    dump = fold_rounds(rounds, DumpOrigin(1, "train.py", 2))
    dump = add_collectives(dump, reading) if reading is not None else dump
    state = DumpState(request, rounds, 2, 2, running=False, refused="")
    return DumpUpdate(state, dump, awaits_records=reading is None)


@pytest.mark.parametrize("overtaken", [False, True])
def test_the_looks_are_done_when_the_records_are_read_too_or_another_dump_came_before_them(overtaken):
    def ask(look, request):
        look(with_dump(request))
        assert not look.done.is_set()
        assert look.records() is NOT_APPLICABLE
        look(update(DumpRequest(Asker.KEY), running=True) if overtaken else with_dump(request, RECORDS))

    look = begin_look(ask)
    assert look.done.is_set()
    assert (look.records(), len(look.rounds())) == (NOT_APPLICABLE if overtaken else RECORDS, 2)
    assert [one.state.rounds for one in look.dumps()] == [look.rounds()], "for the recording"


def test_looks_that_do_not_come_are_given_up_and_said():
    refused = begin_look(lambda look, one: look(update(one, running=False, refused="no process to read")))
    assert refused.rounds() == Missing("no process to read")
    assert list(refused.dumps()) == []
    assert begin_look(lambda *_: None, 0.05).rounds() == Missing("no dump of the stacks was done in time")


@pytest.mark.parametrize("ends", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_file_that_is_written_when_a_signal_comes_is_named(ends):
    class Sink:
        def add(self, name: str, data: bytes) -> None:
            assert [one[0] for one in contents.files] == ["a.txt"], "named before it is there"
            raise ends

    contents = Contents()
    with suppress(KeyboardInterrupt):
        add_part(Sink(), contents, "a.txt", "a part", lambda: ["a line"])
    why = "it was interrupted while this was written" if ends is KeyboardInterrupt else "No space left on device"
    assert (contents.files, contents.failures) == ([], [("a.txt", why)])
