"""Hold real Frames against what a recording of them gives back."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

from tests.judging import follow
from tpmon.model.codec import DECIMALS, decode_fast, encode_exact
from tpmon.model.frame import Frame
from tpmon.model.known import is_known
from tpmon.model.process import ProcessSample


def find_misfits(hint: Any, value: Any, path: str = "") -> Iterator[str]:
    """Name each value below ``value`` that is not of the very type that its field says."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    found = next((kind for kind in kinds if type(value) is (get_origin(kind) or kind)), None)
    if found is None:
        yield f"{path}: {type(value).__name__} {value!r:.60}"
    elif get_origin(found) is tuple:
        for at, item in enumerate(value):
            yield from find_misfits(get_args(found)[0], item, f"{path}[{at}]")
    elif dataclasses.is_dataclass(found):
        hints = get_type_hints(found)
        for field in dataclasses.fields(found):
            yield from find_misfits(hints[field.name], getattr(value, field.name), f"{path}.{field.name}")


def list_unrounded(process: ProcessSample) -> list[str]:
    """Name the figures of a process with more digits than the JSON shows."""
    figures = {name: getattr(process, name) for name in process.__slots__}
    figures |= {group.kind.value: group.runnable for group in process.thread_groups}
    return [name for name, one in figures.items() if isinstance(one, float) and one != round(one, DECIMALS)]


def assert_exact(frames: Sequence[Frame]) -> None:
    """Check that Frames that no judge saw are read as they were, and that a judge says the same of both."""
    for frame in frames:
        assert list(find_misfits(Frame, frame)) == []
        assert [name for process in frame.processes for name in list_unrounded(process)] == []
        assert not is_known(frame.verdict)
    read = [decode_fast(Frame, encode_exact(frame)) for frame in frames]
    assert read == list(frames)
    live, again = ([one.frame for one in follow(those)] for those in (frames, read))
    assert live == again
    assert [decode_fast(Frame, encode_exact(frame)) for frame in live] == live
    assert [misfit for frame in live for misfit in find_misfits(Frame, frame)] == []
