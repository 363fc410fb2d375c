"""The strip of a recording: verdicts by words and inks, events, holes, the position; and its state word."""

import pytest

from tests.frames import make_frame, make_view
from tests.painted import inks_of, text_of
from tests.playbacks import END_NS, SECOND_NS, make_moment, make_playback, make_recorded, make_span
from tpmon.model.frame import EventKind
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.recording import Hole
from tpmon.model.verdict import Kind
from tpmon.ui.monitor.panes.strip import name_playback, paint_strip
from tpmon.view.layout import Ink, line_width, to_ascii

NOTHING = {"verdicts": (), "events": (), "holes": ()}


def paint(width=40, **fields):
    """Paint a recording of an hour with nothing in it but what is given, its begin on the screen."""
    plain = {"begin": make_moment(1, 3600), "end": make_moment(3601), "shown": make_moment(1, 3600)}
    (line,) = paint_strip(make_view(playback=make_playback(**{**plain, **NOTHING, **fields})), width)
    return line


def hole(since_s, until_s):
    return Hole(END_NS - since_s * SECOND_NS, END_NS - until_s * SECOND_NS, "late")


DATA, HUNG = make_span(1, 1800, Kind.DATA_BOUND, (3600, 1800)), make_span(1801, 3601, Kind.HUNG, (1800, 0))
DATA_LATER = make_span(1801, 3601, Kind.DATA_BOUND, (1800, 0))
STRIPS = (
    ("nothing is judged", {}, "█" + "─" * 39),
    ("the end is shown", {"shown": make_moment(3601)}, "─" * 39 + "█"),
    ("a moment outside", {"shown": make_moment(9, 7200)}, "█" + "─" * 39),
    ("words", {"verdicts": (DATA, HUNG)}, "█ATA-BOUND──────────HUNG────────────────"),
    (
        "one of a minute",
        {
            "verdicts": (
                make_span(9, 70, Kind.HUNG, (3000, 2941)),
                make_span(71, 99, Kind.IDLE, (2940, 1801)),
                DATA_LATER,
            )
        },
        "█─────H─IDLE────────DATA-BOUND──────────",
    ),
    (
        "the worst of those in a column",
        {"verdicts": (DATA, make_span(9, 99, Kind.HUNG, (1800, 1790)), make_span(1, 2, Kind.BALANCED, (1790, 0)))},
        "█ATA-BOUND──────────HBALANCED───────────",
    ),
    (
        "not judged",
        {"verdicts": (make_span(1, 9, NOT_APPLICABLE, (3600, 1800)), HUNG)},
        "█───────────────────HUNG────────────────",
    ),
    ("an event", {"events": (make_recorded(9, "gone", 900),)}, "█─────────────────────────────┴─────────"),
    (
        "an event in a word",
        {"verdicts": (HUNG,), "events": (make_recorded(9, "gone", 1700),)},
        "█───────────────────HUNG────────────────",
    ),
    ("a hole", {"holes": (hole(1800, 900),)}, "█───────────────────          ──────────"),
    ("a hole of less than a column", {"holes": (hole(1800, 1797),)}, "█" + "─" * 39),
    ("a hole at the end", {"holes": (hole(90, 0),)}, "█" + "─" * 38 + " "),
    (
        "a hole in a verdict",
        {"verdicts": (DATA,), "holes": (hole(3000, 2400),)},
        "█ATA-B─      DATA-BOUND─────────────────",
    ),
    ("one Frame", {"begin": make_moment(1), "end": make_moment(1), "shown": make_moment(1)}, "█" + "─" * 39),
    ("a clock that was set back", {"verdicts": (HUNG, DATA)}, "█ATA-BOUND──────────HUNG────────────────"),
)


@pytest.mark.parametrize(("fields", "text"), [one[1:] for one in STRIPS], ids=[one[0] for one in STRIPS])
def test_the_strip(fields, text):
    assert text_of(paint(**fields)) == text
    assert to_ascii(text) == text.translate({ord("█"): "#", ord("─"): "-", ord("┴"): "'"})


@pytest.mark.parametrize("width", [1, 2, 7, 200])
def test_it_takes_the_width_and_one_line(width):
    assert line_width(paint(width, verdicts=(DATA, HUNG), holes=(hole(900, 800),))) == width
    assert paint_strip(make_view(), width) == []


def test_inks_tell_how_bad_a_verdict_is_and_an_end_from_other_events():
    line = paint(verdicts=(DATA, HUNG), events=(make_recorded(9, "exit 1", 600, EventKind.ENDED),))
    assert inks_of([line], "ATA-BOUND") == {Ink.WARN}
    assert inks_of([line], "HUNG") == {Ink.BAD}
    assert inks_of([line], "┴") == {Ink.BAD}
    assert inks_of([line], "█") == {Ink.STRONG}
    gone = paint(verdicts=(make_span(1, 2, Kind.BALANCED, (3600, 0)),), events=(make_recorded(9, "gone", 600),))
    assert (inks_of([gone], "ALANCED"), inks_of([gone], "┴")) == ({Ink.GOOD}, {Ink.STRONG})


WORDS = (
    (120, {}, "REPLAY 03:07:41 of 02:07-04:07  4x"),
    (120, {"speed": 0.25, "paused": True}, "REPLAY 03:07:41 of 02:07-04:07  0.25x paused"),
    (120, {"live": True, "shown": make_moment(7201, -3600)}, "REPLAY 03:07:41 of 02:07-04:07  follows"),
    (
        120,
        {"live": True, "shown": make_moment(7201, -3600), "paused": True},
        "REPLAY 03:07:41 of 02:07-04:07  4x paused",
    ),
    (120, {"begin": make_moment(1, 5), "end": make_moment(9, -80)}, "REPLAY 03:07:41 of 03:07:36-03:09:01  4x"),
    (120, {"begin": make_moment(1, 86_400)}, "REPLAY 03:07:41 of Mar 13 03:07-04:07  4x"),
    (40, {}, "REPLAY 03:07:41  4x"),
    (20, {}, "REPLAY 03:07:41"),
)


@pytest.mark.parametrize(("width", "fields", "words"), WORDS)
def test_the_state_word_is_the_time_with_as_much_as_there_is_room_for(width, fields, words):
    playback = make_playback(**fields)
    assert name_playback(make_view(playback=playback), playback, width).text == words
    waiting = make_view(Missing("?"), playback=playback)
    assert name_playback(waiting, playback, width).text == "REPLAY"
    assert make_frame().taken.tzinfo is not None
