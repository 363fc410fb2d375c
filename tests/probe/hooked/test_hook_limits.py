"""Limits of a process: the hook never runs into one that ends the program, and tpmon outside learns why it is off."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpmon.capture.bus import NoHookError
from tpmon.commands import capture as capture_command
from tpmon.hook.bus import wire
from tpmon.hook.bus import wire_capture as w
from tpmon.hook.bus.headroom import ends_at_limit
from tpmon.hook.capture import trace_file as capture_file
from tpmon.hook.capture.trace_file import CaptureFile
from tpmon.model.known import Missing
from tpmon.model.process import Identity
from tpmon.probe.base.procread import read_stat
from tpmon.probe.hooked.page import StepReader, explain_absence

ROOT = str(Path(__file__).parents[3])
MIB = 1 << 20

LOOP = """
import os, resource, signal, sys
from tpmon.hook.steps import Steps
steps = Steps(lambda: None)
{before}
steps.data_begins()
steps.data_ended(object())
{after}
print(steps.problem, flush=True)
sys.stdin.read()
"""

SHORT_FILES = """
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
"""
NO_FILES = """
from tpmon.hook.bus import pages
vars(os).pop("memfd_create", None)
pages._MEMFD_CREATE = {}  # the call fails as a filter of system calls has it fail
"""
CLOSES = "os.closerange(3, 65536)"


@contextmanager
def train(before: str = "", after: str = "") -> Iterator[tuple[Identity, str]]:
    """Run a loop of one batch, and yield its process with what its hook says went wrong."""
    with subprocess.Popen(
        [sys.executable, "-c", LOOP.format(before=before, after=after)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT},
    ) as process:
        assert process.stdin is not None
        said = process.stdout.readline()
        assert said, "the program ended"
        yield Identity(process.pid, read_stat(process.pid).start_ticks), said.strip()
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("before", "why"),
    [(SHORT_FILES, "ulimit -f allows 4096"), (NO_FILES, "Function not implemented")],
    ids=["a limit on files, and its signal", "no memfd"],
)
def test_a_hook_that_can_have_no_page_leaves_the_program_alone_and_says_why_outside(before, why):
    with train(before) as (process, problem):
        assert why in problem
        assert why in explain_absence(process.pid)
        with_reader = StepReader().read_steps([process])[process]
        assert isinstance(with_reader, Missing)
        assert with_reader.reason.startswith("the hook turned itself off: OSError")
        assert why in with_reader.reason
        told = capture_command._offer(NoHookError("process 1 has no hook", ""), SimpleNamespace(), process)
    assert why in told.what
    assert "once it trains" not in told.try_this


def test_a_program_that_closed_the_descriptors_of_its_hook_is_told_apart():
    with train(after=CLOSES) as (process, problem):
        assert problem == ""
        assert explain_absence(process.pid).startswith("the program closed the descriptors of its hook")
    with train() as (process, _):
        # Of a page that can be found nothing is to be explained; who asks has found it before.
        assert StepReader().read_steps([process])[process] is not None


def test_a_process_without_a_hook_explains_nothing_and_a_word_is_found_where_its_text_may_not_be_read(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as process:
        assert explain_absence(process.pid) == ""
        process.kill()
    assert explain_absence(1, str(tmp_path)) == ""
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "maps").write_text(
        f"{wire.WORD_ADDRESS:x}-{wire.WORD_ADDRESS + 4096:x} rw-p 00000000 00:00 0 \n"
    )
    assert explain_absence(12, str(tmp_path)) == "its hook turned itself off: why may not be read (ptrace_scope)"


AT_MOST = "the training may write files of 50.0 MiB at most (ulimit -f)"


@pytest.mark.parametrize("kind", [w.KIND_PROBE, w.KIND_CAPTURE, w.KIND_SNAPSHOT])
@pytest.mark.parametrize(
    "limit",
    [
        (1 << 62, False, 0, ""),
        (1 << 62, True, 100 * MIB, ""),
        (50 * MIB, False, 40 * MIB, ""),
        (50 * MIB, False, 60 * MIB, AT_MOST),
        (50 * MIB, True, 0, f"{AT_MOST}, and the kernel would end the program at it (SIGXFSZ)"),
    ],
)
def test_a_file_that_a_limit_forbids_is_refused_before_anything_is_recorded(tmp_path, monkeypatch, limit, kind):
    most, deadly, size, why = limit
    monkeypatch.setattr(capture_file, "read_file_limit", lambda: most)
    monkeypatch.setattr(capture_file, "ends_at_limit", lambda: deadly)
    monkeypatch.setattr(capture_file, "read_memory_left", lambda: 1 << 40)
    bounds = {"most_events": 1 << 40, "most_bytes": 1 << 40, "entries": size // w.ENTRY_BYTES}
    request = w.Request(kind=kind, steps=1, **bounds, folder=str(tmp_path), name="x")
    refusal = CaptureFile(request, {0: (1, size, 1)}).refuse()
    sized = kind != w.KIND_PROBE or deadly
    assert refusal == (why if sized else "")


def test_a_signal_is_deadly_where_nobody_ignores_or_handles_it():
    before = signal.getsignal(signal.SIGXFSZ)
    try:
        for handler, deadly in ((signal.SIG_IGN, False), (lambda *_: None, False), (signal.SIG_DFL, True)):
            signal.signal(signal.SIGXFSZ, handler)
            assert ends_at_limit() == deadly
    finally:
        signal.signal(signal.SIGXFSZ, before)
    assert ends_at_limit("/nowhere")
