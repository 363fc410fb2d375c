"""The nodes of a fleet in words: names, figures, orders, who differs. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache

from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.fleet import FleetNode, FleetReport, NodeState, NodeSummary
from tpmon.model.text.dump_words import list_numbers
from tpmon.model.text.job_words import format_step_rate, join_cause
from tpmon.model.units import clean_text, count_of, format_pct, format_seconds
from tpmon.model.verdict import VerdictCode, pick_code
from tpmon.view.finding.pieces import NARROW
from tpmon.view.fleet.heat import INKS, find_least_busy, rate_node
from tpmon.view.layout import Cell, Column, Figures, TableFigure, list_columns, show

MOST_NAMED = 4
MOST_RANGES = 12
SKEW_S = 0.1
LATE_FIRST = (
    NodeState.REFUSED,
    NodeState.OTHER_VERSION,
    NodeState.GONE,
    NodeState.LATE,
    NodeState.NO_JOB,
    NodeState.STARTING,
    NodeState.LIVE,
)
_RUN = re.compile(r"(.*?)([0-9]+)(\D*)")
_PARTS = re.compile(r"(\D*)([0-9]{0,9})")
_MOST_DIGITS = 10


def _of(node: FleetNode) -> NodeSummary | None:
    return node.summary if is_known(node.summary) else None


def _say_ranks(node: FleetNode) -> str:
    told = _of(node)
    numbers = [one.rank for one in told.ranks if is_known(one.rank)] if told else []
    return list_numbers(numbers) or (str(len(told.ranks)) if told else "")


def _say_own(node: FleetNode) -> str:
    return join_cause(node.verdict.kind, node.verdict.cause) if is_known(node.verdict) else ""


def _say_rate(node: FleetNode) -> str:
    told = _of(node)
    return format_step_rate(told.step_rate_hz) if told and is_known(told.step_rate_hz) else ""


def _say_cards(node: FleetNode) -> str:
    told = _of(node)
    if told is None or isinstance(told.gpu_pct, Missing):
        return ""
    read = [one for one in told.gpu_pct if is_known(one)]
    return f"{format_pct(sum(read) / len(read))} %" if read else ""


def _say_cpus(node: FleetNode) -> str:
    told = _of(node)
    used = show(told.used_cores, lambda cores: f"{cores:.1f}") if told else ""
    return f"{used} of {show(told.budget_cores, lambda cores: f'{cores:g}')}" if told else used


def _say_still(node: FleetNode) -> str:
    told = _of(node)
    return format_seconds(told.still_s) if told and told.still_s >= 1 else ""


def _say_doing(node: FleetNode) -> str:
    """Say in a word how a node does."""
    is_live = node.state is NodeState.LIVE and is_known(node.verdict)
    return node.verdict.kind.value if is_live and is_known(node.verdict) else node.state.value


_STATE, _OWN = "STATE", "ITS VERDICT"
NODES: Figures[FleetNode] = (
    TableFigure("NODE", lambda node: clean_text(node.node), keep=0, left=True),
    TableFigure(_STATE, lambda node: node.state.value, keep=1, left=True),
    TableFigure("RANKS", _say_ranks, keep=4, left=True),
    TableFigure(_OWN, _say_own, keep=2, left=True),
    TableFigure("STILL", _say_still, keep=3),
    TableFigure("STEPS", _say_rate, keep=6),
    TableFigure("GPU", _say_cards, keep=5),
    TableFigure("CPU", _say_cpus, keep=7),
    TableFigure("AGE", lambda node: format_seconds(node.age_s), keep=8),
)


_BRIEF: Figures[FleetNode] = (
    TableFigure("NODE", lambda node: clean_text(node.node), keep=1, left=True),
    TableFigure(_STATE, _say_doing, keep=0, left=True),
    TableFigure("STILL", _say_still, keep=2),
    TableFigure("GPU", _say_cards, keep=3),
    TableFigure("AGE", lambda node: format_seconds(node.age_s), keep=4),
)
"""For little room: the verdict of a live node stands for its state."""


class NodeOrder(Enum):
    """Name the orders of the nodes in the words of their rule."""

    WORST = "worst first"
    NAME = "by name"
    GPU = "least busy GPU first"
    AGE = "by age"


@lru_cache(maxsize=1 << 13)
def _split_name(name: str) -> tuple[tuple[str, int], ...]:
    """Split a name so that n2 comes before n10."""
    return tuple((text, int(number or 0)) for text, number in _PARTS.findall(name))


def sort_nodes(report: FleetReport, order: NodeOrder) -> list[FleetNode]:
    """Return the nodes in an order, those that are alike in it by name."""
    if order is NodeOrder.WORST:
        return order_nodes(report)
    nodes = sorted(report.nodes, key=lambda one: _split_name(one.node))
    if order is NodeOrder.GPU:
        nodes.sort(key=lambda one: 101.0 if (least := find_least_busy(one)) is None else least)
    elif order is NodeOrder.AGE:
        nodes.sort(key=lambda one: -one.age_s)
    return nodes


def mark_blamed(report: FleetReport) -> FleetReport:
    """Give the verdict that accuses to the node that it points at: its own may know less."""
    verdict = report.verdict
    if not is_known(verdict) or not _accuses(report):
        return report
    nodes = tuple(replace(one, verdict=verdict) if one.node == report.node else one for one in report.nodes)
    return replace(report, nodes=nodes)


def _accuses(report: FleetReport) -> bool:
    if not is_known(report.verdict) or not is_known(report.node):
        return False
    return pick_code(report.verdict.kind, report.verdict.cause) in (VerdictCode.HELD, VerdictCode.HUNG)


def order_nodes(report: FleetReport) -> list[FleetNode]:
    """Return the node that the verdict accuses, those that do not answer, then the worst verdicts first."""
    blamed = report.node if _accuses(report) else NOT_APPLICABLE
    places = {name: place for place, view in enumerate(report.views) for name in view.nodes}
    return sorted(
        report.nodes,
        key=lambda one: (
            one.node != blamed,
            LATE_FIRST.index(one.state),
            places.get(one.node, 0),
            _split_name(one.node),
        ),
    )


def list_node_columns(nodes: Sequence[FleetNode], width: int) -> tuple[Column[FleetNode], ...]:
    """Make the columns of a row a node, with the reason in what is left of the width."""

    def colour(column: Column[FleetNode]) -> Column[FleetNode]:
        def read(node: FleetNode) -> Cell:
            cell = column.read(node)
            return (cell if isinstance(cell, str) else cell[0]), INKS[rate_node(node)]

        return replace(column, read=read) if column.head in (_STATE, _OWN) else column

    told = tuple(one for one in (NODES if width >= NARROW else _BRIEF) if any(map(one.tell, nodes)))
    why: Column[FleetNode] = Column("REASON", 8, 20, lambda node: "; ".join(explain_node(node)), False, True)
    has_why = any(map(explain_node, nodes))
    return (*map(colour, list_columns(told, nodes)), *((why,) if has_why else ()))


def describe_node(node: FleetNode) -> str:
    """Name a node with its state, its figures and the reason."""
    still, ranks, steps = _say_still(node), _say_ranks(node), _say_rate(node)
    cards, cpus = _say_cards(node), _say_cpus(node)
    said = [
        node.state.value,
        _say_own(node),
        f"nothing moved for {still}" if still else "",
        f"rank{'' if ranks.isdecimal() else 's'} {ranks}" if ranks else "",
        f"{steps} steps/s" if steps else "",
        f"GPU {cards}" if cards else "",
        f"CPU {cpus}" if cpus else "",
        *explain_node(node),
    ]
    return f"{clean_text(node.node)}: {', '.join(filter(None, said))}"


def has_text(node: FleetNode, text: str) -> bool:
    """Tell whether a node has a text in its name, state, verdict or reason."""
    words = (node.node, node.state.value, _say_own(node), *explain_node(node))
    return text.lower() in " ".join(words).lower()


def explain_node(node: FleetNode) -> list[str]:
    """Say why it does not tell of its job, how wrong its clock is, and what of it was lost."""
    said = [node.reason] if is_known(node.reason) else []
    if is_known(node.clock_skew_s) and abs(node.clock_skew_s) > SKEW_S:
        way = "ahead" if node.clock_skew_s > 0 else "behind"
        said.append(f"its clock is {format_seconds(abs(node.clock_skew_s))} {way} of the one here")
    if node.torn:
        said.append(f"{count_of(node.torn, 'message')} did not come whole")
    return [clean_text(one) for one in said]


def name_nodes(names: tuple[str, ...]) -> str:
    """Name nodes together, numbered ones as ranges, some of many: "n[1-3,7], head (+12 more)"."""
    sets: dict[tuple[str, str, int], list[str]] = {}
    padded = {found[1] for name in names if (found := _RUN.fullmatch(name)) and found[2].startswith("0")}
    for name in names:
        found = _RUN.fullmatch(name)
        if found and len(found[2]) < _MOST_DIGITS:
            width = len(found[2]) if found[1] in padded else 0
            sets.setdefault((found[1], found[3], width), []).append(found[2])
        else:
            sets.setdefault((name, "", 0), [])
    words = []
    for (head, tail, width), numbers in sets.items():
        inner = _write_numbers(numbers, width) if len(numbers) > 1 else "".join(numbers)
        words.append(f"{head}{inner}{tail}")
    more = f" (+{len(words) - MOST_NAMED} more)" if len(words) > MOST_NAMED else ""
    return clean_text(", ".join(words[:MOST_NAMED]) + more)


def _write_numbers(numbers: list[str], width: int) -> str:
    parts = list_numbers(map(int, numbers)).split(",")
    shown = ["-".join(one.zfill(width) for one in part.split("-")) for part in parts[:MOST_RANGES]]
    return f"[{','.join([*shown, *(['...'] if len(parts) > MOST_RANGES else [])])}]"


def say_views(report: FleetReport) -> str:
    """Say which nodes have which verdict of their own, "" where they agree."""
    if len(report.views) < 2:
        return ""
    return "; ".join(f"{join_cause(one.kind, one.cause)} on {name_nodes(one.nodes)}" for one in report.views)


def count_states(report: FleetReport) -> str:
    """Say how many nodes answer, and how many ranks these have: "3 of 4 nodes, 24 of 32 ranks"."""
    live = sum(one.state is NodeState.LIVE for one in report.nodes)
    nodes = f"{live} of {count_of(len(report.nodes), 'node')}"
    size = report.world_size
    ranks = f"{report.ranks} of {size} ranks" if is_known(size) else count_of(report.ranks, "rank")
    script = f"{clean_text(report.script)}, " if is_known(report.script) else ""
    return f"{script}{nodes}, {ranks}"
