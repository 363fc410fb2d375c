"""One node of a fleet on the screen of a job: its clock, what keys ask of its agent, what becomes of it."""

import time
from dataclasses import replace

import pytest

from tests.fleet.nodes import look_at_pair, make_node, make_rank_summary, make_silent
from tests.frames import NOW, make_frame
from tests.goldens import sample_views
from tpmon.commands.nodes.focus import JUMP_NS, Focus
from tpmon.commands.nodes.screen import FleetWiring, write_stacks
from tpmon.judge.nodes import FleetMemory, join_fleet
from tpmon.model.dump import Asker, DumpRequest
from tpmon.model.known import Missing, is_known
from tpmon.model.results.doctor import Update
from tpmon.model.results.fleet import FleetStacks, NodeState
from tpmon.model.results.sample import SampleRequest
from tpmon.report.readings import write_reading
from tpmon.ui.fleet.state import FleetOrder
from tpmon.ui.monitor.controls import Errand, Notice, ScreenOptions
from tpmon.ui.monitor.keys import KEYS, NOT_AFAR, keys_shown, say_unused
from tpmon.ui.monitor.requests import say_next_price
from tpmon.ui.monitor.start import first_view
from tpmon.ui.monitor.state import with_update

DENIED = FleetStacks(Missing("no answer"), (("n1", "may not be read"),))


class FakeFleet:
    """Take what is asked, and keep it."""

    def __init__(self) -> None:
        self.calls = []

    def first_report(self):
        return report()

    def __getattr__(self, name):
        return lambda *words, **more: self.calls.append((name, words, more))

    def take(self, name):
        """Return what takes the answer to the request made last."""
        called, words, _more = self.calls[-1]
        assert called == name
        return words[-1]


def report(*nodes):
    return join_fleet(FleetMemory(), nodes or (make_node("n1", make_rank_summary(0)),), NOW)


@pytest.fixture
def focus():
    fleet, updates, results = FakeFleet(), [], []
    one = Focus(fleet, "n1")
    one.start(updates.append, results.append)
    return one, fleet, updates, results


def test_whole_frames_are_followed_until_the_node_is_left(focus):
    one, fleet, updates, _results = focus
    take = fleet.take("follow")
    take("n1", make_frame())
    assert updates[0].frame.target.pid == make_frame().target.pid
    one.leave()
    assert fleet.take("unfollow") == take


def test_ages_are_counted_on_the_clock_of_this_machine(focus):
    _one, fleet, updates, _results = focus
    take = fleet.take("follow")
    for second in range(3):
        take("n1", make_frame(taken_ns=5 + second * 10**9))
    first, *others = [update.frame.taken_ns for update in updates]
    assert abs(first - time.monotonic_ns()) < 10**9
    assert [one - first for one in others] <= [10**9, 2 * 10**9], "no Frame is of a time to come"
    assert len(updates[-1].pulses) == 3
    take("n1", make_frame(taken_ns=5 - 2 * JUMP_NS))
    assert len(updates[-1].pulses) == 1, "another clock: its history is another one"
    assert abs(updates[-1].frame.taken_ns - time.monotonic_ns()) < 10**9


def test_stacks_come_as_the_screen_shows_them(focus):
    one, fleet, _updates, results = focus
    one.ask(DumpRequest(Asker.KEY, rounds=3))
    assert results[0].state.running
    take = fleet.take("ask_stacks")
    assert (fleet.calls[-1][1][0], fleet.calls[-1][2]) == (("n1",), {"rounds": 3})
    dump = look_at_pair()["n2"]
    take(FleetStacks(dump, ()))
    update = results[1]
    assert (update.state.running, update.state.refused, len(update.state.rounds)) == (False, "", dump.rounds)
    assert len(update.stacks) == len(update.dump.groups) > 0
    assert update.tree
    assert "hold" in write_reading(update)


def test_stacks_that_may_not_be_read_say_why(focus):
    one, fleet, _updates, results = focus
    one.ask(DumpRequest(Asker.KEY))
    fleet.take("ask_stacks")(DENIED)
    assert results[-1].state.refused == "no stacks: may not be read"
    assert not is_known(results[-1].dump)


def test_samples_come_as_the_screen_shows_them(focus):
    one, fleet, _updates, results = focus
    request = SampleRequest(everyone=True, seconds=7.0)
    one.ask(request)
    assert results[-1].state.running
    assert fleet.calls[-1][1][:2] == ("n1", 7.0)
    hot = sample_views.ended().hot
    fleet.take("ask_sample")(hot)
    assert (results[-1].hot, results[-1].state.running) == (hot, False)
    one.ask(request)
    fleet.take("ask_sample")(Missing("py-spy is not here"))
    assert results[-1].state.refused == "no samples: py-spy is not here"


def test_what_becomes_of_the_node_is_said_once(focus):
    one, _fleet, _updates, results = focus
    one.take_report(report())
    assert results == []
    gone = make_silent("n1", NodeState.GONE, "Broken pipe")
    for _ in range(2):
        one.take_report(report(gone))
    one.take_report(report())
    assert results[0] == Notice("n1: gone, Broken pipe", passing=True)
    assert [one.text.partition(",")[0] for one in results] == ["n1: gone", "n1: live"]
    one.ask(Errand.RECORD)
    assert len(results) == 2, "what the agent does not do asks nothing of it"


def view_of_node(options):
    return with_update(first_view(options, 0), Update(make_frame(taken_ns=10**9), ()), (), 10**9)


def test_keys_that_need_the_node_itself_are_not_offered_and_say_where_they_work():
    here = view_of_node(ScreenOptions(1.0, ascii_only=False))
    there = view_of_node(ScreenOptions(1.0, ascii_only=False, readonly=True, from_list=True, node="n1"))
    offered = {help_.help for help_ in keys_shown(there)}
    others = {key.help for key in KEYS if key.id in NOT_AFAR}
    assert not offered & others
    assert {help_.help for help_ in keys_shown(here)} & others
    pid = there.frame.target.pid
    for sign in ("b", "t", "D", "f", "+"):
        assert say_unused(sign, there) == f"{sign} works on n1 itself: tpmon attach {pid} there"
    assert say_unused("b", here) != say_unused("b", there)


def test_the_price_of_samples_is_that_of_the_node():
    there = view_of_node(ScreenOptions(1.0, ascii_only=False, node="n1"))
    said = say_next_price(replace(there, to_sample=SampleRequest(everyone=True)))
    assert said.endswith("(the whole job on n1)")


def test_the_wiring_tells_all_it_knows_to_a_screen_that_comes_later():
    fleet, told = FakeFleet(), []
    wiring = FleetWiring(fleet)
    wiring.start()
    take_report = fleet.calls[-1][1][0]
    wiring.listen(told.append)
    assert told == [wiring.news]
    wiring.ask(FleetOrder.STACKS)
    _name, (nodes, take), more = fleet.calls[-1]
    assert nodes == ()
    more["count"](1, 2)
    assert (told[-1].stacks.answered, told[-1].stacks.asked) == (1, 2)
    assert take_report(report(make_node("n2"))) is False
    assert (told[-1].report.nodes[0].node, told[-1].stacks.asked) == ("n2", 2)
    dump = look_at_pair()["n2"]
    take(FleetStacks(dump, DENIED.unread))
    later = []
    wiring.listen(later.append)
    assert later[0].stacks.folded.dump is dump
    assert len(later[0].stacks.shown) == len(dump.groups)
    text = write_stacks(later[0].stacks.folded)
    assert text.startswith("not read: n1: may not be read\n")
    assert "hold train.py" in text
    assert write_stacks(DENIED).endswith("no stacks: no answer")


def test_the_node_that_is_looked_at_hears_of_its_state():
    fleet = FakeFleet()
    wiring = FleetWiring(fleet)
    wiring.start()
    results = []
    wiring.focus = Focus(fleet, "n1")
    wiring.focus.start(lambda _update: None, results.append)
    fleet.calls[0][1][0](replace(report(), nodes=(make_silent("n1", NodeState.LATE, "its agent answers no more"),)))
    assert results[0].text == "n1: late, its agent answers no more"
