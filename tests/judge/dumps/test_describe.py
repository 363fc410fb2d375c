"""What a thread does in words, and stacks without the insides of libraries."""

import pytest

from tests.dumps import ALL_REDUCE, BACKWARD, DECODE, LIB, MAIN, NFS, SITE, TRAIN, WORKER_READS, WORKER_WAITS, stack_of
from tpmon.judge.dumps.describe import collapse_frames, describe_stack
from tpmon.model.dump import WaitKind, WaitTarget
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.text.dump_words import list_numbers, list_others, say_target
from tpmon.model.waits import WaitReason

WORDS = [
    (Role.WORKER, ThreadKind.MAIN, WORKER_WAITS, "waits for work (queue.get)"),
    (Role.WORKER, ThreadKind.MAIN, WORKER_READS, "decode data.py:88"),
    (
        Role.RANK,
        ThreadKind.MAIN,
        (MAIN, TRAIN, StackFrame("get", f"{LIB}/queue.py", 171)),
        "queue.get in train train.py:40",
    ),
    (
        Role.RANK,
        ThreadKind.MAIN,
        (MAIN, TRAIN, StackFrame("save", f"{SITE}/torch/serialization.py", 9)),
        "checkpoint train.py:40",
    ),
    (
        Role.RANK,
        ThreadKind.OTHER,
        stack_of("_bootstrap lib/threading.py:1002 > run tqdm/_monitor.py:60 > wait lib/threading.py:629"),
        "tqdm: condition or event",
    ),
    (
        Role.WORKER,
        ThreadKind.OTHER,
        stack_of(
            "_bootstrap lib/threading.py:1002 > _feed lib/multiprocessing/queues.py:231 > wait lib/threading.py:327"
        ),
        "queue feeder",
    ),
    (
        Role.RANK,
        ThreadKind.MAIN,
        (MAIN, TRAIN, StackFrame("SemLock.__enter__", f"{LIB}/multiprocessing/synchronize.py", 95)),
        "process lock in train train.py:40",
    ),
    (
        Role.RANK,
        ThreadKind.MAIN,
        (MAIN, TRAIN, StackFrame("Event.wait", f"{LIB}/multiprocessing/synchronize.py", 350)),
        "process condition or event in train train.py:40",
    ),
    (Role.LAUNCHER, ThreadKind.MAIN, (), "no Python frames"),
    (
        Role.RANK,
        ThreadKind.MAIN,
        (StackFrame("_shutdown", f"{LIB}/threading.py", 1590),),
        "waits for threads to end (interpreter exit)",
    ),
]


@pytest.mark.parametrize(("role", "kind", "frames", "words"), WORDS)
def test_what_a_thread_does_is_said_in_words(role, kind, frames, words):
    assert describe_stack(role, kind, frames).text == words


def test_library_frames_become_a_word_and_the_users_stay():
    assert [one.text for one in collapse_frames(ALL_REDUCE)] == [
        "<module> train.py:90",
        "train train.py:40",
        "all_reduce",
    ]
    assert [(one.text, one.is_users) for one in collapse_frames(DECODE)][2:] == [
        ("fetch", False),
        ("__getitem__ data.py:60", True),
        ("decode data.py:88", True),
    ]
    assert [one.text for one in collapse_frames(BACKWARD)][-1] == "backward"
    module = StackFrame("Module._call_impl", f"{SITE}/torch/nn/modules/module.py", 1500)
    nested = (
        MAIN,
        module,
        StackFrame("forward", "/run/model.py", 5),
        module,
        StackFrame("forward", "/run/model.py", 9),
    )
    assert [one.text for one in collapse_frames(nested)] == [
        "<module> train.py:90",
        "forward model.py:5",
        "forward model.py:9",
    ]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (NFS, "blocked in a read of /data/7.bin on NFS (/data)"),
        (
            WaitTarget("read", 5, WaitKind.PIPE, "pipe:[77]", NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE),
            "blocked in a read on a pipe (fd 5)",
        ),
        (
            WaitTarget("recvfrom", 9, WaitKind.SOCKET, "socket:[8]", NOT_APPLICABLE, NOT_APPLICABLE, "10.0.0.2:443"),
            "blocked in recvfrom on a socket to 10.0.0.2:443 (fd 9)",
        ),
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
SAVES = StackFrame("_write_item", f"{SITE}/torch/distributed/checkpoint/filesystem.py", 300)


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
    shown = [one.text for one in collapse_frames(frames)]
    assert any("idle" in one for one in shown) is (wait is WaitReason.WORK)


PROCESS = StackFrame("_process_worker", f"{LIB}/concurrent/futures/process.py", 240)
POOL = StackFrame("worker", f"{LIB}/multiprocessing/pool.py", 125)
REQUEST = StackFrame("get", f"{SITE}/requests/api.py", 73)


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
