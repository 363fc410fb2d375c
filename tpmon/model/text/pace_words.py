"""Say how a job's steps go, in the words that the screen and the text reports share."""

from __future__ import annotations

from tpmon.model.hook import StepRule
from tpmon.model.known import Known, is_known, known_or
from tpmon.model.pace import StepPace, list_shares
from tpmon.model.units import format_pct, format_rate, format_seconds

STALL_S = 10.0
STALL_FACTOR = 5.0
"""A step that takes so many times the longest of the last minute, and ten seconds, is told as a stall."""
SLOW_HZ = 0.1
"""Below it how long a step takes says more than how many end in a second."""
EVALUATES_PCT = 50.0
"""Share of the span in evaluation from which a loop without steps is said to evaluate."""

RULE_WORDS = {
    StepRule.NONE: "nothing counted yet",
    StepRule.BATCH_AFTER_UPDATE: "batch after update",
    StepRule.UPDATE: "update, no DataLoader",
    StepRule.BATCH_AFTER_BACKWARD: "batch after backward, no torch optimizer",
    StepRule.BATCH: "batches without backward, counted as evaluation",
    StepRule.CALL: "tpmon.hook.step()",
}
"""What ends a step, in words (docs/hook.md)."""


def format_ms(ms: float) -> str:
    """Write a time of a step: "0.42 ms", "31 ms", "4.1 s"."""
    if ms >= 10_000:
        return format_seconds(ms / 1000)
    if ms >= 1000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.2f} ms"


def is_stalled(pace: StepPace) -> bool:
    """Tell whether no step has ended for far longer than any took lately."""
    usual_s = known_or(pace.longest_ms, 0.0) / 1000
    return pace.step_age_s >= max(STALL_S, STALL_FACTOR * usual_s)


def is_evaluating(pace: StepPace) -> bool:
    """Tell whether the loop evaluates and takes no training steps."""
    return pace.rate_hz <= 0 < pace.eval_hz or pace.eval_pct >= EVALUATES_PCT


def say_rate(pace: StepPace) -> str:
    """Say how many steps a second: "3.21 steps/s", "no step for 14 min", "evaluation, 8 batches/s"."""
    if is_stalled(pace):
        return f"no step for {format_seconds(pace.step_age_s)}"
    if is_evaluating(pace):
        return f"evaluation, {format_rate(pace.eval_hz)} batches/s"
    if 0 < pace.rate_hz < SLOW_HZ:
        return f"a step in {format_seconds(1 / pace.rate_hz)}"
    return f"{format_step_rate(pace.rate_hz)} steps/s"


def format_step_rate(rate_hz: float) -> str:
    """Write steps a second so that ranks can be compared: "0.004", "3.21", "48.3", "1250"."""
    digits = 3 if 0 < rate_hz < SLOW_HZ else 2 if rate_hz < 10 else 1 if rate_hz < 100 else 0
    return f"{rate_hz:.{digits}f}"


def format_samples(rate_hz: float) -> str:
    """Write samples a second so that ranks can be compared: "0.4", "12,840"."""
    return f"{rate_hz:,.{1 if rate_hz < 10 else 0}f}"


def say_samples(pace: StepPace) -> str:
    """Say how many samples a second, summed over how many ranks; "" where the hook does not know.

    Whether ranks share a batch (tensor and pipeline parallelism) is not known: so it is told as a sum.
    """
    if not is_known(pace.samples_hz) or pace.samples_hz <= 0:
        return ""
    ranks = f", sum of {pace.ranks} ranks" if pace.ranks > 1 else ""
    return f"{format_samples(pace.samples_hz)} samples/s{ranks}"


def say_times(pace: StepPace) -> str:
    """Say how long steps take: "p50 311 ms  p95 402 ms  p99 1.2 s"; "" before one was timed."""
    named = (("p50", pace.p50_ms), ("p95", pace.p95_ms), ("p99", pace.p99_ms))
    return "  ".join(f"{name} {format_ms(ms)}" for name, ms in named if is_known(ms))


def say_times_short(pace: StepPace) -> str:
    """Say the same for a narrow line, a shared unit once: "p50/95/99 311/402/460 ms"."""
    named = (("50", pace.p50_ms), ("95", pace.p95_ms), ("99", pace.p99_ms))
    known = [(name, format_ms(ms)) for name, ms in named if is_known(ms)]
    if not known:
        return ""
    units = {text.partition(" ")[2] for _, text in known}
    unit = units.pop() if len(units) == 1 else ""
    values = "/".join(text.removesuffix(f" {unit}") for _, text in known)
    return f"p{'/'.join(name for name, _ in known)} {values} {unit}".rstrip()


def say_split(pace: StepPace) -> str:
    """Say where the host's time of a step goes: "data 58 %, forward 12 %, ..."; "" where it is not known."""
    return ", ".join(
        f"{phase.value} {format_pct(share)} %" for phase, share in list_shares(pace) if is_known(share)
    )


def say_steps_fact(pace: Known[StepPace]) -> list[str]:
    """Return the facts of the steps for the line of facts; none without a hook."""
    if not is_known(pace):
        return []
    return [text for text in (say_rate(pace), "" if is_stalled(pace) else say_samples(pace)) if text]
