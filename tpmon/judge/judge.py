"""Judge the Window: every rule once, one verdict, its notes, where each rank is. Pure; the entry here."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.judge import hysteresis
from tpmon.judge.answers.result import Key, Suspicion, reading, tell
from tpmon.judge.features.snapshot import MANY_PROCESSES, Rule, Scene, see
from tpmon.judge.features.standstill import SPEEDS, find_silences, hold_back, still_s
from tpmon.judge.features.standstill import UNMOVED_S as STILL_S
from tpmon.judge.finding import find, find_nothing
from tpmon.judge.hang.detection import plan_look
from tpmon.judge.hysteresis import Standing, is_settled, is_shaken, key_of
from tpmon.judge.ranking import OTHER_TENANTS, find_explained, find_rivals, rank, weigh
from tpmon.judge.rules import (
    card_faults,
    cards,
    comms,
    cpu,
    data,
    gpu,
    health,
    hook,
    lifecycle,
    limits,
    loader,
    python,
    storage,
)
from tpmon.judge.stacks.profile import add_up_phases, name_places, read_slices
from tpmon.judge.watch.stints import follow_stints
from tpmon.judge.watch.tracker import observe
from tpmon.model.dump import DumpRequest
from tpmon.model.figures import Figure
from tpmon.model.frame import Event, EventKind, Frame, TargetState
from tpmon.model.frozen import dataclass, replace
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known, known_or
from tpmon.model.process import Role
from tpmon.model.text.job_words import is_undecided, join_cause, name_cause, say_confidence, say_since_in_full
from tpmon.model.verdict import END_CAUSES, IN_WORDS, Finding, Kind, pick_code

RULES: tuple[Rule, ...] = hook.with_hooks(
    (
        cpu.judge_quota,
        cpu.judge_oversubscription,
        cpu.judge_affinity,
        cpu.judge_other_tenants,
        *data.RULES,
        *loader.RULES,
        cpu.judge_worker_affinity,
        loader.judge_killed_workers,
        *storage.RULES,
        *gpu.RULES,
        *cards.RULES,
        card_faults.judge_unhealthy,
        *comms.RULES,
        *python.RULES,
        *limits.RULES,
        card_faults.judge_gpu_memory,
        *limits.OTHER_RULES,
        *health.RULES,
        *lifecycle.RULES,
        *lifecycle.PAUSES,
    ),
    {
        lifecycle.judge_starting: hook.suspect_first_steps,
        lifecycle.judge_validation: hook.suspect_validation,
        comms.judge_straggler: hook.suspect_straggler,
    },
)
ENDS: frozenset[Key] = frozenset((Kind.IDLE, cause) for cause in END_CAUSES.values())
GPU_LOST: Key = (Kind.HUNG, "gpu-lost")  # it is over with the first sign of life
LARGE_JOB_S = 2.5  # with more than MANY_PROCESSES a verdict stands this long
SETTLED_JUDGED_S = 1.5  # a settled verdict stands this long
OTHER_WEIGHT = 0.1  # share of the time above which a second cause is worth a note
NOTES = (cpu.note_single_threaded_workers, data.note_skipping, *card_faults.NOTES)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Hold the Frame with its verdict, notes, places of the ranks and event; and what to remember.

    ``look`` are dumps worth reading now; ``settled``: the verdict needs fewer stack samples than usual.
    """

    frame: Frame
    standing: Standing
    look: Applicable[DumpRequest] = NOT_APPLICABLE
    settled: bool = False


def _tell(old: Key | None, new: Key | None, frame: Frame) -> tuple[Event, ...]:
    if old == new:
        return ()
    was = f", was {join_cause(*old)}" if old is not None else ""
    said = Kind.NOT_ENOUGH_EVIDENCE.value if new is None else join_cause(*new)
    return (Event(frame.taken, EventKind.VERDICT, f"verdict: {said}{was}"),)


def _note_others(suspicions: Sequence[Suspicion], standing: Standing) -> tuple[str, ...]:
    """Name other causes, so that a second one is no surprise; without a verdict each "may be" it."""
    stated = standing.stated
    keys = [key for key in (*map(key_of, suspicions), stated) if key is not None]
    weights = {key_of(one.suspicion): one.suspicion.weight for one in standing.tracks}
    said = find_explained(keys, weights) | {stated}
    costly = [one for one in suspicions if one.weight >= OTHER_WEIGHT and pick_code(one.kind, one.cause) != 0]
    others = [one for one in costly if key_of(one) not in said]
    word = "also" if stated is not None else "may be"
    return tuple(f"{word} {join_cause(*key_of(one))}: {one.summary}" for one in others[:2])


def _keep_before(finding: Finding, before: Finding, frame: Frame) -> Finding:
    """Keep the last verdict before the end: it may be why the job ended."""
    if is_undecided(before) or (before.kind, before.cause) in ENDS:
        return finding
    sure = (say_confidence(before), say_since_in_full(before, frame.taken))
    words = f"{before.kind.value.upper()} {name_cause(before)}".strip()
    text = f"{', '.join(word for word in (words, *sure) if word)}: {before.summary}"
    row = tell(reading(Figure.BEFORE_THE_END, IN_WORDS, frame, text=text))
    return replace(finding, evidence=(*finding.evidence, row))


def _drop_outlived(followed: Standing, suspicions: Sequence[Suspicion], scene: Scene) -> Standing:
    """Drop what steps, a standstill or a silent card disprove: a start or pause, a speed, a good verdict."""
    suspected = {key_of(one) for one in suspicions}
    past, stands = lifecycle.find_past_starts(scene), still_s(scene) >= STILL_S
    keys = {key_of(track.suspicion) for track in followed.tracks} | {followed.stated}
    silent = any(one.missed for one in find_silences(scene))

    def is_over(key: Key) -> bool:
        if key in past or key == GPU_LOST or (stands and key[0] in SPEEDS):
            return True
        return silent and pick_code(*key) == 0

    over = {key for key in keys if key is not None and is_over(key)}
    return hysteresis.drop(followed, over - suspected, scene.frame.taken_ns)


def judge_scene(scene: Scene, standing: Standing) -> tuple[Finding, Standing, tuple[str, ...]]:
    """Run every rule on a Scene; return the Finding, what to remember, and the notes."""
    answers = hold_back([rule(scene) for rule in RULES], scene)
    suspicions = [one for one in answers if isinstance(one, Suspicion)]
    now_ns = scene.frame.taken_ns
    noted = hysteresis.note_rules(standing, answers, now_ns)
    cleared_ns = {
        key_of(one): since_ns
        for one, since_ns in zip(answers, noted.cleared_ns, strict=True)
        if isinstance(one, Suspicion) and since_ns
    }
    followed = hysteresis.follow(
        noted, suspicions, now_ns, interval_s=scene.frame.interval_s, cleared_ns=cleared_ns
    )
    followed = _drop_outlived(followed, suspicions, scene)
    ranked = rank(followed.tracks, followed.stated)
    weights = {key_of(one.suspicion): weigh(one) for one in ranked}
    decided = hysteresis.damp(followed, hysteresis.state(followed, ranked, weights, now_ns), now_ns)
    end = next((key_of(one) for one in suspicions if one.seen and key_of(one) in ENDS), None)
    if end is not None:
        decided = replace(decided, stated=end)  # there is no later reading to be surer by
    track = next((one for one in ranked if key_of(one.suspicion) == decided.stated), None)
    if track is not None:
        rivals = find_rivals(track.suspicion, decided.presences)
        finding = find(track, hysteresis.leave_out_own(decided, answers), scene, rivals)
        if end is not None and standing.finding is not None:
            finding = _keep_before(finding, standing.finding, scene.frame)
    elif decided.stated is not None and standing.finding is not None:
        finding = standing.finding
    else:
        finding = find_nothing(answers, scene, decided)
    if end is not None:
        return finding, decided, ()
    # A note says again what a verdict says.
    beside = () if decided.stated == OTHER_TENANTS else (cpu.note_tenants,)
    notes = tuple(note for note in (write(scene) for write in (*beside, *NOTES)) if note)
    return finding, decided, notes + _note_others(suspicions, decided)


def _stands(frame: Frame, standing: Standing, *, settled: bool) -> bool:
    """Tell whether the last verdict stands for this Frame, too: the job is large, or nothing changes."""
    if frame.target.state is not TargetState.RUNNING:
        return False
    settled_s = SETTLED_JUDGED_S if settled else 0.0
    least_s = LARGE_JOB_S if len(frame.processes) > MANY_PROCESSES else settled_s
    return frame.taken_ns - standing.judged_ns < least_s * 1e9


def judge(frames: Sequence[Frame], standing: Standing) -> Judgement:
    """Judge the Frames (one or more) of a Window, oldest first, and write the verdict into the last one."""
    slices = [one for frame in frames for one in known_or(frame.stacks, ())]
    looks = read_slices(slices, standing.looks)
    frame = frames[-1]
    first = next((one.pid for one in frame.processes if one.role is Role.RANK), 0)
    stints = follow_stints(standing.watch.stints, looks, first)
    watch = replace(observe(standing.watch, frame), stints=stints)
    standing = replace(standing, watch=watch, looks=looks)
    look: Applicable[DumpRequest] = NOT_APPLICABLE
    calm = is_settled(standing, frame.taken_ns) and not is_shaken(frames)
    if standing.finding is not None and _stands(frame, standing, settled=calm):
        finding, decided, notes = standing.finding, standing, standing.notes
    else:
        scene = see(frames, add_up_phases(looks, frame.taken_ns), standing.watch)
        finding, decided, notes = judge_scene(scene, standing)
        decided = replace(decided, finding=finding, notes=notes)
        look = plan_look(standing.watch, scene)
        if is_known(look):
            decided = replace(decided, watch=replace(standing.watch, looked_ns=frame.taken_ns))
    # The stacks show where a rank is; without them its kernel wait stays.
    places = {pid: where for pid, where in name_places(looks, frame.taken_ns).items() if where}
    judged = replace(
        frame,
        verdict=finding,
        notes=frame.notes + notes,
        ranks=tuple(replace(row, where=places.get(row.pid, row.where)) for row in frame.ranks),
        # Of one second the most important stands last: that the job ended, that a rank is gone.
        events=_tell(standing.stated, decided.stated, frame) + frame.events,
    )
    settled = is_settled(decided, frame.taken_ns) and (calm or not is_shaken(frames))
    return Judgement(judged, decided, look, settled=settled)
