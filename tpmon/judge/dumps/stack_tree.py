"""Lay out groups of stacks for a screen: collapsed line by line, or merged into a prefix tree. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tpmon.judge.dumps.describe import collapse_frames
from tpmon.model.dump import DumpThread, ShownFrame, StackGroup
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.results.results import GroupStack, TreeLine

TOP = 0
"""The mark above the outermost lines of a tree."""

_Stack = tuple[StackGroup, tuple[ShownFrame, ...]]


def show_stacks(groups: Sequence[StackGroup]) -> tuple[GroupStack, ...]:
    """Collapse the stack of each group and mark the group by what it is, not by its place."""
    met: Counter[int] = Counter()
    shown = []
    for group in groups:
        frames, first = group.frames, group.threads[0]
        what = frames if is_known(frames) else (first.name.rstrip("0123456789"), first.pid)
        mark = hash((first.role, first.kind, what))
        met[mark] += 1
        lines = collapse_frames(frames) if is_known(frames) else ()
        shown.append(GroupStack(hash((mark, met[mark])), lines))
    return tuple(shown)


def build_tree(groups: Sequence[StackGroup]) -> tuple[TreeLine, ...]:
    """Merge the stacks of ``groups`` where they begin alike; lines in the order of a tree that is open.

    Every thread ends in one place, main threads before others. Groups without frames (native threads,
    stacks not read) are lines of their own at the end. A stack may be as deep as its program recurses,
    so nothing here does.
    """
    stacks = [(group, collapse_frames(group.frames) if is_known(group.frames) else ()) for group in groups]
    lines: list[TreeLine] = []
    todo = [(TOP, 0, 0, branch) for branch in reversed(_part([one for one in stacks if one[1]], 0))]
    while todo:
        parent, at, depth, those = todo.pop()
        head = those[0][1][at]
        mark = hash((parent, head.text, head.is_users))
        ends = tuple(group for group, shown in those if len(shown) == at + 1)
        threads = sum(len(group.threads) for group, _ in those)
        lines.append(TreeLine(mark, parent, depth, head, threads, ends))
        below = _part([one for one in those if len(one[1]) > at + 1], at + 1)
        inner = depth + (1 if len(below) + bool(ends) > 1 else 0)
        todo += [(mark, at + 1, inner, branch) for branch in reversed(below)]
    loose = [group for group, shown in stacks if not shown]
    return (*lines, *(_loose_line(group, number) for number, group in enumerate(loose)))


def _loose_line(group: StackGroup, number: int) -> TreeLine:
    return TreeLine(hash(("loose", number)), TOP, 0, NOT_APPLICABLE, len(group.threads), (group,))


def _part(stacks: Sequence[_Stack], at: int) -> list[list[_Stack]]:
    """Divide stacks by their line ``at``: main threads, then ranks, then large parts first."""
    by_text: dict[tuple[str, bool], list[_Stack]] = {}
    for group, shown in stacks:
        by_text.setdefault((shown[at].text, shown[at].is_users), []).append((group, shown))

    def order(part: tuple[tuple[str, bool], list[_Stack]]) -> tuple[bool, bool, int, tuple[str, bool]]:
        text, those = part
        has_main = any(group.threads[0].kind is ThreadKind.MAIN for group, _ in those)
        has_rank = any(group.threads[0].role is Role.RANK for group, _ in those)
        return not has_main, not has_rank, -sum(len(group.threads) for group, _ in those), text

    return [those for _, those in sorted(by_text.items(), key=order)]


def leaves(tree: Sequence[TreeLine]) -> Iterator[DumpThread]:
    """Yield every thread of a tree, from where its stack ends."""
    for line in tree:
        for group in line.ends:
            yield from group.threads
