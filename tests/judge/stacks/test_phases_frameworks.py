"""Frames of training frameworks as their versions have them: which phase each stack is in."""

import pytest

from tests.phase_stacks import SITE
from tpmon.judge.answers.needs import Need
from tpmon.judge.stacks.classify import classify, read_stack
from tpmon.judge.stacks.profile import DataPart, Phase
from tpmon.model.stacks import StackFrame

TRAINER = "transformers/trainer.py"
MODULE = "Module._call_impl", SITE + "torch/nn/modules/module.py"
NEXT = "_BaseDataLoaderIter.__next__", SITE + "torch/utils/data/dataloader.py"
MAIN = "main", "/home/usr/train/train.py"
FIT = "fit", SITE + "lightning/pytorch/trainer/trainer.py"
LOOP = "_inner_training_loop", SITE + TRAINER


def lib(function: str, file: str) -> tuple[str, str]:
    return function, SITE + file


CASES = {
    # The line that waits for the card is in a library, and has no frame below it.
    "HF checks the loss for nan": ((MAIN, LOOP), Phase.SYNC, None),
    "HF logs the loss": ((MAIN, LOOP, lib("_maybe_log_save_evaluate", TRAINER)), Phase.SYNC, None),
    "HF logs to a service": (
        (MAIN, LOOP, lib("_maybe_log_save_evaluate", TRAINER), lib("log", "wandb/sdk/wandb_run.py")),
        Phase.LOGGING,
        None,
    ),
    "HF counts the items of a batch": ((MAIN, LOOP, lib("get_batch_samples", TRAINER)), Phase.SYNC, None),
    "HF waits for a batch": (
        (MAIN, LOOP, lib("get_batch_samples", TRAINER), NEXT, lib("_next_data", NEXT[1][len(SITE) :])),
        Phase.DATA_WAIT,
        None,
    ),
    "Lightning shows the loss in its bar": (
        (
            MAIN,
            FIT,
            lib("on_train_batch_end", "lightning/pytorch/callbacks/progress/tqdm_progress.py"),
            lib("convert_tensors_to_scalars.<locals>.to_item", "lightning/fabric/utilities/apply_func.py"),
        ),
        Phase.SYNC,
        None,
    ),
    "detectron2 gathers its losses": (
        (MAIN, lib("SimpleTrainer.write_metrics", "detectron2/engine/train_loop.py")),
        Phase.SYNC,
        None,
    ),
    # A compiled graph that runs is no compiling.
    "torch 2.4 runs a compiled graph": (
        (
            MAIN,
            MODULE,
            lib("_fn", "torch/_dynamo/eval_frame.py"),
            lib("CompiledFxGraph.__call__", "torch/_inductor/codecache.py"),
            ("call", "/tmp/torchinductor_usr/ab/cabc.py"),
        ),
        Phase.FORWARD,
        None,
    ),
    "torch compiles": ((MAIN, MODULE, lib("load", "torch/_inductor/codecache.py")), Phase.COMPILE, None),
    # Around the whole program.
    "a logger catches what main raises": (
        (lib("Logger.catch.<locals>.catch_wrapper", "loguru/_logger.py"), MAIN, MODULE),
        Phase.FORWARD,
        None,
    ),
    "mlflow logs by itself": (
        (
            lib("safe_patch_function", "mlflow/utils/autologging_utils/safety.py"),
            lib("patched_fit", "mlflow/pytorch/_lightning_autolog.py"),
            FIT,
            MODULE,
        ),
        Phase.FORWARD,
        None,
    ),
    "mlflow sends": ((MAIN, lib("log_metrics", "mlflow/tracking/fluent.py")), Phase.LOGGING, None),
    "training inside a bar of a logger": (
        (lib("update", "wandb/sdk/wandb_run.py"), ("train", "/home/usr/train/train.py"), MODULE),
        Phase.FORWARD,
        None,
    ),
    # Validation of trainers that are installed.
    "YOLO validates": (
        (
            MAIN,
            lib("_do_train", "ultralytics/engine/trainer.py"),
            lib("BaseValidator.__call__", "ultralytics/engine/validator.py"),
            MODULE,
        ),
        Phase.VALIDATION,
        None,
    ),
    "mmengine validates": (
        (MAIN, lib("BaseModel.val_step", "mmengine/model/base_model/base_model.py"), MODULE),
        Phase.VALIDATION,
        None,
    ),
    "a script of diffusers validates": (
        (MAIN, ("log_validation", "/home/usr/train/train_text_to_image.py"), MODULE),
        Phase.VALIDATION,
        None,
    ),
    # Copies.
    "Lightning copies a batch": (
        (
            MAIN,
            lib("batch_to_device", "lightning/pytorch/strategies/strategy.py"),
            lib("move_data_to_device", "lightning/fabric/utilities/apply_func.py"),
        ),
        Phase.DATA_WAIT,
        DataPart.COPY,
    ),
    "Lightning augments on the card": (
        (MAIN, lib("batch_to_device", "lightning/pytorch/strategies/strategy.py"), MODULE),
        Phase.FORWARD,
        None,
    ),
    "accelerate moves what a layer needs": (
        (
            MAIN,
            MODULE,
            lib("new_forward", "accelerate/hooks.py"),
            lib("send_to_device", "accelerate/utils/operations.py"),
        ),
        Phase.FORWARD,
        None,
    ),
    "accelerate copies a batch": (
        (MAIN, lib("__iter__", "accelerate/data_loader.py"), lib("send_to_device", "accelerate/utils/operations.py")),
        Phase.DATA_WAIT,
        DataPart.COPY,
    ),
    # Ranks, backward, loaders.
    "FSDP holds back its own launches": (
        (
            MAIN,
            MODULE,
            lib("_unshard", "torch/distributed/fsdp/_runtime_utils.py"),
            lib("Event.synchronize", "torch/cuda/streams.py"),
        ),
        Phase.SYNC,
        None,
    ),
    "FSDP gathers": (
        (
            MAIN,
            MODULE,
            lib("_unshard", "torch/distributed/fsdp/_runtime_utils.py"),
            lib("FlatParamHandle.unshard", "torch/distributed/fsdp/_flat_param.py"),
        ),
        Phase.COMMS,
        None,
    ),
    "Megatron waits for a save aside": (
        (
            MAIN,
            lib("maybe_finalize_async_save", "megatron/training/async_utils.py"),
            lib("close", "megatron/core/dist_checkpointing/strategies/async_utils.py"),
            ("join", "/env/lib/python3.11/multiprocessing/process.py"),
        ),
        Phase.CHECKPOINT,
        None,
    ),
    "Megatron writes a save aside": (
        (lib("write_preloaded_data", "megatron/core/dist_checkpointing/strategies/filesystem_async.py"),),
        Phase.CHECKPOINT,
        None,
    ),
    "NeMo loads with Megatron": (
        (
            MAIN,
            lib("load", "megatron/core/dist_checkpointing/serialization.py"),
            lib("load", "megatron/core/dist_checkpointing/strategies/torch.py"),
        ),
        Phase.LOAD,
        None,
    ),
    "Megatron goes back": (
        (MAIN, lib("backward_step", "megatron/core/pipeline_parallel/schedules.py")),
        Phase.BACKWARD,
        None,
    ),
    "a loader of tokens of one's own": (
        (MAIN, ("tokenizing_distributed_data_loader_with_state", "/home/usr/nano/dataloader.py")),
        Phase.DATA_WAIT,
        DataPart.FETCH,
    ),
    "who builds a loader waits for none": ((MAIN, ("train_dataloader", "/home/usr/nano/data.py")), Phase.OTHER, None),
    "DGL waits": ((MAIN, lib("_PrefetchingIter.__next__", "dgl/dataloading/dataloader.py")), Phase.DATA_WAIT, None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_stack_of_a_framework_is_in_its_phase(case):
    frames, phase, part = CASES[case]
    stack = tuple(StackFrame(function, file, line) for line, (function, file) in enumerate(frames, 1))
    assert classify(stack) == (phase, part)


def test_a_line_of_a_library_that_waits_proves_a_synchronise_and_is_named_by_the_users_line():
    stack = (StackFrame(*MAIN, 7), StackFrame(*LOOP, 2500))
    reading = read_stack(stack)
    assert reading.needs == {Need.NAN_CHECK_IN_STACK}
    assert "train.py:7" in reading.where
    logs = (StackFrame(*MAIN, 7), StackFrame("Trainer._maybe_log_save_evaluate", LOOP[1], 2600))
    assert read_stack(logs).needs == {Need.SYNC_IN_STACK}
