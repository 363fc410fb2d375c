"""Record every program of tests/programs with ``tpmon record``, and note in each file what is true of it.

Each is recorded for 60 to 120 s from the moment that tpmon would attach, on an idle machine and beside a burning
core. Several at once are each other's neighbours, for which nothing else burns then: of those that only hang
``--abreast``, of those that compute ``--cores``.
A file is there as a whole, or not at all, so that it goes on where it was ended. All of them are packed into one
archive in the end. Run: ``make recordings``; ``make rejudge RECORDINGS_IN=DIR`` judges them again. ``--programs DIR``
records those of a folder outside of the project instead, whose truth is in reports.py; ``--relabel`` writes a truth
that has changed since into what ``--out`` holds.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.budget.measure import say_neighbours
from tests.corpus.own_reports import BY_NAME, list_own
from tests.corpus.programs import Recorded, list_programs
from tests.corpus.reports import list_reports, list_unknown
from tests.corpus.truth import Truth, assess, parse_truth, read_spans
from tests.hangs.programs import START_S
from tests.programs.causes.running import ROOT, TPMON, CannotBeMadeError, Running, burner
from tests.programs.causes.table import Label
from tests.verdicts.results import share
from tpmon.model.known import is_known
from tpmon.model.verdict import Kind
from tpmon.record.recording import Recording
from tpmon.record.schema import SUFFIX

PATIENCE_S = 90.0
"""How long tpmon may take beyond what it records: its start and end on a busy machine."""
DELAY, OTHERS_CORES = 0.25, 0.5
"""From where on it is right to say that other processes take the CPUs: what the job waits for them, what they use."""
OTHER_TENANTS = Label(Kind.OVERSUBSCRIBED, "other-tenants")
SKIPPED = ".skipped"
"""Of a file that says why a program cannot be made here."""
HEAD = ("group | idle | busy", "---|---|---")
WRONG_HEAD = ("not right | machine | label | recorded | other CPUs used", "---|---|---|---|---")


@dataclass(frozen=True)
class Run:
    program: Recorded
    seed: int
    busy: bool

    @property
    def machine(self) -> str:
        return "busy" if self.busy else "idle"

    @property
    def stem(self) -> str:
        return f"{self.program.name.replace('/', '-')}.{self.machine}.{self.seed}"


@dataclass(frozen=True, slots=True)
class Summary:
    """Hold what one recording shows.

    ``others_cores`` are CPUs that other processes used meanwhile; ``delay`` is the share of its time that the job
    waited for a CPU.
    """

    program: str
    machine: str
    seed: str
    label: str
    said: str
    right: bool
    onset_s: float
    others_cores: float
    delay: float
    frames: int
    size: int

    def write_row(self) -> str:
        return " | ".join((self.program, self.machine, self.label, self.said, f"{self.others_cores:.1f}"))


def read_notes(path: Path) -> dict[str, str]:
    """Read what a recording says of itself beside its subject: label, program, machine, seed."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
        return dict(base.execute("SELECT key, value FROM meta WHERE key != 'subject'"))


def write_notes(path: Path, notes: dict[str, str]) -> None:
    with closing(sqlite3.connect(path)) as base, base:
        base.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", notes.items())


def summarize(path: Path) -> Summary:
    notes = read_notes(path)
    with Recording(str(path)) as recording:
        outcome = assess(parse_truth(recording.label), read_spans(recording.verdicts()))
        frames = list(recording.frames(recording.first.n, recording.last.n))
    used = [(one.cpu.host_used_cores, one.cpu.used_cores) for one in frames]
    delays = [one.cpu.run_delay_ratio for one in frames if is_known(one.cpu.run_delay_ratio)]
    loads = [max(0.0, host - job) for host, job in used if is_known(host) and is_known(job)]
    said = f"{outcome.last}{''.join(f'; at times {one}' for one in outcome.forbidden)}"
    return Summary(
        notes["program"],
        notes["machine"],
        notes["seed"],
        notes["label"].replace("|", "or"),
        said,
        outcome.right,
        outcome.onset_s,
        statistics.fmean(loads) if loads else 0.0,
        statistics.fmean(delays) if delays else 0.0,
        len(frames),
        path.stat().st_size,
    )


def write_truth(path: Path, program: str, truth: Truth) -> str:
    """Return the label of a recording; of a report that computes it says whether others took its CPUs."""
    if program in BY_NAME and BY_NAME[program].computes:
        found = summarize(path)
        if found.delay >= DELAY and found.others_cores >= OTHERS_CORES:
            truth = Truth((*truth.labels, OTHER_TENANTS))
    return str(truth)


def record(run: Run, folder: Path, *, burns: bool) -> str:
    """Record one program, beside a burning core or not, and say in a line how that went.

    Raises:
        CannotBeMadeError: when the program says so.
        RuntimeError: when it does not start, or tpmon does not record it.
    """
    program, path = run.program, folder / f"{run.stem}{SUFFIX}"
    part = path.with_suffix(f".part{os.getpid()}")
    command = ["--for", f"{program.seconds:g}", "--out", str(part), *program.flags]
    with program.start(run.seed) as pid, burner(burns):
        done = subprocess.run(
            [*TPMON, "record", str(pid), *command],
            capture_output=True,
            text=True,
            timeout=program.seconds + PATIENCE_S,
            cwd=ROOT,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"tpmon record ended with {done.returncode}: {done.stderr}")
    notes = {"label": str(program.truth), "program": program.name, "machine": run.machine, "seed": str(run.seed)}
    write_notes(part, notes)
    write_notes(part, {"label": write_truth(part, program.name, program.truth)})
    part.rename(path)
    one = summarize(path)
    word = f"right after {one.onset_s:.0f} s" if one.right else f"WRONG, it is {one.label}"
    return f"{word}: {one.said} ({one.frames} Frames, {one.size >> 10} KB, others used {one.others_cores:.1f} CPUs)"


def plan(programs: Iterable[Recorded], options: argparse.Namespace) -> list[Run]:
    """Return what the folder has no recording of, nor the reason why there cannot be one."""
    machines = {"idle": (False,), "busy": (True,), "both": (False, True)}[options.machine]
    runs = [Run(program, options.seed, busy) for busy in machines for program in programs]
    return [run for run in runs if not any((options.out / f"{run.stem}{end}").exists() for end in (SUFFIX, SKIPPED))]


def run_all(runs: Sequence[Run], options: argparse.Namespace) -> int:
    """Record those that hang abreast, then those that compute; return how many failed."""
    deadline = time.monotonic() + options.limit_s
    failed = 0

    def run_one(run: Run, *, alone: bool) -> None:
        nonlocal failed
        if time.monotonic() + run.program.seconds > deadline:
            return
        head = f"{run.program.name} {run.machine} seed {run.seed}"
        try:
            print(f"{head}: {record(run, options.out, burns=run.busy and alone)}", flush=True)
        except CannotBeMadeError as error:
            (options.out / f"{run.stem}{SKIPPED}").write_text(f"{error}\n")
            print(f"{head}: not made here: {error}", flush=True)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            failed += 1
            print(f"{head}: NOT RECORDED: {error}", flush=True)

    for computes, jobs in ((False, options.abreast), (True, options.cores)):
        mine = [run for run in runs if run.program.computes is computes]
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(partial(run_one, alone=jobs == 1), mine))
    return failed


def choose(programs: Sequence[Recorded], only: str) -> list[Recorded]:
    """Return the programs whose names or groups are given, separated by commas; all without any.

    Raises:
        SystemExit: for what names none.
    """
    words = only.split(",") if only else []
    chosen = [one for one in programs if not words or {one.name, *one.name.split("/")} & set(words)]
    if not chosen:
        sys.exit(f"recordings: no such program: {only}; there are {', '.join(one.name for one in programs)}")
    return chosen


def list_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def pack(folder: Path) -> Path:
    """Pack all recordings of a folder into one archive; they are compressed already."""
    archive = folder.with_name(f"{folder.name}.tar")
    with tarfile.open(archive, "w") as file:
        for path in list_files(folder):
            file.add(path, arcname=f"{folder.name}/{path.name}")
    return archive


def relabel(folder: Path, programs: Iterable[Recorded]) -> None:
    """Write the truth of today into recordings that carry another one."""
    truths = {one.name: one.truth for one in programs}
    truths.update((name, row.truth) for name, row in BY_NAME.items())
    for path in list_files(folder):
        notes = read_notes(path)
        truth = truths.get(notes["program"], parse_truth(notes["label"]))
        label = write_truth(path, notes["program"], truth)
        if label != notes["label"]:
            write_notes(path, {"label": label})
            print(f"{path.name}: {notes['label']} -> {label}")


def write_groups(found: Iterable[Summary]) -> list[str]:
    """Return a line for each group of programs: right of all recordings, idle and busy."""
    groups: dict[str, dict[str, list[Summary]]] = {}
    for one in found:
        group = groups.setdefault(one.program.partition("/")[0], {"idle": [], "busy": []})
        group[one.machine].append(one)
    return [*HEAD, *(f"{name} | {share(each['idle'])} | {share(each['busy'])}" for name, each in groups.items())]


def print_table(folder: Path) -> None:
    found = [summarize(path) for path in list_files(folder)]
    wrong = [one.write_row() for one in found if not one.right]
    print("\n".join(["", *write_groups(found), *(("", *WRONG_HEAD, *wrong) if wrong else ())]))
    right, frames, size = sum(one.right for one in found), sum(one.frames for one in found), sum(x.size for x in found)
    print(f"\n{right} of {len(found)} right, {frames} Frames, {size / 1e6:.1f} MB")
    for path in sorted(folder.glob(f"*{SKIPPED}")):
        print(f"not made here: {path.stem}: {path.read_text().strip()}")


def main() -> int:
    """Record what is not there yet, print the table and pack the archive; exit 1 when something was not recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="names of programs, or causes, hangs, alive, frameworks, own; by commas"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--machine", choices=("idle", "busy", "both"), default="both")
    parser.add_argument("--abreast", type=int, default=1, help="programs that only hang, recorded at once")
    parser.add_argument("--cores", type=int, default=1, help="programs that compute, recorded at once")
    parser.add_argument("--limit-s", type=float, default=1e9, help="begin nothing that would end later than this")
    parser.add_argument("--out", type=Path, default=Path(".venv/recordings"))
    parser.add_argument("--programs", type=Path, help="a folder with programs of reports.py")
    parser.add_argument("--table", action="store_true", help="only print what the folder holds")
    parser.add_argument("--relabel", action="store_true", help="only write the truth of today into what it holds")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every program ends and is swept up
    Running.start_s = START_S
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    programs = list_reports(options.programs) if options.programs else [*list_programs(), *list_own()]
    if options.programs and list_unknown(options.programs):
        print(f"left out, their truth is not in reports.py: {', '.join(list_unknown(options.programs))}")
    if options.relabel:
        relabel(options.out, programs)
    elif not options.table:
        print(say_neighbours(), flush=True)
        failed = run_all(plan(choose(programs, options.only), options), options)
        print(f"packed into {pack(options.out)}", flush=True)
    print_table(options.out)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
