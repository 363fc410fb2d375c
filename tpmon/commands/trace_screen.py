"""The wiring of the screen of traces and snapshots: read and analyse first, then draw.

What the screen may ask of what was read goes here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpmon.commands.trace import (
    PROGRESS_AFTER_S,
    TraceAsked,
    are_snapshots,
    check_pair,
    find_files,
    refuse_empty,
    run_trace,
)
from tpmon.config import Options
from tpmon.errors import TpmonError
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.model.results.timeline import CodePlace, Stretch, Timeline
from tpmon.model.results.trace import TraceComparison
from tpmon.model.results.trace_tables import OperatorGroupRow
from tpmon.model.units import clean_text, format_bytes
from tpmon.report.text import Output, complain
from tpmon.trace.analysis import Findings, analyze, group_operators
from tpmon.trace.compare import compare_traces
from tpmon.trace.figures.program import find_line
from tpmon.trace.reading.sources import is_remote
from tpmon.trace.timeline import Timelines, lay_timelines
from tpmon.ui.terminal_io.terminal import has_terminal

if TYPE_CHECKING:
    from tpmon.ui.traces.state import Grouping, ScreenSubject, TraceControls

MOST_KEPT_EVENTS = 12_000_000
"""Traces whose events are kept behind the screen: about 60 bytes each, 0.7 GB."""
PROGRESS_EVERY_S = 0.25
LONG_SNAPSHOT_BYTES = 1 << 20
"""A snapshot takes half a second for each megabyte, most of it the checks of its pickle."""
_TOO_LARGE = Missing("not kept in memory beside the traces before it: open it alone for its timeline")


class _KeptAnalysis:
    """Hold what the screen may ask of each trace beyond its analysis."""

    def __init__(self) -> None:
        self._events = 0
        self._timelines: list[Known[Timelines]] = []
        self._findings: list[Findings | None] = []

    def keep(self, found: Findings) -> None:
        """Take what a trace was analysed from, as long as there is room."""
        self._events += found.trace.events
        if self._events > MOST_KEPT_EVENTS and self._findings:
            self._timelines.append(_TOO_LARGE)
            self._findings.append(None)
            return
        self._timelines.append(
            lay_timelines(found.trace, found.steps, found.activity, found.causes, found.figures)
        )
        self._findings.append(found)

    def look(self, file: int, lane: int, stretch: Stretch, cells: int) -> Known[Timeline]:
        """Return a stretch of the timeline of a trace."""
        kept = self._timelines[file]
        return kept if isinstance(kept, Missing) else kept.look(lane, stretch, cells)

    def find_line(self, file: int, name: str) -> Known[CodePlace]:
        """Return the line of Python of what has this name in a trace."""
        found = self._findings[file]
        return _TOO_LARGE if found is None else find_line(found.trace, name)

    def group(self, file: int, grouping: Grouping) -> Applicable[tuple[OperatorGroupRow, ...]]:
        """Return the operators of a trace by input shapes or by line of Python."""
        found = self._findings[file]
        return _TOO_LARGE if found is None else group_operators(found, grouping.value)


class _ScreenProgress:
    """Say in one line of the terminal how far a file is read, once it takes a second."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + PROGRESS_AFTER_S
        self._said = False

    def __call__(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + PROGRESS_EVERY_S
            self._said = True
            share = 100 * done // max(total, 1)
            self._write(
                f"\rtpmon: read {format_bytes(done)} of {format_bytes(total)}, {share} %; ctrl-c ends\x1b[K"
            )

    def announce(self, files: Sequence[str]) -> None:
        """Say what is read, where nothing tells how far it is and it may take seconds."""
        total = sum(os.path.getsize(path) for path in files if os.path.exists(path))
        if total >= LONG_SNAPSHOT_BYTES or any(map(is_remote, files)):
            self._said = True
            what = clean_text(files[0], 60) if len(files) == 1 else f"{len(files)} files"
            size = f", {format_bytes(total)}" if total else ""
            self._write(f"\rtpmon: reading {what}{size}; ctrl-c ends\x1b[K")

    def end(self) -> None:
        """Leave the line empty for what is said next."""
        if self._said:
            self._said = False
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, text.encode())


def start_trace(given: Mapping[str, Any], options: Options, output: Output) -> int:
    """Draw the files that were named; write them as text where that was asked for or nothing can be drawn.

    Raises:
        TpmonError: where one is no trace or may not be read.
    """
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # numpy's on absurd numbers, written where a screen may be drawn
    refuse_empty(given)
    keys = ("csv", "top", "against", "target", "slice_out", "steps", "top_gaps", "table")
    asked = TraceAsked(*(given.get(key, "") for key in keys))
    named: Sequence[str] = given["files"]
    compared = bool(asked.against) and asked == TraceAsked(against=asked.against, target=asked.target)
    if options.is_text or not (compared or asked == TraceAsked()) or not has_terminal():
        return run_trace(named, options, asked, output)
    files = find_files(named)
    if are_snapshots(files):
        return (
            run_trace(named, options, asked, output) if compared else show_snapshots(files, options, output)
        )
    return show_traces(files, named, asked, options, output)


def show_snapshots(files: Sequence[str], options: Options, output: Output) -> int:
    """Analyse memory snapshots and draw them until the screen ends; return its exit code.

    Raises:
        TpmonError: where one is no snapshot or may not be read.
    """
    from tpmon.trace.snapshot import analyze_snapshots  # noqa: PLC0415  # a trace does without all of it

    progress = _ScreenProgress()
    progress.announce(files)
    try:
        report = analyze_snapshots(files)
    finally:
        progress.end()
    from tpmon.ui.traces.snapshots import SnapshotSubject  # noqa: PLC0415
    from tpmon.ui.traces.state import TraceControls  # noqa: PLC0415
    from tpmon.view.trace import find_frame  # noqa: PLC0415

    controls = TraceControls(lambda *_stretch: NOT_APPLICABLE, lambda _file, frame: find_frame(frame))
    return _draw(SnapshotSubject(report), controls, options, output)


def show_traces(
    files: Sequence[str], named: Sequence[str], asked: TraceAsked, options: Options, output: Output
) -> int:
    """Analyse traces and draw them until the screen ends; return its exit code.

    A file that is not among the ``named`` ones came of a directory or a pattern. Where a trace to
    compare to was ``asked`` for, what changed since is one more tab.

    Raises:
        TpmonError: where one is no trace or may not be read.
    """
    target = check_pair(files, asked)
    kept = _KeptAnalysis()
    progress = _ScreenProgress()

    def skip(path: str, error: TpmonError) -> bool:
        """Leave out what only a directory or a pattern named: other files lie there too."""
        if path in named:
            return False
        progress.end()
        complain(f"tpmon: left out: {error.what}")
        return True

    try:
        report = analyze(files, progress, skip, kept.keep)
        comparison: Applicable[TraceComparison] = NOT_APPLICABLE
        if asked.against:
            before = analyze([asked.against], progress).files[0]
            comparison = compare_traces(before, report.files[0], target)
    finally:
        progress.end()
    from tpmon.ui.traces.state import TraceControls  # noqa: PLC0415
    from tpmon.ui.traces.subject import TraceSubject  # noqa: PLC0415  # a wrong file is told without it

    controls = TraceControls(kept.look, kept.find_line, kept.group)
    return _draw(TraceSubject(report, comparison), controls, options, output)


def _draw(subject: ScreenSubject, controls: TraceControls, options: Options, output: Output) -> int:
    from tpmon.ui.traces.app import run_trace_screen  # noqa: PLC0415  # a wrong file is told without it

    result = run_trace_screen(subject, controls, ascii_only=options.ascii_only)
    if result.complaint:
        complain(result.complaint)
    if result.text:
        output.write_lines(result.text)
    return result.exit_code
