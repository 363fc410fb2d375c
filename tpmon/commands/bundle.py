"""The command ``bundle``: watch a job for some seconds and write its evidence for a ticket."""

from __future__ import annotations

from tpmon.commands.command import (
    EXIT_CODES,
    PROMISE,
    Subcommand,
    Wanted,
    WatchOptions,
    describe_subject,
    find_job,
    flag,
    pid_argument,
    setting,
)
from tpmon.errors import ExitCode, UsageError
from tpmon.model.frozen import dataclass
from tpmon.report.text import Output, complain


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """Hold what is watched, for how long, and where the bundle goes."""

    pid: Wanted = pid_argument()
    out: str = flag("--out", "a new folder (default: named after host, job, time)", "DIR", "", is_file=True)
    tar: str = flag("--tar", "one new tar file instead; .tar.gz is packed", "FILE", "", is_file=True)
    job: bool = setting("job")
    seconds: float = setting("bundle.seconds")
    ascii: bool = setting("ascii")
    interval_s: float = setting("interval")
    no_stacks: bool = setting("no-stacks")
    hang_after_s: float | None = setting("hang-after", typed=False)
    log: str | None = setting("log")


def run(options: BundleOptions) -> int:
    """Watch a job for some seconds and write its bundle."""
    from tpmon.evidence import Bundler, OwnLook, open_sink
    from tpmon.report.bundle import check_written, say_result

    job = find_job(options.pid)
    sink = open_sink(job, options.out, options.tar)
    stacks = not options.no_stacks
    words = "three dumps of its stacks, none of which stops it" if stacks else "no stacks"
    complain(f"tpmon: watching {job.root.pid} for {options.seconds:g} s, with {words}")
    # It is no hang watch: it looks at the stacks as often as it says.
    watched = WatchOptions(
        interval_s=options.interval_s, readonly=True, hang_after_s=options.hang_after_s, no_stacks=not stacks
    )
    subject = describe_subject(job, watched)
    look = OwnLook(
        job, subject, options.seconds, options.interval_s, stacks=stacks, hang_after_s=options.hang_after_s
    )
    try:
        contents = Bundler(job, sink, look, own_log=options.log or "").run()
    except OSError as error:
        raise UsageError(
            f"{sink.path}: {error.strerror or error}", "--out with a place that has space"
        ) from error
    except BaseException:
        complain(f"tpmon: what there is of the bundle is in {sink.path}")
        raise
    check_written(sink.path, contents)
    Output(1, options.ascii).write_lines(*say_result(sink.path, contents))
    return ExitCode.OK


COMMAND = Subcommand(
    BundleOptions,
    run,
    "bundle [PID | NAME] [options]",
    "Watch a job for some seconds and write evidence for a ticket into a private folder: a recording,\n"
    "verdict, three dumps of all stacks, what may be read, logs, versions.\n"
    "Nothing is stopped, and no file is overwritten.\n" + PROMISE,
    EXIT_CODES,
    writes_here=True,
)
