"""Condense the Window into the figures that rules ask for, each computed once a judgement. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from functools import wraps
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

from tpmon.judge.answers.result import Answer, Claim, by_conditions
from tpmon.judge.dumps.camps import count_elsewhere
from tpmon.judge.features import data_wait, readings
from tpmon.judge.features.cards import CardScene, doubt_cards, see_cards
from tpmon.judge.features.data_wait import DataWait
from tpmon.judge.stacks.profile import RankPhases, Share
from tpmon.judge.watch.tracker import NO_WATCH, WatchedTime, find_pace
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuSample
from tpmon.model.host import LoaderSample, ShmSample
from tpmon.model.known import Applicable, Known, Missing, is_known, join_known, known_or, map_known
from tpmon.model.process import EnvironmentSetting, ProcessSample, Role, ThreadKind
from tpmon.model.text.redaction import MOST_DIGITS
from tpmon.model.units import format_bytes
from tpmon.model.waits import IO, Wait, WaitReason

SPAN_S = 10.0  # rules judge medians over this span (docs/thresholds.md: they were set on 10 s)
LEAST_FRAMES = 3  # the span grows with readings further apart than a third of it: one Frame has no duration
SHM_SMALL_BYTES = 1 << 30
SHM_LEAST_BYTES = 128 << 20  # free bytes below which a larger mount has no room for more workers
SHM_FULL = 0.5  # fill of a mount below 1 GiB above which the next batch may not fit: it failed at 75 %
SHM_STEPS = 2.0  # room that must be left, as a multiple of the largest growth seen within a second
GAP_INTERVALS = 3.0  # intervals between two readings above which they are a gap
SWAP_BYTES = 16 * (1 << 20)  # pages swapped out once, at the start, and never touched again are no fault
SWAP_FAULTS_S = 5.0  # major faults per second above which swapped pages are in use
STALLED_PCT = 2.0  # stalls for memory below which faults are those of mapped files and swapped pages are old
MANY_PROCESSES = 64  # with more, medians use every other second


@dataclass(frozen=True, slots=True)
class WorkerScene:
    """Hold what one loader worker did over the span; demand in threads, shares 0-1."""

    pid: int
    number: Applicable[int]
    demand: Known[float]
    waiting: Known[float]
    busy_threads: Known[float]
    idle_ratio: Known[float]
    """Share of the readings in which it waited for work from its rank."""
    blocked_ratio: Known[float]
    """Share of the readings in uninterruptible sleep or in a named wait for I/O."""
    io_waits: tuple[Wait, ...]
    """What it waited for when blocked, most frequent first."""
    waits: Mapping[Wait, float]
    """Share of the readings, 0-1, by what it waited for; empty where none was read."""
    stopped: bool
    read_calls_s: Known[float]
    device_read_bytes_s: Known[float]
    asked_read_bytes_s: Known[float]
    major_faults_s: Known[float]
    rss_bytes: int
    age_s: float


@dataclass(frozen=True, slots=True)
class MainThreadScene:
    """Hold the shares (0-1) of the span's samples of one rank's main thread."""

    looks: int
    running: float
    batch_wait: float
    io: float
    timed_lock: float
    lock: float


@dataclass(frozen=True, slots=True)
class RankScene:
    """Hold what one rank and its loader did over the span."""

    process: ProcessSample
    samples: tuple[ProcessSample, ...]
    """The process in each Frame of the span, oldest first; in every other one of a large job."""
    demand: Known[float]
    waiting: Known[float]
    ran: Known[float]
    """CPUs that it got: a mean, as for all shares of time."""
    busy_threads: Known[float]
    batch_wait_ratio: Known[float]
    """Share of the readings in which the main thread waited for a batch, by its kernel wait."""
    main: Known[MainThreadScene]
    """The main thread by frequent samples; finer than ``batch_wait_ratio`` where it was read."""
    phases: Known[RankPhases]
    data_wait: Known[DataWait]
    """How long it waits for or works on its batches, by all origins."""
    loader: LoaderSample | None
    has_workers: bool
    """There were loader workers at some time of the span."""
    births: int
    """Workers born in the last 60 s."""
    workers: tuple[WorkerScene, ...]
    feeders: tuple[WorkerScene, ...]
    """The workers of ``loader``, which feeds the rank where there are several."""

    def demand_by(self, *kinds: ThreadKind) -> Known[float]:
        """Return what its threads of some kinds want together, in threads; Missing when there are none."""
        return readings.median_known(demand_of(one, kinds) for one in self.samples)


@dataclass(frozen=True, slots=True)
class Scene:
    """Hold the job over the span; ``frames`` are the Frames of the span, oldest first."""

    frame: Frame
    frames: tuple[Frame, ...]
    history: tuple[Frame, ...]
    """Every Frame of the Window, oldest first, for what lasts longer than the span."""
    history_s: float
    span_s: float
    budget: Known[float]
    used: Known[float]
    runnable: Known[float]
    pool_ratio: Known[float]
    delay_ratio: Known[float]
    throttled_ratio: Known[float]
    refault_bytes_s: Known[float]
    major_faults_s: Known[float]
    memory_psi_pct: Known[float]
    ranks: tuple[RankScene, ...]
    cards: tuple[GpuSample, ...]
    """The job's own cards in the last Frame; empty on a job without GPUs."""
    gpus: tuple[CardScene, ...]
    """The same cards over the span."""
    gpu_pct: Known[float]
    """Mean SM % of the job's cards over the span."""
    watch: WatchedTime = NO_WATCH
    answers: dict[object, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Begin without answers: those passed on by ``replace`` belong to another Scene."""
        object.__setattr__(self, "answers", {})

    @property
    def now(self) -> datetime:
        """Return the wall-clock time of the last Frame."""
        return self.frame.taken

    @property
    def elsewhere(self) -> int:
        """Count the ranks of the job that are on other machines, as far as its size is known."""
        return count_elsewhere(self.frame.target.world_size, len(self.ranks))

    @property
    def size(self) -> int:
        """Count the ranks of the job that are known, here and elsewhere."""
        return len(self.ranks) + self.elsewhere

    def age_s(self, process: ProcessSample) -> float:
        """Return for how long a process lives."""
        return (self.frame.taken - process.started).total_seconds()


Answered = TypeVar("Answered")


def once(ask: Callable[[Scene], Answered]) -> Callable[[Scene], Answered]:
    """Ask a pure question about a Scene only once, although a dozen rules do; the Scene keeps the answer."""

    @wraps(ask)
    def recall(scene: Scene) -> Answered:
        if ask not in scene.answers:
            scene.answers[ask] = ask(scene)
        return scene.answers[ask]  # type: ignore[no-any-return]

    return recall


_MAIN = (ThreadKind.MAIN,)


def demand_of(sample: ProcessSample, kinds: Sequence[ThreadKind]) -> Known[float]:
    """Add the demand of a process's threads of some kinds, in threads; Missing when there are none."""
    total: float | None = None
    for group in sample.thread_groups:  # hot: three calls of functions for each worker and second would show
        if group.kind in kinds:
            runnable = group.runnable
            if isinstance(runnable, Missing):
                return runnable
            total = runnable if total is None else total + runnable
    return Missing("its threads were not read") if total is None else total


def ran_of(sample: ProcessSample) -> Known[float]:
    """Return a process's CPU time, in threads; demand adds waits for a CPU, so idle ticking looks busy."""
    return join_known(lambda wanted, waited: max(0.0, wanted - waited), sample.runnable, sample.waiting)


_WORK = Wait(WaitReason.WORK)
_MEDIANS = (
    "waiting",
    "busy_threads",
    "read_calls_s",
    "device_read_bytes_s",
    "asked_read_bytes_s",
    "major_faults_s",
)
_WORKER_FIELDS = attrgetter("state", "waits_for", "runnable", *_MEDIANS)
_Rows = tuple[tuple[Any, ...], ...]  # of the samples of a worker: its _WORKER_FIELDS, and its own demand


def _see_worker(
    samples: Sequence[ProcessSample], frame: Frame, alike: dict[_Rows, dict[str, Any]]
) -> WorkerScene:
    """Condense one worker; ``alike`` keeps the figures by what was read: most workers of a large job rest."""
    last = samples[-1]
    rows = (*map(_WORKER_FIELDS, samples), tuple(demand_of(one, _MAIN) for one in samples))
    figures = alike.get(rows)  # a hash of this takes as long as ten function calls
    if figures is None:
        figures = alike[rows] = _measure_worker(rows)
    return WorkerScene(
        **figures,
        pid=last.pid,
        number=last.worker,
        stopped=last.state == "T" or is_known(last.frozen),
        rss_bytes=last.rss_bytes,
        age_s=(frame.taken - last.started).total_seconds(),
    )


def _measure_worker(rows: _Rows) -> dict[str, Any]:
    # One median a column: with 128 workers this is most of a judgement.
    *sampled, own = rows
    states, waits, *columns = zip(*sampled, strict=True)
    demand, *medians = map(readings.median_known, columns)
    rest = readings.weigh_rest(states, own)
    shares = readings.share_waits(waits, rest)
    reasons = [wait.reason if isinstance(wait, Wait) else None for wait in waits]
    blocked = sum(state == "D" or reason in IO for state, reason in zip(states, reasons, strict=True))
    return {
        **dict(zip(_MEDIANS, medians, strict=True)),
        "demand": demand,
        "idle_ratio": shares.get(_WORK, 0.0) if shares else readings.share_of(waits, WaitReason.WORK),
        "blocked_ratio": rest * blocked / len(states),
        "io_waits": readings.list_io_waits(states, waits) if blocked else (),
        "waits": shares,
    }


def _see_main(pid: int, frames: Sequence[Frame]) -> Known[MainThreadScene]:
    if isinstance(frames[-1].main_threads, Missing):
        return frames[-1].main_threads
    found = [
        one
        for frame in frames
        if is_known(frame.main_threads)
        for one in frame.main_threads
        if one.pid == pid
    ]
    looks = sum(one.looks for one in found)
    if not looks:
        return Missing("no sample of the main thread yet")
    at = {name: sum(getattr(one, name) for one in found) / looks for name in _MAIN_AT}
    return MainThreadScene(looks, **at)


_MAIN_AT = ("running", "batch_wait", "io", "timed_lock", "lock")


def _see_batch_wait(
    main: Known[MainThreadScene], waits: Sequence[Known[Wait]], loaders: Sequence[LoaderSample]
) -> Known[Share]:
    if not loaders:
        return Missing("no workers: only stacks tell loading from computing")
    pins = any(loader.pin_thread for loader in loaders)
    if is_known(main) and main.looks >= data_wait.LEAST_SAMPLES:
        return data_wait.measure_share(main.timed_lock if pins else main.batch_wait, main.looks)
    if pins:
        return Missing("behind a pin thread a wait for a batch looks like any lock")
    ratio = readings.share_of(waits, WaitReason.BATCH)
    read = sum(is_known(words) for words in waits)
    if not is_known(ratio):
        return ratio
    return data_wait.measure_share(ratio, read) if read >= data_wait.LEAST_READINGS else readings.NO_FRAMES


def _see_rank(
    samples: Sequence[ProcessSample],
    by_pid: dict[int, list[ProcessSample]],
    frames: Sequence[Frame],
    phases: Mapping[int, RankPhases],
    alike: dict[_Rows, dict[str, Any]],
) -> RankScene:
    last, frame = samples[-1], frames[-1]
    waits = [sample.waits_for for sample in samples]
    workers = tuple(
        _see_worker(by_pid[process.pid], frame, alike)
        for process in frame.processes
        if process.rank_pid == last.pid and process.role is Role.WORKER
    )
    idle = {worker.pid: worker.idle_ratio for worker in workers}
    loader, feeding = data_wait.find_loader_in_use(last.pid, frames, idle)
    feeders = tuple(worker for worker in workers if worker.pid in feeding) or workers
    main = _see_main(last.pid, frames)
    unseen = Missing("no stack sample of this rank yet")
    stacks = phases.get(last.pid, frame.stacks if isinstance(frame.stacks, Missing) else unseen)
    loaders = [loader for one in frames for loader in one.loader if loader.pid == last.pid]
    return RankScene(
        process=last,
        samples=tuple(samples),
        demand=readings.median_known(sample.runnable for sample in samples),
        waiting=readings.median_known(sample.waiting for sample in samples),
        ran=readings.mean_known(ran_of(sample) for sample in samples),
        busy_threads=readings.median_known(map_known(float, sample.busy_threads) for sample in samples),
        batch_wait_ratio=readings.share_of(waits, WaitReason.BATCH),
        main=main,
        phases=stacks,
        data_wait=data_wait.join_hook(
            data_wait.join_handed(
                data_wait.combine_wait(
                    _see_batch_wait(main, waits, loaders),
                    stacks,
                    is_any_lock=any(loader.pin_thread for loader in loaders),
                ),
                stacks,
                loader_behind=data_wait.is_behind(loader, [one.idle_ratio for one in feeders]),
            ),
            find_pace(frame, last.pid),
        ),
        has_workers=bool(loaders or workers),
        births=max((loader.births for loader in loaders), default=0),
        loader=loader,
        workers=workers,
        feeders=feeders,
    )


def _gpu_mean(frame: Frame) -> Known[float]:
    cards = [card for card in known_cards(frame) if is_known(card.pids) and card.pids]
    values = [card.sm_pct for card in cards if is_known(card.sm_pct)]
    return statistics.fmean(values) if values else Missing("no card of the job was read")


def known_cards(frame: Frame) -> tuple[GpuSample, ...]:
    """Return the cards of a Frame, none where they could not be read."""
    return frame.gpus if is_known(frame.gpus) else ()


def ranks_on(card: CardScene, scene: Scene) -> tuple[ProcessSample, ...]:
    """Return the ranks that compute on a card; none where several may use another one just as well."""
    # Open device files alone place a rank that holds one card, or that is the only one on it.
    ranks = tuple(rank.process for rank in scene.ranks if rank.process.pid in card.pids)
    if not card.visible_only or len(ranks) == 1:
        return ranks
    held = {one.uuid: known_or(one.pids, ()) for one in scene.cards}
    held |= {one.last.uuid: one.pids for one in (*scene.gpus, card)}
    return tuple(rank for rank in ranks if sum(rank.pid in pids for pids in held.values()) == 1)


def see(
    frames: Sequence[Frame],
    phases: Mapping[int, RankPhases] = MappingProxyType({}),
    watch: WatchedTime = NO_WATCH,
) -> Scene:
    """Condense the Frames of a Window, oldest first; ``phases`` are by rank PID. ValueError without any."""
    if not frames:
        raise ValueError("a scene needs a Frame")
    frame = frames[-1]
    # Half an interval more than the Frames' distance: they are not exactly on time.
    span_s = max(SPAN_S, (LEAST_FRAMES - 0.5) * frame.interval_s)
    recent = tuple(one for one in frames if frame.taken_ns - one.taken_ns <= span_s * 1e9)
    by_pid: dict[int, list[ProcessSample]] = {process.pid: [] for process in frame.processes}
    began = {process.pid: process.start_ticks for process in frame.processes}
    every_other = len(frame.processes) > MANY_PROCESSES and len(recent) > 2 * LEAST_FRAMES
    for one in recent[::-2][::-1] if every_other else recent:
        for process in one.processes:
            if began.get(process.pid) == process.start_ticks:  # else the PID was another process's
                by_pid[process.pid].append(process)
    ranks = [process for process in frame.processes if process.role is Role.RANK]
    # The first of equal ranks is named, whatever order the kernel lists them in.
    ranks.sort(key=lambda one: (known_or(one.rank, math.inf), one.pid))
    alike: dict[_Rows, dict[str, Any]] = {}
    return Scene(
        frame=frame,
        frames=recent,
        history=tuple(frames),
        history_s=(frame.taken_ns - frames[0].taken_ns) / 1e9,
        span_s=(frame.taken_ns - recent[0].taken_ns) / 1e9,
        budget=frame.cpu.budget_cores,
        used=readings.median_known(one.cpu.used_cores for one in recent),
        runnable=readings.median_known(one.cpu.runnable for one in recent),
        pool_ratio=readings.median_known(one.cpu.oversubscription for one in recent),
        delay_ratio=readings.median_known(one.cpu.run_delay_ratio for one in recent),
        throttled_ratio=readings.median_known(one.cpu.throttled_ratio for one in recent),
        refault_bytes_s=readings.median_known(one.memory.refault_bytes_s for one in recent),
        major_faults_s=readings.median_known(one.memory.major_faults_s for one in recent),
        memory_psi_pct=readings.median_known(one.memory.psi_some_pct for one in recent),
        ranks=tuple(_see_rank(by_pid[rank.pid], by_pid, recent, phases, alike) for rank in ranks),
        cards=tuple(card for card in known_cards(frame) if is_known(card.pids) and card.pids),
        gpus=doubt_cards(see_cards(recent, frames), len(ranks)),
        gpu_pct=readings.mean_known(_gpu_mean(one) for one in recent),
        watch=watch,
    )


Rule = Callable[[Scene], Answer]  # one cause: what it says about a Scene


def list_settings(scene: Scene, names: Collection[str]) -> list[EnvironmentSetting]:
    """List what the ranks were started with of these names, where their environment was read."""
    told = (one for rank in scene.ranks for one in known_or(rank.process.environment, ()))
    return [one for one in told if one.name in names]


def read_count(setting: EnvironmentSetting) -> int:
    """Return the value of a setting as a whole number, 0 where it is none."""
    return int(setting.value) if setting.value.isdecimal() and len(setting.value) <= MOST_DIGITS else 0


def find_largest_step(frames: Sequence[Frame]) -> float:
    """Return the largest growth of /dev/shm in bytes per second, without growth over a gap."""
    # Two readings within a second may lie on both sides of one batch: less than a second counts as one.
    used = [
        (frame.taken_ns / 1e9, frame.memory.shm.used_bytes, frame.interval_s)
        for frame in frames
        if is_known(frame.memory.shm)
    ]
    return max(
        (
            (new - old) / max(1.0, now_s - then_s)
            for (then_s, old, _), (now_s, new, interval_s) in itertools.pairwise(used)
            if now_s - then_s <= GAP_INTERVALS * max(1.0, interval_s)
        ),
        default=0.0,
    )


def is_shm_tight(shm: ShmSample, scene: Scene) -> bool:
    """Tell whether /dev/shm is small and half full, or short of room for batches or two steps of growth."""
    has_little = shm.total_bytes - shm.used_bytes < SHM_LEAST_BYTES <= shm.total_bytes
    return has_little or measure_shm(shm, find_largest_step(scene.history)) > 1


def measure_shm(shm: ShmSample, step: float) -> float:
    """Return how far /dev/shm is past its limit, 1 at it: half of a small mount, two more steps of growth."""
    by_fill = shm.used_bytes / (SHM_FULL * max(shm.total_bytes, 1))
    by_growth = SHM_STEPS * step / max(shm.total_bytes - shm.used_bytes, 1)
    return max(by_fill, by_growth) if shm.total_bytes < SHM_SMALL_BYTES else by_growth


def claim_touched_swap(scene: Scene) -> tuple[int, float]:
    """Return the job's bytes in swap and the faults a second that touch them: a condition of a rule."""
    swapped = Claim("swap")
    swap = swapped.known(scene.frame.memory.swap_bytes)
    size, psi = format_bytes(swap), scene.memory_psi_pct
    swapped.clear(swap < SWAP_BYTES, size)
    faults = Claim(f"whether {size} in swap are touched").known(scene.major_faults_s)
    swapped.clear(faults < SWAP_FAULTS_S, f"{size} lie there untouched")
    if is_known(psi):
        swapped.clear(psi < STALLED_PCT, f"{size} lie there, and the job stalls {psi:.1f} % of the time")
    return swap, faults


find_touched_swap = by_conditions(claim_touched_swap)  # the same, or why nothing touches it
