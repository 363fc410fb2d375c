"""Evaluation steps, loops without an optimizer, threads, errors and whose they are, with a clock that the test holds."""

import _thread
import functools
import operator
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, SimpleNamespace

import pytest

from tests.hook_loop import MS, Batches
from tpmon.hook import steps
from tpmon.hook.bus import wire, wire_settings
from tpmon.hook.context import is_from_handler, is_ours
from tpmon.hook.settings import Settings


def test_backwards_alone_are_published_every_second(loop):
    for _ in range(250):
        loop.backward(5, 5)
    records = loop.records()
    assert [record[wire.REC_BACKWARDS] for record in records] == [101, 202]


def test_what_the_user_says_ends_a_step_and_nothing_else(loop):
    loop.steps.step_called(0, True)
    for _ in range(5):
        loop.train(3)
        loop.steps.step_called(32, True)
    loop.batch()
    loop.spend(1)
    loop.steps.step_called(7, False)
    one = loop.steps
    assert (one.steps, one.eval_steps, one.rule) == (6, 1, wire.RULE_CALL)
    assert (one.samples, one.eval_samples) == (160, 7)


@pytest.mark.parametrize("samples", [32.0, "32", None, -1, 1 << 64, [3]])
def test_samples_that_are_no_number_of_them_are_left_to_the_dataloader(loop, samples):
    loop.batch()
    loop.steps.step_called(samples, True)
    loop.batch()
    loop.steps.step_called(5, True)
    assert (loop.steps.samples, loop.steps.problem) == (9, "")


def test_a_batch_size_that_means_all_of_them_says_no_number(loop):
    loop.iterator = Batches(sys.maxsize)
    loop.train(10)
    loop.stop()
    assert (loop.steps.steps, loop.steps.samples, loop.steps.batch_size, loop.steps.problem) == (10, 0, 0, "")


def test_another_thread_counts_nothing_until_the_training_moves_there(loop):
    loop.train(3)

    def elsewhere():
        for _ in range(5):
            loop.train(1)

    run_in_thread(elsewhere)
    assert (loop.steps.steps, loop.steps.elsewhere) == (2, 15)
    run_in_thread(lambda: loop.train(30))
    assert loop.steps.steps > 15


def test_batches_of_a_prefetching_thread_leave_the_steps_to_the_updates(loop):
    run_in_thread(lambda: [loop.batch() for _ in range(4)])
    for _ in range(10):
        loop.backward()
        loop.update()
    run_in_thread(loop.batch)
    assert (loop.steps.steps, loop.steps.rule) == (10, wire.RULE_UPDATE)


def test_checkpoints_that_a_card_computes_again_are_part_of_the_backward(loop):
    """With use_reentrant=True they run a backward of their own, in the thread of the engine."""

    def again():
        assert not loop.steps.backward_begins()

    for _ in range(10):
        loop.batch()
        assert loop.steps.backward_begins()
        run_in_engine(again)
        loop.steps.backward_ended(True)
        loop.update()
    loop.stop()
    one = loop.steps
    assert (one.steps, one.backwards, one.elsewhere, one.owner) == (10, 10, 0, threading.get_ident())


def test_a_training_that_goes_on_in_another_thread_counts_also_where_a_backward_never_ended(loop):
    loop.train(3)
    assert loop.steps.backward_begins()  # and its thread was lost with its end
    loop.spend(61_000)
    run_in_thread(lambda: loop.train(30))
    assert loop.steps.steps > 15


def run_in_engine(work: Callable[[], None]) -> None:
    """Run work in a thread that ``threading`` did not start, as torch's engine has for each device."""
    done = _thread.allocate_lock()
    done.acquire()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 raised again in the thread of the test
            failed.append(error)
        finally:
            done.release()

    _thread.start_new_thread(run, ())
    assert done.acquire(timeout=10)
    assert failed == []


def run_in_thread(target: object) -> None:
    thread = threading.Thread(target=target)  # type: ignore[arg-type]
    thread.start()
    thread.join()


@pytest.mark.parametrize("at", range(12))
def test_an_error_of_the_hook_turns_it_off_and_is_said_on_the_bus(loop, monkeypatch, at):
    loop.train(2)
    # A clock that fails at its nth call, in C: a frame of this file would be the user's.
    monkeypatch.setattr(steps, "monotonic_ns", iter(range(loop.now, loop.now + at * MS, MS)).__next__)
    loop.train(4)
    loop.stop()
    assert loop.turned_off == 1
    assert "StopIteration" in loop.steps.problem
    state, patches, error = wire.parse_status(loop.steps.pages.page)
    assert (state, patches, error) == (wire.STATE_DISABLED, 0, loop.steps.problem)
    assert "line" in error
    counted = loop.steps.steps
    loop.train(3)
    assert loop.steps.steps == counted


@pytest.mark.usefixtures("usr1")
def test_an_error_of_the_users_signal_handler_is_the_users(loop, monkeypatch):
    """A handler may raise while our code runs; whoever set the alarm waits for its error."""
    loop.train(2)

    def interrupted(*_: object) -> None:
        raise TimeoutError("alarm")

    signal.signal(signal.SIGUSR1, interrupted)
    monkeypatch.setattr(steps, "monotonic_ns", lambda: signal.raise_signal(signal.SIGUSR1))
    with pytest.raises(TimeoutError):
        loop.steps.data_begins()
    assert loop.steps.problem == ""
    assert not loop.turned_off


def test_a_page_that_cannot_be_made_turns_the_hook_off(loop, monkeypatch):
    from tpmon.hook.bus import pages

    monkeypatch.setattr(pages.os, "memfd_create", operator.truediv)
    loop.train(2)
    assert loop.steps.steps == 0
    assert "TypeError" in loop.steps.problem
    assert loop.turned_off == 1


def test_the_mailbox_is_answered_at_the_end_of_a_step_and_garbage_does_nothing(loop):
    loop.train(2)
    pages = loop.steps.pages
    assert pages is not None
    for number, kind, answer in [(1, 1, wire.ANSWER_DONE), (2, 77, wire.ANSWER_UNKNOWN), (2**64 - 1, 1, 1)]:
        pages.requests[1] = kind
        pages.requests[0] = number
        loop.train(2)
        assert (pages.answers[0], pages.answers[1]) == (number, answer)
    loop.stop()
    assert loop.steps.problem == ""


def test_short_steps_share_a_look_at_the_mailbox_until_a_request_is_under_way(loop):
    loop.train(2)
    pages = loop.steps.pages
    assert pages is not None

    def short_steps(number, data_ms=0.1):
        for _ in range(number):
            loop.batch(data_ms)
            loop.backward(0.1, 0.1)
            loop.update(0.1)

    short_steps(1)
    pages.requests[1] = wire.KIND_PING
    pages.requests[0] = 5
    short_steps(3)
    assert pages.answers[0] == 0
    short_steps(3)
    assert pages.answers[0] == 5
    asked = []
    loop.steps.mailbox = SimpleNamespace(requested=lambda: asked.append(loop.steps.steps))
    loop.steps.attend()
    begun, records = loop.steps.steps, loop.steps.records
    short_steps(4)
    assert loop.steps.records <= records + 1, "1.6 ms: they share a record all the same"
    assert asked == [begun + 1, begun + 2, begun + 3, begun + 4]
    short_steps(1, data_ms=2.0)  # which is written when the next one has begun
    records = loop.steps.records
    short_steps(3, data_ms=2.0)
    assert loop.steps.records == records + 3, "those that are long have one each"
    asked.clear()
    loop.steps.reply(5, wire.ANSWER_DONE)
    short_steps(10)
    assert asked == []


TORCH = "/venv/lib/python3.12/site-packages/torch/"


class AlarmError(Exception):
    pass


def ring(*_: object) -> None:
    raise AlarmError


def ring_once(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise AlarmError


class Alarm:
    def ring(self, number: int, frame: object) -> None:
        raise AlarmError

    def __call__(self, *_: object) -> None:
        raise AlarmError

    def __getattr__(self, name: str) -> object:
        raise ValueError(name)


def ring_blindly(*_: object) -> None:
    del _
    raise AlarmError


@pytest.fixture
def usr1():
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def catch(act: Callable[[], object]) -> Exception:
    try:
        act()
    except (AlarmError, OSError, RuntimeError, ValueError) as error:
        return error
    raise AssertionError("nothing was raised")


HANDLERS = {
    "function": ring,
    "gone by then": ring_once,
    "forgets its arguments": ring_blindly,
    "object": Alarm(),
    "method": Alarm.ring.__get__(Alarm()),
    "partial": functools.partial(ring, 5),
}


@pytest.mark.parametrize("name", HANDLERS)
@pytest.mark.usefixtures("usr1")
def test_an_error_of_a_signal_handler_is_known_as_one(name):
    signal.signal(signal.SIGUSR1, HANDLERS[name])
    assert is_from_handler(catch(lambda: signal.raise_signal(signal.SIGUSR1)))


@pytest.mark.usefixtures("usr1")
def test_an_error_of_other_code_of_the_program_is_not_a_handlers():
    signal.signal(signal.SIGUSR1, ring)
    signal.signal(signal.SIGALRM, Alarm())
    assert not is_from_handler(catch(lambda: Alarm().odd))
    assert not is_from_handler(catch(lambda: int("x")))


def test_what_another_thread_has_this_one_raise_is_none_of_ours():
    """By PyThreadState_SetAsyncExc wandb ends a run; whatever frame it meets is innocent."""

    def caught(raised):
        space: dict[str, Callable[[type[Exception]], None]] = {}
        exec(compile("def count(raised):\n    raise raised()", TORCH + "autograd/graph.py", "exec"), space)
        with pytest.raises(raised) as told:
            space["count"](raised)
        told.value.__traceback__ = told.value.__traceback__.tb_next
        return told.value

    assert is_ours(caught(ValueError))
    assert not is_ours(caught(Exception))


def test_what_a_guard_of_the_program_refuses_us_is_ours_to_bear(monkeypatch):
    """Programs replace os.open by functions of theirs: raised on, their error would end the loop."""

    def refuse(path: str, *_: object) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, "open", refuse)
    assert is_ours(catch(lambda: os.open("/proc/self/stat", os.O_RDONLY)))


def test_torchs_own_handler_is_none_of_ours_wherever_torch_lies():
    """It raises for the program that a worker of its DataLoader was killed."""
    space: dict[str, Callable[[], None]] = {}
    for name in ("utils/data/_utils/signal_handling.py", "autograd/graph.py"):
        exec(compile("def handler():\n    raise RuntimeError('killed')", TORCH + name, "exec"), space)
        error = catch(space["handler"])
        error.__traceback__ = error.__traceback__.tb_next
        assert is_ours(error) == (name == "autograd/graph.py")


def test_a_number_that_no_word_holds_is_not_told(monkeypatch):
    one = Settings()
    monkeypatch.setattr(Settings, "_attempt", lambda *_: None)
    one.words[wire_settings.SET_BATCH_SIZE] = 1 << 64
    one.words[wire_settings.SET_PREFETCH_FACTOR] = "2"  # type: ignore[call-overload]
    one.words[wire_settings.SET_WORKERS] = 4
    page = memoryview(bytearray(4096))
    wire_settings.write_settings(page, one.read(5))
    told = wire_settings.parse_settings(page)
    assert told[wire_settings.SET_BATCH_SIZE] == told[wire_settings.SET_PREFETCH_FACTOR] == -1
    assert told[wire_settings.SET_WORKERS] == 4
