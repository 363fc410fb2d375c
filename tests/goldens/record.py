"""Turn what ``tpmon attach PID --json`` printed into the recording of the goldens, under other names and times.

Run as ``python -m tests.goldens.record FRAMES.jsonl --last 75 --name /tmp/job=/home/usr --name myhost=node-07``.
Nothing that the judge adds is kept: the goldens judge these Frames anew. Read the result before committing it.
"""

from __future__ import annotations

import argparse
import lzma
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from tests.frames import NOW, NOW_NS
from tests.goldens.judged_jobs import RECORDING
from tpmon.model.codec import decode, encode
from tpmon.model.frame import EventKind, Frame
from tpmon.model.known import Missing

MOMENT = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*[+-]\d\d:\d\d")
CLOCK = re.compile(r'("(?:taken|ended)_ns":)(\d+)')


def leave_out_verdict(line: str) -> Frame:
    """Read a Frame as it was before it was judged."""
    frame = decode(Frame, line)
    events = tuple(one for one in frame.events if one.kind is not EventKind.VERDICT)
    return replace(frame, verdict=Missing("not judged"), notes=(), events=events)


def move(lines: Iterable[str], names: dict[str, str]) -> str:
    """Give the Frames other names, and times that end at the moment of the goldens."""
    frames = [leave_out_verdict(line) for line in lines]
    later, later_ns = NOW - frames[-1].taken, NOW_NS - frames[-1].taken_ns
    text = "".join(encode(frame) + "\n" for frame in frames)
    text = MOMENT.sub(lambda found: (datetime.fromisoformat(found[0]) + later).isoformat(), text)
    text = CLOCK.sub(lambda found: f"{found[1]}{int(found[2]) + later_ns}", text)
    for name, other in names.items():
        text = text.replace(name, other)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frames", type=Path)
    parser.add_argument("--last", type=int, required=True, help="end with this Frame")
    parser.add_argument("--name", action="append", default=[], metavar="NAME=OTHER")
    options = parser.parse_args()
    lines = options.frames.read_text(encoding="utf-8").splitlines()[: options.last]
    moved = move(lines, dict(name.split("=", 1) for name in options.name))
    RECORDING.write_bytes(lzma.compress(moved.encode()))


if __name__ == "__main__":
    main()
