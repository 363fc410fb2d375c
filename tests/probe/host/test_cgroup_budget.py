"""Where the control groups of a job are and how many CPUs they leave it: fixture trees of every layout seen."""

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cgroups import Tree, two_reads
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.probe.base.cgroup_tree import JobGroups, Mount, find_group, parse_groups, parse_mounts
from tpmon.probe.host.cgroup import combine_budget, parse_cfs_quota, parse_cpu_max, read_affinity


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


# -- where the job's groups are ------------------------------------------------------------------


def test_v1_nested_takes_the_smallest_quota_above(tree):
    tree.mount("cg/cpu", "cpu,cpuacct")
    tree.write("cg/cpu/release_agent", "")
    tree.v1_quota("cg/cpu", -1)
    tree.v1_quota("cg/cpu/a", 150_000)
    tree.v1_quota("cg/cpu/a/b", 400_000)
    tree.process(7, "4:memory:/\n3:cpu,cpuacct:/a/b\n")
    budget = tree.budget(7)
    assert budget.cores == 1.5
    assert budget.reason == "1.5 CPUs by quota of /a (affinity 64)"


def test_v2_pod_limit_on_parent(tree):
    tree.mount("cg", "", version=2)
    for group in ("cg/kubepods", "cg/kubepods/pod1", "cg/kubepods/pod1/c"):
        tree.write(f"{group}/cgroup.events", "populated 1\n")
        tree.write(f"{group}/cpu.max", "max 100000\n")
    tree.write("cg/kubepods/pod1/cpu.max", "400000 100000\n")
    tree.process(7, "0::/kubepods/pod1/c\n")
    assert tree.budget(7).reason == "4 CPUs by quota of /kubepods/pod1 (affinity 64)"


def test_quota_larger_than_affinity_does_not_bind(tree):
    tree.mount("cg", "", version=2)
    tree.write("cg/a/cgroup.events", "")
    tree.write("cg/a/cpu.max", "400000 100000\n")
    tree.process(7, "0::/a\n")
    budget = tree.budget(7, cpus=2)
    assert (budget.cores, budget.reason) == (2.0, "2 CPUs by affinity")


def test_cgroup_namespace_shows_the_container_as_root(tree):
    tree.mount("cg", "", version=2)
    tree.write("cg/cgroup.events", "populated 1\n")
    tree.write("cg/cpu.max", "200000 100000\n")
    tree.process(7, "0::/\n")
    assert tree.budget(7).reason == "2 CPUs by quota of this container (affinity 64)"


def test_container_without_quota_says_that_more_may_be_hidden(tree):
    tree.mount("cg", "", version=2)
    tree.write("cg/cgroup.events", "populated 1\n")
    tree.write("cg/cpu.max", "max 100000\n")
    tree.process(7, "0::/\n")
    budget = tree.budget(7)
    assert budget.reason == "64 CPUs by affinity (limits above this container are not visible)"


def test_container_without_namespace_subtracts_the_mount_root(tree):
    tree.mount("cg/cpu", "cpu", root="/docker/0a1b")
    tree.v1_quota("cg/cpu", 300_000)
    tree.v1_quota("cg/cpu/job", -1)
    tree.process(7, "3:cpu:/docker/0a1b/job\n")
    assert tree.budget(7).reason == "3 CPUs by quota of /docker/0a1b (affinity 64)"


def test_hybrid_takes_limits_from_v1_and_pressure_from_v2(tree):
    tree.mount("cg/cpu", "cpu")
    tree.v1_quota("cg/cpu/s", 100_000)
    tree.mount("cg/unified", "", version=2)
    tree.write("cg/unified/s/cgroup.events", "populated 1\n")
    tree.write("cg/unified/s/cpu.max", "900000 100000\n")
    tree.write("cg/unified/s/cpu.pressure", "some avg10=0 avg60=0 avg300=0 total=1000000\nfull total=0\n")
    tree.process(7, "3:cpu:/s\n1:name=systemd:/s\n0::/s\n")
    assert tree.budget(7).cores == 1.0

    def wait_a_quarter():
        tree.write("cg/unified/s/cpu.pressure", "some avg10=0 avg60=0 avg300=0 total=1250000\n")

    reading = two_reads(tree, [7], wait_a_quarter)
    assert reading.psi_cpu_some_pct == pytest.approx(25.0)
    assert reading.psi_source == "/s"
    assert reading.psi_io_some_pct == Missing("this kernel does not have it")


def test_target_outside_our_namespace_is_known_by_affinity_only(tree):
    tree.mount("cg", "", version=2)
    tree.write("cg/cgroup.events", "")
    tree.write("cg/cpu.max", "100000 100000\n")
    tree.process(7, "0::/../other\n")
    budget = tree.budget(7, cpus=4)
    assert budget.cores == 4.0
    assert budget.reason == "4 CPUs by affinity (its control group is outside this container's view)"
    reading = two_reads(tree, [7])
    assert reading.anon_bytes == Missing("its control group is outside this container's view")
    assert reading.throttled_ratio == reading.limit_bytes == reading.oom_kills == reading.anon_bytes
    # One process in view does not put the group of the other in view.
    tree.process(8, "0::/\n")
    assert "outside" in tree.budget(7, 8, cpus=4).reason


def test_quota_of_the_lowest_common_group_counts_not_that_of_one_rank(tree):
    tree.mount("cg", "", version=2)
    for group, limit in (("job", "600000 100000"), ("job/task0", "100000 100000"), ("job/task1", "max 100000")):
        tree.write(f"cg/{group}/cgroup.events", "")
        tree.write(f"cg/{group}/cpu.max", limit)
    tree.process(7, "0::/job/task0\n")
    tree.process(8, "0::/job/task1\n")
    assert tree.budget(7).cores == 1.0
    assert tree.budget(7, 8).reason == "6 CPUs by quota of /job (affinity 64)"


def test_a_zombie_that_v1_shows_in_the_root_is_left_out(tree):
    tree.mount("cg/cpu", "cpu")
    tree.v1_quota("cg/cpu/a", 100_000)
    tree.process(7, "3:cpu:/a\n")
    tree.process(8, "3:cpu:/\n", state="Z")
    assert tree.budget(7, 8).reason == "1 CPU by quota of /a (affinity 64)"


def test_without_any_mount_affinity_is_the_budget(tree):
    tree.process(7, "0::/a\n")
    assert tree.budget(7).reason == "64 CPUs by affinity (no control groups are mounted here)"
    assert isinstance(JobGroups([99], tree.proc).common("cpu"), Missing)


def test_the_mount_that_shows_most_of_the_tree_is_used():
    mounts = (
        Mount(2, frozenset([""]), "/pod", "/inner"),
        Mount(2, frozenset([""]), "/", "/outer"),
        Mount(2, frozenset([""]), "/other", "/elsewhere"),
    )
    group = find_group("", ["/pod/a"], mounts)
    assert group.directory == "/outer/pod/a"
    assert [one.path for one in group.lineage()] == ["/pod/a", "/pod", "/"]


def test_long_and_hostile_paths_are_cut_and_cleaned(tree):
    tree.mount("cg/cpu", "cpu")
    path = "/kubepods.slice/\x1b[31m" + "x" * 200 + "/job"
    tree.process(7, f"3:cpu:{path}\n")
    group = JobGroups([7], tree.proc).common("cpu")
    assert len(group.label()) <= 60
    assert group.label().endswith("/job")
    assert "\x1b" not in group.label()


def test_mountinfo_octal_escapes():
    (mount,) = parse_mounts(r"36 31 0:29 / /mnt/a\040b rw - cgroup cgroup rw,cpu,cpuacct")
    assert mount.point == "/mnt/a b"
    assert {"cpu", "cpuacct"} <= mount.controllers


def test_deleted_groups_are_left_out():
    assert parse_groups("4:memory:/a (deleted)\n0::/b:c\n") == {"": "/b:c"}


@given(st.text())
def test_parsers_take_any_text(text):
    parse_mounts(text)
    assert all(isinstance(path, str) for path in parse_groups(text).values())


names = st.lists(st.sampled_from("abc"), max_size=4)


@given(root=names, below=st.lists(names, min_size=1, max_size=3))
def test_directory_is_mount_point_plus_path_below_its_root(root, below):
    mount = Mount(1, frozenset(["cpu"]), "/" + "/".join(root), "/mnt")
    paths = ["/" + "/".join(root + rest) for rest in below]
    group = find_group("cpu", paths, [mount])
    assert is_known(group)
    common = os.path.commonpath(["/mnt/" + "/".join(rest) for rest in below])
    assert group.directory == common.rstrip("/")
    lineage = list(group.lineage())
    assert lineage[0].directory == group.directory
    assert lineage[-1].directory == "/mnt"
    assert all(one.path.startswith(mount.root) for one in lineage)


# -- budget --------------------------------------------------------------------------------------


def test_quota_formats():
    assert parse_cpu_max("max 100000\n") is None
    assert parse_cpu_max("50000 100000\n") == 0.5
    assert parse_cpu_max("150000\n") == 1.5
    assert parse_cfs_quota("-1\n", "100000\n") is None
    assert parse_cfs_quota("25000\n", "50000\n") == 0.5
    with pytest.raises(ValueError):
        parse_cpu_max("nonsense")


def test_pinned_main_thread_does_not_hide_its_pool(tmp_path):
    for tid in (7, 8, 9):
        (tmp_path / "7" / "task" / str(tid)).mkdir(parents=True)
    masks = {7: {0}, 8: {1}, 9: {2}}
    assert read_affinity([7], str(tmp_path), masks.__getitem__, online=8) == 3


def test_dead_process_has_no_mask():
    def gone(pid):
        raise ProcessLookupError(errno.ESRCH, "No such process")

    affinity = read_affinity([7], "/nowhere", gone, online=8)
    assert isinstance(affinity, Missing)
    assert combine_budget(affinity, NOT_APPLICABLE).cores == affinity
