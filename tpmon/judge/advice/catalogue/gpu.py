"""Remedies for the model's own speed: precision, kernels, memory for time. Checked against torch 2.13."""

from __future__ import annotations

from tpmon.judge.advice.entry import Language, Remedy, Risk
from tpmon.judge.answers.needs import Need

REMEDIES = (
    Remedy(
        id="tf32",
        title="allow TF32 for matrix products",
        applies="fp32 matrix products run on the ordinary cores of an Ampere or newer card. torch has "
        "TF32 on for convolutions and off for matrix products.",
        not_when="The model runs under bf16 or fp16 autocast already, or needs the 23 bits of fp32 (TF32 "
        "has 10). Do not mix it with the newer torch.backends.fp32_precision settings.",
        needs=(Need.GPU_PRESENT, Need.FP32_MATMUL_SEEN, Need.TENSOR_CORES_IDLE),
        paste='torch.set_float32_matmul_precision("high")',
        ceiling="up to 8x for the matrix products on an A100 (156 against 19.5 TFLOPS), far less overall",
        risk=Risk.NUMERICS,
        proof="Tensor-core activity rises above zero and steps get shorter; the loss curve stays.",
        never_with=(Need.TENSOR_CORES_BUSY, Need.FP16_CORES_ALONE, Need.TF32_ALLOWED, Need.AUTOCAST_ON),
    ),
    Remedy(
        id="bf16",
        title="run forward and loss under bf16 autocast",
        applies="Matrix products and convolutions run in fp32 on a card with bf16 tensor cores (Ampere "
        "and newer).",
        not_when="The model is tiny, the card is older (fp16 needs a GradScaler), or a loss needs fp32: "
        "keep backward() outside, sums and norms in fp32.",
        needs=(Need.FP32_MATMUL_SEEN,),
        paste="with torch.autocast(x.device.type, dtype=torch.bfloat16):\n    loss = criterion(model(x), y)",
        ceiling="up to 2x over TF32, 16x over fp32, for the matrix products; half the activation memory",
        risk=Risk.NUMERICS,
        proof="Tensor-core activity and samples/s rise; a validated loss curve over the same batches stays.",
        never_with=(Need.FP16_CORES_ALONE, Need.AUTOCAST_ON),
    ),
    Remedy(
        id="fp16-amp",
        title="run forward and loss under fp16 autocast with a GradScaler",
        applies="Matrix products and convolutions run in fp32 on a card whose tensor cores take fp16 "
        "but not bf16.",
        not_when="The model is tiny, or overflows in fp16: the scaler then skips many steps. Clip gradients "
        "after scaler.unscale_(optimizer).",
        needs=(Need.GPU_PRESENT, Need.FP32_MATMUL_SEEN, Need.FP16_CORES_ALONE),
        paste='scaler = torch.amp.GradScaler("cuda")  # once\n'
        'with torch.autocast("cuda", dtype=torch.float16):\n'
        "    loss = criterion(model(x), y)\n"
        "scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()",
        ceiling="up to 8x for the matrix products on a V100 (125 against 15.7 TFLOPS), far less overall",
        risk=Risk.NUMERICS,
        proof="Tensor-core activity and samples/s rise; a validated loss curve over the same batches stays.",
        never_with=(Need.TENSOR_CORES_BUSY, Need.AUTOCAST_ON),
    ),
    Remedy(
        id="cudnn-benchmark",
        title="let cuDNN choose its algorithms by measuring",
        applies="Convolutions on inputs of one shape.",
        not_when="Shapes change: every new shape is measured again and steps get slower. Not with "
        "deterministic algorithms.",
        needs=(Need.GPU_PRESENT, Need.CONV_MODEL, Need.FIXED_SHAPES_KNOWN),
        paste="torch.backends.cudnn.benchmark = True",
        ceiling="about 1.1x to 1.3x of the convolutions",
        risk=Risk.NUMERICS,
        proof="Steps after the first few are shorter.",
        never_with=(Need.BENCHMARK_ON, Need.DETERMINISTIC_ON),
    ),
    Remedy(
        id="channels-last",
        title="store images channels-last",
        applies="Convolutions in bf16 or fp16 on tensor cores, or on a CPU: each otherwise "
        "transposes its input.",
        not_when="The model is no convolution model, or has layers without a channels-last kernel: it "
        "then transposes back and forth.",
        needs=(Need.CONV_MODEL,),
        paste="model = model.to(memory_format=torch.channels_last)\n"
        "images = images.to(memory_format=torch.channels_last)",
        ceiling="about 1.1x to 1.5x of the convolutions in bf16 or fp16",
        risk=Risk.NUMERICS,
        proof="No transposing kernels in a trace (nchwToNhwc); steps get shorter.",
    ),
    Remedy(
        id="sdpa-forced",
        title="force a fused attention kernel and see why it is refused",
        applies="Attention is computed in steps (a matrix of scores in memory), by hand or because "
        "scaled_dot_product_attention fell back.",
        not_when="The inputs are fp32 (flash needs bf16 or fp16) or the head size is not supported; a "
        "mask that is a full tensor rules flash out: for the causal one use is_causal=True.",
        needs=(Need.GPU_PRESENT, Need.ATTENTION_SLOW_PATH),
        paste="from torch.nn.attention import SDPBackend, sdpa_kernel\n"
        "with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]):  # or raise\n"
        "    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
        ceiling="2x to 4x of the attention at long sequences, and its memory falls from n*n to n",
        risk=Risk.NUMERICS,
        proof="flash or fmha kernels in a trace; GPU memory falls; steps get shorter.",
    ),
    Remedy(
        id="set-to-none",
        title="drop gradients instead of filling them with zeros",
        applies="zero_grad(set_to_none=False) or gradients zeroed by hand. The default drops them since "
        "torch 2.0.",
        not_when="Code reads .grad of parameters that got none, or relies on weight decay and momentum "
        "moving them: an optimizer skips a parameter whose gradient is None.",
        needs=(Need.ZERO_FILL_SEEN,),
        paste="optimizer.zero_grad(set_to_none=True)",
        ceiling="1 to 3 %: one kernel per parameter and one write of all gradients",
        risk=Risk.NUMERICS,
        proof="The fill kernels are gone from a trace.",
    ),
    Remedy(
        id="fused-optimizer",
        title="use the fused optimizer",
        applies="The optimizer step launches several kernels per parameter.",
        not_when="A custom optimizer, or state that must stay bit for bit.",
        needs=(Need.UNFUSED_OPTIMIZER,),
        paste="torch.optim.AdamW(model.parameters(), lr=lr, fused=True)",
        ceiling="most of the optimizer's share of the step, often 2 to 10 %",
        risk=Risk.NUMERICS,
        proof="One kernel per group in optimizer.step(); its share of the step falls.",
    ),
    Remedy(
        id="checkpointing-off",
        title="switch activation checkpointing off where memory is free",
        applies="The backward pass computes activations a second time although they would fit.",
        not_when="Memory is full without it. Switch it off layer by layer and keep 10 % free.",
        needs=(Need.RECOMPUTE_IN_STACK, Need.GPU_MEMORY_FREE),
        paste="model.gradient_checkpointing_disable()  # HF; else call the block without checkpoint(...)",
        ceiling="1.33x: a step is one forward, two for backward, and the one that is recomputed",
        risk=Risk.NONE,
        proof="GPU memory rises, steps get shorter, no allocator retries.",
        never_with=(Need.GPU_MEMORY_FULL,),
    ),
    Remedy(
        id="bigger-micro-batch",
        title="use a larger micro-batch with fewer accumulation steps",
        applies="Kernels are short because the batch is small, and GPU memory is free.",
        not_when="The global batch would change: keep micro-batch x accumulation x ranks as it is, or "
        "tune the learning rate anew. BatchNorm sees other batches.",
        needs=(Need.GPU_PRESENT, Need.GPU_MEMORY_FREE),
        paste="micro_batch *= 2\n"
        "accumulation = max(1, accumulation // 2)  # where it is 1 already, the global batch doubles",
        ceiling="{gain} while kernels are too short to fill the card; nothing once it is full",
        risk=Risk.EXPERIMENT,
        proof="Samples/s rise (not steps/s) at the same loss per sample seen.",
        never_with=(Need.GPU_MEMORY_FULL, Need.ONLY_FORWARD),
    ),
    Remedy(
        id="more-at-once",
        title="answer more requests at once, or keep the cache at one size and capture CUDA graphs",
        applies="A model generates token by token: each step is a forward pass of short kernels.",
        not_when="One answer must come as soon as it can: a larger batch delays each of them.",
        needs=(Need.GPU_PRESENT, Need.ONLY_FORWARD),
        paste='outputs = model.generate(**batch, cache_implementation="static")  # HF; a batch of prompts',
        ceiling="{gain} while kernels are too short to fill the card; nothing once it is full",
        risk=Risk.EXPERIMENT,
        proof="Tokens/s of all requests together rise.",
    ),
    Remedy(
        id="align-shapes",
        title="pad vocabulary, classes and widths to a multiple of 64",
        applies="Matrix products in 16 bits or less have sizes that are no multiple of 8: tensor cores take "
        "16 bytes at once.",
        not_when="The products are a small part of the step, or a checkpoint fixes the sizes: then pad the "
        "weight after loading it and cut the result.",
        needs=(Need.GPU_PRESENT, Need.MISALIGNED_PRODUCTS),
        paste="vocabulary = -(-vocabulary // 64) * 64  # before the layers are made; mask the added outputs",
        ceiling="up to 2x of the products that are concerned",
        risk=Risk.NUMERICS,
        proof="Kernels of another name (align8) in a trace; steps get shorter.",
    ),
    Remedy(
        id="debug-taxes-off",
        title="start without the debug settings",
        applies="The run was started with CUDA_LAUNCH_BLOCKING, PYTORCH_NO_CUDA_MEMORY_CACHING, "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL or an NCCL_DEBUG that logs every collective, or in anomaly mode.",
        not_when="You are hunting the error that they are there for.",
        needs=(Need.DEBUG_TAX_SET,),
        never_with=(Need.NO_DEBUG_TAX,),
        paste="unset CUDA_LAUNCH_BLOCKING TORCH_DISTRIBUTED_DEBUG NCCL_DEBUG NCCL_DEBUG_SUBSYS "
        "PYTORCH_NO_CUDA_MEMORY_CACHING  # and torch.autograd.set_detect_anomaly(False) in the program",
        language=Language.SHELL,
        ceiling="CUDA_LAUNCH_BLOCKING and anomaly mode: 2x and more; logging: a few percent",
        risk=Risk.NONE,
        proof="The settings are gone from the list in the header; steps get shorter.",
    ),
    Remedy(
        id="pin-the-batch",
        title="compare runs on one batch that stays the same",
        applies="You changed something and want to know whether the model, not the data, got faster.",
        not_when="The question is the loader: then compare samples/s over whole minutes.",
        needs=(),
        paste="batch = next(iter(loader))  # once; warm up 20 steps, then time 100 with this batch",
        ceiling="none; it makes the other figures believable",
        risk=Risk.NONE,
        proof="Two runs of the unchanged program differ by less than the effect you look for.",
    ),
)
