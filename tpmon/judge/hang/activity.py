"""Say what still works beside a thread that waits, and for how long nothing has moved. Pure.

A main thread may wait for other work of its job: a training in a thread, a pool of C, a program that it
started. While that works it is no hang, or has the grace of what computes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tpmon.judge.dumps.describe import LibraryCall
from tpmon.judge.dumps.outlier import ThreadSeen
from tpmon.judge.features.card_use import MEDIUM_POWER, judge_hollow
from tpmon.judge.features.cards import cards_of
from tpmon.judge.features.snapshot import SPAN_S, Scene
from tpmon.judge.features.standstill import IDLE_CARD_PCT, QUIET_HELPER_DEMAND, QUIET_WORKER_DEMAND
from tpmon.judge.hang.sinks import Blame, End, Goes, Grace, give_grace
from tpmon.judge.hang.threads import name_thread
from tpmon.judge.stacks.classify import is_users
from tpmon.judge.watch.picture import Picture, find_wait
from tpmon.model.dump import Motion, WaitKind
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, is_known, known_or
from tpmon.model.process import WORKER_NAME, ProcessSample, Role, ThreadKind
from tpmon.model.text.dump_words import name_process
from tpmon.model.units import format_bytes
from tpmon.model.waits import WaitReason, is_wait

BUSY_CARD_PCT = 20.0
"""Utilisation above which a card of the process works; below it may be ticks of another process."""
WORKS_RATIO = 0.1
"""CPUs above which other threads of a process work: ticking alone takes a tenth of it (gloo: 0.02)."""
TICKS_RATIO = 0.01
"""CPUs that each thread of gloo uses at rest."""
POOL_CPUS = 1.5
"""CPUs above which a pool of threads works: one alone may loop without end."""
MOVED_BYTES_S = 1e6
"""Bytes a second above which a process, or its child, reads or writes what matters."""

LATELY_S = 60.0
"""How long ago bytes may have flowed, since nothing moves: what the Window holds."""

_R = WaitReason
_WAITS = frozenset((_R.LOCK, _R.SLEEP, _R.OTHER, _R.THREADS, _R.CHILD, _R.READ_WRITE))
"""Waits that another thread of the process, or a child, may end; a wait for a batch is one too."""
_CHILD_CALLS = (LibraryCall.SUBPROCESS, LibraryCall.PROCESS_JOIN)
_OTHERS = (Role.HELPER, Role.COMPILE)
_NOT_WORK = (ThreadKind.MAIN, ThreadKind.COMM)


@dataclass(frozen=True, slots=True)
class Beside:
    """Say what works; ``goes_on``: it does not only compute; ``flows``: it earns the longest grace."""

    text: str
    goes_on: bool
    flows: bool = False


def weigh_beside(end: End, seen: ThreadSeen, wait: Known[WaitReason], scene: Scene, picture: Picture) -> End:
    """Give a wait more grace, or take the blame back, where something works that may end it."""
    if isinstance(end, Goes):
        return end
    if wait is WaitReason.RUNNING and end.seen is seen:
        found = [*_find_bytes(seen, scene, picture), *_find_cpus(seen, scene, picture)]
        flow = next((one for one in found if one.flows), None)
        return _allow(end, flow) if flow is not None else end
    if not (wait in _WAITS or (wait is WaitReason.BATCH and end.seen is seen)):
        return end
    beside = find_beside(seen, scene, picture, children=end.seen is seen)
    if beside is None:
        return end
    if beside.goes_on:
        return Goes(f"{name_process(seen.thread)} waits, and {beside.text}")
    return _allow(end, beside)


def _allow(found: Blame, beside: Beside) -> Blame:
    grace = Grace.TRANSFER if beside.flows else Grace.COMPUTE
    return replace(give_grace(found, grace), text=f"{found.text}; meanwhile {beside.text}")


def find_beside(seen: ThreadSeen, scene: Scene, picture: Picture, *, children: bool = True) -> Beside | None:
    """Return what works beside a resting thread, None for nothing; ``children``: its processes count, too."""
    found = [
        *_find_threads(seen, scene, picture),
        *(_find_children(seen, scene) if children else ()),
        *_find_cpus(seen, scene, picture),
        *find_cards(seen, scene),
        *_find_bytes(seen, scene, picture),
    ]
    return min(found, key=lambda one: (not one.goes_on, not one.flows), default=None)


def _find_threads(seen: ThreadSeen, scene: Scene, picture: Picture) -> Iterator[Beside]:
    """Find Python threads that get on or compute; one that only wakes up now and then does not work."""
    for one in picture.threads_of(seen.thread.pid):
        if one.thread.tid == seen.thread.tid or one.thread.kind in _NOT_WORK or not one.is_read:
            continue
        wait, trait = find_wait(one, picture), picture.trait_of(one)
        works = trait is not None and (trait.used_s >= WORKS_RATIO * picture.seconds or trait.ready)
        name = f"{name_thread(one)} of it"
        if wait is WaitReason.NOTHING:
            steps = one.motion is Motion.MOVING and any(map(is_users, one.frames))
            if works or (steps and any(find_cards(seen, scene))):
                yield Beside(f"{name} moves: {one.doing.text}", goes_on=True)
            elif steps:
                yield Beside(f"{name} moves: {one.doing.text}", goes_on=False)
        elif wait is WaitReason.RUNNING and works:
            yield Beside(f"{name} computes in {one.doing.text}", goes_on=False)


def _find_cpus(seen: ThreadSeen, scene: Scene, picture: Picture) -> Iterator[Beside]:
    """Find CPU use of its other threads, most of them of C: now, or between the dumps."""
    pid = seen.thread.pid
    spans = [_others_of(process) for process in _readings(scene, pid)]
    now = statistics.fmean(spans) if spans else 0.0
    toll = picture.tolls.get(pid)
    own_s = sum(
        trait.used_s
        for one in picture.threads_of(pid)
        if one.thread.kind in _NOT_WORK and (trait := picture.trait_of(one)) is not None
    )
    looked = (
        (toll.cpu_ns / 1e9 - own_s) / picture.seconds if toll is not None and picture.seconds > 0 else 0.0
    )
    used = max(now, looked)
    if used >= WORKS_RATIO:
        yield Beside(f"other threads of it use {used:.1f} CPUs", goes_on=False, flows=used >= POOL_CPUS)


def _readings(scene: Scene, pid: int, span_s: float = SPAN_S) -> Iterator[ProcessSample]:
    least_ns = scene.frame.taken_ns - span_s * 1e9
    for frame in reversed(scene.history):
        if frame.taken_ns < least_ns:
            return
        yield from (one for one in frame.processes if one.pid == pid)


def _ran(process: ProcessSample) -> float:
    return max(0.0, known_or(process.runnable, 0.0) - known_or(process.waiting, 0.0))


def _others_of(process: ProcessSample) -> float:
    """Return the CPUs that a process used besides its main and communication threads."""
    groups = (group.runnable for group in process.thread_groups if group.kind in _NOT_WORK)
    return max(0.0, _ran(process) - sum(known_or(one, 0.0) for one in groups))


def _find_children(seen: ThreadSeen, scene: Scene) -> Iterator[Beside]:
    """Find a process that it started, directly or not, which works."""
    target = seen.thread.waits_on
    at_pipe = is_known(target) and target.kind is WaitKind.PIPE
    awaited = at_pipe or seen.doing.call in _CHILD_CALLS or is_wait(seen.thread.waits_for, WaitReason.CHILD)
    # A loader's pipe leads to its workers, which are judged themselves.
    awaited = awaited and seen.doing.wait is not WaitReason.BATCH
    parents = {one.pid: one.parent for one in scene.frame.processes}
    for process in scene.frame.processes:
        # A shell in between is no process of the job, and a child of an older torch looks like a worker.
        below = process.rank_pid == seen.thread.pid or _descends(process.pid, seen.thread.pid, parents)
        unnamed = process.role is Role.WORKER and not process.name.startswith(WORKER_NAME)
        if not below or not (process.role in _OTHERS or unnamed):
            continue
        demand = statistics.fmean(map(_ran, (process, *_readings(scene, process.pid))))
        young = (scene.frame.taken - process.started).total_seconds() < SPAN_S
        moves = max(known_or(process.asked_read_bytes_s, 0.0), known_or(process.asked_write_bytes_s, 0.0))
        if awaited and (demand >= QUIET_WORKER_DEMAND or young or moves >= MOVED_BYTES_S):
            yield Beside(f"the process {process.label} ({process.pid}) that it started works", goes_on=True)
        elif demand >= QUIET_HELPER_DEMAND or moves >= MOVED_BYTES_S:
            flows = demand >= POOL_CPUS or moves >= MOVED_BYTES_S
            text = f"the process {process.label} ({process.pid}) that it started works"
            yield Beside(text, goes_on=False, flows=flows)


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    """Tell whether ``ancestor`` started a process, directly or not."""
    passed: set[int] = set()
    while pid in parents and pid not in passed:
        passed.add(pid)
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


def _find_bytes(seen: ThreadSeen, scene: Scene, picture: Picture) -> Iterator[Beside]:
    """Find bytes that its threads read or write with little CPU: a download, an upload.

    While they flow it goes on; those since nothing moves, or between the dumps, only give it more time.
    Earlier ones belong to the steps.
    """
    toll = picture.tolls.get(seen.thread.pid)
    runs = find_wait(seen, picture) is WaitReason.RUNNING
    still_ns = scene.watch.cornered_ns if runs else scene.watch.still_ns
    still_s = (scene.frame.taken_ns - still_ns) / 1e9 - scene.frame.interval_s
    spans_s = (SPAN_S, min(LATELY_S, max(still_s, SPAN_S)))
    now, lately = (_moved_bytes_s(scene, seen.thread.pid, span_s) for span_s in spans_s)
    looked = toll.moved_bytes / picture.seconds if toll is not None and picture.seconds > 0 else 0.0
    most = max(now, lately, looked)
    if most >= MOVED_BYTES_S:
        text = f"it reads and writes {format_bytes(round(most))}/s"
        # A store may pause for some seconds in the middle of a large file.
        yield Beside(text, goes_on=now >= MOVED_BYTES_S, flows=max(now, lately) >= MOVED_BYTES_S)


def _moved_bytes_s(scene: Scene, pid: int, span_s: float) -> float:
    rates = [
        known_or(one.asked_read_bytes_s, 0.0) + known_or(one.asked_write_bytes_s, 0.0)
        for one in _readings(scene, pid, span_s)
    ]
    return statistics.fmean(rates) if rates else 0.0


def find_exchange(waiting: Sequence[ThreadSeen], scene: Scene) -> str:
    """Say that communication threads work, as on a large tensor over gloo; "" for none.

    Beside a busy card they may be NCCL's, which spin in a hung collective, too.
    """
    for seen in waiting:
        cards = cards_of(seen.thread.pid, scene.gpus)
        if any(not is_known(one.busy_pct) or one.busy_pct >= IDLE_CARD_PCT for one in cards):
            continue
        spans = [_ran_for_ranks(process) for process in _readings(scene, seen.thread.pid)]
        used = statistics.fmean(spans) if spans else 0.0
        if used >= WORKS_RATIO:
            return f"threads of {name_process(seen.thread)} that talk to other ranks use {used:.1f} CPUs"
    return ""


def _ran_for_ranks(process: ProcessSample) -> float:
    """Return the CPUs that communication threads used, beyond their ticks at rest."""
    groups = [one for one in process.thread_groups if one.kind is ThreadKind.COMM]
    wanted = sum(known_or(one.runnable, 0.0) - TICKS_RATIO * one.count for one in groups)
    return min(wanted, _ran(process))


def find_cards(seen: ThreadSeen, scene: Scene) -> Iterator[Beside]:
    """Find a card of the process that does work, or may by its power."""
    for card in cards_of(seen.thread.pid, scene.gpus):
        hollow = judge_hollow(card)
        if not is_known(card.busy_pct) or card.busy_pct < BUSY_CARD_PCT:
            continue
        if hollow is False or hollow == MEDIUM_POWER:
            verb = "works" if hollow is False else "may work"
            yield Beside(f"card {card.index} of it {verb}", goes_on=False)
