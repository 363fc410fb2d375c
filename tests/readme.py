"""Write the pictures of README.md and docs anew: each is what the rules, reports and painters make of Frames.

Those of real runs are of tests/recordings.

A picture stands below a line ``<!-- picture: NAME -->``. Run as ``python -m tests.readme``; ``make docs`` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.goldens import pictures
from tests.goldens.dump_views import hung_recorded
from tpmon.model.known import is_known
from tpmon.record.recording import Recording
from tpmon.report.once import write_verdict
from tpmon.report.stacks import write_collectives

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"(?<=<!-- picture: )([a-z -]+)( -->\n```text\n)(.*?)(?=\n```\n)", re.DOTALL)


def read_golden(name: str) -> list[str]:
    return (pictures.PICTURES / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def write_record() -> list[str]:
    dump = hung_recorded().dump
    assert is_known(dump)
    assert is_known(dump.collectives)
    return write_collectives(dump.collectives)


def write_recorded(name: str) -> list[str]:
    """Return the verdict of a real run as text, and what to try."""
    with Recording(str(ROOT / "tests" / "recordings" / f"{name}.tpmon")) as recording:
        lines = write_verdict(recording.frame(recording.last.n), full=False)
    return lines[: next(number for number, line in enumerate(lines) if line.startswith("evidence "))]


PICTURES: dict[str, Callable[[], list[str]]] = {
    "a data-bound job": lambda: read_golden("data-bound.80x24"),
    "a slow run": lambda: write_recorded("causes-storage_latency.idle.0"),
    "a hang": lambda: write_recorded("own-ddp_eval_rank0.idle.0"),
    "a leak": lambda: write_recorded("causes-leak.busy.0"),
    "the records of a hang": write_record,
}


def write_page(path: Path) -> str:
    return BLOCK.sub(
        lambda found: found[1] + found[2] + "\n".join(PICTURES[found[1]]()), path.read_text(encoding="utf-8")
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(write_page(page), encoding="utf-8")
