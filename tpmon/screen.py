"""The wiring of the screen: what the session hands to it, and what its keys ask of the session."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Protocol

from tpmon.config import Options
from tpmon.dump import write_dump_text
from tpmon.model.dump import DumpRequest
from tpmon.model.known import is_known
from tpmon.model.results import DumpUpdate, Update
from tpmon.model.sample import SampleRequest
from tpmon.report.sample import write_sample
from tpmon.report.write import Output, complain
from tpmon.session import Session
from tpmon.ui.app import run_screen
from tpmon.ui.controls import Controls, Order, Result, ScreenOptions


class OpenSession(Protocol):
    """Start the probes of the job that is watched; nothing is collected yet."""

    def __call__(self, sink: Callable[[Update], None], results: Callable[[Result], None]) -> Session:
        """Return a session that hands Updates, dumps and samples to these sinks."""
        ...


def watch_on_screen(options: Options, open_session: OpenSession, output: Output) -> int:
    """Draw the screen until it ends and return its exit code; a copy of its text goes to ``output``."""
    failures: list[BaseException] = []
    session: Session | None = None

    def on_error(error: BaseException) -> None:
        failures.append(error)
        os.kill(os.getpid(), signal.SIGTERM)  # ends the screen in order; the failure is told below

    def start(sink: Callable[[Update], None], results: Callable[[Result], None]) -> None:
        nonlocal session
        session = open_session(sink, results)
        session.start(on_error)

    def stop() -> None:
        if session is not None:
            session.stop()

    def set_interval(seconds: float) -> None:
        if session is not None:
            session.set_interval(seconds)

    def ask(order: Order) -> None:
        if session is None:
            return
        if isinstance(order, DumpRequest):
            session.ask_dump(order)
        elif isinstance(order, SampleRequest):
            session.ask_sample(order)
        else:
            session.finish_sample()

    result = run_screen(
        ScreenOptions(options.interval_s, options.ascii_only, options.bell, options.readonly),
        start,
        Controls(set_interval, stop, ask, write_result),
    )
    if failures:
        raise failures[0]
    if result.complaint:
        complain(result.complaint)
    if result.text:
        output.write_lines(result.text)
    return result.exit_code


def write_result(result: Result) -> str:
    """Write a dump or hot functions as ``tpmon dump`` and ``tpmon sample`` print them."""
    if isinstance(result, DumpUpdate):
        return write_dump_text(result)
    return "\n".join(write_sample(result.hot)) if is_known(result.hot) else result.hot.reason
