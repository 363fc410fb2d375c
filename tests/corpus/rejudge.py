"""Judge recordings again, tell where that differs from what was recorded, and whether it is right by their labels.

Run: ``make rejudge``, over tests/recordings; ``make rejudge RECORDINGS_IN=DIR`` also over a folder that
``make recordings`` wrote. Exit 1 where a verdict is wrong that was right as it was recorded, and where this very
version of tpmon judges its own recording in another way. Of the programs of reports.py and own_reports.py a table says more: whether the
culprit is named, and how the first remedy fits.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tests.corpus.matrix import read_notes
from tests.corpus.own_reports import BY_NAME
from tests.corpus.reports import Advice, Fit, assess_advice
from tests.corpus.truth import Outcome, Truth, assess, parse_truth, read_finding
from tests.programs.causes.running import ROOT
from tpmon import __version__
from tpmon.record.recording import Recording
from tpmon.record.rejudge import Rejudged, list_changes, rejudge
from tpmon.record.schema import SUFFIX

COMMITTED = ROOT / "tests/recordings"
ADVICE_HEAD = ("program | said | first remedy | not right", "---|---|---|---")


@dataclass(frozen=True, slots=True)
class Again:
    """Hold one recording: its truth, what was right as it was recorded, and what is now.

    ``differs`` counts Frames with another verdict, in any word or digit; ``changes`` say which kind, cause or
    confidence became which, and when.
    """

    path: Path
    truth: Truth
    version: str
    recorded: Outcome
    now: Outcome
    frames: int
    differs: int
    changes: tuple[str, ...]
    advice: Advice | None

    @property
    def is_worse(self) -> bool:
        return self.recorded.right and not self.now.right

    @property
    def breaks_its_word(self) -> bool:
        """Tell whether the version that recorded it judges it in another way."""
        return self.version == __version__ and self.differs > 0


def judge_again(path: Path) -> Again:
    """Judge one recording again; UsageError where it cannot be read."""
    with Recording(str(path)) as recording:
        judged = [one for one in rejudge(recording) if one.counts]
        truth, version = parse_truth(recording.label), recording.subject.version
    begun_ns = judged[0].moment.wall_ns
    recorded, now = (
        assess(truth, [read_finding(found, (one.moment.wall_ns - begun_ns) / 1e9) for one, found in pairs])
        for pairs in ([(one, one.recorded) for one in judged], [(one, one.again.verdict) for one in judged])
    )
    changes = tuple(map(_say_change, list_changes(iter(judged))))
    differs = sum(not one.is_equal for one in judged)
    advice = assess_advice(BY_NAME.get(read_notes(path)["program"]), judged[-1].again.verdict)
    return Again(path, truth, version, recorded, now, len(judged), differs, changes, advice)


def _say_change(one: Rejudged) -> str:
    at = datetime.fromtimestamp(one.moment.wall_ns / 1e9).astimezone()
    return f"{at:%H:%M:%S}: {_name(one.recorded)} -> {_name(one.again.verdict)}"


def _name(finding: object) -> str:
    confidence = getattr(finding, "confidence", None)
    return f"{read_finding(finding, 0.0)}{f', {confidence.value}' if confidence else ''}"


def write_confusion(found: Iterable[Again]) -> list[str]:
    """Return a line for each true kind: how often which kind was said in the end."""
    counts: dict[str, Counter[str]] = {}
    for one in found:
        counts.setdefault(one.truth.kind, Counter())[one.now.last.kind] += 1
    return [f"{kind}: {', '.join(f'{said} {n}' for said, n in counts[kind].most_common())}" for kind in sorted(counts)]


def write_advice(found: Iterable[Again]) -> list[str]:
    """Return the table of the programs after reports as lines, and their counts below it; nothing without any."""
    pairs = [(one, one.advice) for one in found if one.advice is not None]
    if not pairs:
        return []
    lines = [*ADVICE_HEAD]
    for one, advice in sorted(pairs, key=lambda pair: (pair[1].row.kind, pair[1].row.full_name)):
        row, faults = advice.row, [] if one.now.right else [f"it is {str(one.truth).replace('|', 'or')}"]
        faults += ["culprit not named"] if row.place and not advice.names_culprit else []
        faults += [advice.fit.value] if advice.fit not in (Fit.RIGHT, Fit.NONE) else []
        cells = (row.full_name, str(one.now.last), advice.remedy or "-", ", ".join(faults))
        lines.append(" | ".join(cells).rstrip())
    fits = Counter(advice.fit for _, advice in pairs)
    named = sum(advice.names_culprit for _, advice in pairs if advice.row.place)
    right = sum(one.now.right for one, _ in pairs)
    remedies = ", ".join(f"{fit.value} {fits[fit]}" for fit in Fit)
    return [
        *lines,
        "",
        f"{len(pairs)} reports: {right} verdicts right, {named} name the culprit; first remedy: {remedies}",
    ]


def list_recordings(folders: Sequence[Path]) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.glob(f"*{SUFFIX}"))]


def report(found: Sequence[Again]) -> None:
    for one in found:
        for change in one.changes:
            print(f"{one.path.name} {change}")
        if one.differs and not one.changes:
            print(f"{one.path.name}: {one.differs} of {one.frames} Frames differ in words or digits alone")
    for one in found:
        if not one.now.right:
            was = "was right as recorded" if one.is_worse else "as recorded" if not one.differs else "was wrong before"
            extra = f", at times {', '.join(one.now.forbidden)}" if one.now.forbidden else ""
            print(f"WRONG {one.path.name}: it is {one.truth}, said: {one.now.last}{extra}; {was}")
    print("\n".join(["", *write_confusion(found), "", *write_advice(found)]))
    accused = sum(bool(one.now.forbidden) for one in found)
    healthy = sum(one.truth.is_healthy or not one.truth.labels for one in found)
    print(
        f"{sum(one.now.right for one in found)} of {len(found)} right, {sum(x.recorded.right for x in found)} as recorded"
    )
    print(f"{accused} of {healthy} healthy or slow ones accused at any second")
    print(
        f"{sum(not one.differs for one in found)} identical to what was recorded; {sum(x.frames for x in found)} Frames"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="besides tests/recordings")
    options = parser.parse_args(arguments)
    lost = [str(folder) for folder in options.folders if not folder.is_dir()]
    if lost:
        parser.error(f"no folder: {', '.join(lost)}")
    begun_s = time.process_time()
    found = [judge_again(path) for path in list_recordings([COMMITTED, *options.folders])]
    if not found:
        print("rejudge: no recording in tests/recordings; make recordings makes some, RECORDINGS_IN=DIR names them")
        return 2
    report(found)
    print(f"{time.process_time() - begun_s:.1f} s CPU")
    return int(any(one.is_worse or one.breaks_its_word for one in found))


if __name__ == "__main__":
    sys.exit(main())
