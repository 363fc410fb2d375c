"""Loops that are not built around torch's DataLoader, or not to one plan: from their stacks to the verdict."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.any_windows import make_slice
from tests.dumps import BACKWARD, LIB, MAIN, SITE, TRAIN, stack_of
from tests.frames import NOW, make_cpu, make_frame, make_gpu, make_process
from tests.judging import conclude as judge_all
from tests.judging import hold, make_looks
from tpmon.model.process import ThreadGroup, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Finding, Kind

Stack = tuple[StackFrame, ...]
PID = 4211
FORWARD = (MAIN, TRAIN, StackFrame("_call_impl", f"{SITE}/torch/nn/modules/module.py", 1500))
STEP: Mapping[Stack, int] = {FORWARD: 10, BACKWARD: 10}
QUEUE_GET = StackFrame("get", f"{LIB}/queue.py", 171)
IN_QUEUE = StackFrame("wait", f"{LIB}/threading.py", 331)
DALI = (MAIN, TRAIN, StackFrame("__next__", f"{SITE}/nvidia/dali/plugin/pytorch/__init__.py", 1))
FFCV = (MAIN, TRAIN, StackFrame("__next__", f"{SITE}/ffcv/loader/epoch_iterator.py", 1), QUEUE_GET)
RAY = (MAIN, TRAIN, StackFrame("__next__", f"{SITE}/ray/data/iterator.py", 1), QUEUE_GET)
NODES = (MAIN, TRAIN, StackFrame("__next__", f"{SITE}/torchdata/nodes/map.py", 1), QUEUE_GET, IN_QUEUE)
REPLAY = (MAIN, StackFrame("sample_batch", "/run/buffer.py", 20))
LOADER = stack_of(
    "main > train > __next__ torch/utils/data/dataloader.py:700"
    " > _MapDatasetFetcher.fetch torch/utils/data/_utils/fetch.py:54 > __getitem__ /run/data.py:20"
)
MOVED = StackFrame("Module._apply", f"{SITE}/torch/nn/modules/module.py", 900)
SWAP = (MAIN, StackFrame("offload_model", "/run/rlhf.py", 4), MOVED)
OFFLOAD = (*FORWARD, StackFrame("pre_forward", f"{SITE}/accelerate/hooks.py", 1), MOVED)
UPLOAD = (MAIN, StackFrame("upload_folder", f"{SITE}/huggingface_hub/hf_api.py", 1))
POLLS = (MAIN, StackFrame("wait_for_trainer", "/run/train.py", 20), QUEUE_GET, IN_QUEUE)


def conclude(
    stacks: Mapping[Stack, int], *, runs: int = 5, timed: int = 0, sm_pct: float | None = 55.0, others: float = 0.0
) -> Finding:
    """Judge a minute of a rank that is 30 hours old; ``runs`` of ten looks find its main thread running."""
    demand = runs / 10 + others
    threads = (ThreadGroup(ThreadKind.MAIN, 1, runs / 10), ThreadGroup(ThreadKind.OTHER, 3, others))
    rank = make_process(
        PID, started=NOW - timedelta(hours=30), runnable=demand, waiting=0.0, busy_threads=1, thread_groups=threads
    )
    looks = make_looks(PID, 10, timed_lock=timed, other=10 - runs - timed)
    frame = make_frame(
        processes=(rank,),
        loader=(),
        main_threads=(looks,),
        gpus=() if sm_pct is None else (make_gpu(pids=(PID,), sm_pct=sm_pct),),
        cpu=make_cpu(runnable=demand, used_cores=demand),
    )
    taken = make_slice(PID, 0, stacks)
    held = [
        replace(one, stacks=(replace(taken, ended=one.taken, ended_ns=one.taken_ns),) if number % 3 == 0 else ())
        for number, one in enumerate(hold(frame, 60))
    ]
    return judge_all(held)


@pytest.mark.parametrize("wait", [DALI, FFCV, RAY, NODES])
def test_a_loader_with_threads_of_its_own_is_no_lack_of_workers(wait):
    found = conclude({wait: 20, **STEP})
    assert (found.kind, found.cause) == (Kind.DATA_BOUND, "own-loader")
    assert "what fills the queue that the main thread waits at (no loader worker does)" in found.unknown
    assert "num_workers" not in str(found.try_)


def test_workers_are_advised_of_torch_s_loader_and_only_supposed_of_a_replay_buffer():
    """A buffer that the run fills has no DataLoader, and workers would not see what is put into it."""
    own = conclude({REPLAY: 20, **STEP}, runs=10, sm_pct=None)
    assert (own.kind, own.cause) == (Kind.DATA_BOUND, "no-workers")
    assert str(own.try_).startswith("if the batches come from torch's DataLoader: load in the background")
    torch_s = conclude({LOADER: 20, **STEP}, runs=10, sm_pct=None)
    assert (torch_s.kind, torch_s.cause) == (Kind.DATA_BOUND, "no-workers")
    assert str(torch_s.try_).startswith("load in the background")


@pytest.mark.parametrize("stack", [SWAP, OFFLOAD])
def test_modules_that_are_moved_in_every_step_are_no_start(stack):
    found = conclude({stack: 24, **STEP})
    assert found.kind is not Kind.STARTING
    assert "assign=True" not in str(found.try_)


def test_an_upload_is_no_load():
    assert conclude({UPLOAD: 40}, runs=1).kind is not Kind.STARTING


def test_a_model_that_is_built_is_a_start_without_advice_for_checkpoints():
    found = conclude({SWAP: 40}, runs=10)
    assert (found.kind, found.cause) == (Kind.STARTING, "load")
    assert "is loading a checkpoint" not in found.summary
    assert not str(found.try_).startswith("load checkpoints")


def test_a_main_thread_that_polls_a_queue_while_another_trains_does_not_fight_for_the_lock():
    found = conclude({POLLS: 40}, runs=0, timed=10, sm_pct=60.0, others=0.97)
    assert found.kind is not Kind.PYTHON_BOUND
    fights = conclude(STEP, runs=0, timed=10, sm_pct=60.0, others=0.97)
    assert (fights.kind, fights.cause) == (Kind.PYTHON_BOUND, "gil")
