"""Paint a whole recording in one line, and where in it the screen is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from tpmon.model.frame import EventKind
from tpmon.model.known import is_known
from tpmon.model.results.replay import Playback
from tpmon.model.units import count_cells, format_moment
from tpmon.model.verdict import pick_code
from tpmon.ui.monitor.state import ViewState
from tpmon.view.layout import NOT_READ, RULE, Ink, Item, Line, Span, fit_line
from tpmon.view.moments import to_datetime

POSITION = "█"
TICK = "┴"
_STATE_SHARE = 0.75
"""Of the first line for the state word."""
_SHORT_NS = 600_000_000_000
"""Of a shorter recording the seconds of start and end tell something."""
_URGENCY = {0: 0, 11: 1, 10: 2, 12: 3}
"""Of verdicts by exit code: of those in one column the most urgent is shown."""

INKS = {0: Ink.GOOD, 10: Ink.WARN, 11: Ink.STRONG, 12: Ink.BAD}
"""Of the words of verdicts by exit code."""
_GAP = (0, NOT_READ, Ink.PLAIN)


class Scale:
    """Translate UNIX times into the columns of a strip."""

    def __init__(self, playback: Playback, width: int) -> None:
        """Take the first column for the start and the last one for the end."""
        self._begin_ns = playback.begin.wall_ns
        self._span_ns = max(1, playback.end.wall_ns - self._begin_ns)
        self.width = width

    def column(self, wall_ns: int) -> int:
        """Return the column of a time, the nearest one for a time outside."""
        return max(0, min((wall_ns - self._begin_ns) * self.width // self._span_ns, self.width - 1))

    def columns(self, from_ns: int, to_ns: int) -> range:
        """Return the columns of a time, which takes one at least."""
        return range(self.column(from_ns), max(self.column(from_ns), self.column(to_ns)) + 1)

    def columns_within(self, from_ns: int, to_ns: int) -> Iterator[int]:
        """Yield the columns whose middle lies in a time."""
        for column in self.columns(from_ns, to_ns):
            middle_ns = self._begin_ns + self._span_ns * (2 * column + 1) // (2 * self.width)
            if from_ns <= middle_ns < to_ns:
                yield column


def paint_strip(view: ViewState, width: int) -> list[Line]:
    """Paint one line: words of the verdicts, ticks of events, gaps where nothing was read, the position."""
    playback = view.playback
    if not is_known(playback) or width < 1:
        return []
    scale = Scale(playback, width)
    signs: list[Span] = []
    for told, columns in groupby(_spread(playback, scale)):
        signs += _write_word(told, len(list(columns)))
    for event in playback.events:
        column = scale.column(event.wall_ns)
        if signs[column][0] == RULE:
            signs[column] = (TICK, Ink.BAD if event.event.kind is EventKind.ENDED else Ink.STRONG)
    signs[scale.column(playback.shown.wall_ns)] = (POSITION, Ink.STRONG)
    return [fit_line(tuple(signs), width)]


def _spread(playback: Playback, scale: Scale) -> list[Span]:
    """Return word and ink of each column: of the most urgent verdict in it; blanks in a hole."""
    found: list[tuple[int, str, Ink]] = [(-1, "", Ink.DIM)] * scale.width
    until_ns = [*(span.from_ns - 1 for span in playback.verdicts[1:]), playback.end.wall_ns]
    for span, end_ns in zip(playback.verdicts, until_ns, strict=False):
        if not is_known(span.kind):
            continue
        code = pick_code(span.kind, span.cause)
        told = (_URGENCY[code], span.kind.value.upper(), INKS[code])
        for column in scale.columns(span.from_ns, max(span.to_ns, end_ns)):
            found[column] = max(found[column], told, key=lambda one: one[0])
    for hole in playback.holes:
        for column in scale.columns_within(hole.from_ns, hole.to_ns):
            found[column] = _GAP
    return [(word, ink) for _urgency, word, ink in found]


def _write_word(told: Span, cells: int) -> list[Span]:
    """Write as much of a word as its columns hold, and a rule behind it."""
    word, ink = told
    shown = word[: max(1, cells - 1)]
    return [(sign, ink) for sign in shown.ljust(cells, NOT_READ if word == NOT_READ else RULE)]


def name_playback(view: ViewState, playback: Playback, width: int) -> Item:
    """Write what is shown of the recording and how it is played, as much as there is room for."""
    if not is_known(view.frame):
        return Item(0, "recorded, not live" if view.following else "REPLAY", Ink.BADGE_WARN)
    shown = view.frame.taken
    is_short = playback.end.wall_ns - playback.begin.wall_ns < _SHORT_NS
    begin, end = (
        format_moment(to_datetime(one.wall_ns, shown.tzinfo), shown, seconds=is_short)
        for one in (playback.begin, playback.end)
    )
    word = "recorded, not live," if view.following else "REPLAY"
    clock = f"{word} {shown:%H:%M:%S}"
    pace = "follows" if playback.follows else f"{playback.speed:g}x{' paused' if playback.paused else ''}"
    forms = (f"{clock} of {begin}-{end}  {pace}", f"{clock}  {pace}", clock)
    fitting = (form for form in forms if count_cells(form) <= width * _STATE_SHARE)
    return Item(0, next(fitting, clock), Ink.BADGE_WARN)
