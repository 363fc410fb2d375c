"""Name every reason for which nothing is written into a process, what was seen, and what to do instead."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from tpmon.errors import ExitCode, TpmonError


class RefusalReason(Enum):
    """Name a reason; its value is the word for it."""

    GONE = "gone"
    OTHER_USER = "other-user"
    NOT_PERMITTED = "not-permitted"
    TURNED_OFF = "turned-off"
    ARCHITECTURE = "architecture"
    STOPPED = "stopped"
    FROZEN = "frozen"
    TRACED = "traced"
    NOT_PYTHON = "not-python"
    VERSION = "version"
    DEBUG = "debug-build"
    FREE_THREADED = "free-threaded"
    OFFSETS = "offsets"
    INTERPRETERS = "several-interpreters"
    REMOTE_DEBUG = "remote-debug-off"
    QUEUE = "queue-not-empty"
    SLACK = "slack-not-zero"
    NO_PLACE = "no-place"
    DESCRIPTORS = "few-descriptors"
    BLOCKED = "blocked"
    BUSY = "busy"
    NOT_RUN = "not-run"
    SILENT = "silent"
    FAILED = "failed"


class RefusalText(NamedTuple):
    """Say what was seen, and what to do; ``{}`` is for the detail."""

    what: str
    try_this: str


_RESTART = "start the run again with tpmon run; tpmon sample PID needs nothing in it"
REFUSALS = {
    RefusalReason.GONE: RefusalText("the process has ended{}", "tpmon ps lists what is here"),
    RefusalReason.OTHER_USER: RefusalText("it is another user's{}", "as that user, or as root"),
    RefusalReason.NOT_PERMITTED: RefusalText(
        "the kernel does not permit to write its memory{}", "as root; tpmon doctor PID says what forbids it"
    ),
    RefusalReason.TURNED_OFF: RefusalText(
        "TPMON_NO_LATE_HOOK=1 in its environment forbids it{}", "ask who set it; " + _RESTART
    ),
    RefusalReason.ARCHITECTURE: RefusalText("it is no x86-64 program{}", _RESTART),
    RefusalReason.STOPPED: RefusalText("a signal stopped it{}", "kill -CONT PID, then again"),
    RefusalReason.FROZEN: RefusalText("its cgroup is frozen{}", "thaw it, then again"),
    RefusalReason.TRACED: RefusalText("a debugger or tracer is attached{}", "end that one, then again"),
    RefusalReason.NOT_PYTHON: RefusalText("no CPython 3.10 or newer was found in its memory{}", _RESTART),
    RefusalReason.VERSION: RefusalText("this CPython is not known{}", _RESTART),
    RefusalReason.DEBUG: RefusalText("it is a debug build of CPython{}", _RESTART),
    RefusalReason.FREE_THREADED: RefusalText("it is a free-threaded build of CPython{}", _RESTART),
    RefusalReason.OFFSETS: RefusalText("its memory is not laid out as this CPython's should be{}", _RESTART),
    RefusalReason.INTERPRETERS: RefusalText(
        "it has several interpreters, or is starting or ending{}", _RESTART
    ),
    RefusalReason.REMOTE_DEBUG: RefusalText(
        "this Python does not take scripts of others{}",
        "start it without PYTHON_DISABLE_REMOTE_DEBUG and -X disable-remote-debug; a build without it: "
        + _RESTART,
    ),
    RefusalReason.QUEUE: RefusalText("its queue of pending calls is not empty{}", "again in a second"),
    RefusalReason.SLACK: RefusalText("the bytes behind its data are too few, or in use{}", _RESTART),
    RefusalReason.NO_PLACE: RefusalText("no folder that it can read may be written{}", _RESTART),
    RefusalReason.DESCRIPTORS: RefusalText(
        "it is near its limit of open files{}",
        "raise that (NUMBER and a colon: the soft limit): prlimit --nofile=NUMBER: --pid PID; then again",
    ),
    RefusalReason.BLOCKED: RefusalText(
        "its main thread did not return from a call in C{}; the request was taken back",
        "again once it moves: tpmon dump PID shows where it is; where it waits for the thread that trains: "
        + _RESTART,
    ),
    RefusalReason.BUSY: RefusalText(
        "it was compiling, recording, deep in a recursion or between two hooks each time{}",
        "again in a minute",
    ),
    RefusalReason.NOT_RUN: RefusalText(
        "it took the request and did not run it{}; it may forbid itself to open files, by an audit hook",
        _RESTART,
    ),
    RefusalReason.SILENT: RefusalText(
        "it took the request and did not answer{}", "tpmon hook PID --remove, then again"
    ),
    RefusalReason.FAILED: RefusalText(
        "an error within the process stopped it{}", "tpmon hook PID --remove, then again; or " + _RESTART
    ),
}
"""The table of docs/late-hook.md."""


class RefusedError(TpmonError):
    """Refuse to write into a process, or say that what was written is taken back."""

    exit_code = ExitCode.USAGE

    def __init__(self, reason: RefusalReason, detail: str = "") -> None:
        """Keep the reason and both lines."""
        what, try_this = REFUSALS[reason]
        super().__init__(f"{reason.value}: {what.format(f' ({detail})' if detail else '')}", try_this)
        self.reason = reason
        if reason in (RefusalReason.OTHER_USER, RefusalReason.NOT_PERMITTED):
            self.exit_code = ExitCode.NOT_PERMITTED
        elif reason is RefusalReason.GONE:
            self.exit_code = ExitCode.NO_TARGET
