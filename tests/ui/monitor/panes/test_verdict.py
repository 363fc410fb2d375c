"""The verdict block says word, cause, confidence, since and what to try at every size, and cuts honestly."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import NOW, NOW_NS, make_event, make_evidence, make_finding, make_frame, make_pulses, make_target
from tests.frames import make_view as make_any_view
from tests.painted import find_wrong, join, texts_of
from tpmon.model.frame import EventKind, TargetState, pulse_of
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.units import count_cells
from tpmon.model.verdict import BEFORE_THE_END, IN_WORDS, TABLE, Confidence, Kind, SinceIs
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor.layout import paint_screen
from tpmon.ui.monitor.panes import verdict
from tpmon.ui.monitor.state import Pane
from tpmon.view.layout import Ink, Size

HUNG = make_finding(
    kind=Kind.HUNG,
    cause="missing-rank",
    confidence=Confidence.MEDIUM,
    since=NOW - timedelta(minutes=26),
    since_is=SinceIs.LOWER_BOUND,
    since_source="last log write 02:41:41",
    summary="rank 3 is not in the all-reduce",
    try_="dump the stacks",
    ceiling=NOT_APPLICABLE,
)


def judged(finding, **fields):
    return make_frame(verdict=finding, **fields)


def screen(finding, width, height, **fields):
    return texts_of(paint_screen(make_any_view(judged(finding), **fields), Size(width, height)))


def block(finding, width=100, most=30, **fields):
    frame = judged(finding, **fields)
    return texts_of(verdict.paint_verdict(make_any_view(frame), frame, finding, width, most))


def test_the_smallest_screen_has_the_word_in_a_line_of_its_own():
    assert screen(HUNG, 20, 5)[1:4] == [" !! HUNG", " missing-rank", " at least 26 min"]
    assert screen(make_finding(), 20, 5)[1] == " ! DATA-BOUND"
    assert screen(make_finding(), 6, 2)[1] == " DATA…"


LAST_WORDS = make_evidence("the log ends with", value=IN_WORDS, unit="", text="RuntimeError: bad shape")
FAILED = make_finding(kind=Kind.IDLE, cause="failed", summary="the job has ended: exit 1", evidence=(LAST_WORDS,))
BEFORE = make_evidence(BEFORE_THE_END, text="HUNG missing-rank, confidence medium: rank 1 is not there")


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        (FAILED, "\n the log ends with: RuntimeError: bad shape|~IDLE"),
        (replace(FAILED, evidence=()), "\n the job has ended: exit 1"),
        (HUNG, "\n ENDED|\n last verdict: HUNG  missing-rank  confidence medium"),
        (
            replace(FAILED, evidence=(BEFORE,)),
            "\n last verdict: HUNG missing-rank, confidence medium|~last verdict: IDLE",
        ),
    ],
    ids=["last words of the log", "no words", "the verdict", "the verdict from before its end"],
)
def test_a_job_that_ended_says_how_and_what_the_verdict_was(finding, words):
    target = make_target(state=TargetState.ENDED, ended="exit 1")
    view = make_any_view(judged(finding, target=target))
    assert find_wrong(words, join(paint_screen(view, Size(80, 24)))) == []
    assert " exit 1" in texts_of(paint_screen(view, Size(20, 5)))[1]


@pytest.mark.parametrize("what", [{"overlay": Overlay.STACKS}, {"zoom": Pane.CPU}, {"overlay": Overlay.HELP}])
def test_the_smallest_screen_keeps_the_word_above_what_a_key_asked_for(what):
    frame = make_frame(verdict=HUNG)
    said = texts_of(paint_screen(make_any_view(frame, **what), Size(20, 6)))
    assert said[0].split() == ["LIVE", "1", "s", "HUNG"]
    assert texts_of(paint_screen(make_any_view(frame, **what), Size(8, 6)))[0].split() == ["HUNG"]
    asked = make_any_view(frame, message="copied", **what)
    assert texts_of(paint_screen(asked, Size(20, 6)))[0] == " copied"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.kind.value)
def test_severity_is_a_sign_and_an_ink_and_the_smallest_screen_keeps_state_and_word(row):
    sign, ink = {0: ("", Ink.GOOD), 10: ("! ", Ink.WARN), 11: ("? ", Ink.STRONG), 12: ("!! ", Ink.BAD)}[row.exit_code]
    finding = make_finding(kind=row.kind)
    first = verdict.paint_headline(judged(finding), finding, 80)[0]
    assert first[1] == (f"{sign}{row.kind.value.upper()}", ink)
    assert verdict.kind_ink(finding) is ink
    for width in (20, 24):
        assert row.kind.value.upper() in screen(finding, width, 5)[1]
    cause = row.causes[0] if row.causes else NOT_APPLICABLE
    lines = screen(make_finding(kind=row.kind, cause=cause), 20, 5, overlay=Overlay.VERDICT)
    assert lines[0].split()[:3] == ["LIVE", "1", "s"]
    assert row.kind.value.upper()[:15] in lines[1] + lines[2]


def test_the_first_line_says_what_is_known():
    assert "since 03:02 (5 min), onset in the history" in block(make_finding(), width=130)[0]
    assert screen(make_finding(), 40, 50)[2] == " confidence high  since 03:02 (5 min)"
    nothing = make_finding(kind=Kind.NOT_ENOUGH_EVIDENCE, cause=NOT_APPLICABLE, share_pct=NOT_APPLICABLE)
    assert block(nothing)[0] == " ? NOT-ENOUGH-EVIDENCE", "neither confidence nor since"
    assert "cause ? no stacks" in block(make_finding(cause=Missing("no stacks")))[0]
    failed = make_finding(kind=Kind.IDLE, cause="failed")
    assert verdict.paint_headline(judged(failed), failed, 80)[0][1] == ("! IDLE", Ink.WARN), "the sign of a fault"


def test_what_to_try_keeps_its_lines_and_says_its_ceiling():
    lines = block(make_finding(try_="do this:\nfirst  # two blanks\nsecond", ceiling="2.4x"))
    at = lines.index(" Try: do this:")
    assert lines[at : at + 3] == [" Try: do this:", "      first # two blanks", "      second   Ceiling: 2.4x"]
    assert not any("Ceiling" in line for line in block(make_finding(ceiling=Missing("unknown share"))))


def test_a_word_longer_than_the_line_is_broken_and_a_text_that_is_cut_ends_in_a_mark():
    long = "DataLoader(num_workers=8,persistent_workers=True,prefetch_factor=4)"
    assert long in "".join(line.strip() for line in block(make_finding(try_=long), width=40))
    lines = block(make_finding(summary="word " * 60, try_="step " * 60), width=40, most=6)
    assert len(lines) == 6
    assert sum(line.endswith("…") for line in lines) == 2


def test_evidence_has_value_history_source_and_age_which_grows_while_nothing_comes():
    finding = make_finding(
        evidence=(
            make_evidence("runnable", value=4.2, unit="threads", source="/proc schedstat"),
            make_evidence("stack", value=Missing(""), text="14 of 25 samples", source="py-spy", age_s=4.0),
            make_evidence("GPU busy", value=Missing("no driver"), source="NVML", age_s=Missing("never")),
        )
    )
    lines = block(finding, width=120)
    runnable = next(line for line in lines if "runnable  " in line)
    assert "4.2 threads  ████████████████████  /proc schedstat, 0.3 s" in runnable
    assert next(line for line in lines if "stack" in line).endswith("py-spy, 4.2 s")
    assert next(line for line in lines if "GPU busy" in line).endswith("NVML, age ?")
    assert "? no driver" in "\n".join(lines)
    assert any(line.endswith("200 looks, 30 s") for line in screen(make_finding(), 120, 40, now_ns=NOW_NS + 30 * 10**9))


def test_what_does_not_fit_is_counted():
    ruled_out = tuple(f"cause number {n} (looked at)" for n in range(12))
    finding = make_finding(
        evidence=tuple(make_evidence(f"reading {n}") for n in range(9)),
        against=(make_evidence("reading against"),),
        ruled_out=ruled_out,
        unknown=("NCCL wait (no hook)",),
    )
    lines = block(finding, width=80, most=7)
    assert len(lines) == 7
    shown = [line for line in lines if line.startswith((" + ", " - reading"))]
    assert shown[-1].endswith(f"+{10 - len(shown)} more, v")
    listed = next(line for line in lines if line.startswith(" - not: "))
    assert f"(+{12 - listed.count('cause number')} more)" in listed
    assert "? unknown: NCCL wait" in listed
    whole = block(finding, width=80, most=60)
    assert " - reading against" in "\n".join(whole)
    assert not any("more, v" in line for line in whole)
    full = "\n".join(texts_of(verdict.paint_verdict_in_full(make_any_view(judged(finding)), 80)))
    assert all(text in full for text in ruled_out)


MANY = make_finding(
    evidence=(
        make_evidence("waiting for a batch", value=58.0, age_s=1.0),
        make_evidence("rank 11 unchanged since the look", value=1571.0, unit="s", age_s=3.2),
        *(make_evidence(f"reading {n}") for n in range(9)),
    ),
    ruled_out=tuple(f"stopped process {n} (looked at)" for n in range(35)),
    unknown=("memory of the other hosts", "NCCL wait"),
    summary="it waits",
    try_="wait",
    ceiling=NOT_APPLICABLE,
)


def rows_when(finding, width, shown):
    """Return the rows of evidence of the lowest block that has so many."""
    for most in range(4, 30):
        rows = [line for line in block(finding, width, most) if line.startswith((" + ", "   +"))]
        if len(rows) == shown:
            return rows
    raise AssertionError(f"no block has {shown} rows")


@pytest.mark.parametrize("width", [36, 40, 47, 59, 60, 66, 70, 71, 80, 99, 100, 120])
@pytest.mark.parametrize(("shown", "value", "age"), [(1, "58 %", "1.2 s"), (2, "26m11s", "3.4 s")])
def test_the_row_that_counts_the_rest_has_its_value_and_age_whole(width, shown, value, age):
    last = rows_when(MANY, width, shown)[-1]
    assert last.endswith(f"{age}  +{11 - shown}{' more' if width >= 60 else ''}, v")
    assert f" {value} " in last
    assert count_cells(last) <= width


def test_a_value_that_does_not_fit_beside_the_count_gives_it_a_line_of_its_own():
    words = make_evidence("last line", value=IN_WORDS, text="RuntimeError: it broke")
    finding = replace(MANY, evidence=(MANY.evidence[0], words, *MANY.evidence[2:]))
    rows = rows_when(finding, 40, 2)
    assert rows[0].endswith("58 %  1.2 s")
    assert rows[1] == "   +10 more, v"


@pytest.mark.parametrize("width", [40, 50, 59])
def test_two_lists_that_share_a_narrow_line_are_counted(width):
    def shared(finding):
        return next(line for most in range(4, 30) for line in block(finding, width, most) if "unknown" in line)

    assert shared(MANY) == " - 35 ruled out  ? 2 unknown, v"
    short = replace(MANY, ruled_out=("swap",), unknown=("steps",))
    assert shared(short).split() == ["-", "not:", "swap", "?", "unknown:", "steps"]


@given(st.integers(1, 40), st.lists(st.integers(0, 12), min_size=8, max_size=8))
def test_parts_never_take_more_lines_than_there_are(most, counts):
    names = ("head", "summary", "try", "evidence", "both", "ruled out", "unknown", "facts")
    wanted = dict(zip(names, counts, strict=True)) | {"head": max(1, counts[0])}
    wanted |= {"ruled out": 1, "unknown": 1, "both": 1} if counts[4] else {"both": 0}
    given_ = verdict.share_lines(wanted, most)
    assert sum(given_.values()) <= most
    assert given_["head"] >= 1
    assert all(given_[name] <= wanted[name] for name in names)
    assert given_["facts"] in (0, wanted["facts"])
    assert not (given_["both"] and given_["unknown"])


def test_the_full_verdict_names_the_verdicts_before_it():
    events = (
        make_event("verdict: balanced", 300, EventKind.VERDICT),
        make_event("rank 1 gone", 200),
        make_event("verdict: hung (missing-rank), was balanced", 100, EventKind.VERDICT),
    )
    view = make_any_view(judged(HUNG, notes=("power-limited",)), events=events)
    for width in (30, 80, 200):
        text = " ".join(" ".join(texts_of(verdict.paint_verdict_in_full(view, width))).split())
        assert "power-limited" in text
        assert text.index("03:06:01 verdict: hung") < text.index("03:02:41 verdict: balanced")
        assert "rank 1" not in text.partition("verdicts so far")[2]


def test_the_history_of_a_share_is_drawn_to_the_whole():
    frame = make_frame()
    used = pulse_of(frame).memory_bytes
    row = make_evidence("used of the limit", value=25.0, unit="%")
    pulses = tuple(replace(p, memory_bytes=used // 2 if n < 15 else used) for n, p in enumerate(make_pulses(frame, 20)))
    view = make_any_view(frame, pulses=pulses)
    line = texts_of([verdict.paint_evidence(view, row, "+", verdict.fit_widths((row,), 120), 120)])[0]
    assert "▂" in line
    assert "▃" in line
    assert not set("▄▅▆▇█") & set(line)


@pytest.mark.parametrize(("width", "height"), [(60, 12), (40, 12), (30, 8)])
def test_a_low_screen_says_what_to_try_before_the_notes(width, height):
    frame = judged(HUNG, notes=("power-limited: 5 of 8 cards",))
    text = join(paint_screen(make_any_view(frame), Size(width, height)))
    assert find_wrong("!! HUNG|~power-limited|Try: dump the stacks", text) == []


PASTED = (
    "give each worker one thread:\ndef one_thread(worker_id):\n    cv2.setNumThreads(0)  # where cv2 is used at all"
)


@pytest.mark.parametrize("width", [40, 80])
def test_code_keeps_what_it_is_indented_by_in_every_part_of_a_line(width):
    finding = make_finding(try_=PASTED, also_try=(PASTED,))
    lines = texts_of(verdict.paint_try(finding, width))
    place = next(n for n, line in enumerate(lines) if "def one_thread" in line)
    at = lines[place].index("def")
    assert lines[place + 1][at:].startswith("    cv2.set")
    if width == 40:
        assert lines[place + 2][at:].startswith("    ")
    full = texts_of(verdict.paint_verdict_in_full(make_any_view(make_frame(verdict=finding)), width))
    also = next(n for n, line in enumerate(full) if "def one_thread" in line and n > full.index(" also try"))
    assert full[also + 1].index("cv2") == full[also].index("def") + 4
