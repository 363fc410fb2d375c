"""With a py-spy that is missing, fails, hangs or raves, every command says what, why and what to try.

A real process with torch; tpmon is started by a Python that has another py-spy, or none, beside it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import SECONDS
from tests.spying import BROKEN_SPIES
from tpmon.model.codec import decode
from tpmon.model.dump import Dump, ErrorKind

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("small_environment")]

ROOT = Path(__file__).parents[3]


SHORT = {
    "test_dump_says_what_why_and_what_to_try": BROKEN_SPIES,
    "test_diagnose_judges_by_the_rest_and_says_what_it_could_not_see": ("raving",),
}
"""What make test tries with each of them, or with some, as it takes seconds; the others with all but "hanging"."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        short = SHORT.get(metafunc.function.__name__, ("missing", "failing", "raving"))
        cases = [name if name in short else pytest.param(name, marks=pytest.mark.long) for name in BROKEN_SPIES]
        metafunc.parametrize("case", cases, indirect=True)


@pytest.fixture
def case(request):
    return BROKEN_SPIES[request.param]


@pytest.fixture
def call(case, tmp_path):
    """Give what runs tpmon with the py-spy of the case."""
    folder = tmp_path / "bin"
    folder.mkdir()
    # Not that of a virtual environment, which has a py-spy of its own.
    (folder / "python").symlink_to(os.path.realpath(sys.executable))
    case.put(folder)
    paths = os.pathsep.join((str(ROOT), *(one for one in sys.path if one.endswith("-packages"))))

    def run(*arguments):
        return subprocess.run(
            [str(folder / "python"), "-B", "-m", "tpmon", *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={**os.environ, "PYTHONPATH": paths, "PATH": "/usr/bin:/bin"},
        )

    return run


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def test_dump_says_what_why_and_what_to_try(case, call, job):
    done = call("dump", str(job))
    said = in_one_line(done.stdout)
    assert (done.returncode, done.stderr) == (2, "")
    assert f"not read rank {job} (rank 0): {case.why}" in said
    assert f"(doctor: {case.line})" in said
    assert case.tip in said.partition(" try ")[2]
    assert f"tpmon doctor {job}" in said.partition(" try ")[2]
    # /proc is read all the same.
    assert "rank 0: stack not read state S, " in said


def test_dump_as_json_has_the_threads_and_the_error(case, call, job):
    done = call("dump", str(job), "--json")
    dump = decode(Dump, done.stdout)
    assert (done.returncode, done.stderr) == (2, "")
    assert [error.kind for error in dump.errors] == [case.kind]
    assert [group.state for group in dump.groups] == ["S"]


def test_sample_ends_with_2_what_why_and_what_to_try(case, call, job):
    done = call("sample", str(job), "--seconds", "1")
    price, *_, what, tip = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert price.startswith("tpmon: samples 1 process")
    assert case.why in what
    assert f"(doctor: {case.line})" in what
    assert tip.startswith("Try: ")
    assert case.tip in tip


def test_diagnose_judges_by_the_rest_and_says_what_it_could_not_see(case, call, job):
    if case.kind is ErrorKind.LATE:
        pytest.skip("the first slice may take as long as the whole look")
    done = call("diagnose", str(job), "--for", "3s")
    said = in_one_line(done.stdout)
    assert done.returncode in (0, 11)
    assert "Traceback" not in done.stderr
    assert said.startswith("verdict ")
    assert f"data wait (stacks: {case.why} (doctor: {case.line})" in said


def test_once_has_rows_and_cpu_and_says_why_there_are_no_stacks(case, call, job):
    done = call("attach", str(job), "--once")
    said = in_one_line(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert f" 0 {job} S " in said
    assert "cpu budget " in said
    if case.kind is not ErrorKind.LATE:
        assert f"stacks ({case.why} (doctor: {case.line})" in said


@pytest.mark.long
def test_a_bundle_has_all_but_stacks_and_the_doctor_of_it(case, call, job, tmp_path):
    done = call("bundle", str(job), "--out", str(tmp_path / "evidence"))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    dump = decode(Dump, (tmp_path / "evidence" / "dump-1.json").read_text())
    assert [error.kind for error in dump.errors] == [case.kind]
    fold = in_one_line((tmp_path / "evidence" / "fold.txt").read_text())
    assert case.why in fold
    assert case.tip in fold
    doctor = in_one_line((tmp_path / "evidence" / "doctor.txt").read_text())
    assert "not allowed or not there: " in doctor or "not known: " in doctor
    assert "(doctor: " not in doctor
    assert (tmp_path / "evidence" / "frames.jsonl").stat().st_size
