"""The frames of torch, the standard library and training frameworks that tell a phase. Pure data.

The names are those of torch 2.13 and CPython 3.11, with older ones where a file moved; a name that a
version lacks is never met there. What runs in C has no frame: ``.item()``, ``.cpu()``,
``Work.wait()``, ``print`` and ``input()`` show only the Python line that called them.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tpmon.judge.answers.needs import Need
from tpmon.judge.stacks.phases import DataPart, Mark, Phase
from tpmon.model.frozen import dataclass

QUEUE = Mark(Phase.DATA_WAIT, DataPart.QUEUE)
FETCH = Mark(Phase.DATA_WAIT, DataPart.FETCH)
COLLATE = Mark(Phase.DATA_WAIT, DataPart.COLLATE, Need.COLLATE_IN_STACK)
START = Mark(Phase.DATA_WAIT, DataPart.START)
COPY = Mark(Phase.DATA_WAIT, DataPart.COPY, Need.COPY_IN_STACK)
UNPACK = Mark(Phase.DATA_WAIT, DataPart.COPY)
"""It takes a batch out of shared memory, or pins it: nothing goes to a device yet."""
SAMPLER = Mark(Phase.DATA_WAIT, DataPart.SAMPLER)
WAIT = Mark(Phase.DATA_WAIT)
TORCH_QUEUE = Mark(Phase.DATA_WAIT, DataPart.QUEUE, Need.TORCH_LOADER)
TORCH_WAIT = Mark(Phase.DATA_WAIT, need=Need.TORCH_LOADER)
FORWARD = Mark(Phase.FORWARD)
FORWARD_HINT = Mark(Phase.FORWARD, weak=True)
BACKWARD = Mark(Phase.BACKWARD)
OPTIMIZER = Mark(Phase.OPTIMIZER)
CLIP = Mark(Phase.OPTIMIZER, named=True)
SYNC = Mark(Phase.SYNC, need=Need.SYNC_IN_STACK, named=True)
SCALER_SYNC = Mark(Phase.SYNC, need=Need.SCALER_IN_STACK, named=True)
NAN_CHECK = Mark(Phase.SYNC, need=Need.NAN_CHECK_IN_STACK, named=True)
ALLOCATOR = Mark(Phase.SYNC, need=Need.ALLOCATOR_IN_STACK, named=True)
COMMS = Mark(Phase.COMMS, named=True)
DDP = Mark(Phase.FORWARD, need=Need.DDP_IN_STACK)
DDP_COMMS = Mark(Phase.COMMS, need=Need.DDP_IN_STACK, named=True)
FSDP = Mark(Phase.FORWARD, need=Need.FSDP_IN_STACK)
FSDP_COMMS = Mark(Phase.COMMS, need=Need.FSDP_IN_STACK, named=True)
FSDP_SEEN = Mark(None, need=Need.FSDP_IN_STACK)
RECOMPUTE = Mark(Phase.FORWARD, need=Need.RECOMPUTE_IN_STACK)
SAVE = Mark(Phase.CHECKPOINT, need=Need.SAVE_IN_STACK)
LOAD = Mark(Phase.LOAD, need=Need.LOAD_IN_STACK)
LOAD_FILE = Mark(Phase.LOAD, DataPart.READ, Need.LOAD_IN_STACK)
BUILD = Mark(Phase.LOAD)
READ_SET = Mark(Phase.LOAD, DataPart.READ)
COMPILE = Mark(Phase.COMPILE, need=Need.COMPILE_IN_STACK)
LOGGING = Mark(Phase.LOGGING, need=Need.LOGGING_IN_STACK, named=True)
VALIDATION = Mark(Phase.VALIDATION, need=Need.VALIDATION_IN_STACK)
IMPORT = Mark(Phase.IMPORT, need=Need.IMPORT_IN_STACK)
INPUT = Mark(Phase.INPUT)


@dataclass(frozen=True, slots=True)
class Rule:
    """Give a mark to functions of a file; no functions named: to all but those in ``but``.

    ``path`` is the end of a file's path ("torch/serialization.py") or, ending in "/", a folder
    of it. ``installed``: the folder's name is a common word, so it must be a library's.
    """

    path: str
    mark: Mark
    functions: frozenset[str] = frozenset()
    but: frozenset[str] = frozenset()
    installed: bool = False


def only(path: str, mark: Mark, functions: str) -> Rule:
    """Give ``mark`` to the functions named in ``functions``, divided by spaces."""
    return Rule(path, mark, frozenset(functions.split()))


def but(path: str, mark: Mark, functions: str = "") -> Rule:
    """Give ``mark`` to every function of the path but those named."""
    return Rule(path, mark, but=frozenset(functions.split()))


def library(name: str, mark: Mark, functions: str = "") -> Rule:
    """Give ``mark`` to the functions of an installed package but those named."""
    return Rule(f"{name}/", mark, but=frozenset(functions.split()), installed=True)


LOADER_FILES = ("torch/utils/data/dataloader.py", "torchdata/stateful_dataloader/stateful_dataloader.py")
_LOADER = tuple(
    rule
    for path in LOADER_FILES
    for rule in (
        only(path, TORCH_QUEUE, "_get_data _try_get_data"),
        only(path, SAMPLER, "_next_index"),
        only(path, START, "__init__ __iter__ _get_iterator _reset _shutdown_workers __del__"),
        only(path, START, "_clean_up_worker _clean_up_persistent_workers_atexit"),
        only(path, UNPACK, "_process_data"),
        only(path, TORCH_WAIT, "__next__ _next_data _try_put_index"),
    )
)

_FULLY_SHARD = tuple(
    rule
    # torch 2.6 moved it; 2.2 to 2.5 have it among the composable functions.
    for folder in ("torch/distributed/fsdp/_fully_shard", "torch/distributed/_composable/fsdp")
    for rule in (
        but(f"{folder}/_fsdp_collectives.py", FSDP_COMMS),
        only(f"{folder}/_fsdp_param_group.py", FSDP_COMMS, "unshard wait_for_unshard post_backward"),
        only(f"{folder}/_fsdp_param_group.py", FSDP_COMMS, "finalize_backward _wait_for_post_backward"),
    )
)

TORCH = (
    *_LOADER,
    but("torch/utils/data/_utils/fetch.py", FETCH, "__init__"),
    but("torch/utils/data/_utils/collate.py", COLLATE),
    but("torch/utils/data/_utils/pin_memory.py", UNPACK),
    but("torch/utils/data/_utils/signal_handling.py", START),
    only("torch/multiprocessing/reductions.py", UNPACK, "rebuild_storage_fd rebuild_storage_filename"),
    only(
        "torch/multiprocessing/reductions.py", UNPACK, "rebuild_tensor rebuild_cuda_tensor storage_from_cache"
    ),
    but("torch/utils/data/sampler.py", SAMPLER, "__init__ __len__"),
    but("torch/utils/data/distributed.py", SAMPLER, "__init__ __len__ set_epoch"),
    but("torch/utils/data/dataset.py", FETCH, "__init__ __len__ random_split"),
    # Activation checkpointing: in the forward pass it stores, in the backward pass it recomputes.
    but("torch/utils/checkpoint.py", RECOMPUTE),
    only("torch/nn/modules/module.py", FORWARD, "_call_impl _wrapped_call_impl __call__ _slow_forward"),
    only("torch/nn/modules/module.py", BUILD, "_apply to cuda"),
    only("torch/nn/modules/module.py", LOAD, "load_state_dict"),
    but("torch/nn/functional.py", FORWARD_HINT),
    but("torch/nn/init.py", BUILD),
    only("torch/_tensor.py", BACKWARD, "backward"),
    only("torch/_tensor.py", SYNC, "__format__ __repr__ __array__ __contains__"),
    but("torch/_tensor_str.py", SYNC),
    only("torch/autograd/__init__.py", BACKWARD, "backward grad"),
    only("torch/autograd/graph.py", BACKWARD, "_engine_run_backward"),
    only("torch/autograd/functional.py", BACKWARD, "vjp jvp jacobian hessian vhp hvp"),
    only("torch/optim/optimizer.py", LOAD, "load_state_dict"),
    only("torch/optim/optimizer.py", SAVE, "state_dict"),
    # The subclasses of lr_scheduler hold __init__ that calls step(); building is no step.
    but("torch/optim/", OPTIMIZER, "__init__ forward state_dict load_state_dict add_param_group inner"),
    only(
        "torch/nn/utils/clip_grad.py",
        CLIP,
        "clip_grad_norm_ clip_grad_norm clip_grad_value_ _no_grad_wrapper",
    ),
    only("torch/amp/grad_scaler.py", SCALER_SYNC, "<genexpr>"),
    only("torch/amp/grad_scaler.py", SYNC, "get_scale"),
    only("torch/cuda/amp/grad_scaler.py", SCALER_SYNC, "<genexpr>"),
    only("torch/cuda/amp/grad_scaler.py", SYNC, "get_scale"),
    only("torch/amp/grad_scaler.py", OPTIMIZER, "step update unscale_ _maybe_opt_step"),
    only("torch/cuda/amp/grad_scaler.py", OPTIMIZER, "step update unscale_ _maybe_opt_step"),
    only("torch/cuda/__init__.py", SYNC, "synchronize"),
    only("torch/cuda/__init__.py", BUILD, "_lazy_init"),
    only("torch/cuda/streams.py", SYNC, "synchronize"),
    only("torch/accelerator/__init__.py", SYNC, "synchronize"),
    only("torch/xpu/__init__.py", SYNC, "synchronize"),
    only("torch/mps/__init__.py", SYNC, "synchronize"),
    only("torch/cuda/memory.py", ALLOCATOR, "empty_cache caching_allocator_alloc caching_allocator_delete"),
    only("torch/accelerator/memory.py", ALLOCATOR, "empty_cache"),
    only("torch/cuda/graphs.py", FORWARD, "replay"),
    # Ranks
    only("torch/nn/parallel/distributed.py", DDP_COMMS, "_sync_buffers _sync_module_states _sync_params"),
    only(
        "torch/nn/parallel/distributed.py", DDP_COMMS, "_rebuild_buckets _check_and_sync_module_buffers join"
    ),
    only("torch/nn/parallel/distributed.py", DDP_COMMS, "_sync_final_model _match_all_reduce_for_bwd_pass"),
    only("torch/nn/parallel/distributed.py", DDP_COMMS, "_ddp_init_helper _distributed_broadcast_coalesced"),
    only("torch/nn/parallel/distributed.py", DDP, "forward _pre_forward _post_forward _run_ddp_forward"),
    only("torch/distributed/utils.py", COMMS, "_verify_param_shape_across_processes _sync_module_states"),
    only("torch/distributed/utils.py", COMMS, "_sync_params_and_buffers"),
    *_FULLY_SHARD,
    only("torch/distributed/fsdp/_runtime_utils.py", FSDP_COMMS, "_reduce_grad _unshard_grads"),
    only(
        "torch/distributed/fsdp/_runtime_utils.py",
        FSDP_COMMS,
        "_reduce_grad_no_shard _wait_for_computation_stream",
    ),
    only("torch/distributed/fsdp/_flat_param.py", FSDP_COMMS, "unshard _all_gather_flat_param"),
    but("torch/distributed/fsdp/_limiter_utils.py", FSDP_COMMS),
    but("torch/distributed/fsdp/_state_dict_utils.py", SAVE),
    but("torch/distributed/fsdp/_optim_utils.py", SAVE),
    only("torch/distributed/fsdp/fully_sharded_data_parallel.py", FSDP, "forward"),
    but("torch/distributed/fsdp/", FSDP_SEEN),
    but("torch/distributed/_composable/fsdp/", FSDP_SEEN),
    only("torch/distributed/checkpoint/state_dict.py", LOAD, "set_state_dict set_model_state_dict"),
    only("torch/distributed/checkpoint/state_dict.py", LOAD, "set_optimizer_state_dict"),
    but("torch/distributed/checkpoint/state_dict_loader.py", LOAD, "wrapper"),
    but("torch/distributed/checkpoint/", SAVE, "wrapper inner_func"),
    but("torch/distributed/distributed_c10d.py", COMMS, "get_rank get_world_size is_initialized get_backend"),
    only("torch/distributed/c10d_logger.py", COMMS, "wrapper"),
    but("torch/distributed/rendezvous.py", COMMS),
    but("torch/distributed/_functional_collectives.py", COMMS),
    but("torch/distributed/nn/functional.py", COMMS, "forward backward"),
    only("torch/distributed/pipelining/schedules.py", COMMS, "_batch_p2p _wait_batch_p2p"),
    only("torch/distributed/rpc/api.py", COMMS, "_all_gather _barrier _wait_all_workers shutdown"),
    only("torch/distributed/rpc/api.py", COMMS, "rpc_sync remote _invoke_rpc"),
    but("torch/distributed/rpc/rref_proxy.py", COMMS),
    but("torch/futures/__init__.py", COMMS, "__init__ then add_done_callback done"),
    but("torch/distributed/collective_utils.py", COMMS),
    but("torch/distributed/tensor/_collective_utils.py", COMMS),
    but("torch/distributed/elastic/utils/store.py", COMMS),
    but("torch/distributed/elastic/rendezvous/", COMMS),
    only("torch/distributed/algorithms/join.py", COMMS, "notify_join_context __exit__"),
    # Files
    only("torch/serialization.py", SAVE, "save"),
    only("torch/serialization.py", LOAD_FILE, "load"),
    but("torch/hub.py", LOAD),
    # The compiler. Its wrappers also run in every step of a compiled model: those are no compiling.
    but("torch/_dynamo/convert_frame.py", COMPILE, "__init__"),
    but("torch/_dynamo/symbolic_convert.py", COMPILE),
    but("torch/_dynamo/output_graph.py", COMPILE),
    only("torch/_dynamo/eval_frame.py", COMPILE, "export explain optimize_assert"),
    only("torch/_dynamo/eval_frame.py", FORWARD_HINT, "__call__ compile_wrapper"),
    only("torch/_inductor/compile_fx.py", COMPILE, "compile_fx compile_fx_inner fx_codegen_and_compile"),
    only("torch/_inductor/compile_fx.py", COMPILE, "codegen_and_compile fw_compiler_base bw_compiler"),
    only(
        "torch/_inductor/compile_fx.py", COMPILE, "_compile_fx_inner compile_fx_forward compile_fx_backward"
    ),
    but("torch/_inductor/async_compile.py", COMPILE),
    # Up to torch 2.5 a compiled graph is called from here.
    but("torch/_inductor/codecache.py", COMPILE, "__call__ _run_from_cache"),
    but("torch/_inductor/graph.py", COMPILE),
    but("torch/_inductor/select_algorithm.py", COMPILE),
    only("torch/_inductor/runtime/triton_heuristics.py", COMPILE, "precompile autotune_to_one_config"),
    only(
        "torch/_inductor/runtime/triton_heuristics.py",
        COMPILE,
        "benchmark_all_configs coordinate_descent_tuning",
    ),
    only("torch/_functorch/aot_autograd.py", COMPILE, "create_aot_dispatcher_function aot_module_simplified"),
    only("torch/fx/experimental/proxy_tensor.py", COMPILE, "make_fx wrapped trace dispatch_trace"),
    but("torch/fx/_symbolic_trace.py", COMPILE, "module_call_wrapper is_fx_tracing"),
    only("torch/jit/_script.py", COMPILE, "script create_script_module"),
    only("torch/jit/_trace.py", COMPILE, "trace trace_module _trace_impl"),
    only("torch/export/__init__.py", COMPILE, "export"),
    only("triton/compiler/compiler.py", COMPILE, "compile make_ir"),
    only("triton/runtime/jit.py", COMPILE, "_do_compile compile"),
    only("triton/runtime/autotuner.py", COMPILE, "_bench benchmark do_bench"),
    but("torch/utils/tensorboard/", LOGGING),
    but("torch/profiler/profiler.py", LOGGING, "__enter__ __init__"),
)

PYTHON = (
    Rule("<frozen importlib._bootstrap>", IMPORT),
    Rule("<frozen importlib._bootstrap_external>", IMPORT),
    but("importlib/_bootstrap.py", IMPORT),
    but("importlib/_bootstrap_external.py", IMPORT),
    only("importlib/__init__.py", IMPORT, "import_module reload"),
    Rule("logging/", LOGGING, installed=True),
    Rule("warnings.py", LOGGING, installed=True),
    # A debugger encloses the whole program: only its prompt is a wait for input.
    Rule("cmd.py", INPUT, frozenset(("cmdloop",)), installed=True),
    Rule("pdb.py", INPUT, frozenset(("interaction", "_cmdloop")), installed=True),
    Rule("code.py", INPUT, frozenset(("raw_input",)), installed=True),
    Rule("getpass.py", INPUT, installed=True),
    Rule("_pyrepl/readline.py", INPUT, frozenset(("multiline_input", "input")), installed=True),
)


TRAINING = Mark(Phase.OTHER)
"""A function that trains: whatever encloses it, this is no validation."""
_NOTHING = Mark(None)
"""A wrapper around a whole program, in a package whose other functions tell more."""

_LIGHTNING = tuple(
    rule
    for root in ("lightning/pytorch", "pytorch_lightning")
    for rule in (
        but(f"{root}/loops/evaluation_loop.py", VALIDATION),
        but(f"{root}/loops/prediction_loop.py", VALIDATION),
        but(f"{root}/loops/fetchers.py", WAIT, "__init__ setup teardown done fetched length"),
        but(f"{root}/utilities/combined_loader.py", WAIT, "__init__ __len__"),
        only(f"{root}/loops/optimization/automatic.py", FORWARD, "_training_step"),
        only(f"{root}/loops/optimization/automatic.py", BACKWARD, "backward_fn"),
        only(f"{root}/loops/optimization/automatic.py", OPTIMIZER, "zero_grad_fn _optimizer_zero_grad"),
        only(f"{root}/strategies/strategy.py", FORWARD, "training_step"),
        only(f"{root}/strategies/strategy.py", VALIDATION, "validation_step test_step predict_step"),
        only(f"{root}/strategies/strategy.py", BACKWARD, "backward"),
        only(f"{root}/strategies/ddp.py", COMMS, "barrier broadcast reduce"),
        only(f"{root}/strategies/fsdp.py", COMMS, "barrier broadcast reduce"),
        only(f"{root}/trainer/connectors/checkpoint_connector.py", SAVE, "save_checkpoint dump_checkpoint"),
        only(
            f"{root}/trainer/connectors/checkpoint_connector.py",
            LOAD,
            "restore resume_start _restore_modules_and_callbacks",
        ),
        only(f"{root}/trainer/trainer.py", SAVE, "save_checkpoint"),
        but(f"{root}/trainer/connectors/logger_connector/", LOGGING, "__init__"),
        but(f"{root}/loggers/", LOGGING, "__init__"),
        but(f"{root}/callbacks/progress/", LOGGING, "__init__"),
        only(f"{root}/core/module.py", LOGGING, "log log_dict print"),
    )
)

_FABRIC = tuple(
    only(f"{root}/utilities/apply_func.py", COPY, "move_data_to_device batch_to")
    for root in ("lightning/fabric", "lightning_fabric")
)
"""The strategies' batch_to_device encloses hooks of the user, which may augment on the GPU."""

_HUGGING_FACE = (
    only("transformers/trainer.py", WAIT, "get_batch_samples"),
    only("transformers/trainer.py", COPY, "_prepare_inputs _prepare_input"),
    only("transformers/trainer.py", FORWARD, "training_step compute_loss"),
    only("transformers/trainer.py", VALIDATION, "evaluate _evaluate predict evaluation_loop prediction_loop"),
    only("transformers/trainer.py", SAVE, "_save_checkpoint save_model _save_optimizer_and_scheduler"),
    only(
        "transformers/trainer.py",
        LOAD,
        "_load_from_checkpoint _load_optimizer_and_scheduler _load_best_model",
    ),
    only("transformers/trainer.py", LOGGING, "log _maybe_log_save_evaluate store_flos"),
    only("transformers/trainer.py", BUILD, "_move_model_to_device create_optimizer _wrap_model"),
    only("transformers/trainer.py", OPTIMIZER, "_clip_grad_norm _get_grad_norm"),
    only("transformers/trainer.py", TRAINING, "_inner_training_loop _run_epoch"),
    only("transformers/trainer_pt_utils.py", COMMS, "nested_gather distributed_concat"),
    only("transformers/trainer_pt_utils.py", COMMS, "distributed_broadcast_scalars"),
    only("transformers/trainer_callback.py", LOGGING, "on_log on_prediction_step"),
    but("transformers/data/data_collator.py", COLLATE, "__init__"),
    but("transformers/integrations/integration_utils.py", LOGGING, "__init__ is_wandb_available"),
    only("transformers/modeling_utils.py", SAVE, "save_pretrained"),
    only("transformers/modeling_utils.py", LOAD, "from_pretrained _load_pretrained_model load_state_dict"),
    only("transformers/models/auto/auto_factory.py", LOAD, "from_pretrained"),
    only("transformers/tokenization_utils_base.py", LOAD, "from_pretrained"),
    only("diffusers/pipelines/pipeline_utils.py", LOAD, "from_pretrained"),
    only("diffusers/models/modeling_utils.py", LOAD, "from_pretrained"),
    only("safetensors/torch.py", SAVE, "save save_file save_model"),
    only("safetensors/torch.py", LOAD, "load load_file load_model"),
    # The rest of the hub's client sends files as well.
    but("huggingface_hub/file_download.py", READ_SET),
    but("huggingface_hub/_snapshot_download.py", READ_SET),
    # The package named datasets: maps and builders read or build a data set, indexing fetches.
    Rule(
        "datasets/arrow_dataset.py",
        FETCH,
        frozenset(("__getitem__", "__getitems__", "__iter__")),
        installed=True,
    ),
    Rule("datasets/iterable_dataset.py", FETCH, frozenset(("__iter__", "_iter_pytorch")), installed=True),
    Rule(
        "datasets/arrow_dataset.py",
        READ_SET,
        frozenset(("map", "filter", "_map_single", "load_from_disk")),
        installed=True,
    ),
    Rule("datasets/load.py", READ_SET, installed=True),
    Rule("datasets/builder.py", READ_SET, installed=True),
    only("accelerate/data_loader.py", WAIT, "__iter__ _fetch_batches"),
    # Its hooks call it for each layer of a forward pass, too.
    only("accelerate/utils/operations.py", replace(COPY, weak=True), "send_to_device"),
    only(
        "accelerate/utils/operations.py", COMMS, "gather gather_object broadcast broadcast_object_list reduce"
    ),
    only("accelerate/utils/operations.py", COMMS, "_gpu_gather _gpu_gather_object _gpu_broadcast"),
    only("accelerate/utils/operations.py", COMMS, "pad_across_processes gather_tensor_shape"),
    only("accelerate/state.py", COMMS, "wait_for_everyone"),
    only("accelerate/utils/other.py", COMMS, "wait_for_everyone"),
    only("accelerate/utils/fsdp_utils.py", SAVE, "save_fsdp_model save_fsdp_optimizer"),
    only(
        "accelerate/utils/fsdp_utils.py",
        LOAD,
        "load_fsdp_model load_fsdp_optimizer fsdp2_load_full_state_dict",
    ),
    only("accelerate/checkpointing.py", SAVE, "save_accelerator_state save_custom_state"),
    only("accelerate/checkpointing.py", LOAD, "load_accelerator_state load_custom_state"),
    only("accelerate/utils/random.py", COMMS, "synchronize_rng_states synchronize_rng_state"),
    only("accelerate/accelerator.py", BACKWARD, "backward"),
    only("accelerate/accelerator.py", OPTIMIZER, "clip_grad_norm_ clip_grad_value_ unscale_gradients"),
    only("accelerate/accelerator.py", SAVE, "save_state save_model save"),
    only("accelerate/accelerator.py", LOAD, "load_state"),
    only("accelerate/optimizer.py", OPTIMIZER, "step zero_grad"),
    only("accelerate/scheduler.py", OPTIMIZER, "step"),
    only("accelerate/tracking.py", LOGGING, "log log_images execute_on_main_process"),
)

_DEEPSPEED = (
    only("deepspeed/runtime/engine.py", FORWARD, "forward"),
    only("deepspeed/runtime/engine.py", BACKWARD, "backward _backward_prologue"),
    only("deepspeed/runtime/engine.py", OPTIMIZER, "step _take_model_step"),
    only("deepspeed/runtime/engine.py", COMMS, "allreduce_gradients buffered_allreduce_fallback"),
    only("deepspeed/runtime/engine.py", COMMS, "allreduce_bucket sparse_allreduce sparse_all_gather"),
    only("deepspeed/runtime/engine.py", SAVE, "save_checkpoint save_16bit_model"),
    only("deepspeed/runtime/engine.py", LOAD, "load_checkpoint"),
    but("deepspeed/comm/", COMMS, "get_rank get_world_size is_initialized log_wrapper"),
    only("deepspeed/runtime/utils.py", COMMS, "all_gather_into_tensor_dp_groups all_gather_dp_groups"),
    only("deepspeed/runtime/utils.py", OPTIMIZER, "clip_grad_norm_"),
    but("deepspeed/runtime/comm/coalesced_collectives.py", COMMS),
    but("deepspeed/runtime/checkpoint_engine/", SAVE, "__init__ load"),
    only("deepspeed/runtime/zero/partitioned_param_coordinator.py", COMMS, "fetch_sub_module"),
    only(
        "deepspeed/runtime/zero/partition_parameters.py", COMMS, "all_gather all_gather_coalesced _all_gather"
    ),
    only(
        "deepspeed/runtime/zero/partition_parameters.py",
        COMMS,
        "_all_gather_coalesced _all_gather_sequential _allgather_params_coalesced _reduce_scatter_gradients",
    ),
    only("deepspeed/runtime/zero/stage3.py", COMMS, "reduce_independent_p_g_buckets_and_remove_grads"),
    only("deepspeed/runtime/zero/stage3.py", COMMS, "allreduce_bucket __reduce_and_partition_ipg_grads"),
    only("deepspeed/runtime/zero/stage3.py", COMMS, "__avg_scatter_grads __avg_scatter_contiguous_grads"),
    only("deepspeed/runtime/zero/stage3.py", OPTIMIZER, "step"),
    only(
        "deepspeed/runtime/zero/stage_1_and_2.py", COMMS, "reduce_ipg_grads average_tensor allreduce_bucket"
    ),
    only("deepspeed/runtime/zero/stage_1_and_2.py", COMMS, "allreduce_and_scatter allreduce_and_copy"),
    only("deepspeed/runtime/zero/stage_1_and_2.py", OPTIMIZER, "step"),
    only("deepspeed/runtime/bf16_optimizer.py", OPTIMIZER, "step"),
    but("deepspeed/runtime/pipe/p2p.py", COMMS, "init_process_groups can_send_recv"),
    only("deepspeed/runtime/pipe/engine.py", FORWARD, "_exec_forward_pass"),
    only("deepspeed/runtime/pipe/engine.py", BACKWARD, "_exec_backward_pass"),
    only("deepspeed/runtime/pipe/engine.py", OPTIMIZER, "_exec_optimizer_step"),
    only("deepspeed/runtime/pipe/engine.py", WAIT, "_exec_load_micro_batch _next_batch"),
    only("deepspeed/runtime/pipe/engine.py", VALIDATION, "eval_batch"),
    but("deepspeed/runtime/activation_checkpointing/checkpointing.py", RECOMPUTE),
    only("megatron/core/distributed/finalize_model_grads.py", COMMS, "finalize_model_grads"),
    but("megatron/core/pipeline_parallel/p2p_communication.py", COMMS),
    # Its backward calls the engine in C, without a frame of torch.
    only("megatron/core/pipeline_parallel/schedules.py", BACKWARD, "backward_step custom_backward"),
    only("megatron/core/optimizer/optimizer.py", OPTIMIZER, "step"),
    only("megatron/training/training.py", VALIDATION, "evaluate evaluate_and_print_results"),
    only("megatron/training/checkpointing.py", SAVE, "save_checkpoint"),
    only("megatron/training/checkpointing.py", LOAD, "load_checkpoint"),
    # A save that goes on aside is waited for with the frames of these alone; others call the load, too.
    only("megatron/core/dist_checkpointing/serialization.py", LOAD, "load load_common_state_dict"),
    only("megatron/core/dist_checkpointing/serialization.py", LOAD, "load_plain_tensors"),
    but("megatron/core/dist_checkpointing/", SAVE),
    only("megatron/training/async_utils.py", SAVE, "schedule_async_save maybe_finalize_async_save"),
    but("horovod/torch/mpi_ops.py", COMMS, "rank size local_rank"),
)

_TRAINERS = (
    only("ultralytics/engine/validator.py", VALIDATION, "__call__"),
    only("mmengine/model/base_model/base_model.py", VALIDATION, "val_step test_step"),
    but("mmengine/evaluator/", VALIDATION, "__init__"),
    only("mmengine/model/base_model/data_preprocessor.py", COPY, "cast_data"),
    only("detectron2/evaluation/evaluator.py", VALIDATION, "inference_on_dataset"),
    only("composer/trainer/trainer.py", VALIDATION, "_eval_loop"),
    only("fastai/learner.py", VALIDATION, "_do_epoch_validate"),
    only("fastai/torch_core.py", COPY, "to_device"),
    only("speechbrain/core.py", VALIDATION, "_fit_valid"),
    only("litgpt/pretrain.py", VALIDATION, "validate"),
    Rule("litgpt/finetune/", VALIDATION, frozenset(("validate",))),
    only("torchtune/utils/_device.py", COPY, "batch_to_device"),
)

_LOADERS = (
    only("timm/data/loader.py", COPY, "__iter__"),
    only("timm/data/loader.py", COLLATE, "fast_collate"),
    only("timm/utils/checkpoint_saver.py", SAVE, "save_checkpoint save_recovery _save"),
    only("timm/models/_helpers.py", LOAD, "load_checkpoint load_state_dict"),
    only("timm/models/_factory.py", BUILD, "create_model"),
    only("torchvision/datasets/folder.py", READ_SET, "make_dataset find_classes"),
    only(
        "torchvision/datasets/utils.py",
        READ_SET,
        "download_url download_and_extract_archive extract_archive",
    ),
    Rule("torchvision/datasets/", FETCH, frozenset(("__getitem__",)), installed=True),
    library("webdataset", FETCH, "__init__"),
    Rule("streaming/base/", FETCH, frozenset(("__iter__", "__getitem__")), installed=True),
    # These have threads, processes or actors of their own that fill a queue.
    Rule("nvidia/dali/", QUEUE, frozenset(("__next__", "run", "share_outputs")), installed=True),
    Rule("ffcv/loader/", QUEUE, frozenset(("__next__", "__iter__")), installed=True),
    Rule("ray/data/", QUEUE, frozenset(("__next__", "iter_batches", "iter_torch_batches")), installed=True),
    only("dgl/dataloading/dataloader.py", WAIT, "__next__ _next_threaded _next_non_threaded"),
    only("monai/data/thread_buffer.py", QUEUE, "__iter__"),
    only("petastorm/pytorch.py", WAIT, "__iter__ __next__ _iter_impl"),
    # What PyG does to a batch in the main thread, after torch's loader gave it.
    only("torch_geometric/loader/base.py", FETCH, "__next__"),
    # Some nodes call their function in the caller's thread, others wait at a queue.
    Rule("torchdata/nodes/", WAIT, frozenset(("__next__", "next", "iterator")), installed=True),
)

_LOGGERS = (
    # The loop of a bar encloses the wait for data: only what it does itself counts.
    library("tqdm", LOGGING, "__iter__ __next__ __init__ __new__ inner wrapper trange tqdm"),
    library("rich", LOGGING, "track __iter__ __next__ __enter__ __exit__ wrapper ask"),
    library("torchmetrics", LOGGING, "__init__"),
    # Around the whole program: automatic logging, and a sweep whose runs are in another thread.
    Rule("mlflow/utils/autologging_utils/", _NOTHING, installed=True),
    library("mlflow", LOGGING, "patched_fit patched_train train fit"),
    Rule("wandb/agents/", _NOTHING, installed=True),
    library("loguru", LOGGING, "catch_wrapper"),
    *(
        library(name, LOGGING)
        for name in ("wandb", "tensorboard", "tensorboardX", "comet_ml", "neptune", "clearml")
    ),
    *(library(name, LOGGING) for name in ("aim", "matplotlib", "swanlab", "trackio")),
    Rule("absl/logging/", LOGGING, installed=True),
    Rule("sklearn/metrics/", LOGGING, installed=True),
    Rule("pandas/io/", replace(READ_SET, weak=True), installed=True),
)

_PROMPTS = (
    library("prompt_toolkit", INPUT),
    Rule("IPython/terminal/interactiveshell.py", INPUT, frozenset(("prompt_for_code",)), installed=True),
    Rule("IPython/terminal/debugger.py", INPUT, frozenset(("cmdloop",)), installed=True),
    Rule("ipykernel/kernelbase.py", INPUT, frozenset(("raw_input", "_input_request")), installed=True),
    only("pydevd.py", INPUT, "do_wait_suspend _do_wait_suspend"),
    Rule("rich/prompt.py", INPUT, frozenset(("ask", "__call__")), installed=True),
    Rule("click/termui.py", INPUT, frozenset(("prompt", "confirm", "pause")), installed=True),
)

SYNC_LEAVES = (
    only("transformers/trainer.py", NAN_CHECK, "_inner_training_loop"),
    only("transformers/trainer.py", SYNC, "_maybe_log_save_evaluate get_batch_samples"),
    only("lightning/fabric/utilities/apply_func.py", SYNC, "to_item"),
    only("lightning_fabric/utilities/apply_func.py", SYNC, "to_item"),
    only("mmengine/logging/message_hub.py", SYNC, "_get_valid_value"),
    only("detectron2/engine/train_loop.py", SYNC, "write_metrics _write_metrics"),
)
"""Functions of libraries that wait for the GPU in a line of their own (``isnan``, ``.item()``), which leaves
no frame: where such a one is the innermost, that is what it does."""

FRAMEWORKS = (
    *_PROMPTS,
    *_LIGHTNING,
    *_FABRIC,
    *_HUGGING_FACE,
    *_DEEPSPEED,
    *_TRAINERS,
    *_LOADERS,
    *_LOGGERS,
)

_HINTS = (
    (
        VALIDATION,
        (
            r"(run_|do_)?(validate|validation|evaluate|evaluation|eval|val|test)(_(one_)?(epoch|loop|model|step|net|phase))?"
            r"|(one_)?(val|eval|test|valid)_(pass|run|all)|estimate_loss|compute_val_loss"
            r"|(log|run)_validation|validation_loop"
        ),
    ),
    (TRAINING, r"train|fit|training_loop|train_(one_)?(epoch|step|loop|model|batch)|training_epoch"),
    (FORWARD, r"training_step"),
    (COLLATE, r"_*\w*collate\w*"),
    (
        FETCH,
        (
            r"(get|next|load|fetch|sample|read|make|iterate)_(next_|mini_?)?batch(es)?|__getitem__"
            r"|(batch|data)_(generator|iterator|iter)|\w*distributed_data_(generator|loader)\w*"
        ),
    ),
    (
        SAVE,
        (
            r"_?save_(checkpoint|ckpt|model|state|weights|snapshot)"
            r"|(\w+_)?(wait|join|finish|flush|drain)_(\w+_)?(checkpoint|ckpt|save|snapshot|upload)s?"
        ),
    ),
    (LOAD, r"_?load_(checkpoint|ckpt|model|state|weights|snapshot)"),
    (READ_SET, r"_?load_(data|dataset|datasets)|prepare_data"),
)

USER_NAMES = tuple(
    (replace(mark, weak=mark is not TRAINING), re.compile(pattern)) for mark, pattern in _HINTS
)
"""Names of functions outside of libraries: hints that count where no frame of a library told more."""
