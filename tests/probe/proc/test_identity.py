"""Parsing what /proc says of one process, and living with what does not answer."""

import os
import resource
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.children import Child, child
from tpmon.model.known import Missing
from tpmon.probe.base.procread import (
    PAGE_BYTES,
    TICKS_PER_S,
    Mapped,
    boot_time_s,
    parse_cmdline,
    parse_environ,
    parse_field,
    parse_maps,
    parse_stat,
    parse_status,
    read_file,
    read_stat,
    read_status,
    read_table,
    read_thread_names,
    started_at,
)
from tpmon.probe.job.process_facts import STILL_BLOCKED, read_all_facts, read_each
from tpmon.probe.job.resolve import find_job
from tpmon.probe.proc.counters import Io, ProcFile, SchedStat, parse_io, parse_schedstat, raise_descriptor_limit

STAT = (
    b"4321 (%s) S 77 4321 4321 0 -1 4194368 500 9000 7 1 250 150 3 0 20 0 12 0 987654 1000 50 "
    b"18446744073709551615 0 0 0 0 0 0 0 4096 2 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 256\n"
)


@example(b"a b")
@example(b") R 1 (")
@example(b"((")
@example(b"\xff\xfe")
@given(st.binary(max_size=15).filter(lambda name: b"\0" not in name))
def test_a_stat_line_is_parsed_whatever_the_name(name):
    stat = parse_stat(STAT % name)
    assert (stat.pid, stat.state, stat.parent, stat.threads, stat.start_ticks) == (4321, "S", 77, 12, 987654)
    assert (stat.minor_faults, stat.children_faults, stat.major_faults) == (500, 9000, 7)
    assert (stat.cpu_s, stat.kernel_ticks, stat.rss_bytes) == (400 / TICKS_PER_S, 150, 50 * PAGE_BYTES)
    assert (stat.wait_status, stat.kernel, stat.forked) == (256, False, True)
    assert stat.name.isprintable() or "�" in stat.name or not stat.name.isascii()
    assert "\x1b" not in stat.name


@given(st.binary(max_size=200))
def test_stat_of_any_bytes_parses_or_is_refused(raw):
    with suppress(ValueError):
        assert parse_stat(raw).threads is not None
    assert parse_stat(STAT % b") R 1 (").name == ") R 1 ("


def test_arguments_variables_of_interest_numbers_and_counters_of_a_process_are_parsed():
    assert parse_cmdline(b"python\0-c\0\0x\xff\0") == ("python", "-c", "", "x�")
    assert parse_cmdline(b"") == ()
    data = b"RANK=1\0XRANK=2\0PATH=/bin\0NCCL_IB_HCA=mlx5=0\0OMP_NUM_THREADS=\0LD_RANK=3\0A=RANK=9\0KMP_BLOCKTIME=0"
    assert parse_environ(data) == {"RANK": "1", "NCCL_IB_HCA": "mlx5=0", "OMP_NUM_THREADS": "", "KMP_BLOCKTIME": "0"}
    status = parse_status(b"Name:\tx\nTgid:\t40\nPid:\t41\nUid:\t1000\t1001\t1001\t1001\nNSpid:\t41\t8\t1\n")
    assert (status.thread_group, status.uid, status.ns_pids) == (40, 1001, (41, 8, 1))
    assert parse_status(b"Tgid:\t40\nUid:\t0\t0\t0\t0\n").ns_pids == (40,)
    assert parse_io(IO) == Io(10, 20, 30, 40, 1), "what was asked, and what reached the device"
    assert parse_schedstat(b"250145 180000 12\n") == SchedStat(250145, 180000, 12)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        (b"Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n", b"Seccomp", b"2"),
        (b"pos:\t0\nflags:\t0102001\nmnt_id:\t29\nino:\t2597905\n", b"ino", b"2597905"),
        (b"pos:\t0\nflags:\t0102001\n", b"mnt_id", b""),
        (b"Pss_Dirty: 68 kB\nPss:    385 kB\n", b"Pss", b"385 kB"),
        (b"", b"Pss", b""),
    ],
)
def test_a_field_is_what_stands_behind_its_name(text, name, value):
    assert parse_field(text, name) == value


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/v/site-packages/torch/lib/libtorch_cpu.so", Mapped("/v/site-packages/torch/lib", False, "")),
        ("/v/torch/lib/libtorch_cpu.so (deleted)", Mapped("/v/torch/lib", True, "")),
        ("/usr/lib/x86_64-linux-gnu/libtorch_cpu.so.2.1", Mapped("/usr/lib/x86_64-linux-gnu", False, "")),
        ("/v/torch/lib/libtorch_global_deps.so", Mapped("/v/torch/lib", False, "")),
        ("/v/lib/libtorchaudio.so", Mapped("", False, "")),
        ("/usr/lib/libpython3.12.so.1.0", Mapped("", False, "3.12")),
        ("/v/lib/python3.13t/site-packages/numpy/core.so", Mapped("", False, "3.13")),
        ("/usr/bin/python3.10", Mapped("", False, "3.10")),
        ("/home/me/python3.9-notes/data.so", Mapped("", False, "")),
    ],
)
def test_torch_and_python_are_told_from_mappings(line, expected):
    data = f"7f00-7f01 r-xp 00000000 08:01 1 [heap]\n7f02-7f03 r-xp 00000000 08:01 2    {line}\n".encode()
    assert parse_maps(data) == expected


def test_a_real_process_is_read():
    with child('threading.Thread(target=hear, daemon=True).start(); say("ready"); time.sleep(60)') as one:
        stat = read_stat(one.pid)
        assert (stat.pid, stat.parent, stat.threads, stat.kernel) == (one.pid, os.getpid(), 2, False)
        assert read_status(one.pid).uid == os.geteuid()
        assert read_thread_names(one.pid) == (stat.name,)
        assert one.pid in read_table()
        assert parse_schedstat(read_file(f"/proc/{one.pid}/schedstat")).run_ns > 1_000_000
        resident = int(parse_field(read_file(f"/proc/{one.pid}/status"), b"VmRSS").split()[0]) * 1024
        assert abs(read_stat(one.pid).rss_bytes - resident) <= 2 << 20
        age_s = time.time() - started_at(stat.start_ticks, boot_time_s()).timestamp()
        assert -0.1 < age_s < 60
    with pytest.raises(OSError):
        read_stat(one.pid)


@pytest.fixture
def stuck():
    """Give what blocks the read of one process, and what lets those that wait go on."""
    reads, writes = os.pipe()

    def go_on():
        os.write(writes, b"." * 21)

    yield lambda pid: os.read(reads, 1) and pid, go_on
    go_on()


def test_one_read_that_blocks_costs_its_deadline_and_many_end_with_the_whole_one(stuck):
    block, _ = stuck
    answers = read_each(range(100), lambda pid: block(pid) if pid == 40 else pid, each_s=0.2, all_s=5.0)
    assert answers.pop(40) == Missing("no answer within 0.2 s")
    assert answers == {pid: pid for pid in range(100) if pid != 40}
    started = time.monotonic()
    answers = read_each(range(20), block, each_s=0.1, all_s=0.5)
    assert [type(answers[pid]) for pid in range(20)] == [Missing] * 20
    assert time.monotonic() - started < 10


def test_no_second_thread_waits_for_a_pid_that_blocks(stuck):
    (block, go_on), blocked, asked = stuck, {}, []

    def read(pid):
        asked.append(pid)
        return block(pid) if pid == 7 and asked.count(7) == 1 else pid

    first = read_each((6, 7, 8), read, each_s=0.1, blocked=blocked)
    again = read_each((6, 7, 8), read, each_s=0.1, blocked=blocked)
    go_on()
    assert first[7] == Missing("no answer within 0.1 s")
    assert again == {6: 6, 7: STILL_BLOCKED, 8: 8}
    assert asked.count(7) == 1
    while blocked[7].running:
        time.sleep(0.01)
    assert read_each((7,), read, blocked=blocked) == {7: 7}
    assert blocked == {}


def test_where_no_thread_may_be_started_nothing_is_read_and_nothing_stays_blocked(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    blocked = {}
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        answers = read_each((6, 7), lambda pid: pid, blocked=blocked)
    assert set(answers.values()) == {Missing("not read: can't start new thread")}
    assert read_each((6, 7), lambda pid: pid, blocked=blocked) == {6: 6, 7: 7}


def test_a_process_whose_memory_does_not_answer_keeps_its_name_and_threads(fake):
    """The command line of 102 blocks its reader, as on a stuck mmap lock."""
    fake.add_torchrun(100, ranks=1)
    fake.add(102, 100, ("python", "train.py"), environ={"RANK": "1"}, torch=True, threads=("pt_autograd_0",))
    (fake.path / "102" / "cmdline").unlink()
    os.mkfifo(fake.path / "102" / "cmdline")
    facts = read_all_facts([read_stat(pid, fake.proc) for pid in (101, 102)], fake.proc, each_s=0.2)
    assert facts[102].environ == Missing("no answer within 0.2 s")
    assert (facts[102].python, facts[102].torch, facts[101].argv[2]) == (True, True, "train.py")
    assert len(find_job(100, fake.proc).members) == 5, "its job is found all the same"


IDLE = "say('up'); hear()"


@pytest.mark.parametrize("parse", [parse_stat, parse_schedstat, parse_io], ids=lambda parse: parse.__name__)
@pytest.mark.parametrize("raw", [b"", b"1 (x) S 1 2", b"1 2", b"rchar: 1\nwchar: 2\n", b"a b c"])
def test_a_cut_line_is_refused_with_value_error(parse, raw):
    with pytest.raises(ValueError):
        parse(raw)


IO = b"rchar: 10\nwchar: 20\nsyscr: 1\nsyscw: 2\nread_bytes: 30\nwrite_bytes: 40\ncancelled_write_bytes: 5\n"


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


def test_a_cached_file_of_a_dead_process_raises_closes_once_and_never_shows_the_next_with_its_pid():
    with child(IDLE) as one:
        file, other = (ProcFile(f"/proc/{one.pid}/stat") for _ in range(2))
        assert b"python" in file.read()
        one.kill()
        with pytest.raises(ProcessLookupError):
            file.read()
        other.close()
        other.close()
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
