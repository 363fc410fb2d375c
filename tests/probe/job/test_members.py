"""Members that are born, run another program, end, or are not what their PID says any more."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.children import MAP_TORCH, child
from tests.fake_proc import BASH, FakeProc
from tests.members import describe_changes
from tpmon.model.known import Missing
from tpmon.model.process import Identity, Role
from tpmon.probe.base import procread
from tpmon.probe.base.procread import TICKS_PER_S, boot_time_s, read_stat
from tpmon.probe.job import exit_status as ending
from tpmon.probe.job import members as members_module
from tpmon.probe.job.events import Changes, Departure
from tpmon.probe.job.exit_status import UNSEEN, describe_end, find_dead, parse_oom_victims, read_oom_victims
from tpmon.probe.job.members import BIRTHS_PER_REFRESH, Membership
from tpmon.probe.job.resolve import find_job
from tpmon.probe.proc.counters import Shares
from tpmon.probe.spy.dump import dumpable

SECOND = 1_000_000_000
PLACE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4"}
TRAIN = ("python", "-u", "train.py")


class Watch:
    """Hold a fake job and its members: torchrun (100) with ranks (101, 102) and a worker of each (110, 120)."""

    def __init__(self, fake: FakeProc, root: int = 0) -> None:
        self.fake = fake
        if not root:
            fake.add_torchrun(100, workers=1)
        self.membership = Membership(find_job(root or 100, fake.proc), fake.proc)
        self.now_ns = SECOND
        assert root or self.refresh() == Changes()

    def refresh(self, seconds: float = 1.0) -> Changes:
        self.now_ns += int(seconds * SECOND)
        return self.membership.refresh(self.now_ns)

    def look(self, seconds: float = 1.0) -> tuple[list[int], list[int]]:
        """Look again; return who was born and who is gone."""
        changes = self.refresh(seconds)
        return pids(changes.born), pids(each.member for each in changes.gone)

    def add_worker(self, pid: int, rank: int = 101, **fields) -> None:
        self.fake.add(pid, rank, TRAIN, name="pt_data_worker", environ=PLACE, **fields)

    def children(self, pid: int) -> Path:
        return self.fake.path / f"{pid}/task/{pid}/children"

    def roles(self) -> dict[int, Role]:
        return {member.identity.pid: member.role for member in self.membership.members}


def pids(members) -> list[int]:
    return [member.identity.pid for member in members]


@pytest.fixture
def watching():
    """Give what follows a job, and end that."""
    made = []
    yield lambda fake, root=0: made.append(Watch(fake, root)) or made[-1]
    for one in made:
        one.membership.close()


@pytest.fixture
def watch(fake, watching):
    return watching(fake)


def test_nothing_new_is_no_change_and_a_scan_is_made_every_five_seconds_and_no_more(watch, monkeypatch):
    looks: list[str] = []
    real = members_module.list_pids
    monkeypatch.setattr(members_module, "list_pids", lambda proc: looks.append(proc) or real(proc))
    before = watch.membership.members
    assert [watch.refresh() for _ in range(20)] == [Changes()] * 20
    assert (watch.membership.members, len(looks)) == (before, 4)


def test_a_respawn_at_the_end_of_an_epoch_and_an_elastic_restart_are_told(watch):
    watch.fake.remove(110)
    watch.add_worker(130)
    changes = watch.refresh()
    assert (pids(changes.born), pids(each.member for each in changes.gone)) == ([130], [110])
    assert (changes.born[0].role, changes.born[0].rank, changes.born[0].worker) == (Role.WORKER, 0, 0)
    assert watch.roles().keys() == {100, 101, 102, 120, 130}
    assert describe_changes(changes) == ("epoch respawn: 1 worker of rank 0 replaced",)
    for pid in (101, 102, 120, 130):
        watch.fake.remove(pid)
    for rank in range(2):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        watch.fake.add(201 + rank, 100, TRAIN, environ=place, torch=True)
    changes = watch.refresh()
    assert describe_changes(changes) == ("2 workers of 2 ranks ended", "elastic restart: 2 ranks replaced")
    assert watch.membership.job.world_size == 2


def test_what_the_thread_of_a_loop_starts_is_met_at_once(watch):
    """The kernel lists a child under the thread that made it; a scan of all is due every 5 s alone."""
    me = next(one.identity for one in watch.membership.members if one.identity.pid == 101)
    before = watch.children(101).read_text()
    watch.add_worker(130)
    watch.children(101).write_text(before)
    (watch.fake.path / "101/task/777").mkdir()
    (watch.fake.path / "101/task/777/children").write_text("130 ")
    assert watch.refresh() == Changes()
    assert pids(watch.membership.refresh(watch.now_ns, {me: 777}).born) == [130]
    # A thread that ended is no kernel without these files.
    assert watch.membership.refresh(watch.now_ns, {me: 778}) == Changes()
    watch.add_worker(140, 102)
    assert watch.look() == ([140], [])


def test_grandchildren_born_within_a_second_are_met_at_once(watch):
    watch.fake.add(140, 101, ("sh", "-c", "tool"))
    watch.fake.add(141, 140, ("tool",))
    watch.fake.add(142, 141, ("tool", "child"))
    assert {member.identity.pid: member.role for member in watch.refresh().born} == {141: Role.HELPER, 142: Role.HELPER}
    watch.fake.add(143, 140, ("tool", "second"))
    assert watch.look() == ([143], [])


def test_a_fork_by_another_thread_is_met_within_five_seconds_also_where_it_reuses_a_number(watch):
    def fork(pid):
        before = watch.children(101).read_text()
        watch.fake.add(pid, 101, ("ffmpeg",), start=watch.fake.now - 5)
        watch.children(101).write_text(before)  # the kernel lists it under the thread that forked

    fork(140)
    assert watch.refresh() == Changes()
    assert [member.label for member in watch.refresh(5.0).born] == ["ffmpeg"]
    watch.fake.remove(110)
    assert watch.look() == ([], [110])
    fork(110)
    assert [member.label for member in watch.refresh(5.0).born] == ["ffmpeg"]


def test_without_children_files_every_refresh_looks_at_all_processes(fake, watching):
    def unlink():
        for path in fake.path.glob("*/task/*/children"):
            path.unlink()

    fake.add_torchrun(100, workers=1)
    unlink()
    watch = watching(fake, 100)
    assert watch.refresh() == Changes()
    watch.add_worker(130)
    unlink()
    assert watch.look() == ([130], [])
    fake.remove(130)
    assert watch.look() == ([], [130])


def test_a_reused_pid_is_another_member_and_one_that_is_reused_outside_the_job_is_only_gone(watch):
    watch.fake.remove(110)
    watch.add_worker(110, start=watch.fake.now - 5)
    changes = watch.refresh()
    assert pids(departure.member for departure in changes.gone) == [110]
    assert [member.identity for member in changes.born] == [Identity(110, watch.fake.now - 5)]
    watch.fake.remove(120)
    watch.fake.add(120, 1, ("cron",), start=watch.fake.now - 5)
    assert watch.look(6.0) == ([], [120])
    assert 120 not in watch.roles()


def test_the_rank_is_found_below_its_wrapper_once_it_has_loaded_torch(fake, watching):
    place = {"PMI_RANK": "0", "PMI_SIZE": "1"}
    fake.add(50, 1, ("mpirun", "x"))
    fake.add(51, 50, ("python", "/opt/conda/bin/conda", "run"), environ=place, start=fake.now - 200)
    fake.add(60, 50, ("python", "train.py"), environ={"PMI_RANK": "1", "PMI_SIZE": "2"}, torch=True)
    fake.add(52, 51, ("python", "train.py"), environ=place, start=fake.now - 100)
    watch = watching(fake, 50)
    assert {m.identity.pid: m.role for m in watch.membership.members if m.rank == 0} == {51: Role.RANK, 52: Role.HELPER}
    with (fake.path / "52" / "maps").open("a") as maps:
        maps.write("7f00-7f01 r-xp 0 08:01 2    /v/torch/lib/libtorch_cpu.so\n")
    changed = {member.identity.pid: member.role for member in watch.refresh().changed}
    assert changed == {51: Role.HELPER, 52: Role.RANK}


def test_the_job_is_found_below_what_started_it_once_that_is_seen(fake, watching):
    fake.add(60, 1, ("python", "/venv/bin/yolo", "train"), torch=True)
    watch = watching(fake, 60)
    assert watch.roles() == {60: Role.RANK}
    fake.add_torchrun(100, 60, workers=1)
    watch.refresh()
    below = dict.fromkeys((101, 102), Role.RANK) | dict.fromkeys((110, 120), Role.WORKER)
    assert watch.roles() == {60: Role.HELPER, 100: Role.LAUNCHER} | below


def test_a_parent_that_rests_while_its_programs_compute_is_a_launcher_until_it_computes_itself(fake, watching):
    fake.add(60, 1, ("python", "tune.py"), torch=True)
    fake.spend(60, 9.0)
    fake.add(70, 60, ("python", "-c", "fit()"), torch=True)
    watch = watching(fake, 60)
    rank, launcher, helper = Role.RANK, Role.LAUNCHER, Role.HELPER
    assert watch.roles() == {60: rank, 70: helper}, "one reading does not tell"
    for second, cpu_s in enumerate((4.0, 9.0)):
        fake.spend(70, cpu_s)
        watch.refresh(6.0)
        assert watch.roles() == ({60: launcher, 70: rank} if second else {60: rank, 70: helper})
    fake.remove(70)
    watch.refresh(6.0)
    assert watch.roles() == {60: launcher}, "between two programs"
    fake.add(80, 60, ("python", "-c", "fit()"), torch=True)
    watch.refresh(6.0)
    assert watch.roles() == {60: launcher, 80: rank}
    assert watch.membership.members[1].rank == 0
    fake.spend(60, 15.0)
    watch.refresh(6.0)
    assert watch.roles() == {60: rank, 80: helper}


def test_a_parent_that_rests_while_multiprocessing_computes_for_it_stays_a_rank(fake, watching):
    fake.add(60, 1, TRAIN, torch=True)
    fake.add(70, 60, TRAIN, torch=True)
    watch = watching(fake, 60)
    for cpu_s in (6.0, 12.0, 18.0):
        fake.spend(70, cpu_s)
        watch.refresh(6.0)
    assert watch.roles() == {60: Role.RANK, 70: Role.HELPER}


def test_a_zombie_is_gone_and_a_zombie_child_is_never_met_nor_an_interactive_shell_and_what_is_below_it(watch):
    watch.fake.write_stat(110, 101, "pt_data_worker", state="Z", start=watch.fake.now - 1_000_000 + 110)
    watch.fake.add(140, 101, (), name="python", state="Z")
    watch.fake.add(150, 101, BASH)
    watch.fake.add(151, 150, ("top",))
    assert watch.look() == ([], [110])
    assert watch.refresh(6.0) == Changes()


def test_members_stay_when_their_parent_dies_and_the_job_ends_with_its_last_member(watch):
    before = next(member for member in watch.membership.members if member.identity.pid == 110)
    watch.fake.remove(101)
    watch.fake.write_stat(110, 1, "pt_data_worker", start=watch.fake.now - 1_000_000 + 110)
    assert watch.look() == ([], [101])
    assert replace(before, parent=1) in watch.membership.members
    assert watch.membership.job.world_size == 4
    watch.fake.remove(100)
    assert describe_changes(watch.refresh()) == (f"launcher torchrun (100) gone: {UNSEEN}",)
    assert watch.roles().keys() == {102, 110, 120}
    for pid in (102, 110, 120):
        watch.fake.remove(pid)
    assert len(watch.refresh().gone) == 3
    assert (watch.membership.members, watch.membership.job.script) == ((), "train.py")


def test_a_process_that_names_itself_or_runs_another_program_is_read_again(watch):
    def read_stacks():
        return [one.identity.pid for one in dumpable(watch.membership.job) if one.role is Role.HELPER]

    spawned = ("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()")
    start = watch.fake.now - 50
    watch.fake.add(130, 101, spawned, name="python", start=start)
    assert [member.role for member in watch.refresh().born] == [Role.WORKER], "before it names itself"
    watch.fake.write_stat(130, 101, "pt_data_worker", threads=3, start=start)
    assert [member.name for member in watch.refresh().changed] == ["pt_data_worker"]
    assert watch.refresh() == Changes()
    watch.fake.add(140, 101, TRAIN, name="python", start=start)
    watch.fake.add(141, 101, ("ffmpeg", "-i", "x"))
    assert sorted(member.label for member in watch.refresh().born) == ["ffmpeg", "multiprocessing child"]
    assert read_stacks() == [140], "the stacks of a helper are read while it runs Python"
    watch.fake.remove(140)
    watch.fake.add(140, 101, ("ffmpeg", "-i", "x"), start=start)
    changes = watch.refresh()
    assert [(member.identity.pid, member.label) for member in changes.changed] == [(140, "ffmpeg")]
    assert (changes.born, changes.gone, read_stacks()) == ((), (), [])


def test_a_burst_of_births_is_met_in_portions(watch):
    for pid in range(1000, 1000 + BIRTHS_PER_REFRESH + 10):
        watch.fake.add(pid, 101, ("true",))
    assert [len(watch.refresh().born) for _ in range(3)] == [BIRTHS_PER_REFRESH, 10, 0]


def threads_that_read() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "tpmon-read"}


def test_a_member_that_did_not_answer_is_asked_again_after_a_minute(fake, watching):
    fake.add_torchrun(100, workers=0)
    path = fake.path / "102" / "cmdline"
    said = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    others = threads_that_read()
    watch = watching(fake, 100)
    watch.refresh()
    assert [type(member.environment) for member in watch.membership.members] == [tuple, tuple, Missing]
    left_behind = threads_that_read() - others
    assert len(left_behind) == 1
    for _ in range(3):
        watch.refresh(60)
    assert threads_that_read() - others == left_behind
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # whoever was left behind goes on
    path.unlink()
    path.write_bytes(said)
    for thread in left_behind:
        thread.join(30)
    watch.refresh(8)
    assert isinstance(watch.membership.members[2].environment, Missing)
    watch.refresh(60)
    assert watch.membership.members[2].rank == 1
    assert not isinstance(watch.membership.members[2].environment, Missing)


@pytest.mark.parametrize("step_s", [-1800.0, 7200.0])
def test_a_clock_that_somebody_sets_makes_nobody_older_or_younger(watch, monkeypatch, step_s):
    before = watch.membership.job
    monkeypatch.setattr(procread, "boot_time_s", lambda: boot_time_s() + step_s)
    assert watch.refresh() == Changes()
    watch.add_worker(130, start=watch.fake.now)
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


def test_descriptors_are_capped_and_given_back(fake):
    def count_open():
        return len(os.listdir("/proc/self/fd")) - before

    fake.add_torchrun(100, workers=0)
    for pid in range(1000, 1060):
        fake.add(pid, 101, ("tool",))
    before = len(os.listdir("/proc/self/fd"))
    membership = Membership(find_job(100, fake.proc), fake.proc, Shares(40, 40, 100, limit=1024))
    assert (len(membership.members), count_open()) == (63, 40)
    fake.add(5000, 1050, ("child",))
    assert [member.label for member in membership.refresh(SECOND).born] == ["child"]
    for pid in range(1000, 1030):
        fake.remove(pid)
    assert len(membership.refresh(2 * SECOND).gone) == 30
    freed = count_open()
    assert freed < 40
    fake.add(5001, 1050, ("child",))
    assert len(membership.refresh(3 * SECOND).born) == 1
    assert count_open() == freed + 1, "room that was given back is used"
    membership.close()
    assert count_open() == 0


@pytest.mark.parametrize(
    ("fates", "born", "lines"),
    [
        ([(110, 0, 0)] * 2, [], ("2 workers of rank 0 ended",)),
        ([(110, 0, 15)] * 3 + [(110, 1, 15)] * 3, [], ("6 workers of 2 ranks gone: SIGTERM",)),
        ([(101, 0, 256)], [], ("rank 0 (101) gone: exit 1",)),
        ([], [(110, 0), (110, 0), (110, 1)], ("3 workers of 2 ranks started",)),
    ],
)
def test_many_fates_are_counted_and_few_are_named(watch, fates, born, lines):
    by_pid = {member.identity.pid: member for member in watch.membership.members}
    gone = tuple(Departure(replace(by_pid[pid], rank=rank), status) for pid, rank, status in fates)
    assert describe_changes(Changes(tuple(replace(by_pid[pid], rank=rank) for pid, rank in born), gone)) == lines
    assert describe_changes(Changes(born=(replace(by_pid[101], role=Role.HELPER),))) == ()


FAMILY = (
    MAP_TORCH
    + """
say("ready")
while True:
    word = hear()
    if not word:
        break
    pid = os.fork()
    if not pid:
        ctypes.CDLL(None).prctl(15, b"pt_data_worker", 0, 0, 0)
        say(os.getpid())
        if word == "exit":
            time.sleep(float(sys.argv[2]))
            os._exit(3)
        while True:
            time.sleep(60)
    if word == "exit":
        os.waitpid(pid, 0)
        say("reaped")
"""
)


def wait_for_gone(membership: Membership) -> Departure:
    for _ in range(200):
        changes = membership.refresh(time.monotonic_ns())
        if changes.gone:
            return changes.gone[0]
        time.sleep(0.05)
    pytest.fail("nobody ended")


def test_a_real_worker_killed_is_a_zombie_that_tells_its_signal(tmp_path):
    with child(FAMILY, str(tmp_path)) as one, closing(Membership(find_job(one.pid))) as membership:
        worker = int(one.ask("stay"))
        assert [member.worker for member in membership.refresh(time.monotonic_ns()).born] == [0]
        os.kill(worker, signal.SIGKILL)
        departure = wait_for_gone(membership)
        assert (read_stat(worker).forked, read_stat(one.pid).forked) == (True, False)
    assert (departure.member.identity.pid, departure.wait_status) == (worker, signal.SIGKILL)
    assert describe_changes(Changes(gone=(departure,)))[0].startswith(f"worker 0 ({worker}) of rank 0 gone: SIGKILL")


@pytest.mark.parametrize("python", ["as it is", "without pidfd_open", "on an older kernel"])
def test_a_real_worker_that_was_reaped_tells_its_exit_code_where_the_kernel_keeps_it(tmp_path, monkeypatch, python):
    """Pythons of conda and many of uv have no pidfd_open: it was not in the headers they were built with."""
    if python != "as it is":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    if python == "on an older kernel":
        monkeypatch.setattr(ending, "_PIDFD_OPEN", 1 << 20)
    with child(FAMILY, str(tmp_path), "1.5") as one, closing(Membership(find_job(one.pid))) as membership:
        worker = int(one.ask("exit"))
        membership.refresh(time.monotonic_ns())
        assert one.hear() == "reaped"
        departure = wait_for_gone(membership)
    assert departure.member.identity.pid == worker
    if python == "on an older kernel":
        assert departure.wait_status == Missing("it was reaped before tpmon could read it")
    elif isinstance(departure.wait_status, Missing):
        assert tuple(map(int, os.uname().release.split(".")[:2])) < (6, 15)
    else:
        assert describe_end(departure.wait_status) == "exit 3"


@pytest.mark.parametrize(
    ("status", "oom", "text"),
    [
        (0, {}, "exit 0"),
        (3 << 8, {}, "exit 3"),
        (9, {}, "SIGKILL"),
        (9, {"oom_victim": True}, "SIGKILL; OOM killer (kernel log)"),
        (9, {"oom_kills": 1}, "SIGKILL; OOM kill counted in its control group"),
        (11 | 0x80, {"oom_kills": 1}, "SIGSEGV (core dumped)"),
        (63, {}, "signal 63"),
        (Missing("x"), {}, UNSEEN),
        (Missing("x"), {"oom_kills": 2}, f"{UNSEEN}; OOM kill counted in its control group"),
    ],
)
def test_ends_are_put_in_words(status, oom, text):
    assert describe_end(status, **oom) == text


def test_only_recent_victims_count_in_the_kernel_log():
    log = (
        b"3,100,5000000,-;Out of memory: Killed process 41 (python) total-vm:1kB\n"
        b"3,101,95000000,-;Memory cgroup out of memory: Killed process 42 (pt_data_worker) total-vm:1kB\n"
        b"14,102,96000000,-;Killed process 43 said a user\n SUBSYSTEM=x\n"
        b"6,103,97000000,-;eth0: link up\n"
    )
    assert parse_oom_victims(log, since_s=90.0) == [42]


@pytest.mark.parametrize(("up_s", "drift_s", "found"), [(1000.0, 65.0, False), (8e6, 65.0, True)])
def test_the_clock_of_the_kernel_log_may_have_drifted(tmp_path, up_s, drift_s, found):
    """printk stamps are of a clock that nobody corrects: after months they lag by minutes."""
    stamp_us = int((up_s - drift_s) * 1e6)
    (tmp_path / "kmsg").write_text(f"3,100,{stamp_us},-;Out of memory: Killed process 41 (python) total\n")
    victims = read_oom_victims(str(tmp_path / "kmsg"), now_s=up_s)
    assert victims == (frozenset((41,)) if found else frozenset())


EXEC = (
    MAP_TORCH
    + """
say("ready")
script = sys.argv[1] + "/" + hear()
with open(script, "w") as file:
    file.write("import os, time; os.write(1, b'anew\\\\n'); time.sleep(50)")
os.execv(sys.executable, [sys.executable, script])
"""
)


def test_that_the_root_replaced_itself_is_told_once_also_by_the_same_interpreter(tmp_path):
    with child(EXEC, str(tmp_path)) as one, closing(Membership(find_job(one.pid))) as membership:
        assert [membership.refresh(SECOND), membership.refresh(7 * SECOND)] == [Changes()] * 2
        assert one.ask("resume.py") == "anew"
        changes = membership.refresh(13 * SECOND)
        assert changes.root_runs == "resume.py"
        assert describe_changes(changes) == ("the root of the job replaced itself (exec) and now runs resume.py",)
        assert membership.members[0].identity.pid == one.pid
        assert membership.refresh(19 * SECOND).root_runs == ""


def start(code: str) -> subprocess.Popen[bytes]:
    """Start a child, wait for its end and leave it unreaped."""
    child = subprocess.Popen([sys.executable, "-c", code])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child


def test_a_killed_child_is_told_with_its_signal_and_one_that_ended_well_is_not():
    killed = start(f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    failed = start("import os; os.execvp('sh', ['sh', '-c', 'exit 3'])")
    well = start("pass")
    try:
        dead = {one.pid: one for one in find_dead({os.getpid()})}
        assert (dead[killed.pid].how, dead[killed.pid].python) == ("SIGKILL", True)
        assert (dead[failed.pid].how, dead[failed.pid].python) == ("exit 3", False)
        assert dead[killed.pid].parent == os.getpid()
        assert well.pid not in dead
    finally:
        for child in (killed, failed, well):
            child.wait()
    assert not {killed.pid, failed.pid} & {one.pid for one in find_dead({os.getpid()})}


@pytest.mark.parametrize(
    ("killed_s_ago", "how"),
    [(30, "SIGKILL; OOM killer (kernel log)"), (1800, "SIGKILL; OOM killer (kernel log)"), (7200, "SIGKILL")],
)
def test_the_oom_killer_is_named_however_late_but_not_for_an_earlier_number(fake, monkeypatch, killed_s_ago, how):
    """The child began an hour ago: a kill of two hours ago was one of another process."""
    up_s = 100_000.0
    monkeypatch.setattr(time, "monotonic", lambda: up_s)
    fake.add(500, 1, ("python", "train.py"))
    for pid, age_s in ((501, 3600), (502, 60)):
        start = fake.now - age_s * TICKS_PER_S
        fake.add(pid, 500, state="Z", name="pt_data_worker", start=start, wait_status=int(signal.SIGKILL))
    stamp_us = int((up_s - killed_s_ago) * 1e6)
    kmsg = fake.path / "kmsg"
    kmsg.write_text(f"3,100,{stamp_us},-;Out of memory: Killed process 501 (pt_data_worker) total-vm:1kB\n")
    found = sorted(find_dead({500}, fake.proc, str(kmsg)), key=lambda one: one.pid)
    assert [(one.pid, one.how, one.python) for one in found] == [(501, how, True), (502, "SIGKILL", True)]
    assert {(one.parent, one.name) for one in found} == {(500, "pt_data_worker")}
