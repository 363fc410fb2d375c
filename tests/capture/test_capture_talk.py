"""The talk about a capture: a yes is to the question that stands, a no is heard, a price left says nothing."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tpmon.capture.dialog import STAYS_SLOWER, CaptureDialog, ChosenAnewError, say_plan, say_plan_of_kineto
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.capture import (
    UNKNOWN,
    CaptureAnswer,
    CaptureAsked,
    CaptureChoice,
    CaptureKind,
    CaptureOffers,
    CaptureStage,
)

PLANNED, SIZING, PRICED, RECORDING = (
    CaptureStage.PLANNED,
    CaptureStage.SIZING,
    CaptureStage.PRICED,
    CaptureStage.RECORDING,
)


@pytest.fixture
def told():
    return []


@pytest.fixture
def talk(told):
    return CaptureDialog(told.append)


def agree(talk: CaptureDialog, stage: CaptureStage, *said: str, choice: CaptureChoice | None = None) -> None:
    """Have a question put, say yes to it, and see that it was heard."""
    assert not talk.agreed(stage, said)
    talk.answer(CaptureAnswer(stage, True, choice or CaptureChoice()))
    assert talk.agreed(stage, ())


def test_each_question_takes_a_yes_of_its_own(talk, told):
    talk.tell("waits for the first step of the loop")
    talk.answer(CaptureAnswer(PLANNED, goes=True))
    assert not talk.agreed(PLANNED, ("5 steps", "12 ms"))
    assert not talk.agreed(PLANNED, ("5 steps", "12 ms")), "what was said before the question is no yes to it"
    assert (told[-1].stage, told[-1].plan, len(told)) == (PLANNED, ("5 steps", "12 ms"), 2)
    talk.answer(CaptureAnswer(PRICED, goes=True))
    assert not talk.agreed(PLANNED, ())
    talk.answer(CaptureAnswer(PLANNED, goes=True))
    assert talk.agreed(PLANNED, ())
    talk.answer(CaptureAnswer(PLANNED, goes=True))
    assert not talk.agreed(PRICED, ("31 ms",)), "a key that was pressed twice says one yes"
    talk.answer(CaptureAnswer(PRICED, goes=True))
    assert talk.agreed(PRICED, ("31 ms",))
    talk.tell("recording step 1 of 5")
    assert [one.stage for one in told[1:]] == [PLANNED, SIZING, PRICED, RECORDING, RECORDING]
    assert (told[-1].plan, told[-1].price) == (("5 steps", "12 ms"), ("31 ms",))


def test_a_dear_price_takes_a_second_yes(talk, told):
    agree(talk, PRICED, "13 s")
    dear = CaptureStage.DEAR
    assert not talk.agreed(dear, ("13 s", "more than 2 s"))
    talk.answer(CaptureAnswer(PRICED, goes=True))
    assert not talk.agreed(dear, ()), "that yes was to the price"
    assert (told[-1].stage, told[-1].price) == (dear, ("13 s", "more than 2 s"))
    talk.answer(CaptureAnswer(dear, goes=True))
    assert talk.agreed(dear, ())
    assert told[-1].stage is RECORDING


def test_a_window_that_begins_anew_asks_anew(talk, told):
    for stage in (PLANNED, PRICED, PLANNED, PRICED):
        agree(talk, stage, "x")
    assert told[-3].price == (), "the price before is none of this window"


@pytest.mark.parametrize(("stage", "line"), [(PLANNED, ""), (PRICED, ""), (RECORDING, "capture cancelled")])
def test_a_no_stops_it_and_a_price_that_was_left_says_nothing(talk, told, stage, line):
    for asked in (PLANNED, PRICED):
        if asked is stage:
            talk.agreed(asked, ())
            break
        agree(talk, asked)
    assert not talk.stopped()
    talk.answer(CaptureAnswer(stage, goes=False))
    assert talk.stopped()
    before = len(told)
    talk.tell("reading what was written")
    assert len(told) - before == bool(line), "of a price that was left nothing more is said"
    talk.end("capture cancelled", ("cancelled: by torch.profiler",))
    assert (told[-1].stage, told[-1].line) == (CaptureStage.ENDED, line)


def test_a_reason_that_there_is_no_capture_is_said(talk, told):
    talk.end("no capture: process 7 has no hook")
    assert told[-1].line == "no capture: process 7 has no hook"
    assert CaptureDialog(told.append, lambda: True).stopped()


TEN = CaptureChoice(steps=10)
EVERY = CaptureChoice(every=True)
SNAPSHOT = CaptureChoice(CaptureKind.SNAPSHOT)
OFFERS = CaptureOffers("rank 0", 2)


@pytest.mark.parametrize("stage", [PLANNED, PRICED])
def test_who_chooses_otherwise_is_planned_for_anew_and_a_yes_before_is_none(talk, told, stage):
    talk.offer(OFFERS)
    assert talk.begin() == CaptureChoice()
    assert not talk.agreed(PLANNED, ("5 steps",))
    talk.answer(CaptureAnswer(PLANNED, goes=True))
    if stage is PRICED:
        assert talk.agreed(PLANNED, ())
        assert not talk.agreed(PRICED, ("31 ms",))
        talk.answer(CaptureAnswer(PRICED, goes=True))
    talk.choose(TEN)
    assert (told[-1].stage, told[-1].choice) == (CaptureStage.ASKED, TEN)
    assert (told[-1].plan, told[-1].price, told[-1].offers) == ((), (), OFFERS)
    with pytest.raises(ChosenAnewError):
        talk.agreed(stage, ("5 steps",))
    assert talk.begin() == TEN
    assert not talk.agreed(PLANNED, ("10 steps",))
    talk.answer(CaptureAnswer(PLANNED, goes=True))
    assert not talk.agreed(PLANNED, ()), "that yes is to 5 steps, which stood there before"
    talk.answer(CaptureAnswer(PLANNED, goes=True, choice=TEN))
    assert talk.agreed(PLANNED, ())


def test_too_late_to_choose_once_it_acts(talk, told):
    agree(talk, PLANNED)
    before = len(told)
    talk.choose(TEN)
    assert told[before:] == [told[before - 1]], "the screen is told again what stands"
    assert (told[-1].stage, talk.begin()) == (SIZING, CaptureChoice())


def test_what_no_probe_sizes_is_recorded_after_one_yes(talk, told):
    talk.choose(SNAPSHOT)
    talk.begin()
    agree(talk, PLANNED, "history of 5 steps", choice=SNAPSHOT)
    assert told[-1].stage is RECORDING


def test_what_cannot_be_is_not_begun_with(talk, told):
    talk.offer(CaptureOffers("rank 0", 1, ((CaptureKind.TRACE, "nsys has the slot"),)))
    assert talk.begin().kind is CaptureKind.SNAPSHOT
    assert told[-1].choice.kind is CaptureKind.SNAPSHOT


def test_a_choice_that_fails_is_taken_back_with_its_reason(talk, told):
    talk.offer(OFFERS)
    talk.begin()
    assert not talk.take_back("no step ends"), "there is no choice before the first"
    talk.agreed(PLANNED, ("5 steps",))
    assert not talk.take_back("no step ends"), "the plan that stands is a good one"
    talk.choose(EVERY)
    talk.begin()
    assert talk.take_back("no step ends")
    assert (told[-1].choice, told[-1].offers) == (CaptureChoice(), CaptureOffers("rank 0", 2, every="no step ends"))
    talk.begin()
    talk.agreed(PLANNED, ("5 steps",))
    talk.choose(SNAPSHOT)
    talk.begin()
    talk.choose(CaptureChoice(CaptureKind.SNAPSHOT, 10))
    assert talk.take_back("no CUDA")
    assert talk.begin() == TEN, "what was chosen meanwhile stays, as far as it can be"
    talk.choose(CaptureChoice(steps=20))
    talk.begin()
    assert not talk.take_back("the process ended"), "more steps are no reason"


def asked(folder: Path, kind: CaptureKind = CaptureKind.TRACE, *, timed: bool = False) -> CaptureAsked:
    return CaptureAsked(kind, 5, 10.0, False, False, False, NOT_APPLICABLE, str(folder), timed=timed)


def test_a_plan_says_what_is_known_and_what_is_not(tmp_path):
    what, pace, room, unknown = say_plan(asked(tmp_path / "out"), os.getpid(), 3, 412.5)
    assert what == f"5 steps of rank 3, process {os.getpid()}, by torch.profiler from its step hook"
    assert pace == "a step takes 412.5 ms now: about 2.1 s are recorded"
    assert str(tmp_path / "out") in room
    assert room.endswith("free there")
    assert unknown.startswith(UNKNOWN)
    _, pace, room, _ = say_plan(asked(tmp_path / "a" / "b" / "c"), os.getpid(), -1, Missing("too few steps"))
    assert pace == "how long a step takes is not known: too few steps"
    assert room.endswith("free space not read: No such file or directory")
    assert say_plan(asked(tmp_path, timed=True), 7, -1, 1.0)[0].startswith("10 s of process 7, which ends no")
    plan = say_plan_of_kineto(asked(tmp_path), 7, hooked=False)
    assert plan[0].startswith("5 updates of an optimizer in process 7")
    assert any("no limit of time or size ends it" in line for line in plan)
    for planned in (
        say_plan_of_kineto(asked(tmp_path), 7, hooked=False, stays_slower=True),
        say_plan(asked(tmp_path), 7, -1, 1.0, stays_slower=True),
    ):
        assert planned[-2] == STAYS_SLOWER
        assert "TEARDOWN_CUPTI=1" in planned[-2]
    hooked = say_plan_of_kineto(asked(tmp_path), 7, hooked=True)
    (more,) = set(hooked) - set(plan)
    assert "the loop pauses" in more


def test_a_plan_is_that_of_what_is_chosen(tmp_path):
    every = say_plan(asked(tmp_path), 7, 0, 12.0, 4)
    for timeout_s, limit in ((1800, "30m00s"), (0, "10 min, unless the program sets another one")):
        waited = say_plan(asked(tmp_path), 7, 0, 12.0, timeout_s=timeout_s)
        assert len(waited) == len(every) + 1
        assert "the other ranks wait in their collectives" in waited[-2]
        assert waited[-2].endswith(f"the timeout of their group: {limit}")
    assert every[0] == "5 steps of all 4 ranks here, by torch.profiler from their step hook"
    assert "512M of each, packed" in every[2]
    assert "One step of each is profiled" in every[3]
    what, pace, room, unknown = say_plan(asked(tmp_path, CaptureKind.SNAPSHOT), 7, 0, 12.0)
    assert what == "the CUDA allocator's history over 5 steps of rank 0, process 7"
    assert pace == "a step takes 12.0 ms now: about 60 ms are recorded"
    assert room.startswith("the newest 100,000 allocations and their stacks, at most some 391M of memory")
    assert str(tmp_path) in room
    assert unknown.startswith(UNKNOWN)
    one = replace(asked(tmp_path), steps=1)
    assert say_plan(one, 7, 0, 12.0)[0].startswith("1 step of rank 0, ")
    assert say_plan_of_kineto(one, 7, hooked=False)[0].startswith("1 update of an optimizer")
    what, _, room, unknown = say_plan(asked(tmp_path, CaptureKind.NSYS_RANGE), 7, 0, 12.0)
    assert what == "5 steps of rank 0, process 7, as a range for the nsys in front of the run"
    assert (str(tmp_path) in room, unknown.startswith(UNKNOWN)) == (False, True)
