"""Write a Dump as text: the odd one first, then each group with who is in it and where it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tpmon.model.dump import Dump, ShownFrame, StackGroup
from tpmon.model.known import Missing, is_known
from tpmon.model.process import ThreadKind
from tpmon.model.results.results import TreeLine
from tpmon.model.text.dump_words import (
    list_state,
    name_processes,
    name_threads,
    say_count,
    say_last_write,
    say_other,
)
from tpmon.model.text.verdict_words import join_cause, say_confidence
from tpmon.model.units import clean_text, count_of, format_clock, format_seconds
from tpmon.report.collectives import write_collectives
from tpmon.report.dump_errors import write_errors
from tpmon.report.dump_tree import write_tree
from tpmon.report.text import LABEL_WIDTH, WIDTH, cut, lay_paragraph
from tpmon.view.dump import Means
from tpmon.view.dump_locals import locals_of

MOST_FRAMES = 24
"""Of a deeper stack the innermost lines are shown: they say what it does."""
_AGAIN = "again: tpmon dump {pid}"
_STOP = "with --block it is read with a short stop"
_LINE_CHARS = 400

Shorten = Callable[[StackGroup], Sequence[ShownFrame]]
"""Returns the lines of a group's stack, outermost first."""


def write_dump(dump: Dump, shorten: Shorten) -> list[str]:
    """Write the summary, main threads with their stacks, other threads a line each, what was not read."""
    lines: list[str] = []
    main = [group for group in dump.groups if group.threads[0].kind is ThreadKind.MAIN]
    for group in main:
        lines += ["", *_write_group(group, shorten, dump)]
    other = [_say_other(group, dump) for group in dump.groups if group.threads[0].kind is not ThreadKind.MAIN]
    if other:
        lines += ["", "other threads", *(cut(f"  {line}", WIDTH) for line in other)]
    return _clean([*_write_top(dump), *lines, "", *_write_end(dump)])


def write_dump_tree(dump: Dump, tree: Sequence[TreeLine]) -> list[str]:
    """Write the summary, the stacks of all threads merged into a tree, and what was not read."""
    merged = write_tree(tree, with_host=_is_of_several(dump))
    return _clean([*_write_top(dump), *(["", *merged] if merged else []), "", *_write_end(dump)])


def _clean(lines: Sequence[str]) -> list[str]:
    # A dump of another host is text of somebody else.
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
    """Write what the picture decides and what to try; nothing where it names nobody."""
    verdict = dump.verdict
    if isinstance(verdict, Missing):
        return []
    words = [join_cause(verdict.kind, verdict.cause), say_confidence(verdict)]
    lines = lay_paragraph("verdict", f"{', '.join(word for word in words if word)}: {verdict.summary}")
    return [*lines, f"{'try':<{LABEL_WIDTH}}{verdict.try_}"] if is_known(verdict.try_) else lines


def _is_of_several(dump: Dump) -> bool:
    return len({thread.host for group in dump.groups for thread in group.threads}) > 1


def _write_group(group: StackGroup, shorten: Shorten, dump: Dump) -> list[str]:
    """Write who, what they wait for and for how long, and their stack."""
    who = name_processes(group.threads, with_host=_is_of_several(dump))
    head = f"{say_count(group)}{who}: {group.doing}"
    lines = [cut(head, WIDTH), cut(f"  {', '.join(list_state(group))}", WIDTH)]
    if isinstance(group.frames, Missing):
        return [*lines, cut(f"  ? {group.frames.reason}", WIDTH)]
    frames = shorten(group)
    if len(frames) > MOST_FRAMES:
        lines.append(f"    ... {len(frames) - MOST_FRAMES} more")
    below = locals_of(group, frames)
    for place, frame in list(enumerate(frames))[-MOST_FRAMES:]:
        lines.append(cut(f"    {'' if frame.is_users else '- '}{frame.text}", WIDTH))
        lines += [cut(f"        {line}", WIDTH) for line in below.get(place, ())]
    return lines


def _say_other(group: StackGroup, dump: Dump) -> str:
    """Say in one line what threads beside the main ones do."""
    return f"{name_threads(group, with_host=_is_of_several(dump))}: {say_other(group)}"


def _write_end(dump: Dump) -> list[str]:
    """Write what is not in the picture, and what making it cost."""
    lines = write_errors(dump.errors, Means(_AGAIN, "" if dump.paused_ms else _STOP))
    for line in dump.left_out:
        lines += lay_paragraph("not read", line)
    if dump.idle_threads:
        lines += lay_paragraph(
            "not shown",
            f"{count_of(dump.idle_threads, 'native thread')} without a known purpose, most asleep",
        )
    looks = count_of(dump.rounds, "look")
    span = f" over {format_seconds(dump.seconds)}" if dump.rounds > 1 else ""
    stopped = f"stopped the job for {dump.paused_ms:.1f} ms" if dump.paused_ms else "stopped nothing"
    when = f"{looks}{span} at {format_clock(dump.taken)} on {dump.host}"
    cost = f"{when}, py-spy used {dump.spy_cpu_ms:.0f} ms of CPU, {stopped}"
    return [*lines, *lay_paragraph("cost", cost)]
