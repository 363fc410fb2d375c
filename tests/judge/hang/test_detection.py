"""When the stacks of a whole job are read by themselves, how long a pause may be, and since when a hang is."""

from dataclasses import replace
from datetime import timedelta
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dumps import FUTEX, make_rank, make_round, make_worker
from tests.frames import NOW, later, make_cpu, make_frame, make_process, set_all
from tests.hanging import conclude, expect, remember, run, sample, sample_all, sample_of, stand
from tests.judging import SECOND, scene_of
from tests.paces import make_hook, make_pace, with_hooks
from tests.stacks import DECODE, IN_LOCK, MAIN, NEXT_BATCH, SITE, TRAIN
from tests.starving import line_up
from tests.waits import wait_of
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.features.standstill import SPEEDS, hold_back, is_unmoved
from tpmon.judge.watch.clock import see_quiet
from tpmon.judge.watch.picture import choose_rounds, find_corner
from tpmon.judge.watch.tracker import HANG_AFTER_S, WatchedTime, observe
from tpmon.model.dump import Asker, DumpError, ErrorKind
from tpmon.model.frame import Frame
from tpmon.model.host import SocketSample
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import EnvironmentSetting, Freezer, Role, ThreadGroup, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import EXIT_CODES, Kind, SinceIs

LOCKED = make_rank(0, frames=IN_LOCK)
FORWARD = (MAIN, TRAIN, StackFrame("forward", f"{SITE}/torch/nn/modules/linear.py", 134))
BACKWARD = (MAIN, TRAIN, StackFrame("backward", f"{SITE}/torch/_tensor.py", 623))


def asked_at(frames, **watch):
    """Return at which seconds looks were asked for."""
    return [second for second, one in enumerate(run(frames, **watch)) if is_known(one.look)]


def look_at(frames, seconds, *processes, **more):
    """Let looks at processes come in the Frames of these seconds, and none before."""
    frames = blind(frames)
    for number, second in enumerate(seconds):
        look = replace(make_round(*processes, at_s=3.0 * number, **more), taken_ns=frames[second].taken_ns)
        frames[second] = replace(frames[second], rounds=(look,))
    return frames


def blind(frames):
    """Take the looks away: nobody has read any yet."""
    return [replace(frame, rounds=NOT_APPLICABLE) for frame in frames]


def test_looks_are_asked_for_before_the_time_is_up_and_hold_three_rounds():
    judged = run(blind(stand(LOCKED)))
    looks = [one.look for one in judged if is_known(one.look)]
    assert [second for second, one in enumerate(judged) if is_known(one.look)] == [20]
    assert (looks[0].asker, looks[0].rounds, looks[0].block) == (Asker.WATCH, 3, False)
    assert (looks[0].rounds - 1) * looks[0].every_s >= 5.0


def test_an_old_log_makes_looks_worth_it_within_seconds_and_a_young_one_is_a_sign_of_life():
    old = stand(LOCKED, seconds=10, log_age_s=310.0)
    assert asked_at(blind(old))[0] <= 3
    finding = expect("lock", old)
    assert (finding.since, finding.since_is) == (NOW - timedelta(seconds=310), SinceIs.LOWER_BOUND)
    assert asked_at(blind(stand(LOCKED, seconds=10, log_age_s=60.0))) == []
    young = stand(LOCKED, log_age_s=5.0)
    assert conclude(young).kind is not Kind.HUNG
    assert asked_at(blind(young)) == []


def test_old_connections_do_where_no_log_is_a_file():
    quiet = SocketSample(4, last_send_s=400.0, last_receive_s=350.0, retransmits=0, unsent_bytes=0)
    frames = stand(LOCKED, seconds=14, log_age_s=None, sockets=quiet)
    assert asked_at(blind(frames))[0] <= 3
    finding = expect("lock", frames)
    assert finding.since == NOW - timedelta(seconds=350)
    assert finding.since_source.startswith("last data on its connections")
    busy = replace(quiet, last_receive_s=2.0)
    assert asked_at(blind(stand(LOCKED, seconds=14, log_age_s=None, sockets=busy))) == []


def test_the_readings_have_the_word_where_none_may_be_asked_and_after_a_while_where_no_looks_come():
    frames = blind(stand(LOCKED, seconds=90, log_age_s=95.0))
    assert asked_at(frames, may_ask=False) == []
    finding = run(frames, may_ask=False)[-1].frame.verdict
    assert (finding.kind, finding.cause) == (Kind.HUNG, "no-progress")
    judged = run(frames)
    kinds = [one.frame.verdict.kind for one in judged]
    assert Kind.HUNG not in kinds[:74]
    assert kinds[-1] is Kind.HUNG
    assert [second for second, one in enumerate(judged) if is_known(one.look)] == [20, 45, 71]


def test_a_worker_that_started_before_the_hang_bounds_it_from_the_other_side():
    job = (make_rank(0, frames=NEXT_BATCH, waits_for="a batch (loader queue)"), make_worker(0, 0))
    finding = conclude(stand(*job))
    row = next(one for one in finding.evidence if one.name == "youngest worker started")
    assert (row.value, row.unit) == (3600.0, "s ago")


def test_late_looks_are_waited_for_and_a_picture_that_still_holds_is_not_taken_again():
    late = run(look_at(stand(LOCKED, seconds=80, log_age_s=85.0), (40, 58, 76), LOCKED))
    early = run(look_at(stand(LOCKED, seconds=300, log_age_s=305.0), (22, 25, 28), LOCKED))
    for judged in (late, early):
        assert [second for second, one in enumerate(judged) if is_known(one.look)] == [20]
    assert {one.frame.verdict.cause for one in late if one.frame.verdict.kind is Kind.HUNG} == {"lock"}
    assert {one.frame.verdict.cause for one in early[35:]} == {"lock"}


@pytest.mark.parametrize(("kind", "again"), [(ErrorKind.LATE, [20, 45]), (ErrorKind.DENIED, [20])])
def test_looks_that_came_too_late_to_a_rank_are_asked_for_again_soon(kind, again):
    error = DumpError("node", 4000, Role.RANK, 0, NOT_APPLICABLE, kind, "words")
    assert asked_at(look_at(stand(LOCKED, seconds=60, log_age_s=65.0), (22, 25, 28), errors=(error,))) == again


def test_a_rank_that_moves_on_takes_its_picture_with_it():
    frames = stand(LOCKED)
    moved = [set_all(later(frames[-1], n, rounds=NOT_APPLICABLE), waits_unchanged_s=float(n)) for n in range(1, 8)]
    judged = run([*frames, *moved])
    assert judged[len(frames) - 1].frame.verdict.kind is Kind.HUNG
    assert judged[-1].standing.watch.picture is None
    assert judged[-1].frame.verdict.kind is not Kind.HUNG


def rested_since(frames, at):
    """Let the wait of the ranks begin so many seconds after the first reading; each second before has its own."""
    return [set_all(frame, waits_unchanged_s=float(max(0, second - at))) for second, frame in enumerate(frames)]


def test_an_old_log_says_nothing_of_a_run_that_was_seen_to_get_on_since():
    frames = stand(LOCKED, seconds=64, log_age_s=4000.0)
    assert conclude(frames[:1] + frames[-30:]).kind is Kind.HUNG
    assert conclude(rested_since(frames, 50)).kind is not Kind.HUNG
    assert asked_at(blind(rested_since(frames, 50))) == []
    assert conclude(rested_since(frames, 30)).kind is Kind.HUNG


@pytest.mark.parametrize(("demand", "waiting", "moved"), [(0.6, 0.0, True), (0.02, 0.0, False), (0.6, 0.6, False)])
def test_a_main_thread_that_worked_and_waits_for_the_same_again_has_got_on(demand, waiting, moved):
    frames = stand(LOCKED, seconds=60, log_age_s=None)
    worked = [
        set_all(frame, runnable=demand, waiting=waiting, thread_groups=(ThreadGroup(ThreadKind.MAIN, 1, demand),))
        if second % 9 == 4 and second < 50
        else frame
        for second, frame in enumerate(frames)
    ]
    assert (conclude(worked).kind is not Kind.HUNG) is moved


def test_the_users_time_counts_in_place_of_the_default():
    assert conclude(stand(LOCKED, seconds=40), asked_s=300.0).kind is not Kind.HUNG
    assert asked_at(blind(stand(LOCKED, seconds=40)), asked_s=300.0) == []
    assert conclude(stand(LOCKED, seconds=20, log_age_s=22.0), asked_s=12.0).kind is Kind.HUNG


def pauses(*lengths_s: int):
    """Build a rank whose wait ends after each of ``lengths_s``."""
    waited_s = [float(second) for length in lengths_s for second in range(length)]
    return [read_at(second, unchanged_s, waits_for="sleep") for second, unchanged_s in enumerate(waited_s)]


@pytest.mark.parametrize(
    ("lengths", "expected"), [((10,), 30.0), ((10, 5), 30.0), ((70, 5), 138.0), ((70, 90, 5), 178.0), ((900, 5), 600.0)]
)
def test_the_rhythm_of_the_run_says_how_long_a_pause_may_be(lengths, expected):
    watch = remember(pauses(*lengths))
    assert watch.hang_after_s == pytest.approx(expected, abs=3)


def test_a_pause_is_remembered_beyond_the_window_and_a_new_rank_is_none():
    watch = remember(pauses(70, 5, 100))
    assert watch.hang_after_s == pytest.approx(138, abs=3)
    other = replace(make_process(5000, start_ticks=7, state="R"), waits_unchanged_s=0.0)
    last = pauses(176)[-1]
    assert observe(watch, replace(last, processes=(other,))).longest_s == watch.longest_s


def test_another_line_of_a_loop_is_no_end_of_its_pause_until_it_leaves_the_loop():
    frames = [read_at(second, 0.0, state="R", waits_for="running") for second in range(200)]
    loop, body = ((MAIN, StackFrame("poll", "/run/train.py", line)) for line in (50, 51))
    spins = [*sample(frames[:100], 4000, loop), *sample(frames[100:110], 4000, loop, body)]
    watch = remember([*spins, *sample(frames[110:150], 4000, loop)])
    assert watch.hang_after_s == 30.0
    assert (watch.cornered_ns, watch.still_ns > watch.cornered_ns) == (watch.ranks[0].corner_ns, True)
    for frame in sample(frames[150:160], 4000, FORWARD, BACKWARD):
        watch = observe(watch, frame)
    assert watch.hang_after_s == pytest.approx(200, abs=30), "it came back from it"


def test_while_the_stack_stays_neither_cpu_nor_naps_are_movement_and_several_places_are():
    still_s = {}
    for waits_for, state in (("running", "R"), ("sleep", "S"), (BATCH, "S")):
        frames = [read_at(second, 0.0, waits_for=waits_for, state=state) for second in range(40)]
        watch = remember(sample(frames, 4000, FORWARD))
        still_s[waits_for] = (frames[-1].taken_ns - watch.still_ns) / SECOND
        moves = remember(sample(frames, 4000, FORWARD, BACKWARD))
        assert moves.still_ns == frames[-1].taken_ns
        assert (bool(watch.moved_ns), bool(moves.moved_ns)) == (waits_for == BATCH, True)
    assert min(still_s["running"], still_s["sleep"]) >= 39
    assert still_s[BATCH] < 10


def test_a_corner_is_one_function_of_the_program_and_what_the_standard_library_does_for_it():
    loop = StackFrame("poll", "/run/train.py", 50)
    get = StackFrame("get", "/env/lib/python3.11/queue.py", 171)
    line = replace(loop, line=51)
    assert find_corner([(MAIN, loop), (MAIN, line), (MAIN, line, get)]) == (MAIN, replace(loop, line=0))
    assert find_corner([(MAIN, loop), (MAIN, TRAIN)]) is None
    assert find_corner([FORWARD]) is None
    assert find_corner([(get,)]) is None
    assert find_corner([]) is None


@given(st.lists(st.floats(0, 20), max_size=8))
def test_a_picture_is_of_three_looks_at_least_and_of_some_seconds(gaps):
    rounds = [make_round(LOCKED, at_s=at_s) for at_s in accumulate(gaps)]
    chosen = choose_rounds(rounds)
    if chosen:
        assert len(chosen) >= 3
        assert chosen[-1] is rounds[-1]
        assert chosen[-1].taken_ns - chosen[0].taken_ns >= 4 * SECOND
    else:
        assert len(rounds) < 3 or rounds[-1].taken_ns - rounds[0].taken_ns < 4 * SECOND


STACKS = st.sampled_from((IN_LOCK, DECODE, FORWARD, NEXT_BATCH, Missing("denied"), NOT_APPLICABLE))
THREADS = st.fixed_dictionaries(
    {
        "frames": STACKS,
        "state": st.sampled_from("RSDTt"),
        "waits_for": st.sampled_from(("running", "sleep", "NFS", "lock or queue (futex)", Missing("hidden"))),
        "holds_gil": st.sampled_from((True, False, NOT_APPLICABLE)),
    }
)


@given(
    st.lists(THREADS, min_size=1, max_size=3),
    st.lists(THREADS, max_size=2),
    st.sampled_from((3.0, 45.0, 400.0)),
    st.sampled_from((NOT_APPLICABLE, 2, 8)),
)
def test_any_picture_gets_an_answer(ranks, workers, log_age_s, world_size):
    looks = [make_rank(number, **fields) for number, fields in enumerate(ranks)]
    looks += [make_worker(0, number, **fields) for number, fields in enumerate(workers)]
    finding = conclude(stand(*looks, seconds=35, log_age_s=log_age_s, world_size=world_size))
    assert finding.kind in EXIT_CODES
    assert finding.since <= NOW
    if finding.kind is Kind.HUNG:
        assert finding.summary
        assert finding.evidence


# time in which tpmon paused, or the job was stopped

HOUR = 3600
BATCH = "a batch (loader queue)"


def read_at(second: float, unchanged_s: float, interval_s: float = 1.0, **fields: object) -> Frame:
    """Read a rank that has waited for ``unchanged_s``, and uses no CPU."""
    rests = {"state": "S", "waits_for": BATCH, "runnable": 0.0, "waiting": 0.0}
    main = (ThreadGroup(ThreadKind.MAIN, 1, 0.0),)
    rank = make_process(4000, start_ticks=100, waits_unchanged_s=unchanged_s, thread_groups=main, **(rests | fields))
    return later(make_frame(processes=(rank,), output=(), loader=(), interval_s=interval_s), second)


def test_an_hour_in_which_tpmon_was_stopped_is_no_pause_of_the_run_and_no_part_of_a_wait():
    """Whoever froze tpmon may have frozen the job beside it."""
    healthy = [read_at(second, 0.0) for second in (*range(60), *range(HOUR, HOUR + 5))]
    assert remember(healthy).hang_after_s == 30.0
    stood = [read_at(second, float(second)) for second in (*range(20), *range(HOUR, HOUR + 8))]
    quiet = see_quiet(remember(stood), stood[-1])
    assert quiet.own_s == pytest.approx(29, abs=3)
    went_on = remember([*stood, *(read_at(HOUR + 8 + second, 0.0) for second in range(3))])
    assert went_on.longest_s == pytest.approx(29, abs=3)
    assert went_on.hang_after_s < 70


def test_a_stack_that_is_the_same_before_and_after_a_pause_of_tpmon_is_no_pause_of_the_run():
    forward = (MAIN, TRAIN, StackFrame("forward", "/env/lib/python3.11/site-packages/torch/nn/linear.py", 4))
    backward = (*forward[:2], replace(forward[2], function="backward"))
    spins = {"state": "R", "waits_for": "running"}
    before = sample([read_at(second, 0.0, **spins) for second in range(40)], 4000, forward)
    after = sample([read_at(HOUR + second, 0.0, **spins) for second in range(20)], 4000, forward)
    on = sample([read_at(HOUR + 20 + second, 0.0, **spins) for second in range(10)], 4000, forward, backward)
    assert see_quiet(remember([*before, *after]), after[-1]).own_s == pytest.approx(68, abs=5)
    assert remember([*before, *after, *on]).longest_s < 80


def test_readings_that_are_far_apart_or_late_show_pauses_and_hangs():
    far = [read_at(10.0 * n, 10.0 * (n % 10), interval_s=10.0) for n in range(25)]
    assert remember(far).longest_s == pytest.approx(90, abs=11)
    off = [replace(one, taken_ns=one.taken_ns + (n % 2) * 2 * SECOND) for n, one in enumerate(far)]
    assert remember(off).longest_s == pytest.approx(90, abs=15)
    late = [read_at(4.0 * n, 4.0 * n) for n in range(20)]
    assert see_quiet(remember(late), late[-1]).own_s >= 55


def fell_asleep(log_age_s: float) -> list[Frame]:
    """Build a run that goes on for a minute, and stands when tpmon comes back an hour later."""
    stood = stand(LOCKED, seconds=40, log_age_s=log_age_s)
    goes_on = set_all(stood[0], waits_for=wait_of(BATCH), waits_unchanged_s=0.0)
    logs = [(replace(goes_on.output[0], last_write_age_s=float(second % 5)),) for second in range(60)]
    return [later(goes_on, second - HOUR - 60, output=log) for second, log in enumerate(logs)] + stood


def test_a_hang_that_began_while_tpmon_was_stopped_is_as_old_as_the_log_says_unless_that_is_of_before():
    judged = run(fell_asleep(1800.0))
    finding = judged[-1].frame.verdict
    assert (finding.kind, finding.cause) == (Kind.HUNG, "lock")
    assert (finding.since, finding.since_is) == (NOW - timedelta(seconds=1800), SinceIs.LOWER_BOUND)
    assert finding.since_source.startswith("last log write")
    assert Kind.HUNG not in [one.frame.verdict.kind for one in judged[:60]]
    finding = run(fell_asleep(2.0 * HOUR))[-1].frame.verdict
    assert (finding.kind, finding.since_is) == (Kind.HUNG, SinceIs.LOWER_BOUND)
    assert NOW - finding.since <= timedelta(seconds=45), "the run has got on since that line"


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


# a run that has not moved since tpmon attached


def unmoved(**fields: object) -> Scene:
    """Return 15 s of a rank that stood as long as tpmon watched."""
    frame = replace(blind(stand(LOCKED, seconds=15, log_age_s=60.0))[-1], **fields)
    now_ns = frame.taken_ns
    watch = WatchedTime(begun_ns=now_ns - 15 * 10**9, still_ns=now_ns - 60 * 10**9, taken_ns=now_ns)
    return replace(scene_of(frame), watch=watch)


def suspect(kind: Kind) -> Suspicion:
    return Suspicion(kind, "cause", 0.9, 2.0, frozenset(("a", "b")), "words", ())


def test_fifteen_seconds_without_movement_rule_nothing_out_and_say_how_long_to_look():
    frames = blind(stand(LOCKED, seconds=15, log_age_s=20.0))
    finding = conclude(frames)
    said = " ".join(finding.ruled_out)
    assert finding.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert "hang" not in said
    assert "moved" not in said
    needed = "at most 1m15s are needed: --until hung --for 85s"
    assert f"hang (nothing has moved for the 15 s watched; {needed})" in finding.unknown
    assert finding.summary == "nothing has moved for the 15 s watched, too short to call it hung"
    assert "tpmon diagnose 4211 --until hung --for 85s" in finding.try_
    asked = conclude(frames, asked_s=60.0)
    assert any("1m00s are needed" in text for text in asked.unknown)
    assert "--for 70s" in asked.try_


def test_what_was_seen_to_move_is_said_to_have_moved():
    frames = blind(stand(LOCKED, seconds=15, log_age_s=20.0))
    sooner = [set_all(frame, waits_unchanged_s=min(7.0, float(number))) for number, frame in enumerate(frames)]
    assert "hang (it moved 7 s ago)" in conclude(sooner).ruled_out


def test_no_verdict_about_the_speed_of_a_run_that_has_not_moved():
    scene = unmoved()
    answers = [*map(suspect, Kind), Cleared("swap (0 B)")]
    held = hold_back(answers, scene)
    assert {one.kind for one in held if isinstance(one, Suspicion)} == set(Kind) - SPEEDS
    assert Unsure("comms-bound cause (nothing has moved since tpmon attached)") in held
    assert held[-1] == Cleared("swap (0 B)")
    assert Kind.HUNG not in SPEEDS
    assert not {Kind.STARTING, Kind.PAUSED, Kind.IDLE} & SPEEDS
    # First steps are steps, other starts take their time.
    first = replace(suspect(Kind.STARTING), cause="first-steps")
    load = replace(first, cause="load")
    untold = Unsure("starting first-steps (nothing has moved since tpmon attached)")
    assert hold_back([first, load], scene) == [untold, load]


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
    now_ns = scene.frame.taken_ns
    longer = replace(scene.watch, begun_ns=now_ns - 40 * 10**9)
    stopped = replace(scene, watch=replace(longer, still_ns=now_ns - 15 * 10**9))
    assert not is_unmoved(stopped)
    assert not is_unmoved(replace(scene, watch=WatchedTime())), "before the first reading is remembered"
    comms, data = suspect(Kind.COMMS_BOUND), suspect(Kind.DATA_BOUND)
    assert hold_back([comms, data], stopped) == [Unsure("comms-bound cause (nothing has moved for 15 s)"), data]
    shortly = replace(scene, watch=replace(longer, still_ns=now_ns - 6 * 10**9))
    assert hold_back([comms, data], shortly) == [comms, data]


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


@pytest.mark.parametrize(
    ("looks", "seconds", "words"),
    [
        (
            (make_rank(0, frames=IN_LOCK),),
            12,
            "rank 0 is in hold train.py:12, waiting for a lock; nothing has moved for",
        ),
        (
            (make_rank(0), make_rank(1, frames=IN_LOCK)),
            12,
            "1 of 2 ranks waits in all_reduce train.py:40; rank 1 is in hold",
        ),
        ((make_rank(0), make_rank(1, frames=IN_LOCK)), 16, "called a hang from 30 s on"),
    ],
)
def test_an_undecided_job_that_stands_says_where_for_whom_and_from_when_it_hangs(looks, seconds, words):
    frames = stand(*looks, seconds=seconds, log_age_s=None)
    if seconds < 15:
        frames = blind(frames)
    stacks = {one.pid: [one.threads[0].frames] for one in looks}
    finding = conclude(sample_all(frames, stacks))
    assert finding.kind is Kind.NOT_ENOUGH_EVIDENCE
    assert words in finding.summary
