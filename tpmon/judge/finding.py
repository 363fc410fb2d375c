"""Make the Finding of a cause: confidence, since, what to do, what was ruled out, what is unknown. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from tpmon.judge.advice.choose import Chosen, Risk, choose
from tpmon.judge.advice.context import SPEED, deny, gather_facts, observe
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.advice.fields import fill, write_gain
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Cleared, FigureReading, Suspicion, Unsure, reading, tell
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.features.standstill import UNMOVED_S as STILL_S
from tpmon.judge.features.standstill import find_silences, name_rank, say_longer, say_open, still_s
from tpmon.judge.hang.detection import find_need_s, logs_here, say_standing
from tpmon.judge.hysteresis import Standing, Track
from tpmon.judge.watch import clock
from tpmon.judge.watch.clock import CAUSES, find_waited_s
from tpmon.model.figures import Figure, Origin
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known, known_or
from tpmon.model.units import format_clock, format_seconds
from tpmon.model.verdict import Confidence, Evidence, Finding, Kind, SinceIs, pick_code
from tpmon.model.waits import RUNNING, describe_wait

HIGH_ORIGINS = 2
HIGH_SPAN_S = 8.0
HIGH_MARGIN = 1.25
MEDIUM_SPAN_S = 4.0
MEDIUM_MARGIN = 1.5  # a single origin counts as medium only when it is this far past its threshold
ONSET_HISTORY_S = 10.0  # a cause that came this long after its rule first denied it began where it was seen
FIRST_READINGS_S = 3.0  # what held within this time after the first reading is older than that
MOST_PLACES = 2
MOST_ALSO = 4  # remedies worth reading beside the one to try
MOST_IFS = 8  # the same for full hardware: nothing is wrong with it, so a longer list may be read at leisure
MOST_RIVALS = 1  # causes within the noise of the stated one that are named: more would tell nothing
LOOKING_S = 10.0
STEPLESS_S = 30.0  # time without a step that the hook counts, above which a verdict about speed says so
SILENT_LOG_S = 120.0  # the same for a log: many programs write a line a minute

_RISKS = {
    Risk.NONE: "",
    Risk.NUMERICS: " (changes the numerics)",
    Risk.EXPERIMENT: " (changes the experiment)",
}
_LEVELS = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)


def rate_confidence(suspicion: Suspicion, span_s: float) -> Confidence:
    """Say how sure: by the origins, how long (seconds), how far past the threshold."""
    origins = len(suspicion.origins)
    if suspicion.seen:
        return Confidence.HIGH if origins >= HIGH_ORIGINS else Confidence.MEDIUM
    level = 0
    if span_s >= MEDIUM_SPAN_S and (origins >= HIGH_ORIGINS or suspicion.margin >= MEDIUM_MARGIN):
        level = 1
    if origins >= HIGH_ORIGINS and span_s >= HIGH_SPAN_S and suspicion.margin >= HIGH_MARGIN:
        level = 2
    # Evidence against it, and what might be and was not read, take a level: a lost source makes none surer.
    if (suspicion.against or suspicion.unread) and level > 0:
        level -= 1
    return _LEVELS[level]


# Ages up to which imports and first steps began with their process: a notebook imports at any time.
YOUNG_IMPORT_S, YOUNG_STEPS_S = 150.0, 60.0


def _last_sign(scene: Scene, cause: Applicable[str]) -> tuple[datetime, str] | None:
    """Return the last sign of life from before tpmon came: a record, the log, connections, a journal."""
    # A later write to any open file, or start of a worker, takes its place.

    def ago(seconds: float) -> datetime:
        return scene.now - timedelta(seconds=seconds)

    frame = scene.frame
    waited_s = find_waited_s(scene.watch.calls, scene.now, scene.watch.still_s) if cause in CAUSES else 0.0
    if waited_s > 0:
        return ago(waited_s), f"collective called by its record {format_clock(ago(waited_s))}"
    logs = [one for one in frame.output if is_known(one.last_write_age_s) and logs_here(scene)]
    times = [one.last_write for one in logs if is_known(one.last_write)]
    talked_s, youngest_s = clock.connections_age_s(frame), clock.find_youngest_s(frame)
    later, signs, keeps_journal = list[tuple[datetime, str]](), list[tuple[datetime, str]](), False
    if is_known(frame.written):
        keeps_journal = frame.written.journal
        name = frame.written.path.rpartition("/")[2]
        later.append((frame.written.last_write, f"last write of {name}"))
    if times:
        signs.append((max(times), clock.LAST_WRITE))
    elif talked_s is not None:
        signs.append((ago(talked_s), clock.LAST_DATA))
    elif not (keeps_journal and logs_here(scene)):
        return None
    if youngest_s is not None:
        later.append((ago(youngest_s), clock.LAST_START))
    # It was still alive then, so it has hung for less long.
    time, words = max(signs + later, key=lambda one: one[0])
    return time, f"{words} {format_clock(time)}"


def _started(suspicion: Suspicion, scene: Scene) -> Applicable[datetime]:
    """Return when the process started, if its imports or first steps began with it."""
    if suspicion.kind is not Kind.STARTING or Origin.HOOK in suspicion.origins:
        return NOT_APPLICABLE
    young_s = {"import": YOUNG_IMPORT_S, "first-steps": YOUNG_STEPS_S}.get(known_or(suspicion.cause, ""), 0.0)
    ranks = [rank.process for rank in scene.ranks if suspicion.pid in (rank.process.pid, NOT_APPLICABLE)]
    begun = min((one.started for one in ranks), default=scene.now)
    return begun if 0 < (scene.now - begun).total_seconds() <= young_s else NOT_APPLICABLE


def tell_since(track: Track, scene: Scene) -> tuple[datetime, SinceIs, str]:
    """Return since when the cause holds, whether that is its onset, and what shows it."""
    # A cause that was there at the first reading, or takes longer to tell than there are readings, is older:
    # its earliest sign is a lower bound, for a hang the last line of the log.
    suspicion, now, watch = track.suspicion, scene.now, scene.watch

    def date_of(at_ns: int) -> datetime:
        return now - timedelta(seconds=max(0.0, (scene.frame.taken_ns - at_ns) / 1e9))

    if suspicion.seen:
        return now, SinceIs.ONSET, "seen to end"
    if is_known(suspicion.since_ns):
        by_hook = suspicion.kind is Kind.HUNG and Origin.HOOK in suspicion.origins
        return date_of(suspicion.since_ns), SinceIs.ONSET, "last step by the hook" if by_hook else "history"
    first_ns, seen_to_begin = track.first_ns, track.clear_ns >= ONSET_HISTORY_S * 1e9
    if is_known(suspicion.held_ns):
        begun_ns, first_ns = track.first_ns - track.seen_after_ns, suspicion.held_ns
        seen_to_begin = first_ns >= begun_ns + FIRST_READINGS_S * 1e9
    first = date_of(first_ns)
    # Whatever was first seen after a pause of tpmon may have begun within it; a shorter one blurs no onset.
    blind = watch.back_ns - watch.left_ns > 2 * FIRST_READINGS_S * 1e9
    missed = blind and watch.left_ns < first_ns < watch.back_ns + FIRST_READINGS_S * 1e9
    if seen_to_begin and not missed:
        return first, SinceIs.ONSET, "history"
    started = _started(suspicion, scene)
    if is_known(started):
        return started, SinceIs.ONSET, "process start"
    sign = _last_sign(scene, suspicion.cause) if suspicion.kind is Kind.HUNG else None
    if sign is not None and sign[0] < first and not (missed and sign[0] < date_of(watch.moved_ns)):
        return sign[0], SinceIs.LOWER_BOUND, sign[1]
    return first, SinceIs.LOWER_BOUND, "first reading"


def write_try(chosen: Chosen) -> str:
    """Join what to do, its risk to the science, and what to paste; several lines of paste stand below."""
    # A title that ends with the beginning of the paste says it only once.
    said, _, last = chosen.text.rpartition(": ")
    title = said if said and chosen.paste.startswith(last) else chosen.text
    gap = "\n" if "\n" in chosen.paste else " "
    return f"{title}{_RISKS[chosen.remedy.risk]}:{gap}{chosen.paste}"


def write_keys(chosen: Chosen) -> Applicable[str]:
    """Return what to do with the keys of the screen in the place of what is pasted."""
    keys = chosen.remedy.keys
    return f"{chosen.text}{_RISKS[chosen.remedy.risk]}: press {keys}" if keys else NOT_APPLICABLE


def list_others(suspicion: Suspicion, remedies: Sequence[Chosen], worth: Sequence[Chosen]) -> list[Chosen]:
    """Return the next remedies; hardware that is full gets uncertain ("if") ones here, never to try first."""
    if suspicion.kind is not Kind.COMPUTE_BOUND:
        return list(worth[1 : 1 + MOST_ALSO])
    rest = [one for one in remedies if one not in worth and one.remedy.needs]
    return [*worth[1:], *rest][:MOST_IFS]


def list_worth(suspicion: Suspicion, remedies: Sequence[Chosen], observed: Collection[Need]) -> list[Chosen]:
    """Return the remedies that are worth saying, best first; a healthy run gets only what helps it."""
    # Idle tensor cores of a card full of computing are seen, their reason is not: that is worth an "if".
    if pick_code(suspicion.kind, suspicion.cause) != 0:
        return list(remedies)
    seen = [one for one in remedies if one.certain and one.remedy.needs]
    if seen or suspicion.cause != "gpu-compute" or Need.TENSOR_CORES_IDLE not in observed:
        return seen
    return [one for one in remedies if Need.TENSOR_CORES_IDLE in one.remedy.needs]


def write_ceiling(suspicion: Suspicion, chosen: Chosen | None) -> Applicable[str]:
    """Say what the run gains at most: "2.4x if all of it goes away"."""
    if pick_code(suspicion.kind, suspicion.cause) == 0 or suspicion.kind is Kind.HUNG:
        return NOT_APPLICABLE
    template = chosen.remedy.ceiling if chosen is not None else "{gain}"
    # Of some remedies the ceiling is what the proposed number of workers gains.
    tells_workers = "{workers_gain}" in template or "{growth_gain}" in template
    share = known_or(suspicion.share, 0.0)
    if not 0 < share <= 1:
        if chosen is None or "{gain}" in template or tells_workers:
            return Missing("the share of time that it costs is not known")
        return chosen.ceiling
    gain = write_gain(share)
    whole = f"{gain} if all of it goes away"
    # The remedy itself may do less: a worker still takes its time for each batch.
    if chosen is None or not tells_workers or chosen.ceiling.startswith(f"{gain} "):
        return whole
    return whole if chosen.ceiling == fill(template, RunFacts()) else f"{whole}, {chosen.ceiling}"


def _tell_rows(rows: Sequence[FigureReading]) -> tuple[Evidence, ...]:
    """Write rows as the Finding shows them, without what was not read: it shows nothing."""
    return tuple(tell(row) for row in rows if row.text or is_known(row.value))


def _choose(one: Suspicion, observed: frozenset[Need], scene: Scene) -> tuple[Chosen, ...]:
    cause = known_or(one.cause, NOT_APPLICABLE)
    return choose(one.kind, cause, observed, gather_facts(scene, one), deny(scene, one, observed))


def _share_remedies(
    worth: Sequence[Chosen], rivals: Sequence[Suspicion], scene: Scene
) -> tuple[list[Chosen], list[Chosen]]:
    """Return the remedies of a cause, first what helps its rivals, too; and the first one of each rival."""
    chosen = [_choose(one, observe(scene, one), scene) for one in rivals]
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


def _write(
    told: Suspicion,
    answers: Sequence[Answer],
    scene: Scene,
    *,
    since: tuple[datetime, SinceIs, str],
    confidence: Confidence,
    summary: str,
    try_: Applicable[str],
    ceiling: Applicable[str],
    also_try: Sequence[str] = (),
    try_code: Applicable[str] = NOT_APPLICABLE,
    try_keys: Applicable[str] = NOT_APPLICABLE,
) -> Finding:
    def pct(value: Applicable[float]) -> Applicable[float]:
        return 100 * value if is_known(value) else value

    against = _tell_rows(told.against)
    phases = next((one.phases for one in scene.ranks if one.process.pid == told.pid), NOT_APPLICABLE)
    unknown = (*told.unread, *(one.text for one in answers if isinstance(one, Unsure)))
    return Finding(
        kind=told.kind,
        cause=told.cause,
        confidence=confidence,
        share_pct=pct(told.share),
        share_low_pct=pct(told.share_low),
        share_high_pct=pct(told.share_high),
        since=since[0],
        since_is=since[1],
        since_source=since[2],
        summary=summary,
        try_=try_,
        try_code=try_code,
        also_try=tuple(also_try) or NOT_APPLICABLE,
        ceiling=ceiling,
        evidence=tuple(row for row in _tell_rows((*told.evidence, *told.shows)) if row not in against),
        against=against,
        ruled_out=tuple(dict.fromkeys(one.text for one in answers if isinstance(one, Cleared))),
        unknown=tuple(dict.fromkeys(unknown)),
        pid=told.pid,
        rank=told.rank,
        card=told.card,
        try_keys=try_keys,
        where=(phases.where or Missing("no frame of its own code")) if is_known(phases) else phases,
    )


def find(track: Track, answers: Sequence[Answer], scene: Scene, rivals: Sequence[Suspicion] = ()) -> Finding:
    """Write the Finding of the stated cause; with ``rivals`` in its noise it is no surer than medium."""
    suspicion, rivals = track.suspicion, rivals[:MOST_RIVALS]
    observed = observe(scene, suspicion)
    remedies = _choose(suspicion, observed, scene)
    worth, theirs = _share_remedies(list_worth(suspicion, remedies, observed), rivals, scene)
    chosen, others = (worth[0] if worth else None), [*theirs, *list_others(suspicion, remedies, worth)]
    held_s = min(scene.span_s, (scene.frame.taken_ns - track.first_ns) / 1e9 + scene.span_s / 2)
    confidence = rate_confidence(suspicion, held_s)
    if rivals and confidence is Confidence.HIGH:
        confidence = Confidence.MEDIUM
    return _write(
        suspicion,
        () if suspicion.seen else answers,  # of a job that is gone nothing is ruled out or can be read
        scene,
        since=tell_since(track, scene),
        confidence=confidence,
        summary=f"{_say_rivals(suspicion, rivals)}{_say_stepless(suspicion, scene)}",
        try_=write_try(chosen) if chosen is not None else NOT_APPLICABLE,
        try_code=chosen.paste if chosen is not None else NOT_APPLICABLE,
        also_try=list(map(write_try, others)),
        try_keys=write_keys(chosen) if chosen is not None else NOT_APPLICABLE,
        ceiling=write_ceiling(suspicion, chosen),
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


def find_nothing(answers: Sequence[Answer], scene: Scene, standing: Standing) -> Finding:
    """Write the Finding that nothing is decided: how long tpmon has watched, and what it could not read."""
    looked_s, silences = (standing.judged_ns - standing.begun_ns) / 1e9, find_silences(scene)
    summary = "what could be read does not decide what holds the run"
    if silent := say_open(silences):
        summary = silent
    elif looked_s < LOOKING_S:
        summary = f"looking: {format_seconds(looked_s)} of about {LOOKING_S:.0f} s that a verdict takes"
    elif still_s(scene) >= STILL_S:
        summary = say_standing(scene)
    next_ = _say_next(scene)
    kind, card = Kind.NOT_ENOUGH_EVIDENCE, silences[0].sample.index if silences else NOT_APPLICABLE
    return _write(
        Suspicion(kind, NOT_APPLICABLE, 0.0, 0.0, evidence=_figures(scene), card=card),
        answers,
        scene,
        since=(scene.now - timedelta(seconds=looked_s), SinceIs.LOWER_BOUND, "first reading"),
        confidence=Confidence.LOW,
        summary=summary,
        try_=next_[0] if looked_s >= LOOKING_S else NOT_APPLICABLE,
        try_keys=next_[1] if looked_s >= LOOKING_S else NOT_APPLICABLE,
        ceiling=NOT_APPLICABLE,
    )


def _say_next(scene: Scene) -> tuple[str, Applicable[str]]:
    """Say what to do where nothing is decided: as text, and by the keys of the screen where these do it."""
    pid, stacks = scene.frame.target.pid, scene.frame.stacks
    if find_silences(scene):
        driver = "see what the driver says: sudo dmesg -T | grep -iE 'xid|nvrm' | tail; nvidia-smi -L"
        return driver, NOT_APPLICABLE
    if still_s(scene) >= STILL_S:
        return say_longer(scene, find_need_s(scene)), NOT_APPLICABLE
    if isinstance(stacks, Missing):
        return f"let tpmon see stacks ({stacks.reason})", NOT_APPLICABLE
    said = "see what they wait for, and where their time goes:"
    dumped = f"{said} tpmon dump {pid} --rounds 3; tpmon sample {pid}"
    return dumped, f"{said} press d, then m for three dumps; f for hot functions"


def _figures(scene: Scene) -> tuple[FigureReading, ...]:
    found = []
    for rank in scene.ranks[:MOST_PLACES]:
        phases, wait = rank.phases, rank.process.waits_for
        if is_known(phases) and phases.where:
            waits = f", {describe_wait(wait)}" if is_known(wait) and wait != RUNNING else ""
            text, samples = f"in {phases.where}{waits}", float(phases.samples)
            found.append(reading(Figure.MAIN_PLACE, samples, scene.frame, of=name_rank(rank), text=text))
    busy = {Figure.CPUS_USED: scene.used, Figure.RUNNABLE: scene.runnable, Figure.GPU_BUSY: scene.gpu_pct}
    return (*found, *(reading(figure, value, scene.frame) for figure, value in busy.items()))
