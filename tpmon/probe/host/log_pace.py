"""Follow a training's log: which of its lines count steps, and how fast they rise between two readings.

A line is dated by the log's last write: exactly where nothing follows it, else as between two readings. A
pace is counted where both ends are dated so well that it is right within ``EXACT_RATIO``; before that it is
what the line itself states, or nothing. Pure but for its memory of one log.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice, pairwise

from tpmon.model.frozen import dataclass
from tpmon.model.host import LogPace, PaceSource
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or
from tpmon.model.text.redaction import admit_text
from tpmon.probe.host.log_lines import (
    NOT_STATED,
    STEP,
    LineForm,
    LineReading,
    NumberLine,
    mask,
    parse_line,
    parse_loss,
)

WINDOW_S = 30.0
"""A pace is counted over so long, or over two lines where they are further apart."""
LEAST_S = 3.0
"""Steps within less are too few readings to be a pace."""
EXACT_RATIO = 0.05
MOST_LINES = 8
"""Of one reading, the newest, which bounds what a log that is flooded costs."""
MOST_FAR_LINES = 40
"""So many lines before those are searched for the name of a counter where those tell no step: of tables."""
MOST_TRACKS = 16
MOST_SIGHTS = 64
RISES = 2
"""So often a number without a name must have risen by the same amount; twice so without loss and total."""
SLOW_S = 10.0
"""A number without a name that rises by 1 and no faster may count epochs."""
MOST_TRIES = 40
"""So many lines without a named counter are read each; after that one of a reading."""
CLOCK_RATIO = 0.015
_CLOCKS_HZ = (1.0, 1000.0, 1 / 60)
"""A number without a name that rises like these is a clock's, in seconds, milliseconds or minutes."""
FINISHED_S = 120.0
"""So long after its last line a bar stands before smaller ones without a name: they are of its evaluation."""
STALE_LINES = 5.0
"""Other lines take the place of those that did not come for so many times their usual distance."""
EPOCH_CHECKS = 3
"""In so many readings of a counter more lines are read, to see whether an epoch is shorter than a reading."""
CHECKED_LINES = 6
SHORT_EPOCHS = 0.6
"""Of those that many in which it fell: then what it rises from one reading to the next says nothing."""
SHAPE_LENGTH = 80

NO_STEPS_TOLD = Missing("no line of the log was seen to count steps")

_GRAIN_S = 0.01
"""Of a file's times, which the kernel takes at its ticks; some file systems keep whole seconds."""
_FIGURES = re.compile(r"[\d.\s\u2580-\u259f]+")
_DIGIT = re.compile(r"\d")
_FAR_COUNTER = re.compile(r"(?i)(?:steps?|iterations?|batch)['\"]?[\s:=|]{1,30}\d")
_ENDS = re.compile(r"[\r\n]")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
UNIT_LENGTH = 12
_admit = lru_cache(maxsize=64)(admit_text)


@dataclass(frozen=True, slots=True)
class LogTail:
    """Hold one reading of the end of a log: its size, its last bytes, and when it was written."""

    size: int
    raw: bytes
    modified_s: float
    """By the clock of its file system."""
    age_s: float
    """Of the last write, by ours; 0 where the other clock is ahead."""
    taken_ns: int
    """CLOCK_MONOTONIC."""


@dataclass(frozen=True, slots=True)
class Sight:
    """Hold a step with the earliest and the latest time at which its line may have been written."""

    step: int
    early_s: float
    late_s: float


class StepTrack:
    """Follow the lines that count one thing."""

    def __init__(self, line: LineReading) -> None:
        """Begin with its first line, which is to be added as well."""
        self.line = line
        self.text = ""
        self.counted_hz: Known[float] = NOT_STATED
        self.every_s: Known[float] = Missing("one line so far")
        self.loss: Applicable[float] = NOT_APPLICABLE
        self.seen_ns = 0
        """When its step last changed."""
        self.rises = 0
        self.checks, self.falls = 0, 0
        """Readings whose lines were all read, and those in which the step fell."""
        self.moves_alone = False
        """Whether it rose in two readings while no other bar did."""
        self._sights: deque[Sight] = deque(maxlen=MOST_SIGHTS)

    def add(self, line: LineReading, text: str, sight: Applicable[Sight], seen_ns: int) -> bool:
        """Add the last line of a reading; return whether its step has risen."""
        rise = line.step - self.line.step
        self.line, self.text = line, text
        self.seen_ns = seen_ns if rise or not self.seen_ns else self.seen_ns
        self.loss = self.loss if line.loss is NOT_APPLICABLE else line.loss
        self.rises += rise > 0
        if rise < 0:  # the next epoch, or another run
            self._sights.clear()
        if is_known(sight) and line.is_exact and (not self._sights or line.step > self._sights[-1].step):
            self._count(sight)
        return rise > 0

    def check(self, steps: list[int]) -> None:
        """Add the steps of all lines of a reading."""
        self.checks += 1
        least = max(steps) / 4  # the lines of several ranks do not come in their order
        self.falls += any(before - after > least for before, after in pairwise(steps))

    @property
    def sure_hz(self) -> Known[float]:
        """Return the counted rate; missing where an epoch is shorter than a reading."""
        return NOT_STATED if self.falls > SHORT_EPOCHS * self.checks else self.counted_hz

    def rank(self, age_s: float) -> tuple[float, ...]:
        """Return how much this stands before other tracks, ``age_s`` after its last line."""
        line = self.line
        every_s = known_or(self.every_s, 0.0)
        is_over = age_s > max(FINISHED_S, 0.0 if line.is_finished else STALE_LINES * every_s)
        is_guess = line.form in (LineForm.NUMBERS, LineForm.BARE)
        size = known_or(line.total, 0) if self.moves_alone else 0
        return (not is_over, line.is_named, not is_guess, size, -age_s, line.step)

    def _count(self, sight: Sight) -> None:
        sights = self._sights
        sights.append(sight)
        if len(sights) < 2:
            return
        self.every_s = max(0.0, sight.late_s - sights[-2].late_s)
        while len(sights) > 2 and sight.late_s - sights[1].late_s >= WINDOW_S and _is_exact(sights[1], sight):
            sights.popleft()
        first = sights[0]
        if _is_exact(first, sight):
            mean_s = (sight.early_s + sight.late_s - first.early_s - first.late_s) / 2
            self.counted_hz = (sight.step - first.step) / mean_s


def _is_exact(first: Sight, last: Sight) -> bool:
    """Tell whether the time between two steps is known within ``EXACT_RATIO``."""
    least_s, most_s = last.early_s - first.late_s, last.late_s - first.early_s
    return least_s > 0 and most_s >= LEAST_S and most_s - least_s <= EXACT_RATIO * (most_s + least_s)


class NumberTrack:
    """Find out which number of lines without a named counter rises by a constant amount."""

    def __init__(self) -> None:
        self._last: Applicable[NumberLine] = NOT_APPLICABLE
        self._rises: list[int] = []
        self._counts: list[int] = []
        self._varies = False
        self._tries = 0
        self._told = -1
        self._least = RISES

    @property
    def needs_each(self) -> bool:
        """Return whether lines must not be left out: which number counts is not certain."""
        return self._tries < MOST_TRIES and not self._list_sure()

    def _list_sure(self) -> list[int]:
        return [at for at, count in enumerate(self._counts) if count >= self._least] if self._varies else []

    def add(self, line: NumberLine, *, follows: bool) -> LineReading | None:
        """Add a line; return its step once that is certain. ``follows``: no line is left out before it."""
        last, self._last = self._last, line
        self._tries += 1
        self._least = RISES if line.loss is not NOT_APPLICABLE or any(line.totals) else 2 * RISES
        if not is_known(last) or len(last.values) != len(line.values):
            self._rises, self._counts = [0] * len(line.values), [0] * len(line.values)
            return None
        self._varies = self._varies or last.decimals != line.decimals or isinstance(line.loss, Missing)
        for at, (value, before) in enumerate(zip(line.values, last.values, strict=True)):
            rise, usual = value - before, self._rises[at]
            if rise > 0 and (rise == usual or (not follows and usual and rise % usual == 0)):
                self._counts[at] += 1
            elif rise < 0 < usual and (value <= usual or not follows):
                continue  # the next epoch
            elif self._counts[at] >= 2 * RISES:
                self._counts[at] //= 2  # the last line of an epoch; what rises by chance has no such count
            elif follows or not rise or self._counts[at] >= RISES:
                self._rises[at], self._counts[at] = max(rise, 0), int(rise > 0)
        # Tokens and samples rise by a multiple of what steps do.
        sure = self._list_sure()
        at = min(
            sure, key=lambda one: (self._rises[one], one != self._told, not line.totals[one]), default=-1
        )
        self._told = at
        if at < 0:
            return None
        total = line.totals[at] if line.totals[at] >= line.values[at] else 0
        key, step, known_total = f"{line.key}|{at}", line.values[at], total or NOT_APPLICABLE
        return LineReading(
            LineForm.NUMBERS, key, STEP, step, known_total, NOT_STATED, line.loss, is_named=False
        )

    def may_be_another(self, at: int, hz: Known[float], every_s: Known[float]) -> bool:
        """Tell whether what rises, or rose, may count epochs, or time, or nothing."""
        if at not in self._list_sure() or not is_known(hz) or not is_known(every_s):
            return True
        is_clock = any(abs(hz / clock - 1) < CLOCK_RATIO for clock in _CLOCKS_HZ)
        return is_clock or (every_s > SLOW_S and 1 in self._rises)


class LogFollower:
    """Follow one log; each reading costs what was written since the one before."""

    def __init__(self) -> None:
        self._size = 0
        self._taken_ns: Applicable[int] = NOT_APPLICABLE
        self._tracks: dict[str, StepTrack] = {}
        self._numbers: dict[str, NumberTrack] = {}
        self._unnamed: set[str] = set()
        """Shapes of lines without a named counter: of these each is read."""
        self._loss: Applicable[float] = NOT_APPLICABLE
        self._moved: Applicable[str] = NOT_APPLICABLE
        """The bar that rose last."""

    def feed(self, tail: LogTail) -> None:
        """Read the lines that are new in the end of the log."""
        before_ns, self._taken_ns = self._taken_ns, tail.taken_ns
        grown = tail.size - self._size if tail.size >= self._size else tail.size
        self._size = tail.size
        if grown <= 0 or not tail.raw:
            return
        parts, follows, is_ended = _split_new(tail, min(grown, len(tail.raw)))
        ended = len(parts) if is_ended else len(parts) - 1
        backwards = ((at, parts[at]) for at in range(len(parts) - 1, -1, -1) if _DIGIT.search(parts[at]))
        lines = list(islice(backwards, MOST_LINES))[::-1]
        follows = follows and next(backwards, None) is None
        open_bar = _take_open(lines) if lines and lines[-1][0] >= ended else None
        ended += open_bar is not None
        shapes = {at: _FIGURES.sub("", text[:SHAPE_LENGTH]) for at, text in lines}
        last_of = {shape: at for at, shape in shapes.items()}
        skipped: set[str] = set()
        numbered: set[str] = set()
        newest: dict[str, tuple[LineReading, str, int]] = {}
        for at, text in lines:
            if last_of[shapes[at]] != at and shapes[at] not in self._unnamed:
                skipped.add(shapes[at])  # a newer line says the same
                continue
            is_open = open_bar is not None and at == len(parts) - 1
            read = open_bar if is_open else parse_line(text)
            if isinstance(read, NumberLine):
                track = self._numbers.setdefault(read.key, NumberTrack())
                is_next = (follows or read.key in numbered) and shapes[at] not in skipped
                numbered.add(read.key)
                read = track.add(read, follows=is_next)
                self._unnamed.discard(shapes[at])
                if track.needs_each and len(self._unnamed) < MOST_TRACKS:
                    self._unnamed.add(shapes[at])
            if read is None:
                loss = parse_loss(text)
                self._loss = self._loss if loss is NOT_APPLICABLE else loss  # the Trainer's, beside its bar
                continue
            newest.pop(read.key, None)
            newest[read.key] = read, text, at
        if not newest and not numbered:
            newest = _find_far(parts, lines[0][0] if lines else 0)
        self._add_all(newest, parts, ended, tail, before_ns)

    def _add_all(
        self,
        newest: dict[str, tuple[LineReading, str, int]],
        parts: list[str],
        ended: int,
        tail: LogTail,
        before_ns: Applicable[int],
    ) -> None:
        """Add the newest line of each counter, dated; the first ``ended`` of ``parts`` are whole lines."""
        late_s = tail.modified_s + (1.0 if tail.modified_s.is_integer() else _GRAIN_S)
        seen_ns = tail.taken_ns - round(tail.age_s * 1e9)
        for line, text, at in newest.values():
            sight: Applicable[Sight] = NOT_APPLICABLE
            if at + 1 >= ended:
                sight = Sight(line.step, tail.modified_s, late_s)
            elif is_known(before_ns):
                early_s = late_s - (tail.taken_ns - before_ns) / 1e9
                sight = Sight(line.step, min(tail.modified_s, early_s), late_s)
            track = self._tracks.setdefault(line.key, StepTrack(line))
            if track.checks < EPOCH_CHECKS and is_known(before_ns):
                track.check([*_read_steps(parts[:at], line, text), line.step])
            self._add(track, line, text, sight, seen_ns)
        self._forget()

    def _add(
        self, track: StepTrack, line: LineReading, text: str, sight: Applicable[Sight], seen_ns: int
    ) -> None:
        if track.add(line, text, sight, seen_ns) and line.form is LineForm.BAR:
            track.moves_alone = track.moves_alone or self._moved == line.key
            self._moved = line.key

    def _forget(self) -> None:
        while len(self._tracks) > MOST_TRACKS:
            del self._tracks[min(self._tracks, key=lambda key: self._tracks[key].seen_ns)]
        while len(self._numbers) > MOST_TRACKS:
            del self._numbers[next(iter(self._numbers))]

    def tell(self, pid: int, fd: int) -> Known[LogPace]:
        """Return the pace as of the last reading; missing where no line was seen to count steps."""
        now_ns = self._taken_ns
        told = [(track, hz) for track in self._tracks.values() if is_known(hz := self._rate(track))]
        if not told or not is_known(now_ns):
            return NO_STEPS_TOLD
        track, rate_hz = max(told, key=lambda one: one[0].rank((now_ns - one[0].seen_ns) / 1e9))
        line = track.line
        return LogPace(
            pid=pid,
            fd=fd,
            rank=NOT_APPLICABLE,
            rate_hz=rate_hz,
            unit=_admit(line.unit, UNIT_LENGTH),
            source=PaceSource.COUNTED if is_known(track.sure_hz) else PaceSource.STATED,
            step=line.step,
            total=line.total,
            loss=self._loss if track.loss is NOT_APPLICABLE else track.loss,
            shape=_admit(" ".join(mask(track.text).split()), SHAPE_LENGTH),
            age_s=max(0.0, (now_ns - track.seen_ns) / 1e9),
            every_s=track.every_s,
        )

    def _rate(self, track: StepTrack) -> Known[float]:
        """Return how fast a track rises; missing while that is not certain."""
        line, hz = track.line, track.sure_hz
        if line.form is LineForm.NUMBERS:
            key, _, at = line.key.rpartition("|")
            numbers = self._numbers.get(key)
            is_sure = numbers is not None and not numbers.may_be_another(int(at), hz, track.every_s)
            return hz if is_sure else NOT_STATED
        if line.form is LineForm.BARE and track.rises < RISES:
            return NOT_STATED
        if line.is_finished and not track.rises:
            return NOT_STATED  # over before it was seen
        return hz if is_known(hz) else line.rate_hz


def _find_far(parts: list[str], before: int) -> dict[str, tuple[LineReading, str, int]]:
    """Return the last line of a table that names a counter, ``before`` the lines that were read."""
    for at in range(before - 1, max(-1, before - 1 - MOST_FAR_LINES), -1):
        read = parse_line(parts[at]) if _FAR_COUNTER.search(parts[at]) else None
        if isinstance(read, LineReading):
            return {read.key: (read, parts[at], at)}
    return {}


def _read_steps(parts: list[str], line: LineReading, text: str) -> Iterator[int]:
    """Yield the steps of the lines that count the same as ``line``, whose text is given."""
    shape = _FIGURES.sub("", text[:SHAPE_LENGTH])
    for part in parts[:: len(parts) // CHECKED_LINES + 1]:
        if _FIGURES.sub("", part[:SHAPE_LENGTH]) == shape:
            read = parse_line(part)
            if isinstance(read, LineReading) and read.key == line.key:
                yield read.step
            elif isinstance(read, NumberLine) and line.key.startswith(f"{read.key}|"):
                at = int(line.key.rpartition("|")[2])
                yield from read.values[at : at + 1]


def _take_open(lines: list[tuple[int, str]]) -> LineReading | None:
    """Read the last line, which is not ended: it may be half of a number, but a bar ends with its bracket."""
    read = parse_line(lines[-1][1])
    if isinstance(read, LineReading) and read.form is LineForm.BAR:
        return read
    lines.pop()
    return None


def _split_new(tail: LogTail, grown: int) -> tuple[list[str], bool, bool]:
    """Return the new lines, whether they follow the line read last, and whether the last has ended."""
    begin = len(tail.raw) - grown
    start = max(tail.raw.rfind(b"\n", 0, begin), tail.raw.rfind(b"\r", 0, begin)) + 1
    is_cut = start == 0 and tail.size > len(tail.raw)
    text = tail.raw[start:].decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    parts = [part for part in _ENDS.split(text)[is_cut:] if part.strip()]
    return parts, not is_cut, text[-1:] in "\r\n"
