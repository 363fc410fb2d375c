"""Open the list of jobs: wait a moment for the first one, draw it, and hand over to its screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable
from tpmon.model.process import Identity
from tpmon.model.results.roster import Roster
from tpmon.ui.jobs.keys import job_keys_shown
from tpmon.ui.jobs.layout import paint_jobs
from tpmon.ui.jobs.state import JobsView, begin_jobs_view, keep_job_cursor
from tpmon.ui.kit.start import Feed, draw_rows
from tpmon.ui.terminal_io.terminal import ScreenResult
from tpmon.view.layout import Line, Size

if TYPE_CHECKING:
    from tpmon.ui.jobs.app import JobsApp

FIRST_SECONDS = 0.5
"""How long to wait for the first list: a machine that answers slowly must not keep the keys away."""


@dataclass(frozen=True, slots=True)
class JobsControls:
    """Hold what the list may ask of others; no call may block."""

    listen: Callable[[Callable[[Roster], None]], None]
    """Hand the newest list, and each that follows, to this sink; called in any thread."""
    prefer: Callable[[tuple[Identity, ...]], None]
    """Say which jobs are looked at: that under the cursor first, then those that a filter shows alone."""
    stop: Callable[[], None]


@dataclass(frozen=True, slots=True)
class JobChoice:
    """Hold how the list ended: with a job that was chosen, or as any screen; and what was set in it."""

    screen: ScreenResult
    job: Applicable[Identity]
    view: JobsView


def first_jobs_view(*, ascii_only: bool, filter_text: str = "", message: str = "") -> JobsView:
    """Return the view with which the list opens."""
    now, now_ns = datetime.now().astimezone(), time.monotonic_ns()
    return begin_jobs_view(now, now_ns, ascii_only=ascii_only, filter_text=filter_text, message=message)


def run_jobs_screen(view: JobsView, controls: JobsControls) -> JobChoice:
    """Draw the list on a terminal until it ends or a job is chosen; it raises what ``draw_rows`` raises."""
    feed, shown = Feed[Roster](), list["JobsApp"]()

    def begin() -> JobsView:
        controls.listen(feed.take)
        feed.came.wait(FIRST_SECONDS)
        return keep_job_cursor(replace(view, roster=feed.newest()), view)

    def load(first: JobsView) -> JobsApp:
        from tpmon.ui.jobs.app import JobsApp  # noqa: PLC0415  # textual, after the first picture

        app = JobsApp(first, controls.prefer)
        shown.append(app)
        feed.hand_to(app.receive)
        return app

    result = draw_rows(begin, _paint, load, controls.stop)
    if not shown:
        return JobChoice(result, NOT_APPLICABLE, view)
    return JobChoice(result, shown[0].chosen, shown[0].view)


def _paint(view: JobsView, size: Size) -> list[Line]:
    return paint_jobs(view, size, job_keys_shown(view))
