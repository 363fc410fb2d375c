"""Hold what folding 512 ranks costs, as CPU time at the promise itself, on a machine as fast as that of the promise."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.budget.measure import measure_import, slowness
from tests.dumps import make_native, make_rank, make_round, make_thread, make_worker
from tests.stacks import ALL_REDUCE, IN_LOCK, MAIN
from tpmon.judge.folds.groups import DumpOrigin, fold_dumps, fold_rounds
from tpmon.judge.folds.hot import build_tree
from tpmon.model.codec import decode, encode
from tpmon.model.dump import Dump, DumpRound, ProcessLook
from tpmon.model.known import is_known
from tpmon.model.process import ThreadKind
from tpmon.model.stacks import StackFrame

pytestmark = pytest.mark.budget

RANKS = 512
CULPRIT = 300
FOLD_CPU_S = 0.150
LOOKS_CPU_S = 0.300
"""Three looks at them and at two workers each: 12,000 looks at threads."""
HOSTS_CPU_S = 0.150
ORIGIN = DumpOrigin(1, "train.py", RANKS)


def make_deep(rank: int) -> tuple[StackFrame, ...]:
    """Build a stack as it is read: frames that were met before, in a tuple of its own."""
    end = IN_LOCK if rank == CULPRIT else ALL_REDUCE
    return (*_DEEP, *end)


_DEEP = tuple(StackFrame(f"call_{n}", f"/run/deep_{n}.py", n) for n in range(30))


def make_full_rank(rank: int) -> ProcessLook:
    """Build a rank with three more Python threads and two native ones."""
    others = [
        make_thread(90_000 + 10 * rank + n, name=f"Thread-{n}", kind=ThreadKind.OTHER, frames=(MAIN, *list(_DEEP)))
        for n in range(3)
    ]
    native = [make_native(900_000 + 10 * rank + n, name) for n, name in enumerate(("pt_nccl_watchdg", "pt_gloo"))]
    return make_rank(rank, *others, *native, frames=make_deep(rank))


@pytest.fixture(scope="module")
def ranks() -> list[ProcessLook]:
    return [make_full_rank(rank) for rank in range(RANKS)]


def cheapest(work: Callable[[], object]) -> float:
    """Return the CPU seconds of the cheapest of five runs: what else runs only adds to it.

    Each is held against an import beside it, as ``slowness`` says.
    """
    took = []
    for _ in range(5):
        slower = slowness([measure_import()])
        began = time.process_time()
        work()
        took.append((time.process_time() - began) / slower)
    return min(took)


def is_found(dump: Dump) -> bool:
    return is_known(dump.odd_one_out) and dump.odd_one_out.rank == CULPRIT


def test_one_look_at_512_ranks_folds_within_the_budget(ranks):
    one = make_round(*ranks)
    assert is_found(fold_rounds([one], ORIGIN))
    assert cheapest(lambda: fold_rounds([one], ORIGIN)) <= FOLD_CPU_S


def test_three_looks_with_workers_fold_within_the_budget(ranks):
    workers = [make_worker(rank, number) for rank in range(RANKS) for number in range(2)]
    looks: list[DumpRound] = [make_round(*ranks, *workers, at_s=5.0 * number) for number in range(3)]
    dump = fold_rounds(looks, ORIGIN)
    assert is_found(dump)
    assert cheapest(lambda: fold_rounds(looks, ORIGIN)) <= LOOKS_CPU_S
    assert cheapest(lambda: build_tree(dump.groups)) <= 0.010


def test_the_dumps_of_64_hosts_fold_within_the_budget(ranks):
    hosts = [
        fold_rounds([make_round(*ranks[8 * host : 8 * host + 8], host=f"node-{host}")], ORIGIN) for host in range(64)
    ]
    read = [decode(Dump, encode(one)) for one in hosts]
    assert is_found(fold_dumps(read))
    assert cheapest(lambda: fold_dumps(read)) <= HOSTS_CPU_S
