"""Ranks that seem to wait for others: the engine's thread works, a file does not come, an object is packed."""

from dataclasses import replace

import pytest

from tests.dumps import (
    BACKWARD,
    DECODE,
    MAIN,
    NFS,
    RUNNING,
    SITE,
    TRAIN,
    fold,
    make_native,
    make_rank,
    make_thread,
    odd_pid,
)
from tests.hanging import conclude, expect, stand
from tpmon.model.process import ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Kind

TORCH = f"{SITE}/torch/distributed"
DEEPSPEED = f"{SITE}/deepspeed/runtime"
READS = {"state": "D", "waits_for": "NFS", "waits_on": NFS, "call": "read"}
USERS = (StackFrame("Fn.backward", "/run/ops.py", 33), StackFrame("load_table", "/run/ops.py", 77))
REDUCES = (
    StackFrame("_post_backward_hook", f"{SITE}/torch/distributed/fsdp/_runtime_utils.py", 700),
    StackFrame("_reduce_grad", f"{SITE}/torch/distributed/fsdp/_runtime_utils.py", 850),
)
FETCH = (
    MAIN,
    TRAIN,
    StackFrame("forward", f"{DEEPSPEED}/engine.py", 1900),
    StackFrame("fetch_sub_module", f"{DEEPSPEED}/zero/partitioned_param_coordinator.py", 300),
)
SWAP = (*FETCH, StackFrame("swap_in", f"{DEEPSPEED}/swap_tensor/partitioned_param_swapper.py", 290))
GATHER = (*FETCH, StackFrame("wait", f"{DEEPSPEED}/zero/partition_parameters.py", 90))
OBJECTS = (MAIN, TRAIN, StackFrame("broadcast_object_list", f"{TORCH}/distributed_c10d.py", 3000))
PACKS = (*OBJECTS, StackFrame("_object_to_tensor", f"{TORCH}/distributed_c10d.py", 2700))
MEETS = (
    MAIN,
    StackFrame("init_process_group", f"{TORCH}/distributed_c10d.py", 1700),
    StackFrame("_file_rendezvous_handler", f"{TORCH}/rendezvous.py", 130),
)


def lowers(line):
    """Build the stack of a backward pass that is compiled when it is first run."""
    return (
        StackFrame("_backward_impl", f"{SITE}/torch/_functorch/_aot_autograd/runtime_wrappers.py", 3450),
        StackFrame("compile_fx_inner", f"{SITE}/torch/_inductor/compile_fx.py", 700),
        StackFrame("codegen", f"{SITE}/torch/_inductor/graph.py", line),
    )


def engine(rank, frames, **fields):
    """Build a rank whose main thread waits in backward for the engine's thread, which is in ``frames``."""
    comm = make_native(9000 + rank, "pt_nccl_watchdg")
    fields = {"name": "pt_autograd_0", "kind": ThreadKind.AUTOGRAD, "frames": frames} | fields
    return make_rank(rank, comm, make_thread(9100 + rank, **fields), frames=BACKWARD)


def is_hung(frames):
    return conclude(frames).kind is Kind.HUNG


def test_ranks_whose_backward_is_compiled_in_the_engines_thread_do_not_hang():
    ranks = [engine(rank, lowers(10), **RUNNING) for rank in (0, 1)]
    moved = [engine(rank, lowers(999), **RUNNING) for rank in (0, 1)]
    assert not is_hung(stand(*ranks, world_size=2, seconds=120, log_age_s=None))
    assert not is_hung(stand(*ranks, world_size=2, seconds=400, log_age_s=None, moved=moved))


def test_a_rank_whose_engine_is_blocked_is_the_one_that_the_others_wait_for():
    job = [engine(0, ()), engine(1, USERS, **READS), engine(2, ()), engine(3, ())]
    finding = conclude(stand(*job, world_size=4, seconds=45, log_age_s=50.0))
    assert (finding.kind, finding.cause, finding.rank) == (Kind.HUNG, "missing-rank", 1)
    assert "rank 1 is in load_table ops.py:77, blocked in a read of /data/7.bin" in finding.summary
    dump = fold(*job)
    assert odd_pid(dump) == 4010
    # Every thread stays in the group of its own stack.
    assert sum(len(group.threads) for group in dump.groups) == 12
    assert any(one.tid == 4010 for group in dump.groups for one in group.threads)


def test_an_engine_that_waits_for_ranks_itself_is_no_culprit():
    job = [engine(rank, REDUCES if rank == 1 else ()) for rank in range(4)]
    expect(
        "no-progress",
        stand(*job, world_size=4, seconds=45, log_age_s=50.0),
        "all 4 ranks wait in a collective of backward",
    )


@pytest.mark.parametrize(
    ("waits", "culprit", "fields", "text"),
    [
        (GATHER, SWAP, {"state": "D", "waits_for": "disk", "call": "read"}, "fetch_sub_module"),
        (MEETS, MEETS, READS | {"call": "flock"}, "init_process_group"),
    ],
    ids=["parameters from a disk", "a store of files"],
)
def test_a_rank_that_reads_within_a_collective_is_not_with_the_others(waits, culprit, fields, text):
    job = [make_rank(rank, frames=waits) for rank in (0, 2, 3)]
    job.insert(1, make_rank(1, frames=culprit, **fields))
    finding = conclude(stand(*job, world_size=4, seconds=45, log_age_s=50.0))
    assert (finding.kind, finding.cause, finding.rank) == (Kind.HUNG, "missing-rank", 1)
    assert f"rank 1 is in {text}" in finding.summary
    assert odd_pid(fold(*job)) == 4010


def test_a_rank_that_packs_an_object_for_the_others_works():
    job = [make_rank(0, frames=PACKS, **RUNNING), *(make_rank(rank, frames=OBJECTS) for rank in (1, 2, 3))]
    assert not is_hung(stand(*job, world_size=4, seconds=120, log_age_s=125.0))


def test_a_wait_in_the_driver_of_a_card_stays_a_wait_for_ranks():
    device = replace(NFS, name="/dev/nvidia0", mount="/dev", file_system="devtmpfs")
    job = [make_rank(rank, waits_on=device, call="ioctl") for rank in (0, 1)]
    late = make_rank(2, frames=DECODE, **READS)
    finding = conclude(stand(*job, late, world_size=3, seconds=45, log_age_s=50.0))
    assert (finding.cause, finding.rank) == ("missing-rank", 2)
