"""Tell whether a job stands still, and which of its cards do not answer. Pure.

A thread that waits for the GPU or a collective spins at 100 %: stacks tell movement, and the main thread
alone tells standstill, since background threads tick in any hang. A job never seen to move may have stood for
an hour or a second: until that is known, nothing is said of its speed, and nothing that rules out a hang.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from tpmon.judge.answers.result import Answer, Suspicion, Unsure
from tpmon.judge.dumps.camps import SLOW_PHASES
from tpmon.judge.features.card_use import judge_hollow
from tpmon.judge.features.cards import CardScene, is_sliced
from tpmon.judge.features.snapshot import RankScene, Scene, demand_of, known_cards, ran_of
from tpmon.judge.features.starvation import see_pins
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.stacks.profile import RankPhases
from tpmon.judge.watch.tracker import age_ns, last_event_ns, log_age_s
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuSample, GpuState, list_missed, list_silent
from tpmon.model.known import Known, Missing, is_known, known_or, map_known
from tpmon.model.process import ProcessSample, Role, ThreadKind
from tpmon.model.units import format_seconds
from tpmon.model.verdict import Kind, pick_code
from tpmon.model.waits import IO, is_wait_in

STILL_DEMAND = 0.005
STILL_TICK_DEMAND = 0.05
AT_REST = 0.1
QUIET_WORKER_DEMAND = 0.02
QUIET_RANK_DEMAND = 0.1
QUIET_HELPER_DEMAND = 0.2
FIRST_WAIT_S = 1.5
LEAST_SAMPLES = 5
LEAST_STACK_SPAN_S = 10.0

IDLE_CARD_PCT = 5.0
IDLE_SLICE_PCT = 1.0

FRESH_S = 15.0


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


def _is_still(process: ProcessSample) -> Known[bool]:
    ran = process.runnable if not is_known(process.waiting) else ran_of(process)
    if not is_known(ran):
        return ran
    if process.role is Role.RANK:
        main = demand_of(process, (ThreadKind.MAIN,))
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


def stood_s(scene: Scene) -> Known[float] | str:
    """Return for how long nothing has moved by readings alone, else what moves (never "")."""
    for moving in (find_mover(scene.frame), gpus_move(scene)):
        if moving != "":
            return moving
    waits = [rank.process.waits_unchanged_s for rank in scene.ranks]
    unread = next((wait for wait in waits if isinstance(wait, Missing)), None)
    if unread is not None:
        return unread
    # Below the user's line a wait may repeat: compare places, not stacks.
    known = [rank.phases for rank in scene.ranks if is_known(rank.phases)]
    if any(one.newest_age_s <= FRESH_S and one.distinct > 1 and one.same_place_s <= 0 for one in known):
        return "stacks change"
    busiest = max(known_or(rank.demand_by(ThreadKind.MAIN), 0.0) for rank in scene.ranks)
    if busiest >= STILL_DEMAND:
        return f"a main thread runs {100 * busiest:.1f} % of the time"
    ages = [worker.age_s for rank in scene.ranks for worker in rank.workers]
    workers = (one for one in scene.frame.processes if one.role is Role.WORKER)
    ages += [known_or(one.waits_unchanged_s, math.inf) for one in workers]
    # A worker that rested for as long as a hang takes rests in it, too.
    return min([scene.watch.still_s, *(one for one in ages if one < scene.watch.hang_after_s)])


def waits_for_batch(rank: RankScene, least: float = 0.9) -> Known[bool]:
    """Tell whether a rank's main thread waits for a batch for at least ``least`` of its time."""
    if is_known(rank.main):
        return (rank.main.timed_lock if see_pins(rank) else rank.main.batch_wait) >= least
    if see_pins(rank):
        return Missing("behind a pin thread a wait for a batch looks like any lock")
    return map_known(lambda ratio: ratio >= least, rank.batch_wait_ratio)


def waits_for_workers(rank: RankScene) -> Known[bool]:
    """Tell whether a rank waits for a worker: at its queue, or at rest in the middle of a hand-over."""
    # A batch in shared memory is fetched from its worker over a unix socket: a stopped worker leaves the rank
    # there, not at its queue.
    waits = waits_for_batch(rank)
    if is_known(waits) and waits:
        return True
    if is_known(rank.main):
        return rank.main.running <= AT_REST
    return waits


SILENT_S = 10.0
HUNG_S = 20.0
LOST_READINGS = 3
AFTER_S = 1.0


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
    one = next((one for one in silences if not one.sure), None)
    if one is None:
        return ""
    whose = "the job holds it open, but whether it computes there" if one.pids else "whether it is the job's"
    return f"{one.words}; {whose} is not known"


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


def hangs_on(silence: Silence, scene: Scene) -> bool:
    """Tell whether a run stands since its card fell silent."""
    # A silent card may still work: if the driver does not call it lost, or the job may only hold it open, a
    # standstill must be seen where other cards compute or the card is not surely the job's.
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
        # Where no sign of life could be read, its absence says nothing.
        reads = any(is_known(one.phases) for one in scene.ranks) or log_age_s(scene.frame) is not None
        may_live = reads or bool(last_event_ns(scene.frame))
        return scene.watch.still_s >= SILENT_S or (not works and may_live)
    reads = any(is_wait_in(rank.process.waits_for, IO) for rank in scene.ranks)
    return not reads and scene.watch.still_s >= HUNG_S


MORE_S = 10.0

TIMED_FACTOR = 2.5
UNMOVED_S = 10.0

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


def is_unmoved(scene: Scene) -> bool:
    """Tell whether nothing of the job has moved since the first reading, if that can be read."""
    watch = scene.watch
    if not watch.begun_ns or watch.still_ns > watch.begun_ns + FIRST_WAIT_S * 1e9:
        return False
    started = any(worker.age_s < watch.watched_s for rank in scene.ranks for worker in rank.workers)
    runs = any(rank.process.state == "R" for rank in scene.ranks)
    return bool(scene.ranks) and not started and not runs and not _find_moving(scene)


def _find_moving(scene: Scene) -> bool:
    return find_mover(scene.frame) != "" or gpus_move(scene) != ""


def say_unmoved(scene: Scene, need: float) -> str:
    """Say that nothing has moved, with the command that decides; ``need``: seconds that it takes at most."""
    seconds = scene.watch.watched_s
    words = f"nothing has moved for the {format_seconds(seconds)} watched"
    if seconds >= need:
        return words
    return f"{words}; at most {format_seconds(need)} are needed: --until hung --for {need + MORE_S:.0f}s"


def still_s(scene: Scene) -> float:
    """Return how long tpmon has seen nothing move; 0 where something does."""
    moves = not scene.ranks or _find_moving(scene)
    return 0.0 if moves else min(scene.watch.still_s, scene.watch.watched_s)


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
    """Turn into Unsure the speed of a run that does not move, and what is good while a card is silent."""
    # Ranks that wait for each other do so in each step, or in a hang: once nothing moves, it is not known
    # which. A wait for data may last as long as its reads.
    silent = next((one.words for one in find_silences(scene) if one.missed), "")
    why, held = "", frozenset[Kind]()
    if is_unmoved(scene):
        why, held = "nothing has moved since tpmon attached", SPEEDS
    elif still_s(scene) >= UNMOVED_S:
        why, held = f"nothing has moved for {format_seconds(still_s(scene))}", frozenset((Kind.COMMS_BOUND,))

    kept: list[Answer] = []
    for one in answers:
        doubt = ""
        if isinstance(one, Suspicion):
            key, is_good = (one.kind, one.cause), pick_code(one.kind, one.cause) == 0
            is_speed = one.kind in held or (held is SPEEDS and key == FIRST_STEPS)
            doubt = why if is_speed else silent if is_good and not one.seen else ""
            name = f"{one.kind.value} {one.cause}" if is_known(one.cause) else one.kind.value
        kept.append(Unsure(f"{name} ({doubt})") if doubt else one)
    return kept


PAUSE_RATIO = 0.2


def find_pause(rank: RankScene) -> Phase | None:
    """Return the pause that a rank is in right now by its newest stacks: checkpoint, validation, or none."""
    if not is_known(rank.phases):
        return None
    newest = fresh_phase(rank.phases)
    if newest not in (Phase.CHECKPOINT, Phase.VALIDATION):
        return None
    return newest if rank.phases.ratio(newest) >= PAUSE_RATIO else None
