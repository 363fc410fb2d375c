"""Time the hook inside real loops: what lies between a timer around its functions and one within.

A long step swings by a hundred times what the hook takes, so that blocks with and without it say little
of it. Here two timers stand at each of its places, one around it and one around what it calls in turn:
what is between them is the hook, in the caches that the step left. The same two timers without a hook
between them say what they take themselves. Not counted is what the hook's own lines of cache cost others.
``make bench-hook`` prints the table.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import Any

from tests.budget.bench_hook import build_loop, run_loop

LOOPS = {"linear, loader": 20, "mlp, loader": 40, "transformer, loader": 100, "linear, 4 workers": 20}
"""The loops of ``bench_hook``, and how many times the hook comes and goes in each."""


class Timers:
    """Sum what lies between the outer and the inner timers of one step; keep the sum of each step."""

    def __init__(self) -> None:
        self.ns = 0
        self.steps_ns: list[int] = []

    def around(self, function: Callable[..., Any], sign: int) -> Callable[..., Any]:
        """Wrap ``function`` so that its time is added, or with -1 as ``sign`` taken off again."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = monotonic_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.ns += sign * (monotonic_ns() - begin)

        return timed

    def before_hooks(self, *_: object) -> None:
        """Begin to count before the other functions after an optimizer's step."""
        self.ns -= monotonic_ns()

    def after_hooks(self, *_: object) -> None:
        """End a step after them."""
        self.steps_ns.append(self.ns + monotonic_ns())
        self.ns = 0


class Places:
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
        self._iterator.__next__ = timers.around(self._iterator.__next__, -1)
        self._engines(timers.around(torch.autograd.graph._engine_run_backward, -1))
        self._bare = self._iterator.__next__, torch.autograd.graph._engine_run_backward

    def set(self, hooked: bool) -> Callable[[], None]:
        """Stand around the hook or around nothing; return what goes back."""
        before = self._register(self._timers.before_hooks)
        if hooked:
            self._hook.patches.apply()
        after = self._register(self._timers.after_hooks)
        batches, engine = self._iterator.__next__, self._modules[1]._engine_run_backward
        self._iterator.__next__ = self._timers.around(batches, 1)
        self._engines(self._timers.around(engine, 1))

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
    """Return the us of a step, in the hook, and in the timers alone (median).

    In the hook: the differences of the quartiles with and without it.
    """
    import tpmon.hook

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
    step_ns = (monotonic_ns() - began) / (4 * rounds * steps)
    bare, hooked_ns = (statistics.quantiles(found[one], n=4) for one in (False, True))
    added = [(one - other) / 1e3 for one, other in zip(hooked_ns, bare, strict=True)]
    return {
        "step_us": step_ns / 1e3,
        "least_us": added[0],
        "inside_us": added[1],
        "most_us": added[2],
        "timers_us": bare[1] / 1e3,
    }


def rows() -> Iterator[str]:
    yield "| inside the hook | a step, all | the hook: median (range) | of the step | the timers themselves |"
    yield "|---|---|---|---|---|"
    for name, rounds in LOOPS.items():
        one = run_loop(name, rounds, "hook_inside")
        yield (
            f"| {name} | {one['step_us'] / 1e3:.2f} ms | {one['inside_us']:.1f} us ({one['least_us']:.1f} to "
            f"{one['most_us']:.1f}) | {100 * one['inside_us'] / one['step_us']:.2f} % | {one['timers_us']:.1f} us |"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure_inside(sys.argv[1], int(sys.argv[2]))))
    else:
        for row in rows():
            print(row, flush=True)
