"""Traces of all ranks of a job, from a clock that runs for them together: known microseconds, known waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.traces import A100, BASE_US, TraceBuilder

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class Work:
    """Hold what one rank does in one step before it communicates, in microseconds."""

    loader_us: float = 0.0
    python_us: float = 500.0
    compute_us: float = 10_000.0
    kernels: int = 4
    line: str = ""
    """Where the program stands in its Python, of traces with stacks."""


@dataclass(frozen=True)
class Talk:
    """Hold one collective of a step: its group, who is in it, how long it moves data, and how much."""

    group: str = "0"
    members: tuple[int, ...] = ()
    moves_us: float = 1000.0
    elements: int = 1_000_000
    name: str = "allreduce"
    dtype: str = "Float"
    hidden: bool = False
    """Whether the ranks compute until it ends."""


@dataclass(frozen=True)
class Plan:
    """Hold a job: what each rank does in each step, and how the ranks talk behind it."""

    ranks: int
    work: Callable[[int, int], Work]
    talks: Sequence[Talk] = (Talk(),)
    steps: int = 5
    first_step: int = 3
    skew_us: Callable[[int], float] = lambda _rank: 0.0
    world_size: int = 0
    says_size: bool = True
    header: dict[str, Any] = field(default_factory=dict)

    def but(self, **changes: Any) -> Plan:
        return replace(self, **changes)


def run(plan: Plan) -> list[TraceBuilder]:
    """Let the ranks run: a collective begins on each when it gets there, and ends on all at once."""
    traces = [TraceBuilder(BASE_US + plan.skew_us(rank)) for rank in range(plan.ranks)]
    free = [0.0] * plan.ranks
    for step in range(plan.steps):
        begun = list(free)
        for rank, trace in enumerate(traces):
            free[rank] = _work(trace, plan.work(rank, step), free[rank])
        for talk in plan.talks:
            members = talk.members or tuple(range(plan.ranks))
            end = max(free[rank] for rank in members) + talk.moves_us
            for rank in members:
                _talk(traces[rank], talk, len(members) if plan.says_size else 0, free[rank], end)
                free[rank] = end
        for rank, trace in enumerate(traces):
            trace.step(step + plan.first_step, begun[rank], free[rank] - begun[rank])
    return traces


def _work(trace: TraceBuilder, work: Work, at: float) -> float:
    """Load, then run Python, then compute: the kernels follow each other without a gap."""
    if work.loader_us:
        trace.loader(at, work.loader_us)
    if work.line:
        trace.add("python_function", work.line, at + work.loader_us, work.python_us)
    at += work.loader_us + work.python_us
    each = work.compute_us / work.kernels
    for number in range(work.kernels):
        trace.op("aten::mm", at + number * each - 40, 35, **SHAPES)
        trace.kernel(at + number * each, each, launch=at + number * each - 20, name="ampere_sgemm_128x64")
    return at + work.compute_us


SHAPES: dict[str, Any] = {"Input Dims": [[512, 512], [512, 512]], "Input type": ["float", "float"]}


def _talk(trace: TraceBuilder, talk: Talk, size: int, begin: float, end: float) -> None:
    said: dict[str, Any] = {"stream": 20, "Collective name": talk.name, "Process Group Name": talk.group}
    said |= {"dtype": talk.dtype, "In msg nelems": talk.elements, "Out msg nelems": talk.elements}
    said |= {"Group size": size} if size else {}
    trace.kernel(begin, end - begin, launch=begin - 5, name=ALL_REDUCE, **said)
    if talk.hidden:
        trace.kernel(begin, end - begin, launch=begin - 3, name="ampere_sgemm_128x64")


def write(plan: Plan, folder: Path, ranks: Sequence[int] | None = None) -> list[str]:
    """Write the traces of some ranks, or of all."""
    folder.mkdir(parents=True, exist_ok=True)
    return [path for rank, path in _write(plan, folder) if ranks is None or rank in ranks]


def _write(plan: Plan, folder: Path) -> Iterator[tuple[int, str]]:
    for rank, trace in enumerate(run(plan)):
        about = {"rank": rank, "world_size": plan.world_size or plan.ranks, "backend": "nccl"}
        header = {"deviceProperties": [A100], "distributedInfo": about, **plan.header}
        yield rank, trace.write(folder / f"rank{rank}.json", header)


def run_pipeline(
    stage_us: Sequence[float], batches: int = 4, steps: int = 4, *, together: bool = False
) -> list[TraceBuilder]:
    """Let stages pass batches forward, then backward: each receives, computes so long, and sends on.

    ``together``: each waits for the last one at the end of a step, in a synchronise.
    """
    traces = [TraceBuilder() for _stage in stage_us]
    free = [0.0] * len(stage_us)
    for step in range(steps):
        begun = list(free)
        for order in (range(len(stage_us)), range(len(stage_us) - 1, -1, -1)):
            for _batch in range(batches):
                came = 0.0
                for place, stage in enumerate(order):
                    if place:
                        came = max(came, free[stage]) + 50
                        _move(traces[stage], "recv", free[stage], came)
                        free[stage] = came
                    traces[stage].op("aten::mm", free[stage] - 10, 8)
                    traces[stage].kernel(free[stage], stage_us[stage], launch=free[stage] - 5, name="ampere_sgemm")
                    free[stage] += stage_us[stage]
                    came = free[stage]
                    if place + 1 < len(stage_us):
                        _move(traces[stage], "send", free[stage], free[stage] + 50)
                        free[stage] += 50
        end = max(free) + 60
        for stage, trace in enumerate(traces if together else ()):
            trace.call("cudaStreamSynchronize", free[stage] - 1, end - 40 - free[stage])
            free[stage] = end
        for trace, first, last in zip(traces, begun, free, strict=True):
            trace.step(step, first, last - first)
    return traces


def _move(trace: TraceBuilder, name: str, begin: float, end: float) -> None:
    trace.add("user_annotation", f"nccl:{name}", begin - 8, 6)
    trace.kernel(begin, end - begin, launch=begin - 5, name="ncclDevKernel_SendRecv(x)", stream=20)
