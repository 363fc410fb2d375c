"""The command ``record``: whole Frames of a job in one file, also in the background."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tpmon.commands.command import (
    EXIT_CODES,
    PROMISE,
    Subcommand,
    Wanted,
    WatchOptions,
    describe_subject,
    find_job,
    flag,
    open_session,
    pid_argument,
    setting,
)
from tpmon.config import make_state_folder, state_folder
from tpmon.errors import ExitCode, UsageError, exclude
from tpmon.model.frozen import dataclass
from tpmon.model.units import count_of, format_bytes, format_moment, format_seconds
from tpmon.own_command import call_python
from tpmon.record import require_sqlite
from tpmon.report.text import Output, complain
from tpmon.settings import parse_duration

if TYPE_CHECKING:
    from tpmon.model.results.doctor import Update
    from tpmon.model.results.recording import Subject
    from tpmon.probe.job.job import Job
    from tpmon.record.recorder import FrameRecorder, RecorderState
    from tpmon.record.shelf import Shelved
    from tpmon.record.writer import RecordingBounds

FINISH_S = 5.0
"""How long a recorder may take to write what waits, once it is to end."""
START_S = 20.0
"""A recorder in the background has its first Frame in less."""
TOLD_AFTER_S = 60.0
LEAST_BYTES = 1 << 20
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([KMGT]?)(?:i?B)?\Z", re.IGNORECASE)
_UNSAFE = re.compile(r"[^\w.-]+")
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class RecordOptions(WatchOptions):
    """Hold what ``tpmon record`` takes."""

    pid: Wanted = pid_argument()
    job: bool = setting("job")
    out: str = flag(
        "--out", "the file (default: one in $XDG_STATE_HOME/tpmon); one of the same job goes on", "FILE", "",
        is_file=True, takes="a file",
    )  # fmt: skip
    for_: str = flag("--for", "end after so long: 90, 5m, 8h (default: with the job)", "TIME", "")
    max_size: str = flag("--max-size", "thin what is old beyond this size (default: 256M)", "SIZE", "256M")
    every: str = flag(
        "--every", "keep a whole Frame so often alone; figures and verdicts of each", "TIME", ""
    )
    no_log_lines: bool = flag("--no-log-lines", "leave out the last lines of the job's log")
    detach: bool = flag("--detach", "go on in the background, also after this terminal is closed")
    list: bool = flag("--list", "list recordings and who writes them, and end")
    stop: str = flag(
        "--stop", "end a recorder, by its PID or file, and end", "PID|FILE", "", takes="a PID or a file",
    )  # fmt: skip
    move: str = flag(
        "--move", "move a finished recording to --out, as one compact file", "FILE", "", is_file=True,
        takes="a file",
    )  # fmt: skip


def parse_size(text: str) -> int:
    """Read "256M" or "1.5G" as bytes; UsageError for anything else."""
    found = _SIZE.match(text.strip())
    size = round(float(found[1]) * _SIZES[found[2].upper()]) if found else 0
    if size < LEAST_BYTES:
        raise UsageError(f"--max-size takes 1M or more, found {text[:40]!r}", "--max-size 256M")
    return size


def parse_span(text: str, name: str, least_s: float) -> float:
    """Read a duration that was typed, 0 for ""; UsageError, naming the flag, for anything else."""
    if not text:
        return 0.0
    seconds = parse_duration(text.strip())
    if seconds is None or not least_s <= seconds < 1e8:
        raise UsageError(f"{name} takes a time of {least_s:g} s or more, found {text[:40]!r}", f"{name} 5m")
    return seconds


def run(options: RecordOptions) -> int:
    """Record a job, or list, end or move recordings."""
    require_sqlite()
    output = Output(1, options.ascii)
    if options.list:
        return _list(output)
    if options.stop:
        return _stop(output, options.stop)
    if options.move:
        return _move(output, options.move, options.out)
    bounds = _read_bounds(options)
    for_s = parse_span(options.for_, "--for", 1.0)
    every_s = parse_span(options.every, "--every", options.interval_s)
    job = find_job(options.pid)
    path = options.out or name_recording(job)
    if options.detach:
        return _detach(output, job, options, path)
    subject = describe_subject(job, options, every_s=every_s, log_lines=not options.no_log_lines)
    return _record(output, job, options, open_recorder(path, subject, bounds), for_s)


def _read_bounds(options: RecordOptions) -> RecordingBounds:
    from tpmon.record.writer import RecordingBounds

    return RecordingBounds(most_bytes=parse_size(options.max_size))


def name_recording(job: Job) -> str:
    """Name a new file after script, PID and time in the folder for recordings, which is made.

    Raises:
        UsageError: where no folder can be made.
    """
    script = _UNSAFE.sub("_", os.path.basename(job.script.split()[0] if job.script.split() else "job"))[:60]
    folder = make_state_folder(os.environ, "--out FILE")
    return os.path.join(folder, f"tpmon-{script}-{job.root.pid}-{time.strftime('%Y%m%dT%H%M%S')}.tpmon")


def open_recorder(
    path: str,
    subject: Subject,
    bounds: RecordingBounds | None = None,
    on_stop: Callable[[RecorderState], None] = lambda _state: None,
) -> FrameRecorder:
    """Open a recording to write.

    Raises:
        UsageError: where that cannot be, and for a network file system.
    """
    from tpmon.record.recorder import FrameRecorder
    from tpmon.record.schema import check_local
    from tpmon.record.writer import RecordingBounds

    local = os.path.join("/tmp", os.path.basename(path))  # noqa: S108  # a place to name, nothing is made
    check_local(path, f"--out {local}, then tpmon record --move {local} --out {path}")
    return FrameRecorder(path, subject, bounds or RecordingBounds(), on_stop)


def say_end(state: RecorderState) -> str:
    """Write what became of a recording."""
    lost = f", {count_of(state.lost, 'Frame')} lost to a slow disk" if state.lost else ""
    why = f"; stopped: {state.stopped}" if state.stopped else ""
    return f"recorded {count_of(state.frames, 'Frame')}{lost} in {state.path}{why}"


def _record(output: Output, job: Job, options: RecordOptions, recorder: FrameRecorder, for_s: float) -> int:
    begun_s = time.monotonic()
    told = False
    first_bytes = 0

    def sink(_update: Update) -> None:
        nonlocal told, first_bytes
        first_bytes = first_bytes or recorder.state.size_bytes
        past_s = time.monotonic() - begun_s
        if past_s >= TOLD_AFTER_S and not told:
            told = True
            complain(
                f"tpmon: {format_bytes((recorder.state.size_bytes - first_bytes) * 3600 / past_s)} an hour"
            )
        if recorder.state.stopped or (for_s and past_s >= for_s):
            session.stop()

    complain(f"tpmon: recording {job.root.pid} {job.script} in {recorder.state.path}")
    session = open_session(job, options, sink)
    session.record(recorder)
    try:
        session.run()
    finally:
        state = recorder.finish(FINISH_S)
        complain(f"tpmon: {say_end(state)}")
    if state.stopped:
        return ExitCode.USAGE
    output.write_lines(state.path)
    return ExitCode.OK


def _detach(output: Output, job: Job, options: RecordOptions, path: str) -> int:
    """Start a recorder in a session of its own, and say where it is once it has a Frame."""
    words = ["record", str(options.pid if isinstance(options.pid, int) else job.root.pid), "--out", path]
    for name, value in (
        ("--for", options.for_),
        ("--max-size", options.max_size),
        ("--every", options.every),
    ):
        words += [name, value] if value else []
    words += ["--interval", f"{options.interval_s:g}"]
    words += [] if options.hang_after_s is None else ["--hang-after", f"{options.hang_after_s:g}"]
    switches = {"--no-log-lines": options.no_log_lines, "--no-stacks": options.no_stacks}
    words += [name for name, given in {**switches, "--readonly": options.readonly}.items() if given]
    child = subprocess.Popen(
        call_python("from tpmon.__main__ import main; sys.exit(main())", *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        if child.poll() is not None:
            return _tell_failure(child)
        shelved = _find_writer(path)
        if shelved is not None:
            output.write_lines(
                f"recording {job.root.pid} {job.script} as process {shelved.writer} in {path}",
                f"tpmon record --stop {shelved.writer} ends it; tpmon replay {path} shows it meanwhile",
            )
            return ExitCode.OK
        time.sleep(_LOOK_S)
    raise UsageError(f"the recorder, process {child.pid}, has no Frame after {START_S:g} s", "tpmon doctor")


def _tell_failure(child: subprocess.Popen[bytes]) -> int:
    said = child.communicate()[1].decode("utf-8", "replace").rstrip()
    complain(said or f"tpmon: the recorder ended with status {child.returncode}")
    return child.returncode or ExitCode.OK


def _find_writer(path: str) -> Shelved | None:
    """Return what a file holds once a recorder writes it and it has a Frame."""
    from tpmon.record.shelf import read_shelved

    try:
        shelved = read_shelved(path)
    except UsageError:
        return None  # not made so far, or without a Frame
    return shelved if isinstance(shelved.writer, int) else None


def _list(output: Output) -> int:
    from tpmon.record.shelf import list_recordings

    folder = state_folder(os.environ)
    output.write_lines(*write_shelf(list(list_recordings(folder)), folder))
    return ExitCode.OK


def write_shelf(found: list[Shelved | UsageError], folder: str) -> Iterator[str]:
    """Write a line a recording."""
    from datetime import datetime

    if not found:
        yield f"no recording in {folder}"
        return
    now = datetime.now().astimezone()
    yield f"{'writer':>8}  {'job':>8}  {'began':<12}  {'length':>7}  {'size':>6}  script, file"
    for one in found:
        if isinstance(one, UsageError):
            yield f"{'?':>8}  {one.what}"
            continue
        began = format_moment(datetime.fromtimestamp(one.from_ns / 1e9).astimezone(), now, seconds=False)
        length = format_seconds((one.to_ns - one.from_ns) / 1e9)
        writer = str(one.writer) if isinstance(one.writer, int) else "-"
        head = (
            f"{writer:>8}  {one.subject.pid:>8}  {began:<12}  {length:>7}  {format_bytes(one.size_bytes):>6}"
        )
        yield f"{head}  {one.subject.script}, {one.path}"


def _stop(output: Output, wanted: str) -> int:
    from tpmon.record.shelf import stop_recorder

    one = stop_recorder(wanted, state_folder(os.environ))
    output.write_lines(f"ended; tpmon replay {one.path}")
    return ExitCode.OK


def _move(output: Output, path: str, to: str) -> int:
    from tpmon.record.shelf import move_recording

    if not to:
        raise UsageError("--move takes the new place in --out", f"tpmon record --move {path} --out FILE")
    if os.path.realpath(path) == os.path.realpath(to):
        raise exclude("--move and --out with the same file")
    size = move_recording(path, to)
    output.write_lines(f"{to}, {format_bytes(size)}")
    return ExitCode.OK


COMMAND = Subcommand(
    RecordOptions,
    run,
    "record [PID | NAME] [options]",
    "Record whole Frames of a training job into one file until it ends, for tpmon replay: what the\n"
    "screen would have shown at any second, and the verdict. Costs the job as much as attach.\n" + PROMISE,
    EXIT_CODES,
)
