"""The recordings in tests/recordings: judged again they say what they said, and that is right by their labels."""

import json
import os
import re
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.corpus import rejudge as rejudge_command
from tests.corpus.matrix import read_notes
from tests.corpus.rejudge import COMMITTED, judge_again, list_recordings
from tests.corpus.selection import HOME, MOST_BYTES, MOST_BYTES_IN_ALL, NOBODY, Disguise, thin
from tests.corpus.truth import NOT_HUNG, Truth, assess, parse_truth
from tests.programs.causes.running import ROOT, Verdict
from tests.programs.causes.table import COMPUTE, Label
from tpmon.model.codec import encode
from tpmon.model.results.recording import Subject
from tpmon.model.verdict import Kind
from tpmon.record.line import LineReader, unpack_once
from tpmon.record.recording import Recording

PATHS = list_recordings([COMMITTED])
LONG_BYTES = 60_000
"""Larger ones take a second or more to be judged again."""
KNOWN_WRONG: dict[str, str] = {}
"""Recordings that are judged wrongly, by name, and why they are here."""
FOREIGN = re.compile(r"/(?:root|work|mnt|srv)\b|/home/(?!user/)")
"""Paths and names of the machine that they were made on."""
ANY_HOST = re.compile(r'"host": ?"(?!node1")|"user": ?"(?!user")')


def read_texts(path: Path) -> list[str]:
    """Return all that a recording holds, decompressed."""
    with closing(sqlite3.connect(path)) as base:
        texts, reader = [], LineReader()
        for begins, body in base.execute("SELECT key, body FROM frame ORDER BY n"):
            reader = LineReader() if begins else reader
            texts.append(reader.unpack(body).decode())
        texts += [unpack_once(body).decode() for (body,) in base.execute("SELECT body FROM memory") if body]
        assert base.execute("SELECT count(*) FROM artifact").fetchone() == (0,)
        for table in ("meta", "verdict", "event", "hole"):
            texts += [" ".join(map(str, row)) for row in base.execute(f"SELECT * FROM {table}")]
    return texts


def _mark_long(path):
    return pytest.param(path, marks=[pytest.mark.long] if path.stat().st_size > LONG_BYTES else (), id=path.stem)


@pytest.mark.parametrize("path", [_mark_long(path) for path in PATHS])
def test_a_recording_judged_again_says_what_it_said_and_that_is_right(path):
    again = judge_again(path)
    assert (again.differs, again.changes) == (0, ())
    assert again.now.right is (path.stem not in KNOWN_WRONG), f"{again.now}, it is {again.truth}"
    assert again.frames > 0


def test_the_recordings_are_small_and_of_most_kinds():
    sizes = [path.stat().st_size for path in PATHS]
    assert max(sizes) <= MOST_BYTES
    assert sum(sizes) <= MOST_BYTES_IN_ALL
    kinds, machines = Counter(), Counter()
    for path in PATHS:
        notes = read_notes(path)
        kinds[parse_truth(notes["label"]).kind] += 1
        machines[notes["machine"]] += 1
        assert path.name.startswith(notes["program"].replace("/", "-"))
    without_card = {"data-bound", "python-bound", "comms-bound", "oversubscribed", "cpu-throttled", "memory-pressure"}
    assert kinds.keys() >= {*without_card, "hung", "starting", "paused", "idle", "compute-bound", NOT_HUNG}
    assert len(PATHS) >= 40
    assert min(machines["idle"], machines["busy"]) >= 5


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recording_names_no_machine(path):
    host = os.uname().nodename
    for text in read_texts(path):
        found = FOREIGN.search(text) or ANY_HOST.search(text)
        assert found is None, f"{found[0]} in {text[:200]}"
        assert f'"{host}"' not in text


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("data-bound (no-workers)", Truth((Label(Kind.DATA_BOUND, "no-workers"),))),
        ("compute-bound (cpu) | balanced", Truth((COMPUTE, Label(Kind.BALANCED)))),
        (NOT_HUNG, Truth(())),
    ],
)
def test_labels_are_read_as_they_were_written(text, truth):
    assert parse_truth(text) == truth
    assert str(truth) == text


@pytest.mark.parametrize("text", ["", "data-bound(no-workers)", "slow (disk)", "data-bound (no-workers) |"])
def test_a_label_that_is_none_is_refused(text):
    with pytest.raises(ValueError):
        parse_truth(text)


DATA, HUNG, FINE = Verdict("data-bound", "no-workers", 5.0), Verdict("hung", "lock", 9.0), Verdict("balanced", "", 12.0)


@pytest.mark.parametrize(
    ("text", "verdicts", "right", "onset_s", "forbidden"),
    [
        ("data-bound (no-workers)", [FINE, DATA], True, 5.0, ()),
        ("data-bound (drain)", [FINE, DATA], False, -1.0, ()),
        ("hung (lock)", [DATA, HUNG], True, 9.0, ()),
        ("compute-bound (cpu) | balanced", [FINE], True, 12.0, ()),
        ("compute-bound (cpu) | balanced", [DATA, FINE], False, -1.0, ("data-bound no-workers",)),
        (NOT_HUNG, [DATA, FINE], True, 5.0, ()),
        (NOT_HUNG, [HUNG, FINE], False, -1.0, ("hung lock",)),
    ],
)
def test_what_is_said_in_the_end_counts_and_of_a_healthy_one_every_second(text, verdicts, right, onset_s, forbidden):
    found = assess(parse_truth(text), verdicts)
    assert (found.right, found.onset_s, found.forbidden) == (right, onset_s, forbidden)


@pytest.fixture
def hung(tmp_path, monkeypatch):
    """Give a folder with one recording of a hang, which ``make rejudge`` takes for the committed ones."""
    path = min(
        (path for path in PATHS if read_notes(path)["label"] == "hung (lock)"), key=lambda path: path.stat().st_size
    )
    monkeypatch.setattr(rejudge_command, "COMMITTED", tmp_path)
    return Path(shutil.copy(path, tmp_path))


def change_subject(path, **fields):
    with Recording(str(path)) as recording:
        subject = replace(recording.subject, **fields)
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("UPDATE meta SET value = ? WHERE key = 'subject'", (encode(subject),))


def change_label(path, label):
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("UPDATE meta SET value = ? WHERE key = 'label'", (label,))


def test_rejudge_tells_what_it_found(hung, capsys):
    assert rejudge_command.main([]) == 0
    said = capsys.readouterr().out
    assert "1 of 1 right, 1 as recorded" in said
    assert "\nhung: hung 1\n" in said


def test_rejudge_fails_where_a_right_verdict_is_lost(hung, capsys):
    change_subject(hung, hang_after_s=600.0, version="0.0.1")
    assert rejudge_command.main([]) == 1
    said = capsys.readouterr().out
    assert re.search(rf"^{hung.name} \d\d:\d\d:\d\d: hung lock, \w+ -> ", said, re.MULTILINE)
    assert re.search(
        rf"^WRONG {hung.name}: it is hung \(lock\).*, said: .*; was right as recorded$", said, re.MULTILINE
    )


def test_rejudge_fails_where_this_version_does_not_repeat_itself(hung):
    """Even if it was wrong before: a label that never fitted."""
    change_label(hung, "data-bound")
    assert rejudge_command.main([]) == 0
    change_subject(hung, hang_after_s=600.0)
    assert rejudge_command.main([]) == 1


def test_what_is_restated_is_judged_as_it_is_now(hung, tmp_path):
    change_subject(hung, hang_after_s=40.0)
    again = judge_again(hung)
    assert again.differs
    thin(hung, tmp_path / "new.tpmon", again, restate=True)
    assert judge_again(tmp_path / "new.tpmon").differs == 0


SUBJECT = Subject(
    "bignode", "ada", f"{ROOT}/tests/train.py", 7, 8, "some-boot", "1", 1.0, 0.0, 30.0, may_look=True, log_lines=True
)


def test_names_of_this_machine_are_hidden():
    hidden = json.loads(encode(Disguise(SUBJECT).hide(Subject, SUBJECT)))
    told = {name: hidden[name] for name in ("host", "user", "boot", "script")}
    assert told == {"host": "node1", "user": "user", "boot": NOBODY, "script": f"{HOME}/tpmon/tests/train.py"}


def test_a_folder_is_hidden_as_a_whole_path_alone():
    parent = str(ROOT.parent)
    subject = replace(SUBJECT, script=f"{parent}/train.py /site-packages{parent}er.py")
    hidden = Disguise(subject).hide(Subject, subject)
    assert hidden.script == f"{HOME}/train.py /site-packages{parent}er.py"
