"""Put together the outcome of a window, on one rank and on all.

A mailbox holds one request. Writing over one that the hook has not read removes it, and writing over a cancel
lets the cancelled recording go on. So tpmon waits until a request is answered, and detects one that was
overwritten all the same.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Any

from tpmon.capture.bus import Bus
from tpmon.capture.files import CapturePlace, clear_parts, describe_snapshot, tell_steps, verify_trace
from tpmon.capture.plan import (
    ENOUGH_STEPS,
    StepPlace,
    count_steps,
    draw_number,
    median_step,
    median_step_of,
    parse_pace,
)
from tpmon.hook.bus import wire, wire_capture
from tpmon.hook.bus.wire_capture import Progress
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, map_known
from tpmon.model.results.capture import (
    CAPTURE_SCHEMA,
    CaptureAsked,
    CapturedFile,
    CaptureKind,
    CapturePrice,
    CaptureResult,
    CaptureState,
    Conditions,
    GpuClocks,
    RankCapture,
    StepTime,
)
from tpmon.model.results.trace import TraceSummary

IS_BUSY = "NVML saw a GPU work for it"
IS_TIMED = "its steps were timed on a GPU meanwhile"
_NOBODY_KNOWS = "CUDA is initialised, and nothing says that a GPU worked meanwhile"
_IS_ON = "the model that it trains is on a GPU"

_BACKENDS = {
    CaptureKind.TRACE: "torch.profiler from the step hook",
    CaptureKind.SNAPSHOT: "allocator history of torch",
    CaptureKind.NSYS_RANGE: "cudaProfilerStart and Stop for nsys",
}


def gather(
    asked: CaptureAsked,
    name: str,
    ranks: Sequence[RankCapture],
    places: Sequence[CapturePlace],
    price: Known[CapturePrice],
    *,
    works: Mapping[int, str],
    clocks: Known[tuple[GpuClocks, ...]],
) -> tuple[CaptureResult, tuple[TraceSummary, ...]]:
    """Verify the files of all ranks; a gap in a trace makes the set partial.

    ``works`` has the evidence, by PID, that a GPU worked for a process; ``clocks`` go into each trace.
    """
    files: list[CapturedFile] = []
    summaries: list[TraceSummary] = []
    notes: list[str] = []
    used: set[int] = set()
    conditions: Known[Conditions] = Missing("no trace was written")
    for rank, place in zip(ranks, places, strict=True):
        number = rank.rank if is_known(rank.rank) else -1
        if rank.state is CaptureState.GONE:
            left = clear_parts(place, name, number)
            notes += [f"removed {removed}, which was not whole" for removed in left]
        if rank.state is not CaptureState.VERIFIED:
            continue  # a live hook removes its own files, and another capture may be under way
        if asked.kind is CaptureKind.NSYS_RANGE or not is_known(rank.first_step):
            continue
        try:
            if asked.kind is CaptureKind.SNAPSHOT:
                files.append(describe_snapshot(place, name, number, rank.first_step))
                continue
            beside = tell_steps(rank)
            file, summary, told = verify_trace(place, name, number, rank.first_step, clocks, steps=beside)
        except OSError as error:
            notes.append(f"rank {number}: {error.strerror or error}: {error.filename or place.here}")
            continue
        files.append(file)
        conditions = told if not is_known(conditions) else conditions
        if isinstance(summary, Missing):
            notes.append(f"{os.path.basename(file.host_path)}: {summary.reason}")
        else:
            summaries.append(summary)
            notes += _judge(asked, rank, summary)
            if not summary.kernels:
                why = works.get(rank.pid) or find_use(rank, told)
                used.update([rank.pid] if why else [])
                notes += note_kernels(why, told)
    reasons = {rank.reason for rank in ranks if rank.reason}
    result = CaptureResult(
        schema=CAPTURE_SCHEMA,
        state=judge_end(asked, ranks, files, used),
        backend=_BACKENDS[asked.kind],
        folder=asked.folder,
        files=tuple(files),
        ranks=tuple(ranks),
        conditions=conditions,
        price=price,
        paused_ms=max((one.paused_ms for one in ranks if is_known(one.paused_ms)), default=0.0),
        notes=(*sorted(reasons), *notes),
    )
    return result, tuple(summaries)


def judge_end(
    asked: CaptureAsked,
    ranks: Sequence[RankCapture],
    files: Sequence[CapturedFile],
    used: Collection[int] = (),
) -> CaptureState:
    """Return how a capture ended: done, partial, or the state of the first rank.

    ``used`` are the processes that had a GPU work meanwhile: their traces are not whole without a kernel.
    """
    good = [rank for rank in ranks if rank.state is CaptureState.VERIFIED]
    if not good:
        return ranks[0].state if ranks else CaptureState.FAILED
    if asked.kind is CaptureKind.NSYS_RANGE:
        return CaptureState.DONE if len(good) == len(ranks) else CaptureState.PARTIAL
    if not files:
        return CaptureState.FAILED  # notes say why none could be read
    whole = len(files) == len(ranks) and len({rank.first_step for rank in good}) == 1
    if asked.kind is CaptureKind.TRACE and not asked.timed:
        whole = whole and all(file.steps == rank.steps for file, rank in zip(files, good, strict=False))
    if asked.kind is CaptureKind.TRACE:
        pairs = zip(files, good, strict=False)
        whole = whole and not any(file.kernels == 0 and rank.pid in used for file, rank in pairs)
    return CaptureState.DONE if whole else CaptureState.PARTIAL


def find_use(rank: RankCapture, conditions: Known[Conditions]) -> str:
    """Return the evidence in a trace that a GPU worked, "" for none; initialised CUDA proves nothing."""
    if not is_known(conditions) or not rank.steps or conditions.mode != "training":
        return ""
    return _IS_ON if is_known(conditions.device) and conditions.device.startswith("cuda") else ""


def note_kernels(why: str, conditions: Known[Conditions]) -> list[str]:
    """Return a note on a trace without a kernel: ``why`` it should have some, or that nobody knows."""
    if why:
        return [f"no GPU kernel in the trace, although {why}: another tool may hold CUPTI"]
    if is_known(conditions) and is_known(conditions.gpu) and conditions.gpu:
        return [f"no GPU kernel in the trace; {_NOBODY_KNOWS}"]
    return []


def _judge(asked: CaptureAsked, rank: RankCapture, summary: TraceSummary) -> list[str]:
    found = []
    if not asked.timed and summary.steps != rank.steps:
        found.append(f"the trace holds {summary.steps} steps, and {rank.steps} were recorded")
    if summary.lost.events or summary.lost.broken_off:
        found.append(f"not all of the trace could be read: {summary.lost.reason}")
    return found


_NAMES = {value: name for name, value in vars(wire_capture).items() if name.startswith("STATE_")}
STATES = {value: CaptureState[name[6:]] for value, name in _NAMES.items() if value != wire_capture.STATE_NONE}
NOTHING = wire_capture.Progress()
ANOTHER_RANK = "another rank could not be captured"
_NOT_HEARD = "it was taken back before the hook heard of it"


@dataclass(frozen=True, slots=True)
class CaptureOutcome:
    """Hold how a request ended on one rank."""

    state: CaptureState
    reason: str
    told: Progress

    @property
    def size(self) -> tuple[int, int, float]:
        """Return events and bytes written, and the ms that writing took."""
        told = self.told
        return told.events, told.bytes, (told.changed_ns - told.ended_ns) / 1e6


class LoopTurn(Enum):
    """Tell whether a request may be written into a mailbox."""

    FREE = "free"
    ENDING = "a cancel was not heard yet"
    TAKEN = "another request was not heard yet"


def judge_turn(bus: Bus, now_ns: int) -> LoopTurn:
    """Tell whether a request may be written without overwriting one that somebody waits for."""
    asked = bus.read_asked()
    if asked is None or bus.read_answer()[0] == asked.number:
        return LoopTurn.FREE
    if asked.kind == wire_capture.KIND_CANCEL:
        progress = bus.read_progress(asked.subject)
        under_way = progress is not None and progress.state not in wire_capture.FINAL_STATES
        return LoopTurn.ENDING if under_way else LoopTurn.FREE
    if bus.is_left(asked):
        return LoopTurn.FREE
    return LoopTurn.TAKEN if asked.expires_ns > now_ns else LoopTurn.FREE


def find_end(
    bus: Bus, number: int, progress: Progress | None, *, cancel: int = 0, seen: bool = False
) -> CaptureOutcome | None:
    """Return how a request ended, None while it may go on.

    ``cancel`` is the number of its cancel, 0 for none; ``seen``: the hook wrote a progress of it before.
    """
    if progress is not None and progress.state in wire_capture.FINAL_STATES:
        return CaptureOutcome(STATES[progress.state], progress.reason, progress)
    told = progress if progress is not None else NOTHING
    if end := bus.find_end():
        return CaptureOutcome(*end, told)
    answered, answer = bus.read_answer()
    if answered == number and answer == wire.ANSWER_BUSY:
        return CaptureOutcome(CaptureState.BUSY, "another capture is under way there", told)
    if answered == number and answer == wire.ANSWER_UNKNOWN:
        return CaptureOutcome(CaptureState.REFUSED, "the hook does not understand this request", told)
    if progress is not None or not _is_lost(bus, number, answered):
        return None
    if cancel:
        return CaptureOutcome(CaptureState.CANCELLED, _NOT_HEARD, told)
    if seen:
        why = "another capture began before tpmon heard of its end"
        return CaptureOutcome(CaptureState.FAILED, why, told)
    return CaptureOutcome(CaptureState.BUSY, "another capture was asked for at the same time", told)


def has_lost_cancel(bus: Bus, cancel: int) -> bool:
    """Tell whether another request overwrote a cancel, and was answered."""
    number = bus.read_asked_number()
    return number not in (0, cancel) and number == bus.read_answer()[0]


def _is_lost(bus: Bus, number: int, answered: int) -> bool:
    """Tell whether another request overwrote ours and was answered, and the hook never took ours.

    Read in this order: the hook writes the progress of a request before it answers the next.
    """
    asked = bus.read_asked_number()
    return asked not in (0, number) and asked == answered and bus.tells_of_another(number)


_EVERY_S = 0.02
_MOST_RECORDS = 1024
"""All that the hook keeps."""

_LEAST_AFTER_S = 2.0
_MOST_AFTER_S = 60.0
"""The bounds of the wait for steps after a window."""

_STEPS_AFTER = 3
"""Within them it is as long as so many steps took before: one needs two ends, and they vary."""

_LONG_ENOUGH_NS = 1_000_000_000
"""After it a median of fewer steps than ``ENOUGH_STEPS`` is taken."""


@dataclass(frozen=True, slots=True)
class EndedWindow:
    """Hold when a window ended on a rank, and how long its steps took before."""

    bus: Bus
    at_ns: int
    before: Known[StepTime]

    @property
    def patience_s(self) -> float:
        """Return how long to wait for the steps after it."""
        if not is_known(self.before):
            return _LEAST_AFTER_S
        return min(_MOST_AFTER_S, max(_LEAST_AFTER_S, _STEPS_AFTER * self.before.ms / 1000))

    def is_told(self) -> bool:
        """Tell whether the steps after it are known, or never will be."""
        if not self.bus.is_alive():
            return True
        after = self.measure_after()
        long = time.monotonic_ns() - self.at_ns > _LONG_ENOUGH_NS
        return is_known(after) and (long or after.steps >= ENOUGH_STEPS)

    def measure_after(self) -> Known[StepTime]:
        """Return the median step since the window ended."""
        return median_step(self.bus.read_records(), self.at_ns, time.monotonic_ns())


def await_steps_after(
    windows: Sequence[EndedWindow], tell: Callable[[str], None], stopped: Callable[[], bool]
) -> None:
    """Wait until each rank ended some steps after its window, at most as long as the slowest may need."""
    wait_s = max((window.patience_s for window in windows), default=0.0)
    if wait_s > _LEAST_AFTER_S:
        tell(f"the window is over; waits for steps after it, {wait_s:.0f} s at most")
    limit = time.monotonic() + wait_s
    while time.monotonic() < limit and not stopped() and not all(window.is_told() for window in windows):
        time.sleep(_EVERY_S)


def describe_rank(
    bus: Bus, outcome: CaptureOutcome, before: Known[StepTime], probed_ms: float
) -> RankCapture:
    """Describe the outcome on one rank, with its steps before, during and after."""
    told = outcome.told
    records = bus.read_records(_MOST_RECORDS)
    nothing = Missing("nothing was recorded")
    done = outcome.state is CaptureState.VERIFIED
    during: Known[StepTime] = nothing
    after: Known[StepTime] = nothing
    if done:
        during = _measure_during(records, told)
        after = median_step(records, told.changed_ns, time.monotonic_ns())
    # The rank that names the file: the pages may be older than the process group.
    rank = told.rank - 1 if told.rank else bus.header.rank
    return RankCapture(
        pid=bus.process.pid,
        rank=rank if rank >= 0 else NOT_APPLICABLE,
        state=outcome.state,
        reason=outcome.reason,
        first_step=told.first_step if done else nothing,
        steps=told.steps_done,
        paused_ms=told.paused_ns / 1e6 + probed_ms,
        step_before_ms=map_known(lambda step: step.ms, before),
        step_during_ms=map_known(lambda step: step.ms, during),
        step_after_ms=map_known(lambda step: step.ms, after),
        steps_before=count_steps(before),
        steps_after=count_steps(after),
    )


def _measure_during(records: Sequence[Sequence[int]], told: Progress) -> Known[StepTime]:
    """Return the median step of a window, the mean where steps are too short for records of their own."""
    if not told.steps_done:
        return Missing("no step ended in the window")
    during = median_step_of(records, told.first_step, told.steps_done)
    mean_ms = (told.ended_ns - told.began_ns) / 1e6 / told.steps_done
    return during if is_known(during) else StepTime(mean_ms, told.steps_done)


def read_steps(bus: Bus) -> int:
    """Return how many steps of a loop have ended."""
    pace = parse_pace(bus.read_records())
    return pace.steps if is_known(pace) else 0


ANSWERS_S = 3.0
"""How long to wait for the end of a step, where the hook looks at its mailbox."""

_NOT_YET = Missing(f"no step ended within {ANSWERS_S:.0f} s, at whose end the hook writes it")
_GONE = Missing("the process ended before its hook wrote it")
_BUSY = Missing("the hook had another capture to do, and did not write it")
_OLDER = Missing("the hook of this run does not write it: it is of an older tpmon")
_NO_ROOM = Missing("the hook wrote more than fits")
_ODD = Missing("what the hook wrote could not be read")


def ask_conditions(bus: Bus, limit_s: float = ANSWERS_S) -> Known[dict[str, Any]]:
    """Return the conditions by the names that the hook writes into its own traces.

    The first time the loop pauses while the hook looks for the model among the objects of Python: 20 to 50 ms
    for each 100,000 of them.
    """
    return _ask(bus, wire_capture.KIND_DESCRIBE, limit_s)


def ask_counts(bus: Bus) -> Known[StepPlace]:
    """Return how many steps ended, and how many collectives began until then, at the end of a step."""
    told = _ask(bus, wire_capture.KIND_COUNTS, ANSWERS_S)
    if isinstance(told, Missing):
        return told
    steps, collectives = told.get("steps"), told.get("collectives")
    if isinstance(steps, int) and isinstance(collectives, int):
        return StepPlace(steps, collectives)
    return _ODD


def _ask(bus: Bus, kind: int, limit_s: float) -> Known[dict[str, Any]]:
    limit = time.monotonic() + limit_s
    if judge_turn(bus, time.monotonic_ns()) is not LoopTurn.FREE:
        return _BUSY
    number = draw_number()
    until = time.monotonic_ns() + round(limit_s * 1e9)
    bus.post(wire_capture.Request(number, kind, expires_ns=until))
    while (told := bus.read_answer())[0] != number:
        if not bus.is_alive():
            return _GONE
        if time.monotonic() > limit:
            return _NOT_YET
        time.sleep(_EVERY_S)
    if told[1] != wire.ANSWER_DONE:
        return _BUSY if told[1] == wire.ANSWER_BUSY else _OLDER
    text = wire_capture.parse_told(bus.page, number)
    if not text:
        return _NO_ROOM
    try:
        conditions = json.loads(text)
    except (ValueError, RecursionError):
        return _ODD
    return conditions if isinstance(conditions, dict) else _ODD
