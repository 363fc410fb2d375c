"""Write stacks merged into a tree as text: how many threads pass each line, and who stands where it ends."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.known import is_known
from tpmon.model.results.results import TreeLine
from tpmon.model.text.dump_words import say_end
from tpmon.report.text import WIDTH, cut

MOST_DEEP = 30
"""Places further in than this are not moved in any more: a line of 100 columns has room for no more."""


def write_tree(tree: Sequence[TreeLine], *, with_host: bool) -> list[str]:
    """Write each line of a tree; a count stands where it is not that of the line above."""
    threads: dict[int, int] = {}
    lines = []
    for line in tree:
        threads[line.mark] = line.threads
        told = "" if threads.get(line.parent) == line.threads else f"{line.threads}x "
        start = "  " * min(line.depth, MOST_DEEP)
        if is_known(line.shown):
            lines.append(cut(f"{start}{told}{'' if line.shown.is_users else '- '}{line.shown.text}", WIDTH))
        else:
            lines.append(cut(f"{start}{told}{line.ends[0].doing}", WIDTH))
        lines += [cut(f"{start}  = {say_end(group, with_host=with_host)}", WIDTH) for group in line.ends]
    return lines
