"""What a picture of stacks alone decides: a hang only where all stood still, else who it would be, or nobody."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dumps import (
    ALL_REDUCE,
    BROADCAST,
    DECODE,
    IN_LOCK,
    MAIN,
    NEXT_BATCH,
    NFS,
    RUNNING,
    SITE,
    fold,
    inner,
    make_rank,
    make_round,
    rounds,
    stack_of,
)
from tpmon.judge.dumps.describe import collapse_frames
from tpmon.judge.dumps.groups import NOBODY, UNDECIDED, DumpOrigin, fold_dumps, fold_rounds
from tpmon.model.codec import decode, encode
from tpmon.model.dump import DeadChild, Dump, ProcessLook
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Confidence, Finding, Kind
from tpmon.report.stacks import write_dump

SAVE = (MAIN, StackFrame("save", f"{SITE}/torch/serialization.py", 900))
BARRIER = stack_of("main > train > barrier torch/distributed/distributed_c10d.py:4000")
IO = {"state": "D", "waits_for": "NFS", "waits_on": NFS, "call": "read"}


def text(dump: Dump) -> str:
    return "\n".join(write_dump(dump, lambda group: collapse_frames(group.frames) if is_known(group.frames) else ()))


def verdict_of(dump: Dump) -> Finding:
    assert is_known(dump.verdict), dump.verdict
    return dump.verdict


def eight(culprit: ProcessLook, frames: tuple[StackFrame, ...] = ALL_REDUCE) -> list[ProcessLook]:
    return [*(make_rank(rank, frames=frames) for rank in range(8) if rank != 3), culprit]


def looked(those: list[ProcessLook], looks: int = 3, every_s: float = 16.0, world: int = 8) -> Dump:
    return rounds(*[those] * looks, every_s=every_s, world=world)


BLOCKED = make_rank(3, frames=DECODE, **IO)


@pytest.mark.parametrize("since_s", [1e299, -1e299])
@pytest.mark.parametrize("year", [1, 2026, 9999])
def test_a_dump_that_tells_of_times_that_cannot_be_is_folded(since_s, year):
    dump = looked(eight(BLOCKED), 4, 30.0)
    groups = tuple(replace(group, since_s=since_s) for group in dump.groups)
    told = replace(dump, groups=groups, taken=dump.taken.replace(year=year, month=1, day=1))
    folded = fold_dumps([told])
    finding = verdict_of(folded)
    assert finding.since <= told.taken
    assert decode(Dump, encode(folded)).rounds == folded.rounds
    assert len(text(folded)) < 10_000


def test_one_look_names_the_rank_but_is_never_a_hang():
    finding = verdict_of(fold(*eight(BLOCKED)))
    assert finding.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert (finding.cause, finding.rank, finding.pid) == (NOT_APPLICABLE, 3, 4030)
    assert finding.confidence is Confidence.LOW
    assert finding.summary == (
        "one look tells no hang; if it stays so, hung (missing-rank):"
        " 7 of 8 ranks wait for rank 3 in decode data.py:88 (data wait)"
    )
    assert finding.try_ == "tpmon dump 4030 --rounds 3 --every 16"


@pytest.mark.parametrize(
    ("looks", "every_s", "kind", "confidence"),
    [
        (2, 60.0, Kind.NOT_ENOUGH_EVIDENCE, Confidence.LOW),
        (3, 5.0, Kind.NOT_ENOUGH_EVIDENCE, Confidence.LOW),
        (3, 16.0, Kind.HUNG, Confidence.LOW),
        (4, 30.0, Kind.HUNG, Confidence.MEDIUM),
    ],
)
def test_what_stood_still_for_long_enough_is_hung_and_never_with_full_trust(looks, every_s, kind, confidence):
    finding = verdict_of(looked(eight(BLOCKED), looks, every_s))
    assert (finding.kind, finding.confidence) == (kind, confidence)
    assert (finding.rank, finding.pid) == (3, 4030)
    if kind is Kind.HUNG:
        assert finding.cause == "missing-rank"
        assert "nothing of it moved for at least" in finding.summary


@pytest.mark.parametrize(
    ("culprit", "frames", "excuse"),
    [
        (make_rank(3, frames=SAVE, **IO), ALL_REDUCE, "checkpoint may take long"),
        (make_rank(3, frames=IN_LOCK, run_ns=0, **RUNNING), ALL_REDUCE, "it computes"),
        (make_rank(3, frames=IN_LOCK, waits_for="sleep"), ALL_REDUCE, "a sleep ends by itself"),
        (BLOCKED, BARRIER, "they wait for what one rank does alone"),
    ],
)
def test_what_may_end_by_itself_is_never_hung_however_long(culprit, frames, excuse):
    finding = verdict_of(looked(eight(culprit, frames), looks=5, every_s=100.0))
    assert (finding.kind, finding.rank) == (Kind.NOT_ENOUGH_EVIDENCE, 3)
    assert excuse in finding.summary
    assert [row.text for row in finding.against] == [excuse]


def test_a_rank_that_moves_is_slow_and_no_hang():
    looks = [eight(make_rank(3, frames=inner(line))) for line in (7, 9, 11)]
    dump = rounds(*looks, every_s=20.0, world=8)
    assert isinstance(dump.verdict, Missing)
    assert dump.verdict.reason == ("rank 3 moves between the looks while others wait: slow, and so far no hang")


def test_while_one_of_those_that_wait_moves_it_is_no_hang():
    looks = [[make_rank(0, frames=frames), make_rank(1), BLOCKED] for frames in (inner(7), ALL_REDUCE)]
    finding = verdict_of(rounds(looks[0], *[looks[1]] * 2, every_s=20.0, world=3))
    assert finding.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert finding.summary.startswith("not all of them stood still; if it stays so, hung (missing-rank)")


@pytest.mark.parametrize("ranks", [[ALL_REDUCE] * 4, [IN_LOCK, IN_LOCK, DECODE, DECODE], [IN_LOCK]])
def test_where_nobody_is_out_of_line_nothing_is_decided(ranks):
    those = [make_rank(rank, frames=frames) for rank, frames in enumerate(ranks)]
    for dump in (fold(*those), looked(those, 4, 30.0, world=len(those))):
        assert dump.verdict == UNDECIDED


def test_without_a_stack_there_is_no_verdict():
    assert fold(make_rank(0, frames=Missing("denied"))).verdict == NOBODY


def test_ranks_elsewhere_are_asked_for_and_nobody_here_is_accused():
    dump = looked([make_rank(0), make_rank(1)], 4, 200.0, world=4)
    finding = verdict_of(dump)
    assert finding.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert (finding.rank, finding.pid) == (NOT_APPLICABLE, NOT_APPLICABLE)
    assert "hung (remote-rank): all 2 ranks here wait for ranks that are elsewhere" in finding.summary
    assert "tpmon fold" in str(finding.try_)


def test_a_stopped_rank_is_named_before_those_that_wait_for_it():
    those = eight(make_rank(3, state="T"))
    once, later = verdict_of(fold(*those)), verdict_of(looked(those, 4, 30.0))
    assert once.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert "if it stays so, hung (stopped): rank 3 is stopped by a signal" in once.summary
    assert (later.kind, later.cause, later.rank) == (Kind.HUNG, "stopped", 3)


def test_a_rank_that_waits_for_a_batch_beside_its_dead_worker():
    dead = DeadChild(4711, 4000, "pt_data_worker", "SIGKILL")
    one = replace(make_round(make_rank(0, frames=NEXT_BATCH)), dead=(dead,))
    finding = verdict_of(fold_rounds([one], DumpOrigin(4000, "train.py", 1)))
    assert finding.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert "hung (dead-worker): rank 0 waits for a batch" in finding.summary
    assert "process 4711 (pt_data_worker) is dead: SIGKILL" in finding.summary


def on_host(host: str, looks: Sequence[list[ProcessLook]], every_s: float = 16.0) -> Dump:
    taken = [make_round(*those, host=host, at_s=number * every_s) for number, those in enumerate(looks)]
    return fold_rounds(taken, DumpOrigin(looks[0][0].pid, "train.py", 4))


@pytest.mark.parametrize(("looks", "kind"), [(1, Kind.NOT_ENOUGH_EVIDENCE), (3, Kind.HUNG)])
def test_the_fold_of_two_hosts_names_the_rank_that_neither_could_name(looks, kind):
    here = on_host("node-01", [[make_rank(0), make_rank(1)]] * looks)
    there = on_host("node-02", [[make_rank(2), make_rank(3, frames=DECODE, **IO)]] * looks)
    assert verdict_of(here).rank == NOT_APPLICABLE
    together = fold_dumps([decode(Dump, encode(one)) for one in (there, here)])
    finding = verdict_of(together)
    assert (finding.kind, finding.rank, finding.pid) == (kind, 3, 4030)
    assert "3 of 4 ranks wait for rank 3 on node-02 in decode data.py:88" in finding.summary
    assert str(finding.try_).endswith("  # on node-02")
    assert decode(Dump, encode(together)).verdict == finding


def test_the_text_has_the_verdict_and_what_to_try_where_somebody_is_named():
    said = text(fold(*eight(BLOCKED)))
    assert "\nverdict  not-enough-evidence: one look tells no hang; if it stays so, hung" in said
    assert "\ntry      tpmon dump 4030 --rounds 3 --every 16\n" in said
    assert "verdict " not in text(fold(make_rank(0), make_rank(1), world=2))
    hung = text(looked(eight(BLOCKED), 4, 30.0))
    assert "\nverdict  hung (missing-rank), confidence medium: 7 of 8 ranks wait for rank 3" in hung


STACKS = (ALL_REDUCE, BROADCAST, DECODE, IN_LOCK, NEXT_BATCH, SAVE)


@given(st.lists(st.sampled_from(STACKS), min_size=1, max_size=6), st.integers(0, 3), st.randoms())
def test_no_single_look_is_ever_hung_and_the_order_of_ranks_changes_nothing(stacks, more, random):
    those = [make_rank(rank, frames=frames) for rank, frames in enumerate(stacks)]
    dump = fold(*those, world=len(those) + more)
    assert not is_known(dump.verdict) or dump.verdict.kind is Kind.NOT_ENOUGH_EVIDENCE
    random.shuffle(those)
    assert fold(*those, world=len(those) + more).verdict == dump.verdict
