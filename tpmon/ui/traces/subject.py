"""The screen of traces: its tabs, the file, its verdict or the effect of a change."""

from __future__ import annotations

import os
from typing import ClassVar

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.results.trace import JobVerdict, TraceComparison, TraceFile, TraceReport
from tpmon.model.units import clean_text
from tpmon.model.verdict import EXIT_CODES, Kind, VerdictCode
from tpmon.ui.kit.keys import Words
from tpmon.ui.traces.state import AnyTab, Head, Tab, TabAnswer
from tpmon.ui.traces.tabs import has_data, list_tab
from tpmon.view.blocks import Block
from tpmon.view.layout import Ink, Item, cut
from tpmon.view.trace import name_rank, name_verdict
from tpmon.view.trace_blocks import list_changes, name_result

TRACE_TABS: tuple[Tab, ...] = tuple(tab for tab in Tab if tab is not Tab.AGAINST)
_WORDS = (
    ("self", "without the operators right inside of it", "without what is inside"),
    ("occ.", "est. achieved occupancy as kineto wrote it; recomp.: recomputed", "occupancy as written"),
    ("est. SM", "est. SM efficiency: blocks per SM of what runs, at most 1", "blocks per SM, at most 1"),
    ("n/a", "the trace does not hold what this needs", "not in the trace"),
)


@dataclass(frozen=True, slots=True)
class TraceSubject:
    """Hold the analysis of traces, and the comparison of the first one with another."""

    report: TraceReport
    comparison: Applicable[TraceComparison] = NOT_APPLICABLE
    words: ClassVar[Words] = _WORDS

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the files."""
        return tuple(file.path for file in self.report.files)

    @property
    def tabs(self) -> tuple[AnyTab, ...]:
        """Return the tabs; the comparison is the last one."""
        return (*TRACE_TABS, Tab.AGAINST) if is_known(self.comparison) else TRACE_TABS

    @property
    def first_tab(self) -> AnyTab:
        """Return the tab for what was asked for: the comparison, several ranks, or one trace."""
        if is_known(self.comparison):
            return Tab.AGAINST
        return Tab.RANKS if is_known(self.report.ranks) else Tab.OVERVIEW

    def list_blocks(self, file: int, tab: AnyTab) -> list[Block]:
        """Return the blocks of a tab."""
        if tab is Tab.AGAINST and is_known(self.comparison):
            return list_changes(self.comparison)
        return list_tab(self.report, file, tab) if isinstance(tab, Tab) else []

    def has_data(self, file: int, tab: AnyTab) -> bool:
        """Tell whether a trace holds anything for a tab."""
        if tab is Tab.AGAINST:
            return is_known(self.comparison)
        return isinstance(tab, Tab) and has_data(self.report.files[file], self.report.ranks, tab)

    def head(self, file: int) -> Head:
        """Return the name of the trace, and the length of its steps."""
        shown = self.report.files[file]
        overview = shown.overview
        cards = [card.name for card in overview.gpus if is_known(card.name)]
        count = overview.judged_steps or overview.repeats
        noun = ("step" if overview.steps else "repeat") + ("" if count == 1 else "s")
        usual = "usual " if overview.judged_steps < overview.steps else ""
        steps = f"{usual}{count} {noun} of {overview.step_ms:,.1f} ms" if count else "no steps marked"
        left = (
            Item(6, "tpmon trace", Ink.TITLE),
            Item(3, name_rank(shown)),
            Item(5, cut(cards[0], 30) if cards else "CPU only"),
            Item(8, f"on {shown.host}" if is_known(shown.host) else ""),
            Item(9, shown.versions),
        )
        right = [Item(2, steps, Ink.STRONG)]
        if is_known(self.comparison):
            before = cut(clean_text(os.path.basename(self.comparison.before)), 30)
            right.append(Item(7, f"against {before}"))
        lost = shown.lost
        if lost.events or lost.bytes or lost.broken_off:
            right.append(Item(2, "! not whole", Ink.WARN))
        rank = f"rank {shown.rank}" if is_known(shown.rank) else "trace"
        return Head(left, tuple(right), rank, f"{overview.step_ms:,.1f} ms" if count else "no steps")

    def answer(self, file: int, tab: AnyTab) -> TabAnswer:
        """Return what slows the run, or on the tab of the comparison whether the change helped."""
        if tab is Tab.AGAINST and is_known(self.comparison):
            return _answer_change(self.comparison)
        if tab is Tab.RANKS and is_known(self.report.job):
            return _answer_job(self.report.job)
        return _answer_run(self.report.files[file], tab)


def _mark(kind: Kind) -> tuple[str, Ink]:
    return ("! ", Ink.WARN) if EXIT_CODES[kind] == VerdictCode.HELD else ("", Ink.GOOD)


def _answer_job(job: JobVerdict) -> TabAnswer:
    """Return what holds the job, and who waits for whom."""
    sign, ink = _mark(job.kind)
    items = (
        Item(0, f"{sign}{name_verdict(job)}", ink),
        Item(1, f"the others wait for rank {job.late}" if is_known(job.late) else "", Ink.STRONG),
        Item(2, f"{job.share_pct:.1f} % of the step", Ink.STRONG),
    )
    texts = (job.summary, *([f"Try: {job.try_}"] if is_known(job.try_) else []))
    return TabAnswer(tuple(one for one in items if one.text), f"{sign}{job.kind.value.upper()}", ink, texts)


def _answer_run(file: TraceFile, tab: AnyTab) -> TabAnswer:
    verdict = file.verdict
    sign, ink = _mark(verdict.kind)
    items = [
        Item(0, f"{sign}{name_verdict(verdict)}", ink),
        Item(1, f"{verdict.share_pct:.1f} % of the window", Ink.STRONG),
    ]
    if is_known(verdict.second):
        items.append(Item(2, f"second: {verdict.second}", Ink.DIM))
    texts = (verdict.summary, *(f"Try: {one}" for one in verdict.advice[:1]))
    return TabAnswer(
        tuple(items), f"{sign}{verdict.kind.value.upper()}", ink, texts if tab is Tab.OVERVIEW else ()
    )


def _answer_change(comparison: TraceComparison) -> TabAnswer:
    """Return whether the change helped, with its noise, or why that is unknown."""
    word, ink = name_result(comparison)
    items = [Item(0, word, ink)]
    if is_known(comparison.helped):
        low, high = comparison.ratio_low, comparison.ratio_high
        noise = f" (95 %: {low:.2f} to {high:.2f})" if is_known(low) and is_known(high) else ""
        items.append(Item(1, f"{comparison.ratio:.2f}x{noise}", Ink.STRONG))
    elif comparison.differences:
        items.append(Item(1, clean_text(comparison.differences[0]), Ink.STRONG))
    else:
        items.append(Item(1, comparison.helped.reason, Ink.STRONG))
    steps = f"{comparison.before_ms:,.3f} -> {comparison.after_ms:,.3f} ms"
    if is_known(comparison.helped) and comparison.unchecked:
        names = [name.partition(" (")[0] for name in comparison.unchecked]
        items.append(Item(2, f"if {' and '.join(names)} are the same", Ink.STRONG))
    items.append(Item(3, f"step {steps}", Ink.DIM))
    brief = f"{items[1].text}, {steps}"
    before = clean_text(os.path.basename(comparison.before))
    return TabAnswer(tuple(items), word, ink, (brief, f"against {before}"))
