"""See whether anything traces a process: a tracer stops it, which tpmon must not do."""

from __future__ import annotations

from tpmon.probe.base.procread import read_table
from tpmon.probe.job.job import find_descendants


def count_tracers(pid: int) -> int:
    traced = 0
    for one in [pid, *find_descendants(pid, read_table())]:
        try:
            with open(f"/proc/{one}/status") as file:
                traced += any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in file)
        except OSError:  # it ended meanwhile
            continue
    return traced
