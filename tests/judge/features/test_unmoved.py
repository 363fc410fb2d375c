"""A run that has not moved since tpmon attached: no hang is ruled out, and nothing is said of its speed."""

from dataclasses import replace

import pytest

from tests.dumps import FUTEX, IN_LOCK, make_rank, make_worker
from tests.frames import make_cpu, make_frame, make_process
from tests.hanging import run, sample_of, stand
from tests.judging import scene_of
from tests.starving import line_up
from tests.waits import wait_of
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.features.standstill import SPEEDS, hold_back, is_unmoved
from tpmon.judge.watch.tracker import WatchedTime
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.process import EnvironmentSetting, ThreadGroup, ThreadKind
from tpmon.model.verdict import Finding, Kind

LOCKED = make_rank(0, frames=IN_LOCK)


def blind(frames: list[Frame]) -> list[Frame]:
    return [replace(frame, rounds=NOT_APPLICABLE) for frame in frames]


def conclude(frames: list[Frame], **watch: object) -> Finding:
    finding = run(frames, **watch)[-1].frame.verdict
    assert isinstance(finding, Finding)
    return finding


def unmoved(**fields: object) -> Scene:
    """Return 15 s of a rank that stood as long as tpmon watched."""
    frame = replace(blind(stand(LOCKED, seconds=15, log_age_s=60.0))[-1], **fields)
    watch = WatchedTime(begun_ns=frame.taken_ns - 15 * 10**9, still_ns=frame.taken_ns - 60 * 10**9)
    return replace(scene_of(frame), watch=watch)


def suspect(kind: Kind) -> Suspicion:
    return Suspicion(kind, "cause", 0.9, 2.0, frozenset(("a", "b")), "words", ())


def test_fifteen_seconds_without_movement_rule_nothing_out_and_say_how_long_to_look():
    finding = conclude(blind(stand(LOCKED, seconds=15, log_age_s=20.0)))
    said = " ".join(finding.ruled_out)
    assert finding.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert "hang" not in said
    assert "moved" not in said
    needed = "at most 1m15s are needed: --until hung --for 85s"
    assert f"hang (nothing has moved for the 15 s watched; {needed})" in finding.unknown
    assert "no progress (nothing has moved for the 15 s watched)" in finding.unknown
    assert finding.summary == "nothing has moved for the 15 s watched, too short to call it hung"
    assert "tpmon diagnose 4211 --until hung --for 85s" in finding.try_


def test_the_time_that_is_asked_for_is_the_time_that_is_named():
    finding = conclude(blind(stand(LOCKED, seconds=15, log_age_s=20.0)), asked_s=60.0)
    assert any("1m00s are needed" in text for text in finding.unknown)
    assert "--for 70s" in finding.try_


def test_first_steps_are_steps_and_other_starts_take_their_time():
    scene = unmoved()
    first = replace(suspect(Kind.STARTING), cause="first-steps")
    load = replace(first, cause="load")
    assert hold_back([first, load], scene) == [
        Unsure("starting first-steps (nothing has moved since tpmon attached)"),
        load,
    ]


def test_what_was_seen_to_move_is_said_to_have_moved():
    frames = blind(stand(LOCKED, seconds=15, log_age_s=20.0))
    sooner = [
        replace(
            frame, processes=tuple(replace(one, waits_unchanged_s=min(7.0, float(number))) for one in frame.processes)
        )
        for number, frame in enumerate(frames)
    ]
    finding = conclude(sooner)
    assert "no progress (rank 0 moved 7 s ago)" in finding.ruled_out


def test_no_verdict_about_the_speed_of_a_run_that_has_not_moved():
    scene = unmoved()
    answers = [*map(suspect, Kind), Cleared("swap (0 B)")]
    held = hold_back(answers, scene)
    assert {one.kind for one in held if isinstance(one, Suspicion)} == set(Kind) - SPEEDS
    assert Unsure("comms-bound cause (nothing has moved since tpmon attached)") in held
    assert held[-1] == Cleared("swap (0 B)")
    assert Kind.HUNG not in SPEEDS
    assert not {Kind.STARTING, Kind.PAUSED, Kind.IDLE} & SPEEDS


@pytest.mark.parametrize(
    "busy",
    [
        pytest.param((sample_of(LOCKED, 15.0), make_process(500, runnable=0.9, waiting=0.0)), id="helper"),
        pytest.param((sample_of(make_rank(0, state="R"), 0.0),), id="rank"),
        pytest.param(
            (sample_of(LOCKED, 15.0), replace(sample_of(make_worker(0, 0), 0.0), runnable=0.5, waiting=0.0)),
            id="worker",
        ),
    ],
)
def test_a_run_of_which_somebody_works_has_moved(busy):
    assert is_unmoved(unmoved())
    scene = unmoved(processes=busy)
    assert not is_unmoved(scene)
    answers = [suspect(Kind.DATA_BOUND)]
    assert hold_back(answers, scene) == answers


def test_ranks_that_stopped_moving_wait_for_each_other_or_for_ever():
    scene = unmoved()
    begun_ns = scene.frame.taken_ns - 40 * 10**9
    stopped = replace(scene, watch=WatchedTime(begun_ns=begun_ns, still_ns=scene.frame.taken_ns - 15 * 10**9))
    assert not is_unmoved(stopped)
    comms, data = suspect(Kind.COMMS_BOUND), suspect(Kind.DATA_BOUND)
    assert hold_back([comms, data], stopped) == [Unsure("comms-bound cause (nothing has moved for 15 s)"), data]
    shortly = replace(scene, watch=WatchedTime(begun_ns=begun_ns, still_ns=scene.frame.taken_ns - 6 * 10**9))
    assert hold_back([comms, data], shortly) == [comms, data]


def test_before_the_first_reading_is_remembered_nothing_is_held_back():
    assert not is_unmoved(replace(unmoved(), watch=WatchedTime()))


def test_a_verdict_about_speed_does_not_outlast_the_movement():
    threads = (EnvironmentSetting("OMP_NUM_THREADS", "16"),)
    crowd = make_process(runnable=11.0, waiting=9.3, busy_threads=16, environment=threads)
    groups = (ThreadGroup(ThreadKind.MAIN, 1, 0.0),)
    rest = replace(
        crowd, state="S", runnable=0.0, waiting=0.0, busy_threads=0, thread_groups=groups, waits_for=wait_of(FUTEX)
    )
    cpus = {"budget_cores": 2.0, "host_cores": 2, "pool_runnable": 11.0, "oversubscription": 5.5}
    crowded = make_cpu(**cpus, runnable=11.0, used_cores=1.9, run_delay_ratio=0.84)
    works = make_frame(processes=(crowd,), loader=(), cpu=crowded, output=())
    stands = replace(works, cpu=make_cpu(**cpus, runnable=0.0, used_cores=0.0, run_delay_ratio=0.0))
    resting = [replace(stands, processes=(replace(rest, waits_unchanged_s=float(second)),)) for second in range(25)]
    judged = run(line_up([works] * 25 + resting))
    kinds = [one.frame.verdict.kind for one in judged]
    assert kinds[24] is Kind.OVERSUBSCRIBED
    assert kinds[30] is Kind.OVERSUBSCRIBED
    assert not SPEEDS.intersection(kinds[37:])
    assert judged[-1].frame.verdict.summary == "nothing has moved for 24 s, too short to call it hung"
