"""The screen over a recording of a real job is the one that was seen live, cell by cell; so is its JSON."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corpus.rejudge import COMMITTED, list_recordings
from tests.frames import make_view
from tpmon.model.codec import encode
from tpmon.model.frame import Window
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.results.doctor import Update
from tpmon.record.recording import Recording
from tpmon.replay import Player
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor.controls import Inbox
from tpmon.ui.monitor.keys import keys_shown
from tpmon.ui.monitor.layout import paint_screen
from tpmon.ui.monitor.state import ViewState, with_update
from tpmon.view.events import keep_newest
from tpmon.view.layout import Size

SIZES = (Size(120, 40), Size(80, 24))
PARTS = (0.2, 0.5, 1.0)


def choose_programs(count: int) -> list[Path]:
    """Choose recordings of as many programs, spread over all that are committed."""
    firsts = {path.name.split(".")[0]: path for path in list_recordings([COMMITTED])}
    paths = [firsts[name] for name in sorted(firsts)]
    return [paths[at * len(paths) // count] for at in range(count)]


def watch(recording: Recording) -> Iterator[tuple[int, Update]]:
    """Yield what the session handed to the screen at each Frame."""
    window, inbox, events = Window(), Inbox(), ()
    for one in recording.recorded():
        window.append(one.read)
        inbox.put(Update(one.judged, window.pulses()))
        update, _, new = inbox.take()
        events = keep_newest((*events, *new))
        yield one.moment.n, Update(update.frame, update.pulses, NOT_APPLICABLE, events)


def play(path: Path, n: int) -> Update:
    """Return what the player hands to the screen at a Frame."""
    seen: list[Update] = []
    recording = Recording(str(path))
    player = Player(recording, recording.moment(n), paused=True)

    def take(update: Update) -> None:
        seen.append(update)
        player.stop()

    player.run([take])
    return seen[0]


def show(update: Update, **fields: object) -> ViewState:
    return with_update(make_view(**fields), update, update.events, update.frame.taken_ns)


@pytest.mark.parametrize("path", choose_programs(10), ids=lambda path: path.stem)
def test_ten_programs_at_two_sizes(path):
    with Recording(str(path)) as recording:
        wanted = {recording.moment(round(recording.last.n * part)).n for part in PARTS}
        live = {n: update for n, update in watch(recording) if n in wanted}
    assert len(live) == len(PARTS)
    for n, update in live.items():
        played = play(path, n)
        assert encode(played.frame) == encode(update.frame)
        for overlay in (Overlay.NONE, Overlay.VERDICT):
            for size in SIZES:
                view, replayed = show(update, overlay=overlay), show(played, overlay=overlay)
                expected = paint_screen(view, size, keys_shown(view))
                # a line more for the strip; the header has the time of the recording, the footer its keys
                painted = paint_screen(replayed, Size(size.width, size.height + 1), keys_shown(replayed))
                assert painted[2:-1] == expected[1:-1]
