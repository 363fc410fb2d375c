"""The wiring of the screen: what the session hands to it, and what its keys ask of the session."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Protocol

from tpmon.config import Options
from tpmon.dump import write_dump_text
from tpmon.model.dump import DumpRequest
from tpmon.model.results import DumpUpdate, Update
from tpmon.report.write import Output, complain
from tpmon.session import Session
from tpmon.ui.app import run_screen
from tpmon.ui.controls import Controls, ScreenOptions


class OpenSession(Protocol):
    """Start the probes of the job that is watched; nothing is collected yet."""

    def __call__(self, sink: Callable[[Update], None], dump_sink: Callable[[DumpUpdate], None]) -> Session:
        """Return a session that hands what it reads to these sinks."""
        ...


def watch_on_screen(options: Options, open_session: OpenSession, output: Output) -> int:
    """Draw the screen until it ends and return its exit code; a copy of its text goes to ``output``."""
    failures: list[BaseException] = []
    session: Session | None = None

    def on_error(error: BaseException) -> None:
        failures.append(error)
        os.kill(os.getpid(), signal.SIGTERM)  # ends the screen in order; the failure is told below

    def start(sink: Callable[[Update], None], dump_sink: Callable[[DumpUpdate], None]) -> None:
        nonlocal session
        session = open_session(sink, dump_sink)
        session.start(on_error)

    def stop() -> None:
        if session is not None:
            session.stop()

    def set_interval(seconds: float) -> None:
        if session is not None:
            session.set_interval(seconds)

    def ask_dump(request: DumpRequest) -> None:
        if session is not None:
            session.ask_dump(request)

    result = run_screen(
        ScreenOptions(options.interval_s, options.ascii_only, options.bell, options.readonly),
        start,
        Controls(set_interval, stop, ask_dump, write_dump_text),
    )
    if failures:
        raise failures[0]
    if result.complaint:
        complain(result.complaint)
    if result.text:
        output.write_lines(result.text)
    return result.exit_code
