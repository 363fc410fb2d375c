"""Make the Finding of a cause: confidence, since, what to do, what was ruled out, what is unknown. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from tpmon.judge.advice.choose import Chosen, Risk, choose
from tpmon.judge.advice.context import SPEED, gather_facts, observe
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.advice.fields import fill, write_gain
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Cleared, FigureReading, Suspicion, Unsure, reading, tell
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.features.standstill import UNMOVED_S as STILL_S
from tpmon.judge.features.standstill import find_silences, say_longer, say_open, still_s
from tpmon.judge.hang.detection import find_need_s, logs_here, say_place
from tpmon.judge.hysteresis import Standing, Track
from tpmon.judge.watch.clock import (
    LAST_DATA,
    LAST_START,
    LAST_WRITE,
    connections_age_s,
    find_youngest_s,
    keeps_journal,
)
from tpmon.judge.watch.records import CAUSES, find_waited_s
from tpmon.model.figures import Figure, Origin
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known, known_or
from tpmon.model.units import format_clock, format_seconds
from tpmon.model.verdict import Confidence, Evidence, Finding, Kind, SinceIs, pick_code
from tpmon.model.waits import RUNNING, describe_wait

HIGH_ORIGINS = 2
HIGH_SPAN_S = 8.0
HIGH_MARGIN = 1.25
MEDIUM_SPAN_S = 4.0
MEDIUM_MARGIN = 1.5
"""A single origin counts as medium only when it is this far past its threshold."""
ONSET_HISTORY_S = 10.0
"""A cause that came this long after its rule first denied it began where it was seen."""
FIRST_READINGS_S = 3.0
"""What held within this time after the first reading is older than that."""
MOST_PLACES = 2
MOST_ALSO = 4
"""Remedies worth reading beside the one to try."""
MOST_IFS = 8
"""The same for full hardware: nothing is wrong with it, so a longer list may be read at leisure."""
MOST_RIVALS = 1
"""Causes within the noise of the stated one that are named: more would tell nothing."""
LOOKING_S = 10.0
STEPLESS_S = 30.0
"""Time without a step that the hook counts, above which a verdict about speed says so."""
SILENT_LOG_S = 120.0
"""The same for a log: many programs write a line a minute."""

_RISKS = {
    Risk.NONE: "",
    Risk.NUMERICS: " (changes the numerics)",
    Risk.EXPERIMENT: " (changes the experiment)",
}
_LEVELS = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)


def rate_confidence(suspicion: Suspicion, span_s: float) -> Confidence:
    """Say how sure: by the origins, how long (seconds), how far past the threshold.

    Two origins for 8 s, a quarter past the threshold, are high. Evidence against it takes a level, and so
    does what might be and was not read: a lost source makes no verdict surer. What was seen needs no time.
    """
    origins = len(suspicion.origins)
    if suspicion.seen:
        return Confidence.HIGH if origins >= HIGH_ORIGINS else Confidence.MEDIUM
    level = 0
    if span_s >= MEDIUM_SPAN_S and (origins >= HIGH_ORIGINS or suspicion.margin >= MEDIUM_MARGIN):
        level = 1
    if origins >= HIGH_ORIGINS and span_s >= HIGH_SPAN_S and suspicion.margin >= HIGH_MARGIN:
        level = 2
    if (suspicion.against or suspicion.unread) and level > 0:
        level -= 1
    return _LEVELS[level]


YOUNG_IMPORT_S, YOUNG_STEPS_S = 150.0, 60.0
"""Age up to which imports and first steps began with their process: a notebook imports at any time."""


def _last_sign(scene: Scene, cause: Applicable[str]) -> tuple[datetime, str] | None:
    """Return the last sign of life from before tpmon came: the job's record, log, connections, or a journal.

    A later write to any open file, or start of a worker, takes its place.
    """
    still_s = (scene.frame.taken_ns - scene.watch.still_ns) / 1e9
    waited_s = find_waited_s(scene.watch.calls, scene.now, still_s) if cause in CAUSES else 0.0
    if waited_s > 0:
        called = scene.now - timedelta(seconds=waited_s)
        return called, f"collective called by its record {format_clock(called)}"
    logs = [one for one in scene.frame.output if is_known(one.last_write_age_s)]
    times = [one.last_write for one in logs if is_known(one.last_write) and logs_here(scene)]
    talked, written = connections_age_s(scene.frame), scene.frame.written
    filed = (
        (written.last_write, f"last write of {written.path.rpartition('/')[2]}")
        if is_known(written)
        else None
    )
    if times:
        time, words = max(times), LAST_WRITE
    elif talked is not None:
        time, words = scene.now - timedelta(seconds=talked), LAST_DATA
    elif filed is not None and keeps_journal(scene.frame) and logs_here(scene):
        time, words = filed
    else:
        return None
    # It was still alive then, so it has hung for less long.
    if filed is not None and filed[0] > time:
        time, words = filed
    youngest_s = find_youngest_s(scene.frame)
    if youngest_s is not None and scene.now - timedelta(seconds=youngest_s) > time:
        time, words = scene.now - timedelta(seconds=youngest_s), LAST_START
    return time, f"{words} {format_clock(time)}"


def _started(suspicion: Suspicion, scene: Scene) -> Applicable[datetime]:
    """Return when the process started, if its imports or first steps began with it."""
    if suspicion.kind is not Kind.STARTING or Origin.HOOK in suspicion.origins:
        return NOT_APPLICABLE
    young_s = {"import": YOUNG_IMPORT_S, "first-steps": YOUNG_STEPS_S}.get(known_or(suspicion.cause, ""), 0.0)
    ranks = [rank.process for rank in scene.ranks if suspicion.pid in (rank.process.pid, NOT_APPLICABLE)]
    begun = min((one.started for one in ranks), default=scene.now)
    return begun if 0 < (scene.now - begun).total_seconds() <= young_s else NOT_APPLICABLE


def _date_of(at_ns: int, scene: Scene) -> datetime:
    return scene.now - timedelta(seconds=max(0.0, (scene.frame.taken_ns - at_ns) / 1e9))


def tell_since(track: Track, scene: Scene) -> tuple[datetime, SinceIs, str]:
    """Return since when the cause holds, whether that is its onset, and what shows it.

    A cause that was there at the first reading, or takes longer to tell than there are readings, is older:
    its earliest sign is a lower bound, for a hang the last line of the log.
    """
    suspicion, now = track.suspicion, scene.now
    if suspicion.seen:
        return now, SinceIs.ONSET, "seen to end"
    if is_known(suspicion.since_ns):
        began = _date_of(suspicion.since_ns, scene)
        by_hook = suspicion.kind is Kind.HUNG and Origin.HOOK in suspicion.origins
        return began, SinceIs.ONSET, "last step by the hook" if by_hook else "history"
    first_ns, begun_ns = track.first_ns, track.first_ns - track.seen_after_ns
    held = suspicion.held_ns
    seen_to_begin = track.clear_ns >= ONSET_HISTORY_S * 1e9
    if is_known(held):
        first_ns, seen_to_begin = held, held >= begun_ns + FIRST_READINGS_S * 1e9
    first = _date_of(first_ns, scene)
    # Whatever was first seen after a pause of tpmon may have begun within it.
    watch = scene.watch
    missed = (
        watch.back_ns - watch.left_ns > 2 * FIRST_READINGS_S * 1e9  # a shorter one blurs no onset
        and watch.left_ns < first_ns < watch.back_ns + FIRST_READINGS_S * 1e9
    )
    if seen_to_begin and not missed:
        return first, SinceIs.ONSET, "history"
    started = _started(suspicion, scene)
    if is_known(started):
        return started, SinceIs.ONSET, "process start"
    sign = _last_sign(scene, suspicion.cause) if suspicion.kind is Kind.HUNG else None
    if sign is not None and sign[0] < first and not (missed and sign[0] < _date_of(watch.moved_ns, scene)):
        return sign[0], SinceIs.LOWER_BOUND, sign[1]
    return first, SinceIs.LOWER_BOUND, "first reading"


def write_try(chosen: Chosen) -> str:
    """Join what to do, its risk to the science, and what to paste; several lines of paste stand below.

    A title that ends with the beginning of the paste says it only once.
    """
    said, _, last = chosen.text.rpartition(": ")
    title = said if said and chosen.paste.startswith(last) else chosen.text
    gap = "\n" if "\n" in chosen.paste else " "
    return f"{title}{_RISKS[chosen.remedy.risk]}:{gap}{chosen.paste}"


def list_others(suspicion: Suspicion, remedies: Sequence[Chosen], worth: Sequence[Chosen]) -> list[Chosen]:
    """Return the next remedies; hardware that is full gets uncertain ("if") ones here, never to try first."""
    if suspicion.kind is not Kind.COMPUTE_BOUND:
        return list(worth[1 : 1 + MOST_ALSO])
    rest = [one for one in remedies if one not in worth and one.remedy.needs]
    return [*worth[1:], *rest][:MOST_IFS]


def list_worth(suspicion: Suspicion, remedies: Sequence[Chosen], observed: Collection[Need]) -> list[Chosen]:
    """Return the remedies that are worth saying, best first; a healthy run gets only what helps it.

    Idle tensor cores of a card full of computing are seen, their reason is not: that is worth an "if".
    """
    if pick_code(suspicion.kind, suspicion.cause) != 0:
        return list(remedies)
    seen = [one for one in remedies if one.certain and one.remedy.needs]
    if seen or suspicion.cause != "gpu-compute" or Need.TENSOR_CORES_IDLE not in observed:
        return seen
    return [one for one in remedies if Need.TENSOR_CORES_IDLE in one.remedy.needs]


def _tells_workers(chosen: Chosen) -> bool:
    """Tell whether the ceiling of a remedy is what the proposed number of workers gains."""
    return any(field in chosen.remedy.ceiling for field in ("{workers_gain}", "{growth_gain}"))


def write_ceiling(suspicion: Suspicion, chosen: Chosen | None) -> Applicable[str]:
    """Say what the run gains at most: "2.4x if all of it goes away"."""
    if pick_code(suspicion.kind, suspicion.cause) == 0 or suspicion.kind is Kind.HUNG:
        return NOT_APPLICABLE
    share = suspicion.share
    if is_known(share) and 0 < share <= 1:
        gain = write_gain(share)
        whole = f"{gain} if all of it goes away"
        # The remedy itself may do less: a worker still takes its time for each batch.
        if chosen is None or not _tells_workers(chosen) or chosen.ceiling.startswith(f"{gain} "):
            return whole
        unread = fill(chosen.remedy.ceiling, RunFacts())
        return whole if chosen.ceiling == unread else f"{whole}, {chosen.ceiling}"
    if chosen is None or "{gain}" in chosen.remedy.ceiling or _tells_workers(chosen):
        return Missing("the share of time that it costs is not known")
    return chosen.ceiling


def _pct(value: Applicable[float]) -> Applicable[float]:
    return 100 * value if is_known(value) else value


def _texts(answers: Sequence[Answer]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    cleared = dict.fromkeys(one.text for one in answers if isinstance(one, Cleared))
    unsure = dict.fromkeys(one.text for one in answers if isinstance(one, Unsure))
    return tuple(cleared), tuple(unsure)


def _tell_rows(rows: Sequence[FigureReading]) -> tuple[Evidence, ...]:
    """Write rows as the Finding shows them, without what was not read: it shows nothing."""
    return tuple(tell(row) for row in rows if row.text or is_known(row.value))


def _choose(one: Suspicion, scene: Scene) -> tuple[Chosen, ...]:
    cause = one.cause if is_known(one.cause) else NOT_APPLICABLE
    return choose(one.kind, cause, observe(scene, one), gather_facts(scene, one))


def _share_remedies(
    worth: Sequence[Chosen], rivals: Sequence[Suspicion], scene: Scene
) -> tuple[list[Chosen], list[Chosen]]:
    """Return the remedies of a cause, first what helps its rivals, too; and the first one of each rival."""
    chosen = [_choose(one, scene) for one in rivals]
    of_rivals = [{one.remedy.id for one in each} for each in chosen]
    helps = [one for one in worth if of_rivals and all(one.remedy.id in each for each in of_rivals)]
    first = [one for one in helps if one.certain][:1]
    own = {one.remedy.id for one in worth}
    theirs = [each[0] for each in chosen if each and each[0].remedy.id not in own]
    return [*first, *(one for one in worth if one not in first)], theirs


def _say_rivals(suspicion: Suspicion, rivals: Sequence[Suspicion]) -> str:
    """Name the causes that are as likely after the stated one, without the words that begin both."""
    said = suspicion.summary
    for one in rivals:
        begins = "".join(suspicion.summary.partition(": ")[:2])
        said += f"; as likely {one.cause}: {one.summary.removeprefix(begins)}"
    return said


def find(track: Track, answers: Sequence[Answer], scene: Scene, rivals: Sequence[Suspicion] = ()) -> Finding:
    """Write the Finding of the stated cause; with ``rivals`` in its noise it is no surer than medium."""
    rivals = rivals[:MOST_RIVALS]
    suspicion = track.suspicion
    since, since_is, since_source = tell_since(track, scene)
    observed, facts = observe(scene, suspicion), gather_facts(scene, suspicion)
    cause = suspicion.cause if is_known(suspicion.cause) else NOT_APPLICABLE
    remedies = choose(suspicion.kind, cause, observed, facts)
    worth, theirs = _share_remedies(list_worth(suspicion, remedies, observed), rivals, scene)
    chosen, others = (worth[0] if worth else None), [*theirs, *list_others(suspicion, remedies, worth)]
    # For a job that is gone nothing is ruled out and nothing more can be read.
    ruled_out, unknown = _texts(()) if suspicion.seen else _texts(answers)
    unknown = tuple(dict.fromkeys((*suspicion.unread, *unknown)))
    rows, against = (*suspicion.evidence, *suspicion.shows), _tell_rows(suspicion.against)
    held_s = min(scene.span_s, (scene.frame.taken_ns - track.first_ns) / 1e9 + scene.span_s / 2)
    confidence = rate_confidence(suspicion, held_s)
    if rivals and confidence is Confidence.HIGH:
        confidence = Confidence.MEDIUM
    return Finding(
        kind=suspicion.kind,
        cause=suspicion.cause,
        confidence=confidence,
        share_pct=_pct(suspicion.share),
        share_low_pct=_pct(suspicion.share_low),
        share_high_pct=_pct(suspicion.share_high),
        since=since,
        since_is=since_is,
        since_source=since_source,
        summary=f"{_say_rivals(suspicion, rivals)}{_say_stepless(suspicion, scene)}",
        try_=write_try(chosen) if chosen is not None else NOT_APPLICABLE,
        also_try=tuple(map(write_try, others)) or NOT_APPLICABLE,
        ceiling=write_ceiling(suspicion, chosen),
        evidence=tuple(row for row in _tell_rows(rows) if row not in against),
        against=against,
        ruled_out=ruled_out,
        unknown=unknown,
        pid=suspicion.pid,
        rank=suspicion.rank,
        card=suspicion.card,
        where=_place_of(suspicion, scene),
    )


def _say_stepless(suspicion: Suspicion, scene: Scene) -> str:
    """Say that no step was seen beside a verdict about speed: by every hook, else by a log that is silent."""
    if suspicion.kind not in SPEED:
        return ""
    steps_s = [row.step_age_s for row in scene.frame.ranks if is_known(row.step_age_s)]
    if steps_s:
        stands_s = min(steps_s)
        return f"; no step was seen for {format_seconds(stands_s)}" if stands_s >= STEPLESS_S else ""
    ages = [one.last_write_age_s for one in scene.frame.output if is_known(one.last_write_age_s)]
    silent_s = min(ages, default=0.0)
    if silent_s < SILENT_LOG_S:
        return ""
    return f"; no step was seen: the log is silent for {format_seconds(silent_s)}"


def _place_of(suspicion: Suspicion, scene: Scene) -> Applicable[str]:
    """Return where the accused rank is by its stacks; not applicable for a process that is no rank."""
    if not is_known(suspicion.pid):
        return NOT_APPLICABLE
    phases = next((one.phases for one in scene.ranks if one.process.pid == suspicion.pid), NOT_APPLICABLE)
    if is_known(phases):
        return phases.where or Missing("no frame of its own code")
    return phases


def find_nothing(answers: Sequence[Answer], scene: Scene, standing: Standing) -> Finding:
    """Write the Finding that nothing is decided: how long tpmon has watched, and what it could not read."""
    looked_s = (standing.judged_ns - standing.begun_ns) / 1e9
    ruled_out, unknown = _texts(answers)
    begun = scene.now - timedelta(seconds=looked_s)
    silences = find_silences(scene)
    silent = say_open(silences)
    if silent:
        summary = silent
    elif looked_s < LOOKING_S:
        summary = f"looking: {format_seconds(looked_s)} of about {LOOKING_S:.0f} s that a verdict takes"
    elif still_s(scene) >= STILL_S:
        summary = say_place(scene)
    else:
        summary = "what could be read does not decide what holds the run"
    return Finding(
        kind=Kind.NOT_ENOUGH_EVIDENCE,
        cause=NOT_APPLICABLE,
        confidence=Confidence.LOW,
        share_pct=NOT_APPLICABLE,
        share_low_pct=NOT_APPLICABLE,
        share_high_pct=NOT_APPLICABLE,
        since=begun,
        since_is=SinceIs.LOWER_BOUND,
        since_source="first reading",
        summary=summary,
        try_=_say_next(scene) if looked_s >= LOOKING_S else NOT_APPLICABLE,
        also_try=NOT_APPLICABLE,
        ceiling=NOT_APPLICABLE,
        evidence=_tell_rows(_figures(scene)),
        against=(),
        ruled_out=ruled_out,
        unknown=unknown,
        pid=NOT_APPLICABLE,
        rank=NOT_APPLICABLE,
        card=silences[0].sample.index if silences else NOT_APPLICABLE,
        where=NOT_APPLICABLE,
    )


def _say_next(scene: Scene) -> str:
    pid = scene.frame.target.pid
    if find_silences(scene):
        return "see what the driver says: sudo dmesg -T | grep -iE 'xid|nvrm' | tail; nvidia-smi -L"
    if still_s(scene) >= STILL_S:
        return say_longer(scene, find_need_s(scene))
    stacks = scene.frame.stacks
    if isinstance(stacks, Missing):
        return f"let tpmon see stacks ({stacks.reason})"
    return (
        f"see what they wait for, and where their time goes: tpmon dump {pid} --rounds 3; tpmon sample {pid}"
    )


def _places(scene: Scene) -> tuple[FigureReading, ...]:
    found = []
    for rank in scene.ranks[:MOST_PLACES]:
        phases = rank.phases
        if not is_known(phases) or not phases.where:
            continue
        wait = rank.process.waits_for
        waits = f", {describe_wait(wait)}" if is_known(wait) and wait != RUNNING else ""
        name = f"rank {rank.process.rank}" if is_known(rank.process.rank) else f"process {rank.process.pid}"
        text = f"in {phases.where}{waits}"
        found.append(reading(Figure.MAIN_PLACE, float(phases.samples), scene.frame, of=name, text=text))
    return tuple(found)


def _figures(scene: Scene) -> tuple[FigureReading, ...]:
    return _places(scene) + tuple(
        reading(figure, value, scene.frame)
        for figure, value in (
            (Figure.CPUS_USED, scene.used),
            (Figure.RUNNABLE, scene.runnable),
            (Figure.GPU_BUSY, scene.gpu_pct),
        )
        if is_known(value)
    )
