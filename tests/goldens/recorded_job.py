"""A real run, recorded by ``tpmon attach --json`` and judged anew: two ranks of the demo wait for their loader.

``tests/goldens/record.py`` made the file: names, hosts and times are others, every figure is as it was read.
"""

from __future__ import annotations

import lzma
from functools import cache
from pathlib import Path

from tests.goldens.playing import Played, replay
from tpmon.model.codec import decode
from tpmon.model.frame import Event, Frame, Pulse, pulse_of

RECORDING = Path(__file__).parent / "recorded_job.jsonl.xz"


@cache
def read_recording() -> tuple[Frame, ...]:
    with lzma.open(RECORDING, "rt", encoding="utf-8") as lines:
        return tuple(decode(Frame, line) for line in lines)


@cache
def _data_bound() -> Played:
    return replay(read_recording())


def data_bound() -> Frame:
    return _data_bound().frame


def data_bound_events() -> tuple[Event, ...]:
    return _data_bound().events


def data_bound_history() -> tuple[Pulse, ...]:
    return tuple(map(pulse_of, read_recording()))
