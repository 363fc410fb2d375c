"""The command ``attach``: watch a job on the screen, as text, or for its verdict."""

from __future__ import annotations

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
)
from tpmon.commands.diagnose import VerdictOptions
from tpmon.errors import ExitCode, UsageError, exclude
from tpmon.model.frozen import dataclass
from tpmon.report.text import Output, complain

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpmon.model.frame import Frame
    from tpmon.model.results.doctor import Update
    from tpmon.probe.job.job import Job

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
    job = find_job(options.pid)
    if is_text:
        form = {"once": options.once, "json": options.json, "plain": options.plain}
        watch_as_text(job, options, **form, every_s=every_s, record=options.record)
        return ExitCode.OK
    from tpmon.ui.terminal_io.terminal import require_terminal

    require_terminal()
    return watch_on_screen(job, options, options.record)


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
        write(run_session(job, options, 2, more=MORE_FRAMES))
        return

    def sink(update: Update) -> None:
        output.check_reader()
        write(update.frame)

    run_session(job, options, None, sink, record=record)


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


def watch_on_screen(job: Job, options: WatchOptions, record: str | None = None) -> int:
    """Draw the screen until the job ends or is left, and return the exit code."""
    complain(f"tpmon: attaching to {_describe_job(job)}")
    from tpmon.commands import screen  # what says to whom it attaches is not kept waiting for it

    return screen.watch_on_screen(job, options, Output(1, options.ascii), record)


def _describe_job(job: Job) -> str:
    from tpmon.model.process import Role
    from tpmon.model.units import count_of

    roles = [member.role for member in job.members]
    ranks, workers = roles.count(Role.RANK), roles.count(Role.WORKER)
    return f"{job.root.pid} {job.script}, {count_of(ranks, 'rank')}, {count_of(workers, 'worker')}"


COMMAND = Subcommand(
    AttachOptions,
    run,
    "attach PID | --job [options]",
    "Watch a training job. PID may be any of its processes. Without an output flag: the screen.\n" + PROMISE,
    VERDICT_CODES,
)
