"""How a frozen control group is thawed: by whoever made it, told by its path, or by the kernel's own file."""

import pytest

from tpmon.judge.advice.facts import write_thaw
from tpmon.model.known import Missing
from tpmon.model.process import Freezer

ID = "0f3a" * 16


@pytest.mark.parametrize(
    ("version", "directory", "expected"),
    [
        (1, "/sys/fs/cgroup/freezer/a b", "echo THAWED | sudo tee '/sys/fs/cgroup/freezer/a b/freezer.state'"),
        (2, "/sys/fs/cgroup/train", "echo 0 | sudo tee /sys/fs/cgroup/train/cgroup.freeze"),
        (1, f"/sys/fs/cgroup/freezer/docker/{ID}", "docker unpause 0f3a0f3a0f3a  # or: echo THAWED"),
        (2, f"/sys/fs/cgroup/system.slice/docker-{ID}.scope", "docker unpause 0f3a0f3a0f3a  # or: echo 0"),
        (2, f"/sys/fs/cgroup/user.slice/libpod-{ID}.scope", "podman unpause 0f3a0f3a0f3a  # or: echo 0"),
        (2, "/sys/fs/cgroup/system.slice/train.service", "sudo systemctl thaw train.service  # or: echo 0"),
        (2, "/sys/fs/cgroup/system.slice/train.service/sub", "echo 0 | sudo tee"),
        (1, "/sys/fs/cgroup/freezer/system.slice/train.service", "echo THAWED | sudo tee"),
        (1, "/sys/fs/cgroup/freezer/slurm/uid_7/job_912/step_0", "scontrol resume 912  # or: echo THAWED"),
        (2, "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_912", "scontrol resume 912  # or: echo 0"),
    ],
)
def test_the_one_who_froze_it_is_asked_first(version, directory, expected):
    assert write_thaw(Freezer(version, "/x", directory)).startswith(expected)


def test_a_group_out_of_view_has_no_command():
    why = Missing("a group above what can be seen here was frozen: thaw it outside")
    assert write_thaw(Freezer(2, "this container", why)) == why
