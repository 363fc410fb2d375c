"""Lay out groups of stacks for a screen: collapsed line by line, or merged into a prefix tree. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tpmon.judge.fold_words import collapse_frames
from tpmon.model.dump import DumpThread, ShownFrame, StackGroup
from tpmon.model.known import is_known
from tpmon.model.results import GroupStack


@dataclass(frozen=True, slots=True)
class Branch:
    """Hold one line of the tree: how many threads pass it, the groups that end in it, what is below."""

    shown: ShownFrame
    threads: int
    ends: tuple[StackGroup, ...]
    below: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class StackTree:
    """Hold the merged stacks; ``loose`` are groups without frames: native threads, stacks not read."""

    branches: tuple[Branch, ...]
    loose: tuple[StackGroup, ...]


_Rest = tuple[StackGroup, tuple[ShownFrame, ...]]


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


def build_tree(groups: Sequence[StackGroup], *, whole: bool = False) -> StackTree:
    """Merge the stacks of ``groups``, outermost frame first; with ``whole`` library frames stay."""
    rest: list[_Rest] = []
    loose: list[StackGroup] = []
    for group in groups:
        frames = group.frames
        shown: tuple[ShownFrame, ...] = ()
        if is_known(frames):
            shown = (
                tuple(
                    ShownFrame(f"{one.function} {one.file}:{one.line}", is_users=True, frame=one)
                    for one in frames
                )
                if whole
                else collapse_frames(frames)
            )
        if shown:
            rest.append((group, shown))
        else:
            loose.append(group)
    return StackTree(_branch(rest, 0), tuple(loose))


def _branch(rest: Sequence[_Rest], depth: int) -> tuple[Branch, ...]:
    by_text: dict[tuple[str, bool], list[_Rest]] = {}
    for group, shown in rest:
        head = shown[depth]
        by_text.setdefault((head.text, head.is_users), []).append((group, shown))
    branches = [
        Branch(
            shown=those[0][1][depth],
            threads=sum(len(group.threads) for group, _ in those),
            ends=tuple(group for group, shown in those if len(shown) == depth + 1),
            below=_branch([one for one in those if len(one[1]) > depth + 1], depth + 1),
        )
        for those in by_text.values()
    ]
    return tuple(sorted(branches, key=lambda one: (-one.threads, one.shown.text)))


def leaves(tree: StackTree) -> Iterator[DumpThread]:
    """Yield every thread of a tree, from where its stack ends."""
    todo = list(tree.branches)
    while todo:
        branch = todo.pop()
        todo += branch.below
        for group in branch.ends:
            yield from group.threads
    for group in tree.loose:
        yield from group.threads
