"""Whose error it is that comes up in the hook: its own, a signal handler's, or of code of the program it met."""

import functools
import signal
from collections.abc import Callable
from types import FrameType

import pytest

from tpmon.hook.bus import wire_settings
from tpmon.hook.context import is_from_handler, is_ours
from tpmon.hook.settings import Settings

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
    except (AlarmError, RuntimeError, ValueError) as error:
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

    assert is_ours(caught(ValueError), TORCH)
    assert not is_ours(caught(Exception), TORCH)


def test_torchs_own_handler_is_none_of_ours_wherever_torch_lies():
    """It raises for the program that a worker of its DataLoader was killed."""
    space: dict[str, Callable[[], None]] = {}
    for name in ("utils/data/_utils/signal_handling.py", "autograd/graph.py"):
        exec(compile("def handler():\n    raise RuntimeError('killed')", TORCH + name, "exec"), space)
        error = catch(space["handler"])
        error.__traceback__ = error.__traceback__.tb_next
        assert is_ours(error, TORCH) == (name == "autograd/graph.py")


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
