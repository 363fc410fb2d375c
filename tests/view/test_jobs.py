"""The words of the live list: never more than is known, ill jobs first."""

import pytest

from tests.frames import NOW, NOW_NS, make_log_pace
from tests.rosters import make_row, make_rows
from tpmon.model.known import Missing
from tpmon.model.results.doctor import JobState
from tpmon.model.verdict import Kind
from tpmon.view.jobs import JobOrder, list_job_columns, matches, name_word, sort_jobs, tell_pace
from tpmon.view.layout import Ink, Table, text_of


def names(rows):
    return [row.reading.summary.script.removesuffix(".py") for row in rows]


@pytest.mark.parametrize(
    ("row", "word"),
    [
        (make_row(), "-"),
        (make_row(is_looked_at=True), "looking"),
        (make_row(kind=Kind.NOT_ENOUGH_EVIDENCE), "-"),
        (make_row(kind=Kind.NOT_ENOUGH_EVIDENCE, is_looked_at=True), "looking"),
        (make_row(kind=Kind.DATA_BOUND, is_looked_at=True), "data-bound"),
        (make_row(kind=Kind.BALANCED, state=JobState.STOPPED), "stopped"),
        (make_row(kind=Kind.BALANCED, ended_ns=1), "ended"),
    ],
)
def test_a_word_is_claimed_only_with_evidence(row, word):
    assert name_word(row) == word
    table = Table(list_job_columns((row,), NOW, NOW_NS), 120)
    assert word in text_of(table.paint_row(row)).split()


@pytest.mark.parametrize(
    ("changes", "cell"),
    [
        ({}, ("-", Ink.DIM)),
        ({"ended_ns": 1, "log_age_s": 400.0}, ""),
        ({"log_age_s": 4.0}, "log 4 s"),
        ({"log_age_s": 61.0}, ("log 1m", Ink.WARN)),
        ({"log_age_s": 7300.0}, ("log 2h01m", Ink.WARN)),
        ({"log_age_s": Missing("not permitted")}, ("-", Ink.DIM)),
        ({"pace": make_log_pace(rate_hz=3.2149)}, "3.21 step/s"),
        ({"pace": make_log_pace(rate_hz=1250.0, unit="sample")}, "1250 sample/s"),
        ({"pace": make_log_pace(rate_hz=0.02)}, "50 s/step"),
        ({"pace": make_log_pace(age_s=1580.0), "log_age_s": 2.0}, ("log 26m", Ink.WARN)),
    ],
)
def test_the_pace_is_that_of_the_log_and_else_the_age_of_the_log(changes, cell):
    assert tell_pace(make_row(**changes)) == cell


def test_ill_jobs_come_first_those_that_ended_last():
    assert names(sort_jobs(make_rows(), JobOrder.ILL)) == [
        *("finetune", "paused", "vit.train", "pretrain", "sweep", "train", "done")
    ]
    assert names(sort_jobs(make_rows(), JobOrder.GPU))[:2] == ["finetune", "train"]
    assert names(sort_jobs(make_rows(), JobOrder.SCRIPT))[:2] == ["finetune", "paused"]
    rows = [make_row(1, uptime_s=5.0), make_row(2, uptime_s=50.0), make_row(3, uptime_s=9.0, cpu_cores=7.0)]
    assert [row.reading.root.pid for row in sort_jobs(rows, JobOrder.AGE)] == [2, 3, 1]
    assert [row.reading.root.pid for row in sort_jobs(rows, JobOrder.CPU)] == [3, 2, 1]


def test_a_filter_looks_at_pid_user_script_arguments_and_verdict():
    row = make_row(4211, "train.py", Kind.DATA_BOUND)
    for text in ("", "421", "ADA", "train", "3e-4", "data-b"):
        assert matches(row, text), text
    assert not matches(row, "eval")
