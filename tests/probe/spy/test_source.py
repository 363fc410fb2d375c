"""The text of the busiest lines: bounded, cleaned, without secrets, and never an error."""

import os

import pytest

from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.probe.spy import source
from tpmon.probe.spy.source import MOST_LINES, TEXT_CHARS, SourceReader

LIB = "/usr/lib/python3.11/json/decoder.py"


def stack(file, line, samples=1):
    return StackCount(7, "MainThread", (StackFrame("main", str(file), line), StackFrame("decode", LIB, 337)), samples)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "any name.py"
    path.write_text("import gc\n    gc.collect()  # \x1b[31m\ntoken = 'hf_" + "a8Xk2" * 7 + "'\n" + "x" * 500 + "\n")
    return path


def test_the_busiest_lines_are_those_of_the_program_below_its_libraries(script):
    stacks = [stack(script, 2, 5), stack(script, 1, 9), stack(LIB, 3, 99)]
    read = SourceReader().read(os.getpid(), stacks)
    assert [(one.line, one.text[:12]) for one in read] == [(1, "import gc"), (2, "gc.collect()")]
    assert {one.file for one in read} == {str(script)}


def test_a_line_is_cleaned_cut_and_without_secrets(script):
    lines = SourceReader().read(os.getpid(), [stack(script, n, 1) for n in (2, 3, 4)])
    said = {one.line: one.text for one in lines}
    assert len(lines) == MOST_LINES
    assert "\x1b" not in said[2]
    assert "a8Xk2" not in said[3]
    assert len(said[4]) <= TEXT_CHARS


@pytest.mark.parametrize("file", ["/no/such/file.py", "<stdin>", "…/cut/away.py", "", "/dev/zero"])
def test_what_cannot_be_read_is_no_line(file):
    assert SourceReader().read(os.getpid(), [stack(file, 1)]) is NOT_APPLICABLE


def test_a_line_beyond_the_end_a_fifo_and_a_process_that_is_gone_are_none(script, tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    reader = SourceReader()
    assert reader.read(os.getpid(), [stack(script, 99), stack(tmp_path / "pipe.py", 1)]) is NOT_APPLICABLE
    assert reader.read(2**22 + 1, [stack(script, 1)]) is NOT_APPLICABLE


def test_a_mount_that_does_not_answer_is_asked_once(script, monkeypatch):
    asked = []

    def hang(_seconds, _read):
        asked.append(1)
        return Missing("no answer within 0.5 s")

    monkeypatch.setattr(source, "read_within", hang)
    reader = SourceReader()
    for line in (1, 2):
        assert reader.read(os.getpid(), [stack(script, line)]) is NOT_APPLICABLE
    assert asked == [1]
