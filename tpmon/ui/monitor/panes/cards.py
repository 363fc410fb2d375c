"""Paint the cards: a grid in which an ill one stands out, one line for little room, and all of each."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from tpmon.model.figures import Figure
from tpmon.model.gpu import HARMLESS_XIDS, GpuSample, GpuState
from tpmon.model.known import is_known
from tpmon.model.text.dump_words import list_numbers
from tpmon.model.units import count_cells, count_of, format_bytes, format_pct, format_seconds
from tpmon.ui.monitor.alerts import age_of, is_old
from tpmon.ui.monitor.state import Pane, ViewState
from tpmon.view.cards import (
    card_ink,
    describe_card,
    is_foreign,
    list_held,
    order_cards,
    say_troubles,
    summarize_cards,
)
from tpmon.view.layout import (
    Ink,
    Item,
    Line,
    Size,
    Span,
    cut,
    draw_bar,
    explain,
    fit_line,
    pad_line,
    paint_pairs,
    paint_rule,
    shade,
    show,
)

CELL_WIDTH, ROOMY_CELL = 26, 29
MOST_COLUMNS = 4
BAR_CELLS, SHORT_BAR_CELLS = 12, 8
HOLLOW_PCT = 15.0
"""SM activity below it is a kernel that waits, such as one of NCCL."""
BADGES = MappingProxyType({Ink.BAD: Ink.BADGE_BAD, Ink.WARN: Ink.BADGE_WARN})
_HELD = MappingProxyType(
    {
        "thermal": "HOT",
        "thermal (software)": "HOT",
        "SW thermal": "HOT",
        "HW thermal": "HOT",
        "HW slowdown": "SLOWED",
        "power brake": "BRAKE",
    }
)
"""One word for what holds clocks down; for the others it is HELD."""


def count_cards(view: ViewState) -> int:
    """Count the cards that the pane can show, 0 without readings."""
    if not is_known(view.frame) or not is_known(view.frame.gpus):
        return 0
    return len(view.frame.gpus)


def count_columns(width: int, cards: int) -> int:
    """Return how many cards stand beside each other."""
    return max(1, min(MOST_COLUMNS, width // CELL_WIDTH, cards))


def name_trouble(card: GpuSample) -> str:
    """Return one word for what is wrong with a card, "" for nothing."""
    if card_ink(card) is Ink.PLAIN:
        return ""
    if card.state is not GpuState.OK:
        return str(card.state.value).upper()
    if card_ink(card) is Ink.BAD or any(xid not in HARMLESS_XIDS for xid in card.xids):
        return "FAULT"
    held = list_held(card)
    if held:
        return next((_HELD[reason] for reason in held if reason in _HELD), "HELD")
    return "CHECK"


def _busy_ink(card: GpuSample, share: float) -> Ink:
    """Return the ink of a bar; kernels that keep a card busy without work on it are no good."""
    if is_known(card.sm_active_pct) and card.sm_active_pct < HOLLOW_PCT:
        share = min(share, card.sm_active_pct / 100)
    return shade(share, Figure.GPU_BUSY.bad)


def _measures(card: GpuSample, *, ill: bool) -> list[str]:
    watts, degrees = show(card.power_w, "{:.0f} W".format), show(card.temperature_c, "{:.0f} C".format)
    if ill:
        return [show(card.sm_clock_mhz, "{:.0f} MHz".format), watts, degrees]
    used, total = card.memory_used_bytes, card.memory_total_bytes
    memory = f"{show(used, format_bytes)} of {show(total, format_bytes)}"
    return [f"{show(card.sm_pct, format_pct):>3} %", f"{watts:>5}", degrees, memory]


def paint_cell(card: GpuSample, width: int) -> Line:
    """Paint one card in ``width`` cells: index, a bar of how busy it is, and what fits of the rest."""
    trouble = name_trouble(card)
    index = f"{card.index:>3}"
    ink = Ink.DIM if is_foreign(card) and not trouble else Ink.PLAIN
    spans: list[Span]
    if trouble:
        spans = [(index[: -len(str(card.index))], ink)]
        spans.append((f"{card.index}!{trouble}", BADGES.get(card_ink(card), Ink.BADGE)))
        used, gap = len(index) + 1 + len(trouble), " "
    else:
        spans = [(f"{index} ", ink)]
        used, gap = len(index) + 1, ""
        if is_known(card.sm_pct):
            share = min(1.0, card.sm_pct / 100)
            bar_ink = Ink.DIM if ink is Ink.DIM else _busy_ink(card, share)
            bar = BAR_CELLS if width >= ROOMY_CELL else SHORT_BAR_CELLS
            spans += draw_bar(share, bar, bar_ink)
            used, gap = used + bar, " "
    for text in _measures(card, ill=bool(trouble)):
        if used + len(gap) + count_cells(text) > width - 1:
            break
        spans.append((f"{gap}{text}", ink))
        used += len(gap) + count_cells(text)
        gap = "  "
    return pad_line(tuple(spans), width)


def _paint_grid(cards: Sequence[GpuSample], columns: int, width: int) -> list[Line]:
    rows = -(-len(cards) // columns)
    cell = width // columns
    lines: list[Line] = []
    for row in range(rows):
        line: Line = ()
        for card in cards[row::rows]:  # downwards first
            line = (*line, *paint_cell(card, cell))
        lines.append(fit_line(line, width))
    return lines


def _details(view: ViewState, cards: Sequence[GpuSample]) -> list[Item]:
    names = dict.fromkeys(card.name for card in cards)
    named = next(iter(names)) if len(names) == 1 else f"{len(names)} kinds"
    details = [Item(3, f"{len(cards)} x {named}" if len(cards) > 1 else named)]
    ours = [card.sm_pct for card in cards if is_known(card.sm_pct) and not is_foreign(card)]
    if len(ours) > 1:
        busy = sum(ours) / len(ours)
        details.append(Item(4, f"busy {busy:.0f} % of the time, {100 - busy:.0f} % idle"))
    late = [card for card in cards if is_old(view, age_of(view, card.age_s))]
    if late:
        oldest = max(age_of(view, card.age_s) for card in late)
        details.append(Item(1, f"! {len(late)} late, {format_seconds(oldest)} old", Ink.WARN))
    ill = [card for card in order_cards(cards) if card_ink(card) is not Ink.PLAIN]
    if ill:
        more = f", {len(ill) - 1} more" if len(ill) > 1 else ""
        details.append(Item(2, f"! GPU {ill[0].index} {say_troubles(ill[0])}{more}", card_ink(ill[0])))
    return details


def paint_gpus(view: ViewState, size: Size, *, focused: bool) -> list[Line]:
    """Paint the pane: why there are no cards, a summary, or the grid; ill ones first where not all fit."""
    frame = view.frame
    if not is_known(frame):
        return []
    title = f"{Pane.GPUS.value} GPUs"
    if not is_known(frame.gpus):
        reason = Item(0, f"? {frame.gpus.reason}", Ink.DIM)
        return [paint_rule(title, [reason], size.width, focused=focused)]
    cards = order_cards(frame.gpus)
    if not cards:
        return [paint_rule(title, [Item(0, "no card on this machine", Ink.DIM)], size.width, focused=focused)]
    room = size.height - 1
    details = _details(view, cards)
    if room < 1:
        worst = card_ink(cards[0])
        said = Item(0, f"{count_of(len(cards), 'card')}: {summarize_cards(cards)}", worst)
        return [paint_rule(title, [said, details[0]], size.width, focused=focused)][: size.height]
    columns = count_columns(size.width, len(cards))
    shown, hidden = cards, cards[:0]
    if len(cards) > room * columns:
        fitting = max(1, room - 1) * columns
        shown, hidden = cards[:fitting], cards[fitting:]
    shown = sorted(shown, key=lambda card: card.index)
    lines = _paint_grid(shown, columns, size.width)
    if hidden:
        lines.append(fit_line(((f" {len(hidden)} more: {summarize_cards(hidden)}", Ink.DIM),), size.width))
    return [paint_rule(title, details, size.width, focused=focused), *lines][: size.height]


def paint_summary(cards: Sequence[GpuSample], width: int) -> Line:
    """Paint all cards in one line: how busy they are, and the one that is worst."""
    worst = order_cards(cards)[0]
    busy = [card.sm_pct for card in cards if is_known(card.sm_pct) and not is_foreign(card)]
    mean = sum(busy) / len(busy) if busy else 0.0
    told = f"{mean:.0f} %" if busy else "? %"
    line: Line = ((f" GPU {list_numbers([card.index for card in cards])}  {told} ", Ink.PLAIN),)
    if busy:
        line = (*line, *draw_bar(mean / 100, BAR_CELLS - 2, _busy_ink(worst, mean / 100)))
    trouble = name_trouble(worst)
    if trouble:
        degrees = show(worst.temperature_c, "{:.0f} C".format)
        badge = (f"{worst.index}!{trouble}", BADGES.get(card_ink(worst), Ink.BADGE))
        line = (*line, (" ", Ink.PLAIN), badge, (f" {degrees}", Ink.PLAIN))
    return fit_line(line, width)


def paint_gpus_in_full(view: ViewState, width: int) -> list[Line]:
    """Paint everything known of every card, below each other."""
    frame = view.frame
    if not is_known(frame):
        return []
    if not is_known(frame.gpus):
        return paint_pairs([("GPUs", f"? {frame.gpus.reason}")], width)
    driver = frame.driver
    if is_known(driver):
        told = f"{explain(driver.driver_version, str)}, CUDA {explain(driver.cuda_version, str)}"
    else:
        told = f"? {driver.reason}"
    lines = paint_pairs([("driver", told)], width)
    for card in order_cards(frame.gpus):
        ink = card_ink(card)
        heading = cut(f" GPU {card.index}  {card.name}  {card.uuid}", width)
        lines.append(((heading, ink if ink is not Ink.PLAIN else Ink.STRONG),))
        lines += paint_pairs(describe_card(card, age_of(view, card.age_s)), width)
    return lines
