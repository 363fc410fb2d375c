"""Tell whether a job stands still, and which of its cards do not answer. Pure.

A thread that waits for the GPU or a collective spins at 100 %: stacks tell movement, and the main thread
alone tells standstill, since background threads tick in any hang. A job never seen to move may have stood for
an hour or a second: until that is known, nothing is said of its speed, and nothing that rules out a hang.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence

from tpmon.judge.answers.result import Answer, Suspicion, Unsure
from tpmon.judge.dumps.outlier import SLOW_PHASES
from tpmon.judge.features.card_use import judge_hollow
from tpmon.judge.features.cards import CardScene, is_sliced
from tpmon.judge.features.snapshot import RankScene, Scene, demand_of, known_cards, ran_of
from tpmon.judge.features.starvation import see_pins
from tpmon.judge.stacks.profile import Phase, RankPhases
from tpmon.judge.watch.tracker import WatchedTime, age_ns, event_age_s, last_event_ns, log_age_s
from tpmon.model.figures import Origin
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuSample, GpuState, list_missed, list_silent
from tpmon.model.known import Applicable, Known, Missing, is_known, known_or, map_known
from tpmon.model.process import ProcessSample, Role, ThreadKind
from tpmon.model.units import format_seconds
from tpmon.model.verdict import Kind, pick_code
from tpmon.model.waits import IO, is_wait_in

STILL_S = 25.0
"""How long a hang must last: 30 s after attaching, less the first readings, which have no rates."""
STILL_DEMAND = 0.005
"""Mean demand of a main thread, in threads, below which it does not run: 0.00 in every hang."""
STILL_TICK_DEMAND = 0.05
"""The same in any one second: a loader's wait wakes up every 5 s, and waits for a CPU then."""
AT_REST = 0.1
"""Share of samples that may find the main thread running when its rank rests."""
QUIET_WORKER_DEMAND = 0.02
"""Demand below which a worker does nothing."""
QUIET_RANK_DEMAND = 0.1
"""Demand of all threads of a rank; gloo's loops tick at 97 switches a second and 0.02 threads."""
QUIET_HELPER_DEMAND = 0.2
"""Demand of a helper that may do the rank's work; an idle logger's is far below."""
FIRST_WAIT_S = 1.5
"""How much younger than the first reading a wait may be that was not seen to begin: the first has no rates,
so the second may see a change where there is none."""
LEAST_SAMPLES = 5
"""Samples of a stack needed to say that it does not move (design: three, 5 s apart)."""
LEAST_STACK_SPAN_S = 10.0

IDLE_CARD_PCT = 5.0
"""U below which no kernel of the job runs on a card: one that drives a screen is never at 0."""
IDLE_SLICE_PCT = 1.0
"""SM activity below which no kernel runs on a MIG slice: one block on one of 14 SMs reads 7."""

FRESH_S = 15.0
"""Age up to which a rank's newest slice shows what it does now; ranks are sampled in turn."""


MAIN = (ThreadKind.MAIN,)


def name_rank(rank: RankScene) -> str:
    """Name a rank by its number, else by PID."""
    number = rank.process.rank
    return f"rank {number}" if is_known(number) else f"process {rank.process.pid}"


def say_elsewhere(ranks: int) -> str:
    """Say how many ranks of the job are not on this machine."""
    return "1 rank of this job runs elsewhere" if ranks == 1 else f"{ranks} ranks of this job run elsewhere"


def fresh_phase(phases: RankPhases) -> Phase | None:
    """Return the phase of a rank's newest stacks; None where they are old, or in no phase."""
    fresh = phases.newest_age_s <= FRESH_S and phases.newest is not Phase.OTHER
    return phases.newest if fresh and phases.ratio(phases.newest) > 0 else None


def find_excuse(rank: RankScene) -> str:
    """Return which slow thing a rank does on purpose, "" for none."""
    newest = fresh_phase(rank.phases) if is_known(rank.phases) else None
    return f"{name_rank(rank)} is in {newest.value}" if newest in SLOW_PHASES and newest is not None else ""


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


@dataclass(frozen=True, slots=True)
class Standstill:
    """Hold a job in which nothing moves: for how long at least, and the origins that say so."""

    seconds: float
    origins: frozenset[Origin]
    log_age_s: Known[float]


def _is_still(process: ProcessSample) -> Known[bool]:
    ran = process.runnable if not is_known(process.waiting) else ran_of(process)
    if not is_known(ran):
        return ran
    if process.role is Role.RANK:
        main = demand_of(process, MAIN)
        if not is_known(main):
            return main
        # What it waits for a CPU is no work: a poll does so on a crowded machine.
        return min(main, ran) < STILL_TICK_DEMAND and ran < QUIET_RANK_DEMAND
    return ran < (QUIET_HELPER_DEMAND if process.role is Role.HELPER else QUIET_WORKER_DEMAND)


def find_mover(frame: Frame) -> Known[str]:
    """Name a process of the job that moved in one second, "" for none."""
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
    """Name a rank or worker whose wait, or a worker whose life, is younger than a hang; "" for none.

    A wait as old as tpmon's first reading was not seen to begin: nothing moved then.
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


def gpus_move(scene: Scene) -> Known[str]:
    """Say which card works, "" for none; a busy card may run one long kernel."""
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

    The history covers a minute; beyond that only the waits tell.
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
    written_s = log_age_s(scene.frame)
    if written_s is not None and written_s < least_s:
        return f"the log was written {written_s:.0f} s ago"
    event_s = event_age_s(scene.frame)
    if event_s is not None and event_s < least_s:
        return f"the loop got on {event_s:.0f} s ago, by its hook"
    unread = next((wait for wait in waits if isinstance(wait, Missing)), None)
    if unread is not None:
        return unread
    return _look_back(scene, Missing("no log of the job is a file") if written_s is None else written_s)


def _look_back(scene: Scene, log_age_s: Known[float]) -> Known[Standstill] | str:
    """Go back over the ranks' seconds; the workers' waits have already shown that they rest as long."""
    known = [rank.phases for rank in scene.ranks if is_known(rank.phases)]
    # Below the user's line a wait may repeat: compare places, not stacks.
    if any(one.newest_age_s <= FRESH_S and one.distinct > 1 and one.same_place_s <= 0 for one in known):
        return "stacks change"
    now_ns = scene.frame.taken_ns
    oldest_ns = now_ns
    demands: dict[int, list[float]] = {}
    # Every other Frame is enough: the ranks' waits have shown that nothing moved in between.
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
    origins = {Origin.PROC}
    if is_known(log_age_s):
        origins.add(Origin.LOG)
    stays = [one for one in known if one.same_place_s >= LEAST_STACK_SPAN_S]
    if len(stays) == len(scene.ranks):
        origins.add(Origin.STACKS)
    waited = [wait for rank in scene.ranks if is_known(wait := rank.process.waits_unchanged_s)]
    return Standstill(min(waited, default=seconds), frozenset(origins), log_age_s)


def waits_for_batch(rank: RankScene, least: float = 0.9) -> Known[bool]:
    """Tell whether a rank's main thread waits for a batch for at least ``least`` of its time."""
    if is_known(rank.main):
        return (rank.main.timed_lock if see_pins(rank) else rank.main.batch_wait) >= least
    if see_pins(rank):
        return Missing("behind a pin thread a wait for a batch looks like any lock")
    return map_known(lambda ratio: ratio >= least, rank.batch_wait_ratio)


def waits_for_workers(rank: RankScene) -> Known[bool]:
    """Tell whether a rank waits for a worker: at its queue, or at rest in the middle of a hand-over.

    A batch in shared memory is fetched from its worker over a unix socket: a stopped worker leaves the rank
    there, not at its queue.
    """
    waits = waits_for_batch(rank)
    if is_known(waits) and waits:
        return True
    if is_known(rank.main):
        return rank.main.running <= AT_REST
    return waits


SILENT_S = 10.0
"""Silence of a card that counts as a sign: a busy driver may stall for some seconds."""
HUNG_S = 20.0
"""Silence of a card above which a run without a sign of life hangs."""
LOST_READINGS = 3
"""Readings in a row in which the driver must call a card lost to be believed."""
AFTER_S = 1.0
"""How much younger than the silence a sign of life must be: both are rounded to the second."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Hold a card that does not answer and that the job uses, or may use."""

    sample: GpuSample
    pids: tuple[int, ...]
    """The job's processes on it; all that hold it open where no list tells."""
    sure: bool
    """The job is known to compute on it: by a list, or by as many ranks as cards held open."""
    missed: bool
    """The job may need it: false where each of its processes has another card that answers."""

    @property
    def state(self) -> str:
        """Say what the card does not do: "has not answered the driver for 24 s"."""
        if self.sample.state is GpuState.LOST:
            return "does not answer the driver any more"
        why = f" ({self.sample.unheard})" if is_known(self.sample.unheard) else ""
        return f"has not answered the driver for {format_seconds(self.sample.age_s)}{why}"

    @property
    def words(self) -> str:
        """Say it with the card's number."""
        return f"card {self.sample.index} {self.state}"


def find_silences(scene: Scene) -> tuple[Silence, ...]:
    """Return the silent cards of a job, those that are surely its own first."""
    found, cards = [], known_cards(scene.frame)
    missed = {one.uuid for one in list_missed(cards)}
    for one in list_silent(cards):
        card = next((card for card in scene.gpus if card.last.uuid == one.uuid), None)
        pids = known_or(one.pids, ()) if card is None else card.pids
        lost = one.state is GpuState.LOST and (card is None or card.lost_readings >= LOST_READINGS)
        if lost or one.age_s >= SILENT_S:
            sure = card is not None and not is_known(one.unheard)
            found.append(Silence(one, pids, sure, one.uuid in missed))
    return tuple(sorted(found, key=lambda one: not one.sure))


def find_silence(card: CardScene, scene: Scene) -> Silence | None:
    """Return the silence of a card that the job computes on, None where it answers."""
    return next((one for one in find_silences(scene) if one.sure and one.sample.uuid == card.last.uuid), None)


def say_open(silences: Sequence[Silence]) -> str:
    """Say what is not known of a silent card that may not be the job's, "" for none."""
    for one in silences:
        if not one.sure:
            whose = (
                "the job holds it open, but whether it computes there"
                if one.pids
                else "whether it is the job's"
            )
            return f"{one.words}; {whose} is not known"
    return ""


def goes_on(scene: Scene, pids: Collection[int] = (), silent_s: float | None = None) -> bool:
    """Tell whether the run gave a recent sign of life, and one since its card fell silent.

    Signs are its hook, its log, the stacks and waits of ``pids`` (else of all ranks), and working workers:
    behind a full queue they rest, so work means that batches were taken.
    """
    now_ns, written = scene.frame.taken_ns, log_age_s(scene.frame)
    ranks = [one for one in scene.watch.ranks if one.pid in pids] or scene.watch.ranks
    told_ns = max(last_event_ns(scene.frame), 0 if written is None else now_ns - age_ns(written))
    signs_ns = [0, *(one.moved_ns for one in ranks)]
    workers = (worker.demand for rank in scene.ranks for worker in rank.workers)
    if any(known_or(one, 0.0) >= QUIET_WORKER_DEMAND for one in workers):
        signs_ns.append(now_ns)
    limit_s = scene.watch.hang_after_s
    if silent_s is not None:
        limit_s = min(limit_s, silent_s - AFTER_S)
    # What the job itself reports, it reports every few seconds.
    return now_ns - max(signs_ns) < limit_s * 1e9 or now_ns - told_ns < max(limit_s, SILENT_S) * 1e9


def stands_s(scene: Scene) -> float:
    """Return how long nothing was seen to move, whatever the cards do; 0 where that cannot be seen."""
    still_ns = scene.watch.still_ns
    return (scene.frame.taken_ns - still_ns) / 1e9 if still_ns else 0.0


def _may_show_life(scene: Scene) -> bool:
    """Tell whether a sign of life could be read at all: without that, its absence says nothing."""
    phases = any(is_known(one.phases) for one in scene.ranks)
    return phases or log_age_s(scene.frame) is not None or bool(last_event_ns(scene.frame))


def hangs_on(silence: Silence, scene: Scene) -> bool:
    """Tell whether a run stands since its card fell silent.

    A silent card may still work: if the driver does not call it lost, or the job may only hold it open, a
    standstill must be seen where other cards compute or the card is not surely the job's.
    """
    silent_s = silence.sample.age_s
    if (
        not (silence.pids and silence.missed)
        or is_known(silence.sample.unheard)
        or goes_on(scene, silence.pids, silent_s)
    ):
        return False
    if silence.sure and silence.sample.state is GpuState.LOST:
        return True
    if silent_s < HUNG_S or any(map(find_excuse, scene.ranks)):
        return False
    if silence.sure:
        works = any(
            known_or(one.busy_pct, 0.0) >= IDLE_CARD_PCT and judge_hollow(one) is False for one in scene.gpus
        )
        return stands_s(scene) >= SILENT_S or (not works and _may_show_life(scene))
    reads = any(is_wait_in(rank.process.waits_for, IO) for rank in scene.ranks)
    return not reads and stands_s(scene) >= HUNG_S


MORE_S = 10.0
"""How much longer than a hang takes the advised command watches: dumps need that time."""

TIMED_FACTOR = 2.5
"""How many times longer a wait that may end by itself, such as a sleep, must last."""
UNMOVED_S = 10.0
"""How long nothing may move before that is said of a run of which nothing else is known."""

SPEEDS = frozenset(
    (
        Kind.BALANCED,
        Kind.COMPUTE_BOUND,
        Kind.DATA_BOUND,
        Kind.PYTHON_BOUND,
        Kind.LAUNCH_BOUND,
        Kind.SYNC_BOUND,
        Kind.COMMS_BOUND,
        Kind.OVERSUBSCRIBED,
        Kind.CPU_THROTTLED,
    )
)
"""Kinds that say what a run's steps are spent on: without steps there are none."""


FIRST_STEPS = (Kind.STARTING, "first-steps")
"""Steps too: a run that stands from its first second has none."""


def watched_s(watch: WatchedTime, frame: Frame) -> float:
    """Return how long tpmon has watched."""
    return (frame.taken_ns - watch.begun_ns) / 1e9 if watch.begun_ns else 0.0


def are_ranks_unmoved(scene: Scene) -> bool:
    """Tell whether no rank was seen to move since the first reading, and nothing was logged."""
    watch = scene.watch
    return (
        watch.begun_ns > 0
        and bool(scene.ranks)
        and watch.still_ns <= watch.begun_ns + FIRST_WAIT_S * 1e9
        and all(rank.process.state != "R" for rank in scene.ranks)
    )


def is_unmoved(scene: Scene) -> bool:
    """Tell whether nothing of the job has moved since the first reading, as far as can be read."""
    if not are_ranks_unmoved(scene):
        return False
    seconds = watched_s(scene.watch, scene.frame)
    started = any(worker.age_s < seconds for rank in scene.ranks for worker in rank.workers)
    mover, cards = find_mover(scene.frame), gpus_move(scene)
    return not started and mover == "" and cards == ""


def say_unmoved(scene: Scene, need: float) -> str:
    """Say that nothing has moved, with the command that decides; ``need``: seconds that it takes at most."""
    seconds = watched_s(scene.watch, scene.frame)
    words = f"nothing has moved for the {format_seconds(seconds)} watched"
    if seconds >= need:
        return words
    return f"{words}; at most {format_seconds(need)} are needed: --until hung --for {need + MORE_S:.0f}s"


def still_s(scene: Scene) -> float:
    """Return how long tpmon has seen nothing move; 0 where something does."""
    watch = scene.watch
    if not watch.still_ns or not scene.ranks or find_mover(scene.frame) != "" or gpus_move(scene) != "":
        return 0.0
    seconds = max(0.0, (scene.frame.taken_ns - watch.still_ns) / 1e9)
    return min(seconds, watched_s(watch, scene.frame))


def say_still(scene: Scene) -> str:
    """Say that no hang is stated yet: "nothing has moved for 45 s, too short to call it hung"."""
    seconds = format_seconds(still_s(scene))
    words = f"the {seconds} watched" if is_unmoved(scene) else seconds
    return f"nothing has moved for {words}, too short to call it hung"


def say_longer(scene: Scene, need: float) -> str:
    """Say which command decides, and ends once it has; ``need`` is how long that takes at most (seconds)."""
    pid = scene.frame.target.pid
    longer_s = (need if still_s(scene) < need else TIMED_FACTOR * need) + MORE_S
    look = f"tpmon diagnose {pid} --until hung --for {longer_s:.0f}s"
    return f"watch it for longer, and see where it stands: {look}; tpmon dump {pid}"


def hold_back(answers: Sequence[Answer], scene: Scene) -> list[Answer]:
    """Turn into Unsure the speed of an unmoved run, and good verdicts while a card is silent."""
    why = next((one.words for one in find_silences(scene) if one.missed), "")
    return [
        Unsure(f"{_name(one.kind, one.cause)} ({why})")
        if why and isinstance(one, Suspicion) and not one.seen and pick_code(one.kind, one.cause) == 0
        else one
        for one in _hold_back_unmoved(answers, scene)
    ]


def _hold_back_unmoved(answers: Sequence[Answer], scene: Scene) -> list[Answer]:
    """Turn what was said of the speed of a run that was not seen to move into Unsure.

    Ranks that wait for each other do so in each step, or in a hang: once nothing moves, it is not known
    which. A wait for data may last as long as its reads.
    """
    if is_unmoved(scene):
        why, held = "nothing has moved since tpmon attached", SPEEDS
    elif still_s(scene) >= UNMOVED_S:
        why, held = f"nothing has moved for {format_seconds(still_s(scene))}", frozenset((Kind.COMMS_BOUND,))
    else:
        return list(answers)
    return [
        Unsure(f"{_name(one.kind, one.cause)} ({why})")
        if isinstance(one, Suspicion)
        and (one.kind in held or (held is SPEEDS and (one.kind, one.cause) == FIRST_STEPS))
        else one
        for one in answers
    ]


def _name(kind: Kind, cause: Applicable[str]) -> str:
    return f"{kind.value} {cause}" if is_known(cause) else kind.value


PAUSE_RATIO = 0.2
"""Share of samples that a pause must have: a short checkpoint between steps is part of the run."""


def find_pause(rank: RankScene) -> Phase | None:
    """Return the pause that a rank is in right now by its newest stacks: checkpoint, validation, or none."""
    if not is_known(rank.phases):
        return None
    newest = fresh_phase(rank.phases)
    if newest not in (Phase.CHECKPOINT, Phase.VALIDATION):
        return None
    return newest if rank.phases.ratio(newest) >= PAUSE_RATIO else None
