"""Say what a memory snapshot holds, in the words that the screen and the text reports share."""

from __future__ import annotations

import re

from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.results.snapshot import MemoryMoment, OutOfMemory, Pieces, SnapshotLost
from tpmon.model.results.timeline import CodePlace
from tpmon.model.units import count_of, format_bytes
from tpmon.view.trace_words import size

NOTHING_HELD = "the allocator held nothing, and no history was recorded"
_FRAME = re.compile(r"^(.*):(\d+) (.*)$")


def say_lost(lost: SnapshotLost) -> str:
    """Say what could not be read; "" for nothing."""
    parts = [
        count_of(count, noun)
        for count, noun in ((lost.segments, "segment"), (lost.blocks, "block"), (lost.events, "event"))
        if count
    ]
    return f"could not be read: {', '.join(parts)}" if parts else ""


def say_pieces(pieces: Pieces) -> str:
    """Say how much is reserved, allocated and waiting."""
    return (
        f"{format_bytes(pieces.reserved_bytes)} reserved in {count_of(pieces.segments, 'segment')}, "
        f"{format_bytes(pieces.allocated_bytes)} allocated ({size(pieces.rounding_bytes)} of it by "
        f"rounding up), {format_bytes(pieces.pending_bytes)} freed and waiting for a stream"
    )


def say_free(pieces: Pieces) -> str:
    """Say how much is free, and how it is cut up."""
    kept = f"{format_bytes(pieces.private_bytes)} are free in private pools, for CUDA graphs alone"
    if not pieces.free_bytes:
        return kept if pieces.private_bytes else "nothing of what is reserved is free"
    cut_up = known_or(pieces.fragmentation_pct, 0.0)
    return (
        f"{format_bytes(pieces.free_bytes)} in {count_of(pieces.free_blocks, 'block')}, the largest "
        f"{format_bytes(pieces.largest_free_bytes)}: {cut_up:.0f} % of it is out of reach for one request; "
        f"{format_bytes(pieces.stuck_bytes)} are stuck beside blocks in use, "
        f"{format_bytes(pieces.releasable_bytes)} in empty segments that empty_cache() gives back"
        + (f"; {kept}" if pieces.private_bytes else "")
    )


def say_oom(one: OutOfMemory) -> str:
    """Say what was asked for in vain, and where."""
    when = f"at {one.at_ms:,.3f} ms " if is_known(one.at_ms) else ""
    free = (
        f", the device had {format_bytes(one.device_free_bytes)} left"
        if is_known(one.device_free_bytes)
        else ""
    )
    where = f", asked for in {one.line}" if is_known(one.line) else ""
    return f"{when}{format_bytes(one.asked_bytes)} were asked for{free}{where}"


def say_peak(peak: MemoryMoment) -> str:
    """Say how much the peak was, and when."""
    when = f"at {peak.at_ms:,.3f} ms of the history" if is_known(peak.at_ms) else f"at event {peak.at_event}"
    return f"{format_bytes(peak.requested_bytes)} requested {when}, {format_bytes(peak.end_bytes)} at the end"


def say_older(peak: MemoryMoment) -> str:
    """Say what of the peak has no stack; "" for nothing."""
    if not peak.older_bytes:
        return ""
    older = format_bytes(peak.older_bytes)
    return f"{older} more were allocated before the history begins, and freed after the peak"


def say_line(line: Known[str]) -> str:
    """Write the line that a stack is known by, or why there is none."""
    return line if is_known(line) else f"({line.reason})"


def find_frame(frame: str) -> Known[CodePlace]:
    """Return the line of code that a frame of a stack names."""
    found = _FRAME.match(frame)
    if found is None:
        return Missing(f"no file is told of {frame}")
    return CodePlace(found[3], found[1], int(found[2]))
