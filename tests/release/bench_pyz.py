"""What a start of tpmon.pyz costs, on each Python here: ``make bench-pyz``.

Prints a table, medians with the range: CPU of ``--help``, with its child; time to the first picture of ``attach``
in a terminal, and time until textual takes keys; the first start of all, in an empty home.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from release.pyz import build

from tests.command_line import start_training
from tests.pty.conftest import Terminal
from tests.release.conftest import list_pythons

HELP_TRIES, SCREEN_TRIES, COLD_TRIES = 15, 5, 3
DRAWN, TAKES_KEYS = "q quit", b"\x1b[?1004h"


def environment(home: Path) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8", "TERM": "xterm-256color"}


def measure_cpu_ms(command: list[str], home: Path) -> float:
    """Run a command that prints its help; return the CPU time of it and its child."""
    process = subprocess.Popen(command, env=environment(home), stdout=subprocess.DEVNULL, cwd="/")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return (usage.ru_utime + usage.ru_stime) * 1e3


def measure_wall_ms(command: list[str], home: Path) -> float:
    begin = time.perf_counter()
    subprocess.run(command, env=environment(home), stdout=subprocess.DEVNULL, check=True, cwd="/")
    return (time.perf_counter() - begin) * 1e3


def measure_picture_ms(command: list[str], home: Path, job: int) -> tuple[float, float]:
    """Open the screen of a job; return when it is drawn whole, and when textual has taken over."""
    begin = time.perf_counter()
    terminal = Terminal([*command, "attach", str(job)], environment(home))
    try:
        terminal.until(DRAWN)
        drawn = (time.perf_counter() - begin) * 1e3
        terminal.until(lambda: TAKES_KEYS in terminal.raw)
        taken = (time.perf_counter() - begin) * 1e3
        terminal.quit()
    finally:
        terminal.close()
    return drawn, taken


def say(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def measure_all(ways: dict[str, list[str]], homes: Callable[[], Path]) -> None:
    print("| started by | `--help`, CPU ms | first picture, ms | takes keys, ms | first start of all, ms |")
    print("|---|---|---|---|---|")
    with start_training() as training:
        for name, command in ways.items():
            cold = [measure_wall_ms([*command, "--version"], homes()) for _ in range(COLD_TRIES)]
            home = homes()
            pictures = [measure_picture_ms(command, home, training.pid) for _ in range(SCREEN_TRIES + 1)][1:]
            help_ms = [measure_cpu_ms([*command, "--help"], home) for _ in range(HELP_TRIES + 1)][1:]
            drawn, taken = map(list, zip(*pictures, strict=True))
            print(f"| {name} | {say(help_ms)} | {say(drawn)} | {say(taken)} | {say(cold)} |", flush=True)
        training.kill()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tpmon.pyz"
        build(path)
        ways = {"installed, " + sys.version.split()[0]: [sys.executable, str(Path(sys.executable).with_name("tpmon"))]}
        for python in list_pythons():
            asked = [python, "-c", "import sys; print(sys.version.split()[0])"]
            version = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
            ways[f"tpmon.pyz, {python if python == '/usr/bin/python3' else 'Python'} {version}"] = [python, str(path)]
        measure_all(ways, lambda: Path(tempfile.mkdtemp(dir=folder)))


if __name__ == "__main__":
    main()
