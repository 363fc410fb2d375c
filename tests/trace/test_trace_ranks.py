"""Collectives of several ranks are matched as the same ones, or not at all."""

from pathlib import Path

import pytest

from tests.traces import BASE_US, TraceBuilder
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.trace import RankTable
from tpmon.trace.analysis import analyze
from tpmon.trace.reading.schema import is_transfer

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SAID = {"dtype": "Float", "In msg nelems": 10, "Out msg nelems": 10, "Process Group Name": "0"}


def write(trace: TraceBuilder, tmp_path: Path, rank: int, world: int = 2) -> str:
    about = {"rank": rank, "world_size": world, "backend": "nccl"}
    return trace.write(tmp_path / f"rank{rank}.json", {"distributedInfo": about})


def match(tmp_path: Path, *traces: TraceBuilder) -> RankTable:
    return compare([write(trace, tmp_path, rank) for rank, trace in enumerate(traces)])


def compare(paths: list[str]) -> RankTable:
    return analyze(paths).ranks


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
def test_what_is_left_over_from_before_shifts_no_collective(leftover, tmp_path):
    late = reduce_steps(0, 5000)
    if leftover:
        said = {"Collective name": "allreduce", **SAID}
        late.kernel(0, 1000, launch=-50 if leftover == "with its call" else None, name=ALL_REDUCE, **said)
    table = match(tmp_path, reduce_steps(0, 0), late)
    assert (table.straggler, table.matched, table.collectives) == (0, 6, 7 if leftover else 6)
    assert [(row.wait_ms, row.transfer_ms) for row in table.ranks] == [(0, 123), (15, 123)]


def test_steps_of_one_name_are_matched_but_not_with_more_collectives_on_one_rank(tmp_path):
    table = match(tmp_path, reduce_steps(0, 0), reduce_steps(1, 5000))
    assert (table.matched, table.straggler) == (4, 0)
    assert [row.wait_ms for row in table.ranks] == [0, 10]
    more = reduce_steps(0, 0)
    more.kernel(202_050, 20, launch=202_010, name=ALL_REDUCE, **{"Collective name": "allreduce", **SAID})
    table = match(tmp_path, more, reduce_steps(0, 5000))
    assert (table.matched, table.collectives) == (4, 7)
    assert [row.wait_ms for row in table.ranks] == [0, 10]


def test_device_work_alone_is_matched_by_order_and_gloo_beside_cards_as_on_the_host(tmp_path):
    alone, gloo = ([TraceBuilder() for _rank in range(2)] for _kind in range(2))
    for number in range(3):
        for rank in range(2):
            alone[rank].kernel(number * 9000, 1000 + 3000 * rank, name=ALL_REDUCE)
            at = number * 100_000
            gloo[rank].step(number, at, 100_000).kernel(at + 100, 9000, launch=at + 50)
            gloo[rank].add("user_annotation", "gloo:all_reduce", at + 9500, 40_000 + 5000 * rank, tid=77)
    table = match(tmp_path, *alone)
    assert (table.matched, table.straggler) == (3, 0)
    table = match(tmp_path, *gloo)
    assert (table.matched, table.straggler) == (3, 0)
    assert [(row.wait_ms, row.comm_ms) for row in table.ranks] == [(0, 40), (15, 45)]


@pytest.mark.parametrize("told_by", ["the kernel", "the annotation"])
def test_sends_and_receives_of_a_pipeline_are_no_collectives(told_by, tmp_path):
    traces = (TraceBuilder(), TraceBuilder())
    moves = ((("send", 10_000, 1000), ("recv", 20_000, 60_000)), (("recv", 10, 11_000), ("send", 79_000, 1000)))
    for trace, own in zip(traces, moves, strict=True):
        for at in range(0, 300_000, 100_000):
            trace.step(at // 100_000, at, 100_000)
            for name, off, length in own:
                said = {"Collective name": name, **SAID} if told_by == "the kernel" else {}
                trace.add("user_annotation", f"nccl:{name}", at + off - 8, 6)
                trace.kernel(at + off, length, launch=at + off - 5, name="ncclDevKernel_SendRecv(x)", **said)
    table = match(tmp_path, *traces)
    assert (table.matched, table.straggler) == (0, NOT_APPLICABLE)
    assert all(isinstance(row.wait_ms, Missing) for row in table.ranks)
    assert "12 sends and receives left out" in table.summary


def test_names_of_transfers():
    moves = ("send", "recv", "nccl:recvAnySource", "nccl:send 0->1", "gloo:send", "pointToPoint", "nccl:coalesced")
    others = ("nccl:all_to_all", "allreduce_coalesced", "ncclDevKernel_SendRecv")
    assert [name for name in (*moves, *others) if is_transfer(name)] == [*moves]


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
        ("rank1.json", {"Collective name": "allreduce"}, 1),
        ("job-worker-1_77.json", {"Collective name": "allreduce"}, 2),
        ("worker1.json", {"Collective name": "broadcast"}, 1),
    ],
)
def test_a_call_tells_the_rank_where_it_names_no_other(file, said, rank, tmp_path):
    args = {"Rank": 2, "Process Group Name": "0", **said}
    found = analyze([TraceBuilder().op("record_param_comms", 0, 5, **args).write(tmp_path / file)]).files[0]
    assert (found.rank if is_known(found.rank) else None) == rank


def talk(
    groups: dict[str, tuple[int, ...]],
    slow: int,
    ranks: int,
    tmp_path: Path,
    *,
    skew_us: float = 0,
    unnamed: dict[str, object] | None = None,
) -> list[str]:
    """Write ranks of which ``slow`` computes 5 ms longer, then reduce in each of their groups in turn.

    Kernels of a group with an empty name say no more than ``unnamed``; each clock is ``skew_us`` further on.
    """
    at, traces = 0.0, [TraceBuilder(BASE_US + skew_us * rank) for rank in range(ranks)]
    for number in range(3):
        free = [at + 100 + 5000 * (rank == slow) for rank in range(ranks)]
        for trace in traces:
            trace.step(number, at, 30_000).kernel(at + 10, 80, launch=at + 1)
        for name, members in groups.items():
            end = max(free[rank] for rank in members) + 1000
            for rank in members:
                said: dict[str, object] = {"stream": 20, **(unnamed or {})}
                if name.strip():
                    said |= {**SAID, "Collective name": "allreduce"}
                    said |= {"Process Group Name": name, "Group size": len(members)}
                traces[rank].kernel(free[rank], end - free[rank], launch=at + 5, name=ALL_REDUCE, **said)
                free[rank] = end
        at += 30_000
    return [write(trace, tmp_path, rank, ranks) for rank, trace in enumerate(traces)]


@pytest.mark.parametrize("slow", [0, 1, 2, 3])
@pytest.mark.parametrize("across", [False, True])
def test_groups_of_some_ranks_name_the_one_that_is_late(slow, across, tmp_path):
    """Two tensor-parallel groups, and data-parallel ones across, in which who waited before is late."""
    groups: dict[str, tuple[int, ...]] = {"1": (0, 1), "2": (2, 3)}
    groups |= {"3": (0, 2), "4": (1, 3)} if across else {}
    table = compare(talk(groups, slow, 4, tmp_path))
    assert (table.straggler, table.matched) == (slow, 3 * len(groups))
    assert "waits least of a group" in table.summary
    assert table.ranks[slow].wait_ms == 0


def test_a_group_is_matched_with_all_its_traces_or_all_that_are_given_and_one_without_collectives_left_out(tmp_path):
    paths = talk({"0": (0, 1, 2, 3)}, 2, 4, tmp_path)
    assert compare(paths[1:]).matched == 3
    pairs = talk({"1": (0, 1), "2": (2, 3)}, 3, 4, tmp_path)
    table = compare([pairs[0], *pairs[2:]])
    assert (table.matched, table.collectives, table.straggler) == (3, 6, 3)
    assert isinstance(table.ranks[0].wait_ms, Missing)
    front = TraceBuilder().op("aten::mm", 0, 500).write(tmp_path / "front.json")
    table = compare([*talk({"0": (0, 1)}, 1, 2, tmp_path), front])
    assert (table.straggler, table.matched) == (1, 3)
    assert table.summary.endswith("; 1 without any collective left out")
    assert isinstance(table.ranks[-1].wait_ms, Missing)


def test_collectives_of_no_named_group_accuse_no_rank_of_another_group(tmp_path):
    one = compare(talk({"": (0, 1, 2, 3)}, 2, 4, tmp_path))
    assert (one.straggler, one.matched) == (2, 3)
    told: dict[str, object] = {**SAID, "Collective name": "allreduce", "Group size": 4}
    sized = compare(talk({"": (0, 1, 2, 3)}, 2, 4, tmp_path, skew_us=1000, unnamed=told))
    assert (sized.straggler, sized.matched) == (2, 3)
    two = compare(talk({"": (0, 1), " ": (2, 3)}, 1, 4, tmp_path))
    assert (two.straggler, two.matched) == (NOT_APPLICABLE, 0)
    assert "3 left out: their group is not known" in two.summary
    assert two.ranks[0].wait_ms == Missing("the group of its collectives is not known")


def test_windows_of_other_steps_are_matched_apart(tmp_path):
    paths = []
    for first in (0, 5):
        folder = tmp_path / str(first)
        folder.mkdir()
        paths += [write(reduce_steps(first, 5000 * rank), folder, rank) for rank in range(2)]
    table = compare(paths)
    assert (table.straggler, table.matched, table.collectives) == (0, 12, 12)
    assert [row.wait_ms for row in table.ranks] == [0, 0, 15, 15]
    again = compare([*paths, write(reduce_steps(0, 0), tmp_path, 1)])
    assert (again.straggler, again.matched) == (NOT_APPLICABLE, 0)
    assert again.summary == "5 traces, several traces of one rank: they are of different times"
    absurd = [write(reduce_steps(0, 0), tmp_path, rank, 10**12) for rank in range(2)]
    assert compare(absurd).missing == (), "a size that cannot be names no ranks"
