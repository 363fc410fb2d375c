"""Collectives of several ranks are matched as the same ones, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.traces import TraceBuilder
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.trace import RankTable
from tpmon.trace.analysis import analyze
from tpmon.trace.classes import is_transfer

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SAID = {"dtype": "Float", "In msg nelems": 10, "Out msg nelems": 10, "Process Group Name": "0"}


def write(trace: TraceBuilder, tmp_path: Path, rank: int) -> str:
    about = {"rank": rank, "world_size": 2, "backend": "nccl"}
    return trace.write(tmp_path / f"rank{rank}.json", {"distributedInfo": about})


def compare(paths: list[str]) -> RankTable:
    table = analyze(paths).ranks
    assert table is not NOT_APPLICABLE
    return table


def reduce_steps(first: int, more_us: float) -> TraceBuilder:
    """Write three steps with an all-reduce of 40 ms, ``more_us`` longer, and one of 1 ms."""
    trace = TraceBuilder()
    for number in range(first, first + 3):
        at = 2000 + number * 100_000
        trace.step(number, at, 100_000)
        for off, length in ((100, 40_000 + more_us), (60_000, 1000)):
            said = {"Collective name": "allreduce", **SAID}
            trace.kernel(at + off, length, launch=at + off - 50, name=ALL_REDUCE, **said)
    return trace


@pytest.mark.parametrize("leftover", [None, "without its call", "with its call"])
def test_what_is_left_over_from_before_shifts_no_collective(leftover: str | None, tmp_path: Path) -> None:
    late = reduce_steps(0, 5000)
    if leftover:
        said = {"Collective name": "allreduce", **SAID}
        late.kernel(0, 1000, launch=-50 if leftover == "with its call" else None, name=ALL_REDUCE, **said)
    table = compare([write(reduce_steps(0, 0), tmp_path, 0), write(late, tmp_path, 1)])
    assert (table.straggler, table.matched, table.collectives) == (0, 6, 7 if leftover else 6)
    assert [(row.wait_ms, row.transfer_ms) for row in table.ranks] == [(0, 123), (15, 123)]


def test_ranks_that_record_other_steps_share_those_of_one_name(tmp_path: Path) -> None:
    table = compare([write(reduce_steps(0, 0), tmp_path, 0), write(reduce_steps(1, 5000), tmp_path, 1)])
    assert (table.matched, table.straggler) == (4, 0)
    assert [row.wait_ms for row in table.ranks] == [0, 10]


def test_a_step_with_more_collectives_on_one_rank_is_not_matched(tmp_path: Path) -> None:
    more = reduce_steps(0, 0)
    at = 2000 + 200_000
    more.kernel(at + 50, 20, launch=at + 10, name=ALL_REDUCE, **{"Collective name": "allreduce", **SAID})
    table = compare([write(more, tmp_path, 0), write(reduce_steps(0, 5000), tmp_path, 1)])
    assert (table.matched, table.collectives) == (4, 7)
    assert [row.wait_ms for row in table.ranks] == [0, 10]


def test_device_work_alone_is_matched_by_order(tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        trace = TraceBuilder()
        for number in range(3):
            trace.kernel(number * 9000, 1000 + 3000 * rank, name=ALL_REDUCE)
        paths.append(write(trace, tmp_path, rank))
    table = compare(paths)
    assert (table.matched, table.straggler) == (3, 0)


@pytest.mark.parametrize("told_by", ["the kernel", "the annotation"])
def test_sends_and_receives_of_a_pipeline_are_no_collectives(told_by: str, tmp_path: Path) -> None:
    paths = []
    moves = (
        (("send", 10_000, 1000), ("recv", 20_000, 60_000)),
        (("recv", 10, 11_000), ("send", 79_000, 1000)),
    )
    for rank, own in enumerate(moves):
        trace = TraceBuilder()
        for number in range(3):
            at = number * 100_000
            trace.step(number, at, 100_000)
            for name, off, length in own:
                said = {"Collective name": name, **SAID} if told_by == "the kernel" else {}
                trace.add("user_annotation", f"nccl:{name}", at + off - 8, 6)
                trace.kernel(at + off, length, launch=at + off - 5, name="ncclDevKernel_SendRecv(x)", **said)
        paths.append(write(trace, tmp_path, rank))
    table = compare(paths)
    assert (table.matched, table.straggler) == (0, NOT_APPLICABLE)
    assert all(isinstance(row.wait_ms, Missing) for row in table.ranks)
    assert "12 sends and receives left out" in table.summary


def test_gloo_beside_cards_is_matched_as_on_the_host(tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        trace = TraceBuilder()
        for number in range(3):
            at = number * 100_000
            trace.step(number, at, 100_000).kernel(at + 100, 9000, launch=at + 50)
            trace.add("user_annotation", "gloo:all_reduce", at + 9500, 40_000 + 5000 * rank, tid=77)
        paths.append(write(trace, tmp_path, rank))
    table = compare(paths)
    assert (table.matched, table.straggler) == (3, 0)
    assert [(row.wait_ms, row.comm_ms) for row in table.ranks] == [(0, 40), (15, 45)]


@pytest.mark.parametrize(
    ("name", "transfer"),
    [
        ("send", True),
        ("recv", True),
        ("nccl:recvAnySource", True),
        ("nccl:send 0->1", True),
        ("gloo:send", True),
        ("pointToPoint", True),
        ("nccl:coalesced", True),
        ("nccl:all_to_all", False),
        ("allreduce_coalesced", False),
        ("ncclDevKernel_SendRecv", False),
    ],
)
def test_names_of_transfers(name: str, transfer: bool) -> None:
    assert is_transfer(name) is transfer


@pytest.mark.parametrize(
    ("file", "said", "rank"),
    [
        ("t.json", {"Collective name": "allreduce"}, 2),
        ("t.json", {"Collective name": "_reduce_scatter_base"}, 2),
        ("t.json", {"Collective name": "broadcast"}, None),
        ("t.json", {"Collective name": "_reduce_oop"}, None),
        ("t.json", {"Collective name": "send"}, None),
        ("t.json", {"Collective name": "allreduce", "Process Group Name": "3"}, None),
        ("t.json", {}, None),
        ("worker1.json", {"Collective name": "allreduce"}, 1),
    ],
)
def test_a_call_tells_the_rank_where_it_names_no_other(
    file: str, said: dict[str, str], rank: int | None, tmp_path: Path
) -> None:
    args = {"Rank": 2, "Process Group Name": "0", **said}
    found = analyze([TraceBuilder().op("record_param_comms", 0, 5, **args).write(tmp_path / file)]).files[0]
    assert (found.rank if is_known(found.rank) else None) == rank
