"""The command ``capture``: find the ranks, say the price, lead the window, write what came of it."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tpmon.capture.bus import Bus, NoHookError, open_bus
from tpmon.capture.dialog import Agreed, advise_on_slot, agree_always, read_hook
from tpmon.capture.files import NEW_FOLDER, CapturePlace, locate, sweep, write_host
from tpmon.capture.kineto_capture import LoopAround, try_kineto
from tpmon.capture.kineto_daemon import find_client
from tpmon.capture.nsys import HOLDS_SLOT, find_other_tool, judge_nsys, traces_cuda
from tpmon.capture.outcome import IS_BUSY, IS_TIMED, gather
from tpmon.capture.plan import LONGEST_S
from tpmon.capture.window import CaptureWindow
from tpmon.config import Options
from tpmon.errors import ExitCode, UsageError
from tpmon.model.codec import encode
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.model.process import Identity, Role
from tpmon.model.results.capture import CaptureAsked, CaptureKind, CaptureResult, CaptureStage, CaptureState
from tpmon.model.results.trace import TraceSummary
from tpmon.own_command import call_as_owner
from tpmon.probe.gpu.watch import NO_GPU, watch_clocks
from tpmon.probe.hooked.page import explain_absence
from tpmon.probe.host.machine import read_memory_left
from tpmon.probe.job.job import Job, Member
from tpmon.probe.job.wrappers import (
    is_armed,
    read_ancestors,
    runs_cuda_11,
    stays_slower,
    uses_cuda,
    write_restart,
)
from tpmon.report.capture import write_capture
from tpmon.report.text import Output, complain

STEPS = 5
MOST_STEPS = 1_000
SECONDS = 60.0
NICENESS = 10
"""Of what packs a trace: the training beside it comes first."""

_WARNS = (
    "--memory: torch warns on the run's standard error, once in a thousand, of memory that is freed and was"
    " allocated before"
)
_AROUND = LoopAround(
    watch=lambda process: watch_clocks([process]),
    memory_left=read_memory_left,
    stays_slower=stays_slower,
    runs_cuda_11=runs_cuda_11,
)


@dataclass(frozen=True, slots=True)
class CaptureCommand:
    """Hold what one call asks for."""

    ranks: Applicable[int]
    every: bool
    steps: int
    seconds: float
    at: Applicable[int]
    out: str
    stacks: bool
    shapes: bool
    memory: bool
    kind: CaptureKind
    by_seconds: bool = False
    named_seconds: bool = False
    yes: bool = False


def parse_asked(given: Mapping[str, Any], options: Options) -> CaptureCommand:
    """Check what was typed before anything is looked at.

    Raises:
        UsageError: for a number that cannot be, options that exclude each other, and beside --readonly.
    """
    if options.readonly:
        raise UsageError(
            "capture has the training record itself, and --readonly forbids that", "leave one of the two out"
        )
    rank, every = given.get("rank"), bool(given.get("all_ranks"))
    if rank is not None and every:
        raise UsageError("--rank and --all-ranks exclude each other", "leave one of the two out")
    snapshot, nsys = bool(given.get("snapshot")), bool(given.get("cuda_profiler"))
    if snapshot and nsys:
        raise UsageError("--snapshot and --cuda-profiler exclude each other", "capture one after the other")
    kind = CaptureKind.SNAPSHOT if snapshot else CaptureKind.NSYS_RANGE if nsys else CaptureKind.TRACE
    details = [flag for flag in ("stacks", "shapes", "memory") if given.get(f"with_{flag}")]
    if details and kind is not CaptureKind.TRACE:
        raise UsageError(f"--{details[0]} belongs to a trace", f"leave --{details[0]} out")
    by_seconds = "seconds" in given and "steps" not in given
    most = str(MOST_STEPS if by_seconds else STEPS)
    return CaptureCommand(
        ranks=_parse_number("--rank", rank, 0, 1_000_000) if rank is not None else NOT_APPLICABLE,
        every=every,
        steps=_parse_number("--steps", given.get("steps", most), 1, MOST_STEPS),
        seconds=_parse_seconds(given.get("seconds")),
        at=_parse_number("--at", given["at"], 1, 1 << 60) if "at" in given else NOT_APPLICABLE,
        out=given.get("out", ""),
        stacks="stacks" in details,
        shapes="shapes" in details,
        memory="memory" in details,
        kind=kind,
        by_seconds=by_seconds,
        named_seconds="seconds" in given,
        yes=bool(given.get("yes")),
    )


def _parse_number(flag: str, text: str, low: int, high: int) -> int:
    if not text.isdecimal() or len(text) > 18 or not low <= int(text) <= high:
        raise UsageError(
            f"{flag}: expected a whole number from {low} to {high}, found {text!r}", "tpmon capture --help"
        )
    return int(text)


def _parse_seconds(text: str | None) -> float:
    if text is None:
        return SECONDS
    from tpmon.settings import parse_duration  # noqa: PLC0415

    seconds = parse_duration(text)
    if seconds is None or not 0.1 <= seconds <= LONGEST_S:
        raise UsageError(
            f"--seconds: expected 0.1 to {LONGEST_S:g}, found {text!r}", "tpmon capture PID --seconds 10"
        )
    return seconds


def choose_ranks(job: Job, asked: CaptureCommand) -> tuple[Member, ...]:
    """Return the ranks to capture: all, the one named, else that of the PID, else the lowest here.

    Raises:
        UsageError: for a rank that is not on this machine, or a job without one.
    """
    ranks = [one for one in job.members if one.role is Role.RANK]
    ranks.sort(key=lambda one: (one.rank if is_known(one.rank) else 1 << 30, one.identity.pid))
    if not ranks:
        raise UsageError(
            f"the job of pid {job.asked_pid} has no rank on this machine", "tpmon ps lists the jobs"
        )
    if asked.every:
        return tuple(ranks)
    if is_known(asked.ranks):
        named = tuple(one for one in ranks if one.rank == asked.ranks)
        if not named:
            raise UsageError(
                f"--rank: rank {asked.ranks} is not on this machine", f"tpmon attach {job.root.pid}"
            )
        return named
    mine = {
        one.rank_pid if is_known(one.rank_pid) else one.identity.pid
        for one in job.members
        if one.identity.pid == job.asked_pid
    }
    return tuple(one for one in ranks if one.identity.pid in mine) or (ranks[0],)


def run_capture(job: Job, options: Options, asked: CaptureCommand, output: Output) -> int:
    """Capture, write what came of it, and return the exit code.

    Raises:
        TpmonError: saying why where nothing can be captured.
    """
    complain("tpmon: Ctrl-C ends it without a file")
    agreed = agree_always if asked.yes else ask_where_dear
    result, summaries = capture_job(job, asked, lambda text: complain(f"tpmon: {text}"), agreed=agreed)
    if options.json:
        output.write_json(encode(result))
    else:
        output.write_lines(*write_capture(result, summaries, socket.gethostname()))
    return pick_exit_code(result.state)


def ask_where_dear(stage: CaptureStage, said: Sequence[str]) -> bool:
    """Agree to every price but a dear one: of that ask whoever sits at the terminal.

    Raises:
        UsageError: where nobody sits there, or it is no yes.
    """
    if stage is not CaptureStage.DEAR:
        return True
    if os.isatty(0) and os.isatty(2):
        complain(f"tpmon: {said[1]}; {said[2]}. Record them all the same? [y/N]")
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return True
    raise UsageError(f"nothing was recorded: {said[1]}", f"the same with --yes; {said[2]}")


def capture_job(
    job: Job,
    asked: CaptureCommand,
    tell: Callable[[str], None],
    stopped: Callable[[], bool] = lambda: False,
    *,
    agreed: Agreed = agree_always,
) -> tuple[CaptureResult, tuple[TraceSummary, ...]]:
    """Lead a capture from its ranks to its verified files; ``tell`` gets the price and the progress.

    It is cancelled once whoever asked has ``stopped``, and holds at each price until they have ``agreed``.

    Raises:
        TpmonError: saying why where nothing can be captured.
    """
    members = choose_ranks(job, asked)
    for member in members:
        _check_slot(member, asked)
    name, folder = _choose_place(members[0].identity.pid, job, asked)
    here = locate(members[0].identity.pid, folder).here
    _check_above(here)
    for left in sweep(folder) if here == folder else []:
        tell(f"removed {left}, which a tpmon that was killed left")
    wanted = CaptureAsked(
        kind=asked.kind,
        steps=asked.steps,
        seconds=asked.seconds,
        stacks=asked.stacks,
        shapes=asked.shapes,
        memory=asked.memory,
        at=asked.at,
        folder=folder,
        anew=not asked.out and asked.kind is not CaptureKind.NSYS_RANGE,
        by_seconds=asked.by_seconds,
        named_seconds=asked.named_seconds,
    )
    if asked.memory:
        tell(_WARNS)
    first = members[0]

    def stays() -> bool:
        return bool(asked.out) and not stopped()  # whoever named a folder finds it, also without a file

    if not asked.every:
        with _remove_empty([] if os.path.lexists(folder) else [folder], stays):
            told = try_kineto(
                first.identity,
                first.rank,
                wanted,
                name,
                tell,
                stopped=stopped,
                around=_AROUND,
                agreed=agreed,
            )
            if told:
                return told
    buses = _open_all(members, job)
    places = [_locate(bus, folder) for bus in buses]
    mine = [place.here for place in places if not os.path.lexists(place.here)]
    with contextlib.ExitStack() as stack:
        for bus in buses:
            stack.callback(bus.close)
        stack.enter_context(_remove_empty(mine, stays))
        slower = any(stays_slower(member.identity.pid) for member in members)
        window = CaptureWindow(buses, wanted, name, tell, stopped, agreed=agreed, stays_slower=slower)
        timed = [bus.count_timed_steps() for bus in buses]
        with watch_clocks([bus.process for bus in buses]) as watch:
            outcomes = window.run()
            clocks = watch.read() if any(one.state is CaptureState.VERIFIED for one in outcomes) else NO_GPU
        ranks = window.describe(outcomes)
        tell("reading what was written")
        _step_back()
        moved = [bus for bus, before in zip(buses, timed, strict=True) if bus.count_timed_steps() > before]
        works = {bus.process.pid: IS_TIMED for bus in moved} | dict.fromkeys(watch.busy, IS_BUSY)
        return gather(window.asked, name, ranks, places, window.price, works=works, clocks=clocks)


def _check_above(folder: str) -> None:
    """Refuse a folder in one that is not there, before anything is recorded: only the last one is made.

    Raises:
        UsageError: naming the one that is not there.
    """
    above = os.path.dirname(folder.rstrip("/")) or "/"
    try:
        os.stat(f"{above}/")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"--out: {above} is no folder", f"mkdir -p {shlex.quote(above)}") from error
    except OSError:
        return  # the hook sees more, or says why not


@contextlib.contextmanager
def _remove_empty(folders: list[str], stays: Callable[[], bool]) -> Iterator[None]:
    """Remove folders made for a capture that left no file, unless it came to an end and they stay."""
    ended = False
    try:
        yield
        ended = stays()
    finally:
        if not ended:
            for folder in folders:
                with contextlib.suppress(OSError):  # files lie in it, or it was never made
                    os.rmdir(folder)


def _check_slot(member: Member, asked: CaptureCommand) -> None:
    """Refuse a range that could end the run, and a trace where nsys or another tool records the GPU.

    Raises:
        UsageError: saying which.
    """
    pid = member.identity.pid
    above = read_ancestors(pid)
    if asked.kind is CaptureKind.NSYS_RANGE:
        refusal = judge_nsys(above)
        if refusal:
            again = call_as_owner(pid, "run --nsys -- COMMAND")
            raise UsageError(refusal, f"{again} starts nsys so that it can be asked")
    elif asked.kind is CaptureKind.TRACE and uses_cuda(pid):
        if traces_cuda(above):
            hook = read_hook(member.identity, member.rank)
            raise UsageError(HOLDS_SLOT, advise_on_slot(pid, hook.lacks, above))
        if other := find_other_tool(pid):
            raise UsageError(
                f"{other} in this run holds the GPU's one profiling slot (CUPTI)",
                "start the run again without the tool whose library that is",
            )


def _step_back() -> None:
    """Leave the CPUs to the training: this thread packs what was written, and then ends."""
    thread = threading.get_native_id()
    if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:
        os.setpriority(os.PRIO_PROCESS, thread, NICENESS)


def pick_exit_code(state: CaptureState) -> int:
    """Return 0 where there is a file, 3 where the training ended first, else 2."""
    if state in (CaptureState.DONE, CaptureState.PARTIAL):
        return ExitCode.OK
    return ExitCode.NO_TARGET if state is CaptureState.GONE else ExitCode.USAGE


def _open_all(members: tuple[Member, ...], job: Job) -> list[Bus]:
    """Open the pages of all ranks.

    Raises:
        UsageError: where one has no hook, with how to start the run again.
    """
    buses: list[Bus] = []
    try:
        for member in members:
            buses.append(open_bus(member.identity))
    except NoHookError as error:
        for bus in buses:
            bus.close()
        raise _offer(error, job, member.identity) if not error.try_this else error from None
    except BaseException:
        for bus in buses:
            bus.close()
        raise
    return buses


def _offer(error: NoHookError, job: Job, process: Identity) -> UsageError:
    """Say when the hook comes, or what is possible without one and the line that starts the run with it."""
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


def _choose_place(pid: int, job: Job, asked: CaptureCommand) -> tuple[str, str]:
    """Return the name of the files, and the folder as the training sees it."""
    when = time.strftime("%Y%m%d-%H%M%S")
    name = f"{write_host()}-{job.root.pid}"
    if asked.out:
        return name, os.path.abspath(asked.out)
    apart = locate(pid, "/").here != "/"
    base = "/tmp" if apart else os.getcwd()  # noqa: S108 the one folder that every container has
    return name, os.path.join(base, f"{NEW_FOLDER}{name}-{when}")


def _locate(bus: Bus, folder: str) -> CapturePlace:
    return locate(bus.process.pid, folder)
