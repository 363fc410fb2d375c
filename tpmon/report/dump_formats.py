"""Write a Dump in the formats of other tools: collapsed stacks for flame graphs, and speedscope's JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tpmon.model.dump import Dump, StackGroup
from tpmon.model.known import Missing, is_known
from tpmon.model.stacks import StackFrame
from tpmon.model.units import clean_text

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_NAME_CHARS = 400


def _name_frame(frame: StackFrame) -> str:
    return clean_text(f"{frame.function} ({frame.file}:{frame.line})", _NAME_CHARS)


def _frames_of(group: StackGroup) -> list[tuple[str, str, int]]:
    """Return name, file and line of each frame, outermost first; one made up where there is none."""
    frames = group.frames
    if is_known(frames) and frames:
        return [(_name_frame(frame), clean_text(frame.file, _NAME_CHARS), frame.line) for frame in frames]
    name = "[stack not read]" if isinstance(frames, Missing) else f"[native {group.threads[0].name}]"
    return [(clean_text(name, _NAME_CHARS), "", 0)]


def _name_part(group: StackGroup) -> str:
    return f"{group.threads[0].role.value} {group.threads[0].kind.value}"


def write_collapsed(dump: Dump) -> list[str]:
    """Write a line for each group: "part;outermost;...;innermost count", as flame graph tools read it."""
    lines = []
    for group in dump.groups:
        names = [_name_part(group), *(name for name, _, _ in _frames_of(group))]
        # A semicolon divides frames, so none may be left in a name.
        lines.append(f"{';'.join(name.replace(';', ',') for name in names)} {len(group.threads)}")
    return lines


def write_speedscope(dump: Dump) -> str:
    """Write one JSON object for speedscope: a profile for each part of the job, weighted by threads."""
    numbers: dict[tuple[str, str, int], int] = {}
    parts: dict[str, list[StackGroup]] = {}
    for group in dump.groups:
        parts.setdefault(_name_part(group), []).append(group)
    profiles = [_profile(name, groups, numbers) for name, groups in parts.items()]
    frames = [{"name": name, "file": file, "line": line} for name, file, line in numbers]
    document: Mapping[str, object] = {
        "$schema": _SCHEMA,
        "name": clean_text(
            f"{dump.script} on {dump.host}, {dump.taken.isoformat(timespec='seconds')}", _NAME_CHARS
        ),
        "exporter": "tpmon",
        "shared": {"frames": frames},
        "profiles": profiles,
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _profile(
    name: str, groups: Sequence[StackGroup], numbers: dict[tuple[str, str, int], int]
) -> Mapping[str, object]:
    samples = [[numbers.setdefault(frame, len(numbers)) for frame in _frames_of(group)] for group in groups]
    weights = [len(group.threads) for group in groups]
    return {
        "type": "sampled",
        "name": name,
        "unit": "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
