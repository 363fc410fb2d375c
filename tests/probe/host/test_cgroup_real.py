"""Control groups that the kernel keeps, where this machine allows making some."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from tests.freezing import making_group
from tpmon.model.known import is_known
from tpmon.probe.host.cgroup import CgroupReader, parse_counters, read_cpu_budget


@contextmanager
def member(group: Path, program: str):
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    try:
        (group / "cgroup.procs").write_text(str(process.pid))
        process.stdin.write(b"go\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()


def test_real_quota_throttles_a_busy_process():
    with making_group("cpu") as group:
        (group / "cpu.cfs_period_us").write_text("20000")
        (group / "cpu.cfs_quota_us").write_text("10000")
        with member(group, "input()\nwhile True: pass") as busy:
            budget = read_cpu_budget([busy.pid])
            assert budget.cores == 0.5
            assert budget.reason.startswith(f"0.5 CPUs by quota of /{group.name} (affinity ")
            # A tenth is little enough to be used up in every period, also on a crowded machine.
            (group / "cpu.cfs_quota_us").write_text("2000")
            reader = CgroupReader([busy.pid])
            periods = 0
            deadline = time.monotonic() + 20
            while periods < 5 and time.monotonic() < deadline:
                periods = parse_counters((group / "cpu.stat").read_bytes())[b"nr_periods"]
            reader.read(time.monotonic_ns())
            while periods < 25 and time.monotonic() < deadline:
                time.sleep(0.02)
                periods = parse_counters((group / "cpu.stat").read_bytes())[b"nr_periods"]
            reading = reader.read(time.monotonic_ns())
            reader.close()
    assert reading.throttled_ratio > 0.5
    assert 0.1 < reading.throttled_s <= 1.1
    assert reading.throttled_source == f"/{group.name}"


def test_real_oom_kill_is_counted_and_survives_the_victim():
    with making_group("memory") as group:
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
        with member(group, "input()\nkept = bytearray(300 << 20)") as victim:
            reader = CgroupReader([victim.pid])
            first = reader.read(time.monotonic_ns())
            assert victim.wait(20) == -9
            last = reader.read(time.monotonic_ns())
            reader.close()
    assert (first.limit_bytes, first.limit_source) == (64 << 20, f"/{group.name}")
    assert last.oom_kills == first.oom_kills + 1


def test_this_process_can_be_read():
    budget = read_cpu_budget([os.getpid()])
    assert 0 < budget.cores <= os.cpu_count()
    reader = CgroupReader([os.getpid()])
    for reading in (reader.read(time.monotonic_ns()), reader.read(time.monotonic_ns() + 1)):
        assert is_known(reading.anon_bytes) or reading.anon_bytes.reason
    reader.close()
