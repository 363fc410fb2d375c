"""Capture with kineto's own thread, and put together the result.

Conditions have the names that the hook writes (``tpmon.hook.capture.conditions``). What only the process
itself knows is missing, with the reason, where the hook did not answer.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

from tpmon.capture.bus import Bus, open_bus
from tpmon.capture.dialog import CaptureAsker
from tpmon.capture.files import NOT_READ, count_trace, read_summary, run_child, tell_steps, to_conditions
from tpmon.capture.kineto_daemon import KinetoClient, TakenError, find_client
from tpmon.capture.kineto_window import KinetoWindow, Recorded
from tpmon.capture.outcome import (
    IS_BUSY,
    IS_TIMED,
    EndedWindow,
    ask_conditions,
    await_steps_after,
    note_kernels,
)
from tpmon.capture.plan import (
    count_steps,
    counts_as_kineto,
    mean_call,
    median_before,
    median_step,
    say_count,
    stretch_seconds,
)
from tpmon.errors import TpmonError, UsageError
from tpmon.foreign_file import NEW_FILE, hand_over
from tpmon.hook.bus import wire, wire_settings
from tpmon.model.codec import CodecError, decode, encode, to_plain
from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known, Missing, is_known, map_known
from tpmon.model.process import Identity
from tpmon.model.results.capture import (
    CAPTURE_SCHEMA,
    CaptureAsked,
    CapturedFile,
    CaptureKind,
    CaptureResult,
    CaptureState,
    Conditions,
    GpuClocks,
    RankCapture,
    StepTime,
)
from tpmon.model.results.trace import TraceSummary
from tpmon.model.results.trace_tables import CountedSteps, MarkedSteps
from tpmon.own_command import call_as_owner

_NO_STEP = Missing("no step ended yet")
_NOT_YET = Missing("the hook has not written its settings yet")
_NO_GROUP = Missing("there was no process group when the hook began")
_UNTOLD = Missing("its torch does not tell")
_OFF = Missing("it was off where the backward began")
_NOT_NAMED = Missing("NVML does not name the GPU")
_FROM_WITHIN = (
    "inputs",
    "model",
    "wrapped_by",
    "parameters",
    "dtype",
    "device",
    "training",
    "backend",
    "gpu_uuid",
    "gpu_memory_bytes",
    "cuda",
    "folder",
    "sys_path",
)
_OURS = ("rank", "clocks")
"""Better known outside: launchers may make no process group."""

_NUMBERS = {"threads": wire_settings.SET_THREADS, "interop_threads": wire_settings.SET_INTEROP_THREADS}
_SWITCHES = {
    "cudnn_benchmark": wire_settings.SET_CUDNN_BENCHMARK,
    "cudnn_deterministic": wire_settings.SET_CUDNN_DETERMINISTIC,
    "deterministic": wire_settings.SET_DETERMINISTIC,
    "anomaly_mode": wire_settings.SET_ANOMALY,
}


def describe_from_bus(
    header: wire.Header,
    words: Sequence[int],
    record: Sequence[int],
    rank: Applicable[int],
    clocks: Known[tuple[GpuClocks, ...]],
    *,
    within: Known[dict[str, Any]],
) -> dict[str, Any]:
    """Return the conditions for a trace of kineto: ``words`` are SET_*, ``record`` is the newest.

    What the hook wrote from ``within`` the process goes before what is on its bus.
    """
    known_rank = rank if is_known(rank) else header.rank
    found: dict[str, object] = {
        "torch": header.torch_version or _UNTOLD,
        "python": header.python_version or _UNTOLD,
        "rank": known_rank if known_rank >= 0 else _NO_GROUP,
        "world_size": header.world_size if header.world_size > 0 else _NO_GROUP,
        "gpu": _find_gpu(words, clocks),
        "clocks": clocks,
        **dict.fromkeys(_FROM_WITHIN, within if isinstance(within, Missing) else _UNTOLD),
        **_read_steps(record),
        **_read_settings(words),
    }
    plain = {name: to_plain(value) for name, value in found.items()}
    if is_known(within):
        told = {name: value for name, value in within.items() if name in plain and name not in _OURS}
        plain.update(told)
    return plain


def _read_steps(record: Sequence[int]) -> dict[str, object]:
    if not record:
        return dict.fromkeys(("step_rule", "mode", "batch_size"), _NO_STEP)
    return {
        "step_rule": record[wire.REC_RULE],
        "mode": "evaluation" if record[wire.REC_RULE] == wire.RULE_BATCH else "training",
        "batch_size": record[wire.REC_BATCH_SIZE] or Missing("the DataLoader does not say it"),
    }


def _read_settings(words: Sequence[int]) -> dict[str, object]:
    if not words:
        names = (*_NUMBERS, *_SWITCHES, "matmul_precision", "autocast", "autocast_dtype")
        return dict.fromkeys(names, _NOT_YET)
    found: dict[str, object] = {
        **{name: words[at] if words[at] >= 0 else _UNTOLD for name, at in _NUMBERS.items()},
        **{name: bool(words[at]) if words[at] >= 0 else _UNTOLD for name, at in _SWITCHES.items()},
        "matmul_precision": _UNTOLD,
    }
    if words[wire_settings.SET_MATMUL_TF32] >= 0:
        is_on = words[wire_settings.SET_MATMUL_TF32]
        found["matmul_precision"] = Missing("TF32 is on: high or medium") if is_on else "highest"
    if words[wire_settings.SET_AUTOCAST] > 0:
        dtype = wire_settings.DTYPES.get(words[wire_settings.SET_AUTOCAST_DTYPE], "another type")
        return {**found, "autocast": True, "autocast_dtype": dtype}
    why = _UNTOLD if words[wire_settings.SET_AUTOCAST] < 0 else _OFF
    return {**found, "autocast": why, "autocast_dtype": why}


def _find_gpu(words: Sequence[int], clocks: Known[tuple[GpuClocks, ...]]) -> Known[str]:
    """Name the GPU by NVML where CUDA is in use, "" where it is not."""
    if is_known(clocks) and clocks:
        return clocks[0].name
    if not words:
        return _NOT_YET
    if words[wire_settings.SET_CUDA] < 0:
        return _UNTOLD
    return _NOT_NAMED if words[wire_settings.SET_CUDA] else ""


BACKEND = "kineto on demand, from a thread of its own"
_UNPACED = 5
"""Updates where only seconds were asked for and no hook knows how many fit into them."""
_UNNUMBERED = Missing("kineto does not number the steps of the run")
_MOST_RECORDS = 1024
"""All that the hook keeps."""
_NOT_TOLD = Missing("kineto writes none: they come with the hook")
_NOTHING = Missing("nothing was recorded")
_NOT_STOPPED = Missing(
    "kineto stops and writes in a thread of its own; nobody measured what the loop felt of it"
)
_NO_HOOK = Missing("no hook counts the steps of this run")


class Cards(Protocol):
    """Read the GPUs of a process; ``busy`` are the PIDs that used one, as of the last reading."""

    busy: frozenset[int]

    def read(self) -> Known[tuple[GpuClocks, ...]]:
        """Return the clocks of the GPUs."""


@dataclass(frozen=True, slots=True)
class LoopAround:
    """Hold how the machine around a process is read: NVML around a window, and the memory left to it.

    ``stays_slower``: launches of this PID stay slower after a profile. ``runs_cuda_11``: a profile may break
    its CUDA graphs.
    """

    watch: Callable[[Identity], AbstractContextManager[Cards]]
    memory_left: Callable[[int], Known[int]]
    stays_slower: Callable[[int], bool]
    runs_cuda_11: Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Kept:
    """Hold the file of a window and its summary, or notes why there is none."""

    file: CapturedFile | None
    summary: TraceSummary | Missing
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KnownBeside:
    """Hold what was known beside a window when it ended: conditions, clocks, the ends of steps.

    ``works`` is the evidence that a GPU worked for the process, "" for none.
    """

    told: Mapping[str, Any]
    ended: CountedSteps | None = None
    clocks: Known[tuple[GpuClocks, ...]] = NOT_READ
    works: str = ""
    records: Sequence[Sequence[int]] = ()


def try_kineto(
    process: Identity,
    rank: Applicable[int],
    asked: CaptureAsked,
    name: str,
    *,
    asker: CaptureAsker,
    around: LoopAround,
) -> tuple[CaptureResult, tuple[TraceSummary, ...]] | None:
    """Have kineto record one rank where its thread runs; None where the hook has to do it.

    kineto does not stop the loop, so it goes first where the run was started for it, or each step is one
    update. It records only traces, from the next update on, and cannot begin at a given step. On CUDA 11 a
    starting profiler breaks CUDA graphs, which only the hook can see.

    Raises:
        TakenError: where another daemon answers kineto, and there is no hook either.
        UsageError: where not even one update fits into a window, and for CUDA 11 without a hook.
    """
    client = find_client(process)
    if isinstance(client, Missing) or asked.kind is not CaptureKind.TRACE or is_known(asked.at):
        return None
    with contextlib.ExitStack() as stack:
        bus = _find_bus(process)
        if bus is not None:
            stack.callback(bus.close)
            if not client.is_ours and not counts_as_kineto(asked, bus.read_records()):
                return None
        if around.runs_cuda_11(process.pid):
            if bus is None:
                raise UsageError(
                    "CUDA 11 is loaded: a profile can hang or crash CUDA graphs, which the hook alone sees",
                    f"start the run again with this tpmon: {call_as_owner(process.pid)}",
                )
            asker.tell(
                "CUDA 11 is loaded: torch.profiler records from the step hook, which looks for CUDA graphs"
                " first"
            )
            return None
        try:
            asker.tell(f"back end: {BACKEND}")
            return capture_by_kineto(client, bus, rank, asked, name, asker=asker, around=around)
        except TakenError as error:
            if bus is None:
                raise
            asker.tell(f"{error.what}; torch.profiler records from the step hook instead")
            return None


def capture_by_kineto(
    client: KinetoClient,
    bus: Bus | None,
    rank: Applicable[int],
    asked: CaptureAsked,
    name: str,
    *,
    asker: CaptureAsker,
    around: LoopAround,
) -> tuple[CaptureResult, tuple[TraceSummary, ...]]:
    """Have kineto record, and verify what it wrote; ``bus`` is that of a hook beside it.

    Raises:
        TakenError: where another daemon answers it, before anything was asked.
        UsageError: where not even one update fits into a window.
    """
    pid = client.process.pid
    before: Known[StepTime] = _NO_HOOK
    after: Known[StepTime] = _NO_HOOK
    update_ms: Known[float] = _NO_HOOK
    timed = 0
    if bus is not None:
        before = median_before(bus.read_records(), time.monotonic_ns())
        update_ms = mean_call(bus.read_records())
        timed = bus.count_timed_steps()
    asked, cut = fit_updates(stretch_seconds(asked, [update_ms]), update_ms)
    window = KinetoWindow(
        client,
        asked,
        asker,
        memory_left=lambda: around.memory_left(pid),
        stays_slower=around.stays_slower(pid),
        hooked=bus is not None,
    )
    beside = KnownBeside({})
    with contextlib.closing(window):
        if cut:
            asker.tell(cut)
        with around.watch(client.process) as cards:
            recorded = window.run()
            ended = time.monotonic_ns()
            if recorded.state is CaptureState.VERIFIED:
                asker.tell("reading what was written")
                beside = _read_beside(bus, pid, rank, cards, timed)
        if recorded.state is not CaptureState.VERIFIED:
            after = _NOTHING
        elif bus is not None:
            since = EndedWindow(bus, ended, before)
            await_steps_after([since], asker.tell, asker.stopped)
            after = since.measure_after()
            later = median_step(beside.records, *window.waited_ns)
            before = later if is_known(later) else before
        member = RankCapture(
            pid=pid,
            rank=rank,
            state=recorded.state,
            reason=recorded.reason,
            first_step=_UNNUMBERED,
            steps=0,
            paused_ms=_NOT_STOPPED,
            step_before_ms=map_known(lambda step: step.ms, before),
            step_during_ms=_NOTHING,
            step_after_ms=map_known(lambda step: step.ms, after),
            steps_before=count_steps(before),
            steps_after=count_steps(after),
        )
        kept = _keep(window, recorded, name, beside, member)
    summary = kept.summary if isinstance(kept.summary, TraceSummary) else None
    if kept.file is not None:
        member = replace(member, first_step=kept.file.first_step)
    if summary:
        member = replace(member, steps=summary.steps, step_during_ms=summary.step_p50_ms)
    return _conclude(window, recorded, kept, beside, member), (summary,) if summary else ()


def _read_beside(bus: Bus | None, pid: int, rank: Applicable[int], cards: Cards, timed: int) -> KnownBeside:
    """Read what is known beside a window that just ended; ``timed``: steps timed on a GPU before it."""
    clocks = cards.read()
    works = IS_BUSY if pid in cards.busy else ""
    if bus is None:
        return KnownBeside({}, None, clocks, works)
    records = bus.read_records(_MOST_RECORDS)  # first, while those of the window are there
    ended = list_ends(records)
    settings = wire_settings.parse_settings(bus.page)
    within = ask_conditions(bus)
    newest = records[-1] if records else ()
    told = describe_from_bus(bus.header, settings, newest, rank, clocks, within=within)
    works = works or (IS_TIMED if bus.count_timed_steps() > timed else "")
    return KnownBeside(told, ended, clocks, works, records)


def _conclude(
    window: KinetoWindow, recorded: Recorded, kept: Kept, beside: KnownBeside, member: RankCapture
) -> CaptureResult:
    conditions: Known[Conditions] = _NOT_TOLD
    if beside.told:
        conditions = replace(to_conditions(dict(beside.told)), clocks=beside.clocks)
    wanted = window.price.steps if is_known(window.price) else window.asked.steps
    lacks = kept.file is not None and kept.file.kernels == 0
    notes = (recorded.reason, *kept.notes, *(note_kernels(beside.works, conditions) if lacks else ()))
    return CaptureResult(
        schema=CAPTURE_SCHEMA,
        state=judge_recorded(recorded, kept, wanted, beside.works),
        backend=BACKEND,
        folder=window.asked.folder,
        files=(kept.file,) if kept.file is not None else (),
        ranks=(member,),
        conditions=conditions,
        price=window.price,
        paused_ms=_NOT_STOPPED,
        notes=tuple(filter(None, notes)),
    )


def fit_updates(asked: CaptureAsked, update_ms: Known[float]) -> tuple[CaptureAsked, str]:
    """Cut the updates to those that fit into the seconds, and say so: only their count ends them."""
    if is_known(update_ms) and update_ms > 0:
        most = math.ceil(asked.seconds * 1e3 / update_ms)
        why = f"as many as {asked.seconds:g} s hold at {update_ms:.1f} ms each"
    elif asked.by_seconds:
        most, why = (
            _UNPACED,
            "kineto ends by their count alone, and no hook knows how many fit into --seconds",
        )
    else:
        return asked, ""
    if most >= asked.steps:
        return asked, ""
    return replace(asked, steps=most), f"{say_count(most, 'update')}: {why}"


def judge_recorded(recorded: Recorded, kept: Kept, wanted: int, works: str) -> CaptureState:
    """Return how it ended: done with all steps, and with kernels where a GPU worked."""
    if recorded.state is not CaptureState.VERIFIED:
        return recorded.state
    if kept.file is None:
        return CaptureState.FAILED
    summary = kept.summary
    whole = isinstance(summary, TraceSummary) and summary.steps == wanted
    return CaptureState.DONE if whole and not (works and kept.file.kernels == 0) else CaptureState.PARTIAL


def _keep(
    window: KinetoWindow, recorded: Recorded, name: str, beside: KnownBeside, member: RankCapture
) -> Kept:
    """Mark the steps in kineto's file, add conditions, pack it and sum it up, all by descriptors."""
    rank = member.rank
    if recorded.state is not CaptureState.VERIFIED:
        return Kept(None, _NOTHING, ())
    clock = time.strftime("%H%M%S")
    part = f"{name_file(name, rank, _UNNUMBERED, clock)}.part"
    folder = window.folder
    with os.fdopen(os.open(part, NEW_FILE, 0o600, dir_fd=folder), "wb") as packed:
        try:
            known = (
                json.dumps({**beside.told, **tell_steps(member)}),
                encode(beside.ended) if beside.ended else "",
            )
            marked = mark_steps(recorded.source, packed.fileno(), window.asked.steps, known)
        except BaseException:  # Ctrl-C: no half of a file may stay
            os.unlink(part, dir_fd=folder)
            raise
        if isinstance(marked, Missing):
            os.unlink(part, dir_fd=folder)
            return Kept(None, _NOTHING, (f"no step could be marked in it: {marked.reason}",))
        notes = [] if marked.marks else [f"no step could be marked in it: {marked.why}"]
        file = name_file(name, rank, marked.first, clock)
        path = os.path.join(window.asked.folder, file)
        summary = read_summary(path, packed.fileno(), rank)
        size = os.fstat(packed.fileno()).st_size
        hand_over(packed.fileno(), window.owner)
        os.rename(part, file, src_dir_fd=folder, dst_dir_fd=folder)
    if isinstance(summary, Missing):
        notes.append(f"{file}: {summary.reason}")
    told = count_trace(summary)
    captured = CapturedFile(path, path, rank, marked.first, *told, bytes=size, kind=CaptureKind.TRACE)
    return Kept(captured, summary, tuple(notes))


def name_file(name: str, rank: Applicable[int], first: Known[int], clock: str) -> str:
    """Name a file of kineto by rank, step and time, as far as they are known."""
    who = f"-rank{rank}" if is_known(rank) else ""
    which = f"-step{first}" if is_known(first) else ""
    return f"{name}{who}{which}-kineto-{clock}.pt.trace.json.gz"


def list_ends(records: Sequence[Sequence[int]]) -> CountedSteps:
    """Return when steps had ended, by the hook's records, on the clock of a trace."""
    ahead = time.time_ns() - time.monotonic_ns()
    ended = [one for one in records if one[wire.REC_ENDED_NS] == one[wire.REC_TIME_NS]]
    ends_ns = tuple(one[wire.REC_ENDED_NS] + ahead for one in ended)
    at_update = bool(ended) and ended[-1][wire.REC_RULE] == wire.RULE_UPDATE
    return CountedSteps(ends_ns, tuple(one[wire.REC_STEPS] for one in ended), at_update)


def mark_steps(source: int, target: int, most: int, beside: tuple[str, str]) -> Known[MarkedSteps]:
    """Have a niced child mark and pack an open trace into an open file; Missing says what went wrong."""
    try:
        text, code = run_child("tpmon.trace.child", str(most), *beside, shared=(source, target))
    except OSError as error:
        return Missing(error.strerror or str(error))
    try:
        return decode(MarkedSteps, text)
    except CodecError:
        return Missing(text.strip() or f"ended with {code}")


def _find_bus(process: Identity) -> Bus | None:
    try:
        return open_bus(process)
    except TpmonError:
        return None
