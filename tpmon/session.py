"""The loop: collect a Frame, put it into the window, judge, hand it to the sinks, wait, again.

The only owner of a thread besides the probes, and the only place that waits. The judge is imported
where it is first used: a first picture does without it.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tpmon.model.dump import DumpRequest, DumpState
from tpmon.model.frame import Frame, Pulse, TargetState, Window, awaits_sources
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known, map_known
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate, Update
from tpmon.model.results.sample import SampleRequest, SampleState
from tpmon.record.step import JudgedFrame, Recall

if TYPE_CHECKING:
    from tpmon.judge.hysteresis import Standing
    from tpmon.probe.collect.collector import Collector
    from tpmon.record.recorder import FrameRecorder

GARBAGE_THRESHOLD = 50_000
"""New containers between two collections of the youngest generation."""

Sink = Callable[[Update], None]
DumpSink = Callable[[DumpUpdate], None]
SampleSink = Callable[[SampleUpdate], None]


def collect_rarely() -> None:
    """Let Python's cycle collector run rarely instead of many times a second.

    A Window holds a minute of immutable samples without cycles, which it would walk over and over
    (docs/overhead.md).
    """
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD, 10, 10)


class Session:
    """Run the loop in the caller's thread (``run``) or in a daemon thread (``start``)."""

    def __init__(
        self,
        source: Collector,
        sinks: Sequence[Sink],
        interval_s: float,
        dump_sinks: Sequence[DumpSink] = (),
        sample_sinks: Sequence[SampleSink] = (),
        *,
        hang_after_s: float | None = None,
        may_look: bool = False,
        glance: bool = False,
    ) -> None:
        """Hold the parts; nothing runs yet.

        With ``may_look`` the stacks of all processes are read, without a stop, when the job may hang:
        after ``hang_after_s``, or after what the run's own rhythm says. With ``glance`` the first Frame
        of a job that runs goes out unjudged: of one second there is no verdict but the end, and loading
        the rules is a tenth of what a first picture costs.
        """
        self._source = source
        self._sinks = tuple(sinks)
        self._dump_sinks = tuple(dump_sinks)
        self._dump_state: Applicable[DumpState] = NOT_APPLICABLE
        self._bare: DumpUpdate | None = None
        """The newest dump, while the records of its collectives are missing."""
        self._sample_sinks = tuple(sample_sinks)
        self._sample_state: Applicable[SampleState] = NOT_APPLICABLE
        self._interval_s = interval_s
        self._window = Window()
        self._pulses: tuple[Pulse, ...] = ()
        self._hang_after_s = hang_after_s
        self._may_look = may_look
        self._glance = glance
        self._unjudged = False
        self._wanted: Applicable[DumpRequest] = NOT_APPLICABLE
        self._standing: Standing | None = None
        self._recall = Recall()
        self._recording = threading.Lock()
        self._recorder: FrameRecorder | None = None
        self._fed: FrameRecorder | None = None
        """The recorder that has what was at hand when it came."""
        self._is_over = False
        self._wake = threading.Event()
        self._stopped = threading.Event()
        for service in (source.dumps, source.records, source.samples):
            service.on_change = self._wake.set

    def start(self, on_error: Callable[[BaseException], None]) -> None:
        """Run in a daemon thread until ``stop``; an exception goes to ``on_error`` and ends the loop."""

        def loop() -> None:
            try:
                self.run()
            except BaseException as error:  # noqa: BLE001  # the screen shows it and ends with exit 1
                on_error(error)

        threading.Thread(target=loop, name="tpmon-session", daemon=True).start()

    def run(self, frames: int | None = None, more: int = 0) -> Frame | None:
        """Run until the job ended, ``stop`` was called, or ``frames`` Frames were handed out.

        Up to ``more`` follow while the first look at stacks is on its way. Returns the last Frame, or None
        when stopped before the first.
        """
        count = 0
        last: Frame | None = None
        due = time.monotonic()
        try:
            while not self._stopped.is_set():
                if self._unjudged:
                    self._judge()  # its picture is there by now, and from it on the judge counts the seconds
                last = read = self._source.collect()
                self._window.append(last)
                before = self._standing
                self._unjudged = self._glance and not count and last.target.state is not TargetState.ENDED
                if not self._unjudged:
                    last = self._judge()
                self._pulses = self._window.pulses()
                self._remember(JudgedFrame(read, last, before))
                update = Update(last, self._pulses)
                for sink in self._sinks:
                    sink(update)
                if self._unjudged:
                    self._source.read_rest()  # with the second Frame it has rates
                self._hand_out_dump()
                self._hand_out_sample()
                count += 1
                if last.target.state is TargetState.ENDED:
                    break
                if frames is not None and count >= frames + (more if awaits_sources(last) else 0):
                    break
                due = self._wait(due)
        finally:
            with self._recording:
                self._is_over = True
                self._feed(())
            self._source.close()
        return last

    def record(self, recorder: FrameRecorder | None) -> None:
        """Hand what is at hand, and every Frame from now on, to a recorder; or to none. In any thread."""
        with self._recording:
            self._recorder = recorder
            if self._is_over:
                self._feed(())

    def recall(self) -> tuple[JudgedFrame, ...]:
        """Return the judged Frames that are at hand, of ten minutes at most, oldest first; in any thread."""
        return self._recall.steps()

    def _remember(self, step: JudgedFrame) -> None:
        with self._recording:
            self._recall.append(step)
            self._feed((step,))

    def _feed(self, news: tuple[JudgedFrame, ...]) -> None:
        """Hand a recorder what is new, or all that is at hand where it has nothing so far."""
        recorder = self._recorder
        if recorder is not None:
            recorder.take(*(news if recorder is self._fed else self._recall.steps()))
        self._fed = recorder

    def _judge(self) -> Frame:
        """Judge the window, start the looks that the judge asks for, and return the judged Frame."""
        from tpmon.judge.judge import judge

        if self._standing is None:
            from tpmon.judge.hysteresis import Standing
            from tpmon.judge.watch.tracker import WatchedTime

            self._standing = Standing(watch=WatchedTime(asked_s=self._hang_after_s, may_ask=self._may_look))
        judged = judge(tuple(self._window), self._standing)
        self._standing = judged.standing
        self._source.set_settled(settled=judged.settled)
        self._look(judged.look)
        return judged.frame

    def _look(self, request: Applicable[DumpRequest]) -> None:
        """Start the looks that the judge asks for; those of the whole job that a key asked for will do.

        After others of theirs they are begun as soon as these end.
        """
        state = self._source.dumps.state
        running = is_known(state) and state.running
        if is_known(request) and not (is_known(state) and running and state.request.is_whole):
            self._wanted = request
        ended = self._window.last().target.state is TargetState.ENDED
        if is_known(self._wanted) and not running and not ended:
            self._source.dumps.ask(self._wanted)
            self._wanted = NOT_APPLICABLE

    def set_interval(self, seconds: float) -> None:
        """Change the interval at once, also in the middle of a wait."""
        self._interval_s = seconds
        self._source.set_interval(seconds)
        self._wake.set()

    def ask_dump(self, request: DumpRequest) -> None:
        """Start to look at the stacks of the job now; what comes goes to the dump sinks."""
        self._source.dumps.ask(request)

    def ask_sample(self, request: SampleRequest) -> None:
        """Start to sample stacks now; hot functions go to the sample sinks while they come."""
        self._source.samples.ask(request)

    def finish_sample(self) -> None:
        """End the sampling that runs, and keep what it has."""
        self._source.samples.finish()

    def pulses(self) -> tuple[Pulse, ...]:
        """Return the main figures of the last ten minutes, oldest first; in any thread."""
        return self._pulses

    def recent(self) -> tuple[tuple[Frame, ...], Standing | None]:
        """Return the Frames of the last minute and what the judge remembers of them; for sinks alone."""
        return tuple(self._window), self._standing

    def stop(self) -> None:
        """End the loop after the reading it is in; never waits for it."""
        self._stopped.set()
        self._wake.set()

    def _wait(self, due: float) -> float:
        """Wait until one interval after ``due``; a late tick starts a new rhythm, never a burst."""
        while not self._stopped.is_set():
            now = time.monotonic()
            next_due = max(due + self._interval_s, now) if now - due < 2 * self._interval_s else now
            if next_due <= now or not self._wake.wait(next_due - now):
                return next_due
            self._wake.clear()
            self._hand_out_dump()
            self._hand_out_sample()
        return due

    def _hand_out_dump(self) -> None:
        """Fold what a dump has read, when that is more than last time, and hand it to the dump sinks."""
        state = self._source.dumps.state
        if state is not self._dump_state and is_known(state):
            from tpmon.judge.folds.hot import fold_state

            self._dump_state = state
            # Where nobody looks on, the end alone counts: the hang watch hears of the job's own records.
            if self._dump_sinks or not state.running:
                update = fold_state(state, self._window.last())
                self._bare = update if update.awaits_records else None
                self._send_dump(update)
        if self._bare is not None:
            self._add_records(self._bare)

    def _add_records(self, bare: DumpUpdate) -> None:
        """Have the records of a finished dump read, and hand it out again once they are there."""
        from tpmon.judge.folds.hot import add_records

        dump_ns = bare.state.rounds[-1].taken_ns
        records = self._source.records.state
        if is_known(records) and records.dump_ns == dump_ns:
            self._bare = None
            self._send_dump(add_records(bare, records.reading))
        else:
            self._source.records.ask(dump_ns)

    def _hand_out_sample(self) -> None:
        """Add up what was sampled, when that is more than last time, and hand it to the sample sinks."""
        state = self._source.samples.state
        if state is self._sample_state or not is_known(state):
            return
        self._sample_state = state
        if not self._sample_sinks:
            return
        from tpmon.judge.folds.groups import DumpOrigin
        from tpmon.judge.folds.hot import hot_functions

        target = self._window.last().target
        origin = DumpOrigin(target.pid, target.script, target.world_size)
        update = SampleUpdate(state, map_known(lambda reading: hot_functions(reading, origin), state.reading))
        for sink in self._sample_sinks:
            sink(update)
        if self._fed is not None and not state.running:
            self._fed.take(update)

    def _send_dump(self, update: DumpUpdate) -> None:
        for sink in self._dump_sinks:
            sink(update)
        if self._fed is not None and not update.state.running and not update.awaits_records:
            self._fed.take(update)
