"""Tell whether a job stands still: stacks that do not change, main threads that do not run. Pure.

A thread that waits for the GPU or a collective spins at 100 %, so moving is judged by stacks, and
standing still by the main thread alone: background threads tick in the deadest of jobs.
"""

from __future__ import annotations

import statistics

from tpmon.judge.dumps.meant_waits import PATIENT
from tpmon.judge.features.batch_waits import see_pins
from tpmon.judge.features.card_slices import is_sliced
from tpmon.judge.features.snapshot import RankScene, Scene, demand_of
from tpmon.judge.stacks.profile import Phase, RankPhases
from tpmon.judge.watch.hook_progress import event_age_s
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or, map_known
from tpmon.model.process import ProcessSample, Role, ThreadKind

STILL_S = 25.0
"""How long nothing may move before it is called hung: 30 s after attaching, less the first
readings, which have no rates."""
STILL_DEMAND = 0.005
"""Mean demand of a main thread, in threads, below which it does not run: 0.00 in every hang."""
STILL_TICK_DEMAND = 0.05
"""The same in any one second: a loader's wait wakes up every 5 s, and waits for a CPU then."""
AT_REST = 0.1
"""Share of looks that may find the main thread running when its rank rests."""
QUIET_WORKER_DEMAND = 0.02
"""Demand of a worker below which it does nothing."""
QUIET_RANK_DEMAND = 0.1
"""Demand of all threads of a rank; gloo's loops tick at 97 switches a second and 0.02 threads."""
QUIET_HELPER_DEMAND = 0.2
"""Demand of a helper that may be doing the rank's work; an idle logger's is far below."""
FIRST_WAIT_S = 1.5
"""How much younger than the first reading a wait may be that was not seen to begin: that one has no rates,
so that the second one may find changed what is the same."""
LEAST_SAMPLES = 5
"""Samples of a stack before "it does not move" is said (design: three looks, 5 s apart)."""
LEAST_STACK_SPAN_S = 10.0

IDLE_CARD_PCT = 5.0
"""U of a card below which no kernel of the job runs on it: one that drives a screen is never at 0."""
IDLE_SLICE_PCT = 1.0
"""SM activity of a MIG slice below which no kernel runs on it: one block on one of 14 SMs reads 7."""

FRESH_S = 15.0
"""Age up to which the newest slice of a rank tells what it does now; ranks are sampled in turn."""

TERMINAL_WAIT = "terminal input"
INPUT_WAITS = (TERMINAL_WAIT, "standard input (pipe)", "standard input (socket)")
"""Waits of a main thread, in words, that a person or whoever feeds the program ends."""

MAIN = (ThreadKind.MAIN,)


def name_rank(rank: RankScene) -> str:
    """Name a rank as a person does: by number, else by PID."""
    number = rank.process.rank
    return f"rank {number}" if is_known(number) else f"process {rank.process.pid}"


def say_elsewhere(ranks: int) -> str:
    """Say how many ranks of the job are not on this machine."""
    return "1 rank of this job runs elsewhere" if ranks == 1 else f"{ranks} ranks of this job run elsewhere"


def fresh_phase(phases: RankPhases) -> Phase | None:
    """Return the phase of a rank's newest stacks; None where they are old, or in no phase with a word.

    A place in no phase begins with the name of a function, which may be the word of a phase: "load".
    """
    if phases.newest_age_s > FRESH_S:
        return None
    first = phases.where.split(":")[0]
    words = (first, first.rsplit(" ", 1)[0])
    return next((phase for phase in Phase if phase.value in words and phases.ratio(phase) > 0), None)


def find_excuse(rank: RankScene) -> str:
    """Return which slow thing a rank does on purpose, "" for none."""
    newest = fresh_phase(rank.phases) if is_known(rank.phases) else None
    return f"{name_rank(rank)} is in {newest.value}" if newest in PATIENT and newest is not None else ""


def stack_moves(rank: RankScene) -> Known[bool]:
    """Tell whether a rank's main thread was found in more than one stack; Missing: too few samples."""
    phases = rank.phases
    if not is_known(phases):
        return phases
    if phases.distinct > 1 or sum(share.ratio > 0 for share in phases.shares.values()) > 1:
        return True
    if phases.samples >= LEAST_SAMPLES and phases.unchanged_s >= LEAST_STACK_SPAN_S:
        return False
    return Missing("too few stack samples yet")


def _stays(phases: RankPhases) -> bool:
    return phases.same_place_s >= LEAST_STACK_SPAN_S


@dataclass(frozen=True, slots=True)
class Standstill:
    """Hold a job of which nothing moves: for how long at least, and what says so."""

    seconds: float
    sources: frozenset[str]
    log_age_s: Known[float]


def _ran(process: ProcessSample) -> Known[float]:
    """Return the time that a process had a CPU, in threads.

    Demand counts waiting for a CPU too: on a crowded machine a loop that only ticks looks busy by it.
    """
    if not is_known(process.runnable) or not is_known(process.waiting):
        return process.runnable
    return max(0.0, process.runnable - process.waiting)


def _is_still(process: ProcessSample) -> Known[bool]:
    """Tell whether one process did nothing in one second."""
    ran = _ran(process)
    if not is_known(ran):
        return ran
    if process.role is Role.RANK:
        main = demand_of(process, MAIN)
        if not is_known(main):
            return main
        return main < STILL_TICK_DEMAND and ran < QUIET_RANK_DEMAND
    return ran < (QUIET_HELPER_DEMAND if process.role is Role.HELPER else QUIET_WORKER_DEMAND)


def find_mover(frame: Frame) -> Known[str]:
    """Name a process of the job that moved in one second, "" when none did."""
    for process in frame.processes:
        if process.role is Role.LAUNCHER:
            continue
        still = _is_still(process)
        if not is_known(still):
            if process.role is Role.HELPER:
                continue  # such as a tool that a logger calls every few seconds: gone before it is read twice
            return still
        if not still:
            return f"{process.label} ({process.pid}) runs"
    return ""


def _moving_wait(scene: Scene, least_s: float) -> Known[str]:
    """Name a rank or worker whose wait is younger than a hang, or a worker that is; "" when none is.

    A wait that is as old as tpmon's first reading was not seen to begin: nothing moved then.
    """
    watch, taken_ns = scene.watch, scene.frame.taken_ns
    watched_s = (taken_ns - watch.begun_ns) / 1e9 if watch.begun_ns else float("inf")
    is_young = False
    for rank in scene.ranks:
        unchanged = rank.process.waits_unchanged_s
        if is_known(unchanged) and unchanged < least_s:
            if unchanged < watched_s - FIRST_WAIT_S:
                return f"{name_rank(rank)} moved {unchanged:.0f} s ago"
            is_young = True
        for worker in rank.workers:
            if worker.age_s < least_s:
                return f"a worker of {name_rank(rank)} is {worker.age_s:.0f} s old"
    for process in scene.frame.processes:
        unchanged = process.waits_unchanged_s
        if process.role is Role.WORKER and is_known(unchanged) and unchanged < least_s:
            if unchanged < watched_s - FIRST_WAIT_S:
                return f"{process.label} ({process.pid}) moved {unchanged:.0f} s ago"
            is_young = True
    return Missing(f"nothing has moved for the {watched_s:.0f} s watched") if is_young else ""


def _log_age_s(scene: Scene) -> Known[float]:
    ages = [one.last_write_age_s for one in scene.frame.output if is_known(one.last_write_age_s)]
    return min(ages) if ages else Missing("no log of the job is a file")


def gpus_move(scene: Scene) -> Known[str]:
    """Say which card works, "" when none does; a busy card may be a kernel that takes its time."""
    for card in scene.gpus:
        if is_sliced(card.last) and is_known(card.sm_active_pct):
            if card.sm_active_pct >= IDLE_SLICE_PCT:
                return f"the MIG slice of card {card.index} is active {card.sm_active_pct:.0f} %"
            continue
        if not is_known(card.busy_pct):
            return card.busy_pct
        if card.busy_pct >= IDLE_CARD_PCT:
            return f"card {card.index} is busy {card.busy_pct:.0f} %"
    return ""


def find_standstill(scene: Scene, least_s: float = STILL_S) -> Known[Standstill] | str:
    """Return a standstill of at least ``least_s``, what moves (never ""), or why it is not known.

    The history does not reach beyond a minute: longer than that the waits alone tell.
    """
    waits = [rank.process.waits_unchanged_s for rank in scene.ranks]
    if not waits:
        return Missing("no rank was read")
    now = find_mover(scene.frame)
    if now != "":
        return now
    for moving in (_moving_wait(scene, least_s), gpus_move(scene)):
        if moving != "":
            return moving
    log_age_s = _log_age_s(scene)
    if is_known(log_age_s) and log_age_s < least_s:
        return f"the log was written {log_age_s:.0f} s ago"
    event_s = event_age_s(scene.frame)
    if event_s is not None and event_s < least_s:
        return f"the loop got on {event_s:.0f} s ago, by its hook"
    unread = next((wait for wait in waits if isinstance(wait, Missing)), None)
    if unread is not None:
        return unread
    return _look_back(scene, log_age_s)


def _look_back(scene: Scene, log_age_s: Known[float]) -> Known[Standstill] | str:
    """Go back over the ranks' seconds; the workers' waits have said already that they rest as long."""
    known = [rank.phases for rank in scene.ranks if is_known(rank.phases)]
    # Below the user's line a wait may wake up and wait again: a place counts, not a stack.
    if any(one.newest_age_s <= FRESH_S and one.distinct > 1 and one.same_place_s <= 0 for one in known):
        return "stacks change"
    now_ns = scene.frame.taken_ns
    oldest_ns = now_ns
    demands: dict[int, list[float]] = {}
    # Every other Frame is enough: the ranks' waits have told already that nothing moved between.
    for frame in scene.history[::-2]:
        ranks = [process for process in frame.processes if process.role is Role.RANK]
        still = [_is_still(process) for process in ranks]
        if not all(is_known(one) and one for one in still):
            break
        oldest_ns = frame.taken_ns
        for process in ranks:
            demands.setdefault(process.pid, []).append(known_or(demand_of(process, MAIN), 0.0))
    seconds = (now_ns - oldest_ns) / 1e9
    busiest = max((statistics.fmean(one) for one in demands.values()), default=0.0)
    if busiest >= STILL_DEMAND:
        return f"a main thread runs {100 * busiest:.1f} % of the time"
    if seconds < STILL_S:
        return Missing(f"nothing has moved for {seconds:.0f} s of the {STILL_S:.0f} s that it takes")
    sources = {"schedstat", "wait"}
    if is_known(log_age_s):
        sources.add("log")
    if known and len(known) == len(scene.ranks) and all(_stays(one) for one in known):
        sources.add("stacks")
    waited = [wait for rank in scene.ranks if is_known(wait := rank.process.waits_unchanged_s)]
    return Standstill(min(waited, default=seconds), frozenset(sources), log_age_s)


def waits_for_batch(rank: RankScene, least: float = 0.9) -> Known[bool]:
    """Tell whether a rank's main thread spends at least ``least`` of its time waiting for a batch.

    Behind a pin-memory thread that is a lock with a time-out.
    """
    if is_known(rank.main):
        return (rank.main.timed_lock if see_pins(rank) else rank.main.batch_wait) >= least
    if see_pins(rank):
        return Missing("behind a pin thread a wait for a batch looks like any lock")
    return map_known(lambda ratio: ratio >= least, rank.batch_wait_ratio)


def waits_for_workers(rank: RankScene) -> Known[bool]:
    """Tell whether a rank waits for a worker: at its queue, or at rest in the middle of a hand-over.

    A batch in shared memory is fetched from its worker over a unix socket; a worker that is stopped then
    leaves the rank there, which is no wait at a queue.
    """
    waits = waits_for_batch(rank)
    if is_known(waits) and waits:
        return True
    if is_known(rank.main):
        return rank.main.running <= AT_REST
    return waits
