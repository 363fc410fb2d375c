"""The command ``capture``: find the ranks, say the price, lead the window, write what came of it."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tpmon.commands.command import (
    EXIT_CODES,
    Subcommand,
    check_ranks,
    find_job,
    find_own_rank,
    flag,
    parse_number,
    pid_argument,
    setting,
    write_result,
)
from tpmon.errors import ExitCode, UsageError, exclude
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.report.text import Output, complain
from tpmon.settings import parse_duration

if TYPE_CHECKING:
    from tpmon.capture.bus import Bus, NoHookError
    from tpmon.capture.dialog import CaptureAsker
    from tpmon.model.process import Identity
    from tpmon.model.results.capture import CaptureAsked, CaptureKind, CaptureResult, CaptureStage
    from tpmon.model.results.trace import TraceSummary
    from tpmon.probe.job.job import Job, Member

STEPS = 5
MOST_STEPS = 1_000
SECONDS = 60.0

_WARNS = (
    "--memory: torch warns on the run's standard error, once in a thousand, of memory that is freed and was"
    " allocated before"
)


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """Hold what ``tpmon capture`` takes, as it was typed."""

    pid: int | None = pid_argument()
    rank: str | None = flag(
        "--rank", "that rank (default: the rank that PID belongs to, else the lowest here)", "K"
    )
    all_ranks: bool = flag("--all-ranks", "the same steps of every rank on this machine")
    steps: str | None = flag(
        "--steps",
        "steps to record (default: 5; with --seconds alone as many as end in it, 1000 at most)",
        "N",
    )
    seconds: str | None = flag(
        "--seconds", "end the window after so long (default: 60, or more if the steps need it)", "S"
    )
    at: str | None = flag(
        "--at",
        "begin when this step begins, counted since this process began, as tpmon shows: within ten minutes",
        "STEP",
    )
    stacks: bool = flag("--stacks", "with Python stacks: larger, slower")
    shapes: bool = flag("--shapes", "with the shapes of tensors: larger, slower")
    memory: bool = flag("--memory", "with allocations: larger, slower")
    snapshot: bool = flag("--snapshot", "the CUDA allocator's history over the steps instead")
    cuda_profiler: bool = flag(
        "--cuda-profiler", "open a range for the nsys that the run was started under instead"
    )
    out: str = flag(
        "--out",
        "folder for the files (default: a new one here, named after the job)",
        "DIR",
        "",
        is_file=True,
    )
    yes: bool = flag("--yes", "also if the loop pauses for more than 2 s")
    job: bool = setting("job")
    readonly: bool = setting("readonly")
    json: bool = setting("json")
    ascii: bool = setting("ascii")


def parse_asked(options: CaptureOptions) -> CaptureAsked:
    """Check what was typed before anything is looked at; the folder is "" where none was named.

    Raises:
        UsageError: for a number that cannot be, options that exclude each other, and beside --readonly.
    """
    from tpmon.model.results.capture import CaptureAsked, CaptureKind

    if options.readonly:
        raise UsageError(
            "capture has the training record itself, and --readonly forbids that", "leave one of the two out"
        )
    if options.rank is not None:
        if options.all_ranks:
            raise exclude("--rank and --all-ranks")
        _parse_number("--rank", options.rank, 0, 1_000_000)
    if options.snapshot and options.cuda_profiler:
        raise UsageError("--snapshot and --cuda-profiler exclude each other", "capture one after the other")
    kind = CaptureKind.NSYS_RANGE if options.cuda_profiler else CaptureKind.TRACE
    kind = CaptureKind.SNAPSHOT if options.snapshot else kind
    details = [name for name in ("stacks", "shapes", "memory") if getattr(options, name)]
    if details and kind is not CaptureKind.TRACE:
        raise UsageError(f"--{details[0]} belongs to a trace", f"leave --{details[0]} out")
    by_seconds = options.seconds is not None and options.steps is None
    most = str(MOST_STEPS if by_seconds else STEPS)
    return CaptureAsked(
        kind=kind,
        steps=_parse_number("--steps", most if options.steps is None else options.steps, 1, MOST_STEPS),
        seconds=_parse_seconds(options.seconds),
        stacks=options.stacks,
        shapes=options.shapes,
        memory=options.memory,
        at=NOT_APPLICABLE if options.at is None else _parse_number("--at", options.at, 1, 1 << 60),
        folder=options.out,
        by_seconds=by_seconds,
        named_seconds=options.seconds is not None,
    )


def _parse_number(flag: str, text: str, low: int, high: int) -> int:
    expected = f"{flag}: expected a whole number from {low} to {high}"
    return parse_number(text, low, high, expected, "tpmon capture --help")


def _parse_seconds(text: str | None) -> float:
    from tpmon.capture.plan import LONGEST_S

    if text is None:
        return SECONDS
    seconds = parse_duration(text)
    if seconds is None or not 0.1 <= seconds <= LONGEST_S:
        raise UsageError(
            f"--seconds: expected 0.1 to {LONGEST_S:g}, found {text!r}", "tpmon capture PID --seconds 10"
        )
    return seconds


def choose_ranks(job: Job, rank: Applicable[int], *, every: bool) -> tuple[Member, ...]:
    """Return the ranks to capture: all, the one named, else that of the PID, else the lowest here.

    Raises:
        UsageError: for a rank that is not on this machine, or a job without one.
    """
    from tpmon.model.process import Role

    ranks = [one for one in job.members if one.role is Role.RANK]
    ranks.sort(key=lambda one: (one.rank if is_known(one.rank) else 1 << 30, one.identity.pid))
    if not ranks:
        raise UsageError(
            f"the job of pid {job.asked_pid} has no rank on this machine", "tpmon ps lists the jobs"
        )
    if every:
        return tuple(ranks)
    if is_known(rank):
        check_ranks((rank,), ranks)
        return tuple(one for one in ranks if one.rank == rank)
    mine = find_own_rank(job)
    return tuple(one for one in ranks if one.identity.pid in mine) or (ranks[0],)


def run(options: CaptureOptions) -> int:
    """Capture, write what came of it, and return the exit code."""
    from tpmon.capture.dialog import CaptureAsker
    from tpmon.model.results.capture import CaptureState
    from tpmon.report.capture import write_capture

    asked = parse_asked(options)
    job = find_job(options.pid)
    complain("tpmon: Ctrl-C ends it without a file")
    asker = CaptureAsker(lambda text: complain(f"tpmon: {text}"))
    result, summaries = capture_job(
        job,
        asked,
        asker if options.yes else replace(asker, agreed=ask_where_dear),
        rank=NOT_APPLICABLE if options.rank is None else int(options.rank),
        every=options.all_ranks,
    )
    text = partial(write_capture, result, summaries, socket.gethostname())
    write_result(Output(1, options.ascii), result, text, json=options.json)
    if result.state in (CaptureState.DONE, CaptureState.PARTIAL):
        return ExitCode.OK
    return ExitCode.NO_TARGET if result.state is CaptureState.GONE else ExitCode.USAGE


def ask_where_dear(stage: CaptureStage, said: Sequence[str]) -> bool:
    """Agree to every price but a dear one: of that ask at the terminal; UsageError where nobody says yes."""
    from tpmon.model.results.capture import CaptureStage

    if stage is not CaptureStage.DEAR:
        return True
    if os.isatty(0) and os.isatty(2):
        complain(f"tpmon: {said[1]}; {said[2]}. Record them all the same? [y/N]")
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return True
    raise UsageError(f"nothing was recorded: {said[1]}", f"the same with --yes; {said[2]}")


def capture_job(
    job: Job,
    asked: CaptureAsked,
    asker: CaptureAsker,
    *,
    rank: Applicable[int] = NOT_APPLICABLE,
    every: bool = False,
) -> tuple[CaptureResult, tuple[TraceSummary, ...]]:
    """Lead a capture from its ranks to its verified files; TpmonError where nothing can be captured."""
    from tpmon.capture.files import check_above, choose_place, locate, remove_empty, sweep
    from tpmon.capture.kineto_capture import LoopAround, try_kineto
    from tpmon.capture.outcome import IS_BUSY, IS_TIMED, gather
    from tpmon.capture.window import CaptureWindow
    from tpmon.model.results.capture import CaptureKind, CaptureState
    from tpmon.probe.base.worker import step_back
    from tpmon.probe.gpu.child_link import NO_GPU, watch_clocks
    from tpmon.probe.host.machine import read_memory_left
    from tpmon.probe.job.discovery import runs_cuda_11, stays_slower

    members = choose_ranks(job, rank, every=every)
    for member in members:
        _check_slot(member, asked.kind)
    first = members[0].identity
    name, folder = choose_place(first.pid, job.root.pid, asked.folder)
    here = locate(first.pid, folder).here
    check_above(here)
    for left in sweep(folder) if here == folder else []:
        asker.tell(f"removed {left}, which a tpmon that was killed left")
    is_named = bool(asked.folder)
    wanted = replace(asked, folder=folder, anew=not is_named and asked.kind is not CaptureKind.NSYS_RANGE)
    if asked.memory:
        asker.tell(_WARNS)

    def stays() -> bool:
        return is_named and not asker.stopped()  # whoever named a folder finds it, also without a file

    if not every:
        around = LoopAround(
            watch=lambda process: watch_clocks([process]),
            memory_left=read_memory_left,
            stays_slower=stays_slower,
            runs_cuda_11=runs_cuda_11,
        )
        with remove_empty([] if os.path.lexists(folder) else [folder], stays):
            if told := try_kineto(first, members[0].rank, wanted, name, asker=asker, around=around):
                return told
    with contextlib.ExitStack() as stack:
        buses = [_open_bus(member, job, stack) for member in members]
        places = [locate(bus.process.pid, folder) for bus in buses]
        mine = [place.here for place in places if not os.path.lexists(place.here)]
        stack.enter_context(remove_empty(mine, stays))
        slower = any(stays_slower(member.identity.pid) for member in members)
        window = CaptureWindow(buses, wanted, name, asker, stays_slower=slower)
        timed = [bus.count_timed_steps() for bus in buses]
        with watch_clocks([bus.process for bus in buses]) as watch:
            outcomes = window.run()
            clocks = watch.read() if any(one.state is CaptureState.VERIFIED for one in outcomes) else NO_GPU
        ranks = window.describe(outcomes)
        asker.tell("reading what was written")
        step_back()
        moved = [bus for bus, before in zip(buses, timed, strict=True) if bus.count_timed_steps() > before]
        works = {bus.process.pid: IS_TIMED for bus in moved} | dict.fromkeys(watch.busy, IS_BUSY)
        return gather(window.asked, name, ranks, places, window.price, works=works, clocks=clocks)


def _check_slot(member: Member, kind: CaptureKind) -> None:
    """Raise UsageError for a range that could end the run, and a trace where another tool records the GPU."""
    from tpmon.capture.dialog import advise_on_slot, read_hook
    from tpmon.capture.nsys import HOLDS_SLOT, find_other_tool, judge_nsys, traces_cuda
    from tpmon.model.results.capture import CaptureKind
    from tpmon.own_command import call_as_owner
    from tpmon.probe.job.discovery import read_ancestors, uses_cuda

    pid = member.identity.pid
    above = read_ancestors(pid)
    if kind is CaptureKind.NSYS_RANGE:
        refusal = judge_nsys(above)
        if refusal:
            again = call_as_owner(pid, "run --nsys -- COMMAND")
            raise UsageError(refusal, f"{again} starts nsys so that it can be asked")
    elif kind is CaptureKind.TRACE and uses_cuda(pid):
        if traces_cuda(above):
            hook = read_hook(member.identity, member.rank)
            raise UsageError(HOLDS_SLOT, advise_on_slot(pid, hook.lacks, above))
        if other := find_other_tool(pid):
            raise UsageError(
                f"{other} in this run holds the GPU's one profiling slot (CUPTI)",
                "start the run again without the tool whose library that is",
            )


def _open_bus(member: Member, job: Job, stack: contextlib.ExitStack) -> Bus:
    """Open the page of a rank, which ``stack`` closes; UsageError with what to do where it has no hook."""
    from tpmon.capture.bus import NoHookError, open_bus

    try:
        bus = open_bus(member.identity)
    except NoHookError as error:
        raise _offer(error, job, member.identity) if not error.try_this else error from None
    stack.callback(bus.close)
    return bus


def _offer(error: NoHookError, job: Job, process: Identity) -> UsageError:
    """Say when the hook comes, or what is possible without one and the line that starts the run with it."""
    from tpmon.capture.kineto_daemon import find_client
    from tpmon.probe.hooked.page import explain_absence
    from tpmon.probe.job.discovery import is_armed, write_restart

    pid = process.pid
    why = explain_absence(pid)
    if why:
        return UsageError(
            f"{error.what} that can be asked: {why}",
            f"tpmon sample {pid}, which needs none; or remove what blocks it and start the run again",
        )
    if is_armed(pid):
        return UsageError(
            f"{error.what} yet: it was started with one, which begins with the loop's first batch or step",
            f"again once it trains: tpmon capture {pid}; or call tpmon.hook.step() at the end of each pass,"
            " where the loop has neither torch's DataLoader nor a backward (python -I, -E or -S would keep"
            " the hook out)",
        )
    if not isinstance(find_client(process), Missing):
        return UsageError(
            f"{error.what}, which --at, --all-ranks, --snapshot and --cuda-profiler need",
            f"tpmon capture {pid}, which records by kineto; or start it again: {write_restart(job.root.pid)}",
        )
    pid = job.root.pid
    return UsageError(
        f"{error.what}: no profile of it is possible without touching the run",
        f"tpmon sample {pid}, which shows hot functions and stops nothing; or start it again:"
        f" {write_restart(pid)}",
    )


COMMAND = Subcommand(
    CaptureOptions,
    run,
    "capture PID | --job [options]",
    "Have torch.profiler record some steps inside a run that has the hook (tpmon run, or\n"
    "import tpmon.hook). One step is profiled first to size the rest; the price comes before the\n"
    "window begins, and steps, seconds, events, bytes, disk and memory have limits. The files are\n"
    "verified and summed up. In a run of tpmon run --kineto, or with KINETO_USE_DAEMON=1, kineto\n"
    "records instead where it can: it does not pause the loop. With neither it says what is\n"
    "possible, and touches nothing.",
    EXIT_CODES,
    writes_here=True,
)
