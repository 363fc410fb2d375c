"""Time in which tpmon itself paused, or the job was stopped, is no pause that the run came back from."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.dumps import IN_LOCK, MAIN, TRAIN, make_rank
from tests.frames import NOW, NOW_NS, make_frame, make_process
from tests.hanging import remember, run, sample, stand
from tests.judging import SECOND
from tests.paces import make_hook, make_pace, with_hooks
from tests.waits import wait_of
from tpmon.judge.hang.activity import see_quiet
from tpmon.judge.watch.tracker import HANG_AFTER_S, WatchedTime, observe
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.process import Freezer, ThreadGroup, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Kind, SinceIs

HOUR = 3600
BATCH = "a batch (loader queue)"
LOCKED = make_rank(0, frames=IN_LOCK)


def read_at(second: float, unchanged_s: float, **fields: object) -> Frame:
    """Read a rank that has waited for ``unchanged_s``, and uses no CPU."""
    rank = make_process(
        4000,
        start_ticks=100,
        state=fields.pop("state", "S"),
        waits_for=fields.pop("waits_for", BATCH),
        waits_unchanged_s=unchanged_s,
        runnable=0.0,
        waiting=0.0,
        thread_groups=(ThreadGroup(ThreadKind.MAIN, 1, 0.0),),
        frozen=fields.pop("frozen", NOT_APPLICABLE),
    )
    return make_frame(
        taken=NOW + timedelta(seconds=second),
        taken_ns=NOW_NS + round(second * SECOND),
        processes=(rank,),
        output=(),
        loader=(),
        **fields,
    )


def test_an_hour_in_which_tpmon_was_stopped_is_no_pause_of_a_run_that_went_on():
    healthy = [read_at(second, 0.0) for second in (*range(60), *range(HOUR, HOUR + 5))]
    watch = remember(healthy)
    assert watch.hang_after_s == 30.0


def test_a_wait_that_looks_the_same_after_a_pause_of_tpmon_is_as_old_as_it_was_watched():
    """Whoever froze tpmon may have frozen the job beside it."""
    stood = [read_at(second, float(second)) for second in (*range(20), *range(HOUR, HOUR + 8))]
    quiet = see_quiet(remember(stood), stood[-1])
    assert quiet.own_s == pytest.approx(29, abs=3)
    went_on = [*stood, *(read_at(HOUR + 8 + second, 0.0) for second in range(3))]
    assert remember(went_on).longest_s == pytest.approx(29, abs=3)
    assert remember(went_on).hang_after_s < 70


def test_a_stack_that_is_the_same_before_and_after_a_pause_of_tpmon_is_no_pause_of_the_run():
    forward = (MAIN, TRAIN, StackFrame("forward", "/env/lib/python3.11/site-packages/torch/nn/linear.py", 4))
    backward = (*forward[:2], replace(forward[2], function="backward"))
    spins = {"state": "R", "waits_for": "running"}
    before = sample([read_at(second, 0.0, **spins) for second in range(40)], 4000, forward)
    after = sample([read_at(HOUR + second, 0.0, **spins) for second in range(20)], 4000, forward)
    on = sample([read_at(HOUR + 20 + second, 0.0, **spins) for second in range(10)], 4000, forward, backward)
    assert see_quiet(remember([*before, *after]), after[-1]).own_s == pytest.approx(68, abs=5)
    assert remember([*before, *after, *on]).longest_s < 80


def test_readings_that_are_meant_to_be_far_apart_show_the_pauses_of_the_run():
    far = [read_at(10.0 * n, 10.0 * (n % 10), interval_s=10.0) for n in range(25)]
    assert remember(far).longest_s == pytest.approx(90, abs=11)
    late = [replace(one, taken_ns=one.taken_ns + (n % 2) * 2 * SECOND) for n, one in enumerate(far)]
    assert remember(late).longest_s == pytest.approx(90, abs=15)


def test_a_machine_on_which_every_reading_is_late_still_sees_a_hang():
    late = [read_at(4.0 * n, 4.0 * n) for n in range(20)]
    assert see_quiet(remember(late), late[-1]).own_s >= 55


def fell_asleep(log_age_s: float) -> list[Frame]:
    """Build a run that goes on for a minute, and stands when tpmon comes back an hour later."""
    stood = stand(LOCKED, seconds=40, log_age_s=log_age_s)
    begun = [
        replace(
            stood[0],
            taken=NOW - timedelta(seconds=HOUR + 100 - second),
            taken_ns=NOW_NS - (HOUR + 100 - second) * SECOND,
            processes=(replace(stood[0].processes[0], waits_for=wait_of(BATCH), waits_unchanged_s=0.0),),
            output=(replace(stood[0].output[0], last_write_age_s=float(second % 5)),),
        )
        for second in range(60)
    ]
    return begun + stood


def test_a_hang_that_began_while_tpmon_was_stopped_is_as_old_as_the_log_says():
    frames = fell_asleep(1800.0)
    judged = run(frames)
    kinds = [one.frame.verdict.kind for one in judged]
    finding = judged[-1].frame.verdict
    assert (finding.kind, finding.cause) == (Kind.HUNG, "lock")
    assert (finding.since, finding.since_is) == (NOW - timedelta(seconds=1800), SinceIs.LOWER_BOUND)
    assert finding.since_source.startswith("last log write")
    assert Kind.HUNG not in kinds[:60]


def test_a_line_from_before_the_pause_says_nothing_of_a_run_that_has_got_on_since():
    frames = fell_asleep(2.0 * HOUR)
    finding = run(frames)[-1].frame.verdict
    assert finding.kind is Kind.HUNG
    assert finding.since_is is SinceIs.LOWER_BOUND
    assert NOW - finding.since <= timedelta(seconds=45)


@pytest.mark.parametrize(
    "held",
    [
        {"state": "T", "waits_for": "stopped"},
        {"state": "t", "waits_for": "stopped"},
        {"waits_for": "frozen by its control group"},
        {"state": "D", "waits_for": "sleep", "frozen": Freezer(1, "/a", "/sys/fs/cgroup/freezer/a")},
    ],
)
def test_time_in_which_the_job_was_stopped_is_no_pause_that_it_came_back_from(held):
    frames = [read_at(second, float(second % 4)) for second in range(20)]
    frames += [read_at(20 + second, float(second), **held) for second in range(600)]
    frames += [read_at(620 + second, float(second % 4)) for second in range(20)]
    watch = remember(frames)
    assert watch.longest_s < 10
    assert watch.lost_s == (pytest.approx(600, abs=2),)


def test_a_look_of_a_debugger_cuts_no_pause_short():
    frames = [read_at(second, float(second % 4)) for second in range(20)]
    frames += [read_at(20 + second, float(second)) for second in range(100)]
    frames += [read_at(120 + second, 100.0 + second, state="t", waits_for="stopped") for second in range(2)]
    frames += [read_at(122 + second, 102.0 + second) for second in range(50)]
    frames += [read_at(172 + second, float(second % 4)) for second in range(20)]
    assert remember(frames).longest_s > 140


def test_a_step_in_which_the_job_was_stopped_counts_without_that_time():
    hook = make_hook(4000, phase_s=1.0, pace=make_pace(4000, longest_ms=660_000.0))
    frame = with_hooks(read_at(0.0, 0.0), hook)
    assert observe(WatchedTime(lost_s=(600.0,)), frame).longest_s == pytest.approx(60)
    assert observe(WatchedTime(lost_s=(600.0, 30.0)), frame).longest_s == pytest.approx(60)
    assert observe(WatchedTime(lost_s=(700.0,)), frame).longest_s == pytest.approx(660)
    assert observe(WatchedTime(lost_s=(700.0, 60.0)), frame).longest_s == pytest.approx(600)
    # The readings around a stop blur how long it was.
    assert observe(WatchedTime(lost_s=(661.0,)), frame).longest_s == 0


@pytest.mark.parametrize("words", ["running", "lock with a time-out (futex)"])
def test_a_thread_that_woke_up_while_it_was_read_came_back_from_no_pause(words):
    asks = {"waits_for": "lock with a time-out (futex)"}
    stack = (MAIN, TRAIN)
    frames = [read_at(second, 0.0, **asks) for second in range(40)]
    frames[30] = read_at(30, 0.0, waits_for=words)
    watch = remember(sample(frames, 4000, stack, every=5))
    assert watch.hang_after_s == HANG_AFTER_S, "it asks for the interpreter's lock again and again"
    assert see_quiet(watch, frames[-1]).own_s >= 30
