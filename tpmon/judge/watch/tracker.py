"""Track how long each rank has stood still, beyond the Window.

A rank stands still while its main thread's wait does not change, or while all its stack samples are the same.
CPU and GPU use do not matter: a wait for other ranks or for the card may spin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpmon.judge.dumps.camps import say_where, see_threads, set_scene
from tpmon.judge.dumps.collectives import judge_collectives
from tpmon.judge.dumps.merge import Sighting
from tpmon.judge.stacks.classify import find_users
from tpmon.judge.stacks.profile import main_stacks
from tpmon.judge.watch.picture import Corner, Picture, choose_rounds, draw_picture, find_corner
from tpmon.judge.watch.servers import find_server, shows_training
from tpmon.judge.watch.stints import Stint
from tpmon.model.dump import DumpRound, DumpThread, Motion
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass, replace
from tpmon.model.hook import HookSample, HookState, StepPace
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, Why, is_known, known_or
from tpmon.model.process import ProcessSample, Role, ThreadKind
from tpmon.model.results.collectives import Collectives
from tpmon.model.text.job_words import say_stop
from tpmon.model.waits import FILES, QUEUES, SOCKETS, WaitReason, is_wait, is_wait_in

MOST_AGE_S = 366 * 86_400.0
HOOK = "hook"


def list_hooks(frame: Frame) -> tuple[HookSample, ...]:
    """Return the running hooks; one that turned itself off says nothing."""
    return tuple(one for one in known_or(frame.hook, ()) if one.state is HookState.RUNNING)


def hook_unread(frame: Frame) -> tuple[str, ...]:
    """Say that a hook may exist and was not read; () for a job without one."""
    hook = frame.hook
    if isinstance(hook, Missing) and hook.why is not Why.ABSENT:
        return (f"what a hook tells ({hook.reason})",)
    return ()


def find_hook(frame: Frame, pid: int) -> HookSample | None:
    """Return the hook of one process, None where it has none."""
    return next((one for one in list_hooks(frame) if one.pid == pid), None)


def find_pace(frame: Frame, pid: int) -> Known[StepPace]:
    """Return the pace of one rank's steps."""
    hook = find_hook(frame, pid)
    if hook is not None:
        return hook.pace
    return frame.hook if isinstance(frame.hook, Missing) else Missing("this rank has no hook")


def event_age_s(frame: Frame) -> float | None:
    """Return how long ago any rank's loop last began or ended a batch, a backward or an update.

    None without a hook; exact also for the time before tpmon attached.
    """
    ages = [one.phase_s for one in list_hooks(frame) if is_known(one.phase_s)]
    return min(max(min(ages), 0.0), MOST_AGE_S) if ages else None


def last_event_ns(frame: Frame) -> int:
    """Return the CLOCK_MONOTONIC ns of that event, 0 without a hook."""
    age_s = event_age_s(frame)
    return frame.taken_ns - round(age_s * 1e9) if age_s is not None else 0


def longest_step_s(frame: Frame) -> float:
    """Return the longest step of any rank in the last minute: the run came back from it."""
    paces = [one.pace for one in list_hooks(frame)]
    return max((known_or(one.longest_ms, 0.0) / 1000 for one in paces if is_known(one)), default=0.0)


def last_stepped(frame: Frame) -> StepPace | None:
    """Return the pace of the rank that stepped last, None where none is known."""
    paces = [one.pace for one in list_hooks(frame) if is_known(one.pace)]
    return min((one for one in paces if is_known(one)), key=lambda one: one.step_age_s, default=None)


STOPPED_S = 4.0
MOST_LOST = 8
LONGEST_STEP_S = 3.0
LONGEST_STEP_INTERVALS = 1.5


def longest_reading_s(interval_s: float) -> float:
    """Return the longest gap between two Frames that counts as watched throughout."""
    return max(LONGEST_STEP_S, LONGEST_STEP_INTERVALS * interval_s)


def is_stopped(process: ProcessSample) -> bool:
    """Tell whether a signal, a debugger or the freezer holds a process."""
    return say_stop(process) != ""


HANG_AFTER_S = 30.0
RHYTHM_FACTOR = 2.0
MOST_HANG_AFTER_S = 600.0
LEAST_PAUSE_S = 2.0
STACK_FRESH_S = 45.0
KEPT_ROUNDS = 6
KEPT_S = 60.0
MOVED_DEMAND = 0.05
WORKS_DEMAND = 0.3
MOVED_SINCE_S = 1.5

_OUTSIDE = (SOCKETS - {WaitReason.UNIX_SOCKET}) | QUEUES | FILES
"""Waits that no process which a rank started itself can end, other than a loader's."""
_TICKING = frozenset((WaitReason.TIMED_LOCK, WaitReason.SLEEP, WaitReason.RUNNING))
"""Waits that a loop repeats: one that is younger than the newest stack belongs to the same loop."""


def age_ns(seconds: float) -> int:
    """Convert an age to ns, limited to 0 to ``MOST_AGE_S``."""
    return round(min(max(seconds, 0.0), MOST_AGE_S) * 1e9)


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Hold since when one rank stands where it is, CLOCK_MONOTONIC ns; 0: it moves, or that is not known.

    ``stack_ns``: since when ``stack`` was the only one seen. ``corner_ns``: since when it was seen only in
    one function and the standard library below it.
    """

    pid: int
    start_ticks: int
    wait_ns: int = 0
    stack: Corner | None = None
    stack_ns: int = 0
    corner: Corner | None = None
    corner_ns: int = 0
    seen_ns: int = 0
    ticks: bool = True
    """It runs, or asks for a lock or naps again and again: its waits say nothing."""
    begun_ns: int = 0
    """When it was first read."""
    ran_ns: int = 0
    """When its main thread last worked, beyond what a poll takes."""
    moved_ns: int = 0
    """When it was last seen in a new wait or another stack, 0 for never."""
    trained: bool = False
    """A stack of it was in a part of a step that a server never runs."""
    trained_in_thread: bool = False
    """So was a thread that still runs the loop: a web page with a button is a server again after that."""
    left_ns: int = 0
    back_ns: int = 0
    """When tpmon last paused, and when it read the rank again: a change lies anywhere between the two."""

    def still_ns(self, now_ns: int) -> int:
        """Return since when it stands still; now if it moves."""
        fresh = self.stack is not None and self._is_told_by_stacks(now_ns)
        # A loop over results shows the same stack each time, and each result ends a wait.
        stack_ns = self.stack_ns if self.ticks or not self.stack_ns else max(self.stack_ns, self.moved_ns)
        since = [one for one in (self.wait_ns, stack_ns if fresh else 0) if one]
        return min(since, default=now_ns)

    def _is_told_by_stacks(self, now_ns: int) -> bool:
        """Tell whether the newest stack is still true: the thread has begun no other wait since."""
        return now_ns - self.seen_ns <= STACK_FRESH_S * 1e9 and (self.ticks or self.wait_ns <= self.seen_ns)

    def cornered_ns(self, now_ns: int) -> int:
        """Return the same, with looping in one function of the program counted as standing still."""
        fresh = self.corner is not None and self._is_told_by_stacks(now_ns)
        return min(self.still_ns(now_ns), self.corner_ns) if fresh else self.still_ns(now_ns)


@dataclass(frozen=True, slots=True)
class WatchedTime:
    """Hold what the hang watch remembers; times are CLOCK_MONOTONIC ns.

    ``asked_s`` is the time that the user gave, None where the run's rhythm decides. ``still_ns``: since when
    no rank moved and no line was logged; ``cornered_ns`` counts a rank that loops in one function as still,
    too. ``longest_s`` is the longest such pause that ended.
    """

    asked_s: float | None = None
    may_ask: bool = False
    """Stacks of all processes may be read without a request."""
    begun_ns: int = 0
    ranks: tuple[RankMemory, ...] = ()
    numbers: frozenset[int] = frozenset()
    """All rank numbers ever seen here."""
    still_ns: int = 0
    cornered_ns: int = 0
    longest_s: float = 0.0
    circled_s: float = 0.0
    """The longest pause that ended at another line of the function in which the ranks still loop."""
    rounds: tuple[DumpRound, ...] = ()
    picture: Picture | None = None
    calls: Collectives | None = None
    """The job's own records of its collectives, read after the dumps of the picture."""
    served: int = 0
    """PID of the process that waits for requests in the last picture, 0 for none."""
    looked_ns: int = 0
    """When it last asked for dumps."""
    first_errors: tuple[tuple[str, int], ...] = ()
    """The lowest count of uncorrected memory errors of each card since attaching, by UUID."""
    taken_ns: int = 0
    interval_s: float = 0.0
    """When the last Frame was taken, and after which interval."""
    left_ns: int = 0
    back_ns: int = 0
    """The last Frame before tpmon itself last paused (suspend, a pager), and the first after it; 0: never."""
    least_still_ns: int = 0
    least_cornered_ns: int = 0
    """Lower bounds of ``still_ns`` and ``cornered_ns``: a pause of tpmon is no pause of the run."""
    stopped_since_ns: int = 0
    stopped_ns: int = 0
    """Since when a rank is stopped or frozen, 0 for none; and when one was last seen so."""
    lost_s: tuple[float, ...] = ()
    """How long each stop of a rank, or pause of tpmon, lasted; the newest ``MOST_LOST``, newest last."""
    stepped: bool = False
    stints: tuple[Stint, ...] = ()
    """What the first rank did in the last ten minutes: trained, validated, wrote checkpoints."""

    @property
    def trained(self) -> bool:
        """Tell whether any rank was seen in a step, by its stacks or by a hook."""
        return self.stepped or any(one.trained or one.trained_in_thread for one in self.ranks)

    @property
    def moved_ns(self) -> int:
        """Return when any rank last got on; 0 for never."""
        return max((one.moved_ns for one in self.ranks), default=0)

    @property
    def watched_s(self) -> float:
        """Return how long tpmon has watched."""
        return self._age_s(self.begun_ns)

    @property
    def still_s(self) -> float:
        """Return for how long no rank was seen to move, whatever the cards do; 0 where that is not known."""
        return self._age_s(self.still_ns)

    @property
    def cornered_s(self) -> float:
        """Return the same, with a rank that loops in one function counted as still."""
        return self._age_s(self.cornered_ns)

    def _age_s(self, at_ns: int) -> float:
        return max(0.0, (self.taken_ns - at_ns) / 1e9) if at_ns else 0.0

    @property
    def rhythm_s(self) -> float:
        """Return how long it may stand still, by the longest pause that it came back from."""
        return RHYTHM_FACTOR * self.longest_s

    @property
    def hang_after_s(self) -> float:
        """Return how long nothing may move, in a state that does not end by itself."""
        if self.asked_s is not None:
            return self.asked_s
        return min(max(HANG_AFTER_S, self.rhythm_s), MOST_HANG_AFTER_S)


NO_WATCH = WatchedTime()


def _note_stacks(one: RankMemory, stacks: Sequence[Corner], begun_ns: int, ended_ns: int) -> RankMemory:
    """Note what one slice or one dump saw of the main thread."""
    if one.ticks and begun_ns > one.ran_ns and not any(map(shows_training, stacks)):
        # A poll looks around below its line, and hardly runs: only its own clock moves it.
        stacks = [taken[: find_users(taken) + 1] or taken for taken in stacks]
    only = stacks[0] if len(set(stacks)) == 1 else None
    corner = find_corner(stacks)
    stack_ns = one.stack_ns if only is not None and only == one.stack else begun_ns
    corner_ns = one.corner_ns if corner is not None and corner == one.corner else begun_ns
    # A resting thread is judged by its waits: the library that waits looks around now and then.
    moved = one.ticks and _differs(only, one.stack) and _differs(corner, one.corner)
    # What changed while tpmon paused may have changed at once.
    seen_ns = ended_ns if one.seen_ns >= one.back_ns else one.left_ns
    return replace(
        one,
        stack=only,
        stack_ns=stack_ns if only is not None else 0,
        corner=corner,
        corner_ns=corner_ns if corner is not None else 0,
        seen_ns=max(one.seen_ns, ended_ns),
        moved_ns=max(one.moved_ns, seen_ns) if moved else one.moved_ns,
    )


def _differs(now: Corner | None, before: Corner | None) -> bool:
    """Tell whether a thread was seen at several places, in these stacks or compared to those before."""
    return now is None or (before is not None and now != before)


def _note_looks(one: RankMemory, frame: Frame) -> RankMemory:
    for taken in known_or(frame.stacks, ()):
        stacks = [stack.frames for stack in main_stacks(taken)] if taken.pid == one.pid else []
        if stacks:
            trains = any(map(shows_training, stacks))
            if is_known(taken.loop_tid):
                one = replace(one, trained_in_thread=one.trained_in_thread or trains)
            else:
                one = replace(one, trained=one.trained or trains, trained_in_thread=False)
            begun_ns = taken.ended_ns - round(taken.seconds * 1e9)
            one = _note_stacks(one, stacks, begun_ns, taken.ended_ns)
    for look in known_or(frame.rounds, ()):
        own = [process for process in look.processes if process.pid == one.pid]
        threads = own[0].threads if own and own[0].start_ticks == one.start_ticks else ()
        main = next((thread for thread in threads if thread.kind is ThreadKind.MAIN), None)
        if main is not None and is_known(main.frames) and main.frames:
            one = _note_stacks(one, (main.frames,), look.taken_ns, look.taken_ns)
    return one


def _see_demand(process: ProcessSample) -> tuple[float, float]:
    """Return the share of the reading that a main thread had a CPU, at most, and that it wanted one.

    Its demand includes waiting for a CPU, which is known only for the process as a whole.
    """
    mains = [group.runnable for group in process.thread_groups if group.kind is ThreadKind.MAIN]
    wanted = sum(known_or(one, 0.0) for one in mains)
    ran, waited = process.runnable, process.waiting
    if not mains or not all(map(is_known, mains)) or not is_known(ran) or not is_known(waited):
        return 0.0, wanted
    return min(wanted, max(0.0, ran - waited)), wanted


def asks_frozen(process: ProcessSample, frame: Frame) -> bool:
    """Tell whether a rank can get nothing from what it started: a process rests at a lock, and none runs.

    It may ask them again and again, over a pipe of its own or of a manager: only its own clock moves it then.
    """
    if is_wait_in(process.waits_for, _OUTSIDE):
        return False
    started = (one for one in frame.processes if one.rank_pid == process.pid)
    below = [one for one in started if one.role in (Role.HELPER, Role.WORKER)]
    frozen = any(one.threads == 1 and is_wait(one.waits_for, WaitReason.LOCK) for one in below)
    ran = (known_or(one.runnable, 0.0) - known_or(one.waiting, 0.0) for one in below)
    return frozen and all(one < MOVED_DEMAND for one in ran)


def _note_rank(before: RankMemory | None, process: ProcessSample, frame: Frame) -> RankMemory:
    if before is None or before.start_ticks != process.start_ticks:
        before = RankMemory(process.pid, process.start_ticks, begun_ns=frame.taken_ns)
    unchanged = process.waits_unchanged_s
    rests = process.state != "R" and is_known(unchanged)
    wait = process.waits_for
    # "running" in state S: it woke up while it was read, like a thread that asks for a lock 200 times a
    # second. Its wait is not known then: it is no new wait, and no end of the pause before it.
    ticks = not rests or is_wait_in(wait, _TICKING) or asks_frozen(process, frame)
    wait_ns, moved_ns = 0, before.moved_ns
    ran, wanted = _see_demand(process)
    worked = ran >= MOVED_DEMAND
    # The first readings have no rates: a wait as old as they are was not seen to begin.
    first_ns = max(before.begun_ns, before.back_ns) + round(MOVED_SINCE_S * 1e9)
    if rests:
        wait_ns = frame.taken_ns - age_ns(known_or(unchanged, 0.0))
        # A thread that worked and waits for the same again has got on, however few its switches are.
        if not ticks and worked:
            wait_ns = frame.taken_ns
        if not ticks and 0 < before.wait_ns < wait_ns and wait_ns >= before.back_ns:
            moved_ns = max(moved_ns, wait_ns if wait_ns > first_ns else before.left_ns)
        wait_ns = max(wait_ns, moved_ns)
    # One that wanted to work is no poll either: others may have the CPUs.
    ran_ns = frame.taken_ns if worked or wanted >= WORKS_DEMAND else before.ran_ns
    one = replace(before, wait_ns=wait_ns, ticks=ticks, moved_ns=moved_ns, ran_ns=ran_ns)
    return _note_looks(one, frame)


def describe_still(watch: WatchedTime, frame: Frame) -> str:
    """Say where the ranks stand by the stacks that were sampled; "" where one has none, or moves."""
    processes = {one.pid: one for one in frame.processes}
    seen = [
        sight(processes[one.pid], one.stack)
        for one in watch.ranks
        if one.stack is not None and one.pid in processes
    ]
    if not seen or len(seen) < len(watch.ranks):
        return ""
    return say_where(set_scene(see_threads(seen), frame.target.world_size))


def sight(process: ProcessSample, frames: Corner) -> Sighting:
    """Make what a dump would show of a main thread that stands; ``frames`` may not be known, ()."""
    unread = Missing("no dump was read")
    thread = DumpThread(
        host="",
        pid=process.pid,
        tid=process.pid,
        role=process.role,
        rank=process.rank,
        worker=process.worker,
        rank_pid=process.rank_pid,
        name="MainThread",
        kind=ThreadKind.MAIN,
        state=process.state,
        wchan=process.wchan,
        call=process.syscall,
        waits_for=process.waits_for,
        waits_on=NOT_APPLICABLE,
        cpu_s=unread,
        delay_s=unread,
        cpu_pct=unread,
        delay_pct=unread,
        frozen=process.frozen,
    )
    return Sighting(thread, frames, Motion.FROZEN, unread)


def log_age_s(frame: Frame) -> float | None:
    """Return how long ago the job last wrote to its log, None where no log is a file."""
    return min((one.last_write_age_s for one in frame.output if is_known(one.last_write_age_s)), default=None)


def _leave_out_gap(watch: WatchedTime, frame: Frame) -> WatchedTime:
    """Leave out the time in which tpmon itself paused: it shows neither standstill nor movement."""
    # A key may have changed the interval since the last Frame.
    longest_s = longest_reading_s(max(frame.interval_s, watch.interval_s))
    gap_ns = frame.taken_ns - watch.taken_ns - round(longest_s * 1e9)
    if not watch.taken_ns or gap_ns <= 0:
        return watch
    left_ns, back_ns = watch.taken_ns, frame.taken_ns
    still_ns, cornered_ns = watch.still_ns + gap_ns, watch.cornered_ns + gap_ns
    return replace(
        watch,
        begun_ns=watch.begun_ns + gap_ns,
        ranks=tuple(replace(one, left_ns=left_ns, back_ns=back_ns) for one in watch.ranks),
        still_ns=still_ns,
        cornered_ns=cornered_ns,
        least_still_ns=still_ns,
        least_cornered_ns=cornered_ns,
        left_ns=left_ns,
        back_ns=back_ns,
        lost_s=(*watch.lost_s, gap_ns / 1e9)[-MOST_LOST:],
    )


def _note_stop(watch: WatchedTime, living: Iterable[ProcessSample], now_ns: int) -> WatchedTime:
    """Note a stopped rank: such a run does not pause by itself. A short stop by a debugger ends no pause."""
    if not any(map(is_stopped, living)):
        return replace(watch, stopped_since_ns=0) if watch.stopped_since_ns else watch
    since_ns = watch.stopped_since_ns or watch.taken_ns or now_ns
    before = watch.lost_s[:-1] if watch.stopped_since_ns else watch.lost_s
    stopped_s = (now_ns - since_ns) / 1e9
    return replace(
        watch,
        stopped_since_ns=since_ns,
        stopped_ns=now_ns if stopped_s >= STOPPED_S else watch.stopped_ns,
        lost_s=(*before, stopped_s)[-MOST_LOST:],
    )


def observe(watch: WatchedTime, frame: Frame) -> WatchedTime:
    """Add one Frame to the memory."""
    now_ns = frame.taken_ns
    watch = _leave_out_gap(watch, frame)
    old = {one.pid: one for one in watch.ranks}
    living = [one for one in frame.processes if one.role is Role.RANK and one.state not in ("Z", "X")]
    ranks = tuple(_note_rank(old.get(one.pid), one, frame) for one in living)
    still_ns = max((one.still_ns(now_ns) for one in ranks), default=now_ns)
    cornered_ns = max((one.cornered_ns(now_ns) for one in ranks), default=now_ns)
    written, event_ns = log_age_s(frame), last_event_ns(frame)
    # Whatever stacks and waits show: a loop that reports an event did not stand still then.
    signed_ns = max(event_ns, now_ns - age_ns(written) if written is not None else 0)
    still_ns, cornered_ns = max(still_ns, signed_ns), max(cornered_ns, signed_ns)
    # A picture stays true while tpmon pauses, unless the waits show movement.
    true_ns = cornered_ns
    still_ns, cornered_ns = max(still_ns, watch.least_still_ns), max(cornered_ns, watch.least_cornered_ns)
    numbers = frozenset(one.rank for one in living if is_known(one.rank))
    born = {(one.pid, one.start_ticks) for one in watch.ranks}
    is_same = not living or any((one.pid, one.start_ticks) in born for one in living)
    # If none of them was there before, the job has started anew, perhaps with fewer ranks.
    numbers |= watch.numbers if is_same else frozenset()
    same = watch.still_ns and old.keys() == {one.pid for one in ranks}
    # A rank that was stopped did not pause by itself.
    paused_s = (still_ns - max(watch.still_ns, watch.stopped_ns)) / 1e9 if same else 0.0
    movers = [one for one in ranks if one.still_ns(now_ns) > watch.still_ns]
    circles = bool(same) and cornered_ns <= watch.cornered_ns and all(one.ticks for one in movers)
    longest_s = max(watch.circled_s, paused_s)
    ended_s = 0.0 if circles or longest_s < LEAST_PAUSE_S else longest_s
    # The longest lost time that may lie within a step, by ends known to a reading each, is no part of it.
    blur_s = 2 * longest_reading_s(max(frame.interval_s, watch.interval_s))
    step_s = longest_step_s(frame)
    step_s -= max((one for one in watch.lost_s if one <= step_s + blur_s), default=0.0)
    watch = _note_stop(watch, living, now_ns)
    watch = replace(
        watch,
        begun_ns=watch.begun_ns or now_ns,
        ranks=ranks,
        numbers=numbers,
        still_ns=still_ns,
        cornered_ns=cornered_ns,
        longest_s=max(watch.longest_s, ended_s, step_s),
        circled_s=longest_s if circles else 0.0,
        first_errors=_note_errors(watch.first_errors, frame),
        taken_ns=now_ns,
        interval_s=frame.interval_s,
        stepped=event_ns > 0 or (is_same and watch.stepped),
    )
    return _take_records(_take_rounds(watch, frame, true_ns), frame)


def _note_errors(first: tuple[tuple[str, int], ...], frame: Frame) -> tuple[tuple[str, int], ...]:
    """Keep the lowest count of each card: a reloaded driver starts at 0 again."""
    counts = dict(first)
    for card in known_or(frame.gpus, ()):
        if is_known(card.ecc_uncorrected):
            counts[card.uuid] = min(counts.get(card.uuid, card.ecc_uncorrected), card.ecc_uncorrected)
    return tuple(counts.items())


def _take_rounds(watch: WatchedTime, frame: Frame, moved_ns: int) -> WatchedTime:
    """Add the dumps of a Frame, draw a picture of the newest, and drop one from before ``moved_ns``."""
    if frame.rounds is not NOT_APPLICABLE and is_known(frame.rounds):
        kept = [
            one for one in (*watch.rounds, *frame.rounds) if frame.taken_ns - one.taken_ns <= KEPT_S * 1e9
        ][-KEPT_ROUNDS:]
        chosen = choose_rounds(kept)
        picture = draw_picture(chosen, frame.target.world_size) if chosen else watch.picture
        watch = replace(watch, rounds=tuple(kept), picture=picture)
        if picture is not None:
            served = find_server(frame, picture, trained=watch.trained)
            watch = replace(watch, served=served.thread.pid if served is not None else 0)
    picture = watch.picture
    if picture is not None and moved_ns > picture.first_ns + MOVED_SINCE_S * 1e9:
        return replace(watch, picture=None)
    return watch


def _take_records(watch: WatchedTime, frame: Frame) -> WatchedTime:
    """Keep the job's records of its collectives for as long as the picture is true."""
    if watch.picture is None:
        return replace(watch, calls=None) if watch.calls is not None else watch
    if is_known(frame.collectives):
        judged = judge_collectives((frame.collectives,), frame.target.world_size, {})
        return replace(watch, calls=judged)
    return watch
