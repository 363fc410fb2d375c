"""Dumps, records and samples that grow between two readings reach the sinks of a session."""

from dataclasses import replace

from tests.collectives import make_group, make_record
from tests.dumps import IN_LOCK, make_rank, make_round
from tests.samples import make_reading, make_sampled
from tests.sessions import Sink, Source, dump_state
from tests.waiting import wait_until
from tpmon.judge.dumps.hot import whole_rounds
from tpmon.model.dump import Asker, DumpRequest, DumpState, ProcessLook
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate
from tpmon.model.results.sample import SampleRequest, SampleState
from tpmon.probe.spy.sample import NOTHING_YET
from tpmon.session import Session


def test_a_dump_that_grows_reaches_its_sinks_between_two_readings():
    source, sink = Source(), Sink()
    grown: list[DumpUpdate] = []
    session = Session(source, (sink,), 30.0, (grown.append,))
    errors: list[BaseException] = []
    session.start(errors.append)
    try:
        assert sink.wait_for(1)
        session.ask_dump(DumpRequest(Asker.KEY))
        source.dumps.tell(dump_state())
        assert wait_until(lambda: len(grown) == 1)
        source.dumps.tell(dump_state(rounds=(make_round(make_rank(0)),), answered=1))
        assert wait_until(lambda: len(grown) == 2)
    finally:
        session.stop()
    assert source.dumps.asked == [DumpRequest(Asker.KEY)]
    assert not is_known(grown[0].dump)
    assert [len(group.threads) for group in grown[1].dump.groups] == [1]
    assert (len(sink.updates), errors) == (1, [])


def test_a_dump_is_handed_out_once_and_not_folded_where_nobody_looks():
    source, grown = Source(), []
    source.dumps.tell(dump_state(refused="a dump is being read already"))
    Session(source, (), 0.005, (grown.append,)).run(frames=3)
    assert len(grown) == 1
    other = Source()
    other.dumps.tell(dump_state(rounds=("no round",)))
    Session(other, (), 0.005).run(frames=2)


def test_a_look_that_is_partly_read_is_folded_only_where_there_is_no_whole_one():
    whole, part = make_round(make_rank(0), make_rank(1)), make_round(make_rank(0), at_s=5.0)
    first = dump_state(rounds=(part,), answered=1)
    assert whole_rounds(first) == (part,)
    assert whole_rounds(dump_state(rounds=(whole, part), answered=1)) == (whole,)
    between = dump_state(rounds=(whole,), answered=2)
    assert whole_rounds(between) == (whole,)
    ended = dump_state(rounds=(whole, part), answered=1, running=False)
    assert whole_rounds(ended) == (whole, part)


def test_the_stacks_of_a_dump_are_collapsed_and_keep_their_marks_while_it_grows():
    source, grown = Source(), []
    session = Session(source, (), 0.005, (grown.append,))
    for ranks in ([make_rank(1)], [make_rank(0), make_rank(1), make_rank(2, frames=IN_LOCK)]):
        source.dumps.tell(dump_state(rounds=(make_round(*ranks),)))
        session.run(frames=1)
    (first,), second = grown[0].stacks, grown[1].stacks
    assert [line.text for line in first.lines] == ["<module> train.py:90", "train train.py:40", "all_reduce"]
    assert [line.is_users for line in first.lines] == [True, True, False]
    assert len({stack.mark for stack in second}) == len(grown[1].dump.groups) == len(second) == 2
    assert first in second


def test_a_dump_of_some_processes_knows_that_the_other_ranks_here_were_not_asked():
    source, grown = Source(), []
    one = make_round(make_rank(0, pid=4211))
    for pids in ((), (4211,), (4300,)):
        source.dumps.tell(dump_state(rounds=(one,), request=DumpRequest(Asker.KEY, pids=pids)))
        Session(source, (), 0.005, (grown.append,)).run(frames=1)
    assert [update.dump.not_asked for update in grown] == [NOT_APPLICABLE, 0, 1]


def finished(*looks: ProcessLook, at_s: float = 0.0) -> DumpState:
    """Return the state of a dump whose only look is done."""
    return dump_state(rounds=(make_round(*looks, at_s=at_s),), answered=len(looks), running=False)


def test_a_finished_dump_in_which_ranks_wait_comes_again_with_the_records_of_the_job():
    source, sink = Source(), Sink()
    grown: list[DumpUpdate] = []
    session = Session(source, (sink,), 30.0, (grown.append,))
    session.start(lambda _: None)
    state = finished(make_rank(0), make_rank(1, frames=IN_LOCK))
    try:
        assert sink.wait_for(1)
        source.dumps.tell(replace(state, running=True))
        assert wait_until(lambda: len(grown) == 1)
        source.dumps.tell(state)
        assert wait_until(lambda: source.records.asked)
        assert wait_until(lambda: len(grown) == 2)
        dump_ns = state.rounds[-1].taken_ns
        source.records.tell(dump_ns, make_record(0, make_group(3, 4)), make_record(1, make_group(3, 3)))
        assert wait_until(lambda: len(grown) == 3)
    finally:
        session.stop()
    assert source.records.asked == [dump_ns], "once, and not while the dump was read"
    assert [update.awaits_records for update in grown] == [False, True, False]
    assert [is_known(update.dump.collectives) for update in grown] == [False, False, True]
    assert grown[2] == replace(grown[1], dump=grown[2].dump, awaits_records=False)
    (found,) = grown[2].dump.collectives.findings
    assert (found.waiting, found.missing) == ((0,), (1,))
    assert "hold train.py:12" in found.summary, "where the stack of the missing rank is"


def test_records_that_were_read_for_another_dump_are_not_put_into_this_one():
    source, grown = Source(), []
    session = Session(source, (), 0.005, (grown.append,))
    first, second = finished(make_rank(0), make_rank(1)), finished(make_rank(0), make_rank(1), at_s=9.0)
    source.dumps.tell(first)
    session.run(frames=1)
    source.dumps.tell(second)
    source.records.tell(first.rounds[0].taken_ns, make_record(0, make_group(3, 4)))
    session.run(frames=1)
    assert source.records.asked == [first.rounds[0].taken_ns, second.rounds[0].taken_ns]
    assert [update.awaits_records for update in grown] == [True, True]
    source.records.tell(second.rounds[0].taken_ns, make_record(0, make_group(3, 4)))
    session.run(frames=1)
    assert is_known(grown[-1].dump.collectives)
    assert grown[-1].state is second


def test_a_dump_in_which_nobody_waits_for_others_asks_the_job_for_nothing():
    source, grown = Source(), []
    source.dumps.tell(finished(make_rank(0, frames=IN_LOCK), make_rank(1, frames=IN_LOCK)))
    Session(source, (), 0.005, (grown.append,)).run(frames=2)
    assert (source.records.asked, len(grown)) == ([], 1)


def test_an_ended_job_is_asked_for_nothing():
    source, grown = Source(ends_at=0), []
    source.dumps.tell(finished(make_rank(0), make_rank(1)))
    Session(source, (), 0.005, (grown.append,)).run()
    assert (source.records.asked, [update.awaits_records for update in grown]) == ([], [False])


def test_the_hang_watch_gets_the_records_of_its_looks_also_where_nobody_shows_dumps():
    source = Source()
    source.dumps.tell(finished(make_rank(0), make_rank(1, frames=IN_LOCK)))
    Session(source, (), 0.005).run(frames=2)
    assert set(source.records.asked) == {source.dumps.state.rounds[-1].taken_ns}


def test_samples_that_grow_reach_their_sinks_as_hot_functions_between_two_readings():
    source, sink = Source(), Sink()
    grown: list[SampleUpdate] = []
    session = Session(source, (sink,), 30.0, sample_sinks=(grown.append,))
    errors: list[BaseException] = []
    session.start(errors.append)
    request = SampleRequest(seconds=2)
    try:
        assert sink.wait_for(1)
        session.ask_sample(request)
        source.samples.tell(SampleState(request, NOTHING_YET, running=True, refused=""))
        assert wait_until(lambda: len(grown) == 1)
        source.samples.tell(SampleState(request, make_reading(make_sampled(0)), running=False, refused=""))
        assert wait_until(lambda: len(grown) == 2)
        session.finish_sample()
    finally:
        session.stop()
    assert (source.samples.asked, source.samples.finished) == ([request], 1)
    assert not is_known(grown[0].hot)
    assert grown[1].hot.groups[0].functions[0].function == "all_reduce"
    assert grown[1].hot.script == source.collect().target.script
    assert (len(sink.updates), errors) == (1, [])


def test_samples_are_not_added_up_where_nobody_looks():
    source = Source()
    source.samples.tell(SampleState(SampleRequest(), "no reading", running=True, refused=""))
    Session(source, (), 0.005).run(frames=2)
