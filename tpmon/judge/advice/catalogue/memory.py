"""Remedies for memory: leaks, copies, swap, shared memory, GPU memory."""

from __future__ import annotations

from tpmon.judge.advice.entry import Language, Remedy, Risk
from tpmon.judge.answers.needs import Need

REMEDIES = (
    Remedy(
        id="detach-history",
        title="keep numbers, not tensors: the graph behind a loss stays with it",
        applies="Memory grows by about the same amount each step: a list of losses, outputs or metrics "
        "keeps every step's graph.",
        not_when="The growth ends after an epoch: then it is a cache that fills. On a GPU the graphs "
        "would fill the card's memory, not the host's.",
        needs=(Need.ANON_GROWS,),
        paste="history.append(loss.item())  # a number; or loss.detach(), without its graph",
        ceiling="the run lives; no speed by itself",
        risk=Risk.NONE,
        proof="The slope of the memory goes to zero within a minute.",
        never_with=(Need.GPU_PRESENT,),
    ),
    Remedy(
        id="bounded-cache",
        title="give the data set's cache a bound: each worker fills one of its own",
        applies="The memory of the loader's workers grows: each keeps the samples, files or handles that it "
        "has met, in a dict or an lru_cache without a bound.",
        not_when="The cache is full after an epoch and all of them fit together.",
        needs=(Need.WORKERS_GROW,),
        paste="@functools.lru_cache(maxsize=1000)  # in place of a dict, or of maxsize=None\n"
        "# and persistent_workers=False, in DataLoader: each epoch then begins with empty workers",
        ceiling="the run lives; no speed by itself",
        risk=Risk.NONE,
        proof="The memory of the workers stops growing at the size of the cache.",
    ),
    Remedy(
        id="find-leak",
        title="find what grows: compare two snapshots of Python's memory",
        applies="Host memory grows and no list of tensors is to blame.",
        not_when="The run is timed: tracing allocations makes Python 2x slower. It does not see memory "
        "that torch or a C library takes by itself.",
        needs=(Need.ANON_GROWS,),
        paste="tracemalloc.start(10); first = tracemalloc.take_snapshot()\n"
        "# 500 steps later\n"
        'for row in tracemalloc.take_snapshot().compare_to(first, "traceback")[:5]: print(row)',
        ceiling="the run lives; no speed by itself",
        risk=Risk.NONE,
        proof="The line that grew no longer does.",
    ),
    Remedy(
        id="arrays-not-objects",
        title="hold the samples in numpy arrays, not in lists of Python objects",
        applies="Each look at an inherited Python object writes its reference count, and the kernel copies "
        "that page for the worker: memory grows with the workers although nothing leaks.",
        not_when="The list is short (below 100 MB): the copies end when every page was touched.",
        needs=(Need.PAGES_COPIED,),
        paste="self.paths = np.array(paths, dtype=np.bytes_)  # in the Dataset; item: self.paths[i].decode()",
        ceiling="memory of one copy in place of 1 + workers copies",
        risk=Risk.NONE,
        proof="Minor faults of the workers and the growth of anonymous memory stop.",
    ),
    Remedy(
        id="map-the-data",
        title="map large arrays from a file: np.load(..., mmap_mode='r')",
        applies="Each rank holds its own copy of the same data in memory.",
        not_when="Access is random, the data are larger than memory and the disk is slow: every touch reads.",
        needs=(Need.MEMORY_LIMIT_NEAR,),
        paste='data = np.load("tokens.npy", mmap_mode="r")  # one copy in the page cache for all ranks',
        ceiling="one copy instead of one per rank",
        risk=Risk.NONE,
        proof="Anonymous memory of the job falls by (ranks - 1) copies.",
    ),
    Remedy(
        id="fewer-workers",
        title="need less memory: fewer workers, prefetch_factor=1",
        applies="Memory is short and each worker holds its imports, its copies and its batches.",
        not_when="The workers are needed for speed and the data set is what is large.",
        needs=(Need.WORKERS_PRESENT, Need.MEMORY_LIMIT_NEAR),
        paste="num_workers={fewer_workers}, prefetch_factor=1,  # arguments of DataLoader",
        ceiling="memory of the workers that go; it may cost speed",
        risk=Risk.NONE,
        proof="No swap is used, memory stays below the limit, samples/s are no lower.",
    ),
    Remedy(
        id="more-memory",
        title="ask the scheduler for more memory",
        applies="What the job needs is more than its control group or machine has.",
        not_when="Memory grows without end: it only dies later.",
        needs=(Need.MEMORY_LIMIT_NEAR,),
        paste="#SBATCH --mem=SIZE  # in Kubernetes: resources.limits.memory; docker update --memory=SIZE",
        language=Language.SHELL,
        ceiling="{gain}: the stalls for memory go away",
        risk=Risk.NONE,
        proof="Memory pressure (PSI), refaults and swap are zero.",
        never_with=(Need.ANON_GROWS, Need.WORKERS_GROW),
    ),
    Remedy(
        id="out-of-swap",
        title="get the job out of swap: make room, then keep it out",
        applies="Pages of the job lie on a swap disk; touching them takes milliseconds.",
        not_when="The swapped pages are never touched again (swap use is constant, no major faults).",
        needs=(Need.SWAP_USED,),
        paste="ps -eo pid,user,rss,args --sort=-rss | head -8; grep VmSwap /proc/{pid}/status",
        language=Language.SHELL,
        ceiling="{gain}; a step that swaps is often 10x slower",
        risk=Risk.NONE,
        proof="Major faults are zero and VmSwap shrinks.",
    ),
    Remedy(
        id="bigger-shm",
        title="make room in /dev/shm: {shm_size}",
        applies="Workers hand over batches through /dev/shm, whose default in containers is 64 MiB. A batch "
        "that does not fit is an error, or is lost and the run hangs.",
        not_when="The mount is large and something else fills it: then remove that. The file_system sharing "
        "strategy is no way out: it uses the same mount.",
        needs=(Need.SHM_TIGHT,),
        paste="{shm_fix}",
        language=Language.SHELL,
        ceiling="the run lives; room for more workers and longer queues",
        risk=Risk.NONE,
        proof="The fill of /dev/shm stays below half.",
    ),
    Remedy(
        id="shorter-queue",
        title="keep fewer batches in /dev/shm: prefetch_factor=1, fewer workers",
        applies="The mount cannot be made larger now. It must hold workers x prefetch_factor batches, "
        "and those in use.",
        not_when="One batch alone does not fit.",
        needs=(Need.SHM_TIGHT, Need.WORKERS_PRESENT),
        paste="prefetch_factor=1,  # argument of DataLoader",
        ceiling="the run lives; it may cost speed",
        risk=Risk.NONE,
        proof="The fill of /dev/shm stays below half.",
    ),
    Remedy(
        id="detach-on-card",
        title="keep numbers, not tensors, on the card: a loss in a list holds its whole graph",
        applies="The memory of the card grows by about the same each step: a list, a metric or a state that "
        "goes from step to step keeps tensors, and each keeps the graph that made it.",
        not_when="What grows has a bound, such as a replay buffer or a cache that fills, and fits.",
        needs=(Need.CARD_MEMORY_GROWS,),
        paste="losses.append(loss.detach())  # or loss.item(), rarely: it waits for the card\n"
        "hidden = hidden.detach()  # a state that the next step begins with",
        ceiling="the run lives; no speed by itself",
        risk=Risk.NONE,
        proof="torch.cuda.memory_allocated() at the end of a step stays the same.",
    ),
    Remedy(
        id="checkpointing-on",
        title="recompute activations of the largest blocks",
        applies="Activations fill the GPU memory.",
        not_when="Parameters or optimizer state fill it: shard those. It costs up to a third of the speed.",
        needs=(Need.GPU_MEMORY_FULL,),
        paste="x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        ceiling="activation memory from all layers to about one; steps up to 1.33x longer",
        risk=Risk.NONE,
        proof="Peak memory falls, retries and out-of-memory errors stop.",
        never_with=(Need.RECOMPUTE_IN_STACK, Need.CARD_MEMORY_GROWS),
    ),
    Remedy(
        id="smaller-micro-batch",
        title="halve the micro-batch and accumulate twice as often",
        applies="The GPU memory is full and the batch is what can shrink.",
        not_when="The model has BatchNorm: it sees smaller batches. A loss averaged over tokens must be "
        "weighted by their number.",
        needs=(Need.GPU_MEMORY_FULL,),
        paste="micro_batch //= 2\naccumulation *= 2  # and loss = loss / accumulation",
        ceiling="about half of the activation memory",
        risk=Risk.NUMERICS,
        proof="Peak memory falls; the loss per sample seen stays.",
        never_with=(Need.CARD_MEMORY_GROWS,),
    ),
    Remedy(
        id="memory-snapshot",
        title="record what the GPU memory is made of",
        applies="GPU memory grows or is full and nobody knows of what.",
        not_when="The run is timed: recording costs some speed.",
        needs=(Need.GPU_MEMORY_FULL,),
        paste="torch.cuda.memory._record_memory_history(max_entries=100_000)\n"
        'torch.cuda.memory._dump_snapshot("memory.pickle")  # later; open at pytorch.org/memory_viz',
        ceiling="none; it says where to cut",
        risk=Risk.NONE,
        proof="The largest block in the picture has a name.",
    ),
    Remedy(
        id="limit-all-gathers",
        title="keep limit_all_gathers=True",
        applies="The older FSDP class was given limit_all_gathers=False: the host runs ahead, gathers many "
        "layers at once, and the allocator runs out.",
        not_when="It is at its default, or the model uses fully_shard, which has no such setting.",
        needs=(Need.FSDP1_IN_USE, Need.GATHERS_UNLIMITED, Need.ALLOCATOR_RETRIES),
        paste="limit_all_gathers=True,  # argument of FullyShardedDataParallel; the default since torch 2.0",
        ceiling="{gain}: the retries go away",
        risk=Risk.NONE,
        proof="torch.cuda.memory_stats()['num_alloc_retries'] stays constant.",
        never_with=(Need.FSDP2_IN_USE, Need.GATHERS_LIMITED, Need.NO_RETRIES),
    ),
)
