"""Read all members of a job while they are born, die, and leave their PIDs to others."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace

import pytest

from tests.children import Child, child
from tests.members import made_up
from tests.members import member as member_of
from tpmon.model.known import Missing, is_known
from tpmon.model.process import Identity, ThreadKind
from tpmon.probe.base.procread import parse_stat
from tpmon.probe.collect import processes as population_module
from tpmon.probe.collect.processes import Population, describe_shortage
from tpmon.probe.job.job import Member
from tpmon.probe.proc.counters import KEPT_PROCESSES, KEPT_THREADS, Shares, share_descriptors
from tpmon.probe.proc.threads import QUIET_TICKS


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def population():
    one = Population()
    yield one
    one.close()


def read(population: Population, *members: Member):
    return population.read(members, skip_threads=False)


def test_members_are_read_in_their_order_and_the_others_are_closed(population):
    with child("say('up'); hear()") as first, child("start_burning(2); say('up'); hear()") as second:
        before = open_files()
        members = [member_of(second.pid), member_of(first.pid)]
        assert [one.member for one in read(population, *members)] == members
        time.sleep(0.4)
        readings = read(population, *members)
        assert readings[0].now.threads.busy_threads == 2
        assert len(population.busy_tids(members[0].identity)) == 2
        assert population.busy_tids(members[1].identity) == ()
        held = open_files()
        assert read(population, members[1])[0].member == members[1]
        assert open_files() < held
        assert population.busy_tids(members[0].identity) == ()
        assert read(population) == []
        assert open_files() == before


def test_a_dead_member_and_another_process_with_its_pid_have_no_row_and_leave_no_descriptor(population):
    """It was reused between the listing and the opening; the start time tells."""
    with child("say('up'); hear()") as one:
        before = open_files()
        member = member_of(one.pid)
        wrong = replace(member, identity=Identity(one.pid, member.identity.start_ticks - 7))
        assert read(population, wrong) == []
        assert open_files() == before
        assert len(read(population, member)) == 1
        one.kill()
        assert read(population, member) == []
        assert open_files() == before
        assert read(population, member) == []
    assert read(population, made_up(1 << 22)) == []


def test_a_member_that_could_not_be_read_twice_is_read_again(population):
    """Its probe goes on from where it was closed, and needs two readings again."""
    with child("say('up'); hear()") as one:
        member = member_of(one.pid)
        read(population, member)
        assert is_known(read(population, member)[0].now.rates.cpu_pct)
        read(population)
        assert read(population, member)[0].now.rates.cpu_pct == Missing("rates need two readings")


def test_a_hundred_short_lived_children_leave_nothing(population):
    """Each dies at another moment: before, between and while its files are opened and read."""
    before = open_files()
    command = [sys.executable, "-S", "-E", "-c", "import time; time.sleep(0.02)"]
    with child("say('up'); hear()") as steady:
        kept = member_of(steady.pid)
        for number in range(100):
            one = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            try:
                member = member_of(one.pid)
            except (OSError, ValueError):
                one.wait()
                continue
            if number % 3 == 0:
                one.send_signal(signal.SIGKILL)
            if number % 3 == 1:
                read(population, kept, member)
            if number % 2:
                one.wait()
            rows = read(population, kept, member)
            assert rows[0].member == kept
            one.wait()
            assert [row.member for row in read(population, kept, member)] == [kept]
        assert [row.member for row in read(population, kept)] == [kept]
    read(population)
    assert open_files() == before
    assert population._allowance.descriptors == Population()._allowance.descriptors
    assert population._kept == 0


def test_ten_minutes_of_births_and_deaths_keep_the_number_of_descriptors(population):
    """600 ticks, a worker that is replaced every 20 ticks, its threads with it."""
    code = "n=[threading.Thread(target=time.sleep, args=(50,), daemon=True) for _ in range(3)]\n"
    code += "[t.start() for t in n]; say('up'); hear()"
    held = []
    for _ in range(30):
        with child(code) as one:
            member = member_of(one.pid)
            for _ in range(20):
                (row,) = read(population, member)
                assert sum(group.count for group in row.now.threads.groups) == 4
            held.append(open_files())
    assert len(set(held)) == 1


def test_processes_beyond_the_share_are_read_on_files_opened_for_each_reading():
    shares = Shares(members=1, processes=1, threads=1, limit=1024)
    population = Population(shares=shares)
    held = open_files()
    with child("start_burning(1); say('up'); hear()") as first, child("say('up'); hear()") as second:
        before = open_files()
        members = [member_of(second.pid), member_of(first.pid)]
        read(population, *members)
        assert open_files() - before == 6, "those of one process, and one thread"
        time.sleep(0.4)
        kept, anew = read(population, *members)
        assert open_files() - before == 6
        assert population.opened_anew == 1
        assert population.left_out == 0
        assert (kept.member, anew.member) == tuple(members)
        assert anew.now.rates.cpu_pct > 1  # of a core that it may share with others
        assert anew.now.threads.busy_threads == 1
        assert is_known(anew.now.rates.asked_read_bytes_s)
        (remark,) = describe_shortage(shares, population, 2)
        assert remark.startswith("only 1024 open files are allowed: those of 1 processes are opened for each")
        first.kill()
        assert [row.member for row in read(population, *members)] == members[:1]
        assert population.left_out == 0, "dead is not left out"
        wrong = replace(members[1], identity=Identity(second.pid, 7))
        assert [row.member for row in read(population, members[0], wrong)] == members[:1]
    read(population)
    assert open_files() == held
    assert population.opened_anew == 0
    assert describe_shortage(shares, population, 2) == ()
    population.close()


def test_members_beyond_the_most_that_are_read_are_counted(population, monkeypatch):
    monkeypatch.setattr(population_module, "MOST_PROCESSES", 1)
    with child("say('up'); hear()") as first, child("say('up'); hear()") as second:
        members = [member_of(first.pid), member_of(second.pid)]
        assert [row.member for row in read(population, *members)] == members[:1]
        assert population.left_out == 1
        (remark,) = describe_shortage(Shares(256, 256, 1536, limit=1 << 20), population, 2)
        assert remark.startswith("1 of 2 processes are not read")
        assert [row.member for row in read(population, members[1])] == members[1:]
        assert population.left_out == 0


NO_DESCRIPTOR_LEFT = """
import resource
sys.path[:0] = sys.argv[2:]
from tests.probe.collect.test_population import member_of
from tpmon.probe.collect import processes as population_module
from tpmon.probe.collect.processes import Population
from tpmon.probe.proc.counters import Shares
population = Population(shares=Shares(0, 0, 0, limit=1024))
member = member_of(int(sys.argv[1]))
population.read([member], skip_threads=False)
held = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 1024))
rows = [len(population.read([member], skip_threads=False)), population.left_out]
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
rows += [len(population.read([member], skip_threads=False)), population.left_out]
say(" ".join(map(str, rows))); hear()
"""


def test_a_process_for_which_no_descriptor_was_left_is_counted_and_not_taken_for_dead():
    with child("say('up'); hear()") as one, closing(Child(NO_DESCRIPTOR_LEFT, str(one.pid), *sys.path)) as reader:
        assert reader.hear() == "0 1 1 0"


@pytest.mark.parametrize(
    ("limit", "held", "processes", "threads"),
    [
        (1 << 20, 12, KEPT_PROCESSES, KEPT_THREADS),
        (1024, 12, 84, 294),
        (256, 12, 11, 38),
        (96, 12, 2, 6),
        (20, 12, 0, 0),
    ],
)
def test_a_limit_of_open_files_is_shared_so_that_all_fit(limit, held, processes, threads):
    shares = share_descriptors(limit, held)
    assert (shares.members, shares.processes, shares.threads) == (processes, processes, threads)
    assert held + 7 * processes + threads <= limit


def test_thread_kinds_come_from_thread_names(population):
    code = """
def pin():
    ctypes.CDLL(None).prctl(15, b"pt_data_pin", 0, 0, 0)
    say("up"); time.sleep(50)
threading.Thread(target=pin, daemon=True).start(); hear()
"""
    with child(code) as one:
        (row,) = read(population, member_of(one.pid))
        kinds = {group.kind: group.count for group in row.now.threads.groups}
    assert kinds == {ThreadKind.MAIN: 1, ThreadKind.PIN: 1}


def test_shed_ticks_skip_threads_and_not_processes(population):
    with child("start_burning(1); say('up'); hear()") as one:
        member = member_of(one.pid)
        taken = set()
        for _ in range(3 * QUIET_TICKS):
            (row,) = population.read((member,), skip_threads=True)
            taken.add(row.now.threads.taken_ns)
            assert row.now.taken_ns > 0
    assert 3 <= len(taken) <= 4


def test_a_process_lives_without_schedstat_and_one_that_does_not_answer_is_counted(tmp_path):
    """Kernels without CONFIG_SCHED_INFO have no schedstat; what /proc fails to tell is said."""
    folder = tmp_path / "77" / "task" / "77"
    folder.mkdir(parents=True)
    stat = f"77 (python) S 1 {'0 ' * 15} 1 0 500 0 {'0 ' * 30}\n".encode()
    (tmp_path / "77" / "stat").write_bytes(stat)
    (folder / "comm").write_text("python\n")
    member = made_up(77, identity=Identity(77, parse_stat(stat).start_ticks))
    with closing(Population(str(tmp_path), Shares(10, 10, 10, 1024))) as one:
        for _ in range(QUIET_TICKS + 2):
            (reading,) = read(one, member)
            assert reading.now.threads.runnable == Missing("this kernel has no schedstat")
            assert [group.count for group in reading.now.threads.groups] == [1]
        assert one.left_out == 0
    (folder / "schedstat").write_text("no numbers\n")
    with closing(Population(str(tmp_path), Shares(10, 10, 10, 1024))) as one:
        assert read(one, member) == []
        assert (one.left_out, one.unreadable) == (1, 1)
        said = describe_shortage(Shares(10, 10, 300, 1024), one, 1)
        assert said[0].startswith("1 of 1 processes are not read (what /proc says of 1 of them could not")
        (folder / "schedstat").write_text("5 6 7\n")
        assert len(read(one, member)) == 1
        assert (one.left_out, one.unreadable) == (0, 0)
