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
from tpmon.model.text import job_words
from tpmon.model.verdict import BEFORE_THE_END, IN_WORDS, TABLE, Confidence, Kind, SinceIs
from tpmon.report.once import write_verdict
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor.layout import paint_screen
from tpmon.ui.monitor.panes import verdict
from tpmon.ui.monitor.state import Pane
from tpmon.view.finding.block import _ORDER, badge_ink, paint_headline
from tpmon.view.finding.pieces import share_lines
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
    return texts_of(verdict.paint_verdict(judged(finding, **fields), finding, width, most))


def full(finding, width=120, **fields):
    return texts_of(verdict.paint_verdict_in_full(make_any_view(judged(finding), **fields), width))


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
    assert said[0].split() == ["LIVE", "HUNG"]
    assert texts_of(paint_screen(make_any_view(frame, **what), Size(8, 6)))[0].split() == ["HUNG"]
    asked = make_any_view(frame, message="copied", **what)
    assert texts_of(paint_screen(asked, Size(20, 6)))[0] == " copied"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.kind.value)
def test_severity_is_a_sign_and_an_ink_and_the_smallest_screen_keeps_state_and_word(row):
    badges = {0: ("", Ink.BADGE_GOOD), 10: ("! ", Ink.BADGE_WARN), 11: ("? ", Ink.BADGE), 12: ("!! ", Ink.BADGE_BAD)}
    sign, ink = badges[row.exit_code]
    finding = make_finding(kind=row.kind, share_pct=NOT_APPLICABLE)
    first = paint_headline(finding, judged(finding).taken, 80)[0]
    assert first[0] == (f" {sign}{row.kind.value.upper()} ", ink)
    assert badge_ink(finding) is ink
    for width in (20, 24):
        assert row.kind.value.upper() in screen(finding, width, 5)[1]
    cause = row.causes[0] if row.causes else NOT_APPLICABLE
    of_cause = make_finding(kind=row.kind, cause=cause)
    lines = screen(of_cause, 20, 5, overlay=Overlay.VERDICT)
    assert lines[0].split()[0] == "LIVE"
    assert job_words.write_kind(of_cause)[:15] in lines[1] + lines[2]


@pytest.mark.parametrize(
    ("share_pct", "ink"),
    [(12.0, Ink.BADGE_NOTICE), (30.0, Ink.BADGE_WARN), (91.0, Ink.BADGE_BAD), (Missing("no"), Ink.BADGE_WARN)],
)
def test_the_badge_of_a_loss_says_how_large_it_is(share_pct, ink):
    assert badge_ink(make_finding(share_pct=share_pct)) is ink
    assert badge_ink(make_finding(kind=Kind.COMPUTE_BOUND, cause="cpu", share_pct=share_pct)) is Ink.BADGE_GOOD


@pytest.mark.parametrize(("confidence", "said"), [("high", "sure ###"), ("medium", "sure ##-"), ("low", "sure #--")])
def test_the_first_line_says_what_it_costs_and_what_there_is_to_gain_and_how_sure_that_is(confidence, said):
    finding = make_finding(confidence=Confidence(confidence))
    line = block(finding, width=120)[0]
    assert find_wrong(f"costs 58 % of every step -> up to 2.4x faster|{said}|since 03:02 (5 min)", line) == []
    assert find_wrong("~->|costs 58 %", block(replace(finding, ceiling=Missing("?")))[0]) == []
    assert find_wrong("more than 100x faster", block(replace(finding, share_pct=99.9), width=120)[0]) == []
    assert find_wrong(f" 58 % -> 2.4x  {said[5:]}", block(finding, width=40)[0]) == []


def test_the_first_line_says_what_is_known():
    assert "since 03:02 (5 min), onset in the history" in full(make_finding(), 130)[0]
    assert screen(make_finding(), 40, 50)[2] == " cpu-transform  since 03:02 (5 min)"
    nothing = make_finding(kind=Kind.NOT_ENOUGH_EVIDENCE, cause=NOT_APPLICABLE, share_pct=NOT_APPLICABLE)
    assert block(nothing)[0].rstrip() == " ? NOT-ENOUGH-EVIDENCE", "neither confidence nor since"
    assert "cause ? no stacks" in block(make_finding(cause=Missing("no stacks")))[0]
    failed = make_finding(kind=Kind.IDLE, cause="failed", share_pct=NOT_APPLICABLE)
    first = paint_headline(failed, judged(failed).taken, 80)[0]
    assert first[0] == (" ! FAILED ", Ink.BADGE_WARN), "the sign of a fault"


def test_a_lower_bound_does_not_say_on_the_screen_what_tells_it():
    said = block(HUNG, width=160)[0]
    assert find_wrong("at least 26 min|~last log write", said) == []
    assert "at least 26 min (last log write 02:41:41)" in full(HUNG)[0]


CODE = make_finding(try_="set the threads:\nfirst  # two blanks\nsecond", try_code="first  # two blanks\nsecond")


def test_what_to_do_has_its_words_and_its_code_and_a_narrow_screen_the_code_alone():
    lines = block(CODE)
    at = lines.index(" DO    set the threads:")
    assert lines[at : at + 3] == [" DO    set the threads:", "       first # two blanks", "       second"]
    narrow = block(CODE, width=40)
    at = narrow.index(" DO (y copies)")
    assert narrow[at + 1 : at + 3] == ["  first # two blanks", "  second"]
    assert not any("set the threads" in line for line in narrow)
    short = replace(CODE, try_="one thread: set(1)", try_code="set(1)")
    assert " DO    one thread: set(1)" in block(short)
    words = replace(CODE, try_="wait", try_code=NOT_APPLICABLE)
    assert " DO    wait" in block(words)
    assert "  wait" in block(words, width=40)
    assert not any(" DO" in line for line in block(replace(words, try_=NOT_APPLICABLE)))


@pytest.mark.parametrize("most", [4, 5, 6, 8])
def test_a_low_block_has_the_code_before_all_of_its_words(most):
    finding = replace(CODE, try_="set the threads " * 20 + "\nset(1)", try_code="set(1)")
    lines = block(finding, width=80, most=most)
    assert any("set(1)" in line for line in lines)
    assert sum(line.startswith(" DO ") for line in lines) == 1


def test_what_to_try_keeps_its_lines_and_says_its_ceiling():
    lines = full(make_finding(try_="do this:\nfirst  # two blanks\nsecond", ceiling="2.4x"), 100)
    at = lines.index(" Try: do this:")
    assert lines[at : at + 3] == [" Try: do this:", "      first # two blanks", "      second   Ceiling: 2.4x"]


def test_a_word_longer_than_the_line_is_broken_and_a_text_that_is_cut_ends_in_a_mark():
    long = "DataLoader(num_workers=8,persistent_workers=True,prefetch_factor=4)"
    assert long in "".join(line.strip() for line in block(make_finding(try_=long), width=40))
    lines = block(make_finding(summary="word " * 60, try_="step " * 60), width=40, most=6)
    assert len(lines) == 6
    assert sum(line.endswith("\u2026") for line in lines) == 2


def test_evidence_in_full_has_value_history_source_and_age_which_grows_while_nothing_comes():
    finding = make_finding(
        evidence=(
            make_evidence("runnable", value=4.2, unit="threads", source="/proc schedstat"),
            make_evidence("stack", value=Missing(""), text="14 of 25 samples", source="py-spy", age_s=4.0),
            make_evidence("GPU busy", value=Missing("no driver"), source="NVML", age_s=Missing("never")),
        )
    )
    lines = full(finding)
    runnable = next(line for line in lines if "runnable  " in line)
    assert "4.2 threads  ████████████████████  /proc schedstat, 0.3 s" in runnable
    assert next(line for line in lines if "stack" in line).endswith("py-spy, 4.2 s")
    assert next(line for line in lines if "GPU busy" in line).endswith("NVML, age ?")
    assert "? no driver" in "\n".join(lines)
    assert any(line.endswith("200 looks, 30 s") for line in full(make_finding(), now_ns=NOW_NS + 30 * 10**9))


BARS = make_finding(
    evidence=(
        make_evidence("queue empty", value=85.0),
        make_evidence("GPU busy", value=41.0),
        make_evidence("workers without work", value=50.0),
        make_evidence("CPUs free", value=0.0, unit="CPUs"),
        make_evidence("most of it", value=Missing("in words"), text="decode in data.py:8"),
    ),
    against=(make_evidence("SM clock of its maximum", value=100.0),),
)


def test_a_percentage_has_a_bar_that_says_whether_much_of_it_is_bad():
    lines = verdict.paint_verdict(judged(BARS), BARS, 120, 30)
    text = join(lines)
    assert "queue empty 85 % [\u2588" in text
    assert find_wrong("WHY   |CPUs free 0 CPUs   |most of it decode in data.py:8|BUT   SM clock", text) == []
    inks = {text: ink for line in lines for text, ink in line if text.startswith("\u2588")}
    assert inks == {"\u2588" * 14: Ink.BAD, "\u2588" * 7: Ink.GOOD, "\u2588" * 8: Ink.NOTICE, "\u2588" * 16: Ink.GOOD}
    narrow = block(BARS, width=40)
    assert [line for line in narrow if "queue empty" in line] == [
        " queue empty            85 % [\u2588\u2588\u2588\u2588\u2588\u2588\u2588\u2500]"
    ]
    assert not any("decode" in line for line in narrow), "its words do not fit"


def test_what_is_not_shown_is_counted_and_the_verdict_in_full_has_it():
    ruled_out = tuple(f"cause number {n} (looked at)" for n in range(12))
    finding = make_finding(
        evidence=tuple(make_evidence(f"reading {n}") for n in range(9)),
        against=(make_evidence("reading against"),),
        ruled_out=ruled_out,
        unknown=("NCCL wait (no hook)",),
    )
    assert block(finding, width=80)[-1].endswith("v: all evidence, 12 causes ruled out, 1 unknown")
    narrow = block(finding, width=50, most=14)
    shown = sum(line.startswith(" reading") for line in narrow)
    assert 0 < shown < 10
    assert narrow[-1].strip().startswith(f"v: {10 - shown} more readings")
    told = "\n".join(full(finding, 80))
    assert all(text in told for text in ruled_out)


@given(st.integers(1, 40), st.lists(st.integers(0, 12), min_size=8, max_size=8))
def test_parts_never_take_more_lines_than_there_are(most, counts):
    names = ("head", "summary", "do", "code", "why", "but", "unknown", "notes")
    wanted = dict(zip(names, counts, strict=True)) | {"head": max(1, counts[0])}
    given_ = share_lines(wanted, most, _ORDER)
    assert sum(given_.values()) <= most
    assert given_["head"] >= 1
    assert all(given_[name] <= wanted[name] for name in names)


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
    line = "".join(text for text, _ in verdict.draw_reading(view, row, verdict.fit_widths((row,), 120).history))
    assert "▂" in line
    assert "▃" in line
    assert not set("▄▅▆▇█") & set(line)


@pytest.mark.parametrize(("width", "height"), [(60, 12), (40, 12), (30, 8)])
def test_a_low_screen_says_what_to_try_before_the_notes(width, height):
    frame = judged(HUNG, notes=("power-limited: 5 of 8 cards",))
    text = join(paint_screen(make_any_view(frame), Size(width, height)))
    assert find_wrong("!! HUNG|~power-limited|dump the stacks", text) == []


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


def test_the_screen_says_the_keys_and_a_shell_the_command():
    finding = make_finding(try_="see where it is: tpmon dump 7", try_keys="see where it is: press d")
    assert texts_of(verdict.paint_try(finding, 80))[0].startswith(" Try: see where it is: press d  ")
    assert "tpmon dump 7" in "\n".join(write_verdict(judged(finding)))
