"""Begin a request, bound it in time and memory, and judge where its recording ends."""

from __future__ import annotations

import os
import re
import sys
from time import monotonic_ns

from tpmon.hook.bus import wire, wire_capture
from tpmon.hook.bus.headroom import read_memory_left, read_resident
from tpmon.hook.capture.recorder import MemoryRecorder, Range, Recorder
from tpmon.hook.context import GRAPHS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tpmon.hook.bus.wire_capture import Progress, Request
    from tpmon.hook.capture.guard import Guard
    from tpmon.hook.capture.trace_file import CaptureFile
    from tpmon.hook.counters import Counts


def begin_progress(before: Progress, request: Request, following: int) -> Progress:
    """Return the progress of a request when it is taken; ``following`` is the loop's next step."""
    return wire_capture.Progress(
        before.sequence,
        request.number,
        steps_asked=request.steps,
        first_step=0 if is_by_collectives(request) else request.start or following,
        rss_bytes=read_resident(),
    )


def is_by_collectives(request: Request) -> bool:
    """Tell whether a window begins by the count of collectives; its first step is not known before."""
    return request.clock == wire_capture.CLOCK_COLLECTIVES and not request.is_timed


def _is_placed(request: Request) -> bool:
    """Tell whether a window by collectives has a beginning, and a number that can be counted on from."""
    return is_by_collectives(request) and request.start > 0 and request.subject <= _MOST_COUNTED


def is_graph_captured() -> bool:
    """Tell whether a CUDA graph is being captured: waiting for the device would break it."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(GRAPHS) or (
        cuda is not None and bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
    )


def name_obstacle(request: Request, guard: Guard) -> str:
    """Say what forbids a recording now, "" when nothing does."""
    if is_graph_captured():
        return "a CUDA graph is being captured"
    return guard.name_other() if request.kind in wire_capture.PROFILES else ""


def name_tracer(request: Request) -> str:
    """Say that recording stacks would end a profiler of Python functions, "" where it would not.

    torch's tracer takes Python's one slot for that (PyEval_SetProfile), and does not give it back.
    """
    if request.options & wire_capture.OPTION_STACKS and sys.getprofile() is not None:
        return "the program profiles its functions itself, and --stacks would end that"
    return ""


def make_recorder(request: Request) -> Recorder | MemoryRecorder | Range:
    """Return the recorder for a request of this kind."""
    if request.kind == wire_capture.KIND_SNAPSHOT:
        return MemoryRecorder(request.entries)
    return Range() if request.kind == wire_capture.KIND_RANGE else Recorder(request.options)


_MOST_STEPS = 10_000
_MOST_COUNTED = 1 << 60
_LONGEST_NS = 600_000_000_000
_MOST_ENTRIES = 10_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KINDS = (*wire_capture.PROFILES, wire_capture.KIND_SNAPSHOT, wire_capture.KIND_RANGE)


def is_sane(request: Request) -> bool:
    """Tell whether the values of a request are possible ones."""
    return (
        request.kind in _KINDS
        and (request.clock == wire_capture.CLOCK_STEPS or _is_placed(request))
        and (request.is_timed or 1 <= request.steps <= _MOST_STEPS)
        and 1 <= request.longest_ns <= _LONGEST_NS
        and request.entries <= _MOST_ENTRIES
        and not request.options & ~wire_capture.OPTIONS
        and os.path.isabs(request.folder)
        and _NAME.fullmatch(request.name) is not None
    )


_LOOK_NS = 500_000_000
"""Between two looks at the memory: a dense loop records 170 MiB in a second."""

_LEAST_LEFT = 128 << 20
"""Bytes that must be left for the run, or the recording ends."""

_GROWTH = 1 << 30
"""The loop's own memory may grow by this within a step, or double: activations come and go."""

_MIB = 1 << 20


class Bounds:
    """Hold how long a recording may take and how far the process may grow meanwhile."""

    def __init__(self, request: Request, spare_ns: int) -> None:
        """Begin to count now; when the time is over a step may still take ``spare_ns`` from its beginning."""
        self._longest_ns = request.longest_ns
        self._spare_ns = spare_ns
        self._resident = read_resident()
        self._most = wire_capture.reckon_memory(request.options, request.most_events) + max(
            _GROWTH, self._resident
        )
        self._began_ns = self._looked_ns = self._step_ns = monotonic_ns()

    def begin(self, now: int) -> None:
        """Count the time from here: the recording began only now."""
        self._began_ns = self._looked_ns = self._step_ns = now

    def step_ended(self, now: int) -> None:
        """Note that a step ended here, and the next one began."""
        self._step_ns = now

    def left_ns(self, now: int) -> int:
        """Return how much is left of the time asked for."""
        return self._began_ns + self._longest_ns - now

    def patience_ns(self, now: int) -> int:
        """Return how long the end of a step may still be waited for."""
        return max(self.left_ns(now), self._step_ns + self._spare_ns - now)

    def find_excess(self) -> str:
        """Say that the recording took too much memory, "" where it did not."""
        grown = read_resident() - self._resident
        if grown > self._most:
            return f"the process grew by {grown // _MIB} MiB meanwhile"
        if read_memory_left() < _LEAST_LEFT:
            return "memory ran short meanwhile"
        return ""

    def look(self, now: int) -> str:
        """Do the same every half second at most: this is called at each end of a step."""
        if now - self._looked_ns < _LOOK_NS:
            return ""
        self._looked_ns = now
        return self.find_excess()


_SPARE_STEPS = 4
"""A step may take so many mean ones when the time is over: recorded steps are slower, and vary."""

_LONGEST_SPARE_NS = 120_000_000_000
"""At most: a mean over few steps may include minutes of compiling."""


def choose_spare_ns(request: Request, steps: Counts) -> int:
    """Return how long the last step may take when the time is over: some mean steps."""
    if request.is_timed:
        return 0
    if steps.rule == wire.RULE_BATCH:
        ended = steps.eval_steps
        spent = steps.eval_data_ns + steps.eval_forward_ns + steps.eval_other_ns
    else:
        ended = steps.steps
        spent = steps.data_ns + steps.forward_ns + steps.backward_ns + steps.optimizer_ns + steps.other_ns
    known = _SPARE_STEPS * spent // ended if ended else request.longest_ns
    return min(known, _LONGEST_SPARE_NS)


_MOST_EVALS = 16
"""Evaluation steps within the one step that is probed."""


class End:
    """Say how a recording ends; ``cut``: in the middle of a step, which counts as none."""

    def __init__(self, state: int, reason: str = "", *, cut: bool = False) -> None:
        self.state = state
        self.reason = reason
        self.cut = cut


def judge_validation(
    request: Request, file: CaptureFile, done: int, evals: int, *, ended: bool
) -> End | None:
    """End a window in which ``evals`` evaluation steps took the room of its own steps; None to go on.

    Each counts as what a probe found: an evaluation step has no more events than one of training.
    """
    if request.kind == wire_capture.KIND_PROBE and evals > _MOST_EVALS:
        return End(wire_capture.STATE_FAILED, "a validation began within the step: ask again after it")
    if request.kind != wire_capture.KIND_CAPTURE or request.is_timed or not evals:
        return None
    if not file.exceeds(done + 1 + evals):
        return None
    return End(wire_capture.STATE_VERIFIED, "a validation left no room for more steps", cut=not ended)


def judge_recording(request: Request, bounds: Bounds, now: int, done: int, ended: bool) -> End | None:
    """Return how a recording ends here, after ``done`` steps, or None; ``ended``: a step ended just now.

    Even when its time is over a window ends with a step; within one only where it lasts several mean steps.
    """
    if ended:
        bounds.step_ended(now)
    if ended and request.is_timed:
        return End(wire_capture.STATE_CANCELLED, wire_capture.TAKES_STEPS)
    if ended and done >= request.steps:
        return End(wire_capture.STATE_VERIFIED)
    if excess := bounds.look(now):
        probes = request.kind == wire_capture.KIND_PROBE
        what = "one step is too large to record" if probes else "the recording was too large"
        return End(wire_capture.STATE_FAILED, f"{what}: {excess}")
    if (bounds.left_ns(now) if ended else bounds.patience_ns(now)) > 0:
        return None
    if request.is_timed:
        return End(wire_capture.STATE_VERIFIED)
    if request.kind == wire_capture.KIND_PROBE:
        longest_s = request.longest_ns / 1e9
        return End(wire_capture.STATE_FAILED, f"one step takes longer than {longest_s:g} s: see --seconds")
    if ended:
        reason = f"the time asked for ran out after {done} of {request.steps} steps"
        return End(wire_capture.STATE_VERIFIED, reason)
    reason = "the time ran out within a step: validation, or a stall"
    return End(wire_capture.STATE_VERIFIED, reason, cut=True)
