"""Write the result of a capture as text: state, steps before and after, summary, files."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from tpmon.model.known import Known, is_known, known_or, map_known
from tpmon.model.results.capture import CaptureResult, CaptureState, Conditions, RankCapture
from tpmon.model.results.trace import TraceSummary

_TOP = 10
_NAME = 40
_MOST_INPUTS = 4


def write_capture(result: CaptureResult, summaries: Sequence[TraceSummary], host: str) -> list[str]:
    """Write a capture for a person: its files, their contents, how to fetch them."""
    lines = [f"{result.state.value}: {result.backend}"]
    lines += [_write_rank(rank) for rank in result.ranks]
    lines += [f"  {note}" for note in result.notes]
    if is_known(result.conditions):
        lines.append(f"  {_write_conditions(result.conditions)}")
    for summary in summaries:
        lines += ["", *_write_summary(summary)]
    if result.files:
        lines.append("")
    for file in result.files:
        counted = f", {file.events:,} events" if is_known(file.events) else ""
        lines.append(f"{file.path}  {file.bytes / 2**20:.1f} MiB{counted}")
        if file.host_path != file.path:
            lines.append(f"  from this shell: {file.host_path}")
    if result.files:
        paths = " ".join(shlex.quote(file.host_path) for file in result.files)
        lines.append(f"read:  tpmon trace {paths}")
        names = " ".join(shlex.quote(f"{host}:{file.host_path}") for file in result.files)
        lines.append(f"fetch: scp {names} .")
        lines.append("open:  https://ui.perfetto.dev or chrome://tracing; a .pickle: pytorch.org/memory_viz")
    return lines


def write_capture_line(result: CaptureResult, summaries: Sequence[TraceSummary]) -> str:
    """Write the result of a capture in one line; of several ranks the first one's figures and the folder."""
    if not result.files:
        recorded = result.state in (CaptureState.DONE, CaptureState.PARTIAL)
        nothing = result.backend if recorded else "no file"
        return f"capture {result.state.value}: {'; '.join(result.notes) or nothing}"
    words = [_write_steps(one) for one in summaries[:1]]
    words += [f"most in {one.operators[0].name}" for one in summaries[:1] if one.operators]
    if len(result.files) == 1:
        words.append(result.files[0].host_path)
    else:
        words.append(f"{len(result.files)} files in {find_place(result)}")
    return f"capture {result.state.value}: " + ", ".join(words)


def find_place(result: CaptureResult) -> str:
    """Return the file, or the folder of several files, as this shell reaches it; "" for none."""
    paths = [file.host_path for file in result.files]
    return os.path.dirname(paths[0]) if len(paths) > 1 else "".join(paths)


def _write_rank(rank: RankCapture) -> str:
    who = f"rank {rank.rank}" if is_known(rank.rank) else f"process {rank.pid}"
    if rank.state is not CaptureState.VERIFIED:
        why = f": {rank.reason}" if rank.reason else ""
        return f"  {who}: {rank.state.value}{why}"
    stood = "the loop went on meanwhile"
    if is_known(rank.paused_ms):
        stood = f"the loop paused for {rank.paused_ms:.0f} ms"
    if not rank.steps:
        return f"  {who}: a window by time; {stood}"
    window = f"{rank.steps} updates"
    if is_known(rank.first_step):
        window = f"steps {rank.first_step}-{rank.first_step + rank.steps - 1}"
    before, during, after = map(_ms, (rank.step_before_ms, rank.step_during_ms, rank.step_after_ms))
    times = f"before {before}, during {during}, after {after}"
    return f"  {who}: {window}; step {times}; {stood}"


def _write_conditions(told: Conditions) -> str:
    """Write the known conditions in one line; the JSON has the unknown ones."""
    parts = [told.model, told.mode] if is_known(told.model) else [told.mode]
    words = [part for part in parts if is_known(part)]
    if is_known(told.inputs):
        words.append("batch " + ", ".join(told.inputs[:_MOST_INPUTS]))
    if is_known(told.dtype) and told.dtype:
        words.append(told.dtype.removeprefix("torch."))
    if is_known(told.autocast) and told.autocast and is_known(told.autocast_dtype):
        words.append(f"autocast {told.autocast_dtype}".rstrip())
    if is_known(told.world_size) and told.world_size > 1:
        words.append(f"{told.world_size} ranks")
    if is_known(told.clocks):
        for card in told.clocks:
            most = f" of {card.sm_max_mhz:.0f}" if is_known(card.sm_max_mhz) else ""
            clock = f"{card.sm_mhz:.0f}{most} MHz" if is_known(card.sm_mhz) else "unknown clocks"
            words.append(f"{card.name} at {clock}")
    elif is_known(told.gpu) and told.gpu:
        words.append(told.gpu)
    return "of: " + ", ".join(words)


def _write_summary(summary: TraceSummary) -> list[str]:
    who = f"rank {summary.rank}: " if is_known(summary.rank) else ""
    lines = [f"{who}{_write_steps(summary)}, {summary.events:,} events"]
    parts = _list_parts(summary)
    whole = sum(us for _, us in parts) or 1.0
    lines.append("  " + "  ".join(f"{name} {us / whole * 100:.0f} %" for name, us in parts))
    if summary.operators:
        lines.append(f"  {'operator':<{_NAME}} {'calls':>8} {'self ms':>10} {'device ms':>10}")
    for one in summary.operators[:_TOP]:
        device = f"{one.device_self_us / 1e3:.2f}" if is_known(one.device_self_us) else "-"
        host = f"{one.name[:_NAME]:<{_NAME}} {one.calls:>8,} {one.host_self_us / 1e3:>10.2f}"
        lines.append(f"  {host} {device:>10}")
    return lines


def _list_parts(summary: TraceSummary) -> list[tuple[str, float]]:
    """List the parts of a step's time in us; of the whole window where there are no steps."""
    split = summary.split_us
    parts = {
        "kernel": split.kernel,
        "copy": map_known(lambda us: us + known_or(split.memset, 0.0), split.memcpy),
        "communication": split.communication,
        "runtime": split.runtime,
        "data": split.data_loader,
        "cpu": split.cpu,
        "other": split.other,
    }
    return [(name, us) for name, us in parts.items() if is_known(us) and us > 0]


def _write_steps(summary: TraceSummary) -> str:
    left = f", {summary.left_out_us / 1e3:,.1f} ms left out" if summary.left_out_us else ""
    if summary.repeats:
        return f"no step is marked; {summary.repeats} repeats of {_ms(summary.step_ms)}{left}"
    if not summary.steps:
        return f"a window of {sum(us for _, us in _list_parts(summary)) / 1e3:.2f} ms{left}"
    steps = f"{summary.steps} step{'s' if summary.steps > 1 else ''}"
    if summary.judged_steps < summary.steps:
        steps += f", the usual {summary.judged_steps if summary.judged_steps > 1 else 'one'}"
    return f"{steps} of {_ms(summary.step_ms)}{left}"


def _ms(value: Known[float]) -> str:
    return f"{value:.2f} ms" if is_known(value) else "not known"
