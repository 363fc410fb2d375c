"""Decide when stacks of the whole job are worth reading, and whether they show a hang. Pure.

A hang needs a picture: several dumps in which nobody moved. For how long is what tpmon saw itself, or what
the log and the connections say about the time before it came.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tpmon.judge.answers.result import (
    Answer,
    Cleared,
    FigureReading,
    Suspicion,
    Unsure,
    reading,
    reading_aged,
)
from tpmon.judge.dumps.outlier import ThreadSeen
from tpmon.judge.features.snapshot import RankScene, Scene, once
from tpmon.judge.features.standstill import (
    TIMED_FACTOR,
    are_ranks_unmoved,
    find_excuse,
    fresh_phase,
    is_unmoved,
    say_still,
    say_unmoved,
    still_s,
    waits_for_batch,
    watched_s,
)
from tpmon.judge.hang.group import may_run_elsewhere
from tpmon.judge.hang.ranks import find_end
from tpmon.judge.hang.sinks import UNSURE, Blame, Goes, Grace, Sink
from tpmon.judge.hang.threads import POLLS_RATIO, name_thread
from tpmon.judge.hang.threads import say_place as say_place_of
from tpmon.judge.stacks.classify import is_users, say_frame
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.clock import (
    LAST_DATA,
    LAST_FILE,
    LAST_WRITE,
    ORIGIN_OF_SIGN,
    OWN_S,
    Quiet,
    connections_age_s,
    file_age_s,
    find_youngest_s,
    see_quiet,
)
from tpmon.judge.watch.picture import LEAST_ROUNDS, Picture, came_late
from tpmon.judge.watch.records import CAUSES, find_waited_s, show_calls
from tpmon.judge.watch.tracker import WatchedTime, age_ns, asks_frozen, describe_still, log_age_s
from tpmon.model.dump import Asker, DumpRequest
from tpmon.model.figures import Figure, Origin
from tpmon.model.frame import TargetState
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.text.dump_words import name_process, say_wait
from tpmon.model.units import format_seconds
from tpmon.model.verdict import IN_WORDS, Kind
from tpmon.model.waits import SOCKETS, WaitReason, is_wait_in

LOOP_OWN_S = 8.0
"""How long tpmon itself must have seen a computing thread not get on, whatever older signs say."""
SOON_S = 2.5
"""The same before it reads the stacks of all processes because of older signs."""
SLOW_S = 300.0
"""How long a checkpoint, validation, load, import or compile may stand still, or a long call compute."""
TRANSFER_S = 1800.0
"""The same where bytes flow or a thread pool computes: a large file or corpus takes as long."""
LOOP_FACTOR = 4.0
"""How many times longer a loop in one place must last than a wait that cannot end."""
MOST_MARGIN = 1.2
"""Margin of a wait that a time-out may end: below that of a high confidence."""
LEAD_S = 10.0
"""How long before the time is up the dumps begin."""
ROUNDS = 3
EVERY_S = 2.5
BUSY_ROUNDS = 6
BUSY_EVERY_S = 1.0
"""Dumps of ranks that run: more of them tell a Python loop from a library call."""
AGAIN_S = 180.0
"""How long after dumps that showed no hang others may be read."""
STALE_S = 600.0
"""How old a picture of a job that still stands may become."""
ANSWER_S = 25.0
"""How long requested dumps may take before they are given up."""

CLOSED_FACTOR = 1.5
"""How many times longer a wait must last that nothing outside of the job can end, whatever its time-out."""
_COMPUTES = (Grace.COMPUTE, Grace.TRANSFER)
_SLOW = (Grace.REMOTE, Grace.SLOW)


def need_s(watch: WatchedTime, grace: Grace) -> float:
    """Return how long nothing may move in a state of this kind."""
    least, asked = watch.hang_after_s, watch.asked_s is not None
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
    if quiet.own_s >= max(SOON_S, least - LEAD_S) or (quiet.own_s >= SOON_S and quiet.outside_s >= least):
        return _ask(scene)
    least = need_s(watch, Grace.SLOW if is_slow else Grace.LOOP)
    late = quiet.cornered_s >= SOON_S and quiet.outside_s >= SLOW_S
    if late or quiet.cornered_s >= max(SOON_S, least - LEAD_S):
        return _ask(scene)
    return NOT_APPLICABLE


def _ask(scene: Scene) -> DumpRequest:
    if any(rank.process.state == "R" for rank in scene.ranks):
        return DumpRequest(Asker.WATCH, rounds=BUSY_ROUNDS, every_s=BUSY_EVERY_S)
    return DumpRequest(Asker.WATCH, rounds=ROUNDS, every_s=EVERY_S)


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
    """Hold a blame with how long it has lasted, and how long it must to be a hang, seconds."""

    blame: Blame
    quiet: Quiet
    seconds: float
    need: float


@once
def judge_hang(scene: Scene) -> Answer:
    """Suspect a hang whose cause the stacks of all processes show."""
    if scene.watch.picture is None:
        return _say_no_picture(scene)
    found = weigh_blame(scene)
    if isinstance(found, str):
        return Cleared(f"hang ({found})")
    if found.seconds < found.need:
        text, seconds = found.blame.text, found.seconds
        return Unsure(f"hang ({text}, for {seconds:.0f} s of the {found.need:.0f} s that it takes)")
    return _suspect(found.blame, found.quiet, scene, found.seconds, found.need)


@once
def weigh_blame(scene: Scene) -> Weighed | str:
    """Return whom the stacks of all processes blame, and for how long; or what shows that nobody hangs."""
    watch, picture = scene.watch, scene.watch.picture
    if picture is None:
        return ""
    found = find_end(scene, picture)
    if isinstance(found, Goes):
        return found.text
    quiet = see_quiet(watch, scene.frame)
    seconds = still_s_at(found, quiet, scene)
    if found.cause in CAUSES and quiet.own_s >= OWN_S:
        recorded_s = _recorded_s(found, quiet, scene)
        if recorded_s > seconds:
            seconds, found = recorded_s, replace(found, origins=(*found.origins, Origin.RECORD))
    return Weighed(found, quiet, seconds, need_s(watch, found.grace))


def still_s_at(found: Blame, quiet: Quiet, scene: Scene) -> float:
    """Return for how long the wait at a sink has lasted, by what tpmon saw and the signs that count there."""
    picture = scene.watch.picture
    circles = picture is not None and _is_loop(found, picture)
    if found.cause == "spin" or circles or found.grace in _COMPUTES:
        return _running_s(quiet, found.grace, circles=circles)
    if found.grace not in _SLOW:
        return quiet.seconds
    awaits = found.cause == "remote-rank" and found.grace is Grace.REMOTE
    awaits = awaits and quiet.own_s >= scene.watch.hang_after_s
    # Then it is not even known which of the ranks is the first of all.
    logs = logs_here(scene) and not (_waits_with_others(found) and may_run_elsewhere(scene))
    return quiet.slow_s(logs=logs, awaits=awaits)


def say_place(scene: Scene) -> str:
    """Say of a job that stands where it does, for whom, since when, and when that is called a hang."""
    watch = scene.watch
    found = weigh_blame(scene)
    if isinstance(found, Weighed):
        text, seconds, sign, need = found.blame.text, found.seconds, found.quiet.sign, found.need
        seconds = max(seconds, found.quiet.own_s)
    else:
        quiet = see_quiet(watch, scene.frame)
        text = found or describe_still(watch, scene.frame)
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


def has_ranks_elsewhere(scene: Scene) -> bool:
    """Tell whether the job has ranks on other machines."""
    world = scene.frame.target.world_size
    return is_known(world) and world > len(scene.ranks)


def logs_here(scene: Scene) -> bool:
    """Tell whether the rank that writes the log of the job, usually rank 0, runs on this machine."""
    return not has_ranks_elsewhere(scene) or any(rank.process.rank == 0 for rank in scene.ranks)


def guess_grace(rank: RankScene, scene: Scene) -> Grace:
    """Say how long a rank may rest by its kernel wait alone, where no stack tells what it does.

    It may have asked a service, or wait for a rank elsewhere that saves alone, or for a thread that uploads.
    """
    if has_ranks_elsewhere(scene) or (len(scene.ranks) > 1 and may_run_elsewhere(scene)):
        return Grace.REMOTE
    if is_known(rank.phases) and len(scene.ranks) == 1 and fresh_phase(rank.phases) is Phase.COMMS:
        return Grace.REMOTE
    waits = waits_for_batch(rank)
    if is_known(rank.phases) or (is_known(waits) and waits):
        return Grace.ENDLESS
    asks = is_wait_in(rank.process.waits_for, SOCKETS | {WaitReason.EPOLL})
    return Grace.SLOW if asks else Grace.TIMED


def find_need_s(scene: Scene) -> float:
    """Return how long a finding must last to be a hang; without a finding, the longest that may be needed."""
    watch, found = scene.watch, weigh_blame(scene)
    if isinstance(found, Weighed):
        return found.need
    least = watch.hang_after_s
    return max((need_s(watch, guess_grace(rank, scene)) for rank in scene.ranks), default=least)


def _is_loop(blame: Blame, picture: Picture) -> bool:
    """Tell whether the main thread of a rank loops in one place, and loads no data there."""
    one = blame.seen
    is_main = one.thread.role is Role.RANK and one.thread.kind is ThreadKind.MAIN
    return is_main and one.doing.phase is not Phase.DATA_WAIT and picture.goes_round(one)


def _running_s(quiet: Quiet, grace: Grace, *, circles: bool) -> float:
    """Return how long a thread that computes, or waits for one that does, has not got on.

    A loop changes lines all the time, whatever it gets from the kernel. A run that writes seldom may be in
    any of its steps, so older signs must be very old here, and do not count for a library call.
    """
    if grace in _COMPUTES:
        return quiet.cornered_s if circles else quiet.own_s
    older = quiet.cornered_s >= LOOP_OWN_S and quiet.outside_s >= SLOW_S
    return max(quiet.cornered_s, quiet.outside_s if older else 0.0)


def _say_no_picture(scene: Scene) -> Answer:
    if is_looking(scene):
        return Unsure("hang (the stacks of all processes are being read)")
    own_s = see_quiet(scene.watch, scene.frame).own_s
    if are_ranks_unmoved(scene):
        if watched_s(scene.watch, scene.frame) < OWN_S:
            return Unsure("hang (tpmon has just attached)")
        if is_unmoved(scene):
            return Unsure(f"hang ({say_unmoved(scene, find_need_s(scene))})")
        return Unsure(f"hang (no rank has moved for {own_s:.0f} s)")
    if own_s < OWN_S:
        return Cleared("hang (the ranks move)")
    return Unsure(f"hang (nothing has moved for {own_s:.0f} s)")


def _suspect(blame: Blame, quiet: Quiet, scene: Scene, seconds: float, need: float) -> Suspicion:
    seen = blame.seen
    process = next((one for one in scene.frame.processes if one.pid == seen.thread.pid), None)
    origins = {Origin.STACKS, Origin.PROC, *blame.origins}
    is_sure = blame.grace not in UNSURE and blame.sink is not Sink.LOCK_FILE
    if quiet.sign and (quiet.sign != LAST_WRITE or logs_here(scene)):
        origins.add(ORIGIN_OF_SIGN[quiet.sign])
    return Suspicion(
        kind=Kind.HUNG,
        cause=blame.cause,
        weight=1.0 if blame.cause != "no-progress" else 0.5,
        # What a time-out may still end is no sure hang.
        margin=min(1.0 + seconds / need, math.inf if is_sure else MOST_MARGIN),
        origins=frozenset(origins),
        summary=blame.text,
        evidence=_list_evidence(blame, quiet, seconds, scene),
        observed=frozenset(blame.needs),
        pid=NOT_APPLICABLE if blame.is_of_all else seen.thread.pid,
        rank=blame.gone if blame.is_of_all else process.rank if process is not None else seen.thread.rank,
        held_ns=scene.frame.taken_ns
        - age_ns(max(quiet.own_s, quiet.cornered_s if blame.cause == "spin" else 0)),
    )


_SIGNS = (
    (LAST_WRITE, log_age_s, Figure.LOG_WRITE),
    (LAST_DATA, connections_age_s, Figure.CONNECTION_DATA),
    (LAST_FILE, file_age_s, Figure.FILE_WRITE),
)


def _list_evidence(blame: Blame, quiet: Quiet, seconds: float, scene: Scene) -> tuple[FigureReading, ...]:
    picture = scene.watch.picture
    if picture is None:
        return ()
    age_s = (scene.frame.taken_ns - picture.last_ns) / 1e9
    rows = [_show(blame.seen, picture, age_s)]
    if blame.cause in CAUSES:
        on_cards = blame.cause != "no-progress" and bool(scene.gpus)
        rows += show_calls(scene.watch.calls, picture, scene.frame, seconds, on_cards=on_cards)
    rows += [_show(one, picture, age_s) for one in blame.also[:3]]
    rows += [
        reading_aged(Figure.DEAD_PROCESS, IN_WORDS, age_s, of=one.pid, text=f"{one.name}, {one.how}")
        for one in blame.dead[:3]
    ]
    rows.append(
        reading_aged(
            Figure.LOOKS_AT_THREADS,
            float(picture.looks),
            age_s,
            text=f"{picture.looks} in {picture.seconds:.0f} s; no thread had moved on",
        )
    )
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
    main = seen.thread.tid == seen.thread.pid
    tail = "" if main else f", {name_thread(seen)}"
    lines = [say_frame(one) for one in reversed(seen.frames) if is_users(one)][:3]
    trait = picture.trait_of(seen)
    used = f"{100 * trait.used_s / picture.seconds:.0f} % CPU" if trait is not None else ""
    if trait is not None and trait.kernel_ratio >= POLLS_RATIO:
        used += f", {100 * trait.kernel_ratio:.0f} % of it in the kernel"
    words = (" < ".join(lines) or say_place_of(seen), say_wait(seen.thread), used)
    name = f"{name_process(seen.thread)} ({seen.thread.pid}){tail}"
    text = ", ".join(word for word in words if word)
    return reading_aged(Figure.THREAD_STANDS, IN_WORDS, age_s, of=name, text=text)
