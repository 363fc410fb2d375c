"""The command line: arguments, exit codes, and the wiring of the rooms.

Each command imports what it needs when it runs, so that ``--help`` costs argparse alone and the
text outputs never import the screen.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from tpmon import __version__
from tpmon.commands.arguments import (
    DEMO_FRAMES,
    OWN_PARSERS,
    ask_help,
    check_target,
    parse_arguments,
    parse_pid,
)
from tpmon.errors import ExitCode, TpmonError
from tpmon.report.text import Output, ReaderGone, complain

if TYPE_CHECKING:
    from tpmon.config import Options
    from tpmon.model.frame import Frame
    from tpmon.model.results.doctor import Update
    from tpmon.probe.job.job import Job
    from tpmon.session import DumpSink, SampleSink, Session, Sink

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GARBAGE_THRESHOLD = 50_000
"""New containers between two looks for cycles, as in a session."""
MORE_FRAMES = 3
"""Of ``--once``, where stacks or cards are late: a py-spy may take 2 s to start, and a driver to wake."""


class Ended(BaseException):
    """Unwind the stack because a signal asked for the end. No Exception, so that nothing keeps it."""

    def __init__(self, code: ExitCode) -> None:
        super().__init__(code)
        self.code = code


def _stdout(ascii_only: bool = False) -> Output:
    return Output(1, ascii_only)


@contextmanager
def _signals_end() -> Iterator[None]:
    """Turn ^C, SIGTERM and SIGHUP into ``Ended``; one that was ignored (nohup) stays ignored.

    A second one changes nothing: the end is under way, and it is bounded.
    """
    before = {number: signal.getsignal(number) for number in _ENDING}

    def on_signal(number: int, _frame: FrameType | None) -> None:
        for other in _ENDING:
            signal.signal(other, signal.SIG_IGN)
        raise Ended(ExitCode(128 + number))

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _list_jobs(options: Options) -> int:
    from tpmon.model.codec import encode
    from tpmon.own_command import call_as_root
    from tpmon.probe.job.discovery import list_jobs
    from tpmon.report.doctor import write_jobs

    jobs, output = list_jobs(), _stdout(options.ascii_only)
    if options.json:
        output.write_json(encode(jobs))
    else:
        output.write_lines(*write_jobs(jobs, output.width, call_as_root("ps")))
    return ExitCode.OK


def _find_job(asked: str | None, await_s: float = 0.0) -> Job:
    """Find the job that was asked for, and say what is odd about it; wait for one that is just starting."""
    from tpmon.probe.base.limits import step_aside
    from tpmon.probe.job.resolve import await_job, find_job, find_only_job

    def find() -> Job:
        return find_only_job() if asked is None else find_job(int(asked))

    step_aside()
    job = await_job(find, lambda said: complain(f"tpmon: {said}"), await_s)
    if job.remark:
        complain(f"tpmon: {job.remark}")
    return job


def _attach(options: Options, asked: str | None, job_was_asked: bool) -> int:
    if options.check:
        return _diagnose(options, asked, job_was_asked)
    check_target(options.job, asked, job_was_asked)
    job = _find_job(asked)
    if not options.is_text:
        from tpmon.ui.terminal_io.terminal import require_terminal

        require_terminal()
        return _watch_on_screen(job, options)
    _watch_as_text(job, options)
    return ExitCode.OK


def _diagnose(options: Options, asked: str | None, job_was_asked: bool) -> int:
    """Print the verdict once it was looked for long enough, or once it is what was waited for."""
    from tpmon.commands.diagnose import (
        LOOK_S,
        DiagnoseWatch,
        OnChange,
        parse_command,
        parse_until,
        pick_exit_code,
    )
    from tpmon.model.codec import encode
    from tpmon.probe.job.resolve import AWAIT_S
    from tpmon.report.verdict import write_check, write_verdict

    check_target(options.job, asked, job_was_asked)
    until = parse_until(options.diagnose_until or "")
    on_change = options.diagnose_on_change
    command = parse_command(on_change, options.diagnose_on_change_where) if on_change else ()
    limit_s = options.diagnose_for_s if options.diagnose_for_s or until else LOOK_S
    output = _stdout(options.ascii_only)
    begun_s = time.monotonic() if until else None  # the limit holds for the wait for a job, too
    job = _find_job(asked, (options.diagnose_for_s or AWAIT_S) if until else 0.0)
    watch = DiagnoseWatch(limit_s, until, OnChange(command) if command else None, begun_s)

    def sink(update: Update) -> None:
        if watch.read(update):
            session.stop()

    try:
        session = _open_session(job, options, sink)
        last = session.run()
        if last is None:
            raise ValueError("a session ended before its first Frame")
        with watch.outlast_output():
            if options.json:
                output.write_json(encode(last.verdict))
            elif options.check:
                output.write_lines(write_check(last))
            else:
                output.write_lines(*write_verdict(last))
        watch.finish()
    finally:
        watch.close()
    return pick_exit_code(last)


def _dump(options: Options, given: Mapping[str, Any]) -> int:
    """Print where every thread of the job is."""
    from tpmon.commands.dump import DumpAsked, check_asked, run_dump

    asked = DumpAsked(
        tuple(given.get("rank", ())),
        tuple(given.get("only_pid", ())),
        *(given.get(name, False) for name in ("block", "native", "locals", "fr_pipe", "tree")),
    )
    check_target(options.job, given.get("pid"), given.get("job", False))
    check_asked(options, asked)
    return run_dump(_find_job(given.get("pid")), options, asked, _stdout(options.ascii_only))


def _doctor(options: Options, asked: str | None) -> int:
    """Print what may be read and what not."""
    from tpmon.commands.doctor import run_doctor
    from tpmon.probe.base.limits import step_aside

    step_aside()
    return run_doctor(parse_pid(asked) if asked is not None else None, options, _stdout(options.ascii_only))


def _sample(options: Options, given: Mapping[str, Any]) -> int:
    """Sample a job for some seconds and print its hot functions."""
    from tpmon.commands.sample import SampleAsked, pick_format, run_sample

    asked = SampleAsked(given.get("rank"), bool(given.get("all")), given.get("out"))
    check_target(options.job, given.get("pid"), given.get("job", False))
    pick_format(options, asked)
    return run_sample(_find_job(given.get("pid")), options, asked, _stdout(options.ascii_only))


def _capture(options: Options, given: Mapping[str, Any]) -> int:
    """Have the hook of a run record some steps."""
    from tpmon.commands.capture import parse_asked, run_capture

    asked = parse_asked(given, options)
    check_target(options.job, given.get("pid"), given.get("job", False))
    return run_capture(_find_job(given.get("pid")), options, asked, _stdout(options.ascii_only))


def _bundle(options: Options, asked: str | None, job_was_asked: bool, place: tuple[str, str]) -> int:
    """Watch for some seconds and write what a ticket asks for."""
    from tpmon.commands.bundle import run_bundle

    check_target(options.job, asked, job_was_asked)
    return run_bundle(_find_job(asked), options, place, _stdout(options.ascii_only))


def _trace(options: Options, given: Mapping[str, Any]) -> int:
    """Analyse traces: on the screen where there is a terminal and no text was asked for."""
    from tpmon.probe.base.limits import step_aside

    step_aside()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy starts a thread for each CPU, for nothing
    from tpmon.commands.trace_screen import start_trace

    return start_trace(given, options, _stdout(options.ascii_only))


def _demo(options: Options) -> int:
    from tpmon.commands.demo import DemoOptions, check_demo, start_demo
    from tpmon.ui.terminal_io.terminal import has_terminal

    on_screen = not options.is_text and has_terminal()
    name = options.demo_bottleneck
    wanted = DemoOptions(options.demo_ranks, options.demo_workers, name, options.demo_seconds)
    check_demo(wanted)
    complain(f"tpmon: starting the demo training ({name}); its first step takes some seconds")
    demo = start_demo(wanted)
    try:
        complain(f"tpmon: demo training {demo.pid} runs; its log, until it ends: {demo.log_path}")
        from tpmon.probe.job.resolve import find_job

        job = find_job(demo.pid)
        if on_screen:
            return _watch_on_screen(job, options)
        if options.is_text:
            _watch_as_text(job, options)
        else:
            _print_demo(job, options)
        return ExitCode.OK
    finally:
        demo.stop()


def _watch_as_text(job: Job, options: Options) -> None:
    """Write Frames as JSON, lines of words or one text until the job ends or a signal comes."""
    from tpmon.report.plain import pick_form

    output = _stdout(options.ascii_only)
    write = pick_form(output, options)
    if options.once:
        write(_run_session(job, options, 2, more=MORE_FRAMES))
        return

    def sink(update: Update) -> None:
        output.check_reader()
        write(update.frame)

    _run_session(job, options, None, sink)


def _print_demo(job: Job, options: Options) -> None:
    from tpmon.report.once import write_once

    output = _stdout(options.ascii_only)
    seen = 0

    def sink(update: Update) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:  # the first reading has no rates yet
            output.write_lines(*write_once(update.frame), "")

    _run_session(job, options, DEMO_FRAMES + 1, sink)


def _open_session(
    job: Job,
    options: Options,
    *sinks: Callable[[Update], None],
    dump_sinks: Sequence[DumpSink] = (),
    sample_sinks: Sequence[SampleSink] = (),
) -> Session:
    """Start the probes; nothing is collected yet."""
    from tpmon.probe.collect.collector import Collector
    from tpmon.session import Session, collect_rarely

    collect_rarely()
    on_screen = bool(sample_sinks)  # a screen shows what comes first
    return Session(
        Collector(job, options.interval_s, stacks=not options.no_stacks, threads_later=on_screen),
        sinks,
        options.interval_s,
        dump_sinks,
        sample_sinks,
        hang_after_s=options.hang_after_s,
        may_look=not (options.readonly or options.no_stacks),
        glance=on_screen,
    )


def _run_session(
    job: Job, options: Options, frames: int | None, *sinks: Callable[[Update], None], more: int = 0
) -> Frame:
    last = _open_session(job, options, *sinks).run(frames, more)
    if last is None:
        raise ValueError("a session ended before its first Frame")
    return last


def _describe_job(job: Job) -> str:
    from tpmon.model.process import Role
    from tpmon.model.units import count_of

    roles = [member.role for member in job.members]
    ranks, workers = roles.count(Role.RANK), roles.count(Role.WORKER)
    return f"{job.root.pid} {job.script}, {count_of(ranks, 'rank')}, {count_of(workers, 'worker')}"


def _watch_on_screen(job: Job, options: Options) -> int:
    complain(f"tpmon: attaching to {_describe_job(job)}")
    from tpmon.commands.screen import watch_on_screen

    def open_session(sink: Sink, dump_sink: DumpSink, sample_sink: SampleSink) -> Session:
        return _open_session(job, options, sink, dump_sinks=(dump_sink,), sample_sinks=(sample_sink,))

    return watch_on_screen(job, options, open_session, _stdout(options.ascii_only))


def _run(arguments: Sequence[str]) -> int:
    arguments = ask_help(arguments)
    if arguments and arguments[0] in OWN_PARSERS:
        from tpmon.commands.starting import start_with_hook

        return start_with_hook(arguments, _watch_on_screen)
    given = vars(parse_arguments(arguments))
    if given.get("version"):
        _stdout().write_lines(f"tpmon {__version__}")
        return ExitCode.OK
    from tpmon import config
    from tpmon.commands.starting import await_files, read_tables

    bad: list[str] | None = [] if given.get("print_config") else None
    path, tables = read_tables()
    choices = config.resolve(given, os.environ, path, tables, bad)
    if bad is not None:
        lines = config.describe_config(choices, os.environ, path, bad)
        _stdout(bool(choices["ascii"].value)).write_lines(*lines)
        return ExitCode.USAGE if bad else ExitCode.OK
    options = config.settle(choices)
    command = given.get("command")
    await_files(given)
    if command == "attach":
        return _attach(options, given.get("pid"), given.get("job", False))
    if command == "diagnose":
        return _diagnose(options, given.get("pid"), given.get("job", False))
    if command == "dump":
        return _dump(options, given)
    if command == "fold":
        from tpmon.commands.dump import run_fold

        return run_fold(given["files"], options, _stdout(options.ascii_only), tree=given.get("tree", False))
    if command == "capture":
        return _capture(options, given)
    if command == "sample":
        return _sample(options, given)
    if command == "doctor":
        return _doctor(options, given.get("pid"))
    if command == "bundle":
        place = (given.get("out", ""), given.get("tar", ""))
        return _bundle(options, given.get("pid"), given.get("job", False), place)
    if command == "trace":
        return _trace(options, given)
    if command == "demo":
        return _demo(options)
    return _list_jobs(options)


def main(arguments: Sequence[str] | None = None, refused: TpmonError | None = None) -> int:
    """Run one command, unless it was ``refused`` already, and return its exit status (see ``ExitCode``)."""
    # What imports make stays: looking for cycles in it 700 containers at a time is a tenth of a start.
    gc.set_threshold(_GARBAGE_THRESHOLD)
    try:
        if refused is not None:
            raise refused
        with _signals_end():
            return _run(sys.argv[1:] if arguments is None else arguments)
    except Ended as end:
        return end.code
    except ReaderGone:
        return ExitCode.OK
    except TpmonError as error:
        complain(f"tpmon: {error.what}\nTry: {error.try_this}")
        return error.exit_code
    except Exception as error:  # noqa: BLE001  # a bug: told in a report file, never as a bare traceback
        from tpmon.commands.starting import tell_failure

        return tell_failure(error)
