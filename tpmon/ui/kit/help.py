"""Paint the help overlay of a screen: the keys that work now, by section, and its short words."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.ui.kit.cells import fit_line, pad, pad_line, width_of, wrap_words
from tpmon.ui.kit.lines import Ink, KeyHelp, Line, Size, Span

COLUMN_WIDTH = 40
AROUND_HELP = 3
"""Lines of the screen that are not the overlay's: header, rule and footer."""

Entries = list[tuple[str, str]]
Words = Sequence[tuple[str, str, str]]


def paint_help(keys: Sequence[KeyHelp], size: Size, words: Words) -> list[Line]:
    """Paint the keys that work now by section, and the short words, in columns where there is room.

    Where the whole words need more lines than there are, the brief ones take their place.
    """
    columns = max(1, size.width // COLUMN_WIDTH)
    lines = _lay(_list_sections(keys, words, brief=False), columns, size.width)
    if len(lines) <= size.height - AROUND_HELP:
        return lines
    return _lay(_list_sections(keys, words, brief=True), columns, size.width)


def _list_sections(keys: Sequence[KeyHelp], short_words: Words, *, brief: bool) -> dict[str, Entries]:
    sections: dict[str, Entries] = {}
    for key in keys:
        entries = sections.setdefault(key.section, [])
        words = (key.brief if brief else "") or key.help
        if entries and entries[-1][1] == words:
            label = entries[-1][0]
            entries[-1] = (label if key.keys[0] in label.split() else f"{label} {key.keys[0]}", words)
        else:
            entries.append((" ".join(key.keys[:1] if brief else key.keys), words))
    sections["Short words"] = [(word, short if brief else whole) for word, whole, short in short_words]
    return sections


def _lay(sections: dict[str, Entries], columns: int, width: int) -> list[Line]:
    column = width // columns
    blocks = [_paint_section(section, entries, column) for section, entries in sections.items()]
    if columns == 1:
        return [line for block in blocks for line in block]
    share = -(-sum(len(block) for block in blocks) // columns)
    piles = _pile(blocks, share)
    while len(piles) > columns:
        share += 1
        piles = _pile(blocks, share)
    lines = []
    for row in range(max(len(pile) for pile in piles)):
        cells: list[Span] = []
        for pile in piles:
            cells += pad_line(pile[row] if row < len(pile) else (), column)
        lines.append(fit_line(tuple(cells), width))
    return lines


def _pile(blocks: Sequence[Sequence[Line]], height: int) -> list[list[Line]]:
    """Put blocks below each other, in as many columns of at most ``height`` lines as it takes."""
    piles: list[list[Line]] = [[]]
    for block in blocks:
        if piles[-1] and len(piles[-1]) + len(block) > height:
            piles.append([])
        piles[-1] += block
    return piles


def _paint_section(section: str, entries: Entries, width: int) -> list[Line]:
    lines: list[Line] = [fit_line(((f" {section}", Ink.TITLE),), width)]
    indent = min(11, max(8, width // 4))
    for label, words in entries:
        start = max(indent, width_of(label)) + 3
        texts = wrap_words(words, max(8, width - start)) or [""]
        head = (f"  {pad(label, start - 2)}", Ink.STRONG)
        lines.append(fit_line((head, (texts[0], Ink.PLAIN)), width))
        lines += [fit_line(((" " * start + text, Ink.PLAIN),), width) for text in texts[1:]]
    return lines
