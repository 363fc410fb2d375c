"""The verdict without a screen: look for a while or until something is so; call a command at a change."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpmon.commands.command import (
    VERDICT_CODES,
    Subcommand,
    Wanted,
    WatchOptions,
    find_job,
    open_session,
    pid_argument,
    setting,
    tell,
    write_result,
)
from tpmon.errors import UsageError
from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.report.text import Output, ReaderGone, complain
from tpmon.settings import BY_KEY, parse_names, split_command

if TYPE_CHECKING:
    from tpmon.model.frame import Frame
    from tpmon.model.results.doctor import Update
    from tpmon.model.verdict import Finding

LOOK_S = 15.0
"""A verdict is due within 15 s of attaching."""
COMMAND_LIMIT_S = 30.0
"""A command of --on-change that takes longer is ended: the next verdict waits for it."""
END_WITHIN_S = 2.0
_STDERR = 2


@dataclass(frozen=True, slots=True)
class VerdictOptions(WatchOptions):
    """Hold when a verdict is enough, and in which form it is written."""

    pid: Wanted = pid_argument()
    job: bool = setting("job", typed=False)
    json: bool = setting("json")
    check: bool = setting("check", typed=False)
    for_s: float | None = setting("diagnose.for", typed=False)
    until: str | None = setting("diagnose.until", typed=False)
    on_change: str | None = setting("diagnose.on-change", typed=False)
    on_change_place: str = setting(
        "diagnose.on-change", typed=False, choose=lambda choices, key: choices.name_place(key)
    )


@dataclass(frozen=True, slots=True)
class DiagnoseOptions(VerdictOptions):
    """Hold what ``tpmon diagnose`` takes."""

    job: bool = setting("job")
    for_s: float | None = setting("diagnose.for")
    until: str | None = setting("diagnose.until")
    on_change: str | None = setting("diagnose.on-change")


def parse_command(text: str, where: str = "--on-change") -> tuple[str, ...]:
    """Split the command of --on-change as a shell would; UsageError, naming ``where``, if it cannot start."""
    words = split_command(text, where)
    if shutil.which(words[0]) is None:
        raise UsageError(
            f"{where}: no program {words[0]!r}",
            "give a program and its arguments; it is started without a shell",
        )
    return words


class OnChange:
    """Start a command for every new verdict, one at a time, with the verdict as JSON on its stdin.

    Runs in a daemon thread, so that a slow command never delays a reading. Verdicts that come while
    it runs wait; of several that wait only the newest is told.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Hold the program and its arguments; without one nobody is told."""
        self._command = tuple(command)
        self._waiting: queue.Queue[str] = queue.Queue()
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._told: tuple[object, object] | None = None
        if command:
            threading.Thread(target=self._work, name="tpmon-on-change", daemon=True).start()

    def tell(self, finding: Finding) -> None:
        """Queue a verdict; one of the same kind and cause as the last is no change."""
        from tpmon.model.codec import encode

        key = (finding.kind, finding.cause)
        if self._command and key != self._told:
            self._told = key
            with self._lock:
                self._idle.clear()
                self._waiting.put(encode(finding))

    def finish(self) -> None:
        """Give what was queued its time, and no more than ``COMMAND_LIMIT_S``."""
        self._idle.wait(COMMAND_LIMIT_S + END_WITHIN_S)

    def close(self) -> None:
        """Start no more commands, and end one that still runs ``END_WITHIN_S`` from now."""
        with self._lock:
            self._closed = True
        if not self._idle.wait(END_WITHIN_S):
            with self._lock:
                child = self._child
            if child is not None and (reason := _end(child)):
                complain(f"tpmon: --on-change: {self._command[0]} still runs and cannot be ended: {reason}")

    def _work(self) -> None:
        while True:
            line = self._waiting.get()
            with contextlib.suppress(queue.Empty):
                while True:
                    line = self._waiting.get_nowait()
            try:
                self._call(line)
            except Exception as error:  # noqa: BLE001  # the next verdict is told all the same
                complain(f"tpmon: --on-change: {self._command[0]}: {type(error).__name__}: {error}")
            finally:
                with self._lock:
                    if self._waiting.empty():
                        self._idle.set()

    def _call(self, line: str) -> None:
        name = self._command[0]
        with self._lock:
            if self._closed:
                return
            # In a session of its own it can be ended with all that it started. Standard output is for the
            # verdict alone: what the command prints would break the JSON.
            try:
                self._child = child = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=_STDERR, start_new_session=True
                )
            except OSError as error:
                complain(f"tpmon: --on-change: {name}: {error.strerror or error}")
                return
        try:
            child.communicate(f"{line}\n".encode(), COMMAND_LIMIT_S)
        except subprocess.TimeoutExpired:
            reason = _end(child)
            end = f"cannot be ended: {reason}" if reason else "was ended"
            complain(f"tpmon: --on-change: {name} took longer than {COMMAND_LIMIT_S:.0f} s and {end}")
            return
        if child.returncode and not self._closed:
            complain(f"tpmon: --on-change: {name} ended with status {child.returncode}")


def _end(child: subprocess.Popen[bytes]) -> str:
    """Kill a command and what it started, and say why it cannot be ended; it may have ended in between."""
    if child.poll() is not None:
        return ""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # its status is there in a moment
    except OSError as error:  # sudo, doas: it runs as root
        return error.strerror or str(error)
    try:
        child.wait(END_WITHIN_S)
    except subprocess.TimeoutExpired:
        return "it does not go"
    return ""


def is_enough(frame: Frame, until: frozenset[str], end_s: float) -> bool:
    """Tell whether the verdict is one of ``until``, the job has ended, or monotonic ``end_s`` is over."""
    from tpmon.model.frame import TargetState

    if is_known(frame.verdict) and frame.verdict.kind.value in until:
        return True
    return frame.target.state is TargetState.ENDED or time.monotonic() >= end_s


def run(options: VerdictOptions) -> int:
    """Print the verdict once it was looked for long enough, or once it is what was waited for."""
    from tpmon.model.verdict import Kind
    from tpmon.probe.job.resolve import AWAIT_S
    from tpmon.report.once import pick_exit_code, write_check, write_verdict

    setting_until = BY_KEY["diagnose.until"]
    until = parse_names(setting_until, options.until, setting_until.flag) if options.until else frozenset()
    command = parse_command(options.on_change, options.on_change_place) if options.on_change else ()
    limit_s = options.for_s or (math.inf if until else LOOK_S)
    output = Output(1, options.ascii)
    begun_s = time.monotonic()  # where one waits for a job, the limit holds for that, too
    job = find_job(options.pid, (options.for_s or AWAIT_S) if until else 0.0)
    end_s = begun_s + limit_s if until else math.inf

    def sink(update: Update) -> None:
        nonlocal end_s
        if not until and end_s == math.inf:  # what it took to find the job and to start is no look at it
            end_s = update.frame.taken_ns / 1e9 + limit_s
        finding = update.frame.verdict
        if is_known(finding) and finding.kind is not Kind.NOT_ENOUGH_EVIDENCE:
            on_change.tell(finding)
        if is_enough(update.frame, until, end_s):
            session.stop()

    with contextlib.closing(OnChange(command)) as on_change:
        session = open_session(job, options, sink)
        last = session.run()
        if last is None:
            raise ValueError("a session ended before its first Frame")
        try:
            text = [write_check(last)] if options.check else write_verdict(last)
            write_result(output, last.verdict, lambda: text, json=options.json)
        except ReaderGone:
            pass  # the exit code is asked for all the same, and the command told
        except UsageError as error:
            complain(tell(error))
        on_change.finish()
    return pick_exit_code(last)


COMMAND = Subcommand(
    DiagnoseOptions,
    run,
    "diagnose [PID | NAME] [options]",
    "Watch a training job and print the verdict: what holds it back and what to do.",
    VERDICT_CODES,
)
