"""Whose profiler it is that records: the settings tell one of the program, and never tpmon's own."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tpmon.hook.bus import wire_settings as wire
from tpmon.hook.capture.guard import Guard
from tpmon.hook.settings import Settings
from tpmon.hook.step_sample import Watcher


class Profile:
    """torch.autograd.profiler.profile, by what the guard wraps of it."""

    on = 0

    def _prepare_trace(self) -> None:
        pass

    def __enter__(self) -> None:
        self._prepare_trace()
        Profile.on += 1

    def __exit__(self, *error: object) -> None:
        Profile.on -= 1


@pytest.fixture
def guard(monkeypatch):
    autograd = SimpleNamespace(_profiler_enabled=lambda: Profile.on > 0)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=SimpleNamespace(_autograd=autograd)))
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", SimpleNamespace(profile=Profile))
    monkeypatch.setattr(Profile, "on", 0)
    return Guard(lambda: None, lambda error: None)


def told(guard: Guard | None) -> int:
    settings = Settings()
    settings.guard = guard
    settings._read_switches()
    return settings.words[wire.SET_PROFILER]


@pytest.mark.parametrize("captured", [False, True])
def test_a_profiler_of_the_program_is_told_before_and_after_a_capture(guard, captured):
    if captured:
        guard.install()
    try:
        assert told(guard if captured else None) == 0
        with Profile():
            assert told(guard if captured else None) == 1
        assert told(guard if captured else None) == 0
    finally:
        guard.take_back()


def test_ours_is_not_told_and_one_that_is_prepared_is(guard):
    guard.install()
    try:
        ours = Profile()
        guard.ours = ours
        with ours:
            assert Profile.on == 1
            assert told(guard) == 0
        guard.ours = None
        theirs = Profile()
        theirs._prepare_trace()
        assert (Profile.on, told(guard)) == (0, 1)
        theirs.__exit__(None, None, None)
        assert told(guard) == 0
    finally:
        guard.take_back()


def test_the_settings_ask_the_guard_of_the_capture(monkeypatch):
    """Without one, which only the first request makes, they ask torch alone."""
    guard = object()
    steps: Any = SimpleNamespace(watch=1, ddp=[], fsdp=[], page=memoryview(bytearray(4096)), mailbox=None, steps=1)
    monkeypatch.setattr(Settings, "_attempt", lambda *_: None)
    watcher = Watcher(steps)
    for mailbox, expected in (
        (None, None),
        (SimpleNamespace(capture=None), None),
        (SimpleNamespace(capture=SimpleNamespace(guard=guard)), guard),
    ):
        steps.watch, steps.mailbox = 1, mailbox
        watcher.at_step(5)
        assert watcher._settings.guard is expected
