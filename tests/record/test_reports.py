"""Programs that were made after reports: the table of their truth, how they start, and what is measured of them."""

import os
import re
import sys
import time
from dataclasses import replace

import pytest

from tests.corpus.matrix import read_notes, relabel, write_notes
from tests.corpus.own_reports import BY_NAME
from tests.corpus.reports import (
    TORCHRUN,
    Fit,
    Reported,
    assess_advice,
    list_reports,
    list_unknown,
    parse_run,
    start_report,
)
from tests.corpus.truth import parse_truth
from tests.programs.causes.running import CannotBeMadeError
from tests.programs.causes.table import BALANCED
from tests.record.test_corpus import PATHS
from tpmon.judge.advice.choose import CATALOGUE
from tpmon.model.verdict import Kind
from tpmon.record.recording import Recording

TINY = Reported(name="tiny", kind=0, label=BALANCED, culprit="", place="", ready="step 1")
LEAVES_A_CHILD = """
import os, subprocess, sys, time
code = "import os, subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], stdout=2).pid)"
print('"pid": ' + subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True).stdout, flush=True)
print("step 1", os.getcwd(), flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize(("name", "row"), BY_NAME.items(), ids=BY_NAME)
def test_the_table_of_truth_holds_together(name, row):
    assert {*row.right, *row.harmful} <= set(CATALOGUE)
    assert not set(row.right) & set(row.harmful)
    assert parse_truth(str(row.truth)) == row.truth
    assert row.culprit
    assert [re.compile(pattern) for pattern in (row.place, row.ready)]
    assert f"{row.name}.py" in row.command
    assert row.full_name == name


def test_a_folder_is_recorded_as_far_as_its_truth_is_known(tmp_path):
    for name in ("one_shard", "other", "_shared"):
        (tmp_path / f"{name}.py").touch()
    assert [one.name for one in list_reports(tmp_path)] == ["reports/one_shard"]
    assert list_unknown(tmp_path) == ["other"]


@pytest.mark.parametrize(
    ("text", "settings", "command"),
    [
        ("python a.py --n 6", {}, [sys.executable, "{}/a.py", "--n", "6"]),
        ("N=1 torchrun --x 2 a.py", {"N": "1"}, [*TORCHRUN, "--x", "2", "{}/a.py"]),
        ("python a.py x=1", {}, [sys.executable, "{}/a.py", "x=1"]),
    ],
)
def test_a_line_that_a_user_types_is_started(tmp_path, text, settings, command):
    assert parse_run(text, tmp_path) == (settings, [word.format(tmp_path) for word in command])


def is_alive(pid):
    return os.path.exists(f"/proc/{pid}/exe")


def test_what_a_program_leaves_behind_ends_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.corpus.reports.SETTLE_S", 0.0)
    (tmp_path / "tiny.py").write_text(LEAVES_A_CHILD)
    with start_report(replace(TINY, attach_printed=True), tmp_path, 0) as left:
        assert is_alive(left)
    deadline = time.monotonic() + 5
    while is_alive(left) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(left)


def test_a_program_that_ends_too_soon_or_lacks_a_package_is_told(tmp_path):
    (tmp_path / "tiny.py").write_text("print('no such luck')")
    with pytest.raises(RuntimeError, match="no such luck"), start_report(TINY, tmp_path, 0):
        pass
    lacking = start_report(replace(TINY, needs=("sys", "no_such_package")), tmp_path, 0)
    with pytest.raises(CannotBeMadeError, match="no_such_package"), lacking:
        pass


@pytest.fixture
def finding():
    with Recording(str(next(path for path in PATHS if "too_few_workers" in path.name))) as recording:
        *_, last = recording.recorded()
    return replace(last.judged.verdict, try_="raise num_workers from 1 to 2: num_workers=2,")


def test_what_a_verdict_advises_first_and_names_is_measured(finding):
    row = replace(TINY, place="WORKERS?", right=("more-workers",))
    said = assess_advice(row, finding)
    assert (said.remedy, said.fit, said.names_culprit) == ("more-workers", Fit.RIGHT, True)
    assert assess_advice(None, finding) is None
    other = replace(row, place="no such place", right=(), harmful=("more-workers",))
    said = assess_advice(other, finding)
    assert (said.fit, said.names_culprit) == (Fit.HARMFUL, False)
    said = assess_advice(replace(row, rank=finding.rank + 1), finding)
    assert (said.fit, said.names_culprit) == (Fit.BESIDE, False)
    assert other.fits("more-cores") is Fit.BESIDE
    assert other.fits("") is Fit.NONE
    assert finding.kind is Kind.DATA_BOUND


def test_a_truth_that_has_changed_is_written_into_recordings(tmp_path, capsys):
    path = tmp_path / "reports-one_shard.idle.0.tpmon"
    path.write_bytes(PATHS[0].read_bytes())
    write_notes(path, {"program": "reports/one_shard", "label": "balanced"})
    relabel(tmp_path, [])
    relabel(tmp_path, [])
    assert read_notes(path)["label"] == "data-bound (uneven-workers)"
    assert capsys.readouterr().out == f"{path.name}: balanced -> data-bound (uneven-workers)\n"
