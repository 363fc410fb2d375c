"""Damp a verdict that flickers: one that was left and is back soon must last before it is stated again. Pure.

A run at a threshold crosses it again and again, and each crossing may last longer than any cause needs to be
stated. What never was part of the flicker is stated as ever.
"""

from __future__ import annotations

from dataclasses import replace

from tpmon.judge.answers.result import Key
from tpmon.judge.hysteresis import AT_ONCE, Standing

FLICKER_S = 30.0
"""A verdict that took the place of another one, and gave it back sooner, was flicker."""
DAMPED_S = 60.0
"""How long what flickered must be ahead all the time before it is stated again."""
CALM_S = 300.0
"""How long after the last flicker changes are damped."""


def damp(before: Standing, after: Standing, now_ns: int) -> Standing:
    """Return ``after``, with the verdict of ``before`` where the new one only flickers."""
    old, new = before.stated, after.stated
    if old == new:
        return replace(after, pending=None)
    if _is_urgent(old) or _is_urgent(new):
        return replace(after, pending=None, stated_ns=now_ns, previous=None)
    flickers = after.flickers if now_ns < after.damped_ns else frozenset()
    if new in flickers and old is not None:
        begun_ns = before.pending_ns if before.pending == (new,) else now_ns
        if now_ns - begun_ns < DAMPED_S * 1e9:
            return replace(
                after,
                stated=old,
                lost_ns=before.lost_ns,
                pending=(new,),
                pending_ns=begun_ns,
                flickers=flickers,
            )
    damped_ns = after.damped_ns
    short = now_ns - after.stated_ns < FLICKER_S * 1e9
    if short and after.previous == (new,):
        damped_ns = now_ns + round(CALM_S * 1e9)
    if short and now_ns < damped_ns:
        flickers |= {old, new}
    return replace(
        after, pending=None, stated_ns=now_ns, previous=(old,), damped_ns=damped_ns, flickers=flickers
    )


def _is_urgent(key: Key | None) -> bool:
    return key is not None and key[0] in AT_ONCE
