"""From a clone to the first verdict, with nothing kept from before: ``make bench-first-minutes``.

Each way begins with ``git clone`` of this checkout's HEAD, an empty home and empty caches of pip and uv, in a terminal
of 120 x 40. Times are of the wall, from the clone on: the first Frame on the screen, the first verdict that is one. Without
torch the demo replays a recording, with torch it trains. ``--only NAME`` runs one way.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.budget.measure import say_neighbours
from tests.pty.conftest import Terminal

ROOT = Path(__file__).parents[2]
PATIENCE_S = 1500.0
FRAME = re.compile(r"recorded, not live|LIVE \d")
UNDECIDED = re.compile(r"NOT-ENOUGH-EVIDENCE|STARTING|waiting for")
VERDICT = re.compile(r"DATA-BOUND|COMPUTE-BOUND|OVERSUBSCRIBED|PYTHON-BOUND|HUNG|BALANCED")
RULE = "─"
KEPT = (
    "PATH",
    "LANG",
    "SSL_CERT_FILE",
    "PIP_CERT",
    "PIP_CONFIG_FILE",
    "PIP_INDEX_URL",
    "PIP_FIND_LINKS",
    "UV_INDEX_URL",
)
HEAD = (
    "| way | command in the clone | first frame, s | first verdict, s | home and `.venv` after it, MB |",
    "|---|---|---|---|---|",
)


@dataclass(frozen=True)
class Way:
    name: str
    command: str
    before: str = ""
    """What whoever goes this way has done before, in the clone: its time counts, too."""


def list_ways(python: str, uv: str) -> list[Way]:
    """List the ways; ``uv`` is a folder with uvx."""
    plain = f"make demo PYTHON={python}"
    return [
        Way("uvx", f"{uv}/uvx --python {python} --from . tpmon demo"),
        Way("pyz", f"{python} tpmon.pyz demo", f"make pyz PYTHON={python}"),
        Way("make demo, without torch", plain),
        Way("make demo, torch is there", f"make demo PYTHON={sys.executable}"),
        Way("make demo-live, torch is fetched", f"make demo-live PYTHON={python}"),
    ]


def is_framed(terminal: Terminal) -> bool:
    """Tell whether the screen shows a Frame."""
    return b"\x1b[?1049h" in terminal.raw and FRAME.search(terminal.text()) is not None


def is_decided(terminal: Terminal) -> bool:
    """Tell whether the top of the screen says a verdict; the line of all verdicts of a recording does not count."""
    top = "\n".join(line for line in terminal.text().splitlines()[:5] if RULE not in line)
    return VERDICT.search(top) is not None and UNDECIDED.search(top) is None


def wait_for(terminal: Terminal, shows: Callable[[Terminal], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        open_still = terminal.read()
        if shows(terminal):
            return
        if not open_still or time.monotonic() > deadline:
            raise AssertionError(terminal.text())


def measure_mb(*folders: Path) -> float:
    files = (path for folder in folders if folder.exists() for path in folder.rglob("*"))
    return sum(path.lstat().st_size for path in files if path.is_file()) / 1e6


def run_way(way: Way, folder: Path) -> str:
    """Go one way, and return its row."""
    home, clone = folder / "home", folder / "clone"
    home.mkdir()
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment |= {"HOME": str(home), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    began_s = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    steps = " && ".join(filter(None, (f"cd {clone}", way.before, way.command)))
    terminal = Terminal(["/bin/sh", "-c", steps], environment)
    try:
        wait_for(terminal, is_framed)
        frame_s = time.monotonic() - began_s
        wait_for(terminal, is_decided)
        verdict_s = time.monotonic() - began_s
        terminal.press("q")
        terminal.end(60)
    finally:
        terminal.close()
    typed = " && ".join(filter(None, (way.before, way.command)))
    typed = re.sub(r"/\S*/(uvx|python3?(\.\d+)?)", r"\1", typed)
    size = measure_mb(home, clone / ".venv")
    return f"| {way.name} | `{typed}` | {frame_s:.0f} | {verdict_s:.0f} | {size:.0f} |"


def find_uv(folder: Path) -> str:
    """Return a folder with uvx: that on PATH, else one that pip installs."""
    if found := shutil.which("uvx"):
        return os.path.dirname(found)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", "uv"], check=True)
    return str(folder / "bin")


def main(words: Sequence[str] | None = None) -> int:
    """Go each way, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=os.path.realpath(f"{sys.base_prefix}/bin/python3"))
    parser.add_argument("--only", default="", help="a part of the name of one way")
    options = parser.parse_args(words)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {say_neighbours()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="uv-") as tools:
        ways = list_ways(options.python, find_uv(Path(tools, "uv")))
        print("\n".join(HEAD), flush=True)
        for way in ways:
            if options.only in way.name:
                with tempfile.TemporaryDirectory(prefix="first-") as folder:
                    print(run_way(way, Path(folder)), flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
