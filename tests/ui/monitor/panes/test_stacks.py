"""The stacks on the screen: what is said of a dump, what is left out, and that nothing strange gets out."""

import re
from dataclasses import replace

import pytest

from tests.dumps import HOST, make_native, make_rank, make_round, make_thread
from tests.frames import NOW_NS, make_frame, make_target, make_view
from tests.goldens import dump_views
from tests.painted import find_wrong
from tests.painted import screen_of as text_of
from tests.stacks import IN_LOCK, NFS
from tpmon.model.dump import Asker, DumpError, DumpRequest, ErrorKind, FrameLocals, Local
from tpmon.model.frame import TargetState
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.ui.kit.keys import Move, Overlay
from tpmon.ui.monitor import requests as ask_dump
from tpmon.ui.monitor.keys import keys_shown
from tpmon.ui.monitor.layout import paint_screen
from tpmon.ui.monitor.state import (
    OTHER_THREADS,
    StacksView,
    action_fold,
    action_walk,
    cursor_of,
    frame_under_cursor,
    list_rows,
)
from tpmon.view.layout import Ink, Size
from tpmon.view.stacks import name_failed


def stacks_view(update, **fields):
    return make_view(make_frame(), overlay=Overlay.STACKS, dump=update, **fields)


def error(kind, reason="because", rank=1, role=Role.RANK):
    return DumpError(HOST, 4000 + rank, role, rank, NOT_APPLICABLE, kind, reason)


def test_three_looks_say_how_far_they_are():
    whole = dump_views.look_at(dump_views.hung_processes(), 5.0)
    part = dump_views.look_at(dump_views.hung_processes()[:3], 0.0)
    request = DumpRequest(Asker.KEY, rounds=3)
    between = dump_views.make_update(whole, request=request, running=True)
    assert "dump 1 of 3 read, the next one follows" in text_of(stacks_view(between))
    second = replace(between, state=replace(between.state, rounds=(whole, part), answered=3))
    said = text_of(stacks_view(second))
    assert "dump 2 of 3: reading 3 of 24 ..." in said
    assert "7 of 8 ranks wait" in said, "the first look stays while the second is read"
    assert "seen once: m tells" not in said


OVER = make_frame(target=make_target(state=TargetState.ENDED, ended="exit 1"))
STOPPED = replace(make_round(make_rank(0)), paused_ms=3.4, spy_cpu_ms=1230.0)
ONE_WORKER = (
    "~no rank| worker 1 of rank 0 is in decode data.py:88, blocked in a read of /data/7.bin"
    "|asked by key, some processes|worker 1 of rank 0: decode data.py:88|~last log write"
)
LATER = stacks_view(dump_views.hung_once(), now_ns=NOW_NS + 60 * 10**9)
OPENED = StacksView(opened=frozenset({OTHER_THREADS}))
GONE = make_round(make_rank(0), errors=[error(ErrorKind.GONE, "it ended")])
WAITS = [make_rank(n, state="D", waits_on=replace(NFS, name=f"/data/{min(n, 6)}")) for n in range(9)]
SAID = {
    "the job ended while it was read": (
        replace(stacks_view(dump_views.hung_running()), frame=OVER),
        "the job ended after 12 of 24|~reading",
    ),
    "its age": (stacks_view(dump_views.hung_once(), now_ns=NOW_NS), "12 s ago"),
    "its age grows": (LATER, "1m12s ago"),
    "its age stands while paused": (replace(LATER, paused_ns=NOW_NS), "12 s ago"),
    "no record of collectives": (stacks_view(dump_views.hung_once()), "~number 18204|stopped nothing"),
    "the milliseconds of a stop": (
        stacks_view(dump_views.make_update(STOPPED, world_size=1)),
        "stopped the job 3.4 ms|py-spy 1.23 s of CPU",
    ),
    "nothing to try for a process that ended": (
        stacks_view(dump_views.make_update(GONE, world_size=2)),
        "! not read: rank 1: it ended|~Try:",
    ),
    "one worker alone": (stacks_view(dump_views.one_worker()), ONE_WORKER),
    "other threads in one row": (
        stacks_view(dump_views.hung_once()),
        "+ other threads: 16 in 2 groups, 112 native ones without a known purpose|~pt_nccl_watchdg",
    ),
    "other threads opened": (stacks_view(dump_views.hung_once(), stacks=OPENED), "8x pt_nccl_watchdg of ranks 8-15"),
    "many waits of one group": (
        stacks_view(dump_views.make_update(make_round(*WAITS), world_size=9)),
        "blocked in a read of /data/6 on NFS (/data), blocked in a read of /data/0|5 more waits",
    ),
}
"""What the screen says, texts with a "|" between; after a "~" what it does not."""


@pytest.mark.parametrize(("view", "words"), SAID.values(), ids=SAID)
def test_the_screen_says(view, words):
    assert find_wrong(words, text_of(view, 200, 50)) == []


@pytest.mark.parametrize(
    ("kind", "tip"),
    [
        (ErrorKind.DENIED, "tpmon doctor 4001 says what to allow"),
        (ErrorKind.NO_SPY, "tpmon doctor 4001 says what to allow or to install"),
        (ErrorKind.UNKNOWN_PYTHON, "tpmon doctor 4001"),
        (ErrorKind.BUSY, "Try: again"),
        (ErrorKind.LATE, "Try: again; if it stays so, tpmon doctor 4001 tries py-spy"),
        (ErrorKind.TRACED, "Try: again"),
        (ErrorKind.FAILED, "R reads it with a short stop, and says its price first"),
    ],
)
def test_each_kind_of_refusal_says_what_to_do(kind, tip):
    look = make_round(make_rank(0), errors=[error(kind)])
    said = text_of(stacks_view(dump_views.make_update(look, world_size=2)))
    assert "! not read: rank 1: because" in said
    assert tip in said


def test_readonly_offers_another_look_but_no_stop():
    look = make_round(make_rank(0), errors=[error(ErrorKind.FAILED)])
    view = stacks_view(dump_views.make_update(look, world_size=2), readonly=True)
    assert "Try: again" in text_of(view)
    assert "R reads" not in text_of(view)
    assert "R" not in {key.keys[0] for key in keys_shown(view)}


def test_after_a_look_with_a_stop_there_is_no_other():
    look = make_round(make_rank(0), errors=[error(ErrorKind.FAILED)])
    blocked = dump_views.make_update(look, request=DumpRequest(Asker.KEY, block=True))
    assert ask_dump.list_stoppable(stacks_view(blocked)) == ()
    assert ask_dump.list_stoppable(stacks_view(dump_views.torn())) != ()
    running = replace(dump_views.torn(), state=replace(dump_views.torn().state, running=True))
    assert ask_dump.list_stoppable(stacks_view(running)) == ()


def test_equal_reasons_share_an_entry_and_what_has_no_room_is_counted():
    errors = [error(ErrorKind.LATE, f"reason {n % 9}", rank=n) for n in range(1, 60)]
    update = dump_views.make_update(make_round(make_rank(0), errors=errors), world_size=60)
    said = text_of(stacks_view(update), 80, 24)
    assert "not read: ranks 9,18,27,36,45,54: reason 0" in said or "not read: ranks 1,10," in said
    shown = sum(len(re.findall(r"\d+", line.split(":")[1])) for line in said.splitlines() if "not read:" in line)
    more = re.search(r"! (\d+) more not read; y copies why", said)
    assert shown + int(more[1]) == 59


def test_processes_that_failed_are_named_by_their_part():
    ranks = [error(ErrorKind.LATE, rank=rank) for rank in (0, 1, 2)]
    workers = [error(ErrorKind.LATE, rank=rank, role=Role.WORKER) for rank in (0, 1)]
    assert name_failed(ranks) == "ranks 0-2"
    assert name_failed([*ranks, *workers]) == "ranks 0-2 and 2 workers"
    assert name_failed(workers[:1]) == "worker 4000"


def test_nobody_is_accused_before_all_are_read():
    part = stacks_view(dump_views.hung_running())
    assert Ink.BAD not in {ink for line in paint_screen(part, Size(120, 40))[3:] for _, ink in line}
    assert "save_shard checkpoint.py:212" in text_of(part), "it is there, but not as the odd one"
    assert "main train.py:214" not in text_of(part)
    assert "main train.py:214" in text_of(replace(part, dump=dump_views.hung_once()))


def test_user_code_stands_out_and_a_blocked_thread_warns():
    view = stacks_view(dump_views.hung_once())
    view = action_walk(view, Move.LAST, 5)
    inks = {text.strip(): ink for line in paint_screen(view, Size(120, 40)) for text, ink in line}
    assert inks["save_shard checkpoint.py:212"] is Ink.STRONG
    assert next(ink for text, ink in inks.items() if text.startswith("state D")) is Ink.WARN
    assert inks["- rank 11: save_shard checkpoint.py:212"] is Ink.BAD


def test_the_cursor_is_always_on_the_screen():
    everything = frozenset({OTHER_THREADS, *(one.mark for one in dump_views.hung_once().stacks)})
    for width, height in ((200, 50), (80, 24), (40, 30), (40, 14)):
        view = stacks_view(dump_views.hung_once(), stacks=StacksView(opened=everything))
        for _ in range(len(list_rows(view)) + 1):
            lines = text_of(view, width, height).splitlines()
            assert sum(line.startswith(">") for line in lines) == 1, (width, height)
            view = action_walk(view, Move.DOWN, 5)


def test_the_cursor_keeps_its_group_when_a_dump_grows_and_leaves_what_is_gone():
    view = stacks_view(dump_views.hung_running())
    view = action_walk(action_walk(view, Move.LAST, 5), Move.UP, 5)
    workers = cursor_of(view, list_rows(view))
    grown = replace(view, dump=dump_views.hung_once())
    assert cursor_of(grown, list_rows(grown)) == workers
    other = replace(view, dump=dump_views.one_worker())
    rows = list_rows(other)
    assert cursor_of(other, rows) == rows[0]
    nothing = replace(view, dump=dump_views.hung_waiting())
    assert cursor_of(nothing, list_rows(nothing)) is NOT_APPLICABLE
    assert frame_under_cursor(nothing) is NOT_APPLICABLE
    assert action_walk(nothing, Move.DOWN, 5) == nothing
    assert action_fold(nothing).message == "no stack to open yet"


def test_text_of_others_sends_no_escape_sequence():
    evil = "\x1b]0;x\x07\x9b2J\u202e"
    thread = make_thread(78, name=evil, kind=ThreadKind.OTHER, frames=(StackFrame(evil, f"/{evil}.py", 1),))
    odd = make_rank(0, thread, make_native(79, evil), frames=(StackFrame(evil, f"/{evil}.py", 1),))
    unread = make_rank(1, frames=Missing(evil), waits_for=evil, wchan=evil)
    look = make_round(odd, unread, make_rank(2, frames=IN_LOCK), errors=[error(ErrorKind.FAILED, evil)])
    update = dump_views.make_update(look, refused=evil)
    marks = frozenset({OTHER_THREADS, *(one.mark for one in update.stacks)})
    view = stacks_view(update, stacks=StacksView(opened=marks))
    for _ in range(len(list_rows(view))):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text_of(view, 120, 60))
        view = action_walk(view, Move.DOWN, 5)
    hint = replace(
        view, overlay=Overlay.NONE, dump=replace(update, state=replace(update.state, request=DumpRequest(Asker.WATCH)))
    )
    assert "\x1b" not in text_of(hint)


def test_a_group_of_five_hundred_threads_and_five_hundred_groups_are_painted():
    native = [make_native(n, f"pool-{n}") for n in range(500)]
    many = [make_rank(n, frames=(StackFrame(f"step_{n}", "/run/a.py", n + 1),)) for n in range(500)]
    for processes in ([make_rank(0, *native)], many):
        view = stacks_view(dump_views.make_update(make_round(*processes), world_size=500))
        for width, height in ((200, 50), (40, 30), (20, 5)):
            assert text_of(view, width, height)
        last = action_walk(view, Move.LAST, 5)
        assert any(line.startswith(">") for line in text_of(last).splitlines())
    assert is_known(view.dump)


def test_variables_stand_below_the_line_of_their_frame_and_send_no_escape_sequence():
    at = IN_LOCK.index(next(one for one in IN_LOCK if one.function == "hold"))
    variables = (FrameLocals(at, (Local("step", "412"), Local("name", "a\x1b[31m"))),)
    view = stacks_view(dump_views.make_update(make_round(make_rank(0, frames=IN_LOCK, locals=variables))))
    assert "step" not in text_of(view)
    marks = frozenset(row.mark for row in list_rows(view))
    text = text_of(replace(view, stacks=StacksView(opened=marks)))
    assert "step = 412" in text
    assert "\x1b" not in text
