"""Write stacks as text: dumps with their collectives, and hot functions, once or live."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence

from tpmon.model.dump import Dump, DumpError, ShownFrame, StackGroup
from tpmon.model.known import Missing, is_known
from tpmon.model.process import ThreadKind
from tpmon.model.results.collectives import CollectiveCall, Collectives, GroupRecord, RankRecord
from tpmon.model.results.doctor import TreeLine
from tpmon.model.results.sample import HotGroup, HotSample
from tpmon.model.text.dump_words import list_numbers, say_last_write
from tpmon.model.text.job_words import join_cause, say_confidence
from tpmon.model.units import clean_text, count_of, format_clock, format_seconds
from tpmon.report.blocks import write_rows
from tpmon.report.text import complain
from tpmon.view import stacks
from tpmon.view.layout import LABEL_WIDTH, WIDTH, cut, lay_paragraph, list_columns, to_ascii

MOST_REASONS = 12


def write_errors(errors: Sequence[DumpError], means: stacks.Means) -> list[str]:
    """Write a paragraph for each reason with what to try; reasons beyond MOST_REASONS are counted."""
    groups = stacks.group_errors(errors)
    hosts = {error.host for error in errors}
    lines: list[str] = []
    for those in groups[:MOST_REASONS]:
        where = f" on {', '.join(sorted({one.host for one in those}))}" if len(hosts) > 1 else ""
        lines += lay_paragraph("not read", f"{_name(those)}{where}: {those[0].reason}")
        if tip := stacks.suggest(those, means):
            lines += lay_paragraph("try", tip)
    left = sum(map(len, groups[MOST_REASONS:]))
    if left:
        lines += lay_paragraph("not read", count_of(left, "more process", "more processes"))
    return lines


def _name(errors: Sequence[DumpError]) -> str:
    """Name one process with its PID, several together."""
    first, *more = errors
    if more:
        return stacks.name_failed(errors)
    rank = f" (rank {first.rank})" if is_known(first.rank) else ""
    return f"{first.role.value} {first.pid}{rank}"


LABEL = "calls"
MOST_FINDINGS = 4
MOST_ROWS = 12
_MOST_DIMENSIONS = 6


def write_collectives(one: Collectives) -> list[str]:
    """Write the summary, other open collectives, the progress of each rank, and the sources."""
    lines = lay_paragraph(LABEL, one.summary)
    for finding in one.findings[1:MOST_FINDINGS]:
        lines += lay_paragraph("", finding.summary)
    if len(one.findings) > MOST_FINDINGS:
        more = len(one.findings) - MOST_FINDINGS
        lines += lay_paragraph("", f"{more} more {'group waits' if more == 1 else 'groups wait'}")
    lines += _write_rows(one.records, {finding.group for finding in one.findings})
    return [*lines, *_write_sources(one)]


def _write_rows(records: Sequence[RankRecord], open_: set[str]) -> list[str]:
    """Write a line for the ranks at the same call of a group; only of waiting groups where there are some."""
    rows: dict[tuple[str, str], list[int]] = {}
    for record in records:
        for group in record.groups:
            name = group.description or group.name
            if (not open_ or name in open_) and is_known(record.rank):
                rows.setdefault((name, _say_far(group)), []).append(record.rank)
    lines = [
        cut(f"  {name}: rank{'s' if len(ranks) > 1 else ''} {list_numbers(ranks)} {far}", WIDTH)
        for (name, far), ranks in rows.items()
    ]
    if len(lines) > MOST_ROWS:
        lines = [*lines[:MOST_ROWS], f"  {len(lines) - MOST_ROWS} more in the JSON"]
    return lines


def _say_far(group: GroupRecord) -> str:
    done = f"done up to {_name_call(group, group.last_done)}" if group.last_done else "done none"
    if group.last_called <= group.last_done:
        return f"{done}, called no more"
    ahead = group.last_called - group.last_done - 1
    more = f", {count_of(ahead, 'call')} ahead" if ahead else ""
    return f"{done}, in {_name_call(group, group.last_done + 1)}{more}"


def _name_call(group: GroupRecord, number: int) -> str:
    for call in group.calls:
        if call.sequence == number and not call.is_transfer:
            return f"{number} {call.name}{_say_shape(call)}"
    return str(number)


def _say_shape(call: CollectiveCall) -> str:
    sizes = "+".join("x".join(map(str, size[:_MOST_DIMENSIONS])) or "1" for size in call.input_sizes[:2])
    more = "+..." if len(call.input_sizes) > 2 else ""
    types = ",".join(dict.fromkeys(call.input_types))
    line = f" {call.line.file.rpartition('/')[2]}:{call.line.line}" if is_known(call.line) else ""
    return f" ({sizes}{more} {types}){line}" if sizes else line


def _write_sources(one: Collectives) -> list[str]:
    if one.records:
        counts: dict[str, list[RankRecord]] = {}
        for record in one.records:
            counts.setdefault(record.source.value, []).append(record)
        said = [
            f"{source} ({count_of(len(those), 'rank')}, {format_clock(max(each.taken for each in those))})"
            for source, those in counts.items()
        ]
        said += ["NCCL RAS"] if one.ras else []
        return lay_paragraph("", f"from {', '.join(said)}")
    if one.ras:
        return lay_paragraph("", "from NCCL RAS")
    reasons = dict.fromkeys(f"{note.source.value}: {note.reason}" for note in one.notes if note.reason)
    return lay_paragraph("", "; ".join(reasons)) if reasons else []


MOST_FRAMES = 24
"""Of a deeper stack the innermost lines are shown: they tell what it does."""
_AGAIN = "again: tpmon dump {pid}"
_STOP = "with --block it is read with a short stop"
_LINE_CHARS = 400

Shorten = Callable[[StackGroup], Sequence[ShownFrame]]
"""Returns the lines of a group's stack, outermost first."""


def write_dump(dump: Dump, shorten: Shorten) -> list[str]:
    """Write the summary, main threads with stacks, other threads a line each, and what was not read."""
    lines: list[str] = []
    other: list[str] = []
    with_host = _is_of_several(dump)
    for group in dump.groups:
        if group.threads[0].kind is ThreadKind.MAIN:
            lines += ["", *(cut(line, WIDTH) for line in _write_group(group, shorten, with_host))]
        else:
            other.append(cut(f"  {': '.join(stacks.describe_group(group, with_host=with_host))}", WIDTH))
    lines += ["", "other threads", *other] if other else []
    return _clean([*_write_top(dump), *lines, "", *_write_end(dump)])


MOST_DEEP = 30
"""Deeper places are not indented further: a line has 100 columns."""


def write_dump_tree(dump: Dump, tree: Sequence[TreeLine]) -> list[str]:
    """Write the summary, the stacks merged into a tree, and what was not read."""
    merged = []
    for branch in stacks.describe_tree(tree, with_host=_is_of_several(dump)):
        start = "  " * min(branch.line.depth, MOST_DEEP)
        merged.append(cut(f"{start}{branch.count}{branch.text}", WIDTH))
        merged += [cut(f"{start}  {end}", WIDTH) for end in branch.ends]
    return _clean([*_write_top(dump), *(["", *merged] if merged else []), "", *_write_end(dump)])


def _clean(lines: Sequence[str]) -> list[str]:
    # A dump of another host is foreign text.
    return [clean_text(line, _LINE_CHARS) for line in lines]


def _write_top(dump: Dump) -> list[str]:
    lines = lay_paragraph("dump", dump.summary)
    if is_known(dump.last_write):
        lines += lay_paragraph("", say_last_write(dump, format_clock(dump.last_write)))
    lines += _write_verdict(dump)
    if is_known(dump.collectives):
        lines += write_collectives(dump.collectives)
    return lines


def _write_verdict(dump: Dump) -> list[str]:
    """Write the verdict of the dump and what to try; nothing where it names nobody."""
    verdict = dump.verdict
    if isinstance(verdict, Missing):
        return []
    words = [join_cause(verdict.kind, verdict.cause), say_confidence(verdict)]
    lines = lay_paragraph("verdict", f"{', '.join(word for word in words if word)}: {verdict.summary}")
    return [*lines, f"{'try':<{LABEL_WIDTH}}{verdict.try_}"] if is_known(verdict.try_) else lines


def _is_of_several(dump: Dump) -> bool:
    return len({thread.host for group in dump.groups for thread in group.threads}) > 1


def _write_group(group: StackGroup, shorten: Shorten, with_host: bool) -> list[str]:
    head, state = stacks.describe_group(group, with_host=with_host)
    lines = [head, f"  {state}"]
    if isinstance(group.frames, Missing):
        return [*lines, f"  ? {group.frames.reason}"]
    frames = stacks.describe_frames(group, shorten(group))
    if len(frames) > MOST_FRAMES:
        lines.append(f"    ... {len(frames) - MOST_FRAMES} more")
    for frame in frames[-MOST_FRAMES:]:
        lines += [f"    {frame.text}", *(f"        {line}" for line in frame.below)]
    return lines


def _write_end(dump: Dump) -> list[str]:
    lines = write_errors(dump.errors, stacks.Means(_AGAIN, "" if dump.paused_ms else _STOP))
    for line in dump.left_out:
        lines += lay_paragraph("not read", line)
    if dump.idle_threads:
        lines += lay_paragraph(
            "not shown",
            f"{count_of(dump.idle_threads, 'native thread')} without a known purpose, most asleep",
        )
    looks = count_of(dump.rounds, "dump")
    span = f" over {format_seconds(dump.seconds)}" if dump.rounds > 1 else ""
    stopped = f"stopped the job for {dump.paused_ms:.1f} ms" if dump.paused_ms else "stopped nothing"
    when = f"{looks}{span} at {format_clock(dump.taken)} on {dump.host}"
    cost = f"{when}, py-spy used {dump.spy_cpu_ms:.0f} ms of CPU, {stopped}"
    return [*lines, *lay_paragraph("cost", cost)]


SAMPLE_AGAIN = stacks.Means("again: tpmon sample {pid}")


def write_sample(hot: HotSample, most: int = stacks.MOST_FUNCTIONS) -> list[str]:
    """Write each part of the job with its ``most`` functions, main threads first, then what was lost."""
    lines = lay_paragraph("sample", stacks.say_what(hot))
    for group in hot.groups:
        lines += ["", *_write_hot(group, most)]
    lines += ["", *write_errors(hot.errors, SAMPLE_AGAIN)]
    if waiting := stacks.count_without_turn(hot):
        said = f"{waiting} more: the time was over before; more --seconds reach them"
        lines += lay_paragraph("no turn", said)
    if hot.ended_processes:
        lines += lay_paragraph("ended", stacks.say_ended(hot))
    lines += [*lay_paragraph("lost", stacks.say_lost(hot)), *lay_paragraph("cost", stacks.say_cost(hot))]
    return _clean(lines)


def _write_hot(group: HotGroup, most: int) -> list[str]:
    if waiting := stacks.say_waiting(group):
        return [cut(waiting, WIDTH)]
    lines = [cut(stacks.say_group(group), WIDTH)]
    if phases := stacks.say_phases(group):
        lines.append(cut(f"  {phases}", WIDTH))
    shown, hidden = stacks.pick_shown(group, most)
    lines += write_rows(list_columns(stacks.FUNCTIONS), shown)
    return [*lines, f"         {count_of(hidden, 'more function')}"] if hidden else lines


def write_progress(hot: HotSample) -> str:
    """Write one line while sampling goes on: the time, and the hottest function of each part of the job."""
    parts = []
    for group in hot.groups:
        if group.main and group.functions:
            first = group.functions[0]
            where = f"{first.function} {first.file.rpartition('/')[2]}:{first.line}"
            parts.append(f"{stacks.name_group(group)}: {where} {first.self_pct:.0f} %")
    what = "; ".join(parts) or "nothing yet"
    return clean_text(f"{hot.seconds:.0f} of {hot.asked_seconds:g} s: {what}", _LINE_CHARS)


DRAW_EVERY_S = 1.0
LINES_OF_A_RUN = 5
"""Where nothing can be redrawn, about so many lines are written."""
LINE_EVERY_S = 2.0
LIVE_FUNCTIONS = 5
_ERROR = 2
_UP = "\x1b[{}A"
_CLEAR_BELOW = "\x1b[J"


class Live:
    """Draw the samples so far; lines fit the terminal's width, so that they can be redrawn.

    ``redraw``: standard error is a terminal that can move its cursor; None finds out.
    """

    def __init__(self, seconds: float, *, ascii_only: bool, redraw: bool | None = None) -> None:
        terminal = os.isatty(_ERROR) and os.environ.get("TERM", "dumb") != "dumb"
        self._redraw = terminal if redraw is None else redraw
        self._every_s = DRAW_EVERY_S if self._redraw else max(LINE_EVERY_S, seconds / LINES_OF_A_RUN)
        self._ascii_only = ascii_only
        self._drawn = 0
        self._due_s = time.monotonic() + self._every_s

    @property
    def is_due(self) -> bool:
        """Tell whether it is time to draw again."""
        return time.monotonic() >= self._due_s

    def show(self, hot: HotSample) -> None:
        """Draw the samples so far."""
        self._due_s = time.monotonic() + self._every_s
        if not self._redraw:
            self._write(f"tpmon: {write_progress(hot)}")
            return
        columns, rows = _read_size()
        lines = [cut(line, columns - 1) for line in write_sample(hot, LIVE_FUNCTIONS)][: rows - 1]
        self._take_back()
        self._write("\n".join(lines))
        self._drawn = len(lines)

    def close(self) -> None:
        """Erase what was drawn, so that the result stands alone."""
        self._take_back()
        self._drawn = 0

    def _take_back(self) -> None:
        back = _UP.format(self._drawn) + "\r" + _CLEAR_BELOW if self._drawn else ""
        with contextlib.suppress(OSError):  # ``complain`` lets no escape sequence pass
            os.write(_ERROR, back.encode())

    def _write(self, text: str) -> None:
        complain(to_ascii(text) if self._ascii_only else text)


def _read_size() -> tuple[int, int]:
    try:
        size = os.get_terminal_size(_ERROR)
    except OSError:
        return 80, 24
    return size.columns or 80, size.lines or 24
