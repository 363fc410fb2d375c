"""Paint the footer of a screen: what is typed or was answered, and the keys that work now."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.ui.kit.cells import cut, width_of, wrap_all
from tpmon.ui.kit.lines import Ink, KeyHelp, Line
from tpmon.ui.kit.table import Item, justify


def paint_key_line(message: str, typed: str, keys: Sequence[KeyHelp], width: int) -> list[Line]:
    """Paint the footer of any screen: what is ``typed``, else the answer to the last key, and the keys."""
    head = [Item(0, typed, Ink.STRONG)] if typed else []
    if not head and width_of(message) > width - 2:
        return [((f" {text}", Ink.STRONG),) for text in wrap_all(message, max(1, width - 2))]
    text = cut(message, width - 2)
    answer = [Item(0, text, Ink.STRONG)] if text else []
    offered = sorted((key for key in keys if key.priority > 0), key=lambda key: key.priority)
    items = [Item(100 + n, f"{key.keys[0]} {key.footer}") for n, key in enumerate(offered)]
    return [justify([*head, *items], answer, width, gap=3 if width >= 100 else 2)]
