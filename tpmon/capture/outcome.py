"""Put together what came of a window: files that were looked at, conditions, how it ended."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from tpmon.capture.files import Place, clear_parts, look_at_snapshot, look_at_trace
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.capture import (
    CAPTURE_SCHEMA,
    CaptureAsked,
    CapturedFile,
    CaptureKind,
    CapturePrice,
    CaptureResult,
    CaptureState,
    Conditions,
    GpuClocks,
    RankCapture,
)
from tpmon.model.results.trace import TraceSummary

IS_BUSY = "NVML saw a GPU work for it"
IS_TIMED = "its steps were timed on a GPU meanwhile"
_NOBODY_KNOWS = "CUDA is initialised, and nothing says that a GPU worked meanwhile"
_IS_ON = "the model that it trains is on a GPU"

_BACKENDS = {
    CaptureKind.TRACE: "torch.profiler from the step hook",
    CaptureKind.SNAPSHOT: "allocator history of torch",
    CaptureKind.NSYS_RANGE: "cudaProfilerStart and Stop for nsys",
}


def gather(
    asked: CaptureAsked,
    name: str,
    ranks: Sequence[RankCapture],
    places: Sequence[Place],
    price: Known[CapturePrice],
    *,
    works: Mapping[int, str],
    clocks: Known[tuple[GpuClocks, ...]],
) -> tuple[CaptureResult, tuple[TraceSummary, ...]]:
    """Look at the files of all ranks; what a trace lacks makes the set partial.

    ``works`` says of which processes, by PID, something outside of the trace saw a GPU work; ``clocks`` are
    those of the GPUs, which are written down in each trace.
    """
    files: list[CapturedFile] = []
    summaries: list[TraceSummary] = []
    notes: list[str] = []
    used: set[int] = set()
    conditions: Known[Conditions] = Missing("no trace was written")
    for rank, place in zip(ranks, places, strict=True):
        number = rank.rank if is_known(rank.rank) else -1
        if rank.state is CaptureState.GONE:
            left = clear_parts(place, name, number)
            notes += [f"removed {removed}, which was not whole" for removed in left]
        if rank.state is not CaptureState.VERIFIED:
            continue  # a hook that lives removes its own, and another capture may be under way
        if asked.kind is CaptureKind.NSYS_RANGE or not is_known(rank.first_step):
            continue
        try:
            if asked.kind is CaptureKind.SNAPSHOT:
                files.append(look_at_snapshot(place, name, number, rank.first_step))
                continue
            file, summary, told = look_at_trace(place, name, number, rank.first_step, clocks)
        except OSError as error:
            notes.append(f"rank {number}: {error.strerror or error}: {error.filename or place.here}")
            continue
        files.append(file)
        conditions = told if not is_known(conditions) else conditions
        if isinstance(summary, Missing):
            notes.append(f"{os.path.basename(file.host_path)}: {summary.reason}")
        else:
            summaries.append(summary)
            notes += _judge(asked, rank, summary)
            if not summary.kernels:
                why = works.get(rank.pid) or find_use(rank, told)
                used.update([rank.pid] if why else [])
                notes += note_kernels(why, told)
    reasons = {rank.reason for rank in ranks if rank.reason}
    result = CaptureResult(
        schema=CAPTURE_SCHEMA,
        state=judge_end(asked, ranks, files, used),
        backend=_BACKENDS[asked.kind],
        folder=asked.folder,
        files=tuple(files),
        ranks=tuple(ranks),
        conditions=conditions,
        price=price,
        paused_ms=max((one.paused_ms for one in ranks if is_known(one.paused_ms)), default=0.0),
        notes=(*sorted(reasons), *notes),
    )
    return result, tuple(summaries)


def judge_end(
    asked: CaptureAsked,
    ranks: Sequence[RankCapture],
    files: Sequence[CapturedFile],
    used: Collection[int] = (),
) -> CaptureState:
    """Say how a capture ended: done, with part of what was asked for, or why there is nothing.

    ``used`` are the processes that had a GPU work meanwhile: their traces lack something without a kernel.
    """
    good = [rank for rank in ranks if rank.state is CaptureState.VERIFIED]
    if not good:
        return ranks[0].state if ranks else CaptureState.FAILED
    if asked.kind is CaptureKind.NSYS_RANGE:
        return CaptureState.DONE if len(good) == len(ranks) else CaptureState.PARTIAL
    if not files:
        return CaptureState.FAILED  # notes say why none could be read
    whole = len(files) == len(ranks) and len({rank.first_step for rank in good}) == 1
    if asked.kind is CaptureKind.TRACE and not asked.timed:
        whole = whole and all(file.steps == rank.steps for file, rank in zip(files, good, strict=False))
    if asked.kind is CaptureKind.TRACE:
        pairs = zip(files, good, strict=False)
        whole = whole and not any(file.kernels == 0 and rank.pid in used for file, rank in pairs)
    return CaptureState.DONE if whole else CaptureState.PARTIAL


def find_use(rank: RankCapture, conditions: Known[Conditions]) -> str:
    """Say by what the trace itself tells that a GPU worked, "" where that cannot be told.

    CUDA that was initialised is not enough: a loop may train on the CPU all the same.
    """
    if not is_known(conditions) or not rank.steps or conditions.mode != "training":
        return ""
    return _IS_ON if is_known(conditions.device) and conditions.device.startswith("cuda") else ""


def note_kernels(why: str, conditions: Known[Conditions]) -> list[str]:
    """Say of a trace without a kernel that it should have some: ``why``, or that nobody knows."""
    if why:
        return [f"no GPU kernel in the trace, although {why}: another tool may hold CUPTI"]
    if is_known(conditions) and is_known(conditions.gpu) and conditions.gpu:
        return [f"no GPU kernel in the trace; {_NOBODY_KNOWS}"]
    return []


def _judge(asked: CaptureAsked, rank: RankCapture, summary: TraceSummary) -> list[str]:
    """Say what a trace does not hold that it should."""
    found = []
    if not asked.timed and summary.steps != rank.steps:
        found.append(f"the trace holds {summary.steps} steps, and {rank.steps} were recorded")
    if summary.lost.events or summary.lost.broken_off:
        found.append(f"not all of the trace could be read: {summary.lost.reason}")
    return found
