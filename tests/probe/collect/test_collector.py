"""Collect Frames of a small real job: processes, threads and parentage of tree_program.py."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.children import Child, started
from tests.collectives import make_record
from tests.exact import assert_exact
from tests.waiting import wait_until
from tpmon.errors import NoTargetError, UsageError
from tpmon.model.codec import decode, encode
from tpmon.model.frame import EventKind, Frame, TargetState
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Role
from tpmon.model.results.collectives import CollectivesReading, DumpRecords
from tpmon.probe.base.worker import Pace
from tpmon.probe.collect import collector
from tpmon.probe.collect.collector import CollectivesService, Collector
from tpmon.probe.hooked.step_pace import StepsRead
from tpmon.probe.job.resolve import find_job
from tpmon.probe.proc.main_threads import MainThreadProbe
from tpmon.probe.proc.memory import PssRation
from tpmon.probe.records import collectives
from tpmon.probe.spy.stacks import StackSampler

TREE = Path(__file__).parents[2] / "budget" / "tree_program.py"
PROCESSES, THREADS = 5, 14


@contextmanager
def small_tree(processes: int, threads: int, waking: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Start a launcher, its ranks and their workers."""
    command = [sys.executable, str(TREE), "--processes", str(processes), "--threads", str(threads)]
    command += ["--waking", str(waking)]
    with started([*command, "--seconds", "60"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline()
        yield process


@pytest.fixture
def tree():
    """Start a launcher, one rank and its three workers."""
    with small_tree(PROCESSES, THREADS) as process:
        yield process


def collecting(pid: int, *, threads_later: bool = False) -> closing[Collector]:
    return closing(Collector(find_job(pid), threads_later=threads_later))


def next_frame(collector: Collector, seconds: float = 0.3) -> Frame:
    time.sleep(seconds)
    return collector.collect()


def by_role(frame: Frame, role: Role):
    return [process for process in frame.processes if process.role is role]


def proc_value(pid: int, field: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[field]


def test_frames_of_a_job_say_who_is_who_and_what_each_did(tree):
    with collecting(tree.pid) as collector:
        suspends = (collector._stacks.suspend, collector.samples.suspend)
        assert collector.dumps._suspends == suspends, "a dump that stops suspends both that sample"
        collector.set_interval(2.5)
        first = collector.collect()
        assert (len(first.processes), first.interval_s) == (PROCESSES, 2.5)
        assert [event.kind for event in first.events] == [EventKind.ATTACH]
        assert first.events[0].text == f"attached to pid {tree.pid}: 1 rank, 3 loader workers"
        assert not is_known(first.cpu.used_cores)
        assert not is_known(first.cpu.runnable)
        assert first.self_.cpu_pct == Missing("needs two readings")
        assert first.self_.tick_ms > 0

        frame = next_frame(collector)
        (launcher,) = by_role(frame, Role.LAUNCHER)
        (rank,) = by_role(frame, Role.RANK)
        workers = by_role(frame, Role.WORKER)
        assert launcher.pid == tree.pid == frame.target.pid
        assert rank.parent == launcher.pid
        assert [worker.parent for worker in workers] == [rank.pid] * 3
        assert frame.target.local_stacks == 4, "a launcher has no part in it"
        assert [worker.worker for worker in workers] == [0, 1, 2]
        assert [worker.rank_pid for worker in workers] == [rank.pid] * 3
        assert (rank.rank, rank.local_rank, frame.target.world_size) == (0, 0, 1)
        for process in frame.processes:
            assert process.threads == len(os.listdir(f"/proc/{process.pid}/task"))
            assert process.start_ticks == int(proc_value(process.pid, 19))
            assert sum(group.count for group in process.thread_groups) == process.threads
            assert is_known(process.cpu_pct)
            assert is_known(process.runnable)
            assert process.rss_bytes > 1 << 20
        assert sum(process.threads for process in frame.processes) == THREADS
        assert frame.cpu.used_cores < 0.5
        assert frame.cpu.runnable < 0.5
        assert frame.events == ()
        assert [row.pid for row in frame.ranks] == [rank.pid]
        assert frame.ages_s.cpu < 5
        assert frame.taken_ns > first.taken_ns
        assert is_known(frame.self_.cpu_pct)
        assert decode(Frame, encode(frame)) == decode(Frame, encode(decode(Frame, encode(frame))))


def test_what_a_recording_gives_back_is_what_was_read_and_judged_alike():
    with small_tree(PROCESSES, THREADS, THREADS) as tree, collecting(tree.pid) as collector:
        frames = [next_frame(collector) for _ in range(5)]
        os.kill(by_role(frames[-1], Role.WORKER)[0].pid, signal.SIGKILL)
        assert wait_until(lambda: frames.append(next_frame(collector)) or is_known(frames[-1].ends))
    assert any(is_known(process.runnable) and process.runnable for one in frames for process in one.processes)
    assert_exact(frames)


def test_a_killed_worker_leaves_the_table_and_an_event(tree):
    with collecting(tree.pid) as collector:
        collector.collect()
        victim = by_role(next_frame(collector), Role.WORKER)[1]
        os.kill(victim.pid, signal.SIGKILL)
        frame = next_frame(collector)
        assert victim.pid not in [process.pid for process in frame.processes]
        assert len(frame.processes) == PROCESSES - 1
        (event,) = frame.events
        assert event.kind is EventKind.PROCESS
        assert "worker 1" in event.text
        assert [worker.worker for worker in by_role(frame, Role.WORKER)] == [0, 2], "numbers stay"
        assert frame.target.state is TargetState.RUNNING
        assert next_frame(collector).events == ()


def test_the_end_of_the_job_keeps_the_last_readings_and_says_how(tree):
    with collecting(tree.pid) as collector:
        collector.collect()
        last = next_frame(collector)
        tree.kill()
        tree.wait()
        end = time.monotonic() + 10
        while (frame := next_frame(collector, 0.1)).target.state is not TargetState.ENDED:
            assert time.monotonic() < end
        assert is_known(frame.target.ended)
        assert frame.events[-1].kind is EventKind.ENDED
        assert frame.taken_ns > last.taken_ns
        assert frame.target.pid == tree.pid
        again = next_frame(collector)
        assert again.target.state is TargetState.ENDED, "asked again it says the same"


def test_a_job_that_ended_before_the_first_reading_is_no_target(tree):
    job = find_job(tree.pid)
    tree.kill()
    tree.wait()
    with closing(Collector(job)) as collector:
        time.sleep(0.5)
        with pytest.raises(NoTargetError):
            collector.collect()


def test_shedding_load_is_told_once_when_it_begins_and_once_when_it_ends(tree, monkeypatch):
    budget = "tpmon.probe.host.machine.BUDGET_MS_PER_S"
    with collecting(tree.pid) as collector:
        collector.collect()
        monkeypatch.setattr(budget, 0.0)
        frames = [next_frame(collector, 0.05) for _ in range(4)]
        texts = [event.text for frame in frames for event in frame.events]
        assert texts == ["tpmon is over its CPU budget: threads are read every other second"]
        assert frames[-1].self_.shedding
        monkeypatch.setattr(budget, 1e6)
        frames = [next_frame(collector, 0.05) for _ in range(4)]
        texts = [event.text for frame in frames for event in frame.events]
        assert texts == ["tpmon is within its CPU budget again"]
        assert not frames[-1].self_.shedding


def test_threads_that_are_read_later_have_rates_in_the_second_frame(tree):
    with collecting(tree.pid, threads_later=True) as collector:
        first = collector.collect()
        collector.read_rest()
        second = next_frame(collector)
    assert sum(process.threads for process in first.processes) == THREADS
    assert not any(is_known(process.runnable) or process.thread_groups for process in first.processes)
    assert all(is_known(process.runnable) and process.thread_groups for process in second.processes)
    assert is_known(second.cpu.runnable)


def test_a_member_that_ends_before_its_threads_are_read_is_left_out(tree):
    with collecting(tree.pid, threads_later=True) as collector:
        first = collector.collect()
        gone = by_role(first, Role.WORKER)[0].pid
        os.kill(gone, signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{gone}") or proc_value(gone, 0) == "Z")
        collector.read_rest()
        second = next_frame(collector)
    assert is_known(second.cpu.runnable)


@pytest.mark.parametrize("probe", [StackSampler, MainThreadProbe, PssRation])
def test_what_is_dear_is_looked_at_less_often_while_the_verdict_stands(tree, monkeypatch, probe):
    asked: list[Pace] = []
    monkeypatch.setattr(probe, "watch", lambda _self, _subjects, pace, *_loops: asked.append(pace))
    with collecting(tree.pid) as collector:
        collector.collect()
        collector.set_settled(settled=True)
        next_frame(collector, 0.01)
        collector.set_settled(settled=False)
        next_frame(collector, 0.01)
    assert asked == [Pace.FULL, Pace.SETTLED, Pace.FULL]


def test_a_collector_leaves_neither_descriptors_nor_threads_nor_processes(tree):
    earlier = set(threading.enumerate())  # some of which end meanwhile

    def held():
        return len(os.listdir("/proc/self/fd")), set(threading.enumerate()) - earlier

    before = held()
    for _ in range(2):
        with collecting(tree.pid) as collector:
            collector.collect()
            next_frame(collector)
            child = collector._gpu.child_pid()
            assert held()[0] > before[0]
    assert wait_until(lambda: held() == before), held()
    assert not is_known(child) or not os.path.exists(f"/proc/{child}")


LOW_LIMIT = """
import json, resource
sys.path[:0] = sys.argv[3:]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[2])))
from tpmon.probe.collect.collector import Collector
from tpmon.probe.job.resolve import find_job
collector = Collector(find_job(int(sys.argv[1])))
most = 0
for _ in range(3):
    frame = collector.collect()
    time.sleep(0.2)
    most = max(most, len(os.listdir("/proc/self/fd")))
target = frame.target
read = [isinstance(one.cpu_pct, float) and isinstance(one.runnable, float) for one in frame.processes]
counts = [len(read), sum(read), target.local_ranks, target.local_workers, target.unread]
say(json.dumps([counts, isinstance(frame.cpu.used_cores, float), most, frame.facts, list(frame.notes)]))
collector.close()
"""


@pytest.mark.parametrize(("limit", "processes", "anew"), [(96, 40, 37), (256, 40, 28), (1024, 137, 52)])
def test_a_low_limit_of_open_files_costs_cpu_and_says_so_and_no_row(limit, processes, anew):
    with small_tree(processes, 400) as tree, closing(Child(LOW_LIMIT, str(tree.pid), str(limit), *sys.path)) as one:
        answer = one.hear()
    counts, is_sum_known, held, facts, notes = json.loads(answer)
    ranks = 8 if processes == 137 else 2
    assert counts == [processes, processes, ranks, processes - ranks - 1, 0]
    assert is_sum_known
    assert held < limit
    assert facts.startswith(f"{ranks} ranks · {processes - ranks - 1} workers · ")
    (note,) = notes
    words = rf"only {limit} open files are allowed: those of (\d+) processes are opened for each reading"
    assert abs(int(re.match(words, note)[1]) - anew) <= 2


def test_counts_come_from_membership_and_no_sum_is_told_of_a_part(tree, monkeypatch):
    monkeypatch.setattr("tpmon.probe.collect.processes.MOST_PROCESSES", 3)
    with collecting(tree.pid) as collector:
        collector.collect()
        frame = next_frame(collector)
    assert len(frame.processes) == 3
    target = frame.target
    assert (target.local_ranks, target.local_workers, target.unread) == (1, PROCESSES - 2, 2)
    assert frame.facts == f"{PROCESSES - 2} workers"
    assert frame.cpu.used_cores == Missing("2 processes of the job were not read")
    assert frame.cpu.run_delay_ratio == frame.cpu.used_cores
    assert [note for note in frame.notes if note.startswith("2 of 5 processes are not read")]


def test_a_limit_below_what_tpmon_needs_is_refused(monkeypatch):
    monkeypatch.setattr("tpmon.probe.proc.counters.raise_descriptor_limit", lambda: 95)
    with pytest.raises(UsageError, match="the limit of open files is 95; tpmon needs 96"):
        find_job(os.getpid())


def test_stops_are_states_and_events_and_that_no_rank_is_left_is_the_first_fact(tree):
    with collecting(tree.pid) as collector:
        (rank,) = by_role(collector.collect(), Role.RANK)
        os.kill(rank.pid, signal.SIGSTOP)
        frame = next_frame(collector)
        assert (frame.target.state, frame.ranks[0].where) == (TargetState.STOPPED, "stopped by a signal")
        assert [event.text for event in frame.events] == [f"rank 0 ({rank.pid}) stopped by a signal"]
        os.kill(rank.pid, signal.SIGCONT)
        frame = next_frame(collector)
        assert frame.target.state is TargetState.RUNNING
        assert [event.text for event in frame.events] == [f"rank 0 ({rank.pid}) running again"]
        os.kill(rank.pid, signal.SIGKILL)
        frame = next_frame(collector)
        assert (frame.target.state, frame.target.local_ranks) == (TargetState.RUNNING, 0)
        assert frame.facts.startswith("no rank left · ")


def test_the_hooks_may_tell_how_many_ranks_a_job_has(tree, monkeypatch):
    monkeypatch.setattr(StepsRead, "size_job", lambda self, told, here: 100 * told + here)
    with collecting(tree.pid) as collector:
        assert next_frame(collector, 0.0).target.world_size == 101


READING = CollectivesReading((make_record(0),), (), ())


def test_a_reading_enters_one_frame_says_for_which_dump_it_is_and_why_it_failed_and_the_next_one_works():
    answers, asked, changed = [READING], [], threading.Semaphore(0)
    service = CollectivesService(lambda: "job", lambda job: asked.append(job) or answers.pop())
    service.on_change = changed.release

    def finish(dump_ns):
        service.ask(dump_ns)
        assert changed.acquire(timeout=20)

    assert (service.state, service.take()) == (NOT_APPLICABLE, NOT_APPLICABLE)
    finish(77)
    assert asked == ["job"]
    assert service.state == DumpRecords(77, READING)
    assert [service.take(), service.take()] == [READING, NOT_APPLICABLE]
    assert service.state == DumpRecords(77, READING), "a dump is not drawn from the Frames"
    finish(1)
    assert [note.reason for note in service.take().notes] == ["IndexError: pop from empty list"] * 3
    answers.append(READING)
    finish(2)
    assert service.take() == READING


def test_nothing_is_asked_of_a_pipe(monkeypatch):
    asked = []
    monkeypatch.setattr(collectives, "read_collectives", lambda *job, **options: asked.append((job, options)))
    collector._read_records("job")
    assert asked == [(("job",), {"someone_waits": True})]
