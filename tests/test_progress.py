"""The tests of make test say what they do while they run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import progress

ROOT = Path(__file__).parents[1]
TESTS = (
    """\
import pytest
from tests.progress import Progress

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress("others", config))
""",
    """\
import pytest

@pytest.fixture
def broken():
    raise OSError("no such thing")

def test_good(): pass
def test_bad(): assert 1 == 2, "one is not two"
def test_broken(broken): pass
""",
)
FAILED = (
    "FAILED test_some.py::test_bad: AssertionError: one is not two  (others: {} of 3 tests, {} failed, 0.0 min)",
    "FAILED test_some.py::test_broken in its setup: OSError: no such thing  (others: {} of 3 tests, {} failed, 0.0 min)",
)


def run_some(folder: Path, *options: str, tells: int = 0, notes: str = "") -> list[str]:
    for name, text in zip(("conftest.py", "test_some.py"), TESTS, strict=True):
        (folder / name).write_text(text)
    own = {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(ROOT),
        "TEST_TELLS": str(tells),
        "TEST_NOTES": notes,
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), *options, "."],
        cwd=folder,
        env={**os.environ, **own},
        pass_fds=[tells] if tells else [],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return done.stdout.splitlines()


def test_a_failure_is_named_when_it_comes_and_pytest_has_the_last_word(tmp_path):
    lines = run_some(tmp_path)
    told = [FAILED[0].format(1, 1), FAILED[1].format(2, 2)]
    places = [lines.index(one) for one in told]
    assert places == sorted(places)
    assert places[-1] < next(place for place, line in enumerate(lines) if "= FAILURES =" in line)
    assert "1 failed, 1 passed, 1 error" in lines[-1]


def test_with_processes_each_is_named_once(tmp_path):
    lines = run_some(tmp_path, "-p", "xdist", "-n", "2")
    told = [line for line in lines if "of 3 tests" in line]
    assert told, lines
    assert sorted(line.split()[1].rstrip(":") for line in told) == [
        "test_some.py::test_bad",
        "test_some.py::test_broken",
    ]


def test_of_a_part_whose_report_comes_later_another_is_told(tmp_path):
    with (tmp_path / "told").open("wb") as file:
        lines = run_some(tmp_path, tells=file.fileno(), notes=str(tmp_path / "notes"))
    assert "of 3 tests" not in "".join(lines)
    told = [line for line in (tmp_path / "told").read_text().splitlines() if line]
    assert told == [FAILED[0].format(1, 1), FAILED[1].format(2, 2)]
    notes = (tmp_path / "notes").read_text().splitlines()
    assert notes == [one.partition("  (")[0] for one in FAILED], "said again at the end of all"


@pytest.mark.parametrize(("load", "said"), [(1.9, ""), (3.14, "this machine is busy: load 3.1 on 2 cores: ")])
def test_a_busy_machine_is_told_before_anything_fails(load, said, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    assert progress.say_load() == (said and said + progress.MAY_FAIL)


def test_own_time_is_part_of_that_of_all():
    before = progress.read_cpu_s()
    sum(range(3_000_000))
    used_s, own_s = (now - one for now, one in zip(progress.read_cpu_s(), before, strict=True))
    assert 0 < own_s <= used_s + 0.1
