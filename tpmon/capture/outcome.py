"""Put together what came of a window: files that were looked at, conditions, how it ended."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tpmon.capture.files import Place, clear_parts, look_at_snapshot, look_at_trace
from tpmon.model.capture import (
    CAPTURE_SCHEMA,
    CaptureAsked,
    CapturedFile,
    CaptureKind,
    CapturePrice,
    CaptureResult,
    CaptureState,
    Conditions,
    RankCapture,
)
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.trace import TraceSummary

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
) -> tuple[CaptureResult, tuple[TraceSummary, ...]]:
    """Look at the files of all ranks; a trace that holds other steps than asked for makes the set partial."""
    files: list[CapturedFile] = []
    summaries: list[TraceSummary] = []
    notes: list[str] = []
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
            file, summary, told = look_at_trace(place, name, number, rank.first_step)
        except OSError as error:
            notes.append(f"rank {number}: {error.strerror or error}: {error.filename or place.here}")
            continue
        files.append(file)
        conditions = told if not is_known(conditions) else conditions
        if isinstance(summary, Missing):
            notes.append(f"{os.path.basename(file.host_path)}: {summary.reason}")
        else:
            summaries.append(summary)
            notes += _judge(asked, rank, summary, told)
    reasons = {rank.reason for rank in ranks if rank.reason}
    result = CaptureResult(
        schema=CAPTURE_SCHEMA,
        state=judge_end(asked, ranks, files),
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
    asked: CaptureAsked, ranks: Sequence[RankCapture], files: Sequence[CapturedFile]
) -> CaptureState:
    """Say how a capture ended: done, with part of what was asked for, or why there is nothing."""
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
    return CaptureState.DONE if whole else CaptureState.PARTIAL


def _judge(
    asked: CaptureAsked, rank: RankCapture, summary: TraceSummary, conditions: Known[Conditions]
) -> list[str]:
    """Say what a trace does not hold that it should."""
    found = []
    if not asked.timed and summary.steps != rank.steps:
        found.append(f"the trace holds {summary.steps} steps, and {rank.steps} were recorded")
    if is_known(conditions) and is_known(conditions.gpu) and conditions.gpu and not summary.kernels:
        found.append("no GPU kernel in the trace, although the run uses a GPU: another tool may hold CUPTI")
    if summary.lost.events or summary.lost.broken_off:
        found.append(f"not all of the trace could be read: {summary.lost.reason}")
    return found
