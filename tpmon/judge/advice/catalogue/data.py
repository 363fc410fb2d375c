"""Remedies for the loader: its processes, queues and settings. Checked against torch 2.13."""

from __future__ import annotations

from tpmon.judge.advice.entry import Language, Remedy, Risk
from tpmon.judge.answers.needs import Need

REMEDIES = (
    Remedy(
        id="start-workers",
        title="load in the background: num_workers={workers}",
        applies="The rank loads its own batches, so that compute and loading take turns.",
        not_when="The CPU budget is used up: workers would take their cores from the compute. Batches are "
        "drawn from memory that the run fills, such as a replay buffer: workers would not see it. An "
        "IterableDataset that does not split itself by get_worker_info() yields every sample once per "
        "worker.",
        needs=(Need.TORCH_LOADER, Need.NO_WORKERS, Need.CORES_FREE, Need.MEMORY_FREE),
        paste="num_workers={workers}, persistent_workers=True,  "
        "# of DataLoader; an IterableDataset must split itself{shm_note}",
        ceiling="{workers_gain} with num_workers={workers}",
        risk=Risk.NONE,
        proof="The share of data wait falls and samples/s rise; batches lie ready in the queue.",
        never_with=(Need.CORES_FULL, Need.SHM_TIGHT, Need.SWAP_USED),
        adds_workers=True,
    ),
    Remedy(
        id="more-workers",
        title="raise num_workers from {workers_now} to {workers}",
        applies="Every worker computes all the time, the queue is empty, and cores and memory are free.",
        not_when="The CPU budget is used up, or the workers run thread pools: more processes then only "
        "share the same cores. Workers that wait for reads want another remedy.",
        needs=(Need.WORKERS_CPU_BOUND, Need.CORES_FREE, Need.MEMORY_FREE),
        paste="num_workers={workers},  # argument of DataLoader, for each rank{shm_note}",
        ceiling="{growth_gain} with num_workers={workers}",
        risk=Risk.NONE,
        proof="The queue fills and samples/s rise in proportion to the workers.",
        never_with=(
            Need.CORES_FULL,
            Need.POOL_IN_WORKERS,
            Need.SHM_TIGHT,
            Need.SWAP_USED,
            Need.WORKERS_ASLEEP,
        ),
        adds_workers=True,
    ),
    Remedy(
        id="more-readers",
        title="wait in parallel: num_workers={workers} instead of {workers_now}",
        applies="The workers sleep in reads whose latency, not whose bandwidth, is the limit; sleeping "
        "costs no core.",
        not_when="The store gives no more bytes per second, or is one rotating disk: every reader then "
        "gets slower.",
        needs=(Need.WORKERS_IO_WAIT, Need.MEMORY_FREE),
        paste="num_workers={workers},  # argument of DataLoader, for each rank; then measure again",
        ceiling="{growth_gain} with num_workers={workers}",
        risk=Risk.NONE,
        proof="Bytes read per second rise with the workers, and so do samples/s.",
        never_with=(Need.WORKERS_CPU_BOUND, Need.SHM_TIGHT, Need.SWAP_USED),
        adds_workers=True,
    ),
    Remedy(
        id="look-at-sleepers",
        title="look at what the workers wait for",
        applies="The workers have work and neither compute nor read: they sleep, or wait for a server or a "
        "child.",
        not_when="Their stacks are known already.",
        needs=(Need.WORKERS_ASLEEP,),
        paste="tpmon dump {pid}  # the stacks of all workers, folded",
        language=Language.SHELL,
        ceiling="{gain} when they no longer wait",
        risk=Risk.NONE,
        proof="The workers compute or read, or the queue fills.",
    ),
    Remedy(
        id="more-sleepers",
        title="sleep in parallel: num_workers={workers} instead of {workers_now}",
        applies="The workers sleep most of the time, in no read and no lock; sleeping costs no core.",
        not_when="What they wait for serves one at a time: then more of them only wait longer.",
        needs=(Need.WORKERS_ASLEEP, Need.MEMORY_FREE),
        paste="num_workers={workers},  # argument of DataLoader, for each rank; then measure again",
        ceiling="{growth_gain} with num_workers={workers}",
        risk=Risk.NONE,
        proof="The queue fills and samples/s rise in proportion to the workers.",
        never_with=(
            Need.WORKERS_CPU_BOUND,
            Need.WORKERS_IN_LOCK,
            Need.WORKERS_IN_FUTEX,
            Need.SHM_TIGHT,
            Need.SWAP_USED,
        ),
        adds_workers=True,
    ),
    Remedy(
        id="free-the-lock",
        title="find the lock that the workers wait for, and hold it shorter or not at all",
        applies="Most workers wait for a lock while one works: together they are as fast as one.",
        not_when="Each worker waits for threads that it started itself: then look at these threads.",
        needs=(Need.WORKERS_IN_LOCK,),
        paste="tpmon dump {pid}  # who holds it, and where\n"
        "# then: a file handle, connection or map of its own for each worker, opened in the worker",
        language=Language.SHELL,
        ceiling="{gain}, at most as many times as there are workers",
        risk=Risk.NONE,
        proof="Workers are no longer found in the lock; samples/s rise with their number.",
    ),
    Remedy(
        id="lock-or-threads",
        title="see whether the workers wait for one lock or each for threads of its own",
        applies="The workers sleep in a futex, and their stacks do not tell what for.",
        not_when="Their stacks show an acquire, or the end of a pool or a future: then it is known.",
        needs=(Need.WORKERS_IN_FUTEX,),
        paste="tpmon dump {pid}  # the stacks of all workers, folded\n"
        "# all at one line, in acquire or __enter__: a lock; hold it shorter, or a handle for each worker\n"
        "# in result, as_completed, get or wait: threads of their own; more of these, or of the workers",
        language=Language.SHELL,
        ceiling="{gain} when they no longer wait",
        risk=Risk.NONE,
        proof="Workers are no longer found in a futex; samples/s rise with their number.",
    ),
    Remedy(
        id="feed-own-queue",
        title="make what the loop waits for in parallel: more threads or processes that fill its queue",
        applies="The loop waits at a queue, a pipe, a pool or a future that is no DataLoader's.",
        not_when="What fills it shares Python's lock with the loop and computes: then use processes.",
        needs=(Need.OWN_QUEUE_WAIT,),
        paste="tpmon dump {pid}  # what the threads and processes that fill it do\n"
        "# then: several of them (threads of DALI, CPUs of Ray Data, processes of a pool)",
        language=Language.SHELL,
        ceiling="{gain}",
        risk=Risk.NONE,
        proof="The main thread is rarely found at the queue; steps/s rise.",
    ),
    Remedy(
        id="persistent-workers",
        title="keep the workers between epochs: persistent_workers=True",
        applies="The workers end with each epoch and are started anew, each with its imports and its copy "
        "of the data set.",
        not_when="Something relies on a fresh worker per epoch, such as a data set that the rank changes "
        "between epochs: the workers keep the copy that they started with. What an epoch begins anew for the "
        "data itself (a shuffle buffer, an index) kept workers begin anew too: make that smaller.",
        needs=(Need.RESPAWN_SEEN,),
        paste="persistent_workers=True,  # argument of DataLoader; needs num_workers > 0",
        ceiling="{gain}; the first batches of an epoch come as fast as the others",
        risk=Risk.NONE,
        proof="No worker is born after the first epoch; the step at the start of an epoch is no longer late.",
        never_with=(Need.WORKERS_KEPT,),
    ),
    Remedy(
        id="one-loader",
        title="make the DataLoader and its iterator once, outside the loop",
        applies="Workers are born far more often than epochs begin: next(iter(loader)) in a loop starts "
        "all of them for one batch.",
        not_when="Each start uses another data set on purpose.",
        needs=(Need.RESPAWN_SEEN,),
        paste="batches = iter(loader)  # once; then, in the loop:\nbatch = next(batches)",
        ceiling="{gain}",
        risk=Risk.NONE,
        first_with=(Need.WORKERS_KEPT,),
        proof="Worker births stop, minor faults of the rank fall, samples/s rise.",
    ),
    Remedy(
        id="pin-memory",
        title="pin the batches and copy them without waiting: pin_memory=True and non_blocking=True",
        applies="Batches go to the GPU from pageable memory: the copy is slow and the host waits for it.",
        not_when="Only one half is done: pinned memory with a blocking copy still waits, and non_blocking "
        "from pageable memory is no asynchronous copy. Do not use non_blocking from the GPU to the host "
        "without a synchronise: the host reads stale memory.",
        needs=(Need.GPU_PRESENT, Need.PAGEABLE_COPIES),
        paste="pin_memory=True,  # argument of DataLoader, and in the loop, for each tensor of the batch:\n"
        'batch = batch.to("cuda", non_blocking=True)',
        ceiling="the time of the copies, often 1 to 5 % of a step",
        risk=Risk.NONE,
        proof="The main thread is no longer found in the copy; GPU idle time between steps shrinks.",
        never_with=(Need.BATCHES_PINNED,),
    ),
    Remedy(
        id="non-blocking-copy",
        title="do the other half of pinning: .to(device, non_blocking=True)",
        applies="The loader pins its batches, but the main thread still waits in the copy.",
        not_when="The host changes the batch after the copy was started.",
        needs=(Need.BATCHES_PINNED, Need.COPY_IN_STACK),
        paste='batch = batch.to("cuda", non_blocking=True)',
        ceiling="the time that the main thread spends in the copy",
        risk=Risk.NONE,
        proof="The main thread is no longer found in the copy.",
    ),
    Remedy(
        id="prefetch-factor",
        title="buffer the bursts: prefetch_factor=4",
        applies="Loading is fast enough on average, but some batches are late and the queue of two per "
        "worker runs dry.",
        not_when="The loader is too slow on average: a longer queue only runs dry later. Memory or "
        "/dev/shm is short: every batch in the queue lies there.",
        needs=(Need.WORKERS_PRESENT, Need.PERIODIC_SEEN, Need.MEMORY_FREE),
        paste="prefetch_factor=4,  # argument of DataLoader, batches per worker; default 2",
        ceiling="the late steps only: {gain} at best",
        risk=Risk.NONE,
        proof="The slow step every few steps goes away; the queue is not empty before it.",
        never_with=(Need.SHM_TIGHT, Need.SWAP_USED, Need.PREFETCH_DEEP),
    ),
    Remedy(
        id="look-at-worker",
        title="look at what holds worker {pid}",
        applies="One worker makes its batches later than the others, and batches are handed out in order, "
        "so all wait for it.",
        not_when="The slow worker changes from minute to minute: then samples differ, not workers.",
        needs=(Need.ONE_WORKER_SLOW,),
        paste="taskset -cp {pid}; grep -E 'State|Cpus_allowed_list' /proc/{pid}/status; "
        "readlink /proc/{pid}/fd/*",
        ceiling="{gain} when it keeps up with the others",
        risk=Risk.NONE,
        proof="Its load and its pending requests are like those of its siblings.",
    ),
    Remedy(
        id="more-shards",
        title="write more shards, of equal size: a multiple of the workers of all ranks",
        applies="The data set is split by shards, and there are fewer of them than workers, or a few hold "
        "most of the data: a worker without a shard only waits.",
        not_when="The data set has an index, so that any worker can read any sample: then look at what the "
        "workers with work do.",
        needs=(Need.FEW_WORKERS_FED,),
        paste="dataset = dataset.to_iterable_dataset(num_shards=4 * {workers_now})  # datasets; times ranks\n"
        "# webdataset: smaller files, by maxcount= of ShardWriter",
        ceiling="{gain}; at most the workers over those that have work now",
        risk=Risk.NONE,
        proof="Every worker has work; samples/s rise with the number of those that have.",
    ),
    Remedy(
        id="balance-samples",
        title="give every worker the same amount of work",
        applies="Samples or shards differ in size, and one worker gets the large ones.",
        not_when="The run must be repeated sample for sample: the order changes as with another seed.",
        needs=(Need.ONE_WORKER_SLOW,),
        paste="info = torch.utils.data.get_worker_info()  # in IterableDataset.__iter__\n"
        "shards = sorted(shards, key=os.path.getsize)[info.id :: info.num_workers]",
        ceiling="{gain}",
        risk=Risk.NONE,
        proof="The index queues of the workers hold equal amounts.",
    ),
    Remedy(
        id="in-order-off",
        title="take batches as they come: in_order=False",
        applies="A few samples take far longer than the rest, and the batches behind them are ready.",
        not_when="Order matters, or slow samples are of one kind: they then come late, and the data seen "
        "by a given step are skewed. Needs torch 2.6.",
        needs=(Need.ONE_WORKER_SLOW, Need.BATCHES_READY),
        paste="in_order=False,  # argument of DataLoader, torch >= 2.6",
        ceiling="{gain}",
        risk=Risk.EXPERIMENT,
        proof="Steps no longer wait while other workers have batches ready.",
    ),
    Remedy(
        id="periodic-work-ahead",
        title="find what happens every few steps and do it ahead or elsewhere",
        applies="The wait comes back with a period: a shard is opened, a file list is read, a cache is "
        "written, Python collects garbage.",
        not_when="The period is that of a checkpoint or a validation: that is a pause on purpose.",
        needs=(Need.PERIODIC_SEEN,),
        paste="py-spy record --nonblocking --subprocesses -d 60 -f raw -o stacks.txt --pid {pid}",
        ceiling="{gain}: the late steps become like the others",
        risk=Risk.NONE,
        proof="The slowest step of a minute is close to the median.",
    ),
    Remedy(
        id="collate-arrays",
        title="return arrays or tensors from the data set, not lists of Python objects",
        applies="Batches are put together element by element: default_collate makes a tensor of every "
        "number and walks every dict of every sample.",
        not_when="Samples are tensors already; then padding to the longest sample is what costs: sort by "
        "length within a pool of samples.",
        needs=(Need.COLLATE_IN_STACK,),
        paste='return {{"ids": np.asarray(ids, dtype=np.int32), "label": np.int64(label)}}  # in __getitem__',
        ceiling="the share of collating in a worker's time",
        risk=Risk.NONE,
        proof="The workers are no longer found in collate; batches/s of one worker rise.",
    ),
    Remedy(
        id="fewer-bytes-to-pin",
        title="send fewer and larger tensors: uint8 images, one tensor per field",
        applies="The one pin-memory thread of the rank copies all the time and sets the pace.",
        not_when="The batch is small: then the thread waits for Python's interpreter lock instead.",
        needs=(Need.PIN_THREAD_BUSY,),
        paste='images = images.to("cuda", non_blocking=True).float().div_(255)  # uint8 until here',
        ceiling="4x fewer bytes for images that were float32; {gain} at best",
        risk=Risk.NONE,
        proof="The load of the thread pt_data_pin falls below one core.",
    ),
    Remedy(
        id="pin-off",
        title="switch pinning off: pin_memory=False",
        applies="The pin-memory thread takes a core that the compute needs.",
        not_when="Copies to the GPU are large: they become slower and the host waits for them.",
        needs=(Need.PIN_THREAD_BUSY, Need.CORES_FULL),
        paste="pin_memory=False,  # argument of DataLoader",
        ceiling="one core; measure it, it can also cost",
        risk=Risk.NONE,
        proof="Samples/s rise; if they fall, put it back.",
    ),
    Remedy(
        id="fewer-tensors",
        title="pack a batch into few tensors",
        applies="Batches lie ready, but the main thread spends its time taking them out: each tensor of a "
        "batch costs a file descriptor and a mapping, each Python object an unpickling.",
        not_when="The main thread is late because it computes: then nothing waits for data.",
        needs=(Need.BATCHES_READY,),
        paste="# in collate_fn: one padded tensor and one of offsets, in place of a list of tensors\n"
        "lengths = torch.tensor([len(row) for row in rows]); flat = torch.cat(rows)",
        ceiling="{gain}: the time to take a batch out goes towards zero",
        risk=Risk.NONE,
        proof="The main thread is no longer found in the queue's get() while batches are ready.",
    ),
)
