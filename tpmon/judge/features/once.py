"""Answer a question about a Scene once, although a dozen rules ask it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tpmon.judge.features.snapshot import Scene

Answered = TypeVar("Answered")


class Once(Generic[Answered]):
    """Remember the answer to a pure question about the newest Scene.

    A Scene never changes, so the same object always has the same answer.
    """

    def __init__(self, ask: Callable[[Scene], Answered]) -> None:
        """Ask nothing yet."""
        self._ask = ask
        self._last: tuple[Scene, Answered] | None = None

    def __call__(self, scene: Scene) -> Answered:
        """Return the answer for ``scene``."""
        last = self._last
        if last is not None and last[0] is scene:
            return last[1]
        answer = self._ask(scene)
        self._last = (scene, answer)
        return answer
