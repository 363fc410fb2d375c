"""Records of collectives: who is missing, what is done together, and what a dump tells of them."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.collectives import HOST, RAS, make_call, make_entry, make_group, make_raw, make_record, one_missing, reading
from tests.dumps import make_native, make_rank, make_round
from tests.frames import NOW, make_frame, make_output
from tests.stacks import ALL_REDUCE, DECODE, NFS, SITE
from tpmon.judge.dumps.collective_words import find_standings, may_wait
from tpmon.judge.dumps.collectives import add_collectives, find_transfers, fold_collectives, judge_collectives
from tpmon.judge.folds.groups import DumpOrigin, fold_dumps, fold_rounds
from tpmon.judge.folds.hot import add_records, date_log, fold_state
from tpmon.model.codec import decode, encode
from tpmon.model.dump import Asker, Dump, DumpRequest, DumpState
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.collectives import CallState, CollectiveCause, RankRecord, RecordSource, SourceNote
from tpmon.model.stacks import StackFrame
from tpmon.probe.records.flight_recorder import parse_record
from tpmon.report.stacks import write_dump

MEMBERS = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
AGO_NS = round((NOW - timedelta(seconds=200)).timestamp() * 1e9)


def parse(rank: int, entries: list[dict[str, Any]], first: int = 0) -> RankRecord:
    """Parse what rank ``rank`` wrote down; its buffer begins with entry number ``first``."""
    numbered = [entry | {"record_id": first + number} for number, entry in enumerate(entries)]
    return parse_record(make_raw(numbered, pg_config=MEMBERS), make_record(rank, from_start=False))


def batch(number: int, transfer: int, *names: str, done: bool = True) -> list[dict[str, Any]]:
    """Build a batch_isend_irecv: only the entry that closes it is ever done."""
    fields = {"p2p_seq_id": transfer, "time_created_ns": AGO_NS}
    state = "completed" if done else "scheduled"
    return [
        *[make_entry(number, f"nccl:{name}", is_p2p=True, **fields) for name in names],
        make_entry(number, "nccl:coalesced", state=state, input_sizes=[], **fields),
    ]


def judge(*records: RankRecord):
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


def test_the_sends_and_receives_of_a_batch_are_done_when_the_batch_is_and_a_send_after_it_is_not_of_it():
    judged = judge(parse(0, batch(1, 1, "send 0->1")), parse(1, batch(1, 1, "recv 1<-0")))
    assert judged.summary == "every collective that was called is done: no rank waits in one that the records know"
    judged = judge(parse(0, batch(1, 1, "send 0->1", done=False)))
    assert (judged.findings, judged.summary) == ((), "rank 0 waits in send 0->1 of default_pg for 3m20s")
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
    overwritten = (make_record(rank, make_group(17, 18 - rank, ranks=(0, 1)), from_start=False) for rank in (0, 1))
    (found,) = judge(*overwritten).findings
    assert found.missing == (1,), "without batches they are compared as before"


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
    assert (finding.missing, finding.unread) == (missing, () if missing else (1,))


# in a dump

ORIGIN = DumpOrigin(4000, "train.py", 4)
NO_SERVER = SourceNote(HOST, RecordSource.SERVER, "no debug server in it")
NCCL = make_native(77, "pt_nccl_watchdg")


def test_ncclls_report_is_said_beside_the_records_and_alone():
    report = replace(RAS, processes=8, gpus=8, errors=("MISMATCH",))
    alone = judge_collectives([reading(ras=[report])], 4, {})
    lags = "NCCL RAS: rank 1 of communicator e5f607 (process 4242 on 10.0.0.1) launched 3 of 4 AllReduce"
    assert alone.summary == f"{lags} (a job that runs shows this too: look again whether the numbers stay)"
    both = judge_collectives([reading(*one_missing(), ras=[report])], 4, {})
    assert both.summary.endswith(lags)
    fine = replace(report, ranks=(), errors=())
    assert "names no rank" in judge_collectives([reading(ras=[fine])], 4, {}).summary
    dead = replace(report, dead=2, silent=1, ranks=(replace(report.ranks[0], problem="status ABORT"),) * 5)
    said = judge_collectives([reading(ras=[dead])], 4, {}).summary
    assert "2 processes are dead, 1 process gave no answer" in said
    assert "status ABORT" in said
    assert said.endswith("2 more")


def hung_dump(ranks=range(4), host: str = HOST) -> Dump:
    late = {3: {"frames": DECODE, "state": "D", "waits_on": NFS}}
    looks = [make_rank(rank, NCCL, **late.get(rank, {})) for rank in ranks]
    return fold_rounds([make_round(*looks, at_s=at_s, host=host) for at_s in (0.0, 60.0)], ORIGIN)


def test_a_dump_carries_what_was_recorded_and_survives_its_json():
    bare = hung_dump()
    dump = add_collectives(bare, reading(*one_missing(), notes=[NO_SERVER]))
    assert "rank 3 has not called it: decode data.py:88 (data wait), blocked in a read" in dump.collectives.summary
    assert decode(Dump, encode(dump)) == dump
    text = "\n".join(write_dump(dump, lambda _: ()))
    assert "calls    as recorded 1m00s before: all_reduce number 18 of default_pg" in text
    assert "  default_pg: ranks 0-2 done up to 17 all_reduce (4x4 Float), in 18 all_reduce (4x4 Float)" in text
    assert "  default_pg: rank 3 done up to 17 all_reduce (4x4 Float), called no more" in text
    assert "from debug server of torch (4 ranks, 03:07:41)" in text
    # A dump of an older tpmon has none.
    assert '"collectives"' not in encode(bare)
    assert decode(Dump, encode(bare)).collectives is NOT_APPLICABLE


def test_without_records_the_dump_says_why_and_assumes_the_default_timeout():
    dump = add_collectives(hung_dump(), reading(notes=[NO_SERVER]))
    assert dump.collectives.summary == (
        "no record of its collectives; NCCL aborts this job in about 9m00s (assumed: its default timeout)"
    )
    text = "\n".join(write_dump(dump, lambda _: ()))
    assert "debug server of torch: no debug server in it" in text


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("transformers/trainer.py", "in about 29m00s (assumed: transformers.Trainer's default timeout)"),
        ("deepspeed/runtime/engine.py", "in about 29m00s (assumed: DeepSpeed's default timeout)"),
        ("pytorch_lightning/loops/fit_loop.py", "in about 29m00s (assumed: Lightning's default timeout)"),
        ("transformers/modeling_utils.py", "in about 9m00s (assumed: its default timeout)"),
    ],
)
def test_the_default_timeout_is_that_of_the_framework_in_the_stacks(file, words):
    frames = (*ALL_REDUCE[:2], StackFrame("step", f"{SITE}/{file}", 7), *ALL_REDUCE[2:])
    looks = [make_round(*(make_rank(n, NCCL, frames=frames) for n in range(4)), at_s=at_s) for at_s in (0.0, 60.0)]
    told = add_collectives(fold_rounds(looks, ORIGIN), reading(notes=[NO_SERVER])).collectives
    assert told.summary.endswith(f"NCCL aborts this job {words}")


def test_ranks_that_wait_for_others_or_for_the_device_are_told_from_those_that_run():
    def look_at(*looks):
        return fold_rounds([make_round(*looks)], DumpOrigin(4000, "train.py", len(looks)))

    running = look_at(*(make_rank(one, frames=DECODE) for one in range(2)))
    assert not may_wait(running.groups)
    for notes in ([NO_SERVER], []):
        assert add_collectives(running, reading(notes=notes)).collectives is NOT_APPLICABLE
    assert may_wait(look_at(make_rank(0, frames=DECODE), make_rank(1)).groups)
    synchronize = (*DECODE[:2], StackFrame("synchronize", f"{SITE}/torch/cuda/__init__.py", 900))
    assert may_wait(look_at(make_rank(0, frames=synchronize)).groups)
    assert may_wait(look_at(make_rank(0, frames=Missing("denied"))).groups)
    in_driver = make_rank(0, state="D", wchan="nv_wait", waits_for="nv_wait")
    assert may_wait(look_at(in_driver).groups), "its records may know more"


def test_records_of_two_hosts_are_judged_together():
    """Neither host alone can accuse a rank; both together do."""
    first = add_collectives(hung_dump((0, 1)), reading(*one_missing()[:2]))
    second = hung_dump((2, 3), "node-02")
    second = add_collectives(second, reading(*(replace(one, host="node-02") for one in one_missing()[2:])))
    assert first.collectives.findings[0].cause is CollectiveCause.REMOTE_RANK
    folded = fold_collectives(fold_dumps([first, second]), [first, second])
    (found,) = folded.collectives.findings
    assert (found.cause, found.missing) == (CollectiveCause.MISSING_RANK, (3,))
    assert len(folded.collectives.records) == 4


def test_a_call_that_runs_ahead_is_shown_with_how_many_more():
    group = make_group(17, 21, [make_call(18, state=CallState.STARTED, input_sizes=((), (2, 3), (4,)))])
    dump = add_collectives(hung_dump(), reading(make_record(0, group)))
    text = "\n".join(write_dump(dump, lambda _: ()))
    assert "done up to 17, in 18 all_reduce (1+2x3+... Float), 3 calls ahead" in text


def test_a_record_that_was_written_long_before_says_so():
    dump = hung_dump()

    def told(records, seconds):
        taken = dump.taken - timedelta(seconds=seconds)
        return add_collectives(dump, reading(*(replace(one, taken=taken) for one in records))).collectives.summary

    old, fresh = told(one_missing(), 540), told(one_missing(), 0)
    assert old.startswith("as recorded 9m00s before: all_reduce number")
    assert not fresh.startswith("as recorded")
    assert "NCCL aborts this job in" in fresh
    assert "if they still wait, NCCL aborts this job in" in old or "aborts" not in old
    done = told([make_record(0, make_group(4, 4))], 120)
    assert done.startswith("as recorded 2m00s before: every collective that was called is done")


def test_of_ranks_of_two_hosts_with_one_number_no_stack_is_joined_with_a_record():
    """Ranks that a program starts itself are numbered by birth, on each host from 0 on."""
    here, there = (
        fold_rounds([make_round(*(make_rank(rank) for rank in ranks), host=host)], ORIGIN)
        for host, ranks in (("a", (0, 1)), ("b", (0, 2)))
    )
    assert set(find_standings(fold_dumps([here, there]).groups)) == {1, 2}
    assert set(find_standings(here.groups)) == {0, 1}


# the age of the log

LOG = make_output(last_write=NOW - timedelta(seconds=250), last_write_age_s=250.0)
ABORT = "NCCL aborts this job in about 5m50s (assumed: its default timeout from the last log write on)"


def fold(*looks, log=LOG) -> Dump:
    """Fold looks of a key as the session does, with what the job did not record."""
    state = DumpState(DumpRequest(Asker.KEY), looks, 2, 2, running=False, refused="")
    update = fold_state(state, make_frame(output=(log,)))
    assert update.awaits_records
    dump = add_records(update, reading(notes=[NO_SERVER])).dump
    assert is_known(dump)
    return dump


def look(*ranks: int, at_s: float = 0.0):
    return make_round(*(make_rank(rank, NCCL) for rank in ranks), at_s=at_s)


def calls_of(dump: Dump) -> str:
    return dump.collectives.summary


def test_the_newest_log_that_has_an_age_dates_the_silence():
    ahead = replace(LOG, last_write=NOW + timedelta(hours=1), last_write_age_s=Missing("a clock is ahead"))
    older = replace(LOG, last_write=NOW - timedelta(hours=1), last_write_age_s=3600.0)
    assert date_log([older, ahead, LOG]) == LOG.last_write
    assert date_log([ahead]) is NOT_APPLICABLE
    assert date_log([]) is NOT_APPLICABLE


def test_one_look_on_a_key_assumes_the_end_from_the_last_log_write_and_two_need_no_log():
    dump = fold(look(0, 1))
    assert dump.last_write == LOG.last_write
    assert ABORT in calls_of(dump)
    for ago in (timedelta(seconds=5), timedelta(hours=5)):
        other = replace(LOG, last_write=NOW - ago)
        assert "default" not in calls_of(fold(look(0, 1), log=other)), "the wait may have begun after it"
    assert "default" not in calls_of(fold(look(2, 3))), "rank 0 writes the log, elsewhere"
    said = calls_of(fold(look(0, 1), look(0, 1, at_s=60.0)))
    assert "in about 9m00s (assumed: its default timeout)" in said
