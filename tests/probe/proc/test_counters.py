"""Read and parse the hot /proc files, of real processes and of lines that the kernel can write."""

import resource

import pytest

from tests.children import Child, child
from tpmon.probe.base.procread import parse_stat, read_stat
from tpmon.probe.proc.counters import Io, ProcFile, SchedStat, parse_io, parse_schedstat, raise_descriptor_limit

IDLE = "say('up'); hear()"


@pytest.mark.parametrize("parse", [parse_stat, parse_schedstat, parse_io], ids=lambda parse: parse.__name__)
@pytest.mark.parametrize("raw", [b"", b"1 (x) S 1 2", b"1 2", b"rchar: 1\nwchar: 2\n", b"a b c"])
def test_a_cut_line_is_refused_with_value_error(parse, raw):
    with pytest.raises(ValueError):
        parse(raw)


IO = b"rchar: 10\nwchar: 20\nsyscr: 1\nsyscw: 2\nread_bytes: 30\nwrite_bytes: 40\ncancelled_write_bytes: 5\n"


def test_io_counts_what_was_asked_and_what_reached_the_device_and_schedstat_run_wait_slices():
    assert parse_io(IO) == Io(10, 20, 30, 40, 1)
    assert parse_schedstat(b"250145 180000 12\n") == SchedStat(250145, 180000, 12)


def test_a_file_of_a_dead_process_raises_and_closes_once():
    with child(IDLE) as one:
        file = ProcFile(f"/proc/{one.pid}/stat")
        assert b"python" in file.read()
        one.kill()
        with pytest.raises(ProcessLookupError):
            file.read()
        file.close()
        file.close()


def start_with_pid(pid: int) -> Child | None:
    """Start a child that has the given PID, None where the kernel does not give it."""
    for _ in range(20):
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(pid - 1))
        one = Child(IDLE)
        if one.pid == pid:
            assert one.hear()
            return one
        one.close()
    return None


def test_a_cached_file_never_shows_the_next_process_with_its_pid():
    with child(IDLE) as one:
        file = ProcFile(f"/proc/{one.pid}/stat")
        file.read()
        one.kill()
        try:
            heir = start_with_pid(one.pid)
        except OSError as error:  # the file's mode lets everybody write, the kernel asks for a capability
            pytest.skip(f"PIDs cannot be chosen: {error}")
        if heir is None:
            pytest.skip("another process took the PID each time")
        try:
            with pytest.raises(ProcessLookupError):
                file.read()
            assert read_stat(heir.pid).state in "SR"
        finally:
            file.close()
            heir.close()


def test_the_descriptor_limit_is_raised_to_the_hard_one():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        assert raise_descriptor_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
