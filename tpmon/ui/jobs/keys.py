"""When each key of the list of jobs works, and what it does; ``keys.txt`` has its signs and its words.

Knows nothing of textual.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Union

from tpmon.model.known import is_known
from tpmon.ui.jobs import state as actions
from tpmon.ui.jobs.state import JobsView
from tpmon.ui.kit import keys as kit
from tpmon.ui.kit.keys import Overlay

When = kit.Situation[JobsView]
Deed = Union[Callable[[JobsView], JobsView], kit.Move, kit.Effect]
JobKey = kit.Key[JobsView, Deed]

LIST = When(lambda view: view.is_bare, "with nothing over the list")
ROW = When(lambda view: view.is_bare and is_known(view.cursor), "on a job")
OVER = When(lambda view: not view.is_bare, "while something is over the list")
FILTERED = When(lambda view: view.is_bare and view.filter_text != "", "while a filter is set")

USES: dict[str, tuple[Deed, When]] = {
    **kit.ROWS,
    "attach": (kit.Effect.ATTACH, ROW),
    "close": (kit.action_close, OVER),
    "sort": (actions.action_sort_jobs, LIST),
    "filter": (partial(kit.action_overlay, overlay=Overlay.FILTER), LIST),
    "filter-clear": (kit.CLEAR_FILTER, FILTERED),
}
JOB_KEYS: tuple[JobKey, ...] = kit.read_keys(os.path.join(os.path.dirname(__file__), "keys.txt"), USES)


def find_job_key(name: str, view: JobsView) -> JobKey | None:
    """Return the row that the pressed key means now, if any."""
    return kit.find_in(JOB_KEYS, name, view)


def say_job_unused(name: str, _view: JobsView) -> str:
    """Say why a key did nothing; "" for keys without a letter."""
    return kit.say_why_not(JOB_KEYS, name, "")


def job_keys_shown(view: JobsView) -> tuple[kit.KeyHelp, ...]:
    """Return the keys that work now; under an open help also those below it."""
    return kit.list_shown(JOB_KEYS, view, "Jobs: ")
