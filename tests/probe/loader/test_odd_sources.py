"""In every source that reads one process after the other, what one raises is its reason, and the others go on."""

import os
from pathlib import Path

import pytest

from tests.children import child
from tests.probe.collect.test_population import member_of
from tests.waiting import wait_until
from tpmon.model.dump import ErrorKind
from tpmon.model.known import Missing, is_known
from tpmon.model.process import Identity
from tpmon.probe.collect.processes import Population, ProcessProbe
from tpmon.probe.hooked import page as hook
from tpmon.probe.host import output
from tpmon.probe.host.output import OutputReader
from tpmon.probe.loader import queues as loader
from tpmon.probe.loader.queues import LoaderProbe, LoaderRank, LoaderWorker
from tpmon.probe.proc.counters import Shares
from tpmon.probe.proc.main_threads import Applicable
from tpmon.probe.spy.failure import Failure
from tpmon.probe.spy.plan import SpySubject
from tpmon.probe.spy.stacks import StackSampler

ODD, SOUND = 1 << 22, os.getpid()


def fail(*_: object, **__: object) -> None:
    raise IndexError("text of others")


WHY = "IndexError: text of others"


def test_the_time_of_one_log_costs_no_other_log(tmp_path):
    memory = Path("/dev/shm")
    log = (memory if memory.is_dir() else tmp_path) / f"tpmon-test-{os.getpid()}.log"
    sound = tmp_path / "sound.log"
    sound.write_text("step 3\n")
    log.write_text("step 4\n")
    try:
        os.utime(log, (1e12, 1e12))
        if os.stat(log).st_mtime < 1e12:
            pytest.skip("no file system in memory: this one has no such year")
        with (
            child(f"import os; os.dup2(os.open({str(log)!r}, 1), 2); say('up'); hear()") as odd,
            child(f"import os; os.dup2(os.open({str(sound)!r}, 1), 2); say('up'); hear()") as other,
        ):
            read = {one.pid: one for one in OutputReader().read((odd.pid, other.pid))}
    finally:
        log.unlink()
    assert read[odd.pid].last_write == Missing("the file has the time of no year that there is")
    assert read[odd.pid].lines == ("step 4",)
    assert is_known(read[other.pid].last_write)


def test_the_words_of_one_log_cost_no_other_log(tmp_path, monkeypatch):
    log = tmp_path / "a.log"
    log.write_text("step 3\n")
    monkeypatch.setattr(output, "parse_tail", fail)
    with child(f"import os; os.dup2(os.open({str(log)!r}, 1), 2); say('up'); hear()") as one:
        (sample,) = OutputReader().read((one.pid,))
    assert sample.size_bytes == Missing(f"not understood: {WHY}")


def test_the_queues_of_one_rank_cost_no_other_rank(monkeypatch):
    def read(pid):
        return {} if pid == SOUND else fail()

    monkeypatch.setattr(loader, "read_queue_pipes", read)
    probe = LoaderProbe()
    ranks = [LoaderRank(n, pid, (LoaderWorker(0, pid, 5),), False) for n, pid in enumerate((ODD, SOUND))]
    probe.watch(tuple(ranks), 0)
    probe.look(1)
    odd, sound = probe.latest()
    assert odd.ready_bytes == Missing(WHY)
    assert sound.ready_bytes != odd.ready_bytes


def test_the_page_of_one_hook_costs_no_other_rank(monkeypatch):
    processes = [Identity(ODD, 1), Identity(SOUND, 2)]
    reader = hook.StepReader()
    whole = reader._find
    monkeypatch.setattr(reader, "_find", lambda one, now: fail() if one.pid == ODD else whole(one, now))
    read = reader.read_steps(processes)
    assert read[processes[0]] == Missing(WHY)
    assert read[processes[1]] == Missing(hook.NO_HOOK)


def test_thousands_of_memfds_of_that_name_are_not_all_looked_at(monkeypatch):
    looks: list[str] = []

    def look(link, *_):
        looks.append(link)
        raise OSError

    monkeypatch.setattr(hook, "_map", look)
    code = f"import os; held = [os.memfd_create({hook.wire.TELEMETRY_NAME!r}) for _ in range(300)]"
    with child(f"{code}; say(held[-1]); hear()") as one:
        process = Identity(one.pid, member_of(one.pid).identity.start_ticks)
        assert hook.StepReader().read_steps([process]) == {process: Missing(hook.NO_HOOK)}
        newest = max(map(int, os.listdir(f"/proc/{one.pid}/fd")))
    assert len(looks) == 64
    assert looks[0].endswith(f"/{newest}"), "ours lie high"


def test_the_sampler_refuses_one_rank_and_goes_on(monkeypatch):
    taken: list[int] = []

    def take(_sampler, turn, *_):
        taken.append(turn.subject.identity.pid)
        if turn.subject.identity.pid == ODD:
            fail()
        return Failure(ErrorKind.FAILED, "sound")

    monkeypatch.setattr(StackSampler, "_take_turn", take)
    sampler = StackSampler(enabled=True)
    ranks: list[Applicable[int]] = [0, 1]
    sampler.watch([SpySubject(Identity(pid, 1), rank) for pid, rank in zip((ODD, SOUND), ranks, strict=True)])
    sampler.start()
    try:
        assert wait_until(lambda: {ODD, SOUND} <= set(taken))
        assert wait_until(lambda: f"rank 0: failed: {WHY}" in sampler.source())
        assert "rank 1: sound" in sampler.source()
    finally:
        sampler.stop()


def test_one_member_that_cannot_be_read_is_counted_with_its_reason(monkeypatch):
    whole = ProcessProbe.read

    with child("say('up'); hear()") as one, child("say('up'); hear()") as other:
        members = [member_of(one.pid), member_of(other.pid)]

        def read(self, *given, **named):
            return fail() if self.pid == one.pid else whole(self, *given, **named)

        monkeypatch.setattr(ProcessProbe, "read", read)
        population = Population(shares=Shares(10, 10, 10, 1024))
        try:
            readings = population.read(members, skip_threads=False)
        finally:
            population.close()
    assert [reading.member.identity.pid for reading in readings] == [other.pid]
    assert (population.left_out, population.unreadable, population.why) == (1, 1, WHY)
