"""Stacks and hot functions on the screen: what is said and left out, and that nothing strange gets out."""

import re
from dataclasses import replace

import pytest

from tests.dumps import HOST, make_native, make_rank, make_round, make_thread
from tests.frames import NOW_NS, make_frame, make_process, make_target, make_view, make_worker
from tests.frames import make_rank as make_row
from tests.goldens import dump_views, sample_views
from tests.painted import find_wrong
from tests.painted import screen_of as text_of
from tests.samples import count, make_reading, make_sampled
from tests.stacks import IN_LOCK, NFS, WORKER_READS
from tpmon.model.dump import Asker, DumpError, DumpRequest, ErrorKind, FrameLocals, Local
from tpmon.model.frame import TargetState
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.results.sample import SampleRequest
from tpmon.model.stacks import StackFrame
from tpmon.ui.kit.keys import Move, Overlay
from tpmon.ui.monitor import requests, state
from tpmon.ui.monitor.keys import find_key, keys_shown, say_unused
from tpmon.ui.monitor.layout import page_of, paint_screen
from tpmon.ui.monitor.state import OTHER_THREADS, StacksView
from tpmon.view.layout import Ink, Size
from tpmon.view.stacks import name_failed


def stacks_view(update, **fields):
    return make_view(make_frame(), overlay=Overlay.STACKS, dump=update, **fields)


def looked(look, world_size=2, **fields):
    return stacks_view(dump_views.make_update(look, world_size=world_size), **fields)


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
    "the milliseconds of a stop": (looked(STOPPED, 1), "stopped the job 3.4 ms|py-spy 1.23 s of CPU"),
    "nothing to try for a process that ended": (looked(GONE), "! not read: rank 1: it ended|~Try:"),
    "one worker alone": (stacks_view(dump_views.one_worker()), ONE_WORKER),
    "other threads in one row": (
        stacks_view(dump_views.hung_once()),
        "+ other threads: 16 in 2 groups, 112 native ones without a known purpose|~pt_nccl_watchdg",
    ),
    "other threads opened": (stacks_view(dump_views.hung_once(), stacks=OPENED), "8x pt_nccl_watchdg of ranks 8-15"),
    "many waits of one group": (
        looked(make_round(*WAITS), 9),
        "blocked in a read of /data/6 on NFS (/data), blocked in a read of /data/0|5 more waits",
    ),
}
"""What the screen says, texts with a "|" between; after a "~" what it does not."""


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
    said = text_of(looked(look))
    assert "! not read: rank 1: because" in said
    assert tip in said


def test_a_stop_is_offered_neither_with_readonly_nor_after_one_nor_while_a_dump_runs():
    look = make_round(make_rank(0), errors=[error(ErrorKind.FAILED)])
    view = looked(look, readonly=True)
    assert "Try: again" in text_of(view)
    assert "R reads" not in text_of(view)
    assert "R" not in {key.keys[0] for key in keys_shown(view)}
    blocked = dump_views.make_update(look, request=DumpRequest(Asker.KEY, block=True))
    assert requests.list_stoppable(stacks_view(blocked)) == ()
    assert requests.list_stoppable(stacks_view(dump_views.torn())) != ()
    running = replace(dump_views.torn(), state=replace(dump_views.torn().state, running=True))
    assert requests.list_stoppable(stacks_view(running)) == ()


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


def test_nobody_is_accused_before_all_are_read_then_user_code_stands_out_and_a_blocked_thread_warns():
    part = stacks_view(dump_views.hung_running())
    assert Ink.BAD not in {ink for line in paint_screen(part, Size(120, 40))[3:] for _, ink in line}
    assert "save_shard checkpoint.py:212" in text_of(part), "it is there, but not as the odd one"
    assert "main train.py:214" not in text_of(part)
    view = stacks_view(dump_views.hung_once())
    assert "main train.py:214" in text_of(view)
    view = state.action_walk(view, Move.LAST, 5)
    inks = {text.strip(): ink for line in paint_screen(view, Size(120, 40)) for text, ink in line}
    assert inks["save_shard checkpoint.py:212"] is Ink.STRONG
    assert next(ink for text, ink in inks.items() if text.startswith("state D")) is Ink.WARN
    assert inks["- rank 11: save_shard checkpoint.py:212"] is Ink.BAD


def test_the_cursor_is_always_on_the_screen():
    everything = frozenset({OTHER_THREADS, *(one.mark for one in dump_views.hung_once().stacks)})
    for width, height in ((200, 50), (80, 24), (40, 30), (40, 14)):
        view = stacks_view(dump_views.hung_once(), stacks=StacksView(opened=everything))
        for _ in range(len(state.list_rows(view)) + 1):
            lines = text_of(view, width, height).splitlines()
            assert sum(line.startswith(">") for line in lines) == 1, (width, height)
            view = state.action_walk(view, Move.DOWN, 5)


def test_the_cursor_keeps_its_group_when_a_dump_grows_and_leaves_what_is_gone():
    view = stacks_view(dump_views.hung_running())
    view = state.action_walk(state.action_walk(view, Move.LAST, 5), Move.UP, 5)
    workers = state.cursor_of(view, state.list_rows(view))
    grown = replace(view, dump=dump_views.hung_once())
    assert state.cursor_of(grown, state.list_rows(grown)) == workers
    other = replace(view, dump=dump_views.one_worker())
    rows = state.list_rows(other)
    assert state.cursor_of(other, rows) == rows[0]
    nothing = replace(view, dump=dump_views.hung_waiting())
    assert state.cursor_of(nothing, state.list_rows(nothing)) is NOT_APPLICABLE
    assert state.frame_under_cursor(nothing) is NOT_APPLICABLE
    assert state.action_walk(nothing, Move.DOWN, 5) == nothing
    assert state.action_fold(nothing).message == "no stack to open yet"


def test_text_of_others_sends_no_escape_sequence():
    evil = "\x1b]0;x\x07\x9b2J\u202e"
    thread = make_thread(78, name=evil, kind=ThreadKind.OTHER, frames=(StackFrame(evil, f"/{evil}.py", 1),))
    odd = make_rank(0, thread, make_native(79, evil), frames=(StackFrame(evil, f"/{evil}.py", 1),))
    unread = make_rank(1, frames=Missing(evil), waits_for=evil, wchan=evil)
    look = make_round(odd, unread, make_rank(2, frames=IN_LOCK), errors=[error(ErrorKind.FAILED, evil)])
    update = dump_views.make_update(look, refused=evil)
    marks = frozenset({OTHER_THREADS, *(one.mark for one in update.stacks)})
    view = stacks_view(update, stacks=StacksView(opened=marks))
    for _ in range(len(state.list_rows(view))):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text_of(view, 120, 60))
        view = state.action_walk(view, Move.DOWN, 5)
    hint = replace(
        view, overlay=Overlay.NONE, dump=replace(update, state=replace(update.state, request=DumpRequest(Asker.WATCH)))
    )
    assert "\x1b" not in text_of(hint)


def test_a_group_of_five_hundred_threads_and_five_hundred_groups_are_painted():
    native = [make_native(n, f"pool-{n}") for n in range(500)]
    many = [make_rank(n, frames=(StackFrame(f"step_{n}", "/run/a.py", n + 1),)) for n in range(500)]
    for processes in ([make_rank(0, *native)], many):
        view = looked(make_round(*processes), 500)
        for width, height in ((200, 50), (40, 30), (20, 5)):
            assert text_of(view, width, height)
        last = state.action_walk(view, Move.LAST, 5)
        assert any(line.startswith(">") for line in text_of(last).splitlines())
    assert is_known(view.dump)


def test_variables_stand_below_the_line_of_their_frame_and_send_no_escape_sequence():
    at = IN_LOCK.index(next(one for one in IN_LOCK if one.function == "hold"))
    variables = (FrameLocals(at, (Local("step", "412"), Local("name", "a\x1b[31m"))),)
    view = stacks_view(dump_views.make_update(make_round(make_rank(0, frames=IN_LOCK, locals=variables))))
    assert "step" not in text_of(view)
    marks = frozenset(row.mark for row in state.list_rows(view))
    text = text_of(replace(view, stacks=StacksView(opened=marks)))
    assert "step = 412" in text
    assert "\x1b" not in text


TWO_RANKS = make_frame(
    processes=(
        make_process(21, rank=1),
        make_process(20, rank=0),
        make_worker(30, 0, 20),
        make_worker(31, 0, 21, rank=1),
    ),
    ranks=(make_row(21, rank=1), make_row(20, rank=0)),
)


def sample_view(update=NOT_APPLICABLE, **fields):
    return make_view(TWO_RANKS, overlay=Overlay.SAMPLE, sample=update, **fields)


def test_the_lowest_rank_is_sampled_unless_a_row_is_chosen():
    assert requests.choose_request(make_view(TWO_RANKS), ()) == SampleRequest(pids=(20,))
    chosen = make_view(TWO_RANKS, cursor_pid=21)
    assert requests.choose_request(chosen, (20, 21)).pids == (21,)
    assert requests.choose_request(chosen, (30, 31)).pids == (20,), "a row that is not on the screen is not meant"
    details = replace(chosen, overlay=Overlay.DETAILS)
    assert requests.choose_request(details, ()).pids == (21,)
    nameless = make_frame(ranks=(make_row(21, rank=Missing("?")), make_row(20, rank=Missing("?"))))
    assert requests.choose_request(make_view(nameless), ()).pids == (21,)
    assert requests.choose_request(make_view(make_frame(ranks=())), ()).pids == ()
    assert requests.choose_request(make_view(Missing("no reading")), ()).pids == ()


def test_the_price_counts_whom_it_is_of():
    view, order = requests.open_price(make_view(TWO_RANKS), ())
    assert order is NOT_APPLICABLE
    assert requests.say_next_price(view).startswith("f samples 2 processes at 20 Hz for 10 s: about ")
    assert "rank 0 with its workers" in requests.say_next_price(view)
    whole, order = requests.price_whole_job(view, ())
    assert order is NOT_APPLICABLE
    assert requests.say_next_price(whole).startswith("f samples 4 processes at 20 Hz for 10 s")
    assert requests.start_sample(whole, ())[1] == SampleRequest(everyone=True)
    with_helpers = replace(TWO_RANKS, target=make_target(local_stacks=6))
    assert requests.say_next_price(replace(whole, frame=with_helpers)).startswith("f samples 6 processes")
    assert requests.say_next_price(replace(view, frame=with_helpers)).startswith("f samples 2 processes")
    assert requests.say_next_price(make_view(Missing("no reading"))) == ""


SAMPLED_ALL = sample_view(sample_views.ended())
SOME = sample_views.make_update(make_reading(make_sampled(0), asked=9, ended=2))
SAMPLED_LATER = sample_view(sample_views.ended(), now_ns=NOW_NS + 60 * 10**9)
SAMPLED = {
    "while it runs no price": (sample_view(sample_views.running()), "sampling: 4 of 10 s|f end|~f samples"),
    "the job ended": (replace(sample_view(sample_views.running()), frame=OVER), "~sampling:|~f end|~f samples"),
    "the job ended at its price": (replace(sample_view(), frame=OVER), "the job has ended: no stack is left to sample"),
    "lost samples and lateness": (SAMPLED_ALL, "! lost: 5 of 605 samples gave no stack; py-spy was up to 0.4 s late"),
    "nothing lost": (sample_view(sample_views.make_update(make_reading(make_sampled(0)))), "~lost"),
    "without a turn, and ended": (sample_view(SOME), "no turn for 8 more yet|2 of 9 processes ended meanwhile"),
    "its age grows": (SAMPLED_LATER, "1m03s ago"),
    "its age stands while paused": (replace(SAMPLED_LATER, paused_ns=NOW_NS), "3.0 s ago"),
    "other threads that wait": (SAMPLED_ALL, "other threads of rank 0: 200 samples, 100 % in frames that wait"),
}


@pytest.mark.parametrize(("view", "words"), [*SAID.values(), *SAMPLED.values()], ids=[*SAID, *SAMPLED])
def test_the_screen_says(view, words):
    assert find_wrong(words, text_of(view, 200, 50)) == []


def test_without_stacks_nothing_is_offered_that_samples():
    for overlay in (Overlay.NONE, Overlay.SAMPLE):
        view = make_view(TWO_RANKS, overlay=overlay, no_stacks=True)
        shown = {name for key in keys_shown(view) for name in key.keys}
        assert not {"f", "F"} & shown
        assert {"d", "b"} <= shown, "one look is read where somebody asks for it"
        assert find_key("f", view) is None
        assert say_unused("f", view) == "f samples stacks, and --no-stacks forbids that"
    assert "no stacks are sampled: --no-stacks" in text_of(view)
    offer, _ = requests.ask_bundle(view, ())
    assert offer.message == "b again writes a bundle here: no stacks, files for a ticket"


def test_your_own_code_stands_out_and_all_lines_can_be_scrolled_to():
    view = SAMPLED_ALL
    inks = {text: ink for line in paint_screen(view, Size(120, 60)) for text, ink in line}
    assert next(ink for text, ink in inks.items() if "decode data.py:88" in text) is Ink.STRONG
    assert next(ink for text, ink in inks.items() if "poll connection.py" in text) is Ink.DIM
    _, limit = page_of(view, Size(80, 24), keys_shown(view))
    assert limit > 0
    assert "py-spy used 80 ms of CPU" in text_of(replace(view, scroll=limit), 80, 24)


@pytest.mark.parametrize("size", [(200, 50), (40, 50), (20, 5)])
def test_names_of_others_in_samples_send_no_escape_sequence(size):
    evil = "\x1b]0;x\x07\x9b2J\u202e"
    frames = (StackFrame(evil, f"/{evil}/{evil}.py", 3), *WORKER_READS)
    reading = make_reading(make_sampled(0, count(4000, frames, 20, evil)), host=evil)
    update = sample_views.make_update(reading)
    refused = replace(update, state=replace(update.state, refused=evil))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text_of(sample_view(refused), *size))
