"""Word what tpmon attached to."""

from __future__ import annotations

import pytest

from tests.frames import NOW, make_process, make_worker
from tpmon.model.frame import Event, EventKind
from tpmon.model.process import Role
from tpmon.probe.events import describe_attach

RANK = make_process()


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        ((RANK,), "1 rank, 0 loader workers"),
        ((RANK, make_worker()), "1 rank, 1 loader worker"),
        (
            (
                make_process(4200, role=Role.LAUNCHER),
                RANK,
                make_process(4212, rank=1),
                *(make_worker(4300 + i, i) for i in range(4)),
                make_process(4400, role=Role.HELPER),
            ),
            "2 ranks, 4 loader workers",
        ),
        ((), "0 ranks, 0 loader workers"),
    ],
)
def test_the_first_event_counts_ranks_and_workers(processes, words):
    assert describe_attach(4211, processes, NOW) == Event(
        NOW, EventKind.ATTACH, f"attached to pid 4211: {words}"
    )
