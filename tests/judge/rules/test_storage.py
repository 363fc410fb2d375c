"""What the reads of a loader tell: bytes or answers, near or far, and a page cache that is too small."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import starving
from tests.any_windows import make_slice, with_slice
from tests.frames import make_frame, make_process, make_worker
from tests.judging import advise, make_looks, make_phases
from tests.phase_stacks import PYTHON_LIB, SITE
from tests.starving import (
    COMPUTES,
    DISK,
    DISTANT,
    LOADER,
    RANK,
    SMALL_FILES,
    SOCKET,
    causes,
    line_up,
    make_second,
    starve,
)
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.readings import share_waits, weigh_rest
from tpmon.judge.features.snapshot import Scene, see
from tpmon.judge.features.starvation import find_starved, need_starved
from tpmon.judge.features.workers import find_open_share
from tpmon.judge.hysteresis import key_of
from tpmon.judge.ranking import find_explained
from tpmon.judge.rules import storage as rules_storage
from tpmon.judge.rules.data import judge_no_workers
from tpmon.judge.rules.storage import RULES, judge_network_store, judge_storage_bandwidth, judge_storage_latency
from tpmon.judge.stacks.classify import ends_in
from tpmon.judge.stacks.phases import DataPart, FrameKind, Phase
from tpmon.judge.stacks.profile import RankPhases
from tpmon.model.figures import Origin
from tpmon.model.host import SocketSample
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import Role, ThreadGroup, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.waits import RUNNING, Wait, WaitReason

GONE = Missing("permission denied")
KIB = 1024


def causes_of(kind, **more):
    return causes(starve(0.8, [kind] * 2, **more), RULES)


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
    assert causes_of(disk(size_kib, mb_s)) == {cause}


def test_what_no_counter_shows_may_still_be_a_store_and_a_disk_is_unknown_not_slow():
    assert causes_of({**DISTANT, "read_calls_s": GONE}) == {"network-store"}
    polls = {**SOCKET, "waits_for": "poll"}
    connected = SocketSample(2, 0.1, 0.1, 0, 0)
    assert causes_of(polls, frame={"sockets": connected}) == {"network-store"}
    assert causes_of(polls) == set()
    hidden = {**DISK, "asked_read_bytes_s": GONE, "device_read_bytes_s": GONE, "read_calls_s": GONE}
    scene = starve(0.8, [hidden] * 2)
    assert causes_of(hidden) == set()
    assert isinstance(judge_storage_bandwidth(scene), Unsure)
    assert isinstance(judge_storage_latency(scene), Unsure)
    scene = starve(0.8, [COMPUTES] * 2)
    assert isinstance(judge_network_store(scene), Cleared)
    assert isinstance(judge_storage_latency(scene), Cleared)


def test_reads_have_a_size_if_they_were_counted_mapped_files_by_their_faults():
    reads = rules_storage.measure_reads(find_starved(starve(0.8, [starving.THRASHES] * 2)))
    assert reads.mean_bytes == pytest.approx(540e6 / 80)
    assert "faults" in reads.source
    reads = rules_storage.measure_reads(find_starved(starve(0.8, [{**DISK, "read_calls_s": 0.0}] * 2)))
    assert not is_known(reads.mean_bytes)
    assert Need.SMALL_READS in judge_storage_latency(starve(0.8, [SMALL_FILES] * 2)).observed
    assert Need.SMALL_READS not in judge_storage_bandwidth(starve(0.8, [DISK] * 2)).observed
    network = judge_storage_latency(starve(0.8, [SMALL_FILES] * 2)).observed
    assert {Need.NETWORK_WAIT, Need.WORKERS_IO_WAIT} <= network


# Thrashed: refaults and major faults, or stalls for memory.
THRASHING = [
    ({}, Suspicion),
    ({"psi_some_pct": 0.0}, Suspicion),
    ({"psi_some_pct": GONE}, Suspicion),
    ({"major_faults_s": 2.0, "psi_some_pct": 0.0}, Cleared),
    ({"refault_bytes_s": 10e6, "psi_some_pct": 2.0}, Cleared),
    ({"refault_bytes_s": 0.0}, Cleared),
    ({"refault_bytes_s": GONE}, Suspicion),
    ({"major_faults_s": GONE, "psi_some_pct": GONE}, (Cleared, Unsure)),
    ({"refault_bytes_s": GONE, "psi_some_pct": GONE}, Unsure),
    ({"wait": 0.0}, Cleared),  # nobody waits for it
]


@pytest.mark.parametrize(("memory", "expected"), THRASHING)
def test_refaults_with_faults_or_stalls_are_a_thrashed_cache_where_somebody_waits_for_it(memory, expected):
    assert isinstance(rules_storage.judge_page_cache_thrash(starving.thrash(**memory)), expected)


def test_a_process_of_this_machine_is_no_store_behind_the_network():
    """The manager of multiprocessing answers all workers by itself: more readers only queue at it."""
    asks = {**SMALL_FILES, "waits_for": "unix socket", "asked_read_bytes_s": 2e6, "read_calls_s": 900.0}
    assert causes_of(asks) == set()
    scene = starve(0.8, [asks] * 8)
    answers = [rule(scene) for rule in (judge_network_store, judge_storage_latency, judge_storage_bandwidth)]
    assert all(isinstance(one, Unsure) and "unix socket" in one.text for one in answers)
    second = make_second(0.8, [asks] * 8)
    server = make_process(4300, role=Role.HELPER, rank_pid=4211, label="multiprocessing child", runnable=1.0)
    busy = see(line_up([replace(second, processes=(*second.processes, server))] * 20))
    assert "multiprocessing child 4300 wants 1.0 CPUs" in judge_network_store(busy).text


# what a worker waits for

FETCH = StackFrame("_MapDatasetFetcher.fetch", SITE + "torch/utils/data/_utils/fetch.py", 52)
ITEM = StackFrame("Images.__getitem__", "/home/usr/train/data.py", 12)
IDLE = StackFrame("Queue.get", PYTHON_LIB + "multiprocessing/queues.py", 103)
OPEN = StackFrame("open", SITE + "PIL/Image.py", 3465)
LARGE = {**SMALL_FILES, "asked_read_bytes_s": 4e6, "read_calls_s": 10.0}
"""Few reads of 400 KB: each image in one, after an open and a stat that take long."""


def stacked(
    frames: Sequence[Any], pid: int, opening: int, loading: int = 40, *, leaf: StackFrame = OPEN, idle: int = 20
) -> Scene:
    """See these seconds with a slice of stacks of one process; ``opening`` of ``loading`` end in ``leaf``."""
    stacks = {(FETCH, ITEM, leaf): opening, (FETCH, ITEM): loading - opening, (IDLE,): idle}
    taken = make_slice(pid, 0, {frames: count for frames, count in stacks.items() if count})
    phases: dict[int, RankPhases] = {}
    if pid == RANK:
        phases[RANK] = make_phases(
            {Phase.DATA_WAIT: 0.8, Phase.FORWARD: 0.2},
            parts={DataPart.FETCH: 0.8},
            samples=200,
            needs=frozenset((Need.TORCH_LOADER,)),
        )
    return see(with_slice(line_up(frames), taken), phases)


def share_opens(scene: Scene) -> Known[float]:
    return find_open_share(need_starved(scene), scene)


def fed(kind: dict[str, Any], opening: int, **more: Any) -> Scene:
    return stacked([make_second(0.8, [kind] * 2)] * 20, 5000, opening, **more)


@pytest.mark.parametrize(
    ("function", "file", "opens"),
    [
        ("open", SITE + "PIL/Image.py", True),
        ("ImageFile.load", SITE + "PIL/ImageFile.py", False),
        ("pil_loader", SITE + "torchvision/datasets/folder.py", True),
        ("pil_loader", "/home/usr/train/data.py", False),
        ("getsize", "<frozen genericpath>", True),
        ("isfile", "/usr/lib/python3.9/genericpath.py", True),
        ("_joinrealpath", "<frozen posixpath>", True),
        ("Path.stat", PYTHON_LIB + "pathlib.py", True),
        ("Path.open", "/usr/lib/python3.13/pathlib/_local.py", True),
        ("Path.read_bytes", PYTHON_LIB + "pathlib.py", False),
        ("walk", "<frozen os>", True),
        ("_listdir", PYTHON_LIB + "glob.py", True),
        ("_open_file.__init__", SITE + "torch/serialization.py", True),
        ("load", SITE + "torch/serialization.py", False),
        ("load", SITE + "numpy/lib/_npyio_impl.py", True),
        ("Store.open", "/home/usr/train/store.py", False),
        ("ZipFile.open", PYTHON_LIB + "zipfile.py", False),
        ("Images.__getitem__", "/home/usr/train/data.py", False),
    ],
)
def test_functions_that_only_open_or_look_up_files(function, file, opens):
    assert ends_in(FrameKind.OPENS, (ITEM, StackFrame(function, file, 7))) is opens
    assert not ends_in(FrameKind.OPENS, ())


def test_few_large_reads_or_reads_that_were_not_counted_behind_slow_opens_are_many_small_files():
    plain = fed(LARGE, 10)
    assert causes(plain, RULES) == {"network-store"}
    scene = fed(LARGE, 30)
    assert causes(scene, RULES) == {"storage-latency"}
    one = judge_storage_latency(scene)
    assert one.summary.endswith("its workers wait in open and stat, 75 % of their work: many small files")
    assert {Origin.PROC, Origin.STACKS} <= one.origins
    assert {row.name: row.value for row in one.evidence}["loading in open and stat"] == 75
    assert next(each for each in advise(scene, one) if each.remedy.id == "shard-files").certain
    unread = {**DISK, "asked_read_bytes_s": GONE, "device_read_bytes_s": GONE, "read_calls_s": GONE}
    assert causes(fed(unread, 10), RULES) == set()
    assert causes(fed(unread, 30), RULES) == {"storage-latency"}
    small = judge_storage_latency(fed(SMALL_FILES, 30))
    assert {Origin.PROC, Origin.STACKS} <= small.origins


def test_opens_are_nothing_where_no_wait_fits_bytes_come_fast_or_few_stacks_tell_of_them():
    computing = fed(COMPUTES, 40)
    assert isinstance(judge_storage_latency(computing), Cleared)
    fast = fed({**starving.LINE, "asked_read_bytes_s": 90e6}, 40)
    assert isinstance(judge_storage_bandwidth(fast), Suspicion)
    assert Need.SMALL_READS not in judge_storage_bandwidth(fast).observed
    assert causes(fed(SOCKET, 40), RULES) == {"network-store"}
    assert not is_known(share_opens(fed(DISTANT, 5, loading=5)))
    assert share_opens(fed(DISTANT, 20, idle=500)) == 0.5
    assert not is_known(share_opens(see(line_up([make_second(0.8, [DISTANT] * 2)] * 20))))


def test_a_rank_that_loads_itself_is_told_of_its_small_files_where_it_waits_for_them():
    def loads(io, opening):
        second = make_second(0.0, [], rank={"runnable": 0.3}, frame={"main_threads": (make_looks(RANK, 10, io=io),)})
        return stacked([second] * 20, RANK, opening, idle=0)

    scene = loads(6, 30)
    one = judge_no_workers(scene)
    assert {Need.SMALL_READS, Need.WORKERS_IO_WAIT} <= one.observed
    assert {row.name for row in one.shows} >= {"loading in open and stat"}
    assert [each.remedy.id for each in advise(scene, one) if each.certain][:2] == ["start-workers", "shard-files"]
    for io, opening in ((1, 30), (6, 5)):
        plain = judge_no_workers(loads(io, opening))
        assert Need.SMALL_READS not in plain.observed


URLLIB = StackFrame("sleep_for_retry", SITE + "urllib3/util/retry.py", 30)
ITSELF = {
    "a socket": (StackFrame("readinto", PYTHON_LIB + "socket.py", 700), "network-store", "start-workers"),
    "a server that refuses": (URLLIB, "network-store", "fewer-requests"),
    "a lock file": (StackFrame("acquire", SITE + "filelock/_api.py", 300), "worker-lock", "free-the-lock"),
    "a file": (OPEN, "no-workers", "start-workers"),
}


@pytest.mark.parametrize(("leaf", "cause", "remedy"), ITSELF.values(), ids=ITSELF)
def test_what_a_rank_without_workers_waits_for_is_told_by_its_own_stacks(leaf, cause, remedy):
    scene = stacked([make_second(0.0, [], rank={"runnable": 0.3})] * 20, RANK, 30, leaf=leaf, idle=0)
    found = [one for one in (rule(scene) for rule in LOADER) if isinstance(one, Suspicion)]
    explained = find_explained(key_of(one) for one in found)
    (one,) = [one for one in found if key_of(one) not in explained]
    assert (one.cause, advise(scene, one)[0].remedy.id) == (cause, remedy)
    assert remedy != "fewer-requests" or not any(each.remedy.adds_workers for each in advise(scene, one))


# shares of waits

READ, WORK = Wait(WaitReason.DIRECT_READ), Wait(WaitReason.WORK)


@pytest.mark.parametrize(
    ("states", "demands", "rest"),
    [
        ("RRRRRDDD", (0.32,) * 8, 0.68 * 8 / 3),
        ("DDDD", (0.25,) * 4, 0.75),
        ("RDSD", (0.25,) * 4, 1.0),
        # Two looks are no share of anything, and nothing but running tells nothing.
        ("RRRRRRDD", (0.3,) * 8, 1.0),
        ("RRRR", (0.5,) * 4, 1.0),
        # Read a moment apart, so that it may come out above one thread.
        ("RDDD", (1.02,) * 4, 0.0),
        ("RDDD", (Missing("first"), 0.25, 0.25, 0.25), 1.0),
        ("RDDD", (Missing("no"), Missing("no"), Missing("no"), 0.2), 1.0),
    ],
)
def test_the_looks_share_what_demand_leaves(states, demands, rest):
    assert weigh_rest(states, demands) == pytest.approx(rest)


def test_shares_of_waits_add_up_with_the_demand():
    shares = share_waits((RUNNING, RUNNING, READ, WORK), rest=0.8 / 0.5)
    assert shares == {RUNNING: pytest.approx(0.2), READ: pytest.approx(0.4), WORK: pytest.approx(0.4)}
    # Waits that were not read leave no share below 0.
    assert min(share_waits((RUNNING, READ, Missing("no"), WORK), rest=1.6).values()) >= 0.0


@given(st.lists(st.tuples(st.sampled_from("RSDT"), st.floats(0, 3) | st.just(Missing("no"))), min_size=1, max_size=30))
def test_no_share_leaves_its_bounds(looks):
    states, demands = zip(*looks, strict=True)
    rest = weigh_rest(states, demands)
    looked = 1.0 - states.count("R") / len(states)
    assert rest >= 0.0
    assert rest * looked <= 1.0 + 1e-9


def test_a_worker_whose_other_threads_compute_is_blocked_as_long_as_its_main_one():
    """A queue feeder pickles while the main thread reads from a slow disk."""
    groups = (ThreadGroup(ThreadKind.MAIN, 1, 0.1), ThreadGroup(ThreadKind.OTHER, 2, 0.5))
    looks = [("R", RUNNING), *[("D", READ)] * 9]
    workers = [
        make_worker(2, 0, 1, state=one, waits_for=wait, runnable=0.6, thread_groups=groups) for one, wait in looks
    ]
    frames = line_up([make_frame(processes=(make_process(1), worker)) for worker in workers])
    (worker,) = see(frames).ranks[0].workers
    assert worker.blocked_ratio == pytest.approx(0.9)
    assert worker.waits[READ] == pytest.approx(0.9)
