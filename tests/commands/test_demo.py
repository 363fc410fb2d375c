"""The starter of the demo: its options, its choice of Python, and how it says that a start failed."""

import ast
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import tpmon
from tpmon.commands.demo import BOTTLENECKS, DemoOptions, find_python, start_demo
from tpmon.errors import NoTargetError, UsageError

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


def test_a_training_that_ends_at_once_is_told_with_its_last_words(directory, monkeypatch):
    monkeypatch.setenv(
        "PYTHON", make_fake_python(directory / "broken", "printf 'ImportError:\\033[31m no libtorch\\n'; exit 1")
    )
    with pytest.raises(NoTargetError) as failed:
        start_demo(DemoOptions())
    assert failed.value.what == "the demo training ended before its first step: ImportError:?[31m no libtorch"
    log = failed.value.try_this.removeprefix("read ")
    assert "no libtorch" in Path(log).read_text()
    assert os.stat(os.path.dirname(log)).st_mode & 0o777 == 0o700


def test_the_demo_joins_no_run_whose_variables_the_shell_carries(directory, monkeypatch):
    """A PyTorchJob pod and a Slurm step put them into every shell that is opened there."""
    names = "MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK NODE_RANK GROUP_WORLD_SIZE PET_NNODES"
    places = {*names.split(), "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}
    for name in places:
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHON", make_fake_python(directory / "python", "env; exit 1"))
    with pytest.raises(NoTargetError) as failed:
        start_demo(DemoOptions())
    log = Path(failed.value.try_this.removeprefix("read ")).read_text()
    names = {line.partition("=")[0] for line in log.splitlines()}
    assert not names & places
    assert {"OMP_NUM_THREADS", "PATH", "TMPDIR"} <= names


def test_a_python_that_cannot_run_is_no_traceback(directory, monkeypatch):
    monkeypatch.setenv("PYTHON", make_fake_python(directory / "gone", ""))
    (directory / "gone").write_text('#!/bin/sh\n[ "$1" = -c ] && rm "$0"\n')
    with pytest.raises(NoTargetError, match="could not be started"):
        start_demo(DemoOptions())
    deadline = time.monotonic() + 10
    while list(directory.iterdir()):
        assert time.monotonic() < deadline, "the keeper left its folder behind"
        time.sleep(0.01)


def test_a_temporary_folder_too_long_for_sockets_is_not_used(directory, monkeypatch):
    long = directory / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setenv("PYTHON", make_fake_python(directory / "broken", "exit 1"))
    with pytest.raises(NoTargetError) as failed:
        start_demo(DemoOptions())
    log = Path(failed.value.try_this.removeprefix("read "))
    assert log.parent.parent == Path("/tmp")
    log.unlink()
    log.parent.rmdir()
