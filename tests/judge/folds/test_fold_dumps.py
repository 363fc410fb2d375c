"""What a picture of stacks alone decides, and dumps of several hosts, several times, of parts of a job."""

import codecs
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dumps import HOST, fold, inner, make_rank, make_round, make_worker, rounds
from tests.frames import NOW
from tests.stacks import ALL_REDUCE, BROADCAST, DECODE, IN_LOCK, MAIN, NEXT_BATCH, READS, RUNNING, SITE, stack_of
from tpmon.commands.dump import FoldOptions, pick_exit_code, run_fold
from tpmon.errors import ExitCode, UsageError
from tpmon.judge.dumps.describe import collapse_frames
from tpmon.judge.folds.accused import NOBODY, UNDECIDED
from tpmon.judge.folds.groups import DumpOrigin, find_clash, fold_dumps, fold_rounds
from tpmon.model.codec import decode, encode
from tpmon.model.dump import DeadChild, Dump, DumpError, ErrorKind, Motion, ProcessLook
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Role
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Confidence, Finding, Kind
from tpmon.probe.records.dump_files import read_dumps
from tpmon.report.stacks import write_dump

SAVE = (MAIN, StackFrame("save", f"{SITE}/torch/serialization.py", 900))
BARRIER = stack_of("main > train > barrier torch/distributed/distributed_c10d.py:4000")


def text(dump: Dump) -> str:
    return "\n".join(write_dump(dump, lambda group: collapse_frames(group.frames) if is_known(group.frames) else ()))


def verdict_of(dump: Dump) -> Finding:
    assert is_known(dump.verdict), dump.verdict
    return dump.verdict


def eight(culprit: ProcessLook, frames: tuple[StackFrame, ...] = ALL_REDUCE) -> list[ProcessLook]:
    return [*(make_rank(rank, frames=frames) for rank in range(8) if rank != 3), culprit]


def looked(those: list[ProcessLook], looks: int = 3, every_s: float = 16.0, world: int = 8) -> Dump:
    return rounds(*[those] * looks, every_s=every_s, world=world)


BLOCKED = make_rank(3, frames=DECODE, **READS)


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
    assert finding.summary == "one look tells no hang; if it stays so, hung (missing-rank: rank 3)"
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
        assert finding.summary.startswith("7 of 8 ranks wait in all_reduce train.py:40; rank 3 is in decode data.py:88")
        assert "nothing of it moved for at least" in finding.summary


@pytest.mark.parametrize(
    ("culprit", "frames", "excuse"),
    [
        (make_rank(3, frames=SAVE, **READS), ALL_REDUCE, "it may end by itself"),
        (make_rank(3, frames=IN_LOCK, run_ns=0, **RUNNING), ALL_REDUCE, "it may end by itself"),
        (make_rank(3, frames=IN_LOCK, waits_for="sleep"), ALL_REDUCE, "it may end by itself"),
    ],
)
def test_what_may_end_by_itself_is_never_hung_however_long(culprit, frames, excuse):
    finding = verdict_of(looked(eight(culprit, frames), looks=5, every_s=100.0))
    assert (finding.kind, finding.rank) == (Kind.NOT_ENOUGH_EVIDENCE, 3)
    assert excuse in finding.summary
    assert [row.text for row in finding.against] == [excuse]


def test_a_rank_that_could_not_be_read_leaves_it_open():
    those = [make_rank(7, frames=Missing("denied")) if one.rank == 7 else one for one in eight(BLOCKED)]
    dump = looked(those, 4, 30.0)
    finding = verdict_of(dump)
    assert dump.summary.startswith("6 of 8 ranks wait in all_reduce train.py:40; rank 3 is in decode data.py:88")
    assert (finding.kind, finding.rank) == (Kind.NOT_ENOUGH_EVIDENCE, 3)
    assert "not all ranks could be read" in finding.summary


def test_while_a_rank_or_one_of_those_that_wait_for_it_moves_it_is_no_hang():
    looks = [eight(make_rank(3, frames=inner(line))) for line in (7, 9, 11)]
    slow = rounds(*looks, every_s=20.0, world=8)
    assert slow.verdict == Missing("rank 3 moves between the looks while others wait: slow, and so far no hang")
    looks = [[make_rank(0, frames=frames), make_rank(1), BLOCKED] for frames in (inner(7), ALL_REDUCE)]
    finding = verdict_of(rounds(looks[0], *[looks[1]] * 2, every_s=20.0, world=3))
    assert finding.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert finding.summary.startswith("not all of them stood still; if it stays so, hung (missing-rank: rank 3)")


@pytest.mark.parametrize("ranks", [[ALL_REDUCE] * 4, [IN_LOCK, IN_LOCK, DECODE, DECODE], [IN_LOCK]])
def test_where_nobody_is_out_of_line_nothing_is_decided(ranks):
    those = [make_rank(rank, frames=frames) for rank, frames in enumerate(ranks)]
    for dump in (fold(*those), looked(those, 4, 30.0, world=len(those))):
        assert dump.verdict == UNDECIDED


def test_ranks_elsewhere_are_asked_for_and_nobody_here_is_accused():
    dump = looked([make_rank(0), make_rank(1)], 4, 200.0, world=4)
    finding = verdict_of(dump)
    assert finding.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert (finding.rank, finding.pid) == (NOT_APPLICABLE, NOT_APPLICABLE)
    assert finding.summary.endswith("(it may end by itself); if it stays so, hung (remote-rank)")
    assert "tpmon fold" in str(finding.try_)


def test_a_stopped_rank_is_named_before_those_that_wait_for_it():
    those = eight(make_rank(3, state="T"))
    once, later = verdict_of(fold(*those)), verdict_of(looked(those, 4, 30.0))
    assert once.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert "if it stays so, hung (stopped: rank 3)" in once.summary
    assert (later.kind, later.cause, later.rank) == (Kind.HUNG, "stopped", 3)


def test_a_rank_that_waits_for_a_batch_beside_its_dead_worker():
    dead = DeadChild(4711, 4000, "pt_data_worker", "SIGKILL")
    one = replace(make_round(make_rank(0, frames=NEXT_BATCH)), dead=(dead,))
    finding = verdict_of(fold_rounds([one], DumpOrigin(4000, "train.py", 1)))
    assert finding.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert finding.summary.endswith("hung (dead-worker: rank 0)")
    assert "of a process that is dead (4711: SIGKILL)" in finding.evidence[0].text


def on_host(host: str, looks: Sequence[list[ProcessLook]], every_s: float = 16.0) -> Dump:
    taken = [make_round(*those, host=host, at_s=number * every_s) for number, those in enumerate(looks)]
    return fold_rounds(taken, DumpOrigin(looks[0][0].pid, "train.py", 4))


@pytest.mark.parametrize(("looks", "kind"), [(1, Kind.NOT_ENOUGH_EVIDENCE), (3, Kind.HUNG)])
def test_the_fold_of_two_hosts_names_the_rank_that_neither_could_name(looks, kind):
    here = on_host("node-01", [[make_rank(0), make_rank(1)]] * looks)
    there = on_host("node-02", [[make_rank(2), make_rank(3, frames=DECODE, **READS)]] * looks)
    assert verdict_of(here).rank == NOT_APPLICABLE
    together = fold_dumps([decode(Dump, encode(one)) for one in (there, here)])
    finding = verdict_of(together)
    assert (finding.kind, finding.rank, finding.pid) == (kind, 3, 4030)
    assert "(rank 3 is on node-02)" in together.summary
    assert str(finding.try_).endswith("  # on node-02")
    assert decode(Dump, encode(together)).verdict == finding


def test_the_text_has_the_verdict_and_what_to_try_where_somebody_is_named():
    said = text(fold(*eight(BLOCKED)))
    assert "\nverdict  not-enough-evidence: one look tells no hang; if it stays so, hung" in said
    assert "\ntry      tpmon dump 4030 --rounds 3 --every 16\n" in said
    assert "verdict " not in text(fold(make_rank(0), make_rank(1), world=2))
    hung = text(looked(eight(BLOCKED), 4, 30.0))
    assert "\nverdict  hung (missing-rank), confidence medium: 7 of 8 ranks wait in all_reduce" in hung


STACKS = (ALL_REDUCE, BROADCAST, DECODE, IN_LOCK, NEXT_BATCH, SAVE)


@given(st.lists(st.sampled_from(STACKS), min_size=1, max_size=6), st.integers(0, 3), st.randoms())
def test_no_single_look_is_ever_hung_and_the_order_of_ranks_changes_nothing(stacks, more, random):
    those = [make_rank(rank, frames=frames) for rank, frames in enumerate(stacks)]
    dump = fold(*those, world=len(those) + more)
    assert not is_known(dump.verdict) or dump.verdict.kind is Kind.NOT_ENOUGH_EVIDENCE
    random.shuffle(those)
    assert fold(*those, world=len(those) + more).verdict == dump.verdict


# dumps of several hosts, several times, of parts of a job


def dump(*processes: ProcessLook, at_s: float = 0.0, host: str = HOST, pid: int = 1, **fields: Any) -> Dump:
    """Fold one look at a part of a job of four ranks."""
    origin = DumpOrigin(pid, "train.py", 4, fields.pop("not_asked", NOT_APPLICABLE))
    return fold_rounds([make_round(*processes, at_s=at_s, host=host, **fields)], origin)


WHOLE = dump(make_rank(0), make_rank(1), make_rank(2), make_rank(3, frames=DECODE))


def failed(pid: int) -> DumpError:
    return DumpError(HOST, pid, Role.RANK, 0, NOT_APPLICABLE, ErrorKind.LATE, "no answer")


def test_a_later_dump_of_one_rank_leaves_the_others_as_they_were_with_their_errors():
    part = dump(make_rank(3, frames=DECODE), at_s=20, not_asked=3)
    folded = fold_dumps([WHOLE, part])
    assert folded.summary.startswith("3 of 4 ranks wait in all_reduce train.py:40; rank 3 is in decode")
    assert folded.summary.endswith("frozen for at least 20 s")
    assert folded.not_asked is NOT_APPLICABLE
    whole = replace(WHOLE, errors=(failed(4000), failed(4030)))
    assert [one.pid for one in fold_dumps([whole, part]).errors] == [4000]
    parts = [dump(make_rank(rank), at_s=5.0 * rank, not_asked=3) for rank in (0, 1)]
    assert fold_dumps(parts).not_asked == 2


def test_what_was_asked_for_and_is_not_there_any_more_has_ended():
    before = dump(make_rank(0), make_rank(3), make_worker(3, 0))
    thread = make_rank(3).threads[0]
    several = replace(make_rank(3), threads=(thread, replace(thread, tid=99, name="Thread-9")))
    with_thread = dump(make_rank(0), several)
    part = dump(make_rank(3), at_s=20, not_asked=1)
    pids = {(one.pid, one.tid) for group in fold_dumps([with_thread, part]).groups for one in group.threads}
    assert pids == {(4000, 4000), (4030, 4030)}
    folded = fold_dumps([before, dump(make_rank(0), make_rank(3), at_s=20)])
    assert {one.pid for group in folded.groups for one in group.threads} == {4000, 4030}


def test_two_machines_of_one_name_are_told_by_their_ranks_and_other_dumps_of_one_host_do_not_clash():
    first = dump(make_rank(0, pid=50), make_rank(1, pid=51), host="localhost")
    same = dump(make_rank(2, pid=50), make_rank(3, pid=51), host="localhost", at_s=0.4)
    assert find_clash([first, same]) == "process 50 on localhost is rank 0 and rank 2"
    other = dump(make_rank(2, pid=60), make_rank(3, pid=61), host="localhost")
    assert find_clash([first, other]) == "job 1 on localhost has ranks 0-1 and ranks 2-3"
    again = dump(make_rank(0, pid=70), make_rank(1, pid=71), at_s=60)
    assert not find_clash([WHOLE, again])
    assert not find_clash([dump(make_rank(rank), not_asked=3) for rank in range(4)])
    assert not find_clash([dump(make_rank(0), host="a"), dump(make_rank(1), host="b")])


def test_dumps_of_one_moment_are_one_look_and_that_takes_not_the_place_of_several():
    for dumps in ([WHOLE, WHOLE], [WHOLE, dump(make_rank(0), make_rank(3, frames=DECODE), at_s=0.03)]):
        folded = fold_dumps(dumps)
        assert folded.rounds == 1
        assert {group.motion for group in folded.groups} == {Motion.ONCE}
    folded = fold_dumps([rounds(*[[make_rank(0)]] * 2, every_s=60.0, world=1), dump(make_rank(0), at_s=60.2)])
    assert (folded.groups[0].motion, folded.groups[0].since_s, folded.rounds) == (Motion.FROZEN, 60.0, 2)


def test_of_two_hosts_clocks_are_not_compared_and_the_last_log_write_of_any_is_kept():
    looks = [
        [make_round(make_rank(rank), at_s=600.0 * rank + at_s, host=f"n{rank}") for at_s in (0.0, 5.0)]
        for rank in (0, 1)
    ]
    folded = fold_dumps([fold_rounds(one, DumpOrigin(1, "train.py", 2)) for one in looks])
    assert (folded.rounds, folded.seconds) == (2, 5.0)
    first = replace(WHOLE, host="a", last_write=NOW - timedelta(minutes=26))
    second = replace(WHOLE, host="b", last_write=NOW - timedelta(minutes=28))
    assert fold_dumps([first, second]).last_write == first.last_write
    late = Missing("the log did not answer in 0.5 s")
    assert fold_dumps([replace(first, last_write=late), replace(second, last_write=late)]).last_write == late
    assert fold_dumps([WHOLE]).last_write is NOT_APPLICABLE


# files


def test_a_fold_lists_lines_that_are_no_dump_and_refuses_two_machines_of_one_name(tmp_path, capfd):
    path = tmp_path / "all.json"
    line = encode(WHOLE)
    path.write_text(f"0: {line}\n1: {line}\n{line[: len(line) // 2]}\n")
    assert run_fold(FoldOptions((str(path),))) == 0
    out, err = capfd.readouterr()
    assert "tpmon: not folded: " in err
    assert f"{path}:3: no dump of tpmon" in err
    assert out.startswith("dump ")
    assert "not read" in out
    folded = replace(WHOLE, left_out=("b.json:1: no dump of tpmon: not JSON",))
    assert decode(Dump, encode(folded)) == folded
    assert any("b.json:1: no dump" in line for line in write_dump(folded, lambda _: ()))
    other = dump(make_rank(2, pid=60), make_rank(3, pid=61))
    path.write_text(f"{encode(dump(make_rank(0), make_rank(1)))}\n{encode(other)}\n")
    with pytest.raises(UsageError, match="two machines of one name"):
        run_fold(FoldOptions((str(path),)))


def test_many_lines_that_are_no_dump_are_counted_and_a_byte_order_mark_is_none(tmp_path):
    path, empty = tmp_path / "a.json", tmp_path / "empty.json"
    path.write_bytes(codecs.BOM_UTF8 + f"{encode(WHOLE)}\n".encode() + b"nonsense\n" * 50)
    empty.write_text("")
    told: list[str] = []
    assert [encode(one) for one in read_dumps([str(path), str(empty)], told.append)] == [encode(WHOLE)]
    assert told[-2:] == [f"{path}: 46 more lines", f"{empty}: no dump in it"]
    assert len(told) == 6


@pytest.mark.parametrize(
    "kind", [ErrorKind.TRACED, ErrorKind.BUSY, ErrorKind.LATE, ErrorKind.UNKNOWN_PYTHON, ErrorKind.FAILED]
)
def test_a_dump_without_a_stack_has_no_verdict_and_does_not_end_well(kind):
    nothing = dump(make_rank(0, frames=Missing("x")), errors=[replace(failed(4000), kind=kind)])
    assert not any(is_known(group.frames) for group in nothing.groups)
    assert (nothing.verdict, pick_exit_code(nothing)) == (NOBODY, ExitCode.USAGE)
