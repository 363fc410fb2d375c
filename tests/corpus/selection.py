"""Choose recordings for tests/recordings: one of each label and verdict, cut to the Frames that matter, with no name of
the machine in them.

Run: ``python -m tests.corpus.selection FOLDER``, over what ``make recordings`` wrote. ``--all`` takes each recording,
right or wrong; those that are wrong, or made after a report, as a whole, since what is right may come late. ``--restate``
writes what this tpmon says into those of tests/recordings instead, once ``make rejudge`` has shown that it is meant.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tests.corpus.matrix import read_notes, write_notes
from tests.corpus.rejudge import COMMITTED, Again, judge_again, list_recordings
from tests.programs.causes.running import ROOT
from tpmon import __version__
from tpmon.judge.judge import judge
from tpmon.model.codec import decode, encode_exact
from tpmon.model.frame import Frame, Window
from tpmon.model.known import is_known
from tpmon.model.results.recording import Subject
from tpmon.record import line
from tpmon.record.recording import Recording
from tpmon.record.rejudge import begin_standing
from tpmon.record.step import JudgedFrame
from tpmon.record.writer import copy_recording

Coded = TypeVar("Coded", Frame, Subject)

STANDS_S = 10.0
"""How long the right verdict has stood, with its last confidence, when the rest is cut off."""
HEALTHY_S = 60.0
MOST_BYTES = 200_000
MOST_BYTES_IN_ALL = 6_000_000
PAGE_BYTES = 1024
"""Most tables of a short recording have a row or two."""
LEVEL = 19
"""Of zstd: they are written once, and carried about for years."""
NOBODY = "00000000-0000-0000-0000-000000000000"
HOME = "/home/user"


def list_places(programs: Path | None) -> dict[str, str]:
    """List paths of this machine, longest first, and what stands for each."""
    home = os.path.expanduser("~")
    places = {str(ROOT): f"{HOME}/tpmon", str(ROOT.parent): HOME, home: HOME, **read_group()}
    if programs is not None:
        places[str(programs.resolve())] = f"{HOME}/programs"
    return dict(sorted(places.items(), key=lambda pair: -len(pair[0])))


def read_group() -> dict[str, str]:
    """Return the control groups that this process is in, which may name whoever runs the machine."""
    paths = {line.split(":", 2)[2].strip() for line in Path("/proc/self/cgroup").read_text().splitlines()}
    return {f"/{path.split('/')[1]}": "/job" for path in paths if path.strip("/")}


class Disguise:
    """Put other names for host, user and paths of this machine into what a recording holds."""

    def __init__(self, subject: Subject, programs: Path | None = None) -> None:
        self._words = {subject.host: "node1", subject.user: "user", subject.boot: NOBODY}
        self._places = list_places(programs)

    def hide(self, kind: type[Coded], value: Coded) -> Coded:
        """Return the value with them, the very same where nothing changed hands."""
        return decode(kind, json.dumps(self._change(json.loads(encode_exact(value)))))

    def _change(self, value: object) -> object:
        if isinstance(value, dict):
            return {key: self._change(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self._change(one) for one in value]
        if not isinstance(value, str):
            return value
        value = self._words.get(value, value)
        for place, other in self._places.items():
            value = re.sub(rf"(?<![\w./-]){re.escape(place)}(?![\w.-])", other, value)  # a whole path, not a part
        return value


def read_steps(recording: Recording, disguise: Callable[[Frame], Frame], *, restate: bool) -> list[JudgedFrame]:
    """Read all Frames, as they were judged or as they are now, with what the judge remembers before each."""
    window, standing = Window(), None
    steps = []
    for one in recording.recorded():
        read = disguise(one.read)
        window.append(read)
        again = judge(tuple(window), standing or begin_standing(recording.subject))
        judged = read if one.judged is one.read else again.frame if restate else disguise(one.judged)
        steps.append(JudgedFrame(read, judged, standing))
        standing = again.standing
    return steps


def count_needed(steps: Sequence[JudgedFrame], again: Again) -> int:
    """Return how many Frames, from the first on, matter: all, where more may become right."""
    if not (again.truth.labels and again.now.right) or again.advice is not None:
        return len(steps)
    begun_ns = steps[0].read.taken_ns
    seconds = [(step.read.taken_ns - begun_ns) / 1e9 for step in steps]
    if again.truth.is_healthy:
        return sum(at_s <= HEALTHY_S for at_s in seconds)
    last = steps[-1].judged.verdict
    since_s = seconds[-1]
    for step, at_s in zip(reversed(steps), reversed(seconds), strict=True):
        finding = step.judged.verdict
        if not (is_known(finding) and is_known(last)):
            break
        if (finding.kind, finding.cause, finding.confidence) != (last.kind, last.cause, last.confidence):
            break
        since_s = at_s
    return sum(at_s <= since_s + STANDS_S for at_s in seconds)


def thin(path: Path, out: Path, again: Again, *, restate: bool = False, programs: Path | None = None) -> None:
    """Write a recording anew, without what does not matter and without names of this machine."""
    with Recording(str(path)) as recording:
        subject = recording.subject
        disguise = Disguise(subject, programs)
        steps = read_steps(recording, lambda frame: disguise.hide(Frame, frame), restate=restate)
    hidden = disguise.hide(Subject, subject)
    hidden = replace(hidden, version=__version__ if restate else hidden.version)
    part = out.with_suffix(".part")
    part.unlink(missing_ok=True)
    line.LEVEL = LEVEL
    copy_recording(str(part), hidden, tuple(steps[: count_needed(steps, again)]))
    write_notes(part, read_notes(path))
    with closing(sqlite3.connect(part)) as base:
        base.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        base.execute("VACUUM")
    part.rename(out)


def choose(found: Sequence[Again]) -> list[Again]:
    """Choose one of each label and last verdict among those that are right, idle and busy in turn, small ones first."""
    groups: dict[tuple[str, str], list[Again]] = {}
    for one in found:
        if one.recorded.right and not one.differs:
            groups.setdefault((one.truth.kind, str(one.recorded.last)), []).append(one)
    chosen = []
    for place, key in enumerate(sorted(groups)):
        wanted = ("idle", "busy")[place % 2]
        chosen.append(min(groups[key], key=lambda one: (f".{wanted}." not in one.path.name, one.path.stat().st_size)))
    return chosen


def restate_all(folder: Path) -> None:
    for path in list_recordings([folder]):
        again = judge_again(path)
        if again.differs:
            thin(path, path, again, restate=True)
            print(f"{path.name}: {again.differs} of {again.frames} Frames restated")


def main() -> int:
    """Choose, write and check; exit 1 where a recording that was written is not judged as the one that it was made of."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=COMMITTED)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--programs", type=Path, help="the folder that make recordings was given")
    parser.add_argument("--restate", action="store_true")
    options = parser.parse_args()
    if options.restate or options.folder is None:
        restate_all(options.out)
        return 0
    options.out.mkdir(exist_ok=True)
    failed = 0
    found = [judge_again(path) for path in list_recordings([options.folder])]
    for one in found if options.all else choose(found):
        out = options.out / one.path.name
        thin(one.path, out, one, programs=options.programs)
        after = judge_again(out)
        size = out.stat().st_size
        fine = not after.differs and after.now.right is one.now.right and size <= MOST_BYTES
        failed += not fine
        word = "" if fine else f" NOT FIT: {after.differs} Frames differ, right: {after.now.right}"
        word += " (wrong)" if fine and not after.now.right else ""
        print(f"{out.name}: {after.frames} of {one.frames} Frames, {size >> 10} KB, {after.now.last}{word}", flush=True)
    total = sum(path.stat().st_size for path in list_recordings([options.out]))
    print(f"{len(list_recordings([options.out]))} recordings, {total / 1e6:.1f} MB")
    return int(failed > 0 or total > MOST_BYTES_IN_ALL)


if __name__ == "__main__":
    sys.exit(main())
