"""Turn the readings of the ranks' hooks into rates, percentiles and shares."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from functools import reduce
from operator import attrgetter, sub
from typing import Any

from tpmon.model.frame import NO_STEPS, Event, EventKind
from tpmon.model.frozen import dataclass
from tpmon.model.hook import (
    CompileCounts,
    HookSample,
    HookState,
    PhaseTimes,
    StepPace,
    StepReading,
    StepRule,
    StepSpan,
    join_paces,
)
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, Why, is_known, known_or, map_known
from tpmon.model.process import Identity, ProcessSample, RankRow, Role
from tpmon.model.text.dump_words import list_numbers
from tpmon.probe.hooked.page import StepReader

ONE_STEP = Missing("one step ended so far")
NO_STEP = Missing("no training step lately")

SPAN_NS = 10_000_000_000  # of rates and shares, as in the rules (docs/thresholds.md), or three steps
LEAST_STEPS = 3  # enough for a share however long they take, as in the rules (docs/thresholds.md)
TIMED_NS = 60_000_000_000
MOST_TIMED = 512
LEAST_TIMED = 20  # so many steps are timed however old: a minute holds two steps of half a minute
UNSEEN_BACKWARDS = 64  # without an optimizer; from here on the hook takes each batch for a step
HOOKS_LAST = (2, 3)  # the torch since which torch.compile leaves optimizers' hooks in place
STALLED_STEPS = 2.0  # mean step times without a step, after which the time since the last lowers the rate


_PHASES = attrgetter("data_ns", "forward_ns", "backward_ns", "optimizer_ns", "other_ns")


def _subtract(late: StepSpan, early: StepSpan) -> StepSpan:
    """Return the steps between two ends by their totals, or a span without its later part."""
    return StepSpan(
        late.ended_ns,
        late.steps - early.steps,
        late.eval_steps - early.eval_steps,
        late.samples - early.samples,
        PhaseTimes(*map(sub, _PHASES(late.train), _PHASES(early.train))),
        PhaseTimes(*map(sub, _PHASES(late.evaluation), _PHASES(early.evaluation))),
    )


def _find_earlier_total(last: StepSpan, spans: Sequence[StepSpan]) -> StepSpan | None:
    """Return the totals at an earlier step's end, ten seconds or three steps ago, by the spans since."""
    if len(spans) < 2:
        return None
    first = 0
    for at in range(len(spans) - 2, -1, -1):
        first = at
        if last.ended_ns - spans[at].ended_ns >= SPAN_NS and len(spans) - 1 - at >= LEAST_STEPS:
            break
    return replace(reduce(_subtract, spans[first + 1 :], last), ended_ns=spans[first].ended_ns)


class RankPace:
    """Follow one rank: its totals of the last ten seconds, and the times of its last steps."""

    def __init__(self) -> None:
        self._totals: deque[StepSpan] = deque()
        self._timed: deque[tuple[int, float]] = deque(maxlen=MOST_TIMED)
        self._ordered: list[float] = []
        self._open_ns = 0

    def add(self, reading: StepReading, rank: Applicable[int]) -> Known[StepPace]:
        """Take one reading and return the pace; Missing before the ends of two steps are known."""
        if reading.state is HookState.DISABLED:
            return Missing(f"the hook turned itself off: {reading.error or 'it does not say why'}")
        if reading.state is not HookState.RUNNING:
            return Missing("the hook was taken out")
        if not is_known(reading.ended):
            return reading.ended
        slowest = self._time_steps(reading)
        age_s = (reading.taken_ns - reading.ended.ended_ns) / 1e9
        self._keep(reading.ended, reading)
        if len(self._totals) < 2:
            return ONE_STEP
        return self._say(reading, rank, age_s, slowest)

    def _time_steps(self, reading: StepReading) -> Known[float]:
        """Record how long the new steps took; return the longest in ms."""
        new = []
        if reading.lost_records:
            self._open_ns = 0
        for span in reading.spans:
            self._open_ns += span.train.total_ns
            if span.steps > 0:  # 0: a validation within a step; below: parts of an accumulation taken back
                new.append((span.ended_ns, self._open_ns / span.steps / 1e6))
                self._open_ns = 0
        self._timed.extend(new)
        oldest_ns = reading.taken_ns - TIMED_NS
        dropped = False
        while len(self._timed) > LEAST_TIMED and self._timed[0][0] < oldest_ns:
            self._timed.popleft()
            dropped = True
        if new or dropped:
            self._ordered = sorted(ms for _, ms in self._timed)
        return max(ms for _, ms in new) if new else Missing("no step ended since")

    def _keep(self, last: StepSpan, reading: StepReading) -> None:
        totals = self._totals
        if totals and last.steps < totals[-1].steps:
            totals.clear()  # its count restarted
        if not totals:
            earlier = _find_earlier_total(last, reading.spans)
            totals.extend((earlier, last) if earlier is not None else (last,))
        elif last.ended_ns > totals[-1].ended_ns:
            totals.append(last)
        while len(totals) > LEAST_STEPS + 1 and totals[1].ended_ns <= reading.taken_ns - SPAN_NS:
            totals.popleft()

    def _percentile(self, share: float) -> Known[float]:
        ordered = self._ordered
        if not ordered:
            return Missing("no training step ended yet")
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def _slowest(self, ended_ms: Known[float], age_s: float) -> Known[float]:
        if is_known(ended_ms):
            return ended_ms
        return max(self._timed[-1][1], 1000 * age_s) if self._timed else ended_ms

    def _say(
        self, reading: StepReading, rank: Applicable[int], age_s: float, slowest: Known[float]
    ) -> StepPace:
        first, last = self._totals[0], self._totals[-1]
        made = _subtract(last, first)
        steps, evals = made.steps, made.eval_steps
        between_s = max(last.ended_ns - first.ended_ns, 1) / 1e9
        mean_s = between_s / max(steps + evals, 1)
        span_s = between_s + (age_s if age_s > STALLED_STEPS * mean_s else 0.0)
        total_ns = made.train.total_ns
        shares = [100 * one / total_ns if total_ns > 0 else NO_STEP for one in _PHASES(made.train)]
        # In a loop whose steps do not end with a batch, an occasional batch is not what it trains on.
        samples = made.samples if reading.rule is not StepRule.UPDATE else 0
        return StepPace(
            pid=reading.process.pid,
            rank=rank,
            ranks=1,
            rule=reading.rule,
            count=last.steps,
            eval_count=last.eval_steps,
            span_s=span_s,
            rate_hz=steps / span_s,
            eval_hz=evals / span_s,
            samples_hz=samples / span_s if samples or not steps else Missing("its batch size is not known"),
            timed=len(self._ordered),
            p50_ms=self._percentile(0.50),
            p95_ms=self._percentile(0.95),
            p99_ms=self._percentile(0.99),
            longest_ms=self._percentile(1.0),
            slowest_ms=self._slowest(slowest, age_s),
            step_age_s=age_s,
            data_pct=shares[0],
            forward_pct=shares[1],
            backward_pct=shares[2],
            optimizer_pct=shares[3],
            other_pct=shares[4],
            own_ms=(made.train.data_ns + made.train.forward_ns) / steps / 1e6 if steps else NO_STEP,
            eval_pct=100 * min(1.0, made.evaluation.total_ns / 1e9 / between_s),
        )


@dataclass(frozen=True, slots=True)
class StepsRead:
    """Hold what one tick read of all hooks, for the Frame."""

    hook: Known[tuple[HookSample, ...]]
    steps: Known[StepPace]
    age_s: Known[float]
    source: str
    missing: Mapping[int, Missing]  # by PID, why a rank has no reading
    blind: tuple[str, ...] = ()  # sentences on hooks that see no optimizer
    world_size: Applicable[int] = NOT_APPLICABLE  # ranks of the whole job by its process groups

    def size_job(self, told: Applicable[int], here: int) -> Applicable[int]:
        """Return the ranks of a job, by its environment (``told``), else by hooks, if no fewer are here."""
        fits = is_known(self.world_size) and self.world_size >= here
        return self.world_size if not is_known(told) and fits else told

    @property
    def notes(self) -> tuple[str, ...]:
        """Say which hooks turned themselves off or are blind, which the program itself does not show."""
        off = next((one for one in known_or(self.hook, ()) if one.state is HookState.DISABLED), None)
        if off is None:
            return self.blind
        name = _name(off.rank, off.pid)
        why = off.error or "it does not say why"
        note = f"hook-off: the hook of {name} turned itself off, its steps are not known any more: {why}"
        return (note, *self.blind)

    def put(self, rows: Iterable[RankRow]) -> tuple[RankRow, ...]:
        """Add each rank's last step to its row of the rank table."""
        paces = {one.pid: one.pace for one in known_or(self.hook, ())}
        return tuple(_put(row, paces.get(row.pid, self.missing.get(row.pid, NO_STEPS))) for row in rows)


def _put(row: RankRow, pace: Known[StepPace]) -> RankRow:
    if not is_known(pace):
        return replace(row, step=pace, step_age_s=pace)
    return replace(
        row, step=pace.count, step_age_s=pace.step_age_s, step_ms=pace.p50_ms, step_own_ms=pace.own_ms
    )


def _name(rank: Applicable[int], pid: int) -> str:
    return f"rank {rank}" if is_known(rank) else f"process {pid}"


def _describe_blind(reading: StepReading, rank: Applicable[int]) -> str:
    """Say that torch removed the hook from the optimizers, or never let it there; "" where nothing shows it.

    Until torch 2.2 ``torch.compile`` removes all hooks of ``Optimizer.step`` (``TorchPatcher``); before 2.0
    there are none.
    """
    counts = reading.counts
    if (
        counts.optimizer_calls
        or counts.updates
        or counts.backwards < UNSEEN_BACKWARDS
        or reading.rule is StepRule.CALL
    ):
        return ""
    try:
        version = tuple(int(part) for part in reading.torch_version.split(".")[:2])
    except ValueError:
        return ""  # a custom build of torch
    if version >= HOOKS_LAST:
        return ""
    name = _name(rank, reading.process.pid)
    return (
        f"hook-blind: {name} ran {counts.backwards} backwards and the hook saw no optimizer: "
        "before torch 2.3 torch.compile takes it off them, so that micro-batches count as steps; "
        "tpmon.hook.step() says where one ends"
    )


class StepProbe:
    """Read the hooks of a job's ranks once a tick."""

    def __init__(self) -> None:
        self._reader = StepReader()
        self._paces: dict[Identity, RankPace] = {}

    def close(self) -> None:
        """Release the pages."""
        self._reader.close()

    def read(self, processes: Iterable[ProcessSample]) -> StepsRead:
        """Read the hooks of the ranks among ``processes``; mostly a few memory reads each."""
        ranks = {Identity(one.pid, one.start_ticks): one.rank for one in processes if one.role is Role.RANK}
        readings = self._reader.read_steps(ranks)
        for gone in self._paces.keys() - ranks.keys():
            del self._paces[gone]
        hooks, missing, blind = [], {}, ""
        for process, reading in readings.items():
            if is_known(reading):
                pace = self._paces.setdefault(process, RankPace())
                blind = blind or _describe_blind(reading, ranks[process])
                hooks.append(_describe(reading, ranks[process], pace.add(reading, ranks[process])))
            else:
                self._paces.pop(process, None)
                missing[process.pid] = NO_STEPS if reading.why is Why.ABSENT else reading
        if not hooks:
            reason = next(iter(missing.values()), NO_STEPS)
            return StepsRead(reason, reason, reason, reason.reason, missing)
        told = tuple(hooks)
        sizes = [one.world_size for one in readings.values() if is_known(one) and is_known(one.world_size)]
        size = max(sizes) if sizes else NOT_APPLICABLE
        source = f"the hook's page in {len(told)} of {len(ranks)} ranks"
        return StepsRead(told, join_paces(told), 0.0, source, missing, (blind,) if blind else (), size)


_SAME = {one.name for one in fields(HookSample)} & {one.name for one in fields(StepReading)} - {"rank"}


def _describe(reading: StepReading, rank: Applicable[int], pace: Known[StepPace]) -> HookSample:
    same: dict[str, Any] = {name: getattr(reading, name) for name in _SAME}
    return HookSample(
        **same,
        pid=reading.process.pid,
        rank=rank,
        phase=map_known(lambda now: now.phase, reading.now),
        phase_s=map_known(lambda now: now.since_s, reading.now),
        pace=pace,
    )


TRAINED_STEPS = 10  # compilation before is the start: the first batches show torch which sizes change
GATHER_S = 6.0  # hooks read the counters every five seconds at most: then all ranks show the same rise
AGAIN_S = 60.0  # a loop that always compiles is reported once a minute, not with each reading


class CompileTracker:
    """Remember each rank's counters, and report a rise after the start as one event for all ranks."""

    def __init__(self) -> None:
        self._trains_ns: dict[int, int] = {}
        self._told: dict[int, tuple[int, int, int]] = {}
        self._risen_ns: int | None = None
        self._told_ns: int | None = None

    def tell(self, taken: datetime, now_ns: int, hooks: Known[Sequence[HookSample]]) -> list[Event]:
        """Return the event that ranks compiled again, some seconds after the first did; mostly none."""
        if not is_known(hooks):
            return []
        self._forget(one.pid for one in hooks)
        risen = [(one, counts) for one in hooks if (counts := self._find_rise(one, now_ns)) is not None]
        if not risen:
            self._risen_ns = None
            return []
        if self._risen_ns is None:
            self._risen_ns = now_ns
        told_lately = self._told_ns is not None and now_ns - self._told_ns < AGAIN_S * 1e9
        if now_ns - self._risen_ns < GATHER_S * 1e9 or told_lately:
            return []
        self._risen_ns, self._told_ns = None, now_ns
        for one, counts in risen:
            self._told[one.pid] = _figures(counts)
        return [Event(taken, EventKind.COMPILE, _word(risen))]

    def _forget(self, pids: Iterable[int]) -> None:
        for gone in self._trains_ns.keys() - set(pids):
            del self._trains_ns[gone]
            self._told.pop(gone, None)

    def _find_rise(self, hook: HookSample, now_ns: int) -> CompileCounts | None:
        """Return a rank's counters where one rose since the last report, or since it trains."""
        if hook.counts.steps < TRAINED_STEPS or not is_known(hook.settings):
            return None
        trains_ns = self._trains_ns.setdefault(hook.pid, now_ns)
        counts = hook.settings.compiled
        if not is_known(counts) or now_ns - hook.settings.age_s * 1e9 < trains_ns:
            return None  # they may be older than the last of the first steps
        figures = _figures(counts)
        told = self._told.setdefault(hook.pid, figures)
        if any(now < before for now, before in zip(figures, told, strict=True)):
            self._told[hook.pid] = told = figures  # the program cleared torch's counters
        return counts if figures > told else None


def _figures(counts: CompileCounts) -> tuple[int, int, int]:
    """Return what a compilation raises; with ``fullgraph=True`` torch counts only graphs."""
    return counts.frames_ok, counts.graphs, counts.limit_hits


def _word(risen: Sequence[tuple[HookSample, CompileCounts]]) -> str:
    """Describe the rise: "rank 0 compiled again: 14 frames, 3 at the recompile limit"."""
    numbers = [one.rank for one, _ in risen if is_known(one.rank)]
    if len(numbers) == len(risen):
        who = f"{'ranks' if len(risen) > 1 else 'rank'} {list_numbers(numbers)}"
    else:
        pids = list_numbers(one.pid for one, _ in risen)
        who = f"{'processes' if len(risen) > 1 else 'process'} {pids}"
    has_frames = any(counts.frames_ok for _, counts in risen)
    compiled = _span(counts.frames_ok if has_frames else counts.graphs for _, counts in risen)
    unit = "frames" if has_frames else "graphs"
    hits = [counts.limit_hits for _, counts in risen]
    limit = f", {_span(hits)} at the recompile limit" if any(hits) else ""
    return f"{who} compiled again: {compiled} {unit}{limit}"


def _span(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"
