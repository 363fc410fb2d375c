"""The situations that the goldens show, each as a Frame with its history.

Numbers are written by hand after real runs (two gloo ranks on two cores; the 8-card node of the
cost measurements); ``tests/goldens/pictures.py`` writes the Frames and the pictures beside this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tests.frames import make_pulses
from tests.goldens import judged_jobs as judged
from tests.goldens.gpu_node import eight_gpus, eight_gpus_events
from tests.goldens.playing import hold, play
from tests.goldens.small_jobs import attach_event, ended, ended_events, no_workers, two_ranks, two_ranks_events
from tests.goldens.unreadable_job import other_user
from tpmon.model.frame import Event, Frame, Pulse
from tpmon.model.known import Missing

STATES: dict[str, tuple[Callable[[], Frame], Callable[[], tuple[Event, ...]]]] = {
    "two-ranks": (two_ranks, two_ranks_events),
    "eight-gpus": (eight_gpus, eight_gpus_events),
    "no-workers": (no_workers, attach_event),
    "oversubscribed": (judged.oversubscribed, attach_event),
    "ended": (lambda: play([*hold(two_ranks(), 30), ended()]).frame, ended_events),
    "other-user": (lambda: play([other_user()]).frame, attach_event),
    "data-bound": (lambda: judged.data_bound().frame, lambda: judged.data_bound().events),
    "hung": (lambda: judged.hung().frame, judged.hung_events),
    "compute-bound": (judged.compute_bound, eight_gpus_events),
    "undecided": (judged.undecided, attach_event),
    "starting": (judged.starting, attach_event),
    "hooked": (lambda: judged.hooked().frame, judged.hooked_events),
    "paced": (lambda: judged.paced().frame, lambda: judged.paced().events),
    "gpu-throttled": (judged.gpu_throttled, eight_gpus_events),
    "straggler": (judged.straggler, attach_event),
    "memory-growth": (judged.memory_growth, attach_event),
}
NARROW = ("straggler", "memory-growth")
"""Situations that are painted for a side pane only."""


def history_of(state: str, frame: Frame) -> tuple[Pulse, ...]:
    """Return the history of a situation: what was recorded, else a wave that ends at its Frame."""
    return judged.data_bound_history() if state == "data-bound" else shape_history(frame)


def shape_history(frame: Frame) -> tuple[Pulse, ...]:
    """Give a Frame two minutes of history that a person can check: a wave that ends at its values."""

    def wave(second: int) -> float:
        return 1.0 - 0.35 * abs(math.sin((119 - second) / 7)) if second >= 40 else 0.4

    waves = tuple(
        replace(
            pulse,
            step_ms=_scale(pulse.step_ms, 0.9 + 0.1 * wave(second)),
            used_cores=_scale(pulse.used_cores, wave(second)),
            runnable=_scale(pulse.runnable, wave(second)),
            empty_ratio=_scale(pulse.empty_ratio, wave(second)),
            run_delay_ratio=_scale(pulse.run_delay_ratio, wave(second)),
            gpu_pct=tuple(_scale(one, wave(second)) for one in pulse.gpu_pct),
        )
        for second, pulse in enumerate(make_pulses(frame, 120))
    )
    return judged.slow_down(judged.stall(waves))


def _scale(value: float | Missing, factor: float) -> float | Missing:
    return value if isinstance(value, Missing) else value * factor
