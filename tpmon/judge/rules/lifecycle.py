"""Judge runs that take no steps for a good reason, or are over."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import (
    Answer,
    Cleared,
    FigureReading,
    Key,
    Suspicion,
    Unsure,
    reading,
    reading_aged,
)
from tpmon.judge.features.cpu import say_got
from tpmon.judge.features.snapshot import RankScene, Rule, Scene
from tpmon.judge.features.standstill import (
    FRESH_S,
    PAUSE_RATIO,
    find_pause,
    fresh_phase,
    name_rank,
    still_s,
    waits_for_batch,
)
from tpmon.judge.hang import rules as rules_hang
from tpmon.judge.hang.ends import list_ends
from tpmon.judge.hang.ranks import find_poller
from tpmon.judge.hang.rules import judge_no_progress
from tpmon.judge.stacks.phases import TRAINING
from tpmon.judge.stacks.profile import Phase
from tpmon.model.figures import Figure, Origin
from tpmon.model.frame import Frame, TargetState
from tpmon.model.host import OutputSample
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.process import Outcome, ProcessEnd, Role
from tpmon.model.text.redaction import MOST_DIGITS
from tpmon.model.verdict import END_CAUSES, IN_WORDS, Kind
from tpmon.model.waits import INPUTS, WaitReason, describe_wait, is_wait_in

REBIRTH_S = 20.0
"""How long without ranks counts as the end: torchrun restarts them once it has met the other machines."""
_ERROR = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Exit)\b|\b(?:Killed|Segmentation fault|Aborted)\b")


def _rankless_s(scene: Scene) -> Known[float]:
    """Return for how long no rank has lived; Missing when none was ever seen."""
    for frame in reversed(scene.history):
        if any(one.role is Role.RANK and one.state not in ("Z", "X") for one in frame.processes):
            return (scene.frame.taken_ns - frame.taken_ns) / 1e9
    if scene.ranks or is_known(scene.frame.target.outcome):
        return scene.history_s
    return Missing("no rank yet")


def find_last_words(frame: Frame) -> tuple[OutputSample, str] | None:
    """Return the last line of the job's log, and the log; a line that names an error goes first."""
    told = [(log, [line.strip() for line in log.lines if line.strip()]) for log in frame.output if log.lines]
    told = [(log, lines) for log, lines in told if lines]
    for log, lines in told:
        error = next((line for line in reversed(lines) if _ERROR.search(line)), None)
        if error is not None:
            return log, error
    dated = [(log.last_write, log, lines) for log, lines in told if is_known(log.last_write)]
    if dated:
        _, log, lines = max(dated, key=lambda one: one[0])
        return log, lines[-1]
    return (told[0][0], told[0][1][-1]) if told else None


def _read_last_words(scene: Scene) -> tuple[FigureReading, ...]:
    last = find_last_words(scene.frame)
    if last is None:
        return ()
    log, line = last
    return (reading_aged(Figure.LAST_WORDS, IN_WORDS, log.last_write_age_s, text=line, source=log.path),)


def _say_ranks(scene: Scene, outcome: Outcome) -> str:
    """Say how the ranks of a job that outlives them ended, by name where the history has it."""
    bad = [end for _, end in list_ends(scene) if end.role is Role.RANK and end.outcome is not Outcome.WELL]
    if outcome is Outcome.WELL:
        return "every rank has ended: exit 0"
    if not bad:
        return "every rank has ended" + (
            ", not all of them well" if outcome is Outcome.FAILED else "; how is not known"
        )
    name = f"rank {bad[0].rank}" if is_known(bad[0].rank) else "a rank"
    return f"every rank has ended; {name} ({bad[0].pid}): {bad[0].how}"


def judge_finished(scene: Scene) -> Answer:
    """Suspect that the job is over: it ended, or its ranks did and only the rest remains."""
    target = scene.frame.target
    ended = target.state is TargetState.ENDED
    gone_s = _rankless_s(scene)
    if not ended and not is_known(gone_s):
        return Cleared(f"finished ({gone_s.reason})")
    if not ended and is_known(gone_s) and gone_s <= 0:
        return Cleared("finished (its ranks live)")
    if not ended and not scene.ranks and is_known(gone_s) and gone_s < REBIRTH_S:
        return Unsure(f"finished (no rank for {gone_s:.0f} s; its launcher may start them anew)")
    outcome = known_or(target.outcome, Outcome.UNKNOWN)
    how = target.ended if is_known(target.ended) else "how is not known"
    words = f"the job has ended: {how}" if ended else _say_ranks(scene, outcome)
    killed = any(map(is_known, (target.signal, *(end.signal for _, end in list_ends(scene)))))
    return Suspicion(
        kind=Kind.IDLE,
        cause=END_CAUSES[outcome],
        weight=1.0,
        margin=2.0,
        origins=frozenset((Origin.PROC,)),
        summary=words,
        evidence=(reading(Figure.RANKS_ALIVE, 0.0, scene.frame, text=words), *_read_last_words(scene)),
        observed=frozenset((Need.KILLED,)) if killed else frozenset(),
        seen=ended,
    )


RESTARTED_S = 300.0
"""Age of ranks from which a restart is over, where the history shows no failure: they got further."""
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
"""How often torchrun has started a rank's group anew after a failure; a change of members does not count."""
MOST_FAILURES = 2
"""Failed ranks that the evidence names."""
_BIRTH_S = 2.0
"""How much older than the end of another a rank may look that was born after it."""


def _find_failures(scene: Scene) -> list[tuple[float, ProcessEnd]]:
    """Return the ranks that failed by themselves and were born anew, and how long ago, the newest last.

    SIGTERM comes from a launcher that noticed the end of another.
    """
    youngest_s = min((_age_s(rank, scene) for rank in scene.ranks), default=0.0)
    failed = [
        ((scene.frame.taken_ns - ended_ns) / 1e9, end)
        for ended_ns, end in list_ends(scene)
        if end.role is Role.RANK and end.outcome is Outcome.FAILED
        if not is_known(end.signal) or end.signal != signal.SIGTERM.name
    ]
    return [one for one in failed if youngest_s <= one[0] + _BIRTH_S]


def _count_restarts(scene: Scene) -> int:
    """Return how often the ranks were started anew by what their launcher told them, 0 where it did not."""
    values = (
        one.value
        for rank in scene.ranks
        for one in known_or(rank.process.environment, ())
        if one.name == RESTART_COUNT
    )
    return max((int(one) for one in values if one.isdecimal() and len(one) <= MOST_DIGITS), default=0)


def judge_restarts(scene: Scene) -> Answer:
    """Suspect that ranks fail and are started again: whatever they do meanwhile, their work is lost."""
    if not scene.ranks:
        return Cleared("restarts (no rank runs)")
    failures, count = _find_failures(scene), _count_restarts(scene)
    age_s = min(_age_s(rank, scene) for rank in scene.ranks)
    if not failures and (not count or age_s >= RESTARTED_S):
        return Cleared("restarts (no rank failed)")
    told = []
    if failures:
        ago_s, end = failures[-1]
        name = f"rank {end.rank} ({end.pid})" if is_known(end.rank) else f"a rank ({end.pid})"
        told.append(f"{name} ended with {end.how} {ago_s:.0f} s ago")
    times = max(count, len({round(ago_s) for ago_s, _ in failures}))
    told.append(f"the ranks were started again {f'{times} times' if times > 1 else 'once'}")
    launchers = [one for one in scene.frame.processes if one.role is Role.LAUNCHER]
    launcher_s = max(((scene.now - one.started).total_seconds() for one in launchers), default=0.0)
    age = f": they are {age_s:.0f} s old" + (f", their launcher {launcher_s:.0f} s" if launcher_s else "")
    return Suspicion(
        kind=Kind.FAILED,
        cause="restarts",
        weight=1.0,
        margin=1.0 + times,
        origins=frozenset((Origin.PROC,)),
        summary=f"{'; '.join(told)}{age}",
        evidence=(
            *(
                reading(Figure.RANK_FAILED, ago_s, scene.frame, of=f"rank {end.rank}: {end.how}")
                for ago_s, end in failures[-MOST_FAILURES:]
            ),
            reading(Figure.RESTARTS, float(times), scene.frame),
            reading(Figure.YOUNGEST_RANK_AGE, age_s, scene.frame),
            *((reading(Figure.LAUNCHER_AGE, launcher_s, scene.frame),) if launchers else ()),
            *_read_last_words(scene),
        ),
    )


STARTING_RATIO = 0.5
"""Share of samples in imports, loading or the compiler that makes a run one that starts."""
TRAINS_RATIO = 0.1
"""Share of samples in forward, backward and optimizer above which steps go on: an import or load beside them
is part of the run, such as modules moved to the card and back."""
FIRST_STEPS_S = 15.0
"""Age of a rank up to which it may be importing: torch alone takes 2-5 s, on a network disk far more."""
COMPILER_DEMAND = 0.5
"""Demand of compile workers, in threads, above which the compiler works beside a waiting rank."""
RESTING_MAIN_DEMAND = 0.1
WRITES_BYTES_S = 1e6
"""Writes of a rank above which they confirm its checkpoint: logs write less."""
INPUT_S = 3.0
"""How long a terminal must be waited for; keys come faster."""

_STEP = (Phase.DATA_WAIT, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
_STARTS = {Phase.IMPORT: "import", Phase.LOAD: "load", Phase.COMPILE: "compile"}
_SHOWN = {
    "import": (Need.IMPORT_IN_STACK, "is importing modules"),
    "load": (Need.LOAD_IN_STACK, "is loading a checkpoint"),
    "compile": (Need.COMPILE_IN_STACK, "is compiling the model"),
    "autotune": (Need.COMPILE_IN_STACK, "is trying out kernels (autotune)"),
}
"""What the stacks of a start prove, and what its rank does."""
_BUILDS = "is reading a data set, or builds or moves its model"
"""What a load is whose stacks show no checkpoint."""


def _age_s(rank: RankScene, scene: Scene) -> float:
    return (scene.now - rank.process.started).total_seconds()


def _start_of(rank: RankScene) -> tuple[str, float] | None:
    """Return which start a rank is in by its stacks, and its share of the samples."""
    if not is_known(rank.phases):
        return None
    newest = fresh_phase(rank.phases)
    trains = rank.phases.ratio(*TRAINING) >= TRAINS_RATIO
    for phase, cause in _STARTS.items():
        if trains and phase is not Phase.COMPILE:
            continue
        ratio = rank.phases.ratio(phase)
        if (ratio >= STARTING_RATIO and newest in (phase, None)) or (
            newest is phase and ratio >= STARTING_RATIO / 2
        ):
            autotune = phase is Phase.COMPILE and rank.phases.autotunes
            return ("autotune" if autotune else cause), ratio
    return None


def _starting(scene: Scene, rank: RankScene, cause: str, ratio: float) -> Suspicion:
    origins = {Origin.STACKS}
    if cause in ("compile", "autotune") and _compiler_demand(scene) >= COMPILER_DEMAND:
        origins.add(Origin.PROC)
    if not rank.workers and _age_s(rank, scene) < 10 * FIRST_STEPS_S:
        origins.add(Origin.PROC)
    got = say_got(scene)
    need, words = _SHOWN[cause]
    # Datasets are read and modules moved without a checkpoint: its remedy needs its frames.
    seen = cause != "load" or (is_known(rank.phases) and need in rank.phases.needs)
    words = words if seen else _BUILDS
    return Suspicion(
        kind=Kind.STARTING,
        cause=cause,
        weight=ratio,
        margin=ratio / STARTING_RATIO,
        origins=frozenset(origins),
        summary=f"{name_rank(rank)} {words}" + (f"; {got}" if got else ""),
        evidence=(
            reading(Figure.IN_PHASE, 100 * ratio, scene.frame, of=cause),
            reading(Figure.RANK_AGE, _age_s(rank, scene), scene.frame),
        ),
        observed=frozenset((need,)) if seen else frozenset(),
        pid=rank.process.pid,
        rank=rank.process.rank,
    )


def _compiler_demand(scene: Scene) -> float:
    return sum(
        known_or(process.runnable, 0.0) for process in scene.frame.processes if process.role is Role.COMPILE
    )


def _starts_by_compiler(scene: Scene) -> Answer | None:
    """Suspect a compile by its workers where no stack tells: they work and every rank rests."""
    demand = _compiler_demand(scene)
    if demand < COMPILER_DEMAND or not scene.ranks:
        return None
    if not all(is_known(one.main_demand) and one.main_demand < RESTING_MAIN_DEMAND for one in scene.ranks):
        return None
    return Suspicion(
        kind=Kind.STARTING,
        cause="compile",
        weight=min(1.0, demand),
        margin=demand / COMPILER_DEMAND,
        origins=frozenset((Origin.PROC,)),
        summary="compile workers run while the ranks wait for them",
        evidence=(reading(Figure.COMPILE_WORKERS, demand, scene.frame),),
    )


def _starts_by_age(scene: Scene) -> Answer:
    """Suspect the first steps by age alone, where no stack tells and no loader has begun."""
    oldest = max((_age_s(rank, scene) for rank in scene.ranks), default=FIRST_STEPS_S)
    loading = any(rank.workers or rank.loader is not None for rank in scene.ranks)
    waiting = any(is_known(one := waits_for_batch(rank)) and one for rank in scene.ranks)
    if oldest >= FIRST_STEPS_S or loading or waiting:
        reason = next((rank.phases.reason for rank in scene.ranks if isinstance(rank.phases, Missing)), "")
        return Unsure(f"starting ({reason})") if reason else Cleared("starting (steps go on)")
    return Suspicion(
        kind=Kind.STARTING,
        cause="first-steps",
        weight=0.1,
        margin=1.0,
        origins=frozenset((Origin.PROC,)),
        summary=f"the ranks are {oldest:.0f} s old",
        evidence=(reading(Figure.YOUNGEST_RANK_AGE, oldest, scene.frame),),
    )


def judge_starting(scene: Scene) -> Answer:
    """Suspect a start: the main thread imports, loads or compiles, or the ranks are seconds old."""
    starts = [(rank, *start) for rank in scene.ranks if (start := _start_of(rank)) is not None]
    if starts:
        return _starting(scene, *max(starts, key=lambda one: one[2]))
    by_compiler = _starts_by_compiler(scene)
    if by_compiler is not None:
        return by_compiler
    if any(is_known(rank.phases) for rank in scene.ranks):
        return Cleared("starting (no import, load or compile in the stacks)")
    return _starts_by_age(scene)


def find_past_starts(scene: Scene) -> frozenset[Key]:
    """Return the starts and pauses that are over: the newest stacks of every rank show steps.

    Both say what a rank does right now, and must not stand beside a row that shows a step. First steps are
    judged by age, and no longer once there are stacks.
    """
    told = all(is_known(rank.phases) for rank in scene.ranks) and bool(scene.ranks)
    by_age: frozenset[Key] = frozenset(((Kind.STARTING, "first-steps"),)) if told else frozenset()
    phases = [fresh_phase(rank.phases) if is_known(rank.phases) else None for rank in scene.ranks]
    if not phases or any(phase not in _STEP for phase in phases):
        return by_age
    starts, pauses = ("import", "load"), ("checkpoint", "validation")
    return by_age | frozenset(
        (*((Kind.STARTING, cause) for cause in starts), *((Kind.PAUSED, one) for one in pauses))
    )


def _is_waiting(rank: RankScene) -> bool:
    """Tell whether a rank's newest stacks show a wait for other ranks, or for its card.

    Gradients are waited for in backward, without a frame of a collective: the main thread rests there.
    """
    phases = rank.phases
    if not is_known(phases) or phases.newest_age_s > FRESH_S:
        return False
    newest = fresh_phase(phases)
    if newest is Phase.BACKWARD:
        return is_known(rank.main_demand) and rank.main_demand < RESTING_MAIN_DEMAND
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


def _judge_pause(scene: Scene, phase: Phase, cause: str, words: str, need: Need) -> Answer:
    ranks = [rank for rank in scene.ranks if find_pause(rank) is phase]
    if not ranks:
        unread = [rank.phases for rank in scene.ranks if isinstance(rank.phases, Missing)]
        if unread:
            return Unsure(f"{cause} ({unread[0].reason})")
        return Cleared(f"{cause} (not in the newest stacks)")
    rank = ranks[0]
    others = [one for one in scene.ranks if find_pause(one) is not phase]
    ratio = rank.phases.ratio(phase) if is_known(rank.phases) else 0.0
    origins = {Origin.STACKS}
    if phase is Phase.CHECKPOINT and known_or(rank.process.asked_write_bytes_s, 0.0) >= WRITES_BYTES_S:
        origins.add(Origin.PROC)
    return Suspicion(
        kind=Kind.PAUSED,
        cause=cause,
        weight=ratio,
        margin=max(1.0, ratio / PAUSE_RATIO),
        origins=frozenset(origins),
        summary=f"{name_rank(rank)} {words}{_say_waiting(others)}",
        evidence=(
            reading(Figure.IN_PHASE, 100 * ratio, scene.frame, of=cause),
            reading(Figure.RANK_WRITES, rank.process.asked_write_bytes_s, scene.frame),
        ),
        share=ratio,
        observed=frozenset((need,)),
        pid=rank.process.pid,
        rank=rank.process.rank,
    )


def judge_checkpoint(scene: Scene) -> Answer:
    """Suspect, in the good sense, that a checkpoint is being written right now."""
    return _judge_pause(scene, Phase.CHECKPOINT, "checkpoint", "is writing a checkpoint", Need.SAVE_IN_STACK)


def judge_validation(scene: Scene) -> Answer:
    """Suspect, in the good sense, that validation runs right now."""
    return _judge_pause(scene, Phase.VALIDATION, "validation", "is in validation", Need.VALIDATION_IN_STACK)


def _waits_for_terminal(rank: RankScene) -> frozenset[Origin]:
    """Return what says that a rank waits for a person: its stack, the kernel."""
    process = rank.process
    origins = set[Origin]()
    phases = rank.phases
    if is_known(phases) and fresh_phase(phases) is Phase.INPUT and phases.ratio(Phase.INPUT) >= PAUSE_RATIO:
        origins.add(Origin.STACKS)
    unchanged = process.waits_unchanged_s
    if is_wait_in(process.waits_for, INPUTS) and is_known(unchanged) and unchanged >= INPUT_S:
        origins.add(Origin.PROC)
    return frozenset(origins)


def _say_input(rank: RankScene) -> str:
    """Say where the input would come from, and which line asked for it."""
    wait = rank.process.waits_for
    fed = is_known(wait) and wait.reason in (WaitReason.INPUT_PIPE, WaitReason.INPUT_SOCKET)
    where = f"on {describe_wait(wait)}" if fed and is_known(wait) else "on a terminal"
    phases = rank.phases
    if not is_known(phases) or phases.newest_age_s > FRESH_S or not phases.where:
        return where
    return f"{where}, in {phases.where.removeprefix(f'{Phase.INPUT.value} ')}"


def _judge_server(scene: Scene) -> Suspicion | None:
    """Suspect a server, or a notebook, that waits for requests by the last dumps."""
    picture = scene.watch.picture
    if picture is None or not scene.watch.served:
        return None
    main = picture.main_of(scene.watch.served)
    rank = next((one for one in scene.ranks if one.process.pid == scene.watch.served), None)
    if main is None or rank is None:
        return None
    origins = frozenset((Origin.STACKS, Origin.PROC))
    return _suspect_input(rank, scene, f"requests in {main.doing.text}", origins)


def _suspect_input(
    rank: RankScene, scene: Scene, what: str, origins: frozenset[Origin], *needs: Need
) -> Suspicion:
    return Suspicion(
        kind=Kind.IDLE,
        cause="waiting-for-input",
        weight=1.0,
        margin=2.0,
        origins=origins,
        summary=f"{name_rank(rank)} waits for {what}",
        evidence=(reading(Figure.WAIT_UNCHANGED, rank.process.waits_unchanged_s, scene.frame),),
        observed=frozenset(needs),
        pid=rank.process.pid,
        rank=rank.process.rank,
    )


def _await_one(scene: Scene) -> bool:
    """Tell whether a rank waits for other ranks, or may: ranks that compute do not wait for a person."""
    return any(not _waits_for_terminal(rank) and (_is_waiting(rank) or _rests(rank)) for rank in scene.ranks)


def _rests(rank: RankScene) -> bool:
    """Tell whether a rank stands, whatever it waits for."""
    unchanged = rank.process.waits_unchanged_s
    return is_known(unchanged) and unchanged >= INPUT_S


def judge_polls(scene: Scene) -> Answer:
    """Suspect that the job keeps to a pace, or asks now and then for what another job makes."""
    seen, least_s = find_poller(scene), scene.watch.hang_after_s
    if seen is None or still_s(scene) < least_s:
        return Cleared("a poll (no rank sleeps, or somebody waits for it)")
    rank = next((one for one in scene.ranks if one.process.pid == seen.thread.pid), None)
    if rank is None:
        return Cleared("a poll (its rank has ended)")
    return Suspicion(
        kind=Kind.IDLE,
        cause="polls",
        weight=1.0,
        margin=1.0,
        origins=frozenset((Origin.STACKS, Origin.PROC)),
        summary=f"{name_rank(rank)} sleeps in {seen.doing.text}, again and again, and nobody waits for it",
        evidence=(reading(Figure.NOTHING_MOVED, still_s(scene), scene.frame),),
        pid=rank.process.pid,
        rank=rank.process.rank,
    )


def judge_waiting_for_input(scene: Scene) -> Answer:
    """Suspect that a rank reads from a terminal, a prompt or a debugger, or from a pipe that it was given."""
    asks = [(rank, _waits_for_terminal(rank)) for rank in scene.ranks]
    for rank, origins in asks:
        # Of a job, not of a rank: the others may wait in a collective for the one at the prompt.
        if origins and (len(asks) == 1 or not _await_one(scene)):
            return _suspect_input(rank, scene, f"input {_say_input(rank)}", origins, Need.INPUT_WAIT)
    served = _judge_server(scene)
    if served is not None:
        return served
    if scene.ranks and all(not is_known(r.phases) and not is_known(r.process.waits_for) for r in scene.ranks):
        return Unsure("waiting for input (neither stacks nor waits could be read)")
    return Cleared("waiting for input (no rank reads a terminal)")


RULES: tuple[Rule, ...] = (
    judge_restarts,
    judge_starting,
    judge_checkpoint,
    judge_validation,
    judge_finished,
    judge_waiting_for_input,
    judge_polls,
    *rules_hang.RULES,
    judge_no_progress,
)
