"""Members that are born, run another program, or are not what their PID says any more."""

import os
import threading
import time
from dataclasses import replace

import pytest

from tests.fake_proc import BASH, FakeProc
from tests.members import describe_changes
from tpmon.model.known import Missing
from tpmon.model.process import Identity, Role
from tpmon.probe.base import procread
from tpmon.probe.base.procread import boot_time_s
from tpmon.probe.job import members as members_module
from tpmon.probe.job.events import Changes, Departure
from tpmon.probe.job.exit_status import UNSEEN
from tpmon.probe.job.members import BIRTHS_PER_REFRESH, Membership
from tpmon.probe.job.resolve import find_job
from tpmon.probe.proc.counters import Shares
from tpmon.probe.spy.dump import dumpable

SECOND = 1_000_000_000
PLACE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4"}
TRAIN = ("python", "-u", "train.py")


class Watch:
    """Hold a fake job of 100 (torchrun), 101 and 102 (ranks), 110 and 120 (workers) and its members."""

    def __init__(self, fake: FakeProc) -> None:
        self.fake = fake
        fake.add_torchrun(100, workers=1)
        self.membership = Membership(find_job(100, fake.proc), fake.proc)
        self.now_ns = SECOND
        assert self.refresh() == Changes()

    def refresh(self, seconds: float = 1.0) -> Changes:
        self.now_ns += int(seconds * SECOND)
        return self.membership.refresh(self.now_ns)

    def pids(self) -> set[int]:
        return {member.identity.pid for member in self.membership.members}


@pytest.fixture
def watch(tmp_path):
    one = Watch(FakeProc(tmp_path / "proc"))
    yield one
    one.membership.close()


def test_nothing_new_is_no_change(watch):
    before = watch.membership.members
    assert [watch.refresh(), watch.refresh(6.0), watch.refresh()] == [Changes()] * 3
    assert watch.membership.members == before


def test_a_respawn_at_the_end_of_an_epoch(watch):
    watch.fake.remove(110)
    watch.fake.add(130, 101, TRAIN, name="pt_data_worker", environ=PLACE)
    changes = watch.refresh()
    assert [member.identity.pid for member in changes.born] == [130]
    assert [departure.member.identity.pid for departure in changes.gone] == [110]
    assert (changes.born[0].role, changes.born[0].rank, changes.born[0].worker) == (Role.WORKER, 0, 0)
    assert watch.pids() == {100, 101, 102, 120, 130}
    assert describe_changes(changes) == ("epoch respawn: 1 worker of rank 0 replaced",)


def test_what_the_thread_of_a_loop_starts_is_met_at_once(watch):
    """The kernel lists a child under the thread that made it; a scan of all is due every 5 s alone."""
    me = next(one.identity for one in watch.membership.members if one.identity.pid == 101)
    main = watch.fake.path / "101/task/101/children"
    before = main.read_text()
    watch.fake.add(130, 101, TRAIN, name="pt_data_worker", environ=PLACE)
    main.write_text(before)
    (watch.fake.path / "101/task/777").mkdir()
    (watch.fake.path / "101/task/777/children").write_text("130 ")
    assert watch.refresh() == Changes()
    changes = watch.membership.refresh(watch.now_ns, {me: 777})
    assert [member.identity.pid for member in changes.born] == [130]
    # A thread that ended is no kernel without these files.
    assert watch.membership.refresh(watch.now_ns, {me: 778}) == Changes()
    watch.fake.add(140, 102, TRAIN, name="pt_data_worker", environ=PLACE)
    assert [member.identity.pid for member in watch.refresh().born] == [140]


def test_grandchildren_born_within_a_second_are_met_at_once(watch):
    watch.fake.add(140, 101, ("sh", "-c", "tool"))
    watch.fake.add(141, 140, ("tool",))
    watch.fake.add(142, 141, ("tool", "child"))
    assert {member.identity.pid: member.role for member in watch.refresh().born} == {141: Role.HELPER, 142: Role.HELPER}
    watch.fake.add(143, 140, ("tool", "second"))
    assert [member.identity.pid for member in watch.refresh().born] == [143]


def test_a_fork_by_another_thread_is_met_within_five_seconds(watch):
    children = watch.fake.path / "101" / "task" / "101" / "children"
    before = children.read_text()
    watch.fake.add(140, 101, ("ffmpeg",))
    children.write_text(before)  # the kernel lists it under the thread that forked
    assert watch.refresh() == Changes()
    assert [member.label for member in watch.refresh(5.0).born] == ["ffmpeg"]


def test_without_children_files_every_refresh_looks_at_all_processes(tmp_path):
    fake = FakeProc(tmp_path / "proc")
    fake.add_torchrun(100, workers=1)
    for path in fake.path.glob("*/task/*/children"):
        path.unlink()
    membership = Membership(find_job(100, fake.proc), fake.proc)
    assert membership.refresh(SECOND) == Changes()
    fake.add(130, 101, TRAIN, name="pt_data_worker", environ=PLACE)
    for path in fake.path.glob("*/task/*/children"):
        path.unlink()
    assert [member.identity.pid for member in membership.refresh(2 * SECOND).born] == [130]
    fake.remove(130)
    assert len(membership.refresh(3 * SECOND).gone) == 1


def test_a_reused_pid_is_another_member(watch):
    watch.fake.remove(110)
    watch.fake.add(110, 101, TRAIN, name="pt_data_worker", start=watch.fake.now - 5)
    changes = watch.refresh()
    assert [departure.member.identity.pid for departure in changes.gone] == [110]
    assert [member.identity for member in changes.born] == [Identity(110, watch.fake.now - 5)]


def test_a_pid_reused_outside_the_job_is_only_gone(watch):
    watch.fake.remove(110)
    watch.fake.add(110, 1, ("cron",), start=watch.fake.now - 5)
    changes = watch.refresh(6.0)
    assert ([d.member.identity.pid for d in changes.gone], changes.born) == ([110], ())
    assert 110 not in watch.pids()


def test_a_number_is_reused_by_a_fork_of_another_thread(watch):
    watch.refresh(6.0)
    watch.fake.remove(110)
    assert len(watch.refresh().gone) == 1
    children = watch.fake.path / "101" / "task" / "101" / "children"
    before = children.read_text()
    watch.fake.add(110, 101, ("ffmpeg",), start=watch.fake.now - 5)
    children.write_text(before)
    assert [member.label for member in watch.refresh(5.0).born] == ["ffmpeg"]


def test_the_rank_is_found_below_its_wrapper_once_it_has_loaded_torch(tmp_path):
    fake = FakeProc(tmp_path / "proc")
    place = {"PMI_RANK": "0", "PMI_SIZE": "1"}
    fake.add(50, 1, ("mpirun", "x"))
    fake.add(51, 50, ("python", "/opt/conda/bin/conda", "run"), environ=place, start=fake.now - 200)
    fake.add(60, 50, ("python", "train.py"), environ={"PMI_RANK": "1", "PMI_SIZE": "2"}, torch=True)
    fake.add(52, 51, ("python", "train.py"), environ=place, start=fake.now - 100)
    membership = Membership(find_job(50, fake.proc), fake.proc)
    assert {m.identity.pid: m.role for m in membership.members if m.rank == 0} == {51: Role.RANK, 52: Role.HELPER}
    maps = fake.path / "52" / "maps"
    maps.write_text(maps.read_text() + "7f00-7f01 r-xp 0 08:01 2    /v/torch/lib/libtorch_cpu.so\n")
    changes = membership.refresh(SECOND)
    assert {member.identity.pid: member.role for member in changes.changed} == {51: Role.HELPER, 52: Role.RANK}
    membership.close()


def test_the_job_is_found_below_what_started_it_once_that_is_seen(tmp_path):
    fake = FakeProc(tmp_path / "proc")
    fake.add(60, 1, ("python", "/venv/bin/yolo", "train"), torch=True)
    membership = Membership(find_job(60, fake.proc), fake.proc)
    assert [(member.role, member.rank) for member in membership.members] == [(Role.RANK, 0)]
    fake.add_torchrun(100, 60, workers=1)
    membership.refresh(SECOND)
    roles = {member.identity.pid: member.role for member in membership.members}
    assert roles == {
        60: Role.HELPER,
        100: Role.LAUNCHER,
        101: Role.RANK,
        102: Role.RANK,
        110: Role.WORKER,
        120: Role.WORKER,
    }
    membership.close()


def test_a_zombie_is_gone_and_a_zombie_child_is_never_met(watch):
    watch.fake.write_stat(110, 101, "pt_data_worker", state="Z", start=watch.fake.now - 1_000_000 + 110)
    watch.fake.add(140, 101, (), name="python", state="Z")
    changes = watch.refresh()
    assert ([d.member.identity.pid for d in changes.gone], changes.born) == ([110], ())
    assert watch.refresh(6.0) == Changes()


def test_members_stay_when_their_parent_dies(watch):
    before = {member.identity.pid: member for member in watch.membership.members}
    watch.fake.remove(101)
    watch.fake.write_stat(110, 1, "pt_data_worker", start=watch.fake.now - 1_000_000 + 110)
    changes = watch.refresh()
    assert [d.member.identity.pid for d in changes.gone] == [101]
    after = {member.identity.pid: member for member in watch.membership.members}
    assert after[110] == replace(before[110], parent=1)
    assert watch.membership.job.world_size == 4


def test_the_job_outlives_its_launcher_and_ends_with_its_last_member(watch):
    watch.fake.remove(100)
    assert describe_changes(watch.refresh()) == (f"launcher torchrun (100) gone: {UNSEEN}",)
    assert watch.pids() == {101, 102, 110, 120}
    for pid in (101, 102, 110, 120):
        watch.fake.remove(pid)
    assert len(watch.refresh().gone) == 4
    assert watch.membership.members == ()
    assert watch.membership.job.script == "train.py"


def test_an_elastic_restart_replaces_ranks_under_their_launcher(watch):
    for pid in (101, 102, 110, 120):
        watch.fake.remove(pid)
    for rank in range(2):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        watch.fake.add(201 + rank, 100, TRAIN, environ=place, torch=True)
    changes = watch.refresh()
    assert describe_changes(changes) == ("2 workers of 2 ranks ended", "elastic restart: 2 ranks replaced")
    assert watch.membership.job.world_size == 2


def test_a_process_that_runs_another_program_is_read_again(watch):
    start = watch.fake.now - 50
    watch.fake.add(140, 101, TRAIN, name="python", start=start)
    assert [member.label for member in watch.refresh().born] == ["multiprocessing child"]
    watch.fake.remove(140)
    watch.fake.add(140, 101, ("ffmpeg", "-i", "x"), start=start)
    changes = watch.refresh()
    assert [(member.identity.pid, member.label) for member in changes.changed] == [(140, "ffmpeg")]
    assert (changes.born, changes.gone) == ((), ())


def test_the_stacks_of_a_helper_born_later_are_read_while_it_runs_python(watch):
    def read():
        members = dumpable(watch.membership.job)
        return [member.identity.pid for member in members if member.role is Role.HELPER]

    start = watch.fake.now - 50
    watch.fake.add(140, 101, TRAIN, name="python", start=start)
    watch.fake.add(141, 101, ("ffmpeg", "-i", "x"))
    watch.refresh()
    assert read() == [140]
    watch.fake.remove(140)
    watch.fake.add(140, 101, ("ffmpeg", "-i", "x"), start=start)
    watch.refresh()
    assert read() == []


def test_a_spawned_worker_is_one_before_it_names_itself(watch):
    spawned = ("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()")
    start = watch.fake.now - 50
    watch.fake.add(140, 101, spawned, name="python", start=start)
    assert [member.role for member in watch.refresh().born] == [Role.WORKER]
    watch.fake.write_stat(140, 101, "pt_data_worker", threads=3, start=start)
    assert [member.name for member in watch.refresh().changed] == ["pt_data_worker"]
    assert watch.refresh() == Changes()


def test_a_burst_of_births_is_met_in_portions(watch):
    for pid in range(1000, 1000 + BIRTHS_PER_REFRESH + 10):
        watch.fake.add(pid, 101, ("true",))
    assert [len(watch.refresh().born) for _ in range(3)] == [BIRTHS_PER_REFRESH, 10, 0]


def threads_that_read() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "tpmon-read"}


def test_a_member_that_did_not_answer_is_asked_again_after_a_minute(tmp_path):
    fake = FakeProc(tmp_path / "proc")
    fake.add_torchrun(100, workers=0)
    path = fake.path / "102" / "cmdline"
    said = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    others = threads_that_read()
    membership = Membership(find_job(100, fake.proc), fake.proc)
    membership.refresh(SECOND)
    assert [type(member.environment) for member in membership.members] == [tuple, tuple, Missing]
    left_behind = threads_that_read() - others
    assert len(left_behind) == 1
    for minute in range(1, 4):
        membership.refresh((2 + 60 * minute) * SECOND)
    assert threads_that_read() - others == left_behind
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # whoever was left behind goes on
    path.unlink()
    path.write_bytes(said)
    while threads_that_read() & left_behind:
        time.sleep(0.01)
    membership.refresh(190 * SECOND)
    assert isinstance(membership.members[2].environment, Missing)
    membership.refresh(250 * SECOND)
    assert membership.members[2].rank == 1
    assert not isinstance(membership.members[2].environment, Missing)
    membership.close()


@pytest.mark.parametrize("step_s", [-1800.0, 7200.0])
def test_a_clock_that_somebody_sets_makes_nobody_older_or_younger(watch, monkeypatch, step_s):
    before = watch.membership.job
    monkeypatch.setattr(procread, "boot_time_s", lambda: boot_time_s() + step_s)
    assert watch.refresh() == Changes()
    watch.fake.add(130, 101, TRAIN, name="pt_data_worker", environ=PLACE, start=watch.fake.now)
    (born,) = watch.refresh().born
    after = watch.membership.job
    started = zip(before.members, after.members, strict=False)
    for old, new in ((before.start, after.start), *((old.started, new.started) for old, new in started)):
        assert (new - old).total_seconds() == pytest.approx(step_s, abs=0.5)
    now_s = time.time() + step_s
    assert now_s - born.started.timestamp() < 60
    monkeypatch.setattr(procread, "boot_time_s", lambda: boot_time_s() + step_s + 0.3)
    assert watch.refresh() == Changes()
    assert watch.membership.members is after.members, "a clock that is only adjusted is none that was set"


def test_an_interactive_shell_and_what_is_below_it_never_join(watch):
    watch.fake.add(140, 101, BASH)
    watch.fake.add(141, 140, ("top",))
    assert watch.refresh() == Changes()
    assert watch.refresh(6.0) == Changes()


def test_descriptors_are_capped_and_given_back(tmp_path):
    fake = FakeProc(tmp_path / "proc")
    fake.add_torchrun(100, workers=0)
    for pid in range(1000, 1060):
        fake.add(pid, 101, ("tool",))
    before = len(os.listdir("/proc/self/fd"))
    membership = Membership(find_job(100, fake.proc), fake.proc, Shares(40, 40, 100, limit=1024))
    assert len(membership.members) == 63
    assert len(os.listdir("/proc/self/fd")) - before == 40
    fake.add(5000, 1050, ("child",))
    assert [member.label for member in membership.refresh(SECOND).born] == ["child"]
    for pid in range(1000, 1030):
        fake.remove(pid)
    assert len(membership.refresh(2 * SECOND).gone) == 30
    freed = len(os.listdir("/proc/self/fd")) - before
    assert freed < 40
    fake.add(5001, 1050, ("child",))
    assert len(membership.refresh(3 * SECOND).born) == 1
    assert len(os.listdir("/proc/self/fd")) - before == freed + 1, "room that was given back is used"
    membership.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_fates_are_counted_and_few_are_named(watch):
    by_role = {member.identity.pid: member for member in watch.membership.members}
    worker, rank = by_role[110], by_role[101]
    other = replace(worker, rank=1)

    def gone(member, count, status):
        return tuple(Departure(member, status) for _ in range(count))

    assert describe_changes(Changes(gone=gone(worker, 2, 0))) == ("2 workers of rank 0 ended",)
    assert describe_changes(Changes(gone=gone(worker, 3, 15) + gone(other, 3, 15))) == (
        "6 workers of 2 ranks gone: SIGTERM",
    )
    assert describe_changes(Changes(gone=gone(rank, 1, 256))) == ("rank 0 (101) gone: exit 1",)
    assert describe_changes(Changes(born=(worker, worker, other))) == ("3 workers of 2 ranks started",)
    assert describe_changes(Changes(born=(replace(rank, role=Role.HELPER),))) == ()


def test_a_scan_is_made_every_five_seconds_and_no_more(watch, monkeypatch):
    looks: list[str] = []
    real = members_module.list_pids
    monkeypatch.setattr(members_module, "list_pids", lambda proc: looks.append(proc) or real(proc))
    for _ in range(20):
        watch.refresh()
    assert len(looks) == 4
