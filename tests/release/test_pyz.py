"""tpmon.pyz does what an installed tpmon does, on a Python that has nothing, in an empty home."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from release.pyz import ROOT, build
from release.pyz_start import PACKED

from tests.hook.test_hook_install import find_pythons
from tests.pty.conftest import Terminal
from tests.release.conftest import list_pythons
from tpmon.own_command import as_typed, call_archive, call_python, choose_install
from tpmon.probe.spy.failure import choose_spy

pytestmark = pytest.mark.pyz
MEGABYTES = 7.0
SECONDS = 60.0


def environment(home: Path, **changes: str) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8", "TERM": "xterm-256color"} | changes


@pytest.fixture(scope="session")
def run(pyz, cold_home):
    """Run the file on a Python that sees nothing but its standard library, and check the exit code."""

    def run_it(python, *arguments, code=0, home=cold_home, archive=pyz, **changes):
        done = subprocess.run(
            [python, "-I", "-S", str(archive), *arguments],
            env=environment(home, **changes),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert code in (None, done.returncode), (done.stdout[-1000:], done.stderr[-2000:])
        return done

    return run_it


def list_cases():
    """Return the Pythons; those between the oldest and the newest are left to make test-long."""
    system, *others = list_pythons()
    between = others[1:-1]
    named = [(one, one.replace("/", "-").strip("-")) for one in (system, *others)]
    return [pytest.param(one, id=name, marks=[pytest.mark.long] * (one in between)) for one, name in named]


@pytest.fixture(params=list_cases())
def python(request):
    return request.param


def test_it_is_small_and_the_same_each_time(pyz, tmp_path):
    assert pyz.stat().st_size < MEGABYTES * 1e6
    build(tmp_path / "again.pyz")
    assert (tmp_path / "again.pyz").read_bytes() == pyz.read_bytes()
    outer = zipfile.ZipFile(pyz)
    assert outer.namelist() == ["__main__.py", PACKED], "Python reads this list at each start"
    names = zipfile.ZipFile(outer.open(PACKED)).namelist()
    assert not [one for one in names if one.endswith((".so", ".pyc"))]
    assert {one.split("/")[0].removesuffix(".py") for one in names} >= {
        "tpmon",
        "textual",
        "rich",
        "pygments",
        "pynvml",
    }
    assert not {one.split("/")[0] for one in names} & {"psutil", "msgspec", "numpy"}
    for package in ("textual", "rich", "pygments", "py-spy"):
        assert [one for one in names if package in one.lower() and "licen" in one.lower()], package


def test_commands_without_a_job(python, run, tmp_path):
    assert "tpmon here is: " in run(python, "--help").stdout
    assert run(python, "--version").stdout.startswith("tpmon ")
    assert json.loads(run(python, "ps", "--json").stdout)["schema"] == "tpmon.jobs/1"
    assert json.loads(run(python, "doctor", "--json", "--no-stacks").stdout)["schema"] == "tpmon.doctor/1"
    assert "interval" in run(python, "--print-config").stdout
    assert "complete" in run(python, "completion", "bash").stdout
    export = tmp_path / "hook.zip"
    run(python, "hook", "export", str(export))
    assert "lib/tpmon/hook/steps.py" in zipfile.ZipFile(export).namelist()


def test_the_demo_is_in_it_for_a_python_without_torch_and_zstandard(python, run):
    done = run(python, "demo")
    assert "recorded, not live" in done.stderr
    assert done.stdout.startswith("verdict  DATA-BOUND")
    assert run(python, "demo", "--bottleneck", "hang", "--once").stdout.startswith("verdict  HUNG")


def test_what_is_not_in_it_is_said_with_the_command_that_brings_it(python, run):
    said = run(python, "trace", "trace.json", code=2).stderr
    assert "tpmon trace needs numpy and msgspec" in said
    assert " install" in said.splitlines()[1]
    found = dict(find_pythons())
    if python != found.get("3.14"):
        recording = next(iter(sorted((ROOT / "tests" / "recordings").iterdir())))
        assert "backports.zstd" in run(python, "replay", str(recording), "--once", code=2).stderr


def test_a_printed_command_works_as_it_stands(run, pyz):
    said = run(sys.executable, "attach", "1999999999", code=3).stderr
    line = next(one for one in said.splitlines() if one.startswith("Try: "))
    assert f"{sys.executable} {pyz} ps" in line


@pytest.mark.torch
def test_text_of_a_job(python, run, job, sampling_works):
    pid = str(job)
    frame = json.loads(run(python, "attach", pid, "--once", "--json", "-i", "0.5").stdout)
    assert frame["target"]["pid"] == job
    assert "no NVIDIA driver" in str(frame["gpus"]) or isinstance(frame["gpus"], list), "the NVML child answers"
    assert f"{job}" in run(python, "attach", pid, "--once").stdout
    said = run(python, "diagnose", pid, "--for", "3s", "--json", code=None).stdout
    assert json.loads(said)["kind"]
    dump = json.loads(run(python, "dump", pid, "--json").stdout)
    assert dump["groups"], "py-spy is in the file"
    assert json.loads(run(python, "sample", pid, "--seconds", "1", "--json").stdout)["pid"] == job


@pytest.mark.torch
def test_the_screen(python, pyz, cold_home, job):
    terminal = Terminal([python, "-I", "-S", str(pyz), "attach", str(job)], environment(cold_home))
    try:
        terminal.until("q quit")
        terminal.press("?")
        terminal.until("close")
        terminal.press("?")
        terminal.until(lambda: "close" not in terminal.text())
        terminal.quit()
    finally:
        terminal.close()


def test_it_is_laid_out_once_for_this_user_alone(run, pyz, tmp_path):
    run(sys.executable, "--version", home=tmp_path)
    (layout,) = (tmp_path / ".cache" / "tpmon").iterdir()
    assert layout.stat().st_mode & 0o777 == 0o700
    spy = layout / "py-spy" / os.uname().machine / "py-spy"
    assert spy.stat().st_mode & 0o777 == 0o700
    before = layout.stat().st_mtime_ns
    run(sys.executable, "--version", home=tmp_path)
    assert [layout] == list((tmp_path / ".cache" / "tpmon").iterdir())
    assert layout.stat().st_mtime_ns == before


def test_what_others_may_write_into_is_not_trusted(run, tmp_path):
    home, other = tmp_path / "home", tmp_path / "tmp"
    (home / ".cache" / "tpmon").mkdir(parents=True)
    (home / ".cache" / "tpmon").chmod(0o777)
    other.mkdir()
    run(sys.executable, "--version", home=home, TMPDIR=str(other))
    assert list((home / ".cache" / "tpmon").iterdir()) == []
    (place,) = other.iterdir()
    assert place.name == f"tpmon-{os.geteuid()}"
    assert place.stat().st_mode & 0o777 == 0o700


def test_a_file_as_the_cache_is_no_end(run, tmp_path):
    (tmp_path / ".cache").write_text("")
    other = tmp_path / "tmp"
    other.mkdir()
    run(sys.executable, "--version", home=tmp_path, TMPDIR=str(other))
    assert len(list(other.iterdir())) == 1


def test_two_first_starts_at_once_make_one(pyz, tmp_path):
    command = [sys.executable, "-I", str(pyz), "--version"]
    both = [subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE) for _ in range(3)]
    assert [one.communicate(timeout=SECONDS)[0][:5] for one in both] == [b"tpmon"] * 3
    assert len(list((tmp_path / ".cache" / "tpmon").iterdir())) == 1


def test_a_python_that_is_too_old_is_told(pyz):
    old = find_pythons().get("3.8") or find_pythons().get("3.9")
    if old is None:
        pytest.skip("no older Python here")
    done = subprocess.run([old, str(pyz)], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 2
    assert "needs Python 3.10 or newer" in done.stderr


@pytest.mark.parametrize("python", list_pythons()[:1])
def test_on_path_by_the_name_tpmon_it_is_called_so(run, pyz, python, tmp_path):
    command = tmp_path / "bin" / "tpmon"
    command.parent.mkdir()
    shutil.copy(pyz, command)
    said = run(python, "attach", "1999999999", code=3, archive=command, PATH=f"{command.parent}:/usr/bin").stderr
    assert "Try: tpmon ps" in said


def test_pep_668_gets_an_environment_of_its_own():
    managed = {"has_pip": True, "made_by_uv": False, "is_managed": True}
    of_file = choose_install("numpy", "/usr/bin/python3", "/usr", **managed, archive="/root/my file/tpmon.pyz")
    assert of_file.startswith("/usr/bin/python3 -m venv ~/.venv-tpmon && ~/.venv-tpmon/bin/python -m pip install numpy")
    assert of_file.endswith("# then ~/.venv-tpmon/bin/python '/root/my file/tpmon.pyz'")
    installed = choose_install("numpy", "/usr/bin/python3", "/usr", **managed)
    assert installed.endswith("pip install tpmon numpy  # then ~/.venv-tpmon/bin/tpmon")


def test_py_spy_is_that_of_path_then_beside_then_packed(tmp_path):
    packed = tmp_path / "layout" / "py-spy" / os.uname().machine / "py-spy"
    beside, on_path = tmp_path / "files" / "py-spy", tmp_path / "bin" / "py-spy"
    for one in (packed, beside, on_path):
        one.parent.mkdir(parents=True)
        one.touch(mode=0o700)
    archive, layout = str(tmp_path / "files" / "tpmon.pyz"), str(tmp_path / "layout")
    of_python = str(tmp_path / "none" / "py-spy")
    assert choose_spy(of_python, str(on_path), archive, layout) == str(on_path)
    assert choose_spy(of_python, None, archive, layout) == str(beside)
    beside.unlink()
    assert choose_spy(of_python, None, archive, layout) == str(packed)
    packed.chmod(0o600)
    assert choose_spy(of_python, None, archive, layout) == ""
    assert choose_spy(of_python, None, "", layout) == ""


def test_commands_are_typed_as_the_file_is_called(monkeypatch):
    from tpmon import own_command

    monkeypatch.setattr(own_command, "typed_program", lambda: "python3 t.pyz")
    assert as_typed("tpmon ps lists them; then /bin/tpmon ps") == "python3 t.pyz ps lists them; then /bin/tpmon ps"
    assert as_typed("run tpmon as root") == "run tpmon as root"
    assert call_archive("/a b/tpmon.pyz", "/usr/bin/python3", "/usr/bin") == "/usr/bin/python3 '/a b/tpmon.pyz'"


def test_a_child_knows_the_file_too(monkeypatch):
    monkeypatch.setattr("tpmon.archive", "/x/tpmon.pyz")
    asked = "import os; print(tpmon.archive, sys.path[0] == os.path.dirname(os.path.dirname(tpmon.__file__)))"
    done = subprocess.run(call_python(asked), capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.split() == ["/x/tpmon.pyz", "True"]
