"""Find the cards of a job that do not answer the driver, and tell whether the run goes on without. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tpmon.judge.features.cards import CardScene
from tpmon.judge.features.hollow import judge_hollow
from tpmon.judge.features.io_waits import is_io_wait
from tpmon.judge.features.snapshot import Scene, known_cards
from tpmon.judge.features.standstill import IDLE_CARD_PCT, QUIET_WORKER_DEMAND, find_excuse
from tpmon.judge.watch.hook_progress import last_event_ns
from tpmon.judge.watch.tracker import age_ns, log_age_s
from tpmon.model.card_use import list_missed, list_silent
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuSample, GpuState
from tpmon.model.known import is_known, known_or
from tpmon.model.units import format_seconds

SILENT_S = 10.0
"""Silence of a card from which it is a sign: a driver that is busy with itself stalls for some seconds."""
HUNG_S = 20.0
"""Silence of a card from which a run that shows no sign of life hangs."""
LOST_READINGS = 3
"""Readings in a row in which the driver itself says that a card is lost, from which it is believed."""
AFTER_S = 1.0
"""How much younger than the silence a sign of life must be: both are rounded to the second."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Hold a card that does not answer, and that the job is on, or may be."""

    sample: GpuSample
    pids: tuple[int, ...]
    """The job's processes on it; all that hold it open where no list tells."""
    sure: bool
    """Whether the job is known to compute on it: by a list, or by as many ranks as cards held open."""
    missed: bool
    """Whether the job may need it: not where each of its processes has a card of its own that answers."""

    @property
    def state(self) -> str:
        """Say what the card does not do: "has not answered the driver for 24 s"."""
        if self.sample.state is GpuState.LOST:
            return "does not answer the driver any more"
        why = f" ({self.sample.unheard})" if is_known(self.sample.unheard) else ""
        return f"has not answered the driver for {format_seconds(self.sample.age_s)}{why}"

    @property
    def words(self) -> str:
        """Say which card that is, too."""
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
    """Return the silence of one card that the job computes on, None where it answers."""
    return next((one for one in find_silences(scene) if one.sure and one.sample.uuid == card.last.uuid), None)


def say_open(silences: Sequence[Silence]) -> str:
    """Say of a silent card that may not be the job's what is not known of it, "" for none."""
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
    """Tell whether the run gave a sign of life not too long ago, and since its card fell silent.

    Signs are its hook, its log, the stacks and waits of ``pids``, else of all ranks, and workers: with a full
    queue these rest, so that those that work have been asked for batches.
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
    # What the job itself tells, it tells every some seconds.
    return now_ns - max(signs_ns) < limit_s * 1e9 or now_ns - told_ns < max(limit_s, SILENT_S) * 1e9


def stands_s(scene: Scene) -> float:
    """Return for how long nothing was seen to move, whatever the cards do; 0 where that cannot be seen."""
    still_ns = scene.watch.still_ns
    return (scene.frame.taken_ns - still_ns) / 1e9 if still_ns else 0.0


def _may_show_life(scene: Scene) -> bool:
    """Tell whether a sign of life could be read at all: else that there is none says nothing."""
    phases = any(is_known(one.phases) for one in scene.ranks)
    return phases or log_age_s(scene.frame) is not None or bool(last_event_ns(scene.frame))


def hangs_on(silence: Silence, scene: Scene) -> bool:
    """Tell whether a run stands since its card fell silent.

    A silent card alone may work on: of one that the driver does not call lost, or that the job may only hold
    open, it must be seen that nothing moves, where other cards compute or it is not surely the job's.
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
    reads = any(is_io_wait(known_or(rank.process.waits_for, "")) for rank in scene.ranks)
    return not reads and stands_s(scene) >= HUNG_S
