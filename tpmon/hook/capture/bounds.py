"""Begin a request, bound it in time and memory, and judge where its recording ends."""

from __future__ import annotations

import os
import re
import sys
from time import monotonic_ns

from tpmon.hook.bus import wire, wire_capture
from tpmon.hook.bus.headroom import read_memory_left, read_resident
from tpmon.hook.capture.recorder import MemoryRecorder, Range, Recorder
from tpmon.hook.capture.trace_file import describe_excess
from tpmon.hook.context import GRAPHS, read_ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tpmon.hook.bus.wire_capture import Request
if TYPE_CHECKING:
    from tpmon.hook.bus.wire_capture import Request
    from tpmon.hook.capture.trace_file import CaptureFile
    from tpmon.hook.counters import Counts
if TYPE_CHECKING:
    from typing import Any

    from tpmon.hook.bus.wire_capture import Request
    from tpmon.hook.capture.guard import Guard


def begin_words(words: list[int], request: Request, following: int) -> None:
    """Fill in what is known of a request when it is taken; ``following`` is the loop's next step."""
    asked = request.words
    sequence = words[wire_capture.CAP_SEQUENCE]
    words[:] = [0] * len(words)
    words[wire_capture.CAP_SEQUENCE] = sequence
    words[wire_capture.CAP_REQUEST] = asked[wire_capture.ASK_NUMBER]
    words[wire_capture.CAP_STEPS_ASKED] = asked[wire_capture.ASK_STEPS]
    words[wire_capture.CAP_RSS_BYTES] = read_resident()
    words[wire_capture.CAP_FIRST_STEP] = asked[wire_capture.ASK_START] or following


def is_graph_captured() -> bool:
    """Tell whether a CUDA graph is being captured: to wait for the device, as ends do, would break it."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(GRAPHS) or (
        cuda is not None and bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
    )


def name_obstacle(request: Request, guard: Guard) -> str:
    """Say what forbids a recording just now, "" when nothing does."""
    if is_graph_captured():
        return "a CUDA graph is being captured"
    return guard.name_other() if request.words[wire_capture.ASK_KIND] in wire_capture.PROFILES else ""


def name_tracer(request: Request) -> str:
    """Say that Python stacks would end a profiler of Python's own, "" where they would not.

    torch's tracer takes the one place that Python has for it (PyEval_SetProfile), and does not give it back.
    """
    options = request.words[wire_capture.ASK_OPTIONS]
    if options & wire_capture.OPTION_STACKS and sys.getprofile() is not None:
        return "the program profiles its functions itself, and --stacks would end that"
    return ""


def make_recorder(request: Request) -> Recorder | MemoryRecorder | Range:
    """Return what records a request of this kind."""
    kind = request.words[wire_capture.ASK_KIND]
    if kind == wire_capture.KIND_SNAPSHOT:
        return MemoryRecorder(request.words[wire_capture.ASK_ENTRIES])
    if kind == wire_capture.KIND_RANGE:
        return Range()
    return Recorder(request.words[wire_capture.ASK_OPTIONS])


_MOST_STEPS = 10_000
_LONGEST_NS = 600_000_000_000
_MOST_ENTRIES = 10_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KINDS = (
    wire_capture.KIND_PROBE,
    wire_capture.KIND_CAPTURE,
    wire_capture.KIND_SNAPSHOT,
    wire_capture.KIND_RANGE,
)
_OPTIONS = (
    wire_capture.OPTION_STACKS
    | wire_capture.OPTION_SHAPES
    | wire_capture.OPTION_MEMORY
    | wire_capture.OPTION_TIMED
)


def is_sane(request: wire_capture.Request) -> bool:
    """Tell whether a request asks for something that can be meant."""
    words = request.words
    return (
        words[wire_capture.ASK_KIND] in _KINDS
        and words[wire_capture.ASK_CLOCK] == wire_capture.CLOCK_STEPS
        and (is_timed(request) or 1 <= words[wire_capture.ASK_STEPS] <= _MOST_STEPS)
        and 1 <= words[wire_capture.ASK_LONGEST_NS] <= _LONGEST_NS
        and words[wire_capture.ASK_ENTRIES] <= _MOST_ENTRIES
        and not words[wire_capture.ASK_OPTIONS] & ~_OPTIONS
        and os.path.isabs(request.folder)
        and _NAME.fullmatch(request.name) is not None
    )


def is_timed(request: wire_capture.Request) -> bool:
    """Tell whether a request is bounded by time and not by steps."""
    return bool(request.words[wire_capture.ASK_OPTIONS] & wire_capture.OPTION_TIMED)


_LOOK_NS = 500_000_000
"""How often memory is looked at: a dense loop records 170 MiB in a second."""

_LEAST_LEFT = 128 << 20
"""Bytes that must be left for the run: where others take them, it is the recording that goes."""

_GROWTH = 1 << 30
"""So far the loop's own memory may swing within a step, or by as much as it has: activations come and go."""

_MIB = 1 << 20


class Bounds:
    """Hold how long a recording may take and how far the process may grow meanwhile."""

    __slots__ = ("_began_ns", "_longest_ns", "_looked_ns", "_most", "_resident", "_spare_ns", "_step_ns")

    def __init__(self, request: Request, spare_ns: int) -> None:
        """Begin to count now; when the time is over a step that began ``spare_ns`` ago may still end."""
        words = request.words
        detailed = words[wire_capture.ASK_OPTIONS] & ~wire_capture.OPTION_TIMED
        per_event = wire_capture.EVENT_MEMORY_DETAILED if detailed else wire_capture.EVENT_MEMORY
        self._longest_ns = words[wire_capture.ASK_LONGEST_NS]
        self._spare_ns = spare_ns
        self._resident = read_resident()
        self._most = words[wire_capture.ASK_MOST_EVENTS] * per_event + max(_GROWTH, self._resident)
        self._began_ns = self._looked_ns = self._step_ns = monotonic_ns()

    def begin(self, now: int) -> None:
        """Count from here: the recording began only now."""
        self._began_ns = self._looked_ns = self._step_ns = now

    def step_ended(self, now: int) -> None:
        """Note that a step ended here, and the next one began."""
        self._step_ns = now

    def left_ns(self, now: int) -> int:
        """Return how much of the time that was asked for is left."""
        return self._began_ns + self._longest_ns - now

    def patience_ns(self, now: int) -> int:
        """Return how long the end of a step may still be waited for."""
        return max(self.left_ns(now), self._step_ns + self._spare_ns - now)

    def find_excess(self) -> str:
        """Say that it took too much memory, "" where it did not."""
        grown = read_resident() - self._resident
        if grown > self._most:
            return f"the process grew by {grown // _MIB} MiB meanwhile"
        if read_memory_left() < _LEAST_LEFT:
            return "memory ran short meanwhile"
        return ""

    def look(self, now: int) -> str:
        """Do the same, but seldom enough for each end of a step."""
        if now - self._looked_ns < _LOOK_NS:
            return ""
        self._looked_ns = now
        return self.find_excess()


_SPARE_STEPS = 4
"""A step may take so many mean ones where the time is over: recorded steps are slower, and vary."""

_LONGEST_SPARE_NS = 120_000_000_000
"""But no longer: a mean over few steps may hold minutes of compiling."""


def choose_spare_ns(request: Request, steps: Counts) -> int:
    """Return how long a step may take whose end is waited for when the time is over: some mean steps."""
    words = request.words
    if is_timed(request):
        return 0
    if steps.rule == wire.RULE_BATCH:
        ended = steps.eval_steps
        spent = steps.eval_data_ns + steps.eval_forward_ns + steps.eval_other_ns
    else:
        ended = steps.steps
        spent = steps.data_ns + steps.forward_ns + steps.backward_ns + steps.optimizer_ns + steps.other_ns
    known = _SPARE_STEPS * spent // ended if ended else words[wire_capture.ASK_LONGEST_NS]
    return min(known, _LONGEST_SPARE_NS)


def note_rank(words: list[int]) -> None:
    """Read the rank that names the file, and tell it: the process group may be younger than the pages."""
    words[wire_capture.CAP_RANK] = read_ranks()[0] + 1


_MOST_EVALS = 16
"""Of evaluation, within the one step that is probed."""


class End:
    """Say how a recording ends; ``cut``: in the middle of a step, which counts as none."""

    __slots__ = ("cut", "reason", "state")

    def __init__(self, state: int, reason: str = "", *, cut: bool = False) -> None:
        self.state = state
        self.reason = reason
        self.cut = cut


def judge_validation(
    request: Request, file: CaptureFile, done: int, evals: int, *, ended: bool
) -> End | None:
    """Say whether ``evals`` evaluation steps within a window took the room that its own steps were to have.

    What a probe found is reckoned for each: a step of evaluation has no more events than one of training.
    """
    words = request.words
    kind = words[wire_capture.ASK_KIND]
    if kind == wire_capture.KIND_PROBE and evals > _MOST_EVALS:
        return End(wire_capture.STATE_FAILED, "a validation began within the step: ask again after it")
    if kind != wire_capture.KIND_CAPTURE or is_timed(request) or not evals:
        return None
    if not file.exceeds(done + 1 + evals):
        return None
    return End(wire_capture.STATE_VERIFIED, "a validation left no room for more steps", cut=not ended)


def judge_recording(request: Request, bounds: Bounds, now: int, done: int, ended: bool) -> End | None:
    """Say whether a recording ends here, after ``done`` steps; ``ended``: the last of them just now.

    A window ends at the end of a step, also where its time is over: in the middle of one only where none
    comes for some steps' time.
    """
    words = request.words
    steps = words[wire_capture.ASK_STEPS]
    timed = is_timed(request)
    if ended:
        bounds.step_ended(now)
    if ended and timed:
        return End(wire_capture.STATE_CANCELLED, wire_capture.TAKES_STEPS)
    if ended and done >= steps:
        return End(wire_capture.STATE_VERIFIED)
    if excess := bounds.look(now):
        return End(wire_capture.STATE_FAILED, describe_excess(request, excess))
    if (bounds.left_ns(now) if ended else bounds.patience_ns(now)) > 0:
        return None
    if timed:
        return End(wire_capture.STATE_VERIFIED)
    if words[wire_capture.ASK_KIND] == wire_capture.KIND_PROBE:
        longest_s = words[wire_capture.ASK_LONGEST_NS] / 1e9
        return End(wire_capture.STATE_FAILED, f"one step takes longer than {longest_s:g} s: see --seconds")
    if ended:
        return End(wire_capture.STATE_VERIFIED, f"the time asked for ran out after {done} of {steps} steps")
    reason = "the time ran out within a step: validation, or a stall"
    return End(wire_capture.STATE_VERIFIED, reason, cut=True)
