"""Put the screen of a fleet together at a given size: the head, the verdict, the nodes, the keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.fleet import FleetNode, NodeState
from tpmon.model.units import clean_text, format_clock, format_seconds
from tpmon.model.verdict import VerdictCode, pick_code
from tpmon.ui.fleet.stacks import paint_stacks, say_progress
from tpmon.ui.fleet.state import FleetView, Form, find_node, list_nodes, list_shown
from tpmon.ui.kit.keys import (
    AROUND_HELP,
    TINY_WIDTH,
    KeyHelp,
    Overlay,
    frame_rows,
    is_tiny,
    paint_help,
    paint_scrolled,
)
from tpmon.view.finding.block import MOST_NOTES, paint_briefly, paint_finding
from tpmon.view.finding.pieces import NARROW, cut_text, lay_pieces, write_label
from tpmon.view.fleet.heat import (
    INKS,
    Grid,
    count_lines,
    fit_cards,
    fit_glyphs,
    paint_grid,
    rate_node,
    say_counts,
)
from tpmon.view.fleet.nodes import NodeOrder, describe_node, list_node_columns, say_views
from tpmon.view.layout import (
    LEVELS,
    MEASURED_ROWS,
    Ink,
    Item,
    Line,
    Size,
    Table,
    justify,
    lay_text,
    paint_rule,
    set_in,
    window_of,
    wrap_all,
)

LATE_S = 3.0
"""A report is due each second."""
MOST_TOLD = 2
"""Lines about the node under the cursor."""
WORDS = (
    ("STILL", "for how long no rank there has moved", "no rank moved"),
    ("AGE", "since its agent last said something", "last heard"),
    ("X ! ? o", "a node that is hung, held back, not decided, good", "hung, held, ?, good"),
    (
        f"{LEVELS[0]} to {LEVELS[-1]}",
        "a good node by its least busy card; behind a name each card",
        "GPU use",
    ),
    ("other letters", "the first one of the state: starting, late, gone, refused, no job, version", "states"),
)
_SHARES = {VerdictCode.FINE: 0.2, VerdictCode.HELD: 0.34, VerdictCode.UNDECIDED: 0.28, VerdictCode.HUNG: 0.34}
"""Share of the height for a verdict by exit code."""


@dataclass(frozen=True, slots=True)
class NodesPlan:
    """Hold how the nodes are laid: their form, and where they are glyphs the grid of these."""

    form: Form
    grid: Grid
    room: int
    """Lines for them."""


def paint_fleet(view: FleetView, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    """Paint the whole screen: ``size.height`` lines."""
    return frame_rows(
        view,
        size,
        keys,
        lambda width: _paint_head(view, width),
        lambda body: _paint_body(view, body, size, keys),
    )


def _paint_head(view: FleetView, width: int) -> Line:
    report = view.news.report
    live = sum(one.state is NodeState.LIVE for one in report.nodes)
    size = f" of {report.world_size}" if is_known(report.world_size) else ""
    nodes, ranks = f"{live} of {len(report.nodes)} nodes", f"{report.ranks}{size} ranks"
    if width < NARROW:
        nodes, ranks = nodes.replace(" of ", "/"), ranks.replace(" of ", "/").replace(" ranks", "r")
    if width < TINY_WIDTH:
        nodes = nodes.removesuffix(" nodes")
    left = [
        Item(4, clean_text(report.script) if is_known(report.script) else "tpmon fleet", Ink.TITLE),
        Item(1, nodes, Ink.PLAIN if live == len(report.nodes) else Ink.WARN),
        Item(2, ranks),
    ]
    age_s = (view.now_ns - view.told_ns) / 1e9
    state = (
        Item(0, f"LATE {format_seconds(age_s)}", Ink.BADGE_BAD)
        if age_s > LATE_S
        else Item(0, "LIVE", Ink.STRONG)
    )
    marks = [Item(1, "REC", Ink.BADGE_BAD)] if view.news.records else []
    return justify(left, [*marks, state, Item(3, format_clock(view.now))], width)


def _paint_body(view: FleetView, body: Size, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    if view.overlay is Overlay.HELP:
        return paint_scrolled("help", paint_help(keys, size, WORDS), view.scroll, body)
    if view.overlay is Overlay.STACKS:
        title = f"stacks of all nodes{say_progress(view)}"
        return paint_scrolled(title, paint_stacks(view, body.width), view.scroll, body)
    if is_tiny(size):
        return _paint_tiny(view, body)
    top = _paint_verdict(view, size)
    return [*top, *_paint_nodes(view, Size(body.width, body.height - len(top)))]


def last_line(view: FleetView, size: Size, keys: Sequence[KeyHelp]) -> int:
    """Return the last line from which what covers the nodes can be shown."""
    helps = view.overlay is Overlay.HELP
    text = paint_help(keys, size, WORDS) if helps else paint_stacks(view, size.width)
    return max(0, len(text) - (size.height - AROUND_HELP))


def _paint_tiny(view: FleetView, body: Size) -> list[Line]:
    """Paint the verdict, and in the last line how many nodes do how."""
    report = view.news.report
    counts = _paint_counts(view, body.width)
    if isinstance(report.verdict, Missing):
        said = set_in(wrap_all(f"no verdict: {report.verdict.reason}", max(1, body.width - 1)))
    else:
        said = paint_briefly(report.verdict, report.taken, Size(body.width, max(1, body.height - 1)))
    return [*said[: max(1, body.height - 1)], *counts][: body.height]


def _paint_verdict(view: FleetView, size: Size) -> list[Line]:
    report, width = view.news.report, size.width
    if isinstance(report.verdict, Missing):
        return lay_text(f"no verdict: {report.verdict.reason}", width, Ink.STRONG)
    # Keys of the screen of one job do not do here what they do there.
    finding = replace(report.verdict, try_keys=NOT_APPLICABLE)
    most = max(4, int(size.height * _SHARES[VerdictCode(pick_code(finding.kind, finding.cause))]))

    def notes(most: int) -> list[Line]:
        views = say_views(report)
        if not views:
            return []
        label = "" if width < NARROW else write_label("ALSO")
        texts = wrap_all(f"the nodes differ: {views}", max(8, width - len(label) - 2))
        return cut_text(set_in(texts, head=label or " "), min(most, MOST_NOTES), width)

    return paint_finding(finding, report.taken, width, most, notes, has_whole=False)


def _paint_counts(view: FleetView, width: int, *, by_level: bool = False) -> list[Line]:
    items = say_counts(list_nodes(view), width, by_level=by_level)
    pieces = [((one.text, one.ink),) for one in items]
    return lay_pieces(pieces, width, 1 if width < TINY_WIDTH else 2, " ", 1)


def plan_at(view: FleetView, size: Size) -> NodesPlan:
    """Return how the nodes are laid on a screen."""
    top = _paint_verdict(view, size)
    return _plan(view, list_shown(view), Size(size.width, size.height - 2 - len(top)))


def _plan(view: FleetView, nodes: Sequence[FleetNode], room: Size) -> NodesPlan:
    """Choose the form that shows most of a node and still has room for all."""
    lines = max(1, room.height - 1 - len(_paint_counts(view, room.width)) - MOST_TOLD)
    rows = NodesPlan(Form.ROWS, Grid(1), lines)
    cards = NodesPlan(Form.CARDS, fit_cards(nodes, room.width), lines)
    glyphs = NodesPlan(Form.GLYPHS, fit_glyphs(room.width), lines)
    if is_known(view.form):
        return next(one for one in (rows, cards, glyphs) if one.form is view.form)
    if room.width < NARROW or len(nodes) < room.height - 1:
        return rows
    return cards if count_lines(len(nodes), cards.grid) <= lines else glyphs


def _paint_nodes(view: FleetView, room: Size) -> list[Line]:
    nodes = list_shown(view)
    details = [Item(1, view.order.value)] if view.order is not NodeOrder.WORST else []
    if view.filter_text and view.overlay is Overlay.NONE:
        details.insert(0, Item(0, f"filter: {view.filter_text}", Ink.WARN))
    if not nodes:
        return [
            _paint_rule(details, room.width),
            *lay_text(f"no node has {view.filter_text!r} in it", room.width),
        ]
    plan = _plan(view, nodes, room)
    if plan.form is Form.ROWS:
        return _paint_rows(view, nodes, details, room)
    names = range(count_lines(len(nodes), plan.grid))
    place = next((at for at, one in enumerate(nodes) if one.node == view.cursor), 0)
    first, end = window_of(names, place // plan.grid.per_line, plan.room)
    if end - first < len(names):
        details.append(Item(0, f"lines {first + 1} to {end} of {len(names)}"))
    return [
        _paint_rule(details, room.width),
        *_paint_counts(view, room.width, by_level=plan.form is Form.GLYPHS),
        *paint_grid(nodes, plan.grid, view.cursor, first, end),
        *_tell(view, room.width),
    ]


def _paint_rule(details: Sequence[Item], width: int) -> Line:
    return paint_rule("nodes", details, width, focused=True)


def _tell(view: FleetView, width: int) -> list[Line]:
    """Tell of the node under the cursor."""
    node = find_node(view)
    if node is None:
        return []
    name, _, said = describe_node(node).partition(": ")
    glad = ((f" {name}", Ink.STRONG), (f": {said}", INKS[rate_node(node)]))
    texts = wrap_all(f"{name}: {said}", max(8, width - 2))
    return [glad] if len(texts) == 1 else cut_text(set_in(texts, INKS[rate_node(node)]), MOST_TOLD, width)


def _paint_rows(
    view: FleetView, nodes: Sequence[FleetNode], details: Sequence[Item], room: Size
) -> list[Line]:
    """Paint a row a node; where not all fit, or little of each, counts above and the rest below."""
    fits = len(nodes) < room.height - 1 and room.width >= NARROW
    counts = [] if fits else _paint_counts(view, room.width)
    place = next((at for at, one in enumerate(nodes) if one.node == view.cursor), 0)
    near = nodes[max(0, place - room.height) : place + room.height]
    table = Table(list_node_columns([*near, *nodes[:MEASURED_ROWS]], room.width), room.width)
    told = _tell(view, room.width) if table.dropped else []
    lines = max(1, room.height - 2 - len(counts) - len(told))
    first, end = window_of(range(len(nodes)), place, lines)
    shown = [Item(0, f"{first + 1} to {end} of {len(nodes)}")] if end - first < len(nodes) else []
    return [
        _paint_rule([*details, *shown], room.width),
        *counts,
        table.paint_head(),
        *(table.paint_row(one, cursor=one.node == view.cursor) for one in nodes[first:end]),
        *told,
    ]
