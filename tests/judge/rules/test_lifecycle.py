"""Runs without steps for a good reason, on made-up Windows: starting, paused, waiting for a person, over."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.frames import NOW, NOW_NS, make_frame, make_output, make_process, make_target, make_worker
from tests.hanging import make_slice
from tests.judging import SECOND, UNREAD, conclude, follow, hold, make_looks, make_phases, quiet_rank, said, scene_of
from tests.stacks import BACKWARD, MAIN
from tests.starving import line_up
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Unsure
from tpmon.judge.features.snapshot import see
from tpmon.judge.features.standstill import fresh_phase
from tpmon.judge.hysteresis import Standing
from tpmon.judge.judge import judge_scene
from tpmon.judge.rules import lifecycle
from tpmon.judge.rules.lifecycle import judge_checkpoint, judge_finished, judge_starting, judge_waiting_for_input
from tpmon.judge.stacks.phases import Phase
from tpmon.model.figures import Origin
from tpmon.model.frame import Frame, TargetState
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.process import EnvironmentSetting, Outcome, ProcessEnd, Role, ThreadGroup, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Kind, SinceIs, pick_code

# Starting


@pytest.mark.parametrize(
    ("phase", "where", "cause"),
    [
        (Phase.IMPORT, "import: torch train.py:3", "import"),
        (Phase.LOAD, "load train.py:20", "load"),
        (Phase.COMPILE, "compile train.py:60", "compile"),
        (Phase.COMPILE, "compile: autotune_to_one_config train.py:60", "autotune"),
    ],
)
def test_a_start_is_told_by_the_stacks(phase, where, cause):
    phases = make_phases({phase: 0.9, Phase.OTHER: 0.1}, where=where, autotunes=cause == "autotune")
    answer = judge_starting(scene_of(make_frame(), [phases]))
    assert said(answer) == (Kind.STARTING, cause)
    assert Origin.STACKS in answer.origins


def test_a_start_that_is_over_is_not_said_any_more_but_a_compile_between_the_first_steps_is():
    past = make_phases({Phase.COMPILE: 0.6, Phase.FORWARD: 0.4}, where="forward model.py:8")
    assert type(judge_starting(scene_of(make_frame(), [past]))) is Cleared
    rare = make_phases({Phase.IMPORT: 0.1, Phase.FORWARD: 0.9}, where="import train.py:3")
    assert type(judge_starting(scene_of(make_frame(), [rare]))) is Cleared
    phases = make_phases({Phase.COMPILE: 0.7, Phase.FORWARD: 0.3}, where="compile train.py:60")
    assert said(judge_starting(scene_of(make_frame(), [phases]))) == (Kind.STARTING, "compile")


@pytest.mark.parametrize("phase", [Phase.LOAD, Phase.IMPORT])
def test_no_start_is_seen_beside_steps(phase):
    """Modules that are moved to the card in every step are LOAD by their frames, and no start."""
    for training in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        beside = make_phases({phase: 0.6, training: 0.1, Phase.OTHER: 0.3}, where=f"{phase.value} train.py:9")
        assert type(judge_starting(scene_of(make_frame(), [beside]))) is Cleared
    first = make_phases({phase: 0.95, Phase.FORWARD: 0.05}, where=f"{phase.value} train.py:9")
    assert said(judge_starting(scene_of(make_frame(), [first])))[0] is Kind.STARTING


def test_a_checkpoint_is_only_said_to_be_loaded_where_the_stacks_show_it_and_a_name_alone_is_no_phase():
    builds = make_phases({Phase.LOAD: 1.0}, where="load train.py:20")
    answer = judge_starting(scene_of(make_frame(), [builds]))
    assert answer.summary == "rank 0 is reading a data set, or builds or moves its model"
    assert answer.observed == frozenset()
    loads = replace(builds, needs=frozenset((Need.LOAD_IN_STACK,)))
    answer = judge_starting(scene_of(make_frame(), [loads]))
    assert (answer.summary, answer.observed) == ("rank 0 is loading a checkpoint", {Need.LOAD_IN_STACK})
    asking = make_phases({Phase.OTHER: 1.0}, where="load train.py:7")
    assert fresh_phase(asking) is None
    assert fresh_phase(make_phases({Phase.LOAD: 1.0}, where="load train.py:7")) is Phase.LOAD


def test_without_stacks_compile_workers_tell_a_start_and_age_only_before_anything_else_is_seen():
    worker = make_process(4300, role=Role.COMPILE, runnable=0.9, rank=NOT_APPLICABLE)
    scene = scene_of(make_frame(processes=(quiet_rank(), worker), loader=()))
    assert said(judge_starting(scene)) == (Kind.STARTING, "compile")
    busy = scene_of(make_frame(processes=(make_process(), worker), loader=()))
    assert type(judge_starting(busy)) is Unsure
    young = make_process(started=NOW - timedelta(seconds=8))
    fresh = make_frame(processes=(young,), loader=())
    assert said(judge_starting(scene_of(fresh))) == (Kind.STARTING, "first-steps")
    loading = make_frame(processes=(young, make_worker()))
    assert type(judge_starting(scene_of(loading))) is Unsure
    stepping = make_phases({Phase.FORWARD: 1.0})
    assert type(judge_starting(scene_of(fresh, [stepping]))) is Cleared
    waiting = replace(fresh, main_threads=(make_looks(batch_wait=10),))
    assert type(judge_starting(scene_of(waiting))) is Unsure
    started = NOW - timedelta(seconds=14)
    frames = hold(make_frame(processes=(make_process(started=started),), loader=()), 9)
    finding = conclude(frames)
    assert (finding.kind, finding.cause) == (Kind.STARTING, "first-steps")
    assert (finding.since, finding.since_is) == (started, SinceIs.ONSET)


# Paused


@pytest.mark.parametrize(
    ("rule", "phase", "cause"),
    [(judge_checkpoint, Phase.CHECKPOINT, "checkpoint"), (lifecycle.judge_validation, Phase.VALIDATION, "validation")],
)
def test_a_pause_is_what_is_seen_now_and_for_some_time(rule, phase, cause):
    now = make_phases({phase: 0.5, Phase.FORWARD: 0.5}, where=f"{phase.value}: save train.py:90")
    assert said(rule(scene_of(make_frame(), [now]))) == (Kind.PAUSED, cause)
    short = replace(now, shares={phase: make_phases({phase: 0.05}).shares[phase]})
    assert type(rule(scene_of(make_frame(), [short]))) is Cleared
    over = replace(now, where="forward train.py:60", newest=Phase.FORWARD)
    assert type(rule(scene_of(make_frame(), [over]))) is Cleared
    old = replace(now, newest_age_s=40.0)
    assert type(rule(scene_of(make_frame(), [old]))) is Cleared
    assert type(rule(scene_of(make_frame()))) is Unsure


@pytest.mark.parametrize("phase", [Phase.CHECKPOINT, Phase.VALIDATION])
def test_a_pause_is_not_said_any_more_once_the_stacks_show_steps(phase):
    """A run that saves often would else be paused all the time, and its cause never said."""
    standing, kinds = Standing(), []
    base = make_frame(processes=(make_process(),), loader=(), main_threads=(make_looks(4211, 10),))
    frames = hold(base, 60)
    for i in range(3, 60):
        where = f"{phase.value} train.py:9" if i % 20 < 5 else "forward train.py:88"
        shares = make_phases({phase: 0.25, Phase.FORWARD: 0.4, Phase.BACKWARD: 0.35}, where=where)
        finding, standing, _ = judge_scene(see(frames[:i], {4211: shares}), standing)
        standing = replace(standing, finding=finding)
        kinds.append((i % 20 < 5, finding.kind is Kind.PAUSED))
    assert all(pauses == said_so for pauses, said_so in kinds if not pauses)
    assert any(said_so for _, said_so in kinds)


def test_a_checkpoint_that_writes_is_seen_twice_and_names_who_waits():
    ranks = (make_process(4211, asked_write_bytes_s=9e8), make_process(4212, rank=1))
    saving = make_phases({Phase.CHECKPOINT: 1.0}, pid=4211)
    waiting = make_phases({Phase.COMMS: 1.0}, pid=4212)
    answer = judge_checkpoint(scene_of(make_frame(processes=ranks), [saving, waiting]))
    assert answer.origins == {Origin.STACKS, Origin.PROC}
    assert answer.summary == "rank 0 is writing a checkpoint; the other rank waits"
    # Who rests in backward waits for gradients.
    in_backward = make_phases({Phase.BACKWARD: 1.0}, pid=4212)
    for demand, waits in ((0.01, True), (0.9, False)):
        other = replace(ranks[1], thread_groups=(ThreadGroup(ThreadKind.MAIN, 1, demand),))
        answer = judge_checkpoint(scene_of(make_frame(processes=(ranks[0], other)), [saving, in_backward]))
        assert answer.summary.endswith("; the other rank waits") is waits


LONG_AGO = {"newest_age_s": 40.0}
WAITS = ({Phase.COMMS: 1.0}, {"where": "barrier train.py:9"})


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([({Phase.CHECKPOINT: 1.0}, LONG_AGO)] * 3, ""),
        ([WAITS] * 3, "; 3 other ranks wait"),
        ([WAITS, ({Phase.COMMS: 1.0}, LONG_AGO)], "; 1 of the 2 other ranks was seen to wait"),
        ([({Phase.SYNC: 1.0}, {"where": "sync: item train.py:9"})], "; the other rank waits"),
        ([({Phase.FORWARD: 1.0}, {}), ({Phase.OTHER: 1.0}, {"where": "hold train.py:12"})], ""),
        ([None], ""),
    ],
    ids=["all write, in turn", "all wait", "one of two", "a card", "no wait", "no stacks"],
)
def test_only_ranks_that_were_looked_at_are_said_to_wait(others, words):
    """Each rank is sampled in its turn: of eight the newest stacks of most are too old to tell."""
    ranks = [make_process(4211 + number, rank=number) for number in range(1 + len(others))]
    phases = [make_phases({Phase.CHECKPOINT: 1.0}, pid=4211)]
    phases += [make_phases(one[0], pid=4212 + number, **one[1]) for number, one in enumerate(others) if one is not None]
    answer = judge_checkpoint(scene_of(make_frame(processes=tuple(ranks)), phases))
    assert answer.summary == f"rank 0 is writing a checkpoint{words}"


# Over, or waiting for a person


def test_a_prompt_is_told_by_stack_or_kernel():
    asking = make_phases({Phase.INPUT: 1.0}, where="input train.py:7")
    assert judge_waiting_for_input(scene_of(make_frame(), [asking])).origins == {Origin.STACKS}
    reading = make_frame(processes=(quiet_rank(waits_for="terminal input"),))
    assert judge_waiting_for_input(scene_of(reading)).origins == {Origin.PROC}
    assert said(judge_waiting_for_input(scene_of(reading, [asking]))) == (Kind.IDLE, "waiting-for-input")
    piped = make_frame(processes=(quiet_rank(waits_for="standard input (pipe)"),))
    place = make_phases({Phase.OTHER: 1.0}, where="ask train.py:7")
    assert judge_waiting_for_input(scene_of(reading, [asking])).summary == (
        "rank 0 waits for input on a terminal, in train.py:7"
    )
    assert judge_waiting_for_input(scene_of(piped, [place])).summary == (
        "rank 0 waits for input on standard input (pipe), in ask train.py:7"
    )
    blink = make_frame(processes=(quiet_rank(waits_for="terminal input", waits_unchanged_s=0.5),))
    assert type(judge_waiting_for_input(scene_of(blink))) is Cleared
    unread = make_frame(processes=(quiet_rank(waits_for=UNREAD),))
    assert type(judge_waiting_for_input(scene_of(unread))) is Unsure


def test_an_import_is_not_said_beside_a_row_that_shows_a_step():
    importing = (MAIN, StackFrame("_find_and_load", "<frozen importlib._bootstrap>", 1176))
    frames: list[Frame] = []
    for second, stack in enumerate((importing, BACKWARD, BACKWARD)):
        frame = make_frame(taken=NOW + timedelta(seconds=second), taken_ns=NOW_NS + second * SECOND, loader=())
        frames.append(replace(frame, stacks=(make_slice(frame, 4211, (stack,), 0.1),)))
    judged = [one.frame for one in follow(frames)]
    assert [(one.verdict.kind, one.ranks[0].where.split()[0]) for one in judged] == [
        (Kind.STARTING, "import"),
        (Kind.NOT_ENOUGH_EVIDENCE, "backward"),
        (Kind.NOT_ENOUGH_EVIDENCE, "backward"),
    ]


def make_end(**fields):
    plain = ProcessEnd(
        pid=4211,
        role=Role.RANK,
        rank=0,
        worker=NOT_APPLICABLE,
        outcome=Outcome.FAILED,
        signal="SIGKILL",
        how="SIGKILL; OOM killer (kernel log)",
    )
    return replace(plain, **fields)


def restarted(age_s, ended_s=None, *, count=None, **end):
    """A rank of some age below a launcher of ten minutes; another rank ended so many seconds ago."""
    environment = (EnvironmentSetting(lifecycle.RESTART_COUNT, count),) if count else UNREAD
    rank = make_process(4300, started=NOW - timedelta(seconds=age_s), environment=environment)
    launcher = make_process(4200, role=Role.LAUNCHER, started=NOW - timedelta(seconds=600))
    frame = make_frame(processes=(launcher, rank))
    frames = hold(frame, 40)
    if ended_s is not None:
        frames[-1 - ended_s] = replace(frames[-1 - ended_s], ends=(make_end(rank=1, how="exit 1", **end),))
    return see([replace(one, taken=frame.taken) for one in frames])


EXIT = {"signal": NOT_APPLICABLE}


@pytest.mark.parametrize(
    ("scene", "summary"),
    [
        (restarted(12, 13, **EXIT), "rank 1 (4211) ended with exit 1 13 s ago; the ranks were started again once"),
        (restarted(12, count="9"), "the ranks were started again 9 times: they are 12 s old, their launcher 600 s"),
        (restarted(400, count="9"), None),  # they got further
        (restarted(12, count="0"), None),
        (restarted(12, count="x" * 9), None),
        (restarted(12), None),
        (restarted(12, 13, signal="SIGTERM"), None),  # the launcher ended it
        (restarted(12, 13, outcome=Outcome.WELL, **EXIT), None),
        (restarted(12, 13, role=Role.WORKER, **EXIT), None),
        (restarted(300, 13, **EXIT), None),  # nobody was born after it: a rank is missing
        (scene_of(make_frame(processes=())), None),
    ],
)
def test_ranks_that_fail_and_are_started_again_are_told(scene, summary):
    answer = lifecycle.judge_restarts(scene)
    if summary is None:
        assert type(answer) is Cleared
        return
    assert said(answer) == (Kind.FAILED, "restarts")
    assert pick_code(answer.kind, answer.cause) == 10
    assert answer.summary.startswith(summary)


def test_a_failure_is_said_before_the_start_that_follows_it():
    importing = make_phases({Phase.IMPORT: 1.0}, pid=4300, where="import: torch train.py:3")
    scene = restarted(12, 13, **EXIT)
    standing, stated = Standing(), set()
    for second in range(8):
        now_ns = scene.frame.taken_ns + second * SECOND
        frames = [*scene.history, replace(scene.frame, taken_ns=now_ns)]
        finding, standing, _ = judge_scene(see(frames, {4300: importing}), standing)
        stated.add((finding.kind, finding.cause))
    assert (finding.kind, finding.cause) == (Kind.FAILED, "restarts")


@pytest.mark.parametrize(
    ("outcome", "how", "cause", "code"),
    [
        (Outcome.WELL, "exit 0", "finished", 0),
        (Outcome.FAILED, "exit 1", "failed", 10),
        (Outcome.FAILED, "SIGTERM", "failed", 10),
        (Outcome.UNKNOWN, "ended (exit status not visible to tpmon)", "ended", 11),
    ],
)
def test_an_ended_job_says_how_and_only_exit_0_is_success(outcome, how, cause, code):
    ended = {"ended": how, "outcome": outcome, "signal": how if "SIG" in how else NOT_APPLICABLE}
    target = make_target(state=TargetState.ENDED, **ended)
    answer = judge_finished(scene_of(make_frame(target=target, processes=())))
    assert said(answer) == (Kind.IDLE, cause)
    assert pick_code(answer.kind, answer.cause) == code
    assert answer.summary.endswith(how)
    assert answer.seen
    assert (Need.KILLED in answer.observed) == ("SIG" in how)
    assert answer.origins == {Origin.PROC}


def test_a_launcher_without_its_ranks_is_over_as_well_as_they_ended_and_the_rank_that_failed_is_named():
    frames = hold(make_frame())
    launcher = make_process(4200, role=Role.LAUNCHER, rank=NOT_APPLICABLE)
    restart = [*frames, *hold(make_frame(processes=(launcher,)), 15)]
    assert type(judge_finished(see(line_up(restart)))) is Unsure
    for outcome, cause in ((Outcome.WELL, "finished"), (Outcome.FAILED, "failed"), (Outcome.UNKNOWN, "ended")):
        alone = make_frame(processes=(launcher,), target=make_target(outcome=outcome))
        answer = judge_finished(see(line_up([*frames, *hold(alone, 25)])))
        assert said(answer) == (Kind.IDLE, cause)
        assert not answer.seen
    long_ago = make_frame(processes=(launcher,), target=make_target(outcome=Outcome.UNKNOWN))
    assert said(judge_finished(scene_of(long_ago, seconds=60))) == (Kind.IDLE, "ended")
    zombies = make_frame(processes=(make_process(state="Z"),))
    assert said(judge_finished(scene_of(zombies))) == (Kind.IDLE, "ended")
    assert type(judge_finished(scene_of(make_frame()))) is Cleared
    assert type(judge_finished(scene_of(make_frame(processes=(launcher,))))) is Cleared
    alone = make_frame(processes=(launcher,), target=make_target(outcome=Outcome.FAILED))
    frames = line_up([*hold(make_frame()), replace(alone, ends=(make_end(),)), *hold(alone, 25)])
    answer = judge_finished(see(frames))
    assert answer.summary == "every rank has ended; rank 0 (4211): SIGKILL; OOM killer (kernel log)"
    assert Need.KILLED in answer.observed


def test_the_last_words_are_the_error_else_the_newest_line():
    old = make_output(fd=1, path="out", lines=("step 1", "step 2", ""), last_write=NOW - timedelta(60))
    new = make_output(fd=2, path="err", lines=("warning: slow", "  "), last_write=NOW)
    error = make_output(path="e", lines=("ValueError: nan", "====="), last_write=NOW - timedelta(90))

    def words(*logs):
        found = lifecycle.find_last_words(make_frame(output=logs))
        return [(one.source, one.text) for one in found]

    assert words(old, new) == [("err", "warning: slow")]
    assert words(new, error, old) == [("e", "ValueError: nan")]
    assert words(make_output(lines=())) == []
    assert words() == []
