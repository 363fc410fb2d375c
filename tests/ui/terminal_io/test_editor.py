"""The editor: which command, for which file, and what is said where there is none."""

import os
import sys

import pytest

from tpmon.model.known import Missing
from tpmon.model.stacks import StackFrame
from tpmon.ui.terminal_io.editor import EditorCall, find_editor, plan_edit, run_editor


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("a\nb\nc\n")
    return str(path)


def test_the_command_is_split_and_gets_line_and_file(source):
    call = plan_edit(StackFrame("main", source, 3), {"EDITOR": f"{sys.executable} -m 'my editor'"})
    assert call == EditorCall((sys.executable, "-m", "my editor", "+3", source), f"{source}:3")


def test_visual_comes_before_editor_and_blank_is_not_set():
    assert find_editor({"VISUAL": "env", "EDITOR": "false"}) == ("env",)
    assert find_editor({"VISUAL": "  ", "EDITOR": "env"}) == ("env",)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "$EDITOR is not set: try export EDITOR=vim"),
        ({"EDITOR": "no-such-editor-here -n"}, "$EDITOR names no program that is here: no-such-editor-here"),
        ({"VISUAL": "'half"}, "$VISUAL cannot be read"),
    ],
)
def test_without_an_editor_the_line_is_said(source, environ, words):
    call = plan_edit(StackFrame("main", source, 3), environ)
    assert isinstance(call, Missing)
    assert words in call.reason
    assert call.reason.endswith(f"the line is {source}:3")


@pytest.mark.parametrize("file", ["<string>", "train.py", "-rf", "/no/such/file.py", "/"])
def test_what_is_no_file_here_is_not_handed_to_the_editor(file):
    call = plan_edit(StackFrame("main", file, 3), {"EDITOR": "env"})
    assert isinstance(call, Missing)
    assert "is no file" in call.reason or "cannot open" in call.reason


def test_a_file_name_of_somebody_else_sends_no_escape_sequence(tmp_path):
    call = plan_edit(StackFrame("main", f"{tmp_path}/\x1b[2J.py", 3), {"EDITOR": "env"})
    assert isinstance(call, Missing)
    assert "\x1b" not in call.reason


def test_the_editor_gets_the_environment_without_what_the_screen_set(tmp_path, monkeypatch):
    monkeypatch.setenv("ESCDELAY", "25")
    monkeypatch.setenv("KEPT", "yes")
    said = tmp_path / "said"
    code = "import os, sys; open(sys.argv[1], 'w').write(f\"{os.environ.get('ESCDELAY')} {os.environ['KEPT']}\")"
    assert run_editor([sys.executable, "-c", code, str(said)]) == ""
    assert said.read_text() == "None yes"


def test_an_editor_that_fails_is_told():
    assert run_editor([sys.executable, "-c", "raise SystemExit(3)"]) == f"{sys.executable} ended with 3"
    assert "cannot be started" in run_editor([os.devnull])


def test_a_file_of_a_process_in_a_container_is_opened_there(tmp_path, source):
    proc = tmp_path / "proc"
    for name, space in (("self", "mnt:[1]"), ("7", "mnt:[2]"), ("8", "mnt:[1]")):
        (proc / name / "ns").mkdir(parents=True)
        (proc / name / "ns" / "mnt").symlink_to(space)
    (proc / "7" / "root").symlink_to("/")
    environ = {"EDITOR": "env"}
    frame = StackFrame("main", source, 3)
    there = plan_edit(frame, environ, 7, str(proc))
    assert there == EditorCall(("env", "+3", f"{proc}/7/root{source}"), f"{source}:3")
    for pid in (8, 9):  # in our namespace; and one of which nothing is known
        assert plan_edit(frame, environ, pid, str(proc)) == EditorCall(("env", "+3", source), f"{source}:3")
