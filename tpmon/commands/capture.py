"""The command ``capture``: find the ranks, say the price, lead the window, write what came of it.

Where a run has no hook, and somebody agrees to the price of that, one is put in before and taken out after.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tpmon.commands.command import (
    EXIT_CODES,
    Subcommand,
    Wanted,
    agree_to_hook,
    ask_at_terminal,
    choose_ranks,
    find_job,
    flag,
    parse_number,
    pid_argument,
    setting,
    write_result,
)
from tpmon.errors import ExitCode, TpmonError, UsageError, exclude
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.model.units import format_seconds
from tpmon.report.text import Output, complain
from tpmon.settings import parse_duration

if TYPE_CHECKING:
    from tpmon.capture.bus import Bus, NoHookError
    from tpmon.capture.dialog import CaptureAsker
    from tpmon.inject.lent import LentHooks
    from tpmon.model.process import Identity
    from tpmon.model.results.capture import CaptureAsked, CaptureKind, CaptureResult, CaptureStage
    from tpmon.model.results.trace import TraceSummary
    from tpmon.probe.job.job import Job, Member

STEPS = 5
MOST_STEPS = 1_000
SECONDS = 60.0
EVENT_S = 600.0
"""For the first event that a hook sees which was put in: a step may take minutes."""
WATCH_S = 3.0

_WARNS = (
    "--memory: torch warns on the run's standard error, once in a thousand, of memory that is freed and was"
    " allocated before"
)


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """Hold what ``tpmon capture`` takes, as it was typed."""

    pid: Wanted = pid_argument()
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
    yes: bool = flag(
        "--yes", "without asking: put a hook in where there is none, pause the loop for more than 2 s"
    )
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


def run(options: CaptureOptions) -> int:
    """Capture, write what came of it, and return the exit code."""
    from tpmon.capture.dialog import CaptureAsker
    from tpmon.inject.lent import LentHooks
    from tpmon.model.results.capture import CaptureState
    from tpmon.report.capture import write_capture

    asked = parse_asked(options)
    job = find_job(options.pid)
    complain("tpmon: Ctrl-C ends it without a file")

    def tell(text: str) -> None:
        complain(f"tpmon: {text}")

    with contextlib.closing(LentHooks(tell, tell)) as lent:
        result, summaries = capture_job(
            job,
            asked,
            CaptureAsker(tell, agreed=partial(agree, yes=options.yes)),
            lent,
            rank=NOT_APPLICABLE if options.rank is None else int(options.rank),
            every=options.all_ranks,
        )
    text = partial(write_capture, result, summaries, socket.gethostname())
    write_result(Output(1, options.ascii), result, text, json=options.json)
    if result.state in (CaptureState.DONE, CaptureState.PARTIAL):
        return ExitCode.OK
    return ExitCode.NO_TARGET if result.state is CaptureState.GONE else ExitCode.USAGE


def agree(stage: CaptureStage, said: Sequence[str], *, yes: bool) -> bool:
    """Agree to all but a hook that is put in, and a dear price: of these ask at the terminal.

    Raises:
        UsageError: where nobody says yes, there or by --yes.
    """
    from tpmon.model.results.capture import CaptureStage

    if stage is CaptureStage.HOOKLESS:
        agree_to_hook(said, yes=yes)
        return True
    if stage is not CaptureStage.DEAR or yes:
        return True
    if not ask_at_terminal(f"{said[1]}; {said[2]}. Record them all the same?"):
        raise UsageError(f"nothing was recorded: {said[1]}", f"the same with --yes; {said[2]}")
    return True


def capture_job(
    job: Job,
    asked: CaptureAsked,
    asker: CaptureAsker,
    lent: LentHooks,
    *,
    rank: Applicable[int] = NOT_APPLICABLE,
    every: bool = False,
) -> tuple[CaptureResult, tuple[TraceSummary, ...]]:
    """Lead a capture from its ranks to its verified files; TpmonError where nothing can be captured.

    Where nothing can be asked in a run, and ``asker`` agrees, ``lent`` puts the hook in, and takes it out.
    """
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
        late = _lend(members, job, wanted, asker, lent)
        buses = [_open_bus(member, job, stack) for member in members]
        if late:
            _watch_steps(buses[0], asker)
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
        lent.close()
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


def _lend(
    members: Sequence[Member], job: Job, asked: CaptureAsked, asker: CaptureAsker, lent: LentHooks
) -> bool:
    """Put the hook into the ranks that have none, once somebody agreed; return whether there were any.

    Raises:
        UsageError: where that is refused, nobody agrees, or the loop comes to nothing that the hook sees.
    """
    from tpmon.capture.dialog import YES_S
    from tpmon.inject.late_hook import LateHook
    from tpmon.inject.refusal import RefusedError
    from tpmon.model.results.capture import CaptureStage
    from tpmon.model.text.late_words import describe_plan

    bare = [(one.identity, error) for one in members if (error := find_bare(one.identity)) is not None]
    if not bare:
        return False
    if is_known(asked.at):
        raise UsageError(
            "--at counts the steps since this process began, and no hook has counted them", "leave --at out"
        )
    hooks = [LateHook(process, tell=asker.tell) for process, _ in bare]
    plans = []
    for hook, (process, absent) in zip(hooks, bare, strict=True):
        try:
            plans.append(hook.check().plan())
        except RefusedError as error:
            raise _offer(absent, job, process, error) from error
    said = describe_plan(plans, lent=True)
    _await(asker, lambda: asker.agreed(CaptureStage.HOOKLESS, said), YES_S)
    _await(asker, lambda: asker.agreed(CaptureStage.HOOKING, ()), YES_S)
    try:
        lent.put_in(hooks)
    except RefusedError as error:
        raise _offer(bare[0][1], job, bare[0][0], error) from error
    if any(find_bare(process) for process, _ in bare):
        asker.tell("waits for the first batch, backward or update that the hook sees")
    _await(asker, lambda: not any(find_bare(process) for process, _ in bare), EVENT_S)
    return True


def _watch_steps(bus: Bus, asker: CaptureAsker) -> None:
    """Wait until some steps tell how long one takes without a capture, for some seconds at most."""
    from tpmon.capture.dialog import YES_EVERY_S
    from tpmon.capture.plan import ENOUGH_STEPS, count_steps, median_before

    limit = time.monotonic() + WATCH_S
    while count_steps(median_before(bus.read_records(), time.monotonic_ns())) < ENOUGH_STEPS:
        if asker.stopped() or time.monotonic() > limit:
            return
        time.sleep(YES_EVERY_S)


def _await(asker: CaptureAsker, is_so: Callable[[], bool], most_s: float) -> None:
    """Wait until it is so; UsageError where nobody waits any more, or the time is over."""
    from tpmon.capture.dialog import UNWANTED, YES_EVERY_S

    limit = time.monotonic() + most_s
    while not is_so():
        if asker.stopped() or time.monotonic() > limit:
            why = UNWANTED if asker.stopped() else f"no answer in {format_seconds(most_s)}"
            raise UsageError(why, "tpmon sample PID needs nothing in the run")
        time.sleep(YES_EVERY_S)


def find_bare(process: Identity) -> NoHookError | None:
    """Return why a process cannot be asked where it has no hook and none is on its way; None otherwise."""
    from tpmon.capture.bus import NoHookError, open_bus
    from tpmon.probe.hooked.page import explain_absence
    from tpmon.probe.job.discovery import is_armed

    try:
        open_bus(process).close()
    except NoHookError as error:
        if not error.try_this and not explain_absence(process.pid) and not is_armed(process.pid):
            return error
    except TpmonError:
        return None  # said where it is opened
    return None


def can_lend(process: Identity) -> bool:
    """Tell whether a process has no hook, and one can be put in."""
    from tpmon.inject.late_hook import LateHook
    from tpmon.inject.refusal import RefusedError

    try:
        return find_bare(process) is not None and LateHook(process).check() is not None
    except RefusedError:
        return False


def _open_bus(member: Member, job: Job, stack: contextlib.ExitStack) -> Bus:
    """Open the page of a rank, which ``stack`` closes; UsageError with what to do where it has no hook."""
    from tpmon.capture.bus import NoHookError, open_bus

    try:
        bus = open_bus(member.identity)
    except NoHookError as error:
        raise _offer(error, job, member.identity) if not error.try_this else error from None
    stack.callback(bus.close)
    return bus


def _offer(error: NoHookError, job: Job, process: Identity, refused: TpmonError | None = None) -> UsageError:
    """Say when the hook comes, or what is possible without one and the line that starts the run with it.

    ``refused``: why none can be put into the process.
    """
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
    why = f", and none is put in: {refused.what}" if refused else ""
    if not isinstance(find_client(process), Missing):
        return UsageError(
            f"{error.what}, which --at, --all-ranks, --snapshot and --cuda-profiler need{why}",
            f"tpmon capture {pid}, which records by kineto; or start it again: {write_restart(job.root.pid)}",
        )
    pid = job.root.pid
    first = f"{refused.try_this}; " if refused else ""
    return UsageError(
        f"{error.what}{why or ': no profile of it is possible without touching the run'}",
        f"{first}tpmon sample {pid}, which shows hot functions and stops nothing; or start it again:"
        f" {write_restart(pid)}",
    )


COMMAND = Subcommand(
    CaptureOptions,
    run,
    "capture [PID | NAME] [options]",
    "Have torch.profiler record some steps inside a run that has the hook (tpmon run, or\n"
    "import tpmon.hook). One step is profiled first to size the rest; the cost is shown before the\n"
    "window begins, and steps, seconds, events, bytes, disk and memory have limits. The files are\n"
    "verified and summed up. In a run of tpmon run --kineto, or with KINETO_USE_DAEMON=1, kineto\n"
    "records instead where it can: it does not pause the loop. With neither it says what it takes\n"
    "to put the hook into the run, asks, and takes it out at the end.",
    EXIT_CODES,
    writes_here=True,
)
