"""Measure what the hook costs a training: hot, in place, at import. ``make bench-hook`` prints the table.

Hot: the hook's functions alone, called in a tight loop as a step calls them. In place: real loops,
blocks with and without the hook in turn, CPU time of the training thread. Other programs on the
machine only ever make a block dearer, so the cheap blocks of both kinds are compared: the 10th
percentiles, and in brackets the least and the most of the 5th to the 25th. Long steps swing by more than
the hook takes; there hundreds of neighbouring blocks are compared, and in brackets stands the 95 % interval
of the median difference. Each loop runs in a process of its own.

Cold: a step of 10 ms swings by a hundred times what the hook takes. So a loop with a small model sweeps the
caches between its four phases, as a large one does, and the time of the sweeps is not counted: what is left
is the Python of torch, the loop and the hook with cold caches, in which some us are told.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic_ns, process_time_ns, thread_time_ns

from tests.budget.measure import environment, run_cpu_seconds

ROOT = Path(__file__).parents[2]

CLOCK_NS = 46.0
"""One reading of the clock where the promises were made; a slower or busier machine is allowed more."""

HOT_TIMES = 2.7
"""How many times ``measure_plain`` the hook's functions take: 2.7 is the median of 20 pairs, 2.9 that of 32 (1.6 to 4.5)."""

HOT_US = 2.0
WARM_US = 16.0
WORKERS_US = 25.0
"""Of a step below a millisecond whose batches four workers make: 17 and 22 us were measured (ADR 0013)."""
COLD_US = 50.0
"""Of a step that leaves the caches cold: 0.5 % of 10 ms (ADR 0013)."""
IMPORT_MS = 5.0
RUN_MS = 30.0

TRANSFORMER = "transformer, loader"
COLD = "linear, loader, caches swept"
SWEPT_BYTES = 32 << 20
"""Four times a step: more than the second-level cache of any core, and 10 ms of time."""

LOOPS = {
    "linear": 40,
    "linear, loader": 40,
    "mlp, loader": 30,
    TRANSFORMER: 400,
    "linear, 4 workers": 200,
    "mlp, 4 workers": 200,
    COLD: 400,
}
"""The loops, and how many times the hook comes and goes in each."""
PAIRED = (TRANSFORMER, "linear, 4 workers", "mlp, 4 workers", COLD)
"""Loops of long steps or beside workers. Their blocks differ by more than the hook takes: neighbours are compared,
and there are many."""

BLOCKS = 10
"""Blocks of steps between two changes."""


def promise_us(name: str) -> float:
    if name in (TRANSFORMER, COLD):
        return COLD_US
    return WORKERS_US if "workers" in name else WARM_US


def measure_clock(rounds: int = 15, reads: int = 100_000) -> float:
    """Return the CPU time in ns of one reading of the clock, the least of all rounds."""
    costs = []
    for _ in range(rounds):
        begin = process_time_ns()
        for _ in range(reads):
            monotonic_ns()
        middle = process_time_ns()
        for _ in range(reads):
            pass
        costs.append((2 * middle - begin - process_time_ns()) / reads)
    return min(costs)


class Plain:
    """Do the least that an event of a hook can: read the clock, add up, store."""

    def __init__(self) -> None:
        self.at_ns = self.spent_ns = self.events = 0
        self.words = [0] * 16

    def event(self, _other: object) -> None:
        now_ns = monotonic_ns()
        self.spent_ns += now_ns - self.at_ns
        self.at_ns = now_ns
        self.events += 1
        self.words[3] = self.spent_ns


def measure_plain(rounds: int = 15, steps: int = 10_000) -> float:
    """Return the CPU time in us of five plain events, the least of all rounds."""
    one = Plain()
    costs = []
    for _ in range(rounds):
        begin = process_time_ns()
        for _ in range(steps):
            one.event(one)
            one.event(one)
            one.event(one)
            one.event(one)
            one.event(one)
        costs.append((process_time_ns() - begin) / steps / 1000)
    return min(costs)


def measure_hot(rounds: int = 15, steps: int = 20_000) -> float:
    """Return the CPU time in us that the hook's functions take for one step with a DataLoader."""
    from tpmon.hook.steps import Steps

    class Sampler:
        batch_size = 8

    class Batches:
        def __init__(self) -> None:
            self._index_sampler = Sampler()
            self._index_sampler.__dict__["batch_size"] = 8

    one = Steps(lambda: None)
    batches, nothing = Batches(), ((), {})

    def hooked() -> None:
        for _ in range(steps):
            one.data_begins()
            one.data_ended(batches)
            one.backward_begins()
            one.backward_ended(True)
            one.optimizer_stepped(batches, *nothing)

    def empty() -> None:
        for _ in range(steps):
            pass

    hooked()
    costs = []
    for _ in range(rounds):
        begin = process_time_ns()
        hooked()
        middle = process_time_ns()
        empty()
        costs.append((2 * middle - begin - process_time_ns()) / steps / 1000)
    one.drop_pages()
    return min(costs)


def measure_import(rounds: int = 11) -> float:
    """Return the CPU time in ms of ``import tpmon.hook`` in a fresh interpreter, compiled once."""
    program = "import time; t = time.process_time_ns(); import tpmon.hook; print(time.process_time_ns() - t)"
    times = []
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment({}), capture_output=True, text=True, check=True
        )
        times.append(int(done.stdout) / 1e6)
    return statistics.median(times[1:])


def measure_run(rounds: int = 11) -> float:
    """Return the CPU time in ms of ``tpmon run true``: what a start takes longer for it, compiled once."""
    started = [sys.executable, "-c", "from tpmon.__main__ import main; main()", "run", "true"]
    return min(run_cpu_seconds(started, {"PYTHONPATH": str(ROOT)}) * 1e3 for _ in range(rounds))


class Sweeper:
    """Read so much memory that the caches hold nothing else, and count the ns that takes."""

    def __init__(self, size: int) -> None:
        import torch

        self._memory = torch.zeros(size // 4)
        self.ns = 0

    def __call__(self) -> None:
        begin = thread_time_ns()
        self._memory.sum()
        self.ns += thread_time_ns() - begin


def build_loop(name: str) -> tuple[Callable[[], None], int, Sweeper | None]:
    """Return a function that trains one block of steps, how many those are, and what sweeps in them."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if name.startswith("linear"):
        net: nn.Module = nn.Linear(8, 1)
        x = torch.randn(8, 8)
        steps = 200 if "workers" in name else 15 if name == COLD else 40
    elif name.startswith("mlp"):
        net = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.ReLU())])
        x = torch.randn(32, 256)
        steps = 100 if "workers" in name else 15
    else:
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
        net = nn.TransformerEncoder(layer, 2)
        x = torch.randn(8, 32, 128)
        steps = 3
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)

    sweep = Sweeper(SWEPT_BYTES) if name == COLD else None

    def step(batch: torch.Tensor) -> None:
        net(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def cold_step(batch: torch.Tensor) -> None:
        sweep()
        loss = net(batch).pow(2).mean()
        sweep()
        loss.backward()
        sweep()
        optimizer.step()
        optimizer.zero_grad()
        sweep()

    train = step if sweep is None else cold_step
    if "workers" in name or "loader" in name:
        data = TensorDataset(x[0].repeat(steps * 8, *[1] * (x.dim() - 1)))
        loader = DataLoader(
            data, batch_size=8, num_workers=4 if "workers" in name else 0, persistent_workers="workers" in name
        )

        def block() -> None:
            for (batch,) in loader:
                train(batch)

        return block, steps, sweep

    def plain() -> None:
        for _ in range(steps):
            step(x)

    return plain, steps, None


def measure_loop(name: str, rounds: int) -> dict[str, float]:
    """Return the CPU time in us of a step without the hook and what it adds."""
    import tpmon.hook
    from tpmon.hook.installation import HOOK

    block, steps, sweep = build_loop(name)
    block()

    def used_ns() -> int:
        return thread_time_ns() - (sweep.ns if sweep is not None else 0)

    costs: dict[bool, list[float]] = {False: [], True: []}
    for at in range(rounds):
        for hooked in (at % 2 == 0, at % 2 == 1):
            (HOOK.patches.apply if hooked else HOOK.patches.take_back)()
            block()  # the interpreter specialises anew for what was replaced
            for _ in range(1 if name in PAIRED else BLOCKS):
                begin = used_ns()
                block()
                costs[hooked].append((used_ns() - begin) / steps / 1000)
    compare = compare_neighbours if name in PAIRED else compare_cheapest
    return {**compare(costs[False], costs[True]), "counted": HOOK.steps.steps, "problem": tpmon.hook.problem() != ""}


def compare_cheapest(bare: list[float], hooked: list[float]) -> dict[str, float]:
    """Compare the 10th percentiles; the range is of the 5th to the 25th."""
    early, late = statistics.quantiles(bare, n=20), statistics.quantiles(hooked, n=20)
    differences = [one - other for other, one in zip(early, late, strict=True)]
    least, most = min(differences[:5]), max(differences[:5])
    return {"step_us": early[1], "added_us": differences[1], "least_us": least, "most_us": most}


def compare_neighbours(bare: list[float], hooked: list[float]) -> dict[str, float]:
    """Take the median difference of neighbouring blocks, and its 95 % interval by order."""
    differences = sorted(one - other for other, one in zip(bare, hooked, strict=True))
    count = len(differences)
    aside = int((count - 1.96 * math.sqrt(count)) / 2)
    return {
        "step_us": statistics.median(bare),
        "added_us": statistics.median(differences),
        "least_us": differences[aside],
        "most_us": differences[count - 1 - aside],
    }


def run_loop(name: str, rounds: int, bench: str = "bench_hook") -> dict[str, float]:
    """Have a bench measure one loop in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", f"tests.budget.{bench}", name, str(rounds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def rows() -> Iterator[str]:
    yield f"One reading of the clock: {measure_clock():.0f} ns; the promises are for {CLOCK_NS:.0f} ns.\n"
    yield "| the hook | promise | measured |"
    yield "|---|---|---|"
    yield f"| import | {IMPORT_MS:.0f} ms CPU | {measure_import():.1f} ms |"
    yield f"| `tpmon run`, until it is the program | {RUN_MS:.0f} ms CPU | {measure_run():.1f} ms |"
    yield f"| hot: its functions alone, a step | {HOT_US:.0f} us CPU | {measure_hot():.2f} us |"
    for name, rounds in LOOPS.items():
        found = run_loop(name, rounds)
        assert not found["problem"]
        share = 100 * found["added_us"] / found["step_us"]
        yield (
            f"| {name}: {found['step_us']:.0f} us of CPU a step | {promise_us(name):.0f} us CPU | "
            f"{found['added_us']:.1f} us ({found['least_us']:.1f} to {found['most_us']:.1f}), {share:.2f} % |"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure_loop(sys.argv[1], int(sys.argv[2]))))
    else:
        for row in rows():
            print(row, flush=True)
