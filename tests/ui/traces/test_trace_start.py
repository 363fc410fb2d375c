"""What `tpmon trace` opens on a terminal, what it prints there, and what is imported for it."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.command_line import read
from tests.goldens.trace_views import build_gpu_run
from tests.snapshots import training
from tpmon.commands import trace
from tpmon.commands.trace import TraceOptions
from tpmon.errors import UsageError
from tpmon.model.known import NotApplicable, is_known
from tpmon.model.results.trace_tables import CodePlace
from tpmon.ui.terminal_io import terminal
from tpmon.ui.terminal_io.terminal import ScreenResult
from tpmon.ui.traces import app as trace_app
from tpmon.ui.traces.snapshots import SnapshotSubject
from tpmon.ui.traces.state import WHOLE
from tpmon.ui.traces.subject import TraceSubject
from tpmon.view.trace import Grouping

Start = Callable[..., int]


@pytest.fixture
def drawn(monkeypatch):
    """Return what would be drawn, on a terminal."""
    shown = []
    monkeypatch.setattr(terminal, "has_terminal", lambda: True)
    monkeypatch.setattr(
        trace_app, "run_trace_screen", lambda *given, ascii_only: shown.append(given) or ScreenResult(0, "", "")
    )
    return shown


@pytest.fixture
def start():
    def run(*files, plain=False, **given):
        return trace.run(read(TraceOptions, files=files, plain=plain, **given))

    return run


@pytest.fixture
def traces(tmp_path):
    after = build_gpu_run(0, 1).write(tmp_path / "after.json", {})
    return after, build_gpu_run(0, 1, 2000.0).write(tmp_path / "before.json", {})


def test_a_comparison_opens_the_screen_of_the_trace_after_which_puts_operators_together(drawn, start, traces):
    after, before = traces
    assert start(after, against=before, target="1.5x") == 0
    ((subject, controls),) = drawn
    assert isinstance(subject, TraceSubject)
    assert subject.paths == (after,)
    assert (subject.comparison.before, subject.comparison.after) == (before, after)
    assert subject.comparison.target == 1.5
    assert subject.comparison.summary.startswith("faster, but less than the 1.5x hoped for")
    assert is_known(controls.look(0, 0, WHOLE, 40)), "the strip is of the trace after"
    assert is_known(controls.find_line(0, "aten::addmm")) or controls.find_line(0, "aten::addmm").reason
    assert {row.group for row in controls.group(0, Grouping.LINES)} == {"train.py(88): train"}
    assert controls.group(0, Grouping.SHAPES) == ()


def test_a_snapshot_opens_a_screen_without_a_timeline(drawn, start, tmp_path):
    path = training().write(tmp_path / "s.pickle")
    assert start(path) == 0
    ((subject, controls),) = drawn
    assert isinstance(subject, SnapshotSubject)
    assert subject.paths == (path,)
    assert isinstance(controls.look(0, 0, WHOLE, 40), NotApplicable)
    assert controls.find_line(0, "/a/b.py:3 f") == CodePlace("f", "/a/b.py", 3)


def test_a_long_snapshot_says_that_it_is_read_and_takes_the_line_back(drawn, start, tmp_path, monkeypatch, capfd):
    path = training().write(tmp_path / "s.pickle")
    assert start(path) == 0
    assert capfd.readouterr().err == "", "a short one says nothing"
    monkeypatch.setattr(trace, "LONG_SNAPSHOT_BYTES", 1)
    assert start(path) == 0
    said = capfd.readouterr().err
    assert "tpmon: reading " in said
    assert said.endswith("\r\x1b[K")
    with pytest.raises(UsageError):
        start(path + ".none.pickle")
    assert len(drawn) == 2


def test_text_is_what_it_was_where_it_is_asked_for(drawn, start, traces, tmp_path, capfd):
    after, before = traces
    snapshot = training().write(tmp_path / "s.pickle")
    assert start(after, against=before, top="3") == 0
    assert "result   it helped" in capfd.readouterr().out
    assert start(after, against=before, plain=True) == 0
    assert "result   it helped" in capfd.readouterr().out
    assert start(snapshot, csv="live") == 0
    assert capfd.readouterr().out.startswith("path,device,bytes")
    assert start(snapshot, plain=True) == 0
    assert "alive at the end on GPU 0, by stack" in capfd.readouterr().out
    assert drawn == []


def test_what_cannot_be_compared_is_refused_before_anything_is_drawn(drawn, start, traces, tmp_path):
    after, before = traces
    snapshot = training().write(tmp_path / "s.pickle")
    for files, given, words in (
        ((after, before), {"against": before}, ""),
        ((after,), {"against": before, "target": "fast"}, ""),
        ((after,), {"target": "2x"}, ""),
        ((snapshot,), {"against": before}, f"--against compares traces, and {snapshot} is a memory snapshot"),
        ((snapshot,), {"table": "patterns"}, f"--table is for traces, and {snapshot} is a memory snapshot"),
        ((snapshot,), {"target": "2x"}, f"--target is for traces, and {snapshot} is a memory snapshot"),
        ((after,), {"against": snapshot}, ""),
        ((after,), {"against": str(tmp_path / "none.json")}, ""),
        ((after, snapshot), {}, ""),
    ):
        with pytest.raises(UsageError) as refused:
            start(*files, **given)
        assert refused.value.what == (words or refused.value.what)
    assert drawn == []


def test_a_trace_alone_imports_nothing_of_snapshots_and_comparisons():
    only = (
        "tpmon.trace.compare",
        "tpmon.trace.snapshot",
        "tpmon.ui.traces.snapshots",
        "tpmon.view.snapshot",
        "tpmon.model.results.snapshot",
    )
    program = (
        "import sys, tpmon.commands.trace, tpmon.ui.traces.app, tpmon.ui.traces.subject; "
        f"print([one for one in {only} if one in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


@pytest.mark.parametrize("key", ["target", "against", "csv", "top", "table", "slice", "steps", "top_gaps"])
def test_a_flag_with_nothing_in_it_is_refused_and_not_taken_for_none(drawn, start, traces, key):
    with pytest.raises(UsageError) as refused:
        start(traces[0], **{key: ""})
    assert refused.value.what.startswith(f"--{key.replace('_', '-')} takes ")
    assert refused.value.what.endswith(", found ''")
    assert drawn == []


def test_the_json_has_the_tables_that_text_makes_on_request(traces, capfd):
    assert trace.run(TraceOptions(traces[:1], json=True)) == 0
    (file,) = json.loads(capfd.readouterr().out)["files"]
    assert file["shapes"] == []
    assert {row["group"] for row in file["lines"]} == {"train.py(88): train"}
