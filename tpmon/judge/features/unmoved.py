"""Tell of a run that nothing in it has moved since tpmon attached: no verdict of it may need movement. Pure.

What was never seen to move may have stood for an hour or for a second. Until that is known no word is
said of its speed, and none that would rule a hang out.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.judge.answers.result import Answer, Suspicion, Unsure
from tpmon.judge.features.silent_cards import find_silences
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.features.standstill import FIRST_WAIT_S, find_mover, gpus_move
from tpmon.judge.watch.tracker import Watch
from tpmon.model.frame import Frame
from tpmon.model.known import Applicable, is_known
from tpmon.model.units import format_seconds
from tpmon.model.verdict import Kind, pick_code

MORE_S = 10.0
"""How much longer than a hang takes the command looks that is advised: until looks have come."""

SLOW_FACTOR = 2.5
"""How many times longer than others a wait that may end by itself is looked at: hang_watch.NAPS_FACTOR."""
STILL_S = 10.0
"""How long nothing may move before it is said of a run of which nothing else is known."""

SPEEDS = frozenset(
    (
        Kind.BALANCED,
        Kind.COMPUTE_BOUND,
        Kind.DATA_BOUND,
        Kind.PYTHON_BOUND,
        Kind.LAUNCH_BOUND,
        Kind.SYNC_BOUND,
        Kind.COMMS_BOUND,
        Kind.OVERSUBSCRIBED,
        Kind.CPU_THROTTLED,
    )
)
"""Kinds that say what a run spends its steps on: without a step there are none of them."""


FIRST_STEPS = (Kind.STARTING, "first-steps")
"""Steps too: a run that stands from its first second on has none."""


def watched_s(watch: Watch, frame: Frame) -> float:
    """Return for how long tpmon has watched."""
    return (frame.taken_ns - watch.begun_ns) / 1e9 if watch.begun_ns else 0.0


def are_ranks_unmoved(scene: Scene) -> bool:
    """Tell whether no rank was seen to move since the first reading, and no line was written."""
    watch = scene.watch
    return (
        watch.begun_ns > 0
        and bool(scene.ranks)
        and watch.still_ns <= watch.begun_ns + FIRST_WAIT_S * 1e9
        and all(rank.process.state != "R" for rank in scene.ranks)
    )


def is_unmoved(scene: Scene) -> bool:
    """Tell whether nothing of the job has moved since the first reading, as far as can be read."""
    if not are_ranks_unmoved(scene):
        return False
    seconds = watched_s(scene.watch, scene.frame)
    started = any(worker.age_s < seconds for rank in scene.ranks for worker in rank.workers)
    mover, cards = find_mover(scene.frame), gpus_move(scene)
    return not started and mover == "" and cards == ""


def say_unmoved(scene: Scene, need: float) -> str:
    """Say it with what decides: "nothing has moved for the 15 s watched; at most 30 s are needed: --for 40s".

    ``need`` is for how many seconds at most what may be found must last.
    """
    seconds = watched_s(scene.watch, scene.frame)
    words = f"nothing has moved for the {format_seconds(seconds)} watched"
    if seconds >= need:
        return words
    return f"{words}; at most {format_seconds(need)} are needed: --until hung --for {need + MORE_S:.0f}s"


def still_s(scene: Scene) -> float:
    """Return for how long nothing of the job has moved, as tpmon saw it; 0 where something does."""
    watch = scene.watch
    if not watch.still_ns or not scene.ranks or find_mover(scene.frame) != "" or gpus_move(scene) != "":
        return 0.0
    seconds = max(0.0, (scene.frame.taken_ns - watch.still_ns) / 1e9)
    return min(seconds, watched_s(watch, scene.frame))


def say_still(scene: Scene) -> str:
    """Say so where it is not called a hang yet: "nothing has moved for 45 s, too short to call it hung"."""
    seconds = format_seconds(still_s(scene))
    words = f"the {seconds} watched" if is_unmoved(scene) else seconds
    return f"nothing has moved for {words}, too short to call it hung"


def say_longer(scene: Scene, need: float) -> str:
    """Say which command decides, and ends once it has: ``need`` is what it takes at most, in seconds."""
    pid = scene.frame.target.pid
    longer_s = (need if still_s(scene) < need else SLOW_FACTOR * need) + MORE_S
    look = f"tpmon diagnose {pid} --until hung --for {longer_s:.0f}s"
    return f"look longer, and where it stands: {look}; tpmon dump {pid}"


def hold_back(answers: Sequence[Answer], scene: Scene) -> list[Answer]:
    """Take what was said of a run that cannot be known for what it is: not known.

    No run is called well while a card that it is on, or may be, does not answer.
    """
    why = next((one.words for one in find_silences(scene) if one.missed), "")
    return [
        Unsure(f"{_name(one.kind, one.cause)} ({why})")
        if why and isinstance(one, Suspicion) and not one.seen and pick_code(one.kind, one.cause) == 0
        else one
        for one in _hold_back_unmoved(answers, scene)
    ]


def _hold_back_unmoved(answers: Sequence[Answer], scene: Scene) -> list[Answer]:
    """Take what was said of the speed of a run that has not been seen to move for what it is: not known.

    Ranks that wait for each other do so in each step, or for ever: of those that have stopped moving it is
    not known which. A wait for data may be as long as its reads.
    """
    if is_unmoved(scene):
        why, held = "nothing has moved since tpmon attached", SPEEDS
    elif still_s(scene) >= STILL_S:
        why, held = f"nothing has moved for {format_seconds(still_s(scene))}", frozenset((Kind.COMMS_BOUND,))
    else:
        return list(answers)
    return [
        Unsure(f"{_name(one.kind, one.cause)} ({why})")
        if isinstance(one, Suspicion)
        and (one.kind in held or (held is SPEEDS and (one.kind, one.cause) == FIRST_STEPS))
        else one
        for one in answers
    ]


def _name(kind: Kind, cause: Applicable[str]) -> str:
    return f"{kind.value} {cause}" if is_known(cause) else kind.value
