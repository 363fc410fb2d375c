"""Lead one window from request to verified files.

The hooks record and bound it themselves: they cancel it when tpmon is killed. Where a training ends in the
middle, partial files are removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tpmon.capture.bus import Bus
from tpmon.capture.dialog import (
    COUNT_APART,
    UNWANTED,
    CaptureAsker,
    WindowLead,
    say_cut,
    say_of_cuda,
    say_plan,
)
from tpmon.capture.files import make_anew
from tpmon.capture.outcome import (
    ANOTHER_RANK,
    NOTHING,
    STATES,
    CaptureOutcome,
    EndedWindow,
    LoopTurn,
    ask_counts,
    await_steps_after,
    describe_rank,
    find_end,
    has_lost_cancel,
    judge_turn,
    read_steps,
)
from tpmon.capture.plan import (
    ENOUGH_STEPS,
    MOST_BYTES,
    MOST_ENTRIES,
    MOST_EVENTS,
    PROBE_NS,
    MeasuredPace,
    StepPlace,
    check_wait,
    choose_collectives,
    choose_options,
    choose_start,
    count_alike,
    count_steps,
    draw_number,
    fit_seconds,
    fit_steps,
    known_paces,
    mean_step,
    median_before,
    median_step,
    parse_pace,
    say_dear,
    say_length,
    say_price,
    size_window,
    stretch_seconds,
)
from tpmon.errors import UsageError
from tpmon.hook.bus import wire, wire_capture
from tpmon.hook.bus.wire_capture import Progress, Request
from tpmon.model.known import Known, is_known
from tpmon.model.results.capture import (
    CaptureAsked,
    CaptureKind,
    CaptureStage,
    CaptureState,
    RankCapture,
    StepTime,
)

_LEAST_BACKWARDS = 3
"""With so many backwards and no end a loop has no steps; with fewer it may compile in its first one."""


class FirstStep:
    """Watch one loop until its first step ends."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._backwards: set[int] = set()

    def note_backward(self) -> None:
        """Note the backward that ended last."""
        self._backwards.add(wire.parse_live(self._bus.page)[wire.LIVE_BACKWARD_ENDED])

    def has_ended(self) -> bool:
        """Tell whether a step ended."""
        return is_known(parse_pace(self._bus.read_records()))

    def ends_none(self) -> bool:
        """Tell whether backwards follow each other that are no parts of a step.

        With batches of a DataLoader they may be parts, until the hook ends steps by backwards alone. Without
        batches, parts of a step look like steps that nothing ends.
        """
        records = self._bus.read_records(1)
        most = wire.BACKWARDS_WITHOUT_UPDATE
        adds_up = bool(records and records[-1][wire.REC_BATCHES] and records[-1][wire.REC_BACKWARDS] < most)
        return len(self._backwards - {0}) >= _LEAST_BACKWARDS and not adds_up


def say_progress(
    told: Sequence[Progress | None], pace: Callable[[], Known[MeasuredPace]], *, timed: bool
) -> str:
    """Describe the progress of the slowest rank, "" for nothing new; ``pace`` reads its loop."""
    heard = [one for one in told if one is not None]
    if not heard:
        return "waiting for the end of a step"
    slowest = min(heard, key=lambda one: (one.state, one.steps_done, one.step_now))
    state = STATES.get(slowest.state)
    if state is CaptureState.ARMED:
        named = slowest.first_step > 0 and not timed
        waits = f"armed, begins with step {slowest.first_step}" if named else "armed"
        now = pace()
        if is_known(now) and now.evaluates:
            waits += ": waits for the next training step, the loop evaluates now"
        return waits
    if state is CaptureState.RECORDING:
        step = f"step {slowest.steps_done + 1} of {slowest.steps_asked}"
        return "recording" if timed else f"recording {step}"
    return state.value if state in (CaptureState.WARMING, CaptureState.WRITING) else ""


_EVERY_S = 0.02
"""Between two reads of the bus while a capture is under way: a page of memory, and one line of /proc."""

_DISCOVER_S = 5.0
"""A loop that has not ended its first step after so long may be one without steps."""

_WAKE_AGAIN_S = 0.5
"""The signal is repeated until the request is taken: a hook that ends another recording ignores it."""

_ENDS_S = 5.0
"""How long to wait for the end of a cancelled request."""

_PROBE_S = 60.0
"""How long the probed step may take, even where the window is shorter."""

_WAIT_S = 600.0
"""How long a request may wait for its step; docs/capture.md says the same."""

_SPARE_S = 120.0
"""Added to the seconds asked for, to stop and write 512 MiB while other ranks do the same."""

_PAST = "the loop was past that step already"
_NOT_WOKEN = (
    "no signal was sent: SIGURG is not the hook's in that process, and without it the loop cannot be asked"
)

_KINDS = {
    CaptureKind.TRACE: wire_capture.KIND_CAPTURE,
    CaptureKind.SNAPSHOT: wire_capture.KIND_SNAPSHOT,
    CaptureKind.NSYS_RANGE: wire_capture.KIND_RANGE,
}


class CaptureWindow(WindowLead[tuple[CaptureOutcome, ...]]):
    """Lead one capture on the given ranks."""

    def __init__(
        self,
        buses: Sequence[Bus],
        asked: CaptureAsked,
        name: str,
        asker: CaptureAsker,
        *,
        stays_slower: bool = False,
    ) -> None:
        """Ask for nothing yet; ``name`` begins the names of the files."""
        super().__init__(asked, asker, stays_slower=stays_slower)
        self.buses = tuple(buses)
        self._wished = asked
        self.name = name
        self._is_late = any(bus.header.put_in_ns for bus in self.buses)
        """Hooks that were put in by hand count from then on, each from another step."""
        self._before = self._median_steps()
        self._probed_ms = [0.0] * len(self.buses)

    def run(self) -> tuple[CaptureOutcome, ...]:
        """Capture, and return how it ended on each rank; UsageError where nothing can be recorded.

        An evaluation before the first step looks like a program that only evaluates. Where training begins
        within the window, and where a loop seemingly without steps ends one, all is asked once more.
        """
        outcomes = self._go_through()
        if any(one.reason in _AGAIN for one in outcomes) and not self._asker.stopped():
            began = any(one.reason == wire_capture.BEGAN_TO_TRAIN for one in outcomes)
            self._say(f"the loop {'began to train' if began else 'takes steps now'}: once more, of its steps")
            self.asked = self._wished
            outcomes = self._go_through()
        return outcomes

    def _go_through(self) -> tuple[CaptureOutcome, ...]:
        if ended := self._await_steps():
            return ended
        paces = self._discover()
        if is_known(self.asked.at) and (missed := self._find_missed(self.asked.at)):
            return missed
        ranks, first, steps_ms = len(self.buses), self.buses[0], self._mean_steps()
        if is_known(self.asked.at):
            check_wait(self.asked.at, paces, steps_ms, _WAIT_S)
        self.asked = stretch_seconds(fit_steps(self.asked, steps_ms), steps_ms)
        plan = say_plan(
            self.asked,
            first.process.pid,
            first.header.rank,
            steps_ms[0],
            ranks,
            stays_slower=self._stays_slower,
            timeout_s=first.read_timeout_s(),
        )
        if declined := self._await_yes(CaptureStage.PLANNED, plan):
            return declined
        if self.asked.anew:
            make_anew(self.asked.folder, [bus.process.pid for bus in self.buses])
        self._wished = replace(self._wished, anew=False)
        self._before = self._median_steps()
        if cut := say_cut(self.asked, steps_ms[0]):
            self._say(cut)
        if self.asked.kind is not CaptureKind.TRACE:
            for line in plan[2:]:  # its price: no probe sizes it
                self._say(line)
            self._say(f"{self.asked.kind.value} of {say_length(self.asked, self.asked.steps)}")
            paces = known_paces(self._read_paces())
            return self._fire(paces, self.asked.steps, self.asked.seconds)
        for line in say_of_cuda(self._stays_slower, first.read_timeout_s()):
            self._say(line)
        self._say(
            f"profiling one step{' of each rank' if ranks > 1 else ''} first, to size the rest:"
            " the loop pauses for some milliseconds, longer the first time"
        )
        probes = self._post_all(wire_capture.KIND_PROBE, 1, 0, max(self.asked.seconds, _PROBE_S))
        self._probed_ms = [one.told.paused_ns / 1e6 for one in probes]
        if any(one.state is not CaptureState.VERIFIED for one in probes):
            # A rank whose own probe was fine has to be told from one that recorded.
            idle = CaptureOutcome(CaptureState.CANCELLED, ANOTHER_RANK, NOTHING)
            return tuple(idle if one.state is CaptureState.VERIFIED else one for one in probes)
        sizes = [one.size for one in probes]
        price = self.price = size_window(self.asked, sizes)
        if not price.steps and not self.asked.timed:
            raise UsageError(
                f"one step has {max(size[0] for size in sizes):,} events: more than one window may have",
                "leave --stacks, --shapes and --memory out, or mark parts with record_function",
            )
        seconds = fit_seconds(self.asked, price, sizes) if self.asked.timed else self.asked.seconds
        said = say_price(price, replace(self.asked, seconds=seconds), ranks)
        self._say(said)
        if declined := self._await_yes(CaptureStage.PRICED, (said,)):
            return declined
        if (dear := say_dear(price)) and (declined := self._await_yes(CaptureStage.DEAR, (said, *dear))):
            return declined
        self._measure_later(max(one.told.changed_ns for one in probes))
        paces = known_paces(self._read_paces())
        return self._fire(paces, price.steps or 1, seconds)

    def describe(self, outcomes: Sequence[CaptureOutcome]) -> tuple[RankCapture, ...]:
        """Describe the outcome on each rank, with its steps before, during and after."""
        windows = [
            EndedWindow(bus, outcome.told.changed_ns, before)
            for bus, outcome, before in zip(self.buses, outcomes, self._before, strict=True)
            if outcome.state is CaptureState.VERIFIED
        ]
        await_steps_after(windows, self._say, self._asker.stopped)
        return tuple(map(describe_rank, self.buses, outcomes, self._before, self._probed_ms))

    def _await_steps(self) -> tuple[CaptureOutcome, ...] | None:
        """Wait for the first step of each loop, or until backwards alone show that there will be none.

        Return None then, or how it ended where a hook ended or nobody waits; UsageError after ten minutes.
        """
        began = time.monotonic()
        loops = [FirstStep(bus) for bus in self.buses]
        while True:
            if ended := self._find_ended():
                return ended
            for loop in loops:
                loop.note_backward()
            if all(loop.has_ended() for loop in loops):
                return None
            waited = time.monotonic() - began
            if self._asker.stopped():
                return self._end_all(CaptureState.CANCELLED, UNWANTED)
            if waited > _DISCOVER_S and any(loop.ends_none() for loop in loops):
                return None
            if waited > _WAIT_S:
                raise UsageError(
                    "the loop ended no step in ten minutes, so none can be captured",
                    "tpmon sample PID shows what it does instead",
                )
            self._say_waiting("waits for the first step of the loop")
            time.sleep(_EVERY_S)

    def _find_ended(self) -> tuple[CaptureOutcome, ...] | None:
        ended = tuple(bus.find_end() for bus in self.buses)
        if not any(ended):
            return None
        other = (CaptureState.CANCELLED, ANOTHER_RANK)
        return tuple(CaptureOutcome(*(end or other), NOTHING) for end in ended)

    def _mean_steps(self) -> list[Known[float]]:
        return [mean_step(bus.read_records(), 0, time.monotonic_ns()) for bus in self.buses]

    def _median_steps(self) -> list[Known[StepTime]]:
        return [median_before(bus.read_records(), time.monotonic_ns()) for bus in self.buses]

    def _measure_later(self, since_ns: int) -> None:
        """Take the steps since the probe for those before, where somebody thought the price over."""
        now = time.monotonic_ns()
        later = [median_step(bus.read_records(), since_ns, now) for bus in self.buses]
        if all(count_steps(one) >= ENOUGH_STEPS for one in later):
            self._before = later

    def _end_all(self, state: CaptureState, reason: str) -> tuple[CaptureOutcome, ...]:
        return tuple(CaptureOutcome(state, reason, NOTHING) for _ in self.buses)

    def _discover(self) -> list[MeasuredPace]:
        """Read the paces; a loop without steps is captured by time; UsageError where that cannot be."""
        paces = self._read_paces()
        known = known_paces(paces)
        if len(known) < len(paces):
            if self.asked.kind is not CaptureKind.TRACE or len(self.buses) > 1 or is_known(self.asked.at):
                raise UsageError(
                    "the loop ends no step that the hook sees, so none can be captured",
                    "call tpmon.hook.step() in it where it ends one",
                )
            self.asked = replace(self.asked, timed=True, seconds=min(self.asked.seconds, 10.0))
            self._say("this loop ends no step that the hook sees: captured by time, woken by SIGURG")
        alike = not is_known(self.asked.at) if self._is_late else not known or count_alike(known)
        if len(known) > 1 and not alike:
            raise UsageError(COUNT_APART, "tpmon capture --rank K takes one of them")
        return known

    def _fire(self, paces: Sequence[MeasuredPace], steps: int, seconds: float) -> tuple[CaptureOutcome, ...]:
        kind = _KINDS[self.asked.kind]
        if len(self.buses) > 1 and self._is_late:
            place = self._choose_place(paces[0].rate_hz)
            self._say("begins with the same step on all ranks, by their count of collectives")
            return self._post_all(kind, steps, place.collectives, seconds, place.steps)
        start = self.asked.at if is_known(self.asked.at) else 0
        if not start and len(self.buses) > 1 and paces:
            start = choose_start(paces)
        if start:
            self._say(f"begins with step {start}{' on all ranks' if len(self.buses) > 1 else ''}")
            if missed := self._find_missed(start):
                return missed
        return self._post_all(kind, steps, start, seconds)

    def _choose_place(self, rate_hz: float) -> StepPlace:
        """Return the count of collectives to begin with; UsageError where the ranks count none."""
        places = [ask_counts(bus) for bus in (*self.buses, self.buses[0])]
        known = [one for one in places if is_known(one)]
        place = choose_collectives(known, rate_hz) if len(known) == len(places) else places[0]
        if len(known) < len(places) or not is_known(place):
            raise UsageError(COUNT_APART, "tpmon capture --rank K takes one of them")
        return place

    def _post_all(
        self, kind: int, steps: int, start: int, seconds: float, number: int = 0
    ) -> tuple[CaptureOutcome, ...]:
        """Write the request; with a ``number`` for its first step ``start`` counts collectives."""
        if blocked := self._await_turn():
            return blocked
        probes = kind == wire_capture.KIND_PROBE
        request = Request(
            draw_number(),
            kind,
            clock=wire_capture.CLOCK_COLLECTIVES if number else wire_capture.CLOCK_STEPS,
            start=start,
            steps=steps,
            longest_ns=PROBE_NS if probes and self.asked.timed else round(seconds * 1e9),
            most_events=MOST_EVENTS,
            most_bytes=MOST_BYTES,
            expires_ns=time.monotonic_ns() + round(_WAIT_S * 1e9),
            options=choose_options(self.asked),
            subject=number,
            entries=MOST_ENTRIES if kind == wire_capture.KIND_SNAPSHOT else 0,
            folder=self.asked.folder,
            name=self.name,
        )
        for bus in self.buses:
            bus.post(request)
        if self.asked.timed and not all(bus.wake() for bus in self.buses):
            self._cancel(request.number)
            return self._end_all(CaptureState.REFUSED, _NOT_WOKEN)
        try:
            return self._follow(request.number, seconds)
        except BaseException:
            self._cancel(request.number)
            raise

    def _find_missed(self, start: int) -> tuple[CaptureOutcome, ...] | None:
        """Return that all loops are past a step; where only some are, their hooks report it themselves."""
        if any(read_steps(bus) < start for bus in self.buses):
            return None
        return self._end_all(CaptureState.MISSED, _PAST)

    def _await_turn(self) -> tuple[CaptureOutcome, ...] | None:
        """Wait until a cancelled request has ended; return busy where another one is not read yet."""
        limit = time.monotonic() + _ENDS_S
        while True:
            turns = [judge_turn(bus, time.monotonic_ns()) for bus in self.buses]
            if all(turn is LoopTurn.FREE for turn in turns):
                return None
            ended = any(bus.find_end() for bus in self.buses)
            if LoopTurn.TAKEN in turns or ended or self._asker.stopped() or time.monotonic() > limit:
                return self._end_all(CaptureState.BUSY, "another capture was asked for, or is to end, there")
            self._say_waiting("waits for the end of a capture that was cancelled")
            time.sleep(_EVERY_S)

    def _cancel(self, number: int) -> int:
        """Cancel a request; return the number of the cancel."""
        cancel = draw_number()
        for bus in self.buses:
            bus.post(Request(cancel, wire_capture.KIND_CANCEL, subject=number))
            if self.asked.timed:
                bus.wake()
        return cancel

    def _follow(self, number: int, seconds: float) -> tuple[CaptureOutcome, ...]:
        cancel = 0
        ended: dict[int, CaptureOutcome] = {}
        seen: set[int] = set()
        woken = began = time.monotonic()
        limit = began + _WAIT_S + seconds + _SPARE_S
        while len(ended) < len(self.buses):
            told = [bus.read_progress(number) for bus in self.buses]
            seen |= {at for at, progress in enumerate(told) if progress is not None}
            for at, (bus, progress) in enumerate(zip(self.buses, told, strict=True)):
                if at in ended:
                    continue
                if (end := find_end(bus, number, progress, cancel=cancel, seen=at in seen)) is not None:
                    ended[at] = end
                elif cancel and has_lost_cancel(bus, cancel):
                    bus.post(Request(cancel, wire_capture.KIND_CANCEL, subject=number))
            if self.asked.timed and None in told and time.monotonic() - woken > _WAKE_AGAIN_S:
                woken = time.monotonic()
                for bus, progress in zip(self.buses, told, strict=True):
                    if progress is None:
                        bus.wake()
            self._say_waiting(say_progress(told, lambda: self._read_paces()[0], timed=self.asked.timed))
            late = time.monotonic() > limit
            if (self._asker.stopped() or late) and not cancel:
                cancel = self._cancel(number)
                limit = time.monotonic() + _ENDS_S
            elif cancel and late:
                state = CaptureState.CANCELLED if self._asker.stopped() else CaptureState.EXPIRED
                gave_up = CaptureOutcome(state, "the loop came to no end of a step", NOTHING)
                return tuple(ended.get(at, gave_up) for at in range(len(self.buses)))
            time.sleep(_EVERY_S)
        return tuple(ended[at] for at in range(len(self.buses)))

    def _read_paces(self) -> list[Known[MeasuredPace]]:
        return [parse_pace(bus.read_records()) for bus in self.buses]


_AGAIN = (wire_capture.BEGAN_TO_TRAIN, wire_capture.TAKES_STEPS)
