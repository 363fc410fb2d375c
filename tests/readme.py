"""Judge and paint two ranks that wait for their loader, and put that picture into README.md.

Run as ``python -m tests.readme``; ``make docs`` does.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.frames import make_view
from tests.goldens.judged_jobs import data_bound, data_bound_events
from tests.goldens.pictures import write_text
from tests.goldens.states import shape_history
from tpmon.ui.keys import keys_shown
from tpmon.ui.panes import paint_screen
from tpmon.ui.view import Size

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def write_readme() -> str:
    """Return README.md with what the rules and the screen make of those ranks today in its first text block."""
    view = make_view(data_bound(), pulses=shape_history(data_bound()), events=data_bound_events())
    picture = write_text(paint_screen(view, Size(80, 24), keys_shown(view))).rstrip("\n")
    block = re.compile(r"(?<=```text\n).*?(?=\n```)", re.DOTALL)
    return block.sub(lambda _: picture, README.read_text(encoding="utf-8"), count=1)


if __name__ == "__main__":
    README.write_text(write_readme(), encoding="utf-8")
