"""Profile the main thread of each rank over the last minute, from slices of stack samples. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from itertools import takewhile
from math import sqrt
from typing import TypeVar

from tpmon.judge.answers.needs import Need
from tpmon.judge.stacks.classify import (
    StackPlace,
    StackReading,
    autotunes_in,
    calls_operators,
    calls_out,
    classify,
    is_users,
    last_name,
    read_stack,
    receives,
    rests_in_notebook,
    retries,
    waits_for_future,
    waits_for_others,
    waits_for_task,
)
from tpmon.judge.stacks.phases import OUTSIDE, TRAINING, DataPart, Phase
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known, known_or
from tpmon.model.stacks import StackCount, StackFrame, StackSlice

Kind = TypeVar("Kind", bound=Hashable)

Z_95 = 1.96
DESIGN = 1.75
"""How many samples count as one independent sample, at least. Measured on 114 windows of 15 s of six loops (5
to 90 % data wait, steps of 20 ms to 3 s) with 228 samples each, beside other work on two cores: the squared
error was 1.4 times the binomial one (1.7 in the busier half); the plain interval held the truth in 90 % of
the windows, this one in 98 %."""
MIN_SLICES = 3
CHANGE_Z = 3.5
MIN_CHANGE = 0.15
MIN_COMPARED = 10
"""With fewer samples the test for two proportions takes chance for change."""


@dataclass(frozen=True, slots=True)
class Share:
    """Hold a share of samples (0-1) with its Wilson 95 % interval."""

    ratio: float
    low: float
    high: float
    samples: int


@lru_cache(maxsize=1024)
def share_of(count: float, samples: float, design: float = DESIGN) -> Share:
    """Return the share of ``count`` in ``samples``; ``design`` samples count as one independent one.

    Wilson's interval with samples / design in place of samples; 0 to 1 without samples.
    """
    if samples <= 0:
        return Share(0.0, 0.0, 1.0, 0)
    ratio = min(1.0, max(0.0, count / samples))
    size = samples / max(design, 1.0)
    square = Z_95 * Z_95
    middle = (ratio + square / (2 * size)) / (1 + square / size)
    half = Z_95 / (1 + square / size) * sqrt(ratio * (1 - ratio) / size + square / (4 * size * size))
    return Share(
        ratio, min(ratio, max(0.0, middle - half)), max(ratio, min(1.0, middle + half)), round(samples)
    )


def measure_design(slices: Sequence[Mapping[Kind, int]]) -> float:
    """Return how many samples count as one: how much more the slices differ than chance allows.

    Pearson's chi-square of slices against kinds, per degree of freedom; ``DESIGN`` at least.
    """
    sizes = [sum(one.values()) for one in slices]
    total = sum(sizes)
    pooled: Counter[Kind] = Counter()
    for one in slices:
        pooled.update({kind: count for kind, count in one.items() if count})
    freedom = (sum(size > 0 for size in sizes) - 1) * (len(pooled) - 1)
    if len(slices) < MIN_SLICES or freedom <= 0:
        return DESIGN
    spread = sum(
        (one.get(kind, 0) - size * count / total) ** 2 / (size * count / total)
        for one, size in zip(slices, sizes, strict=True)
        if size
        for kind, count in pooled.items()
    )
    return max(DESIGN, spread / freedom)


def differs(one: Mapping[Kind, int], other: Mapping[Kind, int]) -> bool:
    """Say whether two sets of counted samples differ by more than chance (two-proportion test)."""
    size, size_other = sum(one.values()), sum(other.values())
    if min(size, size_other) < MIN_COMPARED:
        return False
    for kind in one.keys() | other.keys():
        count, count_other = one.get(kind, 0), other.get(kind, 0)
        pooled = (count + count_other) / (size + size_other)
        gap = abs(count / size - count_other / size_other)
        error = sqrt(DESIGN * pooled * (1 - pooled) * (1 / size + 1 / size_other))
        if gap >= MIN_CHANGE and gap > CHANGE_Z * error:
            return True
    return False


MIN_RATIO = 0.05
"""Below one sample in twenty, a remedy would gain less than the noise of a measurement."""

_FACTS = frozenset((Need.DDP_IN_STACK, Need.FSDP_IN_STACK, Need.RECOMPUTE_IN_STACK))
"""One sample proves these: a model is wrapped or it is not, however rare the frames."""


def find_needs(proofs: Mapping[Need, int], samples: int) -> frozenset[Need]:
    """Return the needs whose frames were seen often enough; ``proofs`` counts samples for each need."""
    return frozenset(
        need
        for need, count in proofs.items()
        if count > 0 and (need in _FACTS or count >= MIN_RATIO * samples)
    )


@dataclass(frozen=True, slots=True)
class Spot:
    """Name the function of the program that took most samples of something, by its busiest line."""

    where: str
    """As in ``RankPhases.where``."""
    ratio: float
    """Share of all samples, 0-1, that were in this function."""
    phase: Phase = Phase.OTHER
    is_loop: bool = False
    """It is the event loop, which waits."""


def find_spot(places: Mapping[StackPlace, int], samples: int) -> Applicable[Spot]:
    """Return the function that most of these samples were in."""
    functions: Counter[tuple[str, ...]] = Counter()
    for place, count in places.items():
        functions[place.function] += count
    if not functions:
        return NOT_APPLICABLE
    busiest = max(functions, key=lambda name: (functions[name], name))
    lines = {place: count for place, count in places.items() if place.function == busiest}
    line = max(lines, key=lambda place: (lines[place], place.where))
    return Spot(line.where, functions[busiest] / samples, line.phase, line.is_loop)


_SAVES = re.compile(r"(?:^|[^a-z])(?:ckpts?|checkpoints?|checkpointer|snapshots?)(?:$|[^a-z])", re.IGNORECASE)
"""In the name of a thread or function: "async_ckpt_0" matches, "checkpointing" of activations does not."""


def read_beside(stacks: Sequence[StackCount], beside: Iterable[StackCount]) -> list[StackReading]:
    """Read the stacks of a main thread like ``read_stack``, with regard to the threads ``beside`` it.

    A wait for a future is a checkpoint if another thread writes one for at least half of that wait.
    """
    readings = [read_stack(stack.frames) for stack in stacks]
    waits = [
        index
        for index, (stack, reading) in enumerate(zip(stacks, readings, strict=True))
        if reading.phase is Phase.OTHER and waits_for_future(stack.frames)
    ]
    waited = sum(stacks[index].samples for index in waits)
    if waited and 2 * _count_saves(beside) >= waited:
        for index in waits:
            readings[index] = _as_checkpoint(readings[index])
    return readings


def _as_checkpoint(reading: StackReading) -> StackReading:
    name = Phase.CHECKPOINT.value
    place = (name, *reading.place[1:])
    return replace(reading, phase=Phase.CHECKPOINT, where=f"{name}: {reading.where}", place=place)


def _count_saves(beside: Iterable[StackCount]) -> int:
    """Count the samples of the busiest thread that writes a checkpoint: each is sampled like the main one."""
    counts: Counter[int] = Counter()
    for stack in beside:
        if stack.frames and not _rests(stack.frames) and _saves(stack):
            counts[stack.tid] += stack.samples
    return max(counts.values(), default=0)


def _rests(frames: Sequence[StackFrame]) -> bool:
    return waits_for_task(frames, len(frames) - 1) or waits_for_others(frames)


def _saves(stack: StackCount) -> bool:
    if read_stack(stack.frames).phase is Phase.CHECKPOINT:
        return True
    names = [stack.thread, *(last_name(frame.function) for frame in stack.frames if is_users(frame))]
    return any(_SAVES.search(name) for name in names)


__all__ = ["DataPart", "Phase", "RankPhases", "Share", "classify", "read_phases"]

SPAN_S = 60.0
"""Older slices show the run as it was."""
MIN_REREADS = 3
"""Slices that read data after an earlier one had trained: one read between two trainings is part of two."""
MIN_CHANGE_S = 12.0
"""A behaviour that came back sooner was an outlier (a checkpoint, a stall), not a change."""


@dataclass(frozen=True, slots=True)
class RankPhases:
    """Hold how one rank's main thread spent the span of its slices.

    ``shares`` holds every Phase that was seen; ``parts`` the DataParts, as shares of all samples. ``where``
    is the most frequent place of the newest slice in words ("forward model.py:88").
    """

    pid: int
    rank: Applicable[int]
    samples: int
    span_s: float
    newest_age_s: float
    shares: Mapping[Phase, Share]
    parts: Mapping[DataPart, Share]
    where: str
    newest: Phase
    """The phase of that place."""
    needs: frozenset[Need]
    """The *_IN_STACK needs in at least 5 % of samples; of wrappers (DDP, FSDP) and recomputing, in one."""
    autotunes: bool = False
    """Most of the newest slice shows a compiler that tries out kernels."""
    distinct: int = 0
    """Distinct stacks of the main thread in the newest slice."""
    unchanged_s: float = 0.0
    """How long one stack was the only one seen, up to the newest slice; 0 when that has several."""
    same_place_s: float = 0.0
    """The same for the phase and the innermost line of the user's code; below it a wait may repeat."""
    waits_ratio: float = 0.0
    """Share of samples, 0-1, whose innermost frame waits at a queue, a lock or a future of the standard
    library, or in a library that hands over results."""
    plain_waits_ratio: float = 0.0
    """Those in no phase: nothing else says what they wait for."""
    handed_ratio: float = 0.0
    """Plain waits at the receiving end of a queue, a pipe, a pool or a future."""
    handed: Applicable[Spot] = NOT_APPLICABLE
    """Where most of these are."""
    spots: Mapping[Phase, Spot] = field(default_factory=dict)
    """Where most samples of each phase are, without the waits of ``handed``."""
    calls_ratio: float = 0.0
    """Share of samples, 0-1, in a training phase or outside any, whose innermost frame waits for a server or
    a child; outside the parts of a step also for a thread or an event."""
    call_waits_ratio: float = 0.0
    """Those that wait for a thread or an event, which may have a time-out."""
    calls_in_step_ratio: float = 0.0
    """Those within the parts of a step."""
    calls: Applicable[Spot] = NOT_APPLICABLE
    """Where most of these are."""
    resting_ratio: float = 0.0
    """Share of samples, 0-1, in which a notebook has no cell to run."""
    hinted_ratio: float = 0.0
    """Share of samples, 0-1, that count as loading only by the name of one of the program's functions."""
    design: float = DESIGN
    """How many samples count as one independent sample."""
    proven: Mapping[Need, float] = field(default_factory=dict)
    """Share of samples, 0-1, whose frames prove a need; empty where they were not counted."""
    retrying_ratio: float = 0.0
    """Share of samples, 0-1, in the sleep of a client before it asks its server again."""
    calling_ratio: float = 0.0
    """Share of samples, 0-1, in the parts of a step in Python of torch that only leads to operators."""

    def ratio(self, *phases: Phase) -> float:
        """Return the share of samples in any of ``phases``, 0-1."""
        return sum(self.shares[phase].ratio for phase in phases if phase in self.shares)

    def share(self, *phases: Phase) -> Share:
        """Return the share of samples in any of ``phases`` with its interval, also when none was seen."""
        return share_of(round(self.ratio(*phases) * self.samples), self.samples, self.design)


@dataclass(frozen=True, slots=True)
class SliceLook:
    """Hold what was read from one slice of one rank, for ``read_phases`` to add up."""

    taken: StackSlice
    samples: int
    kinds: Mapping[tuple[Phase, DataPart | None], int]
    proofs: Mapping[Need, int]
    where: StackPlace
    autotunes: int
    waits: int
    """Samples at a queue, a lock or a future."""
    plain_waits: int
    """Those in no phase."""
    handed: Mapping[StackPlace, int]
    """Those at a receiving end."""
    spots: Mapping[StackPlace, int]
    """All other samples by place, without a notebook at rest."""
    calls: Mapping[StackPlace, int]
    """As ``RankPhases.calls_ratio``, by place."""
    call_waits: int
    """Those that wait for a thread or an event."""
    hinted: int
    retrying: int
    calling: int
    """Samples as ``RankPhases.calling_ratio``."""
    resting: int
    """Samples of a notebook without a cell to run."""
    distinct: int
    only: tuple[StackFrame, ...] | None
    """The stack of the main thread, if there is only one."""
    place: tuple[str, str, int] | None
    """Its place, if there is only one."""


def _begin_ns(taken: StackSlice) -> int:
    return taken.ended_ns - round(min(taken.seconds, SPAN_S) * 1e9)


def main_stacks(taken: StackSlice) -> tuple[StackCount, ...]:
    """Return the stacks of the thread that runs the loop, mostly the main one, without torn (empty) ones."""
    stacks = taken.stacks
    named = next((stack.tid for stack in stacks if "MainThread" in stack.thread), None)
    loop = known_or(taken.loop_tid, taken.pid)
    tid = loop if any(stack.tid == loop for stack in stacks) else named
    if tid is None and stacks:
        tid = stacks[0].tid
    return tuple(stack for stack in stacks if stack.tid == tid and stack.frames and stack.samples > 0)


def _is_call(phase: Phase, frames: Sequence[StackFrame]) -> bool:
    """Tell whether a stack that receives nothing shows a wait for something other than a card or a rank."""
    if phase in OUTSIDE and waits_for_others(frames):
        return True
    return (phase in OUTSIDE or phase in TRAINING) and calls_out(frames)


_NOWHERE = StackPlace("", Phase.OTHER)


def _look(taken: StackSlice) -> SliceLook:
    kinds: Counter[tuple[Phase, DataPart | None]] = Counter()
    places: Counter[tuple[str, str, int]] = Counter()
    wheres: Counter[StackPlace] = Counter()
    proofs: Counter[Need] = Counter()
    handed: Counter[StackPlace] = Counter()
    spots: Counter[StackPlace] = Counter()
    calls: Counter[StackPlace] = Counter()
    waits = plain_waits = hinted = resting = call_waits = autotunes = calling = retrying = 0
    stacks = main_stacks(taken)
    mine = {id(stack) for stack in stacks}
    beside = [stack for stack in taken.stacks if id(stack) not in mine]
    for stack, reading in zip(stacks, read_beside(stacks, beside), strict=True):
        kinds[reading.phase, reading.part] += stack.samples
        places[reading.place] += stack.samples
        spot = reading.spot
        wheres[spot] += stack.samples
        autotunes += stack.samples if reading.phase is Phase.COMPILE and autotunes_in(stack.frames) else 0
        retrying += stack.samples if retries(stack.frames) else 0
        calling += stack.samples if reading.phase in TRAINING and calls_operators(stack.frames) else 0
        if waits_for_others(stack.frames):
            waits += stack.samples
            plain_waits += stack.samples if reading.phase is Phase.OTHER else 0
        if rests_in_notebook(stack.frames):
            resting += stack.samples
        elif reading.phase is Phase.OTHER and receives(stack.frames):
            handed[spot] += stack.samples
        else:
            spots[spot] += stack.samples
            if _is_call(reading.phase, stack.frames):
                calls[spot] += stack.samples
                call_waits += stack.samples if waits_for_others(stack.frames) else 0
        hinted += stack.samples if reading.by_name else 0
        for need in reading.needs:
            proofs[need] += stack.samples
    for stack in beside:
        # On a GPU the backward pass runs on autograd's own thread: recomputing shows there.
        if Need.RECOMPUTE_IN_STACK in read_stack(stack.frames).needs:
            proofs[Need.RECOMPUTE_IN_STACK] += stack.samples
    where = max(wheres, key=lambda one: (wheres[one], one.where), default=_NOWHERE)
    distinct = {stack.frames for stack in stacks} if len(stacks) > 1 else stacks
    return SliceLook(
        taken,
        sum(kinds.values()),
        dict(kinds),
        dict(proofs),
        where,
        autotunes,
        waits,
        plain_waits,
        dict(handed),
        dict(spots),
        dict(calls),
        call_waits,
        hinted,
        retrying,
        calling,
        resting,
        len(distinct),
        stacks[0].frames if len(distinct) == 1 else None,
        next(iter(places)) if len(places) == 1 else None,
    )


def read_slices(slices: Iterable[StackSlice], before: Iterable[SliceLook] = ()) -> tuple[SliceLook, ...]:
    """Read ``slices``, except those among ``before``: a slice stays in the Window for a minute."""
    known = {id(look.taken): look for look in before}
    return tuple(known.get(id(taken)) or _look(taken) for taken in slices)


def _since_change(looks: Sequence[SliceLook]) -> Sequence[SliceLook]:
    """Return the newest slices that show the run as it is now; ``looks`` are newest first.

    Older ones are dropped from where a run of them differs from the newer ones, if it reaches the oldest
    slice or lasts ``MIN_CHANGE_S``.
    """
    now = Counter(looks[0].kinds)
    odd_from = -1
    for index, look in enumerate(looks[1:], 1):
        if not differs(now, look.kinds):
            now.update(look.kinds)
            odd_from = -1
            continue
        if odd_from < 0:
            odd_from = index
        lasted_ns = looks[odd_from].taken.ended_ns - _begin_ns(look.taken)
        if index == len(looks) - 1 or lasted_ns >= MIN_CHANGE_S * 1e9:
            return looks[:odd_from]
    return looks


_READ = (Phase.LOAD, DataPart.READ)


def _loads_for_itself(looks: Sequence[SliceLook]) -> bool:
    """Tell whether the loop reads its data itself, without any dataset; ``looks`` are newest first.

    A start reads before the first step; reading in turns with training is waited for in each turn. Moving or
    restoring a model for longer than that is no reading of data.
    """
    reads = sum(look.kinds.get(_READ, 0) for look in looks)
    loads = sum(count for look in looks for (phase, _), count in look.kinds.items() if phase is Phase.LOAD)
    if not reads or 2 * reads < loads:
        return False
    trained, times = False, 0
    for look in reversed(looks):
        if trained and _READ in look.kinds:
            trained, times = False, times + 1
        trained = trained or any(phase in TRAINING for phase, _ in look.kinds)
    return times >= MIN_REREADS


def _name_place(look: SliceLook, *, loads_itself: bool) -> StackPlace:
    if loads_itself and look.where.phase is Phase.LOAD and _READ in look.kinds:
        rest = look.where.where.removeprefix(f"{Phase.LOAD.value} ")
        where = f"{Phase.DATA_WAIT.value}: {DataPart.READ.value} {rest}"
        return replace(look.where, where=where, phase=Phase.DATA_WAIT)
    return look.where


def _add_up(counts: Iterable[Mapping[StackPlace, int]]) -> Counter[StackPlace]:
    total: Counter[StackPlace] = Counter()
    for one in counts:
        total.update(one)
    return total


def _find_spots(looks: Iterable[SliceLook], samples: int) -> Mapping[Phase, Spot]:
    places: dict[Phase, dict[StackPlace, int]] = {}
    for place, count in _add_up(look.spots for look in looks).items():
        places.setdefault(place.phase, {})[place] = count
    found = {phase: find_spot(counts, samples) for phase, counts in places.items()}
    return {phase: spot for phase, spot in found.items() if is_known(spot)}


def _lasted_s(looks: Iterable[SliceLook], newest: SliceLook) -> float:
    begins = [_begin_ns(look.taken) for look in looks]
    return (newest.taken.ended_ns - min(begins)) / 1e9 if begins else 0.0


def _read_rank(looks: Sequence[SliceLook], now_ns: int) -> RankPhases:
    newest = looks[0]
    recent = [look for look in looks if look.taken.ended_ns >= now_ns - SPAN_S * 1e9]
    kept = _since_change(recent)
    loads_itself = _loads_for_itself(recent)
    reading = (Phase.DATA_WAIT, DataPart.FETCH) if loads_itself else (Phase.LOAD, None)
    samples = sum(look.samples for look in kept)
    phases: Counter[Phase] = Counter()
    parts: Counter[DataPart] = Counter()
    proofs: Counter[Need] = Counter()
    for look in kept:
        proofs.update(look.proofs)
        for kind, count in look.kinds.items():
            phase, part = reading if kind == _READ else kind
            phases[phase] += count
            if part is not None:
                parts[part] += count
    handed, calls = _add_up(look.handed for look in kept), _add_up(look.calls for look in kept)
    in_step = sum(count for place, count in calls.items() if place.phase in TRAINING)
    place = _name_place(newest, loads_itself=loads_itself)
    design = measure_design([look.kinds for look in kept])
    return RankPhases(
        pid=newest.taken.pid,
        rank=newest.taken.rank,
        samples=samples,
        span_s=_lasted_s(kept, newest),
        newest_age_s=max(0.0, (now_ns - newest.taken.ended_ns) / 1e9),
        shares={phase: share_of(count, samples, design) for phase, count in phases.items()},
        parts={part: share_of(count, samples, design) for part, count in parts.items()},
        where=place.where,
        newest=place.phase,
        autotunes=2 * newest.autotunes > newest.samples,
        needs=find_needs(proofs, samples),
        distinct=newest.distinct,
        unchanged_s=_lasted_s(
            takewhile(lambda look: look.only is not None and look.only == newest.only, looks), newest
        ),
        same_place_s=_lasted_s(
            takewhile(lambda look: look.place is not None and look.place == newest.place, looks), newest
        ),
        waits_ratio=sum(look.waits for look in kept) / samples,
        plain_waits_ratio=sum(look.plain_waits for look in kept) / samples,
        handed_ratio=handed.total() / samples,
        handed=find_spot(handed, samples),
        spots=_find_spots(kept, samples),
        calls_ratio=calls.total() / samples,
        call_waits_ratio=sum(look.call_waits for look in kept) / samples,
        calls_in_step_ratio=in_step / samples,
        calls=find_spot(calls, samples),
        resting_ratio=sum(look.resting for look in kept) / samples,
        hinted_ratio=sum(look.hinted for look in kept) / samples,
        retrying_ratio=sum(look.retrying for look in kept) / samples,
        calling_ratio=sum(look.calling for look in kept) / samples,
        design=design,
        proven={need: min(1.0, count / samples) for need, count in proofs.items()},
    )


def read_phases(slices: Iterable[StackSlice], now_ns: int) -> dict[int, RankPhases]:
    """Say by rank PID how the main thread spent the last minute of ``slices``, in any order."""
    return add_up_phases(read_slices(slices), now_ns)


def add_up_phases(looks: Iterable[SliceLook], now_ns: int) -> dict[int, RankPhases]:
    """Say by rank PID how the main thread spent the last minute, by slices already read.

    ``now_ns`` is CLOCK_MONOTONIC. Ranks without a sample in the last minute are left out, and so are slices
    from before the run changed its behaviour, so that a verdict can follow.
    """
    ranks: dict[int, list[SliceLook]] = {}
    for look in looks:
        if look.samples:
            ranks.setdefault(look.taken.pid, []).append(look)
    found = {}
    for pid, those in ranks.items():
        those.sort(key=lambda look: look.taken.ended_ns, reverse=True)
        if those[0].taken.ended_ns >= now_ns - SPAN_S * 1e9:
            found[pid] = _read_rank(those, now_ns)
    return found
