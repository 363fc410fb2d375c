"""Ranks that stand on cards, in an engine or at a file: who waits for its card, who for a rank, who works."""

from dataclasses import replace
from typing import Any

import pytest

from tests.dumps import fold, make_native, make_rank, make_thread, odd_pid
from tests.frames import NOW_NS, make_gpu
from tests.hanging import job, thread
from tests.judging import SECOND
from tests.stacks import BACKWARD, DECODE, LIB, MAIN, NFS, READS, RUNNING, SITE, stack_of
from tpmon.judge.watch.tracker import RankMemory
from tpmon.model.dump import ProcessLook
from tpmon.model.gpu import GpuSample
from tpmon.model.host import NetworkSample
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import ThreadKind
from tpmon.model.stacks import StackFrame

ITEM = (MAIN, StackFrame("train", "/run/train.py", 77))
SYNCHRONIZE = (*ITEM, StackFrame("synchronize", f"{SITE}/torch/cuda/__init__.py", 950))
IN_NUMPY = (*ITEM, StackFrame("svd", f"{SITE}/numpy/linalg/_linalg.py", 1800))
IN_TORCH = (*ITEM, StackFrame("_wrapped_call_impl", f"{SITE}/torch/nn/modules/module.py", 1780))
IN_FRAMEWORK = (*ITEM, StackFrame("has_overflow", f"{SITE}/deepspeed/runtime/utils.py", 190))
QUIET = {"pcie_tx_bytes_s": 1e4, "pcie_rx_bytes_s": 1e4, "nvlink_tx_bytes_s": 0.0, "nvlink_rx_bytes_s": 0.0}
SPINS = {"sm_pct": 100.0, "sm_active_pct": 2.0, "power_w": 110.0, **QUIET}
UNREAD = Missing("not supported")
WORKS, AT_REST = {"sm_pct": 100.0}, {"sm_pct": 0.0}
MOVES = {"pcie_tx_bytes_s": 60e6, "pcie_rx_bytes_s": 60e6}
NO_LINKS = {"pcie_tx_bytes_s": UNREAD, "pcie_rx_bytes_s": UNREAD}
NETWORK = (NetworkSample("eth0", "nic", True, 60e6, 60e6, 0.0, 0.0),)
LOOP = (MAIN, StackFrame("wait_for_flag", "/run/train.py", 50))
RESULT = (MAIN, StackFrame("wait", f"{LIB}/concurrent/futures/_base.py", 451))
POOL_THREAD = stack_of(
    "run lib/threading.py:980 > _worker lib/concurrent/futures/thread.py:83 > run lib/concurrent/futures/thread.py:58"
)
WRITES = (*POOL_THREAD, StackFrame("_write_item", f"{SITE}/torch/distributed/checkpoint/filesystem.py", 300))
LOGS = stack_of("run lib/threading.py:980 > check wandb/sdk/wandb_run.py:300 > wait lib/threading.py:331")
WRITER = thread(9, WRITES, name="writer", **READS)
LOGGERS = [thread(5 + n, LOGS, name="log") for n in range(3)]
NCCL = make_native(9001, "pt_nccl_watchdg")


def spins(rank: int, *others: Any, **fields: Any) -> ProcessLook:
    """Make a rank whose host spins over its card, as in ``.item()``, which leaves no frame."""
    return make_rank(rank, *others, **({"frames": ITEM, "holds_gil": False, **RUNNING} | fields))


def nccl(rank: int) -> Any:
    return replace(NCCL, tid=9000 + rank)


def blind(rank: int, **fields: Any) -> ProcessLook:
    """Make a rank that spins over a card which nobody can read: of AMD, or of another container."""
    return spins(rank, nccl(rank), **fields)


def cards(*of: dict[str, Any]) -> tuple[GpuSample, ...]:
    """Make a card for each rank from 0 on."""
    return tuple(make_gpu(number, pids=(4000 + 10 * number,), **one) for number, one in enumerate(of))


def alone(name: str, says: dict[int, str], card: dict[str, Any], **more: Any) -> Any:
    """Make a row of one rank that spins over its card."""
    return job(name, spins(0), says=says, gpus=cards(card), **more)


def pair(
    name: str, says: dict[int, str], *of: dict[str, Any], others: tuple[ProcessLook, ...] = (), **more: Any
) -> Any:
    """Make a row of two ranks that spin over their cards, beside others."""
    return job(name, *TWO, *others, says=says, gpus=cards(*of), **({"world_size": 2 + len(others)} | more))


TWO = (spins(0), spins(1))
TRACED = make_rank(2, frames=Missing("another tracer holds it"), **READS)
LATE = make_rank(3, frames=DECODE, **READS)
POWER = {"sm_active_pct": UNREAD}
STEPS = {
    "ranks": (RankMemory(4000, 100, moved_ns=NOW_NS - 150 * SECOND, begun_ns=NOW_NS - 200 * SECOND),),
    "begun_ns": NOW_NS - 200 * SECOND,
    "asked_s": 30.0,
}
"""It was seen in steps until 150 s ago, and its user allows no more than half a minute."""


@pytest.mark.parametrize(
    "job",
    [
        alone("at work", {400: "", 1830: "gpu-wait"}, WORKS, words="card 0 works"),
        alone("at work, its log old", {400: ""}, WORKS, log_age_s=4000.0),
        alone("idle", {310: "spin"}, {**SPINS, "sm_pct": 0.0}),
        alone("hollow", {40: "gpu-wait"}, {**SPINS, "power_w": 90.0}, words="card 0 is busy and does next to nothing"),
        # A slow kernel of few blocks draws as little.
        alone("hollow by power", {60: "", 85: "gpu-wait"}, {**SPINS, **POWER, "power_w": 90.0}),
        alone("unread", {100: "", 330: "gpu-wait"}, {"sm_pct": UNREAD}),
        alone("a slice", {330: "gpu-wait"}, {"mig": True, "sm_pct": UNREAD, **POWER}),
        *(
            alone(
                f"at {watts:.0f} of {limit:.0f} W", says, {**SPINS, **POWER, "power_w": watts, "power_limit_w": limit}
            )
            for watts, limit, says in (
                (34.0, 70.0, {100: "", 330: "gpu-wait"}),
                (180.0, 400.0, {100: "", 330: "gpu-wait"}),
                (50.0, 70.0, {1000: ""}),
                (300.0, 400.0, {1000: ""}),
            )
        ),
        # A collective over a slow network is as hollow; the bytes tell.
        *(
            alone(name, {100: cause}, card, watch=STEPS, world_size=2, log_age_s=100.0, network=network)
            for name, cause, network, card in (
                ("with links at rest", "remote-rank", (), SPINS),
                ("with links that move", "", (), {**SPINS, **MOVES}),
                ("with links unread", "", (), {**SPINS, **NO_LINKS}),
                ("beside a network that moves", "", NETWORK, SPINS),
            )
        ),
    ],
)
def test_a_rank_that_waits_for_its_card_has_the_time_of_what_that_does(job):
    job.check()


@pytest.mark.parametrize(
    "job",
    [
        pair(
            "one is not in the collective",
            {40: "missing-rank"},
            *[SPINS] * 3,
            others=(spins(2), LATE),
            words=("3 of 4 ranks wait in ", "rank 3 is in decode data.py:88"),
            rank=3,
        ),
        pair(
            "they are at several lines",
            {60: "gpu-wait"},
            *[SPINS] * 3,
            others=(spins(2, frames=SYNCHRONIZE),),
            words="one collective, or in different ones: ranks 0-1 in train train.py:77",
            rank=NOT_APPLICABLE,
        ),
        pair(
            "one card works",
            {400: "", 1830: "gpu-wait"},
            SPINS,
            WORKS,
            words=("all 2 ranks wait for their cards; rank 1 waits for its card", "card 1 works"),
        ),
        pair("all cards work", {1830: "gpu-wait"}, WORKS, WORKS, rank=NOT_APPLICABLE),
        pair("others run elsewhere", {310: "remote-rank"}, SPINS, SPINS, world_size=4),
        pair("one card is unread", {330: "gpu-wait"}, SPINS, {**SPINS, "sm_pct": UNREAD}, rank=NOT_APPLICABLE),
        *(
            job(
                f"they wait for gradients while their cards {name}",
                *(make_rank(rank, nccl(rank), frames=BACKWARD) for rank in (0, 1)),
                says={100: cause},
                world_size=2,
                gpus=cards(card, card),
            )
            for name, card, cause in (("spin", SPINS, "no-progress"), ("work", {"sm_pct": 99.0}, ""))
        ),
        job(
            "one could not be read",
            make_rank(0),
            make_rank(1),
            TRACED,
            says={330: "missing-rank"},
            words="the stack of rank 2 was not read (another tracer holds it), by the kernel in: NFS",
            world_size=3,
        ),
        job(
            "one could not be read beside one in a loop",
            make_rank(0),
            make_rank(1),
            TRACED,
            make_rank(3, frames=LOOP),
            says={100: "", 330: "blocked-io"},
            world_size=4,
        ),
        pair("one could not be read beside cards", {330: "missing-rank"}, SPINS, SPINS, others=(TRACED,)),
        # Over cards that cannot be read they are not told to compute.
        *(
            job(
                f"their cards cannot be read, {count} of {size}",
                *map(blind, range(count)),
                says={100: "", 310: cause},
                rank=NOT_APPLICABLE,
                world_size=size,
            )
            for count, size, cause in ((2, 2, "gpu-wait"), (2, 16, "remote-rank"), (1, 16, "remote-rank"))
        ),
        job(
            "one is not with those whose cards cannot be read",
            *map(blind, range(3)),
            replace(LATE, threads=(*LATE.threads, nccl(3))),
            says={40: "missing-rank"},
            words="3 of 4 ranks wait in ",
            rank=3,
            world_size=4,
        ),
        *(
            job(
                f"one is in {name}",
                *(make_rank(rank, nccl(rank)) for rank in range(3)),
                blind(3, frames=stack, holds_gil=holds_gil),
                says={310: "missing-rank" if computes else "no-progress"},
                words="3 of 4 ranks wait in " if computes else "all 4 ranks wait ",
                rank=3 if computes else NOT_APPLICABLE,
                world_size=4,
            )
            for name, stack, holds_gil, computes in (
                ("numpy with the lock", IN_NUMPY, True, True),
                ("numpy", IN_NUMPY, False, True),
                ("torch with the lock", IN_TORCH, True, True),
                ("torch", IN_TORCH, False, False),
                ("a framework", IN_FRAMEWORK, False, False),
            )
        ),
        job("they have no threads of NCCL", *TWO, says={310: "spin"}, world_size=2),
        job("a rank alone has some", blind(0), says={310: "spin"}, world_size=1),
        # A writer in a thread has the time of a checkpoint, however many loggers stand beside it.
        job(
            "a thread writes a checkpoint",
            make_rank(0, *LOGGERS, WRITER, frames=RESULT, waits_for="lock or queue (futex)"),
            says={100: "", 310: "lock"},
            words="thread writer (9)",
        ),
    ],
)
def test_of_ranks_that_stand(job):
    job.check()


def test_ranks_that_all_spin_wait_in_one_collective_and_none_of_them_is_the_culprit():
    (all_spin,) = job("", *map(spins, range(4)), says={40: "gpu-wait"}, world_size=4, gpus=cards(*[SPINS] * 4)).values
    finding = all_spin.check()
    assert finding.summary.startswith("all 4 ranks wait for their cards, none of which does anything")
    assert finding.rank is NOT_APPLICABLE
    assert [row.name for row in finding.evidence][:4] == [f"rank {n} ({4000 + 10 * n})" for n in range(4)]


# ranks that seem to wait for others


USERS = (StackFrame("Fn.backward", "/run/ops.py", 33), StackFrame("load_table", "/run/ops.py", 77))
REDUCES = stack_of(
    "_post_backward_hook torch/distributed/fsdp/_runtime_utils.py:700"
    " > _reduce_grad torch/distributed/fsdp/_runtime_utils.py:850"
)
FETCH = stack_of(
    "main > train > forward deepspeed/runtime/engine.py:1900"
    " > fetch_sub_module deepspeed/runtime/zero/partitioned_param_coordinator.py:300"
)
SWAP = (*FETCH, *stack_of("swap_in deepspeed/runtime/swap_tensor/partitioned_param_swapper.py:290"))
GATHER = (*FETCH, *stack_of("wait deepspeed/runtime/zero/partition_parameters.py:90"))
OBJECTS = stack_of("main > train > broadcast_object_list torch/distributed/distributed_c10d.py:3000")
PACKS = (*OBJECTS, replace(OBJECTS[-1], function="_object_to_tensor", line=2700))
MEETS = stack_of(
    "main > init_process_group torch/distributed/distributed_c10d.py:1700"
    " > _file_rendezvous_handler torch/distributed/rendezvous.py:130"
)


def lowers(line):
    """Build the stack of a backward pass that is compiled when it is first run."""
    return stack_of(
        "_backward_impl torch/_functorch/_aot_autograd/runtime_wrappers.py:3450"
        f" > compile_fx_inner torch/_inductor/compile_fx.py:700 > codegen torch/_inductor/graph.py:{line}"
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
