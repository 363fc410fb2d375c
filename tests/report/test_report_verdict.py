"""The verdict as text: one line, the block that --once begins with, all of it, and what --plain says."""

from datetime import timedelta, timezone

import pytest

from tests.frames import NOW, make_event, make_evidence, make_finding, make_frame
from tests.reports import at, said
from tpmon.model.frame import EventKind
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.text.job_words import say_since, say_value, shorten
from tpmon.model.verdict import Kind, SinceIs
from tpmon.report.once import write_check, write_once, write_verdict
from tpmon.report.plain import write_status


def test_once_begins_with_the_verdict_and_what_to_try():
    finding = make_finding(
        try_="do this:\nfirst  # two blanks",
        evidence=tuple(make_evidence(f"reading {n}") for n in range(7)),
        against=(make_evidence("prefetch", value=Missing(""), text="3 of 4", age_s=Missing("never")),),
        ruled_out=tuple(f"cause number {n} (looked at)" for n in range(12)),
        unknown=("NCCL wait (no hook)",),
    )
    lines = write_once(make_frame(verdict=finding))
    assert lines[:6] == [
        "verdict  DATA-BOUND, cpu-transform, confidence high, since 03:02 (5 min), onset in the history,",
        "         costs 58 % (54 to 62)",
        "         the loop waits for a batch 58 % of the time while 4 workers compute transforms",
        "try      do this:",
        "         first  # two blanks",
        "         Ceiling: 2.4x if all of it goes away",
    ]
    text = "\n".join(lines)
    assert "evidence reading 0: 82 % (loader pipes, 200 looks, 0.1 s old)" in text
    assert "         and 2 more" in text
    assert "against  prefetch: 3 of 4 (loader pipes, 200 looks, age ? never)" in text
    assert "(+10 more)" in text
    assert "unknown  NCCL wait (no hook)" in text


def test_the_full_verdict_leaves_nothing_out():
    finding = make_finding(
        evidence=tuple(make_evidence(f"reading {n}") for n in range(9)),
        ruled_out=tuple(f"cause number {n} (looked at)" for n in range(12)),
        ceiling=Missing("the share is not known"),
    )
    text = " ".join(" ".join(write_verdict(make_frame(verdict=finding))).split())
    assert all(f"reading {n}:" in text for n in range(9))
    assert all(cause in text for cause in finding.ruled_out)
    assert "Ceiling: ? the share is not known" in text
    assert "more" not in text
    assert "Ceiling" not in "".join(write_verdict(make_frame(verdict=finding), full=False))


@pytest.mark.parametrize(
    ("finding", "line"),
    [
        (Missing("not judged"), "no verdict: not judged"),
        (
            make_finding(try_=NOT_APPLICABLE, summary="it waits"),
            "data-bound (cpu-transform), confidence high, since 03:02 (5 min), onset in the history: it waits",
        ),
        (
            make_finding(
                kind=Kind.HUNG,
                cause="lock",
                since=NOW - timedelta(hours=3, minutes=12),
                since_is=SinceIs.LOWER_BOUND,
                since_source="last log write 23:55:41",
                summary="it waits",
                try_="dump it:\npaste",
            ),
            "hung (lock), confidence high, at least 3h12m (last log write 23:55:41): it waits. Try: dump it:",
        ),
        (
            make_finding(kind=Kind.NOT_ENOUGH_EVIDENCE, cause=NOT_APPLICABLE, summary="looking", try_=NOT_APPLICABLE),
            "not-enough-evidence: looking",
        ),
    ],
)
def test_a_verdict_in_one_line(finding, line):
    assert write_check(make_frame(verdict=finding)) == line


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (58.0, "%", "58 %"),
        (1.94, "CPUs", "1.94 CPUs"),
        (14.23, "threads", "14.2 threads"),
        (1500.0, "files/s", "1500 files/s"),
        (7.05, "x", "7.05x"),
        (3 << 30, "bytes", "3.0G"),
        (2.5e6, "bytes/s", "2.4M/s"),
        (94.0, "s", "1m34s"),
        (3.0, "", "3"),
        (Missing("no driver"), "%", "? no driver"),
    ],
)
def test_evidence_carries_its_unit(value, unit, words):
    assert say_value(make_evidence(value=value, unit=unit)) == words


@pytest.mark.parametrize(
    ("ago", "words"),
    [
        (timedelta(seconds=7), "since 03:07:34 (7 s)"),
        (timedelta(seconds=47), "since 03:06:54 (40 s)"),
        (timedelta(minutes=26, seconds=50), "since 02:40 (26 min)"),
        (timedelta(hours=3, minutes=12), "since Mar 13 23:55 (3h12m)"),
        (timedelta(seconds=-2), "since 03:07:43"),
    ],
)
def test_since_is_a_time_of_day_and_a_coarse_span(ago, words):
    assert say_since(make_finding(since=NOW - ago), NOW) == words
    other_zone = (NOW - ago).astimezone(timezone(timedelta(hours=9)))
    assert say_since(make_finding(since=other_zone), NOW) == words


def test_lists_are_shortened_honestly():
    texts = ("aaaa", "bbbb", "cccc", "dddd")
    assert shorten(texts, 22) == "aaaa, bbbb, cccc, dddd"
    assert shorten(texts, 19) == "aaaa (+3 more)"
    assert shorten(texts, 21) == "aaaa, bbbb (+2 more)"
    assert shorten(texts, 13) == "aa… (+3 more)"
    assert shorten(texts[:1], 1) == "aaaa"
    assert shorten((), 10) == ""


def test_plain_says_another_kind_or_cause_and_nothing_else_of_the_verdict():
    undecided = make_finding(kind=Kind.NOT_ENOUGH_EVIDENCE, cause=NOT_APPLICABLE, summary="looking")
    event = make_event("verdict: data-bound (cpu-transform)", kind=EventKind.VERDICT)
    frames = [at(0, verdict=Missing("not judged")), at(1, verdict=undecided), at(2, verdict=make_finding())]
    frames += [at(3, verdict=make_finding(summary="another number"), events=(event,))]
    frames += [at(4, verdict=make_finding(cause="pin")), at(5, verdict=undecided)]
    lines = [line for line in said(frames) if "verdict" in line]
    assert [" ".join(line.split()[:4]) for line in lines] == [
        "03:07:43 verdict: data-bound (cpu-transform),",
        "03:07:45 verdict: data-bound (pin),",
        "03:07:46 verdict: not-enough-evidence: looking.",
    ]
    assert lines[0].endswith("for each rank")


def test_plain_says_that_there_is_no_verdict_after_a_while():
    undecided = make_finding(kind=Kind.NOT_ENOUGH_EVIDENCE, cause=NOT_APPLICABLE, summary="it does not decide")
    lines = [line for line in said([at(n, verdict=undecided) for n in range(40)]) if "verdict" in line]
    assert [line.split()[0] for line in lines] == ["03:07:56"]


def test_the_heartbeat_and_the_status_name_the_verdict():
    lines = said([at(n, verdict=make_finding()) for n in range(70)])
    assert "no change: data-bound (cpu-transform); 2 workers" in lines[-1]
    assert "1 rank, 2 workers: data-bound (cpu-transform); 2 workers" in write_status(at(0, verdict=make_finding()))


def test_a_note_is_said_once_whatever_its_figures_do():
    def waits(pct):
        return (f"other-tenants: the job waits {pct} % of 1.{pct % 10} CPUs",)

    frames = [at(n, notes=waits(70 + n % 9) if n % 4 else ()) for n in range(30)]
    frames += [at(30 + n) for n in range(10)]
    lines = [line for line in said(frames) if "other-tenants" in line]
    assert [line.split(": ")[0] for line in lines] == ["03:07:42 note", "03:08:15 no longer"]


def test_what_is_true_beside_the_verdict_is_said_by_check_and_diagnose():
    frame = at(0, verdict=make_finding(), notes=("other-tenants: others use the CPUs",))
    assert write_check(frame).endswith(". Note: other-tenants: others use the CPUs")
    assert any("note" in line and "other-tenants" in line for line in write_verdict(frame))
