"""A hang in which ranks wait for others names the collective, who never called it, and when the backend gives up."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.collectives import RAS, make_call, make_group, make_record
from tests.dumps import make_native, make_rank
from tests.frames import NOW, NOW_NS, later, set_all
from tests.hanging import conclude, expect, number_here, run, stand
from tests.judging import SECOND
from tests.stacks import DECODE, IN_LOCK, stack_of
from tpmon.judge.hang import detection
from tpmon.judge.watch.tracker import RankMemory
from tpmon.model.codec import decode, encode
from tpmon.model.dump import ProcessLook
from tpmon.model.figures import Figure, Origin
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.collectives import CollectivesReading, RankRecord, RasReport
from tpmon.model.verdict import Finding, Kind

NCCL = make_native(77, "pt_nccl_watchdg")
WAITS = make_rank(0, NCCL)
AWAY = make_rank(1, NCCL, frames=IN_LOCK)
PAIR = {"ranks": (0, 1)}
ONE_MISSING = (make_record(0, make_group(3, 4, **PAIR)), make_record(1, make_group(3, 3, **PAIR)))
NAME = "all_reduce number 4 of default_pg"
LIMIT = Figure.COLLECTIVE_LIMIT.label

LONG_AGO = [make_call(4, ago_s=320.0, timeout_s=7200.0)]
RECORDS = (make_record(0, make_group(3, 4, LONG_AGO, **PAIR)), ONE_MISSING[1])
"""Rank 1 is missing for minutes."""
GOT_ON = {
    "ranks": (RankMemory(4010, 100, begun_ns=NOW_NS - 200 * SECOND, moved_ns=NOW_NS - 16 * SECOND),),
    "begun_ns": NOW_NS - 200 * SECOND,
}
"""Rank 1 was seen to get on until 16 s ago."""


def with_records(
    frames: Sequence[Frame], *records: RankRecord, ras: tuple[RasReport, ...] = (), at: int = -1
) -> list[Frame]:
    """Let the records have been read before one of the Frames, the last unless told."""
    frames = list(frames)
    frames[at] = replace(frames[at], collectives=CollectivesReading(records, ras, ()))
    return frames


def pair(*looks: ProcessLook, seconds: int = 40) -> list[Frame]:
    return stand(*(looks or (WAITS, AWAY)), seconds=seconds, world_size=2)


def rows(finding: Finding) -> dict[str, str]:
    return {row.name: row.text for row in finding.evidence}


def test_the_rank_that_never_called_and_the_end_by_the_timeout_are_evidence():
    finding = expect("missing-rank", with_records(pair(), *ONE_MISSING))
    said = rows(finding)
    assert said[NAME] == "rank 1 has not called it"
    assert said[LIMIT] == "NCCL aborts this job in about 9m00s"
    assert next(row.source for row in finding.evidence if row.name == NAME) == "debug server of torch"
    assert list(said).index(NAME) == 1, "behind the culprit"


def test_the_end_comes_nearer_while_the_record_grows_old_and_is_not_said_once_it_is_over():
    records = [replace(one, taken=NOW - timedelta(seconds=5)) for one in ONE_MISSING]
    finding = conclude(with_records(pair(), *records, at=-2))
    assert rows(finding)[LIMIT] == "NCCL aborts this job in about 9m00s", "55 s at 5 s ago, of 600 s"
    assert {row.age_s for row in finding.evidence if row.name in (NAME, LIMIT)} == {5.0}
    calls = [make_call(4, ago_s=60.0, timeout_s=30.0)]
    over = replace(records[0], groups=(make_group(3, 4, calls, **PAIR),))
    said = rows(conclude(with_records(pair(), over, records[1])))
    assert NAME in said
    assert LIMIT not in said


def test_the_records_are_an_origin_where_they_date_the_hang(monkeypatch):
    answers = []
    suspect = detection._suspect
    monkeypatch.setattr(detection, "_suspect", lambda *given: answers.append(suspect(*given)) or answers[-1])
    for records in ((), RECORDS):
        conclude(with_records(pair(), *records))
        assert (Origin.RECORD in answers[-1].origins) is bool(records)


def test_a_default_timeout_is_called_assumed_also_beside_what_nccl_says_of_its_ranks():
    call = make_call(4, timeout_s=Missing("not recorded"))
    first = make_record(0, make_group(3, 4, [call], **PAIR))
    said = rows(conclude(with_records(pair(), first, ONE_MISSING[1])))
    assert said[LIMIT] == "NCCL aborts this job in about 9m00s (assumed: its default timeout)"
    said = rows(conclude(with_records(pair(), ras=(RAS,))))
    assert said["NCCL RAS"].startswith("rank 1 of communicator e5f607")
    assert "assumed" in said[LIMIT]


@pytest.mark.parametrize(
    ("native", "words"),
    [
        (NCCL, "NCCL aborts this job in about 9m20s (assumed: its default timeout)"),
        (make_native(78, "pt_gloo_runloop"), "gloo gives up in about 29m20s (assumed: its default timeout)"),
        (make_native(79, "cuda-EvtHandlr"), None),
    ],
)
def test_without_a_record_the_stacks_and_a_default_tell_the_end(native, words):
    frames = pair(make_rank(0, native), make_rank(1, native, frames=IN_LOCK))
    for given in (frames, with_records(frames)):
        said = rows(conclude(given))
        assert NAME not in said
        assert said.get(LIMIT) == words


def test_records_accuse_no_rank_elsewhere_either_and_tell_at_once_for_how_long_it_is_waited_for():
    frames = stand(WAITS, make_rank(1, NCCL), world_size=4, log_age_s=400.0)
    records = [make_record(rank, make_group(3, 4)) for rank in (0, 1)]
    finding = expect("remote-rank", with_records(frames, *records), asked_s=30.0)
    assert rows(finding)[NAME] == "ranks 2-3 have no record of it here"
    long_ago = [make_call(4, ago_s=1560.0, timeout_s=7200.0)]
    records = [make_record(rank, make_group(3, 4, long_ago)) for rank in (2, 3)]
    ranks = (make_rank(2, NCCL), make_rank(3, NCCL))
    frames = number_here(stand(*ranks, seconds=15, world_size=4, log_age_s=7200.0))
    assert conclude(frames).kind is not Kind.HUNG, "the log of a machine without rank 0 tells nothing"
    finding = expect("remote-rank", with_records(frames, *records))
    assert finding.since == NOW - timedelta(seconds=1560)
    assert finding.since_source.startswith("collective called by its record ")


def test_the_wait_of_the_others_is_not_charged_to_who_came_just_now_to_where_it_stands():
    """The rank validated for minutes, and saves since: the record is of those that wait for it."""
    saves = make_rank(
        1, NCCL, frames=stack_of("main > train > save torch/serialization.py:700"), waits_for="pipe write (full)"
    )
    bare, locked = (stand(WAITS, one, seconds=15, world_size=2, log_age_s=None) for one in (saves, AWAY))
    assert conclude(with_records(bare, *RECORDS)).kind is not Kind.HUNG
    assert conclude(with_records(locked, *RECORDS)).kind is Kind.HUNG, "found in what does not end"
    assert conclude(with_records(locked, *RECORDS), **GOT_ON).kind is not Kind.HUNG, "it got on until then"


@pytest.mark.parametrize("waits_for", ["lock with a time-out (futex)", "sleep"])
def test_a_record_dates_a_wait_that_may_end_by_itself_too(waits_for):
    naps = make_rank(1, NCCL, frames=IN_LOCK, waits_for=waits_for)
    frames = with_records(stand(WAITS, naps, seconds=15, world_size=2, log_age_s=None), *RECORDS)
    finding = conclude(frames)
    assert (finding.kind, finding.cause, finding.rank) == (Kind.HUNG, "missing-rank", 1)
    assert conclude(frames, **GOT_ON).kind is not Kind.HUNG, "it got on until then"


def test_calls_that_do_not_fit_are_told_where_all_ranks_wait():
    other = make_record(1, make_group(3, 4, [make_call(4, "broadcast")], **PAIR))
    finding = expect("no-progress", with_records(pair(WAITS, make_rank(1, NCCL)), ONE_MISSING[0], other))
    assert rows(finding)[NAME] == "rank 0 called all_reduce, rank 1 called broadcast"


def test_records_of_before_the_hang_calls_of_just_now_and_ranks_that_wait_in_no_collective_say_nothing():
    old = [replace(one, taken=NOW - timedelta(seconds=300)) for one in ONE_MISSING]
    assert not {NAME, LIMIT} & rows(conclude(with_records(pair(), *old))).keys()
    fresh = make_record(0, make_group(3, 4, [make_call(4, ago_s=0.5)], **PAIR))
    assert NAME not in rows(conclude(with_records(pair(), fresh, ONE_MISSING[1])))
    finding = conclude(with_records(pair(make_rank(0, NCCL, frames=IN_LOCK), AWAY), *ONE_MISSING))
    assert finding.kind is Kind.HUNG
    assert not {NAME, LIMIT} & rows(finding).keys()


def test_records_are_kept_with_a_picture_alone_and_forgotten_with_it_when_a_rank_moves():
    frames = with_records(pair(), *ONE_MISSING)
    still = set_all(replace(frames[-1], rounds=NOT_APPLICABLE, collectives=NOT_APPLICABLE), waits_unchanged_s=0.0)
    judged = run([*frames, *(later(still, second) for second in (2, 4))])
    assert judged[len(frames) - 1].standing.watch.calls is not None
    assert judged[-1].standing.watch.calls is None
    unseen = [replace(one, rounds=NOT_APPLICABLE) for one in pair(make_rank(0, frames=DECODE))]
    assert run(with_records(unseen, *ONE_MISSING))[-1].standing.watch.calls is None


def test_a_frame_carries_its_records_and_one_of_an_older_tpmon_is_read():
    (frame,) = with_records([pair()[0]], *ONE_MISSING, ras=(RAS,))
    assert decode(Frame, encode(frame)) == frame
    plain = encode(replace(frame, collectives=NOT_APPLICABLE))
    assert '"collectives"' not in plain
    assert not is_known(decode(Frame, plain).collectives)
