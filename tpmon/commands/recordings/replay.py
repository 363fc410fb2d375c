"""The command ``replay``: a recording on the screen, as text, as a stream of JSON, or for its verdict."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tpmon.commands.command import (
    VERDICT_CODES,
    Subcommand,
    file_argument,
    flag,
    setting,
    write_ending,
    write_result,
)
from tpmon.errors import ExitCode, UsageError
from tpmon.model.frozen import dataclass
from tpmon.model.verdict import VerdictCode
from tpmon.record import require_sqlite
from tpmon.report.text import Output, complain

if TYPE_CHECKING:
    from tpmon.model.results.doctor import Update
    from tpmon.model.results.recording import Moment
    from tpmon.record.recording import Recording
    from tpmon.replay import Player
    from tpmon.ui.monitor.controls import Order, Result
    from tpmon.ui.terminal_io.terminal import ScreenResult


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Hold what ``tpmon replay`` takes; "" for what was not typed."""

    file: str = file_argument("a recording of tpmon record, also while it is written")
    at: str = flag(
        "--at",
        "begin there: 03:12, 03:12:07, 2026-03-14T03:12, -10m for so long before the end, #120 for a Frame"
        " (default: the start; with --once and --check the end); the screen is paused there",
        "WHEN",
        "",
        takes="a time",
        takes_minus=True,
    )
    speed: str = flag(
        "--speed", "how fast the screen plays, 0.25 to 60 (default: 1)", "X", "", takes="a number"
    )
    rejudge: bool = flag("--rejudge", "judge every Frame again, and print where the verdict differs")
    once: bool = setting("once", help="print the reading at --at and end")
    json: bool = setting("json")
    plain: bool = setting("plain")
    check: bool = setting("check")
    ascii: bool = setting("ascii")


def parse_speed(text: str) -> float:
    """Read "4" or "0.25x", 1 for ""; UsageError for anything else."""
    from tpmon.model.results.replay import SPEEDS

    try:
        speed = float(text.removesuffix("x")) if text else 1.0
    except ValueError:
        speed = 0.0
    if not SPEEDS[0] <= speed <= SPEEDS[-1]:
        raise UsageError(
            f"--speed takes a number from {SPEEDS[0]:g} to {SPEEDS[-1]:g}, found {text[:40]!r}", "--speed 4"
        )
    return speed


def find_moment(recording: Recording, text: str, default: Moment) -> Moment:
    """Return the Frame at a typed time, ``default`` for none.

    Raises:
        UsageError: for what is no time, or outside of the recording.
    """
    from tpmon.model.known import Missing
    from tpmon.model.results.replay import JumpTo
    from tpmon.view.moments import find_time, to_datetime

    if not text:
        return default
    begin, end = recording.first, recording.last
    zone = recording.frame(end.n).taken.tzinfo
    found = find_time(text, begin, end, end.wall_ns, zone)
    if isinstance(found, Missing):
        raise UsageError(f"--at: {found.reason}", f"--at {to_datetime(end.wall_ns, zone):%H:%M:%S}")
    return recording.find(found.wall_ns) if isinstance(found, JumpTo) else recording.moment(found.n)


def run(options: ReplayOptions) -> int:
    """Show a recording."""
    require_sqlite()
    from tpmon.record.recording import Recording

    is_text = options.rejudge or options.check or options.once or options.json or options.plain
    speed = parse_speed(options.speed)
    if not is_text:
        from tpmon.ui.terminal_io.terminal import require_terminal

        require_terminal()
    recording = Recording(options.file)
    one = options.check or options.once
    moment = find_moment(recording, options.at, recording.last if one else recording.first)
    if not is_text:
        return play_on_screen(recording, moment, speed, options)
    with recording:
        if options.rejudge:
            return write_rejudged(recording, options)
        return write_as_text(recording, moment, options)


def write_as_text(recording: Recording, moment: Moment, options: ReplayOptions) -> int:
    """Write one Frame, its verdict, or all from there on, and return the exit code."""
    from tpmon.report.once import pick_exit_code, write_check
    from tpmon.report.plain import pick_form

    output = Output(1, options.ascii)
    if options.check:
        frame = recording.frame(moment.n)
        write_result(output, frame.verdict, lambda: [write_check(frame)], json=options.json)
        return pick_exit_code(frame)
    write = pick_form(output, once=options.once, json=options.json, plain=options.plain)
    if options.once:
        write(recording.frame(moment.n))
        return ExitCode.OK
    for frame in recording.frames(moment.n, recording.last.n):
        output.check_reader()
        write(frame)
    return ExitCode.OK


def write_rejudged(recording: Recording, options: ReplayOptions) -> int:
    """Judge every Frame again, write where the verdict differs, and return 10 where it does anywhere."""
    from tpmon import __version__
    from tpmon.model.codec import encode
    from tpmon.model.known import is_known
    from tpmon.record.rejudge import Rejudged, list_changes, rejudge
    from tpmon.report.rejudging import (
        REJUDGED_SCHEMA,
        RejudgedCount,
        VerdictChange,
        write_change,
        write_count,
    )
    from tpmon.session import collect_rarely

    if is_known(node := recording.subject.node):
        raise UsageError(
            f"{recording.path} cannot be judged again: the agent on {node} judged it, and what that"
            " remembered is not in it",
            "tpmon record on the node, which keeps that too",
        )
    collect_rarely()
    output, count = Output(1, options.ascii), RejudgedCount()

    def counting() -> Iterator[Rejudged]:
        for one in rejudge(recording):
            count.frames += 1
            count.judged += one.counts
            count.differ += one.counts and not one.is_same_verdict
            yield one

    for one in list_changes(counting()):
        again = one.again
        change = VerdictChange(REJUDGED_SCHEMA, one.moment.n, again.taken, one.recorded, again.verdict)
        if options.json:
            output.write_json(encode(change))
        else:
            output.write_lines(write_change(change))
    said = write_count(count, recording.subject.version, __version__)
    if options.json:
        complain(f"tpmon: {said}")
    else:
        output.write_lines(said)
    return VerdictCode.HELD if count.differ else ExitCode.OK


class Stage:
    """Join one player to one screen."""

    def __init__(self, player: Player) -> None:
        """Play nothing until ``start``."""
        self._player = player
        self._left = threading.Event()
        self.failures: list[BaseException] = []

    def start(self, sink: Callable[[Update], None], results: Callable[[Result], None]) -> None:
        """Let the recording play."""
        self._player.start(self._fail, (sink,), (results,))

    def ask(self, order: Order) -> None:
        """Hand a move to the player: no other key asks anything of a recording."""
        from tpmon.model.results.replay import JumpTo, JumpToFrame, TimeMove

        if isinstance(order, (TimeMove, JumpTo, JumpToFrame)):
            self._player.ask(order)

    def leave(self) -> None:
        """Hear of no further failure: the recording is closed under whoever still reads."""
        self._left.set()
        self._player.stop()

    def _fail(self, error: BaseException) -> None:
        if not self._left.is_set():
            self.failures.append(error)
            os.kill(os.getpid(), signal.SIGTERM)  # ends the screen in order; the failure is told below


def play_on_screen(recording: Recording, moment: Moment, speed: float, options: ReplayOptions) -> int:
    """Draw the screen until it ends and return its exit code; a copy of its text goes to standard output."""
    paused = bool(options.at and not options.speed)
    result = show_recording(recording, moment, speed=speed, paused=paused, ascii_only=options.ascii)
    return write_ending(result, Output(1, options.ascii))


def show_recording(
    recording: Recording,
    moment: Moment,
    *,
    speed: float = 1.0,
    paused: bool = False,
    ascii_only: bool,
    following: str = "",
) -> ScreenResult:
    """Draw the screen until it ends and return how it ended; ``following`` is what a key may end it for."""
    from tpmon.replay import Player
    from tpmon.report.readings import write_reading
    from tpmon.ui.monitor.controls import Controls, ScreenOptions
    from tpmon.ui.monitor.start import run_screen

    stage = Stage(Player(recording, moment, speed=speed, paused=paused))
    try:
        result = run_screen(
            ScreenOptions(recording.subject.interval_s, ascii_only, following=following),
            stage.start,
            Controls(lambda _seconds: None, stage.leave, stage.ask, write_reading, lambda path: (path,)),
        )
    except SystemExit:  # before the screen was loaded
        if stage.failures:
            raise stage.failures[0] from None
        raise
    if stage.failures:
        raise stage.failures[0]
    return result


COMMAND = Subcommand(
    ReplayOptions,
    run,
    "replay FILE [options]",
    "Show a recording on the live screen, with keys to go through it (docs/keys.md). Text and JSON are those"
    "\nof attach, from --at to the end.",
    VERDICT_CODES,
)
