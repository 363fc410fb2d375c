"""Profile the main thread of each rank over the last minute, from slices of stack samples. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from itertools import takewhile
from math import sqrt
from typing import Any, TypeVar

from tpmon.judge.answers.needs import Need
from tpmon.judge.stacks import classify
from tpmon.judge.stacks.classify import StackPlace, StackReading
from tpmon.judge.stacks.phases import OUTSIDE, TRAINING, DataPart, FrameKind, Phase
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known, known_or
from tpmon.model.stacks import StackCount, StackFrame, StackSlice

Kind = TypeVar("Kind", bound=Hashable)

# What each threshold is, and where it comes from: docs/thresholds.toml.
Z_95 = 1.96
DESIGN = 1.75
MIN_SLICES = 3
CHANGE_Z = 3.5
MIN_CHANGE = 0.15
MIN_COMPARED = 10
MIN_RATIO = 0.05
SPAN_S = 60.0
MIN_REREADS = 3
MIN_CHANGE_S = 12.0


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


_FACTS = frozenset((Need.DDP_IN_STACK, Need.FSDP_IN_STACK, Need.RECOMPUTE_IN_STACK))
"""One sample proves these: a model is wrapped or it is not, however rare the frames."""


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
    readings = [classify.read_stack(stack.frames) for stack in stacks]
    waits = [
        index
        for index, (stack, reading) in enumerate(zip(stacks, readings, strict=True))
        if reading.phase is Phase.OTHER and classify.receives(stack.frames)
        # It is for a future of the standard library.
        if classify.is_any(FrameKind.FUTURES, stack.frames[-4:])
    ]
    # Each thread is sampled like the main one: the busiest of those that write counts.
    saved: Counter[int] = Counter()
    for stack in beside if waits else ():
        saved[stack.tid] += stack.samples if _saves(stack) else 0
    waited = sum(stacks[index].samples for index in waits)
    name = Phase.CHECKPOINT.value
    for index in waits if 2 * max(saved.values(), default=0) >= waited else ():
        one = readings[index]
        where, place = f"{name}: {one.where}", (name, *one.place[1:])
        readings[index] = replace(one, phase=Phase.CHECKPOINT, where=where, place=place)
    return readings


def _saves(stack: StackCount) -> bool:
    frames = stack.frames
    if not frames or classify.waits_for_task(frames, len(frames) - 1) or classify.waits_for_others(frames):
        return False
    names = [
        stack.thread,
        *(classify.last_name(frame.function) for frame in frames if classify.is_users(frame)),
    ]
    return classify.read_stack(frames).phase is Phase.CHECKPOINT or any(map(_SAVES.search, names))


@dataclass(frozen=True, slots=True)
class RankPhases:
    """Hold how one rank's main thread spent the span of its slices.

    ``shares`` holds every Phase that was seen; ``parts`` the DataParts, as shares of all samples. ``where``
    is the most frequent place of the newest slice in words ("forward model.py:88"), ``newest`` its phase.
    Ratios are of all samples, 0-1, by their innermost frame.
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
    """At a queue, a lock or a future of the standard library, or in a library that hands over results."""
    plain_waits_ratio: float = 0.0
    """Those in no phase: nothing else says what they wait for."""
    handed_ratio: float = 0.0
    """Plain waits at the receiving end of a queue, a pipe, a pool or a future; most of them in ``handed``."""
    handed: Applicable[Spot] = NOT_APPLICABLE
    spots: Mapping[Phase, Spot] = field(default_factory=dict)
    """Where most samples of each phase are, without the waits of ``handed``."""
    calls_ratio: float = 0.0
    """In a training phase or outside any, for a server or a child; outside of steps also for a thread or an
    event; most of them in ``calls``."""
    call_waits_ratio: float = 0.0
    """Those that wait for a thread or an event, which may have a time-out."""
    calls_in_step_ratio: float = 0.0
    """Those within the parts of a step."""
    calls: Applicable[Spot] = NOT_APPLICABLE
    resting_ratio: float = 0.0
    """In a notebook that has no cell to run."""
    hinted_ratio: float = 0.0
    """Loading only by the name of one of the program's functions."""
    retrying_ratio: float = 0.0
    """In the sleep of a client before it asks its server again."""
    calling_ratio: float = 0.0
    """In the parts of a step, in Python of torch that only leads to operators."""
    one_operator_ratio: float = 0.0
    """Of the samples in the forward pass, those in the one line that calls operators for longest."""
    design: float = DESIGN
    """How many samples count as one independent sample."""
    proven: Mapping[Need, float] = field(default_factory=dict)
    """Share of samples, 0-1, whose frames prove a need; empty where they were not counted."""

    def ratio(self, *phases: Phase) -> float:
        """Return the share of samples in any of ``phases``, 0-1."""
        return sum(self.shares[phase].ratio for phase in phases if phase in self.shares)

    def share(self, *phases: Phase) -> Share:
        """Return the share of samples in any of ``phases`` with its interval, also when none was seen."""
        return share_of(round(self.ratio(*phases) * self.samples), self.samples, self.design)


Places = Mapping[StackPlace, int]
"""Samples by place."""


@dataclass(frozen=True, slots=True)
class SliceLook:
    """Hold what was read from one slice of one rank, for ``add_up_phases``.

    ``signs`` counts samples by the field of ``RankPhases`` that they belong to.
    """

    taken: StackSlice
    samples: int
    kinds: Mapping[tuple[Phase, DataPart | None], int]
    proofs: Mapping[Need, int]
    where: StackPlace
    autotunes: bool
    signs: Mapping[str, int]
    handed: Places
    calls: Places
    spots: Places
    stacks: frozenset[tuple[StackFrame, ...]]
    places: frozenset[tuple[str, str, int]]
    operators: Mapping[StackFrame, int]
    """Samples of the forward pass by the innermost line."""


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


def _list_signs(reading: StackReading, frames: Sequence[StackFrame]) -> Iterator[str]:
    """Yield the ratios of ``RankPhases`` that a stack counts for."""
    phase, waits = reading.phase, classify.waits_for_others(frames)
    trains, outside = phase in TRAINING, phase in OUTSIDE
    if waits:
        yield "waits_ratio"
        if phase is Phase.OTHER:
            yield "plain_waits_ratio"
    if reading.is_hint and reading.part is DataPart.FETCH:
        yield "hinted_ratio"
    if classify.retries(frames):
        yield "retrying_ratio"
    if trains and classify.ends_in(FrameKind.LEADS, frames):
        yield "calling_ratio"
    if classify.rests_in_notebook(frames):
        yield "resting_ratio"
    elif phase is Phase.OTHER and classify.receives(frames):
        yield "handed_ratio"
    elif (outside and waits) or ((outside or trains) and classify.ends_in(FrameKind.CALLS, frames)):
        # For something other than a card or a rank.
        yield "calls_ratio"
        if waits:
            yield "call_waits_ratio"
        if trains:
            yield "calls_in_step_ratio"


_NOWHERE = StackPlace("", Phase.OTHER)


def _look(taken: StackSlice) -> SliceLook:
    kinds: Counter[tuple[Phase, DataPart | None]] = Counter()
    places: set[tuple[str, str, int]] = set()
    proofs: Counter[Need] = Counter()
    signs: Counter[str] = Counter()
    operators: Counter[StackFrame] = Counter()
    wheres, handed, calls, spots = (Counter[StackPlace]() for _ in range(4))
    autotunes = 0
    stacks = main_stacks(taken)
    mine = {id(stack) for stack in stacks}
    beside = [stack for stack in taken.stacks if id(stack) not in mine]
    for stack, reading in zip(stacks, read_beside(stacks, beside), strict=True):
        count, spot = stack.samples, reading.spot
        kinds[reading.phase, reading.part] += count
        places.add(reading.place)
        wheres[spot] += count
        if reading.phase is Phase.FORWARD:
            operators[stack.frames[-1]] += count
        found = tuple(_list_signs(reading, stack.frames))
        for name in found:
            signs[name] += count
        if "handed_ratio" in found:
            handed[spot] += count
        elif "resting_ratio" not in found:
            spots[spot] += count
            calls[spot] += count if "calls_ratio" in found else 0
        if reading.phase is Phase.COMPILE and classify.is_any(FrameKind.AUTOTUNES, stack.frames):
            autotunes += count
        for need in reading.needs:
            proofs[need] += count
    for stack in beside:
        # On a GPU the backward pass runs on autograd's own thread: recomputing shows there.
        if Need.RECOMPUTE_IN_STACK in classify.read_stack(stack.frames).needs:
            proofs[Need.RECOMPUTE_IN_STACK] += stack.samples
    return SliceLook(
        taken,
        kinds.total(),
        kinds,
        proofs,
        where=max(wheres, key=lambda one: (wheres[one], one.where), default=_NOWHERE),
        autotunes=2 * autotunes > kinds.total(),
        signs=signs,
        handed=handed,
        calls=+calls,
        spots=spots,
        stacks=frozenset(stack.frames for stack in stacks),
        places=frozenset(places),
        operators=operators,
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


def _add_up(counts: Iterable[Mapping[Kind, int]]) -> Counter[Kind]:
    total: Counter[Kind] = Counter()
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
    recent = _keep_recent(looks, now_ns)
    kept = _since_change(recent)
    loads_itself = _loads_for_itself(recent)
    reading = (Phase.DATA_WAIT, DataPart.FETCH) if loads_itself else (Phase.LOAD, None)
    phases: Counter[Phase] = Counter()
    parts: Counter[DataPart] = Counter()
    for kind, count in _add_up(look.kinds for look in kept).items():
        phase, part = reading if kind == _READ else kind
        phases[phase] += count
        if part is not None:
            parts[part] += count
    samples = phases.total()
    proofs, signs = _add_up(look.proofs for look in kept), _add_up(look.signs for look in kept)
    operators = _add_up(look.operators for look in kept)
    place = _name_place(newest, loads_itself=loads_itself)
    design = measure_design([look.kinds for look in kept])
    same_stack = takewhile(lambda look: len(look.stacks) == 1 and look.stacks == newest.stacks, looks)
    same_place = takewhile(lambda look: len(look.places) == 1 and look.places == newest.places, looks)
    found = RankPhases(
        pid=newest.taken.pid,
        rank=newest.taken.rank,
        samples=samples,
        span_s=_lasted_s(kept, newest),
        newest_age_s=max(0.0, (now_ns - newest.taken.ended_ns) / 1e9),
        shares={phase: share_of(count, samples, design) for phase, count in phases.items()},
        parts={part: share_of(count, samples, design) for part, count in parts.items()},
        where=place.where,
        newest=place.phase,
        autotunes=newest.autotunes,
        needs=frozenset(
            need for need, count in proofs.items() if need in _FACTS or count >= MIN_RATIO * samples
        ),
        distinct=len(newest.stacks),
        unchanged_s=_lasted_s(same_stack, newest),
        same_place_s=_lasted_s(same_place, newest),
        handed=find_spot(_add_up(look.handed for look in kept), samples),
        spots=_find_spots(kept, samples),
        calls=find_spot(_add_up(look.calls for look in kept), samples),
        one_operator_ratio=max(operators.values()) / operators.total() if operators else 0.0,
        design=design,
        proven={need: min(1.0, count / samples) for need, count in proofs.items()},
    )
    ratios: dict[str, Any] = {name: count / samples for name, count in signs.items()}
    return replace(found, **ratios)


def add_up_phases(looks: Iterable[SliceLook], now_ns: int) -> dict[int, RankPhases]:
    """Say by rank PID how the main thread spent the last minute, by slices already read.

    ``now_ns`` is CLOCK_MONOTONIC. Ranks without a sample in the last minute are left out, and so are slices
    from before the run changed its behaviour, so that a verdict can follow.
    """
    return {pid: _read_rank(those, now_ns) for pid, those in _group_by_rank(looks, now_ns).items()}


def name_places(looks: Iterable[SliceLook], now_ns: int) -> dict[int, str]:
    """Say by rank PID where the main thread was last: ``where`` of its phases, without the rest of them."""
    return {
        pid: _name_place(those[0], loads_itself=_loads_for_itself(_keep_recent(those, now_ns))).where
        for pid, those in _group_by_rank(looks, now_ns).items()
    }


def _keep_recent(looks: Iterable[SliceLook], now_ns: int) -> list[SliceLook]:
    return [look for look in looks if look.taken.ended_ns >= now_ns - SPAN_S * 1e9]


def _group_by_rank(looks: Iterable[SliceLook], now_ns: int) -> dict[int, list[SliceLook]]:
    """Group the slices with samples by rank, newest first; only ranks with one in the last minute."""
    ranks: dict[int, list[SliceLook]] = {}
    for look in looks:
        if look.samples:
            ranks.setdefault(look.taken.pid, []).append(look)
    for those in ranks.values():
        those.sort(key=lambda look: look.taken.ended_ns, reverse=True)
    return {pid: those for pid, those in ranks.items() if _keep_recent(those[:1], now_ns)}
