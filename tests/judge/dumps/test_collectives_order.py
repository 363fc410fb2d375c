"""Records that must not name a rank: it waits in a transfer itself, or its record is older than the call."""

from datetime import timedelta

import pytest

from tests.collectives import make_call, make_group, make_record, reading
from tests.frames import NOW
from tpmon.judge.dumps.collectives import find_transfers, judge_collectives
from tpmon.model.results.collectives import CallState

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
