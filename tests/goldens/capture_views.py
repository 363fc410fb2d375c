"""A capture as the screen gets it: its plan, its price, while it records, and at each of its ends."""

from __future__ import annotations

from dataclasses import replace

from tpmon.capture.dialog import COUNT_APART, NO_CUDA, NOT_YET
from tpmon.capture.plan import say_dear, say_price
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.capture import (
    CAPTURE_SCHEMA,
    UNKNOWN,
    CaptureAsked,
    CaptureChoice,
    CapturedFile,
    CaptureKind,
    CaptureOffers,
    CapturePrice,
    CaptureResult,
    CaptureStage,
    CaptureState,
    CaptureUpdate,
    RankCapture,
)
from tpmon.model.results.late import LatePlan, LateWay
from tpmon.model.results.trace import Breakdown, Lost, OperatorRow, TraceSummary
from tpmon.model.text.late_words import describe_plan
from tpmon.report.capture import write_capture, write_capture_line

ASKED = CaptureAsked(CaptureKind.TRACE, 5, 60.0, False, False, False, NOT_APPLICABLE, "/runs/a")

PATH = "/runs/a/node7-4200-rank0-step412.pt.trace.json.gz"


def result() -> CaptureResult:
    nothing = Missing("the trace does not say it")
    rank = RankCapture(4211, 0, CaptureState.VERIFIED, "", 412, 5, 34.0, 12.0, 13.1, 12.05)
    file = CapturedFile(PATH, PATH, 0, 412, 5, 7_612, 0, 301_000, CaptureKind.TRACE)
    return CaptureResult(
        schema=CAPTURE_SCHEMA,
        state=CaptureState.DONE,
        backend="torch.profiler from the step hook",
        folder="/runs/a",
        files=(file,),
        ranks=(rank,),
        conditions=nothing,
        price=nothing,
        paused_ms=34.0,
        notes=(),
    )


def summary() -> TraceSummary:
    nothing = Missing("no device events")
    rows = [
        OperatorRow(name, calls, self_us * 1.2, self_us, NOT_APPLICABLE, NOT_APPLICABLE)
        for name, calls, self_us in (("aten::addmm", 120, 21_400.0), ("aten::copy_", 310, 6_120.0))
    ]
    split = Breakdown(nothing, nothing, nothing, nothing, nothing, 2_300.0, 9_900.0, 900.0)
    return TraceSummary(
        path=PATH,
        rank=0,
        world_size=1,
        events=7_612,
        steps=5,
        repeats=0,
        judged_steps=5,
        left_out_us=0.0,
        step_ms=13.1,
        step_p50_ms=13.0,
        step_p95_ms=13.9,
        split_us=split,
        kernels=0,
        operators=tuple(rows),
        lost=Lost(0, 0, 0, False, ""),
    )


def asked() -> CaptureUpdate:
    return CaptureUpdate(CaptureStage.ASKED, "reads what is known of its price")


def planned() -> CaptureUpdate:
    """Return it with what is known before anything is asked of the run."""
    room = (
        "a trace of at most 200,000 events and 512M, packed afterwards, into"
        " /runs/a/tpmon-capture-node7-4200-20261125-034500: 41.2G free there"
    )
    unknown = (
        f"{UNKNOWN}how long the loop pauses, how much memory and disk it takes. One step is"
        " profiled and thrown away to tell that: the loop pauses for some milliseconds, longer the"
        " first time, on a GPU up to seconds"
    )
    plan = (
        "5 steps of rank 0, process 4211, by torch.profiler from its step hook",
        "a step takes 12.0 ms now: about 60 ms are recorded",
        room,
        unknown,
    )
    return CaptureUpdate(CaptureStage.PLANNED, "not begun", plan)


def offered(*, cuda: bool = False, choice: CaptureChoice | None = None) -> CaptureUpdate:
    """Return the plan with what can be chosen: on a CPU a trace alone, of one rank or of both."""
    nsys = "nsys is not in front of this run, and cannot be added to a running process"
    refused = [(CaptureKind.SNAPSHOT, NO_CUDA)] if not cuda else []
    offers = CaptureOffers("rank 0", 2, (*refused, (CaptureKind.NSYS_RANGE, nsys)))
    return replace(planned(), offers=offers, choice=choice or CaptureChoice())


def hookless() -> CaptureUpdate:
    """Return it on a run without a hook: what it takes to put one in, for the first yes."""
    plan = describe_plan([LatePlan(4211, "3.11.7", LateWay.PENDING_CALL)], lent=True)
    return replace(offered(), stage=CaptureStage.HOOKLESS, line=NOT_YET[CaptureStage.HOOKLESS], plan=plan)


def hooking() -> CaptureUpdate:
    """Return it at the second yes."""
    return replace(hookless(), stage=CaptureStage.HOOKING, line=NOT_YET[CaptureStage.HOOKING])


def offered_snapshot() -> CaptureUpdate:
    """Return the plan of a snapshot of both ranks, 20 steps, on a run with GPUs."""
    choice = CaptureChoice(CaptureKind.SNAPSHOT, 20, every=True)
    room = (
        "the newest 100,000 allocations and their stacks, at most some 391M of memory and disk of each, into"
        " /runs/a/tpmon-capture-node7-4200-20261125-034500: 41.2G free there"
    )
    unknown = (
        f"{UNKNOWN}how long the loop pauses while that is written; what keeps the stacks makes each allocation slower"
    )
    plan = (
        "the CUDA allocator's history over 20 steps of all 2 ranks here",
        "a step takes 12.0 ms now: about 240 ms are recorded",
        room,
        unknown,
    )
    return replace(offered(cuda=True, choice=choice), plan=plan)


def chosen_anew() -> CaptureUpdate:
    """Return it while what was chosen otherwise is planned; not all ranks can be."""
    offers = CaptureOffers("rank 0", 2, every=COUNT_APART)
    return replace(asked(), offers=offers, choice=CaptureChoice(steps=1_000))


def priced() -> CaptureUpdate:
    """Return it with the price, once one step was profiled."""
    price = CapturePrice(steps=5, events=7_600, pause_ms=31.0, bytes=2_900_000, memory_bytes=9_880_000)
    said = (say_price(price, ASKED, 1),)
    return replace(offered(), stage=CaptureStage.PRICED, line="not recorded yet", price=said)


def dear() -> CaptureUpdate:
    """Return it where the loop would pause for so long that this is asked once more."""
    price = CapturePrice(steps=5, events=150_000, pause_ms=13_000.0, bytes=2_900_000, memory_bytes=9_880_000)
    said = (say_price(price, ASKED, 1), *say_dear(price))
    return replace(offered(), stage=CaptureStage.DEAR, line="not recorded yet", price=said)


def recording(step: int = 2) -> CaptureUpdate:
    return replace(priced(), stage=CaptureStage.RECORDING, line=f"recording step {step} of 5")


def done() -> CaptureUpdate:
    """Return it with what ``tpmon capture`` prints at its end."""
    told, summaries = result(), (summary(),)
    return replace(
        recording(),
        stage=CaptureStage.ENDED,
        line=write_capture_line(told, summaries),
        report=tuple(write_capture(told, summaries, "node7")),
        trace=PATH,
    )


def cancelled() -> CaptureUpdate:
    line = "capture cancelled: nobody waits for it any more"
    return replace(recording(), stage=CaptureStage.ENDED, line=line)
