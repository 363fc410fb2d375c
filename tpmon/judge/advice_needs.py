"""The closed vocabulary of what must have been observed before a remedy may be advised. Pure."""

from __future__ import annotations

from enum import Enum


class Sight(str, Enum):
    """Say where a need can be observed."""

    OUTSIDE = "readings from outside"
    STACKS = "stack samples"
    HOOK = "settings that a hook tells"
    NOT_YET = "not in this version"


class Need(str, Enum):
    """Name one observable precondition; the value is the sentence that a person reads after "if"."""

    # The loader
    NO_WORKERS = "the loader has no workers"
    WORKERS_PRESENT = "loader workers run"
    TORCH_LOADER = "the batches come from torch's DataLoader"
    WORKERS_CPU_BOUND = "the loader computes all the time"
    WORKERS_IO_WAIT = "the loader waits for reads"
    NETWORK_WAIT = "they wait on a socket or a network file system"
    SMALL_READS = "reads are small or many files are opened"
    BATCHES_READY = "finished batches lie ready in the queue"
    ONE_WORKER_SLOW = "one worker is slower than the others"
    FEW_WORKERS_FED = "only some of the workers have data"
    RESPAWN_SEEN = "workers are started anew during the run"
    WORKERS_KEPT = "persistent_workers is on"
    WORKERS_ASLEEP = "the workers have work and sleep, in no read"
    WORKERS_IN_LOCK = "the workers wait for a lock"
    WORKERS_IN_FUTEX = "the workers wait for a lock, or for threads of their own"
    OWN_QUEUE_WAIT = "the loop waits for what threads or processes of its own hand over"
    PERIODIC_SEEN = "the wait comes back every few steps"
    BATCHES_PINNED = "the loader pins its batches"
    PIN_THREAD_BUSY = "the pin-memory thread computes all the time"
    REFAULTS_SEEN = "files are read again because the page cache dropped them"
    COLLATE_IN_STACK = "batches are put together when the stacks are looked at"
    TRANSFORM_MOVABLE = "the costly transform is a deterministic one on tensors"
    JPEG_DECODED = "JPEG decoding is what the workers do"
    SAMPLES_WIDE = "samples are stored in wider numbers than they need"
    DATASET_FITS_MEMORY = "the data set fits into the memory that is free"
    LOCAL_DISK_FREE = "the machine has a fast local disk with room for the data"
    # CPUs
    CORES_FREE = "cores of the CPU budget are free"
    CORES_FULL = "the CPU budget is used up"
    QUOTA_BELOW_AFFINITY = "the CPU quota is below the number of CPUs that the job may use"
    QUOTA_THROTTLING = "the quota stops the job"
    AFFINITY_BELOW_HOST = "the job may run on a few of the machine's CPUs only"
    WORKERS_BOUND = "the loader's workers may run on few of the job's CPUs only"
    POOL_IN_RANK = "a rank's own thread pool is larger than its cores"
    POOL_IN_WORKERS = "loader workers run thread pools of their own"
    ONE_THREAD_SET = "the job was started with OMP_NUM_THREADS=1"
    RANKS_EXCEED_CORES = "more ranks run here than there are cores"
    CPUS_TAKEN = "other processes use the CPUs that the job wants"
    THREADS_IN_SCRIPT = "the program sets its number of threads itself"
    ONE_THREAD_BUSY = "one thread of the rank is busy all the time"
    GIL_WAIT = "threads of the rank wait for Python's interpreter lock"
    BLOCKING_CALL = "the loop sleeps in calls of its own"
    EVENT_LOOP_WAIT = "the event loop of asyncio has nothing to run"
    LOGGING_IN_STACK = "the main thread is often in logging, metrics or a progress bar"
    # GPUs
    GPU_PRESENT = "the job computes on a GPU"
    GPU_MEMORY_FREE = "much of the GPU memory is free"
    GPU_MEMORY_FULL = "the GPU memory is full"
    ONLY_FORWARD = "the model is seen in its forward pass only"
    TENSOR_CORES_IDLE = "the tensor cores are idle"
    TENSOR_CORES_BUSY = "the tensor cores are in use"
    DEBUG_TAX_SET = "the job was started with a debug setting that slows it"
    NO_DEBUG_TAX = "the job was started without a debug setting that slows it"
    NCCL_PATH_OFF = "the job was started with a setting that switches a fast path of NCCL off"
    SYNC_IN_STACK = "the main thread is often in a synchronise or .item()"
    SCALER_IN_STACK = "the main thread is often in the GradScaler's own .item()"
    NAN_CHECK_IN_STACK = "the main thread is often in the Trainer's look for NaN losses"
    COPY_IN_STACK = "the main thread is often in a copy to the GPU"
    ALLOCATOR_IN_STACK = "the main thread is often in the GPU memory allocator"
    RECOMPUTE_IN_STACK = "activation checkpointing recomputes in the backward pass"
    COMPILE_IN_STACK = "the main thread is in the compiler"
    PAGEABLE_COPIES = "batches are copied to the GPU from pageable memory"
    FP32_MATMUL_SEEN = "matrix products or convolutions run in plain fp32"
    TF32_ALLOWED = "TF32 is allowed for matrix products already"
    AUTOCAST_ON = "the model runs under autocast already"
    FP16_CORES_ALONE = "the card has tensor cores for fp16, but not for bf16 or TF32 (V100, T4)"
    MISALIGNED_PRODUCTS = "sizes of matrix products are no multiples of 8"
    CONV_MODEL = "convolutions take most of the time"
    FIXED_SHAPES_KNOWN = "the shapes of the inputs do not change from step to step"
    ATTENTION_SLOW_PATH = "attention does not run in a fused kernel"
    EAGER_MODEL = "the model is not compiled"
    RECOMPILES_SEEN = "the model is compiled and recompiles while it trains"
    GRAPH_BREAKS = "the model is compiled and breaks into many graphs"
    ZERO_FILL_SEEN = "gradients are filled with zeros each step"
    UNFUSED_OPTIMIZER = "the optimizer launches many small kernels"
    ALLOCATOR_RETRIES = "the allocator frees and asks the driver again during steps"
    CARD_MEMORY_GROWS = "the job's memory on a card grows steadily"
    CARD_HOT = "the card lowers its clocks because of heat"
    CARD_BRAKED = "the external power brake is on"
    CARD_CAPPED = "somebody set the card's clocks below what it can"
    CARD_SICK = "the card itself holds its clocks: its hardware, its board or its reliability voltage"
    CARD_CAPPED_ABOVE = "a power limit other than the card's own lowers its clock"
    LINK_DOWN = "the PCIe link runs below its width or generation under load"
    CARD_ERRORS = "the card reports errors"
    CARD_BEHIND = "one card of the job is slower than the others"
    # Stacks
    STACKS_READ = "the stacks of every rank were read often enough"
    # Ranks
    RANK_BEHIND = "one rank works while the others wait for it"
    DDP_IN_STACK = "the model is wrapped in DistributedDataParallel"
    FSDP_IN_STACK = "the model is wrapped in FSDP"
    FSDP1_IN_USE = "it is the older FullyShardedDataParallel class"
    FSDP2_IN_USE = "it is fully_shard"
    GATHERS_LIMITED = "limit_all_gathers is on"
    GATHERS_UNLIMITED = "limit_all_gathers is off"
    ACCUMULATION_SYNCS = "gradients are reduced in every micro-step of an accumulation"
    FIND_UNUSED_ON = "find_unused_parameters is on"
    FIND_UNUSED_OFF = "find_unused_parameters is off"
    GRADIENTS_COMPLETE = "every parameter gets a gradient in every step"
    SMALL_BUCKETS = "gradients are reduced in many small buckets"
    RANKS_ELSEWHERE = "ranks of the job run on other machines too"
    TRANSFER_SEEN = "collectives move data all the time"
    # Memory
    MEMORY_FREE = "memory is free below the limit"
    MEMORY_LIMIT_NEAR = "memory use is close to its limit"
    ANON_GROWS = "the memory of the ranks grows steadily"
    WORKERS_GROW = "the memory of the loader workers grows steadily"
    PAGES_COPIED = "workers make copies of memory that they shared"
    SWAP_USED = "the job uses swap"
    SHM_TIGHT = "shared memory (/dev/shm) is nearly full"
    # Start, pause, end
    IMPORT_IN_STACK = "the main thread is importing"
    LOAD_IN_STACK = "the main thread is reading a checkpoint"
    SAVE_IN_STACK = "the main thread is writing a checkpoint"
    VALIDATION_IN_STACK = "the main thread is in validation"
    VALIDATES_OFTEN = "validation takes a fifth of the time and more"
    INPUT_WAIT = "the main thread reads from the terminal"
    KILLED = "a signal ended a process of the job"
    # Done already, or known not to be
    NOTHING_COMPILED = "nothing of the model is compiled"
    MODEL_COMPILED = "the model is compiled already"
    FEW_BREAKS = "the model is compiled and breaks into few graphs at most"
    BENCHMARK_ON = "cuDNN measures its algorithms already"
    DETERMINISTIC_ON = "deterministic algorithms are asked for"
    NO_RETRIES = "the allocator never freed and asked the driver again"
    LARGE_BUCKETS = "gradients are reduced in few or large buckets"
    BUCKET_VIEW_OFF = "gradient_as_bucket_view is off"
    PREFETCH_DEEP = "prefetch_factor is 4 or more"
    # No progress
    RANK_GONE = "a rank of this machine is missing"
    LOCAL_RANKS_WAIT = "every rank of this machine waits and others run elsewhere"
    LOCK_WAIT = "a thread waits for a lock without a time limit"
    FILE_LOCK_WAIT = "a process waits for a lock on a file"
    QUEUE_WAIT = "a thread waits for something to come through a queue"
    THREAD_LEFT = "the main thread has finished, and another thread has not"
    SOCKET_WAIT = "a process waits for an answer on a socket"
    PROCESS_WAIT = "a process waits for another process"
    NOBODY_AT_PIPE = "a process waits at a pipe of which nobody has the other end"
    WORKER_DIED = "a loader worker is gone"
    BLOCKED_READ = "a process cannot be interrupted in a read or write"
    GPU_WAIT = "the main thread waits for the GPU and does not move"
    SPINNING = "a thread computes and its stack does not move"
    STOPPED = "a process of the job is stopped"
    FROZEN = "a control group keeps a process of the job frozen"
    TRACED = "a debugger holds a process of the job"
    CARD_LOST = "a card does not answer"


_STACKS = frozenset(need for need in Need if need.name.endswith("_IN_STACK")) | {
    Need.ONLY_FORWARD,
    Need.SPINNING,
    Need.STACKS_READ,
    Need.TORCH_LOADER,
}
_HOOK = frozenset(
    (
        Need.EAGER_MODEL,
        Need.RECOMPILES_SEEN,
        Need.GRAPH_BREAKS,
        Need.ALLOCATOR_RETRIES,
        Need.SMALL_BUCKETS,
        Need.WORKERS_KEPT,
        Need.TF32_ALLOWED,
        Need.AUTOCAST_ON,
        Need.FSDP1_IN_USE,
        Need.FSDP2_IN_USE,
        Need.GATHERS_LIMITED,
        Need.GATHERS_UNLIMITED,
        Need.FIND_UNUSED_ON,
        Need.FIND_UNUSED_OFF,
    )
)
_DONE = frozenset(
    (
        Need.NOTHING_COMPILED,
        Need.MODEL_COMPILED,
        Need.FEW_BREAKS,
        Need.BENCHMARK_ON,
        Need.DETERMINISTIC_ON,
        Need.NO_RETRIES,
        Need.LARGE_BUCKETS,
        Need.PREFETCH_DEEP,
    )
)
"""What a hook tells that speaks against a remedy."""
_NOT_YET = frozenset(
    (
        Need.BUCKET_VIEW_OFF,
        Need.TRANSFORM_MOVABLE,
        Need.JPEG_DECODED,
        Need.SAMPLES_WIDE,
        Need.DATASET_FITS_MEMORY,
        Need.LOCAL_DISK_FREE,
        Need.PAGEABLE_COPIES,
        Need.FP32_MATMUL_SEEN,
        Need.MISALIGNED_PRODUCTS,
        Need.CONV_MODEL,
        Need.FIXED_SHAPES_KNOWN,
        Need.ATTENTION_SLOW_PATH,
        Need.ZERO_FILL_SEEN,
        Need.UNFUSED_OPTIMIZER,
        Need.ACCUMULATION_SYNCS,
        Need.GRADIENTS_COMPLETE,
    )
)


def name_sight(need: Need) -> Sight:
    """Say where ``need`` can be observed; what is NOT_YET visible is never in an observed set."""
    if need in _NOT_YET:
        return Sight.NOT_YET
    if need in _HOOK or need in _DONE:
        return Sight.HOOK
    return Sight.STACKS if need in _STACKS else Sight.OUTSIDE
