"""Remedies for launches and waits of the host: torch.compile, synchronisation, the GPU allocator."""

from __future__ import annotations

from tpmon.judge.advice.entry import Language, Remedy, Risk
from tpmon.judge.answers.needs import Need

REMEDIES = (
    Remedy(
        id="torch-compile",
        title="compile the model",
        applies="The model runs operator by operator: many kernels that read and write memory each.",
        not_when="Shapes change all the time, the run is short (compiling takes minutes), or results must "
        "stay bit for bit.",
        needs=(Need.EAGER_MODEL,),
        paste="model = torch.compile(model)  # around DDP; with fully_shard: each block before it",
        ceiling="1.2x to 2x where element-wise work is a large part; little where matrix products are all",
        risk=Risk.NUMERICS,
        proof="After the first steps fewer kernels per step and shorter steps; the loss curve stays.",
        never_with=(Need.MODEL_COMPILED,),
    ),
    Remedy(
        id="compile-reduce-overhead",
        title='compile with CUDA graphs: mode="reduce-overhead"',
        applies="Kernels are shorter than their launches, shapes are fixed: a graph replays all launches "
        "of a step at once.",
        not_when="Shapes change, memory is short (a graph keeps its own pool), or the model uses the host "
        "in between. Outputs are overwritten by the next replay: clone what you keep.",
        needs=(Need.GPU_PRESENT, Need.FIXED_SHAPES_KNOWN),
        paste='model = torch.compile(model, mode="reduce-overhead")',
        ceiling="{gain}: the GPU's idle time between kernels goes away",
        risk=Risk.NUMERICS,
        proof="The main thread is no longer at 100 % in launches; GPU activity (SM active, power) rises.",
        never_with=(Need.GPU_MEMORY_FULL,),
    ),
    Remedy(
        id="compile-max-autotune",
        title='let the compiler measure kernels: mode="max-autotune-no-cudagraphs"',
        applies="A long run of large matrix products that is compiled already.",
        not_when="The run is short: autotuning takes minutes to an hour at the start.",
        needs=(Need.GPU_PRESENT, Need.FIXED_SHAPES_KNOWN, Need.MODEL_COMPILED),
        paste='model = torch.compile(model, mode="max-autotune-no-cudagraphs")',
        ceiling="about 1.05x to 1.2x over the default mode",
        risk=Risk.NUMERICS,
        proof="Shorter steps after the autotuning than in the default mode.",
        never_with=(Need.NOTHING_COMPILED,),
    ),
    Remedy(
        id="recompilation-trap",
        title="stop the recompilations: find the guard that fails",
        applies="A compiled function meets new shapes or Python values and is compiled again; after 8 "
        "times per function torch gives up and runs it eagerly.",
        not_when="It happens in the first steps only: that is normal.",
        needs=(Need.RECOMPILES_SEEN,),
        paste="TORCH_LOGS=recompiles python train.py  # then pad to few lengths, or "
        "torch._dynamo.mark_dynamic(x, 0), or torch.compile(model, dynamic=True)",
        language=Language.SHELL,
        ceiling="{gain}: the late steps, and all of the compiler's gain if it had given up",
        risk=Risk.NONE,
        proof="No recompilation after the first steps "
        "(torch.compiler.set_stance('fail_on_recompile') does not raise).",
        never_with=(Need.NOTHING_COMPILED,),
    ),
    Remedy(
        id="compile-fullgraph",
        title="find the graph breaks: fullgraph=True raises at the first",
        applies="A compiled model is cut into many graphs by prints, .item(), or Python that the compiler "
        "cannot follow.",
        not_when="Breaks lie between large blocks: they cost little there.",
        needs=(Need.GRAPH_BREAKS,),
        paste="model = torch.compile(model, fullgraph=True)  # or see them all: TORCH_LOGS=graph_breaks",
        ceiling="what fusion across the breaks saves, often 1.05x to 1.3x",
        risk=Risk.NUMERICS,
        proof="It compiles without an error; fewer kernels per step.",
        never_with=(Need.NOTHING_COMPILED, Need.FEW_BREAKS),
    ),
    Remedy(
        id="compile-cache",
        title="keep the compiler's cache between starts, and compile the repeated block only",
        applies="Every start compiles or autotunes for minutes.",
        not_when="torch, the driver or the model changed: the first start after that compiles anew.",
        needs=(Need.COMPILE_IN_STACK,),
        paste="export TORCHINDUCTOR_CACHE_DIR=$HOME/.cache/torchinductor  # on a disk that outlives the job",
        language=Language.SHELL,
        ceiling="most of the compile time from the second start on",
        risk=Risk.NONE,
        proof="The second start reaches its first step in a fraction of the time.",
    ),
    Remedy(
        id="sync-rarely",
        title="read the loss every 50 steps, not every step",
        applies=".item(), print(loss), float(tensor) or torch.cuda.synchronize() in each step lets the "
        "launch queue run empty.",
        not_when="The GPU is the limit and the queue is full again at once: the wait then costs nothing.",
        needs=(Need.GPU_PRESENT, Need.SYNC_IN_STACK),
        paste="running += loss.detach()\n"
        "if (step + 1) % 50 == 0:\n"
        "    log(step, running.item() / 50)\n"
        "    running.zero_()",
        ceiling="{gain}: the GPU's idle time after each wait goes away",
        risk=Risk.NONE,
        proof="The main thread is found in launches, not in the wait; GPU idle time falls.",
    ),
    Remedy(
        id="scaler-without-wait",
        title="let the GradScaler skip its wait: a fused optimizer, or bf16 without a scaler",
        applies="scaler.step() asks the GPU in each step whether a gradient overflowed, and waits for it; a "
        "fused optimizer asks on the GPU.",
        not_when="The optimizer has no fused version, or the card no bf16 (V100, T4).",
        needs=(Need.GPU_PRESENT, Need.SCALER_IN_STACK),
        paste="torch.optim.AdamW(model.parameters(), lr=lr, fused=True)  # or bf16 autocast and no scaler",
        ceiling="{gain}: the GPU's idle time after each wait goes away",
        risk=Risk.NUMERICS,
        proof="The main thread is no longer found in the scaler; GPU idle time falls.",
    ),
    Remedy(
        id="nan-filter-off",
        title="let the Trainer not look for NaN losses in each step",
        applies="The Trainer of transformers asks in each step whether the loss is NaN or infinite, to keep "
        "it out of the logged mean, and waits for the GPU.",
        not_when="A NaN in the logged loss must not show: training itself is the same with and without it.",
        needs=(Need.GPU_PRESENT, Need.NAN_CHECK_IN_STACK),
        paste="logging_nan_inf_filter=False,  # argument of TrainingArguments",
        ceiling="{gain}: the GPU's idle time after each wait goes away",
        risk=Risk.NONE,
        proof="The main thread is found in launches, not in _inner_training_loop; GPU idle time falls.",
    ),
    Remedy(
        id="find-hidden-syncs",
        title="let torch name the hidden synchronisations",
        applies="The host waits each step in an operation that needs a result: boolean indexing, nonzero, "
        "torch.tensor(..., device='cuda'), a copy from pageable memory, "
        "clip_grad_norm_(error_if_nonfinite=True).",
        not_when="Leave it on in a long run: it warns on each. It does not see torch.distributed.",
        needs=(Need.GPU_PRESENT, Need.SYNC_IN_STACK),
        paste='torch.cuda.set_sync_debug_mode("warn")  # for some steps, then "default"',
        ceiling="{gain}: the GPU's idle time after each wait goes away",
        risk=Risk.NONE,
        proof="No warnings in a step; the main thread is found in launches.",
    ),
    Remedy(
        id="where-not-mask",
        title="use torch.where and fixed sizes in place of boolean indexing",
        applies="x[mask], nonzero() or unique() in the step: the host must know how many elements there are.",
        not_when="The mask selects very little of much work: computing everything costs more than the wait. "
        "Not where the masked elements are NaN or infinite: their gradients are too.",
        needs=(Need.GPU_PRESENT, Need.SYNC_IN_STACK),
        paste="loss = torch.where(mask, losses, 0.0).sum() / mask.sum()  # in place of losses[mask].mean()",
        ceiling="{gain}: the GPU's idle time after each wait goes away",
        risk=Risk.NUMERICS,
        proof="set_sync_debug_mode('warn') is silent at that line.",
    ),
    Remedy(
        id="no-empty-cache",
        title="take torch.cuda.empty_cache() and gc.collect() out of the loop",
        applies="Each call gives memory back to the driver, waits for the GPU, and the next step asks for "
        "it again.",
        not_when="Another process needs that memory between phases.",
        needs=(Need.GPU_PRESENT, Need.ALLOCATOR_IN_STACK),
        paste="grep -rnE 'empty_cache|gc\\.collect' --include=*.py .",
        language=Language.SHELL,
        ceiling="{gain}: the waits in cudaFree and cudaMalloc go away",
        risk=Risk.NONE,
        proof="torch.cuda.memory_stats()['num_device_alloc'] stays constant after the first steps.",
    ),
    Remedy(
        id="expandable-segments",
        title="let the allocator grow its segments",
        applies="Sizes change from step to step; the cache breaks into pieces, and the allocator frees "
        "everything and asks the driver again.",
        not_when="There are no retries: a full card alone is no fault. Older torch cannot share such "
        "memory between processes (CUDA IPC).",
        needs=(Need.ALLOCATOR_RETRIES,),
        paste="export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True  # newer: PYTORCH_ALLOC_CONF",
        language=Language.SHELL,
        ceiling="{gain}: the retries go away; a few percent more usable memory",
        risk=Risk.NONE,
        proof="torch.cuda.memory_stats()['num_alloc_retries'] stays constant.",
        never_with=(Need.NO_RETRIES,),
    ),
)
