"""One mailbox, one request: who comes second is told, and nobody waits for what was never read."""

import mmap
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.capture.test_capture_plan import ASKED
from tests.capture.test_kineto_told import settings
from tests.children import child
from tests.hooks import list_pages
from tpmon.capture import dialog, kineto_capture, window
from tpmon.capture import outcome as ranks
from tpmon.capture.bus import Bus, open_bus
from tpmon.capture.dialog import NO_ANSWER, STAYS_SLOWER, CaptureAsker
from tpmon.capture.kineto_window import Recorded
from tpmon.capture.outcome import CaptureOutcome, LoopTurn, find_end, judge_turn
from tpmon.capture.window import CaptureWindow, FirstStep
from tpmon.commands import capture as capture_command
from tpmon.commands import command
from tpmon.commands.capture import CaptureOptions, parse_asked
from tpmon.errors import UsageError
from tpmon.hook import steps as ends
from tpmon.hook.bus import wire, wire_settings
from tpmon.hook.bus import wire_capture as w
from tpmon.hook.bus.pages import Pages
from tpmon.model.known import Missing
from tpmon.model.process import Identity
from tpmon.model.results.capture import CaptureAsked, CaptureKind, CaptureStage, CaptureState
from tpmon.probe.base.procread import read_stat

SOON = 10**9
ASKS = {"stopped", "agreed"}
REFUSED = [("refused", "enough")]


class Hook:
    """Stand for the hook of this process: its pages, steps that end when the test says, and what it answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        start = read_stat(os.getpid()).start_ticks
        page, box = mmap.mmap(-1, wire.TELEMETRY_BYTES), mmap.mmap(-1, wire.MAILBOX_BYTES)
        header = wire.Header(os.getpid(), 0, start)
        self.bus = Bus(Identity(os.getpid(), start), header, page, box)
        self.page = memoryview(page)
        status = wire.pack_status(wire.STATE_RUNNING, 0, "")
        self.page[wire.STATUS_OFFSET : wire.STATUS_OFFSET + len(status)] = status
        self.told = w.Progress()
        self.steps = self.records = self.asleep = 0
        self.now = 1_000_000.0
        self.each: Callable[[], None] = lambda: None
        monkeypatch.setattr(window, "_EVERY_S", 0.1)
        clock = SimpleNamespace(sleep=self.sleep, monotonic=lambda: self.now, monotonic_ns=lambda: int(self.now * 1e9))
        for module in (window, dialog):
            monkeypatch.setattr(module, "time", clock)

    def close(self) -> None:
        self.page.release()
        self.bus.close()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.asleep += 1
        if self.asleep > 10_000:
            raise AssertionError("it waits for ever")
        self.each()

    def record(self, **words: int) -> None:
        """Write a record, as at the end of a step, with some words of it."""
        told = [0] * wire.RECORD_WORDS
        told[wire.REC_NUMBER] = told[wire.REC_NUMBER_AGAIN] = self.records
        told[wire.REC_TIME_NS] = int(self.now * 1e9)
        told[wire.REC_STEPS] = self.steps
        told[wire.REC_RULE] = wire.RULE_UPDATE
        for name, value in words.items():
            told[getattr(wire, f"REC_{name}")] = value
        wire.RECORD.pack_into(self.page, wire.record_offset(self.records), *told)
        self.records += 1
        self.live(wire.LIVE_RECORDS, self.records)

    def live(self, word: int, value: int) -> None:
        at = wire.LIVE_OFFSET + 8 * word
        self.page[at : at + 8] = value.to_bytes(8, "little")

    def step(self, steps: int = 1) -> None:
        self.steps += steps
        self.record()

    def answer(self, number: int, answer: int) -> None:
        at = wire.ANSWER_OFFSET
        self.page[at : at + 16] = number.to_bytes(8, "little") + answer.to_bytes(8, "little")

    def tell(self, number: int, state: int, reason: str = "") -> None:
        self.told.request, self.told.state, self.told.reason = number, state, reason
        w.write_progress(self.page, self.told)

    def ask(self, number: int, kind: int = w.KIND_PROBE, *, expires: int = 0) -> None:
        expires = expires or int(self.now * 1e9) + SOON
        self.bus.post(w.Request(number, kind, expires_ns=expires, folder="/x", name="x"))

    def lead(self, *, stays_slower: bool = False, **given: Any) -> list[tuple[str, str]]:
        """Lead a capture; what is given is of who asks, or of what is asked for."""
        self.said: list[str] = []
        asker = CaptureAsker(self.said.append, **{name: given.pop(name) for name in ASKS & given.keys()})
        made = CaptureWindow([self.bus], replace(ASKED, **given), "x", asker, stays_slower=stays_slower)
        return [(one.state.value, one.reason) for one in made.run()]

    def refuse(self) -> list[w.Request]:
        """Have each request refused from now on; return those that come."""
        heard: list[w.Request] = []

        def each() -> None:
            asked = self.bus.read_asked()
            if asked is not None and asked.number not in [one.number for one in heard]:
                heard.append(asked)
                self.tell(asked.number, w.STATE_REFUSED, "enough")

        self.each = each
        return heard


class Answers:
    """Answer each question the same way, and keep what was said."""

    def __init__(self, yes: bool = False) -> None:
        self.yes = yes
        self.said: list[str] = []

    def __call__(self, _stage: CaptureStage, said: Sequence[str]) -> bool:
        self.said += said
        return self.yes


@pytest.fixture
def hook(monkeypatch):
    made = Hook(monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize(("world", "cuda", "told"), [(8, 1, True), (8, 0, False), (1, 1, False)])
def test_the_first_start_of_the_profiler_is_said_before_with_the_timeout_of_the_other_ranks(hook, world, cuda, told):
    wire_settings.write_settings(hook.page, settings(NUMBER=1, NUMBER_AGAIN=1, CUDA=cuda, TIMEOUT_S=600))
    hook.bus.header.world_size = world
    hook.step(100)
    hook.lead(stopped=lambda: hook.asleep > 3)
    lines = [line for line in hook.said if line.startswith("the first profile of a process on CUDA")]
    assert [line.endswith("the timeout of their group: 10m00s") for line in lines] == [True] * told


def test_a_step_that_is_past_is_missed_at_once_and_nothing_is_asked_of_the_hook(hook):
    hook.step(100)
    assert hook.lead(at=100) == [("missed", "the loop was past that step already")]
    assert (hook.asleep, hook.bus.read_asked_number()) == (0, 0)


def test_a_step_too_far_ahead_for_any_request_is_refused_before_anything_is_paid(hook):
    for number in range(1, 4):  # 100 ms a step, and between the last two a validation of 25 s
        hook.now += 1 if number < 3 else 26
        hook.steps = 10 * number
        hook.record(FORWARD_NS=number * 10**9, EVAL_FORWARD_NS=(number == 3) * 25 * 10**9)
    planned: list[CaptureStage] = []

    def agreed(stage, _said):
        planned.append(stage)
        return False

    away = "step 20,000 is about 33m17s away, the loop is at step 30 of this process: a request waits 10 min"
    with pytest.raises(UsageError, match=away):
        hook.lead(agreed=agreed, at=20_000)
    assert (planned, hook.asleep, hook.bus.read_asked_number()) == ([], 0, 0)
    hook.lead(stopped=lambda: planned != [], agreed=agreed, at=5000)
    assert planned[0] is CaptureStage.PLANNED


@pytest.mark.parametrize(
    ("kind", "price", "last"),
    [
        (CaptureKind.SNAPSHOT, "the newest 100,000 allocations", "allocator snapshot of 5 steps"),
        (CaptureKind.NSYS_RANGE, "nsys writes the report", "nsys range of 5 steps"),
    ],
)
def test_what_no_probe_sizes_says_its_price_to_who_called_a_command(hook, kind, price, last):
    hook.step(100)
    hook.refuse()
    assert hook.lead(kind=kind) == REFUSED
    at = hook.said.index(last)
    assert hook.said[at - 2].startswith(price)
    assert hook.said[at - 1].startswith("not known yet: how long the loop pauses while")


@pytest.mark.parametrize("slower", [False, True])
def test_that_launches_may_stay_slower_is_said_before_anything_is_profiled(hook, slower):
    hook.step(100)
    hook.refuse()
    plan = Answers(yes=True)
    assert hook.lead(agreed=plan, stays_slower=slower) == REFUSED
    probes = next(at for at, line in enumerate(hook.said) if line.startswith("profiling one step"))
    assert (STAYS_SLOWER in hook.said[:probes], STAYS_SLOWER in plan.said) == (slower, slower)
    hook.lead(kind=CaptureKind.SNAPSHOT, stays_slower=slower, stopped=lambda: True)
    assert STAYS_SLOWER not in hook.said, "the allocator's history is none of CUPTI's"


def test_of_a_window_that_left_no_file_no_steps_after_are_waited_for(hook, monkeypatch):
    hook.step(100)
    window = CaptureWindow([hook.bus], ASKED, "x", CaptureAsker(print))
    ended = w.Progress(changed_ns=int(hook.now * 1e9))
    monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=lambda: hook.now))
    (told,) = window.describe([CaptureOutcome(CaptureState.CANCELLED, "why", ended)])
    assert told.step_after_ms == Missing("nothing was recorded")


def test_a_window_of_seconds_alone_asks_for_as_many_steps_as_they_hold(hook):
    for _ in range(4):
        hook.now += 0.125
        hook.steps += 1
        hook.record(FORWARD_NS=int(hook.now * 1e9))
    plan = Answers()
    hook.lead(stopped=lambda: plan.said != [], agreed=plan, steps=1000, seconds=10.0, by_seconds=True)
    assert plan.said[0].startswith("10 s, 160 steps at most of process")
    assert plan.said[1] == "a step takes 125.0 ms now: about 10.0 s are recorded"


@pytest.mark.parametrize(
    ("named", "pace", "longest_s"),
    [
        (False, "about 150.0 s are recorded", 225),
        (True, "about 60.0 s are recorded, some 2 of 5 steps: 60 s hold no more", 60),
    ],
)
def test_slow_steps_have_the_time_that_they_need_or_it_is_said_that_they_do_not(hook, *, named, pace, longest_s):
    for _ in range(4):
        hook.now += 30
        hook.steps += 1
        hook.record(FORWARD_NS=int(hook.now * 1e9))
    asked, plan = hook.refuse(), Answers(yes=True)
    assert hook.lead(agreed=plan, named_seconds=named) == REFUSED
    assert plan.said[1] == f"a step takes 30000.0 ms now: {pace}"
    assert asked[0].longest_ns == longest_s * 10**9
    assert ("some 2 of 5 steps: 60 s hold no more" in hook.said) is named


def test_a_request_that_a_cancel_took_away_before_it_was_read_has_ended(hook):
    hook.ask(1)
    hook.bus.post(w.Request(2, w.KIND_CANCEL, subject=1))
    assert find_end(hook.bus, 1, None, cancel=2) is None
    hook.answer(2, wire.ANSWER_DONE)
    end = find_end(hook.bus, 1, None, cancel=2)
    assert end.state is CaptureState.CANCELLED


def test_a_request_that_another_took_away_is_told_busy(hook):
    hook.ask(1)
    hook.ask(2)
    assert find_end(hook.bus, 1, None) is None
    hook.tell(2, w.STATE_ARMED)
    hook.answer(2, wire.ANSWER_TAKEN)
    end = find_end(hook.bus, 1, None)
    assert end.state is CaptureState.BUSY
    assert find_end(hook.bus, 2, hook.bus.read_progress(2)) is None
    gone = find_end(hook.bus, 1, None, seen=True)
    assert gone.state is CaptureState.FAILED


def test_a_recording_goes_on_where_another_was_told_busy(hook):
    hook.ask(1)
    hook.tell(1, w.STATE_RECORDING)
    hook.ask(2)
    hook.answer(2, wire.ANSWER_BUSY)
    assert find_end(hook.bus, 1, hook.bus.read_progress(1)) is None


def test_whose_turn_it_is_is_told_by_what_was_answered(hook):
    now = int(hook.now * 1e9)
    assert judge_turn(hook.bus, now) is LoopTurn.FREE
    hook.ask(1)
    assert judge_turn(hook.bus, now) is LoopTurn.TAKEN
    assert judge_turn(hook.bus, now + 2 * SOON) is LoopTurn.FREE  # nobody waits for it any more
    hook.bus.post(w.Request(2, w.KIND_CANCEL, subject=1))
    assert judge_turn(hook.bus, now) is LoopTurn.FREE  # of a request that was never read
    hook.tell(1, w.STATE_RECORDING)
    assert judge_turn(hook.bus, now) is LoopTurn.ENDING
    hook.answer(2, wire.ANSWER_DONE)
    assert judge_turn(hook.bus, now) is LoopTurn.FREE


def test_a_second_capture_takes_nothing_away_from_one_that_waits(hook):
    hook.step(100)
    hook.ask(1)
    ((state, _),) = hook.lead()
    assert state == "busy"
    assert hook.bus.read_asked_number() == 1


def test_a_cancel_that_was_not_heard_is_waited_for(hook):
    hook.step(100)
    hook.ask(1)
    hook.tell(1, w.STATE_RECORDING)
    hook.bus.post(w.Request(2, w.KIND_CANCEL, subject=1))
    read: list[int] = []

    def hear():
        number = hook.bus.read_asked_number()
        if not read or read[-1] != number:
            read.append(number)
        if hook.asleep == 20:
            hook.tell(1, w.STATE_CANCELLED)
            hook.answer(2, wire.ANSWER_DONE)
        elif number != 2:
            hook.tell(number, w.STATE_REFUSED, "enough")
            hook.answer(number, wire.ANSWER_TAKEN)

    hook.each = hear
    assert hook.lead() == REFUSED
    assert read[0] == 2
    assert hook.asleep > 20


def test_a_cancel_that_another_request_took_away_is_written_again(hook):
    hook.step(100)
    over = threading.Event()
    mine: list[int] = []

    def hear():
        asked = hook.bus.read_asked()
        number = asked.number
        if not mine:
            mine.append(number)
            hook.tell(number, w.STATE_WARMING)
            hook.answer(number, wire.ANSWER_TAKEN)
            over.set()
        elif asked.kind != w.KIND_CANCEL:
            return
        elif hook.asleep < 10:
            hook.ask(77)
            hook.answer(77, wire.ANSWER_BUSY)
        elif asked.subject == mine[0]:
            hook.tell(mine[0], w.STATE_CANCELLED, "tpmon asked for it")
            hook.answer(number, wire.ANSWER_DONE)

    hook.each = hear
    assert hook.lead(stopped=over.is_set) == [("cancelled", "tpmon asked for it")]


def long_step(hook: Hook) -> None:
    if hook.asleep == 80:  # 8 s
        hook.step()


def add_up(hook: Hook) -> None:
    """Of 32 parts of 2 s the first update comes after a minute."""
    parts = int(hook.asleep / 20)
    if hook.asleep % 20 == 0 and parts <= 32:
        hook.live(wire.LIVE_BACKWARD_ENDED, parts)
        hook.steps = int(parts == 32)
        hook.record(BATCHES=parts, BACKWARDS=parts)


def one_batch(hook: Hook) -> None:
    hook.live(wire.LIVE_BACKWARD_ENDED, hook.asleep)
    hook.record(BATCHES=1, BACKWARDS=hook.asleep)


@pytest.mark.parametrize(
    ("goes", "options", "steps"), [(long_step, 0, 1), (add_up, 0, 1), (one_batch, w.OPTION_TIMED, 0)]
)
def test_a_first_step_is_waited_for_unless_backwards_have_no_end(hook, monkeypatch, goes, options, steps):
    monkeypatch.setattr(Bus, "wake", lambda _: True)
    hook.live(wire.LIVE_BACKWARD_ENDED, 5)
    asked = hook.refuse()
    hear = hook.each
    hook.each = lambda: (goes(hook), hear())
    assert hook.lead() == REFUSED
    assert ([one.options for one in asked], hook.steps) == ([options], steps)
    assert "waits for the first step of the loop" in hook.said


def test_as_many_parts_of_a_first_step_are_waited_for_as_the_hook_waits_for(hook):
    loop = FirstStep(hook.bus)
    for part in (1, 2, 3):
        hook.live(wire.LIVE_BACKWARD_ENDED, part)
        loop.note_backward()
    most = wire.BACKWARDS_WITHOUT_UPDATE
    assert most == ends._BACKWARDS_WITHOUT_UPDATE
    for batches, backwards, none in ((most - 1, most - 1, False), (most, most, True), (0, 3, True)):
        hook.record(BATCHES=batches, BACKWARDS=backwards)
        assert loop.ends_none() is none


def test_a_loop_of_backwards_alone_is_taken_by_time_and_by_steps_once_it_takes_some(hook, monkeypatch):
    monkeypatch.setattr(Bus, "wake", lambda _: True)
    options: list[int] = []

    def go_on():
        if not options:
            hook.live(wire.LIVE_BACKWARD_ENDED, hook.asleep)
        asked = hook.bus.read_asked()
        if asked is None or hook.bus.read_progress(asked.number):
            return
        options.append(asked.options)
        hook.answer(asked.number, wire.ANSWER_TAKEN)
        if len(options) == 1:
            hook.step()
            hook.tell(asked.number, w.STATE_CANCELLED, w.TAKES_STEPS)
        else:
            assert asked.longest_ns == 60 * 10**9  # its own, and not that of the window
            hook.tell(asked.number, w.STATE_REFUSED, "enough")

    hook.each = go_on
    assert hook.lead(seconds=1.0) == REFUSED
    assert options == [w.OPTION_TIMED, 0]


def test_a_loop_that_passed_the_signal_by_is_woken_again(hook, monkeypatch):
    woken: list[int] = []
    monkeypatch.setattr(Bus, "wake", lambda _: not woken.append(hook.asleep))

    def go_on():
        hook.live(wire.LIVE_BACKWARD_ENDED, hook.asleep)
        if len(woken) == 3:
            hook.tell(hook.bus.read_asked_number(), w.STATE_REFUSED, "enough")

    hook.each = go_on
    assert hook.lead() == REFUSED
    assert woken[1] - woken[0] >= 5  # half a second of tenths


def test_nobody_waits_for_a_first_step_for_ever(hook):
    assert hook.lead(stopped=lambda: hook.asleep > 5) == [("cancelled", "nobody waits for it any more")]


def test_nothing_is_asked_of_the_hook_before_a_yes_to_the_plan(hook):
    hook.step(100)
    asked: list[tuple[CaptureStage, str]] = []

    def never(stage, said):
        asked.append((stage, said[0]))
        assert hook.bus.read_asked_number() == 0
        return False

    assert hook.lead(stopped=lambda: len(asked) > 5, agreed=never) == [("cancelled", "nobody waits for it any more")]
    assert {stage for stage, _ in asked} == {CaptureStage.PLANNED}
    assert asked[0][1].startswith("5 steps of ")
    assert hook.lead(agreed=never) == [("cancelled", NO_ANSWER)]


def test_a_price_is_held_until_a_yes_and_then_recorded(hook, monkeypatch):
    kinds = price(hook, monkeypatch, 1.0)
    held: list[str] = []

    def agreed(stage, said):
        if stage is CaptureStage.PRICED:
            held.append(said[0])
            assert kinds == [w.KIND_PROBE]
        return stage is CaptureStage.PLANNED or len(held) > 3

    assert hook.lead(agreed=agreed) == [("verified", "")]
    assert kinds == [w.KIND_PROBE, w.KIND_CAPTURE]
    assert held[0].startswith("5 steps: the loop pauses for about")


class Order:
    """Stand for a window of kineto's; ends as one does that nobody waits for."""

    price = Missing("x")

    def __init__(self, client: object, asked: CaptureAsked, asker: CaptureAsker, **_: object) -> None:
        os.mkdir(asked.folder)
        self.asked, self._stopped = asked, asker.stopped

    def run(self) -> Recorded:
        assert self._stopped()
        return Recorded(CaptureState.CANCELLED, "nobody waits for it any more")

    def close(self) -> None:
        """Give nothing back."""


def test_a_capture_of_kineto_is_cancelled_as_any_and_leaves_no_empty_folder(tmp_path, monkeypatch):
    here = Identity(os.getpid(), read_stat(os.getpid()).start_ticks)
    client = SimpleNamespace(process=here, is_ours=True)
    monkeypatch.setattr(kineto_capture, "find_client", lambda _: client)
    monkeypatch.setattr(kineto_capture, "KinetoWindow", Order)
    rank = SimpleNamespace(identity=here, rank=0)
    monkeypatch.setattr(capture_command, "choose_ranks", lambda *_, **__: (rank,))
    asked = parse_asked(CaptureOptions(out=str(tmp_path / "out")))
    job = SimpleNamespace(root=SimpleNamespace(pid=here.pid))
    with pytest.raises(UsageError, match="is no folder"):
        capture_command.capture_job(job, replace(asked, folder=str(tmp_path / "a" / "b")), CaptureAsker(print), None)
    result, _ = capture_command.capture_job(job, asked, CaptureAsker(print, lambda: True), None)
    assert (result.state, os.listdir(tmp_path)) == (CaptureState.CANCELLED, [])


def test_a_rank_that_was_past_the_step_misses_it_and_the_others_record(hook, monkeypatch):
    late = Hook(monkeypatch)
    both = (hook, late)

    def answer():
        for one in both:
            asked = one.bus.read_asked()
            if asked is None or asked.number == one.bus.read_answer()[0]:
                continue
            number, start = asked.number, asked.start
            assert asked.kind != w.KIND_CANCEL
            one.told.events, one.told.bytes = 100, 1000
            missed = 0 < start < one.steps
            one.tell(number, w.STATE_MISSED if missed else w.STATE_VERIFIED, "it was there" if missed else "")
            one.answer(number, wire.ANSWER_DONE)

    late.each = answer
    hook.step(99)
    late.step(101)
    window = CaptureWindow([one.bus for one in both], replace(ASKED, at=100), "x", CaptureAsker(print))
    ended = [(one.state, one.reason) for one in window.run()]
    assert ended == [(CaptureState.VERIFIED, ""), (CaptureState.MISSED, "it was there")]
    late.close()


class Bare:
    """Stand for the pages of a hook, in memfds of this process: what ``open_bus`` finds."""

    def __init__(self) -> None:
        self.pages = Pages("0", "2", (0, 1, 0))
        self.me = Identity(os.getpid(), read_stat(os.getpid()).start_ticks)

    def ask(self, bus: Bus, number: int) -> w.Request:
        bus.post(w.Request(number, w.KIND_PROBE, expires_ns=1 << 62, folder="/x", name="x"))
        request = w.parse_request(self.pages.mailbox)
        assert request is not None
        return request


@pytest.fixture
def bare():
    made = Bare()
    yield made
    made.pages.close()


def test_a_request_is_its_askers_until_that_one_has_ended(bare):
    asker, other = open_bus(bare.me), open_bus(bare.me)
    request = bare.ask(asker, 7)
    assert request.owned == 1
    assert not bare.pages.is_left(request)
    assert judge_turn(other, 0) is LoopTurn.TAKEN
    asker.close()
    assert bare.pages.is_left(request)
    assert judge_turn(other, 0) is LoopTurn.FREE, "it is in nobody's way"
    request.owned = 0
    assert not bare.pages.is_left(request), "it is of an older tpmon"
    request.owned = 1
    ours, bare.pages._descriptors = bare.pages._descriptors, []
    assert not bare.pages.is_left(request), "the program closed our descriptor: nobody can tell"
    bare.pages._descriptors = ours
    other.close()


def test_a_request_dies_with_the_process_that_asked(bare):
    code = f"""
from tests.capture.test_capture_turns import *
bus = open_bus(Identity({bare.me.pid}, {bare.me.start_ticks}))
bus.post(w.Request(9, w.KIND_PROBE, folder="/x", name="x"))
say("asked"); hear()
"""
    with child(f"sys.path.insert(0, {str(Path(__file__).parents[2])!r}){code}") as asker:
        request = w.parse_request(bare.pages.mailbox)
        assert request is not None
        assert not bare.pages.is_left(request)
        asker.process.kill()
        asker.process.wait(10)
        assert bare.pages.is_left(request)


def test_a_process_that_became_another_program_is_gone_though_it_kept_its_descriptors():
    code = """
from tpmon.hook.bus.pages import Pages
pages = Pages("0", "2", (0, 1, 0))
for name in os.listdir("/proc/self/fd"):
    try:
        os.set_inheritable(int(name), True)
    except OSError:
        pass
say("up"); hear()
again = "import sys; print('again', flush=True); sys.stdin.readline()"
os.execv(sys.executable, [sys.executable, "-c", again])
"""
    with child(f"sys.path.insert(0, {str(Path(__file__).parents[2])!r}){code}") as one:
        bus = open_bus(Identity(one.pid, read_stat(one.pid).start_ticks))
        before = list_pages(one.pid, wire.TELEMETRY_NAME)
        assert bus.find_end() is None
        one.say("go")
        assert one.hear() == "again"
        assert list_pages(one.pid, wire.TELEMETRY_NAME) == before != [], "the page is still open there"
        assert bus.find_end() == (CaptureState.GONE, "the process became another program")
        bus.close()


def price(hook: Hook, monkeypatch: pytest.MonkeyPatch, pause_ms: float) -> list[int]:
    """Have the hook verify each request, a probe after so long a pause; return the kinds it is asked for."""
    kinds: list[int] = []
    monkeypatch.setattr(CaptureOutcome, "size", property(lambda _: (10, 1000, pause_ms)))

    def each() -> None:
        asked = hook.bus.read_asked()
        if asked is not None and hook.told.request != asked.number:
            kinds.append(asked.kind)
            hook.tell(asked.number, w.STATE_VERIFIED)
            hook.answer(asked.number, wire.ANSWER_TAKEN)

    hook.each = each
    hook.step(100)
    return kinds


@pytest.mark.parametrize(
    ("pause_ms", "yes", "typed", "kinds"),
    [
        (399.0, False, None, [w.KIND_PROBE, w.KIND_CAPTURE]),
        (401.0, False, None, [w.KIND_PROBE]),
        (401.0, True, None, [w.KIND_PROBE, w.KIND_CAPTURE]),
        (401.0, False, "\n", [w.KIND_PROBE]),
        (401.0, False, "yes\n", [w.KIND_PROBE, w.KIND_CAPTURE]),
    ],
)
def test_more_than_two_seconds_of_standstill_need_a_yes(
    hook, monkeypatch, *, pause_ms, yes, typed,
    kinds,
) :  # fmt: skip
    found = price(hook, monkeypatch, pause_ms)
    monkeypatch.setattr(command.sys, "stdin", SimpleNamespace(readline=lambda: typed))
    monkeypatch.setattr(command.os, "isatty", lambda _: typed is not None)
    agreed = partial(capture_command.agree, yes=yes)
    if kinds[-1] == w.KIND_PROBE:
        with pytest.raises(UsageError, match=r"pause for about 2.0 s, more than 2.0 s") as refused:
            hook.lead(agreed=agreed)
        assert "--yes" in refused.value.try_this
    else:
        assert hook.lead(agreed=agreed) == [("verified", "")]
    assert found == kinds


def test_a_folder_that_tpmon_named_is_made_anew_once_somebody_agreed(hook, monkeypatch, tmp_path):
    found = price(hook, monkeypatch, 1.0)
    folder = tmp_path / "tpmon-capture-x"
    assert hook.lead(stopped=lambda: True, agreed=Answers(), folder=str(folder), anew=True)[0][0] == "cancelled"
    assert not folder.exists()
    assert hook.lead(folder=str(folder), anew=True) == [("verified", "")]
    assert folder.is_dir()
    found.clear()
    with pytest.raises(UsageError, match="File exists"):
        hook.lead(folder=str(folder), anew=True)
    assert found == []
