"""The screen of all jobs: rosters and keys in, lines out, and the job that was chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

# before textual: the shell sets what textual reads while it is imported
from tpmon.ui.kit.rows import RowsShell  # isort: skip

from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.process import Identity
from tpmon.model.results.roster import Roster
from tpmon.ui.jobs.keys import find_job_key, job_keys_shown, say_job_unused
from tpmon.ui.jobs.layout import last_help_line, page_of_list, paint_jobs
from tpmon.ui.jobs.state import JobsView, action_move_row, keep_job_cursor, list_job_rows, list_wanted
from tpmon.ui.kit.keys import Effect, Move, Overlay
from tpmon.view.layout import Line, Size


class JobsApp(RowsShell[JobsView]):
    """Show the list until a key or a signal ends it, or a job is chosen."""

    def __init__(self, view: JobsView, prefer: Callable[[tuple[Identity, ...]], None], *clocks: Any) -> None:
        """Begin with a view; ``prefer`` is told which jobs are looked at."""
        super().__init__(view, find_job_key, say_job_unused, *clocks)
        self._prefer = prefer
        self._wanted: tuple[Identity, ...] = ()
        self.chosen: Applicable[Identity] = NOT_APPLICABLE

    def receive(self, roster: Roster) -> None:
        """Take a newer list from any thread; never block and never raise."""
        self.defer(lambda: self.show(replace(self.view, roster=roster)))

    def settle(self, view: JobsView) -> JobsView:
        """Keep the cursor on its job, and tell which jobs are looked at."""
        view = keep_job_cursor(view, self.view)
        if (wanted := list_wanted(view)) != self._wanted:
            self._wanted = wanted
            self._prefer(wanted)
        return view

    def paint(self, view: JobsView, size: Size) -> list[Line]:
        """Paint the whole screen."""
        return paint_jobs(view, size, job_keys_shown(view))

    def move(self, view: JobsView, move: Move) -> JobsView:
        """Move the cursor, or scroll the help."""
        size = self._extent()
        view = action_move_row(view, move, page_of_list(size))
        if view.overlay is Overlay.HELP:
            last = last_help_line(size, job_keys_shown(view))
            view = replace(view, scroll=min(view.scroll, last))
        return view

    def carry_out(self, effect: Effect) -> None:
        """Do what a key does beyond the picture."""
        if effect is not Effect.ATTACH:
            super().carry_out(effect)
            return
        row = next((one for one in list_job_rows(self.view) if one.reading.root == self.view.cursor), None)
        if row is not None and is_known(row.ended_ns):
            self.say("this job has ended")
        elif row is not None:
            self.chosen = row.reading.root
            self.depart()
