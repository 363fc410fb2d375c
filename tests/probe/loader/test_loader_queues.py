"""Which pipes of a DataLoader are its queues, told by who held them first."""

import subprocess

import pytest

from tests.loaders import loader
from tpmon.model.known import Missing, is_known
from tpmon.probe.loader.queues import PipeEnds, map_queues, read_pipes, read_queue_pipes


def ends(*fds: int) -> dict[int, PipeEnds]:
    """Name pipes by their read descriptor: inode 1000 + fd."""
    return {1000 + fd: PipeEnds(1000 + fd, fd, fd + 1) for fd in fds}


def read_fds(pipes) -> list[object]:
    return [pipe.read_fd if is_known(pipe) else "missing" for pipe in pipes]


# The worker lists say what the kernel shows: a forked worker holds all that is older than itself.
MAPS = {
    "fork": (ends(3, 5, 8), [ends(3, 5), ends(3, 5, 8)], 3, [5, 8]),
    "spawn": (ends(3, 5, 8), [ends(3, 5), ends(3, 8)], 3, [5, 8]),
    "fork, one worker": (ends(3, 5), [ends(3, 5)], 3, [5]),
    "fork, older queues of the program": (
        ends(3, 5, 15, 17, 20),
        [ends(3, 5, 15, 17), ends(3, 5, 15, 17, 20)],
        15,
        [17, 20],
    ),
    "fork, three workers": (ends(3, 5, 8, 12), [ends(3, 5), ends(3, 5, 8), ends(3, 5, 8, 12)], 3, [5, 8, 12]),
    "fork, two loaders": (
        ends(3, 5, 8, 13, 15, 18),
        [ends(3, 5), ends(3, 5, 8), ends(3, 5, 8, 13, 15), ends(3, 5, 8, 13, 15, 18)],
        [3, 3, 13, 13],
        [5, 8, 15, 18],
    ),
    "spawn, two loaders": (
        ends(3, 5, 8, 13, 15, 18),
        [ends(3, 5), ends(3, 8), ends(13, 15), ends(13, 18)],
        [3, 3, 13, 13],
        [5, 8, 15, 18],
    ),
    "fork, two loaders, the last worker of the first dead": (
        ends(3, 5, 8, 13, 15, 18),
        [ends(3, 5), {}, ends(3, 5, 8, 13, 15), ends(3, 5, 8, 13, 15, 18)],
        [3, 3, "missing", "missing"],
        [5, "missing", "missing", "missing"],
    ),
    "spawn, two loaders, the first worker of the second dead": (
        ends(3, 5, 8, 13, 15, 18),
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


def map_of(process: subprocess.Popen[str], truth: list[dict[str, object]]):
    workers = [read_pipes(pid) for one in truth for pid in one["workers"]]
    return map_queues(read_queue_pipes(process.pid), workers)


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
        found = map_of(process, truth)
        assert read_fds(found.data) == [one["data"] for one in truth for _ in one["workers"]]
        assert read_fds(found.index) == [fd for one in truth for fd in one["index"]]
