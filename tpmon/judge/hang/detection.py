"""Decide when the stacks of a whole job are worth reading, and judge whether it hangs. Pure.

A hang needs a picture: several dumps in which nobody moved. For how long is what tpmon saw itself, or what
the log and the connections say about the time before it came.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import (
    Answer,
    Cleared,
    FigureReading,
    Suspicion,
    Unsure,
    reading,
    reading_aged,
)
from tpmon.judge.dumps.camps import ThreadSeen, say_place
from tpmon.judge.features.snapshot import Rule, Scene, once, ranks_on
from tpmon.judge.features.standstill import (
    FIRST_WAIT_S,
    HUNG_S,
    LEAST_STACK_SPAN_S,
    SILENT_S,
    TIMED_FACTOR,
    find_excuse,
    find_silences,
    hangs_on,
    is_unmoved,
    say_still,
    say_unmoved,
    still_s,
    stood_s,
)
from tpmon.judge.hang.graph import Blame, Goes, Grace, Sink
from tpmon.judge.hang.ranks import find_end
from tpmon.judge.hang.readings import (
    draw_facts,
    draw_readings,
    find_held,
    find_server,
    guess_grace,
    may_run_elsewhere,
    show_process,
)
from tpmon.judge.hang.threads import POLLS_RATIO, name_thread
from tpmon.judge.stacks.classify import is_users, say_frame
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.clock import (
    CAUSES,
    LAST_DATA,
    LAST_FILE,
    LAST_STEP,
    LAST_WRITE,
    OLD_S,
    ORIGIN_OF_SIGN,
    OWN_S,
    Quiet,
    connections_age_s,
    file_age_s,
    find_waited_s,
    find_youngest_s,
    see_quiet,
    show_calls,
)
from tpmon.judge.watch.picture import LEAST_ROUNDS, Picture, came_late
from tpmon.judge.watch.tracker import (
    HANG_AFTER_S,
    MOST_AGE_S,
    STOPPED_S,
    WatchedTime,
    age_ns,
    asks_frozen,
    describe_still,
    log_age_s,
)
from tpmon.model.dump import Asker, DumpRequest
from tpmon.model.figures import Figure, Origin
from tpmon.model.frame import TargetState
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuState
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known, known_or
from tpmon.model.process import ProcessSample, Role, ThreadKind
from tpmon.model.text.dump_words import name_process, say_wait
from tpmon.model.units import format_seconds
from tpmon.model.verdict import IN_WORDS, Kind
from tpmon.model.waits import WaitReason

LOOP_OWN_S = 8.0
SOON_S = 2.5
SLOW_S = 300.0
TRANSFER_S = 1800.0
LOOP_FACTOR = 4.0
MOST_MARGIN = 1.2
LEAD_S = 10.0
ROUNDS = 3
EVERY_S = 2.5
BUSY_ROUNDS = 6
BUSY_EVERY_S = 1.0
AGAIN_S = 180.0
STALE_S = 600.0
ANSWER_S = 25.0

RATELESS_S = 5.0
CLOSED_FACTOR = 1.5
_COMPUTES = (Grace.COMPUTE, Grace.TRANSFER)
_SLOW = (Grace.REMOTE, Grace.SLOW)


def need_s(watch: WatchedTime, grace: Grace) -> float:
    """Return how long nothing may move in a state of this kind."""
    least, asked = watch.hang_after_s, watch.asked_s is not None
    if grace is Grace.AT_ONCE:
        return STOPPED_S
    # No time-out of a collective bounds a checkpoint, or the answer of a service.
    slow_s = max(SLOW_S, least if asked else watch.rhythm_s)
    if grace in (Grace.SLOW, Grace.COMPUTE):
        return slow_s
    if grace is Grace.TRANSFER:
        return max(TRANSFER_S, slow_s)
    if grace is Grace.ENDLESS or asked:
        return least
    if grace is Grace.REMOTE:
        # It may be a collective, which has a time-out of its own.
        return max(SLOW_S, least)
    if grace is Grace.LOOP and not watch.trained:
        return slow_s  # before the first step programs build their tables in a loop of Python
    timed = CLOSED_FACTOR if grace is Grace.CLOSED else TIMED_FACTOR
    return max(least, min((LOOP_FACTOR if grace is Grace.LOOP else timed) * least, SLOW_S))


def plan_look(watch: WatchedTime, scene: Scene) -> Applicable[DumpRequest]:
    """Return the dumps that are worth reading now, not applicable where none are."""
    frame = scene.frame
    if not watch.may_ask or not scene.ranks or frame.target.state is not TargetState.RUNNING:
        return NOT_APPLICABLE
    now_ns, picture = frame.taken_ns, watch.picture
    waited_s = (now_ns - watch.looked_ns) / 1e9 if watch.looked_ns else STALE_S
    answered = any(one.taken_ns > watch.looked_ns for one in watch.rounds)
    answered = answered and not came_late(watch.rounds, watch.looked_ns)
    least_s = STALE_S if picture is not None else AGAIN_S if answered else ANSWER_S
    if waited_s < least_s or (picture is not None and now_ns - picture.last_ns < STALE_S * 1e9):
        return NOT_APPLICABLE
    quiet = see_quiet(watch, frame)
    # What a rank has handed to processes that stand is not slow, whatever it is.
    is_slow = any(find_excuse(one) and not asks_frozen(one.process, frame) for one in scene.ranks)
    least = need_s(watch, Grace.SLOW if is_slow else Grace.ENDLESS)
    is_due = quiet.own_s >= (SOON_S if quiet.outside_s >= least else max(SOON_S, least - LEAD_S))
    least = need_s(watch, Grace.SLOW if is_slow else Grace.LOOP)
    may_loop = quiet.cornered_s >= (SOON_S if quiet.outside_s >= SLOW_S else max(SOON_S, least - LEAD_S))
    if not is_due and not may_loop:
        return NOT_APPLICABLE
    runs = any(rank.process.state == "R" for rank in scene.ranks)
    rounds, every_s = (BUSY_ROUNDS, BUSY_EVERY_S) if runs else (ROUNDS, EVERY_S)
    return DumpRequest(Asker.WATCH, rounds=rounds, every_s=every_s)


def is_looking(scene: Scene) -> bool:
    """Tell whether dumps were asked for and have not all come yet."""
    watch, now_ns = scene.watch, scene.frame.taken_ns
    come = [one.taken_ns for one in watch.rounds if one.taken_ns > watch.looked_ns]
    # On a crowded machine each dump takes its time: while they come they are not given up.
    asked = watch.looked_ns > 0 and now_ns - max(come, default=watch.looked_ns) <= ANSWER_S * 1e9
    overdue = not come and see_quiet(watch, scene.frame).own_s >= watch.hang_after_s + ANSWER_S
    return asked and watch.picture is None and len(come) < LEAST_ROUNDS and not overdue


@dataclass(frozen=True, slots=True)
class Weighed:
    """Hold a blame of a picture with how long it has lasted, and how long it must to be a hang, seconds."""

    blame: Blame
    picture: Picture
    quiet: Quiet
    seconds: float
    need: float


@once
def judge_hang(scene: Scene) -> Answer:
    """Suspect a hang by whom the graph of waits blames: by the stacks of all processes, else by readings."""
    found = weigh_blame(scene)
    if isinstance(found, Missing):
        return Unsure(f"hang ({found.reason})")
    if isinstance(found, str):
        return Cleared(f"hang ({found})")
    if found.seconds < found.need:
        text = f"{found.blame.text}, for {found.seconds:.0f} s of the {found.need:.0f} s that it takes"
        blind = scene.watch.picture is None and is_unmoved(scene)
        return Unsure(f"hang ({say_unmoved(scene, found.need) if blind else text})")
    return _suspect(found, scene)


@once
def weigh_blame(scene: Scene) -> Weighed | str | Missing:
    """Return whom the waits of all processes blame, and for how long; or what shows that nobody hangs."""
    picture = scene.watch.picture
    found = _weigh_readings(scene) if picture is None else _weigh_picture(picture, scene)
    unread = picture.scene.unread if picture is not None else ()
    held = find_held(scene, {one.pid for one in unread})
    if not isinstance(held, Blame):
        if held is None or isinstance(found, Weighed):
            return found
        return held.text if isinstance(held, Goes) else held
    by_kernel = _weigh_held(held, scene)
    # Stacks tell more than a read, and no more than a stop.
    is_due = isinstance(found, Weighed) and found.seconds >= found.need
    is_told = is_looking(scene) if picture is None else is_due
    is_told = is_told and held.sink is not Sink.STOPPED
    return found if is_told or by_kernel.seconds < by_kernel.need else by_kernel


def _weigh_picture(picture: Picture, scene: Scene) -> Weighed | str:
    watch, found = scene.watch, find_end(draw_facts(scene, picture))
    if isinstance(found, Goes):
        return found.text
    quiet = see_quiet(watch, scene.frame)
    seconds = lasted_s(found, quiet, scene)
    if found.cause in CAUSES and quiet.own_s >= OWN_S:
        recorded_s = _recorded_s(found, quiet, scene)
        if recorded_s > seconds:
            seconds, found = recorded_s, replace(found, origins=(*found.origins, Origin.RECORD))
    return Weighed(found, picture, quiet, seconds, need_s(watch, found.grace))


def _weigh_held(found: Blame, scene: Scene) -> Weighed:
    """Weigh what the kernel holds by its own wait, whatever the others do meanwhile."""
    process = next(one for one in scene.frame.processes if one.pid == found.seen.thread.pid)
    seconds = min(known_or(process.waits_unchanged_s, 0.0), MOST_AGE_S)
    quiet, need = Quiet(seconds, seconds, 0.0, ""), need_s(scene.watch, found.grace)
    if found.grace is Grace.ENDLESS:
        need = max(HANG_AFTER_S, need) - RATELESS_S
    return Weighed(found, draw_readings(scene), quiet, seconds, need)


def _weigh_readings(scene: Scene) -> Weighed | str | Missing:
    """Weigh what the kernel shows of all processes, where no stacks were read: nothing may move."""
    if is_looking(scene):
        return Missing("the stacks of all processes are being read")
    if not any(rank.process.state not in ("Z", "X") for rank in scene.ranks):
        return "no rank lives"
    seconds = stood_s(scene)
    if isinstance(seconds, (Missing, str)):
        return seconds
    watched = scene.watch.watched_s
    if seconds < OWN_S:
        return Missing("tpmon has just attached") if watched < OWN_S else "the ranks move"
    # A wait as old as the first reading was not seen to begin.
    if seconds < min(watched - FIRST_WAIT_S, scene.watch.hang_after_s):
        return f"it moved {seconds:.0f} s ago"
    picture = draw_readings(scene)
    found = find_server(scene) or find_end(draw_facts(scene, picture))
    if isinstance(found, Goes):
        return Missing(found.text)
    quiet = see_quiet(scene.watch, scene.frame)
    return Weighed(found, picture, replace(quiet, own_s=seconds), seconds, need_s(scene.watch, found.grace))


def lasted_s(found: Blame, quiet: Quiet, scene: Scene) -> float:
    """Return for how long, at least, the wait at a sink has lasted, by tpmon and the signs that count there.

    A loop changes lines all the time, whatever it gets from the kernel. A run that writes seldom may be in
    any of its steps, so older signs must be very old here, and do not count for a library call. Of a wait
    that may last minutes connections and hook tell, which report every step; people attach to runs that
    pause. A log does if rank 0 runs here, and was long seen to wait for a rank elsewhere: it saves nothing.
    """
    one, picture = found.seen, scene.watch.picture
    is_main = one.thread.role is Role.RANK and one.thread.kind is ThreadKind.MAIN
    circles = picture is not None and is_main and picture.goes_round(one)
    circles = circles and one.doing.phase is not Phase.DATA_WAIT
    if found.grace in _COMPUTES:
        return quiet.cornered_s if circles else quiet.own_s
    if found.cause == "spin" or circles:
        older = quiet.cornered_s >= LOOP_OWN_S and quiet.outside_s >= SLOW_S
        return max(quiet.cornered_s, quiet.outside_s if older else 0.0)
    if found.grace not in _SLOW:
        return quiet.seconds
    awaits = found.cause == "remote-rank" and found.grace is Grace.REMOTE
    awaits = awaits and quiet.own_s >= scene.watch.hang_after_s
    # Then it is not even known which of the ranks is the first of all.
    logs = logs_here(scene) and not (_waits_with_others(found) and may_run_elsewhere(scene))
    is_exact = quiet.sign in (LAST_STEP, LAST_DATA) or (logs and (awaits or quiet.outside_s >= OLD_S))
    outside_s = quiet.outside_s if is_exact else min(quiet.outside_s, quiet.idle_s)
    return max(quiet.own_s, outside_s if quiet.own_s >= OWN_S else 0.0)


def say_standing(scene: Scene) -> str:
    """Say of a job that stands where it does, for whom, since when, and when that is called a hang."""
    watch, found = scene.watch, weigh_blame(scene)
    if isinstance(found, Weighed) and found.picture.looks:
        text, seconds, sign, need = found.blame.text, found.seconds, found.quiet.sign, found.need
        seconds = max(seconds, found.quiet.own_s)
    else:
        quiet = see_quiet(watch, scene.frame)
        goes = found if isinstance(found, str) and watch.picture is not None else ""
        text = goes or describe_still(watch, scene.frame)
        seconds, sign, need = quiet.seconds, quiet.sign, find_need_s(scene)
    if not text:
        return say_still(scene)
    told = f" ({sign})" if sign and seconds > still_s(scene) else ""
    until = f"; called a hang from {format_seconds(need)} on" if seconds < need and found != text else ""
    return f"{text}; nothing has moved for {format_seconds(seconds)}{told}{until}"


def _recorded_s(blame: Blame, quiet: Quiet, scene: Scene) -> float:
    """Return how long ranks wait by the job's own record, if the rank to blame has stood as long.

    A rank that is not with them may have just come there: from a validation, in which it got on, into a save.
    """
    watch = scene.watch
    waited_s = find_waited_s(watch.calls, scene.frame.taken, quiet.own_s)
    if _waits_with_others(blame):
        return waited_s
    if blame.grace in (*_SLOW, *_COMPUTES):
        return 0.0
    return min(waited_s, (scene.frame.taken_ns - watch.moved_ns) / 1e9) if watch.moved_ns else waited_s


def _waits_with_others(blame: Blame) -> bool:
    """Tell whether the rank to blame waits for ranks itself, as all do where nobody is to blame."""
    return blame.is_of_all or blame.seen.doing.wait is WaitReason.COLLECTIVE


def logs_here(scene: Scene) -> bool:
    """Tell whether the rank that writes the log of the job, usually rank 0, runs on this machine."""
    return not scene.elsewhere or any(rank.process.rank == 0 for rank in scene.ranks)


def find_need_s(scene: Scene) -> float:
    """Return how long a finding must last to be a hang; without a finding, the longest that may be needed."""
    watch, found = scene.watch, weigh_blame(scene)
    if isinstance(found, Weighed):
        return found.need
    return max((need_s(watch, guess_grace(rank, scene)) for rank in scene.ranks), default=watch.hang_after_s)


def _suspect(found: Weighed, scene: Scene) -> Suspicion:
    blamed, quiet, seen = found.blame, found.quiet, found.blame.seen
    process = next((one for one in scene.frame.processes if one.pid == seen.thread.pid), None)
    origins = {*blamed.origins, *_list_origins(found, process, scene)}
    is_sure = blamed.grace not in (Grace.CLOSED, Grace.TIMED) and blamed.sink is not Sink.LOCK_FILE
    if quiet.sign and (quiet.sign != LAST_WRITE or logs_here(scene)):
        origins.add(ORIGIN_OF_SIGN[quiet.sign])
    return Suspicion(
        kind=Kind.HUNG,
        cause=blamed.cause,
        weight=1.0 if blamed.cause != "no-progress" else 0.5,
        # What a time-out may still end is no sure hang.
        margin=min(1.0 + found.seconds / found.need, math.inf if is_sure else MOST_MARGIN),
        origins=frozenset(origins),
        summary=blamed.text,
        evidence=_list_evidence(found, process, scene),
        observed=frozenset(blamed.needs),
        # A job that was stopped as a whole is resumed at its first rank.
        pid=NOT_APPLICABLE if blamed.is_of_all and blamed.sink is not Sink.STOPPED else seen.thread.pid,
        rank=blamed.gone if blamed.is_of_all else process.rank if process is not None else seen.thread.rank,
        held_ns=scene.frame.taken_ns
        - age_ns(max(quiet.own_s, quiet.cornered_s if blamed.cause == "spin" else 0)),
    )


def _list_origins(found: Weighed, process: ProcessSample | None, scene: Scene) -> Iterator[Origin]:
    """List what shows a hang: the kernel, stacks where they were read, the silence of a log, the freezer."""
    yield Origin.PROC
    if found.picture.looks:
        yield Origin.STACKS
    elif found.blame.sink is Sink.STOPPED and process is not None and is_known(process.frozen):
        yield Origin.CGROUP
    elif found.blame.sink is Sink.UNSEEN:
        known = [rank.phases for rank in scene.ranks if is_known(rank.phases)]
        if len(known) == len(scene.ranks) and all(one.same_place_s >= LEAST_STACK_SPAN_S for one in known):
            yield Origin.STACKS
        if (written_s := log_age_s(scene.frame)) is not None and written_s >= found.seconds:
            yield Origin.LOG


_SIGNS = (
    (LAST_WRITE, log_age_s, Figure.LOG_WRITE),
    (LAST_DATA, connections_age_s, Figure.CONNECTION_DATA),
    (LAST_FILE, file_age_s, Figure.FILE_WRITE),
)


def _list_evidence(found: Weighed, process: ProcessSample | None, scene: Scene) -> tuple[FigureReading, ...]:
    blamed, picture, quiet, seconds = found.blame, found.picture, found.quiet, found.seconds
    age_s = (scene.frame.taken_ns - picture.last_ns) / 1e9
    is_seen = picture.looks > 0
    rows = [show_process(process, scene)] if not is_seen and process is not None else []
    if is_seen:
        rows.append(_show(blamed.seen, picture, age_s))
    if is_seen and blamed.cause in CAUSES:
        on_cards = blamed.cause != "no-progress" and bool(scene.gpus)
        rows += show_calls(scene.watch.calls, picture, scene.frame, seconds, on_cards=on_cards)
    rows += [_show(one, picture, age_s) for one in blamed.also[:3] if is_seen]
    rows += [
        reading_aged(Figure.DEAD_PROCESS, IN_WORDS, age_s, of=one.pid, text=f"{one.name}, {one.how}")
        for one in blamed.dead[:3]
    ]
    if not is_seen and blamed.sink in (Sink.STOPPED, Sink.READ):
        return tuple(rows)  # whatever the others do
    if is_seen:
        text = f"{picture.looks} in {picture.seconds:.0f} s; no thread had moved on"
        rows.append(reading_aged(Figure.LOOKS_AT_THREADS, float(picture.looks), age_s, text=text))
    for sign, read_age_s, figure in _SIGNS:
        signed_s = read_age_s(scene.frame)
        # The sign that dates the hang stands beside the verdict already.
        if signed_s is not None and quiet.sign != sign:
            rows.append(reading_aged(figure, signed_s, 0.0))
    youngest = find_youngest_s(scene.frame)
    if youngest is not None and youngest > seconds:
        rows.append(reading_aged(Figure.WORKER_START, youngest, 0.0))
    rows.append(reading(Figure.NOTHING_MOVED, quiet.cornered_s, scene.frame))
    return tuple(rows)


def _show(seen: ThreadSeen, picture: Picture, age_s: float) -> FigureReading:
    """Show one thread: who, its innermost lines of the program, what it waits for."""
    tail = "" if seen.thread.tid == seen.thread.pid else f", {name_thread(seen)}"
    lines = [say_frame(one) for one in reversed(seen.frames) if is_users(one)][:3]
    trait = picture.trait_of(seen)
    used = f"{100 * trait.used_s / picture.seconds:.0f} % CPU" if trait is not None else ""
    if trait is not None and trait.kernel_ratio >= POLLS_RATIO:
        used += f", {100 * trait.kernel_ratio:.0f} % of it in the kernel"
    name = f"{name_process(seen.thread)} ({seen.thread.pid}){tail}"
    text = ", ".join(filter(None, (" < ".join(lines) or say_place(seen), say_wait(seen.thread), used)))
    return reading_aged(Figure.THREAD_STANDS, IN_WORDS, age_s, of=name, text=text)


_NO_CARD = ("lock", "dead-worker", "lost-batch")
"""Causes that stacks show and that involve no card: they outweigh a card that may only be held open."""


def judge_gpu_lost(scene: Scene) -> Answer:
    """Suspect a card that the driver cannot reach, or that does not answer it, where the run stands."""
    silences = find_silences(scene)
    silence = next((one for one in silences if hangs_on(one, scene)), None)
    found = judge_hang(scene)
    told = isinstance(found, Suspicion) and found.cause in _NO_CARD
    if silence is None or (told and not silence.sure):
        return Cleared(f"lost cards ({'it is not seen that the run stands' if silences else 'none'})")
    index, silent_s, still_s = silence.sample.index, silence.sample.age_s, scene.watch.still_s
    card = next((one for one in scene.gpus if one.last.uuid == silence.sample.uuid), None)
    ranks = ranks_on(card, scene) if card is not None else ()
    rows = [reading(Figure.GPU_SILENT, silent_s, scene.frame, of=index)]
    age_s, stands = scene.frame.ages_s.gpu, still_s >= SILENT_S
    if stands:
        rows.append(reading_aged(Figure.NOTHING_MOVED, still_s, age_s, source="kernel wait and stacks"))
    doubt = f"whether card {index} works in its silence"
    if not silence.sure:
        doubt = f"whether the job computes on card {index}, or only holds it open"
    return Suspicion(
        kind=Kind.HUNG,
        cause="gpu-lost",
        weight=1.0,
        margin=max(1.0, silent_s / HUNG_S),
        origins=frozenset((Origin.DRIVER, *((Origin.PROC, Origin.STACKS) if stands else ()))),
        summary=silence.words,
        evidence=tuple(rows),
        unread=() if silence.sure and silence.sample.state is GpuState.LOST else (doubt,),
        observed=frozenset((Need.CARD_LOST,)),
        pid=ranks[0].pid if ranks else NOT_APPLICABLE,
        rank=ranks[0].rank if ranks else NOT_APPLICABLE,
        card=index,
        held_ns=scene.frame.taken_ns - age_ns(silent_s),
    )


def judge_waits(scene: Scene) -> Answer:
    """Suspect a hang that the graph of waits shows; of what stands for a lost card, the card says more."""
    found, lost = judge_hang(scene), judge_gpu_lost(scene)
    if isinstance(lost, Suspicion) and not (isinstance(found, Suspicion) and found.cause == "stopped"):
        return Cleared(f"hang ({lost.summary})")
    return found


RULES: tuple[Rule, ...] = (judge_waits, judge_gpu_lost)
