"""The cheap readings of all jobs, on real processes that have mapped what is called libtorch."""

import time

import pytest

from tests.children import MAP_TORCH, child
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.results.doctor import JobState
from tpmon.probe.collect import jobs as module
from tpmon.probe.collect.jobs import JobsReader
from tpmon.probe.gpu.child_link import GpuProbe

BUSY = MAP_TORCH + 'say("ready")\nhear()\nstart_burning(1)\nsay("busy")\nhear()\nos.kill(os.getpid(), 19)\n'


@pytest.fixture
def reader(monkeypatch):
    monkeypatch.setattr(module, "SURVEY_CORES", 1.0)  # looked for again at once
    one = JobsReader(GpuProbe())
    yield one
    one.close()


def find(reader, pid, holds=lambda one: True):
    deadline = time.monotonic() + 30
    while True:
        found = next((one for one in reader.read().jobs if one.root.pid == pid), None)
        if found is not None and holds(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_a_job_comes_uses_cpus_is_stopped_and_ends(reader, tmp_path):
    reader.read()
    with child(BUSY, str(tmp_path)) as job:
        found = find(reader, job.pid)
        assert (found.processes, found.summary.ranks, found.gpu_pct) == (1, 1, NOT_APPLICABLE)
        assert not is_known(found.cpu_cores)
        assert reader.find(found.root).root == found.root
        job.ask("burn")
        find(reader, job.pid, lambda one: is_known(one.cpu_cores) and one.cpu_cores > 0.05)
        job.say("stop")
        stopped = find(reader, job.pid, lambda one: one.is_stopped)
        assert stopped.summary.state is JobState.STOPPED
    assert job.pid not in [one.root.pid for one in reader.read().jobs]
    assert reader.find(found.root) is NOT_APPLICABLE


def test_the_pace_and_the_age_of_its_log_are_those_of_each_job(reader, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOG_EVERY_S", 0.1)
    log = tmp_path / "log"
    writes = f"""
os.dup2(os.open({str(log)!r}, os.O_WRONLY | os.O_CREAT), 2)
say("ready")
for step in range(600):
    os.write(2, b"step %d loss %.3f 5.0 it/s\\n" % (step, 9 / (step + 1)))
    time.sleep(0.1)
"""
    with child(MAP_TORCH + writes, str(tmp_path)) as job:
        found = find(reader, job.pid, lambda one: is_known(one.pace))
        assert found.pace.rate_hz > 0
        assert found.log_age_s < 30


def test_what_has_not_changed_is_not_looked_for_again(reader, tmp_path, monkeypatch):
    table = {}
    looked = []
    monkeypatch.setattr(module, "read_table", lambda proc: table)
    monkeypatch.setattr(reader, "_find", lambda found: looked.append(len(found)))
    reader._surveyed_s = time.monotonic()
    reader.read()
    assert looked == []
    reader._surveyed_s -= module.SURVEY_AT_MOST_S
    reader.read()
    assert looked == [0], "from time to time it is, all the same"
