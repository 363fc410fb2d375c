"""Write one Frame as text, its verdict first, for ``--check`` and ``--once``.

Lines have at most 100 columns, except commands to paste. Tables and figures are those of the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tpmon.model.frame import Frame, TargetState
from tpmon.model.gpu import GpuSample, list_missed
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.process import Outcome, Role
from tpmon.model.text import job_words
from tpmon.model.units import count_of, format_bytes, format_clock, format_seconds, say_pct
from tpmon.model.verdict import END_CAUSES, EXIT_CODES, Finding, Kind, pick_code
from tpmon.own_command import as_called
from tpmon.report.blocks import write_rows, write_unread
from tpmon.view.cards import card_ink, list_card_columns, order_cards, say_troubles
from tpmon.view.job import describe_io, describe_job, say_device, say_settings
from tpmon.view.layout import (
    LABEL_WIDTH,
    WIDTH,
    Ink,
    cut,
    explain,
    lay_paragraph,
    lay_phrases,
    show,
    wrap_all,
)
from tpmon.view.ranks import join_ranks, list_rank_columns, list_worker_columns, name_ranks

MOST_RANKS = 32
MOST_WORKERS = 8
MOST_EVENTS = 5
_ALL_COLUMNS = 120
"""Cells of a pane that shows all columns of workers."""
_UNREAD_APART = ("verdict", "self_", "ages_s")
"""Parts of a Frame that report their own gaps."""


def describe_target(frame: Frame) -> str:
    """Name the job in a few words: 48213 train.py, 2 ranks, 4 workers."""
    target = frame.target
    ranks = count_of(target.local_ranks, "rank")
    if is_known(target.world_size) and target.world_size != target.local_ranks:
        ranks += f" of {target.world_size}"
    return f"{target.pid} {target.script}, {ranks}, {count_of(target.local_workers, 'worker')}"


def _write_who(frame: Frame) -> list[str]:
    target = frame.target
    up_s = (frame.taken - target.start).total_seconds()
    words = [
        describe_target(frame),
        f"user {target.user}",
        f"host {target.host}",
        f"up {format_seconds(up_s)}",
        f"torch {show(target.torch_version, str)}",
        f"Python {show(target.python_version, str)}",
    ]
    if target.asked_pid != target.pid:
        words.append(f"asked for {target.asked_pid}")
    state = target.state.value
    if target.state is TargetState.ENDED:
        state = f"ended: {explain(target.ended, str)}"
    lines = lay_phrases("job", words)
    lines += lay_paragraph("state", f"{state}, read {frame.taken.isoformat(sep=' ', timespec='seconds')}")
    lines += lay_paragraph("facts", frame.facts)
    for note in frame.notes:
        lines += lay_paragraph("note", note)
    return lines


def _write_ranks(frame: Frame) -> list[str]:
    ranks = sorted(join_ranks(frame), key=lambda one: (known_or(one.row.rank, 1 << 30), one.row.pid))
    named = name_ranks(frame) or count_of(len(ranks), "process", "processes")
    lines = [f"ranks    {named} (rank numbers: {frame.target.rank_source})"]
    lines += write_rows(list_rank_columns(frame, ranks, WIDTH), ranks[:MOST_RANKS])
    if len(ranks) > MOST_RANKS:
        lines.append(f"  and {count_of(len(ranks) - MOST_RANKS, 'more rank')}")
    return lines


def _write_hook(frame: Frame) -> list[str]:
    pid = None if isinstance(frame.steps, Missing) else frame.steps.pid
    hook = next((one for one in known_or(frame.hook, ()) if one.pid == pid), None)
    if hook is None:
        return []
    lines = lay_phrases("settings", say_settings(hook.settings)) if is_known(hook.settings) else []
    device = say_device(hook.device) if is_known(hook.device) else ""
    return [*lines, *(lay_paragraph("device", device) if device else ())]


def _write_workers(frame: Frame) -> list[str]:
    workers = [one for one in frame.processes if one.role is Role.WORKER]
    others = [one for one in frame.processes if one.role in (Role.COMPILE, Role.HELPER, Role.LAUNCHER)]
    lines = []
    if workers:
        shares = [one.cpu_pct for one in workers if is_known(one.cpu_pct)]
        cpu = say_pct(sum(shares)) if shares else "?"
        rss = format_bytes(sum(one.rss_bytes for one in workers))
        shared = "shared pages more than once"
        lines.append(f"workers  {len(workers)}, CPU {cpu} together, RSS {rss} together ({shared})")
        busiest = sorted(workers, key=lambda one: (-known_or(one.cpu_pct, 0.0), one.pid))
        lines += write_rows(list_worker_columns(_ALL_COLUMNS, {}), busiest[:MOST_WORKERS])
        if len(workers) > MOST_WORKERS:
            lines.append(f"  and {len(workers) - MOST_WORKERS} more that use no more CPU")
    if others:
        names = [f"{one.role.value} {one.pid} {one.label}" for one in others[:MOST_WORKERS]]
        more = len(others) - MOST_WORKERS
        lines += lay_phrases("others", [*names, f"and {more} more"] if more > 0 else names)
    return lines


def _write_gpus(frame: Frame) -> list[str]:
    if isinstance(frame.gpus, Missing):
        return lay_paragraph("gpus", f"not read: {frame.gpus.reason}")
    if not frame.gpus:
        return lay_paragraph("gpus", "none on this machine")
    words = [f"{len(frame.gpus)} x {', '.join(dict.fromkeys(card.name for card in frame.gpus))}"]
    if is_known(frame.driver):
        words.append(f"driver {show(frame.driver.driver_version, str)}")
        words.append(f"CUDA {show(frame.driver.cuda_version, str)}")
    instances = sum(len(card.mig_instances) for card in frame.gpus)
    words += [count_of(instances, "MIG instance")] if instances else []

    def below(card: GpuSample) -> list[str]:  # the column has no room for all troubles
        return wrap_all(say_troubles(card), WIDTH - 4) if card_ink(card) is not Ink.PLAIN else []

    return [*lay_phrases("gpus", words), *write_rows(list_card_columns(), order_cards(frame.gpus), below)]


def _write_figures(frame: Frame) -> list[str]:
    lines: list[str] = []
    for group in (*describe_job(frame), describe_io(frame)):
        phrases = (fact.phrase.removeprefix(f"{group.label} ") for fact in group.facts if not fact.is_minor)
        lines += lay_phrases(group.label, phrases)
    return lines


def _write_output(frame: Frame) -> list[str]:
    lines = []
    for output in frame.output:
        age = explain(output.last_write_age_s, format_seconds)
        lines.append(cut(f"log      {output.path}, last written {age} ago", WIDTH))
        lines += [cut(f"  : {line}", WIDTH) for line in output.lines]
    for event in frame.events[-MOST_EVENTS:]:
        lines += lay_paragraph("event", f"{format_clock(event.time)} {event.kind.value}: {event.text}")
    return lines


def write_once(frame: Frame) -> list[str]:
    """Write a Frame as text, its verdict first, what was not read last."""
    return [
        *write_verdict(frame, full=False),
        *_write_who(frame),
        *_write_ranks(frame),
        *_write_workers(frame),
        *_write_gpus(frame),
        *_write_figures(frame),
        *_write_hook(frame),
        *_write_output(frame),
        *write_unread(frame, _UNREAD_APART),
    ]


MOST_EVIDENCE = 5


def write_check(frame: Frame) -> str:
    """Write the verdict as one line, for ``--check``, and for ``--plain`` when it changes."""
    return write_line(frame.verdict, frame.taken, frame.notes)


def write_line(finding: Known[Finding], now: datetime, notes: Sequence[str] = ()) -> str:
    """Write a verdict as one line."""
    if isinstance(finding, Missing):
        return f"no verdict: {finding.reason}"
    sure = [job_words.say_confidence(finding), job_words.say_since_in_full(finding, now)]
    words = ", ".join(word for word in (job_words.name_verdict(finding), *sure) if word)
    tried = as_called(_join_lines(job_words.list_try(finding)))
    advice = f". Try: {tried}" if tried else ""
    said = "".join(f". Note: {note}" for note in notes)
    return f"{words}: {finding.summary}{advice}{said}"


def _join_lines(lines: Sequence[str]) -> str:
    """Write what is to be pasted in one line: what a line ends with a colon begins goes on after it."""
    joined = ""
    for line in lines:
        joined += f"{'' if not joined else ' ' if joined.endswith(':') else '; '}{line.strip()}"
    return joined


def write_verdict(frame: Frame, *, full: bool = True) -> list[str]:
    """Write the verdict in at most 100 columns; commands to paste keep their lines.

    With ``full`` all evidence, and everything that was ruled out or is unknown; else most of it.
    """
    return write_finding(frame.verdict, frame.taken, frame.notes if full else (), full=full)


def write_finding(
    finding: Known[Finding], now: datetime, notes: Sequence[str] = (), *, full: bool = True
) -> list[str]:
    """Write a verdict and the notes beside it, as ``write_verdict`` does."""
    if isinstance(finding, Missing):
        return lay_paragraph("verdict", f"none: {finding.reason}")
    words = [job_words.write_kind(finding), job_words.name_cause(finding), job_words.say_confidence(finding)]
    words += [job_words.say_since_in_full(finding, now), job_words.say_share(finding)]
    lines = lay_phrases("verdict", [word for word in words if word])
    lines += lay_paragraph("", finding.summary)
    tried = enumerate(map(as_called, job_words.list_try(finding)))
    lines += [f"{'' if number else 'try':<{LABEL_WIDTH}}{text}" for number, text in tried]
    ceiling = job_words.say_ceiling(finding) if is_known(finding.ceiling) or full else ""
    lines += lay_paragraph("", ceiling) if ceiling else []
    for label, rows in (("evidence", finding.evidence), ("against", finding.against)):
        shown = rows if full else rows[:MOST_EVIDENCE]
        texts = []
        for row in shown:
            age = f"{format_seconds(row.age_s)} old" if is_known(row.age_s) else f"age ? {row.age_s.reason}"
            texts.append(f"{row.name}: {job_words.say_value(row)} ({row.source}, {age})")
        if len(shown) < len(rows):
            texts.append(f"and {len(rows) - len(shown)} more")
        for number, text in enumerate(texts):
            lines += lay_paragraph("" if number else label, text)
    if full:
        lines += _write_also(finding)
    for label, told in (("not", finding.ruled_out), ("unknown", finding.unknown)):
        if told and full:
            lines += lay_phrases(label, told)
        elif told:
            lines += lay_paragraph(label, job_words.shorten(told, WIDTH - LABEL_WIDTH))
    for note in notes:
        lines += lay_paragraph("note", note)
    return lines


def _write_also(finding: Finding) -> list[str]:
    """Write what else may help; commands to paste keep their lines, indented below their purpose."""
    lines: list[str] = []
    for first, *pasted in job_words.list_also(finding):
        lines.append(f"{'' if lines else 'also try':<{LABEL_WIDTH}}{as_called(first)}")
        lines += [f"{'':<{LABEL_WIDTH}}  {as_called(text)}" for text in pasted]
    return lines


def pick_exit_code(frame: Frame) -> int:
    """Return the exit code of a Frame's verdict; of a job that has ended that of how it ended.

    None is well while a card that the job is on, or may be, does not answer.
    """
    target = frame.target
    if target.state is TargetState.ENDED:
        return pick_code(Kind.IDLE, END_CAUSES[known_or(target.outcome, Outcome.UNKNOWN)])
    finding = frame.verdict
    if not is_known(finding):
        return EXIT_CODES[Kind.NOT_ENOUGH_EVIDENCE]
    code = pick_code(finding.kind, finding.cause)
    missed = list_missed(known_or(frame.gpus, ()))
    return code if code or not missed else EXIT_CODES[Kind.NOT_ENOUGH_EVIDENCE]
