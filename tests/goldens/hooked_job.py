"""A job of two ranks whose hooks tell their steps: rank 1 comes late, and one step stalled half a minute ago."""

from __future__ import annotations

from dataclasses import replace

from tests.frames import make_evidence
from tests.goldens.judged_jobs import data_bound
from tests.paces import make_hook, make_pace
from tests.paces import with_hooks as put_hooks
from tpmon.model.facts import state_facts
from tpmon.model.frame import Frame
from tpmon.model.known import is_known
from tpmon.model.window import Pulse

STALLED_S = 31
STALL_MS = 4_120.0


def hooked() -> Frame:
    """The two ranks that wait for their transforms, with a hook in each."""
    plain = data_bound()
    finding = plain.verdict
    assert is_known(finding)
    row = make_evidence("data wait", value=58.0, source="the hook, 32 steps", age_s=0.0)
    finding = replace(finding, evidence=(row, *finding.evidence[1:]), unknown=finding.unknown[:1])
    shares = {
        "data_pct": 58.2,
        "forward_pct": 11.6,
        "backward_pct": 24.1,
        "optimizer_pct": 4.0,
        "other_pct": 2.1,
    }
    times = {
        "p50_ms": 308.0,
        "p95_ms": 402.0,
        "p99_ms": STALL_MS,
        "longest_ms": STALL_MS,
        "slowest_ms": 331.0,
    }
    one = make_pace(
        4211, rate_hz=3.21, samples_hz=102.7, count=12_480, own_ms=217.0, timed=186, **shares, **times
    )
    other = replace(one, pid=4212, rank=1, own_ms=292.0, count=12_480, p50_ms=309.0)
    frame = put_hooks(
        replace(plain, verdict=finding), make_hook(4211, pace=one), make_hook(4212, rank=1, pace=other)
    )
    target = frame.target
    facts = state_facts(target.local_ranks, target.local_workers, frame.cpu, frame.gpus, steps=frame.steps)
    return replace(frame, facts=facts)


def stall(pulses: tuple[Pulse, ...]) -> tuple[Pulse, ...]:
    """Let one step of the history take long."""
    if not pulses or not is_known(pulses[-1].step_ms):
        return pulses
    at = len(pulses) - 1 - STALLED_S
    return (*pulses[:at], replace(pulses[at], step_ms=STALL_MS), *pulses[at + 1 :])
