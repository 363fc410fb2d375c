"""The commands ``dump`` and ``fold``: look, fold, and write in the form that was asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from tpmon.config import Options
from tpmon.errors import ExitCode, UsageError
from tpmon.judge.fold import Origin, fold_dumps, fold_rounds
from tpmon.judge.fold_words import collapse_frames
from tpmon.model.clean import clean_value
from tpmon.model.codec import CodecError, decode, encode
from tpmon.model.dump import DUMP_SCHEMA, Dump, DumpRound, ErrorKind, ShownFrame, StackGroup
from tpmon.model.known import is_known
from tpmon.model.results import DumpUpdate
from tpmon.probe.dump import Dumper, dumpable
from tpmon.probe.job import Job
from tpmon.report.dump import write_dump
from tpmon.report.dump_formats import write_collapsed, write_speedscope
from tpmon.report.write import Output

FORMATS = ("text", "json", "collapsed", "speedscope")
MOST_BYTES = 256 << 20
"""Of all files together; the dump of a job of 72 processes has 0.2 MB."""
BLOCK_PRICE = "--block: a process that cannot be read otherwise is stopped, mostly for less than 5 ms"
_STDIN = "-"


def pick_format(options: Options) -> str:
    """Return the form to write in; --json is short for --format json.

    Raises:
        UsageError: for a name that is no format, or another one beside --json.
    """
    name = options.dump_format
    if name not in FORMATS:
        raise UsageError(f"--format: {name!r} is no format", f"one of: {', '.join(FORMATS)}")
    if options.json and name not in ("text", "json"):
        raise UsageError(f"--json and --format {name} exclude each other", "leave one of the two out")
    return "json" if options.json else name


def run_dump(job: Job, options: Options, output: Output, *, block: bool) -> int:
    """Look at every process of a job as often as asked, write the fold, and return the exit code."""
    form = pick_format(options)
    dumper = Dumper(dumpable(job), block=block)
    rounds: list[DumpRound] = []
    due_s = time.monotonic()
    for number in range(options.dump_rounds):
        if number:
            time.sleep(max(0.0, due_s - time.monotonic()))
        due_s = time.monotonic() + options.dump_every_s
        rounds.append(dumper.read_round())
    dump = fold_rounds(rounds, Origin(job.root.pid, job.script, job.world_size))
    _write(dump, form, output)
    return pick_exit_code(dump)


def run_fold(paths: Sequence[str], options: Options, output: Output) -> int:
    """Fold the Dumps of files (or of standard input, "-") and write the result.

    Raises:
        UsageError: for a file that cannot be read or holds something else.
    """
    form = pick_format(options)
    dump = fold_dumps(list(read_dumps(paths)))
    _write(dump, form, output)
    return pick_exit_code(dump)


def read_dumps(paths: Iterable[str]) -> Iterator[Dump]:
    """Read the Dumps of files, one JSON object a line, cleaned.

    Raises:
        UsageError: naming file and line of what is no Dump.
    """
    room = MOST_BYTES
    for path in paths:
        name = "standard input" if path == _STDIN else path
        try:
            data = _read_file(path, room)
        except OSError as error:
            raise UsageError(f"{name}: {error.strerror or error}", "tpmon dump PID --json > FILE") from error
        room -= len(data)
        if room <= 0:
            raise UsageError(f"{name}: more than {MOST_BYTES >> 20} MiB of dumps", "fold fewer at once")
        found = 0
        for number, raw in enumerate(data.split(b"\n"), 1):
            if raw.strip():
                yield _parse_dump(raw.decode("utf-8", "replace"), f"{name}:{number}")
                found += 1
        if not found:
            raise UsageError(f"{name}: no dump in it", "tpmon dump PID --json > FILE")


def _read_file(path: str, limit: int) -> bytes:
    if path == _STDIN:
        return sys.stdin.buffer.read(limit)
    with open(path, "rb") as file:
        return file.read(limit)


def _parse_dump(line: str, place: str) -> Dump:
    try:
        dump = decode(Dump, line)
    except CodecError as error:
        raise UsageError(f"{place}: no dump of tpmon: {error}", "tpmon dump PID --json makes one") from error
    if dump.schema != DUMP_SCHEMA:
        raise UsageError(f"{place}: schema {dump.schema!r}, this tpmon reads {DUMP_SCHEMA}", "update tpmon")
    return clean_value(dump)


def _shorten(group: StackGroup) -> tuple[ShownFrame, ...]:
    return collapse_frames(group.frames) if is_known(group.frames) else ()


def _write(dump: Dump, form: str, output: Output) -> None:
    if form == "json":
        output.write_json(encode(dump))
    elif form == "speedscope":
        output.write_json(write_speedscope(dump))
    elif form == "collapsed":
        output.write_lines(*write_collapsed(dump))
    else:
        output.write_lines(*write_dump(dump, _shorten))


def write_dump_text(update: DumpUpdate) -> str:
    """Write the dump of a screen as ``tpmon dump`` prints it."""
    if not is_known(update.dump):
        return f"no stacks: {update.dump.reason}"
    return "\n".join(write_dump(update.dump, _shorten))


def pick_exit_code(dump: Dump) -> int:
    """Return 0 where at least one stack was read, else why none could be."""
    if any(is_known(group.frames) for group in dump.groups):
        return ExitCode.OK
    kinds = {error.kind for error in dump.errors}
    if ErrorKind.DENIED in kinds:
        return ExitCode.NOT_PERMITTED
    if kinds <= {ErrorKind.GONE}:
        return ExitCode.NO_TARGET
    return ExitCode.USAGE if ErrorKind.NO_SPY in kinds else ExitCode.OK
