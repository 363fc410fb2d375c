"""Say how the tests of ``make test`` go while they run: each failure as it comes, how far they are, how busy the machine is.

TEST_PART names the part that runs; TEST_TELLS is the descriptor that is told of one whose report comes later; TEST_NOTES
is a file that gets what is said again at the end.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence

import pytest

EVERY_S = 60.0
MOST_CHARS = 200
BUSY_LOAD = 1.0
"""Of a core: then threads of others wait for CPUs, and so do those that are measured."""
OTHERS_SHARE = 0.25
"""Of all cores: what others may use before what was measured meanwhile is in doubt."""
ALONE = "alone"
"""The part that wants the machine for itself: beside the others there are more tests."""
MAY_FAIL = "costs and deadlines may fail"


def say_load() -> str:
    """Say that the machine is busy; "" where it is not."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return f"this machine is busy: load {load:.1f} on {cores} cores: {MAY_FAIL}" if load > BUSY_LOAD * cores else ""


def read_cpu_s() -> tuple[float, float]:
    """Return the CPU seconds that all processes have used so far, and of them those of this one and its children."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, irq, softirq = map(int, file.readline().split()[1:8])
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own_s = sum(one.ru_utime + one.ru_stime for one in used)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK"), own_s


class Progress:
    """Tell of one part of the tests."""

    def __init__(self, part: str, config: pytest.Config) -> None:
        self._part = part
        self._config = config
        self._tells = int(os.environ.pop("TEST_TELLS", "0"))
        notes = os.environ.pop("TEST_NOTES", "")
        self._notes = os.path.abspath(notes) if notes else ""  # a test that fails may stand in another folder
        self._total = self._done = self._failed = 0
        self._began_s = self._told_s = time.monotonic()
        self._before = read_cpu_s()

    def tell(self, text: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if self._tells:
            os.write(self._tells, f"\n{text}\n".encode())
        elif reporter is not None:
            reporter.ensure_newline()
            if reporter._tw.width_of_current_line:  # dots of several processes
                reporter._tw.line()
            reporter.write_line(text)
        self._told_s = time.monotonic()

    def note(self, text: str) -> None:
        if self._notes:
            with open(self._notes, "a") as file:
                file.write(f"{text}\n")

    def describe(self) -> str:
        minutes = (time.monotonic() - self._began_s) / 60
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._part}: {self._done} of {self._total} tests{failed}, {minutes:.1f} min"

    def pytest_report_header(self) -> list[str]:
        return [said] if self._part == ALONE and (said := say_load()) else []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = self._total or len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._total = len(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._done += report.when == "teardown"
        if report.failed:
            self._failed += 1
            crash = getattr(report.longrepr, "reprcrash", None)
            why = (crash.message if crash is not None else str(report.longrepr)).strip().partition("\n")[0]
            where = "" if report.when == "call" else f" in its {report.when}"
            said = f"FAILED {report.nodeid}{where}: {why[:MOST_CHARS]}"
            self.tell(f"{said}  ({self.describe()})")
            self.note(said)
        elif time.monotonic() - self._told_s >= EVERY_S:
            self.tell(self.describe())

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        used_s, own_s = (now - before for now, before in zip(read_cpu_s(), self._before, strict=True))
        cores, lasted_s = len(os.sched_getaffinity(0)), time.monotonic() - self._began_s
        others = (used_s - own_s) / lasted_s
        if self._part == ALONE and others > OTHERS_SHARE * cores:
            used = f"{others:.1f} of {cores} cores"
            said = f"this machine was busy: others used {used} while tests ran that want it for themselves: {MAY_FAIL}"
            terminalreporter.write_line(said)
            self.note(said)
