"""What is right to say of a recorded program, as its recording carries it, and whether that was said."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.programs.causes.running import NOT_JUDGED, Verdict
from tests.programs.causes.table import HEALTHY, TENANTS, Label
from tests.verdicts.matrix import find_onset
from tpmon.model.known import is_known, known_or
from tpmon.model.results.recording import VerdictSpan
from tpmon.model.verdict import Finding, Kind

NOT_HUNG = "not hung"
"""The label of a program that is slow, but alive: it says no more."""
_LABEL = re.compile(r"([\w-]+)(?: \(([\w-]+)\))?")


@dataclass(frozen=True, slots=True)
class Truth:
    """Hold what is right to say, the best first; ``cause`` is "" where any is. No label at all: that it does not hang."""

    labels: tuple[Label, ...]

    @property
    def is_healthy(self) -> bool:
        """Tell whether nothing may be accused at any second."""
        return bool(self.labels) and self.labels[0] in HEALTHY

    def accepts(self, kind: str, cause: str) -> bool:
        if not self.labels:
            return kind != Kind.HUNG.value
        beside = (TENANTS,) if self.is_healthy else ()
        return any(label.fits(kind, cause) for label in (*self.labels, *beside))

    def forbids(self, verdict: Verdict) -> bool:
        """Tell whether a verdict is wrong at whatever second it is given."""
        if not self.labels:
            return verdict.kind == Kind.HUNG.value
        return self.is_healthy and verdict.accuses and not self.accepts(verdict.kind, verdict.cause)

    @property
    def kind(self) -> str:
        return self.labels[0].kind.value if self.labels else NOT_HUNG

    def __str__(self) -> str:
        return " | ".join(map(_write_label, self.labels)) or NOT_HUNG


def _write_label(label: Label) -> str:
    return f"{label.kind.value} ({label.cause})" if label.cause else label.kind.value


def parse_truth(text: str) -> Truth:
    """Read a label back; ValueError for anything else."""
    if text == NOT_HUNG:
        return Truth(())
    labels = []
    for part in text.split(" | "):
        found = _LABEL.fullmatch(part)
        if found is None:
            raise ValueError(f"no label: {text!r}")
        labels.append(Label(Kind(found[1]), found[2] or ""))
    return Truth(tuple(labels))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Hold how the verdicts of one recording fit its truth.

    ``onset_s``: from when on every verdict was right; -1 where the last was not. ``forbidden`` are verdicts that
    are wrong at any second.
    """

    last: Verdict
    right: bool
    onset_s: float
    forbidden: tuple[str, ...]


def assess(truth: Truth, verdicts: Sequence[Verdict]) -> Outcome:
    """Compare verdicts, oldest first, with the truth."""
    forbidden = tuple(dict.fromkeys(str(one) for one in verdicts if truth.forbids(one)))
    last = verdicts[-1]
    right = truth.accepts(last.kind, last.cause) and not forbidden
    return Outcome(last, right, find_onset(truth, list(verdicts)) if right else -1.0, forbidden)


def read_finding(finding: object, after_s: float) -> Verdict:
    """Name kind and cause of a Finding; whatever else it is says that nothing was judged."""
    if not isinstance(finding, Finding):
        return Verdict(NOT_JUDGED, "", after_s)
    return Verdict(finding.kind.value, known_or(finding.cause, ""), after_s)


def read_spans(spans: Iterable[VerdictSpan]) -> list[Verdict]:
    """Turn the spans of a recording into verdicts, each at its beginning."""
    listed = list(spans)
    return [
        Verdict(
            one.kind.value if is_known(one.kind) else NOT_JUDGED,
            known_or(one.cause, ""),
            (one.from_ns - listed[0].from_ns) / 1e9,
        )
        for one in listed
    ]
