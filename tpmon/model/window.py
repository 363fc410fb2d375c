"""Keep the last Frames and a thinner, longer history of the job's main figures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuSample
from tpmon.model.known import Known, Missing, is_known

FRAME_SPAN_S = 60.0
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
    """Hold full Frames for a minute and Pulses for ten. Owned by one thread; views are tuples."""

    def __init__(self, frame_span_s: float = FRAME_SPAN_S, pulse_span_s: float = PULSE_SPAN_S) -> None:
        """Bound the history in time, measured by the Frames' own monotonic clock."""
        self._frame_span_ns = int(frame_span_s * 1e9)
        self._pulse_span_ns = int(pulse_span_s * 1e9)
        self._frames: deque[Frame] = deque()
        self._pulses: deque[Pulse] = deque()

    def append(self, frame: Frame) -> None:
        """Add a Frame and drop what is older than the spans."""
        self._frames.append(frame)
        self._pulses.append(pulse_of(frame))
        while frame.taken_ns - self._frames[0].taken_ns > self._frame_span_ns:
            self._frames.popleft()
        while frame.taken_ns - self._pulses[0].taken_ns > self._pulse_span_ns:
            self._pulses.popleft()

    def __iter__(self) -> Iterator[Frame]:
        """Yield the full Frames, oldest first."""
        return iter(self._frames)

    def __len__(self) -> int:
        """Count the full Frames."""
        return len(self._frames)

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
