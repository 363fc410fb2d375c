"""Describe a Frame, stopped processes and the pace of a job in words that several rooms share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpmon.model.frame import Frame
from tpmon.model.gpu import GpuSample, list_silent, list_used, may_be_on
from tpmon.model.hook import StepPace, StepRule, list_shares
from tpmon.model.host import CpuSample
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.process import EnvironmentSetting, ProcessSample, Role
from tpmon.model.units import count_of, format_pct, format_rate, format_seconds


def say_stop(process: ProcessSample) -> str:
    """Say what keeps a process from running, "" where nothing does.

    A frozen process may be stopped by a signal as well: the freezer is said, SIGCONT alone does nothing then.
    """
    frozen, tracer, words = process.frozen, process.tracer, process.waits_for
    if is_known(frozen):
        return f"frozen by control group {frozen.group}"
    if process.state == "T":
        return "stopped by a signal"
    if process.state == "t":
        return (
            f"held by a debugger, {tracer.name} ({tracer.pid})" if is_known(tracer) else "held by a debugger"
        )
    # The kernel's own word, where the control group itself cannot be seen.
    return words if is_known(words) and words.startswith("frozen") else ""


def say_job_stop(frame: Frame) -> str:
    """Say what keeps the first rank that is stopped from running, "" where none is."""
    return next((how for one in frame.processes if one.role is Role.RANK and (how := say_stop(one))), "")


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


JOIN = " · "
NO_RANK_LEFT = "no rank left"
NO_STEPS = Missing("no hook in the training process")
WAITING_FROM = 0.5
"""With fewer runnable threads their waiting share is a share of next to nothing."""


def _silence_fact(gpus: Known[tuple[GpuSample, ...]]) -> str:
    """Say how many of the cards that the job is on, or may be, answer: "1 of 2 cards answers"."""
    cards = list(filter(may_be_on, known_or(gpus, ())))
    silent = len(list_silent(cards))
    if not silent:
        return ""
    answer = len(cards) - silent
    if len(cards) == 1:
        return "the card does not answer"
    return f"{answer or 'none'} of {len(cards)} cards answer{'s' if answer < 2 else ''}"


def _gpu_fact(gpus: Known[tuple[GpuSample, ...]]) -> str:
    if not is_known(gpus):
        return ""
    busy = [card.sm_pct for card in list_used(gpus) if is_known(card.sm_pct)]
    if not busy:
        return ""
    if len(busy) == 1:
        return f"GPU {format_pct(busy[0])} % busy"
    low, high = min(busy), max(busy)
    mean = sum(busy) / len(busy)
    spread = "" if high - low < 5 else f" ({format_pct(low)} to {format_pct(high)})"
    return f"{len(busy)} GPUs {format_pct(mean)} % busy{spread}"


def _cores(cores: float) -> str:
    number = f"{cores:.0f}" if abs(cores - round(cores)) < 0.05 else f"{cores:.1f}"
    return f"{number} CPU" if number == "1" else f"{number} CPUs"


def _cpu_facts(cpu: CpuSample) -> Iterable[str]:
    budget = cpu.budget_cores
    if is_known(cpu.used_cores):
        if is_known(budget) and budget > 0:
            yield f"{cpu.used_cores / budget:.0%} of {_cores(budget)}".replace("%", " %")
        else:
            yield f"{cpu.used_cores:.1f} CPUs used"
    if is_known(cpu.throttled_ratio) and cpu.throttled_ratio > 0.01:
        yield f"throttled by its quota in {cpu.throttled_ratio:.0%} of periods".replace("%", " %")
    if is_known(cpu.runnable) and is_known(budget):
        proof = []
        if is_known(cpu.oversubscription) and cpu.oversubscription >= 0.05:
            proof.append(f"pool {cpu.oversubscription:.1f}x")
        if is_known(cpu.run_delay_ratio) and cpu.runnable >= WAITING_FROM:
            proof.append(f"waiting {100 * cpu.run_delay_ratio:.0f} %")
        inside = f" ({', '.join(proof)})" if proof else ""
        yield f"{cpu.runnable:.1f} runnable on {_cores(budget)}{inside}"


def state_facts(
    ranks: int,
    workers: int,
    cpu: CpuSample,
    gpus: Known[tuple[GpuSample, ...]],
    *,
    had_ranks: bool = False,
    steps: Known[StepPace] = NO_STEPS,
) -> str:
    """Return the facts line, such as "GPU 41 % busy · 4 workers · 99 % of 2 CPUs · …".

    ``ranks`` and ``workers`` are the living ones of this machine; ``had_ranks`` tells whether
    there were ranks before. ``steps`` are those that a hook told.
    """
    facts = [*say_steps_fact(steps), _silence_fact(gpus), _gpu_fact(gpus)]
    if not ranks:
        facts.insert(0, NO_RANK_LEFT if had_ranks else "no rank yet")
    if ranks > 1:
        facts.append(count_of(ranks, "rank"))
    facts.append(count_of(workers, "worker") if workers else "no loader workers")
    facts.extend(_cpu_facts(cpu))
    return JOIN.join(fact for fact in facts if fact)


_OFF = frozenset(("", "0", "off", "false", "no", "none"))

_EACH_COLLECTIVE = frozenset(("coll", "all"))


def _is_on(value: str, _: str) -> bool:
    return value not in _OFF


def _checks_collectives(value: str, _: str) -> bool:
    return value == "detail"


def _logs_collectives(value: str, parts: str) -> bool:
    """Tell whether NCCL logs in every step: what it logs by default is its start alone."""
    named = {part.strip() for part in parts.removeprefix("^").split(",")}
    each = not named & _EACH_COLLECTIVE if parts.startswith("^") else bool(named & _EACH_COLLECTIVE)
    return value == "trace" or (value == "info" and each)


_TAXES = (
    ("CUDA_LAUNCH_BLOCKING", _is_on, "every kernel launch waits for the GPU"),
    ("TORCH_DISTRIBUTED_DEBUG", _checks_collectives, "every collective is checked first"),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", _is_on, "every tensor costs a cudaMalloc"),
    ("NCCL_DEBUG", _logs_collectives, "NCCL logs every collective"),
)


def list_taxes(settings: Sequence[EnvironmentSetting]) -> tuple[str, ...]:
    """Name the debug settings of a start environment that slow training, with what they do."""
    values = {setting.name: setting.value for setting in settings}
    parts = values.get("NCCL_DEBUG_SUBSYS", "").strip().lower()
    return tuple(
        f"{name}={values[name]}: {effect}"
        for name, taxes, effect in _TAXES
        if name in values and taxes(values[name].strip().lower(), parts)
    )
