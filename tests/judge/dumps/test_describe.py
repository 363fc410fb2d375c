"""What a thread does in words, and stacks without the insides of libraries."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.dumps import ONCE, fold, make_native, make_rank, odd_pid, rounds
from tests.hanging import conclude, stand
from tests.stacks import ALL_REDUCE, BACKWARD, DECODE, LIB, NFS, PEER, PIPE, READS, WORKER_READS, WORKER_WAITS, stack_of
from tpmon.judge.dumps.describe import collapse_frames, describe_stack
from tpmon.model.dump import WaitKind, WaitTarget
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.text.dump_words import list_numbers, list_others, say_target
from tpmon.model.waits import WaitReason

RANK = (Role.RANK, ThreadKind.MAIN)

BESIDE, FEEDER = (Role.RANK, ThreadKind.OTHER), (Role.WORKER, ThreadKind.OTHER)


def in_train(text):
    return stack_of(f"main > train > {text}")


def in_thread(text):
    return stack_of(f"_bootstrap lib/threading.py:1002 > {text}")


WORDS = [
    (Role.WORKER, ThreadKind.MAIN, WORKER_WAITS, "waits for work (queue.get)"),
    (Role.WORKER, ThreadKind.MAIN, WORKER_READS, "decode data.py:88"),
    (*RANK, in_train("get lib/queue.py:171"), "queue.get in train train.py:40"),
    (*RANK, in_train("save torch/serialization.py:9"), "checkpoint train.py:40"),
    (*BESIDE, in_thread("run tqdm/_monitor.py:60 > wait lib/threading.py:629"), "tqdm: condition or event"),
    (*FEEDER, in_thread("_feed lib/multiprocessing/queues.py:231 > wait lib/threading.py:327"), "queue feeder"),
    (*RANK, in_train("SemLock.__enter__ lib/multiprocessing/synchronize.py:95"), "process lock in train train.py:40"),
    (
        *RANK,
        in_train("Event.wait lib/multiprocessing/synchronize.py:350"),
        "process condition or event in train train.py:40",
    ),
    (Role.LAUNCHER, ThreadKind.MAIN, (), "no Python frames"),
    (*RANK, stack_of("_shutdown lib/threading.py:1590"), "waits for threads to end (interpreter exit)"),
]


@pytest.mark.parametrize(("role", "kind", "frames", "words"), WORDS)
def test_what_a_thread_does_is_said_in_words(role, kind, frames, words):
    assert describe_stack(role, kind, frames).text == words


def texts(frames):
    return [one.text for one in collapse_frames(frames)]


def test_library_frames_become_a_word_and_the_users_stay():
    assert texts(ALL_REDUCE) == ["<module> train.py:90", "train train.py:40", "all_reduce"]
    assert [(one.text, one.is_users) for one in collapse_frames(DECODE)][2:] == [
        ("fetch", False),
        ("__getitem__ data.py:60", True),
        ("decode data.py:88", True),
    ]
    assert texts(BACKWARD)[-1] == "backward"
    module = "Module._call_impl torch/nn/modules/module.py:1500"
    nested = stack_of(f"main > {module} > forward /run/model.py:5 > {module} > forward /run/model.py:9")
    assert texts(nested) == ["<module> train.py:90", "forward model.py:5", "forward model.py:9"]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (NFS, "blocked in a read of /data/7.bin on NFS (/data)"),
        (PIPE, "blocked in a read on a pipe (fd 4)"),
        (PEER, "blocked in recvfrom on a socket to 10.0.0.7:443 (fd 5)"),
        (
            WaitTarget("fsync", 3, WaitKind.FILE, "/ckpt/1.pt", Missing("?"), Missing("?"), NOT_APPLICABLE),
            "blocked in a write of /ckpt/1.pt",
        ),
    ],
)
def test_what_a_blocked_call_waits_on_is_said(target, words):
    assert say_target(target) == words


@pytest.mark.parametrize(("numbers", "words"), [([], ""), ([3], "3"), ([0, 1, 2, 4, 5, 7, 2], "0-2,4-5,7")])
def test_ranks_are_ranges(numbers, words):
    assert list_numbers(numbers) == words


@pytest.mark.parametrize(
    ("numbers", "size", "words"),
    [((0, 2), 4, "1,3"), ((), 3, "0-2"), ((0, 1), 2, ""), ((5, 0), 2, "1"), ((7,), 10**12, "0-6,8-999999999999")],
)
def test_the_other_ranks_are_ranges_in_a_world_of_any_size(numbers, size, words):
    """A file can claim a world of 10^12: nothing counts that far."""
    assert list_others(numbers, size) == words


BOOT = StackFrame("_bootstrap", f"{LIB}/threading.py", 1002)
POOL_THREAD = StackFrame("_worker", f"{LIB}/concurrent/futures/thread.py", 83)
TASK = StackFrame("run", f"{LIB}/concurrent/futures/thread.py", 58)
DECODES = StackFrame("decode", "/run/data.py", 8)
(SAVES,) = stack_of("_write_item torch/distributed/checkpoint/filesystem.py:300")


@pytest.mark.parametrize(
    ("frames", "words", "wait"),
    [
        ((BOOT, POOL_THREAD), "idle executor thread", WaitReason.WORK),
        ((BOOT, POOL_THREAD, TASK, SAVES), "_write_item filesystem.py:300", WaitReason.OTHER),
        ((BOOT, POOL_THREAD, TASK, DECODES), "decode data.py:8", WaitReason.OTHER),
    ],
    ids=["no task", "a task of a library", "a task of the program"],
)
def test_a_thread_of_a_pool_is_idle_only_where_it_has_no_task(frames, words, wait):
    doing = describe_stack(Role.RANK, ThreadKind.OTHER, frames)
    assert doing.text.endswith(words)
    assert doing.wait is wait
    assert any("idle" in one for one in texts(frames)) is (wait is WaitReason.WORK)


PROCESS = StackFrame("_process_worker", f"{LIB}/concurrent/futures/process.py", 240)
POOL = StackFrame("worker", f"{LIB}/multiprocessing/pool.py", 125)
(REQUEST,) = stack_of("get requests/api.py:73")


@pytest.mark.parametrize(
    ("frames", "idle"),
    [
        ((PROCESS, StackFrame("get", f"{LIB}/multiprocessing/queues.py", 103)), True),
        ((PROCESS, REQUEST), False),
        ((PROCESS,), False),
        ((POOL, StackFrame("get", f"{LIB}/multiprocessing/queues.py", 367)), True),
        ((POOL, REQUEST), False),
        ((POOL,), False),
        ((BOOT, POOL), True),
    ],
    ids=["executor", "its get", "its C", "pool", "the pool's get", "the pool's C", "a pool of threads"],
)
def test_a_pool_is_idle_at_its_own_queue_alone_and_not_in_whatever_is_called_get(frames, idle):
    kind = ThreadKind.OTHER if frames[0] is BOOT else ThreadKind.MAIN
    text = describe_stack(Role.HELPER, kind, frames).text
    assert ("idle executor" in text or "process pool" in text) is idle


# frameworks, in the names of torch 2.13, lightning 2.6, accelerate 1.15, transformers 5.23 and deepspeed 0.19

TABLE = Path(__file__).parents[2] / "data" / "framework_stacks.txt"
MOD = "Module._wrapped_call_impl torch/nn/modules/module.py:7 > Module._call_impl torch/nn/modules/module.py:7"
W = "wrapper torch/distributed/c10d_logger.py:7"
C = "torch/distributed/distributed_c10d.py:7"
BW = (
    "Tensor.backward torch/_tensor.py:7 > backward torch/autograd/__init__.py:7"
    " > _engine_run_backward torch/autograd/graph.py:7"
)

ROWS = [line.split(" | ") for line in TABLE.read_text().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(("words", "wait", "text"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_a_rank_does_is_said_in_known_words_and_shown_in_the_users_lines_and_a_word_for_each_library(
    words, wait, text
):
    frames = in_train(text.format(MOD=MOD, W=W, C=C, BW=BW))
    doing = describe_stack(Role.RANK, ThreadKind.MAIN, frames)
    assert doing.text in (f"{words} train.py:40", words)
    assert doing.wait is WaitReason[wait]
    shown = [(one.text, one.is_users) for one in collapse_frames(frames)]
    assert shown[:2] == [("<module> train.py:90", True), ("train train.py:40", True)]
    assert len(shown) <= 5
    if doing.wait is WaitReason.COLLECTIVE:
        assert shown[-1][0] == words


SAVED = "Trainer.save_checkpoint lightning/pytorch/trainer/trainer.py:7"
SAVING = in_train(f"{SAVED} > save torch/serialization.py:7")
WAITING = in_train(f"{SAVED} > DDPStrategy.barrier lightning/pytorch/strategies/ddp.py:7 > {W} > barrier {C}")


def test_the_rank_that_writes_is_told_from_those_that_wait_for_its_checkpoint():
    dump = fold(*(make_rank(rank, frames=SAVING if rank == 3 else WAITING) for rank in range(8)))
    assert odd_pid(dump) == 4030
    assert dump.summary.startswith(
        "7 of 8 ranks wait in barrier (checkpoint) train.py:40; rank 3 is in checkpoint train.py:40"
    )


WATCHED = ("pt_nccl_watchdg", "pt_nccl_heartbt", "pt_gloo_runloop")


def test_the_threads_of_process_groups_are_told_together_and_accuse_nobody():
    threads = [make_native(9000 + at, name) for at, name in enumerate(WATCHED)]
    dump = fold(*(make_rank(rank, *threads) for rank in range(4)))
    assert odd_pid(dump) == 0
    native = [group for group in dump.groups if group.threads[0].kind is ThreadKind.COMM]
    assert {group.threads[0].name: len(group.threads) for group in native} == dict.fromkeys(WATCHED, 4)


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
    names = ("THPVariable_item", function, "?")
    frames = in_train(" > ".join(f"{name} torch/lib/libtorch_cpu.so:0" for name in names))
    doing = describe_stack(Role.RANK, ThreadKind.MAIN, frames)
    assert (doing.text, doing.wait) == (text, wait)
    assert texts(frames)[2:] == [f"{name} libtorch_cpu.so" for name in names]


# one line of the user makes many collectives

_HF = "main > train > train transformers/trainer.py:2200 > _inner_training_loop transformers/trainer.py:2500"
EVALUATE = stack_of(
    f"{_HF} > evaluate transformers/trainer.py:4100 > evaluation_loop transformers/trainer.py:4300"
    " > gather accelerate/utils/operations.py:400 > all_gather torch/distributed/distributed_c10d.py:3500"
)
STEP = stack_of(
    f"{_HF} > training_step transformers/trainer.py:3600 > forward torch/nn/parallel/distributed.py:1600"
    " > _sync_buffers torch/nn/parallel/distributed.py:2100"
)


def test_ranks_in_two_collectives_of_one_user_line_are_two_camps():
    dump = fold(make_rank(0, frames=EVALUATE), *[make_rank(rank, frames=STEP) for rank in range(1, 8)])
    assert dump.summary == (
        "all 8 ranks wait for each other in different collectives: ranks 1-7 in broadcast of buffers (ddp forward)"
        f" train.py:40, rank 0 in gather (validation) train.py:40{ONCE}"
    )
    assert dump.odd_one_out.rank == 0
    ranks = [make_rank(rank, frames=EVALUATE if rank == 5 else STEP) for rank in range(8)]
    finding = conclude(stand(*ranks))
    assert finding.cause == "missing-rank"
    assert finding.summary.endswith(
        "in different collectives: ranks 0-4,6-7 in broadcast of buffers (ddp forward) train.py:40,"
        " rank 5 in gather (validation) train.py:40"
    )


def test_one_collective_is_one_camp_wherever_in_its_library_the_ranks_are():
    spins = (*ALL_REDUCE, replace(ALL_REDUCE[-1], function="_spin", line=90))
    without = tuple(frame for frame in ALL_REDUCE if frame.function != "wrapper")
    stacks = (ALL_REDUCE, spins, without, ALL_REDUCE)
    dump = fold(*[make_rank(rank, frames=frames) for rank, frames in enumerate(stacks)])
    assert dump.summary.startswith("all 4 ranks wait in all_reduce train.py:40, none is outside of it")
    bare = [tuple(frame for frame in frames if "site-packages" in frame.file) for frames in stacks]
    dump = fold(*[make_rank(rank, frames=frames) for rank, frames in enumerate(bare)])
    assert dump.summary.startswith("all 4 ranks wait in all_reduce, none is outside of it")


def test_who_waits_for_its_card_is_not_the_odd_one_beside_one_that_reads():
    sync = stack_of("main > train > synchronize torch/cuda/__init__.py:950")
    ranks = [make_rank(rank, frames=sync) for rank in range(1, 7)]
    job = [make_rank(0), *ranks, make_rank(7, frames=DECODE, **READS)]
    dump = rounds(job, job, job, world=8)
    assert dump.odd_one_out.rank == 7
    assert "not there either" not in dump.summary
