"""When a session looks by itself at a job that may hang, and when it may not."""

from dataclasses import replace

import pytest

from tests.command_line import read
from tests.dumps import make_rank
from tests.hanging import stand
from tests.sessions import Source, dump_state
from tpmon.commands.command import WatchOptions, open_session
from tpmon.model.dump import Asker
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE
from tpmon.session import Session


class Still(Source):
    """Hand out the Frames of a job that stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = [replace(one, rounds=NOT_APPLICABLE) for one in stand(make_rank(0), seconds=30)]

    def collect(self) -> Frame:
        super().collect()
        return self.frames[len(self.times) - 1]


def test_looks_at_a_job_that_may_hang_are_asked_for_once_and_without_a_stop():
    source = Still()
    Session(source, (), 0.001, may_look=True).run(frames=31)
    assert [(one.asker, one.block, one.pids) for one in source.dumps.asked] == [(Asker.WATCH, False, ())]


def test_a_session_that_shall_only_look_asks_for_nothing():
    source = Still()
    Session(source, (), 0.001).run(frames=31)
    assert source.dumps.asked == []


def test_looks_that_somebody_reads_already_are_not_asked_for_again():
    source = Still()
    source.dumps.tell(dump_state())
    Session(source, (), 0.001, may_look=True).run(frames=31)
    assert source.dumps.asked == []


def test_the_time_of_the_user_reaches_the_watch():
    source = Still()
    Session(source, (), 0.001, may_look=True, hang_after_s=300.0).run(frames=31)
    assert source.dumps.asked == []


@pytest.mark.parametrize(
    ("flags", "may_look"),
    [({}, True), ({"readonly": True}, False), ({"no_stacks": True}, False), ({"hang_after": "2m"}, True)],
)
def test_readonly_and_no_stacks_take_the_looks_away(monkeypatch, flags, may_look):
    asked = {}

    class Wired(Session):
        def __init__(self, *parts, **named):
            asked.update(named)
            super().__init__(*parts, **named)

    monkeypatch.setattr("tpmon.session.Session", Wired)
    monkeypatch.setattr("tpmon.probe.collect.collector.Collector", lambda *_, **__: Still())
    open_session(None, read(WatchOptions, **flags))
    assert (asked["may_look"], asked["glance"]) == (may_look, False)
    assert asked["hang_after_s"] == (120.0 if "hang_after" in flags else None)
