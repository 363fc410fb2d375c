"""`tpmon attach PID --json`, and finding by any member, on jobs of many kinds in one shell, and on jobs that misbehave.

They lose processes, change, hide or end while tpmon watches them.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path

import pytest

from tests.members import describe_changes
from tests.nobody import AS_NOBODY, NOBODY
from tests.programs.chaos_watch import ROOT, TPMON, Document, Watch, ask_once, by_pid, run_tpmon, watch
from tests.programs.conftest import TORCHRUN, Program, run_program
from tests.programs.shell_jobs import Started, jobs
from tests.torch_build import needs_torch, read_torch_version
from tests.waiting import wait_until
from tpmon.model.process import Role
from tpmon.model.results.doctor import JobState
from tpmon.probe.collect.collector import Collector
from tpmon.probe.job.discovery import list_jobs
from tpmon.probe.job.members import Membership
from tpmon.probe.job.resolve import find_job
from tpmon.probe.job.tree import LAUNCHER_GONE

__all__ = ["jobs"]  # a fixture of the tests here

pytestmark = [pytest.mark.torch, needs_torch]


AS_READING_NOBODY = (
    *AS_NOBODY,
    # Files may be read, for an interpreter below /root; other users' processes may not.
    *("--bounding-set", "-all,+dac_read_search", "--inh-caps", "-all,+dac_read_search"),
    *("--ambient-caps", "-all,+dac_read_search"),
)
CAP_SYS_PTRACE = 19
KERNEL = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
TELLS_ENDS = KERNEL >= (6, 15)
"""Whether the kernel keeps the exit status of a process that its parent has reaped (PIDFD_GET_INFO)."""
SECOND_NS = 1_000_000_000
DESCRIPTORS_A_MEMBER = 8
"""About: six files, the children list and a pidfd, besides one for each thread."""
GRACE_NS = 3 * SECOND_NS
"""A process that ended may still be in Frames taken up to this much later: one second is promised."""
DENIED = "not permitted (doctor: io)"
NO_DESCRIPTORS = "not permitted (doctor: fd)"


@pytest.fixture(scope="module")
def answers(jobs: dict[str, Started]) -> dict[str, Document]:
    """Ask once about a member of each job: the torchrun job by launcher, rank and worker."""
    job = jobs["torchrun"]
    asked = {
        "by launcher": job.root,
        "by rank": job.ranks[1],
        "by worker": job.workers[job.ranks[0]][1],
        "node 0": jobs["node 0"].ranks[0],
        "node 1": jobs["node 1"].root,
        "spawned workers": jobs["spawned workers"].root,
        "served workers": jobs["served workers"].workers[jobs["served workers"].root][0],
        "spawned ranks": jobs["spawned ranks"].ranks[1],
    }
    return dict(zip(asked, ask_once(list(asked.values())), strict=True))


def roles(frame: Document) -> Counter[str]:
    return Counter(process["role"] for process in frame["processes"])


def numbers(process: Document) -> tuple[object, ...]:
    """Return rank, local rank, rank's PID and worker number; None where the key is absent."""
    return tuple(process.get(key) for key in ("rank", "local_rank", "rank_pid", "worker"))


def check_workers(frame: Document, job: Started, local_ranks: dict[int, int] | None = None) -> None:
    seen = by_pid(frame)
    for rank, rank_pid in job.ranks.items():
        local = rank if local_ranks is None else local_ranks[rank]
        assert numbers(seen[rank_pid]) == (rank, local, rank_pid, None)
        for number, pid in job.workers[rank_pid].items():
            assert seen[pid]["role"] == "worker"
            assert numbers(seen[pid]) == (rank, local, rank_pid, number)


@pytest.mark.parametrize("asked", ["by launcher", "by rank", "by worker"])
def test_a_torchrun_job_is_told_whole_by_any_member(
    answers: dict[str, Document], jobs: dict[str, Started], asked: str
) -> None:
    frame, job = answers[asked], jobs["torchrun"]
    assert roles(frame) == {"launcher": 1, "rank": 2, "worker": 4}
    target = frame["target"]
    pids = {"by launcher": job.root, "by rank": job.ranks[1], "by worker": job.workers[job.ranks[0]][1]}
    assert (target["pid"], target["asked_pid"]) == (job.root, pids[asked])
    assert (target["state"], target["script"]) == ("running", "job_train.py")
    assert (target["world_size"], target["local_ranks"], target["rank_source"]) == (2, 2, "environment")
    assert (target["torch_version"], target["python_version"]) == (
        read_torch_version(),
        f"{sys.version_info.major}.{sys.version_info.minor}",
    )
    started_s = Path(f"/proc/{job.root}").stat().st_ctime
    assert abs(datetime.fromisoformat(target["start"]).timestamp() - started_s) < 60
    seen = by_pid(frame)
    assert numbers(seen[job.root]) == (None, None, None, None)
    settings = {one["name"]: one["value"] for one in seen[job.ranks[1]]["environment"]}
    assert settings.items() >= {"RANK": "1", "OMP_NUM_THREADS": "1"}.items()
    for rank_pid, workers in job.workers.items():
        assert seen[rank_pid]["parent"] == job.root
        assert len(workers) == 2
        assert {seen[pid]["parent"] for pid in workers.values()} == {rank_pid}
    check_workers(frame, job)
    assert [(row["rank"], row["pid"]) for row in frame["ranks"]] == sorted(job.ranks.items())


def test_every_process_has_rates_in_the_only_frame(answers: dict[str, Document]) -> None:
    for process in answers["by rank"]["processes"]:
        assert process["cpu_pct"] >= 0
        assert process["runnable"] >= 0
        assert process["device_read_bytes_s"] >= 0


def test_two_nodes_on_one_host_stay_two_jobs(answers: dict[str, Document], jobs: dict[str, Started]) -> None:
    for number in (0, 1):
        frame, job = answers[f"node {number}"], jobs[f"node {number}"]
        assert frame["target"]["pid"] == job.root
        assert (frame["target"]["world_size"], frame["target"]["local_ranks"]) == (2, 1)
        assert roles(frame) == {"launcher": 1, "rank": 1, "worker": 1}
        check_workers(frame, job, local_ranks={number: 0})


@pytest.mark.parametrize("name", ["spawned workers", "served workers"])
def test_workers_that_were_not_forked_belong_to_their_rank(
    answers: dict[str, Document], jobs: dict[str, Started], name: str
) -> None:
    frame, job = answers[name], jobs[name]
    assert (frame["target"]["pid"], frame["target"]["world_size"]) == (job.root, 1)
    assert (roles(frame)["rank"], roles(frame)["worker"]) == (1, 2)
    check_workers(frame, job)
    parents = {by_pid(frame)[pid]["parent"] for pid in job.workers[job.root].values()}
    assert (parents == {job.root}) == (name == "spawned workers")
    helpers = {one["label"] for one in frame["processes"] if one["role"] == "helper"}
    assert helpers == {"resource tracker"} | ({"forkserver"} if name == "served workers" else set())


def test_ranks_without_a_number_of_their_own_are_told_by_parentage(
    answers: dict[str, Document], jobs: dict[str, Started]
) -> None:
    frame, job = answers["spawned ranks"], jobs["spawned ranks"]
    assert frame["target"]["pid"] == job.root
    assert frame["target"]["rank_source"] == "parentage and threads"
    assert frame["target"]["world_size"] == {"missing": "no WORLD_SIZE in the start environment"}
    assert roles(frame) == {"launcher": 1, "rank": 2, "worker": 2, "helper": 1}
    seen = by_pid(frame)
    assert seen[job.root]["role"] == "launcher"
    assert {rank: seen[pid]["rank"] for rank, pid in job.ranks.items()} == {0: 0, 1: 1}
    workers = [one for one in frame["processes"] if one["role"] == "worker"]
    assert sorted(one["parent"] for one in workers) == sorted(job.ranks.values())


def test_jobs_of_one_shell_share_no_process(answers: dict[str, Document]) -> None:
    frames = [answers[name] for name in answers if name not in ("by rank", "by worker")]
    members = Counter(pid for frame in frames for pid in by_pid(frame))
    assert set(members.values()) == {1}


def test_each_job_is_listed_once(jobs: dict[str, Started]) -> None:
    status, output, complaint = run_tpmon("ps", "--json")
    assert (status, complaint) == (0, "")
    listed = {one["pid"]: one for one in json.loads(output)["jobs"]}
    assert {job.root for job in jobs.values()} <= listed.keys()
    members = {pid for job in jobs.values() for rank in job.workers for pid in (rank, *job.workers[rank])}
    assert listed.keys() & members <= {job.root for job in jobs.values()}
    mine = listed[jobs["torchrun"].root]
    assert (mine["script"], mine["ranks"], mine["workers"]) == ("job_train.py", 2, 4)


@pytest.fixture(scope="module")
def nobody() -> Sequence[str]:
    """Return the command that runs another one as a user of no rights; skips where that cannot be."""
    capabilities = re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    if shutil.which("setpriv") is None or not int(capabilities[1], 16) >> CAP_SYS_PTRACE & 1:
        pytest.skip("needs setpriv (util-linux) and CAP_SYS_PTRACE, as root has outside containers")
    tried = subprocess.run(
        [*AS_READING_NOBODY, *TPMON, "--version"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"cannot run as another user: {tried.stderr.strip()}")
    return AS_READING_NOBODY


def check_no_stale_rows(frames: Sequence[Document], died_ns: dict[int, int]) -> None:
    """Check that no Frame of a running job has a row of a process that was gone a second before."""
    for frame in frames:
        if frame["target"]["state"] != "ended":
            stale = [pid for pid in by_pid(frame) if frame["taken_ns"] > died_ns.get(pid, 1 << 63) + GRACE_NS]
            assert not stale, f"{stale} in the Frame of {frame['taken']}"
            listed = {row["pid"] for row in frame["ranks"]} | {one["pid"] for one in frame["loader"]}
            assert listed <= set(by_pid(frame))


def told(texts: Sequence[str], wanted: str) -> bool:
    """Tell whether an event says this; older kernels tell no exit status of a process that was reaped."""
    if TELLS_ENDS:
        return wanted in texts
    return any(text.startswith(wanted.partition("gone: ")[0]) for text in texts)


def kill(tpmon: Watch, pid: int, died_ns: dict[int, int]) -> None:
    """Kill a member between two Frames and note when."""
    tpmon.wait_for_next()
    os.kill(pid, signal.SIGKILL)
    died_ns[pid] = time.monotonic_ns()


def check_end(tpmon: Watch, how: str, *, orphans: str = "") -> Document:
    """Wait for the end of the job, of tpmon and its last Frame; check what it says.

    ``orphans`` is a pattern of what it may add of children that outlived the job.
    """
    end = tpmon.wait_for(lambda frame: frame["target"]["state"] == "ended")
    assert tpmon.wait_for_end() == (0, "")
    assert end["target"]["ended"] == how
    last = end["events"][-1]
    assert (last["time"], last["kind"]) == (end["taken"], "ended")
    assert re.fullmatch(f"the job ended: {re.escape(how)}{orphans}", last["text"])
    assert tpmon.frames[-1] is end
    return end


def test_a_killed_rank_is_gone_and_the_end_names_it(jobs: dict[str, Started]) -> None:
    """The last of this job."""
    job, died_ns = jobs["torchrun"], dict[int, int]()
    with watch(job.root) as tpmon:
        first = tpmon.wait_for(lambda frame: len(frame["processes"]) == 7)
        (rank,) = [row["pid"] for row in first["ranks"] if row["rank"] == 1]
        assert rank == job.ranks[1]
        kill(tpmon, rank, died_ns)
        after = tpmon.wait_for(lambda frame: rank not in by_pid(frame))
        workers = [one for one in after["processes"] if one["role"] == "worker" and one["rank"] == 1]
        assert {one["rank_pid"] for one in workers} == {rank}, "orphans are still that rank's"
        # nobody reaps torchrun, so any kernel tells its end
        end = check_end(tpmon, "exit 1" + (f", after rank 1 ({rank}): SIGKILL" if TELLS_ENDS else ""))
        assert told(tpmon.events(), f"rank 1 ({rank}) gone: SIGKILL"), tpmon.events()
    check_no_stale_rows(tpmon.frames, died_ns)
    (log,) = end["output"]
    assert log["path"] == str(job.log)
    assert f"PID {rank}" in log["lines"][-1], "torchrun's last words, written at the end"


def train(*options: str) -> tuple[str, ...]:
    return ("job_train.py", "--ready", "{ready}", *options)


def find_worker(folder: Path, rank: int, number: int) -> int:
    """Return the PID of the loader worker that took this number last."""
    files = sorted(folder.glob(f"worker-{rank}-{number}-*"), key=lambda path: path.stat().st_mtime_ns)
    return int(files[-1].name.split("-")[3])


@pytest.fixture(scope="module")
def restless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Start one rank whose workers are replaced often, beside a hundred children a second."""
    command = (sys.executable, *train("--children", "100", "--epoch", "6", "--load", "0.05"))
    with run_program(command, tmp_path_factory.mktemp("restless"), 1) as program:
        yield program


@pytest.fixture(scope="module")
def foreign(nobody: Sequence[str]) -> Iterator[Program]:
    """Start a job of another user, whose first worker not even that user may read."""
    with ExitStack() as stack:
        # not below pytest's folders, which are closed to others
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tpmon-test-")))
        os.chown(folder, NOBODY, NOBODY)
        command = (*nobody, sys.executable, *train("--hidden-worker", "--load", "0.05"))
        yield stack.enter_context(run_program(command, folder, 1))


def read_children(folder: Path) -> dict[int, int]:
    """Return PID and CLOCK_MONOTONIC of each short-lived child that was reaped."""
    lines = (folder / "children.log").read_text().splitlines()
    return {int(pid): int(ended_ns) for pid, ended_ns in map(str.split, lines[:-1])}


def test_short_lived_children_and_workers_of_each_epoch_leave_no_stale_rows(restless: Program) -> None:
    with watch(restless.pid, "-i", "0.5") as tpmon:
        begin_ns = tpmon.wait_for_next()["taken_ns"]
        assert wait_until(lambda: sum(begin_ns < at_ns for at_ns in read_children(restless.folder).values()) > 100)
        tpmon.wait_for_next()
        tpmon.wait_for(lambda frame: sum(one["births"] for one in frame["loader"]) >= 4)
        assert tpmon.interrupt() == (130, "")
    children = read_children(restless.folder)
    check_no_stale_rows(tpmon.frames, children)
    seen = {pid: one for frame in tpmon.frames for pid, one in by_pid(frame).items()}
    assert {seen[pid]["role"] for pid in children.keys() & seen.keys()} <= {"helper"}
    assert any("respawn" in text for text in tpmon.events()), tpmon.events()
    assert len(tpmon.frames[-1]["ranks"]) == 1
    seen_numbers: set[tuple[int, ...]] = set()
    for frame in tpmon.frames:
        workers = [one for one in frame["processes"] if one["role"] == "worker"]
        numbers = tuple(one["worker"] for one in workers)
        assert len(set(numbers)) == len(numbers), workers
        seen_numbers.add(numbers)
        assert {one["rank_pid"] for one in workers} <= {restless.pid}
        assert {one["pid"] for one in frame["loader"]} <= {restless.pid}
    # between two epochs those that have not ended yet keep their numbers
    assert (0, 1) in seen_numbers, seen_numbers


@pytest.mark.long
def test_ten_minutes_of_churn_cost_no_descriptors_and_no_memory(
    restless: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_ns = time.monotonic_ns
    shift_ns = 0
    monkeypatch.setattr(time, "monotonic_ns", lambda: real_ns() + shift_ns)
    collector = Collector(find_job(restless.pid))
    descriptors: list[int] = []
    rss: list[int] = []
    known: dict[int, Role] = {}
    try:
        for _ in range(600):
            frame = collector.collect()
            shift_ns += SECOND_NS
            time.sleep(0.01)  # for the job: so many births and deaths a simulated second, not a wait
            members = {process.pid: process.role for process in frame.processes}
            known |= members
            descriptors.append(len(os.listdir("/proc/self/fd")) - DESCRIPTORS_A_MEMBER * len(members))
            rss.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    finally:
        collector.close()
    children = [known[pid] for pid in read_children(restless.folder).keys() & known.keys()]
    assert len(known) > 50, "too little churn to prove anything"
    assert list(known.values()).count(Role.WORKER) > 10, "too few workers were replaced"
    assert set(children) == {Role.HELPER}
    early, late = slice(100, 200), slice(-100, None)
    assert max(descriptors[late]) <= max(descriptors[early]) + 20, descriptors
    assert max(rss[late]) - max(rss[early]) < 5 << 20, rss


def test_a_job_of_another_user_is_read_by_root_and_by_that_user(foreign: Program, nobody: Sequence[str]) -> None:
    (mine,) = ask_once([foreign.pid])
    (theirs,) = ask_once([foreign.pid], before=nobody)
    hidden, open_one = (find_worker(foreign.folder, 0, number) for number in (0, 1))
    for frame in (mine, theirs):
        assert frame["target"]["user"] == mine["target"]["user"]
        assert by_pid(frame).keys() == {foreign.pid, hidden, open_one}
        assert [by_pid(frame)[pid]["worker"] for pid in (hidden, open_one)] == [0, 1]
        assert by_pid(frame)[hidden]["cpu_pct"] >= 0
    assert by_pid(mine)[hidden]["asked_read_bytes_s"] >= 0
    assert by_pid(theirs)[open_one]["asked_read_bytes_s"] >= 0
    refused = by_pid(theirs)[hidden]
    assert refused["asked_read_bytes_s"] == {"missing": DENIED}
    # The state is readable by all: a worker that runs waits for nothing, only a wait has no name.
    assert refused["waits_for"] == "running" if refused["state"] == "R" else "missing" in refused["waits_for"]
    (loader,) = theirs["loader"]
    pending = {queue["pid"]: queue["pending_bytes"] for queue in loader["queues"]}
    assert pending[hidden] == {"missing": NO_DESCRIPTORS}
    assert pending[open_one] >= 0


def test_a_killed_worker_is_gone_and_the_end_names_it(foreign: Program) -> None:
    """The last of this job."""
    died_ns: dict[int, int] = {}
    worker = find_worker(foreign.folder, rank=0, number=1)
    with watch(foreign.pid) as tpmon:
        kill(tpmon, worker, died_ns)
        check_end(tpmon, "exit 1" + (f", after worker 1 ({worker}) of rank 0: SIGKILL" if TELLS_ENDS else ""))
        assert told(tpmon.events(), f"worker 1 ({worker}) of rank 0 gone: SIGKILL"), tpmon.events()
    check_no_stale_rows(tpmon.frames, died_ns)


@pytest.mark.long
def test_a_killed_job_that_nobody_reaped_has_ended_and_is_refused(restless: Program) -> None:
    """The last of this job."""
    died_ns: dict[int, int] = {}
    with watch(restless.pid) as tpmon:
        kill(tpmon, restless.pid, died_ns)
        # Of a hundred children a second one may live a moment longer than who started it.
        check_end(tpmon, "SIGKILL", orphans=r"(; still there: [\w ]+ \(\d+\))?")
        assert f"rank 0 ({restless.pid}) gone: SIGKILL" in tpmon.events()
    check_no_stale_rows(tpmon.frames, died_ns)
    status, output, complaint = run_tpmon("attach", restless.pid, "--once")
    assert (status, output) == (3, "")
    assert complaint.startswith(f"tpmon: process {restless.pid} (python) has ended; its parent {os.getpid()}")


@pytest.mark.long
def test_a_job_that_survives_a_failure_and_ends_by_itself_ended_with_exit_0(tmp_path: Path) -> None:
    command = (*TORCHRUN, "--standalone", "--nproc-per-node", "1", "--max-restarts", "1")
    died_ns: dict[int, int] = {}
    with (
        run_program((*command, *train()), tmp_path / "elastic", 1) as program,
        watch(program.pid, "-i", "0.5") as tpmon,
    ):
        (first,) = program.trainers
        kill(tpmon, first, died_ns)
        after = tpmon.wait_for(lambda frame: [row["pid"] for row in frame["ranks"]] not in ([], [first]))
        (second,) = after["ranks"]
        assert (second["rank"], second["local_rank"]) == (0, 0)
        (program.folder / "enough").touch()
        end = check_end(tpmon, "exit 0")
        texts = tpmon.events()
    assert told(texts, f"rank 0 ({first}) gone: SIGKILL"), texts
    assert told(texts, f"rank 0 ({second['pid']}) gone: exit 0"), texts
    check_no_stale_rows(tpmon.frames, died_ns)
    assert end["ages_s"]["cpu"] > 0.1, "the last readings are older than the end"


def test_a_killed_worker_and_what_follows_are_told(tmp_path: Path) -> None:
    with run_program((sys.executable, *train("--look-s", "0.5")), tmp_path / "ready", 1) as program:
        membership = Membership(find_job(program.pid))
        worker = next(member for member in membership.members if member.role is Role.WORKER)
        assert membership.refresh(time.monotonic_ns()).gone == ()
        os.kill(worker.identity.pid, signal.SIGKILL)
        lines: list[str] = []

        def ended() -> bool:
            lines.extend(describe_changes(membership.refresh(time.monotonic_ns())))
            return not membership.members

        assert wait_until(ended), membership.members
        membership.close()
    assert any(f"worker 0 ({worker.identity.pid}) of rank 0 gone" in line for line in lines), lines
    # the test is the parent of the rank and reaps it only at the end, so the status is there to see
    assert f"rank 0 ({program.pid}) gone: exit 1" in lines


@pytest.mark.long
def test_ranks_of_a_killed_torchrun_stay_one_job(tmp_path: Path) -> None:
    command = (*TORCHRUN, "--standalone", "--nproc-per-node", "2", *train("--look-s", "0.5", "--workers", "1"))
    with run_program(command, tmp_path / "ready", 2) as program:
        membership = Membership(find_job(program.pid))
        try:
            os.kill(program.pid, signal.SIGKILL)
            assert wait_until(lambda: find_job(program.trainers[0]).root.pid != program.pid)
            jobs = [find_job(pid) for pid in program.trainers]
            assert {job.root for job in jobs} == {jobs[0].root}
            ranks = {one.rank: one.identity.pid for one in jobs[0].members if one.role is Role.RANK}
            assert sorted(ranks) == [0, 1]
            assert sorted(ranks.values()) == sorted(program.trainers)
            assert (jobs[0].world_size, jobs[0].rank_source) == (2, LAUNCHER_GONE)
            listed = {one.pid: one for one in list_jobs().jobs}
            mine = listed[jobs[0].root.pid]
            assert (mine.ranks, mine.state) == (2, JobState.LAUNCHER_GONE)
            assert set(program.trainers) & set(listed) == {mine.pid}
            # who was attached before keeps all of them, and says it too
            membership.refresh(time.monotonic_ns())
            assert membership.job.rank_source == LAUNCHER_GONE
            assert {one.identity.pid for one in membership.members if one.role is Role.RANK} == set(program.trainers)
        finally:
            membership.close()
            for pid in program.trainers:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
