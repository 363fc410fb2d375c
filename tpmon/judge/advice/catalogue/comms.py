"""Remedies for ranks that wait for each other: stragglers, gradient reduction, FSDP, the network."""

from __future__ import annotations

from tpmon.judge.advice.entry import Language, Remedy, Risk
from tpmon.judge.answers.needs import Need

REMEDIES = (
    Remedy(
        id="look-at-late-rank",
        title="look at rank {rank}: the others wait for it",
        applies="The ranks meet in a collective and one of them always comes last.",
        not_when="Rank 0 writes a checkpoint or logs: that is a pause. The late rank changes all the time: "
        "then work is uneven.",
        needs=(Need.RANK_BEHIND,),
        paste="tpmon dump {pid} --rank {rank}  # where it is while the others wait",
        language=Language.SHELL,
        ceiling="{gain} when it keeps up with the others",
        risk=Risk.NONE,
        proof="The ranks' shares of waiting become equal.",
    ),
    Remedy(
        id="even-work",
        title="give the ranks equal work per step",
        applies="Samples differ in length and each rank draws its own batch: every step lasts as long as "
        "the longest.",
        not_when="The late rank is always the same: then it is its card, its host or its extra duties.",
        needs=(Need.RANK_BEHIND,),
        paste="order = sorted(chunk, key=len, reverse=True)  # chunk of world * batch * 50 samples\n"
        "mine = order[rank::world]  # neighbours in length share a step; shuffle the steps afterwards",
        ceiling="mean over longest work of a step, {gain} at best",
        risk=Risk.EXPERIMENT,
        proof="The spread of the ranks' compute times per step shrinks.",
    ),
    Remedy(
        id="accumulate-no-sync",
        title="reduce gradients only in the last micro-step: model.no_sync()",
        applies="Gradients are accumulated, but every backward pass reduces them over the ranks.",
        not_when="There is no accumulation. With FSDP the unsharded gradients stay in memory meanwhile.",
        needs=(Need.ACCUMULATION_SYNCS,),
        paste="with model.no_sync() if micro < accumulation - 1 else contextlib.nullcontext():\n"
        "    (model(x).loss / accumulation).backward()\n"
        "# the forward pass belongs inside; fully_shard, in place of the with, before each backward:\n"
        "# model.set_requires_gradient_sync(micro == accumulation - 1)",
        ceiling="(accumulation - 1) / accumulation of the time in reductions",
        risk=Risk.NUMERICS,
        proof="Bytes sent per sample fall by the accumulation factor; samples/s rise.",
    ),
    Remedy(
        id="ddp-buckets",
        title="reduce gradients in larger buckets",
        applies="A large model over a network with high latency: the default of 25 MiB makes many small "
        "reductions.",
        not_when="The reductions are hidden behind the backward pass: larger buckets start later "
        "and hide less.",
        needs=(Need.DDP_IN_STACK, Need.SMALL_BUCKETS),
        paste="bucket_cap_mb=100,  # argument of DistributedDataParallel; try 50, 100, 200",
        ceiling="part of the exposed reduction, often 2 to 10 % of a step",
        risk=Risk.NUMERICS,
        proof="Fewer collectives per step, less of their time exposed, shorter steps.",
        never_with=(Need.LARGE_BUCKETS,),
    ),
    Remedy(
        id="gradient-as-bucket-view",
        title="let gradients live in DDP's buckets",
        applies="DDP copies each gradient into its bucket and back, and holds both.",
        not_when="Code calls detach_() on gradients or replaces .grad.",
        needs=(Need.DDP_IN_STACK, Need.BUCKET_VIEW_OFF),
        paste="gradient_as_bucket_view=True,  # argument of DistributedDataParallel",
        ceiling="memory of one copy of the gradients; about 1 % of a step",
        risk=Risk.NONE,
        proof="Peak GPU memory falls by the size of the gradients after the first step.",
    ),
    Remedy(
        id="find-unused-off",
        title="switch find_unused_parameters off",
        applies="DDP walks the whole graph after each forward pass to find parameters without a gradient, "
        "and every parameter gets one.",
        not_when="Some parameters get no gradient in some steps: it then raises. If they are always the "
        "same ones, static_graph=True helps.",
        needs=(Need.DDP_IN_STACK, Need.FIND_UNUSED_ON, Need.GRADIENTS_COMPLETE),
        paste="find_unused_parameters=False,  # argument of DistributedDataParallel; the default",
        ceiling="the walk of the graph: 1 to 10 % of a step, more with many small layers",
        risk=Risk.NONE,
        proof="No error in an epoch, shorter steps.",
        never_with=(Need.FIND_UNUSED_OFF,),
    ),
    Remedy(
        id="bf16-gradients",
        title="send gradients as bf16",
        applies="The network is the limit and gradients go over it in fp32.",
        not_when="Gradients are bf16 already, or there are so many ranks that bf16 sums lose small ones.",
        needs=(Need.DDP_IN_STACK, Need.TRANSFER_SEEN, Need.GPU_PRESENT),
        paste="from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
        "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
        ceiling="up to 2x of the exposed reduction; {gain} at best",
        risk=Risk.NUMERICS,
        proof="Bytes sent per step halve; the loss curve stays.",
    ),
    Remedy(
        id="exchange-less-often",
        title="exchange gradients in every 8th step only: accumulate under model.no_sync()",
        applies="Gradients take longer to send than to compute, and the link is as fast as it can be "
        "(DDP; no_sync of the older FSDP class keeps whole gradients on every card).",
        not_when="The batch of all ranks together must not grow: it becomes 8 times as large. Raise the "
        "learning rate with it, and compare at equal samples.",
        needs=(Need.DDP_IN_STACK, Need.TRANSFER_SEEN),
        paste="with contextlib.nullcontext() if step % 8 == 7 else model.no_sync():\n"
        "    (model(x).loss / 8).backward()\n"
        "if step % 8 == 7:\n"
        "    optimizer.step(); optimizer.zero_grad()",
        ceiling="7/8 of the time in exchanges; {gain} at best",
        risk=Risk.EXPERIMENT,
        proof="Bytes sent per sample fall to an eighth; samples/s rise.",
    ),
    Remedy(
        id="fsdp-prefetch",
        title="gather the next layers' parameters earlier",
        applies="The ranks wait for the all-gather of each layer before they compute it.",
        not_when="The network is busy all the time: asking earlier does not make it faster. It takes memory "
        "for another layer. One layer ahead is the order that it has by itself.",
        needs=(Need.FSDP_IN_STACK, Need.GPU_MEMORY_FREE),
        paste="for i, block in enumerate(blocks):  # the older class: forward_prefetch=True\n"
        "    block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 3])  # fully_shard, two ahead",
        ceiling="the exposed part of the all-gathers; {gain} at best",
        risk=Risk.NONE,
        proof="Less waiting between layers, shorter steps, no allocator retries.",
        never_with=(Need.GPU_MEMORY_FULL, Need.TRANSFER_SEEN),
    ),
    Remedy(
        id="fsdp-keep-parameters",
        title="keep parameters gathered between forward and backward",
        applies="Every layer is gathered twice a step although memory is free.",
        not_when="The gathered parameters do not fit.",
        needs=(Need.FSDP_IN_STACK, Need.GPU_MEMORY_FREE),
        paste="# every card must have the bytes of all parameters free\n"
        "fully_shard(block, reshard_after_forward=False)  # the older class: SHARD_GRAD_OP",
        ceiling="a third of the bytes on the network",
        risk=Risk.NONE,
        proof="Bytes sent per step fall by a third; GPU memory rises by the parameters.",
        never_with=(Need.GPU_MEMORY_FULL,),
    ),
    Remedy(
        id="fsdp-hybrid",
        title="shard within each machine only, and copy the shards from machine to machine",
        applies="Each layer's parameters are gathered from the ranks of all machines, over the slow network; "
        "within a machine the links are many times faster.",
        not_when="The shards do not fit: one machine's cards then hold all parameters, gradients and "
        "optimizer state.",
        needs=(Need.FSDP_IN_STACK, Need.RANKS_ELSEWHERE, Need.GPU_MEMORY_FREE),
        paste="# the cards of one machine must hold the whole model and its optimizer state\n"
        "sizes = (world // {ranks}, {ranks})  # machines, ranks of each\n"
        'mesh = init_device_mesh("cuda", sizes, mesh_dim_names=("replicate", "shard"))\n'
        "fully_shard(block, mesh=mesh)  # the model too; the older class: HYBRID_SHARD",
        ceiling="what the gathers take on the network; one reduction of a shard's gradients stays",
        risk=Risk.NUMERICS,
        proof="Bytes sent per step over the network fall; steps get shorter.",
        never_with=(Need.GPU_MEMORY_FULL,),
    ),
    Remedy(
        id="unlimit-all-gathers",
        title="let FSDP's host run ahead: limit_all_gathers=False",
        applies="The older FSDP class holds the host back to two gathers at a time, memory is free and the "
        "launch queue runs empty.",
        not_when="Memory is not plentiful: the allocator then frees and asks again, which is slower. "
        "fully_shard has no such setting.",
        needs=(Need.FSDP1_IN_USE, Need.GATHERS_LIMITED, Need.GPU_MEMORY_FREE, Need.SYNC_IN_STACK),
        paste="limit_all_gathers=False,  # argument of FullyShardedDataParallel",
        ceiling="the host's waits between layers, a few percent",
        risk=Risk.NONE,
        proof="Shorter steps and no allocator retries.",
        never_with=(Need.GPU_MEMORY_FULL, Need.FSDP2_IN_USE, Need.GATHERS_UNLIMITED),
    ),
    Remedy(
        id="nccl-paths-on",
        title="start without the settings that switch NCCL's fast paths off",
        applies="The run was started with NCCL_IB_DISABLE, NCCL_P2P_DISABLE or NCCL_SHM_DISABLE: its data go "
        "by TCP or through the host; or with TORCH_NCCL_BLOCKING_WAIT: the host waits in every collective.",
        not_when="They work around a hang or a fault of driver, switch or container: then mend that first. "
        "Accelerate sets them itself for some consumer cards.",
        needs=(Need.NCCL_PATH_OFF,),
        paste="unset NCCL_IB_DISABLE NCCL_P2P_DISABLE NCCL_SHM_DISABLE TORCH_NCCL_BLOCKING_WAIT"
        "  # one by one, if they work around a hang",
        language=Language.SHELL,
        ceiling="bandwidth of the right link over that of the wrong one; {gain} at best",
        risk=Risk.NONE,
        proof="NVLink or the InfiniBand port moves the bytes; steps get shorter.",
    ),
    Remedy(
        id="check-network-path",
        title="see which way NCCL goes: InfiniBand, NVLink, or TCP by mistake",
        applies="The ranks transfer all the time and the rate is far below what the links can.",
        not_when="The links are full. Leave NCCL_DEBUG off afterwards.",
        needs=(Need.TRANSFER_SEEN, Need.GPU_PRESENT),
        paste="NCCL_DEBUG=INFO torchrun ... 2>&1 | grep -E 'NET/|via|P2P'  # then nvidia-smi topo -m",
        language=Language.SHELL,
        ceiling="bandwidth of the right link over that of the wrong one; {gain} at best",
        risk=Risk.NONE,
        proof="Rates of NVLink or the InfiniBand port rise, those of the TCP interface fall.",
    ),
)
