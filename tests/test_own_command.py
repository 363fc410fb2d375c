"""The commands that tpmon proposes name a tpmon that sudo finds, and an installer that is there."""

import os
import sys

import pytest

from tpmon import own_command
from tpmon.own_command import choose_install, find_program, install_command


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "my venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "tpmon").touch(mode=0o755)
    return folder


def test_where_sudo_does_not_look_the_whole_path_is_said(place):
    nowhere = str(place.parent)
    quoted = f"'{place}/tpmon'"
    assert find_program(str(place / "tpmon"), "/usr/bin/python3", secure=nowhere) == quoted
    assert find_program("/checkout/tpmon/__main__.py", str(place / "python"), secure=nowhere) == quoted
    assert find_program("pytest", "/usr/bin/python3", secure=nowhere) == "/usr/bin/python3 -m tpmon"


def test_where_sudo_finds_it_the_name_is_enough(place):
    assert find_program("/elsewhere/tpmon", "/usr/bin/python3", secure=f"/sbin:{place}") == "tpmon"


def test_a_relative_call_is_said_whole(place, monkeypatch):
    monkeypatch.chdir(place)
    assert find_program("./tpmon", "/usr/bin/python3", secure="/") == f"'{place}/tpmon'"


def test_root_is_not_sent_to_sudo(monkeypatch):
    monkeypatch.setattr(own_command, "own_program", lambda: "tpmon")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert own_command.call_as_root("ps") == "sudo tpmon ps"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert own_command.call_as_root("ps") == ""


@pytest.mark.parametrize(
    ("prefix", "has_pip", "made_by_uv", "command"),
    [
        ("/opt/venv", True, False, "/opt/venv/bin/python -m pip install -U py-spy"),
        ("/home/u/.local/share/pipx/venvs/tpmon", False, False, "pipx runpip tpmon install -U py-spy"),
        ("/home/u/.cache/uv/archive-v0/x", False, True, "uvx --refresh --with py-spy tpmon"),
        ("/home/u/p/.venv", False, True, "uv pip install --python /home/u/p/.venv/bin/python -U py-spy"),
        ("/usr", False, False, "/usr/bin/python -m ensurepip && /usr/bin/python -m pip install -U py-spy"),
    ],
)
def test_the_installer_is_one_that_is_there(prefix, has_pip, made_by_uv, command):
    said = choose_install("py-spy", f"{prefix}/bin/python", prefix, has_pip=has_pip, made_by_uv=made_by_uv)
    assert said.partition("  # ")[0] == command


def test_an_environment_that_uv_made_is_known_by_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(own_command, "find_spec", lambda _name: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", f"{tmp_path}/bin/python")
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.5.4\n")
    assert install_command("py-spy") == f"uv pip install --python {tmp_path}/bin/python -U py-spy"
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert "-m ensurepip && " in install_command("py-spy")


def test_what_runs_as_a_module_is_called_so_where_no_tpmon_is_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["/env/tpmon/__main__.py"])
    monkeypatch.setenv("PATH", str(tmp_path))
    own_command.called_program.cache_clear()
    try:
        told = own_command.as_called("dump it: tpmon dump 7 --rounds 3; tpmon.pyz stays, as tpmon does")
        assert told == f"dump it: {sys.executable} -m tpmon dump 7 --rounds 3; tpmon.pyz stays, as tpmon does"
        monkeypatch.setattr(sys, "argv", ["/env/bin/tpmon"])
        own_command.called_program.cache_clear()
        assert own_command.as_called("tpmon dump 7") == "tpmon dump 7"
    finally:
        own_command.called_program.cache_clear()
