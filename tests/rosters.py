"""Lists of jobs as the live list gets them."""

from dataclasses import replace
from datetime import timedelta

from tests.frames import NOW, NOW_NS, make_finding, make_log_pace
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Identity
from tpmon.model.results.doctor import JobState, JobSummary
from tpmon.model.results.roster import NOT_JUDGED_YET, JobReading, JobRow, Roster
from tpmon.model.verdict import Kind, SinceIs

NO_LOG = Missing("the job writes its output to no regular file")


def make_row(pid=4211, script="train.py", kind=None, cause=NOT_APPLICABLE, *, minutes=5.0, bound=False, **changes):
    """Make a row; ``kind`` is its verdict, of so many minutes ago."""
    of_row = {one: changes.pop(one) for one in ("judged_ns", "is_looked_at", "is_new", "ended_ns") if one in changes}
    of_summary = {
        one: changes.pop(one) for one in ("user", "state", "arguments", "ranks", "uptime_s") if one in changes
    }
    summary = JobSummary(pid, "ada", JobState.RUNNING, script, "--lr 3e-4", 1, 2, 0, 720.0)
    reading = JobReading(Identity(pid, pid), replace(summary, **of_summary), 4, 1.25, NOT_APPLICABLE, NO_LOG, NO_LOG)
    finding = NOT_JUDGED_YET
    if kind is not None:
        is_since = SinceIs.LOWER_BOUND if bound else SinceIs.ONSET
        since = NOW - timedelta(minutes=minutes)
        finding = replace(make_finding(), kind=kind, cause=cause, since=since, since_is=is_since)
        of_row.setdefault("judged_ns", NOW_NS - 12_000_000_000)
    return replace(JobRow(replace(reading, **changes), finding), **of_row)


def make_rows():
    """Make the rows of a night with one of each."""
    return (
        make_row(4211, "train.py", Kind.BALANCED, pace=make_log_pace(rate_hz=3.21), log_age_s=0.4, gpu_pct=97.0),
        make_row(5300, "finetune.py", Kind.HUNG, "missing-rank", ranks=8, bound=True, log_age_s=1580.0, gpu_pct=100.0),
        make_row(6100, "vit.train", Kind.DATA_BOUND, "cpu-transform", pace=make_log_pace(rate_hz=0.02, unit="it")),
        make_row(7000, "pretrain.py", user="charlotte", is_looked_at=True, log_age_s=3.0, is_new=True),
        make_row(8000, "sweep.py", Kind.NOT_ENOUGH_EVIDENCE),
        make_row(9000, "paused.py", Kind.BALANCED, state=JobState.STOPPED),
        make_row(9900, "done.py", Kind.BALANCED, ended_ns=NOW_NS - 130_000_000_000),
    )


def make_roster(rows=None, **changes):
    """Make a list of such rows."""
    return Roster(NOW_NS, make_rows() if rows is None else tuple(rows), **changes)
