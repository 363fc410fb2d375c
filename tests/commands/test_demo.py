"""The starter of the demo: its options, its choice of Python, and how it says that a start failed."""

import ast
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import tpmon
from tests.corpus.demo_recordings import EXPECTED, read_last
from tests.corpus.truth import parse_truth
from tests.frames import make_finding
from tests.waiting import wait_until
from tpmon.commands import demo
from tpmon.commands.demo import BOTTLENECKS, RECORDINGS, DemoOptions, find_next, find_python, shows, start_demo
from tpmon.errors import NoTargetError, UsageError
from tpmon.model.codec import encode
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.verdict import Kind
from tpmon.record import line
from tpmon.record.recording import Recording
from tpmon.record.rejudge import rejudge

PACKAGE = Path(tpmon.__file__).parent


def make_fake_python(path: Path, training: str) -> str:
    """Write a program that claims to have torch and runs ``training`` for anything else."""
    path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 0\n{training}\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def directory(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="demo-") as short:  # tmp_path is too long for sockets
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield Path(short)


def test_the_starter_and_the_training_know_the_same_bottlenecks():
    tree = ast.parse((PACKAGE / "demo" / "train.py").read_text())
    named = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "BOTTLENECKS"
    )
    assert [one.name for one in BOTTLENECKS] == list(named)


@pytest.mark.parametrize(
    ("kind", "cause", "shown"),
    [
        (Kind.NOT_ENOUGH_EVIDENCE, NOT_APPLICABLE, ()),
        (Kind.STARTING, "first-steps", ()),
        (Kind.COMPUTE_BOUND, "cpu", ("none",)),
        (Kind.HUNG, "lock", ("none", "hang")),
    ],
)
def test_text_is_written_once_the_verdict_is_there_that_the_demo_is_for(kind, cause, shown):
    finding = make_finding(kind=kind, cause=cause)
    assert tuple(one for one in ("none", "hang") if shows(finding, one)) == shown


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (DemoOptions(bottleneck="hang", ranks=1), "bottleneck hang cannot run with 1 ranks"),
        (DemoOptions(ranks=0), "bottleneck slow-storage cannot run with 0 ranks"),
        (DemoOptions(bottleneck="no-workers", workers=2), "bottleneck no-workers cannot run with 2 workers"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_starts(options, what, directory):
    with pytest.raises(UsageError) as refused:
        start_demo(options)
    assert refused.value.what == what
    assert refused.value.try_this
    assert not list(directory.iterdir())


def test_the_python_that_is_named_comes_first_if_it_has_torch(tmp_path, monkeypatch):
    named = make_fake_python(tmp_path / "named", "")
    monkeypatch.setenv("PYTHON", named)
    assert find_python() == named
    monkeypatch.setenv("PYTHON", "/bin/false")
    assert find_python() not in (named, "/bin/false")


def test_without_torch_anywhere_the_looked_at_are_named(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    program = "from tpmon.commands.demo import find_python\ntry: find_python()\nexcept Exception as error: print(error)"
    environment = {"PATH": "/nowhere", "PYTHON": "", "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([bare, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"no Python with torch for the demo (tried {bare})\n"


def fail_to_start(monkeypatch, path: Path, training: str) -> tuple[str, Path]:
    """Start a training that ends before a step; return what is said and the log that is named."""
    monkeypatch.setenv("PYTHON", make_fake_python(path, training))
    with pytest.raises(NoTargetError) as failed:
        start_demo(DemoOptions())
    return failed.value.what, Path(failed.value.try_this.removeprefix("read "))


def test_a_training_that_ends_at_once_is_told_with_its_last_words(directory, monkeypatch):
    words = "printf 'ImportError:\\033[31m no libtorch\\n'; exit 1"
    what, log = fail_to_start(monkeypatch, directory / "broken", words)
    assert what == "the demo training ended before its first step: ImportError:?[31m no libtorch"
    assert "no libtorch" in log.read_text()
    assert log.parent.stat().st_mode & 0o777 == 0o700


def test_the_demo_joins_no_run_whose_variables_the_shell_carries(directory, monkeypatch):
    """A PyTorchJob pod and a Slurm step put them into every shell that is opened there."""
    names = "MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK NODE_RANK GROUP_WORLD_SIZE PET_NNODES"
    places = {*names.split(), "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}
    for name in places:
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    _, log = fail_to_start(monkeypatch, directory / "python", "env; exit 1")
    names = {line.partition("=")[0] for line in log.read_text().splitlines()}
    assert not names & places
    assert {"OMP_NUM_THREADS", "PATH", "TMPDIR"} <= names


def test_a_python_that_cannot_run_is_no_traceback(directory, monkeypatch):
    monkeypatch.setenv("PYTHON", make_fake_python(directory / "gone", ""))
    (directory / "gone").write_text('#!/bin/sh\n[ "$1" = -c ] && rm "$0"\n')
    with pytest.raises(NoTargetError, match="could not be started"):
        start_demo(DemoOptions())
    assert wait_until(lambda: not list(directory.iterdir()), 10), "the keeper left its folder behind"


def test_a_temporary_folder_too_long_for_sockets_is_not_used(directory, monkeypatch):
    long = directory / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    _, log = fail_to_start(monkeypatch, directory / "broken", "exit 1")
    assert log.parent.parent == Path("/tmp")
    log.unlink()
    log.parent.rmdir()


MOST_BYTES = 150_000
RECORDED = demo.list_recorded()
PLACES = ("/home/user/", "/proc/", "/dev/", "/job/", "/tmp/tpmon-demo-", "/tmp/data/", "/usr/", "/sys/")
"""Where the paths of a recorded training may lie: none names a person or a machine."""


def recording_of(name: str) -> Path:
    return Path(RECORDINGS, f"{name}.tpmon")


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_bottleneck_has_a_small_recording_that_every_python_reads(name, monkeypatch):
    monkeypatch.setattr(line, "zstd", None)
    path = recording_of(name)
    assert path.stat().st_size <= MOST_BYTES
    last = read_last(path)
    assert parse_truth(EXPECTED[name]).accepts(last.kind, last.cause), last
    with Recording(str(path)) as recording:
        assert shows(recording.frame(recording.last.n).verdict, name)
        assert recording.find(demo.find_begin(recording).wall_ns).n < recording.last.n


@pytest.mark.parametrize("name", ["slow-storage", "hang"])
def test_a_recording_says_what_this_tpmon_says(name):
    with Recording(str(recording_of(name))) as recording:
        last = list(rejudge(recording))[-1]
        assert last.is_same_verdict, "make demo-recordings DEMO_RECORDINGS=--restate"


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_names_no_machine_and_nobody(name):
    with Recording(str(recording_of(name))) as recording:
        subject = recording.subject
        assert (subject.host, subject.user, subject.script) == ("node1", "user", "train.py")
        texts = [encode(frame) for frame in recording.frames(recording.first.n, recording.last.n)]
    for text in texts:
        assert str(PACKAGE.parent) not in text
        words = re.findall(r"(?<![\w.*/)-])/[\w./*-]+", json.dumps(json.loads(text), ensure_ascii=False))
        assert not [word for word in words if not word.startswith(PLACES) and word.count("/") > 1]


def without_torch(monkeypatch) -> None:
    def refuse() -> str:
        raise NoTargetError("no Python with torch for the demo (tried /usr/bin/python3)", "pip install torch")

    monkeypatch.setattr(demo, "find_python", refuse)


@pytest.mark.parametrize(("form", "begins"), [({}, "verdict  DATA-BOUND"), ({"once": True, "json": True}, "{")])
def test_without_torch_and_without_a_terminal_a_recording_ends_with_its_verdict(form, begins, monkeypatch, capfd):
    without_torch(monkeypatch)
    assert demo.run(DemoOptions(**form)) == 0
    said = capfd.readouterr()
    assert said.out.startswith(begins)
    assert len(said.out.splitlines()) > 1 or json.loads(said.out)["verdict"]["kind"] == "data-bound"
    assert said.err.splitlines() == [
        "tpmon: no Python with torch, so a recording is shown; live: pip install torch",
        "tpmon: the demo training (slow-storage), recorded, not live",
    ]


def test_a_stream_of_a_recording_has_all_its_frames(monkeypatch, capfd):
    assert demo.run(DemoOptions(recorded=True, json=True, bottleneck="hang")) == 0
    frames = [json.loads(one) for one in capfd.readouterr().out.splitlines()]
    assert len(frames) > 30
    assert frames[-1]["verdict"]["kind"] == "hung"


def test_what_only_a_training_can_do_is_not_answered_with_a_recording(monkeypatch):
    with pytest.raises(UsageError, match="--recorded and --ranks"):
        demo.run(DemoOptions(recorded=True, ranks=2))
    without_torch(monkeypatch)
    with pytest.raises(NoTargetError, match="no Python with torch"):
        demo.run(DemoOptions(workers=3))


def test_the_next_bottleneck_comes_round_to_the_first():
    names = demo.NAMES
    assert [find_next(names, one) for one in names] == [*names[1:], names[0]]
    assert set(RECORDED) <= set(names)
    assert len(RECORDED) > 5
    (unrecorded, *_) = {*names} - {*RECORDED} or {""}
    if unrecorded:
        with pytest.raises(UsageError, match=f"there is no recording of {unrecorded}"):
            demo.run(DemoOptions(recorded=True, bottleneck=unrecorded))


def test_on_a_screen_n_goes_on_to_the_next_and_its_own_ranks(monkeypatch):
    from tpmon.ui.terminal_io import terminal

    shown = []

    def show(_python, options, **_how):
        shown.append((options.bottleneck, options.ranks, options.workers))
        return terminal.ScreenResult(0, "", "", asks_next=find_next(demo.NAMES, options.bottleneck) * (len(shown) < 3))

    monkeypatch.setattr(terminal, "has_terminal", lambda: True)
    monkeypatch.setattr(demo, "find_python", lambda: "python")
    monkeypatch.setattr(demo, "show_training", show)
    assert demo.run(DemoOptions(bottleneck="memory-leak", ranks=2)) == 0
    assert shown == [("memory-leak", 2, None), ("hang", None, None), ("none", None, None)]
