"""Around the terminal: the editor and its file, copies, and a user without HOME, for whom nothing is written in "~"."""

import base64
import os
import sys

import pytest

from tests.frames import make_frame, make_target
from tpmon.config import config_path, describe_config, read_file, resolve
from tpmon.model.frame import TargetState
from tpmon.model.known import Missing
from tpmon.model.stacks import StackFrame
from tpmon.ui.monitor.alerts import facts_text
from tpmon.ui.terminal_io.clipboard import OSC_52_LIMIT_BYTES, copied_message, load_tmux_buffer, osc_52
from tpmon.ui.terminal_io.driver import starts_with_esc_key
from tpmon.ui.terminal_io.editor import EditorCall, find_editor, plan_edit, run_editor
from tpmon.ui.terminal_io.terminal import report_crash


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("a\nb\nc\n")
    return str(path)


def test_the_command_is_split_and_gets_line_and_file_and_visual_comes_before_editor(source):
    call = plan_edit(StackFrame("main", source, 3), {"EDITOR": f"{sys.executable} -m 'my editor'"})
    assert call == EditorCall((sys.executable, "-m", "my editor", "+3", source), f"{source}:3")
    assert find_editor({"VISUAL": "env", "EDITOR": "false"}) == ("env",)
    assert find_editor({"VISUAL": "  ", "EDITOR": "env"}) == ("env",), "blank is not set"


def test_where_no_editor_is_named_one_that_is_here_is_taken(tmp_path):
    for name in ("nano", "vi"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
        assert find_editor({"PATH": str(tmp_path)}) == (name,)
    assert find_editor({"PATH": str(tmp_path), "EDITOR": "env"}) == ("env",)


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
    assert words in call.reason
    assert call.reason.endswith(f"the line is {source}:3")


@pytest.mark.parametrize("file", ["<string>", "train.py", "-rf", "/no/such/file.py", "/", "/no/\x1b[2J.py"])
def test_what_is_no_file_here_is_not_handed_to_the_editor(file):
    call = plan_edit(StackFrame("main", file, 3), {"EDITOR": "env"})
    assert isinstance(call, Missing)
    assert "is no file" in call.reason or "cannot open" in call.reason
    assert "\x1b" not in call.reason


def test_the_editor_gets_the_environment_without_what_the_screen_set_and_its_failure_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("ESCDELAY", "25")
    monkeypatch.setenv("KEPT", "yes")
    said = tmp_path / "said"
    code = "import os, sys; open(sys.argv[1], 'w').write(f\"{os.environ.get('ESCDELAY')} {os.environ['KEPT']}\")"
    assert run_editor([sys.executable, "-c", code, str(said)]) == ""
    assert said.read_text() == "None yes"
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


def test_osc_52_carries_the_text_unless_terminals_would_drop_it():
    sequence = osc_52("GPU 41 % · 4 workers")
    assert sequence.startswith("\x1b]52;c;")
    assert sequence.endswith("\x07")
    assert base64.b64decode(sequence[7:-1]).decode() == "GPU 41 % · 4 workers"
    assert osc_52("x" * (OSC_52_LIMIT_BYTES + 1)) == ""
    assert "terminal" not in copied_message("the screen", "", "")
    assert "printed on exit" in copied_message("the screen", "", "")


def test_tmux_is_asked_only_inside_tmux(monkeypatch, tmp_path):
    monkeypatch.delenv("TMUX", raising=False)
    assert load_tmux_buffer("text") == ""
    monkeypatch.setenv("TMUX", f"{tmp_path}/no-server,1,0")
    assert load_tmux_buffer("text") in ("tmux refused (1)", "no tmux command")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert load_tmux_buffer("text") == "no tmux command"
    (tmp_path / "tmux").write_text("no program")
    assert load_tmux_buffer("text") == "tmux did not start (Permission denied)"
    (tmp_path / "tmux").chmod(0o755)
    assert load_tmux_buffer("text") == "tmux did not start (Exec format error)"


def test_facts_name_the_job_the_host_and_the_time():
    frame = make_frame(
        facts="2 workers",
        notes=("CUDA_LAUNCH_BLOCKING=1 is set",),
        target=make_target(state=TargetState.ENDED, ended="SIGKILL; OOM killer"),
    )
    assert facts_text(frame).splitlines() == [
        "tpmon 4211 train.py on node-07, 2026-03-14T03:07:41+00:00",
        "2 workers",
        "target ended: SIGKILL; OOM killer",
        "note: CUDA_LAUNCH_BLOCKING=1 is set",
    ]


def test_without_a_home_a_crash_is_told_and_written_nowhere_and_no_configuration_is_read(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    try:
        raise ZeroDivisionError("seen")
    except ZeroDivisionError as error:
        said = report_crash(error)
    assert said.startswith("Traceback")
    assert "tpmon: bug: ZeroDivisionError: seen" in said
    assert said.endswith("Try: copy the lines above; no report file: no home folder is known.")
    assert list(tmp_path.iterdir()) == []
    path = config_path({})
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text("interval = 5\n")
    assert read_file(path) == {}
    assert describe_config(resolve({}, {}, path, {}), {}, path)[0] == f"# {path} (not there)"


@pytest.mark.parametrize(
    ("text", "is_key"),
    [
        *((one, True) for one in ("\x1bj", "\x1b/", "\x1b:", "\x1b\x1b[A", "\x1b\x1b")),
        *((one, False) for one in ("\x1b", "j", "", "\x1b[", "\x1bO", "\x1b[A", "\x1bOP", "\x1b[27u", "ab")),
    ],
)
def test_esc_and_a_key_at_once_are_two_keys(text, is_key):
    assert starts_with_esc_key(text) is is_key
