"""Where the control groups of a job are, how many CPUs they leave it, and what they say of throttling and memory."""

import errno
import os
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cgroups import SECOND, Tree, two_reads
from tests.children import child
from tests.freezing import making_group
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.probe.base.cgroup_tree import JobGroups, Mount, find_group, parse_groups, parse_mounts
from tpmon.probe.base.procread import PAGE_BYTES
from tpmon.probe.host.cgroup import (
    CgroupReader,
    combine_budget,
    parse_cfs_quota,
    parse_counters,
    parse_cpu_max,
    parse_pressure_us,
    read_affinity,
    read_cpu_budget,
)
from tpmon.probe.host.machine import read_memory_left
from tpmon.probe.proc.counters import ProcFile

DATA = Path(__file__).parents[2] / "data" / "cgroup"


def v1_job(tree: Tree) -> None:
    tree.mount("cg/cpu", "cpu")
    tree.write("cg/cpu/release_agent", "")
    tree.v1_quota("cg/cpu/a", 50_000)
    tree.write("cg/cpu/a/cpu.stat", (DATA / "v1_cpu.stat").read_text())
    tree.mount("cg/memory", "memory")
    tree.write("cg/memory/release_agent", "")
    for group, limit in (("", 1 << 63), ("a", 1 << 63), ("a/b", 800 << 20)):
        tree.write(f"cg/memory/{group}/memory.limit_in_bytes", str(limit - 4096 * (limit == 1 << 63)))
        tree.write(f"cg/memory/{group}/memory.usage_in_bytes", str(300 << 20))
        tree.write(f"cg/memory/{group}/memory.stat", (DATA / "v1_memory.stat").read_text())
        tree.write(f"cg/memory/{group}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    tree.process(7, "4:memory:/a/b\n3:cpu:/a\n")


def test_v1_reading_also_of_a_limit_above_the_container_and_of_several_groups(tree):
    v1_job(tree)

    def throttle():
        stat = (DATA / "v1_cpu.stat").read_text()
        stat = stat.replace("nr_periods 162", "nr_periods 172").replace("nr_throttled 160", "nr_throttled 168")
        tree.write("cg/cpu/a/cpu.stat", stat.replace("13861270179", "14361270179"))
        memory, refaulted = (DATA / "v1_memory.stat").read_text(), "total_workingset_refault_file "
        tree.write("cg/memory/a/b/memory.stat", memory.replace(refaulted, f"{refaulted}1"))

    before = dict(line.split() for line in (DATA / "v1_memory.stat").read_text().splitlines())
    reading = two_reads(tree, [7], throttle)
    throttled = (reading.throttled_ratio, reading.throttled_s, reading.throttled_source)
    assert throttled == (pytest.approx(0.8), pytest.approx(0.5), "/a")
    cache = int(before["total_inactive_file"]) + int(before["total_active_file"])
    assert (reading.used_bytes, reading.limit_bytes, reading.limit_source) == ((300 << 20) - cache, 800 << 20, "/a/b")
    refaults = before["total_workingset_refault_file"]
    assert (reading.refault_bytes_s, reading.oom_kills) == ((int("1" + refaults) - int(refaults)) * PAGE_BYTES, 1)
    counted = (reading.anon_bytes, reading.swap_bytes, reading.memory_source)
    assert counted == (int(before["total_rss"]), int(before["total_swap"]), "/a/b")
    assert reading.psi_cpu_some_pct == Missing("control groups v1 have no pressure figures")
    # A limit above the container is told by memory.stat; kills add up over the groups of the ranks.
    limit = "hierarchical_memory_limit {}".format
    stat = (DATA / "v1_memory.stat").read_text().replace(limit(9223372036854771712), limit(100 << 20))
    tree.write("cg/memory/a/b/memory.stat", stat)
    reading = two_reads(tree, [7])
    assert (reading.limit_bytes, reading.limit_source) == (100 << 20, "a group above this container")
    for pid, rank in ((7, "r0"), (8, "r1")):
        tree.write(f"cg/memory/a/{rank}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
        tree.process(pid, f"4:memory:/a/{rank}\n3:cpu:/a\n")
    assert two_reads(tree, [7, 8]).oom_kills == 1 + 2 + 2


def v2_job(tree: Tree) -> None:
    tree.mount("cg", "", version=2)
    tree.write("proc/vmstat", "nr_free_pages 12\nworkingset_refault_file 100\noom_kill 5\n")
    for group in ("pod", "pod/c"):
        tree.write(f"cg/{group}/cgroup.events", "populated 1\n")
        tree.write(f"cg/{group}/cpu.max", "max 100000\n")
        tree.write(f"cg/{group}/cpu.stat", (DATA / "v2_cpu.stat").read_text())
        tree.write(f"cg/{group}/memory.stat", (DATA / "v2_memory.stat").read_text())
        tree.write(f"cg/{group}/memory.events", (DATA / "v2_memory.events").read_text())
        tree.write(f"cg/{group}/memory.current", str(3 << 30))
        tree.write(f"cg/{group}/memory.swap.current", "8192\n")
        tree.write(f"cg/{group}/memory.max", "max\n")
        for name in ("cpu", "memory", "io"):
            tree.write(f"cg/{group}/{name}.pressure", (DATA / "cpu.pressure").read_text())
    tree.process(7, "0::/pod/c\n")


def test_v2_reading_with_throttling_counted_at_the_parent_that_has_the_quota(tree):
    v2_job(tree)
    tree.write("cg/pod/memory.max", str(4 << 30))
    tree.write("cg/pod/memory.current", str((7 << 30) // 2))
    before = set(os.listdir("/proc/self/fd"))
    reading = two_reads(tree, [7])
    assert set(os.listdir("/proc/self/fd")) == before, "close gives every descriptor back"
    assert (reading.throttled_ratio, reading.anon_bytes) == (0.0, 1416626176)
    # The limit is the pod's, so what counts against it is what the pod uses.
    assert reading.used_bytes == (7 << 30) // 2 - 1073741824 - 805306368
    assert (reading.limit_bytes, reading.limit_source, reading.oom_kills) == (4 << 30, "/pod", 1)
    assert (reading.swap_bytes, reading.refault_bytes_s, reading.psi_io_some_pct) == (8192, 0.0, 0.0)

    def throttle():
        stat = (DATA / "v2_cpu.stat").read_text()
        stat = stat.replace("nr_periods 84", "nr_periods 94").replace("nr_throttled 61", "nr_throttled 71")
        tree.write("cg/pod/cpu.stat", stat.replace("5120433", "6370433"))

    tree.write("cg/pod/cpu.max", "50000 100000\n")
    reading = two_reads(tree, [7], throttle)
    throttled = (reading.throttled_ratio, reading.throttled_s, reading.throttled_source)
    assert throttled == (1.0, pytest.approx(1.25), "/pod")


def test_a_data_set_that_lies_warm_in_the_cache_is_not_in_use_and_of_equal_limits_the_outer_one_binds(tree):
    v2_job(tree)
    for group in ("pod", "pod/c"):
        tree.write(f"cg/{group}/memory.max", str(4 << 30))
    v2_group(tree, "pod/c/leaf")
    tree.process(7, "0::/pod/c/leaf\n")
    reading = two_reads(tree, [7])
    # Memory counts in the nearest group with the controller.
    assert (reading.limit_source, reading.memory_source, reading.anon_bytes) == ("/pod", "/pod/c", 1416626176)
    for group in ("pod", "pod/c"):
        tree.write(f"cg/{group}/memory.max", "max\n")
    tree.write("cg/pod/c/memory.current", str(63 << 30))
    tree.write("cg/pod/c/memory.stat", f"anon {10 << 30}\ninactive_file {1 << 30}\nactive_file {50 << 30}\n")
    assert two_reads(tree, [7]).used_bytes == 12 << 30
    tree.write("cg/pod/c/memory.stat", f"anon {10 << 30}\ninactive_file {1 << 30}\n")
    assert two_reads(tree, [7]).used_bytes == Missing("this kernel does not count total_active_file")


def test_what_is_left_to_a_process_is_below_its_limit_and_on_the_machine(tree):
    v2_job(tree)
    tree.write("proc/meminfo", f"MemTotal: 9\nMemAvailable: {8 << 20} kB\n")
    tree.write("cg/pod/memory.stat", f"inactive_file {1 << 30}\nactive_file 0\n")
    assert read_memory_left(7, tree.proc) == 8 << 30
    tree.write("cg/pod/memory.max", str(5 << 30))
    assert read_memory_left(7, tree.proc) == 3 << 30, "file pages go before anybody is killed"
    tree.write("proc/meminfo", f"MemAvailable: {1 << 20} kB\n")
    assert read_memory_left(7, tree.proc) == 1 << 30
    tree.write("proc/meminfo", "MemTotal: 9\n")
    assert read_memory_left(7, tree.proc) == 3 << 30
    tree.write("cg/pod/memory.max", "max\n")
    assert read_memory_left(7, tree.proc) == Missing("this kernel does not tell MemAvailable:")


def test_job_in_the_root_has_no_group_and_takes_what_the_host_counts(tree):
    v2_job(tree)
    tree.write("proc/pressure/cpu", "some avg10=0 avg60=0 avg300=0 total=100\n")
    tree.process(7, "0::/\n")

    def wait_and_refault():
        tree.write("proc/pressure/cpu", "some avg10=0 avg60=0 avg300=0 total=500100\n")
        tree.write("proc/vmstat", "nr_free_pages 12\nworkingset_refault_file 110\noom_kill 6\n")

    reading = two_reads(tree, [7], wait_and_refault)
    assert reading.anon_bytes == reading.used_bytes == Missing("no control group of its own")
    assert reading.limit_bytes is NOT_APPLICABLE
    assert (reading.throttled_ratio, reading.psi_cpu_some_pct) == (0.0, pytest.approx(50.0))
    assert reading.psi_source == reading.memory_source == "host"
    assert (reading.oom_kills, reading.refault_bytes_s) == (6, 10 * PAGE_BYTES)


def test_hidden_quota_shows_in_local_throttling(tree):
    v2_job(tree)
    tree.write("cg/cgroup.events", "populated 1\n")
    with closing(CgroupReader([7], tree.proc)) as reader:
        assert isinstance(reader.read(SECOND).throttled_ratio, Missing)
    tree.write("cg/pod/c/cpu.stat.local", "throttled_usec 1000000\n")
    still = two_reads(tree, [7])
    assert (still.throttled_ratio, still.throttled_s) == (0.0, 0.0)

    throttled = two_reads(tree, [7], lambda: tree.write("cg/pod/c/cpu.stat.local", "throttled_usec 1700000\n"))
    assert throttled.throttled_s == pytest.approx(0.7)
    assert isinstance(throttled.throttled_ratio, Missing)


def test_rates_need_two_readings_and_survive_a_reset(tree):
    v1_job(tree)
    with closing(CgroupReader([7], tree.proc)) as reader:
        ratios = [reader.read(SECOND).throttled_ratio]
        for second, counts in ((2, (0, 0)), (3, (10, 5))):
            tree.write("cg/cpu/a/cpu.stat", "nr_periods {}\nnr_throttled {}\nthrottled_time 0\n".format(*counts))
            ratios.append(reader.read(second * SECOND).throttled_ratio)
    assert ratios == [Missing("needs a second reading"), Missing("counter was reset"), 0.5]


def test_reader_follows_the_job_and_keeps_the_last_group_of_a_dead_one(tree):
    v2_job(tree)
    tree.process(8, "0::/pod\n")
    with closing(CgroupReader([7], tree.proc)) as reader:
        first = reader.read(SECOND)
        assert (first.memory_source, first.throttled_source) == ("/pod/c", "no quota")
        reader.follow([7, 8])
        assert reader.read(2 * SECOND).memory_source == "/pod"
        tree.write("cg/pod/cpu.max", "50000 100000\n")
        assert reader.read(12 * SECOND).throttled_source == "/pod", "a quota that is set later is found within 10 s"
        reader.follow([])
        tree.write("cg/pod/memory.events", "oom 2\noom_kill 9\n")
        assert reader.read(13 * SECOND).oom_kills == 9


def test_one_bad_file_or_pressure_that_is_compiled_in_but_off_costs_one_value(tree, monkeypatch):
    v2_job(tree)
    tree.write("cg/pod/c/memory.swap.current", "what\n")
    (tree.path / "cg/pod/c/memory.events").unlink()
    really_read = ProcFile.read

    def read(self):
        raw = really_read(self)
        if raw.startswith(b"some"):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return raw

    monkeypatch.setattr(ProcFile, "read", read)
    reading = two_reads(tree, [7])
    assert "not understood" in reading.swap_bytes.reason
    assert (reading.oom_kills, reading.anon_bytes) == (Missing("this kernel does not have it"), 1416626176)
    assert reading.psi_cpu_some_pct == Missing("switched off in this kernel")


def test_files_of_the_kernel_are_parsed():
    assert parse_pressure_us((DATA / "cpu.pressure").read_bytes()) == 4577649
    with pytest.raises(ValueError):
        parse_pressure_us(b"full total=3\n")
    assert parse_counters(b"a 1\nb 2\n") == {b"a": 1, b"b": 2}
    (mount,) = parse_mounts(r"36 31 0:29 / /mnt/a\040b rw - cgroup cgroup rw,cpu,cpuacct")
    assert mount.point == "/mnt/a b"
    assert {"cpu", "cpuacct"} <= mount.controllers
    assert parse_groups("4:memory:/a (deleted)\n0::/b:c\n") == {"": "/b:c"}, "a deleted group is left out"


@pytest.mark.parametrize(
    ("groups", "namespace", "free"),
    [
        ("0::/\n", "cgroup:[4026531835]", True),
        ("4:memory:/\n3:cpu:/\n0::/\n", "", True),
        ("0::/\n", "cgroup:[4026532999]", False),
        ("0::/kubepods/pod1/abc\n", "cgroup:[4026531835]", False),
    ],
)
def test_without_a_mount_there_is_no_limit_only_at_the_root(tree, groups, namespace, free):
    tree.process(7, groups)
    if namespace:
        (tree.path / "proc" / "self" / "ns").mkdir()
        (tree.path / "proc" / "self" / "ns" / "cgroup").symlink_to(namespace)
    tree.write("proc/vmstat", "oom_kill 7\nworkingset_refault_file 5\n")
    for name in ("cpu", "memory", "io"):
        tree.write(f"proc/pressure/{name}", "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n")
    reading = two_reads(tree, [7])
    told = (reading.throttled_ratio, reading.limit_bytes, reading.oom_kills, reading.psi_cpu_some_pct)
    unseen = Missing("no control groups are mounted here")
    assert told == ((0.0, NOT_APPLICABLE, 7, 0.0) if free else (unseen,) * 4)
    assert (reading.throttled_s, reading.refault_bytes_s) == ((0.0, 0.0) if free else (unseen, unseen))
    assert reading.memory_source == ("host" if free else "")
    assert "no control groups are mounted here" in tree.budget(7).reason


# -- where the job's groups are ------------------------------------------------------------------


def v2_group(tree: Tree, group: str, limit: str | None = None) -> None:
    """Write a group of v2 that is not the machine's root, with its cpu.max."""
    tree.write(f"cg/{group}/cgroup.events".replace("//", "/"), "populated 1\n")
    if limit:
        tree.write(f"cg/{group}/cpu.max".replace("//", "/"), f"{limit} 100000\n")


def nested_v1(tree):
    tree.mount("cg/cpu", "cpu,cpuacct")
    tree.write("cg/cpu/release_agent", "")
    for group, quota in (("", -1), ("/a", 150_000), ("/a/b", 400_000)):
        tree.v1_quota(f"cg/cpu{group}", quota)
    return "4:memory:/\n3:cpu,cpuacct:/a/b\n"


def pod_above(tree):
    tree.mount("cg", "", version=2)
    for group, limit in (("kubepods", "max"), ("kubepods/pod1", "400000"), ("kubepods/pod1/c", "max")):
        v2_group(tree, group, limit)
    return "0::/kubepods/pod1/c\n"


def one_group(group, limit):
    def build(tree):
        tree.mount("cg", "", version=2)
        v2_group(tree, group, limit)
        return f"0::/{group}\n"

    return build


def below_a_mount(tree):
    tree.mount("cg/cpu", "cpu", root="/docker/0a1b")
    tree.v1_quota("cg/cpu", 300_000)
    tree.v1_quota("cg/cpu/job", -1)
    return "3:cpu:/docker/0a1b/job\n"


@pytest.mark.parametrize(
    ("build", "cpus", "cores", "reason"),
    [
        (nested_v1, 64, 1.5, "1.5 CPUs by quota of /a (affinity 64)"),
        (pod_above, 64, 4.0, "4 CPUs by quota of /kubepods/pod1 (affinity 64)"),
        (one_group("a", "400000"), 2, 2.0, "2 CPUs by affinity"),
        (one_group("", "200000"), 64, 2.0, "2 CPUs by quota of this container (affinity 64)"),
        (one_group("", "max"), 64, 64.0, "64 CPUs by affinity (limits above this container are not visible)"),
        (below_a_mount, 64, 3.0, "3 CPUs by quota of /docker/0a1b (affinity 64)"),
        (lambda _: "0::/a\n", 64, 64.0, "64 CPUs by affinity (no control groups are mounted here)"),
    ],
)
def test_the_smallest_quota_in_view_or_the_affinity_is_the_budget(tree, build, cpus, cores, reason):
    tree.process(7, build(tree))
    budget = tree.budget(7, cpus=cpus)
    assert (budget.cores, budget.reason, budget.by) == (cores, reason, reason.split()[3])
    assert isinstance(JobGroups([99], tree.proc).common("cpu"), Missing), "no such process"


def test_hybrid_takes_limits_from_v1_and_pressure_from_v2(tree):
    tree.mount("cg/cpu", "cpu")
    tree.v1_quota("cg/cpu/s", 100_000)
    tree.mount("cg/unified", "", version=2)
    tree.write("cg/unified/s/cgroup.events", "populated 1\n")
    tree.write("cg/unified/s/cpu.max", "900000 100000\n")
    tree.write("cg/unified/s/cpu.pressure", "some avg10=0 avg60=0 avg300=0 total=1000000\nfull total=0\n")
    tree.process(7, "3:cpu:/s\n1:name=systemd:/s\n0::/s\n")
    assert tree.budget(7).cores == 1.0

    later = "some avg10=0 avg60=0 avg300=0 total=1250000\n"
    reading = two_reads(tree, [7], lambda: tree.write("cg/unified/s/cpu.pressure", later))
    assert (reading.psi_cpu_some_pct, reading.psi_source) == (pytest.approx(25.0), "/s")
    assert reading.psi_io_some_pct == Missing("this kernel does not have it")


def test_target_outside_our_namespace_is_known_by_affinity_only(tree):
    one_group("", "100000")(tree)
    tree.process(7, "0::/../other\n")
    budget = tree.budget(7, cpus=4)
    outside = "its control group is outside this container's view"
    assert (budget.cores, budget.reason) == (4.0, f"4 CPUs by affinity ({outside})")
    reading = two_reads(tree, [7])
    assert reading.anon_bytes == Missing(outside)
    assert reading.throttled_ratio == reading.limit_bytes == reading.oom_kills == reading.anon_bytes
    # One process in view does not put the group of the other in view.
    tree.process(8, "0::/\n")
    assert "outside" in tree.budget(7, 8, cpus=4).reason


def test_quota_of_the_lowest_common_group_counts_not_that_of_one_rank_nor_the_root_that_v1_shows_of_a_zombie(tree):
    tree.mount("cg", "", version=2)
    for group, limit in (("job", "600000"), ("job/task0", "100000"), ("job/task1", "max")):
        v2_group(tree, group, limit)
    tree.process(7, "0::/job/task0\n")
    tree.process(8, "0::/job/task1\n")
    assert tree.budget(7).cores == 1.0
    assert tree.budget(7, 8).reason == "6 CPUs by quota of /job (affinity 64)"
    tree.mount("cg/cpu", "cpu")
    tree.v1_quota("cg/cpu/a", 100_000)
    tree.process(7, "3:cpu:/a\n")
    tree.process(8, "3:cpu:/\n", state="Z")
    assert tree.budget(7, 8).reason == "1 CPU by quota of /a (affinity 64)"


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


@pytest.mark.parametrize(
    ("parse", "texts", "cores"),
    [
        (parse_cpu_max, ["max 100000\n"], None),
        (parse_cpu_max, ["50000 100000\n"], 0.5),
        (parse_cpu_max, ["150000\n"], 1.5),
        (parse_cfs_quota, ["-1\n", "100000\n"], None),
        (parse_cfs_quota, ["25000\n", "50000\n"], 0.5),
    ],
)
def test_quota_formats(parse, texts, cores):
    assert parse(*texts) == cores
    with pytest.raises(ValueError):
        parse(*["nonsense"] * len(texts))


def test_pinned_main_thread_does_not_hide_its_pool_and_a_dead_process_has_no_mask(tmp_path):
    for tid in (7, 8, 9):
        (tmp_path / "7" / "task" / str(tid)).mkdir(parents=True)
    masks = {7: {0}, 8: {1}, 9: {2}}
    assert read_affinity([7], str(tmp_path), masks.__getitem__, online=8) == 3

    def gone(pid):
        raise ProcessLookupError(errno.ESRCH, "No such process")

    affinity = read_affinity([7], "/nowhere", gone, online=8)
    assert isinstance(affinity, Missing)
    assert combine_budget(affinity, NOT_APPLICABLE).cores == affinity


@contextmanager
def member(group: Path, program: str):
    with child(f"say('up'); hear()\n{program}") as one:
        (group / "cgroup.procs").write_text(str(one.pid))
        one.say("go")
        yield one


def test_real_quota_throttles_a_busy_process():
    with making_group("cpu") as group:
        (group / "cpu.cfs_period_us").write_text("20000")
        (group / "cpu.cfs_quota_us").write_text("10000")
        with member(group, "while True: pass") as busy:
            budget = read_cpu_budget([busy.pid])
            assert budget.cores == 0.5
            assert budget.reason.startswith(f"0.5 CPUs by quota of /{group.name} (affinity ")
            # A tenth is little enough to be used up in every period, also on a crowded machine.
            (group / "cpu.cfs_quota_us").write_text("2000")
            reader = CgroupReader([busy.pid])
            periods = 0
            deadline = time.monotonic() + 20
            while periods < 5 and time.monotonic() < deadline:
                periods = parse_counters((group / "cpu.stat").read_bytes())[b"nr_periods"]
            reader.read(time.monotonic_ns())
            while periods < 25 and time.monotonic() < deadline:
                time.sleep(0.02)
                periods = parse_counters((group / "cpu.stat").read_bytes())[b"nr_periods"]
            reading = reader.read(time.monotonic_ns())
            reader.close()
    assert reading.throttled_ratio > 0.5
    assert 0.1 < reading.throttled_s <= 1.1
    assert reading.throttled_source == f"/{group.name}"


def test_real_oom_kill_is_counted_and_survives_the_victim():
    with making_group("memory") as group:
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
        with member(group, "kept = bytearray(300 << 20)") as victim:
            reader = CgroupReader([victim.pid])
            first = reader.read(time.monotonic_ns())
            assert victim.process.wait(20) == -9
            last = reader.read(time.monotonic_ns())
            reader.close()
    assert (first.limit_bytes, first.limit_source) == (64 << 20, f"/{group.name}")
    assert last.oom_kills == first.oom_kills + 1


def test_this_process_can_be_read():
    budget = read_cpu_budget([os.getpid()])
    assert 0 < budget.cores <= os.cpu_count()
    reader = CgroupReader([os.getpid()])
    for reading in (reader.read(time.monotonic_ns()), reader.read(time.monotonic_ns() + 1)):
        assert is_known(reading.anon_bytes) or reading.anon_bytes.reason
    reader.close()
