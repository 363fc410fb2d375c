"""Hot functions on the screen: the price, what was lost, whose code it is, and nothing strange."""

import re
from dataclasses import replace

import pytest

from tests.frames import NOW_NS, make_frame, make_process, make_rank, make_target, make_view, make_worker
from tests.goldens import sample_views
from tests.painted import find_wrong
from tests.painted import screen_of as text_of
from tests.samples import count, make_reading, make_sampled
from tests.stacks import WORKER_READS
from tpmon.model.frame import TargetState
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.sample import SampleRequest
from tpmon.model.stacks import StackFrame
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor.keys import find_key, keys_shown, say_unused
from tpmon.ui.monitor.layout import page_of, paint_screen
from tpmon.ui.monitor.requests import (
    ask_bundle,
    choose_request,
    open_price,
    price_whole_job,
    say_next_price,
    start_sample,
)
from tpmon.view.layout import Ink, Size

TWO_RANKS = make_frame(
    processes=(
        make_process(21, rank=1),
        make_process(20, rank=0),
        make_worker(30, 0, 20),
        make_worker(31, 0, 21, rank=1),
    ),
    ranks=(make_rank(21, rank=1), make_rank(20, rank=0)),
)


def sample_view(update=NOT_APPLICABLE, **fields):
    return make_view(TWO_RANKS, overlay=Overlay.SAMPLE, sample=update, **fields)


def test_the_lowest_rank_is_sampled_unless_a_row_is_chosen():
    assert choose_request(make_view(TWO_RANKS), ()) == SampleRequest(pids=(20,))
    chosen = make_view(TWO_RANKS, cursor_pid=21)
    assert choose_request(chosen, (20, 21)).pids == (21,)
    assert choose_request(chosen, (30, 31)).pids == (20,), "a row that is not on the screen is not meant"
    details = replace(chosen, overlay=Overlay.DETAILS)
    assert choose_request(details, ()).pids == (21,)
    nameless = make_frame(ranks=(make_rank(21, rank=Missing("?")), make_rank(20, rank=Missing("?"))))
    assert choose_request(make_view(nameless), ()).pids == (21,)
    assert choose_request(make_view(make_frame(ranks=())), ()).pids == ()
    assert choose_request(make_view(Missing("no reading")), ()).pids == ()


def test_the_price_counts_whom_it_is_of():
    view, order = open_price(make_view(TWO_RANKS), ())
    assert order is NOT_APPLICABLE
    assert say_next_price(view).startswith("f samples 2 processes at 20 Hz for 10 s: about ")
    assert "rank 0 with its workers" in say_next_price(view)
    whole, order = price_whole_job(view, ())
    assert order is NOT_APPLICABLE
    assert say_next_price(whole).startswith("f samples 4 processes at 20 Hz for 10 s")
    assert start_sample(whole, ())[1] == SampleRequest(everyone=True)
    with_helpers = replace(TWO_RANKS, target=make_target(local_stacks=6))
    assert say_next_price(replace(whole, frame=with_helpers)).startswith("f samples 6 processes")
    assert say_next_price(replace(view, frame=with_helpers)).startswith("f samples 2 processes")
    assert say_next_price(make_view(Missing("no reading"))) == ""


OVER = make_frame(target=make_target(state=TargetState.ENDED, ended="exit 1"))
SOME = sample_views.make_update(make_reading(make_sampled(0), asked=9, ended=2))
LATER = sample_view(sample_views.ended(), now_ns=NOW_NS + 60 * 10**9)
SAID = {
    "while it runs no price": (sample_view(sample_views.running()), "sampling: 4 of 10 s|f end|~f samples"),
    "the job ended": (replace(sample_view(sample_views.running()), frame=OVER), "~sampling:|~f end|~f samples"),
    "the job ended at its price": (replace(sample_view(), frame=OVER), "the job has ended: no stack is left to sample"),
    "lost samples and lateness": (
        sample_view(sample_views.ended()),
        "! lost: 5 of 605 samples gave no stack; py-spy was up to 0.4 s late",
    ),
    "nothing lost": (sample_view(sample_views.make_update(make_reading(make_sampled(0)))), "~lost"),
    "without a turn, and ended": (sample_view(SOME), "no turn for 8 more yet|2 of 9 processes ended meanwhile"),
    "its age grows": (LATER, "1m03s ago"),
    "its age stands while paused": (replace(LATER, paused_ns=NOW_NS), "3.0 s ago"),
    "other threads that wait": (
        sample_view(sample_views.ended()),
        "other threads of rank 0: 200 samples, 100 % in frames that wait",
    ),
}
"""What the screen says, texts with a "|" between; after a "~" what it does not."""


@pytest.mark.parametrize(("view", "words"), SAID.values(), ids=SAID)
def test_the_screen_says(view, words):
    assert find_wrong(words, text_of(view)) == []


def test_without_stacks_nothing_is_offered_that_samples():
    for overlay in (Overlay.NONE, Overlay.SAMPLE):
        view = make_view(TWO_RANKS, overlay=overlay, no_stacks=True)
        shown = {name for key in keys_shown(view) for name in key.keys}
        assert not {"f", "F"} & shown
        assert {"d", "b"} <= shown, "one look is read where somebody asks for it"
        assert find_key("f", view) is None
        assert say_unused("f", view) == "f samples stacks, and --no-stacks forbids that"
    assert "no stacks are sampled: --no-stacks" in text_of(view)
    offer, _ = ask_bundle(view, ())
    assert offer.message == "b again writes a bundle here: no stacks, files for a ticket"


def test_your_own_code_stands_out():
    inks = {text: ink for line in paint_screen(sample_view(sample_views.ended()), Size(120, 60)) for text, ink in line}
    assert next(ink for text, ink in inks.items() if "decode data.py:88" in text) is Ink.STRONG
    assert next(ink for text, ink in inks.items() if "poll connection.py" in text) is Ink.DIM


def test_all_lines_can_be_scrolled_to():
    view = sample_view(sample_views.ended())
    size = Size(80, 24)
    _, limit = page_of(view, size, keys_shown(view))
    assert limit > 0
    assert "py-spy used 80 ms of CPU" in text_of(replace(view, scroll=limit), 80, 24)


@pytest.mark.parametrize("size", [(200, 50), (40, 50), (20, 5)])
def test_text_of_others_sends_no_escape_sequence(size):
    evil = "\x1b]0;x\x07\x9b2J\u202e"
    frames = (StackFrame(evil, f"/{evil}/{evil}.py", 3), *WORKER_READS)
    reading = make_reading(make_sampled(0, count(4000, frames, 20, evil)), host=evil)
    update = sample_views.make_update(reading)
    refused = replace(update, state=replace(update.state, refused=evil))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text_of(sample_view(refused), *size))
