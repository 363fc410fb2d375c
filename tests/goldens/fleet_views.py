"""The fleets of the golden pictures: nodes with the verdicts of other goldens, joined as the command joins them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.dumps import make_rank
from tests.fleet.nodes import look_at, make_node, make_rank_summary, make_silent
from tests.frames import NOW, NOW_NS
from tests.goldens.states import STATES
from tests.stacks import IN_LOCK
from tpmon.judge.folds.groups import fold_dumps
from tpmon.judge.folds.hot import show_stacks
from tpmon.judge.nodes import FleetMemory, join_fleet, measure_still, note_answer, note_asked, observe
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.fleet import FleetNode, FleetReport, FleetStacks, NodeState
from tpmon.ui.fleet.keys import fleet_keys_shown
from tpmon.ui.fleet.layout import paint_fleet
from tpmon.ui.fleet.state import FleetNews, FleetView, Form, StacksNews, begin_fleet_view, keep_node_cursor
from tpmon.ui.kit.keys import Overlay
from tpmon.view.fleet.nodes import NodeOrder
from tpmon.view.layout import Line, Size

FOLDER = Path(__file__).parent / "fleet_pictures"
SIZES = (Size(200, 50), Size(120, 40), Size(80, 24), Size(40, 30), Size(20, 5))
CARDS = 8
GOOD, HELD, HOT, OPEN = "compute-bound", "data-bound", "gpu-throttled", "undecided"


@cache
def judge(state: str) -> Any:
    """Return the verdict that the rules found in the Frame of another golden."""
    return STATES[state][0]().verdict


def build_node(at: int, nodes: int, state: str, *, cards: int = CARDS, **fields: Any) -> FleetNode:
    """Build a node with eight ranks and cards whose figures a person can check: 88 to 97 %, one of them less."""
    name = f"gpu{at:0{len(str(nodes))}}"
    ranks = [make_rank_summary(CARDS * at + one) for one in range(CARDS)]
    busy = tuple(
        88.0 + (7 * at + 3 * card) % 10 - (60.0 if state == HOT and card == 3 else 0.0) for card in range(cards)
    )
    if state == HELD:
        busy = tuple(41.0 + one % 7 for one in busy)
    plain = {
        "verdict": judge(state),
        "world_size": CARDS * nodes,
        "script": "pretrain_vision.py",
        "gpu_pct": busy,
        "step_rate_hz": 3.21,
        "used_cores": 18.0 + at % 5,
        "budget_cores": 96.0,
        "age_s": 0.2 + at % 7 / 10,
    }
    return make_node(name, *ranks, **(plain | fields))


def build_silent(at: int, nodes: int, state: NodeState, why: str, age_s: float) -> FleetNode:
    return replace(make_silent(f"gpu{at:0{len(str(nodes))}}", state, why), age_s=age_s)


def join(nodes: Sequence[FleetNode], memory: FleetMemory | None = None) -> FleetReport:
    return join_fleet(memory or FleetMemory(), nodes, NOW)


def starting() -> FleetReport:
    return join([replace(build_silent(at, 8, NodeState.STARTING, "", 0.0), reason=NOT_APPLICABLE) for at in range(8)])


def few() -> FleetReport:
    """Build eight nodes: one waits for data, one is cut off, one has a hot card."""
    nodes = [build_node(at, 8, GOOD) for at in range(8)]
    nodes[2] = build_node(2, 8, HELD, clock_skew_s=-2.5)
    nodes[5] = build_node(5, 8, HOT)
    nodes[6] = build_silent(6, 8, NodeState.GONE, "client_loop: send disconnect: Broken pipe", 41.0)
    return join(nodes)


def many(nodes: int) -> FleetReport:
    """Build so many nodes, of which some are not as they should be."""
    odd: dict[int, Callable[[int], FleetNode]] = {
        17: lambda at: build_node(at, nodes, HELD),
        23: lambda at: build_node(at, nodes, HOT),
        24: lambda at: build_node(at, nodes, OPEN),
        29: lambda at: build_silent(at, nodes, NodeState.REFUSED, "Permission denied (publickey).", 61.0),
        31: lambda at: replace(
            build_node(at, nodes, GOOD), state=NodeState.LATE, reason="its agent answers no more", age_s=9.0
        ),
    }
    return join([odd[at % 97](at) if at % 97 in odd else build_node(at, nodes, GOOD) for at in range(nodes)])


def hung_nodes() -> tuple[FleetNode, ...]:
    return tuple(build_node(at, 4, OPEN, still_s=42.0, cards=0, world_size=4, verdict=judge(OPEN)) for at in range(4))


def looks() -> dict[str, Any]:
    """Build what four nodes answer: the rank on the third waits for a lock, the others for it."""
    return {
        f"gpu{at}": look_at(
            make_rank(at, pid=4000 + at, **({"frames": IN_LOCK} if at == 2 else {})), host=f"gpu{at}", world=4
        )
        for at in range(4)
    }


def hung() -> FleetReport:
    nodes = tuple(
        replace(one, summary=replace(one.summary, ranks=(make_rank_summary(at),)))
        for at, one in enumerate(hung_nodes())
    )
    memory = note_asked(FleetMemory(), tuple(looks()), 990.0)
    for node, dump in looks().items():
        memory = note_answer(memory, node, dump)
    return join(nodes, observe(memory, nodes, 1000.0))


def folded() -> StacksNews:
    """Build the stacks of all nodes of the hang but one."""
    nodes = hung_nodes()
    dump = fold_dumps([one for name, one in looks().items() if name != "gpu3"], measure_still(nodes, FleetMemory()))
    return StacksNews(3, 4, FleetStacks(dump, (("gpu3", "no answer"),)), show_stacks(dump.groups))


REPORTS: dict[str, Callable[[], FleetReport]] = {
    "starting": starting,
    "few": few,
    "cards": lambda: many(48),
    "glyphs": lambda: many(512),
    "hung": hung,
}


@dataclass(frozen=True, slots=True)
class FleetPicture:
    """Name one picture: a fleet, a size, what the keys have changed in the view, and the stacks that were read."""

    name: str
    fleet: str
    size: Size
    changes: dict[str, Any] = field(default_factory=dict)
    stacks: Any = NOT_APPLICABLE


def list_pictures() -> Iterator[FleetPicture]:
    """Return all pictures of fleets."""
    for size in SIZES:
        at = f"{size.width}x{size.height}"
        for fleet in ("few", "glyphs", "hung"):
            yield FleetPicture(f"{fleet}.{at}", fleet, size)
        yield FleetPicture(f"stacks.{at}", "hung", size, {"overlay": Overlay.STACKS}, folded())
    common = Size(80, 24)
    for size in (Size(120, 40), common):
        yield FleetPicture(f"cards.{size.width}x{size.height}", "cards", size)
    yield FleetPicture("starting.80x24", "starting", common)
    yield FleetPicture("help.80x24", "few", common, {"overlay": Overlay.HELP})
    yield FleetPicture("late.80x24", "few", common, {"told_ns": NOW_NS - 8 * 10**9})
    yield FleetPicture("filter.80x24", "glyphs", common, {"overlay": Overlay.FILTER, "filter_text": "late"})
    yield FleetPicture("by-gpu.80x24", "glyphs", common, {"order": NodeOrder.GPU, "form": Form.ROWS})
    waiting = StacksNews(3, 4)
    yield FleetPicture("stacks-waiting.80x24", "hung", common, {"overlay": Overlay.STACKS}, waiting)
    nothing = StacksNews(0, 4, FleetStacks(Missing("no answer"), (("gpu0", "no job is watched here"),)))
    yield FleetPicture("stacks-none.80x24", "hung", common, {"overlay": Overlay.STACKS}, nothing)
    for fleet in ("few", "cards", "glyphs"):
        yield FleetPicture(f"{fleet}.80x24.ascii", fleet, common, {"ascii_only": True})


INKED = ("few.120x40", "cards.120x40", "glyphs.80x24", "hung.40x30")
"""Their pictures have the ink of each cell beside them."""


def picture_path(picture: FleetPicture) -> Path:
    return FOLDER / f"{picture.name}.txt"


def list_inked() -> list[FleetPicture]:
    return [picture for picture in list_pictures() if picture.name in INKED]


def inks_path(picture: FleetPicture) -> Path:
    return FOLDER / f"{picture.name}.inks"


@cache
def build_report(fleet: str) -> FleetReport:
    return REPORTS[fleet]()


def view_of(picture: FleetPicture) -> FleetView:
    news = FleetNews(build_report(picture.fleet), picture.stacks)
    view = begin_fleet_view(NOW, NOW_NS, news, ascii_only=False)
    return keep_node_cursor(replace(view, **picture.changes), view)


def paint_picture(picture: FleetPicture) -> list[Line]:
    """Paint a picture with the keys that work in its view."""
    view = view_of(picture)
    return paint_fleet(view, picture.size, fleet_keys_shown(view))
