"""Write the nodes of a job as text: one verdict, who sees it otherwise, a row a node; or what changes."""

from __future__ import annotations

from collections.abc import Iterable

from tpmon.model.known import Missing, is_known
from tpmon.model.results.fleet import FleetNode, FleetReport, NodeState
from tpmon.model.text.job_words import is_undecided, name_verdict
from tpmon.model.units import clean_text, count_of, format_clock
from tpmon.model.verdict import EXIT_CODES, Kind, VerdictCode, pick_code
from tpmon.report.blocks import write_rows
from tpmon.report.once import write_finding, write_line
from tpmon.report.plain import HEARTBEAT_S, LOOK_S
from tpmon.view.fleet.nodes import NODES, count_states, explain_node, name_nodes, order_nodes, say_views
from tpmon.view.layout import lay_paragraph, list_columns, wrap_all

MOST_NODES = 64
_REASON_CELLS = 96


def _explain(node: FleetNode) -> list[str]:
    return [line for one in explain_node(node) for line in wrap_all(one, _REASON_CELLS)]


def write_fleet(report: FleetReport) -> list[str]:
    """Write the verdict first, then the nodes."""
    lines = write_finding(report.verdict, report.taken, full=False)
    lines += lay_paragraph("job", count_states(report))
    if views := say_views(report):
        lines += lay_paragraph("nodes", f"they differ: {views}")
    nodes = order_nodes(report)
    told = tuple(one for one in NODES if any(map(one.tell, nodes[:MOST_NODES])))
    lines += ["", *write_rows(list_columns(told, nodes), nodes[:MOST_NODES], _explain)]
    if len(nodes) > MOST_NODES:
        lines.append(f"  and {count_of(len(nodes) - MOST_NODES, 'more node')}")
    return lines


def write_fleet_check(report: FleetReport) -> str:
    """Write the verdict as one line, with what was seen of the nodes."""
    return f"{write_line(report.verdict, report.taken)} ({count_states(report)})"


def pick_fleet_code(report: FleetReport) -> int:
    """Return the exit code of the verdict; without one it is not known what the job does."""
    if isinstance(report.verdict, Missing):
        return EXIT_CODES[Kind.NOT_ENOUGH_EVIDENCE]
    return pick_code(report.verdict.kind, report.verdict.cause)


class FleetPlain:
    """Turn the reports of one fleet into the lines worth saying."""

    def __init__(self) -> None:
        self._begun_s = 0.0
        self._states: dict[str, tuple[NodeState, str]] = {}
        self._verdict = ""
        self._views = ""
        self._line_s = 0.0

    def read(self, report: FleetReport) -> list[str]:
        """Return the lines for this second: mostly none."""
        clock, now_s = format_clock(report.taken), report.taken.timestamp()
        said: list[str] = []
        if not self._begun_s:
            self._begun_s = now_s
            said.append(f"{count_of(len(report.nodes), 'node')}: an agent starts on each")
        said += [*self._say_states(report), *self._say_verdict(report, now_s), *self._say_views(report)]
        if not said and now_s - self._line_s >= HEARTBEAT_S:
            words = name_verdict(report.verdict) if is_known(report.verdict) else "no verdict"
            said.append(f"no change: {words}; {count_states(report)}")
        if said:
            self._line_s = now_s
        return [f"{clock} {line}" for line in said]

    def _say_states(self, report: FleetReport) -> Iterable[str]:
        """Name together the nodes that have come into one state for one reason."""
        changed: dict[tuple[NodeState, str], list[str]] = {}
        for node in report.nodes:
            told = (node.state, clean_text(node.reason) if is_known(node.reason) else "")
            if self._states.get(node.node, (NodeState.STARTING, "")) != told:
                self._states[node.node] = told
                changed.setdefault(told, []).append(node.node)
        for (state, reason), names in changed.items():
            yield f"{name_nodes(tuple(names))}: {', '.join(filter(None, (state.value, reason)))}"

    def _say_verdict(self, report: FleetReport, now_s: float) -> Iterable[str]:
        finding = report.verdict
        if not is_known(finding):
            return
        points = pick_fleet_code(report) in (VerdictCode.HELD, VerdictCode.HUNG)
        gist = f"{name_verdict(finding)} {(report.node, finding.rank) if points else ''}"
        early = is_undecided(finding) and not self._verdict and now_s - self._begun_s < LOOK_S
        if gist != self._verdict and not early:
            self._verdict = gist
            yield f"verdict: {write_fleet_check(report)}"

    def _say_views(self, report: FleetReport) -> Iterable[str]:
        views = say_views(report)
        if views != self._views:
            self._views = views
            yield f"the nodes differ: {views}" if views else "the nodes agree again"
