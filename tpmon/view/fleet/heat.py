"""The nodes of a fleet as glyphs: one a node, or one for each of its cards; what each means. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum

from tpmon.model.figures import Bad
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, is_known
from tpmon.model.results.fleet import FleetNode, NodeState
from tpmon.model.units import clean_text, count_cells
from tpmon.model.verdict import VerdictCode, pick_code
from tpmon.view.layout import LEVELS, NOT_READ, Ink, Item, Line, Span, cut_front, level_of, pad, shade

TINY = 30
"""Below this width counts have no words."""
MOST_CARDS = 16
"""Of a node; its figure in the rows is of all."""
NAME_CELLS = 16
GAP = 2
GROUP = 10
"""Glyphs of nodes stand in groups of so many, to be counted."""


class Grade(Enum):
    """Say how a node does, by its verdict where it tells of its job, else by its state, in a word."""

    HUNG = "hung"
    HELD = "held back"
    UNDECIDED = "undecided"
    GOOD = "good"
    STARTING = "starting"
    LATE = "late"
    GONE = "gone"
    OTHER_VERSION = "other version"
    REFUSED = "refused"
    NO_JOB = "no job"


_OF_CODE = {
    VerdictCode.HUNG: Grade.HUNG,
    VerdictCode.HELD: Grade.HELD,
    VerdictCode.UNDECIDED: Grade.UNDECIDED,
    VerdictCode.FINE: Grade.GOOD,
}
GLYPHS = {
    Grade.HUNG: "X",
    Grade.HELD: "!",
    Grade.UNDECIDED: "?",
    Grade.GOOD: "o",
    Grade.STARTING: "s",
    Grade.LATE: "l",
    Grade.GONE: "g",
    Grade.OTHER_VERSION: "v",
    Grade.REFUSED: "r",
    Grade.NO_JOB: "n",
}
"""Told apart without colour, and none of them a level of a card, also in ASCII."""
INKS = {
    Grade.HUNG: Ink.BAD,
    Grade.HELD: Ink.WARN,
    Grade.UNDECIDED: Ink.PLAIN,
    Grade.GOOD: Ink.GOOD,
    Grade.STARTING: Ink.DIM,
    Grade.LATE: Ink.WARN,
    Grade.GONE: Ink.BAD,
    Grade.OTHER_VERSION: Ink.BAD,
    Grade.REFUSED: Ink.BAD,
    Grade.NO_JOB: Ink.DIM,
}
_COUNTED = (
    *(Grade.HUNG, Grade.HELD, Grade.GONE, Grade.REFUSED, Grade.OTHER_VERSION, Grade.LATE),
    *(Grade.NO_JOB, Grade.STARTING, Grade.UNDECIDED, Grade.GOOD),
)
"""The order of their counts: what is wrong first."""


def rate_node(node: FleetNode) -> Grade:
    """Return how a node does."""
    if node.state is not NodeState.LIVE:
        return Grade(node.state.value)
    if not is_known(node.verdict):
        return Grade.UNDECIDED
    return _OF_CODE[VerdictCode(pick_code(node.verdict.kind, node.verdict.cause))]


def list_cards(node: FleetNode) -> tuple[Known[float], ...]:
    """Return the utilisation of the cards of its job in percent, none where they were not read."""
    summary = node.summary
    return summary.gpu_pct if is_known(summary) and is_known(summary.gpu_pct) else ()


def find_least_busy(node: FleetNode) -> float | None:
    """Return the utilisation of its least busy card."""
    return min((one for one in list_cards(node) if is_known(one)), default=None)


def draw_node(node: FleetNode) -> Span:
    """Draw a node as one glyph; a good one with cards as the level of the least busy of them."""
    grade = rate_node(node)
    least = find_least_busy(node) if grade is Grade.GOOD else None
    return (GLYPHS[grade] if least is None else level_of(least, 100.0)), INKS[grade]


def draw_cards(node: FleetNode, cells: int) -> Line:
    """Draw the level of each card, a gap where it was not read, in as many cells as there are."""
    drawn = [_draw_card(value) for value in list_cards(node)[:cells]]
    return (*drawn, (" " * (cells - len(drawn)), Ink.PLAIN))


def _draw_card(value: Known[float]) -> Span:
    if not is_known(value):
        return NOT_READ, Ink.PLAIN
    return level_of(value, 100.0), shade(value / 100.0, Bad.LOW)


def count_grades(nodes: Sequence[FleetNode]) -> list[tuple[Grade, int]]:
    """Return how many nodes do how, what is wrong first; none that has no node."""
    counts = Counter(map(rate_node, nodes))
    return [(grade, counts[grade]) for grade in _COUNTED if counts[grade]]


def say_counts(nodes: Sequence[FleetNode], width: int, *, by_level: bool) -> list[Item]:
    """Write how many nodes do how, with the glyphs; without words where there is little room.

    ``by_level``: good nodes are drawn as the levels of their cards.
    """
    drawn = by_level and any(
        rate_node(one) is Grade.GOOD and find_least_busy(one) is not None for one in nodes
    )
    items = []
    for place, (grade, count) in enumerate(count_grades(nodes)):
        glyph = GLYPHS[grade]
        if grade is Grade.GOOD and drawn:
            glyph = f"{LEVELS[0]}-{LEVELS[-1]}"
        said = f"{glyph}{count}" if width < TINY else f"{glyph} {count} {grade.value}"
        items.append(Item(place, said, INKS[grade]))
    return items


@dataclass(frozen=True, slots=True)
class Grid:
    """Hold how glyphs are laid: so many nodes a line, names and cards of so many cells."""

    per_line: int
    name: int = 0
    cards: int = 0


def shorten_names(nodes: Sequence[FleetNode]) -> dict[str, str]:
    """Return the name of each node as shown, without the domain that all share."""
    domains = {one.node.partition(".")[2] for one in nodes}
    whole = len(domains) > 1
    return {one.node: clean_text(one.node if whole else one.node.partition(".")[0]) for one in nodes}


def fit_cards(nodes: Sequence[FleetNode], width: int) -> Grid:
    """Fit names with a glyph for each card beside each other."""
    name = min(NAME_CELLS, max((count_cells(one) for one in shorten_names(nodes).values()), default=1))
    cards = min(MOST_CARDS, max((len(list_cards(one)) for one in nodes), default=0))
    cell = 1 + name + 1 + 1 + cards
    return Grid(max(1, (width + GAP) // (cell + GAP)), name, cards)


def fit_glyphs(width: int) -> Grid:
    """Fit one glyph a node, in groups of ten."""
    room = max(1, width - 1)
    groups = (room + 1) // (GROUP + 1)
    return Grid(groups * GROUP if groups else room)


def count_lines(nodes: int, grid: Grid) -> int:
    """Return how many lines so many nodes take."""
    return -(-nodes // grid.per_line)


def paint_grid(nodes: Sequence[FleetNode], grid: Grid, cursor: str, first: int, end: int) -> list[Line]:
    """Paint the lines from ``first`` to ``end`` of nodes as glyphs."""
    paint = _paint_named if grid.name else _paint_glyphs
    names = shorten_names(nodes) if grid.name else {}
    starts = range(first * grid.per_line, min(end * grid.per_line, len(nodes)), grid.per_line)
    return [paint(nodes[at : at + grid.per_line], grid, cursor, names) for at in starts]


def _paint_named(nodes: Sequence[FleetNode], grid: Grid, cursor: str, names: dict[str, str]) -> Line:
    spans: list[Span] = []
    for node in nodes:
        here = node.node == cursor
        name = pad(cut_front(names[node.node], grid.name), grid.name)
        grade = rate_node(node)
        spans += [
            (" " * GAP if spans else "", Ink.PLAIN),
            (f"{'>' if here else ' '}{name} ", Ink.CURSOR if here else Ink.PLAIN),
            (GLYPHS[grade], INKS[grade]),
            *draw_cards(node, grid.cards),
        ]
    return tuple(spans)


def _paint_glyphs(nodes: Sequence[FleetNode], _grid: Grid, cursor: str, _names: dict[str, str]) -> Line:
    spans: list[Span] = [(" ", Ink.PLAIN)]
    for place, node in enumerate(nodes):
        glyph, ink = draw_node(node)
        if place and place % GROUP == 0:
            spans.append((" ", Ink.PLAIN))
        ink = Ink.CURSOR if node.node == cursor else ink
        if spans[-1][1] is ink:
            spans[-1] = (spans[-1][0] + glyph, ink)
        else:
            spans.append((glyph, ink))
    return tuple(spans)
