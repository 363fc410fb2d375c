"""What of a Frame a person pastes into a chat or a ticket."""

from __future__ import annotations

from tpmon.model.frame import Frame
from tpmon.model.known import is_known
from tpmon.model.text.verdict_words import name_verdict, say_confidence, say_since_in_full


def facts_text(frame: Frame) -> str:
    """Write who, when, the verdict and the facts of a Frame as lines to paste into a chat or a ticket."""
    target = frame.target
    lines = [
        f"tpmon {target.pid} {target.script} on {target.host}, {frame.taken.isoformat(timespec='seconds')}",
    ]
    finding = frame.verdict
    if is_known(finding):
        sure = (say_confidence(finding), say_since_in_full(finding, frame.taken))
        lines.append(", ".join([name_verdict(finding), *filter(None, sure)]))
        lines.append(finding.summary)
    lines.append(frame.facts)
    if is_known(target.ended):
        lines.append(f"target ended: {target.ended}")
    lines += [f"note: {note}" for note in frame.notes]
    return "\n".join(lines)
