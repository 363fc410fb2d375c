"""Say what still works beside a thread that waits, and whether a card that a rank waits for does. Pure.

A main thread may wait for other work of its job: a training in a thread, a pool of C, a program that it
started. While that works it is no hang, or has the grace of what computes. Of a wait for a card, or in a
collective on it, the card's records tell, else stacks and timeouts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tpmon.judge.dumps.camps import ThreadSeen, find_camps, say_camps
from tpmon.judge.dumps.collective_words import find_backend
from tpmon.judge.dumps.describe import LibraryCall
from tpmon.judge.features.card_use import MEDIUM_POWER, full_power_ratio, judge_hollow
from tpmon.judge.features.cards import BUSY_PCT, QUIET_LINK_BYTES_S, CardScene, cards_of, is_sliced
from tpmon.judge.features.snapshot import SPAN_S
from tpmon.judge.features.standstill import (
    IDLE_CARD_PCT,
    IDLE_SLICE_PCT,
    QUIET_HELPER_DEMAND,
    QUIET_WORKER_DEMAND,
)
from tpmon.judge.hang.graph import Blame, End, Goes, Grace, Sink, WaitFacts, blame, give_grace
from tpmon.judge.hang.threads import name_thread, runs_program
from tpmon.judge.stacks.classify import is_native, is_users, package_of
from tpmon.judge.stacks.phases import TRAINING, Phase
from tpmon.model.dump import Motion, WaitKind
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or, map_known
from tpmon.model.process import WORKER_NAME, ProcessSample, Role, ThreadKind
from tpmon.model.text.dump_words import name_process, name_rank
from tpmon.model.units import format_bytes
from tpmon.model.waits import WaitReason, is_wait

BUSY_CARD_PCT = 20.0
WORKS_RATIO = 0.1
TICKS_RATIO = 0.01
POOL_CPUS = 1.5
MOVED_BYTES_S = 1e6

LATELY_S = 60.0

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


def weigh_beside(end: End, seen: ThreadSeen, wait: Known[WaitReason], facts: WaitFacts) -> End:
    """Give a wait more grace, or take the blame back, where something works that may end it."""
    if isinstance(end, Goes):
        return end
    is_own, runs = end.seen is seen, wait is WaitReason.RUNNING
    beside: Beside | None = None
    if runs and is_own:
        found = (*_find_bytes(seen, facts), *_find_cpus(seen, facts))
        beside = next((one for one in found if one.flows), None)
    elif wait in _WAITS or (wait is WaitReason.BATCH and is_own):
        beside = find_beside(seen, facts, children=is_own)
    if beside is None:
        return end
    if beside.goes_on and not runs:
        return Goes(f"{name_process(seen.thread)} waits, and {beside.text}")
    grace = Grace.TRANSFER if beside.flows else Grace.COMPUTE
    return replace(give_grace(end, grace), text=f"{end.text}; meanwhile {beside.text}")


def find_beside(seen: ThreadSeen, facts: WaitFacts, *, children: bool = True) -> Beside | None:
    """Return what works beside a resting thread, None for nothing; ``children``: its processes count, too."""
    found = [
        *_find_threads(seen, facts),
        *(_find_children(seen, facts) if children else ()),
        *_find_cpus(seen, facts),
        *find_cards(seen, facts),
        *_find_bytes(seen, facts),
    ]
    return min(found, key=lambda one: (not one.goes_on, not one.flows), default=None)


def _find_threads(seen: ThreadSeen, facts: WaitFacts) -> Iterator[Beside]:
    """Find Python threads that get on or compute; one that only wakes up now and then does not work."""
    for one in facts.picture.threads_of(seen.thread.pid):
        if one.thread.tid == seen.thread.tid or one.thread.kind in _NOT_WORK or not one.is_read:
            continue
        trait = facts.picture.trait_of(one)
        works = trait is not None and (trait.used_s >= WORKS_RATIO * facts.picture.seconds or trait.ready)
        if not works and one.motion is not Motion.MOVING:
            continue  # what it waits for decides nothing, and a large job has thousands of these
        wait, name = facts.wait_of(one), f"{name_thread(one)} of it"
        if wait is WaitReason.NOTHING:
            steps = one.motion is Motion.MOVING and runs_program(one)
            if works or steps:
                goes_on = works or any(find_cards(seen, facts))
                yield Beside(f"{name} moves: {one.doing.text}", goes_on=goes_on)
        elif wait is WaitReason.RUNNING and works:
            yield Beside(f"{name} computes in {one.doing.text}", goes_on=False)


def _find_cpus(seen: ThreadSeen, facts: WaitFacts) -> Iterator[Beside]:
    """Find CPU use of its other threads, most of them of C: now, or between the dumps."""
    pid = seen.thread.pid
    used = _mean(_others_of(process) for process in read_history(facts.history, pid))
    picture = facts.picture
    toll = picture.tolls.get(pid)
    if toll is not None and picture.seconds > 0:
        own = (one for one in picture.threads_of(pid) if one.thread.kind in _NOT_WORK)
        own_s = sum(trait.used_s for one in own if (trait := picture.trait_of(one)) is not None)
        used = max(used, (toll.cpu_ns / 1e9 - own_s) / picture.seconds)
    if used >= WORKS_RATIO:
        yield Beside(f"other threads of it use {used:.1f} CPUs", goes_on=False, flows=used >= POOL_CPUS)


def read_history(history: Sequence[Frame], pid: int, span_s: float = SPAN_S) -> Iterator[ProcessSample]:
    """Yield the samples of a process in the last so many seconds, newest first."""
    for frame in reversed(history):
        if frame.taken_ns < history[-1].taken_ns - span_s * 1e9:
            return
        yield from (one for one in frame.processes if one.pid == pid)


def _mean(values: Iterable[float]) -> float:
    those = list(values)
    return statistics.fmean(those) if those else 0.0


def _ran(process: ProcessSample) -> float:
    return max(0.0, known_or(process.runnable, 0.0) - known_or(process.waiting, 0.0))


def _others_of(process: ProcessSample) -> float:
    """Return the CPUs that a process used besides its main and communication threads."""
    groups = (group.runnable for group in process.thread_groups if group.kind in _NOT_WORK)
    return max(0.0, _ran(process) - sum(known_or(one, 0.0) for one in groups))


def _find_children(seen: ThreadSeen, facts: WaitFacts) -> Iterator[Beside]:
    """Find a process that it started, directly or not, which works."""
    target = seen.thread.waits_on
    at_pipe = is_known(target) and target.kind is WaitKind.PIPE
    awaited = at_pipe or seen.doing.call in _CHILD_CALLS or is_wait(seen.thread.waits_for, WaitReason.CHILD)
    # A loader's pipe leads to its workers, which are judged themselves.
    awaited = awaited and seen.doing.wait is not WaitReason.BATCH
    parents = {one.pid: one.parent for one in facts.processes}
    for process in facts.processes:
        # A shell in between is no process of the job, and a child of an older torch looks like a worker.
        below = process.rank_pid == seen.thread.pid or _descends(process.pid, seen.thread.pid, parents)
        unnamed = process.role is Role.WORKER and not process.name.startswith(WORKER_NAME)
        if not below or not (process.role in _OTHERS or unnamed):
            continue
        demand = _mean(map(_ran, (process, *read_history(facts.history, process.pid))))
        young = (facts.history[-1].taken - process.started).total_seconds() < SPAN_S
        moves = max(known_or(process.asked_read_bytes_s, 0.0), known_or(process.asked_write_bytes_s, 0.0))
        flows = moves >= MOVED_BYTES_S
        text = f"the process {process.label} ({process.pid}) that it started works"
        if awaited and (demand >= QUIET_WORKER_DEMAND or young or flows):
            yield Beside(text, goes_on=True)
        elif demand >= QUIET_HELPER_DEMAND or flows:
            yield Beside(text, goes_on=False, flows=flows or demand >= POOL_CPUS)


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    passed: set[int] = set()
    while pid in parents and pid not in passed:
        passed.add(pid)
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


def _find_bytes(seen: ThreadSeen, facts: WaitFacts) -> Iterator[Beside]:
    """Find bytes that its threads read or write with little CPU: a download, an upload.

    While they flow it goes on; those since nothing moves, or between the dumps, only give it more time.
    Earlier ones belong to the steps.
    """
    toll, seconds = facts.picture.tolls.get(seen.thread.pid), facts.picture.seconds
    runs = facts.wait_of(seen) is WaitReason.RUNNING
    still_s = (facts.watch.cornered_s if runs else facts.watch.still_s) - facts.watch.interval_s
    spans_s = (SPAN_S, min(LATELY_S, max(still_s, SPAN_S)))
    now, lately = (_moved_bytes_s(facts, seen.thread.pid, span_s) for span_s in spans_s)
    looked = toll.moved_bytes / seconds if toll is not None and seconds > 0 else 0.0
    most = max(now, lately, looked)
    if most >= MOVED_BYTES_S:
        text = f"it reads and writes {format_bytes(round(most))}/s"
        # A store may pause for some seconds in the middle of a large file.
        yield Beside(text, goes_on=now >= MOVED_BYTES_S, flows=max(now, lately) >= MOVED_BYTES_S)


def _moved_bytes_s(facts: WaitFacts, pid: int, span_s: float) -> float:
    return _mean(
        known_or(one.asked_read_bytes_s, 0.0) + known_or(one.asked_write_bytes_s, 0.0)
        for one in read_history(facts.history, pid, span_s)
    )


def find_exchange(waiting: Sequence[ThreadSeen], facts: WaitFacts) -> str:
    """Say that communication threads work, as on a large tensor over gloo; "" for none.

    Beside a busy card they may be NCCL's, which spin in a hung collective, too.
    """
    for seen in waiting:
        used = _mean(map(_ran_for_ranks, read_history(facts.history, seen.thread.pid)))
        if used >= WORKS_RATIO and not any(map(may_be_busy, cards_of(seen.thread.pid, facts.cards))):
            return f"threads of {name_process(seen.thread)} that talk to other ranks use {used:.1f} CPUs"
    return ""


def _ran_for_ranks(process: ProcessSample) -> float:
    """Return the CPUs that communication threads used, beyond their ticks at rest."""
    groups = [one for one in process.thread_groups if one.kind is ThreadKind.COMM]
    wanted = sum(known_or(one.runnable, 0.0) - TICKS_RATIO * one.count for one in groups)
    return min(wanted, _ran(process))


def find_cards(seen: ThreadSeen, facts: WaitFacts) -> Iterator[Beside]:
    """Find a card of the process that does work, or may by its power."""
    for card in cards_of(seen.thread.pid, facts.cards):
        hollow = judge_hollow(card)
        verb = "works" if hollow is False else "may work" if hollow == MEDIUM_POWER else ""
        if verb and known_or(card.busy_pct, 0.0) >= BUSY_CARD_PCT:
            yield Beside(f"card {card.index} of it {verb}", goes_on=False)


_AT_CARD = (*TRAINING, Phase.SYNC, Phase.COMMS, Phase.OTHER)
"""Phases in which a host may wait for its card; loading and compiling run on the host."""
_LEAVE_IT_TO_CARDS = frozenset(
    ("torch", "transformers", "accelerate", "deepspeed", "lightning", "pytorch_lightning", "lightning_fabric")
)
"""Packages whose own code computes on the card; others, such as numpy, compute on the CPU."""
_WORKS = ""
_HOLLOW = "is busy and does next to nothing"


def may_be_busy(card: CardScene) -> bool:
    """Tell whether a card is busy with anything, or may be."""
    return known_or(card.busy_pct, IDLE_CARD_PCT) >= IDLE_CARD_PCT


def may_card_spin(seen: ThreadSeen, facts: WaitFacts) -> bool:
    """Tell whether a card of a rank is busy with anything, or may be, as one that cannot be seen."""
    cards = cards_of(seen.thread.pid, facts.cards)
    return not cards or any(map(may_be_busy, cards))


def say_card_works(seen: ThreadSeen, facts: WaitFacts) -> str:
    """Say that a card of a rank works, or may, "" where all of them are known not to."""
    for card in cards_of(seen.thread.pid, facts.cards):
        state = _say_state(card, facts)
        if isinstance(state, Missing):
            return f"card {card.index} of it may work ({state.reason})"
        if state == _WORKS:
            return f"card {card.index} of it works"
    return ""


def is_network_busy(facts: WaitFacts) -> bool:
    """Tell whether bytes move over the network of a job that has ranks on other machines."""
    rate = facts.nic_bytes_s
    return facts.picture.scene.remote > 0 and is_known(rate) and rate >= QUIET_LINK_BYTES_S


def _say_state(card: CardScene, facts: WaitFacts) -> Known[str]:
    """Say what an idle card does, "" for one that works; Missing where that is not known."""
    silence = next((one for one in facts.silences if one.sure and one.sample.uuid == card.last.uuid), None)
    if silence is not None:
        return silence.state
    if is_sliced(card.last) and is_known(card.sm_active_pct):
        return _WORKS if card.sm_active_pct >= IDLE_SLICE_PCT else "is idle"
    if not is_known(card.busy_pct):
        return card.busy_pct
    if card.busy_pct < IDLE_CARD_PCT:
        return "is idle"
    hollow, work = judge_hollow(card), card.work_ratio
    by_power = card.busy_pct >= BUSY_PCT and not is_known(card.sm_active_pct)
    if hollow is False and by_power and is_known(work) and work < full_power_ratio(card):
        return MEDIUM_POWER
    return map_known(lambda empty: _HOLLOW if empty else _WORKS, hollow)


def _is_alone(facts: WaitFacts) -> bool:
    return len(facts.picture.scene.ranks) + facts.picture.scene.remote < 2


def expand_card(seen: ThreadSeen, facts: WaitFacts) -> End:
    """Say that a rank waits for its card; one that works may be in a kernel that does not end.

    A collective over a slow network is as hollow as a kernel that does not end; the bytes tell them apart.
    """
    name, alone = name_rank(seen.thread), _is_alone(facts)
    states = [(card, _say_state(card, facts)) for card in cards_of(seen.thread.pid, facts.cards)]
    hollow = [card for card, state in states if state == _HOLLOW]
    for card in hollow:
        if known_or(card.link_bytes_s, 0.0) >= QUIET_LINK_BYTES_S and not alone:
            return Goes(f"{name} waits for card {card.index}, whose links move data")
    working = [f"{card.index} works" for card, state in states if state == _WORKS]
    untold = [
        f"{card.index} may work ({state.reason})" for card, state in states if isinstance(state, Missing)
    ]
    busy = [card for card, _ in states if known_or(card.busy_pct, 0.0) >= IDLE_CARD_PCT]
    counted, grace = all(is_known(card.link_bytes_s) for card in busy), Grace.ENDLESS
    if working or untold:
        grace = Grace.TRANSFER if working else Grace.COMPUTE
    elif alone and not all(is_known(card.sm_active_pct) for card in hollow):
        # A slow kernel of few blocks draws as little power as one that does not end.
        grace = Grace.TIMED
    elif busy and not alone and (not counted or is_network_busy(facts)):
        grace = Grace.SLOW  # a slow collective, perhaps, whose bytes no counter shows
    first, state = states[0]
    said = (*working, *untold, f"{first.index} {state}")[0]
    return blame(Sink.CARD, seen, f"{name} waits for its card in {seen.doing.text}; card {said}", grace)


def expand_unseen_card(seen: ThreadSeen, facts: WaitFacts) -> Blame | None:
    """Say that a rank may wait for a card that cannot be read; None where it does something else.

    NCCL's threads show that there is one: of AMD, or of another container; in a dump, the stack. A host that
    waits for its card, or for a collective on it, spins at a line of the program.
    """
    names = (one.thread.name for one in facts.picture.threads_of(seen.thread.pid))
    on_card = find_backend(names) == "nccl" or (not facts.history and seen.doing.wait is WaitReason.DEVICE)
    if not on_card or _is_alone(facts) or _computes(seen, facts) or seen.doing.phase not in _AT_CARD:
        return None
    text = f"{name_rank(seen.thread)} computes, or waits for its card, in {seen.doing.text}"
    return blame(Sink.UNSEEN_CARD, seen, f"{text}; what its card does cannot be read")


def _computes(seen: ThreadSeen, facts: WaitFacts) -> bool:
    """Tell whether a rank itself works: torch waits for the card without the GIL."""
    trait = facts.picture.trait_of(seen)
    if trait is not None and trait.gil_ratio > 0:
        return True
    frames = [one for one in seen.frames if not is_native(one.file)]
    if not frames or is_users(frames[-1]):
        return False
    return package_of(frames[-1].file) not in _LEAVE_IT_TO_CARDS


def blame_cards(blames: Sequence[Blame]) -> Blame:
    """Join the blames of all ranks, each of which waits for its own card: none is the culprit."""
    found, camps = max(blames, key=lambda one: one.grace), find_camps(one.seen for one in blames)
    also = tuple(one.seen for one in blames if one.seen is not found.seen)
    head = f"all {len(blames)} ranks wait for their cards"
    if found.grace is Grace.TRANSFER:
        several = sum(one.grace is Grace.TRANSFER for one in blames) > 1
        return replace(found, text=f"{head}; {found.text}", also=also, is_of_all=several)
    none = "is known to do" if found.grace is Grace.COMPUTE else "does"
    text = f"{head}, none of which {none} anything: most likely in one collective"
    if len(camps) > 1:
        # A host waits for its card at the line after the collective, perhaps another one in each rank.
        text = f"{text}, or in different ones: {say_camps(camps)}"
    return replace(found, text=text, also=also, is_of_all=True)
