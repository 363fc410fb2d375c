"""Ranks that seem to wait for others: the engine's thread works, a file does not come, an object is packed."""

from dataclasses import replace

import pytest

from tests.dumps import (
    BACKWARD,
    DECODE,
    MAIN,
    NFS,
    READS,
    RUNNING,
    SITE,
    TRAIN,
    fold,
    make_native,
    make_rank,
    make_thread,
    odd_pid,
    stack_of,
)
from tests.hanging import job
from tpmon.model.process import ThreadKind
from tpmon.model.stacks import StackFrame

TORCH = f"{SITE}/torch/distributed"
DEEPSPEED = f"{SITE}/deepspeed/runtime"
USERS = (StackFrame("Fn.backward", "/run/ops.py", 33), StackFrame("load_table", "/run/ops.py", 77))
REDUCES = stack_of(
    "_post_backward_hook torch/distributed/fsdp/_runtime_utils.py:700"
    " > _reduce_grad torch/distributed/fsdp/_runtime_utils.py:850"
)
FETCH = stack_of(
    "main > train > forward deepspeed/runtime/engine.py:1900"
    " > fetch_sub_module deepspeed/runtime/zero/partitioned_param_coordinator.py:300"
)
SWAP = (*FETCH, StackFrame("swap_in", f"{DEEPSPEED}/swap_tensor/partitioned_param_swapper.py", 290))
GATHER = (*FETCH, StackFrame("wait", f"{DEEPSPEED}/zero/partition_parameters.py", 90))
OBJECTS = (MAIN, TRAIN, StackFrame("broadcast_object_list", f"{TORCH}/distributed_c10d.py", 3000))
PACKS = (*OBJECTS, StackFrame("_object_to_tensor", f"{TORCH}/distributed_c10d.py", 2700))
MEETS = stack_of(
    "main > init_process_group torch/distributed/distributed_c10d.py:1700"
    " > _file_rendezvous_handler torch/distributed/rendezvous.py:130"
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


PACKS_FOR = [make_rank(0, frames=PACKS, **RUNNING), *(make_rank(rank, frames=OBJECTS) for rank in (1, 2, 3))]
BLOCKED = [engine(0, ()), engine(1, USERS, **READS), engine(2, ()), engine(3, ())]
DEVICE = replace(NFS, name="/dev/nvidia0", mount="/dev", file_system="devtmpfs")


def within(waits, culprit, **fields):
    """Build ranks of which one reads within a collective in which the others wait."""
    return [
        make_rank(rank, frames=culprit if rank == 1 else waits, **(fields if rank == 1 else {})) for rank in range(4)
    ]


FROM_DISK = within(GATHER, SWAP, state="D", waits_for="disk", call="read")
IN_STORE = within(MEETS, MEETS, **(READS | {"call": "flock"}))


COMPILES, COMPILED = ([engine(rank, lowers(line), **RUNNING) for rank in (0, 1)] for line in (10, 999))
AT_CARD = [make_rank(rank, waits_on=DEVICE, call="ioctl") for rank in (0, 1)]
BLOCKED_WORDS = "load_table ops.py:77, blocked in a read of /data/7.bin"


@pytest.mark.parametrize(
    "job",
    [
        job("backward is compiled in the engine's thread", *COMPILES, says={120: ""}, world_size=2),
        job("and gets on", *COMPILES, says={400: ""}, world_size=2, moved=COMPILED),
        job("an object is packed for the others", *PACKS_FOR, says={120: ""}, stacks={}, world_size=4, log_age_s=125.0),
        job(
            "the engine waits for ranks itself",
            *(engine(rank, REDUCES if rank == 1 else ()) for rank in range(4)),
            says={45: "no-progress"},
            words="all 4 ranks wait in a collective of backward",
            world_size=4,
        ),
        *(
            job(name, *ranks, says={45: "missing-rank"}, words=words, rank=rank, world_size=len(ranks))
            for name, ranks, rank, words in (
                ("the engine is blocked", BLOCKED, 1, f"rank 1 is in {BLOCKED_WORDS}"),
                ("parameters come from a disk", FROM_DISK, 1, "rank 1 is in fetch_sub_module"),
                ("a store of files", IN_STORE, 1, "rank 1 is in init_process_group"),
                ("a driver of a card", [*AT_CARD, make_rank(2, frames=DECODE, **READS)], 2, "rank 2 is in decode"),
            )
        ),
    ],
)
def test_who_seems_to_wait_for_others(job):
    job.check()


@pytest.mark.parametrize("job", [BLOCKED, FROM_DISK, IN_STORE])
def test_a_dump_names_who_does_not_wait_and_keeps_every_thread_in_the_group_of_its_own_stack(job):
    dump = fold(*job)
    assert odd_pid(dump) == 4010
    threads = [one for group in dump.groups for one in group.threads]
    assert len(threads) == sum(len(one.threads) for one in job)
    assert any(one.tid == 4010 for one in threads)
