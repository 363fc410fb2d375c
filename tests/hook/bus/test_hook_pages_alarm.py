"""A signal handler of the user may raise while the hook makes its pages: nothing is closed twice."""

import os

import pytest

from tpmon.hook.bus import pages
from tpmon.hook.bus.pages import Pages


class AlarmError(Exception):
    pass


@pytest.mark.parametrize("at", [1, 2])
def test_an_alarm_right_after_a_close_is_what_is_raised(monkeypatch, at):
    """At the first or second descriptor that was moved; EBADF in its place would turn the hook off for good."""
    before = set(os.listdir("/proc/self/fd"))
    closed: list[int] = []
    real = os.close

    def close(descriptor):
        real(descriptor)
        closed.append(descriptor)
        if len(closed) == at:
            raise AlarmError

    with monkeypatch.context() as patched:
        patched.setattr(pages.os, "close", close)
        with pytest.raises(AlarmError):
            Pages("1", "2.13", (0, 1, 0))
    assert set(os.listdir("/proc/self/fd")) == before
