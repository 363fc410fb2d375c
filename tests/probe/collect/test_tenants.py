"""Who else computes on this machine: real processes, and which of them are counted."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.frames import make_cpu
from tests.waiting import wait_until
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.probe.collect.tenants import TenantReader, is_crowded

BURN = "while True:\n    sum(range(100_000))"


@pytest.fixture
def burning(tmp_path):
    """A process that burns one CPU, and that these tests did not start themselves: whoever reads is no tenant."""
    script = tmp_path / "noisy_neighbour.py"
    script.write_text(BURN)
    command = ["sh", "-c", '"$0" "$1" >/dev/null 2>&1 & echo $!', sys.executable, str(script)]
    pid = int(subprocess.run(command, check=True, capture_output=True).stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)


def read_until_seen(reader, pid):
    """Read until a process is among the largest: those of other tests burn, too."""
    found = []

    def is_seen():
        found[:] = read_twice(reader)[1]
        return pid in [one.pid for one in found]

    assert wait_until(is_seen, 60.0, 0.0), found
    return found


def read_twice(reader):
    first = reader.read()
    time.sleep(0.6)
    return first, reader.read()


def test_a_process_of_others_is_named_and_none_of_the_job(burning):
    reader = TenantReader(lambda: (), lambda: True)
    assert isinstance(reader.read(), Missing)
    others = read_until_seen(reader, burning)
    named = next(one for one in others if one.pid == burning)
    assert (named.command, named.processes) == ("noisy_neighbour.py", 1)
    assert named.cores > 0.05
    assert named.user
    assert others == sorted(others, key=lambda one: -one.cores)
    _, without = read_twice(TenantReader(lambda: (burning,), lambda: True))
    assert burning not in [one.pid for one in without]


def test_tpmon_and_what_it_started_are_no_tenants(burning):
    with subprocess.Popen([sys.executable, "-c", BURN]) as own:
        others = read_until_seen(TenantReader(lambda: (), lambda: True), burning)
        own.kill()
    named = [one.pid for one in others]
    assert not {own.pid, os.getpid()} & set(named)


def test_nothing_is_read_while_the_job_does_not_wait():
    asked = TenantReader(lambda: pytest.fail("nobody asked"), lambda: False, proc="/nowhere")
    assert asked.read() is NOT_APPLICABLE
    assert is_crowded(make_cpu(run_delay_ratio=0.5))
    assert not is_crowded(make_cpu(run_delay_ratio=0.05))
    assert not is_crowded(make_cpu(run_delay_ratio=Missing("not read")))


def test_a_new_process_under_an_old_number_has_used_nothing_yet(tmp_path):
    """PIDs are given anew; the CPU time of the one before is none of this one's."""
    folder = tmp_path / "77"
    folder.mkdir()
    line = "77 (noisy) R 1 " + " ".join(["0"] * 9) + " {cpu} 0 0 0 20 0 1 0 {start} 0 100 " + " ".join(["0"] * 28)
    reader = TenantReader(lambda: (), lambda: True, str(tmp_path))
    folder.joinpath("stat").write_text(line.format(cpu=0, start=5))
    reader.read()
    folder.joinpath("stat").write_text(line.format(cpu=os.sysconf("SC_CLK_TCK") * 60, start=6))
    again = reader.read()
    assert is_known(again)
    assert again == ()
    folder.joinpath("stat").write_text(line.format(cpu=os.sysconf("SC_CLK_TCK") * 120, start=6))
    assert [one.pid for one in reader.read()] == [77]
