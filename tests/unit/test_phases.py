"""Which phase a stack is in: the innermost meaningful frame, and the regions that keep their insides."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tpmon.judge.advice_needs import Need
from tpmon.judge.phase_frames import PYTHON, TORCH
from tpmon.judge.phase_frameworks import FRAMEWORKS
from tpmon.judge.phase_kinds import GIVES_WAY
from tpmon.judge.phase_stack import is_library, mark_frame, read_stack
from tpmon.judge.phases import DataPart, Phase, classify
from tpmon.model.stacks import StackFrame

SITE = "/usr/lib/python3/dist-packages/"
PYTHON_LIB = "/usr/lib/python3.11/"

# Short names for the frames of the tables below: function and file.
FRAMES = {
    "main": ("main", "/home/usr/train/train.py"),
    "module": ("<module>", "/home/usr/train/train.py"),
    "train": ("train_one_epoch", "/home/usr/train/engine.py"),
    "step": ("training_step", "/home/usr/train/net.py"),
    "net": ("Net.forward", "/home/usr/train/net.py"),
    "decode": ("Images.decode", "/home/usr/train/data.py"),
    "user_collate": ("my_collate", "/home/usr/train/data.py"),
    "collator": ("Padder.__call__", "/home/usr/train/data.py"),
    "get_batch": ("get_batch", "/home/usr/train/data.py"),
    "validate": ("validate", "/home/usr/train/train.py"),
    "evaluate": ("Runner.evaluate", "/home/usr/train/runner.py"),
    "validate_input": ("validate_input", "/home/usr/train/net.py"),
    "save_checkpoint": ("save_checkpoint", "/home/usr/train/train.py"),
    "pydantic_validate": ("validate", SITE + "pydantic/main.py"),
    "next": ("_BaseDataLoaderIter.__next__", SITE + "torch/utils/data/dataloader.py"),
    "next_data": ("_next_data", SITE + "torch/utils/data/dataloader.py"),
    "get_data": ("_get_data", SITE + "torch/utils/data/dataloader.py"),
    "try_get": ("_try_get_data", SITE + "torch/utils/data/dataloader.py"),
    "next_index": ("_next_index", SITE + "torch/utils/data/dataloader.py"),
    "loader_init": ("_MultiProcessingDataLoaderIter.__init__", SITE + "torch/utils/data/dataloader.py"),
    "shutdown": ("_shutdown_workers", SITE + "torch/utils/data/dataloader.py"),
    "stateful": ("_next_data", SITE + "torchdata/stateful_dataloader/stateful_dataloader.py"),
    "fetch_iter": ("_IterableDatasetFetcher.fetch", SITE + "torch/utils/data/_utils/fetch.py"),
    "fetch_old": ("fetch", SITE + "torch/utils/data/_utils/fetch.py"),
    "pad": ("pad_and_stack", "/home/usr/train/data.py"),
    "timed": ("timed.<locals>.wrapper", "/home/usr/train/tools.py"),
    "item": ("Images.__getitem__", "/home/usr/train/data.py"),
    "fetch": ("_MapDatasetFetcher.fetch", SITE + "torch/utils/data/_utils/fetch.py"),
    "listcomp": ("_MapDatasetFetcher.fetch.<locals>.<listcomp>", SITE + "torch/utils/data/_utils/fetch.py"),
    "default_collate": ("default_collate", SITE + "torch/utils/data/_utils/collate.py"),
    "pin": ("pin_memory", SITE + "torch/utils/data/_utils/pin_memory.py"),
    "queue_get": ("Queue.get", PYTHON_LIB + "multiprocessing/queues.py"),
    "rebuild": ("rebuild_storage_fd", SITE + "torch/multiprocessing/reductions.py"),
    "sampler": ("RandomSampler.__iter__", SITE + "torch/utils/data/sampler.py"),
    "call": ("Module._call_impl", SITE + "torch/nn/modules/module.py"),
    "linear": ("Linear.forward", SITE + "torch/nn/modules/linear.py"),
    "functional": ("cross_entropy", SITE + "torch/nn/functional.py"),
    "to": ("Module._apply", SITE + "torch/nn/modules/module.py"),
    "backward": ("Tensor.backward", SITE + "torch/_tensor.py"),
    "engine": ("_engine_run_backward", SITE + "torch/autograd/graph.py"),
    "wrapper": ("Optimizer.profile_hook_step.<locals>.wrapper", SITE + "torch/optim/optimizer.py"),
    "adam": ("_multi_tensor_adam", SITE + "torch/optim/adam.py"),
    "my_opt": ("MyOptimizer.step", "/home/usr/train/opt.py"),
    "schedule": ("LRScheduler.step", SITE + "torch/optim/lr_scheduler.py"),
    "clip": ("clip_grad_norm_", SITE + "torch/nn/utils/clip_grad.py"),
    "scaler": ("GradScaler.step", SITE + "torch/amp/grad_scaler.py"),
    "scaler_item": ("GradScaler._maybe_opt_step.<locals>.<genexpr>", SITE + "torch/amp/grad_scaler.py"),
    "synchronize": ("synchronize", SITE + "torch/cuda/__init__.py"),
    "event": ("Event.synchronize", SITE + "torch/cuda/streams.py"),
    "empty_cache": ("empty_cache", SITE + "torch/cuda/memory.py"),
    "format": ("Tensor.__format__", SITE + "torch/_tensor.py"),
    "c10d": ("_exception_logger.<locals>.wrapper", SITE + "torch/distributed/c10d_logger.py"),
    "all_reduce": ("all_reduce", SITE + "torch/distributed/distributed_c10d.py"),
    "barrier": ("barrier", SITE + "torch/distributed/distributed_c10d.py"),
    "init_group": ("init_process_group", SITE + "torch/distributed/distributed_c10d.py"),
    "rendezvous": ("_env_rendezvous_handler", SITE + "torch/distributed/rendezvous.py"),
    "ddp": ("DistributedDataParallel.forward", SITE + "torch/nn/parallel/distributed.py"),
    "ddp_sync": ("DistributedDataParallel._sync_buffers", SITE + "torch/nn/parallel/distributed.py"),
    "unshard": ("FSDPParamGroup.unshard", SITE + "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py"),
    "save": ("save", SITE + "torch/serialization.py"),
    "load": ("load", SITE + "torch/serialization.py"),
    "dcp_save": ("save", SITE + "torch/distributed/checkpoint/state_dict_saver.py"),
    "dcp_load": ("load", SITE + "torch/distributed/checkpoint/state_dict_loader.py"),
    "from_pretrained": ("PreTrainedModel.from_pretrained", SITE + "transformers/modeling_utils.py"),
    "load_dataset": ("load_dataset", SITE + "datasets/load.py"),
    "users_datasets": ("load_all", "/home/usr/train/datasets/load.py"),
    "import": ("_find_and_load", "<frozen importlib._bootstrap>"),
    "torch_module": ("<module>", SITE + "torch/__init__.py"),
    "dynamo_module": ("<module>", SITE + "torch/_dynamo/convert_frame.py"),
    "decorate": ("_use_grad", SITE + "torch/optim/optimizer.py"),
    "compile_wrapper": ("compile_wrapper", SITE + "torch/_dynamo/eval_frame.py"),
    "convert": ("ConvertFrame.__call__", SITE + "torch/_dynamo/convert_frame.py"),
    "codecache": ("CppCodeCache.load_async", SITE + "torch/_inductor/codecache.py"),
    "autotune": ("Autotuner._bench", SITE + "triton/runtime/autotuner.py"),
    "checkpoint": ("checkpoint", SITE + "torch/utils/checkpoint.py"),
    "unpack": ("_checkpoint_hook.unpack_hook", SITE + "torch/utils/checkpoint.py"),
    "logging": ("StreamHandler.emit", PYTHON_LIB + "logging/__init__.py"),
    "tqdm_iter": ("tqdm.__iter__", SITE + "tqdm/std.py"),
    "tqdm": ("tqdm.update", SITE + "tqdm/std.py"),
    "wandb": ("Run.log", SITE + "wandb/sdk/wandb_run.py"),
    "metric": ("Metric.forward", SITE + "torchmetrics/metric.py"),
    "cmdloop": ("Cmd.cmdloop", PYTHON_LIB + "cmd.py"),
    "pdb_main": ("main", PYTHON_LIB + "pdb.py"),
    "bdb_run": ("Bdb.run", PYTHON_LIB + "bdb.py"),
    "ipython_run": ("InteractiveShell.run_code", SITE + "IPython/core/interactiveshell.py"),
    "prompt": ("Application.run", SITE + "prompt_toolkit/application/application.py"),
    "pl_run": ("Trainer.fit", SITE + "lightning/pytorch/trainer/trainer.py"),
    "pl_eval": ("_EvaluationLoop.run", SITE + "lightning/pytorch/loops/evaluation_loop.py"),
    "pl_fetch": ("_PrefetchDataFetcher.__next__", SITE + "pytorch_lightning/loops/fetchers.py"),
    "pl_step": (
        "_AutomaticOptimization._training_step",
        SITE + "lightning/pytorch/loops/optimization/automatic.py",
    ),
    "pl_closure": ("Closure.closure", SITE + "lightning/pytorch/loops/optimization/automatic.py"),
    "pl_save": (
        "_CheckpointConnector.save_checkpoint",
        SITE + "lightning/pytorch/trainer/connectors/checkpoint_connector.py",
    ),
    "hf_inner": ("Trainer._inner_training_loop", SITE + "transformers/trainer.py"),
    "hf_batches": ("Trainer.get_batch_samples", SITE + "transformers/trainer.py"),
    "hf_step": ("Trainer.training_step", SITE + "transformers/trainer.py"),
    "hf_prepare": ("Trainer._prepare_inputs", SITE + "transformers/trainer.py"),
    "hf_log": ("Trainer._maybe_log_save_evaluate", SITE + "transformers/trainer.py"),
    "hf_evaluate": ("Trainer.evaluate", SITE + "transformers/trainer.py"),
    "hf_save": ("Trainer._save_checkpoint", SITE + "transformers/trainer.py"),
    "acc_iter": ("DataLoaderShard.__iter__", SITE + "accelerate/data_loader.py"),
    "acc_gather": ("gather", SITE + "accelerate/utils/operations.py"),
    "acc_backward": ("Accelerator.backward", SITE + "accelerate/accelerator.py"),
    "ds_step": ("DeepSpeedEngine.step", SITE + "deepspeed/runtime/engine.py"),
    "ds_backward": ("DeepSpeedEngine.backward", SITE + "deepspeed/runtime/engine.py"),
    "ds_gather": (
        "PartitionedParameterCoordinator.fetch_sub_module",
        SITE + "deepspeed/runtime/zero/partitioned_param_coordinator.py",
    ),
    "ds_comm": ("all_reduce", SITE + "deepspeed/comm/comm.py"),
    "timm_iter": ("PrefetchLoader.__iter__", SITE + "timm/data/loader.py"),
    "timm_saver": ("CheckpointSaver.save_checkpoint", SITE + "timm/utils/checkpoint_saver.py"),
    "sgd_module": ("AveragedModel.forward", SITE + "torch/optim/swa_utils.py"),
}


def stack(names: str) -> tuple[StackFrame, ...]:
    """Build a stack from short names, outermost first."""
    return tuple(StackFrame(*FRAMES[name], line) for line, name in enumerate(names.split(), 1))


TABLE = [
    # Plain loops
    ("module main next next_data get_data try_get queue_get", Phase.DATA_WAIT, DataPart.QUEUE),
    ("module main next next_data get_data try_get queue_get rebuild", Phase.DATA_WAIT, DataPart.COPY),
    ("module main next next_data fetch listcomp decode", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch_iter decode", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch_old decode", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch timed item decode", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch_iter user_collate", Phase.DATA_WAIT, DataPart.COLLATE),
    ("module main next next_data fetch default_collate", Phase.DATA_WAIT, DataPart.COLLATE),
    ("module main next next_data fetch user_collate", Phase.DATA_WAIT, DataPart.COLLATE),
    ("module main next next_data fetch collator", Phase.DATA_WAIT, DataPart.COLLATE),
    ("module main next next_data pin", Phase.DATA_WAIT, DataPart.COPY),
    ("module main next next_data next_index sampler", Phase.DATA_WAIT, DataPart.SAMPLER),
    ("module main loader_init", Phase.DATA_WAIT, DataPart.START),
    ("module main next next_data shutdown", Phase.DATA_WAIT, DataPart.START),
    ("module main stateful fetch item decode", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main get_batch", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main call net call linear", Phase.FORWARD, None),
    ("module main functional", Phase.FORWARD, None),
    ("module main backward engine", Phase.BACKWARD, None),
    ("module main wrapper adam", Phase.OPTIMIZER, None),
    ("module main wrapper my_opt", Phase.OPTIMIZER, None),
    ("module main wrapper my_opt functional", Phase.OPTIMIZER, None),
    ("module main schedule", Phase.OPTIMIZER, None),
    ("module main clip", Phase.OPTIMIZER, None),
    ("module main scaler wrapper adam", Phase.OPTIMIZER, None),
    ("module main scaler scaler_item", Phase.SYNC, None),
    ("module main synchronize", Phase.SYNC, None),
    ("module main call net event", Phase.SYNC, None),
    ("module main empty_cache", Phase.SYNC, None),
    ("module main format", Phase.SYNC, None),
    ("module main", Phase.OTHER, None),
    ("module main call sgd_module call net", Phase.FORWARD, None),
    # A data set may do anything: it stays the wait for data, but for waiting on other ranks.
    ("module main next next_data fetch item decode load", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch item decode call linear", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch item decode save", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch item decode logging", Phase.DATA_WAIT, DataPart.FETCH),
    ("module main next next_data fetch item decode c10d barrier", Phase.COMMS, None),
    # Ranks
    ("module main c10d all_reduce", Phase.COMMS, None),
    ("module main backward engine c10d all_reduce", Phase.COMMS, None),
    ("module main init_group rendezvous", Phase.COMMS, None),
    ("module main call ddp ddp_sync", Phase.COMMS, None),
    ("module main call ddp call net", Phase.FORWARD, None),
    ("module main call unshard", Phase.COMMS, None),
    ("module main dcp_save c10d all_reduce", Phase.CHECKPOINT, None),
    ("module main dcp_load c10d all_reduce", Phase.LOAD, None),
    # Files
    ("module main save", Phase.CHECKPOINT, None),
    ("module main save_checkpoint", Phase.CHECKPOINT, None),
    ("module main load", Phase.LOAD, None),
    ("module main from_pretrained load", Phase.LOAD, None),
    ("module main load_dataset", Phase.LOAD, None),
    ("module main users_datasets", Phase.OTHER, None),
    ("module main to", Phase.LOAD, None),
    # Validation outranks what it waits for; training inside it is training.
    ("module main validate next next_data get_data", Phase.VALIDATION, None),
    ("module main validate call net", Phase.VALIDATION, None),
    ("module main evaluate c10d all_reduce", Phase.VALIDATION, None),
    ("module main evaluate train call net", Phase.FORWARD, None),
    ("module main evaluate backward engine", Phase.BACKWARD, None),
    ("module main validate save", Phase.CHECKPOINT, None),
    ("module main pydantic_validate", Phase.OTHER, None),
    ("module main call net validate_input", Phase.FORWARD, None),
    ("module main call net validate", Phase.FORWARD, None),
    # Logging
    ("module main logging", Phase.LOGGING, None),
    ("module main call net logging", Phase.LOGGING, None),
    ("module main logging format", Phase.LOGGING, None),
    ("module main tqdm_iter next next_data get_data", Phase.DATA_WAIT, DataPart.QUEUE),
    ("module main tqdm_iter tqdm", Phase.LOGGING, None),
    ("module main wandb", Phase.LOGGING, None),
    ("module main call metric call linear", Phase.LOGGING, None),
    # Imports: a library's own code at import is import, a user's is what it is.
    ("module import torch_module", Phase.IMPORT, None),
    ("module main call net import dynamo_module", Phase.IMPORT, None),
    ("module import torch_module decorate", Phase.IMPORT, None),
    ("module import torch_module convert", Phase.IMPORT, None),
    ("import module main call net", Phase.FORWARD, None),
    ("import module next next_data get_data", Phase.DATA_WAIT, DataPart.QUEUE),
    # The compiler compiles once; its wrappers run in every step.
    ("module main call compile_wrapper call net", Phase.FORWARD, None),
    ("module main compile_wrapper", Phase.FORWARD, None),
    ("module main call compile_wrapper convert codecache", Phase.COMPILE, None),
    ("module main call compile_wrapper convert import torch_module", Phase.COMPILE, None),
    ("module main backward engine codecache", Phase.COMPILE, None),
    ("module main call net autotune", Phase.COMPILE, None),
    # Activation checkpointing
    ("module main call net checkpoint call linear", Phase.FORWARD, None),
    ("module main backward engine unpack call net", Phase.BACKWARD, None),
    # Prompts; a debugger or a notebook around the program is none.
    ("module main cmdloop", Phase.INPUT, None),
    ("module main next next_data fetch item decode cmdloop", Phase.INPUT, None),
    ("pdb_main bdb_run module main call net", Phase.FORWARD, None),
    ("ipython_run module main backward engine", Phase.BACKWARD, None),
    ("prompt", Phase.INPUT, None),
    # Lightning runs the step inside the optimizer's
    ("main pl_run wrapper pl_closure pl_step step", Phase.FORWARD, None),
    ("main pl_run wrapper pl_closure pl_step step call net", Phase.FORWARD, None),
    ("main pl_run wrapper pl_closure backward engine", Phase.BACKWARD, None),
    ("main pl_run wrapper adam", Phase.OPTIMIZER, None),
    ("main pl_run pl_fetch next next_data get_data", Phase.DATA_WAIT, DataPart.QUEUE),
    ("main pl_run pl_eval pl_fetch next next_data get_data", Phase.VALIDATION, None),
    ("main pl_run pl_eval pl_save save", Phase.CHECKPOINT, None),
    # Hugging Face
    ("main hf_inner hf_batches acc_iter next next_data fetch item decode", Phase.DATA_WAIT, DataPart.FETCH),
    ("main hf_inner hf_batches acc_iter c10d all_reduce", Phase.COMMS, None),
    ("main hf_inner hf_step hf_prepare", Phase.DATA_WAIT, DataPart.COPY),
    ("main hf_inner hf_step call linear", Phase.FORWARD, None),
    ("main hf_inner hf_step acc_backward backward engine", Phase.BACKWARD, None),
    ("main hf_inner hf_log", Phase.LOGGING, None),
    ("main hf_inner hf_log hf_evaluate next next_data get_data", Phase.VALIDATION, None),
    ("main hf_inner hf_log hf_save save", Phase.CHECKPOINT, None),
    ("evaluate hf_inner hf_step call linear", Phase.FORWARD, None),
    ("module main evaluate acc_gather", Phase.VALIDATION, None),
    ("module main acc_gather", Phase.COMMS, None),
    # DeepSpeed and timm, from their sources
    ("module main ds_backward backward engine", Phase.BACKWARD, None),
    ("module main ds_step adam", Phase.OPTIMIZER, None),
    ("module main ds_step ds_comm", Phase.COMMS, None),
    ("module main call ds_gather", Phase.COMMS, None),
    ("module train timm_iter next next_data get_data", Phase.DATA_WAIT, DataPart.QUEUE),
    ("module train timm_iter", Phase.DATA_WAIT, DataPart.COPY),
    ("module main timm_saver save", Phase.CHECKPOINT, None),
]


@pytest.mark.parametrize("below", ["", " decode"])
def test_what_a_map_style_fetcher_calls_beside_items_is_the_collate_function(below: str) -> None:
    names = f"module main next next_data fetch pad{below}"
    assert classify(stack(names)) == (Phase.DATA_WAIT, DataPart.COLLATE)
    # Python 3.10 does not say which fetcher it is, and a generator may have any name.
    assert classify(stack(names.replace("fetch", "fetch_old"))) == (Phase.DATA_WAIT, DataPart.FETCH)


@pytest.mark.parametrize(("names", "phase", "part"), TABLE, ids=[row[0].replace(" ", ">") for row in TABLE])
def test_the_innermost_meaningful_frame_wins(names: str, phase: Phase, part: DataPart | None) -> None:
    assert classify(stack(names)) == (phase, part)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("module main call net call linear", "forward net.py:4"),
        ("module main next next_data fetch item decode", "data wait: decode in data.py:7"),
        ("module main next next_data get_data try_get", "data wait: queue train.py:2"),
        ("module main backward engine c10d all_reduce", "all_reduce (backward) train.py:2"),
        ("module main call ddp ddp_sync", "broadcast of buffers (ddp forward) train.py:2"),
        ("module main c10d barrier", "barrier train.py:2"),
        ("module main synchronize", "sync: synchronize train.py:2"),
        ("module main wandb", "logging: wandb train.py:2"),
        ("module import torch_module", "import: torch train.py:1"),
        ("module main backward engine unpack call net", "backward: recompute net.py:7"),
        ("module main validate call net", "validation net.py:5"),
        ("module main", "main train.py:2"),
        ("call linear", "forward"),
        ("queue_get", "get in queues.py:1"),
    ],
)
def test_words_name_the_phase_and_the_users_own_line(names: str, words: str) -> None:
    assert read_stack(stack(names)).where == words


def test_python_3_10_names_without_classes_are_read_alike() -> None:
    for names, phase, part in TABLE:
        plain = tuple(
            StackFrame(frame.function.rpartition(".")[2], frame.file, frame.line) for frame in stack(names)
        )
        assert classify(plain) == (phase, part), names


def test_installed_packages_and_python_are_no_user_code() -> None:
    for file in (
        "/home/usr/train/.venv/lib/python3.12/site-packages/torch/nn/functional.py",
        "/usr/lib/python3.11/selectors.py",
        "/opt/conda/lib/python3.10/threading.py",
        "/usr/lib64/python3.9/socket.py",
        "<frozen importlib._bootstrap>",
        "<string>",
        "/tmp/torchinductor_usr/ab/cab.py",
        "/opt/venv/bin/torchrun",
        "/home/usr/hook.zip/tpmon/hook/patches.py",
    ):
        assert is_library(file), file
    for file in (
        "/home/usr/train/train.py",
        "/workspace/lib/data.py",
        "train.py",
        "/srv/python/run.py",
        "<stdin>",
    ):
        assert not is_library(file), file


def test_an_editable_torch_is_known_by_the_end_of_its_paths() -> None:
    frames = (
        StackFrame("main", "/home/usr/train/train.py", 1),
        StackFrame("Tensor.backward", "/home/usr/pytorch/torch/_tensor.py", 2),
    )
    assert classify(frames) == (Phase.BACKWARD, None)
    assert read_stack(frames).where == "backward train.py:1"


def test_needs_tell_what_a_stack_proves() -> None:
    assert Need.DDP_IN_STACK in read_stack(stack("module main call ddp call net")).needs
    assert Need.FSDP_IN_STACK in read_stack(stack("module main call unshard")).needs
    assert Need.RECOMPUTE_IN_STACK in read_stack(stack("module main backward engine unpack call net")).needs
    assert Need.ALLOCATOR_IN_STACK in read_stack(stack("module main empty_cache")).needs
    assert Need.COLLATE_IN_STACK in read_stack(stack("module main next next_data fetch user_collate")).needs
    logging_in_data = read_stack(stack("module main next next_data fetch item decode logging")).needs
    assert Need.LOGGING_IN_STACK not in logging_in_data
    at_import = read_stack(stack("module import torch_module convert")).needs
    assert at_import == {Need.IMPORT_IN_STACK}


def test_a_stack_without_frames_says_so() -> None:
    assert classify(()) == (Phase.OTHER, None)
    assert read_stack(()).where == "no Python frames"


def test_names_of_others_cannot_reach_the_screen_raw() -> None:
    frames = (StackFrame("\x1b[31mmain" * 40, "/home/usr/\x1b]0;x\x07.py" * 9, 3),)
    words = read_stack(frames).where
    assert words.isprintable()
    assert len(words) < 120


def test_no_rule_is_shadowed_by_an_earlier_one() -> None:
    for rule in (*TORCH, *PYTHON, *FRAMEWORKS):
        path = rule.path + "some_file.py" if rule.path.endswith("/") else rule.path
        file = path if path.startswith("<") else SITE + path
        for name in rule.functions or {"some_function"}:
            mark = mark_frame(name, file)
            assert mark == rule.mark, (rule.path, name)


def test_every_phase_says_what_it_gives_way_to() -> None:
    assert set(GIVES_WAY) == set(Phase)
    assert all(Phase.INPUT in inner for phase, inner in GIVES_WAY.items() if phase is not Phase.INPUT)


_TEXT = st.text(max_size=30)
_FRAME = st.builds(
    StackFrame,
    st.one_of(_TEXT, st.sampled_from([function for function, _ in FRAMES.values()])),
    st.one_of(_TEXT, st.sampled_from([file for _, file in FRAMES.values()])),
    st.integers(0, 10_000),
)


@example((StackFrame("", "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", 0),))
@given(st.lists(_FRAME, max_size=40).map(tuple))
def test_any_frames_are_read_without_raising(frames: tuple[StackFrame, ...]) -> None:
    reading = read_stack(frames)
    assert (reading.phase, reading.part) == classify(frames)
    assert reading.part is None or reading.phase is Phase.DATA_WAIT
    assert reading.where
    assert reading.where.isprintable()
