"""Film ``tpmon demo --recorded`` on a real terminal: an animation for README.md, and a still of it for docs/index.md.

``make pictures`` does, with asciinema and svg-term. Tests need neither: they look in the pictures for the words that the
recording gives today, and compare no bytes, for those differ with every film.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pyte

from tests.command_line import TPMON, read
from tests.pty.conftest import Terminal, environment
from tpmon.commands.demo import RECORDINGS, DemoOptions, find_next, find_verdict, list_recorded
from tpmon.model.results.doctor import Update
from tpmon.record.recording import Recording
from tpmon.replay import Player
from tpmon.ui.monitor.controls import ScreenOptions
from tpmon.ui.monitor.keys import keys_shown
from tpmon.ui.monitor.layout import paint_screen
from tpmon.ui.monitor.start import first_view
from tpmon.ui.monitor.state import with_update
from tpmon.view.layout import Size, text_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
ANIMATION = FOLDER / "demo.svg"
STILL = FOLDER / "verdict.svg"
SIZE = Size(100, 30)
TITLE = "recorded, not live, "
SVG_TERM = "svg-term-cli@2.1.1"
SCREEN_BEGINS = "\x1b[?1049h"
SCREEN_ENDS = "\x1b[?1049l"
TEXT = "{http://www.w3.org/2000/svg}text"
COLOURS = {
    "#282d35": "#0d1117",  # the background
    "#b9c0cb": "#e6edf3",  # text
    "#b9bfca": "#ffffff",
    "#e88388": "#da3633",
    "#a8cc8c": "#3fb950",
    "#dbab79": "#d29922",
    "#d290e4": "#d2a8ff",
    "#66c2cd": "#39c5cf",
}
"""What stands for svg-term's own pale colours, in which a badge is hard to read; its --profile leaves backgrounds out."""
APART_S = 0.2
"""What is written sooner after another part belongs to the same screen."""
LAST_S = 2.0
"""How long the last screen stands before the animation begins anew."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Hold what makes the next screen of a film, and the second when it stands."""

    second: float
    written: str


def paint_verdict() -> list[str]:
    """Paint what ``tpmon demo --recorded`` shows in the first second of its verdict: its title, the badge to what to do."""
    found: list[Update] = []
    bottleneck = read(DemoOptions).bottleneck
    recording = Recording(str(Path(RECORDINGS, f"{bottleneck}.tpmon")))
    player = Player(recording, recording.moment(find_verdict(recording).first_n))

    def keep(update: Update) -> None:
        found.append(update)
        player.stop()

    player.run((keep,))
    options = ScreenOptions(1.0, ascii_only=False, following=find_next(list_recorded(), bottleneck))
    view = with_update(first_view(options, 0), found[0], (), 0)
    title, _strip, *lines = (join_words(text_of(line)) for line in paint_screen(view, SIZE, keys_shown(view)))
    why = next(number for number, line in enumerate(lines) if line.startswith("WHY "))
    return [title[title.index(TITLE) :], *lines[:why]]


def join_words(text: str) -> str:
    return " ".join(text.split())


def read_words(picture: Path) -> str:
    """Return the words of a picture in their order, a blank between two."""
    texts = (one.text or "" for one in ET.parse(picture).iter(TEXT))
    return join_words(" ".join(texts))


def find_tools() -> list[str]:
    """Return the command of svg-term; exit with what to install where that or asciinema is missing."""
    if shutil.which("asciinema") is None:
        sys.exit("pictures: no asciinema; Debian and Ubuntu have it in asciinema, others: pip install 'asciinema<3'")
    if found := shutil.which("svg-term"):
        return [found]
    if found := shutil.which("npx"):
        return [found, "--yes", SVG_TERM]
    sys.exit(f"pictures: neither svg-term nor npx; npm install --global {SVG_TERM}, or npx: Debian has it in npm")


def film(cast: Path, clock: str) -> None:
    """Record the screen while somebody waits for the verdict, reads all of it, and goes on to the next bottleneck."""
    shown = shlex.join([*TPMON, "demo", "--recorded"])
    command = ["asciinema", "rec", "--quiet", "--command", shown, str(cast)]
    terminal = Terminal(command, environment(cast.parent), SIZE.width, SIZE.height)

    def wait(seconds: float) -> None:
        over_s = time.monotonic() + seconds
        terminal.until(lambda: time.monotonic() >= over_s)

    try:
        terminal.until(clock)
        wait(4.5)
        terminal.press("v")
        wait(3.5)
        terminal.press("\x1b")
        wait(1.5)
        terminal.press("n")
        terminal.until("OpenMP pools")
        wait(6.5)
        terminal.press("q")
        terminal.end()
    finally:
        terminal.close()


def cut(cast: Path) -> list[Cut]:
    """Read a film as whole screens, without what is half drawn, before and after the screen."""
    events = [json.loads(line) for line in cast.read_text(encoding="utf-8").splitlines()[1:]]
    first = next(number for number, (_, _, written) in enumerate(events) if SCREEN_BEGINS in written)
    last = max(number for number, (_, _, written) in enumerate(events) if SCREEN_ENDS in written)
    found: list[Cut] = []
    for second, _, written in events[first:last]:
        if found and second - found[-1].second < APART_S:
            found[-1] = Cut(second, found[-1].written + written)
        else:
            found.append(Cut(second, written))
    begin_s = found[0].second
    return [*(Cut(one.second - begin_s, one.written) for one in found), Cut(found[-1].second - begin_s + LAST_S, "")]


def find_cut(cuts: Sequence[Cut], words: str) -> int:
    """Return the number of the first screen with some words."""
    screen = pyte.Screen(SIZE.width, SIZE.height)
    stream = pyte.Stream(screen)
    for number, one in enumerate(cuts):
        stream.feed(one.written)
        if words in "\n".join(screen.display):
            return number
    raise ValueError(f"not in the film: {words}")


def draw(svg_term: list[str], cast: Path, picture: Path, *options: str) -> None:
    """Turn a film, or one moment of it, into a picture."""
    command = [*svg_term, "--in", str(cast), "--out", str(picture), "--no-cursor", *options]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    text = picture.read_text(encoding="utf-8")
    for pale, strong in COLOURS.items():
        text = text.replace(pale, strong)
    picture.write_text(text, encoding="utf-8")
    print(f"wrote {picture.relative_to(ROOT)}, {len(text) >> 10} KB")


def mend(text: str, number: int) -> str:
    """Cut each frame of an animation off at its edge; who shows none shows that frame, not the first, which is blank."""
    text = re.sub(r'(<svg x="\d+")>', rf'\1 width="{SIZE.width}">', text)
    still = f'<g transform="translate({-SIZE.width * number})" style="animation-'
    return text.replace('<g style="animation-', still, 1)


def main() -> None:
    svg_term = find_tools()
    clock = " ".join(paint_verdict()[0].split()[:4])
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        cast = Path(folder, "demo.cast")
        print("pictures: filming the demo, half a minute", flush=True)
        film(cast, clock)
        cuts = cut(cast)
        head = {"version": 2, "width": SIZE.width, "height": SIZE.height}
        lines = [json.dumps(head), *(json.dumps([one.second, "o", one.written]) for one in cuts)]
        cast.write_text("\n".join(lines) + "\n", encoding="utf-8")
        number = find_cut(cuts, clock)
        draw(svg_term, cast, ANIMATION)
        text = ANIMATION.read_text(encoding="utf-8")
        ANIMATION.write_text(mend(text, number + 1), encoding="utf-8")
        draw(svg_term, cast, STILL, "--at", str(round(cuts[number].second * 1000) + 1))


if __name__ == "__main__":
    main()
