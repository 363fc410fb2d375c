"""What a bundle holds of the time before: the Frames that fit, and the main figures of ten minutes."""

from typing import cast

import pytest

from tests.frames import NOW_NS, make_frame
from tests.looks import Look
from tpmon.evidence import Bundler
from tpmon.model.codec import decode, encode
from tpmon.model.frame import Pulse, pulse_of
from tpmon.model.known import Missing
from tpmon.probe.job.job import Job
from tpmon.report import bundle
from tpmon.report.bundle import FolderSink


@pytest.fixture
def bundler(tmp_path):
    nobody = cast("Job", None)  # the looks ask no job
    return Bundler(nobody, FolderSink(str(tmp_path / "out")), Look(Missing("none")), stacks=False)


def said_of(bundler: Bundler) -> dict[str, str]:
    return {name: said for name, _, said in bundler.contents.files}


@pytest.mark.parametrize(
    ("room", "what"), [(2.5, "2 Frames, one a line"), (1.5, "the newest 1 of 2 Frames, one a line")]
)
def test_the_frames_that_are_in_it_are_counted_and_not_all(bundler, tmp_path, monkeypatch, room, what):
    monkeypatch.setattr(bundle, "MOST_FRAME_BYTES", int(room * len(encode(make_frame()))))
    bundler._write_looks()
    assert said_of(bundler)["frames.jsonl"] == what
    assert (tmp_path / "out" / "frames.jsonl").read_text().count("\n") == int(room)


def test_the_main_figures_reach_further_back_than_the_frames(bundler, tmp_path):
    bundler._write_looks()
    assert said_of(bundler)["pulses.jsonl"] == "the main figures of the last 10m00s, one reading a line"
    lines = (tmp_path / "out" / "pulses.jsonl").read_text().splitlines()
    assert len(lines) == 601
    assert lines[-1] == encode(pulse_of(make_frame()))
    assert decode(Pulse, lines[0]).taken_ns == NOW_NS - 600 * 10**9


def test_where_nothing_was_read_no_file_is_promised(bundler, monkeypatch):
    monkeypatch.setattr(Look, "pulses", lambda _: ())
    bundler._write_looks()
    assert "pulses.jsonl" not in said_of(bundler)
