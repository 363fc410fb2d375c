"""What is said of PIDs that belong to no job, or to one that may not be read."""

import os
import signal
import subprocess
import sys

from tests.children import MAP_TORCH, Child, child
from tests.targets import HOLD_TORCH, ask_as_another, needs_root, refusal
from tpmon.errors import ExitCode
from tpmon.probe.job.resolve import find_job


def test_each_wrong_target_has_its_own_message(fake):
    fake.add(2, 0, (), name="kthreadd", kernel=True)
    fake.add(50, 1, ("sleep", "100"))
    fake.add(60, 1, ("python", "serve.py"))
    fake.add_torchrun(100)
    fake.add(105, 100, (), name="python", state="Z")
    said = {pid: refusal(pid, fake.proc) for pid in (2, 50, 60, 105, 999)}
    assert {error.exit_code for error in said.values()} == {ExitCode.NO_TARGET}
    assert said[2].what == "process 2 (kthreadd) is a kernel thread"
    assert said[50].what == "process 50 (sleep) is not Python"
    assert said[60].what == "process 60 (serve.py) is Python without torch (yet)"
    assert said[60].try_this.startswith("when its import is done, tpmon attach 60 again")
    assert said[105].what == "process 105 (python) has ended; its parent 100 (pt_elastic) has not noticed"
    assert said[105].try_this == "tpmon attach 100 (torchrun)"
    assert said[999].what == "no process 999 on this machine"
    assert said[999].try_this == "tpmon ps lists the training jobs of this machine"


def test_a_shell_names_the_jobs_below_it(fake):
    fake.add(50, 1, ("bash", "run.sh"))
    fake.add(60, 50, ("python", "a.py"), torch=True)
    fake.add_torchrun(100, 50)
    error = refusal(50, fake.proc)
    assert error.what == "process 50 (bash) is not Python"
    assert error.try_this == "tpmon attach 60 (a.py) or 100 (torchrun)"


def test_a_launcher_of_something_else_is_refused(fake):
    fake.add(50, 1, ("mpirun", "./cfd"))
    fake.add(51, 50, ("./cfd",))
    fake.add(60, 1, ("srun", "python", "train.py"))
    fake.add(61, 60, ("srun", "python", "train.py"))
    assert "nothing below it is Python with torch" in refusal(51, fake.proc).what
    assert "its tasks run below slurmstepd" in refusal(61, fake.proc).what


def test_a_pid_of_a_container_is_translated_or_the_right_one_is_named(fake):
    fake.add(50, 1, ("sleep", "9"), inside=(1,))
    fake.add(1000, 50, ("python", "train.py"), torch=True, inside=(17,))
    job = find_job(17, fake.proc)
    assert (job.root.pid, job.asked_pid) == (1000, 1000)
    assert job.remark == "PID 17 in its container is 1000 here"
    fake.add(17, 1, ("sleep", "9"))
    error = refusal(17, fake.proc)
    assert error.what == "process 17 (sleep) is not Python"
    assert error.try_this == "tpmon attach 1000 (which is 17 in its container)"
    fake.remove(17)
    fake.add(1001, 50, ("python", "other.py"), torch=True, inside=(17,))
    error = refusal(17, fake.proc)
    assert error.what == "no process 17 here, and 2 processes go by it in their containers: 1000, 1001"


def test_the_process_of_the_container_is_named_before_the_jobs_below_our_own(fake):
    fake.add(60, 1, ("python", "ours.py"), torch=True)
    fake.add(1000, 1, ("python", "train.py"), torch=True, inside=(1,))
    error = refusal(1, fake.proc)
    assert error.what == "process 1 (init) is not Python"
    assert error.try_this == ("tpmon attach 1000 (which is 1 in its container) or 60 (ours.py) or 1000 (train.py)")


def test_a_thread_is_taken_for_its_process(fake):
    fake.add(60, 1, ("python", "train.py"), torch=True)
    (fake.path / "6001").mkdir()
    (fake.path / "6001" / "status").write_text("Tgid:\t60\nPid:\t6001\nUid:\t0\t0\t0\t0\nNSpid:\t6001\n")
    job = find_job(6001, fake.proc)
    assert (job.asked_pid, job.remark) == (60, "6001 is a thread of process 60")


def test_real_wrong_targets(tmp_path):
    with child(HOLD_TORCH, str(tmp_path)) as target:
        assert find_job(target.pid).root.pid == target.pid
        os.kill(target.pid, signal.SIGKILL)
        os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)
        assert "has ended; its parent" in refusal(target.pid, "/proc").what
    assert refusal(target.pid, "/proc").what.startswith(f"no process {target.pid}")
    with child('say("ready"); hear()') as plain:
        assert "Python without torch (yet)" in refusal(plain.pid, "/proc").what


def test_a_target_that_may_not_be_read_is_refused_with_the_way_out(tmp_path):
    look = (
        "import os, sys\n"
        "from tpmon.errors import NotPermittedError\n"
        "from tpmon.probe.job.resolve import find_job\n"
        "os.geteuid() or os.setuid(65534)\n"
        "try:\n    find_job(int(sys.argv[1]))\n"
        "except NotPermittedError as error:\n    print(error.exit_code.value, error.what, error.try_this)\n"
    )
    with child(HOLD_TORCH, str(tmp_path), *(() if os.geteuid() == 0 else ("hide",))) as target:
        said = subprocess.run(
            [sys.executable, "-c", look, str(target.pid)], capture_output=True, text=True, timeout=30, check=False
        )
        assert said.stdout.startswith("4 process"), said.stderr
        assert f"tpmon attach {target.pid}" in said.stdout
        if os.geteuid() == 0:
            assert "belongs to user root" in said.stdout


FAMILY = (
    MAP_TORCH
    + """
if (worker := os.fork()) == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: not even its own user may read it
    ctypes.CDLL(None).prctl(15, b"pt_data_worker", 0, 0, 0)
    time.sleep(50)
while open(f"/proc/{worker}/comm").read().strip() != "pt_data_worker":
    time.sleep(0.01)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
say(str(worker))
hear()
"""
)


@needs_root
def test_a_worker_that_may_not_be_read_names_its_rank_that_may(tmp_path):
    one = Child(FAMILY, str(tmp_path))
    try:
        worker = int(one.hear())
        refusal, _ = ask_as_another(worker)
        assert refusal == [
            f"process {worker} may not be read by this user, but {one.pid} of the same job may",
            f"tpmon attach {one.pid}",
        ]
        assert ask_as_another(one.pid)[0] == []
    finally:
        one.close()
