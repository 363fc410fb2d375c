"""Draw the screen of a job: its first picture by itself, all others once textual is loaded."""

from __future__ import annotations

from collections.abc import Callable

from tpmon.errors import ExitCode, TpmonError
from tpmon.model.results.results import Update
from tpmon.ui.monitor import layout as panes
from tpmon.ui.monitor.controls import Controls, Result, ScreenOptions
from tpmon.ui.monitor.opening import Opening, Paint
from tpmon.ui.terminal_io.terminal import ScreenResult, TerminalGuard, report_crash, require_terminal


def run_screen(
    options: ScreenOptions,
    start: Callable[[Callable[[Update], None], Callable[[Result], None]], None],
    controls: Controls,
    paint: Paint = panes.paint_screen,
) -> ScreenResult:
    """Draw the screen until it ends and say how it ended.

    ``start`` is called once with the sinks of Updates and of results, which any thread may call. After
    an end was asked for, the process is gone within about a second whatever the caller still does.

    Raises:
        NoTerminalError: when stdin, stdout or stderr is not a terminal that can draw.
        TpmonError: that ``start`` raised.
        SystemExit: with its exit code, when a signal came before the screen was loaded.
    """
    require_terminal()
    opening = Opening(options, paint)
    try:
        with TerminalGuard(opening.leave, controls.stop) as guard:
            return _draw_all(options, start, controls, opening, guard)
    finally:
        controls.stop()


def _draw_all(
    options: ScreenOptions,
    start: Callable[[Callable[[Update], None], Callable[[Result], None]], None],
    controls: Controls,
    opening: Opening,
    guard: TerminalGuard,
) -> ScreenResult:
    opened = False
    guard.keep_keys()
    try:
        start(opening.receive, opening.receive_result)
        opening.wait()
        from tpmon.ui.kit.shell import draw  # noqa: PLC0415
        from tpmon.ui.monitor.app import MonitorApp  # noqa: PLC0415  # textual, half of all CPU until keys are answered

        app = MonitorApp(options, controls, opening.paint)
        opening.hand_to(app)
        guard.hand_to(app.leave)
        result = draw(app, guard)
        opened = app.opened
    except TpmonError:
        raise  # a person is told what to try
    except Exception as error:  # noqa: BLE001  # reported like a failure inside the app
        return ScreenResult(ExitCode.BUG, "", report_crash(error))
    finally:
        opening.end()
        if opening.drawn and not opened:
            guard.restore()
    return result
