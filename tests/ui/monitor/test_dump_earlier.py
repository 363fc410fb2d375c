"""One look after another dump: what each thread did since, without saying that what hangs now moves."""

from dataclasses import replace

import pytest

from tests.dumps import inner, make_rank, make_round
from tests.frames import make_frame, make_view
from tests.goldens import dump_views
from tests.painted import screen_of
from tests.probe.spy.test_dump_service import Bench
from tests.stacks import DECODE, IN_LOCK
from tpmon.judge.folds.hot import fold_state
from tpmon.model.dump import Asker, Dump, DumpRequest, DumpState, Motion
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.probe.spy import dump
from tpmon.ui.kit.keys import Overlay

MS = 10**6


def fold(before: dict, now: dict, apart_s: float) -> Dump:
    """Fold one look at a rank after an earlier one."""
    earlier = replace(make_round(make_rank(0, **before)), paused_ms=4.0)
    look = make_round(make_rank(0, **now), at_s=apart_s)
    state = DumpState(DumpRequest(Asker.KEY), (look,), 1, 1, running=False, refused="", earlier=earlier)
    dump = fold_state(state, make_frame()).dump
    assert is_known(dump)
    return dump


def run(bench: Bench, request: DumpRequest) -> DumpState:
    bench.service.ask(request)
    bench.wait(lambda state: state.answered == 1)
    bench.made[-1].go.set()
    return bench.wait(lambda state: not state.running)


@pytest.fixture
def bench(monkeypatch):
    """Return a service whose looks are from now and may be compared at once."""
    monkeypatch.setattr(dump, "APART_S", -1e12)
    monkeypatch.setattr(dump, "EARLIER_S", 1e12)
    return Bench()


def test_a_second_dump_is_compared_with_the_last_look_of_the_first(bench):
    first = run(bench, DumpRequest(Asker.WATCH))
    assert first.earlier is NOT_APPLICABLE
    second = run(bench, DumpRequest(Asker.KEY))
    assert second.earlier is first.rounds[-1]
    assert len(second.rounds) == 1, "it is no look of this dump"
    assert bench.service.take() == (*first.rounds, *second.rounds)
    assert run(bench, DumpRequest(Asker.KEY, pids=(12,))).earlier is second.rounds[-1], "it was at these too"
    assert run(bench, DumpRequest(Asker.KEY)).earlier is NOT_APPLICABLE, "and that one not at all of these"


def test_looks_that_tell_by_themselves_or_show_other_stacks_are_compared_with_none(bench):
    run(bench, DumpRequest(Asker.KEY))
    assert run(bench, DumpRequest(Asker.KEY, rounds=2, every_s=0.01)).earlier is NOT_APPLICABLE
    kept = run(bench, DumpRequest(Asker.KEY)).rounds[-1]
    assert run(bench, DumpRequest(Asker.KEY, native=True)).earlier is NOT_APPLICABLE
    assert run(bench, DumpRequest(Asker.KEY)).earlier is kept


@pytest.mark.parametrize(("apart_s", "most_s"), [(1e12, 2e12), (-1e12, -0.5e12)])
def test_a_look_of_just_now_or_of_long_ago_is_none_to_compare_with(monkeypatch, apart_s, most_s):
    monkeypatch.setattr(dump, "APART_S", apart_s)
    monkeypatch.setattr(dump, "EARLIER_S", most_s)
    bench = Bench()
    run(bench, DumpRequest(Asker.KEY))
    assert run(bench, DumpRequest(Asker.KEY)).earlier is NOT_APPLICABLE


def test_what_rested_since_is_frozen_since_and_the_cost_is_of_this_look_alone():
    dump = fold({"frames": IN_LOCK}, {"frames": IN_LOCK}, 300.0)
    (group,) = dump.groups
    assert (group.motion, group.since_s, group.threads[0].cpu_pct) == (Motion.FROZEN, 300.0, 0.0)
    assert (dump.rounds, dump.seconds, dump.paused_ms, dump.spy_cpu_ms) == (2, 300.0, 0.0, 10.0)


@pytest.mark.parametrize(
    ("before", "now", "motion"),
    [
        ({"frames": DECODE}, {"frames": IN_LOCK}, Motion.MOVING),
        ({"frames": inner(1)}, {"frames": inner(2)}, Motion.SLOW),
        ({"frames": IN_LOCK}, {"frames": IN_LOCK, "run_ns": 10_005 * MS}, Motion.FROZEN),
    ],
)
def test_of_seconds_ago_it_tells_what_moves_and_of_minutes_ago_only_the_cpu(before, now, motion):
    (group,) = fold(before, now, 10.0).groups
    assert group.motion is motion
    now = {**now, "run_ns": 100_005 * MS}
    (group,) = fold(before, now, 100.0).groups
    assert group.motion is Motion.ONCE, "it may hang since a moment ago"
    assert group.threads[0].cpu_pct == pytest.approx(100.0)


def test_the_screen_names_the_look_that_it_compares_with():
    once = dump_views.hung_once()
    earlier = dump_views.look_at(dump_views.hung_processes(), 20.0)
    update = replace(once, state=replace(once.state, earlier=earlier))
    view = make_view(make_frame(), overlay=Overlay.STACKS, dump=update)
    said = screen_of(view, 80, 24)
    assert " last log write 02:41:27, 26m02s before · CPU since the dump of 03:07:21\n" in said
