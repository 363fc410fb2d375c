"""The starter of the demo: its options, its choice of Python, and how it says that a start failed."""

import ast
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import tpmon
from tests.frames import make_finding
from tests.waiting import wait_until
from tpmon.commands.demo import BOTTLENECKS, DemoOptions, find_python, shows, start_demo
from tpmon.errors import NoTargetError, UsageError
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.verdict import Kind

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
        (DemoOptions(ranks=0), "bottleneck none cannot run with 0 ranks"),
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
