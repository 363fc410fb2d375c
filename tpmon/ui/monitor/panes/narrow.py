"""Paint the panes for a screen of less than 60 columns: no rules, each line says one thing."""

from __future__ import annotations

from tpmon.model.frame import Frame
from tpmon.model.host import OutputSample
from tpmon.model.known import is_known
from tpmon.model.text.job_words import format_step_rate
from tpmon.model.units import count_cells, format_seconds
from tpmon.ui.monitor.panes import cards, cpu, events, tables
from tpmon.ui.monitor.state import Pane, ViewState
from tpmon.view.finding.pieces import share_lines
from tpmon.view.layout import Ink, Line, Size, cut, fit_line, pad, pad_left, show, window_of
from tpmon.view.ranks import RankView, list_logged, list_normal, name_state, order_ranks, state_ink

WIDTH = 60
HISTORY_CELLS = 9
_ORDER = (
    ("gpus", 1),
    ("ranks", 2),
    ("machine", 1),
    ("workers", 1),
    ("log", 1),
    ("machine", 3),
    ("events", 1),
    ("normal", 1),
    ("ranks", 8),
    ("workers", 4),
    ("log", 3),
    ("events", 4),
    ("machine", 9),
    ("ranks", 99),
    ("workers", 99),
    ("events", 99),
)
"""The parts in the order in which they get lines, and how many they may have by then."""


def paint_panes(view: ViewState, frame: Frame, body: Size) -> list[Line]:
    """Paint what the panes say in at most ``body.height`` lines, as much of each as there is room for."""
    width = body.width
    groups = cpu.thin(view.pulses, HISTORY_CELLS)
    gauges, normal = cpu.list_rows(frame, groups)
    gauges.sort(key=lambda gauge: not gauge.is_marked)
    ranks, folded = _list_ranks(view, frame)
    folds = tables.worker_folds(view, tables.select_workers(view), 0)
    log = events.newest_log(frame)
    wanted = {
        "machine": len(gauges),
        "gpus": min(1, cards.count_cards(view)),
        "ranks": len(ranks) + bool(folded),
        "workers": len(folds) or 1 + len(tables.filter_workers(view)),
        "normal": 1,
        "log": len(log.lines) if log is not None else 0,
        "events": min(12, len(view.events)),
    }
    shares = share_lines(wanted, body.height, _ORDER)
    shown = gauges[: shares["machine"]]
    lines = [cpu.paint_gauge(gauge, groups, width, HISTORY_CELLS) for gauge in shown]
    if shares["gpus"] and is_known(frame.gpus):
        lines.append(cards.paint_summary(frame.gpus, width))
    lines += _paint_ranks(view, frame, ranks, folded, Size(width, shares["ranks"]))
    lines += _paint_workers(view, folds, Size(width, shares["workers"]))
    lines += [cpu.paint_normal(normal, width)] * shares["normal"]
    if log is not None and shares["log"]:
        lines += _paint_log(view, log, Size(width, shares["log"]))
    return [*lines, *events.paint_newest(view, width, shares["events"])][: body.height]


def _list_ranks(view: ViewState, frame: Frame) -> tuple[list[RankView], list[RankView]]:
    """Return the ranks that have a line each, and those that share one."""
    ranks = order_ranks(frame)
    normal = list_normal(ranks)
    if tables.unfolds(view, Pane.RANKS) or len(normal) < tables.MANY_NORMAL:
        return ranks, []
    return [rank for rank in ranks if rank not in normal], normal


def _paint_ranks(
    view: ViewState, frame: Frame, ranks: list[RankView], folded: list[RankView], size: Size
) -> list[Line]:
    if not size.height:
        return []
    cursor = view.cursor_pid if view.focus is Pane.RANKS else -1
    rows = size.height - bool(folded)
    first, last = window_of([rank.row.pid for rank in ranks], cursor, rows)
    logged = list_logged(frame)
    lines = [
        _paint_rank(rank, logged.get(rank.row.pid, ""), size.width, is_at=rank.row.pid == cursor)
        for rank in ranks[first:last]
    ]
    hidden = len(ranks) - (last - first)
    if hidden and lines:
        more = f"  +{hidden}, 1"
        lines[-1] = (*fit_line(lines[-1], size.width - count_cells(more)), (more, Ink.DIM))
    return [*lines, tables.fold_ranks(folded, size.width)] if folded else lines


def _paint_rank(rank: RankView, logged: str, width: int, *, is_at: bool) -> Line:
    number = f"r{show(rank.row.rank, str)}"
    rate = format_step_rate(rank.pace.rate_hz) if is_known(rank.pace) else logged
    for_ = pad_left(show(rank.row.where_unchanged_s, format_seconds), 6)
    ink = Ink.PLAIN
    where = show(rank.row.where, str)
    if not is_known(rank.process):
        where, ink = "gone", Ink.BAD
    elif state_ink(rank.process) is not Ink.PLAIN:
        where, ink = f"! {name_state(rank.process)}: {where}", state_ink(rank.process)
    tail = f" {for_}{f' {rate}/s' if rate else ''}"
    room = max(1, width - count_cells(number) - count_cells(tail) - 3)
    if is_at:
        return ((pad(f">{number} {pad(where, room)}{tail}", width), Ink.CURSOR),)
    return fit_line(((f" {number} ", Ink.PLAIN), (pad(where, room), ink), (tail, Ink.PLAIN)), width)


def _paint_workers(view: ViewState, folds: list[tables.WorkerFold], size: Size) -> list[Line]:
    if not size.height:
        return []
    if not folds:
        return tables.paint_workers(
            view, Size(size.width, size.height + 1), focused=view.focus is Pane.WORKERS
        )[1:]
    lines = [fold.write_briefly(size.width) for fold in folds[: size.height]]
    if len(folds) > size.height:
        more = f"  +{len(folds) - size.height}, 3"
        lines[-1] = (*fit_line(lines[-1], size.width - count_cells(more)), (more, Ink.DIM))
    return lines


def _paint_log(view: ViewState, log: OutputSample, size: Size) -> list[Line]:
    lines = events.paint_log(log, size.width, size.height)
    late = events.say_late(view, log)
    if late and lines:
        room = size.width - count_cells(late) - 2
        lines[-1] = (*fit_line(lines[-1], max(1, room)), ("  ", Ink.PLAIN), (cut(late, size.width), Ink.WARN))
    return lines
