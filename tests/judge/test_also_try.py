"""Every remedy of the catalogue reaches a user: as what to try, or as one of the next, wherever it is listed."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.frames import make_finding, make_frame
from tests.frames import make_view as make_any_view
from tests.judging import follow
from tests.painted import texts_of
from tests.starving import COMPUTES, line_up, make_second
from tpmon.judge.advice.choose import CATALOGUE, REMEDIES, Cause, choose
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.advice.hot import CALLS, HotSpot
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.finding import MOST_ALSO, MOST_IFS, list_others, list_worth
from tpmon.model.codec import decode, encode, to_plain
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.verdict import Finding, Kind
from tpmon.report.once import write_check, write_verdict
from tpmon.ui.monitor.layout import paint_screen
from tpmon.ui.monitor.panes.verdict import paint_verdict_in_full
from tpmon.view.layout import Size

NOT_YET = {
    Need.BUCKET_VIEW_OFF,
    Need.TRANSFORM_MOVABLE,
    Need.JPEG_DECODED,
    Need.SAMPLES_WIDE,
    Need.DATASET_FITS_MEMORY,
    Need.LOCAL_DISK_FREE,
    Need.PAGEABLE_COPIES,
    Need.FP32_MATMUL_SEEN,
    Need.MISALIGNED_PRODUCTS,
    Need.CONV_MODEL,
    Need.FIXED_SHAPES_KNOWN,
    Need.ATTENTION_SLOW_PATH,
    Need.ZERO_FILL_SEEN,
    Need.UNFUSED_OPTIMIZER,
    Need.ACCUMULATION_SYNCS,
    Need.GRADIENTS_COMPLETE,
}
"""No reading of a live run proves these."""
NAMED = RunFacts(
    rank=2,
    pid=4211,
    card=0,
    ranks=1,
    other_pid=4212,
    tenant=4213,
    launcher=4200,
    lock_file="/tmp/lock",
    alone_rank=0,
    alone_place="train.py:14",
    past="rank 1 is",
    hot=HotSpot(CALLS["gc-collect"], "train.py:19"),
)


def suspect(kind: Kind, cause: Cause) -> Suspicion:
    return Suspicion(kind, cause, 0.5, 2.0, frozenset(("a",)), "text", ())


def say(row: tuple[Kind, Cause], observed: Iterable[Need]) -> list[str]:
    """Return the ids of what to try and of the next ones, for one row and what was observed."""
    needs = frozenset(observed)
    remedies = choose(*row, needs, NAMED)
    worth = list_worth(suspect(*row), remedies, needs)
    return [one.remedy.id for one in (*worth[:1], *list_others(suspect(*row), remedies, worth))]


def say_first(row: tuple[Kind, Cause], observed: Iterable[Need]) -> list[str]:
    """Return the id of the one thing to try, none where nothing was seen to help."""
    needs = frozenset(observed)
    worth = list_worth(suspect(*row), choose(*row, needs, NAMED), needs)
    return [one.remedy.id for one in worth[:1]]


def try_needs(name: str, *, live: bool) -> Iterator[frozenset[Need]]:
    """Return sets of needs for which a remedy may be said: its own, and the same where others are ruled out."""
    remedy = CATALOGUE[name]
    own = [n for n in (*remedy.needs, *remedy.first_with) if not live or n not in NOT_YET]
    yield frozenset(own)
    for more in Need:
        if more not in remedy.never_with and (not live or more not in NOT_YET):
            yield frozenset((*own, more))


def is_reached(name: str, *, live: bool) -> bool:
    rows = [row for row, names in REMEDIES.items() if name in names]
    return any(name in say(row, needs) for row in rows for needs in try_needs(name, live=live))


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_remedy_is_said_in_some_run_and_what_no_reading_of_a_live_one_proves_behind_its_if(name, live):
    assert is_reached(name, live=live)


def test_every_need_that_a_live_run_can_prove_is_observed_by_a_rule_a_feature_or_a_frame():
    judge = Path(__file__).parents[2] / "tpmon" / "judge"
    sources = [path.read_text() for path in judge.rglob("*.py") if path.name not in ("needs.py", "choose.py")]
    named = {name for text in sources for name in re.findall(r"\bNeed\.([A-Z0-9_]+)", text)}
    named.update(re.findall(r"need = '(\w+)'", (judge / "stacks" / "frames.toml").read_text()))
    assert {need for need in Need if need.name not in named} <= NOT_YET


def test_a_full_card_and_a_run_that_nothing_holds_back_are_told_only_what_was_seen_to_help_them():
    row = (Kind.COMPUTE_BOUND, "gpu-compute")
    assert say_first(row, ()) == []
    assert say_first(row, (Need.EAGER_MODEL,)) == ["torch-compile"]
    assert say_first(row, (Need.GPU_PRESENT, Need.TENSOR_CORES_IDLE)) == ["tf32"]
    assert say(row, (Need.EAGER_MODEL, Need.GRAPH_BREAKS))[:2] == ["torch-compile", "compile-fullgraph"]
    said = say(row, (Need.GPU_PRESENT,))
    assert said[0] == "bf16", "behind its if, among the next"
    assert len(said) == MOST_IFS
    assert {"tf32", "bf16"}.isdisjoint(say(row, (Need.GPU_PRESENT, Need.FP16_CORES_ALONE)))
    row = (Kind.BALANCED, NOT_APPLICABLE)
    assert say(row, ()) == []
    assert say(row, (Need.SAVE_IN_STACK, Need.MEMORY_FREE)) == ["async-checkpoint"]


def test_a_model_is_wrapped_once_what_was_seen_most_of_goes_first_and_the_next_remedies_are_few():
    row = (Kind.COMMS_BOUND, "transfer")
    ddp = say(row, (Need.DDP_IN_STACK, Need.TRANSFER_SEEN, Need.GPU_PRESENT, Need.GPU_MEMORY_FREE))
    assert not {name for name in ddp if "fsdp" in name or Need.FSDP_IN_STACK in CATALOGUE[name].needs}
    unused = say(row, (Need.DDP_IN_STACK, Need.TRANSFER_SEEN, Need.GPU_PRESENT, Need.FIND_UNUSED_ON))
    assert "find-unused-off" in unused
    said = say(row, (Need.DDP_IN_STACK, Need.TRANSFER_SEEN, Need.GPU_PRESENT))
    assert said[:3] == ["check-network-path", "bf16-gradients", "exchange-less-often"]
    assert len(said) == 1 + MOST_ALSO


def find_last(used_bytes: tuple[int, ...]) -> tuple[Finding, list[str]]:
    """Judge a starved run whose use of memory changes each second; return the verdict and all events."""
    plain = make_second(0.7, [COMPUTES] * 2, cpu={"budget_cores": 8.0, "host_cores": 8})
    seconds = [
        replace(plain, memory=replace(plain.memory, used_bytes=used_bytes[n % len(used_bytes)])) for n in range(30)
    ]
    judged = [one.frame for one in follow(line_up(seconds))]
    events = [event.text for one in judged for event in one.events if event.text.startswith("verdict")]
    assert is_known(judged[-1].verdict)
    return judged[-1].verdict, events


def test_remedies_that_come_and_go_are_no_event():
    free, near = 2 << 30, 15 << 30
    calm, once = find_last((free,))
    tight, same = find_last((near,))
    assert calm.also_try != tight.also_try
    assert is_known(calm.also_try)
    assert calm.try_ not in calm.also_try
    assert find_last((free, near))[1] == once == same
    assert len(once) == 1


MANY = make_finding(also_try=("if it is so: do this:\nfirst\nsecond", "do that: third"))


def test_the_next_remedies_are_a_list_in_json_and_only_the_whole_text_says_them():
    assert to_plain(MANY)["also_try"] == ["if it is so: do this:\nfirst\nsecond", "do that: third"]
    assert decode(Finding, encode(MANY)) == MANY
    assert "also_try" not in to_plain(make_finding())
    assert decode(Finding, encode(make_finding())).also_try is NOT_APPLICABLE
    frame = make_frame(verdict=MANY)
    lines = write_verdict(frame)
    start = lines.index("also try if it is so: do this:")
    assert lines[start + 1 : start + 4] == ["           first", "           second", "         do that: third"]
    assert "also try" not in "\n".join(write_verdict(frame, full=False)) + write_check(frame)
    assert "also try" not in "\n".join(write_verdict(make_frame(verdict=make_finding())))


@pytest.mark.parametrize("width", [40, 120])
def test_the_full_view_shows_them_and_the_first_lines_stay_as_they_were(width):
    view = make_any_view(make_frame(verdict=MANY))
    full = texts_of(paint_verdict_in_full(view, width))
    start = full.index(" also try")
    assert full[start + 1 : start + 5] == ["   if it is so: do this:", "     first", "     second", "   do that: third"]
    assert start < full.index(" ruled out")
    plain = make_any_view(make_frame(verdict=make_finding()))
    size = Size(width, 40)
    assert paint_screen(view, size) == paint_screen(plain, size)
