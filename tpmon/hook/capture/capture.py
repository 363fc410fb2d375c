"""Take a request through its states: so many steps recorded, one file, the loop as it was.

Called at the end of each step while a request is under way, and never otherwise. One request at a time. Any
process of the user can write the mailbox, so numbers are bounded here again, and the path is checked. A
recording begins and ends in the training thread, never beside a profiler of the program, never in a forked
child. Nothing raises into the loop: an error of our own ends capturing for good and goes to the bus; steps
are counted on.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from contextlib import suppress
from time import monotonic_ns

from tpmon.hook.bus import wire, wire_capture
from tpmon.hook.bus.pages import keep_for_ever
from tpmon.hook.capture.bounds import (
    Bounds,
    End,
    begin_progress,
    choose_spare_ns,
    is_by_collectives,
    is_graph_captured,
    is_sane,
    judge_recording,
    judge_validation,
    make_recorder,
    name_obstacle,
    name_tracer,
)
from tpmon.hook.capture.conditions import describe_run
from tpmon.hook.capture.guard import Guard, is_recording
from tpmon.hook.capture.trace_file import CaptureFile
from tpmon.hook.context import count_collectives, describe, is_of_torch, is_ours, read_ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tpmon.hook.bus.wire_capture import Request
    from tpmon.hook.capture.recorder import MemoryRecorder, Range, Recorder
    from tpmon.hook.counters import Counts

_YIELDED = "the program began a profile of its own"


class Capture:
    """Hold the request under way and what is recorded for it; ``failure`` of another thread ends it."""

    def __init__(self, steps: Counts, ring: Callable[[], bool], hush: Callable[[], None]) -> None:
        """Wait for the first request; ``ring`` has ``woken`` called when it is due, until ``hush``."""
        self._steps = steps
        self._ring = ring
        self._hush = hush
        self._busy = False
        self.guard = Guard(self._yield, self._follow_no_more)
        self._sizes: dict[int, tuple[int, int, int]] = {}
        self._broken = ""
        self.failure: Exception | None = None
        self._told = wire_capture.Progress()
        self.under_way: Request | None = None
        self._bounds: Bounds | None = None
        self._recorder: Recorder | MemoryRecorder | Range | None = None
        self._file: CaptureFile | None = None
        self._forget()

    def at_boundary(self, within: bool = False) -> None:
        """Do what is due at the end of a step; raise only what a signal handler of the user raised."""
        self._busy = True
        try:
            self._look(within)
        except BaseException as error:
            ours = isinstance(error, Exception) and is_ours(error)
            self.break_off(error, ours)
            if not ours:
                raise
        finally:
            self._busy = False

    def woken(self) -> None:
        """Do what is due between two lines of the loop: begin a window by time, end what is late."""
        pages = self._steps.pages
        if self._busy or pages is None:
            return
        request = self.under_way
        if request is None and pages.requests[0] != self._steps.answered:
            request = wire_capture.parse_request(pages.mailbox)
            if request is not None and not request.is_timed:
                return
        if request is not None:
            self.at_boundary(within=True)

    def left_s(self) -> float:
        """Return in how many seconds the recording must end, at most; called from any thread."""
        pages, bounds, request = self._steps.pages, self._bounds, self.under_way
        if pages is None or bounds is None or request is None or pages.requests[0] != self._heard:
            return 0.0
        ends = bounds.find_excess() or pages.is_left(request)
        return 0.0 if ends else bounds.patience_ns(monotonic_ns()) / 1e9

    def forked(self) -> None:
        """Leave the recording to the parent, and record nothing more in this child."""
        if self._recorder is not None:
            keep_for_ever(self._recorder)  # freeing it would end the parent's recording
            disable: Any = getattr(sys.modules["torch"]._C._autograd, "_enable_record_function", None)  # noqa: SLF001
            if disable is not None:
                disable(False)
        self.guard.ours = None
        self._forget()

    def at_exit(self) -> None:
        """End the request under way with the program."""
        self._drop_out(wire_capture.STATE_CANCELLED, "the program ended")

    def take_back(self) -> None:
        """End the request under way, and put back what was wrapped."""
        self._drop_out(wire_capture.STATE_CANCELLED, "the hook was taken out")
        self.guard.take_back()

    # From request to recording.

    def _look(self, within: bool) -> None:
        if self._recorder is not None and is_graph_captured():
            return  # until a later end of a step, or the next signal
        failure, self.failure = self.failure, None
        if failure is not None:
            self.break_off(failure, ours=True)
            return
        number = self._steps.requests[0]
        if self.under_way is None:
            self._take(number)
        elif number != self._heard:
            self._hear(number)
        if self.under_way is not None:
            self._advance(self.under_way, monotonic_ns(), within)

    def _take(self, number: int) -> None:
        steps, pages = self._steps, self._steps.pages
        request = wire_capture.parse_request(pages.mailbox) if pages is not None else None
        if request is None or request.number != number:
            steps.reply(number, wire.ANSWER_UNKNOWN)
        elif request.kind == wire_capture.KIND_CANCEL:
            steps.reply(number, wire.ANSWER_DONE)
        elif not is_sane(request):
            steps.reply(number, wire.ANSWER_UNKNOWN)
        else:
            self.under_way = request
            self._yields = self._waits = False
            self._heard = number
            self._infers = steps.rule == wire.RULE_BATCH
            self._told = begin_progress(self._told, request, self._position() + 1)
            self._set(wire_capture.STATE_REGISTERED)
            steps.reply(number, wire.ANSWER_TAKEN)
            steps.attend()
            looked = monotonic_ns()
            refusal = self._refuse(request)
            self._told.paused_ns = monotonic_ns() - looked
            if refusal:
                self._end(wire_capture.STATE_REFUSED, refusal)
            else:
                self._set(wire_capture.STATE_ARMED)
            steps.last_ns = monotonic_ns()

    def _hear(self, number: int) -> None:
        """Answer another request while one is under way: cancel ours, or be busy."""
        self._heard = number
        steps = self._steps
        pages = steps.pages
        other = wire_capture.parse_request(pages.mailbox) if pages is not None else None
        answer = wire.ANSWER_BUSY
        if other is None:
            answer = wire.ANSWER_UNKNOWN
        elif other.kind == wire_capture.KIND_CANCEL:
            if other.subject == self._told.request:
                self._drop_out(wire_capture.STATE_CANCELLED, "tpmon asked for it")
            answer = wire.ANSWER_DONE
        steps.reply(number, answer)
        if self.under_way is not None:
            steps.attend()

    def _refuse(self, request: Request) -> str:
        if self._broken:
            return f"capturing disabled itself: {self._broken}"
        if "torch.autograd.profiler" not in sys.modules:
            return "torch is not there"
        self._file = CaptureFile(request, self._sizes)
        refusal = name_tracer(request)
        if request.kind != wire_capture.KIND_RANGE:
            refusal = refusal or self._file.refuse()
        return refusal or self.guard.refuse(request.kind)

    def _advance(self, request: Request, now: int, within: bool) -> None:
        """Begin, go on or end, by the step of the loop; ``within`` one, no step begins or ends."""
        told, timed = self._told, request.is_timed
        position = told.step_now = self._position()
        if self._infers and self._steps.rule != wire.RULE_BATCH and not timed:
            self._infers = False  # that was a validation before the first step: now training steps count
            if self._recorder is not None:
                self._drop_out(wire_capture.STATE_CANCELLED, wire_capture.BEGAN_TO_TRAIN)
                return
            told.first_step = 0 if is_by_collectives(request) else request.start or position + 1
        if self._yields:
            self._drop_out(wire_capture.STATE_YIELDED, _YIELDED)
        elif self._steps.pages is not None and self._steps.pages.is_left(request):
            self._drop_out(wire_capture.STATE_CANCELLED, wire_capture.NOBODY_WAITS)
        elif self._recorder is not None:
            self._go_on(request, now, told.steps_done if within else position - told.first_step)
        elif timed or (not within and self._left(request, position) <= 0):
            if not timed and self._left(request, position) < 0:
                self._end(wire_capture.STATE_MISSED, f"the loop was at step {position} already")
            else:
                self._begin(request, position)
        elif now > request.expires_ns:
            self._end(wire_capture.STATE_EXPIRED, "the loop did not come to that step in time")
        else:
            self._publish()

    def _go_on(self, request: Request, now: int, done: int) -> None:
        told = self._told
        ended = done > told.steps_done
        done = told.steps_done = max(done, told.steps_done)
        if self._recorder is None or self._bounds is None:
            return
        end = judge_recording(request, self._bounds, now, done, ended)
        if end is None and self._file is not None:
            end = judge_validation(request, self._file, done, self._count_evals(), ended=ended)
        if end is None:
            if ended:
                self._recorder.mark(told.first_step + done)
                self._publish()
        elif end.state == wire_capture.STATE_VERIFIED:
            self._finish(end)
        else:
            self._drop_out(end.state, end.reason)

    def _left(self, request: Request, position: int) -> int:
        """Return how far the first step is: 0 is here, less is past."""
        if not is_by_collectives(request):
            return self._told.first_step - position
        left = request.start - count_collectives()
        if left > 0:
            self._waits = True
        return left if left > 0 else 0 if self._waits else -1

    def _position(self) -> int:
        """Return how many steps ended, of training or, where there is none, of inference.

        In a window by collectives as all ranks count them.
        """
        steps = self._steps
        return self._ahead + (steps.eval_steps if steps.rule == wire.RULE_BATCH else steps.steps)

    # Recording.

    def _begin(self, request: Request, position: int) -> None:
        began = monotonic_ns()
        other = name_obstacle(request, self.guard)
        if other:
            self._end(wire_capture.STATE_REFUSED, other)
            return
        self._bounds = Bounds(request, choose_spare_ns(request, self._steps))
        if not self._ring() and request.is_timed:
            self._end(wire_capture.STATE_REFUSED, "the loop cannot be woken: SIGURG is not ours here")
            return
        if is_by_collectives(request):
            self._ahead = request.subject - position
            position = request.subject
        metadata = describe_run(self._steps, position)
        self._recorder = make_recorder(request)
        self._thread = get_ident()
        self._recorder.prepare()
        self.guard.ours = self._recorder.profile
        self._recorder.start(metadata)
        told = self._told
        told.first_step = position
        self._evals = self._steps.eval_steps
        if not request.is_timed:
            self._recorder.mark(position)
        told.began_ns = self._steps.last_ns = monotonic_ns()
        told.paused_ns += told.began_ns - began
        self._bounds.begin(told.began_ns)
        probes = request.kind == wire_capture.KIND_PROBE
        self._set(wire_capture.STATE_WARMING if probes else wire_capture.STATE_RECORDING)

    def _finish(self, end: End) -> None:
        told, recorder = self._told, self._recorder
        told.ended_ns = monotonic_ns()
        if get_ident() != self._thread or recorder is None:
            self._drop_out(wire_capture.STATE_FAILED, "the training goes on in another thread")
            return
        told.rank = read_ranks()[0] + 1  # by now: the process group may be younger than the pages
        self._set(wire_capture.STATE_WRITING)
        recorder.stop()
        self.guard.ours = None
        file = self._file
        try:
            if recorder.ending and file is not None:
                file.write_window(recorder, told, cut=end.cut)
        except (OSError, RuntimeError) as error:
            # The disk or torch failed, not the hook: capturing stays possible.
            if not is_ours(error):
                raise
            self._drop_out(wire_capture.STATE_FAILED, str(error))
            return
        self._recorder = None
        recorder.drop()
        self._steps.last_ns = monotonic_ns()  # the pause belongs to no phase of the loop
        told.paused_ns += self._steps.last_ns - told.ended_ns
        evals = self._count_evals()
        inside = f"{evals} evaluation steps ran within it" if evals else ""
        self._end(wire_capture.STATE_VERIFIED, "; ".join(filter(None, (end.reason, inside))))

    def _count_evals(self) -> int:
        return 0 if self._steps.rule == wire.RULE_BATCH else self._steps.eval_steps - self._evals

    def _yield(self) -> None:
        """Stop before a profiler of the program begins; in another thread, let it wait for that."""
        if get_ident() != self._thread:
            self._yields = True
            if self.guard.await_end():
                return
            self._broken = "a profiler that the program began in another thread had to end a recording"
        self._drop_out(wire_capture.STATE_YIELDED, _YIELDED)

    def _follow_no_more(self, error: Exception) -> None:
        """End ours and all capturing: nobody knows now whether a profiler of the program records."""
        self._broken = describe(error)
        if self._recorder is not None and get_ident() == self._thread:
            self.break_off(error, ours=True)
        elif self._recorder is not None:
            self.failure = error
            self._yield()

    # The ends of a request.

    def _drop_out(self, state: int, reason: str) -> None:
        """End a request that may be recording, without a file."""
        recorder = self._recorder
        if recorder is not None:
            try:
                recorder.stop()
            finally:
                self.guard.ours = None  # not before: a thread that waits for this then begins its own
            self._recorder = None  # not before: after an interrupt this is called again
            recorder.drop()
            if self._file is not None:
                self._file.remove()
        if self.under_way is not None:
            self._end(state, reason)

    def break_off(self, error: BaseException, ours: bool) -> None:
        """End a request after an error, and all capturing where the error is our own and not torch's."""
        reason = describe(error) if ours else f"interrupted by {type(error).__name__}"
        if ours and not is_of_torch(error):
            self._broken = reason
        recorder = self._recorder
        try:
            self._drop_out(wire_capture.STATE_FAILED, reason)
        except Exception as second:
            reason = f"{reason}; then {second}"
            if recorder is not None:
                recorder.abandon()
            keep_for_ever(recorder)
            if not is_of_torch(second) or is_recording():
                self._broken = reason
            with suppress(Exception):
                self._end(wire_capture.STATE_FAILED, reason)
            self._forget()
            self._steps.answered = self._steps.requests[0]

    def _end(self, state: int, reason: str) -> None:
        self._told.reason = reason
        self._set(state)
        self._forget_request()

    def _set(self, state: int) -> None:
        self._told.state = state
        self._told.changed_ns = monotonic_ns()
        self._publish()

    def _publish(self) -> None:
        pages = self._steps.pages
        if pages is not None:
            wire_capture.write_progress(pages.page, self._told)

    def _forget_request(self) -> None:
        self.under_way = self._file = self._bounds = None
        self._ahead = 0
        self._yields = False
        self._steps.answered = self._heard  # look at the mailbox again from the next request on
        self._hush()  # last: it waits, and an alarm of the program may interrupt it

    def _forget(self) -> None:
        self.under_way = self._recorder = self._file = self._bounds = self.failure = None
        self._yields = self._infers = self._waits = False
        self._heard = self._thread = self._evals = self._ahead = 0
        self._told.reason = ""
