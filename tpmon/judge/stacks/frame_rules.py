"""Hold the frames of torch and of the standard library that tell a phase. Pure data.

The names are those of torch 2.13 and CPython 3.11, with older ones where a file moved; a name that a
version lacks is never met there. What runs in C has no frame: ``.item()``, ``.cpu()``,
``Work.wait()``, ``print`` and ``input()`` show only the Python line that called them.
"""

from __future__ import annotations

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
