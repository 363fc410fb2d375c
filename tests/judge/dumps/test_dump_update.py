"""A dump as the session hands it out: with the age of the log, which one look cannot tell."""

from dataclasses import replace
from datetime import timedelta

from tests.dumps import make_native, make_rank, make_round
from tests.frames import NOW, make_frame, make_output
from tpmon.judge.dumps.hot import add_records, date_log, fold_state
from tpmon.model.dump import Asker, Dump, DumpRequest, DumpState
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.collectives import CollectivesReading, RecordSource, SourceNote

LOG = make_output(last_write=NOW - timedelta(seconds=250), last_write_age_s=250.0)
NO_SERVER = SourceNote("node-01", RecordSource.SERVER, "no debug server in it")
ABORT = "NCCL aborts this job in about 5m50s (assumed: its default timeout from the last log write on)"


def fold(*looks, log=LOG) -> Dump:
    """Fold looks of a key as the session does, with what the job did not record."""
    state = DumpState(DumpRequest(Asker.KEY), looks, 2, 2, running=False, refused="")
    update = fold_state(state, make_frame(output=(log,)))
    assert update.awaits_records
    dump = add_records(update, CollectivesReading((), (), (NO_SERVER,))).dump
    assert is_known(dump)
    return dump


def look(*ranks: int, at_s: float = 0.0):
    return make_round(*(make_rank(rank, make_native(77, "pt_nccl_watchdg")) for rank in ranks), at_s=at_s)


def calls_of(dump: Dump) -> str:
    return dump.collectives.summary


def test_the_newest_log_that_has_an_age_dates_the_silence():
    ahead = replace(LOG, last_write=NOW + timedelta(hours=1), last_write_age_s=Missing("a clock is ahead"))
    older = replace(LOG, last_write=NOW - timedelta(hours=1), last_write_age_s=3600.0)
    assert date_log([older, ahead, LOG]) == LOG.last_write
    assert date_log([ahead]) is NOT_APPLICABLE
    assert date_log([]) is NOT_APPLICABLE


def test_a_dump_on_a_key_has_the_last_log_write():
    assert fold(look(0, 1)).last_write == LOG.last_write


def test_one_look_assumes_the_end_from_the_age_of_the_log():
    assert ABORT in calls_of(fold(look(0, 1)))


def test_a_log_that_is_young_old_or_of_other_ranks_tells_no_end():
    young = replace(LOG, last_write=NOW - timedelta(seconds=5))
    old = replace(LOG, last_write=NOW - timedelta(hours=5))
    for log in (young, old):
        assert "default" not in calls_of(fold(look(0, 1), log=log)), "the wait may have begun after it"
    assert "default" not in calls_of(fold(look(2, 3))), "rank 0 writes the log, elsewhere"


def test_looks_that_tell_for_how_long_they_wait_need_no_log():
    said = calls_of(fold(look(0, 1), look(0, 1, at_s=60.0)))
    assert "in about 9m00s (assumed: its default timeout)" in said
