"""Time the hook inside real loops: what lies between a timer around its functions and one within.

A long step swings by a hundred times what the hook takes, so that blocks with and without it say little
of it. Here two timers stand at each of its places, one around it and one around what it calls in turn:
what is between them is the hook, in the caches that the step left. The same two timers without a hook
between them say what they take themselves. Not counted is what the hook's own lines of cache cost others.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from typing import Any

ROOT = Path(__file__).parents[2]


class Timers:
    """Sum what lies between the outer and the inner timers of one step; keep the sum of each step."""

    def __init__(self) -> None:
        self.ns = 0
        self.steps_ns: list[int] = []

    def outside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``function`` so that its time is added."""

        def outer(*args: Any, **kwargs: Any) -> Any:
            begin = monotonic_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.ns += monotonic_ns() - begin

        return outer

    def inside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``function`` so that its time is taken off again."""

        def inner(*args: Any, **kwargs: Any) -> Any:
            begin = monotonic_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.ns -= monotonic_ns() - begin

        return inner

    def before_hooks(self, *_: object) -> None:
        """Begin to count before the other functions after an optimizer's step."""
        self.ns -= monotonic_ns()

    def after_hooks(self, *_: object) -> None:
        """End a step after them."""
        self.steps_ns.append(self.ns + monotonic_ns())
        self.ns = 0


class Places:
    """Put the timers around the hook, or around nothing."""

    def __init__(self, timers: Timers) -> None:
        import torch.autograd
        import torch.autograd.graph
        from torch.optim.optimizer import register_optimizer_step_post_hook
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        from tpmon.hook.installation import HOOK

        self._timers = timers
        self._hook = HOOK
        self._iterator: Any = _BaseDataLoaderIter
        self._modules: tuple[Any, ...] = (torch.autograd, torch.autograd.graph)
        self._register = register_optimizer_step_post_hook
        HOOK.patches.take_back()
        self._iterator.__next__ = timers.inside(self._iterator.__next__)
        self._engines(timers.inside(torch.autograd.graph._engine_run_backward))
        self._bare = self._iterator.__next__, torch.autograd.graph._engine_run_backward

    def set(self, hooked: bool) -> Callable[[], None]:
        """Stand around the hook or around nothing; return what goes back."""
        before = self._register(self._timers.before_hooks)
        if hooked:
            self._hook.patches.apply()
        after = self._register(self._timers.after_hooks)
        batches, engine = self._iterator.__next__, self._modules[1]._engine_run_backward
        self._iterator.__next__ = self._timers.outside(batches)
        self._engines(self._timers.outside(engine))

        def back() -> None:
            self._iterator.__next__ = batches
            self._engines(engine)
            self._hook.patches.take_back()
            before.remove()
            after.remove()
            assert (self._iterator.__next__, self._modules[1]._engine_run_backward) == self._bare

        return back

    def _engines(self, engine: Callable[..., Any]) -> None:
        for module in self._modules:
            module._engine_run_backward = engine


def measure_inside(name: str, rounds: int) -> dict[str, float]:
    """Return the us of a step in the hook, and of the same timers without it: medians, and means of the middle half."""
    import tpmon.hook
    from tests.budget.bench_hook import build_loop

    block, steps, _sweep = build_loop(name)
    block()
    timers = Timers()
    places = Places(timers)
    found: dict[bool, list[int]] = {False: [], True: []}
    began = monotonic_ns()
    for at in range(rounds):
        for hooked in (at % 2 == 0, at % 2 == 1):
            back = places.set(hooked)
            block()
            timers.steps_ns.clear()
            block()
            back()
            found[hooked] += timers.steps_ns[1:]
    assert not tpmon.hook.problem()
    every = (monotonic_ns() - began) / (4 * rounds * steps)
    quarters = {key: statistics.quantiles(taken, n=4) for key, taken in found.items()}
    middle = {
        key: statistics.fmean(one for one in taken if quarters[key][0] <= one <= quarters[key][2])
        for key, taken in found.items()
    }
    return {
        "step_us": every / 1e3,
        "inside_us": (quarters[True][1] - quarters[False][1]) / 1e3,
        "mean_us": (middle[True] - middle[False]) / 1e3,
        "least_us": (quarters[True][0] - quarters[False][0]) / 1e3,
        "most_us": (quarters[True][2] - quarters[False][2]) / 1e3,
        "timers_us": quarters[False][1] / 1e3,
        "steps": len(found[True]),
    }


def run_inside(name: str, rounds: int) -> dict[str, float]:
    """Measure one loop in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.budget.hook_inside", name, str(rounds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    print(json.dumps(measure_inside(sys.argv[1], int(sys.argv[2]))))
