"""The lines that never leave the screen say who, in which state, how old, on which day, and what works."""

from dataclasses import replace
from datetime import timedelta, timezone

import pytest

from tests.frames import (
    GIB,
    NOW,
    NOW_NS,
    make_ages,
    make_cpu,
    make_event,
    make_finding,
    make_frame,
    make_gpu,
    make_log_pace,
    make_memory,
    make_own_cost,
    make_process,
    make_rank,
    make_target,
    make_view,
)
from tests.goldens import dump_views
from tests.paces import make_pace
from tests.painted import text_of, texts_of
from tpmon.model.dump import Asker
from tpmon.model.frame import EventKind, TargetState, pulse_of
from tpmon.model.gpu import GpuProcess, GpuState
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.units import count_cells
from tpmon.ui.kit.keys import KeyHelp, Overlay, paint_footer
from tpmon.ui.monitor.alerts import say_moment, say_moment_and_age, say_moments, tell_most
from tpmon.ui.monitor.keys import keys_shown
from tpmon.ui.monitor.layout import paint_screen
from tpmon.ui.monitor.panes.events import paint_events
from tpmon.ui.monitor.panes.header import describe_end, name_state, paint_facts, paint_header, paint_notes
from tpmon.ui.monitor.panes.overlays import describe_process
from tpmon.ui.monitor.panes.stacks import paint_hint
from tpmon.ui.monitor.state import Pane
from tpmon.view.layout import Ink, Size
from tpmon.view.ranks import name_ranks

SECOND = 10**9
KEYS = (
    KeyHelp(("s",), "sort", "Workers", "sort", 3),
    KeyHelp(("q",), "quit", "tpmon", "quit", 1),
    KeyHelp(("Y",), "copy all", "Copying", "", 0),
    KeyHelp(("?", "F1"), "help", "tpmon", "help", 2),
)


def test_the_state_word_follows_the_view():
    view = make_view()
    ended = make_frame(target=make_target(state=TargetState.ENDED))
    stopped = make_frame(target=make_target(state=TargetState.STOPPED))
    assert name_state(view).text == "LIVE"
    assert name_state(replace(view, paused_ns=NOW_NS, now_ns=NOW_NS + 12 * SECOND)).text == "PAUSED 12 s"
    assert name_state(replace(view, now_ns=NOW_NS + 3 * SECOND)).text == "LIVE"
    assert name_state(replace(view, now_ns=NOW_NS + 14 * SECOND)).text == "LATE 14 s"
    assert name_state(replace(view, now_ns=NOW_NS + 14 * SECOND, interval_s=5.0)).text == "LIVE 5 s"
    assert name_state(make_view(ended, now_ns=NOW_NS + 99 * SECOND)).text == "ENDED"
    assert name_state(make_view(stopped)).text == "STOPPED"
    assert name_state(make_view(Missing("x"))).text == "WAITING"


def header_of(width=200, ages=None, **seen):
    return paint_header(make_view(make_frame(ages_s=make_ages(**ages)), **seen), width)


def header_of_text(**fields):
    return text_of(header_of(**fields))


def test_an_old_group_is_named_with_a_sign_and_a_warning_ink():
    for width in (40, 80, 200):
        assert [ink for text, ink in header_of(width, {"gpu": 14.0}) if "! gpu 14 s old" in text] == [Ink.WARN]
    assert "old" not in text_of(header_of(ages={"threads": 5.0})), "quiet processes have five intervals"
    assert "! threads 7.2 s old" in text_of(header_of(ages={"threads": 7.0}))
    paused = text_of(header_of(ages={"gpu": 0.5}, paused_ns=NOW_NS + SECOND, now_ns=NOW_NS + 600 * SECOND))
    assert "old" not in paused
    assert "gpu" not in header_of_text(ages={"gpu": 1.5}), "an age that is not late is not told"


def pulses_of(frame, *hz, every_s=1.0):
    """Build a history whose last rate is of now."""
    plain = pulse_of(frame)
    count = len(hz) - 1
    return tuple(
        replace(plain, log_hz=one, taken_ns=frame.taken_ns - round((count - at) * every_s * SECOND))
        for at, one in enumerate(hz)
    )


def told(width=160, rates=(), every_s=1.0, frame=None, **fields):
    """Return the header of a job whose log tells a pace, with ``rates`` in the history."""
    frame = frame or make_frame(pace=make_log_pace(**fields))
    return text_of(paint_header(make_view(frame, pulses=pulses_of(frame, *rates, every_s=every_s)), width))


def test_the_header_says_the_pace_that_the_log_tells_and_its_age():
    assert "  3.21 steps/s (log)  " in told()
    assert "9.40 it/s (log)" in told(unit="it", rate_hz=9.4)
    assert "a step in 50 s (log)" in told(rate_hz=0.02)
    assert "3.21 steps/s (log, 14m00s old)" in told(age_s=840.0)
    assert " 3.21/s (log) " in told(width=40)
    for width in range(20, 200, 7):
        assert count_cells(told(width=width)) <= width


def test_the_header_says_what_the_pace_was_where_it_has_changed():
    slower = [5.1] * 60 + [3.2] * 541
    assert "3.21 steps/s (log)  was 5.10 at 02:58" in told(rates=slower)
    assert "was 1.90 at 03:07" in told(rates=[1.9] * 40 + [3.2] * 20)
    assert "was" not in told(rates=[3.5] * 40 + [3.2] * 20)
    assert "was" not in told(rates=[9.0] * 4 + [Missing("no line")] * 60 + [3.2] * 20), "too few"
    assert "was" not in told(rates=slower, age_s=840.0)


def test_a_hook_and_an_end_leave_no_pace_of_the_log():
    pace = make_log_pace()
    assert "(log)" not in told(frame=make_frame(pace=pace, steps=make_pace()))
    assert "(log)" not in told(frame=make_frame(pace=pace, target=make_target(state=TargetState.ENDED)))
    assert "(log)" not in told(frame=make_frame(pace=Missing("no line of the log counts steps")))


def test_the_facts_below_the_header_do_not_repeat_the_pace():
    frame = make_frame(pace=make_log_pace(), facts="3.21 steps/s (log) · 2 workers")
    lines = texts_of(paint_screen(make_view(frame), Size(120, 40)))
    assert sum("3.21 steps/s (log)" in line for line in lines) == 1
    assert any("2 workers" in line for line in lines)


def test_the_header_says_what_tpmon_does_to_the_job():
    frame = make_frame(self_=make_own_cost(shedding=True, target_paused_ms=12.0))
    line = text_of(paint_header(make_view(frame), 200))
    assert "! tpmon at half rate" in line
    assert "! paused the job 12 ms" in line


@pytest.mark.parametrize(
    ("ranks", "world", "named"),
    [
        (range(8, 16), 64, "8-15 of 64, 56 not on this host"),
        (range(2), 2, "0-1 of 2"),
        ((0, 2, 3), 4, "0,2-3 of 4, 1 not on this host"),
        (range(2), NOT_APPLICABLE, "0-1"),
        ((NOT_APPLICABLE,), NOT_APPLICABLE, ""),
        ((Missing("no"), Missing("no")), 2, "2, numbers not known"),
        ((), 2, "none seen"),
    ],
)
def test_ranks_are_named_with_those_on_other_hosts(ranks, world, named):
    rows = tuple(make_rank(100 + n, rank=rank) for n, rank in enumerate(ranks))
    assert name_ranks(make_frame(ranks=rows, target=make_target(world_size=world))) == named


@pytest.mark.parametrize(
    ("ended", "words", "ink"),
    [
        ("exit 0", "ENDED 03:07:41  exit 0", Ink.GOOD),
        ("exit 1", "ENDED 03:07:41  exit 1", Ink.BAD),
        (Missing("not our child"), "ENDED 03:07:41  how is not known: not our child", Ink.WARN),
        (NOT_APPLICABLE, "ENDED 03:07:41", Ink.WARN),
    ],
)
def test_every_end_has_its_words(ended, words, ink):
    frame = make_frame(target=make_target(state=TargetState.ENDED, ended=ended))
    assert describe_end(make_view(frame), frame) == (words, ink)


def test_notes_that_do_not_fit_are_counted():
    frame = make_frame(notes=("first", "second", "third"))
    assert [text_of(line) for line in paint_notes(frame, 60, 2)] == [" ! first", " ! second  (+1 more, 5)"]
    assert [text_of(line) for line in paint_notes(frame, 60, 3)] == [" ! first", " ! second", " ! third"]
    assert paint_notes(frame, 60, 0) == []
    long = make_frame(notes=("word " * 30,))
    assert text_of(paint_notes(long, 40, 1)[0]).endswith("(1 to read, 5)")


def test_an_answer_that_is_longer_than_a_line_is_not_cut():
    said = "capture done: 5 steps, /runs/" + "deep/" * 20 + "step7.json.gz"
    for width in (30, 40, 80):
        lines = [text_of(line) for line in paint_footer(make_view(message=said), KEYS, width)]
        assert "".join("".join(lines).split()) == "".join(said.split())
        assert max(map(len, lines)) <= width


CALM = make_frame(cpu=make_cpu(used_cores=4.0))
POOLS = make_cpu(oversubscription=7.1, run_delay_ratio=0.82)
QUOTA = replace(POOLS, throttled_ratio=0.5)
CARDS = (make_gpu(0, sm_pct=40.0), make_gpu(1, sm_pct=96.0))
CONTEXT, WORK = (GpuProcess(4211, used * GIB, Missing("no sample"), True) for used in (1, 60))
STRAY = make_gpu(2, sm_pct=9.0, throttle=("thermal",), processes=(CONTEXT,))
STRANGE = make_gpu(2, xids=(79,), pids=())


@pytest.mark.parametrize(
    ("fields", "fact", "ink"),
    [
        ({}, "50 % of 8 CPUs", Ink.STRONG),
        ({"cpu": POOLS}, "thread pools 7.1x the CPUs, waiting 82 %", Ink.WARN),
        ({"cpu": replace(POOLS, run_delay_ratio=0.1)}, "51 % of 8 CPUs", Ink.STRONG),
        ({"cpu": QUOTA}, "CPU quota throttles 50 % of periods", Ink.WARN),
        ({"cpu": QUOTA, "memory": make_memory(oom_kills=1)}, "1 process killed: out of memory", Ink.BAD),
        ({"memory": make_memory(used_bytes=155 * GIB // 10)}, "memory 97 % of its limit", Ink.WARN),
        ({"gpus": CARDS}, "GPUs 40 to 96 % busy", Ink.STRONG),
        ({"gpus": (STRAY, make_gpu(3, sm_pct=96.0, processes=(WORK,)))}, "GPU 96 % busy", Ink.STRONG),
        ({"gpus": (*CARDS, make_gpu(2, xids=(79,)))}, "GPU 2 reports a fault", Ink.BAD),
        ({"gpus": (*CARDS, STRANGE)}, "GPUs 40 to 96 % busy", Ink.STRONG),
        ({"gpus": (*CARDS, replace(STRANGE, state=GpuState.LOST))}, "GPU 2 lost", Ink.BAD),
        ({"cpu": make_cpu(used_cores=Missing("one reading"))}, "CPU use ? one reading", Ink.WARN),
    ],
)
def test_the_one_fact_is_the_worst(fields, fact, ink):
    assert tell_most(replace(CALM, **fields)) == (fact, ink)


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


def test_the_hint_of_the_stacks_and_the_start_of_a_process_say_on_which_day_they_were():
    view = make_view(dump=dump_views.hung_three_looks(Asker.WATCH))
    assert texts_of(paint_hint(view, 120))[0].startswith(" d: stacks of 03:07:39, read by the hang watch: ")
    later = replace(view, now_ns=LATER_NS)
    head = " d: stacks of Mar 14 03:07 (2d05h ago), read by the hang watch: 7 of 8"
    assert texts_of(paint_hint(later, 120))[0].startswith(head)
    assert texts_of(paint_hint(later, 40))[0].startswith(" d: stacks of Mar 14 03:07, read by the")
    assert "Mar 14 03:07" in screen(replace(later, overlay=Overlay.STACKS), 80)

    old = make_process(started=NOW - timedelta(days=3))
    assert ("started", "Mar 11 03:07, 3d00h ago") in describe_process(make_frame(), old)
