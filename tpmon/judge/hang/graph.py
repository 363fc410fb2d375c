"""Hold who waits for whom as a graph of threads, and follow each wait to its sink. Pure.

A node either ends at a sink, goes on, or leads to others. Nodes that lead back to themselves are a circle:
nobody outside of it is waited for, so it is a sink as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tpmon.judge.dumps.merge import ThreadKey, key_thread
from tpmon.judge.dumps.outlier import ThreadSeen
from tpmon.judge.hang.sinks import Blame, End, Goes
from tpmon.model.frozen import dataclass

GROUP = ThreadKey("", 0, 0, "the collective")
"""The collective that ranks wait in: it leads to the ranks that are not in it."""


@dataclass(frozen=True, slots=True)
class Leads:
    """Say for whom a node waits; ``join`` makes one end of theirs."""

    to: tuple[ThreadKey, ...]
    join: Callable[[Sequence[End]], End]


Step = Blame | Goes | Leads


def key_of(seen: ThreadSeen) -> ThreadKey:
    """Return the node of a thread."""
    return key_thread(seen.thread)


@dataclass(frozen=True, slots=True)
class Graph:
    """Hold each node with its step, and the circle that it is part of; ``close`` makes an end of a circle."""

    steps: Mapping[ThreadKey, Step]
    circles: Mapping[ThreadKey, frozenset[ThreadKey]]
    close: Callable[[ThreadKey, frozenset[ThreadKey]], End]

    def follow(self, node: ThreadKey) -> End:
        """Return where the wait of a node ends."""
        step = self.steps[node]
        if not isinstance(step, Leads):
            return step
        circle = self.circles.get(node)
        return self.close(node, circle) if circle else step.join([self.follow(one) for one in step.to])


def build(
    starts: Iterable[ThreadKey],
    expand: Callable[[ThreadKey], Step],
    close: Callable[[ThreadKey, frozenset[ThreadKey]], End],
) -> Graph:
    """Expand every node that is reached from ``starts``."""
    steps: dict[ThreadKey, Step] = {}
    left = list(starts)
    while left:
        node = left.pop()
        if node in steps:
            continue
        step = steps[node] = expand(node)
        if isinstance(step, Leads):
            left.extend(step.to)
    return Graph(steps, _find_circles(steps), close)


def _find_circles(steps: Mapping[ThreadKey, Step]) -> dict[ThreadKey, frozenset[ThreadKey]]:
    """Return for each node that leads back to itself all that do so with it."""
    reached = {node: _reach(node, steps) for node in steps}
    return {
        node: frozenset(one for one in those if node in reached[one])
        for node, those in reached.items()
        if node in those
    }


def _reach(node: ThreadKey, steps: Mapping[ThreadKey, Step]) -> set[ThreadKey]:
    """Return all nodes that one leads to, itself only if it leads back."""
    found: set[ThreadKey] = set()
    left = list(_targets(steps[node]))
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left.extend(_targets(steps[one]))
    return found


def _targets(step: Step) -> tuple[ThreadKey, ...]:
    return step.to if isinstance(step, Leads) else ()
