"""Remember for ten minutes how long a run trained, validated and wrote checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.judge.stacks.phases import Phase
from tpmon.judge.stacks.profile import SliceLook
from tpmon.model.frozen import dataclass

STINTS_SPAN_S = 600.0
MOST_STINTS = 64
MOST_GAP_S = 10.0
PAUSES = (Phase.VALIDATION, Phase.CHECKPOINT)
_NO_RUN = (Phase.IMPORT, Phase.LOAD, Phase.COMPILE, Phase.INPUT)
"""A start, or a person: neither training nor a pause of it."""
_STEPS = (Phase.BACKWARD, Phase.OPTIMIZER)


@dataclass(frozen=True, slots=True)
class Stint:
    """Hold a time in which one rank mostly did one thing: a pause, or (None) the rest of its run.

    Times are CLOCK_MONOTONIC ns. ``validation_s`` and ``checkpoint_s`` are what its samples say, ``steps_s``
    that of backward and optimizer.
    """

    pid: int
    pause: Phase | None
    begun_ns: int
    ended_ns: int
    validation_s: float = 0.0
    checkpoint_s: float = 0.0
    steps_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Return how long it lasted."""
        return (self.ended_ns - self.begun_ns) / 1e9

    def paused_s(self, pause: Phase) -> float:
        """Return how long of it the samples show a pause."""
        return self.validation_s if pause is Phase.VALIDATION else self.checkpoint_s


def _read(look: SliceLook, begun_ns: int) -> Stint:
    """Return what one slice says of the time since the one before."""
    counts: dict[Phase, int] = {}
    for (phase, _), count in look.kinds.items():
        counts[phase] = counts.get(phase, 0) + count
    ended_ns = look.taken.ended_ns
    share_s = (ended_ns - begun_ns) / 1e9 / look.samples
    pause = next((one for one in PAUSES if 2 * counts.get(one, 0) > look.samples), None)
    return Stint(
        look.taken.pid,
        pause,
        begun_ns,
        ended_ns,
        counts.get(Phase.VALIDATION, 0) * share_s,
        counts.get(Phase.CHECKPOINT, 0) * share_s,
        sum(counts.get(one, 0) for one in _STEPS) * share_s,
    )


def follow_stints(stints: tuple[Stint, ...], looks: Sequence[SliceLook], pid: int) -> tuple[Stint, ...]:
    """Add what the new slices of one rank show; another rank, as after a restart, begins anew."""
    if stints and stints[-1].pid != pid:
        stints = ()
    last_ns = stints[-1].ended_ns if stints else 0
    fresh = [one for one in looks if one.taken.pid == pid and one.samples and one.taken.ended_ns > last_ns]
    if not fresh:
        return stints
    found = list(stints)
    for look in sorted(fresh, key=lambda one: one.taken.ended_ns):
        ended_ns = look.taken.ended_ns
        begun_ns = max(last_ns, ended_ns - round((MOST_GAP_S if last_ns else look.taken.seconds) * 1e9))
        idle = sum(count for (phase, _), count in look.kinds.items() if phase in _NO_RUN)
        last_ns = ended_ns
        if 2 * idle > look.samples:
            continue
        new = _read(look, begun_ns)
        if found and found[-1].pause is new.pause and found[-1].ended_ns == begun_ns:
            before = found.pop()
            new = replace(
                new,
                begun_ns=before.begun_ns,
                validation_s=before.validation_s + new.validation_s,
                checkpoint_s=before.checkpoint_s + new.checkpoint_s,
                steps_s=before.steps_s + new.steps_s,
            )
        found.append(new)
    oldest_ns = last_ns - round(STINTS_SPAN_S * 1e9)
    return tuple(one for one in found[-MOST_STINTS:] if one.ended_ns > oldest_ns)
