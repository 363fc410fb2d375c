"""Capture with kineto's own thread, and put together what came of it; a hook beside it tells step times."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

from tpmon.capture.bus import Bus, open_bus
from tpmon.capture.kineto_daemon import TakenError
from tpmon.capture.kineto_target import KinetoClient, find_client
from tpmon.capture.kineto_window import KinetoWindow, Recorded
from tpmon.capture.plan import mean_step
from tpmon.capture.summary import read_summary
from tpmon.errors import TpmonError
from tpmon.model.capture import (
    CAPTURE_SCHEMA,
    CaptureAsked,
    CapturedFile,
    CaptureKind,
    CaptureResult,
    CaptureState,
    RankCapture,
)
from tpmon.model.known import Applicable, Known, Missing, is_known
from tpmon.model.process import Identity
from tpmon.model.trace import TraceSummary

BACKEND = "kineto on demand, from a thread of its own"
_AFTER_S = 2.0
_UNNUMBERED = Missing("kineto does not number the steps of the run")
_NOT_TOLD = Missing("kineto writes none: they come with the hook")
_NOT_STOPPED = Missing(
    "kineto stops and writes in a thread of its own; nobody measured what the loop felt of it"
)
_NO_HOOK = Missing("no hook tells the steps of this run")


def try_kineto(
    process: Identity,
    rank: Applicable[int],
    asked: CaptureAsked,
    name: str,
    tell: Callable[[str], None],
    *,
    stopped: Callable[[], bool],
) -> tuple[CaptureResult, tuple[TraceSummary, ...]] | None:
    """Have kineto record one rank where its thread runs; None where the hook is to do it.

    With a hook kineto records where the run was started for it. It records traces alone, from the next update
    on: it can be told no step of the run.

    Raises:
        TakenError: where somebody else answers kineto, and there is no hook either.
        UsageError: where not even one update fits into a window.
    """
    client = find_client(process)
    if isinstance(client, Missing) or asked.kind is not CaptureKind.TRACE or is_known(asked.at):
        return None
    bus = _find_bus(process)
    if bus is not None:
        bus.close()
        if not client.is_ours:
            return None
    try:
        tell(f"back end: {BACKEND}")
        return capture_by_kineto(client, rank, asked, name, tell, stopped=stopped)
    except TakenError as error:
        if bus is None:
            raise
        tell(f"{error.what}; torch.profiler records from the step hook instead")
        return None


def capture_by_kineto(
    client: KinetoClient,
    rank: Applicable[int],
    asked: CaptureAsked,
    name: str,
    tell: Callable[[str], None],
    *,
    stopped: Callable[[], bool],
) -> tuple[CaptureResult, tuple[TraceSummary, ...]]:
    """Have kineto record, and verify what it wrote; given up once whoever asked has ``stopped``.

    Raises:
        TakenError: where somebody else answers it, before anything was asked of it.
        UsageError: where not even one update fits into a window.
    """
    window = KinetoWindow(client, asked, tell, stopped)
    bus = _find_bus(client.process)
    try:
        before = mean_step(bus.read_records(), 0, time.monotonic_ns()) if bus is not None else _NO_HOOK
        recorded = window.run()
        ended = time.monotonic_ns()
        file, summary, notes = _keep(recorded, rank, asked, name, tell)
        after = _wait_after(bus, ended) if file is not None else Missing("nothing was recorded")
    finally:
        window.close()
        if bus is not None:
            bus.close()
    done = file is not None and isinstance(summary, TraceSummary)
    steps = summary.steps if isinstance(summary, TraceSummary) else 0
    wanted = window.price.steps if is_known(window.price) else asked.steps
    state = recorded.state
    if recorded.state is CaptureState.VERIFIED:
        state = CaptureState.DONE if done and steps == wanted else CaptureState.PARTIAL
        state = state if file is not None else CaptureState.FAILED
    during = summary.step_ms if isinstance(summary, TraceSummary) else Missing("nothing was recorded")
    member = RankCapture(
        pid=client.process.pid,
        rank=rank,
        state=recorded.state,
        reason=recorded.reason,
        first_step=_UNNUMBERED,
        steps=steps,
        paused_ms=_NOT_STOPPED,
        step_before_ms=before,
        step_during_ms=during,
        step_after_ms=after,
    )
    result = CaptureResult(
        schema=CAPTURE_SCHEMA,
        state=state,
        backend=BACKEND,
        folder=asked.folder,
        files=(file,) if file is not None else (),
        ranks=(member,),
        conditions=_NOT_TOLD,
        price=window.price,
        paused_ms=_NOT_STOPPED,
        notes=tuple(note for note in (recorded.reason, *notes) if note),
    )
    return result, (summary,) if isinstance(summary, TraceSummary) else ()


def _keep(
    recorded: Recorded, rank: Applicable[int], asked: CaptureAsked, name: str, tell: Callable[[str], None]
) -> tuple[CapturedFile | None, TraceSummary | Missing, list[str]]:
    """Mark the steps of what kineto wrote, pack it under its name, and sum it up."""
    nothing = Missing("nothing was recorded")
    if recorded.state is not CaptureState.VERIFIED:
        return None, nothing, []
    tell("reading what was written")
    who = f"-rank{rank}" if is_known(rank) else ""
    file = f"{name}{who}-kineto-{time.strftime('%H%M%S')}.pt.trace.json.gz"
    path = os.path.join(asked.folder, file)
    said = mark_steps(recorded.path, f"{path}.part", asked.steps)
    count, _, why = said.partition(" ")
    is_written = count.isdecimal()
    notes = (
        [] if is_written and int(count) else [f"no step could be marked in it: {why if is_written else said}"]
    )
    if not is_written:
        return None, nothing, notes
    os.rename(f"{path}.part", path)
    summary = read_summary(path)
    unread = Missing(summary.reason) if isinstance(summary, Missing) else None
    if unread is not None:
        notes.append(f"{file}: {unread.reason}")
    captured = CapturedFile(
        path=path,
        host_path=path,
        rank=rank,
        first_step=_UNNUMBERED,
        steps=summary.steps if isinstance(summary, TraceSummary) else Missing("it could not be read"),
        events=summary.events if isinstance(summary, TraceSummary) else Missing("it could not be read"),
        kernels=summary.kernels if isinstance(summary, TraceSummary) else Missing("it could not be read"),
        bytes=os.stat(path).st_size,
        kind=CaptureKind.TRACE,
    )
    return captured, summary, notes


def mark_steps(source: str, target: str, most: int) -> str:
    """Have a niced child mark and pack a trace; return how many marks and why none, or what went wrong."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = (
        "import sys; "
        "sys.path[:] = [path for path in sys.path if path]; "
        f"sys.path[len(sys.path):] = [path for path in [{root!r}] if path not in sys.path]; "
        "from tpmon.trace.updates import main; sys.exit(main(*sys.argv[1:]))"
    )
    try:
        with subprocess.Popen(
            (sys.executable, "-c", code, source, target, str(most)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the terminal may be the screen's
            start_new_session=True,
        ) as child:
            if child.stdout is None:
                raise AssertionError("the child was started with a pipe")
            text = child.stdout.read()
    except OSError as error:
        return error.strerror or str(error)
    return text.decode("utf-8", "replace").strip() or f"ended with {child.returncode}"


def _find_bus(process: Identity) -> Bus | None:
    try:
        return open_bus(process)
    except TpmonError:
        return None


def _wait_after(bus: Bus | None, ended_ns: int) -> Known[float]:
    if bus is None:
        return _NO_HOOK
    limit = time.monotonic() + _AFTER_S
    while True:
        found = mean_step(bus.read_records(), ended_ns, time.monotonic_ns())
        if is_known(found) or time.monotonic() > limit or not bus.is_alive():
            return found
        time.sleep(0.02)
