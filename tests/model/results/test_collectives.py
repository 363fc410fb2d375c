"""The records of all ranks tell which collective does not end, who waits, who never came, and until when."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.collectives import make_call, make_group, make_record, one_missing, reading
from tests.frames import NOW
from tpmon.judge.dumps.collective_words import find_differences
from tpmon.judge.dumps.collectives import find_open, judge_collectives
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.collectives import CollectiveCause, Collectives, RecordSource

UNKNOWN = Missing("the record does not name its members")


def judge(*records, world_size=4, standings=None) -> Collectives:
    return judge_collectives([reading(*records)], world_size, standings or {})


def test_a_rank_that_has_not_called_is_missing():
    standing = {3: "decode data.py:88, blocked in a read of /data/7.bin on NFS (/data)"}
    judged = judge(*one_missing(), standings=standing)
    (found,) = judged.findings
    assert found.cause is CollectiveCause.MISSING_RANK
    assert (found.group, found.name, found.sequence) == ("default_pg", "all_reduce", 18)
    assert (found.waiting, found.missing, found.unread) == ((0, 1, 2), (3,), ())
    assert (found.waited_s, found.abort_s, found.abort_assumed) == (60.0, 540.0, False)
    assert judged.summary == (
        "all_reduce number 18 of default_pg: 3 of 4 ranks wait in it for 1m00s; rank 3 has not called it: "
        "decode data.py:88, blocked in a read of /data/7.bin on NFS (/data); NCCL aborts this job in about 9m00s"
    )


def pair(name: str, ranks: tuple[int, ...], done: int, called: int):
    calls = [make_call(number) for number in range(done, called + 1)]
    return make_group(done, called, calls, name=name, description=name, ranks=ranks)


def in_step(ranks, done: int = 17, called: int = 18):
    return [make_record(rank, make_group(done, called)) for rank in ranks]


AHEAD = [make_record(rank, make_group(17, 40 + rank)) for rank in (0, 1, 2)]
FURTHER = [*in_step([0], 17, 19), *in_step([1], 16, 18), *in_step([2], 16, 16)]
OVERWRITTEN = make_record(3, pair("tp", (3,), 900, 900), from_start=False)
OLDER = make_record(3, make_group(2, 3), taken=NOW - timedelta(hours=1), source=RecordSource.FILE)
BACKENDS = [make_record(rank, make_group(9, 9 + (rank == 0), backend="gloo"), make_group(50, 50)) for rank in range(4)]


@pytest.mark.parametrize(
    ("records", "world", "sequence", "ranks"),
    [
        pytest.param([*AHEAD, *in_step([3], 15, 15)], 4, 18, ((0, 1, 2), (3,), ()), id="ahead of one that never came"),
        pytest.param(FURTHER, 3, 17, ((0, 1), (2,), (3,)), id="one waits in a later call"),
        pytest.param([*in_step(range(3), 0, 1), make_record(3)], 4, 1, ((0, 1, 2), (3,), ()), id="never called any"),
        pytest.param([*in_step(range(3)), OVERWRITTEN], 4, 18, ((0, 1, 2), (), (3,)), id="oldest calls overwritten"),
        pytest.param([OLDER, *one_missing()], 4, 18, ((0, 1, 2), (3,), ()), id="an older record of the same rank"),
        pytest.param(BACKENDS, 4, 10, ((0,), (1, 2, 3), ()), id="two backends of one group are judged apart"),
    ],
)
def test_who_waits_who_never_came_and_of_whom_nothing_is_known(records, world, sequence, ranks):
    (found,) = judge(*records, world_size=world).findings
    assert (found.sequence, (found.waiting, found.missing, found.unread)) == (sequence, ranks)


CROSSED = [
    make_record(0, pair("a", (0, 1), 3, 4), pair("b", (0, 1), 3, 3)),
    make_record(1, pair("a", (0, 1), 3, 3), pair("b", (0, 1), 3, 4)),
]
OVERDUE = make_record(0, make_group(17, 18, [make_call(18, ago_s=700.0)]))


@pytest.mark.parametrize(
    ("records", "causes", "said"),
    [
        pytest.param([make_record(0), make_record(1)], [], "TORCH_FR_BUFFER_SIZE", id="empty records"),
        pytest.param(in_step(range(4), 18, 18), [], "every collective that was called is done", id="all is done"),
        pytest.param(in_step(range(2)), ["remote-rank"], "ranks 2-3 have no record of it here", id="ranks elsewhere"),
        pytest.param(in_step(range(4)), ["transfer"], "look at the network and the cards", id="all have called it"),
        pytest.param([OVERDUE], ["remote-rank"], "any moment", id="its timeout has passed"),
        pytest.param(CROSSED, ["crossed"] * 2, "in turn waits in another group", id="two wait for each other"),
    ],
)
def test_the_cause_is_named_and_nobody_accused_without_a_record(records, causes, said):
    judged = judge(*records)
    assert [found.cause.value for found in judged.findings] == causes
    assert said in judged.summary
    assert all(found.missing == () for found in judged.findings if found.cause is not CollectiveCause.CROSSED)


def test_sends_and_receives_that_are_not_done_are_said_without_an_accusation():
    waits = [make_call(number, f"recv 1<-{number}", 100.0 * number, is_transfer=True) for number in range(1, 6)]
    judged = judge(make_record(1, make_group(3, 3, waits)))
    assert judged.findings == ()
    assert judged.summary == (
        "rank 1 waits in recv 1<-5 of default_pg for 8m20s, rank 1 waits in recv 1<-4 of default_pg for 6m40s, "
        "rank 1 waits in recv 1<-3 of default_pg for 5m00s, 2 more wait"
    )


def test_gloo_names_no_members_and_the_world_is_taken_from_the_job():
    group = make_group(17, 18, backend="gloo", ranks=UNKNOWN)
    (found,) = judge(make_record(0, group), world_size=2).findings
    assert (found.waiting, found.unread) == ((0,), (1,))
    assert "gloo gives up in about" in found.summary
    other = replace(group, name="7", description="pair")
    (found,) = judge(make_record(0, other), world_size=2).findings
    assert (found.cause, found.unread) == (CollectiveCause.TRANSFER, ())


def test_calls_that_do_not_fit_come_before_all_else_the_first_of_them_where_the_members_are_known():
    odd = make_group(17, 18, [make_call(18, "broadcast")])
    (found,) = judge(*in_step(range(3)), make_record(3, odd)).findings
    assert found.cause is CollectiveCause.MISMATCH
    assert [(one.ranks, one.words) for one in found.differences] == [((0, 1, 2), "all_reduce"), ((3,), "broadcast")]
    assert found.summary.startswith(
        "all_reduce number 18 of default_pg does not fit: ranks 0-2 called all_reduce, rank 3 called broadcast"
    )

    def calls(second, third):
        return [make_call(17, second), make_call(18, third)]

    records = [
        make_record(0, make_group(17, 18, calls("all_reduce", "broadcast"))),
        make_record(1, make_group(17, 18, calls("broadcast", "all_reduce"))),
    ]
    assert judge(*records).findings[0].sequence == 17
    unknown = [replace(one, groups=tuple(replace(group, ranks=UNKNOWN) for group in one.groups)) for one in records]
    assert judge(*unknown).findings[0].sequence == 18


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("all_reduce", {"input_sizes": ((4, 5),)}, "all_reduce of 20 elements"),
        ("all_reduce", {"input_types": ("Half",)}, "all_reduce of Half"),
        ("_all_gather_base", {"input_sizes": ((2,), (3,))}, "_all_gather_base of 5 elements"),
    ],
)
def test_sizes_and_types_that_must_be_equal_are_compared(name, fields, words):
    calls = {rank: make_call(1, name) for rank in (0, 1, 2)} | {3: make_call(1, name, **fields)}
    assert find_differences(calls)[1].words == words
    assert find_differences(calls)[1].ranks == (3,)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        *((name, ((9,),)) for name in ("all_to_all", "all_gather", "gather", "scatter", "reduce_scatter", "split")),
        *(("all_reduce", another_shape) for another_shape in (((16,),), ())),
    ],
)
def test_sizes_that_may_differ_are_no_mismatch(name, sizes):
    assert find_differences({0: make_call(1, name), 1: make_call(1, name, input_sizes=sizes)}) == ()


def test_a_wait_of_this_moment_is_said_without_its_length_and_its_end():
    def just_now(done, called):
        return make_group(done, called, [make_call(18, ago_s=0.01)])

    judged = judge(make_record(0, just_now(17, 18)), make_record(1, just_now(17, 17)), world_size=2)
    assert " for " not in judged.summary
    assert judged.summary.endswith("called just now, as in every step")
    assert "abort" not in judged.summary


def test_a_timeout_that_is_not_told_is_assumed_and_said_to_be():
    group = make_group(17, 18, [make_call(18, timeout_s=Missing("not told"))])
    (found,) = judge(make_record(0, group)).findings
    assert (found.abort_s, found.abort_assumed) == (540.0, True)
    assert "(assumed: its default timeout)" in found.summary
    (found,) = judge(make_record(0, replace(group, backend="ucc"))).findings
    assert found.abort_s is NOT_APPLICABLE


def test_the_rank_that_waits_nowhere_is_the_cause():
    """Rank 3 is away; rank 2 waits for it in tp, and so is missing in dp, where rank 0 waits."""
    records = [
        make_record(0, pair("dp", (0, 2), 8, 9), pair("tp0", (0, 1), 5, 5)),
        make_record(1, pair("tp0", (0, 1), 5, 5)),
        make_record(2, pair("dp", (0, 2), 8, 8), pair("tp1", (2, 3), 5, 6)),
        make_record(3, pair("tp1", (2, 3), 5, 5)),
    ]
    first, second = judge(*records).findings
    assert (first.group, first.missing, first.cause) == ("tp1", (3,), CollectiveCause.MISSING_RANK)
    assert (second.group, second.missing) == ("dp", (2,))


@given(st.permutations(range(4)), st.randoms(use_true_random=False))
def test_the_order_of_records_and_groups_changes_nothing(order, chance):
    groups = {
        rank: [make_group(17, 18 if rank < 3 else 17), pair("tp", (0, 1, 2, 3), 4, 4 + (rank == 1))]
        for rank in range(4)
    }
    plain = judge(*(make_record(rank, *groups[rank]) for rank in range(4)))
    mixed = judge(*(make_record(rank, *chance.sample(groups[rank], 2)) for rank in order))
    assert mixed.findings == plain.findings
    assert mixed.summary == plain.summary


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40), st.booleans()), min_size=1, max_size=8))
def test_every_rank_of_a_group_is_in_one_camp_at_most(ranks):
    records = [
        make_record(number, *([make_group(done, done + ahead, ranks=tuple(range(8)))] if recorded else []))
        for number, (done, ahead, recorded) in enumerate(ranks)
    ]
    for one in find_open(records, 8):
        everybody = [*one.waiting, *one.missing, *one.unread]
        assert len(set(everybody)) == len(everybody)
        assert one.waiting
        assert one.waited_s >= 0


def test_records_of_somebody_else_may_hold_any_time_and_any_size():
    bad = make_record(0, make_group(17, 18, [make_call(18, timeout_s=float("inf"))]))
    naive = make_record(1, make_group(17, 18), taken=NOW.replace(tzinfo=None))
    assert judge(bad, naive).records == ()
    huge = make_group(17, 18, ranks=UNKNOWN)
    (found,) = judge(make_record(0, huge), world_size=10**15).findings
    assert len(found.unread) == 65_535


def test_the_rank_that_is_away_is_found_among_512():
    """512 ranks in 64 groups of 8 and 8 groups of 64: whoever waits for rank 3 is missed by others."""
    records = []
    for rank in range(512):
        row, column = rank // 8, rank % 8
        row_ranks = tuple(range(8 * row, 8 * row + 8))
        column_ranks = tuple(range(column, 512, 8))
        in_row = row == 0 and rank != 3
        records.append(
            make_record(
                rank, pair(f"tp{row}", row_ranks, 5, 5 + in_row), pair(f"dp{column}", column_ranks, 8, 8 + (row > 0))
            )
        )
    found = judge(*records, world_size=512).findings
    assert found[0].missing == (3,)
    assert {one.cause for one in found} == {CollectiveCause.MISSING_RANK}
