"""Counts of descriptors, threads, disk space and inodes beside their limits."""

import os
import resource
import tempfile

import pytest

from tpmon.model.host import DescriptorGroup, Resource
from tpmon.probe.host.limits import (
    TOLD_GROWTH,
    TOLD_RATIO,
    LimitReader,
    count_descriptors,
    group_descriptors,
    parse_limit,
    read_room,
)

LIMITS = "Limit                     Soft Limit           Hard Limit           Units     \nMax open files            1024   4096   files\nMax processes             unlimited   unlimited   processes\n"


def test_soft_limits_are_read_and_none_is_a_large_number():
    assert parse_limit(LIMITS, "Max open files") == 1024
    assert parse_limit(LIMITS, "Max processes") > 1 << 39
    assert parse_limit("", "Max processes") > 1 << 39


def test_descriptors_are_counted_and_told_by_what_they_lead_to():
    links = ["/dev/shm/torch_7_1 (deleted)", "/dev/shm/torch_7_2 (deleted)", "socket:[81]", "/memfd:x (deleted)"]
    assert group_descriptors([*links, "/dev/shm/torch_7_3", "socket:[82]", "anon_inode:[eventpoll]"]) == (
        DescriptorGroup("/dev/shm", 3),
        DescriptorGroup("socket", 2),
        DescriptorGroup("memfd", 1),
    )
    before = count_descriptors(os.getpid())
    ends = os.pipe()
    assert count_descriptors(os.getpid()) == before + 2
    for end in ends:
        os.close(end)


def test_own_process_is_read_with_its_limit_and_its_disk():
    own = os.getpid()
    with tempfile.NamedTemporaryFile():
        samples = LimitReader(lambda: (own,)).read()
    files = next(one for one in samples if one.resource is Resource.DESCRIPTORS)
    assert (files.pid, files.limit) == (own, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    assert 3 <= files.used <= files.limit
    assert all(0 <= one.used <= one.limit for one in samples)
    assert {one.resource for one in read_room(os.getcwd(), "/")} <= {Resource.DISK, Resource.INODES}
    assert list(read_room("/no/such/folder", "/")) == []


@pytest.mark.parametrize("old_kernel", [False, True])
def test_before_linux_6_2_the_entries_are_counted(tmp_path, old_kernel):
    folder = tmp_path / "7" / "fd"
    folder.mkdir(parents=True)
    for name in range(3):
        (folder / str(name)).symlink_to("/dev/null")
    size = os.stat(folder).st_size
    assert count_descriptors(7, str(tmp_path)) == (size or 3)


def test_what_grows_far_below_its_limit_is_told_too():
    reader = LimitReader(lambda: (os.getpid(),))
    before = next(one for one in reader.read() if one.resource is Resource.DESCRIPTORS)
    pipes = [os.pipe() for _ in range(TOLD_GROWTH)]
    try:
        after = next(one for one in reader.read() if one.resource is Resource.DESCRIPTORS)
    finally:
        for end in (end for pair in pipes for end in pair):
            os.close(end)
    assert after.used < TOLD_RATIO * after.limit, "the limit of this process is too low for the test"
    assert (before.groups, after.groups[0].target) == ((), "pipe")
    assert after.groups[0].count >= 2 * TOLD_GROWTH
