"""Read the dumps that ``tpmon dump`` wrote as JSON, even where srun cut and mixed their lines."""

from __future__ import annotations

import codecs
import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from tpmon.errors import UsageError
from tpmon.model.codec import CodecError, decode
from tpmon.model.dump import DUMP_SCHEMA, Dump
from tpmon.model.text.dump_words import TO_FILES, write_step
from tpmon.model.text.redaction import clean_value
from tpmon.model.units import clean_text
from tpmon.probe.base.procread import read_file

MOST_BYTES = 256 << 20  # of all files together; the dump of a job of 72 processes has 0.2 MB
_STDIN = "-"
_LABEL = re.compile(rb"^\s*(\d{1,9}): ")  # from srun --label, before each line and each piece of one
_BEGINS = b'{"schema":'  # begins a dump, and occurs nowhere within one
_MOST_REFUSED = 4
_REFUSED_CHARS = 200


def read_dumps(paths: Iterable[str], tell: Callable[[str], None] = lambda _: None) -> list[Dump]:
    """Read the Dumps of files, one JSON object a line, cleaned; ``tell`` gets each line that is none.

    UsageError for a file that cannot be read or has no Dump, with file and line.
    """
    room = MOST_BYTES
    dumps: list[Dump] = []
    first: UsageError | None = None
    for path in paths:
        name = "standard input" if path == _STDIN else path
        try:
            if path == _STDIN:
                data = sys.stdin.buffer.read(room) if sys.stdin is not None else b""  # None: it was closed
            else:
                data = read_file(path, room)
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
    """Parse the lines of one file into Dumps, and the reasons why others are refused."""
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
    """Yield lines with their numbers; join a dump that srun --label has cut into lines of one label.

    srun passes on at most 1,024 bytes at a time (SLURM_IO_MAX_MSG_LEN) and writes each as its own line.
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
    """Join the pieces of one dump; if the first is whole, the others are something else."""
    if len(pieces) > 1 and pieces[0][1].startswith(_BEGINS) and not _is_whole(pieces[0][1]):
        yield pieces[0][0], b"".join(piece for _, piece in pieces)
    else:
        yield from pieces


def _is_whole(line: bytes) -> bool:
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(line)
        return True
    return False


def _parse_dump(line: str, place: str) -> Dump:
    try:
        dump = decode(Dump, line)
    except CodecError as error:
        step = write_step("$SLURM_JOB_ID")
        raise UsageError(
            f"{place}: no dump of tpmon: {error}",
            "tpmon dump PID --json makes one; srun cuts and mixes lines beyond 1,024 bytes, so add --label:"
            f" {step} --label tpmon dump --job --json | tpmon fold -, or give each host a file:"
            f" {step} {TO_FILES}, then tpmon fold dump-*.json (H: the hosts)",
        ) from error
    if dump.schema != DUMP_SCHEMA:
        raise UsageError(f"{place}: schema {dump.schema!r}, this tpmon reads {DUMP_SCHEMA}", "update tpmon")
    return clean_value(dump)
