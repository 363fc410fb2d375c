"""Say what is known of a capture before anything is asked of the run, and what is not."""

from __future__ import annotations

import math

from tpmon.capture.files import locate, read_free_bytes
from tpmon.capture.plan import MOST_BYTES, MOST_ENTRIES, MOST_EVENTS, say_count, say_length
from tpmon.hook.bus import wire_capture
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.capture import UNKNOWN, CaptureAsked, CaptureKind
from tpmon.model.units import clean_text, format_bytes, format_seconds

_FIRST_START = (
    "the first profile of a process on CUDA takes seconds to begin, in which Python stands still; the other"
    " ranks wait in their collectives, and NCCL ends the run where that exceeds the timeout of their group"
)
_ALONE = Missing("no other rank waits")
_NO_PROBE = f"{UNKNOWN}how long the loop stands still"

STAYS_SLOWER = (
    "on CUDA launches may stay slower after it until the process ends, also where only one step was profiled:"
    " torch's profiler stays attached (docs/capture.md, The price, says what TEARDOWN_CUPTI=1 at the start of"
    " a run does about it, and at what risk)"
)


def say_plan(
    asked: CaptureAsked,
    pid: int,
    rank: int,
    step_ms: Known[float],
    ranks: int = 1,
    *,
    stays_slower: bool = False,
    timeout_s: Known[int] = _ALONE,
) -> tuple[str, ...]:
    """Say which steps the hook would record and where to, before anything is asked of the run.

    ``rank`` is -1 for none; of several ``ranks`` it is the first. ``stays_slower``: a profile leaves launches
    so. ``timeout_s``: so long the other ranks wait, 0 where that is not known.
    """
    who = f"rank {rank}, process {pid}" if rank >= 0 else f"process {pid}"
    who = f"all {ranks} ranks here" if ranks > 1 else who
    each = " of each" if ranks > 1 else ""
    steps = say_length(asked, asked.steps)
    pace = _say_pace(asked, step_ms)
    if asked.kind is CaptureKind.SNAPSHOT:
        what = f"the CUDA allocator's history over {steps} of {who}"
        room = f"{_say_most_of_snapshot()}{each}, into {_say_folder(asked, pid)}"
        unknown = f"{_NO_PROBE} while that is written; what keeps the stacks makes each allocation slower"
        return what, pace, room, unknown
    if asked.kind is CaptureKind.NSYS_RANGE:
        what = f"{steps} of {who}, as a range for the nsys in front of the run"
        room = "nsys writes the report, into the folder in which it was started; how large is not known"
        unknown = f"{_NO_PROBE} while nsys begins and ends: the loop waits for the GPU at both ends"
        return what, pace, room, unknown
    what = f"{steps} of {who}, by torch.profiler from {'their' if ranks > 1 else 'its'} step hook"
    if asked.timed:
        what = f"{asked.seconds:g} s of {who}, which ends no step that the hook sees: woken by SIGURG"
        pace = "how long a step takes is not known"
    unknown = (
        f"{UNKNOWN}how long the loop stands still, how much memory and disk it takes. One step"
        f"{each} is profiled and thrown away to tell that: the loop stands still for some milliseconds,"
        " longer the first time, on a GPU up to seconds"
    )
    return what, pace, _say_room(asked, pid, each), *say_of_cuda(stays_slower, timeout_s), unknown


def say_of_cuda(stays_slower: bool, timeout_s: Known[int] = _ALONE) -> tuple[str, ...]:
    """Say what a profile costs on CUDA beside what is measured; ``timeout_s`` as in ``say_plan``."""
    stays = (STAYS_SLOWER,) if stays_slower else ()
    if not is_known(timeout_s):
        return stays
    limit = format_seconds(timeout_s) if timeout_s else "10 min, unless the program sets another one"
    return *stays, f"{_FIRST_START}: {limit}"


def say_plan_of_kineto(
    asked: CaptureAsked, pid: int, *, hooked: bool, stays_slower: bool = False
) -> tuple[str, ...]:
    """Say the same of kineto, which records updates and does not stop the loop to write.

    A run that is ``hooked`` is asked for its conditions afterwards.
    """
    what = (
        f"{say_count(asked.steps, 'update')} of an optimizer in process {pid}, by kineto's own thread: the"
        " loop goes on while it writes"
    )
    ends = (
        "once ordered it ends with its last update alone: a validation between two of them is recorded too,"
        " and no limit of time or size ends it before"
    )
    unknown = f"{UNKNOWN}how much memory and disk it takes. One update is recorded first to tell that"
    asks = (
        "the hook tells the conditions afterwards: the first time it looks for the model among Python's"
        " objects, and the loop stands still for 20 to 50 ms for each 100,000 of them"
    )
    stays = say_of_cuda(stays_slower)
    return what, _say_room(asked, pid), ends, *((asks,) if hooked else ()), *stays, unknown


def say_cut(asked: CaptureAsked, step_ms: Known[float]) -> str:
    """Say that the seconds hold fewer steps than were asked for, "" where they hold them."""
    if asked.by_seconds or not is_known(step_ms) or step_ms * asked.steps <= asked.seconds * 1e3:
        return ""
    held = max(math.ceil(asked.seconds * 1e3 / step_ms), 1)
    return f"some {held} of {say_count(asked.steps, 'step')}: {asked.seconds:g} s hold no more"


def _say_pace(asked: CaptureAsked, step_ms: Known[float]) -> str:
    if not is_known(step_ms):
        return f"how long a step takes is not known: {step_ms.reason}"
    recorded_ms = min(step_ms * asked.steps, asked.seconds * 1e3)
    cut = say_cut(asked, step_ms)
    return (
        f"a step takes {step_ms:.1f} ms now: about {_say_ms(recorded_ms)} are recorded"
        f"{f', {cut}' if cut else ''}"
    )


def _say_most_of_snapshot() -> str:
    """Say what a snapshot has at most, which no probe sizes."""
    most = format_bytes(MOST_ENTRIES * wire_capture.ENTRY_BYTES)
    return f"the newest {MOST_ENTRIES:,} allocations and their stacks, at most some {most} of memory and disk"


def _say_room(asked: CaptureAsked, pid: int, each: str = "") -> str:
    return (
        f"a trace of at most {MOST_EVENTS:,} events and {format_bytes(MOST_BYTES)}{each}, packed afterwards,"
        f" into {_say_folder(asked, pid)}"
    )


def _say_folder(asked: CaptureAsked, pid: int) -> str:
    free = read_free_bytes(locate(pid, asked.folder).here)
    left = f"{format_bytes(free)} free there" if is_known(free) else f"free room not read: {free.reason}"
    return f"{clean_text(asked.folder, 400)}: {left}"


def _say_ms(ms: float) -> str:
    return f"{ms / 1000:.1f} s" if ms >= 1000 else f"{ms:.0f} ms"
