"""What each verdict about data, CPUs and Python means, what tpmon sees of it, what it is confused with."""

from __future__ import annotations

from tpmon.judge.advice.entry import Explanation
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.verdict import Kind

EXPLANATIONS = (
    Explanation(
        Kind.BALANCED,
        NOT_APPLICABLE,
        "Steps go on and no single cause takes a share of them that would be worth a change.",
        "No rule is past its threshold, and the stacks move through all parts of a step. Where a fifth of "
        "the samples or more is in checkpoints or validations between them, that is said, with low "
        "confidence.",
        "a run whose costs are spread: five causes of 5 % each do not make a verdict.",
    ),
    Explanation(
        Kind.COMPUTE_BOUND,
        "cpu",
        "The job computes on CPUs and keeps its CPU budget busy with forward, backward and optimizer.",
        "CPU time near the budget, stacks in the model, batches ready.",
        "oversubscription, where more threads than CPUs are busy and wait for each other.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "no-workers",
        "num_workers=0: the training loop itself loads and transforms each batch, and computes nothing "
        "in that time.",
        "No worker processes; the main thread is found in the dataset below the loader's next().",
        "pure Python work in the step itself (python-bound): only the stacks tell the two apart.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "cpu-transform",
        "The workers decode and transform as fast as their cores allow, and that is too slow.",
        "The data queue is empty, the rank waits for a batch, and every worker computes all the time.",
        "thread pools inside the workers (oversubscribed, worker-pool), and too few workers on free cores.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "storage-bandwidth",
        "The workers wait for large reads: the disk or mount gives no more bytes per second.",
        "Workers in uninterruptible sleep or in a read, a high and steady rate from the device.",
        "storage-latency, where the rate is low because each read is small or far away.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "storage-latency",
        "The workers wait for many small reads or opens, each of which takes long.",
        "Workers in reads or opens, few bytes per second, few bytes per read; or workers that wait for files "
        "and whose stacks end in open, stat or a listing for half of their work.",
        "storage-bandwidth; a network file system whose server is slow looks the same.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "network-store",
        "The workers wait for a server: object store, database, HTTP.",
        "Workers asleep in a socket receive; neither CPU nor disk is used.",
        "a worker that waits for work from its rank, which also sleeps: tpmon reads the kernel's word.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "page-cache-thrash",
        "The data is larger than the memory left for the page cache: files are read again and again.",
        "Refaults of file pages, major faults, memory pressure; more bytes from the device than asked for.",
        "plain storage bandwidth: there the pages are read once each.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "too-few-workers",
        "Each worker is busy or waits for its reads, cores are free: more workers would load more.",
        "An empty data queue, a backlog in every index queue, free cores in the budget.",
        "cpu-transform on a full budget, where more workers make it worse.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "one-slow-worker",
        "The loader hands batches out in order, so one slow worker holds all the others.",
        "One worker's index queue is full and it works or waits, the others have nothing to do.",
        "one expensive sample at a time on changing workers (periodic).",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "uneven-workers",
        "Only some of the workers have data: fewer shards than workers, or a few that hold most of it.",
        "Two or more workers always have work, while each of the others waits for work nearly all the time.",
        "too few workers, where each of them has work: more of them would help there, and idle here.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "worker-lock",
        "The workers wait for each other at a lock (of a file, a database, a library, or their own): more "
        "workers would wait there too.",
        "Workers that have work, and an acquire in their stacks or a lock on a file as what they wait for; "
        "or three and more that sleep in a futex in lines of the program while one of them works and no "
        "other thread of theirs computes or reads. A futex alone is told with low confidence: it may be "
        "threads of their own.",
        "workers that wait for a pool of threads, a future or a queue of their own (too few workers); "
        "workers that sleep; a hang, where no batch comes at all.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "respawn",
        "Workers are started anew for each epoch, and each epoch is short.",
        "New worker PIDs all the time; the rank is found in starting or joining processes.",
        "a restart of the whole job by its launcher.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "killed-workers",
        "A signal ends loader workers again and again, and the program starts new ones: the OOM killer, a "
        "crash in a decoder, a full /dev/shm.",
        "The exit status of workers, twice or more in a minute. SIGTERM does not count: ranks end theirs so.",
        "workers that end with their epoch (respawn): they leave with exit 0.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "worker-affinity",
        "The workers may run on few of the job's CPUs: OMP_PROC_BIND, GOMP_CPU_AFFINITY or KMP_AFFINITY bind "
        "the main thread to one CPU, and workers inherit that.",
        "Workers that wait for a CPU a good part of their time, and may run on fewer CPUs than the job has.",
        "a whole job that is bound to few CPUs: then the budget is as small, and the CPUs are used up.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "periodic",
        "Most steps find their batch; every so often one must wait long.",
        "The waits come in bursts with a steady distance.",
        "checkpoints and validation (paused), which are pauses on purpose.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "collate",
        "Putting the batch together takes the time, not the samples.",
        "Stacks in the collate function, in the rank or in its workers.",
        "a transform that works on whole batches.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "pin",
        "The pin-memory thread copies batches more slowly than they come.",
        "A pin thread that is busy all the time while the workers have no work.",
        "a busy main thread that holds the interpreter lock, so that the pin thread cannot run.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "drain",
        "Batches are ready; unpacking or copying them in the main thread takes the time.",
        "A full queue, and a main thread inside the loader or in the copy of the batch.",
        "the forward pass, when the copy is the first line of it.",
    ),
    Explanation(
        Kind.DATA_BOUND,
        "own-loader",
        "The loop takes what it works on from threads or processes of its own: a prefetch thread, a pool, "
        "environments behind pipes. They are slower than the loop.",
        "The main thread is found at the taking end of a queue, a pipe, a pool or a future, beside steps.",
        "a DataLoader, whose workers tpmon knows; a thread that fights for Python's lock (gil); a future of "
        "an asynchronous checkpoint, told by the names of who waits and by the thread that writes.",
    ),
    Explanation(
        Kind.PYTHON_BOUND,
        "gil",
        "Several Python threads of one process share one interpreter lock and wait for each other.",
        "One CPU of demand in all, and threads in a timed wait for the same lock.",
        "a queue between threads with a time-out, which waits the same way but uses no CPU.",
    ),
    Explanation(
        Kind.PYTHON_BOUND,
        "single-thread",
        "Python code between the tensor operations sets the pace on one core.",
        "One thread at 100 %, other cores free, stacks outside of forward, backward and optimizer.",
        "compute on one thread (OMP_NUM_THREADS=1): there the stacks are in the model.",
    ),
    Explanation(
        Kind.PYTHON_BOUND,
        "blocking-call",
        "The loop itself waits in a call beside the step: a write that is synced, a request to a server, "
        "another program, a sleep.",
        "Stacks outside of forward, backward and optimizer, and a main thread that is asleep meanwhile.",
        "single-thread, where the thread computes; a checkpoint (paused) that is known by its frames; a wait "
        "for the GPU or for other ranks, which leaves no frame: no such sleep counts by itself.",
    ),
    Explanation(
        Kind.OVERSUBSCRIBED,
        "rank-pool",
        "A rank's own thread pool has more threads than it may use CPUs.",
        "Runnable threads of the rank far above the budget, a large part of that time waiting.",
        "other tenants of the machine: there the job's own demand fits its CPUs.",
    ),
    Explanation(
        Kind.OVERSUBSCRIBED,
        "worker-pool",
        "Loader workers run thread pools of their own (OpenCV, OpenBLAS, MKL) and fight for the CPUs.",
        "Workers with two or more busy threads each, demand far above the budget.",
        "many single-threaded workers, which cost nothing: that is a note, not a fault.",
    ),
    Explanation(
        Kind.OVERSUBSCRIBED,
        "too-many-ranks",
        "Each rank's pool would fit, all ranks together do not.",
        "Several ranks with pools, the sum of their demand far above the budget.",
        "a slow rank that the others wait for.",
    ),
    Explanation(
        Kind.CPU_THROTTLED,
        "quota",
        "The control group's CPU quota stops every thread of the job for the rest of each period.",
        "Throttled periods in cpu.stat.",
        "oversubscription: stopped threads count as waiting for a CPU, so tpmon asks for the quota first.",
    ),
    Explanation(
        Kind.MEMORY_PRESSURE,
        "leak",
        "The memory of the job grows towards its limit; at the limit the kernel ends a process.",
        "Anonymous memory with a steady slope, and the time that is left at that slope.",
        "caches that fill once and then stay.",
    ),
    Explanation(
        Kind.MEMORY_PRESSURE,
        "copy-on-write",
        "Forked workers touch Python objects of the dataset, and each touch copies its page.",
        "The job's anonymous memory grows while the sum of RSS does not.",
        "a leak in the workers, where RSS grows as well.",
    ),
    Explanation(
        Kind.MEMORY_PRESSURE,
        "swap",
        "Parts of the job are in swap and come back page by page.",
        "Swap in use by the job's group, major faults.",
        "cold pages that were swapped out once and are not needed.",
    ),
    Explanation(
        Kind.MEMORY_PRESSURE,
        "shm",
        "Shared memory (/dev/shm) is nearly full: the next batch may not fit, and a worker then dies or the "
        "job hangs without a word.",
        "The fill of the target's own mount.",
        "space that other programs use on the same mount.",
    ),
    Explanation(
        Kind.MEMORY_PRESSURE,
        "gpu",
        "The job runs against the end of a card's memory: its allocator frees and asks again, finds none, or "
        "what it holds grows until there is none.",
        "The hook's counters of retries or out-of-memory errors rise while the card is nearly full. Or, also "
        "without a hook, the job's own memory on a card grows alike in three windows of 15 s, in a run that "
        "trains, and fills the card within half an hour; where a hook tells that the tensors held do not "
        "grow, it is only the cache. A full card alone proves nothing.",
        "a caching allocator that filled the card on purpose (note memory-full) or that still does; a start; "
        "memory of others on the card, which is named; a replay buffer that fills.",
    ),
)
