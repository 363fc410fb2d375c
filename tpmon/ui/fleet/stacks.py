"""Paint the stacks of all nodes: who is where, and which nodes were not read."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.dump import Dump, StackGroup
from tpmon.model.known import Missing, is_known
from tpmon.model.process import ThreadKind
from tpmon.model.results.doctor import GroupStack
from tpmon.model.units import clean_text, count_of
from tpmon.ui.fleet.state import FleetView
from tpmon.view.fleet.nodes import name_nodes
from tpmon.view.layout import Ink, Line, lay_text
from tpmon.view.stacks import describe_frames, describe_group, group_errors, name_failed

_REASON_CHARS = 200


def say_progress(view: FleetView) -> str:
    """Say how many nodes have answered, while some are waited for."""
    stacks = view.news.stacks
    if not is_known(stacks) or is_known(stacks.folded):
        return ""
    return f"  {stacks.answered} of {count_of(stacks.asked, 'node')}"


def paint_stacks(view: FleetView, width: int) -> list[Line]:
    """Paint all lines of the stacks."""
    stacks = view.news.stacks
    if not is_known(stacks):
        return lay_text("no stacks were read so far: d reads those of all nodes", width, Ink.DIM)
    if not is_known(stacks.folded):
        said = f"waits for the stacks of {stacks.asked - stacks.answered} of {count_of(stacks.asked, 'node')}"
        return lay_text(said, width, Ink.DIM)
    lines = _paint_unread(stacks.folded.unread, width)
    dump = stacks.folded.dump
    if isinstance(dump, Missing):
        return [*lines, *lay_text(f"no stacks: {dump.reason}", width, Ink.STRONG)]
    lines += lay_text(dump.summary, width, Ink.STRONG)
    others: list[Line] = []
    odd = dump.odd_one_out
    for group, shown in zip(dump.groups, stacks.shown, strict=True):
        if group.threads[0].kind is ThreadKind.MAIN:
            is_odd = is_known(odd) and any(
                (one.pid, one.host) == (odd.pid, odd.host) for one in group.threads
            )
            lines += [(), *_paint_group(group, shown, width, is_odd=is_odd)]
        else:
            others += lay_text(": ".join(describe_group(group, with_host=True)), width, Ink.DIM, "   ")
    lines += [(), *lay_text("other threads", width, Ink.TITLE), *others] if others else []
    return [*lines, *_paint_errors(dump, width)]


def _paint_group(group: StackGroup, shown: GroupStack, width: int, *, is_odd: bool) -> list[Line]:
    who, state = describe_group(group, with_host=True)
    lines = lay_text(who, width, Ink.WARN if is_odd else Ink.STRONG, " ! " if is_odd else " ")
    lines += lay_text(state, width, Ink.PLAIN, "   ")
    if isinstance(group.frames, Missing):
        return [*lines, *lay_text(f"? {group.frames.reason}", width, Ink.DIM, "   ")]
    for line in describe_frames(group, shown.lines):
        lines += lay_text(line.text, width, Ink.PLAIN if line.shown.is_users else Ink.DIM, "     ")
    return lines


def _paint_unread(unread: Sequence[tuple[str, str]], width: int) -> list[Line]:
    """Name together the nodes that were not read for one reason."""
    of_reason: dict[str, list[str]] = {}
    for node, reason in unread:
        of_reason.setdefault(clean_text(reason, _REASON_CHARS), []).append(node)
    return [
        line
        for reason, nodes in of_reason.items()
        for line in lay_text(f"not read: {name_nodes(tuple(nodes))}: {reason}", width, Ink.WARN)
    ]


def _paint_errors(dump: Dump, width: int) -> list[Line]:
    lines: list[Line] = []
    for those in group_errors(dump.errors):
        where = name_nodes(tuple(dict.fromkeys(one.host for one in those)))
        why = clean_text(those[0].reason, _REASON_CHARS)
        lines += lay_text(f"not read: {name_failed(those)} on {where}: {why}", width, Ink.WARN)
    return lines
