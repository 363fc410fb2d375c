"""The command ``sample``: say the price, sample for some seconds while hot functions are shown, write."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from tpmon import config
from tpmon.config import Options
from tpmon.errors import ExitCode, NoTargetError, NotPermittedError, TpmonError, UsageError
from tpmon.judge.dumps.groups import DumpOrigin
from tpmon.judge.dumps.hot import fold_stacks, hot_functions
from tpmon.model.codec import encode
from tpmon.model.dump import DumpError, ErrorKind
from tpmon.model.frozen import dataclass
from tpmon.model.known import Missing, is_known
from tpmon.model.process import Role
from tpmon.model.results.doctor import SampleUpdate
from tpmon.model.sample import (
    CountedFunction,
    HotSample,
    SampleReading,
    SampleRequest,
    SampleState,
    price_sampling,
    say_price,
)
from tpmon.model.text.dump_words import list_numbers
from tpmon.probe.job.job import Job, Member
from tpmon.probe.job.members import Membership
from tpmon.probe.spy.child import install_spy
from tpmon.probe.spy.dump import dumpable
from tpmon.probe.spy.sample import choose_members, fix_request
from tpmon.probe.spy.sample_service import SampleService
from tpmon.report.formats import write_collapsed_samples, write_speedscope_samples
from tpmon.report.sample import AGAIN, Live, write_sample
from tpmon.report.text import Output, complain
from tpmon.view.dump import suggest

SAVED_AS = ((".speedscope.json", "speedscope"), (".folded", "collapsed"))
"""Ends and forms of the files that a screen writes."""
_LOOK_EVERY_S = 0.1
_RANK_DIGITS = 7
_PERMISSIONS = "docs/guide.md, Permissions"


@dataclass(frozen=True, slots=True)
class SampleAsked:
    """Hold what one call asks for that is no setting."""

    rank: str | None
    everyone: bool
    out: str | None


@dataclass(frozen=True, slots=True)
class NewFile:
    """Hold where ``--out`` is, and its open descriptor."""

    path: str
    descriptor: int


def pick_format(options: Options, asked: SampleAsked) -> str:
    """Check what was asked for before anything is looked at, and return the form to write in.

    Raises:
        UsageError: for a form, a rank or a file that cannot be, and where stacks are switched off.
    """
    form = config.pick_format(options, options.sample_format, options.sample_format_from)
    if options.no_stacks:
        raise UsageError(
            "no-stacks is set, and sample reads stacks", "tpmon sample --stacks, or leave no-stacks out"
        )
    if asked.rank is not None and asked.everyone:
        raise UsageError("--rank and --all exclude each other", "leave one of the two out")
    if asked.rank is not None and not (asked.rank.isdecimal() and len(asked.rank) <= _RANK_DIGITS):
        raise UsageError(
            f"--rank: a rank is a number, found {asked.rank[:40]!r}", "tpmon sample PID --rank 0"
        )
    if asked.out is not None and os.path.lexists(asked.out):
        raise UsageError(f"--out: {asked.out} is there already", "name a file that is not there yet")
    return form


def choose_request(
    members: tuple[Member, ...], job: Job, options: Options, asked: SampleAsked
) -> SampleRequest:
    """Turn what was asked for into processes: a rank with its workers, or all.

    Without --rank it is the rank that the PID belongs to, else the lowest one here.

    Raises:
        UsageError: for a rank that is not on this machine.
        NoTargetError: when there is nothing to sample.
    """
    ranks = [one for one in members if one.role is Role.RANK]
    pids: tuple[int, ...] = ()
    if asked.rank is not None:
        pids = tuple(one.identity.pid for one in ranks if one.rank == int(asked.rank))
        if not pids:
            here = list_numbers([one.rank for one in ranks if is_known(one.rank)])
            raise UsageError(
                f"--rank: rank {asked.rank} is not on this machine", f"here: {here or 'no numbered rank'}"
            )
    elif not asked.everyone:
        pids = tuple(
            one.rank_pid if is_known(one.rank_pid) else one.identity.pid
            for one in members
            if one.identity.pid == job.asked_pid and one.role in (Role.RANK, Role.WORKER)
        )
    request = fix_request(
        members,
        SampleRequest(
            pids,
            asked.everyone,
            options.sample_seconds,
            options.sample_rate,
            CountedFunction(options.sample_only),
        ),
    )
    if not choose_members(members, request):
        raise NoTargetError(
            f"the job of pid {job.asked_pid} has no rank to sample",
            "tpmon sample PID --all takes its other Python processes",
        )
    return request


def run_sample(job: Job, options: Options, asked: SampleAsked, output: Output) -> int:
    """Sample a job, show hot functions meanwhile, write the result, and return the exit code.

    Raises:
        TpmonError: saying why where nothing could be sampled.
    """
    form = pick_format(options, asked)
    with _open_new(asked.out) as file:
        hot, reading = _sample(job, options, asked)
        if not reading.processes and reading.errors:
            if form == "json":
                output.write_json(encode(hot))
            raise explain_errors(reading.errors)
        write_result(hot, reading, form, file, output)
    return ExitCode.OK


def _sample(job: Job, options: Options, asked: SampleAsked) -> tuple[HotSample, SampleReading]:
    membership = Membership(job)

    def find() -> tuple[Member, ...]:
        membership.refresh(time.monotonic_ns())
        return dumpable(membership.job)

    origin = DumpOrigin(job.root.pid, job.script, job.world_size)
    service = SampleService(find)
    try:
        members = find()
        request = choose_request(members, job, options, asked)
        number = len(choose_members(members, request))
        price = say_price(price_sampling(number, request.seconds, request.rate_hz))
        complain(f"tpmon: {price} (Ctrl-C ends it early)")
        live = Live(request.seconds, ascii_only=options.ascii_only)
        with _interrupt_calls(service.finish) as poll:
            service.ask(request)
            reading = _watch(service, live, origin, poll)
    finally:
        service.stop()
        membership.close()
    return hot_functions(reading, origin), reading


def _watch(service: SampleService, live: Live, origin: DumpOrigin, poll: Callable[[], None]) -> SampleReading:
    """Show what comes until the sampling is over, and return all of it."""
    try:
        while True:
            poll()
            state = service.state
            if is_known(state) and not state.running:
                return _take(state)
            if live.is_due and is_known(state) and is_known(state.reading):
                live.show(hot_functions(state.reading, origin))
            time.sleep(_LOOK_EVERY_S)
    finally:
        live.close()


def _take(state: SampleState) -> SampleReading:
    if is_known(state.reading) and not state.refused:
        return state.reading
    raise RuntimeError(state.refused or "a sampling ended without a result")


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
    return UsageError(what, suggest(those, AGAIN) or "tpmon dump PID says more of each process")
