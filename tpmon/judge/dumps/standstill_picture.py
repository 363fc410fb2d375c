"""Judge a hang from a picture of stacks alone: who keeps the ranks, and whether that is decided. Pure.

Where threads stand tells a hang from a slow moment only where they stood there all the time. One look names
whom the others wait for and decides nothing; neither do looks at somebody who computes, sleeps, saves or
is on another machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from tpmon.judge.dumps.describe import Wait
from tpmon.judge.dumps.meant_waits import HANG_AFTER_S, PATIENT, is_meant
from tpmon.judge.dumps.odd_one import divide
from tpmon.judge.dumps.outlier import Scene, Seen
from tpmon.judge.stacks.phases import Phase
from tpmon.model.dump import Motion
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.text.dump_words import name_rank, say_wait
from tpmon.model.units import format_seconds
from tpmon.model.verdict import IN_WORDS, Confidence, Evidence, Finding, Kind, SinceIs

LEAST_LOOKS = 3
SURE_S = 60.0
"""From so long on a picture is trusted more; never fully, it is one source."""
UNDECIDED = Missing("where the threads are does not decide it; tpmon diagnose judges")
NOBODY = Missing("no stack of a rank was read")
_MOVE = Missing("the ranks move")
_SOURCE = "py-spy and /proc, all looks"


@dataclass(frozen=True, slots=True)
class _Suspect:
    """Hold who would be to blame if it stays so; nobody of this picture for a rank elsewhere.

    ``still`` must all stand still for it; ``excuse`` says why it may end by itself, "" for nothing.
    """

    cause: str
    seen: Applicable[Seen]
    text: str
    still: tuple[Seen, ...]
    excuse: str


@dataclass(frozen=True, slots=True)
class Span:
    """Say when the newest look was, how many there were of each process, and the job that they are of."""

    taken: datetime
    looks: int
    pid: int


def judge_scene(scene: Scene, span: Span) -> Known[Finding]:
    """Say what the picture decides; Missing where it names nobody."""
    if not scene.ranks:
        return NOBODY
    suspect = _find_suspect(scene)
    return suspect if isinstance(suspect, Missing) else _find(suspect, scene, span)


def _find_suspect(scene: Scene) -> _Suspect | Missing:
    ranks, several = scene.ranks, _has_hosts(scene)
    stopped = tuple(seen for seen in ranks if seen.is_stopped)
    if stopped:
        first = stopped[0]
        text = f"{name_rank(first.thread, with_host=several)} is {say_wait(first.thread)}"
        return _Suspect("stopped", first, text, stopped[:1], "")
    if dead := _find_dead(scene, with_host=several):
        return dead
    waiting = tuple(seen for seen in ranks if seen.doing.wait is Wait.RANKS)
    if waiting == ranks and scene.remote:
        who = f"all {len(ranks)} ranks here wait" if len(ranks) > 1 else "the rank here waits"
        text = f"{who} for ranks that are elsewhere"
        return _Suspect("remote-rank", NOT_APPLICABLE, text, ranks, "what those do is not in the picture")
    norm, odd = divide(scene)
    if norm is None or not norm.waits_for_ranks or not odd:
        return UNDECIDED
    return _blame_odd(tuple(seen for seen in waiting if seen not in odd), odd, scene)


def _blame_odd(waiting: Sequence[Seen], odd: Sequence[Seen], scene: Scene) -> _Suspect | Missing:
    """Blame the first of the ranks that are not where those that wait are."""
    first = odd[0]
    name = name_rank(first.thread, with_host=_has_hosts(scene))
    if all(seen.motion is Motion.MOVING for seen in waiting):
        return _MOVE
    if first.motion in (Motion.MOVING, Motion.SLOW):
        return Missing(f"{name} moves between the looks while others wait: slow, and so far no hang")
    verb = "waits" if len(waiting) == 1 else "wait"
    others = f", {len(odd) - 1} more not there either" if len(odd) > 1 else ""
    text = f"{len(waiting)} of {scene.local} ranks {verb} for {name} in {first.doing.text}{others}"
    return _Suspect("missing-rank", first, text, (first, *waiting), _excuse(first, waiting))


def _find_dead(scene: Scene, *, with_host: bool) -> _Suspect | None:
    """Find a rank that waits for a batch beside a dead process of its own."""
    for seen in scene.ranks:
        dead = scene.dead_of(seen)
        if dead and seen.doing.wait is Wait.BATCH:
            one, name = dead[0], name_rank(seen.thread, with_host=with_host)
            text = f"{name} waits for a batch, and its process {one.pid} ({one.name}) is dead: {one.how}"
            return _Suspect("dead-worker", seen, text, (seen,), "")
    return None


def _excuse(culprit: Seen, waiting: Sequence[Seen]) -> str:
    """Say why what keeps the ranks may end by itself, "" where nothing speaks for it."""
    phase, thread = culprit.doing.phase, culprit.thread
    if phase in (*PATIENT, Phase.LOGGING):
        return f"{phase.value} may take long"
    if thread.state == "R" or thread.waits_for == "running":
        return "it computes"
    if culprit.doing.wait is Wait.DEVICE:
        return "it waits for its card"
    if thread.waits_for == "sleep":
        return "a sleep ends by itself"
    return "they wait for what one rank does alone" if is_meant(waiting) else ""


def _has_hosts(scene: Scene) -> bool:
    return len({seen.thread.host for seen in scene.ranks}) > 1


def _find(suspect: _Suspect, scene: Scene, span: Span) -> Finding:
    """Write the verdict: hung where all stood still for long enough, else who it would be."""
    stood_s = _stood_s(suspect.still)
    looks, hung = span.looks, f"hung ({suspect.cause})"
    is_hung = not suspect.excuse and looks >= LEAST_LOOKS and stood_s >= HANG_AFTER_S
    if is_hung:
        summary = f"{suspect.text}; nothing of it moved for at least {format_seconds(stood_s)}"
    elif not stood_s:
        why = "one look tells no hang" if looks == 1 else "not all of them stood still"
        summary = f"{why}; if it stays so, {hung}: {suspect.text}"
    else:
        why = suspect.excuse or "too short to tell a hang"
        still = f"still for at least {format_seconds(stood_s)} ({why})"
        summary = f"{still}; if it stays so, {hung}: {suspect.text}"
    seen = suspect.seen
    return Finding(
        kind=Kind.HUNG if is_hung else Kind.NOT_ENOUGH_EVIDENCE,
        cause=suspect.cause if is_hung else NOT_APPLICABLE,
        confidence=Confidence.MEDIUM if is_hung and stood_s >= SURE_S else Confidence.LOW,
        share_pct=NOT_APPLICABLE,
        share_low_pct=NOT_APPLICABLE,
        share_high_pct=NOT_APPLICABLE,
        since=_date_back(span.taken, stood_s),
        since_is=SinceIs.LOWER_BOUND,
        since_source="first look that found it so",
        summary=summary,
        try_=_say_next(suspect, scene, span, is_hung=is_hung),
        also_try=NOT_APPLICABLE,
        ceiling=NOT_APPLICABLE,
        evidence=(
            _row("waits", suspect.text),
            _row("looks at each process", str(looks)),
        ),
        against=(_row("it may end by itself", suspect.excuse),) if suspect.excuse else (),
        ruled_out=(),
        unknown=_list_unknown(scene),
        pid=seen.thread.pid if is_known(seen) else NOT_APPLICABLE,
        rank=seen.thread.rank if is_known(seen) else NOT_APPLICABLE,
        card=NOT_APPLICABLE,
        where=seen.doing.text if is_known(seen) else NOT_APPLICABLE,
    )


def _date_back(taken: datetime, seconds: float) -> datetime:
    """Return the time so long before a look; that of the look where there is no such date."""
    try:
        return taken - timedelta(seconds=seconds)
    except OverflowError:
        return taken


def _stood_s(still: Sequence[Seen]) -> float:
    """Return how long all of them stood still, 0 where that is not known of one."""
    times = [seen.sighting.since_s for seen in still if seen.motion is Motion.FROZEN]
    known = [time for time in times if is_known(time)]
    return min(known) if len(known) == len(still) else 0.0


def _say_next(suspect: _Suspect, scene: Scene, span: Span, *, is_hung: bool) -> str:
    if suspect.cause == "remote-rank":
        return "tpmon dump --job --json on every machine of the job, and tpmon fold on the results"
    seen = suspect.seen
    pid = seen.thread.pid if is_known(seen) else span.pid
    where = f"  # on {seen.thread.host}" if is_known(seen) and _has_hosts(scene) else ""
    if is_hung or suspect.excuse or span.looks >= LEAST_LOOKS:
        return f"tpmon diagnose {pid} --until hung --for 5m{where}"
    return f"tpmon dump {pid} --rounds 3 --every 16{where}"


def _list_unknown(scene: Scene) -> tuple[str, ...]:
    unread = [f"{len(scene.unread)} ranks whose stacks could not be read"] if scene.unread else []
    elsewhere = [f"{scene.remote} ranks that are not in the picture"] if scene.remote else []
    return ("whether steps or the log go on", *unread, *elsewhere)


def _row(name: str, text: str) -> Evidence:
    return Evidence(name, IN_WORDS, "", text, _SOURCE, 0.0)
