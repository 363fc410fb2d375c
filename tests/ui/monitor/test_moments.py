"""What was on another day says which, and how long ago where there is room."""

from dataclasses import replace
from datetime import timedelta, timezone

import pytest

from tests.frames import NOW, NOW_NS, make_event, make_finding, make_frame, make_process, make_target, make_view
from tests.goldens import dump_views
from tests.painted import texts_of
from tpmon.model.dump import Asker
from tpmon.model.frame import EventKind, TargetState
from tpmon.model.known import Missing
from tpmon.model.units import count_cells
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor.alerts import say_moment, say_moment_and_age, say_moments
from tpmon.ui.monitor.keys import keys_shown
from tpmon.ui.monitor.layout import paint_screen
from tpmon.ui.monitor.panes.events import paint_events
from tpmon.ui.monitor.panes.header import paint_facts, paint_header
from tpmon.ui.monitor.panes.overlays import describe_process
from tpmon.ui.monitor.panes.stacks import paint_hint
from tpmon.ui.monitor.state import Pane
from tpmon.view.layout import Size

WEEKEND_S = 53 * 3600
LATER_NS = NOW_NS + WEEKEND_S * 10**9
EVENTS = (
    make_event("verdict: balanced", 4 * 3600, EventKind.VERDICT),
    make_event("rank 1 (4212) gone: SIGKILL", 1),
    make_event("job ended: exit 137", 1, EventKind.ENDED),
)
ENDED = make_frame(
    target=make_target(state=TargetState.ENDED, ended="exit 137 (SIGKILL; OOM killer)"), verdict=make_finding()
)


def screen(view, width, height=30):
    lines = texts_of(paint_screen(view, Size(width, height), keys_shown(view)))
    assert all(count_cells(line) <= width for line in lines)
    return "\n".join(lines)


def test_a_moment_has_its_date_where_that_is_not_the_date_of_now():
    today, yesterday = NOW - timedelta(hours=3), NOW - timedelta(hours=4)
    view = make_view()
    assert say_moment(view, today) == "00:07:41"
    assert say_moment(view, yesterday) == "Mar 13 23:07"
    assert say_moment(view, today.astimezone(timezone(timedelta(hours=9)))) == "00:07:41", "in one zone"
    assert say_moments(view, (today, yesterday)) == ["00:07:41    ", "Mar 13 23:07"]
    assert say_moments(view, ()) == []
    later = make_view(now_ns=LATER_NS)
    assert say_moment(later, NOW) == "Mar 14 03:07", "the last Frame is older than what is seen"
    assert say_moment(replace(later, paused_ns=NOW_NS), NOW) == "03:07:41", "a picture stands still"
    assert say_moment(make_view(Missing("not yet")), NOW) == "03:07:41"


@pytest.mark.parametrize(
    ("ago_s", "words"),
    [
        (3599, "02:07:42"),
        (3600, "02:07:41 (1h00m ago)"),
        (4 * 3600, "Mar 13 23:07 (4h00m ago)"),
        (WEEKEND_S, "Mar 11 22:07 (2d05h ago)"),
    ],
)
def test_an_age_stands_from_an_hour_on(ago_s, words):
    view = make_view(now_ns=NOW_NS)
    assert say_moment_and_age(view, NOW - timedelta(seconds=ago_s)) == words


def test_the_end_of_a_job_says_on_which_day_and_how_long_ago():
    view = make_view(ENDED, events=EVENTS, now_ns=LATER_NS)
    told = texts_of(paint_facts(view, 80, 3))[0]
    assert told == " ENDED Mar 14 03:07 (2d05h ago)  exit 137 (SIGKILL; OOM killer)"
    narrow = texts_of(paint_facts(view, 40, 3))
    assert narrow[:2] == [" ENDED Mar 14 03:07 exit 137 (SIGKILL;", " OOM killer)"]
    assert texts_of([paint_header(view, 100)])[0].rstrip().endswith("Mar 14 03:07")
    for width in (200, 80, 40, 20):
        screen(view, width)


def test_events_and_verdicts_say_on_which_day_they_were():
    view = make_view(ENDED, events=EVENTS)
    lines = screen(replace(view, zoom=Pane.EVENTS), 80).splitlines()
    assert " 03:07:40     process  rank 1 (4212) gone: SIGKILL" in [line.rstrip() for line in lines]
    assert " Mar 13 23:07 verdict  balanced" in [line.rstrip() for line in lines]
    assert " Mar 13 23:07 verdict: balanced" in texts_of(paint_events(view, Size(40, 12), focused=False))
    assert "Mar 13 23:07 verdict: balanced" in screen(replace(view, overlay=Overlay.VERDICT), 80, 60)
    later = screen(make_view(ENDED, events=EVENTS, now_ns=LATER_NS, zoom=Pane.EVENTS), 80)
    assert " Mar 14 03:07 process  rank 1 (4212) gone: SIGKILL" in later


def test_the_hint_of_the_stacks_says_of_which_day_they_are():
    view = make_view(dump=dump_views.hung_three_looks(Asker.WATCH))
    assert texts_of(paint_hint(view, 120))[0].startswith(" d: stacks of 03:07:39, read by the hang watch: ")
    later = replace(view, now_ns=LATER_NS)
    head = " d: stacks of Mar 14 03:07 (2d05h ago), read by the hang watch: 7 of 8"
    assert texts_of(paint_hint(later, 120))[0].startswith(head)
    assert texts_of(paint_hint(later, 40))[0].startswith(" d: stacks of Mar 14 03:07, read by the")
    assert "Mar 14 03:07" in screen(replace(later, overlay=Overlay.STACKS), 80)


def test_a_process_says_on_which_day_it_started():
    old = make_process(started=NOW - timedelta(days=3))
    assert ("started", "Mar 11 03:07, 3d00h ago") in describe_process(make_frame(), old)
