"""Decide which readings are marked, write times, and choose what of a Frame is pasted.

Every mark is also a sign or a word in the text, never colour alone. A job that has ended and a session that
stalls give no more Frames, and the last one may be seen days later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from tpmon.model.frame import Frame, TargetState
from tpmon.model.gpu import GpuSample, GpuState, list_used
from tpmon.model.host import CpuSample, MemorySample
from tpmon.model.known import is_known, known_or
from tpmon.model.text.job_words import name_verdict, say_confidence, say_job_stop, say_since_in_full
from tpmon.model.units import count_of, format_bytes, format_moment, format_pct, format_seconds
from tpmon.ui.monitor.state import ViewState
from tpmon.view.cards import card_ink, list_held
from tpmon.view.layout import Ink

OLD_INTERVALS = 3
"""A reading older than three intervals missed two turns."""
QUIET_INTERVALS = {"threads": 4, "stacks": 12}
"""Intervals that a group may be late: threads of quiet processes are read every fifth interval
(docs/metrics.md, "runnable"), and ranks are sampled in turns."""
POOL_RATIO = 1.5
WAITING_RATIO = 0.35
"""Pool demand and waiting share from which more threads cost speed (measured sweep, docs/metrics.md)."""
THROTTLED_RATIO = 0.25
"""Share of throttled quota periods that cost speed in every measured run."""
MEMORY_RATIO = 0.95
SHM_RATIO = 0.5
"""A 64 MB mount failed at 75 %, when the next batch did not fit."""
SHM_SMALL_BYTES = 1 << 30
STEAL_PCT = 5.0


def age_of(view: ViewState, age_s: float) -> float:
    """Return the age of a reading at painting, given its age when its Frame was closed."""
    if not is_known(view.frame):
        return age_s
    now_ns = view.paused_ns if is_known(view.paused_ns) else view.now_ns
    return age_s + max(0.0, (now_ns - view.frame.taken_ns) / 1e9)


def say_ago(view: ViewState, age_s: float) -> str:
    """Write how long ago something was; of a recording it may be later than what is shown."""
    if age_s < 0 and is_known(view.playback):
        return f"{format_seconds(-age_s)} later"
    return f"{format_seconds(max(0.0, age_s))} ago"


def is_old(view: ViewState, age_s: float, group: str = "") -> bool:
    """Tell whether a reading of this age at painting is overdue."""
    turns = OLD_INTERVALS + QUIET_INTERVALS.get(group, 0)
    return age_s > turns * view.interval_s


def is_oversubscribed(cpu: CpuSample) -> bool:
    """Tell whether thread pools want more CPUs than there are and their threads wait for it."""
    return (
        is_known(cpu.oversubscription)
        and cpu.oversubscription >= POOL_RATIO
        and is_known(cpu.run_delay_ratio)
        and cpu.run_delay_ratio >= WAITING_RATIO
    )


def is_crowded(cpu: CpuSample) -> bool:
    """Tell whether more threads want a CPU than there are, and wait for it."""
    if not is_known(cpu.runnable) or not is_known(cpu.run_delay_ratio):
        return False
    budget = known_or(cpu.budget_cores, float(cpu.host_cores))
    return cpu.runnable > budget and cpu.run_delay_ratio >= WAITING_RATIO


def is_throttled(cpu: CpuSample) -> bool:
    """Tell whether the CPU quota held the job back."""
    return is_known(cpu.throttled_ratio) and cpu.throttled_ratio >= THROTTLED_RATIO


def memory_ratio(memory: MemorySample) -> float | None:
    """Return used memory over its limit, None where either is unknown."""
    if not is_known(memory.used_bytes) or not is_known(memory.limit_bytes) or not memory.limit_bytes:
        return None
    return memory.used_bytes / memory.limit_bytes


def is_memory_full(memory: MemorySample) -> bool:
    """Tell whether memory is near its limit or the kernel has killed for it."""
    ratio = memory_ratio(memory)
    killed = is_known(memory.oom_kills) and memory.oom_kills > 0
    return killed or (ratio is not None and ratio >= MEMORY_RATIO)


def is_shm_full(memory: MemorySample) -> bool:
    """Tell whether a small /dev/shm is so full that the next batch may not fit."""
    shm = memory.shm
    return (
        is_known(shm)
        and 0 < shm.total_bytes < SHM_SMALL_BYTES
        and shm.used_bytes / shm.total_bytes >= SHM_RATIO
    )


def tell_most(frame: Frame) -> tuple[str, Ink]:
    """Return the one most telling fact, for the smallest screen."""
    target, cpu, memory = frame.target, frame.cpu, frame.memory
    if target.state is TargetState.ENDED:
        how = target.ended if is_known(target.ended) else "how it ended is not known"
        return how, Ink.GOOD if how.startswith("exit 0") else Ink.BAD
    if target.state is TargetState.STOPPED:
        return say_job_stop(frame) or "stopped by a signal or a debugger", Ink.WARN
    if is_known(memory.oom_kills) and memory.oom_kills:
        return f"{count_of(memory.oom_kills, 'process', 'processes')} killed: out of memory", Ink.BAD
    cards = frame.gpus if is_known(frame.gpus) else ()
    for card in cards:
        # A lost card lists no process; the fault of a card that others use tells little of this job.
        ours = not is_known(card.pids) or card.pids or card.state is GpuState.LOST
        if ours and card_ink(card) is Ink.BAD:
            what = "lost" if card.state is GpuState.LOST else "reports a fault"
            return f"GPU {card.index} {what}", Ink.BAD
    if is_throttled(cpu) and is_known(cpu.throttled_ratio):
        return f"CPU quota throttles {100 * cpu.throttled_ratio:.0f} % of periods", Ink.WARN
    if is_oversubscribed(cpu) and is_known(cpu.oversubscription) and is_known(cpu.run_delay_ratio):
        wait = 100 * cpu.run_delay_ratio
        return f"thread pools {cpu.oversubscription:.1f}x the CPUs, waiting {wait:.0f} %", Ink.WARN
    ratio = memory_ratio(memory)
    if is_memory_full(memory) and ratio is not None:
        return f"memory {100 * ratio:.0f} % of its limit", Ink.WARN
    if is_shm_full(memory) and is_known(memory.shm):
        used, total = memory.shm.used_bytes, memory.shm.total_bytes
        return f"{memory.shm.path} {format_bytes(used)} of {format_bytes(total)}", Ink.WARN
    return _busy_fact(frame, cards)


def _busy_fact(frame: Frame, cards: Sequence[GpuSample]) -> tuple[str, Ink]:
    ours = list_used(cards)
    for card in ours:
        if held := list_held(card):
            return f"GPU {card.index} held down: {held[0]}", Ink.WARN
    busy = [card.sm_pct for card in ours if is_known(card.sm_pct)]
    if busy:
        low, high = format_pct(min(busy)), format_pct(max(busy))
        return f"GPU {low} % busy" if low == high else f"GPUs {low} to {high} % busy", Ink.STRONG
    cpu = frame.cpu
    if is_known(cpu.used_cores) and is_known(cpu.budget_cores) and cpu.budget_cores > 0:
        return f"{100 * cpu.used_cores / cpu.budget_cores:.0f} % of {cpu.budget_cores:g} CPUs", Ink.STRONG
    if is_known(cpu.used_cores):
        return f"{cpu.used_cores:.1f} CPUs used", Ink.STRONG
    return f"CPU use ? {cpu.used_cores.reason}", Ink.WARN


_TELLING_S = 3600.0
"""From this age on a time of day is hard to read as an age."""


def say_moment(view: ViewState, when: datetime) -> str:
    """Write the time of day, or on another day than now date and minute."""
    return format_moment(when, _now_of(view, when))


def say_moment_and_age(view: ViewState, when: datetime) -> str:
    """Write the moment, and from an hour on its age: "Mar 13 23:55 (2d05h ago)"."""
    now = _now_of(view, when)
    age_s = (now - when).total_seconds()
    age = f" ({format_seconds(age_s)} ago)" if age_s >= _TELLING_S else ""
    return f"{format_moment(when, now)}{age}"


def say_moments(view: ViewState, whens: Iterable[datetime]) -> list[str]:
    """Write moments for a column, all equally wide."""
    times = list(whens)
    if not times:
        return []
    now = _now_of(view, max(times))
    said = [format_moment(when, now) for when in times]
    room = max(map(len, said))
    return [one.ljust(room) for one in said]


def _now_of(view: ViewState, otherwise: datetime) -> datetime:
    """Return the wall-clock time at painting, ``otherwise`` before the first Frame."""
    if not is_known(view.frame):
        return otherwise
    return view.frame.taken + timedelta(seconds=age_of(view, 0.0))


def facts_text(frame: Frame) -> str:
    """Write job, time, verdict and facts of a Frame as lines to paste into a chat or a ticket."""
    target = frame.target
    lines = [
        f"tpmon {target.pid} {target.script} on {target.host}, {frame.taken.isoformat(timespec='seconds')}"
    ]
    finding = frame.verdict
    if is_known(finding):
        sure = (say_confidence(finding), say_since_in_full(finding, frame.taken))
        lines.append(", ".join([name_verdict(finding), *filter(None, sure)]))
        lines.append(finding.summary)
    lines.append(frame.facts)
    if is_known(target.ended):
        lines.append(f"target ended: {target.ended}")
    lines += [f"note: {note}" for note in frame.notes]
    return "\n".join(lines)
