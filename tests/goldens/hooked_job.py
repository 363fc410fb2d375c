"""A job of two ranks whose hooks tell their steps: rank 1 comes late, and one step stalled half a minute ago."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tests.any_windows import make_slice
from tests.frames import make_event
from tests.goldens.judged_jobs import STARVES, starved
from tests.goldens.playing import Played, hold, play
from tests.paces import make_hook, make_pace
from tests.paces import with_hooks as put_hooks
from tpmon.model.frame import Event, EventKind, Frame, Pulse
from tpmon.model.hook import HookSample
from tpmon.model.known import is_known
from tpmon.model.text.job_words import state_facts

STALLED_S = 31
STALL_MS = 4_120.0


SECONDS = 75
SHARES = {"data_pct": 58.2, "forward_pct": 11.6, "backward_pct": 24.1, "optimizer_pct": 4.0, "other_pct": 2.1}
TIMES = {"p50_ms": 308.0, "p95_ms": 402.0, "p99_ms": STALL_MS, "longest_ms": STALL_MS, "slowest_ms": 331.0}
RATE_HZ = 3.21


def _read_hooks(at_s: int) -> tuple[HookSample, HookSample]:
    count = 12_480 - round(RATE_HZ * (SECONDS - 1 - at_s))
    one = make_pace(4211, rate_hz=RATE_HZ, samples_hz=102.7, count=count, own_ms=217.0, timed=186, **SHARES, **TIMES)
    other = replace(one, pid=4212, rank=1, own_ms=292.0, p50_ms=309.0)
    return make_hook(4211, pace=one), make_hook(4212, rank=1, pace=other)


@cache
def _hooked() -> Played:
    slices = [make_slice(4211 + n, n, STARVES) for n in (0, 1)]
    frames = [put_hooks(one, *_read_hooks(at)) for at, one in enumerate(hold(starved(), SECONDS, slices))]
    return play([replace(one, facts=_state(one)) for one in frames])


def _state(frame: Frame) -> str:
    target = frame.target
    return state_facts(target.local_ranks, target.local_workers, frame.cpu, frame.gpus, steps=frame.steps)


def hooked() -> Frame:
    """The two ranks that wait for their transforms, with a hook in each."""
    return _hooked().frame


def hooked_events() -> tuple[Event, ...]:
    return (
        make_event("attached to pid 4200: 2 ranks, 4 loader workers", SECONDS - 1, EventKind.ATTACH),
        *_hooked().events,
    )


def stall(pulses: tuple[Pulse, ...]) -> tuple[Pulse, ...]:
    """Let one step of the history take long."""
    if not pulses or not is_known(pulses[-1].step_ms):
        return pulses
    at = len(pulses) - 1 - STALLED_S
    return (*pulses[:at], replace(pulses[at], step_ms=STALL_MS), *pulses[at + 1 :])
