"""Workers and spawned children whose rank has ended, and those whose rank lives."""

import pytest

from tests.frames import make_gpu
from tests.targets import place_of_rank, refusal
from tpmon.model.gpu import GpuProcess
from tpmon.model.results.doctor import LeftOver
from tpmon.probe.base.procread import read_table
from tpmon.probe.job.discovery import list_jobs
from tpmon.probe.job.left_over import describe_left_over, find_left_over
from tpmon.probe.job.resolve import find_job

FIT = ("python", "-u", "fit.py", "--lr", "1")
SPAWNED = ("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)", "--fork")
SERVER = ("python", "-c", "from multiprocessing.forkserver import main; main(8, 9)")
WORKER = "pt_data_worker"


def test_what_ended_ranks_have_left_is_no_job_and_is_listed_with_what_it_holds(fake):
    fake.add(40, 1, ("/usr/bin/tini", "--", "bash"))
    fake.add(70, 40, FIT, name=WORKER, devices=("/dev/nvidia1", "/dev/nvidiactl"))
    fake.add(71, 40, FIT, name=WORKER, devices=("/dev/nvidia0",))
    fake.add(80, 1, SPAWNED, torch=True)
    fake.add(90, 1, FIT, torch=True)
    fake.add(91, 90, FIT, name=WORKER)
    assert find_left_over(read_table(fake.proc), fake.proc) == (70, 71, 80)
    jobs = list_jobs(fake.proc)
    assert [one.pid for one in jobs.jobs] == [90]
    assert [(one.pids, one.script, one.workers, one.cards) for one in jobs.left_over] == [
        ((70, 71), "fit.py --lr 1", True, (0, 1)),
        ((80,), "python -c", False, ()),
    ]
    said = refusal(71, fake.proc)
    assert "process 71 (pt_data_worker)" in said.what
    assert "is left over: its rank has ended; 2 loader workers of fit.py --lr 1 hold" in said.what
    assert "cards 0, 1" in said.what
    assert said.try_this.startswith("end them: kill 70 71")
    assert find_job(91, fake.proc).root.pid == 90


@pytest.mark.parametrize(
    ("above", "argv", "name", "left"),
    [
        ((FIT,), FIT, WORKER, False),
        ((("python", "other.py"),), FIT, WORKER, True),
        ((("python", "other.py"),), SPAWNED, WORKER, False),
        ((("python", "other.py"),), SPAWNED, "python", False),
        ((("/usr/bin/tini",),), SPAWNED, WORKER, True),
        ((FIT, SERVER), FIT, WORKER, False),
        ((("/usr/bin/tini",), SERVER), SERVER, WORKER, True),
        ((FIT, SERVER), SERVER, WORKER, False),
        ((("/usr/bin/tini",),), FIT, "python", False),
    ],
)
def test_the_parent_tells_whether_the_rank_lives(fake, above, argv, name, left):
    parent = 1
    for pid, line in enumerate(above, 50):
        fake.add(pid, parent, line, torch=True)
        parent = pid
    fake.add(70, parent, argv, name=name, torch=True)
    assert find_left_over(read_table(fake.proc), fake.proc) == ((70,) if left else ())


@pytest.mark.parametrize(("environ", "threads"), [(place_of_rank(1), ()), ({}, ("pt_gloo_runloop",))])
def test_a_spawned_rank_whose_launcher_is_gone_trains_on(fake, environ, threads):
    fake.add(70, 1, SPAWNED, environ=environ, torch=True, threads=threads)
    assert find_left_over(read_table(fake.proc), fake.proc) == ()
    assert find_job(70, fake.proc).root.pid == 70


def test_a_card_of_a_job_that_they_hold_is_told_beside_its_verdict():
    left = LeftOver((70, 71), "usr", "fit.py", True, 60.0, 1 << 30, (0, 3))
    used = make_gpu(index=0, processes=(GpuProcess(70, 11 << 30, 0.0, False), GpuProcess(99, 1 << 30, 0.0, True)))
    cards = (used, make_gpu(index=3, processes=()), make_gpu(index=2))
    assert list(describe_left_over([left], cards)) == [
        "card 0: 11.0G held by left-over workers 70 71 of an ended run; end them: kill 70 71",
        "card 3: still open, so its memory may not be free, by left-over workers 70 71 of an ended run; end them: kill 70 71",
    ]
