"""The command ``sample``: say the price, sample for some seconds while hot functions are shown, write."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from tpmon.commands.command import (
    EXIT_CODES,
    Subcommand,
    Wanted,
    check_ranks,
    find_job,
    find_own_rank,
    flag,
    parse_number,
    pid_argument,
    setting,
)
from tpmon.errors import ExitCode, NoTargetError, NotPermittedError, TpmonError, UsageError, exclude
from tpmon.model.frozen import dataclass
from tpmon.model.known import Missing, is_known
from tpmon.report.text import Output, complain

if TYPE_CHECKING:
    from tpmon.judge.folds.groups import DumpOrigin
    from tpmon.model.dump import DumpError
    from tpmon.model.results.doctor import SampleUpdate
    from tpmon.model.results.sample import HotSample, SampleReading, SampleRequest
    from tpmon.probe.job.job import Job, Member
    from tpmon.probe.spy.sample import SampleService
    from tpmon.report.stacks import Live

SAVED_AS = ((".speedscope.json", "speedscope"), (".folded", "collapsed"))
"""Ends and forms of the files that a screen writes."""
_LOOK_EVERY_S = 0.1
MOST_RANK = 9_999_999
_PERMISSIONS = "docs/guide.md, Permissions"


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """Hold whose stacks are sampled, for how long and how often, and how that is written."""

    pid: Wanted = pid_argument()
    rank: str | None = flag(
        "--rank",
        "that rank and its workers (default: the rank that PID belongs to, else the lowest here)",
        "K",
    )
    all: bool = flag("--all", "every rank, worker and helper of the job")
    out: str | None = flag("--out", "write --format to a new file and the table here", "FILE", is_file=True)
    job: bool = setting("job")
    seconds: float = setting("sample.seconds")
    rate: int = setting("sample.rate")
    only: str = setting("sample.only")
    form: str = setting("sample.format", choose=lambda choices, key: choices.pick_format(key))
    json: bool = setting("json")
    ascii: bool = setting("ascii")
    no_stacks: bool = setting("no-stacks")


@dataclass(frozen=True, slots=True)
class NewFile:
    """Hold where ``--out`` is, and its open descriptor."""

    path: str
    descriptor: int


def check_options(options: SampleOptions) -> None:
    """Raise UsageError for a rank or a file that cannot be, and where stacks are switched off."""
    rank, out = options.rank, options.out
    if options.no_stacks:
        raise UsageError(
            "no-stacks is set, and sample reads stacks", "tpmon sample --stacks, or leave no-stacks out"
        )
    if rank is not None and options.all:
        raise exclude("--rank and --all")
    if rank is not None:
        parse_number(rank, 0, MOST_RANK, "--rank: a rank is a number", "tpmon sample PID --rank 0")
    if out is not None and os.path.lexists(out):
        raise UsageError(f"--out: {out} is there already", "name a file that is not there yet")


def choose_request(members: tuple[Member, ...], job: Job, options: SampleOptions) -> SampleRequest:
    """Turn what was asked for into processes: a rank with its workers, or all.

    Without --rank it is the rank that the PID belongs to, else the lowest one here.

    Raises:
        UsageError: for a rank that is not on this machine.
        NoTargetError: when there is nothing to sample.
    """
    from tpmon.model.process import Role
    from tpmon.model.results.sample import CountedFunction, SampleRequest
    from tpmon.probe.spy.sample import choose_members, fix_request

    pids: tuple[int, ...] = ()
    if options.rank is not None:
        rank = int(options.rank)
        check_ranks((rank,), members)
        pids = tuple(one.identity.pid for one in members if one.role is Role.RANK and one.rank == rank)
    elif not options.all:
        pids = find_own_rank(job)
    wanted = SampleRequest(pids, options.all, options.seconds, options.rate, CountedFunction(options.only))
    request = fix_request(members, wanted)
    if not choose_members(members, request):
        raise NoTargetError(
            f"the job of pid {job.asked_pid} has no rank to sample",
            "tpmon sample PID --all takes its other Python processes",
        )
    return request


def run(options: SampleOptions) -> int:
    """Sample a job, show hot functions meanwhile, write the result, and return the exit code."""
    from tpmon.model.codec import encode

    check_options(options)
    job = find_job(options.pid)
    output = Output(1, options.ascii)
    with _open_new(options.out) as file:
        hot, reading = _sample(job, options)
        if not reading.processes and reading.errors:
            if options.form == "json":
                output.write_json(encode(hot))
            raise explain_errors(reading.errors)
        write_result(hot, reading, options.form, file, output)
    return ExitCode.OK


def _sample(job: Job, options: SampleOptions) -> tuple[HotSample, SampleReading]:
    from tpmon.judge.folds.groups import DumpOrigin
    from tpmon.judge.folds.hot import hot_functions
    from tpmon.model.results.sample import say_sampling_price
    from tpmon.probe.job.members import Membership
    from tpmon.probe.spy.dump import dumpable
    from tpmon.probe.spy.sample import SampleService, choose_members
    from tpmon.report.stacks import Live

    membership = Membership(job)

    def find() -> tuple[Member, ...]:
        membership.refresh(time.monotonic_ns())
        return dumpable(membership.job)

    origin = DumpOrigin(job.root.pid, job.script, job.world_size)
    service = SampleService(find)
    try:
        members = find()
        request = choose_request(members, job, options)
        number = len(choose_members(members, request))
        price = say_sampling_price(number, request.seconds, request.rate_hz)
        complain(f"tpmon: {price} (Ctrl-C ends it early)")
        live = Live(request.seconds, ascii_only=options.ascii)
        with _interrupt_calls(service.finish) as poll:
            service.ask(request)
            reading = _watch(service, live, origin, poll)
    finally:
        service.stop()
        membership.close()
    return hot_functions(reading, origin), reading


def _watch(service: SampleService, live: Live, origin: DumpOrigin, poll: Callable[[], None]) -> SampleReading:
    """Show what comes until the sampling is over, and return all of it."""
    from tpmon.judge.folds.hot import hot_functions

    try:
        while True:
            poll()
            state = service.state
            if is_known(state) and not state.running:
                if is_known(state.reading) and not state.refused:
                    return state.reading
                raise service.failure or RuntimeError(state.refused or "a sampling ended without a result")
            if live.is_due and is_known(state) and is_known(state.reading):
                live.show(hot_functions(state.reading, origin))
            time.sleep(_LOOK_EVERY_S)
    finally:
        live.close()


@contextmanager
def _interrupt_calls(finish: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Let the first ^C end the sampling early; a second one, and every other signal, does what it did.

    Gives a function that acts on a ^C; the handler itself only notes it, because it may come while
    this thread holds a lock.
    """
    before = signal.getsignal(signal.SIGINT)
    noted = False

    def on_interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal noted
        noted = True
        signal.signal(signal.SIGINT, before)

    def poll() -> None:
        nonlocal noted
        if noted:
            noted = False
            finish()

    if before is signal.SIG_IGN:
        yield poll
        return
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield poll
    finally:
        signal.signal(signal.SIGINT, before)


def write_result(
    hot: HotSample, reading: SampleReading, form: str, file: NewFile | None, output: Output
) -> None:
    """Write the result in its form; with a file, it goes there and text to output.

    Raises:
        UsageError: when the file could not take it; the table is written before.
    """
    if file is None:
        _write_form(hot, reading, form, output)
        return
    try:
        _fill(hot, reading, form, file)
    except UsageError as error:
        _write_form(hot, reading, "text", output)
        reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error.what
        raise UsageError(f"--out: {file.path}: {reason}", "name a new file where there is space") from error
    complain(f"tpmon: wrote {file.path}")
    if form != "text":
        _write_form(hot, reading, "text", output)


def _fill(hot: HotSample, reading: SampleReading, form: str, file: NewFile) -> None:
    try:
        _write_form(hot, reading, form, Output(file.descriptor, ascii_only=False))
    except BaseException:
        with suppress(OSError):
            os.ftruncate(file.descriptor, 0)  # half of it would be taken for all of it
        raise


def save_samples(update: SampleUpdate) -> str:
    """Write what a screen shows into two new files here, never over another; return what became of it."""
    hot, reading = update.hot, update.state.reading
    if isinstance(hot, Missing) or isinstance(reading, Missing):
        return "nothing was sampled: no file is written"
    name = f"tpmon-sample-{hot.pid}-{hot.taken.strftime('%Y%m%dT%H%M%S')}"
    try:
        for end, form in SAVED_AS:
            with _open_new(f"{name}{end}") as file:
                if file is not None:
                    _fill(hot, reading, form, file)
    except TpmonError as error:
        return f"not written: {error.what.removeprefix('--out: ')}"
    except Exception as error:  # noqa: BLE001  # the screen goes on, and shows it
        return f"not written: {type(error).__name__}: {error}"
    ends = " and ".join(end for end, _ in SAVED_AS)
    return f"wrote {os.path.abspath(name)}, {ends}"


@contextmanager
def _open_new(path: str | None) -> Iterator[NewFile | None]:
    """Make the file before anything is sampled for it; one that was not filled goes."""
    if path is None:
        yield None
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(
            f"--out: {path}: {error.strerror or error}", "name a new file in a folder of yours"
        ) from error
    try:
        yield NewFile(path, descriptor)
    finally:
        with suppress(OSError):
            if not os.fstat(descriptor).st_size:
                os.unlink(path)
        os.close(descriptor)


def _write_form(hot: HotSample, reading: SampleReading, form: str, output: Output) -> None:
    from tpmon.judge.folds.hot import fold_stacks
    from tpmon.model.codec import encode
    from tpmon.report.formats import write_collapsed_samples, write_speedscope_samples
    from tpmon.report.stacks import write_sample

    if form == "json":
        output.write_json(encode(hot))
    elif form == "collapsed":
        output.write_lines(*write_collapsed_samples(fold_stacks(reading)))
    elif form == "speedscope":
        output.write_json(write_speedscope_samples(hot, fold_stacks(reading)))
    else:
        output.write_lines(*write_sample(hot))


def explain_errors(errors: tuple[DumpError, ...]) -> TpmonError:
    """Say why nothing could be sampled, with the exit code of the reason that a person can do most about."""
    from tpmon.model.dump import ErrorKind
    from tpmon.probe.spy.failure import install_spy
    from tpmon.report.stacks import SAMPLE_AGAIN
    from tpmon.view.stacks import suggest

    order = (ErrorKind.DENIED, ErrorKind.NO_SPY, ErrorKind.UNKNOWN_PYTHON, ErrorKind.TRACED, ErrorKind.BUSY)
    kinds = [error.kind for error in errors]
    kind = next((one for one in order if one in kinds), kinds[0])
    first = next(error for error in errors if error.kind is kind)
    what = f"pid {first.pid} cannot be sampled: {first.reason}"
    if kind is ErrorKind.DENIED:
        reason, _, fix = first.reason.partition("; ")
        return NotPermittedError(f"pid {first.pid} cannot be sampled: {reason}", fix or _PERMISSIONS)
    if kind is ErrorKind.NO_SPY:
        return UsageError(first.reason, install_spy())
    if kind is ErrorKind.UNKNOWN_PYTHON and what.endswith(f"; {(newer := install_spy())}"):
        return UsageError(what.removesuffix(f"; {newer}"), newer)
    if set(kinds) == {ErrorKind.GONE}:
        return NoTargetError(what, "tpmon ps lists the training jobs")
    those = tuple(error for error in errors if error.kind is kind)
    return UsageError(what, suggest(those, SAMPLE_AGAIN) or "tpmon dump PID says more of each process")


COMMAND = Subcommand(
    SampleOptions,
    run,
    "sample [PID | NAME] [options]",
    "Sample the Python stacks of a rank and its loader workers for some seconds: the functions\n"
    "they are in (self: innermost; total: anywhere in the stack), shown as they come.\n"
    "It says first what it costs, and stops nothing. Ctrl-C ends it early and keeps the result.",
    EXIT_CODES,
)
