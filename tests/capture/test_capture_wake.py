"""The one signal that tpmon sends: only where everything says that it is handled, and harmless where not."""

import _thread
import ast
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.hook.test_hook_evaluations import run_in_thread
from tests.hook_loop import Loop
from tests.hooks import ROOT, run_program
from tpmon.capture import bus as capture_bus
from tpmon.capture.bus import Bus, GoneError
from tpmon.errors import ExitCode
from tpmon.hook.bus import wire
from tpmon.hook.capture.mailbox import Mailbox
from tpmon.model.process import Identity
from tpmon.probe.base.procread import read_stat

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd")

HANDLES = "signal.signal(signal.SIGURG, lambda *_: print('woken', flush=True))"

LOSES = f"""
{HANDLES}
def lose(*_):
    WAY
    print("lost", flush=True)
signal.signal(signal.SIGWINCH, lose)
"""
"""A program that loses its handler when it is told to, by a signal that harms nobody."""

WAYS = {
    "default": "signal.signal(signal.SIGURG, signal.SIG_DFL)",
    "ignored": "signal.signal(signal.SIGURG, signal.SIG_IGN)",
    "exec": "import os; os.execv(sys.executable, [sys.executable, '-c', AFTER])",
}
AFTER = "import sys; print('lost', flush=True); sys.stdin.readline(); print('end', flush=True)"


@contextmanager
def process(setup: str) -> Iterator[subprocess.Popen[str]]:
    program = f"import signal, sys\n{setup}\nprint('ready', flush=True); sys.stdin.readline(); print('end', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"
        try:
            yield child
        finally:
            child.kill()


def bus_of(pid: int, *, header_pid: int = 0, ticks: int = 0, ours: bool = True) -> Bus:
    start = read_stat(pid).start_ticks
    page, box = mmap.mmap(-1, wire.TELEMETRY_BYTES), mmap.mmap(-1, wire.MAILBOX_BYTES)
    data = wire.pack_header(wire.Header(header_pid or pid, 0, ticks or start))
    page[: len(data)] = data
    with memoryview(page) as view:
        header = wire.parse_header(view)
        wire.write_signal(view, ours=ours)
    return Bus(Identity(pid, start), header, page, box)


def finish(child: subprocess.Popen[str]) -> str:
    return child.communicate("\n", timeout=60)[0]


def test_a_process_that_handles_it_is_woken():
    with process(HANDLES) as child:
        bus = bus_of(child.pid)
        assert bus.wake()
        bus.close()
        assert "woken" in finish(child)


@pytest.mark.parametrize("wrong", ["no handler", "another's page", "another start", "another's handler"])
def test_nothing_is_sent_after_a_check_that_failed(wrong):
    with process("pass" if wrong == "no handler" else HANDLES) as child:
        bus = bus_of(
            child.pid,
            header_pid=1 if wrong == "another's page" else 0,
            ticks=1 if wrong == "another start" else 0,
            ours=wrong != "another's handler",
        )
        assert not bus.wake()
        bus.close()
        assert finish(child) == "end\n"


@pytest.mark.parametrize("way", WAYS)
def test_a_process_whose_handler_vanishes_between_look_and_signal_lives_on(way, monkeypatch):
    send = signal.pidfd_send_signal
    sent = []
    with process(LOSES.replace("WAY", WAYS[way].replace("AFTER", repr(AFTER)))) as child:

        def lose_and_send(descriptor, number):
            os.kill(child.pid, signal.SIGWINCH)
            assert child.stdout.readline() == "lost\n"
            sent.append(number)
            send(descriptor, number)

        monkeypatch.setattr(capture_bus.signal, "pidfd_send_signal", lose_and_send)
        bus = bus_of(child.pid)
        assert bus.wake()
        bus.close()
        assert sent == [signal.SIGURG]
        assert finish(child) == "end\n"
        assert child.returncode == 0


@pytest.fixture
def before():
    """Return who has the signal, and give it back to it."""
    handler = signal.getsignal(signal.SIGURG)
    yield handler
    signal.signal(signal.SIGURG, handler)


def test_the_hook_says_when_the_program_takes_the_signal_and_when_it_gives_it_back(before):
    page = memoryview(bytearray(wire.TELEMETRY_BYTES))
    steps = SimpleNamespace(pages=SimpleNamespace(page=page), owner=threading.get_ident())
    mailbox = Mailbox()
    said = []
    mailbox.opened(steps)
    ours = signal.getsignal(signal.SIGURG)
    said.append(wire.parse_signal(page))
    for handler in (lambda *_: None, ours, signal.SIG_DFL, ours):
        signal.signal(signal.SIGURG, handler)
        mailbox.look_at_signal()
        said.append(wire.parse_signal(page))
    steps.owner += 1  # the loop goes on in another thread, which Python runs no handler in
    mailbox.look_at_signal()
    said.append(wire.parse_signal(page))
    mailbox.take_back()
    said.append(wire.parse_signal(page))
    assert signal.getsignal(signal.SIGURG) == before
    assert said == [True, False, True, False, True, False, False]


def test_the_signal_is_taken_where_another_thread_fetched_the_first_batch(monkeypatch, before):
    """A prefetcher makes the pages; without the signal a recording has no bound in time or memory."""
    mailbox, loop = Mailbox(), Loop(monkeypatch)
    loop.steps.mailbox = mailbox
    run_in_thread(loop.batch)
    assert loop.steps.pages is not None
    assert signal.getsignal(signal.SIGURG) == before
    loop.backward()
    assert loop.steps.owner == threading.get_ident()
    assert signal.getsignal(signal.SIGURG) == mailbox._woken
    assert wire.parse_signal(loop.steps.page)
    mailbox.take_back()
    assert signal.getsignal(signal.SIGURG) == before
    loop.steps.drop_pages()


def test_a_handler_of_a_library_is_left_in_place():
    """As of a Go runtime in the process: Python takes the signal for one that nobody handles."""
    program = """
import ctypes, os, signal
from types import SimpleNamespace
from tpmon.hook.bus import wire
from tpmon.hook.capture.mailbox import Mailbox
libc, calls = ctypes.CDLL(None), []
theirs = ctypes.CFUNCTYPE(None, ctypes.c_int)(calls.append)
libc.signal(signal.SIGURG, theirs)
page = memoryview(bytearray(wire.TELEMETRY_BYTES))
mailbox = Mailbox()
mailbox.opened(SimpleNamespace(pages=SimpleNamespace(page=page), owner=0))
os.kill(os.getpid(), signal.SIGURG)
mailbox.take_back()
os.kill(os.getpid(), signal.SIGURG)
print(calls == [signal.SIGURG] * 2, wire.parse_signal(page))
"""
    assert run_program(program) == "True False\n"


def test_no_other_signal_is_sent_from_where_trainings_are_asked():
    """Every call that sends a signal, in what captures and in the hook itself."""
    sends = {"kill", "killpg", "pidfd_send_signal", "pthread_kill", "raise_signal", "send_signal", "tgkill"}
    files = [*(ROOT / "tpmon" / "capture").rglob("*.py"), *(ROOT / "tpmon" / "hook").rglob("*.py")]
    calls = [
        (path.name, node)
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]
    names = [getattr(call.func, "attr", getattr(call.func, "id", "")) for _, call in calls]
    found = [
        (path, ast.unparse(call.args[1])) for (path, call), name in zip(calls, names, strict=True) if name in sends
    ]
    assert sorted(found) == [("bus.py", "signal.SIGURG"), ("mailbox.py", "signal.SIGURG")]


def test_a_process_that_ended_is_sent_nothing():
    with process(HANDLES) as child:
        bus = bus_of(child.pid)
        finish(child)
        assert not bus.is_alive()
        assert not bus.wake()
        bus.close()


def test_a_process_that_ended_meanwhile_is_no_bug_of_tpmon():
    with process("pass") as child:
        start = read_stat(child.pid).start_ticks
        finish(child)
    page, box = mmap.mmap(-1, wire.TELEMETRY_BYTES), mmap.mmap(-1, wire.MAILBOX_BYTES)
    with pytest.raises(GoneError, match="ended") as caught:
        Bus(Identity(child.pid, start), wire.Header(child.pid, 0, start), page, box)
    assert caught.value.exit_code == ExitCode.NO_TARGET


def test_a_signal_that_the_program_took_meanwhile_is_not_sent_within_either(monkeypatch):
    sent: list[int] = []
    monkeypatch.setattr(signal, "pthread_kill", lambda _, number: sent.append(number))
    mailbox = Mailbox()
    mailbox._handling = True
    mailbox.capture = SimpleNamespace(under_way=1, left_s=lambda: 0.0)
    over = _thread.allocate_lock()
    over.acquire()
    monkeypatch.setattr(signal, "getsignal", lambda _: print)
    mailbox._ring_until(over)
    assert sent == []
    monkeypatch.setattr(signal, "getsignal", lambda _: mailbox._woken if len(sent) < 3 else print)
    begun = time.monotonic()
    mailbox._ring_until(over)
    assert sent == [signal.SIGURG] * 3
    assert time.monotonic() - begun >= 0.1 + 0.2 + 0.4, "less and less often"
