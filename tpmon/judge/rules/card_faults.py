"""Errors that a card itself reports: remapped rows, ECC, a wanted reset, Xids."""

from __future__ import annotations

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Cleared, Suspicion, Unsure
from tpmon.judge.features.cards import CardScene
from tpmon.judge.features.silent_cards import find_silence, goes_on, hangs_on
from tpmon.judge.features.snapshot import Rule, Scene
from tpmon.judge.rules.cards import answer_without_cards, rank_on
from tpmon.model.gpu import is_card_fault, name_recovery
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known
from tpmon.model.verdict import Evidence, Kind

SILENCE = "NVML"
"""Source of the silence of a card, which it does not report itself."""
_LATER = 0.2
_SERIOUS = 0.5


def _ecc_rise(card: CardScene, scene: Scene) -> int:
    """Return how many uncorrected memory errors came since attaching, or within the history."""
    now = card.last.ecc_uncorrected
    if not is_known(now):
        return 0
    for uuid, first in scene.watch.first_errors:
        if uuid == card.last.uuid:
            return max(0, now - first)
    for frame in scene.history:
        for sample in frame.gpus if is_known(frame.gpus) else ():
            if sample.uuid == card.last.uuid and is_known(sample.ecc_uncorrected):
                return max(0, now - sample.ecc_uncorrected)
    return 0


def _say_old_errors(scene: Scene) -> str:
    """Say which cards had uncorrected memory errors before tpmon looked, "" for none."""
    counts = [(card.index, card.last.ecc_uncorrected) for card in scene.gpus]
    told = [f"card {index}: {count}" for index, count in counts if is_known(count) and count]
    return f"none new; uncorrected memory errors from before: {', '.join(told)}" if told else ""


def _say_unread(scene: Scene) -> str:
    """Say that no row remapping was read, "" where it was: V100 and T4 retire pages, which are not read."""
    for card in scene.gpus:
        rows = card.last.remapped_rows_failed
        if isinstance(rows, Missing):
            return f"; remapped rows and retired pages were not read: {rows.reason}"
    return ""


def _unread_health(card: CardScene) -> Known[bool]:
    """Return why nothing of a card's health was read; cards without ECC have no such figures."""
    last = card.last
    figures = (last.recovery_action, last.remapped_rows_failed, last.ecc_uncorrected)
    missing = [one for one in figures if isinstance(one, Missing)]
    return missing[0] if len(missing) == len(figures) else True


def _complaints(card: CardScene, scene: Scene) -> list[tuple[str, float, str]]:
    """Return what the card reports: words, weight, source."""
    last = card.last
    found = []
    silence = find_silence(card, scene)
    if silence is not None and not hangs_on(silence, scene):
        goes = ", and the run goes on" if goes_on(scene, silence.pids, silence.sample.age_s) else ""
        found.append((f"{silence.words}{goes}", _SERIOUS, SILENCE))
    if is_known(last.recovery_action) and last.recovery_action != 0:
        found.append((f"{name_recovery(last.recovery_action)} wanted", _SERIOUS, "NVML recovery action"))
    if is_known(last.remapped_rows_failed) and last.remapped_rows_failed:
        found.append(("row remapping failed", _SERIOUS, "NVML remapped rows"))
    if is_known(last.remapped_rows_pending) and last.remapped_rows_pending:
        found.append(("a row remapping waits for a reset", _LATER, "NVML remapped rows"))
    rise = _ecc_rise(card, scene)
    if rise:
        found.append((f"{rise} new uncorrected memory errors", _SERIOUS, "NVML ECC"))
    xids = dict.fromkeys(xid for xid in last.xids if is_card_fault(xid))
    if xids:
        found.append((f"Xid {', '.join(map(str, xids))}", _SERIOUS, "NVML events"))
    return found


def judge_unhealthy(scene: Scene) -> Answer:
    """Suspect a card that reports errors of its own: remapping, ECC, a wanted reset, an Xid; or is silent."""
    if not scene.gpus:
        return answer_without_cards(scene)
    told = [(card, words) for card in scene.gpus if (words := _complaints(card, scene))]
    if not told:
        for read in map(_unread_health, scene.gpus):
            if not is_known(read):
                return Unsure(f"errors of the cards ({read.reason})")
        return Cleared(
            f"errors of the cards ({_say_old_errors(scene) or 'none reported'}{_say_unread(scene)})"
        )
    card, words = max(told, key=lambda pair: sum(weight for _, weight, _ in pair[1]))
    age = scene.frame.ages_s.gpu
    silent = [text for text, _, source in words if source == SILENCE]
    reports = "; ".join(text for text, _, source in words if source != SILENCE)
    return Suspicion(
        kind=Kind.GPU_UNHEALTHY,
        cause=NOT_APPLICABLE,
        weight=max(weight for _, weight, _ in words),
        margin=float(1 + len(words)),
        sources=frozenset(source for _, _, source in words),
        summary="; ".join((*silent, f"card {card.index} reports: {reports}") if reports else silent),
        evidence=tuple(
            Evidence(name=f"card {card.index}", value=1.0, unit="", text=text, source=source, age_s=age)
            for text, _, source in words
        ),
        observed=frozenset((Need.CARD_ERRORS,)),
        card=card.index,
        rank=rank_on(card, scene),
    )


RULES: tuple[Rule, ...] = (judge_unhealthy,)
