"""Make the recordings that ``tpmon demo`` replays where there is no torch: one of each bottleneck, in tpmon/demo/recordings.

Each is recorded by ``tpmon record`` from a real demo training, from its first step on, and tried again until its last
verdict is the one that the bottleneck is for. What is written has no name of this machine in it, and its lines are
deflated: each Python reads that, also where Zstandard is not installed. Run: ``make demo-recordings``; ``--only NAME``.
``--restate`` judges those that are there again, and writes what this tpmon says of them.
"""

from __future__ import annotations

import argparse
import signal
import sqlite3
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tests.corpus.selection import PAGE_BYTES, Disguise, read_steps
from tests.corpus.truth import parse_truth, read_spans
from tests.programs.causes.running import ROOT, TPMON, Verdict
from tpmon import __version__
from tpmon.commands.demo import BOTTLENECKS, RECORDINGS, Bottleneck, DemoOptions, start_demo
from tpmon.model.frame import Frame
from tpmon.model.results.recording import Subject
from tpmon.record.line import LineReader, unpack_once
from tpmon.record.recording import Recording
from tpmon.record.schema import SUFFIX
from tpmon.record.writer import copy_recording

EXPECTED = {
    "none": "compute-bound (cpu)",
    "slow-transform": "data-bound (cpu-transform) | data-bound (too-few-workers)",
    "no-workers": "data-bound (no-workers)",
    "slow-storage": "data-bound (network-store)",
    "oversubscribed": "oversubscribed (rank-pool)",
    "straggler": "comms-bound (straggler)",
    "python-bound": "python-bound (single-thread)",
    "memory-leak": "memory-pressure (leak)",
    "hang": "hung (missing-rank) | hung (lock)",
}
"""The verdict that each bottleneck is for, on a machine that does nothing else."""
SECONDS = {"hang": 60.0, "memory-leak": 120.0}
USUAL_S = 45.0
FOLDER = Path(RECORDINGS)
HANGS_AFTER_S = 8.0
"""The demo waits for a quarter of its time before it hangs: nobody looks that long at a recording before it does."""
PATIENCE_S = 60.0
TRIES = 4
LEVEL = 9


def record(kind: Bottleneck, path: Path) -> None:
    """Record a demo training from its first step on."""
    seconds = SECONDS.get(kind.name, USUAL_S)
    lasts_s = HANGS_AFTER_S * 4 if kind.name == "hang" else seconds + PATIENCE_S
    demo = start_demo(DemoOptions(bottleneck=kind.name, seconds=lasts_s))
    command = [*TPMON, "record", str(demo.pid), "--for", f"{seconds:g}", "--out", str(path)]
    try:
        subprocess.run(command, check=True, cwd=ROOT, timeout=seconds + PATIENCE_S, stdout=subprocess.DEVNULL)
    finally:
        demo.stop(15)


def deflate(pieces: Iterable[tuple[int, bool, bytes]]) -> Iterator[tuple[bytes, int]]:
    """Pack the pieces of streams anew, each with its number."""
    for n, begins, piece in pieces:
        if begins:
            reader, packer = LineReader(), zlib.compressobj(LEVEL)
        yield packer.compress(reader.unpack(piece)) + packer.flush(zlib.Z_SYNC_FLUSH), n


def deflate_all(path: Path) -> None:
    """Pack all that a recording holds so that each Python can read it."""
    with closing(sqlite3.connect(path)) as base:
        rows = base.execute("SELECT n, key, body FROM frame ORDER BY n").fetchall()
        base.executemany("UPDATE frame SET body = ? WHERE n = ?", deflate(rows))
        for table, key in (("memory", "n"), ("artifact", "id")):
            bodies = base.execute(f"SELECT {key}, body FROM {table} WHERE length(body) > 0").fetchall()
            packed = [(zlib.compress(unpack_once(body), LEVEL), row) for row, body in bodies]
            base.executemany(f"UPDATE {table} SET body = ? WHERE {key} = ?", packed)
        base.commit()
        base.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        base.execute("VACUUM")


def write_packed(path: Path, out: Path, *, restate: bool) -> None:
    """Write a recording as it is packed."""
    with Recording(str(path)) as recording:
        disguise = Disguise(recording.subject)
        subject = replace(disguise.hide(Subject, recording.subject), version=__version__)
        steps = read_steps(recording, lambda frame: disguise.hide(Frame, frame), restate=restate)
    part = out.with_suffix(".part")
    part.unlink(missing_ok=True)
    copy_recording(str(part), subject, steps)
    deflate_all(part)
    part.chmod(0o644)
    part.rename(out)


def read_last(path: Path) -> Verdict:
    """Return the last verdict of a recording."""
    with Recording(str(path)) as recording:
        return read_spans(recording.verdicts())[-1]


def make(kind: Bottleneck) -> bool:
    """Record one bottleneck until its verdict is there, and tell whether it came."""
    out = FOLDER / f"{kind.name}{SUFFIX}"
    for tried in range(1, TRIES + 1):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, out.name)
            record(kind, path)
            last = read_last(path)
            right = parse_truth(EXPECTED[kind.name]).accepts(last.kind, last.cause)
            if right:
                write_packed(path, out, restate=False)
        said = f"{out.stat().st_size >> 10} KB" if right else "not what it is for"
        print(f"{kind.name}, try {tried}: {last}, {said}", flush=True)
        if right:
            return True
    return False


def main() -> int:
    """Make the recordings; exit 1 where a verdict never came."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of bottlenecks, by commas")
    parser.add_argument("--restate", action="store_true", help="judge those that are there again, record none")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that each training ends
    chosen = [one for one in BOTTLENECKS if not options.only or one.name in options.only.split(",")]
    FOLDER.mkdir(exist_ok=True)
    if not options.restate:
        return int(sum(not make(kind) for kind in chosen) > 0)
    for path in filter(Path.exists, (FOLDER / f"{kind.name}{SUFFIX}" for kind in chosen)):
        write_packed(path, path, restate=True)
        print(f"{path.stem}: {read_last(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
