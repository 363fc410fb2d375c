"""What make says before it fetches anything, in a clone with nothing in it."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def plan(tmp_path):
    """Return the commands that a target would run in an empty clone, in their order."""
    if shutil.which("make") is None:
        pytest.skip("no make on this machine")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)

    def plan_target(*words: str) -> str:
        done = subprocess.run(["make", "-n", *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout

    return plan_target


@pytest.mark.parametrize("target", ["demo", "demo-live", "setup", "test"])
def test_how_much_is_fetched_is_said_before_it_is(plan, target):
    said, fetch = plan(target).split("pip install", 1)
    assert " MB, " in said.splitlines()[-2]
    assert "torch" not in said
    assert "-e '.[dev]'" in fetch if target in ("setup", "test") else "-e ." in fetch


def test_a_demo_fetches_no_torch_unless_it_is_asked_to(plan):
    assert "install $quiet --disable-pip-version-check 'torch" not in plan("demo")
    assert "make demo-live fetches torch, which is not here" in plan("demo")


@pytest.mark.parametrize("target", ["demo-live", "test"])
@pytest.mark.parametrize(
    ("chosen", "size", "command"),
    [
        ("TORCH_BUILD=cpu", "0.2 GB of a CPU build", "'torch==2.13.0+cpu'"),
        ("TORCH_BUILD=any", "0.2 GB of a CPU build to 3 GB of one for CUDA", "version-check  'torch==2.13.0'"),
        ("TORCH_INDEX=INDEX", "0.2 GB of a CPU build to 3 GB of one for CUDA", "--index-url 'INDEX' 'torch==2.13.0'"),
    ],
)
def test_the_torch_that_is_fetched_is_told_with_its_size_and_how_to_choose(plan, target, chosen, size, command):
    said, _, after = plan(target, chosen).partition(f"is fetched into .venv: {size}; ")
    assert "torch: none found" in said.splitlines()[-1]
    assert "TORCH_BUILD=cpu or any" in after.splitlines()[0]
    assert command in after


def test_a_terminal_sees_the_progress_of_pip(plan):
    assert "quiet=--quiet; test ! -t 1 || quiet=;" in plan("demo")
    assert "$(test -t 1" not in plan("test"), "in $( ) the output is a pipe"
