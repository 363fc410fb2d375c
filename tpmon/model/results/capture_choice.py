"""Choose before a yes what is captured, how many steps, and of which ranks. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tpmon.model.results.capture import CaptureChoice, CaptureKind, CaptureOffers, CaptureStage, CaptureUpdate

STEP_CHOICES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
"""The steps that keys go through; the last is the most that ``tpmon capture`` takes."""

READS = "reads what is known of its price"

Change = Callable[[CaptureChoice, CaptureOffers], CaptureChoice]
"""Turns a choice into the next one of its kind; the same where there is no other."""


def next_kind(choice: CaptureChoice, offers: CaptureOffers) -> CaptureChoice:
    """Choose the kind that comes after this one, of those that can be."""
    order = tuple(CaptureKind)
    at = order.index(choice.kind)
    kinds = offers.kinds()
    after = [kind for kind in (*order[at + 1 :], *order[:at]) if kind in kinds]
    return replace(choice, kind=after[0]) if after else choice


def more_steps(choice: CaptureChoice, _offers: CaptureOffers) -> CaptureChoice:
    """Choose the next larger number of steps."""
    return replace(choice, steps=min((n for n in STEP_CHOICES if n > choice.steps), default=choice.steps))


def fewer_steps(choice: CaptureChoice, _offers: CaptureOffers) -> CaptureChoice:
    """Choose the next smaller number of steps."""
    return replace(choice, steps=max((n for n in STEP_CHOICES if n < choice.steps), default=choice.steps))


def other_ranks(choice: CaptureChoice, offers: CaptureOffers) -> CaptureChoice:
    """Choose all ranks in place of one, or one again."""
    return replace(choice, every=not choice.every and not offers.every)


def plan_anew(update: CaptureUpdate, choice: CaptureChoice) -> CaptureUpdate:
    """Return a talk in which another thing is chosen: what was said before was of something else."""
    return replace(update, stage=CaptureStage.ASKED, line=READS, plan=(), price=(), choice=choice)


def can_be(choice: CaptureChoice, offers: CaptureOffers) -> CaptureChoice:
    """Return the choice, with the first kind that can be where its own cannot, and one rank likewise."""
    kinds = offers.kinds()
    kind = choice.kind if choice.kind in kinds or not kinds else kinds[0]
    return replace(choice, kind=kind, every=choice.every and not offers.every)


def refuse(
    choice: CaptureChoice, instead_of: CaptureChoice, why: str, offers: CaptureOffers
) -> CaptureOffers | None:
    """Take back from the offers what one choice has beyond another, which can be; None for nothing.

    Of two things the kind goes first: the ranks are found out about next.
    """
    if choice.kind is not instead_of.kind:
        return replace(offers, refused=tuple({**dict(offers.refused), choice.kind: why}.items()))
    return replace(offers, every=why) if choice.every and not instead_of.every else None
