"""The live list of jobs: what each row says, in which ink, in which order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import Enum

from tpmon.model.known import is_known, known_or
from tpmon.model.results.roster import JobRow, Roster
from tpmon.model.text.job_words import format_step_rate, is_undecided, name_cause
from tpmon.model.units import count_cells, count_of, format_moment, format_seconds
from tpmon.model.verdict import SinceIs, VerdictCode, pick_code
from tpmon.view.layout import Cell, Column, Ink, show

OLD_LOG_S = 60.0
"""From here on the age of a log is marked where the log tells no pace: by then most loops have written."""
_SLOW_HZ = 0.1
_INKS = {
    VerdictCode.FINE: Ink.GOOD,
    VerdictCode.HELD: Ink.WARN,
    VerdictCode.UNDECIDED: Ink.PLAIN,
    VerdictCode.HUNG: Ink.BAD,
}
_URGENCY = (VerdictCode.HUNG, VerdictCode.HELD, VerdictCode.UNDECIDED, VerdictCode.FINE)


class JobOrder(Enum):
    """Name the orders of the list in the words of its rule."""

    ILL = "ill first"
    CPU = "by CPU"
    GPU = "by GPU"
    AGE = "oldest first"
    SCRIPT = "by script"


def rate_row(row: JobRow) -> VerdictCode:
    """Return how bad a row is; undecided where nothing is known."""
    if row.reading.is_stopped:
        return VerdictCode.HUNG
    if not is_known(row.finding):
        return VerdictCode.UNDECIDED
    return VerdictCode(pick_code(row.finding.kind, row.finding.cause))


def sort_jobs(rows: Sequence[JobRow], order: JobOrder) -> list[JobRow]:
    """Sort the rows; those that have ended come last."""
    ranks: dict[JobOrder, Callable[[JobRow], float | str]] = {
        JobOrder.ILL: lambda row: _URGENCY.index(rate_row(row)),
        JobOrder.CPU: lambda row: -known_or(row.reading.cpu_cores, 0.0),
        JobOrder.GPU: lambda row: -known_or(row.reading.gpu_pct, -1.0),
        JobOrder.AGE: lambda _row: 0,
        JobOrder.SCRIPT: lambda row: row.reading.summary.script.lower(),
    }
    rank = ranks[order]
    return sorted(
        rows,
        key=lambda row: (
            is_known(row.ended_ns),
            rank(row),
            -row.reading.summary.uptime_s,
            row.reading.root.pid,
        ),
    )


def name_job(row: JobRow) -> str:
    """Write the script with its arguments."""
    summary = row.reading.summary
    return f"{summary.script} {known_or(summary.arguments, '')}".rstrip()


def matches(row: JobRow, text: str) -> bool:
    """Tell whether a row has a text in its PID, user, script, arguments or verdict."""
    summary = row.reading.summary
    words = f"{summary.pid} {summary.user} {name_job(row)} {name_word(row)}"
    return text.lower() in words.lower()


def name_word(row: JobRow) -> str:
    """Write the one word of a row: its verdict, its end, or "-" where nothing is known for certain."""
    if is_known(row.ended_ns):
        return "ended"
    if row.reading.is_stopped:
        return "stopped"
    if is_known(row.finding) and not is_undecided(row.finding):
        return row.finding.kind.value
    return "looking" if row.is_looked_at else "-"


def _paint_word(row: JobRow) -> Cell:
    if is_known(row.ended_ns):
        return name_word(row), Ink.DIM
    word = name_word(row)
    return word, Ink.DIM if word in ("-", "looking") else _INKS[rate_row(row)]


def tell_pace(row: JobRow) -> Cell:
    """Write how fast steps go by the log, else its age; "-" for a job without one, "" for one that ended."""
    if is_known(row.ended_ns):
        return ""
    pace, age_s = row.reading.pace, row.reading.log_age_s
    if is_known(pace) and not pace.is_old:
        if 0 < pace.rate_hz < _SLOW_HZ:
            return f"{format_seconds(1 / pace.rate_hz)}/{pace.unit}"
        return f"{format_step_rate(pace.rate_hz)} {pace.unit}/s"
    if is_known(pace):
        return f"log {_say_age(pace.age_s)}", Ink.WARN
    if is_known(age_s):
        said = f"log {_say_age(age_s)}"
        return (said, Ink.WARN) if age_s >= OLD_LOG_S else said
    return "-", Ink.DIM


def _say_age(seconds: float) -> str:
    """Write an age so coarsely that it seldom changes: 3 s, 40 s, 26m, 3h12m."""
    if seconds < 10:
        return f"{max(0, int(seconds))} s"
    if seconds < 60:
        return f"{10 * int(seconds // 10)} s"
    return f"{int(seconds // 60)}m" if seconds < 3600 else format_seconds(seconds)


def _tell_since(row: JobRow, now: datetime) -> str:
    finding = row.finding
    if is_known(row.ended_ns) or not is_known(finding) or is_undecided(finding):
        return ""
    clock = format_moment(min(finding.since, now), now, seconds=False)
    return f"<{clock}" if finding.since_is is SinceIs.LOWER_BOUND else clock


def _tell_judged(row: JobRow, now_ns: int) -> Cell:
    if is_known(row.ended_ns):
        return f"{_say_age((now_ns - row.ended_ns) / 1e9)} ago", Ink.DIM
    if row.is_looked_at:
        return "now", Ink.DIM
    judged_ns = row.judged_ns
    return (f"{_say_age((now_ns - judged_ns) / 1e9)} ago" if is_known(judged_ns) else "-"), Ink.DIM


def list_job_columns(rows: Sequence[JobRow], now: datetime, now_ns: int) -> tuple[Column[JobRow], ...]:
    """Make the columns: where there is little room, script, pace and verdict stay."""

    def widest(read: Callable[[JobRow], str], least: int, most: int) -> int:
        return min(most, max(least, *(count_cells(read(row)) for row in rows)))

    def user(row: JobRow) -> str:
        return row.reading.summary.user

    has_cards = any(is_known(row.reading.gpu_pct) for row in rows)
    has_causes = any(map(_name_cause, rows))
    columns: tuple[Column[JobRow], ...] = (
        Column("PID", widest(lambda row: str(row.reading.root.pid), 3, 10), 4, _tell_pid),
        Column("USER", widest(user, 4, 12), 8, user, right=False),
        Column("SCRIPT", 10, 0, name_job, right=False, grows=True),
        Column("RANKS", 5, 6, lambda row: show(row.reading.summary.ranks, str)),
        Column("PACE", 11, 2, tell_pace),
        Column("CPU", 5, 5, _tell_cores),
        Column("GPU", 5 if has_cards else 0, 5, _tell_cards),
        Column("VERDICT", widest(name_word, 9, 15), 1, _paint_word, right=False),
        Column("CAUSE", widest(_name_cause, 5, 20) if has_causes else 0, 7, _name_cause, right=False),
        Column("SINCE", 6, 3, lambda row: _tell_since(row, now), right=False),
        Column("JUDGED", 9, 10, lambda row: _tell_judged(row, now_ns)),
    )
    return tuple(column for column in columns if column.width)


def _tell_cores(row: JobRow) -> str:
    return "" if is_known(row.ended_ns) else show(row.reading.cpu_cores, lambda cores: f"{cores:.1f}")


def _tell_cards(row: JobRow) -> str:
    return "" if is_known(row.ended_ns) else show(row.reading.gpu_pct, lambda pct: f"{pct:.0f} %")


def _tell_pid(row: JobRow) -> Cell:
    pid = str(row.reading.root.pid)
    return (pid, Ink.STRONG) if row.is_new else pid


def _name_cause(row: JobRow) -> str:
    finding = row.finding
    if is_known(row.ended_ns) or row.reading.is_stopped or not is_known(finding) or is_undecided(finding):
        return ""
    return name_cause(finding)


def say_unread_jobs(roster: Roster) -> str:
    """Say how many processes may be jobs too; "" for none."""
    hidden = roster.unread + roster.unanswered
    one, many = "Python process that may be one", "Python processes that may be jobs"
    return f"{count_of(hidden, one, many)} could not be read" if hidden else ""
