"""What the reads of a loader tell: bytes or answers, near or far, and a page cache that is too small."""

from dataclasses import replace

import pytest

from tests.frames import make_memory, make_process
from tests.starving import COMPUTES, DISK, DISTANT, LINE, SMALL_FILES, SOCKET, THRASHES, line_up, make_second, starve
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.snapshot import see
from tpmon.judge.features.starvation import find_starved
from tpmon.judge.rules.storage import (
    RULES,
    judge_network_store,
    judge_page_cache_thrash,
    judge_storage_bandwidth,
    judge_storage_latency,
    measure_reads,
)
from tpmon.model.host import SocketSample
from tpmon.model.known import Missing, is_known
from tpmon.model.process import Role

GONE = Missing("permission denied")
KIB = 1024


def causes(kind, workers=2, **more):
    scene = starve(0.8, [kind] * workers, **more)
    return {one.cause for one in (rule(scene) for rule in RULES) if isinstance(one, Suspicion)}


def disk(size_kib, mb_s):
    """Build a worker of two that waits for a local disk: mean size of a read, MB/s of both workers."""
    rate = mb_s * 1e6 / 2
    return {**DISK, "asked_read_bytes_s": rate, "device_read_bytes_s": rate, "read_calls_s": rate / (size_kib * KIB)}


# Mean size of a read in KiB, MB/s of all workers, cause.
SIZES = [
    (4, 2, "storage-latency"),
    (55, 10, "storage-latency"),
    (128, 5, "storage-latency"),
    (128, 60, "storage-bandwidth"),
    (1024, 8, "storage-bandwidth"),
    (4096, 500, "storage-bandwidth"),
    (16, 400, "storage-bandwidth"),
]


@pytest.mark.parametrize(("size_kib", "mb_s", "cause"), SIZES)
def test_the_size_of_reads_tells_bytes_from_answers(size_kib, mb_s, cause):
    assert causes(disk(size_kib, mb_s)) == {cause}


def test_small_reads_are_a_need_of_the_remedy():
    assert Need.SMALL_READS in judge_storage_latency(starve(0.8, [SMALL_FILES] * 2)).observed
    assert Need.SMALL_READS not in judge_storage_bandwidth(starve(0.8, [DISK] * 2)).observed
    network = judge_storage_latency(starve(0.8, [SMALL_FILES] * 2)).observed
    assert {Need.NETWORK_WAIT, Need.WORKERS_IO_WAIT} <= network


def test_network_file_systems_are_far_away_only_when_their_reads_are_neither_small_nor_fast():
    assert causes(SMALL_FILES) == {"storage-latency"}
    assert causes(LINE) == {"storage-bandwidth"}
    assert causes(DISTANT) == {"network-store"}
    assert causes({**DISTANT, "read_calls_s": GONE}) == {"network-store"}


def test_recv_shows_in_no_counter_and_is_still_a_store():
    assert causes(SOCKET) == {"network-store"}
    polls = {**SOCKET, "waits_for": "poll"}
    connected = SocketSample(2, 0.1, 0.1, 0, 0)
    assert causes(polls, frame={"sockets": connected}) == {"network-store"}
    assert causes(polls) == set()


def test_a_disk_whose_reads_are_hidden_is_unknown_not_slow():
    hidden = {**DISK, "asked_read_bytes_s": GONE, "device_read_bytes_s": GONE, "read_calls_s": GONE}
    scene = starve(0.8, [hidden] * 2)
    assert causes(hidden) == set()
    assert isinstance(judge_storage_bandwidth(scene), Unsure)
    assert isinstance(judge_storage_latency(scene), Unsure)


def test_workers_that_compute_are_cleared_of_storage():
    scene = starve(0.8, [COMPUTES] * 2)
    assert isinstance(judge_network_store(scene), Cleared)
    assert isinstance(judge_storage_latency(scene), Cleared)


def test_mapped_files_are_measured_by_their_faults():
    reads = measure_reads(find_starved(starve(0.8, [THRASHES] * 2)))
    assert reads.mean_bytes == pytest.approx(540e6 / 80)
    assert "faults" in reads.source


def test_reads_that_were_not_counted_have_no_size():
    reads = measure_reads(find_starved(starve(0.8, [{**DISK, "read_calls_s": 0.0}] * 2)))
    assert not is_known(reads.mean_bytes)


def thrash(wait=0.9, **memory):
    plain = {"refault_bytes_s": 1.2e9, "major_faults_s": 150.0, "psi_some_pct": 28.0}
    return starve(wait, [THRASHES] * 2, frame={"memory": make_memory(**(plain | memory))})


# Thrashed: refaults and major faults, or stalls for memory.
THRASHING = [
    ({}, True),
    ({"psi_some_pct": 0.0}, True),
    ({"psi_some_pct": GONE}, True),
    ({"major_faults_s": 2.0, "psi_some_pct": 0.0}, False),
    ({"refault_bytes_s": 10e6, "psi_some_pct": 2.0}, False),
    ({"refault_bytes_s": 0.0}, False),
    ({"refault_bytes_s": GONE}, True),
    ({"major_faults_s": GONE, "psi_some_pct": GONE}, False),
]


@pytest.mark.parametrize(("memory", "guilty"), THRASHING)
def test_refaults_with_faults_or_stalls_are_a_thrashed_cache(memory, guilty):
    assert isinstance(judge_page_cache_thrash(thrash(**memory)), Suspicion) == guilty


def test_a_thrashed_cache_that_nobody_waits_for_costs_nothing():
    assert isinstance(judge_page_cache_thrash(thrash(wait=0.0)), Cleared)


def test_an_unread_cache_is_unknown():
    assert isinstance(judge_page_cache_thrash(thrash(refault_bytes_s=GONE, psi_some_pct=GONE)), Unsure)


def test_a_process_of_this_machine_is_no_store_behind_the_network():
    """The manager of multiprocessing answers all workers by itself: more readers only queue at it."""
    asks = {**SMALL_FILES, "waits_for": "unix socket", "asked_read_bytes_s": 2e6, "read_calls_s": 900.0}
    assert causes(asks) == set()
    scene = starve(0.8, [asks] * 8)
    answers = [rule(scene) for rule in (judge_network_store, judge_storage_latency, judge_storage_bandwidth)]
    assert all(isinstance(one, Unsure) and "unix socket" in one.text for one in answers)
    second = make_second(0.8, [asks] * 8)
    server = make_process(4300, role=Role.HELPER, rank_pid=4211, label="multiprocessing child", runnable=1.0)
    busy = see(line_up([replace(second, processes=(*second.processes, server))] * 20))
    assert "multiprocessing child 4300 wants 1.0 CPUs" in judge_network_store(busy).text
