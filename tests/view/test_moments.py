"""Times that a person types: each form, what is outside, what is no time."""

from datetime import datetime, timedelta, timezone

import pytest

from tests.playbacks import SECOND_NS
from tpmon.model.known import Missing
from tpmon.model.results.recording import Moment
from tpmon.model.results.replay import JumpTo, JumpToFrame
from tpmon.view.moments import find_time, say_reach

ZONE = timezone(timedelta(hours=5, minutes=30))


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZONE).timestamp()) * SECOND_NS


def moment(n: int, text: str, more_ns: int = 0) -> Moment:
    return Moment(n, n * SECOND_NS, at(text) + more_ns)


BEGIN, END = moment(5, "2026-03-13T22:10:30", 400), moment(27_000, "2026-03-14T05:40:12", 600)
COVERS = "2026-03-13 22:10:30 to 2026-03-14 05:40:12, Frames #5 to #27000"


def find(text: str, from_: str = "2026-03-14T05:40:12"):
    return find_time(text, BEGIN, END, at(from_) + 600, ZONE)


END_OF_SECOND = SECOND_NS - 1
FOUND = (
    ("03:12", at("2026-03-14T03:12:00") + END_OF_SECOND),
    ("3:12", at("2026-03-14T03:12:00") + END_OF_SECOND),
    (" 03:12:07 ", at("2026-03-14T03:12:07") + END_OF_SECOND),
    ("23:59:59", at("2026-03-13T23:59:59") + END_OF_SECOND),
    ("2026-03-14T03:12", at("2026-03-14T03:12:00") + END_OF_SECOND),
    ("2026-03-14 03:12:07", at("2026-03-14T03:12:07") + END_OF_SECOND),
    ("2026-03-13T21:42:07Z", at("2026-03-14T03:12:07") + END_OF_SECOND),
    ("2026-03-13T22:42:07+01:00", at("2026-03-14T03:12:07") + END_OF_SECOND),
    ("22:10", BEGIN.wall_ns),
    ("22:10:30", at("2026-03-13T22:10:30") + END_OF_SECOND),
    ("05:40:12", END.wall_ns),
    ("-10m", END.wall_ns - 600 * SECOND_NS),
    ("-90", END.wall_ns - 90 * SECOND_NS),
    ("-1.5h", END.wall_ns - 5400 * SECOND_NS),
    ("-0", END.wall_ns),
)


@pytest.mark.parametrize(("text", "wall_ns"), FOUND)
def test_a_time_is_that_of_the_recordings_clock(text, wall_ns):
    assert find(text) == JumpTo(wall_ns)


def test_a_time_of_day_is_the_nearest_and_a_span_counts_from_where_one_is():
    begin, end = moment(1, "2026-03-10T00:00:00"), moment(9, "2026-03-14T00:00:00")
    for here, found in (("2026-03-12T23:50", "2026-03-13T00:10"), ("2026-03-12T00:50", "2026-03-12T00:10")):
        near = find_time("00:10", begin, end, at(here), ZONE)
        assert near == JumpTo(at(found) + END_OF_SECOND)
    assert find("+30s", "2026-03-14T01:00:00") == JumpTo(at("2026-03-14T01:00:30") + 600)
    assert find("-1h", "2026-03-14T01:00:00") == JumpTo(at("2026-03-14T00:00:00") + 600)


def test_a_frame_is_named_by_its_number():
    assert find("#5") == JumpToFrame(5)
    assert find("#27000") == JumpToFrame(27_000)


@pytest.mark.parametrize(
    "text", ["07:00", "22:10:29", "05:41", "2026-03-15T03:12", "-9h", "+1s", "#4", "#27001", "#" + "9" * 40, "-1e300"]
)
def test_outside_of_the_recording_it_says_what_that_covers(text):
    found = find(text)
    assert isinstance(found, Missing)
    assert found.reason == f"{text[:40]} is outside of the recording: {COVERS}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "+",
        "#",
        "#x",
        "noon",
        "25:00",
        "03:60",
        "3:1",
        "-nan",
        "-inf",
        "--5m",
        "-5w",
        "2026-13-01T00:00",
        "٣:١٢",
    ],
)
def test_what_is_no_time_is_told_with_the_forms(text):
    found = find(text)
    assert isinstance(found, Missing)
    assert found.reason == f"{text!r} is no time: 03:12, 03:12:07, 2026-03-14T03:12, -10m, +30s or #120"


def test_a_recording_of_one_day_names_it_once():
    assert (
        say_reach(moment(1, "2026-03-14T02:10:07"), END, ZONE) == "2026-03-14 02:10:07 to 05:40:12, Frames #1 to #27000"
    )
