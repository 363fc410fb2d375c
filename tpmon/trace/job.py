"""What holds a job, from the traces of its ranks beside each other: who waits for whom, and why.

The time of a job is that of the rank that is late: the others wait for it. Where none is late, it is what
all ranks lose alike.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.model.results.trace import BusRate, JobVerdict, LateCause, RankTable, TraceFile, TraceVerdict
from tpmon.model.units import clean_text, count_of, format_bytes, say_ranks
from tpmon.model.verdict import Kind
from tpmon.trace.advice import (
    EVEN_WORK,
    FEWER_MESSAGES,
    TRY_RANKS,
    TRY_STACKS,
    TRY_WORKERS,
    advise_transfer,
    look_at,
    say_gain,
)
from tpmon.trace.late import compare_work, find_longer, find_place
from tpmon.trace.ranks import RankMatches, RankParts, compare_ranks, match_ranks
from tpmon.trace.verdict import HOLDS, LEAST_LOST_PCT, SURE_PCT, name_first
from tpmon.trace.waits import STEADILY, JobWaits, measure_waits, name_node

LEAST_JOB_WAIT_PCT = 10.0
"""Of a step that ranks wait for one: from here on it may be what holds the job. Chosen."""
ALIKE = 2.0
"""What all ranks lose alike comes before a wait for one of them where it costs this many times as much."""
SURE_PART = 0.75
"""Share (0-1) of all that the others wait, and the fewest steps, for more than low confidence."""
LEAST_SURE_STEPS = 3
EXPLAINS = 0.5
"""Share (0-1) of how late a rank is that a cause must explain which takes longer there than elsewhere."""
_WAITS = ("sync", "queued", "graph")
"""Shares of a verdict in which a rank does not work: these make none late."""
FAST_GB_S = 60.0
"""Bus bandwidth that neither TCP nor PCIe 5 reaches: NVLink, or several InfiniBand cards, is in use."""
SMALL_BYTES = 256 << 10
SMALL_US = 1000.0
"""A call of fewer bytes and less time is latency: below some 256 KiB NCCL takes as long as for less."""
TRY_SAME = "give one trace of each rank, all of one run and of the same steps (tpmon trace FOLDER)"
TRY_GROUPS = (
    "record the same steps on all ranks, with a torch that writes the group of each collective into a trace "
    "(2.4 and later do)"
)
TRY_MICRO = (
    "more micro-batches in a step, or interleaved stages: with s stages and m micro-batches a pipeline idles "
    "(s - 1) / (m + s - 1) of a step"
)


def judge_job(
    files: Sequence[TraceFile], parts: Sequence[RankParts]
) -> tuple[tuple[TraceFile, ...], RankTable, Applicable[JobVerdict]]:
    """Judge traces beside each other: give each its cause, lay the ranks side by side, judge the job.

    Files that neither name two ranks nor a job of several are not of one job.
    """
    matches = match_ranks(parts)
    waits = measure_waits(parts, matches)
    job = _Job(tuple(files), tuple(parts), matches, waits)
    job = replace(job, stragglers=tuple(job.find_stragglers()))
    mixed = job.find_mixed()
    named = tuple(files) if mixed else tuple(map(job.name_waits, range(len(files)), files))
    job = replace(job, files=named)
    by_path = {file.path: (at, file.verdict) for at, file in enumerate(named)}
    table = compare_ranks(parts, matches)
    if mixed and not matches.is_twice:
        table = _accuse_none(table, mixed)
    rows = []
    for row in table.ranks:
        at, verdict = by_path[row.path]
        late = -1 if mixed else job.find_late(at)
        rows.append(
            replace(
                row, kind=verdict.kind, cause=verdict.cause, waits_for=late if late >= 0 else NOT_APPLICABLE
            )
        )
    ranks = {file.rank for file in files if is_known(file.rank)}
    sizes = [file.world_size for file in files if is_known(file.world_size)]
    is_job = len(ranks) > 1 or max(sizes, default=0) > 1 or bool(matches.shared)
    verdict_of_all = job.judge(mixed) if is_job else NOT_APPLICABLE
    return named, replace(table, ranks=tuple(rows)), verdict_of_all


@dataclass(frozen=True, slots=True)
class _Straggler:
    """Hold the rank that others wait for in the end, who they are, and for how long in ms of a step."""

    rank: int
    waiting: tuple[int, ...]
    mean_ms: float
    most_ms: float
    share_pct: float
    part: float


@dataclass(frozen=True, slots=True)
class _Job:
    """Hold all that is known of the ranks of a job; ranks that are not known have numbers below 0."""

    files: tuple[TraceFile, ...]
    parts: tuple[RankParts, ...]
    matches: RankMatches
    waits: JobWaits
    stragglers: tuple[_Straggler, ...] = ()

    def find_mixed(self) -> str:
        """Say why files are not of one run of one job; "" where nothing speaks against it."""
        sizes = sorted({file.world_size for file in self.files if is_known(file.world_size)})
        if len(sizes) > 1:
            return f"the files say that there are {' and '.join(map(str, sizes))} ranks"
        if self.matches.is_twice:
            counts = Counter(part.row.rank for part in self.parts if is_known(part.row.rank))
            twice = [rank for rank, count in counts.items() if count > 1]
            return f"there are several traces of {say_ranks(twice)}: they are of different times"
        if never := self.waits.clocks.never_met:
            two = " and ".join(map(self.name, never))
            return (
                f"the collectives of {two} cannot be the same ones: they end on one before they begin on the "
                "other, on whatever clocks"
            )
        return self._find_other_steps()

    def _find_other_steps(self) -> str:
        """Say that no two ranks have recorded the same steps; "" where some have."""
        talking = [(at, part) for at, part in enumerate(self.parts) if part.collectives]
        if self.matches.shared or len(talking) < 2:
            return ""
        seen: Counter[str] = Counter()
        for _at, part in talking:
            seen.update(set(part.steps))
        if max(seen.values()) > 1:
            return ""
        (at, first), (other, second) = talking[:2]
        steps = [
            f"{self.name(one)} {part.steps[0]} to {part.steps[-1]}"
            for one, part in ((name_node(self.parts, at), first), (name_node(self.parts, other), second))
        ]
        return f"the ranks have recorded other steps: {clean_text(', '.join(steps), 200)}"

    def name(self, node: int) -> str:
        """Name a rank, or the file of one that is not known."""
        if node >= 0:
            return f"rank {node}"
        return clean_text(os.path.basename(self.parts[-1 - node].row.path), 80)

    def file_of(self, node: int) -> TraceFile:
        """Return the first trace of a rank."""
        return next(file for at, file in enumerate(self.files) if name_node(self.parts, at) == node)

    def find_stragglers(self) -> list[_Straggler]:
        """Return the ranks that others wait for in the end, the costliest first; none who take turns."""
        waiting: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        for node in self.waits.step_ms:
            main = self.waits.find_main(node)
            if main is not None:
                waiting[self.waits.find_root(node)].append((node, main[1]))
        found = []
        for late, own in waiting.items():
            each = [ms for _node, ms in own]
            share = fmean(100 * ms / self.waits.step_ms[node] for node, ms in own)
            part = sum(each) / (sum(self.waits.of(node) for node, _ms in own) or 1.0)
            nodes = tuple(sorted(node for node, _ms in own))
            if fmean(each) >= STEADILY * self.waits.of(late) and part >= EXPLAINS and late not in nodes:
                found.append(_Straggler(late, nodes, fmean(each), max(each), share, part))
        return sorted(found, key=lambda one: -one.mean_ms * len(one.waiting))

    def find_late(self, at: int) -> int:
        """Return the rank for which one waits most; a number below 0 for none."""
        node = name_node(self.parts, at)
        main = self.waits.find_main(node)
        if main is not None:
            return main[0]
        slow = self.find_slow_stage() if self._sends_most(at) else None
        return slow.rank if slow is not None and slow.rank != node else -1

    def _sends_most(self, at: int) -> bool:
        """Tell whether sends and receives are most of the communication of a rank beside its waits."""
        part = self.parts[at]
        return 2 * part.transfer_ms > max(self._find_moves(at), 1e-9)

    def _find_moves(self, at: int) -> float:
        """Return the communication of a rank in ms of a step that neither waits nor is hidden."""
        own = self.parts[at].row
        return max(own.comm_ms - own.overlap_ms - self.waits.of(name_node(self.parts, at)), 0.0)

    def name_waits(self, at: int, file: TraceFile) -> TraceFile:
        """Give the communication of a rank the cause that is known from the ranks beside it."""
        verdict, node = file.verdict, name_node(self.parts, at)
        if verdict.kind is not Kind.COMMS_BOUND:
            return file
        if self._sends_most(at):
            slow = self.find_slow_stage()
            if slow is None or slow.rank == node:
                said = "most of it is sends and receives, and no stage is late"
                return replace(file, verdict=_name(verdict, "unknown", said, (TRY_MICRO,)))
            said = f"as a stage of a pipeline it waits for {self.name(slow.rank)}"
            return replace(file, verdict=_name(verdict, "straggler", said, (self._look_at(slow.rank),)))
        main = self.waits.find_main(node)
        if main is not None and self.waits.of(node) > self._find_moves(at):
            late = main[0]
            root = self.waits.find_root(node)
            if not any(node in one.waiting for one in self.stragglers):
                said = f"the ranks wait for each other in turn, this one most for {self.name(late)}"
                return replace(file, verdict=_name(verdict, "unknown", said, (EVEN_WORK,)))
            said = f"it waits for {self.name(late)}"
            said += f", which waits for {self.name(root)}" if root != late else ""
            return replace(file, verdict=_name(verdict, "straggler", said, (self._look_at(root),)))
        if not self.matches.found:
            return file
        if not self.waits.is_whole:
            said, advice = self._miss()
            return replace(file, verdict=_name(verdict, "unknown", said, (advice,)))
        cause, advices = self.find_remedy(on_device=bool(file.overview.gpus))
        return replace(file, verdict=_name(verdict, cause, f"no rank is late; {self._say_rate()}", advices))

    def _look_at(self, node: int) -> str:
        return look_at(node if node >= 0 else self.name(node))

    def _miss(self) -> tuple[str, str]:
        """Say that a rank without a trace may be waited for, and what to do about it."""
        ranks = say_ranks(self.matches.missing) if self.matches.missing else "others of its group"
        said = f"there is no trace of {ranks}, and waiting for such a rank looks like moving data"
        return said, f"give the traces of {ranks} too (tpmon trace FOLDER)"

    def _main_rate(self) -> BusRate | None:
        return next(iter(self.waits.rates), None) if is_known(self.waits.rates) else None

    def _say_rate(self) -> str:
        rate = self._main_rate()
        if rate is None:
            return "what moves is not known"
        size = f" of {format_bytes(rate.bytes)}" if is_known(rate.bytes) else ""
        speed = f"{rate.gb_s:.2f} GB/s" if is_known(rate.gb_s) else f"n/a: {rate.gb_s.reason}"
        return f"most of it is {rate.name}{size}, bus bandwidth {speed}"

    def find_remedy(self, *, on_device: bool) -> tuple[str, tuple[str, ...]]:
        """Return the cause of ranks that all move data, and what helps."""
        rate = self._main_rate()
        is_small = rate is not None and rate.call_us < SMALL_US
        if rate is not None and is_small and is_known(rate.bytes) and rate.bytes < SMALL_BYTES:
            return "small-messages", (FEWER_MESSAGES,)
        fast = rate is not None and is_known(rate.gb_s) and rate.gb_s >= FAST_GB_S
        return "transfer", advise_transfer(
            on_device=on_device, fast=fast, rounded=all(part.is_rounded for part in self.parts)
        )

    def judge(self, mixed: str) -> JobVerdict:
        """Judge the job; ``mixed`` says why its files are not of one run, "" for nothing."""
        if mixed:
            said = f"these files are not the ranks of one run: {mixed}; who waits for whom is not told"
            blank = self._write(Kind.NOT_ENOUGH_EVIDENCE, NOT_APPLICABLE, 0.0, said, TRY_SAME)
            return replace(blank, waits=(), rates=Missing("the files are not of one run"), notes=())
        shares = self._mean_shares()
        lost = {name: pct for name, pct in shares.items() if name not in ("comms", "compute")}
        least = max(LEAST_JOB_WAIT_PCT, max(lost.values(), default=0.0) / ALIKE)
        if self.stragglers and self.stragglers[0].share_pct >= least:
            return self._blame(*self.stragglers)
        undecided = Counter(file.verdict.kind for file in self.files)
        first = max(shares, key=lambda name: shares[name], default="")
        lost_pct = sum(lost.values()) + shares.get("comms", 0.0)
        most = undecided.most_common(1)[0]
        if not shares or (
            most[0] in (Kind.NOT_ENOUGH_EVIDENCE, Kind.STARTING) and 2 * most[1] > len(self.files)
        ):
            return self._say_alike(most[0], "")
        if lost_pct < LEAST_LOST_PCT:
            first = "compute"
        elif first == "compute":
            first = max((name for name in shares if name != "compute"), key=lambda name: shares[name])
        if first == "comms":
            return self._say_comms(shares["comms"])
        return self._say_alike(HOLDS[first][0], first)

    def _mean_shares(self) -> dict[str, float]:
        """Return the shares of the ranks' verdicts, the mean of those that have some."""
        sums: defaultdict[str, float] = defaultdict(float)
        told = [file.verdict.shares for file in self.files if file.verdict.shares]
        for shares in told:
            for share in shares:
                sums[share.name] += share.pct / len(told)
        return {name: pct for name, pct in sums.items() if name != "start-up"}

    def _step_ms(self) -> float:
        return median(part.judged_ms for part in self.parts)

    def _say_waiting(self, found: _Straggler) -> str:
        verb = "waits" if len(found.waiting) == 1 else "wait"
        return f"{self.say(found.waiting)} {verb} for {self.name(found.rank)}"

    def _blame(self, found: _Straggler, *others: _Straggler) -> JobVerdict:
        """Write the verdict of a job whose ranks wait for one of them, in other groups for ``others``."""
        late, step = self.name(found.rank), self._step_ms()
        held, why, remedy = self._find_held(found)
        summary = f"{self._say_waiting(found)}, {found.mean_ms:.1f} ms of a step of {step:.1f} ms"
        summary += f" ({found.most_ms:.1f} ms at most)" if found.most_ms >= 1.1 * found.mean_ms else ""
        gain = self.waits.gains.get(found.rank, 0.0)
        equal = [one for one in others if one.mean_ms >= found.mean_ms / ALIKE]
        if equal:
            summary += f", and {', '.join(map(self._say_waiting, equal))}"
        mean = fmean(self.waits.of(node) / max(ms, 1e-9) for node, ms in self.waits.step_ms.items())
        keeps = " and ".join(self.name(one.rank) for one in (found, *equal))
        ceiling = f"{say_gain(gain / max(step, 1e-9))} if {keeps} kept up with the next one"
        if mean > 1.1 * gain / max(step, 1e-9):
            ceiling += f", {say_gain(mean)} if no rank waited for another"
        verdict = self._write(
            Kind.COMMS_BOUND, "straggler", found.share_pct, f"{summary}; {late} {why}", remedy
        )
        steps = min(one.judged_steps for one in self.parts)
        steady = found.mean_ms >= 2 * STEADILY * self.waits.of(found.rank) and found.part >= SURE_PART
        own = self._part_of(found.rank)
        sure = steady and self.waits.is_whole and steps >= LEAST_SURE_STEPS and not own.is_of_few
        notes = verdict.notes
        if own.odd:
            notes += (f"{late}: {own.odd}: it is late in that",)
        if next_late := self._find_next_late(found):
            is_late = "is" if len(next_late) == 1 else "are"
            notes += (f"{self.say(next_late)} {is_late} nearly as late: {late} alone is not enough",)
        longer = sum(one.ms for one in held.longer)
        if longer < EXPLAINS * found.mean_ms:
            more = f"{late} takes only {longer:.1f} ms of a step longer than the others"
            notes += (f"{more}: where the rest of its lag is from (before these steps?) is not recorded",)
        if is_known(weight := self.file_of(found.rank).verdict.weight):
            notes += (f"{late}: {weight}",)
        return replace(
            verdict,
            confidence="medium" if sure else "low",
            late=found.rank if found.rank >= 0 else NOT_APPLICABLE,
            held=held,
            ceiling=ceiling,
            notes=notes,
        )

    def _part_of(self, node: int) -> RankParts:
        return next(part for at, part in enumerate(self.parts) if name_node(self.parts, at) == node)

    def _find_next_late(self, found: _Straggler) -> tuple[int, ...]:
        """Return the ranks that wait hardly at all either, where catching up with them gains little."""
        if self.waits.gains.get(found.rank, 0.0) >= found.mean_ms / ALIKE or len(self.stragglers) > 1:
            return ()
        rest = [node for node in self.waits.step_ms if node not in (found.rank, *found.waiting)]
        return tuple(sorted(node for node in rest if ALIKE * self.waits.of(node) < found.mean_ms))

    def say(self, nodes: Sequence[int]) -> str:
        """Name ranks, and the files of those that are not known."""
        known = [node for node in nodes if node >= 0]
        unknown = [self.name(node) for node in nodes if node < 0]
        return ", ".join([*([say_ranks(known)] if known else []), *unknown])

    def _find_held(self, found: _Straggler) -> tuple[LateCause, str, str]:
        """Find what holds the late rank: the cause that takes longer there, else that of its own verdict."""
        file = self.file_of(found.rank)
        verdict = file.verdict
        others = [self.file_of(node) for node in self.waits.step_ms if node != found.rank]
        longer = find_longer(file, others)
        own = [one.name for one in verdict.shares if one.name not in ("comms", "start-up")]
        explained = bool(longer) and longer[0].ms >= EXPLAINS * found.mean_ms
        first = longer[0].name if explained else next(iter(own), "")
        own_first = name_first(verdict)
        is_own = first == own_first or (not first)
        kind = verdict.kind if is_own else HOLDS[first][0]
        cause = verdict.cause if is_own else NOT_APPLICABLE
        place = find_place(file, first, others)
        words = f"is {kind.value}"
        if is_known(cause):
            words += f" ({cause})"
        if explained:
            words += f": {longer[0].ms:.1f} ms of a step more than the others in {HOLDS[first][1]}"
        elif verdict.shares:
            pct = next((one.pct for one in verdict.shares if one.name == first), 0.0)
            words += f": {pct:.0f} % of its window is {HOLDS[first][1]}" if first else ""
        words += f", longest in {place}" if is_known(place) else ""
        late = self.name(found.rank)
        if first == "compute" and explained:
            remedy = compare_work(file, others, late)
        elif is_own and verdict.advice:
            remedy = f"on {late}: {verdict.advice[0]}"
        elif first == "data":
            remedy = f"on {late}: {TRY_WORKERS}"
        elif is_known(place):
            remedy = f"on {late}: shorten, or do less often, what is in {place}"
        else:
            remedy = f"on {late}: {TRY_STACKS}" if first else f"look at {late}: the others wait for it"
        return LateCause(kind, cause, longer, place), words, remedy

    def _say_comms(self, share_pct: float) -> JobVerdict:
        """Write the verdict of a job that is held by communication, with no rank that is late."""
        step = self._step_ms()
        waiting = fmean(self.waits.of(node) / max(ms, 1e-9) for node, ms in self.waits.step_ms.items())
        moving = fmean(part.transfer_ms / max(part.judged_ms, 1e-9) for part in self.parts)
        if 200 * moving >= share_pct:
            return self._say_transfers(share_pct)
        if not self.matches.found:
            whose = f"{share_pct:.0f} % of the window is {HOLDS['comms'][1]}; {self.matches.why.reason}"
            remedy = self._miss()[1] if self.matches.missing else TRY_GROUPS
            return self._write(Kind.COMMS_BOUND, "unknown", share_pct, whose, remedy)
        if 200 * waiting >= share_pct:
            caused = {node: sum(self.waits.caused(node)) for node in self.waits.step_ms}
            late = max(caused, key=lambda node: caused[node])
            part = 100 * caused[late] / (sum(caused.values()) or 1.0)
            said = f"the ranks wait for each other in turn, {100 * waiting:.0f} % of a step of {step:.1f} ms"
            said += f"; most often {self.name(late)} is late, for {part:.0f} % of the waiting"
            remedy = EVEN_WORK
            if not self.waits.is_whole:
                missed, remedy = self._miss()
                said = f"among those that are there, {said}; {missed}"
            verdict = self._write(Kind.COMMS_BOUND, "unknown", 100 * waiting, said, remedy)
            return replace(verdict, ceiling=f"{say_gain(waiting)} if no rank waited for another")
        said = f"{share_pct:.0f} % is communication that no computation hides"
        if not self.waits.is_whole:
            missed, remedy = self._miss()
            said = f"on all ranks that are there {said}; {missed}"
            return self._write(Kind.COMMS_BOUND, "unknown", share_pct, said, remedy)
        said = f"no rank is late; on all ranks {said}"
        cause, advice = self.find_remedy(on_device=any(file.overview.gpus for file in self.files))
        return self._write(
            Kind.COMMS_BOUND,
            cause,
            share_pct,
            f"{said}; {self._say_rate()}",
            advice[0] if advice else TRY_RANKS,
        )

    def find_slow_stage(self) -> _Straggler | None:
        """Return the rank that is least in sends and receives, where that is much less than the others.

        It works meanwhile: a stage that waits elsewhere, for the step to end, is not late.
        """
        times = {name_node(self.parts, at): part.transfer_ms for at, part in enumerate(self.parts)}
        step = self._step_ms()
        least = min(times, key=lambda node: times[node])
        rest = sorted(ms for node, ms in times.items() if node != least)
        if not rest or median(rest) - times[least] < LEAST_JOB_WAIT_PCT / 100 * step:
            return None
        others = tuple(sorted(node for node in times if node != least))
        mean = fmean(rest) - times[least]
        longer = find_longer(self.file_of(least), [self.file_of(node) for node in others])
        if sum(one.ms for one in longer if one.name not in _WAITS) < EXPLAINS * mean:
            return None
        return _Straggler(least, others, mean, rest[-1] - times[least], 100 * mean / max(step, 1e-9), 0.0)

    def _say_transfers(self, share_pct: float) -> JobVerdict:
        """Write the verdict of ranks that send to each other, as stages of a pipeline do."""
        found = self.find_slow_stage()
        if found is None:
            pcts = sorted(100 * part.transfer_ms / max(part.judged_ms, 1e-9) for part in self.parts)
            spent = f"all ranks spend {share_pct:.0f} % in sends and receives alike"
            if pcts[-1] - pcts[0] >= LEAST_JOB_WAIT_PCT:
                spent = f"the ranks spend {pcts[0]:.0f} to {pcts[-1]:.0f} % in sends and receives"
            said = f"{spent}, and no stage is late: the idle time of a pipeline, or moving data"
            return self._write(Kind.COMMS_BOUND, "unknown", share_pct, said, TRY_MICRO)
        held, why, remedy = self._find_held(found)
        late, step = self.name(found.rank), self._step_ms()
        if is_known(held.place) and held.kind is Kind.COMPUTE_BOUND:
            remedy = f"move layers from {late} to other stages"
        said = f"the stages of a pipeline wait for {late}, which is least in sends and receives, by "
        said += f"{found.mean_ms:.1f} of {step:.1f} ms; it {why}"
        verdict = self._write(Kind.COMMS_BOUND, "straggler", found.share_pct, said, remedy)
        return replace(
            verdict,
            confidence="low",
            held=held,
            late=found.rank if found.rank >= 0 else NOT_APPLICABLE,
            ceiling=f"{say_gain(found.share_pct / 100)} if {late} were as fast as the others",
        )

    def _say_alike(self, kind: Kind, first: str) -> JobVerdict:
        """Write the verdict of ranks that are all bound by the same."""
        own = [file for file in self.files if file.verdict.kind is kind] or list(self.files)
        main = max(own, key=lambda file: file.verdict.share_pct)
        pcts = sorted(file.verdict.share_pct for file in own)
        cause = main.verdict.cause if main.verdict.kind is kind else NOT_APPLICABLE
        every = "both ranks are" if len(own) == 2 else f"all {len(own)} ranks are"
        of = every if len(own) == len(self.files) else f"{len(own)} of {len(self.files)} ranks are"
        summary = f"{of} {kind.value}" + (f" ({cause})" if is_known(cause) else "")
        if first:
            low, high = f"{pcts[0]:.0f}", f"{pcts[-1]:.0f}"
            spread = low if low == high else f"{low} to {high}"
            summary += f": {spread} % of the window is {HOLDS[first][1]}"
            place = find_place(main, first, ())
            summary += f", longest in {place}" if is_known(place) else ""
        elif main.verdict.summary:
            summary += f": {main.verdict.summary}"
        remedy = main.verdict.advice[0] if main.verdict.advice else ""
        verdict = self._write(kind, cause, fmean(pcts), summary, remedy)
        also = [f"{self._say_waiting(one)}, {one.mean_ms:.1f} ms of a step" for one in self.stragglers]
        verdict = replace(verdict, notes=(*also, *verdict.notes))
        return replace(verdict, ceiling=main.verdict.ceiling)

    def _write(
        self, kind: Kind, cause: Applicable[str], share_pct: float, summary: str, remedy: str
    ) -> JobVerdict:
        decided = kind not in (Kind.NOT_ENOUGH_EVIDENCE, Kind.STARTING)
        return JobVerdict(
            kind=kind,
            cause=cause,
            confidence="medium" if share_pct >= SURE_PCT and self.waits.is_whole and decided else "low",
            share_pct=share_pct,
            summary=summary,
            late=NOT_APPLICABLE,
            held=NOT_APPLICABLE,
            waits=self.waits.groups,
            rates=self.waits.rates,
            try_=remedy or NOT_APPLICABLE,
            ceiling=f"{say_gain(share_pct / 100)} if all of it goes away" if decided else NOT_APPLICABLE,
            notes=tuple(self._list_notes()),
        )

    def _list_notes(self) -> list[str]:
        notes = []
        if missing := self.matches.missing:
            notes.append(f"no trace of {say_ranks(missing)}: the others may wait for such a rank")
        clocks = self.waits.clocks
        if clocks.apart and not clocks.never_met:
            two = " and ".join(map(self.name, clocks.ranks))
            notes.append(
                f"the clocks of {two} are at least {clocks.apart / 1e6:,.1f} ms apart: waits are from the "
                "lengths of collectives, which need no common clock"
            )
        if self.matches.groupless:
            notes.append(f"{self.matches.groupless} collectives left out: their group is not known")
        if unknown := sum(not is_known(part.row.rank) for part in self.parts):
            notes.append(f"{count_of(unknown, 'trace')} without a rank: named by file")
        silent = sum(not part.collectives for part in self.parts)
        if 0 < silent < len(self.parts):
            notes.append(f"{count_of(silent, 'trace')} without any collective: nothing is told of its waits")
        if transfers := sum(part.transfers for part in self.parts):
            notes.append(f"{transfers} sends and receives: which of them belong together is not told")
        return notes


def _accuse_none(table: RankTable, mixed: str) -> RankTable:
    """Return the ranks of files that are not of one run: none waits for another."""
    why = Missing("the files are not of one run")
    rows = tuple(replace(row, wait_ms=why, transfer_ms=why) for row in table.ranks)
    summary = f"{len(rows)} traces, {mixed}"
    none = NOT_APPLICABLE
    return replace(table, ranks=rows, straggler=none, waits_ms=none, matched=0, summary=summary)


def _name(verdict: TraceVerdict, cause: str, said: str, advice: tuple[str, ...]) -> TraceVerdict:
    """Return a verdict with its cause, why that is known, and what it asks for."""
    costs = (verdict.share_pct,) * len(advice)
    summary = f"{verdict.summary}; {said}"
    first = advice[0] if advice else NOT_APPLICABLE
    return replace(verdict, cause=cause, summary=summary, try_=first, advice=advice, advice_pct=costs)
