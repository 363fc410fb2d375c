"""What a rank does in PyTorch, Lightning, Accelerate, the Trainer, DeepSpeed and FSDP, in words, and who is odd there.

The names are those of torch 2.13, lightning 2.6, accelerate 1.15, transformers 5.23 and deepspeed 0.19.
"""

from pathlib import Path

import pytest

from tests.dumps import (
    ALL_REDUCE,
    DECODE,
    LIB,
    MAIN,
    NFS,
    ONCE,
    SITE,
    TRAIN,
    fold,
    make_native,
    make_rank,
    odd_pid,
    rounds,
    stack_of,
)
from tests.hanging import conclude, stand
from tpmon.judge.dumps.describe import collapse_frames, describe_stack
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.waits import WaitReason

TABLE = Path(__file__).parents[2] / "data" / "framework_stacks.txt"
FOLDERS = {
    "T": f"{SITE}/torch",
    "D": f"{SITE}/deepspeed",
    "A": f"{SITE}/accelerate",
    "H": f"{SITE}/transformers",
    "P": f"{SITE}/lightning/pytorch",
    "F": f"{SITE}/lightning/fabric",
    "S": SITE,
    "L": LIB,
    "U": "/run",
}
MOD = "Module._wrapped_call_impl T:nn/modules/module.py > Module._call_impl T:nn/modules/module.py"
W = "wrapper T:distributed/c10d_logger.py"
C = "T:distributed/distributed_c10d.py"
BW = "Tensor.backward T:_tensor.py > backward T:autograd/__init__.py > _engine_run_backward T:autograd/graph.py"


def stack(text: str) -> tuple[StackFrame, ...]:
    """Build a stack below line 40 of train.py: "function FOLDER:file > function FOLDER:file"."""
    frames = [StackFrame("<module>", "/run/train.py", 90), StackFrame("train", "/run/train.py", 40)]
    for one in text.split(" > "):
        function, place = one.rsplit(" ", 1)
        folder, _, file = place.partition(":")
        frames.append(StackFrame(function, f"{FOLDERS[folder]}/{file}", 7))
    return tuple(frames)


def read_rows() -> list[tuple[str, str, str, WaitReason]]:
    """Read name, stack, words and wait of each row of the table."""
    rows = []
    for line in TABLE.read_text().splitlines():
        if not line.startswith("#"):
            name, words, wait, text = line.split(" | ")
            rows.append((name, text.format(MOD=MOD, W=W, C=C, BW=BW), words, WaitReason[wait]))
    return rows


ROWS = read_rows()


@pytest.mark.parametrize(("name", "text", "words", "wait"), ROWS, ids=[row[0] for row in ROWS])
def test_what_a_rank_does_is_said_in_words_that_a_person_knows(name, text, words, wait):
    doing = describe_stack(Role.RANK, ThreadKind.MAIN, stack(text))
    assert doing.text in (f"{words} train.py:40", words), name
    assert doing.wait is wait


@pytest.mark.parametrize(("name", "text", "words", "wait"), ROWS, ids=[row[0] for row in ROWS])
def test_a_stack_is_shown_in_the_users_lines_and_one_word_for_each_library(name, text, words, wait):
    shown = collapse_frames(stack(text))
    assert [(one.text, one.is_users) for one in shown[:2]] == [
        ("<module> train.py:90", True),
        ("train train.py:40", True),
    ]
    assert len(shown) <= 5, name
    if wait is WaitReason.COLLECTIVE:
        assert shown[-1].text == words


SAVING = stack("Trainer.save_checkpoint P:trainer/trainer.py > save T:serialization.py")
WAITING = stack(
    f"Trainer.save_checkpoint P:trainer/trainer.py > DDPStrategy.barrier P:strategies/ddp.py > {W} > barrier {C}"
)


def test_the_rank_that_writes_is_told_from_those_that_wait_for_its_checkpoint():
    dump = fold(*(make_rank(rank, frames=SAVING if rank == 3 else WAITING) for rank in range(8)))
    assert odd_pid(dump) == 4030
    assert dump.summary.startswith(
        "7 of 8 ranks wait in barrier (checkpoint) train.py:40; rank 3 is in checkpoint train.py:40"
    )


WATCHED = ("pt_nccl_watchdg", "pt_nccl_heartbt", "pt_gloo_runloop")


def test_the_threads_of_process_groups_are_told_together_and_accuse_nobody():
    ranks = [
        make_rank(rank, *(make_native(9000 + 10 * rank + at, name) for at, name in enumerate(WATCHED)))
        for rank in range(4)
    ]
    dump = fold(*ranks)
    assert odd_pid(dump) == 0
    native = [group for group in dump.groups if group.threads[0].kind is ThreadKind.COMM]
    assert {group.threads[0].name: len(group.threads) for group in native} == dict.fromkeys(WATCHED, 4)


def native(function: str) -> StackFrame:
    return StackFrame(function, f"{SITE}/torch/lib/libtorch_cpu.so", 0)


@pytest.mark.parametrize(
    ("function", "text", "wait"),
    [
        ("c10d::Work::wait", "a collective in train train.py:40", WaitReason.COLLECTIVE),
        ("c10d::ProcessGroupNCCL::WorkNCCL::synchronize", "a collective in train train.py:40", WaitReason.COLLECTIVE),
        ("cuStreamSynchronize", "the device in train train.py:40", WaitReason.DEVICE),
        ("at::native::_local_scalar_dense_cuda", "the device in train train.py:40", WaitReason.DEVICE),
        ("at::native::conv2d", "train train.py:40", WaitReason.OTHER),
    ],
)
def test_frames_of_c_tell_what_a_line_alone_does_not(function, text, wait):
    """work.wait() and .item() have no frame of Python; --native shows those of C below them."""
    users = (StackFrame("<module>", "/run/train.py", 90), StackFrame("train", "/run/train.py", 40))
    frames = (*users, native("THPVariable_item"), native(function), native("?"))
    doing = describe_stack(Role.RANK, ThreadKind.MAIN, frames)
    assert (doing.text, doing.wait) == (text, wait)
    assert [one.text for one in collapse_frames(frames)][2:] == [
        "THPVariable_item libtorch_cpu.so",
        f"{function} libtorch_cpu.so",
        "? libtorch_cpu.so",
    ]


# one line of the user makes many collectives

_TORCH, _TRAINER = f"{SITE}/torch", f"{SITE}/transformers/trainer.py"
_HF = (MAIN, TRAIN, StackFrame("train", _TRAINER, 2200), StackFrame("_inner_training_loop", _TRAINER, 2500))
EVALUATE = (
    *_HF,
    *stack_of(
        "evaluate transformers/trainer.py:4100 > evaluation_loop transformers/trainer.py:4300"
        " > gather accelerate/utils/operations.py:400 > all_gather torch/distributed/distributed_c10d.py:3500"
    ),
)
STEP = (
    *_HF,
    *stack_of(
        "training_step transformers/trainer.py:3600 > forward torch/nn/parallel/distributed.py:1600"
        " > _sync_buffers torch/nn/parallel/distributed.py:2100"
    ),
)


def test_ranks_in_two_collectives_of_one_user_line_are_two_camps():
    dump = fold(make_rank(0, frames=EVALUATE), *[make_rank(rank, frames=STEP) for rank in range(1, 8)])
    assert dump.summary == (
        "7 of 8 ranks wait in broadcast of buffers (ddp forward) train.py:40; rank 0 waits in gather"
        f" (validation) train.py:40, waits for: lock or queue (futex){ONCE}"
    )
    assert dump.odd_one_out.rank == 0


def test_the_verdict_on_two_collectives_of_one_user_line_says_who_is_in_which():
    ranks = [make_rank(rank, frames=EVALUATE if rank == 5 else STEP) for rank in range(8)]
    finding = conclude(stand(*ranks))
    assert finding.cause == "missing-rank"
    assert finding.summary.endswith(
        "in different collectives: ranks 0-4,6-7 in broadcast of buffers (ddp forward) train.py:40,"
        " rank 5 in gather (validation) train.py:40"
    )


def test_one_collective_is_one_camp_wherever_in_its_library_the_ranks_are():
    spins = (*ALL_REDUCE, StackFrame("_spin", f"{_TORCH}/distributed/distributed_c10d.py", 90))
    without = tuple(frame for frame in ALL_REDUCE if frame.function != "wrapper")
    stacks = (ALL_REDUCE, spins, without, ALL_REDUCE)
    dump = fold(*[make_rank(rank, frames=frames) for rank, frames in enumerate(stacks)])
    assert dump.summary.startswith("all 4 ranks wait in all_reduce train.py:40; none is outside of it")
    bare = [tuple(frame for frame in frames if frame.file.startswith(SITE)) for frames in stacks]
    dump = fold(*[make_rank(rank, frames=frames) for rank, frames in enumerate(bare)])
    assert dump.summary.startswith("all 4 ranks wait in all_reduce; none is outside of it")


def test_who_waits_for_its_card_is_not_the_odd_one_beside_one_that_reads():
    sync = (MAIN, TRAIN, StackFrame("synchronize", f"{_TORCH}/cuda/__init__.py", 950))
    reads = make_rank(7, frames=DECODE, state="D", waits_for="NFS", waits_on=NFS)
    ranks = [make_rank(rank, frames=sync) for rank in range(1, 7)]
    job = [make_rank(0), *ranks, reads]
    dump = rounds(job, job, job, world=8)
    assert dump.odd_one_out.rank == 7
    assert "not there either" not in dump.summary
