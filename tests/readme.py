"""Write the pictures of README.md and docs anew: each is what the rules, reports and painters make of Frames.

A picture stands below a line ``<!-- picture: NAME -->``. Run as ``python -m tests.readme``; ``make docs`` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.frames import make_view
from tests.goldens.dump_views import hung_recorded, hung_three_looks
from tests.goldens.judged_jobs import data_bound, data_bound_events, hung, hung_events
from tests.goldens.pictures import write_text
from tests.goldens.states import shape_history
from tpmon.model.frame import Event, Frame
from tpmon.model.known import is_known
from tpmon.report.dump import write_collectives
from tpmon.report.verdict import write_verdict
from tpmon.ui.monitor.keys import keys_shown
from tpmon.ui.monitor.layout import paint_screen
from tpmon.ui.monitor.state import Overlay, Size

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"(?<=<!-- picture: )([a-z -]+)( -->\n```text\n)(.*?)(?=\n```\n)", re.DOTALL)


def paint_job(frame: Frame, events: tuple[Event, ...], **changes: object) -> list[str]:
    """Paint a job at 80x24."""
    view = make_view(frame, pulses=shape_history(frame), events=events, **changes)
    return write_text(paint_screen(view, Size(80, 24), keys_shown(view))).splitlines()


def paint_stacks() -> list[str]:
    """Paint the stacks of a job that hangs, without what stands above and below them."""
    lines = paint_job(hung(), hung_events(), overlay=Overlay.STACKS, dump=hung_three_looks())
    first = next(number for number, line in enumerate(lines) if "6 stacks" in line)
    return lines[first : lines.index("", first) - 4]


def write_record() -> list[str]:
    """Write what ranks recorded of their collectives, as ``tpmon dump`` does."""
    dump = hung_recorded().dump
    assert is_known(dump)
    assert is_known(dump.collectives)
    return write_collectives(dump.collectives)


PICTURES: dict[str, Callable[[], list[str]]] = {
    "a data-bound job": lambda: paint_job(data_bound(), data_bound_events()),
    "the verdict of a hang": lambda: write_verdict(hung(), full=False)[:3],
    "the stacks of a hang": paint_stacks,
    "the records of a hang": write_record,
}


def write_page(path: Path) -> str:
    """Return a page with its pictures of today."""
    return BLOCK.sub(
        lambda found: found[1] + found[2] + "\n".join(PICTURES[found[1]]()), path.read_text(encoding="utf-8")
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(write_page(page), encoding="utf-8")
