"""Lead one window from request to verified files: probe, plan, trigger, progress, end; on one rank or all.

The hooks do the work and bound it themselves: when tpmon is killed in the middle, a capture ends as
asked, and its file is whole. When a training ends in the middle, what is half written is removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tpmon.capture.bus import Bus, Progress
from tpmon.capture.plan import (
    Pace,
    choose_start,
    count_alike,
    fit_seconds,
    known_paces,
    make_cancel,
    make_request,
    mean_step,
    parse_pace,
    say_price,
    size_window,
)
from tpmon.errors import UsageError
from tpmon.hook import wire_capture
from tpmon.model.capture import CaptureAsked, CaptureKind, CapturePrice, CaptureState, RankCapture
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known

_EVERY_S = 0.02
"""How often the bus is read while a capture is under way: a page of memory, and one line of /proc."""

_DISCOVER_S = 5.0
"""A loop that ends no step for so long, and never ended one, is taken for one without steps."""

_WAIT_S = 600.0
"""So long a request may wait for its step; the same is said in docs/capture.md."""

_SPARE_S = 120.0
"""Beyond what was asked: to stop and write 512 MiB while other ranks do the same."""

_AFTER_S = 2.0
"""So long the steps after the window are waited for, which the result compares with those before."""

_NOT_WOKEN = (
    "no signal was sent: SIGURG is not the hook's in that process, and without it the loop cannot be asked"
)

STATES = {
    wire_capture.STATE_REGISTERED: CaptureState.REGISTERED,
    wire_capture.STATE_ARMED: CaptureState.ARMED,
    wire_capture.STATE_WARMING: CaptureState.WARMING,
    wire_capture.STATE_RECORDING: CaptureState.RECORDING,
    wire_capture.STATE_WRITING: CaptureState.WRITING,
    wire_capture.STATE_VERIFIED: CaptureState.VERIFIED,
    wire_capture.STATE_REFUSED: CaptureState.REFUSED,
    wire_capture.STATE_MISSED: CaptureState.MISSED,
    wire_capture.STATE_CANCELLED: CaptureState.CANCELLED,
    wire_capture.STATE_EXPIRED: CaptureState.EXPIRED,
    wire_capture.STATE_FAILED: CaptureState.FAILED,
    wire_capture.STATE_YIELDED: CaptureState.YIELDED,
}
_KINDS = {
    CaptureKind.TRACE: wire_capture.KIND_CAPTURE,
    CaptureKind.SNAPSHOT: wire_capture.KIND_SNAPSHOT,
    CaptureKind.NSYS_RANGE: wire_capture.KIND_RANGE,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Hold how a request ended on one rank."""

    state: CaptureState
    reason: str
    words: tuple[int, ...]


class Window:
    """Lead one capture on the given ranks; ``tell`` gets a line of progress whenever something changes."""

    def __init__(
        self,
        buses: Sequence[Bus],
        asked: CaptureAsked,
        name: str,
        tell: Callable[[str], None],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Ask for nothing yet; ``stopped`` says that whoever asked wants no more of it."""
        self.buses = tuple(buses)
        self.asked = asked
        self.name = name
        self.price: Known[CapturePrice] = Missing("no step was profiled to size it")
        self._tell = tell
        self._stopped = stopped
        self._last_said = ""
        self._before = [_mean_until_now(bus) for bus in self.buses]
        self._probed_ms = [0.0] * len(self.buses)

    def run(self) -> tuple[Outcome, ...]:
        """Go through with it, and return how it ended on each rank.

        An evaluation before the first step looks like a program that does nothing else: where it ends in
        the training within the window, all is asked once more.

        Raises:
            UsageError: when it cannot be, with nothing recorded.
        """
        outcomes = self._go_through()
        if any(one.reason == wire_capture.BEGAN_TO_TRAIN for one in outcomes) and not self._stopped():
            self._say("the loop began to train meanwhile: once more, of its steps")
            outcomes = self._go_through()
        return outcomes

    def _go_through(self) -> tuple[Outcome, ...]:
        paces = self._discover()
        if self.asked.kind is not CaptureKind.TRACE:
            self._say(f"{self.asked.kind.value} of {self.asked.steps} steps")
            return self._fire(paces, self.asked.steps, self.asked.seconds)
        ranks = len(self.buses)
        self._say(
            f"profiling one step{' of each rank' if ranks > 1 else ''} first, to size the rest:"
            " the loop stands still for some milliseconds, longer the first time"
        )
        probes = self._post_all(wire_capture.KIND_PROBE, 1, 0, self.asked.seconds)
        self._probed_ms = [one.words[wire_capture.CAP_PAUSED_NS] / 1e6 for one in probes]
        if any(one.state is not CaptureState.VERIFIED for one in probes):
            return tuple(map(_unfinish, probes))
        sizes = [
            (
                one.words[wire_capture.CAP_EVENTS],
                one.words[wire_capture.CAP_BYTES],
                (one.words[wire_capture.CAP_CHANGED_NS] - one.words[wire_capture.CAP_ENDED_NS]) / 1e6,
            )
            for one in probes
        ]
        price = self.price = size_window(self.asked, sizes)
        if not price.steps and not self.asked.timed:
            raise UsageError(
                f"one step has {max(size[0] for size in sizes):,} events: more than one window may have",
                "leave --stacks, --shapes and --memory out, or mark parts with record_function",
            )
        seconds = fit_seconds(self.asked, price, sizes) if self.asked.timed else self.asked.seconds
        self._say(say_price(price, replace(self.asked, seconds=seconds), ranks))
        paces = known_paces([parse_pace(bus.read_records()) for bus in self.buses])
        return self._fire(paces, price.steps or 1, seconds)

    def describe(self, outcomes: Sequence[Outcome]) -> tuple[RankCapture, ...]:
        """Say what became of each rank, with its steps before, during and after."""
        limit = time.monotonic() + _AFTER_S
        while time.monotonic() < limit and not all(map(self._has_after, self.buses, outcomes)):
            time.sleep(_EVERY_S)
        return tuple(map(_describe, self.buses, outcomes, self._before, self._probed_ms))

    def _has_after(self, bus: Bus, outcome: Outcome) -> bool:
        ended = outcome.words[wire_capture.CAP_CHANGED_NS]
        if not ended or not bus.is_alive():
            return True
        return is_known(mean_step(bus.read_records(), ended, time.monotonic_ns()))

    def _discover(self) -> list[Pace]:
        """Find out where the loops are; one that ends no step is captured by time.

        Raises:
            UsageError: when ranks count differently, or a loop without steps is to be captured by steps.
        """
        limit = time.monotonic() + _DISCOVER_S
        paces = [parse_pace(bus.read_records()) for bus in self.buses]
        while not all(map(is_known, paces)) and time.monotonic() < limit and not self._stopped():
            time.sleep(_EVERY_S)
            paces = [parse_pace(bus.read_records()) for bus in self.buses]
        known = known_paces(paces)
        if len(known) < len(paces):
            if self.asked.kind is not CaptureKind.TRACE or len(self.buses) > 1 or is_known(self.asked.at):
                raise UsageError(
                    "the loop ended no step yet, so none can be captured",
                    "wait for its first step, or call tpmon.hook.step() in it where it ends one",
                )
            self.asked = replace(self.asked, timed=True, seconds=min(self.asked.seconds, 10.0))
            self._say("this loop ends no step that the hook sees: captured by time, woken by SIGURG")
        if len(known) > 1 and not count_alike(known):
            raise UsageError(
                "the ranks do not count the same steps: they were hooked at different times",
                "tpmon capture --rank K takes one of them",
            )
        return known

    def _fire(self, paces: Sequence[Pace], steps: int, seconds: float) -> tuple[Outcome, ...]:
        start = self.asked.at if is_known(self.asked.at) else 0
        if not start and len(self.buses) > 1 and paces:
            start = choose_start(paces)
        if start:
            self._say(f"begins with step {start}{' on all ranks' if len(self.buses) > 1 else ''}")
        return self._post_all(_KINDS[self.asked.kind], steps, start, seconds)

    def _post_all(self, kind: int, steps: int, start: int, seconds: float) -> tuple[Outcome, ...]:
        number = int.from_bytes(os.urandom(7), "little") + 1
        request = make_request(
            number,
            kind,
            self.asked,
            self.name,
            steps=steps,
            start=start,
            seconds=seconds,
            expires_ns=time.monotonic_ns() + round(_WAIT_S * 1e9),
        )
        for bus in self.buses:
            bus.post(request)
        if start and any(self._is_past(bus, start) for bus in self.buses):
            self._cancel(number)
        if self.asked.timed and not all(bus.wake() for bus in self.buses):
            self._cancel(number)
            return tuple(Outcome(CaptureState.REFUSED, _NOT_WOKEN, _NOTHING) for _ in self.buses)
        try:
            return self._follow(number)
        except BaseException:
            self._cancel(number)
            raise

    def _is_past(self, bus: Bus, start: int) -> bool:
        pace = parse_pace(bus.read_records())
        return is_known(pace) and pace.steps > start

    def _cancel(self, number: int) -> None:
        cancel = make_cancel(int.from_bytes(os.urandom(7), "little") + 1, number)
        for bus in self.buses:
            bus.post(cancel)
            if self.asked.timed:
                bus.wake()

    def _follow(self, number: int) -> tuple[Outcome, ...]:
        """Wait until the request ended on every rank."""
        ended: dict[int, Outcome] = {}
        limit = time.monotonic() + _WAIT_S + self.asked.seconds + _SPARE_S
        cancelled = False
        while len(ended) < len(self.buses):
            told = [bus.read_progress(number) for bus in self.buses]
            for at, (bus, progress) in enumerate(zip(self.buses, told, strict=True)):
                if at not in ended and (end := _find_end(bus, number, progress)) is not None:
                    ended[at] = end
            self._say_progress(told)
            late = time.monotonic() > limit
            if (self._stopped() or late) and not cancelled:
                self._cancel(number)
                cancelled = True
                limit = time.monotonic() + _DISCOVER_S
            elif cancelled and late:
                state = CaptureState.CANCELLED if self._stopped() else CaptureState.EXPIRED
                gave_up = Outcome(state, "the loop came to no end of a step", _NOTHING)
                return tuple(ended.get(at, gave_up) for at in range(len(self.buses)))
            time.sleep(_EVERY_S)
        return tuple(ended[at] for at in range(len(self.buses)))

    def _say_progress(self, told: Sequence[Progress | None]) -> None:
        if not any(told):
            self._say_waiting("waiting for the end of a step")
            return
        slowest = min(
            (one for one in told if one is not None), key=lambda one: (one.state, one.words[5], one.words[12])
        )
        words = slowest.words
        state = STATES.get(slowest.state)
        if state is CaptureState.ARMED:
            first = words[wire_capture.CAP_FIRST_STEP]
            waits = "armed" if self.asked.timed else f"armed, begins with step {first}"
            pace = parse_pace(self.buses[0].read_records())
            if is_known(pace) and pace.evaluates:
                waits += ": waits for the next training step, the loop evaluates now"
            self._say_waiting(waits)
        elif state is CaptureState.RECORDING:
            done, all_steps = words[wire_capture.CAP_STEPS_DONE], words[wire_capture.CAP_STEPS_ASKED]
            self._say_waiting(
                "recording" if self.asked.timed else f"recording step {done + 1} of {all_steps}"
            )
        elif state in (CaptureState.WARMING, CaptureState.WRITING):
            self._say_waiting(state.value)

    def _say_waiting(self, text: str) -> None:
        if text != self._last_said:
            self._say(text)

    def _say(self, text: str) -> None:
        self._last_said = text
        self._tell(text)


_NOTHING = (0,) * wire_capture.CAPTURE_WORDS


def _find_end(bus: Bus, number: int, progress: Progress | None) -> Outcome | None:
    if progress is not None and progress.state in wire_capture.FINAL_STATES:
        return Outcome(STATES[progress.state], progress.reason, progress.words)
    words = progress.words if progress is not None else _NOTHING
    if end := bus.find_end():
        return Outcome(*end, words)
    answered, answer = bus.read_answer()
    if answered == number and answer == wire_capture.ANSWER_BUSY:
        return Outcome(CaptureState.BUSY, "another capture is under way there", words)
    if answered == number and answer == wire_capture.ANSWER_UNKNOWN:
        return Outcome(CaptureState.REFUSED, "the hook does not understand this request", words)
    return None


def _mean_until_now(bus: Bus) -> Known[float]:
    return mean_step(bus.read_records(), 0, time.monotonic_ns())


def _unfinish(probe: Outcome) -> Outcome:
    """Tell a rank whose probe was fine, but not that of another, from one that recorded."""
    if probe.state is not CaptureState.VERIFIED:
        return probe
    return Outcome(CaptureState.CANCELLED, "another rank could not be captured", _NOTHING)


def _describe(bus: Bus, outcome: Outcome, before: Known[float], probed_ms: float) -> RankCapture:
    words = outcome.words
    began, ended = words[wire_capture.CAP_BEGAN_NS], words[wire_capture.CAP_ENDED_NS]
    steps = words[wire_capture.CAP_STEPS_DONE]
    records = bus.read_records()
    nothing = Missing("nothing was recorded")
    done = outcome.state is CaptureState.VERIFIED
    after = words[wire_capture.CAP_CHANGED_NS]
    return RankCapture(
        pid=bus.process.pid,
        rank=bus.header.rank if bus.header.rank >= 0 else NOT_APPLICABLE,
        state=outcome.state,
        reason=outcome.reason,
        first_step=words[wire_capture.CAP_FIRST_STEP] if done else nothing,
        steps=steps,
        paused_ms=words[wire_capture.CAP_PAUSED_NS] / 1e6 + probed_ms,
        step_before_ms=before,
        step_during_ms=(ended - began) / 1e6 / steps if done and steps else nothing,
        step_after_ms=mean_step(records, after, time.monotonic_ns()) if done else nothing,
    )
