"""List the golden pictures and paint them as text: what `make goldens` writes and tests compare.

``python -m tests.goldens.pictures`` writes Frames, pictures and docs/screens.md anew; read the diff before committing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from tests.frames import NOW_NS, make_view
from tests.goldens import capture_views, dump_views, sample_views
from tests.goldens.states import NARROW, STATES, history_of
from tests.playbacks import make_playback
from tpmon.model.codec import decode, encode
from tpmon.model.dump import Asker
from tpmon.model.frame import Frame
from tpmon.model.hook import PutIn
from tpmon.model.known import Missing, known_or
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor.keys import keys_shown
from tpmon.ui.monitor.layout import paint_screen
from tpmon.ui.monitor.state import OTHER_THREADS, Pane, SortBy, StackRow, StacksView, ViewState
from tpmon.view.layout import Ink, Line, Size
from tpmon.view.moments import TIMES

HERE = Path(__file__).parent
FRAMES = HERE / "frames"
PICTURES = HERE / "pictures"
INKS = HERE / "inks"
SCREENS_PAGE = HERE.parent.parent / "docs" / "screens.md"

SIZES = (Size(200, 50), Size(120, 40), Size(80, 24), Size(40, 50), Size(20, 5))
INKED_STATES = ("paced", "data-bound", "compute-bound", "hung", "gpu-throttled", "two-ranks")
"""Their pictures have the ink of each cell beside them; one set of colours serves dark and light terminals."""
INK_SIGNS = {
    Ink.PLAIN: ".",
    Ink.STRONG: "S",
    Ink.DIM: "d",
    Ink.TITLE: "T",
    Ink.GOOD: "g",
    Ink.NOTICE: "n",
    Ink.WARN: "w",
    Ink.BAD: "b",
    Ink.CURSOR: "k",
    Ink.BADGE: "?",
    Ink.BADGE_GOOD: "G",
    Ink.BADGE_NOTICE: "N",
    Ink.BADGE_WARN: "W",
    Ink.BADGE_BAD: "B",
}
ASCII_STATES = ("two-ranks", "oversubscribed", "data-bound", "hooked")
WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Picture:
    """Name one picture: a situation, a size, and what the keys have changed in the view."""

    name: str
    state: str
    size: Size
    changes: dict[str, Any] = field(default_factory=dict)


def _at_80(name: str, state: str, **changes: Any) -> Picture:
    return Picture(f"{name}.80x24", state, Size(80, 24), changes)


def _write_size(size: Size) -> str:
    return f"{size.width}x{size.height}"


def _list_stacks() -> Iterator[Picture]:
    over = {"overlay": Overlay.STACKS}
    hung = dump_views.hung_three_looks()
    for size in SIZES:
        yield Picture(f"stacks.{_write_size(size)}", "hung", size, over | {"dump": hung})
        yield Picture(f"stacks-running.{_write_size(size)}", "hung", size, over | {"dump": dump_views.hung_running()})
        yield Picture(f"stacks-denied.{_write_size(size)}", "other-user", size, over | {"dump": dump_views.denied()})
    all_ranks = dump_views.mark_of(hung, 8)
    opened = StacksView(StackRow(all_ranks, 2), frozenset({all_ranks, OTHER_THREADS}))
    yield _at_80("stacks-opened", "hung", **over, dump=hung, stacks=opened)
    yield Picture("stacks.40x50.ascii", "hung", Size(40, 50), over | {"dump": hung, "ascii_only": True})
    yield _at_80("stacks-tree", "hung", **over, dump=hung, stacks=StacksView(as_tree=True))
    yield Picture("stacks-tree.40x50", "hung", Size(40, 50), over | {"dump": hung, "stacks": StacksView(as_tree=True)})
    yield _at_80("stacks-once", "hung", **over, dump=dump_views.hung_once())
    yield _at_80("stacks-recorded", "hung", **over, dump=dump_views.hung_recorded())
    yield _at_80("stacks-waiting", "hung", **over, dump=dump_views.hung_waiting())
    yield _at_80("stacks-torn", "two-ranks", **over, dump=dump_views.torn())
    priced = StacksView(priced_ns=NOW_NS)
    yield _at_80("stacks-price", "two-ranks", **over, dump=dump_views.torn(), stacks=priced)
    yield _at_80("stacks-worker", "two-ranks", **over, dump=dump_views.one_worker())
    yield _at_80("stacks-none", "two-ranks", **over)
    yield _at_80("stacks-help", "hung", overlay=Overlay.HELP, behind=Overlay.STACKS, dump=hung)
    watched = {"dump": dump_views.hung_three_looks(Asker.WATCH)}
    for size in (Size(120, 40), Size(80, 24), Size(40, 50)):
        yield Picture(f"stacks-hint.{_write_size(size)}", "hung", size, watched)


def _list_samples() -> Iterator[Picture]:
    over = {"overlay": Overlay.SAMPLE}
    ended = sample_views.ended()
    for size in SIZES:
        yield Picture(f"sample.{_write_size(size)}", "two-ranks", size, over | {"sample": ended})
    yield _at_80("sample-price", "two-ranks", **over)
    yield _at_80("sample-running", "two-ranks", **over, sample=sample_views.running())
    yield _at_80("sample-denied", "two-ranks", **over, sample=sample_views.denied())
    yield _at_80("sample-refused", "two-ranks", **over, sample=sample_views.refused())


def _list_by_hand() -> Iterator[Picture]:
    frame = load_frame("hooked")
    put_in = PutIn(frame.taken - timedelta(seconds=70), "1.0")
    by_hand = replace(frame, hook=tuple(replace(one, put_in=put_in) for one in known_or(frame.hook, ())))
    for size in SIZES:
        yield Picture(f"by-hand.{_write_size(size)}", "hooked", size, {"frame": by_hand})
    yield _at_80("by-hand-details", "hooked", frame=by_hand, overlay=Overlay.ENVIRONMENT, cursor_pid=4211)


def _list_captures() -> Iterator[Picture]:
    over = {"overlay": Overlay.CAPTURE}
    for size in SIZES:
        priced, done = capture_views.priced(), capture_views.done()
        plan = capture_views.offered()
        yield Picture(f"capture-plan.{_write_size(size)}", "two-ranks", size, over | {"capture": plan})
        yield Picture(f"capture-price.{_write_size(size)}", "two-ranks", size, over | {"capture": priced})
        yield Picture(f"capture.{_write_size(size)}", "two-ranks", size, over | {"capture": done})
        hookless = capture_views.hookless()
        yield Picture(f"capture-hookless.{_write_size(size)}", "two-ranks", size, over | {"capture": hookless})
    yield _at_80("capture-hooking", "two-ranks", **over, capture=capture_views.hooking())
    yield _at_80("capture-none", "two-ranks", **over)
    yield _at_80("capture-asked", "two-ranks", **over, capture=capture_views.asked())
    yield _at_80("capture-limit", "oversubscribed", **over, capture=capture_views.offered())
    snapshot, anew = capture_views.offered_snapshot(), capture_views.chosen_anew()
    for size in (Size(80, 24), Size(40, 50)):
        yield Picture(f"capture-snapshot.{_write_size(size)}", "two-ranks", size, over | {"capture": snapshot})
        yield Picture(f"capture-chosen.{_write_size(size)}", "two-ranks", size, over | {"capture": anew})
    yield _at_80("capture-running", "two-ranks", **over, capture=capture_views.recording())
    yield _at_80("capture-cancelled", "two-ranks", **over, capture=capture_views.cancelled())


def _list_replays() -> Iterator[Picture]:
    played = {"playback": make_playback(), "now_ns": NOW_NS}
    for size in SIZES:
        yield Picture(f"replay.{_write_size(size)}", "data-bound", size, played)
    yield Picture("replay.80x24.ascii", "data-bound", Size(80, 24), played | {"ascii_only": True})
    typed = {"overlay": Overlay.TIME, "time_text": "7:7", "message": f"'7:7' is no time: {TIMES}"}
    yield _at_80("replay-time", "data-bound", **played, **typed)
    paused = {"playback": make_playback(paused=True), "dump": dump_views.hung_three_looks()}
    yield _at_80("replay-stacks", "hung", **played | paused, overlay=Overlay.STACKS)
    yield _at_80("replay-help", "data-bound", **played, overlay=Overlay.HELP)


def list_pictures() -> Iterator[Picture]:
    """Yield every situation at every size, some of them in ASCII too, then zooms and overlays."""
    for state in STATES:
        for size in SIZES if state not in NARROW else (Size(40, 50), Size(40, 30)):
            yield Picture(f"{state}.{_write_size(size)}", state, size)
    for state in ASCII_STATES:
        for size in SIZES:
            yield Picture(f"{state}.{_write_size(size)}.ascii", state, size, {"ascii_only": True})
    for state in ("data-bound", "hung", "paced"):
        yield Picture(f"{state}.40x30", state, Size(40, 30))
    yield _at_80("zoom-ranks", "eight-gpus", zoom=Pane.RANKS, focus=Pane.RANKS, cursor_pid=51_204)
    yield _at_80("zoom-cpu", "oversubscribed", zoom=Pane.CPU, focus=Pane.CPU)
    yield Picture("zoom-steps.120x40", "hooked", Size(120, 40), {"zoom": Pane.CPU, "focus": Pane.CPU})
    yield _at_80("zoom-workers", "eight-gpus", zoom=Pane.WORKERS, cursor_pid=52_040, sort=SortBy.MEMORY)
    yield _at_80("zoom-gpus", "eight-gpus", zoom=Pane.GPUS, focus=Pane.GPUS)
    yield _at_80("zoom-events", "ended", zoom=Pane.EVENTS, focus=Pane.EVENTS)
    yield _at_80("help", "two-ranks", overlay=Overlay.HELP)
    yield _at_80("help-judged", "data-bound", overlay=Overlay.HELP)
    yield _at_80("verdict", "data-bound", overlay=Overlay.VERDICT)
    yield Picture("verdict.40x50", "hung", Size(40, 50), {"overlay": Overlay.VERDICT})
    yield _at_80("verdict-missing", "two-ranks", overlay=Overlay.VERDICT)
    yield _at_80("zoom-judged", "data-bound", zoom=Pane.RANKS, focus=Pane.RANKS)
    yield _at_80("details", "two-ranks", overlay=Overlay.DETAILS, cursor_pid=4212)
    yield _at_80("details-missing", "other-user", overlay=Overlay.DETAILS, cursor_pid=4211, scroll=2)
    yield _at_80("details-gone", "two-ranks", overlay=Overlay.DETAILS, cursor_pid=4999)
    yield _at_80("environment", "oversubscribed", overlay=Overlay.ENVIRONMENT, cursor_pid=4211)
    yield _at_80("filter", "eight-gpus", overlay=Overlay.FILTER, filter_text="nfs")
    yield _at_80("paused", "two-ranks", paused_ns=NOW_NS + 10**8, now_ns=NOW_NS + 12 * 10**9)
    yield _at_80("late", "two-ranks", now_ns=NOW_NS + 41 * 10**9)
    yield _at_80("message", "two-ranks", message="facts copied to the terminal and tmux")
    yield from _list_by_hand()
    yield from _list_stacks()
    yield from _list_samples()
    yield from _list_captures()
    yield from _list_replays()
    for size in (Size(80, 24), Size(40, 50), Size(20, 5)):
        yield Picture(f"{WAITING}.{_write_size(size)}", WAITING, size)


def frame_path(state: str) -> Path:
    return FRAMES / f"{state}.json"


def picture_path(picture: Picture) -> Path:
    return PICTURES / f"{picture.name}.txt"


def encode_state(state: str) -> str:
    """Return the Frame of a situation as the file holds it: one line of JSON."""
    return encode(STATES[state][0]()) + "\n"


def load_frame(state: str) -> Frame:
    return decode(Frame, frame_path(state).read_text(encoding="utf-8"))


def view_of(picture: Picture) -> ViewState:
    if picture.state == WAITING:
        return replace(make_view(Missing("looking for the job around pid 4211")), **picture.changes)
    frame = load_frame(picture.state)
    view = make_view(frame, pulses=history_of(picture.state, frame), events=STATES[picture.state][1]())
    return replace(view, **picture.changes)


def paint_picture(picture: Picture) -> list[Line]:
    view = view_of(picture)
    return paint_screen(view, picture.size, keys_shown(view))


def write_text(lines: list[Line]) -> str:
    """Write painted lines as text, without inks and without spaces at the ends of lines."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def list_inked() -> list[Picture]:
    names = {f"{state}.{_write_size(size)}" for state in INKED_STATES for size in SIZES}
    return [picture for picture in list_pictures() if picture.name in names]


def inks_path(picture: Picture) -> Path:
    return INKS / f"{picture.name}.txt"


def write_inks(lines: list[Line]) -> str:
    """Write the ink of each cell as a sign, blanks in an ink without a background as blanks."""
    rows = []
    for line in lines:
        signs = "".join(
            " " * cell_len(text) if text.isspace() and ink is Ink.PLAIN else INK_SIGNS[ink] * cell_len(text)
            for text, ink in line
        )
        rows.append(signs.rstrip() + "\n")
    return "".join(rows)


FOLDERS = {"Traces": "trace_pictures", "Fleets": "fleet_pictures"}
"""Where the pictures below a heading of screens.txt lie."""


def write_screens_page() -> str:
    """Write docs/screens.md from the pictures that screens.txt lists."""
    parts = [
        "# What the screen looks like\n",
        "Written by `make goldens` from the pictures that the tests compare (tests/goldens/pictures).\n",
    ]
    folder = PICTURES
    for line in (HERE / "screens.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            folder = next((HERE / other for head, other in FOLDERS.items() if line.startswith(f"# {head}")), PICTURES)
        elif " | " in line:
            heading, name, words = line.split(" | ")
            text = (folder / f"{name}.txt").read_text(encoding="utf-8")
            parts.append(f"## {heading}\n\n{words}\n\n```text\n{text}```\n")
    return "\n".join(parts)


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")


def _remove_others(folder: Path, kept: Iterable[Path]) -> None:
    for path in set(folder.iterdir()) - set(kept):
        path.unlink()
        print(f"removed {path}")


def main() -> None:
    from tests.goldens import fleet_views, trace_views

    FRAMES.mkdir(exist_ok=True)
    PICTURES.mkdir(exist_ok=True)
    for state in STATES:
        _write(frame_path(state), encode_state(state))
    listed = list(list_pictures())
    for picture in listed:
        _write(picture_path(picture), write_text(paint_picture(picture)))
    INKS.mkdir(exist_ok=True)
    for picture in list_inked():
        _write(inks_path(picture), write_inks(paint_picture(picture)))
    _remove_others(INKS, map(inks_path, list_inked()))
    _remove_others(FRAMES, map(frame_path, STATES))
    _remove_others(PICTURES, map(picture_path, listed))
    for views in (trace_views, fleet_views):
        views.FOLDER.mkdir(exist_ok=True)
        others = list(views.list_pictures())
        for one in others:
            _write(views.picture_path(one), write_text(views.paint_picture(one)))
        kept = [*map(views.picture_path, others)]
        if views is fleet_views:
            inked = fleet_views.list_inked()
            for one in inked:
                _write(fleet_views.inks_path(one), write_inks(fleet_views.paint_picture(one)))
            kept += map(fleet_views.inks_path, inked)
        _remove_others(views.FOLDER, kept)
    _write(SCREENS_PAGE, write_screens_page())


if __name__ == "__main__":
    main()
