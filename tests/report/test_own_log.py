"""The log of tpmon itself: bounded, of what costs and what is not read, never in the way."""

import stat
import time
from dataclasses import replace

import pytest

from tests.frames import make_event, make_frame, make_pulses
from tpmon.errors import UsageError
from tpmon.model.frame import EventKind
from tpmon.model.known import Missing
from tpmon.model.results.doctor import Update
from tpmon.report import own_log
from tpmon.report.own_log import EVERY_S, SLOW_MS, OwnLog, read_own_log

FRAME = make_frame(gpus=Missing("no driver here"))


def send(log, *frames):
    for frame in frames:
        log.receive(Update(frame, make_pulses(frame)))
    deadline = time.monotonic() + 10
    while not log._lines.empty():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    log._drain()
    time.sleep(0.02)  # the last line is on its way to the file


def test_it_says_what_a_reading_cost_what_is_not_read_and_what_changed(tmp_path):
    path = tmp_path / "own.log"
    log = OwnLog(str(path))
    later = replace(
        FRAME,
        taken_ns=FRAME.taken_ns + int(EVERY_S * 1e9),
        gpus=(),
        events=(make_event("py-spy was started anew", kind=EventKind.PROBE), make_event("a worker was born")),
    )
    soon = replace(FRAME, taken_ns=FRAME.taken_ns + 1)
    slow = replace(soon, self_=replace(soon.self_, tick_ms=SLOW_MS))
    send(log, FRAME, soon, slow, later)
    text = path.read_text()
    assert text.count("this reading took") == 3, "each half minute, and a slow one at once"
    assert "begins: tpmon " in text.splitlines()[0]
    assert "not read: GPUs (no driver here)" in text
    assert "read again: GPUs (no driver here)" in text
    assert "py-spy was started anew" in text
    assert "born" not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_own_log(str(path)) == path.read_bytes()


def test_it_is_bounded_and_keeps_the_file_before(tmp_path, monkeypatch):
    monkeypatch.setattr(own_log, "MOST_BYTES", 2000)
    path = tmp_path / "own.log"
    log = OwnLog(str(path))
    slow = replace(FRAME, self_=replace(FRAME.self_, tick_ms=SLOW_MS))
    send(log, *[slow] * 100)
    assert path.stat().st_size <= 2000
    assert (tmp_path / "own.log.1").stat().st_size <= 2000
    assert sorted(one.name for one in tmp_path.iterdir()) == ["own.log", "own.log.1"]


def test_a_place_that_cannot_be_written_is_refused_by_the_name_of_the_flag(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (str(tmp_path / "none" / "own.log"), str(tmp_path), str(tmp_path / "link")):
        with pytest.raises(UsageError, match=r"^--log: "):
            OwnLog(path)
