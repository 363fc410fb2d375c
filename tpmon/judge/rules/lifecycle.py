"""Judge runs that take no steps for a good reason, or are over, and what their pauses cost."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import (
    Answer,
    Cleared,
    Key,
    Suspicion,
    Unsure,
    by_conditions,
    reading,
    reading_aged,
)
from tpmon.judge.features import standstill
from tpmon.judge.features.cpu import say_got
from tpmon.judge.features.ends import list_ends
from tpmon.judge.features.engine import Proof, Rows, proves
from tpmon.judge.features.snapshot import RankScene, Rule, Scene, list_settings, read_count
from tpmon.judge.hang import detection as rules_hang
from tpmon.judge.hang.ranks import find_poller
from tpmon.judge.stacks.phases import TRAINING, Phase
from tpmon.judge.watch.stints import Stint
from tpmon.model.figures import Figure, Origin
from tpmon.model.frame import Frame, TargetState
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, known_or, map_known
from tpmon.model.process import Outcome, ProcessEnd, Role, ThreadKind
from tpmon.model.units import count_of, format_seconds, say_ratio
from tpmon.model.verdict import END_CAUSES, IN_WORDS, Kind
from tpmon.model.waits import INPUTS, WaitReason, describe_wait, is_wait, is_wait_in

REBIRTH_S = 20.0  # how long without ranks is the end: torchrun restarts them once it has met other machines
_ERROR = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Exit)\b|\b(?:Killed|Segmentation fault|Aborted)\b")


def _rankless_s(scene: Scene) -> Known[float]:
    """Return for how long no rank has lived; Missing when none was ever seen."""
    for frame in reversed(scene.history):
        if any(one.role is Role.RANK and one.state not in ("Z", "X") for one in frame.processes):
            return (scene.frame.taken_ns - frame.taken_ns) / 1e9
    was_seen = scene.ranks or is_known(scene.frame.target.outcome)
    return scene.history_s if was_seen else Missing("no rank yet")


def find_last_words(frame: Frame) -> Rows:
    """Return the last line of the job's log as evidence; a line that names an error goes first."""
    told = [(log, [line.strip() for line in log.lines if line.strip()]) for log in frame.output]
    told = [(log, lines) for log, lines in told if lines]
    if not told:
        return ()
    errors = ((log, line) for log, lines in told for line in reversed(lines) if _ERROR.search(line))
    log, lines = max(told, key=lambda one: known_or(map_known(datetime.timestamp, one[0].last_write), 0.0))
    log, line = next(errors, (log, lines[-1]))
    return (reading_aged(Figure.LAST_WORDS, IN_WORDS, log.last_write_age_s, text=line, source=log.path),)


def _say_ranks(scene: Scene, outcome: Outcome) -> str:
    """Say how the ranks of a job that outlives them ended, by name where the history has it."""
    if outcome is Outcome.WELL:
        return "every rank has ended: exit 0"
    ends = (end for _, end in list_ends(scene.history) if end.role is Role.RANK)
    bad = [end for end in ends if end.outcome is not Outcome.WELL]
    if bad:
        name = f"rank {bad[0].rank}" if is_known(bad[0].rank) else "a rank"
        return f"every rank has ended; {name} ({bad[0].pid}): {bad[0].how}"
    how = ", not all of them well" if outcome is Outcome.FAILED else "; how is not known"
    return f"every rank has ended{how}"


@proves("finished")
def judge_finished(over: Proof, scene: Scene) -> Answer:
    """Suspect that the job is over: it ended, or its ranks did and only the rest remains."""
    target, gone_s = scene.frame.target, _rankless_s(scene)
    ended = target.state is TargetState.ENDED
    if not ended:
        if isinstance(gone_s, Missing):
            return Cleared(f"{over.what} ({gone_s.reason})")
        over.clear(gone_s <= 0, "its ranks live")
        may_return = not scene.ranks and gone_s < REBIRTH_S
        over.doubt(may_return, f"no rank for {gone_s:.0f} s; its launcher may start them anew")
    outcome = known_or(target.outcome, Outcome.UNKNOWN)
    how = known_or(target.ended, "how is not known")
    words = f"the job has ended: {how}" if ended else _say_ranks(scene, outcome)
    over.add(Figure.RANKS_ALIVE, 0.0, 2.0, text=words)
    over.shown = find_last_words(scene.frame)
    killed = any(map(is_known, (target.signal, *(end.signal for _, end in list_ends(scene.history)))))
    needs = (Need.KILLED,) if killed else ()
    return over.suspect(Kind.IDLE, END_CAUSES[outcome], 1.0, words, *needs, seen=ended)


RESTARTED_S = 300.0  # age of ranks from which a restart is over, where the history shows no failure
# How often torchrun has started a rank's group anew after a failure; a change of members does not count.
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
MOST_FAILURES = 2  # failed ranks that the evidence names
_BIRTH_S = 2.0  # how much older than the end of another a rank may look that was born after it


def _find_failures(scene: Scene, youngest_s: float) -> list[tuple[float, ProcessEnd]]:
    """Return the ranks that failed by themselves and were born anew, and how long ago, the newest last."""
    # SIGTERM comes from a launcher that noticed the end of another.
    failed = [
        ((scene.frame.taken_ns - ended_ns) / 1e9, end)
        for ended_ns, end in list_ends(scene.history)
        if end.role is Role.RANK and end.outcome is Outcome.FAILED and end.signal != signal.SIGTERM.name
    ]
    return [one for one in failed if youngest_s <= one[0] + _BIRTH_S]


@proves("restarts")
def judge_restarts(proof: Proof, scene: Scene) -> Answer:
    """Suspect that ranks fail and are started again: whatever they do meanwhile, their work is lost."""
    proof.clear(not scene.ranks, "no rank runs")
    age_s = min(scene.age_s(rank.process) for rank in scene.ranks)
    failures, told_to_ranks = _find_failures(scene, age_s), list_settings(scene, (RESTART_COUNT,))
    count = max(map(read_count, told_to_ranks), default=0)
    proof.clear(not failures and (not count or age_s >= RESTARTED_S), "no rank failed")
    times, told = max(count, len({round(ago_s) for ago_s, _ in failures})), ""
    if failures:
        ago_s, end = failures[-1]
        name = f"rank {end.rank} ({end.pid})" if is_known(end.rank) else f"a rank ({end.pid})"
        told = f"{name} ended with {end.how} {ago_s:.0f} s ago; "
    often = f"{times} times" if times > 1 else "once"
    told += f"the ranks were started again {often}: they are {age_s:.0f} s old"
    for ago_s, end in failures[-MOST_FAILURES:]:
        proof.add(Figure.RANK_FAILED, ago_s, of=f"rank {end.rank}: {end.how}")
    proof.add(Figure.RESTARTS, float(times), 1.0 + times)
    proof.add(Figure.YOUNGEST_RANK_AGE, age_s)
    launchers = [scene.age_s(one) for one in scene.frame.processes if one.role is Role.LAUNCHER]
    if launchers:
        proof.add(Figure.LAUNCHER_AGE, max(launchers))
        told += f", their launcher {max(launchers):.0f} s"
    proof.shown = find_last_words(scene.frame)
    return proof.suspect(Kind.FAILED, "restarts", 1.0, told)


STARTING_RATIO = 0.5  # share of samples in imports, loading or the compiler that makes a run one that starts
TRAINS_RATIO = 0.1
FIRST_STEPS_S = 15.0  # age up to which it may import: torch alone takes 2-5 s, on a network disk far more
COMPILER_DEMAND = 0.5  # threads that compile workers want, above which they work beside a waiting rank
RESTING_MAIN_DEMAND = 0.1
WRITES_BYTES_S = 1e6  # writes of a rank above which they confirm its checkpoint: logs write less
INPUT_S = 3.0  # how long a terminal must be waited for; keys come faster

_STEP = (Phase.DATA_WAIT, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
_STARTS = {
    Phase.IMPORT: ("import", Need.IMPORT_IN_STACK, "is importing modules"),
    Phase.LOAD: ("load", Need.LOAD_IN_STACK, "is loading a checkpoint"),
    Phase.COMPILE: ("compile", Need.COMPILE_IN_STACK, "is compiling the model"),
}


def _newest(rank: RankScene) -> Phase | None:
    return standstill.fresh_phase(rank.phases) if is_known(rank.phases) else None


def _start_of(rank: RankScene) -> tuple[float, Phase] | None:
    """Return which start a rank is in by its stacks, and its share of the samples."""
    if not is_known(rank.phases):
        return None
    newest, trains = _newest(rank), rank.phases.ratio(*TRAINING) >= TRAINS_RATIO
    for phase in _STARTS:
        ratio, least = rank.phases.ratio(phase), STARTING_RATIO / 2 if newest is phase else STARTING_RATIO
        if ratio >= least and newest in (phase, None) and not (trains and phase is not Phase.COMPILE):
            return ratio, phase
    return None


def _compiler_demand(scene: Scene) -> float:
    wants = (one.runnable for one in scene.frame.processes if one.role is Role.COMPILE)
    return sum(known_or(one, 0.0) for one in wants)


def _starts_by_stacks(scene: Scene, rank: RankScene, ratio: float, phase: Phase) -> Suspicion:
    start, age_s, demand = Proof("starting", scene), scene.age_s(rank.process), _compiler_demand(scene)
    (cause, need, words), got, phases = _STARTS[phase], say_got(scene), rank.phases
    needs: tuple[Need, ...] = (need,)
    if phase is Phase.COMPILE and is_known(phases) and phases.autotunes:
        cause, words = "autotune", "is trying out kernels (autotune)"
    if phase is Phase.LOAD and is_known(phases) and need not in phases.needs:
        # Datasets are read and modules moved without a checkpoint: its remedy needs its frames.
        needs, words = (), "is reading a data set, or builds or moves its model"
    start.add(Figure.IN_PHASE, ratio, ratio / STARTING_RATIO, of=cause)
    if phase is Phase.COMPILE and demand >= COMPILER_DEMAND:
        start.add(Figure.COMPILE_WORKERS, demand)
    is_young = not rank.workers and age_s < 10 * FIRST_STEPS_S
    (start.add if is_young else start.show)(Figure.RANK_AGE, age_s)
    summary = f"{standstill.name_rank(rank)} {words}{f'; {got}' if got else ''}"
    return start.suspect(Kind.STARTING, cause, ratio, summary, *needs, process=rank.process)


def judge_starting(scene: Scene) -> Answer:
    """Suspect a start: the main thread imports, loads or compiles, or the ranks are seconds old."""
    starts = [(rank, *start) for rank in scene.ranks if (start := _start_of(rank)) is not None]
    if starts:
        return _starts_by_stacks(scene, *max(starts, key=lambda one: one[1]))
    proof, demand = Proof("starting", scene), _compiler_demand(scene)
    rests = all(known_or(one.demand_by(ThreadKind.MAIN), 1.0) < RESTING_MAIN_DEMAND for one in scene.ranks)
    if demand >= COMPILER_DEMAND and scene.ranks and rests:
        proof.add(Figure.COMPILE_WORKERS, demand, demand / COMPILER_DEMAND)
        words = "compile workers run while the ranks wait for them"
        return proof.suspect(Kind.STARTING, "compile", min(1.0, demand), words)
    if any(is_known(rank.phases) for rank in scene.ranks):
        return Cleared("starting (no import, load or compile in the stacks)")
    # By age alone, where no stack tells and no loader has begun.
    oldest = max((scene.age_s(rank.process) for rank in scene.ranks), default=FIRST_STEPS_S)
    loading = any(rank.workers or rank.loader is not None for rank in scene.ranks)
    waiting = any(known_or(standstill.waits_for_batch(rank), False) for rank in scene.ranks)
    if oldest >= FIRST_STEPS_S or loading or waiting:
        reason = next((rank.phases.reason for rank in scene.ranks if isinstance(rank.phases, Missing)), "")
        return Unsure(f"starting ({reason})") if reason else Cleared("starting (steps go on)")
    proof.add(Figure.YOUNGEST_RANK_AGE, oldest)
    return proof.suspect(Kind.STARTING, "first-steps", 0.1, f"the ranks are {oldest:.0f} s old")


def find_past_starts(scene: Scene) -> frozenset[Key]:
    """Return the starts and pauses that are over: the newest stacks of every rank show steps."""
    # Both say what a rank does right now, and must not stand beside a row that shows a step. First steps are
    # judged by age, and no longer once there are stacks.
    past: tuple[Key, ...] = ()
    if scene.ranks and all(is_known(rank.phases) for rank in scene.ranks):
        past = ((Kind.STARTING, "first-steps"),)
    if scene.ranks and all(_newest(rank) in _STEP for rank in scene.ranks):
        past += ((Kind.STARTING, "import"), (Kind.STARTING, "load"))
        past += ((Kind.PAUSED, "checkpoint"), (Kind.PAUSED, "validation"))
    return frozenset(past)


def _is_waiting(rank: RankScene) -> bool:
    """Tell whether a rank's newest stacks show a wait for other ranks, or for its card."""
    # Gradients are waited for in backward, without a frame of a collective: the main thread rests there.
    phases, newest = rank.phases, _newest(rank)
    if not is_known(phases) or phases.newest_age_s > standstill.FRESH_S:
        return False
    if newest is Phase.BACKWARD:
        return known_or(rank.demand_by(ThreadKind.MAIN), 1.0) < RESTING_MAIN_DEMAND
    # A collective is shown by its own name, not by the word of a phase.
    held = phases.ratio(Phase.COMMS, Phase.SYNC) > phases.ratio(Phase.OTHER)
    return newest in (None, Phase.COMMS, Phase.SYNC) and held


def _say_waiting(others: Sequence[RankScene]) -> str:
    """Say how many of the ranks in no pause were seen to wait; ranks are sampled in turn."""
    waiting, rest = sum(map(_is_waiting, others)), len(others)
    if not waiting:
        return ""
    if waiting == rest:
        return "; the other rank waits" if rest == 1 else f"; {rest} other ranks wait"
    return f"; {waiting} of the {rest} other ranks {'was' if waiting == 1 else 'were'} seen to wait"


def _judge_pause(phase: Phase, cause: str, words: str, need: Need, scene: Scene) -> Answer:
    """Suspect, in the good sense, a pause that a rank is in right now."""
    rank = next((rank for rank in scene.ranks if standstill.find_pause(rank) is phase), None)
    if rank is None:
        unread = next((rank.phases for rank in scene.ranks if isinstance(rank.phases, Missing)), None)
        cleared = Cleared(f"{cause} (not in the newest stacks)")
        return cleared if unread is None else Unsure(f"{cause} ({unread.reason})")
    others = [one for one in scene.ranks if standstill.find_pause(one) is not phase]
    ratio = rank.phases.ratio(phase) if is_known(rank.phases) else 0.0
    pause, writes = Proof(cause, scene), rank.process.asked_write_bytes_s
    pause.add(Figure.IN_PHASE, ratio, max(1.0, ratio / standstill.PAUSE_RATIO), of=cause)
    confirms = phase is Phase.CHECKPOINT and known_or(writes, 0.0) >= WRITES_BYTES_S
    (pause.add if confirms else pause.show)(Figure.RANK_WRITES, writes)
    summary = f"{standstill.name_rank(rank)} {words}{_say_waiting(others)}"
    return pause.suspect(Kind.PAUSED, cause, ratio, summary, need, share=ratio, process=rank.process)


judge_checkpoint = partial(
    _judge_pause, Phase.CHECKPOINT, "checkpoint", "is writing a checkpoint", Need.SAVE_IN_STACK
)
judge_validation = partial(
    _judge_pause, Phase.VALIDATION, "validation", "is in validation", Need.VALIDATION_IN_STACK
)


def _read_prompt(rank: RankScene, scene: Scene) -> Rows:
    """Return what says that a rank waits for a person: its stack, the kernel."""
    process, phases, unchanged_s = rank.process, rank.phases, rank.process.waits_unchanged_s
    share = phases.ratio(Phase.INPUT) if is_known(phases) and _newest(rank) is Phase.INPUT else 0.0
    by_kernel = is_wait_in(process.waits_for, INPUTS) and known_or(unchanged_s, 0.0) >= INPUT_S
    by_stacks = share >= standstill.PAUSE_RATIO
    origins = [origin for origin, tells in ((Origin.STACKS, by_stacks), (Origin.PROC, by_kernel)) if tells]
    if not origins:
        return ()
    if is_known(unchanged_s):
        return (reading(Figure.WAIT_UNCHANGED, unchanged_s, scene.frame, origins=origins),)
    return (reading(Figure.IN_PHASE, 100 * share, scene.frame, of=Phase.INPUT.value),)


def _say_input(rank: RankScene) -> str:
    """Say where the input would come from, and which line asked for it."""
    wait, phases = rank.process.waits_for, rank.phases
    fed = is_known(wait) and wait.reason in (WaitReason.INPUT_PIPE, WaitReason.INPUT_SOCKET)
    where = f"on {describe_wait(wait)}" if fed and is_known(wait) else "on a terminal"
    if not is_known(phases) or phases.newest_age_s > standstill.FRESH_S or not phases.where:
        return where
    return f"{where}, in {phases.where.removeprefix(f'{Phase.INPUT.value} ')}"


def _suspect_idle(
    scene: Scene, rank: RankScene, cause: str, words: str, rows: Rows, *needs: Need, margin: float = 2.0
) -> Suspicion:
    summary, idle = f"{standstill.name_rank(rank)} {words}", Proof(cause, scene)
    idle.evidence, idle.margin = rows, margin
    return idle.suspect(Kind.IDLE, cause, 1.0, summary, *needs, process=rank.process)


def _find_rank(pid: int, scene: Scene) -> RankScene | None:
    return next((one for one in scene.ranks if one.process.pid == pid), None)


def _stood_still(scene: Scene) -> Rows:
    return (reading(Figure.NOTHING_MOVED, standstill.still_s(scene), scene.frame),)


def judge_polls(scene: Scene) -> Answer:
    """Suspect that the job keeps to a pace, or asks now and then for what another job makes."""
    seen = find_poller(scene)
    if seen is None or standstill.still_s(scene) < scene.watch.hang_after_s:
        return Cleared("a poll (no rank sleeps, or somebody waits for it)")
    rank = _find_rank(seen.thread.pid, scene)
    if rank is None:
        return Cleared("a poll (its rank has ended)")
    verb = "sleeps" if is_wait(seen.thread.waits_for, WaitReason.SLEEP) else "waits"
    words = f"{verb} in {seen.doing.text}, again and again, and nobody waits for it"
    return _suspect_idle(scene, rank, "polls", words, _stood_still(scene), margin=1.0)


def judge_waiting_for_input(scene: Scene) -> Answer:
    """Suspect that a rank reads from a terminal, a prompt or a debugger, or from a pipe that it was given."""
    asks = [(rank, rows) for rank in scene.ranks if (rows := _read_prompt(rank, scene))]
    # Of a job, not of a rank: the others may wait in a collective for the one at the prompt.
    others = [rank for rank in scene.ranks if not _read_prompt(rank, scene)]
    rests = any(known_or(rank.process.waits_unchanged_s, 0.0) >= INPUT_S for rank in others)
    if asks and not rests and not any(map(_is_waiting, others)):
        rank, rows = asks[0]
        words = f"waits for input {_say_input(rank)}"
        return _suspect_idle(scene, rank, "waiting-for-input", words, rows, Need.INPUT_WAIT)
    # A server, or a notebook, waits for requests by the last dumps.
    picture, served = scene.watch.picture, _find_rank(scene.watch.served, scene)
    main = picture.main_of(scene.watch.served) if picture is not None else None
    if main is not None and served is not None:
        words = f"waits for requests in {main.doing.text}"
        return _suspect_idle(scene, served, "waiting-for-input", words, _stood_still(scene))
    unread = [not is_known(one.phases) and not is_known(one.process.waits_for) for one in scene.ranks]
    if unread and all(unread):
        return Unsure("waiting for input (neither stacks nor waits could be read)")
    return Cleared("waiting for input (no rank reads a terminal)")


MUCH_RATIO = 0.2  # share of the time above which pauses are worth a finding
LEAST_PAUSES = 2  # pauses with training between them that make a rhythm; one may be the only one for hours
LEAST_TRAINED_S = 3.0  # of backward and optimizer: a program that only evaluates has none
LEAST_WATCHED_S = 30.0


def _measure_rhythm(stints: tuple[Stint, ...], pause: Phase) -> tuple[int, float, float, int]:
    """Return how often a run paused, how long of which time (in whole turns), and when that began (ns)."""
    # A turn is from the beginning of a pause to that of the next. Of a single one, and of pauses that are
    # shorter than a slice of stacks, all that was seen counts.
    paused = [number for number, one in enumerate(stints) if one.pause is pause]
    short = [one for one in stints if one.pause is None and one.paused_s(pause)]
    if len(paused) >= LEAST_PAUSES:
        turns, begun_ns = stints[paused[0] : paused[-1]], stints[paused[0]].begun_ns
        of_s = (stints[paused[-1]].begun_ns - begun_ns) / 1e9
        return len(paused), sum(one.paused_s(pause) for one in turns), of_s, begun_ns
    first = [stints[number] for number in paused] or short
    paused_s, of_s = sum(one.paused_s(pause) for one in stints), sum(one.seconds for one in stints)
    return len(paused) + bool(short), paused_s, of_s, first[0].begun_ns if first else 0


@by_conditions
def _judge_share(pause: Phase, cause: str, words: str, needs: tuple[Need, ...], scene: Scene) -> Answer:
    """Suspect pauses that take more than a fifth of the time."""
    # There are two of them at least, or one that is longer than all training seen and a fifth of the rank's
    # whole life: what was before tpmon came may have been training.
    claim = Proof(f"share of {pause.value}", scene)
    stints = scene.watch.stints
    claim.clear(not stints or not scene.ranks, "no stacks of a run so far")
    steps_s = sum(one.steps_s for one in stints)
    claim.clear(steps_s < LEAST_TRAINED_S, "no training seen beside it")
    pauses, paused_s, of_s, since_ns = _measure_rhythm(stints, pause)
    claim.clear(not pauses, "none seen")
    claim.doubt(of_s < LEAST_WATCHED_S, f"watched for {format_seconds(of_s)}")
    rank = _find_rank(stints[-1].pid, scene) or scene.ranks[0]
    many = pauses >= LEAST_PAUSES or not any(one.pause is pause for one in stints)
    claim.doubt(not many and 2 * paused_s <= of_s, "one so far")
    of_s = of_s if many else max(scene.age_s(rank.process), of_s)
    ratio = paused_s / of_s
    claim.clear(ratio <= MUCH_RATIO, f"{say_ratio(ratio)} of {format_seconds(of_s)}")
    least = "" if many else "at least "
    seen = f"{format_seconds(paused_s)} of {format_seconds(of_s)}"
    often = f", {count_of(pauses, 'time', 'times')}" if pauses >= LEAST_PAUSES else ""
    claim.add(Figure.PAUSED_SHARE, ratio, ratio / MUCH_RATIO, of=pause.value)
    claim.add(Figure.PAUSED_TURNS, float(pauses), of=pause.value)
    summary = f"{words} takes {least}{say_ratio(ratio)} of the time ({seen}{often})"
    told: dict[str, Any] = {"share": ratio, "since_ns": since_ns if many else NOT_APPLICABLE}
    return claim.suspect(Kind.PAUSED, cause, ratio, summary, *needs, process=rank.process, **told)


_VALIDATES, _SAVES = (Need.VALIDATION_IN_STACK, Need.VALIDATES_OFTEN), (Need.SAVE_IN_STACK,)
PAUSES: tuple[Rule, ...] = (
    partial(_judge_share, Phase.VALIDATION, "validation-share", "validation", _VALIDATES),
    partial(_judge_share, Phase.CHECKPOINT, "checkpoint-share", "writing checkpoints", _SAVES),
)
RULES: tuple[Rule, ...] = (
    judge_restarts,
    judge_starting,
    judge_checkpoint,
    judge_validation,
    judge_finished,
    judge_waiting_for_input,
    judge_polls,
    *rules_hang.RULES,
)
