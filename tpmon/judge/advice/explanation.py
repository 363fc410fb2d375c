"""The shape of an explanation of one row of the table of verdicts."""

from __future__ import annotations

from tpmon.model.frozen import dataclass
from tpmon.model.known import NotApplicable
from tpmon.model.verdict import Kind


@dataclass(frozen=True, slots=True)
class Explanation:
    """Say what a verdict means, what tpmon sees of it, and what it is confused with.

    ``what_to_do`` is for a row without remedies: what a person does then.
    """

    kind: Kind
    cause: str | NotApplicable
    means: str
    sees: str
    confused_with: str
    what_to_do: str = ""
