"""Frames of training frameworks as their versions have them: which phase each stack is in."""

from pathlib import Path

import pytest

from tests.phase_stacks import SITE
from tpmon.judge.answers.needs import Need
from tpmon.judge.stacks.classify import classify, read_stack
from tpmon.judge.stacks.profile import DataPart, Phase
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.probe.spy.text import parse_raw

NAMES = {
    "main": ("main", "/home/usr/train/train.py"),
    "train": ("train", "/home/usr/train/train.py"),
    "module": ("Module._call_impl", f"{SITE}torch/nn/modules/module.py"),
    "next": ("_BaseDataLoaderIter.__next__", f"{SITE}torch/utils/data/dataloader.py"),
    "fit": ("fit", f"{SITE}lightning/pytorch/trainer/trainer.py"),
    "hf": ("_inner_training_loop", f"{SITE}transformers/trainer.py"),
}
HF = "transformers/trainer.py"
STRATEGY, APPLY = "lightning/pytorch/strategies/strategy.py", "lightning/fabric/utilities/apply_func.py"
FSDP, MEGATRON = "torch/distributed/fsdp", "megatron/core/dist_checkpointing"


def frames_of(text: str) -> tuple[StackFrame, ...]:
    """Build a stack: "main > function file", a file without a slash at its begin is that of a library."""
    stack = []
    for line, one in enumerate(text.split(" > "), 1):
        function, _, file = one.partition(" ")
        named = NAMES.get(function) if not file else None
        stack.append(StackFrame(*(named or (function, file if file.startswith("/") else SITE + file)), line))
    return tuple(stack)


CASES = {
    (Phase.SYNC, None): {
        "HF checks the loss for nan": "main > hf",
        "HF logs the loss": f"main > hf > _maybe_log_save_evaluate {HF}",
        "HF counts the items of a batch": f"main > hf > get_batch_samples {HF}",
        "Lightning shows the loss in its bar": (
            "main > fit > on_train_batch_end lightning/pytorch/callbacks/progress/tqdm_progress.py"
            f" > convert_tensors_to_scalars.<locals>.to_item {APPLY}"
        ),
        "detectron2 gathers its losses": "main > SimpleTrainer.write_metrics detectron2/engine/train_loop.py",
        "FSDP holds back its own launches": (
            f"main > module > _unshard {FSDP}/_runtime_utils.py > Event.synchronize torch/cuda/streams.py"
        ),
    },
    (Phase.LOGGING, None): {
        "HF logs to a service": f"main > hf > _maybe_log_save_evaluate {HF} > log wandb/sdk/wandb_run.py",
        "mlflow sends": "main > log_metrics mlflow/tracking/fluent.py",
    },
    (Phase.DATA_WAIT, None): {
        "HF waits for a batch": (
            f"main > hf > get_batch_samples {HF} > next > _next_data torch/utils/data/dataloader.py"
        ),
        "DGL waits": "main > _PrefetchingIter.__next__ dgl/dataloading/dataloader.py",
    },
    (Phase.FORWARD, None): {
        "torch 2.4 runs a compiled graph": (
            "main > module > _fn torch/_dynamo/eval_frame.py"
            " > CompiledFxGraph.__call__ torch/_inductor/codecache.py > call /tmp/torchinductor_usr/ab/cabc.py"
        ),
        "a logger catches what main raises": "Logger.catch.<locals>.catch_wrapper loguru/_logger.py > main > module",
        "mlflow logs by itself": (
            "safe_patch_function mlflow/utils/autologging_utils/safety.py"
            " > patched_fit mlflow/pytorch/_lightning_autolog.py > fit > module"
        ),
        "training inside a bar of a logger": "update wandb/sdk/wandb_run.py > train > module",
        "Lightning augments on the card": f"main > batch_to_device {STRATEGY} > module",
        "accelerate moves what a layer needs": (
            "main > module > new_forward accelerate/hooks.py > send_to_device accelerate/utils/operations.py"
        ),
    },
    (Phase.COMPILE, None): {"torch compiles": "main > module > load torch/_inductor/codecache.py"},
    (Phase.VALIDATION, None): {
        "YOLO validates": (
            "main > _do_train ultralytics/engine/trainer.py"
            " > BaseValidator.__call__ ultralytics/engine/validator.py > module"
        ),
        "mmengine validates": "main > BaseModel.val_step mmengine/model/base_model/base_model.py > module",
        "a script of diffusers validates": "main > log_validation /home/usr/train/train_text_to_image.py > module",
    },
    (Phase.DATA_WAIT, DataPart.COPY): {
        "Lightning copies a batch": f"main > batch_to_device {STRATEGY} > move_data_to_device {APPLY}",
        "accelerate copies a batch": (
            "main > __iter__ accelerate/data_loader.py > send_to_device accelerate/utils/operations.py"
        ),
    },
    (Phase.COMMS, None): {
        "FSDP gathers": (
            f"main > module > _unshard {FSDP}/_runtime_utils.py > FlatParamHandle.unshard {FSDP}/_flat_param.py"
        )
    },
    (Phase.CHECKPOINT, None): {
        "Megatron waits for a save aside": (
            "main > maybe_finalize_async_save megatron/training/async_utils.py"
            f" > close {MEGATRON}/strategies/async_utils.py > join /env/lib/python3.11/multiprocessing/process.py"
        ),
        "Megatron writes a save aside": f"write_preloaded_data {MEGATRON}/strategies/filesystem_async.py",
    },
    (Phase.LOAD, None): {
        "NeMo loads with Megatron": f"main > load {MEGATRON}/serialization.py > load {MEGATRON}/strategies/torch.py"
    },
    (Phase.BACKWARD, None): {"Megatron goes back": "main > backward_step megatron/core/pipeline_parallel/schedules.py"},
    (Phase.DATA_WAIT, DataPart.FETCH): {
        "a loader of tokens of one's own": (
            "main > tokenizing_distributed_data_loader_with_state /home/usr/nano/dataloader.py"
        )
    },
    (Phase.OTHER, None): {"who builds a loader waits for none": "main > train_dataloader /home/usr/nano/data.py"},
}
"""Stacks of frameworks by name, by the phase and the part that they are in."""


@pytest.mark.parametrize(
    ("text", "inside"),
    [pytest.param(text, inside, id=name) for inside, stacks in CASES.items() for name, text in stacks.items()],
)
def test_a_stack_of_a_framework_is_in_its_phase(text, inside):
    assert classify(frames_of(text)) == inside


def test_a_line_of_a_library_that_waits_proves_a_synchronise_and_is_named_by_the_users_line():
    reading = read_stack(frames_of("main > hf"))
    assert reading.needs == {Need.NAN_CHECK_IN_STACK}
    assert "train.py:1" in reading.where
    assert read_stack(frames_of(f"main > Trainer._maybe_log_save_evaluate {HF}")).needs == {Need.SYNC_IN_STACK}


# real stacks

FILES = sorted((Path(__file__).parents[2] / "data").glob("stacks_*.tsv"))
PID = 100


def _read(path: Path) -> list[tuple[str, str, StackCount]]:
    """Return label, words and stack of every line."""
    rows = []
    for line in path.read_text().splitlines():
        label, words, raw = line.split("\t")
        (stack,) = parse_raw(raw.encode(), PID).stacks
        rows.append((label, words, stack))
    return rows


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_real_stacks_are_read_as_labelled(path):
    for label, words, stack in _read(path):
        phase, part = classify(stack.frames)
        assert "/".join(one.value for one in (phase, part) if one is not None) == label, words
        assert read_stack(stack.frames).where == words


def test_the_captured_programs_show_every_phase_that_has_frames_on_a_cpu():
    labels = {label for path in FILES for label, _, _ in _read(path)}
    phases = {label.partition("/")[0] for label in labels}
    assert phases == {phase.value for phase in Phase} - {Phase.SYNC.value}
    parts = {label.partition("/")[2] for label in labels if "/" in label}
    assert parts >= {part.value for part in DataPart} - {DataPart.SAMPLER.value}
