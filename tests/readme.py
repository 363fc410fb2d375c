"""Write the pictures of README.md and docs anew: each is what the rules, reports and painters make of Frames.

A picture stands below a line ``<!-- picture: NAME -->``. Run as ``python -m tests.readme``; ``make docs`` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.goldens import pictures
from tests.goldens.dump_views import hung_recorded
from tests.goldens.judged_jobs import hung
from tpmon.model.known import is_known
from tpmon.report.once import write_verdict
from tpmon.report.stacks import write_collectives

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"(?<=<!-- picture: )([a-z -]+)( -->\n```text\n)(.*?)(?=\n```\n)", re.DOTALL)


def read_golden(name: str) -> list[str]:
    return (pictures.PICTURES / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def cut_stacks() -> list[str]:
    """Return the stacks of a job that hangs, without what is above and below them."""
    lines = read_golden("stacks.80x24")
    first = next(number for number, line in enumerate(lines) if "6 stacks" in line)
    return lines[first : lines.index("", first) - 4]


def write_record() -> list[str]:
    dump = hung_recorded().dump
    assert is_known(dump)
    assert is_known(dump.collectives)
    return write_collectives(dump.collectives)


PICTURES: dict[str, Callable[[], list[str]]] = {
    "a data-bound job": lambda: read_golden("data-bound.80x24"),
    "the verdict of a hang": lambda: write_verdict(hung().frame, full=False)[:3],
    "the stacks of a hang": cut_stacks,
    "the records of a hang": write_record,
}


def write_page(path: Path) -> str:
    return BLOCK.sub(
        lambda found: found[1] + found[2] + "\n".join(PICTURES[found[1]]()), path.read_text(encoding="utf-8")
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(write_page(page), encoding="utf-8")
