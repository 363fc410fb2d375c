"""The commands ``dump`` and ``fold``: look, fold, and write in the form that was asked for."""

from __future__ import annotations

import codecs
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from tpmon import config
from tpmon.config import Options
from tpmon.errors import ExitCode, UsageError
from tpmon.judge.dumps.collective_words import may_wait
from tpmon.judge.dumps.collectives import add_collectives, fold_collectives
from tpmon.judge.dumps.describe import collapse_frames
from tpmon.judge.dumps.groups import DumpOrigin, find_clash, fold_dumps, fold_rounds
from tpmon.judge.dumps.hot import build_tree, date_log
from tpmon.model.codec import CodecError, decode, encode
from tpmon.model.dump import DUMP_SCHEMA, Dump, DumpRound, ErrorKind, ShownFrame, StackGroup
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.model.process import Role
from tpmon.model.results.doctor import DumpUpdate
from tpmon.model.text.clean import clean_value
from tpmon.model.text.dump_words import TO_FILES, list_numbers, write_step
from tpmon.model.units import clean_text
from tpmon.probe.base.deadline import read_within
from tpmon.probe.host.output import OutputReader
from tpmon.probe.job.job import Job, Member
from tpmon.probe.records.collectives import PIPE_PRICE, read_collectives
from tpmon.probe.spy.dump import NATIVE_ROUND_S, ROUND_S, Depth, Dumper, dumpable
from tpmon.report.dump import write_dump, write_dump_tree
from tpmon.report.formats import write_collapsed, write_speedscope
from tpmon.report.text import Output, complain

MOST_BYTES = 256 << 20
"""Of all files together; the dump of a job of 72 processes has 0.2 MB."""
BLOCK_PRICE = "--block: a process that cannot be read otherwise is stopped, mostly for less than 5 ms"
NATIVE_PRICE = (
    "--native: every process is stopped while its C stack is read: a loader worker for 0.03 to 0.1 s, a rank"
    " for up to 1 s; py-spy takes 0.1 to 1 s of CPU and up to 0.6 GB of memory for each, two at a time"
)
LOCALS_PRICE = (
    "--locals: nothing is stopped, py-spy needs up to twice the CPU; values are cut, what looks like a secret"
    " is hidden, but read the output before you pass it on"
)
LOG_S = 0.5
"""How long the log may take to tell its time: it may lie on a dead server."""
_STDIN = "-"
_LABEL = re.compile(rb"^\s*(\d{1,9}): ")
"""What srun --label puts before each line, and before each piece of one that it cuts."""
_BEGINS = b'{"schema":'
"""How a dump begins, and nothing within one."""
_MOST_REFUSED = 4
_REFUSED_CHARS = 200
_STEP = write_step("$SLURM_JOB_ID")
_MIXED = (
    "tpmon dump PID --json makes one; srun cuts and mixes lines beyond 1,024 bytes, so add --label:"
    f" {_STEP} --label tpmon dump --job --json | tpmon fold -, or give each host a file:"
    f" {_STEP} {TO_FILES}, then tpmon fold dump-*.json (H: the hosts)"
)
_RANK_DIGITS = 7
PID_DIGITS = 10


@dataclass(frozen=True, slots=True)
class DumpAsked:
    """Hold what one call asks for that is no setting: which processes, and how deep to look."""

    ranks: tuple[str, ...] = ()
    pids: tuple[str, ...] = ()
    block: bool = False
    native: bool = False
    variables: bool = False
    fr_pipe: bool = False
    tree: bool = False

    @property
    def prices(self) -> tuple[str, ...]:
        """Say what each part costs the job, before it is done."""
        wanted = (
            (self.block, BLOCK_PRICE),
            (self.native, NATIVE_PRICE),
            (self.variables, LOCALS_PRICE),
            (self.fr_pipe, PIPE_PRICE),
        )
        return tuple(price for asked, price in wanted if asked)


def pick_format(options: Options) -> str:
    """Return the form to write in; --json is short for --format json.

    Raises:
        UsageError: for another form beside --json.
    """
    return config.pick_format(options, options.dump_format, options.dump_format_from)


def check_asked(options: Options, asked: DumpAsked) -> None:
    """Refuse what cannot be done before anything is looked at.

    Raises:
        UsageError: for a form, a rank or a process that cannot be, and a stop where --readonly forbids it.
    """
    check_tree(pick_format(options), tree=asked.tree)
    for flag, stops in (("--block", asked.block), ("--native", asked.native)):
        if stops and options.readonly:
            raise UsageError(
                f"{flag} stops processes of the job, and --readonly forbids that", "leave one of the two out"
            )
    if asked.fr_pipe and options.readonly:
        raise UsageError(
            "--fr-pipe has the job write files, and --readonly forbids that", "leave one of the two out"
        )
    for word in asked.ranks:
        _parse_numbers(word)
    for word in asked.pids:
        if not word.isdecimal() or len(word) > PID_DIGITS:
            raise UsageError(f"--pid: a PID is a number, found {word[:40]!r}", "tpmon dump PID --pid 4711")


def check_tree(form: str, *, tree: bool) -> None:
    """Refuse a tree in a form that has none.

    Raises:
        UsageError: for another form than text.
    """
    if tree and form != "text":
        raise UsageError(f"--tree is text, and {form} was asked for", "leave one of the two out")


def _parse_numbers(word: str) -> frozenset[int]:
    """Parse "3", "0,2" or "0-3,6".

    Raises:
        UsageError: for anything else.
    """
    found: set[int] = set()
    for part in word.split(","):
        first, dash, last = part.partition("-")
        numbers = (first, last) if dash else (first,)
        plain = all(one.isdecimal() and len(one) < _RANK_DIGITS for one in numbers)
        if not plain or int(first) > int(numbers[-1]):
            raise UsageError(f"--rank: {word!r} is no rank", "tpmon dump PID --rank 3, or 0,2, or 0-3")
        found.update(range(int(first), int(numbers[-1]) + 1))
    return frozenset(found)


def choose_members(job: Job, asked: DumpAsked) -> tuple[Member, ...]:
    """Return the processes to look at: all worth it, or ranks with what they started, or single ones.

    Raises:
        UsageError: for a rank or a process that is not of this job on this machine.
    """
    every = dumpable(job)
    if not asked.ranks and not asked.pids:
        return every
    wanted = frozenset(rank for word in asked.ranks for rank in _parse_numbers(word))
    here = {one.rank for one in every if one.role is Role.RANK and is_known(one.rank)}
    if absent := wanted - here:
        noun = f"rank{'s' if len(absent) > 1 else ''} {list_numbers(absent)}"
        verb = "are" if len(absent) > 1 else "is"
        raise UsageError(
            f"--rank: {noun} {verb} not on this machine", f"here: {list_numbers(here) or 'no numbered rank'}"
        )
    pids = tuple(map(int, asked.pids))
    members = {one.identity.pid: one for one in job.members}
    for pid in sorted(pids):
        if pid not in members:
            raise UsageError(
                f"--pid: process {pid} is not of this job",
                f"tpmon dump {job.root.pid} shows its processes; tpmon ps the other jobs",
            )
        if not job.facts[pid].python:
            raise UsageError(
                f"--pid: process {pid} ({members[pid].label}) runs no Python", "name another one"
            )
    chosen = tuple(one for one in every if one.rank in wanted or one.identity.pid in pids)
    # A launcher has no part in a hang, and is looked at only where it is named.
    named = (one for one in job.members if one.identity.pid in pids and one not in chosen)
    return (*chosen, *named)


def run_dump(job: Job, options: Options, asked: DumpAsked, output: Output) -> int:
    """Look at a job as often as asked, write the fold, and return the exit code.

    Raises:
        UsageError: for a rank or a process that is not there.
    """
    form = pick_format(options)
    members = choose_members(job, asked)
    for price in asked.prices:
        complain(f"tpmon: {price} ({len(members)} process{'es' if len(members) != 1 else ''})")
    depth = Depth(asked.block, asked.native, asked.variables)
    dumper = Dumper(members, depth, around=job.members)
    rounds: list[DumpRound] = []
    due_s = time.monotonic()
    for number in range(options.dump_rounds):
        if number:
            time.sleep(max(0.0, due_s - time.monotonic()))
        due_s = time.monotonic() + options.dump_every_s
        rounds.append(dumper.read_round(NATIVE_ROUND_S if asked.native else ROUND_S))
    dump = replace(fold_rounds(rounds, _name_origin(job, members)), last_write=_read_last_write(job))
    reading = read_collectives(job, someone_waits=may_wait(dump.groups), ask_pipes=asked.fr_pipe)
    dump = add_collectives(dump, reading)
    _write(dump, form, output, tree=asked.tree)
    return pick_exit_code(dump)


def _read_last_write(job: Job) -> Applicable[datetime]:
    """Read when the job wrote into its log last."""
    pids = [one.identity.pid for one in job.members if one.role in (Role.LAUNCHER, Role.RANK)]
    logs = read_within(LOG_S, lambda: OutputReader().read(pids))
    return logs if isinstance(logs, Missing) else date_log(logs)


def _name_origin(job: Job, members: Sequence[Member]) -> DumpOrigin:
    """Name the job, and count the ranks of it that were left out."""
    left_out = sum(one.role is Role.RANK and one not in members for one in job.members)
    whole = len(members) >= len(dumpable(job))
    return DumpOrigin(job.root.pid, job.script, job.world_size, NOT_APPLICABLE if whole else left_out)


def run_fold(paths: Sequence[str], options: Options, output: Output, *, tree: bool = False) -> int:
    """Fold the Dumps of files (or of standard input, "-") and write the result.

    Raises:
        UsageError: for a file that cannot be read or holds something else, and a tree that is no text.
    """
    form = pick_format(options)
    check_tree(form, tree=tree)
    left_out: list[str] = []
    dumps = read_dumps(paths, left_out.append)
    if clash := find_clash(dumps):
        raise UsageError(
            f"these dumps are of two machines of one name: {clash}",
            "give each machine a name of its own (hostname) and dump again; one of them can be folded alone",
        )
    for line in left_out:
        complain(f"tpmon: not folded: {line}")
    dump = replace(fold_collectives(fold_dumps(dumps), dumps), left_out=tuple(left_out))
    _write(dump, form, output, tree=tree)
    return pick_exit_code(dump)


def read_dumps(paths: Iterable[str], tell: Callable[[str], None] = lambda _: None) -> list[Dump]:
    """Read the Dumps of files, one JSON object a line, cleaned; ``tell`` is told each line that is none.

    Raises:
        UsageError: for a file that cannot be read, and naming file and line where no line is a Dump.
    """
    room = MOST_BYTES
    dumps: list[Dump] = []
    first: UsageError | None = None
    for path in paths:
        name = "standard input" if path == _STDIN else path
        try:
            data = _read_file(path, room)
        except OSError as error:
            raise UsageError(f"{name}: {error.strerror or error}", "tpmon dump PID --json > FILE") from error
        room -= len(data)
        if room <= 0:
            raise UsageError(f"{name}: more than {MOST_BYTES >> 20} MiB of dumps", "fold fewer at once")
        found, refused = _parse_lines(data, name)
        dumps += found
        if refused:
            first = first or refused[0]
            for one in refused[:_MOST_REFUSED]:
                tell(clean_text(one.what, _REFUSED_CHARS))
            if len(refused) > _MOST_REFUSED:
                more = len(refused) - _MOST_REFUSED
                tell(f"{name}: {more} more {'line' if more == 1 else 'lines'}")
    if first is not None and not dumps:
        raise first
    return dumps


def _parse_lines(data: bytes, name: str) -> tuple[list[Dump], list[UsageError]]:
    """Parse the lines of one file into Dumps, and what the others are refused for."""
    dumps: list[Dump] = []
    refused: list[UsageError] = []
    for number, line in _join_labelled(data.removeprefix(codecs.BOM_UTF8).split(b"\n")):
        if not line.strip():
            continue
        try:
            dumps.append(_parse_dump(line.decode("utf-8", "replace"), f"{name}:{number}"))
        except UsageError as error:
            refused.append(error)
    if not dumps and not refused:
        refused.append(UsageError(f"{name}: no dump in it", "tpmon dump PID --json > FILE"))
    return dumps, refused


def _join_labelled(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their numbers; a dump that srun --label has cut into lines of one label is one again.

    srun passes on at most 1,024 bytes at a time (SLURM_IO_MAX_MSG_LEN) and writes each as a line of its own.
    """
    begun: dict[int, list[tuple[int, bytes]]] = {}
    for number, raw in enumerate(lines, 1):
        label = _LABEL.match(raw)
        if label is None:
            yield number, raw
            continue
        task, piece = int(label[1]), raw[label.end() :]
        if piece.startswith(_BEGINS):
            yield from _join(begun.pop(task, []))
        begun.setdefault(task, []).append((number, piece))
    for pieces in begun.values():
        yield from _join(pieces)


def _join(pieces: Sequence[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Join the pieces of one dump; where the first is whole, the others are something else."""
    if len(pieces) > 1 and pieces[0][1].startswith(_BEGINS) and not _is_whole(pieces[0][1]):
        yield pieces[0][0], b"".join(piece for _, piece in pieces)
    else:
        yield from pieces


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _read_file(path: str, limit: int) -> bytes:
    if path == _STDIN:
        return sys.stdin.buffer.read(limit) if sys.stdin is not None else b""  # None: it was closed
    with open(path, "rb") as file:
        return file.read(limit)


def _parse_dump(line: str, place: str) -> Dump:
    try:
        dump = decode(Dump, line)
    except CodecError as error:
        raise UsageError(f"{place}: no dump of tpmon: {error}", _MIXED) from error
    if dump.schema != DUMP_SCHEMA:
        raise UsageError(f"{place}: schema {dump.schema!r}, this tpmon reads {DUMP_SCHEMA}", "update tpmon")
    return clean_value(dump)


def _shorten(group: StackGroup) -> tuple[ShownFrame, ...]:
    return collapse_frames(group.frames) if is_known(group.frames) else ()


def _write(dump: Dump, form: str, output: Output, *, tree: bool) -> None:
    if form == "json":
        output.write_json(encode(dump))
    elif form == "speedscope":
        output.write_json(write_speedscope(dump))
    elif form == "collapsed":
        output.write_lines(*write_collapsed(dump))
    elif tree:
        output.write_lines(*write_dump_tree(dump, build_tree(dump.groups)))
    else:
        output.write_lines(*write_dump(dump, _shorten))


def write_dump_text(update: DumpUpdate) -> str:
    """Write the dump of a screen as ``tpmon dump`` prints it."""
    if not is_known(update.dump):
        return f"no stacks: {update.dump.reason}"
    return "\n".join(write_dump(update.dump, _shorten))


def pick_exit_code(dump: Dump) -> int:
    """Return 0 where at least one stack was read, else why none was: 4, 3, or 2 for all else."""
    if any(is_known(group.frames) for group in dump.groups):
        return ExitCode.OK
    kinds = {error.kind for error in dump.errors}
    if ErrorKind.DENIED in kinds:
        return ExitCode.NOT_PERMITTED
    if kinds <= {ErrorKind.GONE}:
        return ExitCode.NO_TARGET
    return ExitCode.USAGE
