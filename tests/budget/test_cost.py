"""Hold the budgets of docs/overhead.md: CPU time, memory, descriptors, at 1.5 times the promise.

One tree of 137 processes and 3,000 threads, of which 100 wake ten times a second, and eight
simulated cards. CPU time of a shared machine swings twofold with its neighbours, so it is held
against what importing textual takes in the same minute; ``make bench-cost`` prints the figures.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.budget.bench_cost import NO_CARDS, NO_LOOKS, TPMON, build_cards, end_jobs, start_jobs, start_tree
from tests.budget.bench_trace import ROOT, measure, tile
from tests.budget.measure import Screen, cost_in_turns, find_working, measure_import, run_cpu_seconds, slowness
from tests.pty.conftest import END_S, PROGRAM, Terminal, environment

pytestmark = pytest.mark.budget

MARGIN = 1.5
HELP_CPU_S = 0.060
FIRST_FRAME_CPU_S = 0.45
TOTAL_CPU_PCT = 2.5
RSS_MB = 60.0
RSS_WITH_CHILD_MB = 90.0
OUTPUT_BYTES_S = 20_000
MAX_DESCRIPTORS = 4_000
"""1,536 for threads, 5 for each process, 2 for each of 256 members at most, and tpmon's own."""


def test_help_costs_little_more_than_python():
    run_cpu_seconds([*TPMON, "--help"])
    pairs = [(run_cpu_seconds([*TPMON, "--help"]), measure_import()) for _ in range(5)]
    costs, imports = zip(*pairs, strict=True)
    assert statistics.median(costs) <= HELP_CPU_S * MARGIN * slowness(imports), pairs


SCREEN_S = 8
SCREEN_CPU_PCT = 1.0
SCREEN_RSS_MIB = 50


def run_ns(pid: int, but: int) -> int:
    """Add the time on CPU of all threads but one (schedstat, field 1, nanoseconds)."""
    total = 0
    for tid in os.listdir(f"/proc/{pid}/task"):
        if int(tid) != but:
            total += int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()[0])
    return total


@pytest.mark.pty
def test_the_screen_of_a_large_job_takes_no_more_than_its_share(tmp_path: Path):
    """Without the session thread, which is measured with the probes."""
    thread_file = tmp_path / "session"
    arguments = ["--processes", "137", "--gpus", "8", "--judged", "--thread-file", str(thread_file)]
    terminal = Terminal([*PROGRAM, *arguments], environment(tmp_path), 200, 50)
    try:
        terminal.until("second 2")
        session = int(thread_file.read_text())
        started, bytes_before, ns_before = time.monotonic(), len(terminal.raw), run_ns(terminal.pid, session)
        while time.monotonic() - started < SCREEN_S:
            terminal.read(0.5)
        seconds = time.monotonic() - started
        cpu_pct = (run_ns(terminal.pid, session) - ns_before) / seconds / 1e7
        bytes_s = (len(terminal.raw) - bytes_before) / seconds
        rss_mib = int(Path(f"/proc/{terminal.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        print(f"UI {cpu_pct:.2f} % of a core, {bytes_s / 1000:.1f} KB/s, RSS {rss_mib:.0f} MiB")
        assert cpu_pct <= MARGIN * SCREEN_CPU_PCT
        assert bytes_s <= OUTPUT_BYTES_S
        assert rss_mib <= MARGIN * SCREEN_RSS_MIB
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.close()


JSON = "import json, sys; json.load(open(sys.argv[1]))"


def test_the_analysis_beside_its_start_costs_about_what_json_does(tmp_path: Path) -> None:
    """json takes 1.3 s and 561 MB for 106 MB; tpmon has to start, import numpy and write tables too."""
    path = tmp_path / "rank0.json"
    tile(path, 12, "")
    ours = min(measure([sys.executable, "-m", "tpmon", "trace", str(path)], str(ROOT)) for _try in range(2))
    plain = min(measure([sys.executable, "-c", JSON, str(path)], str(ROOT)) for _try in range(2))
    start = min(measure([sys.executable, "-c", "import numpy, msgspec"], str(ROOT)) for _try in range(2))
    print(f"tpmon trace {ours[0]:.2f} s, {ours[1]:.0f} MB; json {plain[0]:.2f} s, {plain[1]:.0f} MB")
    assert ours[0] - 2 * start[0] < 1.6 * plain[0]
    assert ours[1] < start[1] + 45


START = "import numpy, msgspec, textual.app"
TIMES_START = 1.9
"""0.5 s for 5 MB, where the import of numpy and textual takes half of it; 1.2 to 1.4 measured."""


def cpu_of_first_picture(path: Path, state: Path) -> float:
    """Return the CPU seconds that all threads of the screen took until its keys were drawn."""
    terminal = Terminal([sys.executable, "-m", "tpmon", "trace", str(path)], environment(state))
    try:
        terminal.until("q quit")
        fields = Path(f"/proc/{find_working(terminal.pid)}/stat").read_text().rpartition(")")[2].split()
        terminal.press("q")
        assert terminal.end(END_S) == 0
    finally:
        terminal.close()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_first_picture_of_5_mb_costs_about_twice_what_numpy_and_textual_do(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    tile(path, 5, "")
    pairs = [
        (cpu_of_first_picture(path, tmp_path), measure([sys.executable, "-c", START], str(ROOT))[0])
        for _try in range(3)
    ]
    ours, start = (min(one) for one in zip(*pairs, strict=True))
    print(f"first picture {ours:.2f} s, numpy, msgspec and textual {start:.2f} s")
    assert ours < TIMES_START * start


@pytest.fixture(scope="module")
def tree():
    process = start_tree()
    yield process
    process.terminate()
    process.wait()


def test_the_first_picture_of_a_large_job_is_cheap(tree):
    costs, imports = [], []
    for _ in range(3):
        imports.append(measure_import())
        screen = Screen([*TPMON, "attach", str(tree.pid), *NO_LOOKS], 200, 50, {})
        try:
            costs.append(screen.until(b"machine", 30.0).cpu_s)
        finally:
            screen.close()
    assert statistics.median(costs) <= FIRST_FRAME_CPU_S * MARGIN * slowness(imports), (costs, imports)


@pytest.fixture(scope="module")
def cards(tree, tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to build the simulated cards with")
    return build_cards(str(tmp_path_factory.mktemp("cards")), tree.pid)


def test_watching_a_large_job_on_eight_cards_stays_within_the_budget(tree, cards):
    screen = Screen([*TPMON, "attach", str(tree.pid), *NO_LOOKS], 200, 50, cards)
    try:
        screen.until(b"machine", 30.0)
        screen.drain(5.0)
        turns = cost_in_turns(screen, 3.0, 7)
    finally:
        screen.close()
    assert b"H100" in screen.text
    cost = turns[-1][1]
    assert cost.children_cpu_pct > 0
    each_pct = [(one.cpu_pct + one.children_cpu_pct) / slowness([beside_s]) for beside_s, one in turns]
    assert statistics.median(each_pct) <= TOTAL_CPU_PCT * MARGIN, turns
    assert cost.rss_mb <= RSS_MB * MARGIN
    assert cost.rss_mb + cost.children_rss_mb <= RSS_WITH_CHILD_MB * MARGIN
    assert cost.bytes_s <= OUTPUT_BYTES_S * MARGIN
    assert cost.descriptors <= MAX_DESCRIPTORS


def test_the_list_of_ten_jobs_and_300_processes_stays_within_the_budget(tmp_path):
    jobs = start_jobs(str(tmp_path), torch=False)
    try:
        screen = Screen(TPMON, 120, 40, NO_CARDS)
        try:
            screen.until(b"JUDGED", 30.0)
            screen.drain(5.0)
            turns = cost_in_turns(screen, 4.0, 9)
        finally:
            screen.close()
    finally:
        end_jobs(jobs)
    assert screen.text.count(b"tree_program.py") >= len(jobs)
    each_pct = [(one.cpu_pct + one.children_cpu_pct) / slowness([beside_s]) for beside_s, one in turns]
    assert statistics.mean(each_pct) <= TOTAL_CPU_PCT * MARGIN, turns
    assert turns[-1][1].rss_mb + turns[-1][1].children_rss_mb <= RSS_WITH_CHILD_MB * MARGIN


def test_the_tool_says_what_it_costs(tree):
    """The figure on the screen must be the one that is measured from outside."""
    output = subprocess.run(
        [*TPMON, "attach", str(tree.pid), "--json", "--once"], capture_output=True, text=True, check=True
    ).stdout
    own = json.loads(output)["self"]
    assert 0 < own["rss_bytes"] < RSS_MB * 1e6
    assert own["target_paused_ms"] == 0
    assert own["tick_ms"] > 0
