"""The one signal that tpmon sends: only where everything says that it is handled, and harmless where not."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tpmon.capture.bus import Bus, GoneError
from tpmon.errors import ExitCode
from tpmon.hook import wire
from tpmon.model.process import Identity
from tpmon.probe.procread import read_stat

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd")

HANDLES = "signal.signal(signal.SIGURG, lambda *_: print('woken', flush=True))"


@contextmanager
def process(setup: str) -> Iterator[subprocess.Popen[str]]:
    program = f"import signal, sys; {setup}; print('ready', flush=True); sys.stdin.readline(); print('end', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        try:
            yield child
        finally:
            child.kill()


def bus_of(pid: int, *, header_pid: int = 0, ticks: int = 0) -> Bus:
    start = read_stat(pid).start_ticks
    page, box = mmap.mmap(-1, wire.TELEMETRY_BYTES), mmap.mmap(-1, wire.MAILBOX_BYTES)
    data = wire.pack_header(wire.Header(header_pid or pid, ticks or start, 1))
    page[: len(data)] = data
    with memoryview(page) as view:
        header = wire.parse_header(view)
    return Bus(Identity(pid, start), header, page, box)


def finish(child: subprocess.Popen[str]) -> str:
    return child.communicate("\n", timeout=60)[0]


def test_a_process_that_handles_it_is_woken() -> None:
    with process(HANDLES) as child:
        bus = bus_of(child.pid)
        assert bus.wake()
        bus.close()
        assert "woken" in finish(child)


@pytest.mark.parametrize("wrong", ["no handler", "another's page", "another start"])
def test_nothing_is_sent_after_a_check_that_failed(wrong: str) -> None:
    with process("pass" if wrong == "no handler" else HANDLES) as child:
        bus = bus_of(
            child.pid,
            header_pid=1 if wrong == "another's page" else 0,
            ticks=1 if wrong == "another start" else 0,
        )
        assert not bus.wake()
        bus.close()
        assert finish(child) == "end\n"


def test_a_process_whose_handler_vanished_lives_on() -> None:
    with process("pass") as child:
        os.kill(child.pid, signal.SIGURG)
        assert finish(child) == "end\n"
        assert child.returncode == 0


def test_a_process_that_ended_is_sent_nothing() -> None:
    with process(HANDLES) as child:
        bus = bus_of(child.pid)
        finish(child)
        assert not bus.is_alive()
        assert not bus.wake()
        bus.close()


def test_a_process_that_ended_meanwhile_is_no_bug_of_tpmon() -> None:
    with process("pass") as child:
        start = read_stat(child.pid).start_ticks
        finish(child)
    page, box = mmap.mmap(-1, wire.TELEMETRY_BYTES), mmap.mmap(-1, wire.MAILBOX_BYTES)
    with pytest.raises(GoneError, match="ended") as caught:
        Bus(Identity(child.pid, start), wire.Header(child.pid, start, 1), page, box)
    assert caught.value.exit_code == ExitCode.NO_TARGET
