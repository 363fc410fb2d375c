"""Write a line of words when something changes, and choose the form of a stream of Frames.

A change is an event, another state of the job, another kind or cause of the verdict, a note that comes or
goes, and a figure that leaves its band for ``HOLD_S``. After ``HEARTBEAT_S`` without one a heartbeat follows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date
from typing import Any

from tpmon.model.codec import encode, encode_fast
from tpmon.model.frame import EventKind, Frame, TargetState, fresh_hz
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import list_used
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or, map_known
from tpmon.model.results.collectives import CollectivesReading
from tpmon.model.text.job_words import WAITING_FROM, is_undecided, name_verdict, say_job_stop
from tpmon.model.units import format_clock, format_seconds, say_pct
from tpmon.report.once import describe_target, write_check, write_once
from tpmon.report.text import Output

_FIGURE = re.compile(r"\d+(?:\.\d+)?")
HOLD_S = 5.0
"""A change of a figure or a note must last so long: ends of epochs and checkpoints pass."""
QUIET_S = 30.0
"""Changes of figures make one line at most so often."""
HEARTBEAT_S = 60.0
LOOK_S = 15.0
"""The first verdict may take so long before an undecided one is written."""
MOST_EVENTS = 5
CROWD_S = 10.0
"""More than MOST_EVENTS events of one kind within CROWD_S are counted, not named."""


@dataclass(frozen=True, slots=True)
class PlainFigure:
    """Describe a figure that is followed; a change counts from ``step`` and from ``factor`` times on."""

    name: str
    read: Callable[[Frame], Known[float]]
    step: float
    factor: float
    write: Callable[[float], str]


def _gpu_busy(frame: Frame) -> Known[float]:
    if isinstance(frame.gpus, Missing):
        return frame.gpus
    busy = [card.sm_pct for card in list_used(frame.gpus) if is_known(card.sm_pct)]
    return sum(busy) / len(busy) if busy else Missing("no card of the job answers")


def _cpu_used(frame: Frame) -> Known[float]:
    used, budget = frame.cpu.used_cores, frame.cpu.budget_cores
    if isinstance(used, Missing):
        return used
    if isinstance(budget, Missing):
        return budget
    return 100 * used / budget if budget else Missing("the CPU budget is 0")


def _waiting(frame: Frame) -> Known[float]:
    ratio, runnable = frame.cpu.run_delay_ratio, frame.cpu.runnable
    if is_known(runnable) and runnable < WAITING_FROM:
        return 0.0
    return 100 * ratio if is_known(ratio) else ratio


def _empty_looks(frame: Frame) -> Known[float]:
    ratios = [loader.empty_ratio for loader in frame.loader if is_known(loader.empty_ratio)]
    return 100 * max(ratios) if ratios else Missing("no loader queue seen")


def _memory_used(frame: Frame) -> Known[float]:
    memory = frame.memory
    if is_known(memory.limit_bytes) and is_known(memory.used_bytes) and memory.limit_bytes:
        return 100 * memory.used_bytes / memory.limit_bytes
    if is_known(memory.host_total_bytes) and is_known(memory.host_available_bytes):
        free = memory.host_available_bytes / max(memory.host_total_bytes, 1)
        return 100 * (1 - free)
    return Missing("no memory limit known")


def _step_rate(frame: Frame) -> Known[float]:
    """Return the rate of a hook, else what the log tells."""
    return frame.steps.rate_hz if is_known(frame.steps) else fresh_hz(frame.pace)


FIGURES = (
    PlainFigure("steps a second", _step_rate, 0.0, 1.3, lambda v: f"{v:.3g}"),
    PlainFigure(
        "data wait of a step, host",
        lambda f: map_known(lambda pace: pace.data_pct, f.steps),
        15,
        1.25,
        say_pct,
    ),
    PlainFigure("GPU busy", _gpu_busy, 15, 1.2, say_pct),
    PlainFigure("CPU used of the budget", _cpu_used, 25, 1.25, say_pct),
    PlainFigure("threads runnable", lambda frame: frame.cpu.runnable, 2, 1.5, lambda v: f"{v:.1f}"),
    PlainFigure("thread time waiting for a CPU", _waiting, 20, 1.25, say_pct),
    PlainFigure("readings without a ready batch", _empty_looks, 40, 1.5, say_pct),
    PlainFigure("memory used of its limit", _memory_used, 10, 1.0, say_pct),
)


def has_moved(figure: PlainFigure, said: Known[float], now: Known[float]) -> bool:
    """Tell whether ``now`` lies outside the band around the value written last."""
    if isinstance(said, Missing) or isinstance(now, Missing):
        return isinstance(said, Missing) != isinstance(now, Missing)
    low, high = sorted((said, now))
    return high - low >= figure.step and high >= low * figure.factor


def say_facts(frame: Frame) -> str:
    """Write the facts line with commas."""
    return frame.facts.replace(" · ", ", ")


def say_now(frame: Frame) -> str:
    """Write the verdict in two words and the facts line: "data-bound (no-workers); 1 rank, …"."""
    return (
        f"{name_verdict(frame.verdict)}; {say_facts(frame)}" if is_known(frame.verdict) else say_facts(frame)
    )


def write_status(frame: Frame) -> str:
    """Write a Frame as one line, for ``--plain --once``."""
    state = frame.target.state
    facts = say_now(frame) if state is TargetState.RUNNING else state.value
    return f"{format_clock(frame.taken)} {describe_target(frame)}: {facts}"


class PlainReport:
    """Turn the Frames of one session into the lines worth saying."""

    def __init__(self) -> None:
        self._said: dict[str, Known[float]] = {}
        self._away_since_ns: dict[str, int] = {}
        self._notes: dict[str, tuple[str, int]] = {}
        """By the note without its figures: its last words, and when it was last seen."""
        self._verdict = ""
        self._begun_ns: int | None = None
        self._state = TargetState.RUNNING
        self._day: date | None = None
        self._facts_said = False
        self._line_ns = 0
        self._figures_ns = 0
        self._crowd = Crowd()

    def read(self, frame: Frame) -> list[str]:
        """Return the lines for this Frame: mostly none."""
        clock = format_clock(frame.taken)
        today = frame.taken.date()
        lines: list[str] = []
        if self._day is None:
            lines.append(_say_who(frame))
        elif today != self._day:
            lines.append(f"{clock} date: {today.isoformat()}")
        self._day = today
        lines += self._crowd.say(frame)
        lines += self._say_state(frame)
        lines += self._say_verdict(frame)
        lines += self._say_notes(frame)
        if frame.target.state is not TargetState.ENDED:
            lines += self._say_figures(frame)
            if not lines and frame.taken_ns - self._line_ns >= HEARTBEAT_S * 1e9:
                lines.append(f"{clock} no change: {say_now(frame)}")
        if lines:
            self._line_ns = frame.taken_ns
        return lines

    def _say_state(self, frame: Frame) -> Iterable[str]:
        state = frame.target.state
        if state is self._state:
            return
        self._state = state
        clock = format_clock(frame.taken)
        if state is TargetState.ENDED:
            if any(event.kind is EventKind.ENDED for event in frame.events):
                return
            ended = frame.target.ended
            yield f"{clock} ended: {ended if is_known(ended) else 'how is not known'}"
        elif state is TargetState.STOPPED:
            yield f"{clock} stopped: no process of the job may run until {_say_until(frame)}"
        else:
            yield f"{clock} running again: {say_facts(frame)}"

    def _say_verdict(self, frame: Frame) -> Iterable[str]:
        if self._begun_ns is None:
            self._begun_ns = frame.taken_ns
        finding = frame.verdict
        if not is_known(finding) or name_verdict(finding) == self._verdict:
            return
        looked_s = (frame.taken_ns - self._begun_ns) / 1e9
        if is_undecided(finding) and not self._verdict and looked_s < LOOK_S:
            return
        self._verdict = name_verdict(finding)
        yield f"{format_clock(frame.taken)} verdict: {write_check(frame)}"

    def _say_notes(self, frame: Frame) -> Iterable[str]:
        """Write a note when it comes, not when its figures change, and when it has been away long enough."""
        clock = format_clock(frame.taken)
        for note in frame.notes:
            gist = _FIGURE.sub("0", note)
            if gist not in self._notes:
                yield f"{clock} note: {note}"
            self._notes[gist] = (note, frame.taken_ns)
        for gist, (note, seen_ns) in list(self._notes.items()):
            if frame.taken_ns - seen_ns >= HOLD_S * 1e9:
                del self._notes[gist]
                # It has become the verdict, which was written.
                if not note.startswith((f"also {self._verdict}:", f"may be {self._verdict}:")):
                    yield f"{clock} no longer: {note}"

    def _say_figures(self, frame: Frame) -> Iterable[str]:
        """Write the facts once rates are known, then each figure that left its band for long enough."""
        moved = []
        for figure in FIGURES:
            now = figure.read(frame)
            if figure.name not in self._said:
                if is_known(now):
                    self._said[figure.name] = now
                continue
            said = self._said[figure.name]
            if not has_moved(figure, said, now):
                self._away_since_ns.pop(figure.name, None)
                continue
            since_ns = self._away_since_ns.setdefault(figure.name, frame.taken_ns)
            if frame.taken_ns - since_ns >= HOLD_S * 1e9:
                moved.append((figure, said, now))
        if not self._facts_said and is_known(frame.cpu.used_cores):
            self._facts_said = True
            self._figures_ns = frame.taken_ns
            yield f"{format_clock(frame.taken)} facts: {say_facts(frame)}"
        elif moved and frame.taken_ns - self._figures_ns >= QUIET_S * 1e9:
            self._figures_ns = frame.taken_ns
            for figure, _, now in moved:
                self._said[figure.name] = now
                self._away_since_ns.pop(figure.name)
            words = "; ".join(_say_move(*move) for move in moved)
            yield f"{format_clock(frame.taken)} {words}. Now {say_facts(frame)}"


def _say_until(frame: Frame) -> str:
    how = say_job_stop(frame)
    if how.startswith("frozen"):
        return f"it is thawed ({how})"
    return f"it is let go ({how})" if how.startswith("held") else "SIGCONT"


def _say_who(frame: Frame) -> str:
    target = frame.target
    up = format_seconds((frame.taken - target.start).total_seconds())
    return (
        f"{format_clock(frame.taken)} attached: {describe_target(frame)}, user {target.user},"
        f" host {target.host}, up {up}, {frame.taken.date().isoformat()}"
    )


def _say_move(figure: PlainFigure, said: Known[float], now: Known[float]) -> str:
    if isinstance(now, Missing):
        return f"{figure.name} no longer read, {now.reason}"
    if isinstance(said, Missing):
        return f"{figure.name} now read, {figure.write(now)}"
    way = "rose" if now > said else "fell"
    return f"{figure.name} {way} from {figure.write(said)} to {figure.write(now)}"


class Crowd:
    """Write events one by one while they are few, and count the rest of a crowd of one kind."""

    def __init__(self) -> None:
        self._since_ns = 0
        self._counts: Counter[EventKind] = Counter()

    def say(self, frame: Frame) -> list[str]:
        """Return the lines for the events of a Frame; the attach and the verdict have lines of their own."""
        lines = []
        ended = frame.target.state is TargetState.ENDED
        if frame.taken_ns - self._since_ns >= CROWD_S * 1e9 or ended:
            for kind, count in self._counts.items():
                if count > MOST_EVENTS:
                    more = count - MOST_EVENTS
                    lines.append(f"{format_clock(frame.taken)} {kind.value}: {more} more events, not named")
            self._counts.clear()
            self._since_ns = frame.taken_ns
        for event in frame.events:
            if event.kind is EventKind.ATTACH or (
                event.kind is EventKind.VERDICT and is_known(frame.verdict)
            ):
                continue
            self._counts[event.kind] += 1
            if self._counts[event.kind] <= MOST_EVENTS:
                lines.append(f"{format_clock(event.time)} {event.kind.value}: {event.text}")
        return lines


HAPPENINGS = ("events", "ends", "rounds", "stacks")
"""Fields of a Frame that list what happened since the last one."""


class Sparse:
    """Hand on one Frame in so many seconds, and in it all that happened since the one before."""

    def __init__(self, write: Callable[[Frame], None], every_s: float) -> None:
        """Hand on the first Frame, and from then on one each ``every_s``, to ``write``."""
        self._write = write
        self._every_s = every_s
        self._written_ns: int | None = None
        self._happened: dict[str, list[Any]] = {name: [] for name in HAPPENINGS}
        self._collectives: Applicable[CollectivesReading] = NOT_APPLICABLE

    def take(self, frame: Frame) -> None:
        """Write a Frame that is due, or the end of the job; of any other keep what happened."""
        for name, kept in self._happened.items():
            kept.extend(known_or(getattr(frame, name), ()))
        read = frame.collectives
        if is_known(read) or (read is not NOT_APPLICABLE and not is_known(self._collectives)):
            self._collectives = read
        # A reading that comes a little early is due as well: half an interval on both sides.
        past_s = self._every_s - frame.interval_s / 2
        is_due = self._written_ns is None or frame.taken_ns - self._written_ns >= past_s * 1e9
        if not is_due and frame.target.state is not TargetState.ENDED:
            return
        happened: dict[str, Any] = {name: tuple(kept) for name, kept in self._happened.items() if kept}
        self._write(replace(frame, collectives=self._collectives, **happened))
        self._written_ns = frame.taken_ns
        self._collectives = NOT_APPLICABLE
        for kept in self._happened.values():
            kept.clear()


def pick_form(output: Output, *, once: bool, json: bool, plain: bool) -> Callable[[Frame], None]:
    """Return a function that writes a Frame to ``output`` in the form asked for: JSON, words, or text."""
    if json:
        encoder = encode if once else encode_fast
        return lambda frame: output.write_json(encoder(frame))
    if not plain:
        return lambda frame: output.write_lines(*write_once(frame))
    if once:
        return lambda frame: output.write_lines(write_status(frame))
    report = PlainReport()
    return lambda frame: output.write_lines(*report.read(frame))
