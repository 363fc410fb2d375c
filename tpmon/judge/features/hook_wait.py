"""Join what a rank's hook measured of its wait for data with what was sampled from outside. Pure.

The hook's figure is exact where torch's DataLoader makes the batches: the time inside its next().
Sampled stacks also see copies that the program makes of a batch afterwards, so they may tell more.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from tpmon.judge.features.data_wait import DataWait
from tpmon.judge.stacks.phase_shares import Share
from tpmon.judge.watch.hook_progress import HOOK
from tpmon.model.hook import StepRule
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.pace import StepPace
from tpmon.model.text.pace_words import is_evaluating, is_stalled

AGREES_RATIO = 0.10
"""How far outside of a sampled interval the exact share may lie: the spans of the two differ."""
LEAST_STEPS = 3
"""Steps in the hook's span below which one slow batch would be a share."""

_BATCHES = (StepRule.BATCH_AFTER_UPDATE, StepRule.BATCH_AFTER_BACKWARD, StepRule.CALL)
"""Rules of loops whose batches come from torch's DataLoader; without one, fetching counts as forward."""


def exact_wait(pace: Known[StepPace]) -> Known[float]:
    """Return the share (0-1) of a step that waits for its batch, Missing where the hook cannot tell."""
    if not is_known(pace):
        return pace
    if pace.rule not in _BATCHES:
        return Missing("the loop has no DataLoader of torch")
    if is_stalled(pace) or is_evaluating(pace):
        return Missing("no training steps lately")
    steps = pace.rate_hz * pace.span_s
    if not is_known(pace.data_pct) or steps < LEAST_STEPS - 0.5:
        return Missing(f"{steps:.0f} steps so far")
    if pace.rule is StepRule.CALL and pace.data_pct <= 0:
        return Missing("the loop may have no DataLoader of torch")
    return pace.data_pct / 100


def join_hook(wait: Known[DataWait], pace: Known[StepPace]) -> Known[DataWait]:
    """Put the exact share in the place of the sampled one; where less was measured than sampled, beside it.

    ``told`` keeps what each source says, so that a rule counts only those that agree.
    """
    exact = exact_wait(pace)
    if not is_known(exact) or not is_known(pace):
        return wait
    share = Share(exact, exact, exact, round(pace.rate_hz * pace.span_s))
    if not is_known(wait):
        return DataWait(share, MappingProxyType({}), frozenset((HOOK,)), exact, {HOOK: exact})
    told = dict(wait.told) or dict.fromkeys(wait.sources, wait.share.ratio)
    told[HOOK] = exact
    sources = wait.sources | {HOOK}
    if exact < wait.share.low - AGREES_RATIO:
        return replace(wait, sources=sources, told=told)
    return replace(wait, share=share, sources=sources, surest_low=max(wait.surest_low, exact), told=told)
