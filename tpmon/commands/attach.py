"""The command ``attach``: watch a job on the screen, as text, or for its verdict."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from tpmon.commands import diagnose
from tpmon.commands.command import (
    PROMISE,
    VERDICT_CODES,
    Subcommand,
    WatchOptions,
    find_job,
    flag,
    open_session,
    setting,
    write_ending,
)
from tpmon.commands.diagnose import VerdictOptions
from tpmon.errors import ExitCode, SeveralJobsError, TpmonError, UsageError, exclude
from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.report.text import Output, complain

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpmon.model.frame import Frame
    from tpmon.model.process import Identity
    from tpmon.model.results.doctor import Update
    from tpmon.probe.job.job import Job
    from tpmon.ui.terminal_io.terminal import ScreenResult

MORE_FRAMES = 3
"""Of ``--once``, where stacks or cards are late: a py-spy may take 2 s to start, and a driver to wake."""


@dataclass(frozen=True, slots=True)
class AttachOptions(VerdictOptions):
    """Hold what ``tpmon attach`` takes."""

    job: bool = setting("job")
    check: bool = setting("check")
    bell: bool = setting("bell")
    once: bool = setting("once")
    json: bool = setting("json")
    plain: bool = setting("plain")
    every_s: float | None = setting("attach.every")
    record: str | None = flag(
        "--record", "record it too, in FILE (default: one in $XDG_STATE_HOME/tpmon)", "FILE", is_file=True,
        may_be_bare=True,
    )  # fmt: skip


def run(options: AttachOptions) -> int:
    """Watch a job."""
    for name, one in (("--check", options.check), ("--once", options.once)):
        if one and options.record is not None:
            raise exclude(f"{name} and --record")
    if options.check:
        return diagnose.run(options)
    is_text = options.once or options.json or options.plain
    every_s = options.every_s if is_text and not options.once else None
    if every_s is not None and every_s < options.interval_s:
        raise UsageError(
            f"--every: {every_s:g} s is less than the interval, {options.interval_s:g} s",
            f"--every {options.interval_s:g} or more, or a shorter --interval",
        )
    try:
        job = find_job(options.pid)
    except SeveralJobsError:
        from tpmon.ui.terminal_io.terminal import has_terminal

        if is_text or options.job or options.record is not None or not has_terminal():
            raise
        return browse_jobs(options, options.pid if isinstance(options.pid, str) else "")
    if is_text:
        form = {"once": options.once, "json": options.json, "plain": options.plain}
        watch_as_text(job, options, **form, every_s=every_s, record=options.record)
        return ExitCode.OK
    from tpmon.ui.terminal_io.terminal import require_terminal

    require_terminal()
    return watch_on_screen(job, options, options.record, is_only=options.pid is None)


def watch_as_text(
    job: Job,
    options: WatchOptions,
    *,
    once: bool,
    json: bool,
    plain: bool,
    every_s: float | None = None,
    record: str | None = None,
) -> None:
    """Write Frames as JSON, lines of words or one text until the job ends or a signal comes."""
    from tpmon.report.plain import Sparse, pick_form

    output = Output(1, options.ascii)
    write = pick_form(output, once=once, json=json, plain=plain)
    if every_s is not None:
        write = Sparse(write, every_s).take
    if once:
        last = run_session(job, options, 2, more=MORE_FRAMES)
        write(last)
        if not json:
            _say_where_a_verdict_is(last)
        return

    def sink(update: Update) -> None:
        output.check_reader()
        write(update.frame)

    run_session(job, options, None, sink, record=record)


def _say_where_a_verdict_is(frame: Frame) -> None:
    from tpmon.model.verdict import Kind
    from tpmon.own_command import as_typed

    if is_known(frame.verdict) and frame.verdict.kind is Kind.NOT_ENOUGH_EVIDENCE:
        longer = as_typed(f"tpmon diagnose {frame.target.asked_pid}")
        complain(f"tpmon: no verdict after two readings; {longer} gives one within {diagnose.LOOK_S:.0f} s")


def run_session(
    job: Job,
    options: WatchOptions,
    frames: int | None,
    *sinks: Callable[[Update], None],
    more: int = 0,
    record: str | None = None,
) -> Frame:
    """Watch a job for some Frames, or until it ends, and return the last one."""
    session = open_session(job, options, *sinks)
    if record is None:
        last = session.run(frames, more)
    else:
        from tpmon.commands.recordings.switch import recorded

        with recorded(session, job, options, record):
            last = session.run(frames, more)
    if last is None:
        raise ValueError("a session ended before its first Frame")
    return last


def watch_on_screen(
    job: Job, options: WatchOptions, record: str | None = None, *, is_only: bool = False
) -> int:
    """Draw the screen until the job ends or is left, and return the exit code."""
    why = ": the only training job that you run here" if is_only else ""
    complain(f"tpmon: attaching to {_describe_job(job)}{why}")
    from tpmon.commands import screen  # what says to whom it attaches is not kept waiting for it

    return screen.watch_on_screen(job, options, Output(1, options.ascii), record)


def browse_jobs(options: WatchOptions, name: str = "") -> int:
    """Show the live list of all jobs, and the screen of the one that is chosen, until it is left.

    With a ``name`` only the jobs that go by it are shown at first.
    """
    from tpmon.probe.base.worker import step_aside
    from tpmon.roster import JobsWatch
    from tpmon.ui.jobs.start import JobsControls, first_jobs_view, run_jobs_screen
    from tpmon.ui.terminal_io.terminal import require_terminal

    require_terminal()
    step_aside()
    output, watch = (
        Output(1, options.ascii),
        JobsWatch(stacks=not options.no_stacks, hang_after_s=options.hang_after_s),
    )
    controls = JobsControls(watch.listen, watch.prefer, watch.close)
    text = os.path.basename(name).removesuffix(".py")
    view = first_jobs_view(ascii_only=options.ascii, filter_text=text)
    watch.start()
    try:
        while True:
            choice = run_jobs_screen(view, controls)
            if not is_known(choice.job):
                return write_ending(choice.screen, output)
            write_ending(choice.screen, output)
            watch.rest()
            said, shown = _show_chosen(choice.job, options)
            if shown is not None:
                code = write_ending(shown, output)
                if not shown.goes_back:
                    return code
            gc.unfreeze()  # each screen froze what was there, and that of the last one is garbage now
            gc.collect()
            watch.resume()
            view = replace(choice.view, message=said)
    finally:
        watch.close()


def _show_chosen(root: Identity, options: WatchOptions) -> tuple[str, ScreenResult | None]:
    """Show the screen of a job; return why it could not be, "" where it was, and how it ended."""
    from tpmon.commands import screen
    from tpmon.probe.job.resolve import find_job_again
    from tpmon.ui.terminal_io.terminal import clear_screen

    clear_screen()
    try:
        job = find_job_again((root,))
    except TpmonError as error:
        return f"{error.what}; try {error.try_this}", None
    return "", screen.show_job(job, options, from_list=True)


def _describe_job(job: Job) -> str:
    from tpmon.model.process import Role
    from tpmon.model.units import count_of

    roles = [member.role for member in job.members]
    ranks, workers = roles.count(Role.RANK), roles.count(Role.WORKER)
    return f"{job.root.pid} {job.script}, {count_of(ranks, 'rank')}, {count_of(workers, 'worker')}"


COMMAND = Subcommand(
    AttachOptions,
    run,
    "attach [PID | NAME] [options]",
    "Watch a training job. PID may be any of its processes, or one that started it; NAME is that of its\n"
    "script: train, train.py, a part of its path, a module. Without either: the only job, or a list to\n"
    "choose from. Without an output flag: the screen.\n" + PROMISE,
    VERDICT_CODES,
)
