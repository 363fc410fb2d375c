"""Runs without steps, on made-up Windows: starting, paused, over, stopped, blocked, and nothing at all."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.frames import NOW, NOW_NS, make_frame, make_gpu, make_output, make_process, make_target, make_worker
from tests.hanging import remember
from tests.judging import (
    LOCK,
    SECOND,
    UNREAD,
    clears,
    conclude,
    hold,
    make_looks,
    make_phases,
    quiet_rank,
    said,
    scene_of,
)
from tests.waits import wait_of
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.ends import find_ended
from tpmon.judge.features.snapshot import see
from tpmon.judge.hang.detection import judge_gpu_lost, judge_waits
from tpmon.judge.hang.threads import need_of_wait
from tpmon.judge.hysteresis import Standing
from tpmon.judge.judge import judge
from tpmon.judge.rules.lifecycle import judge_finished
from tpmon.judge.stacks.phases import Phase
from tpmon.model.figures import Origin
from tpmon.model.gpu import GpuState
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Freezer, Role, ThreadGroup, ThreadKind, Tracer
from tpmon.model.units import format_seconds
from tpmon.model.verdict import Kind, SinceIs
from tpmon.model.waits import FROZEN

BATCH = "a batch (loader queue)"


REST = {"runnable": 0.0, "waits_unchanged_s": 45.0, "asked_read_bytes_s": 0.0, "asked_write_bytes_s": 0.0}


def quiet_worker(pid=4221, **fields):
    return make_worker(pid, **{**REST, **fields})


def look(frames, phases=()):
    """Judge the last of some Frames by all of them, with what the watch remembers."""
    return judge_waits(see(frames, {one.pid: one for one in phases}, remember(frames)))


def stand(frame, phases=(), seconds=12):
    return look(hold(frame, seconds), phases)


def old_log(age_s=100.0):
    return make_output(last_write=NOW - timedelta(seconds=age_s), last_write_age_s=age_s)


def quiet_frame(*processes, **fields):
    plain = {"processes": processes or (quiet_rank(), quiet_worker()), "output": (old_log(),)}
    return make_frame(**{**plain, **fields})


# Stopped


@pytest.mark.parametrize(("age_s", "words"), [(2.0, "in"), (9.0, "last seen in")])
def test_where_a_stopped_rank_is_stands_beside_its_stop(age_s, words):
    stopped = make_frame(processes=(quiet_rank(**SIGNAL),))
    phases = make_phases({Phase.FORWARD: 1.0}, where="forward model.py:88", newest_age_s=age_s)
    (row,) = stand(stopped, [phases], seconds=6).evidence
    assert row.text == f"stopped by a signal, state T, for 6 s at least; {words} forward model.py:88"
    assert row.source == "/proc stat, stacks"


V1 = Freezer(1, "/docker/0123", "/sys/fs/cgroup/freezer/docker/0123")
V2 = Freezer(2, "/train.slice", "/sys/fs/cgroup/train.slice")
GDB = Tracer(913, "gdb", "gdb -p 4211")
SINCE = {"waits_unchanged_s": 6.0}
SIGNAL = {"state": "T", "waits_for": "stopped by a signal"} | SINCE
DEBUGGED = {"state": "t", "waits_for": "stopped by a debugger"} | SINCE
BY_V1, BY_V2 = ({"frozen": one, "waits_for": FROZEN} | SINCE for one in (V1, V2))
V1_SAID, V2_SAID = (f"frozen by control group {path}" for path in ("/docker/0123", "/train.slice"))
STOPS = {
    "a signal": (SIGNAL, "stopped by a signal", "/proc stat", ", state T, for 6 s at least", Need.STOPPED),
    "v1": (BY_V1 | {"state": "D"}, V1_SAID, "freezer.state", ", for 6 s at least", Need.FROZEN),
    "v2": (BY_V2 | {"state": "S"}, V2_SAID, "cgroup.events", ", for 6 s at least", Need.FROZEN),
    "v2, stopped too": (BY_V2 | {"state": "T"}, V2_SAID, "cgroup.events", ", for 6 s at least", Need.FROZEN),
    "gdb": (
        DEBUGGED | {"tracer": GDB},
        "held by a debugger, gdb (913)",
        "/proc stat, TracerPid",
        ", state t, for 6 s at least: gdb -p 4211",
        Need.TRACED,
    ),
    "a debugger that was not read": (
        DEBUGGED | {"tracer": UNREAD},
        "held by a debugger",
        "/proc stat",
        ", state t, for 6 s at least; not permitted",
        Need.TRACED,
    ),
}


@pytest.mark.parametrize(("fields", "who", "source", "more", "need"), STOPS.values(), ids=STOPS)
def test_who_stops_a_rank_is_named_within_seconds_with_what_tells_it(fields, who, source, more, need):
    answer = stand(make_frame(processes=(quiet_rank(**fields),)), seconds=6)
    assert (said(answer), answer.pid) == ((Kind.HUNG, "stopped"), 4211)
    assert answer.summary == f"rank 0 is {who}"
    (row,) = answer.evidence
    assert (row.source, row.text) == (source, f"{who}{more}")
    origins = {Origin.PROC, Origin.CGROUP} if need is Need.FROZEN else {Origin.PROC}
    assert (answer.origins, answer.observed) == (origins, {need})


THAW = "echo THAWED | sudo tee /sys/fs/cgroup/freezer/docker/0123/freezer.state"
LOOK = "ps -o pid,ppid,user,tty,stat,etime,args -p 913"


@pytest.mark.parametrize(
    ("fields", "told", "paste"),
    [
        (BY_V1 | {"state": "D"}, "thaw the control group that holds process 4211: ", THAW),
        (DEBUGGED | {"tracer": GDB}, "detach gdb (913) from process 4211, or end it: ", LOOK),
        (SIGNAL, "resume the stopped process 4211: ", "kill -CONT 4211"),
    ],
)
def test_what_is_to_be_done_fits_who_stops_it_and_nothing_else_is_offered(fields, told, paste):
    finding = judge(hold(make_frame(processes=(quiet_rank(**fields),))), Standing()).frame.verdict
    assert (finding.kind, finding.cause) == (Kind.HUNG, "stopped")
    assert finding.try_.startswith(told)
    assert paste in finding.try_
    assert finding.also_try is NOT_APPLICABLE


def test_a_frozen_process_is_blocked_in_nothing_whatever_its_state_says():
    frozen = quiet_rank(state="D", waits_for=FROZEN, waits_unchanged_s=400.0, frozen=V1)
    assert stand(quiet_frame(frozen)).cause == "stopped"
    waiting = replace(frozen, frozen=NOT_APPLICABLE, waits_for=wait_of("sleep"))
    answer = stand(quiet_frame(waiting))
    assert said(answer) == (Kind.HUNG, "blocked-io"), "so it was said before the freezer was read"


def test_a_job_that_is_suspended_as_a_whole_accuses_no_rank():
    ranks = [quiet_rank(pid=4211 + number, rank=number, **SIGNAL) for number in range(4)]
    answer = stand(make_frame(processes=tuple(ranks)), seconds=6)
    assert (answer.summary, answer.rank) == ("all 4 ranks are stopped by a signal", NOT_APPLICABLE)
    ranks[2] = quiet_rank(pid=4213, rank=2)
    one_less = stand(make_frame(processes=tuple(ranks)), seconds=6)
    assert one_less.rank == 0, "somebody goes on: each stopped rank may be the cause"


def test_a_stop_that_was_seen_to_begin_has_its_onset_and_a_debugger_that_only_looks_is_no_hang():
    frames = hold(make_frame(), 20)
    for i in range(12, 21):
        frames[i] = replace(frames[i], processes=(quiet_rank(**SIGNAL | {"waits_unchanged_s": i - 12.0}),))
    assert look(frames).held_ns == frames[12].taken_ns
    assert type(look(frames[:14])) is not Suspicion


def test_a_stopped_worker_hangs_the_job_once_its_rank_waits_or_fetches_a_batch_of_it():
    members = (make_process(), make_worker(), quiet_worker(4222, worker=1, **SIGNAL))

    def judged(**looks):
        return stand(make_frame(processes=members, main_threads=(make_looks(**looks),)))

    assert said(judged(io=10)) == (Kind.HUNG, "stopped")
    assert clears(judged(io=5), "its rank goes on"), "a stopped worker is never told as none"
    waiting = judged(batch_wait=10)
    assert said(waiting) == (Kind.HUNG, "stopped")
    assert "worker 1 (4222) of rank 0" in waiting.summary
    assert clears(judged(batch_wait=2), "its rank goes on")
    unread = make_frame(processes=(make_process(waits_for=UNREAD), *members[1:]), main_threads=UNREAD)
    assert type(stand(unread)) is Unsure


# Blocked


def test_a_worker_blocked_for_half_a_minute_hangs_the_rank_that_waits_for_it():
    rank = quiet_rank(waits_for=BATCH, waits_unchanged_s=40.0)
    stuck = quiet_worker(state="D", waits_for="NFS", waits_unchanged_s=45.0)

    def judged(*processes):
        return stand(quiet_frame(*processes))

    answer = judged(rank, stuck)
    assert said(answer) == (Kind.HUNG, "blocked-io")
    assert "NFS" in answer.summary
    assert answer.pid == stuck.pid
    assert [row.name for row in answer.evidence] == ["worker 0 (4221) of rank 0"], "others may move meanwhile"
    assert type(judged(rank, replace(stuck, waits_unchanged_s=4.0))) is not Suspicion
    assert type(judged(make_process(), stuck)) is Cleared
    assert type(judged(rank, replace(stuck, waits_unchanged_s=UNREAD))) is Unsure
    assert said(judged(quiet_rank(waits_for="FUSE file system"))) == (Kind.HUNG, "blocked-io")
    assert type(judged(quiet_rank(waits_for="socket receive"))) is Unsure


# Dead workers, lost cards


def test_a_worker_that_vanished_while_its_rank_waits_is_dead_but_not_at_the_end_of_an_epoch():
    rank = quiet_rank(waits_for=BATCH, waits_unchanged_s=35.0)
    frames = hold(quiet_frame(rank, quiet_worker(4221), quiet_worker(4222)), 50)

    def judge_left(*left):
        return look(frames[:15] + [replace(frame, processes=(rank, *left)) for frame in frames[15:]])

    answer = judge_left(quiet_worker(4221))
    assert said(answer) == (Kind.HUNG, "dead-worker")
    assert "4222" in answer.summary
    assert answer.held_ns == frames[-1].taken_ns - 35 * SECOND
    young = quiet_worker(4230, started=NOW - timedelta(seconds=20))
    assert "dead-worker" not in [one.cause for one in map(judge_left, [young]) if type(one) is Suspicion]


def test_a_zombie_worker_is_dead_also_when_nobody_saw_it_die():
    rank, *workers = quiet_rank(waits_for=BATCH), quiet_worker(4221), quiet_worker(4222, state="Z")
    assert said(stand(quiet_frame(rank, *workers))) == (Kind.HUNG, "dead-worker")
    assert type(stand(quiet_frame(make_process(), *workers))) is Cleared


def test_a_card_is_lost_after_three_readings_in_a_row():
    lost = make_frame(gpus=(make_gpu(state=GpuState.LOST),), output=())
    answer = judge_gpu_lost(scene_of(lost))
    assert (said(answer), answer.card, answer.rank) == ((Kind.HUNG, "gpu-lost"), 0, 0)
    frames = hold(make_frame(gpus=(make_gpu(),), output=()))
    frames[-1] = lost
    assert type(judge_gpu_lost(see(frames))) is Cleared
    writes = make_frame(gpus=(make_gpu(state=GpuState.LOST),))  # into its log, seconds ago
    assert type(judge_gpu_lost(scene_of(writes))) is Cleared
    stale = make_frame(gpus=(make_gpu(state=GpuState.STALE),))
    assert type(judge_gpu_lost(scene_of(stale))) is Cleared


# Nothing moves


def test_nothing_that_moves_for_half_a_minute_is_a_hang():
    answer = stand(quiet_frame(), seconds=40)
    assert said(answer) == (Kind.HUNG, "no-progress")
    assert answer.origins == {Origin.PROC, Origin.LOG}
    assert LOCK in answer.evidence[0].text
    assert answer.held_ns == NOW_NS - 90 * SECOND
    young = stand(quiet_frame(quiet_rank(waits_unchanged_s=20.0)), seconds=40)
    assert clears(young, "it moved 20 s ago")
    without_log = stand(quiet_frame(output=()), seconds=40)
    assert without_log.origins == {Origin.PROC}
    stopped = stand(quiet_frame(quiet_rank(**SIGNAL)), seconds=40)
    assert stopped.cause == "stopped", "the cause that says more takes its place"


@pytest.mark.parametrize(
    ("fields", "world", "least_s"),
    [({}, 1, 75), ({"waits_for": "epoll"}, 1, 300), ({"waits_for": "socket receive"}, 1, 300), ({}, 8, 300)],
    ids=["a lock", "an event", "an answer", "ranks elsewhere"],
)
def test_a_rest_of_which_no_stack_tells_may_end_by_itself(fields, world, least_s):
    def judge_after(seconds):
        rank = quiet_rank(waits_unchanged_s=seconds, **fields)
        target = make_target(world_size=world, local_ranks=1)
        return stand(quiet_frame(rank, target=target, output=(old_log(400.0),)), seconds=40)

    early, late = judge_after(least_s - 5.0), judge_after(least_s + 5.0)
    assert type(early) is Unsure
    assert f"at most {format_seconds(least_s)} are needed" in early.text
    assert said(late) == (Kind.HUNG, "no-progress")
    assert ("7 ranks of this job run elsewhere" in late.summary) is (world == 8), "nobody here is accused"


@pytest.mark.parametrize(("seconds", "told"), [(80.0, False), (310.0, True)])
def test_of_ranks_of_an_unknown_number_others_may_save_elsewhere(seconds, told):
    waits = {"waits_unchanged_s": seconds}
    ranks = (quiet_rank(**waits), quiet_rank(pid=4212, rank=1, **waits))
    target = make_target(world_size=Missing("no WORLD_SIZE in the start environment"), local_ranks=2)
    answer = stand(quiet_frame(*ranks, target=target, output=(old_log(400.0),)), seconds=40)
    assert (type(answer) is Suspicion) is told


def test_stacks_that_stay_in_one_place_are_a_further_source_and_with_them_half_a_minute_is_enough():
    stuck = make_phases({Phase.OTHER: 1.0}, where="lock train.py:9", distinct=1, same_place_s=25.0)
    frame = quiet_frame(quiet_rank(waits_unchanged_s=40.0), target=make_target(world_size=1))
    assert said(stand(frame, [stuck], seconds=40)) == (Kind.HUNG, "no-progress")
    assert Origin.STACKS in stand(quiet_frame(), [stuck], seconds=40).origins
    moving = make_phases({Phase.OTHER: 1.0}, distinct=4)
    assert type(stand(quiet_frame(), [moving], seconds=40)) is Cleared


def growing(seconds, unchanged_at_end_s, log_age_s):
    """Build a standstill whose waits grow by a second each second."""
    frames = hold(quiet_frame(output=(old_log(log_age_s),), loader=()), seconds)
    waited_s = [max(0.0, unchanged_at_end_s - seconds + i) for i in range(seconds + 1)]
    return [
        replace(frame, processes=(quiet_rank(waits_unchanged_s=one),))
        for frame, one in zip(frames, waited_s, strict=True)
    ]


def test_a_hang_is_as_old_as_its_wait_and_older_where_the_log_says_so():
    frames = hold(quiet_frame(quiet_rank(waits_unchanged_s=86.0)), 100)
    frames[:12] = [replace(frame, processes=(make_process(),)) for frame in frames[:12]]
    assert look(frames).held_ns == frames[-1].taken_ns - 86 * SECOND
    seen = conclude(growing(140, 90.0, 120.0))
    assert (seen.since, seen.since_is) == (NOW - timedelta(seconds=90), SinceIs.ONSET)
    found = conclude(growing(90, 90.0, 1560.0))
    assert (found.since, found.since_is) == (NOW - timedelta(seconds=1560), SinceIs.LOWER_BOUND)
    assert found.since_source.startswith("last log write")
    unlogged = conclude([replace(frame, output=()) for frame in growing(90, 90.0, 0.0)])
    assert (unlogged.since, unlogged.since_is) == (NOW - timedelta(seconds=90), SinceIs.LOWER_BOUND)
    # By the clock of its server the log is written in ten minutes.
    ahead = replace(old_log(0.0), last_write=NOW + timedelta(seconds=600), last_write_age_s=Missing("ahead"))
    undated = conclude([replace(frame, output=(ahead,)) for frame in growing(90, 90.0, 0.0)])
    assert (undated.since, undated.since_is) == (unlogged.since, unlogged.since_is)


def test_ticking_threads_rare_wake_ups_and_helpers_that_come_and_go_are_no_movement():
    crowded = quiet_rank(runnable=0.4, waiting=0.38)
    frames = hold(quiet_frame(crowded), 40)
    woken = (ThreadGroup(ThreadKind.MAIN, 1, 0.02),)
    for i in range(0, 41, 5):
        frames[i] = replace(frames[i], processes=(replace(crowded, thread_groups=woken),))
    assert said(look(frames)) == (Kind.HUNG, "no-progress")
    fresh = make_process(4500, role=Role.HELPER, runnable=UNREAD)
    answer = stand(quiet_frame(quiet_rank(), fresh), seconds=40)
    assert said(answer) == (Kind.HUNG, "no-progress")


def test_the_rank_that_is_not_in_the_collective_is_named():
    ranks = (quiet_rank(), quiet_rank(pid=4212, rank=1, waits_for="signal"))

    def judged(**second):
        looks = (make_looks(4211, lock=10), make_looks(4212, **second))
        return stand(quiet_frame(*ranks, main_threads=looks), seconds=40)

    answer = judged(other=10)
    assert answer.rank == 1
    assert "rank 1 is in a call that was not read, waits for: signal" in answer.summary
    assert judged(lock=10).rank == 0


FETCHES = quiet_rank(waits_for=BATCH)
SLEEPS = quiet_rank(waits_for="sleep")
NODES = [
    (
        "a batch that nobody has",
        (FETCHES, quiet_worker(), quiet_worker(4222)),
        "lost-batch",
        "nothing is in their queues",
    ),
    ("a worker at a lock", (FETCHES, quiet_worker(waits_for=LOCK)), "no-progress", "worker 0 of rank 0 (4221) is in"),
    ("no worker", (FETCHES,), "dead-worker", "none of its workers is alive"),
    (
        "a rank that sleeps, for which another may wait",
        (SLEEPS, quiet_rank(pid=4212, rank=1)),
        "no-progress",
        "rank 1 is in",
    ),
    ("ranks that sleep", (SLEEPS,), "", "nobody waits for it"),
    ("an event loop alone", (quiet_rank(waits_for="epoll"),), "", "waits for requests"),
]


@pytest.mark.parametrize(("processes", "cause", "words"), [pytest.param(*row, id=name) for name, *row in NODES])
def test_a_process_without_a_stack_is_a_node_by_its_kernel_wait_and_its_workers(processes, cause, words):
    answer = stand(quiet_frame(*processes, loader=()), seconds=40)
    assert words in (answer.summary if cause else answer.text)
    assert (answer.cause if cause else "") == cause
    assert cause or type(answer) is Unsure


MOVES = [
    ("main thread runs", (make_process(),), {}),
    ("main thread runs a little", (quiet_rank(thread_groups=(ThreadGroup(ThreadKind.MAIN, 1, 0.02),)),), {}),
    ("a slow step on another thread", (quiet_rank(runnable=0.9),), {}),
    ("wait is young", (quiet_rank(waits_unchanged_s=3.0),), {}),
    ("a peer works", (quiet_rank(), make_process(4212, rank=1)), {}),
    ("a worker works", (quiet_rank(waits_for=BATCH), quiet_worker(runnable=0.2)), {}),
    ("a worker is new", (quiet_rank(), quiet_worker(started=NOW - timedelta(seconds=9))), {}),
    ("the log moves", (quiet_rank(),), {"output": (old_log(5.0),)}),
    ("a helper works", (quiet_rank(), make_process(4400, role=Role.HELPER, runnable=0.9)), {}),
    ("a compiler works", (quiet_rank(), make_process(4400, role=Role.COMPILE, runnable=0.9)), {}),
    ("the GPU works", (quiet_rank(),), {"gpus": (make_gpu(),)}),
    ("a rank that ended", (quiet_rank(state="Z"),), {}),
]
UNTOLD = [
    ("demand not read", (quiet_rank(thread_groups=(ThreadGroup(ThreadKind.MAIN, 1, UNREAD),)),), {}),
    ("wait not read", (quiet_rank(waits_unchanged_s=UNREAD),), {}),
    ("worker not read", (quiet_rank(), quiet_worker(runnable=UNREAD)), {}),
    ("card not read", (quiet_rank(),), {"gpus": (make_gpu(sm_pct=UNREAD),)}),
    ("a person is asked in a pipe", (quiet_rank(waits_for="standard input (pipe)"),), {}),
    ("a person is asked on a terminal", (quiet_rank(waits_for="terminal input"),), {}),
]


@pytest.mark.parametrize(
    ("processes", "fields", "answer"),
    [
        pytest.param(processes, fields, answer, id=name)
        for rows, answer in ((MOVES, Cleared), (UNTOLD, Unsure))
        for name, processes, fields in rows
    ],
)
def test_what_moves_was_not_read_or_asks_a_person_is_not_hung(processes, fields, answer):
    assert type(stand(quiet_frame(*processes, **fields), seconds=40)) is answer


@pytest.mark.parametrize("phase", [Phase.CHECKPOINT, Phase.VALIDATION, Phase.COMPILE, Phase.LOAD])
def test_a_pause_may_stand_still_for_minutes(phase):
    phases = [make_phases({phase: 1.0}, distinct=1, same_place_s=40.0)]
    assert type(stand(quiet_frame(), phases, seconds=40)) is Unsure
    long = quiet_frame(quiet_rank(waits_unchanged_s=400.0), output=(old_log(500.0),))
    assert said(stand(long, phases, seconds=40)) == (Kind.HUNG, "no-progress")


# Killed, or asleep in a driver of cards

KILLED = "killed, but thread 4290 is stuck in nvidia_ioctl (D) and holds its cards"


def test_a_killed_rank_that_cannot_die_is_blocked_and_not_the_end_of_the_job():
    frame = make_frame(processes=(quiet_rank(state="D", waits_for=KILLED),), output=())
    answer, scene = stand(frame), scene_of(frame)
    assert said(answer) == (Kind.HUNG, "blocked-io")
    assert answer.summary == f"rank 0 is blocked: {KILLED}"
    assert type(judge_finished(scene)) is Cleared
    assert find_ended(scene.history, scene.watch.numbers) == []


@pytest.mark.parametrize("words", ["nvidia_ioctl", "uvm_down_read", "_nv041234rm", "os_acquire_mutex"])
def test_a_rank_asleep_in_the_driver_is_told_with_its_function_and_asks_for_the_card(words):
    answer = stand(make_frame(processes=(quiet_rank(state="D", waits_for=words),)))
    assert (said(answer), answer.observed) == ((Kind.HUNG, "blocked-io"), {Need.GPU_WAIT})
    assert words in answer.summary


@pytest.mark.parametrize("words", ["nvme_queue_rq", "NFS", "killed, but thread 7 is stuck in rpc_wait (D)"])
def test_a_disk_and_a_file_system_are_no_driver_of_cards(words):
    assert need_of_wait(wait_of(words)) is Need.BLOCKED_READ
