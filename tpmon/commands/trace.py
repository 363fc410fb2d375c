"""The command ``trace``: find the files, analyse them one after the other; write tables, or draw."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tpmon.commands.command import (
    Subcommand,
    file_arguments,
    flag,
    parse_number,
    setting,
    write_ending,
    write_result,
)
from tpmon.errors import ExitCode, TpmonError, UsageError, exclude
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.units import clean_text, format_bytes
from tpmon.model.verdict import VerdictCode
from tpmon.report.text import Output, complain

if TYPE_CHECKING:
    from tpmon.model.results.trace import TraceComparison
    from tpmon.trace.reading.parts import Jobs
    from tpmon.ui.traces.state import ScreenSubject, TraceControls

MOST_GAPS = 1000
MOST_TOP = 100_000
MOST_JOBS = 64
JOB_BYTES = 100_000_000
"""For each so many a process, where nobody says how many: it takes some more CPU time in all."""
LEAST_JOB_BYTES = 10_000_000
"""Less is read before another process has begun to help."""
MEMORY_RATIO = 0.7
"""What reading takes of memory beside the bytes of the JSON, all processes together."""
READING_CONTAINERS = 1_000_000
"""New containers between two looks for cycles: a trace has none, and a look through imports takes 30 ms."""
SCREEN_CONTAINERS = 50_000
"""The same behind a screen, as in a session."""
PROGRESS_AFTER_S = 1.0
PROGRESS_EVERY_S = 0.25
LONG_SNAPSHOT_BYTES = 1 << 20
"""A snapshot takes half a second for each megabyte, most of it the checks of its pickle."""
_ENDINGS = (".json", ".json.gz")
_SLICE = "tpmon trace FILE --slice small.json.gz --steps 3-5"
_words = partial(flag, default="", takes="a value")


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Hold what is analysed and what is wanted of it; "" for what was not typed."""

    files: tuple[str, ...] = file_arguments("traces, patterns, directories; also s3:// gs:// abfs://")
    top: str = _words("--top", "rows of each table (default 10); of a job also the tables of each rank", "N")
    csv: str = _words(
        "--csv",
        "one table as CSV: steps, breakdown, gpus, gaps, operators, kernels, copies, memory, patterns, "
        "work, phases, throughput, products, modules, frames, allocations, curve, shapes, lines, ranges, "
        "shares, host, idle, collectives, ranks; beside --against: changes; "
        "of a memory snapshot: devices, categories, live, peak, oom",
        "TABLE",
    )
    table: str = _words(
        "--table",
        "one table alone: patterns, work (by kind), phases (forward, backward, optimizer), "
        "products (matmul by type), rates (of kernels), modules, frames (Python), "
        "allocations, ranges (record_function), curve (memory over time), "
        "and on request only: shapes, lines (operators by input shapes, by Python line)",
        "TABLE",
    )
    against: str = _words(
        "--against",
        "the trace before a change: what got faster or slower in FILE, and whether it helped",
        "BEFORE",
        is_file=True,
    )
    target: str = _words(
        "--target", "with --against: the speed-up hoped for", "1.5x", takes="a speed-up, beside --against"
    )
    other_card: bool = flag(
        "--other-card", "with --against: compare also what ran on other cards, by operator and device time"
    )
    slice: str = _words(
        "--slice",
        "write a small trace for Perfetto or a ticket to the new file OUT (.json, .json.gz)",
        "OUT",
        is_file=True,
    )
    steps: str = _words("--steps", "with --slice: these steps, by their numbers", "A-B")
    top_gaps: str = _words("--top-gaps", "with --slice: the N longest gaps and what is around them", "N")
    jobs: str = _words(
        "--jobs",
        "read traces in at most N processes: parts of a plain one, tables, several files at once "
        "(default: one for each 100 MB that finds a free core)",
        "N",
    )
    json: bool = setting("json")
    json_is_flag: bool = setting("json", typed=False, choose=lambda choices, key: choices.is_flag(key))
    plain: bool = setting("plain", help="print text on a terminal too, instead of the screen")
    ascii: bool = setting("ascii")
    once: bool = setting("once", typed=False)

    @property
    def is_slice(self) -> bool:
        """Tell whether a part of a trace is wanted, and no analysis."""
        return bool(self.slice or self.steps or self.top_gaps)


def run(options: TraceOptions) -> int:
    """Draw the files that were named; write them as text where that was asked for or nothing can be drawn."""
    from tpmon.own_command import TRACE_NEEDS, find_lack
    from tpmon.probe.base.worker import step_aside

    if refused := find_lack("tpmon trace", TRACE_NEEDS):
        raise refused
    from tpmon.trace.reading.sources import are_snapshots, find_files
    from tpmon.ui.terminal_io.terminal import has_terminal

    step_aside()
    gc.set_threshold(READING_CONTAINERS)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy starts a thread for each CPU, for nothing
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # numpy's on absurd numbers, written where a screen may be drawn
    is_text = options.once or options.json or options.plain
    is_text = is_text or bool(options.is_slice or options.csv or options.top or options.table)
    if is_text or (options.target and not options.against) or not has_terminal():
        return run_trace(options)
    files = find_files(options.files)
    if are_snapshots(files):
        return run_trace(options) if options.against else show_snapshots(files, options)
    return show_traces(files, options)


def run_snapshots(files: Sequence[str], options: TraceOptions, top: int, output: Output) -> int:
    """Analyse memory snapshots and write the one table that is wanted as CSV, or all as text."""
    from tpmon.report.trace import SNAPSHOT_TABLES, write_snapshot_csv, write_snapshots
    from tpmon.trace.snapshot import analyze_snapshots

    name = f"{files[0]} is a memory snapshot"
    if options.against:
        raise UsageError(f"--against compares traces, and {name}", "leave --against out")
    if options.table or options.target or options.jobs:
        flag_name = "--table" if options.table else "--target" if options.target else "--jobs"
        raise UsageError(f"{flag_name} is for traces, and {name}", f"leave {flag_name} out")
    if options.csv and options.csv not in SNAPSHOT_TABLES:
        raise UsageError(
            f"a memory snapshot has no table {options.csv!r}",
            f"--csv with one of {', '.join(SNAPSHOT_TABLES)}",
        )
    report = analyze_snapshots(files)
    csv = partial(write_snapshot_csv, report, options.csv)
    text = partial(write_snapshots, report, top)
    write_result(output, report, csv if options.csv else text, json=options.json)
    return ExitCode.OK


def run_slice(files: Sequence[str], options: TraceOptions, output: Output) -> int:
    """Write the slice of one trace that was asked for, and say how much it is."""
    from tpmon.trace.reading.read import read_trace
    from tpmon.trace.reading.slice import choose_gaps, choose_steps, write_slice

    out, steps, gaps = options.slice, options.steps, options.top_gaps
    if not out:
        raise UsageError("--steps and --top-gaps say what a slice holds: it needs --slice OUT", _SLICE)
    if bool(steps) == bool(gaps):
        raise UsageError("--slice takes one of --steps and --top-gaps", _SLICE)
    if len(files) != 1:
        raise UsageError(f"--slice takes one trace, found {len(files)}", "name one FILE")
    if not out.endswith(_ENDINGS):
        raise UsageError(f"--slice: {out} ends in neither .json nor .json.gz", _SLICE)
    longest = 0
    if gaps:
        said = f"--top-gaps takes a number from 1 to {MOST_GAPS}"
        longest = parse_number(gaps, 1, MOST_GAPS, said, "--top-gaps 3")
    progress = _Progress()
    trace = read_trace(files[0], progress, choose_jobs(options))
    choice = choose_steps(trace, steps) if steps else choose_gaps(trace, longest)
    del trace
    written = write_slice(files[0], out, choice, progress)
    size = format_bytes(written.bytes)
    said = f"{out}: {choice.what}, {written.kept:,} of {written.events:,} events, {size}"
    lines = [clean_text(said, 400)]
    if written.left_out:
        lines.append(f"{written.left_out:,} events that are no clean JSON are left out")
    output.write_lines(*lines)
    return ExitCode.OK


def choose_jobs(options: TraceOptions) -> Jobs:
    """Return in how many processes traces are read; UsageError where ``--jobs`` is no number."""
    if not options.jobs:
        return _count_jobs
    said = f"--jobs takes a number from 1 to {MOST_JOBS}"
    most = parse_number(options.jobs, 1, MOST_JOBS, said, "--jobs 4")
    return lambda size: max(min(most, round(_count_cores()), size // LEAST_JOB_BYTES), 1)


def _count_cores() -> float:
    from tpmon.model.known import known_or
    from tpmon.probe.host.cgroup import read_cpu_budget

    return known_or(read_cpu_budget([os.getpid()]).cores, 1.0)


def _count_jobs(size: int) -> int:
    """Return how many processes read so many bytes: no more than cores are free, one if memory is short."""
    if size < 2 * JOB_BYTES:
        return 1
    from tpmon.model.known import known_or
    from tpmon.probe.host.machine import read_memory_left

    if known_or(read_memory_left(os.getpid()), 0) < MEMORY_RATIO * size:
        return 1
    free = _count_cores() - os.getloadavg()[0]
    return max(min(round(free), size // JOB_BYTES, MOST_JOBS), 1)


class _Progress:
    """Say how far a long file is read: a line a second, or before a screen one line that changes."""

    def __init__(self, *, redraws: bool = False) -> None:
        self._redraws = redraws
        self._next_s = time.monotonic() + PROGRESS_AFTER_S
        self._said = False

    def __call__(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + (PROGRESS_EVERY_S if self._redraws else PROGRESS_AFTER_S)
        said = f"tpmon: read {format_bytes(done)} of {format_bytes(total)}"
        if self._redraws:
            self._draw(f"\r{said}, {100 * done // max(total, 1)} %; ctrl-c ends\x1b[K")
        else:
            complain(said)

    def announce(self, files: Sequence[str]) -> None:
        """Say what is read, where nothing tells how far it is and it may take seconds."""
        from tpmon.trace.reading.sources import is_remote

        total = sum(os.path.getsize(path) for path in files if os.path.exists(path))
        if total >= LONG_SNAPSHOT_BYTES or any(map(is_remote, files)):
            what = clean_text(files[0], 60) if len(files) == 1 else f"{len(files)} files"
            size = f", {format_bytes(total)}" if total else ""
            self._draw(f"\rtpmon: reading {what}{size}; ctrl-c ends\x1b[K")

    def end(self) -> None:
        """Leave the line empty for what is said next."""
        if self._said:
            self._draw("\r\x1b[K")
            self._said = False

    def _draw(self, text: str) -> None:
        self._said = True
        with contextlib.suppress(OSError):
            os.write(2, text.encode())


def _leave_out(named: Sequence[str], progress: _Progress, path: str, error: TpmonError) -> bool:
    """Leave out what only a directory or a pattern named: other files lie there too."""
    if path in named:
        return False
    progress.end()
    complain(f"tpmon: left out: {error.what}")
    return True


def check_pair(files: Sequence[str], options: TraceOptions) -> float:
    """Return the speed-up hoped for, 1 without one; UsageError where it is none, or several are compared."""
    target = 1.0
    if options.target:
        try:
            target = float(options.target.removesuffix("x"))
        except ValueError:
            target = 0.0
        if not options.against or not 0 < target < 1000:
            raise UsageError(
                f"--target takes a speed-up, beside --against; found {options.target!r}", "--target 1.5x"
            )
    if options.other_card and not options.against:
        raise UsageError("--other-card says what --against may compare", "--against BEFORE --other-card")
    if options.against and len(files) != 1:
        raise UsageError(f"--against compares one trace, found {len(files)}", "name one FILE")
    return target


def _settle_form(options: TraceOptions) -> TraceOptions:
    """Return the options with the typed form: it wins over JSON that was not typed; UsageError for two."""
    typed = options.is_slice or options.csv or options.top or options.table
    if typed and not options.json_is_flag:
        options = replace(options, json=False)
    if options.csv and options.json:
        raise exclude("--csv and --json")
    every_row = "--csv" if options.csv else "--json" if options.json else ""
    if every_row and options.top and not options.is_slice:
        raise UsageError(f"{every_row} writes every row, and --top some", "leave one of them out")
    if options.json and options.table and not options.is_slice:
        raise UsageError("--json writes every table, and --table one as text", "leave one of them out")
    return options


def run_trace(options: TraceOptions) -> int:
    """Analyse the traces that were named and write what was asked for."""
    from tpmon.report.trace import (
        CHANGES,
        TABLES,
        TOP,
        explain_empty,
        write_changes_csv,
        write_comparison,
        write_csv,
        write_report,
        write_tables,
    )
    from tpmon.trace.analysis import ON_REQUEST, analyze
    from tpmon.trace.compare import compare_traces, tells_better
    from tpmon.trace.reading.sources import are_snapshots, find_files
    from tpmon.view.trace_blocks import TABLES as TEXT_TABLES

    said = f"--top takes a number from 1 to {MOST_TOP}"
    top = parse_number(options.top, 1, MOST_TOP, said, "--top 20") if options.top else TOP
    output = Output(1, options.ascii)
    options = _settle_form(options)
    csv, table, against = options.csv, options.table, options.against
    files = find_files(options.files)
    if options.is_slice:
        if options.json or csv or options.top or table or against or options.target:
            raise UsageError(
                "--slice stands alone, without --json, --csv, --top, --table, --against and --target",
                "leave the others out",
            )
        return run_slice(files, options, output)
    if are_snapshots(files):
        return run_snapshots(files, options, top, output)
    tables = (CHANGES,) if against else TABLES
    if csv and csv not in tables:
        beside = " beside --against" if against else ""
        raise UsageError(f"there is no table {csv!r}{beside}", f"--csv with one of {', '.join(tables)}")
    if table and (table not in TEXT_TABLES or csv or against):
        raise UsageError(
            f"--table takes one of {', '.join(TEXT_TABLES)}, without --csv and --against; found {table!r}",
            "--table patterns",
        )
    target = check_pair(files, options)
    if against:
        after, before = analyze([*files, against], _Progress(), jobs=choose_jobs(options)).files
        comparison = compare_traces(before, after, target, other_card=options.other_card)
        changes = (
            partial(write_changes_csv, comparison) if csv else partial(write_comparison, comparison, top)
        )
        write_result(output, comparison, changes, json=options.json)
        better = tells_better(comparison)
        if not is_known(better):
            return VerdictCode.UNDECIDED
        return VerdictCode.FINE if better else VerdictCode.HELD
    progress = _Progress()
    skip = partial(_leave_out, options.files, progress)
    wanted = ON_REQUEST if options.json else (csv, table)
    report = analyze(files, progress, skip, wanted=wanted, jobs=choose_jobs(options))
    text = (
        partial(write_tables, report, table, top)
        if table
        else partial(write_report, report, top, whole=bool(options.top))
    )
    write_result(output, report, partial(write_csv, report, csv) if csv else text, json=options.json)
    if csv and (empty := explain_empty(report, csv)):
        complain(f"tpmon: {empty}")
    return ExitCode.OK


def show_snapshots(files: Sequence[str], options: TraceOptions) -> int:
    """Analyse memory snapshots and draw them until the screen ends; return its exit code."""
    from tpmon.trace.snapshot import analyze_snapshots

    progress = _Progress(redraws=True)
    progress.announce(files)
    try:
        report = analyze_snapshots(files)
    finally:
        progress.end()
    from tpmon.ui.traces.snapshots import SnapshotSubject  # a wrong file is told without the screen
    from tpmon.ui.traces.state import TraceControls
    from tpmon.view.snapshot import find_frame

    controls = TraceControls(lambda *_stretch: NOT_APPLICABLE, lambda _file, frame: find_frame(frame))
    return _draw(SnapshotSubject(report), controls, options)


def show_traces(files: Sequence[str], options: TraceOptions) -> int:
    """Analyse traces and draw them until the screen ends; return its exit code.

    Where there is a trace to compare to, what changed since is one more tab.
    """
    from tpmon.trace.analysis import analyze
    from tpmon.trace.compare import compare_traces
    from tpmon.trace.timeline import KeptTraces

    target = check_pair(files, options)
    kept = KeptTraces()
    progress = _Progress(redraws=True)
    try:
        jobs = choose_jobs(options)
        report = analyze(files, progress, partial(_leave_out, options.files, progress), kept.keep, jobs=jobs)
        comparison: Applicable[TraceComparison] = NOT_APPLICABLE
        if options.against:
            before = analyze([options.against], progress, jobs=jobs).files[0]
            comparison = compare_traces(before, report.files[0], target, other_card=options.other_card)
    finally:
        progress.end()
    from tpmon.ui.traces.state import TraceControls  # a wrong file is told without the screen
    from tpmon.ui.traces.subject import TraceSubject

    controls = TraceControls(kept.look, kept.find_line, lambda file, by: kept.group(file, by.value))
    return _draw(TraceSubject(report, comparison), controls, options)


def _draw(subject: ScreenSubject, controls: TraceControls, options: TraceOptions) -> int:
    from tpmon.ui.traces.app import run_trace_screen

    gc.set_threshold(SCREEN_CONTAINERS)
    result = run_trace_screen(subject, controls, ascii_only=options.ascii)
    return write_ending(result, Output(1, options.ascii))


COMMAND = Subcommand(
    TraceOptions,
    run,
    "trace FILE... [options]",
    "Analyse traces of torch.profiler in place, plain or .gz: steps, verdict, and\n"
    "idle time of each device by cause, operators, kernels, memory; of several ranks the job\n"
    "first: who waits for whom, why, and what to do.\n"
    "On a terminal it is a screen with a timeline (? shows its keys); in a pipe, and with\n"
    "--plain, --top, --table, --csv or --json it is text. --against is one more tab of the screen;\n"
    "as text it ends with 0 better, 10 worse (also than --target), 11 cannot be told.\n"
    "What cannot be read is counted and reported. docs/metrics.md has every formula.\n"
    "Memory snapshots of torch (.pickle): what is alive on the device by stack, now and at the peak.",
)
