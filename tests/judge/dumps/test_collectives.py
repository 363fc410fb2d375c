"""Records of several ranks: who is missing, calls that are done together, numbers that ranks do not share."""

from datetime import timedelta
from typing import Any

import pytest

from tests.collectives import make_call, make_entry, make_group, make_raw, make_record, reading
from tests.frames import NOW
from tpmon.judge.dumps.collectives import find_transfers, judge_collectives
from tpmon.model.results.collectives import CallState, CollectiveCause, Collectives, RankRecord, RecordSource
from tpmon.probe.records.flight_recorder import parse_record

MEMBERS = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
AGO_NS = round((NOW - timedelta(seconds=200)).timestamp() * 1e9)


def parse(rank: int, entries: list[dict[str, Any]], first: int = 0) -> RankRecord:
    """Parse what rank ``rank`` wrote down; its buffer begins with entry number ``first``."""
    numbered = [entry | {"record_id": first + number} for number, entry in enumerate(entries)]
    origin = RankRecord("node-01", 4000 + 10 * rank, rank, RecordSource.FILE, NOW, False, ())
    return parse_record(make_raw(numbered, pg_config=MEMBERS), origin)


def batch(number: int, transfer: int, *names: str, done: bool = True) -> list[dict[str, Any]]:
    """Build a batch_isend_irecv: only the entry that closes it is ever done."""
    fields = {"p2p_seq_id": transfer, "time_created_ns": AGO_NS}
    state = "completed" if done else "scheduled"
    return [
        *[make_entry(number, f"nccl:{name}", is_p2p=True, **fields) for name in names],
        make_entry(number, "nccl:coalesced", state=state, input_sizes=[], **fields),
    ]


def judge(*records: RankRecord) -> Collectives:
    return judge_collectives([reading(*records)], 2, {})


def stage(rank: int, batches: int, *, steps: int, open_: bool | None, first: int = 0) -> RankRecord:
    """Build a pipeline stage: so many batches and an all_reduce each step, the last one open or not called."""
    entries: list[dict[str, Any]] = []
    number = 0
    for step in range(1, steps + 1):
        for _ in range(batches):
            number += 1
            entries += batch(number, number, "send 0->1" if rank == 0 else "recv 1<-0")
        number += 1
        state = "started" if step == steps and open_ else "completed"
        entries.append(make_entry(number, "nccl:all_reduce", state=state, time_created_ns=AGO_NS))
    return parse(rank, entries[:-1] if open_ is None else entries, first)


def test_the_sends_and_receives_of_a_batch_are_done_when_the_batch_is():
    judged = judge(parse(0, batch(1, 1, "send 0->1")), parse(1, batch(1, 1, "recv 1<-0")))
    assert judged.summary == "every collective that was called is done: no rank waits in one that the records know"


def test_a_batch_that_is_not_done_is_told_by_its_sends_and_receives():
    judged = judge(parse(0, batch(1, 1, "send 0->1", done=False)))
    assert judged.findings == ()
    assert judged.summary == "rank 0 waits in send 0->1 of default_pg for 3m20s"


def test_a_send_after_a_batch_is_not_of_it():
    single = make_entry(1, "nccl:send 0->1", is_p2p=True, p2p_seq_id=2, time_created_ns=AGO_NS)
    judged = judge(parse(0, [*batch(1, 1, "recv 0<-1"), single]))
    assert judged.summary == "rank 0 waits in send 0->1 of default_pg for 3m20s"


def test_coalesced_collectives_are_one_call_with_the_state_of_its_end():
    coalesced = [
        make_entry(1, "nccl:_broadcast_oop"),
        make_entry(1, "nccl:_broadcast_oop", input_sizes=[[8]]),
        make_entry(1, "nccl:ALLGATHER_coalesced", state="completed", input_sizes=[]),
        make_entry(2, "nccl:all_reduce", state="completed"),
    ]
    waits = make_entry(3, "nccl:all_reduce", state="started", time_created_ns=AGO_NS)
    first, second = parse(0, [*coalesced, waits]), parse(1, coalesced)
    assert [(call.name, call.state) for call in second.groups[0].calls] == [
        ("ALLGATHER_coalesced", CallState.COMPLETED),
        ("all_reduce", CallState.COMPLETED),
    ]
    (found,) = judge(first, second).findings
    assert (found.cause, found.sequence, found.missing) == (CollectiveCause.MISSING_RANK, 3, (1,))


def test_a_batch_without_its_end_is_left_out_unless_it_is_the_last():
    opened = [make_entry(1, "nccl:_broadcast_oop"), make_entry(1, "nccl:_broadcast_oop")]
    after = make_entry(2, "nccl:all_reduce", state="completed")
    (group,) = parse(0, [*opened, after]).groups
    assert (group.last_called, group.last_done) == (2, 2)
    (group,) = parse(0, opened).groups
    assert (group.last_called, group.last_done) == (1, 0)


def test_collectives_are_counted_without_the_batches_of_transfers():
    judged = judge(stage(0, 1, steps=10, open_=True), stage(1, 2, steps=10, open_=None))
    (found,) = judged.findings
    assert (found.cause, found.name, found.sequence) == (CollectiveCause.MISSING_RANK, "all_reduce", 10)
    assert (found.waiting, found.missing) == ((0,), (1,))
    assert judge(stage(0, 1, steps=10, open_=False), stage(1, 2, steps=10, open_=False)).findings == ()


def test_numbers_that_cannot_be_compared_accuse_nobody():
    judged = judge(stage(0, 1, steps=10, open_=True, first=70), stage(1, 2, steps=10, open_=None, first=90))
    assert judged.findings == ()
    assert judged.summary == (
        "rank 0 waits in all_reduce of default_pg for 3m20s (who is missing is not told: batches of sends and"
        " receives count among its collectives, and without the oldest calls the numbers cannot be compared"
        " between ranks)"
    )


def test_overwritten_records_without_batches_are_compared_as_before():
    waits = make_record(0, make_group(17, 18, ranks=(0, 1)), from_start=False)
    (found,) = judge(waits, make_record(1, make_group(17, 17, ranks=(0, 1)), from_start=False)).findings
    assert found.missing == (1,)


# who is missing

STANDINGS = {0: "decode data.py:88, waits for: NFS", 2: "recv_forward train.py:40"}


def stages(name, ranks, *calls):
    return make_group(0, 0, list(calls), name=name, description="PIPELINE", ranks=ranks)


def copies(name, ranks, called=10, ago_s=0.0):
    calls = [make_call(number, ago_s=ago_s) for number in range(11, called + 1)]
    return make_group(10, called, calls, name=name, description="DATA", ranks=ranks)


def receives(**fields):
    return make_call(1, "recv 1<-0", 75, is_transfer=True, **fields)


def records(*calls):
    """Build two stages of two ranks: rank 0 is stuck, rank 2 receives of it, 1 and 3 wait for them."""
    return [
        make_record(0, copies("3", (0, 1)), stages("5", (0, 2))),
        make_record(1, copies("3", (0, 1), 11, 60), stages("6", (1, 3))),
        make_record(2, copies("4", (2, 3)), stages("5", (0, 2), *calls)),
        make_record(3, copies("4", (2, 3), 11, 70), stages("6", (1, 3))),
    ]


def test_a_rank_that_waits_in_a_transfer_is_not_the_missing_one():
    judged = judge_collectives([reading(*records(receives()))], 4, STANDINGS)
    assert [one.missing for one in judged.findings] == [(0,), (2,)]
    assert "rank 0 has not called it: decode data.py:88" in judged.summary
    assert judged.findings[1].summary.count("(waits itself in recv 1<-0)") == 1


def test_a_transfer_that_is_done_or_begins_just_now_excuses_nobody():
    done = receives(state=CallState.COMPLETED)
    new = receives(created=NOW - timedelta(seconds=1))
    for call in (done, new):
        judged = judge_collectives([reading(*records(call))], 4, STANDINGS)
        assert [one.missing for one in judged.findings] == [(2,), (0,)]
    assert find_transfers(records(done)) == {}
    assert find_transfers(records(receives(), new)) == {2: "recv 1<-0"}


def test_of_several_that_are_missing_those_that_wait_are_told():
    wide = make_record(3, copies("4", (1, 2, 3), 11, 70))
    rest = [make_record(1, copies("4", (1, 2, 3))), records(receives())[2]]
    rest[1] = make_record(2, copies("4", (1, 2, 3)), stages("5", (0, 2), receives()))
    judged = judge_collectives([reading(wide, *rest)], 4, {})
    assert "(of these wait themselves: rank 2 in recv 1<-0)" in judged.summary


@pytest.mark.parametrize(
    ("before_s", "host", "missing"),
    [(600, "node-01", ()), (9, "node-01", ()), (7, "node-01", (1,)), (30, "node-02", (1,)), (90, "node-02", ())],
)
def test_a_record_that_is_older_than_the_call_proves_nothing(before_s, host, missing):
    old = make_record(1, make_group(100, 100, [], ranks=(0, 1)), taken=NOW - timedelta(seconds=before_s), host=host)
    new = make_record(0, make_group(5200, 5201, [make_call(5201, ago_s=8.0)], ranks=(0, 1)))
    (finding,) = judge_collectives([reading(old, new)], 2, {}, NOW).findings
    assert finding.missing == missing
    assert finding.unread == (() if missing else (1,))
