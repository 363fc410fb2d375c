"""Say the facts of a Frame in one line, and the settings that tax a run. Concludes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpmon.model.card_use import list_silent, list_used, may_be_on
from tpmon.model.gpu import GpuSample
from tpmon.model.host import CpuSample
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.pace import StepPace
from tpmon.model.process import Setting
from tpmon.model.text.pace_words import say_steps_fact
from tpmon.model.units import count_of, format_pct

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


def list_taxes(settings: Sequence[Setting]) -> tuple[str, ...]:
    """Name the debug settings of a start environment that slow training, with what they do."""
    values = {setting.name: setting.value for setting in settings}
    parts = values.get("NCCL_DEBUG_SUBSYS", "").strip().lower()
    return tuple(
        f"{name}={values[name]}: {effect}"
        for name, taxes, effect in _TAXES
        if name in values and taxes(values[name].strip().lower(), parts)
    )
