"""The files that a screen writes of its hot functions: private, whole, and never over another."""

import json
import os
import stat
import threading
from types import SimpleNamespace

import pytest

from tests.goldens import sample_views
from tpmon.commands.command import WatchOptions
from tpmon.commands.sample import save_samples
from tpmon.commands.screen import Wiring
from tpmon.model.known import Missing
from tpmon.model.results.doctor import SampleUpdate
from tpmon.model.sample import SampleRequest, SampleState
from tpmon.ui.monitor.controls import Errand, Notice


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_both_files_are_private_and_hold_what_the_tools_read(here):
    old = os.umask(0)
    try:
        said = save_samples(sample_views.ended())
    finally:
        os.umask(old)
    folded, speedscope = sorted(here.iterdir())
    name = folded.name.removesuffix(".folded")
    assert speedscope.name == f"{name}.speedscope.json"
    assert said == f"wrote {here / name}, .speedscope.json and .folded"
    assert {stat.S_IMODE(one.stat().st_mode) for one in (folded, speedscope)} == {0o600}
    assert json.loads(speedscope.read_text())["profiles"]
    assert "rank main;<module> (/run/train.py:90);train" in folded.read_text()


def test_nothing_is_written_over(here):
    save_samples(sample_views.ended())
    before = {one: one.read_text() for one in here.iterdir()}
    assert "File exists" in save_samples(sample_views.ended())
    assert {one: one.read_text() for one in here.iterdir()} == before


def test_half_a_file_is_none(here, monkeypatch):
    monkeypatch.setattr("tpmon.report.formats.write_speedscope_samples", lambda *_: 1 / 0)
    assert save_samples(sample_views.ended()) == "not written: ZeroDivisionError: division by zero"
    assert list(here.iterdir()) == []


def test_where_nothing_was_sampled_no_file_is_made(here):
    why = Missing("nothing was sampled yet")
    state = SampleState(SampleRequest(), why, running=False, refused="")
    assert save_samples(SampleUpdate(state, why)) == "nothing was sampled: no file is written"
    assert list(here.iterdir()) == []


def test_the_key_writes_what_the_session_sampled_last(here):
    told: list[object] = []
    done = threading.Event()

    def take(result):
        told.append(result)
        if isinstance(result, Notice):
            done.set()

    sinks: list[object] = []

    def open_session(*given):
        sinks.extend(given)
        return SimpleNamespace(start=lambda _: None)

    job = SimpleNamespace(root=SimpleNamespace(pid=4200))
    wiring = Wiring(job, WatchOptions(), open_session)
    wiring.start(lambda _: None, take)
    wiring.ask(Errand.WRITE_SAMPLES)
    assert told == [], "nothing was sampled"
    sinks[2](sample_views.ended())
    wiring.ask(Errand.WRITE_SAMPLES)
    assert done.wait(10)
    assert told[1].text.startswith("wrote ")
    assert len(list(here.iterdir())) == 2
