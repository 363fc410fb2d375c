"""Which pipes of a DataLoader are its queues, what looks at them tell, and that they take nothing from it."""

import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

from tests.children import child
from tests.waiting import wait_until
from tpmon.model.host import LoaderSample
from tpmon.model.known import Missing, is_known
from tpmon.probe.loader import queues as loader_module
from tpmon.probe.loader.queues import (
    BIRTH_SPAN_NS,
    SAMPLE_SPAN_NS,
    LoaderProbe,
    LoaderRank,
    LoaderWorker,
    PipeEnds,
    count_made,
    map_queues,
    parse_flags,
    read_message_bytes,
    read_pending,
    read_pipes,
    read_queue_pipes,
)

PROGRAM = Path(__file__).parents[2] / "programs" / "loader_queues.py"


@contextmanager
def loader(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[dict[str, object]]]]:
    """Start the program, wait until its queues stand, and end it."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def ends(*fds: int) -> dict[int, PipeEnds]:
    """Name pipes by their read descriptor: inode 1000 + fd."""
    return {1000 + fd: PipeEnds(1000 + fd, fd, fd + 1) for fd in fds}


def read_fds(pipes) -> list[object]:
    return [pipe.read_fd if is_known(pipe) else "missing" for pipe in pipes]


OLDER, SIX = ends(3, 5, 15, 17, 20), ends(3, 5, 8, 13, 15, 18)
# The worker lists say what the kernel shows: a forked worker holds all that is older than itself.
MAPS = {
    "fork": (ends(3, 5, 8), [ends(3, 5), ends(3, 5, 8)], 3, [5, 8]),
    "spawn": (ends(3, 5, 8), [ends(3, 5), ends(3, 8)], 3, [5, 8]),
    "fork, one worker": (ends(3, 5), [ends(3, 5)], 3, [5]),
    "fork, older queues of the program": (OLDER, [ends(3, 5, 15, 17), OLDER], 15, [17, 20]),
    "fork, three workers": (ends(3, 5, 8, 12), [ends(3, 5), ends(3, 5, 8), ends(3, 5, 8, 12)], 3, [5, 8, 12]),
    "fork, two loaders": (SIX, [ends(3, 5), ends(3, 5, 8), ends(3, 5, 8, 13, 15), SIX], [3, 3, 13, 13], [5, 8, 15, 18]),
    "spawn, two loaders": (SIX, [ends(3, 5), ends(3, 8), ends(13, 15), ends(13, 18)], [3, 3, 13, 13], [5, 8, 15, 18]),
    "fork, two loaders, the last worker of the first dead": (
        SIX,
        [ends(3, 5), {}, ends(3, 5, 8, 13, 15), SIX],
        [3, 3, "missing", "missing"],
        [5, "missing", "missing", "missing"],
    ),
    "spawn, two loaders, the first worker of the second dead": (
        SIX,
        [ends(3, 5), ends(3, 8), {}, ends(13, 18)],
        [3, 3, 3, 13],
        [5, 8, "missing", 18],
    ),
    "fork, second worker dead": (ends(3, 5, 8, 12), [ends(3, 5), {}, ends(3, 5, 8, 12)], 3, [5, "missing", 12]),
    "fork, first worker dead": (ends(3, 5, 8), [{}, ends(3, 5, 8)], 3, ["missing", 8]),
    "fork, first two dead": (ends(1, 3, 5, 8, 12), [{}, {}, ends(1, 3, 5, 8, 12)], 3, ["missing", "missing", 12]),
    "spawn, first worker dead": (ends(3, 5, 8), [{}, ends(3, 8)], 3, ["missing", 8]),
    "all dead": (ends(3, 5, 8), [{}, {}], "missing", ["missing", "missing"]),
    "a rank that may not share": ({}, [ends(3, 5), ends(3, 8)], "missing", ["missing", "missing"]),
    "one pipe shared by all is no loader": (ends(3), [ends(3), ends(3)], "missing", ["missing", "missing"]),
    "no workers": (ends(3), [], "missing", []),
}


@pytest.mark.parametrize("name", MAPS)
def test_queues_are_found_by_who_was_the_first_to_hold_them(name):
    rank, workers, data, index = MAPS[name]
    found = map_queues(rank, workers)
    assert read_fds(found.data) == (data if isinstance(data, list) else [data] * len(workers))
    assert read_fds(found.index) == index


def ended(*fds) -> dict[int, PipeEnds]:
    """Build the reading ends of pipes whose other ends are the workers'."""
    return {2000 + fd: PipeEnds(2000 + fd, fd, -1) for fd in fds}


MADE = {
    "four, of which some may have ended": (ends(3, 5, 8, 12, 16), ended(7, 11, 15, 19), [3], [4]),
    "a queue of the program beside them": (ends(3, 5, 8, 20), ended(7, 11), [3], [2]),
    "a pipe of the program beside them": (ends(3, 5, 8), ended(7, 11, 20), [3], [2]),
    "two loaders": (ends(3, 5, 8, 20, 22), ended(7, 11, 24), [3, 20], [2, 1]),
    "what is older counts for none": (ends(1, 3, 5), ended(2, 7), [3], [1]),
}


@pytest.mark.parametrize(("queues", "sentinels", "data", "made"), MADE.values(), ids=MADE)
def test_the_workers_that_a_loader_was_made_with_are_counted_by_what_the_rank_keeps(queues, sentinels, data, made):
    assert count_made([queues[1000 + fd] for fd in data], queues, {**queues, **sentinels}) == made
    refused = Missing("permission denied")
    assert count_made([refused], queues, {**queues, **sentinels}) == [refused]


def test_a_worker_that_may_not_be_read_says_why_and_keeps_its_place():
    refused = Missing("permission denied")
    found = map_queues(ends(3, 5, 8), [refused, ends(3, 5, 8)])
    assert read_fds([*found.data, found.index[1]]) == [3, 3, 8]
    assert found.index[0] == refused
    assert map_queues(ends(3, 5), [{}]).index == (Missing("the worker is dead"),)


def test_inodes_say_nothing_about_order():
    """Inode numbers come from a pool for each CPU, so a thread that moves gets them out of order."""
    data, first, second = PipeEnds(900, 3, 4), PipeEnds(100, 5, 6), PipeEnds(500, 8, 9)
    held = [{900: data, 100: first}, {900: data, 100: first, 500: second}]
    found = map_queues({pipe.inode: pipe for pipe in (second, first, data)}, held)
    assert (found.data, found.index) == ((data, data), (first, second))


def test_a_known_data_queue_stays_while_anybody_holds_it():
    """The reaped elder is no longer listed, so that the younger one alone would look like a first."""
    rank, younger = ends(3, 5, 8), [ends(3, 5, 8)]
    assert read_fds(map_queues(rank, younger).data) == [5]
    assert read_fds(map_queues(rank, younger, [1003]).data) == [3]
    assert read_fds(map_queues(ends(5, 8), [ends(5, 8)], [1003]).data) == [5], "closed: found anew"


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            f"--context fork --before {before} {more}"
            for before in ("nothing", "library", "queue")
            for more in ("", "--migrate", "--workers 1", "--loaders 2")
        ),
        "--context spawn --before queue --migrate",
        "--context spawn --loaders 2",
        "--context forkserver",
        "--context forkserver --loaders 2",
    ],
)
def test_real_workers_show_their_queues(arguments):
    with loader(*arguments.split()) as (process, truth):
        workers = [read_pipes(pid) for one in truth for pid in one["workers"]]
        found = map_queues(read_queue_pipes(process.pid), workers)
        assert read_fds(found.data) == [one["data"] for one in truth for _ in one["workers"]]
        assert read_fds(found.index) == [fd for one in truth for fd in one["index"]]


MESSAGE_BYTES = 4 + len(ForkingPickler.dumps(bytes(408)))
SECOND = 1_000_000_000


def tell(process: subprocess.Popen[str], line: str) -> str:
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def rank_of(process: subprocess.Popen[str], truth: list[dict[str, object]]) -> LoaderRank:
    workers = [pid for one in truth for pid in one["workers"]]
    return LoaderRank(0, process.pid, tuple(LoaderWorker(i, pid, 100 + i) for i, pid in enumerate(workers)), False)


def watch(process: subprocess.Popen[str], truth: list[dict[str, object]]) -> LoaderProbe:
    probe = LoaderProbe()
    probe.watch((rank_of(process, truth),), 0)
    return probe


def look(probe: LoaderProbe, seconds: float) -> LoaderSample:
    """Look at the queues of the only loader there is."""
    probe.look(round(seconds * SECOND))
    (sample,) = probe.latest()
    return sample


def find_data(process: subprocess.Popen[str], truth: list[dict[str, object]]) -> PipeEnds:
    return next(pipe for pipe in read_queue_pipes(process.pid).values() if pipe.read_fd == truth[0]["data"])


def test_depths_ages_and_pending_work_of_a_real_loader():
    with loader() as (process, truth):
        probe = watch(process, truth)
        (sample,) = probe.latest()
        assert sample.ready_batches == Missing("not read yet")
        sample = look(probe, 1)
        assert sample.ready_bytes == 0
        assert sample.ready_batches == 0.0, "also before a batch was seen: a starved loader shows none"
        assert (sample.empty_ratio, sample.looks) == (1.0, 1)
        assert [queue.pending_bytes for queue in sample.queues] == [0, 0]
        assert [(queue.worker, queue.pid) for queue in sample.queues] == list(enumerate(truth[0]["workers"]))

        data = find_data(process, truth)
        tell(process, "send 4")
        assert wait_until(lambda: read_pending(process.pid, data) == 4 * MESSAGE_BYTES)
        sample = look(probe, 2)
        assert sample.ready_batches == 4.0, "a queue that is always full still tells its depth"
        assert sample.empty_ratio == 0.5

        assert tell(process, "take 3") == "3"
        sample = look(probe, 3)
        assert sample.ready_batches == 1.0
        assert tell(process, "take 1") == "1"
        sample = look(probe, 4)
        assert (sample.ready_batches, sample.ready_bytes, sample.empty_ratio) == (0.0, 0, 0.5)

        tell(process, "stop 1")
        tell(process, "send 6")
        assert wait_until(lambda: read_pending(process.pid, data) == 3 * MESSAGE_BYTES)
        sample = look(probe, 5)
        assert sample.queues[0].pending_bytes == 0
        assert sample.queues[1].pending_bytes > 0
        probe.look(5 * SECOND + SAMPLE_SPAN_NS)
        assert probe.latest()[0].looks == 2, "older looks are forgotten"


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_two_loaders_of_one_rank_have_a_sample_each(context):
    """As in a training that validates with workers while those of the training set persist."""
    with loader("--loaders", "2", "--context", context) as (process, truth):
        rank, probe = rank_of(process, truth), LoaderProbe()
        train = LoaderRank(0, rank.pid, rank.workers[:2], pin_thread=False)
        probe.watch((train,), 0)
        probe.look(SECOND)
        tell(process, "send 3")
        data = find_data(process, truth)
        assert wait_until(lambda: read_pending(process.pid, data) == 3 * MESSAGE_BYTES)
        probe.watch((rank,), SECOND)
        (first,) = probe.latest()
        assert (first.workers, first.loader) == (2, 0), "whose the new ones are is told by the next look"
        probe.look(2 * SECOND)
        first, second = probe.latest()
        assert (first.loader, first.ready_batches, first.looks, first.empty_ratio) == (0, 3.0, 2, 0.5)
        assert (second.loader, second.ready_batches, second.looks, second.empty_ratio) == (1, 0.0, 1, 1.0)
        assert [[queue.pid for queue in one.queues] for one in (first, second)] == [one["workers"] for one in truth]
        assert all(is_known(queue.pending_bytes) for one in (first, second) for queue in one.queues)
        validation = LoaderRank(0, rank.pid, rank.workers[2:], pin_thread=False)
        probe.watch((validation,), 3 * SECOND)
        (sample,) = probe.latest()
        assert (sample.ready_batches, sample.workers) == (0.0, 2), "the other one's figures left with it"
        sample = look(probe, 3)
        assert (sample.ready_batches, sample.looks) == (0.0, 2)


def test_a_dead_worker_keeps_its_place_and_the_data_queue_is_still_seen():
    with loader("--workers", "3") as (process, truth):
        rank, probe = rank_of(process, truth), watch(process, truth)
        probe.look(SECOND)
        tell(process, "reap 0")
        tell(process, "send 3")
        sample = look(probe, 12)
        assert is_known(sample.ready_bytes)
        sample = look(watch(process, truth), 1)
        assert is_known(sample.ready_bytes), "attached after the death"
        assert sample.made == 3
        assert [is_known(queue.pending_bytes) for queue in sample.queues] == [False, True, True]
        assert [queue.worker for queue in sample.queues] == [0, 1, 2]
        without = LoaderRank(0, rank.pid, rank.workers[1:], pin_thread=False)
        probe.watch((without,), 13 * SECOND)
        tell(process, "send 1")
        sample = look(probe, 13)
        assert wait_until(lambda: probe.look(13 * SECOND) is None and probe.latest()[0].ready_bytes > 0)
        assert (sample.workers, sample.made) == (2, 3)


def test_a_torn_message_is_not_the_size_of_a_batch_and_a_descriptor_that_became_another_file_is_not_opened():
    """Its size would pass for bytes in a queue, and a device would be opened."""
    with loader() as (process, truth):
        probe = watch(process, truth)
        tell(process, "send 2")
        assert wait_until(lambda: probe.look(SECOND) is None and probe.latest()[0].ready_batches == 2.0)
        data = f"/proc/{process.pid}/fd/{truth[0]['data']}"
        with open(data, "rb", buffering=0) as pipe:
            pipe.read(4)  # as a reader between the two reads of one message
        assert look(probe, 2).ready_batches == pytest.approx(2.0, abs=0.01)
        tell(process, "replace 0")
        sample = look(probe, 3)
        assert sample.ready_bytes == Missing("pipe: closed since it was found")
        assert sample.ready_batches == sample.ready_bytes


def test_looking_takes_nothing_from_the_job():
    """Every message arrives, though the pipe is looked into all the time."""
    with loader() as (process, truth):
        probe = watch(process, truth)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(40):
            tell(process, "send 10")
            process.stdin.write("take 10\n")
            process.stdin.flush()
            for _ in range(20):
                probe.look(time.monotonic_ns())
            assert process.stdout.readline().strip() == "10"
        assert is_known(probe.latest()[0].ready_bytes)
        assert len(os.listdir("/proc/self/fd")) == before


def test_looking_does_not_hide_the_end_of_a_pipe_from_its_writer():
    code = """
r, w = os.pipe()
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
say(f"{r} {w}"); hear(); os.close(r)
try:
    os.write(w, b"x")
    say("written")
except BrokenPipeError:
    say("EPIPE")
"""
    with child(code) as one:
        pipe = next(iter(pipe for pipe in read_pipes(one.pid).values() if pipe.read_fd > 2))
        for _ in range(100):
            assert read_pending(one.pid, pipe) == 0
            assert read_message_bytes(one.pid, pipe) == Missing("the pipe is empty")
        one.say("go")
        assert one.hear() == "EPIPE"


def test_the_first_message_tells_its_size_and_stays():
    reader, writer = os.pipe()
    try:
        pipe = read_pipes(os.getpid())[os.fstat(reader).st_ino]
        assert (pipe.read_fd, pipe.write_fd) == (reader, writer)
        os.write(writer, struct.pack("!i", 300) + bytes(300))
        os.write(writer, struct.pack("!i", 9) + bytes(9))
        for _ in range(3):
            assert read_message_bytes(os.getpid(), pipe) == 304
        assert read_pending(os.getpid(), pipe) == 317
        assert os.read(reader, 500) == struct.pack("!i", 300) + bytes(300) + struct.pack("!i", 9) + bytes(9)
        os.write(writer, b"ab")
        assert read_message_bytes(os.getpid(), pipe) == Missing("the pipe is empty")
    finally:
        os.close(reader)
        os.close(writer)


def test_births_count_new_workers_of_the_last_minute_only():
    def rank(*pids):
        return LoaderRank(0, 50, tuple(LoaderWorker(i, pid, pid) for i, pid in enumerate(pids)), False)

    def births(probe):
        return probe.latest()[0].births

    probe = LoaderProbe()
    probe.watch((rank(1, 2),), SECOND)
    assert births(probe) == 0, "those that were there before are not born"
    probe.watch((rank(1, 2),), 2 * SECOND)
    assert births(probe) == 0
    probe.watch((rank(),), 3 * SECOND)
    assert probe.latest() == ()
    probe.watch((rank(3, 4),), 4 * SECOND)
    assert births(probe) == 2
    probe.watch((rank(3, 5),), 10 * SECOND)
    assert births(probe) == 3
    reused = LoaderRank(0, 50, (LoaderWorker(0, 3, 999), LoaderWorker(1, 5, 5)), False)
    probe.watch((reused,), 11 * SECOND)
    assert births(probe) == 4, "the same PID with another start time"
    probe.watch((reused,), 4 * SECOND + BIRTH_SPAN_NS + 1)
    assert births(probe) == 2


def test_a_rank_without_workers_or_without_access_says_so():
    probe = LoaderProbe()
    probe.watch((LoaderRank(0, os.getpid(), (), False),), 0)
    probe.look(SECOND)
    assert probe.latest() == ()
    gone = LoaderRank(0, 1 << 22, (LoaderWorker(0, (1 << 22) + 1, 5),), False)
    probe.watch((gone,), 0)
    sample = look(probe, 1)
    assert sample.ready_bytes == Missing("no such file or directory")
    assert sample.queues[0].pending_bytes == sample.ready_bytes
    assert sample.empty_ratio == Missing("not read yet")


def test_the_thread_looks_by_itself_and_ends():
    with loader() as (process, truth):
        probe = watch(process, truth)
        probe.start()
        assert wait_until(lambda: is_known(probe.latest()[0].ready_bytes))
        probe.stop()
        assert wait_until(lambda: all(t.name != "tpmon-loader" for t in threading.enumerate()))


def test_flags_of_fdinfo_are_octal():
    raw = b"pos:\t0\nflags:\t02004001\nmnt_id:\t15\nino:\t34999\n"
    assert parse_flags(raw) == os.O_CLOEXEC | os.O_NONBLOCK | os.O_WRONLY
    assert parse_flags(b"pos:\t0\n") == 0


def test_many_work_queues_have_turns_and_the_data_queues_have_none(monkeypatch):
    """128 workers at two looks a second would cost 4 ms of CPU; none is left out for long."""
    looked: list[int] = []
    monkeypatch.setattr(loader_module, "read_pending", lambda pid, pipe: looked.append(pipe.read_fd) or pipe.read_fd)
    workers = tuple(LoaderWorker(number, 100 + number, 1) for number in range(60))
    pipes = {1000 + fd: PipeEnds(1000 + fd, fd, fd + 1) for fd in range(3, 3 + 2 * 61, 2)}
    order = sorted(pipes.values(), key=lambda pipe: pipe.read_fd)
    monkeypatch.setattr(loader_module, "read_queue_pipes", lambda pid: pipes)
    monkeypatch.setattr(loader_module, "read_pipes", lambda pid: {one.inode: one for one in order[: pid - 100 + 2]})
    monkeypatch.setattr(loader_module, "read_message_bytes", lambda pid, pipe: 3)
    probe = LoaderProbe()
    probe.watch((LoaderRank(0, 99, workers, False),), SECOND)
    probe.look(SECOND)
    assert sorted(looked) == [pipe.read_fd for pipe in order], "the first look sees all"
    turns = []
    for place in range(3):
        looked.clear()
        probe.look(SECOND * (place + 2))
        assert looked.count(3) == 1, "the data queue"
        turns.append({fd for fd in looked if fd != 3})
    assert [len(turn) for turn in turns] == [20, 20, 20]
    assert set().union(*turns) == {pipe.read_fd for pipe in order[1:]}
    (sample,) = probe.latest()
    assert [queue.pending_bytes for queue in sample.queues] == [pipe.read_fd for pipe in order[1:]]
