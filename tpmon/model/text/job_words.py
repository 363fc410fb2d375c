"""Describe a Frame, its verdict, stopped processes and the pace of a job in shared words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from tpmon.model.frame import NO_STEPS, Frame
from tpmon.model.gpu import GpuSample, list_silent, list_used, may_be_on
from tpmon.model.hook import StepPace, StepRule, list_shares
from tpmon.model.host import CpuSample, LogPace
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or
from tpmon.model.process import EnvironmentSetting, Outcome, ProcessSample, Role
from tpmon.model.units import (
    count_of,
    format_bytes,
    format_moment,
    format_number,
    format_pct,
    format_rate,
    format_seconds,
)
from tpmon.model.verdict import END_CAUSES, Evidence, Finding, Kind, SinceIs, pick_code
from tpmon.model.waits import WaitReason, describe_wait


def say_stop(process: ProcessSample) -> str:
    """Say what keeps a process from running, "" where nothing does.

    A frozen process may be stopped by a signal as well: the freezer is said, SIGCONT alone does nothing then.
    """
    frozen, tracer, wait = process.frozen, process.tracer, process.waits_for
    if is_known(frozen):
        return f"frozen by control group {frozen.group}"
    if process.state == "T":
        return "stopped by a signal"
    if process.state == "t":
        return "held by a debugger" + (f", {tracer.name} ({tracer.pid})" if is_known(tracer) else "")
    # The kernel's own word, where the control group itself cannot be seen.
    return describe_wait(wait) if is_known(wait) and wait.reason is WaitReason.FROZEN else ""


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

    Whether ranks share a batch (tensor and pipeline parallelism) is not known.
    """
    if not is_known(pace.samples_hz) or pace.samples_hz <= 0:
        return ""
    ranks = f", sum of {pace.ranks} ranks" if pace.ranks > 1 else ""
    return f"{format_samples(pace.samples_hz)} samples/s{ranks}"


def _list_times(pace: StepPace) -> list[tuple[str, str]]:
    named = (("50", pace.p50_ms), ("95", pace.p95_ms), ("99", pace.p99_ms))
    return [(name, format_ms(ms)) for name, ms in named if is_known(ms)]


def say_times(pace: StepPace) -> str:
    """Say how long steps take: "p50 311 ms  p95 402 ms  p99 1.2 s"; "" before one was timed."""
    return "  ".join(f"p{name} {time}" for name, time in _list_times(pace))


def say_times_short(pace: StepPace) -> str:
    """Say the same for a narrow line, a shared unit once: "p50/95/99 311/402/460 ms"."""
    known = _list_times(pace)
    if not known:
        return ""
    units = {text.partition(" ")[2] for _, text in known}
    unit = units.pop() if len(units) == 1 else ""
    values = "/".join(text.removesuffix(f" {unit}") for _, text in known)
    return f"p{'/'.join(name for name, _ in known)} {values} {unit}".rstrip()


def say_split(pace: StepPace) -> str:
    """Say where the host's time of a step goes: "data 58 %, forward 12 %, ..."; "" where it is not known."""
    known = ((phase, share) for phase, share in list_shares(pace) if is_known(share))
    return ", ".join(f"{phase.value} {format_pct(share)} %" for phase, share in known)


def say_steps_fact(pace: Known[StepPace]) -> list[str]:
    """Return the facts of the steps for the line of facts; none without a hook."""
    if not is_known(pace):
        return []
    return list(filter(None, (say_rate(pace), "" if is_stalled(pace) else say_samples(pace))))


def say_log_pace(pace: Applicable[LogPace]) -> str:
    """Say how fast the log tells that steps go: "3.21 steps/s (log)", with its age where it is old; or ""."""
    if not is_known(pace):
        return ""
    age = f", {format_seconds(pace.age_s)} old" if pace.is_old else ""
    return f"{say_log_rate(pace)} (log{age})"


def say_log_rate(pace: LogPace) -> str:
    """Say the rate alone, of what the log counts: "3.21 steps/s", "9.4 it/s", "a step in 42 s"."""
    if 0 < pace.rate_hz < SLOW_HZ:
        return f"a {pace.unit} in {format_seconds(1 / pace.rate_hz)}"
    return f"{format_step_rate(pace.rate_hz)} {'steps' if pace.unit == 'step' else pace.unit}/s"


JOIN = " · "
WAITING_FROM = 0.5
"""With fewer runnable threads their waiting share is a share of next to nothing."""


def _silence_fact(gpus: Known[tuple[GpuSample, ...]]) -> str:
    """Say how many of the cards that the job is on, or may be, answer: "1 of 2 cards answers"."""
    cards = list(filter(may_be_on, known_or(gpus, ())))
    answer = len(cards) - len(list_silent(cards))
    if answer == len(cards):
        return ""
    if len(cards) == 1:
        return "the card does not answer"
    return f"{answer or 'none'} of {len(cards)} cards answer{'s' if answer < 2 else ''}"


def _gpu_fact(gpus: Known[tuple[GpuSample, ...]]) -> str:
    busy = [card.sm_pct for card in list_used(known_or(gpus, ())) if is_known(card.sm_pct)]
    if len(busy) < 2:
        return f"GPU {format_pct(busy[0])} % busy" if busy else ""
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
    pace: Applicable[LogPace] = NOT_APPLICABLE,
) -> str:
    """Return the facts line, such as "GPU 41 % busy · 4 workers · 99 % of 2 CPUs · …".

    ``ranks`` and ``workers`` are the living ones of this machine, ``steps`` those that a hook told,
    ``pace`` what the log tells where no hook does.
    """
    told = say_steps_fact(steps) if is_known(steps) else [say_log_pace(pace)]
    facts = [*told, _silence_fact(gpus), _gpu_fact(gpus)]
    if not ranks:
        facts.insert(0, "no rank left" if had_ranks else "no rank yet")
    if ranks > 1:
        facts.append(count_of(ranks, "rank"))
    facts.append(count_of(workers, "worker") if workers else "no loader workers")
    facts.extend(_cpu_facts(cpu))
    return JOIN.join(fact for fact in facts if fact)


_OFF = frozenset(("", "0", "off", "false", "no", "none"))

_EACH_COLLECTIVE = frozenset(("coll", "all"))


def _logs_collectives(value: str, parts: str) -> bool:
    """Tell whether NCCL logs in every step: what it logs by default is its start alone."""
    named = {part.strip() for part in parts.removeprefix("^").split(",")}
    each = not named & _EACH_COLLECTIVE if parts.startswith("^") else bool(named & _EACH_COLLECTIVE)
    return value == "trace" or (value == "info" and each)


_TAXES: tuple[tuple[str, Callable[[str, str], bool], str], ...] = (
    ("CUDA_LAUNCH_BLOCKING", lambda value, _: value not in _OFF, "every kernel launch waits for the GPU"),
    ("TORCH_DISTRIBUTED_DEBUG", lambda value, _: value == "detail", "every collective is checked first"),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", lambda value, _: value not in _OFF, "every tensor costs a cudaMalloc"),
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


_SIGNS = {10: "!", 11: "?", 12: "!!"}
_RECENT_S = 120.0
"""Younger than this, a time of day carries its seconds."""


_OVER = {cause: "FAILED" if cause == END_CAUSES[Outcome.FAILED] else "ENDED" for cause in END_CAUSES.values()}
"""What a job is that is over, by its cause: ``idle`` says little of one that was killed."""


def write_kind(finding: Finding) -> str:
    """Write the verdict word: "DATA-BOUND"; of a job that is over "ENDED" or "FAILED"."""
    over = _OVER.get(known_or(finding.cause, ""), "") if finding.kind is Kind.IDLE else ""
    return over or finding.kind.value.upper()


def name_kind(finding: Finding) -> str:
    """Write the verdict word with its sign: "! DATA-BOUND", "!! HUNG", and "COMPUTE-BOUND" for a calm one."""
    sign = _SIGNS.get(pick_code(finding.kind, finding.cause), "")
    return f"{sign} {write_kind(finding)}".lstrip()


def name_cause(finding: Finding) -> str:
    """Write the cause, its reason where it could not be told, "" for a kind without causes."""
    if isinstance(finding.cause, Missing):
        return f"cause ? {finding.cause.reason}"
    cause = known_or(finding.cause, "")
    return "" if cause.upper() == write_kind(finding) else cause


def join_cause(kind: Kind, cause: Applicable[str]) -> str:
    """Write kind and cause: "data-bound (cpu-transform)"."""
    return f"{kind.value} ({cause})" if is_known(cause) else kind.value


def name_verdict(finding: Finding) -> str:
    """Write kind and cause of a Finding."""
    return join_cause(finding.kind, finding.cause)


def is_undecided(finding: Finding) -> bool:
    """Tell whether the Finding says nothing that could be doubted or have begun."""
    return finding.kind is Kind.NOT_ENOUGH_EVIDENCE


def say_confidence(finding: Finding) -> str:
    """Write how much to trust it: "confidence high"; "" where nothing is claimed."""
    return "" if is_undecided(finding) else f"confidence {finding.confidence.value}"


def _say_span(seconds: float) -> str:
    """Write a duration whose end grows, so coarsely that it seldom changes: 3 s, 40 s, 26 min, 3h12m."""
    if seconds < 10:
        return f"{max(0, int(seconds))} s"
    if seconds < _RECENT_S:
        return f"{10 * int(seconds // 10)} s"
    return f"{int(seconds // 60)} min" if seconds < 5400 else format_seconds(seconds)


def say_since(finding: Finding, now: datetime) -> str:
    """Write since when, short: "since 03:02 (5 min)", "at least 26 min"; "" where nothing is claimed."""
    if is_undecided(finding):
        return ""
    seconds = (now - finding.since).total_seconds()
    span = _say_span(seconds)
    if finding.since_is is SinceIs.LOWER_BOUND:
        return f"at least {span}"
    clock = format_moment(finding.since, now, seconds=seconds < _RECENT_S)
    return f"since {clock} ({span})" if finding.since < now else f"since {clock}"


def say_since_in_full(finding: Finding, now: datetime) -> str:
    """Write since when and what tells it: "at least 26 min (last log write 02:41:11)"."""
    since, source = say_since(finding, now), finding.since_source
    if since and finding.since_is is SinceIs.ONSET:
        return f"{since}, {'onset in the history' if source in ('', 'history') else source}"
    return f"{since} ({source})" if since and source else since


def say_share(finding: Finding) -> str:
    """Write what it costs with its interval: "costs 58 % (54 to 62)"; "" where that is not known."""
    if not is_known(finding.share_pct):
        return ""
    low, high = finding.share_low_pct, finding.share_high_pct
    span = f" ({format_pct(low)} to {format_pct(high)})" if is_known(low) and is_known(high) else ""
    return f"costs {format_pct(finding.share_pct)} %{span}"


def list_try(finding: Finding) -> list[str]:
    """Return what to do, line by line as it is pasted; none where nothing is to be done."""
    tried = finding.try_
    return [f"? {tried.reason}"] if isinstance(tried, Missing) else _list_lines(known_or(tried, ""))


def list_also(finding: Finding) -> list[list[str]]:
    """Return what else may help, each line by line as it is pasted."""
    return list(filter(None, map(_list_lines, known_or(finding.also_try, ()))))


def _list_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def say_ceiling(finding: Finding) -> str:
    """Write what the run gains at most: "Ceiling: 2.4x if all of it goes away"; "" where there is none."""
    ceiling = finding.ceiling
    if isinstance(ceiling, Missing):
        return f"Ceiling: ? {ceiling.reason}"
    return f"Ceiling: {ceiling}" if is_known(ceiling) else ""


def say_value(evidence: Evidence) -> str:
    """Write the value of a reading with its unit, its words where those say it better, or the reason."""
    if evidence.text:
        return evidence.text
    value, unit = evidence.value, evidence.unit
    if isinstance(value, Missing):
        return f"? {value.reason}"
    if unit in ("bytes", "B"):
        return format_bytes(value)
    if unit in ("bytes/s", "B/s"):
        return f"{format_bytes(value)}/s"
    if unit == "s":
        return format_seconds(value)
    if unit == "%":
        return f"{format_pct(value)} %"
    number = format_number(value)
    return f"{number}x" if unit == "x" else f"{number} {unit}".rstrip()


def shorten(texts: tuple[str, ...], most: int) -> str:
    """Join texts by commas up to ``most`` characters, the first at least: "a, b (+3 more)"."""
    whole = ", ".join(texts)
    for count in range(len(texts) - 1, 0, -1):
        if len(whole) <= most:
            return whole
        whole = f"{', '.join(texts[:count])} (+{len(texts) - count} more)"
    if len(texts) > 1 and len(whole) > most:
        rest = f"… (+{len(texts) - 1} more)"
        return texts[0][: max(1, most - len(rest))] + rest
    return whole
