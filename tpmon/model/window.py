"""Keep the last Frames, some of those before, and a thinner, longer history of the job's main figures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuSample
from tpmon.model.known import Known, Missing, is_known

FRAME_SPAN_S = 60.0
EARLIER_SPAN_S = 300.0
"""How far back whole Frames go, the last minute included: of the time before that one in
``EARLIER_EVERY_S``, 25 at most."""
EARLIER_EVERY_S = 10.0
PULSE_SPAN_S = 600.0
NO_STEPS = Missing("no hook in the training process")


@dataclass(frozen=True, slots=True)
class Pulse:
    """Hold the figures of one Frame that a history line draws."""

    taken_ns: int
    used_cores: Known[float]
    runnable: Known[float]
    run_delay_ratio: Known[float]
    memory_bytes: Known[int]
    shm_ratio: Known[float]
    device_read_bytes_s: Known[float]
    ready_batches: Known[float]
    empty_ratio: Known[float]
    """Of the loader queue that was found empty most often."""
    gpu_pct: tuple[Known[float], ...]
    """Per card of the Frame, in its order."""
    step_ms: Known[float] = NO_STEPS
    """The longest step that ended since the Frame before, or the one that goes on."""


def pulse_of(frame: Frame) -> Pulse:
    """Reduce a Frame to its Pulse."""
    shm = frame.memory.shm
    ready = [sample.ready_batches for sample in frame.loader if is_known(sample.ready_batches)]
    empty = [sample.empty_ratio for sample in frame.loader if is_known(sample.empty_ratio)]
    cards: tuple[GpuSample, ...] = frame.gpus if is_known(frame.gpus) else ()
    reads = [p.device_read_bytes_s for p in frame.processes if is_known(p.device_read_bytes_s)]
    used = frame.memory.used_bytes
    return Pulse(
        taken_ns=frame.taken_ns,
        used_cores=frame.cpu.used_cores,
        runnable=frame.cpu.runnable,
        run_delay_ratio=frame.cpu.run_delay_ratio,
        memory_bytes=used if is_known(used) else frame.memory.rss_bytes,
        shm_ratio=shm.used_bytes / shm.total_bytes
        if is_known(shm) and shm.total_bytes
        else Missing("no /dev/shm"),
        device_read_bytes_s=sum(reads) if reads else Missing("no process tells what it reads"),
        ready_batches=min(ready) if ready else Missing("no batch seen in a loader pipe"),
        empty_ratio=max(empty) if empty else Missing("no loader queue seen"),
        gpu_pct=tuple(card.sm_pct for card in cards),
        step_ms=frame.steps.slowest_ms if is_known(frame.steps) else frame.steps,
    )


class Window:
    """Hold Frames for a minute, a few for five, Pulses for ten. Owned by one thread; views are tuples."""

    def __init__(self, frame_span_s: float = FRAME_SPAN_S, pulse_span_s: float = PULSE_SPAN_S) -> None:
        """Bound the history in time, measured by the Frames' own monotonic clock."""
        self._frame_span_ns = int(frame_span_s * 1e9)
        self._pulse_span_ns = int(pulse_span_s * 1e9)
        self._frames: deque[Frame] = deque()
        self._earlier: deque[Frame] = deque()
        self._pulses: deque[Pulse] = deque()

    def append(self, frame: Frame) -> None:
        """Add a Frame and drop what is older than the spans."""
        self._frames.append(frame)
        self._pulses.append(pulse_of(frame))
        while frame.taken_ns - self._frames[0].taken_ns > self._frame_span_ns:
            self._keep(self._frames.popleft())
        while self._earlier and frame.taken_ns - self._earlier[0].taken_ns > EARLIER_SPAN_S * 1e9:
            self._earlier.popleft()
        while frame.taken_ns - self._pulses[0].taken_ns > self._pulse_span_ns:
            self._pulses.popleft()

    def _keep(self, frame: Frame) -> None:
        """Keep a Frame that has grown too old for the judge, if none of the seconds before it is kept."""
        if not self._earlier or frame.taken_ns - self._earlier[-1].taken_ns >= EARLIER_EVERY_S * 1e9:
            self._earlier.append(frame)

    def __iter__(self) -> Iterator[Frame]:
        """Yield the full Frames of the last minute, oldest first: those that the judge sees."""
        return iter(self._frames)

    def __len__(self) -> int:
        """Count the full Frames of the last minute."""
        return len(self._frames)

    def earlier(self) -> tuple[Frame, ...]:
        """Return the few full Frames that are kept of the minutes before, oldest first."""
        return tuple(self._earlier)

    def last(self) -> Frame:
        """Return the newest Frame.

        Raises:
            IndexError: when no Frame was appended yet.
        """
        return self._frames[-1]

    def pulses(self) -> tuple[Pulse, ...]:
        """Return the thin history, oldest first."""
        return tuple(self._pulses)

    def values(self, read: Callable[[Pulse], Known[float]]) -> tuple[Known[float], ...]:
        """Return one figure of every Pulse, oldest first."""
        return tuple(read(pulse) for pulse in self._pulses)
