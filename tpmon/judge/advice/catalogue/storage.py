"""Remedies for reading and transforming samples: storage, caches, formats, transforms."""

from __future__ import annotations

from tpmon.judge.advice.entry import Remedy, Risk
from tpmon.judge.answers.needs import Need

REMEDIES = (
    Remedy(
        id="cache-in-ram",
        title="read the data set into memory once: {memory_free} are free",
        applies="The same files are read every epoch from a slow store and fit into free memory.",
        not_when="The data set is larger than what is free below the control group's limit: pages are "
        "dropped before they are used again. Page cache counts towards that limit.",
        needs=(Need.WORKERS_IO_WAIT, Need.MEMORY_FREE, Need.DATASET_FITS_MEMORY),
        paste="find DATASET_DIR -type f -print0 | xargs -0 -n 64 -P 8 cat > /dev/null",
        ceiling="{gain} from the second epoch on",
        risk=Risk.NONE,
        proof="Bytes read from the device go to zero while the workers' reads go on.",
        never_with=(Need.REFAULTS_SEEN, Need.MEMORY_LIMIT_NEAR, Need.SWAP_USED),
    ),
    Remedy(
        id="stage-on-nvme",
        title="copy the data to a local disk before the run",
        applies="Samples come from a network file system, an object store or a slow disk.",
        not_when="There is no local disk, or the data are read once only: the copy then costs what it saves.",
        needs=(Need.WORKERS_IO_WAIT, Need.LOCAL_DISK_FREE),
        paste="rsync -a DATASET_DIR/ LOCAL_NVME_DIR/  # then train from LOCAL_NVME_DIR",
        ceiling="{gain}, or the local disk's bandwidth over the present one",
        risk=Risk.NONE,
        proof="The workers' reads no longer wait; bytes/s rise above what the old store gave.",
    ),
    Remedy(
        id="shard-files",
        title="pack small files into shards of 100 MB to 1 GB",
        applies="Each sample is a file of its own: opening and looking it up costs more than reading it.",
        not_when="Samples must be drawn at random one by one: a shard is read from start to end, so "
        "shuffling is by shard and within a buffer.",
        needs=(Need.WORKERS_IO_WAIT, Need.SMALL_READS),
        paste="find DATASET_DIR -type f | shuf --random-source=<(yes) | split -l 10000 -d - list.; "
        "for l in list.*; do tar -cf shard-${{l#list.}}.tar -T $l; done",
        ceiling="{gain}, or the store's sequential bandwidth over the present bytes/s",
        risk=Risk.EXPERIMENT,
        proof="Bytes per read rise from kilobytes to megabytes, and samples/s with them.",
    ),
    Remedy(
        id="fetch-many",
        title="fetch the samples of a batch at once with __getitems__",
        applies="A worker waits for one request after the other although the store could answer many.",
        not_when="The reads are from a local disk with the GIL held by decoding: threads do not help there.",
        needs=(Need.WORKERS_IO_WAIT, Need.NETWORK_WAIT),
        paste="def __getitems__(self, indices):  # in the Dataset; DataLoader calls it for a whole batch\n"
        "    with ThreadPoolExecutor(16) as pool:\n"
        "        return list(pool.map(self.__getitem__, indices))",
        ceiling="{gain}, until the store's request rate is reached",
        risk=Risk.NONE,
        proof="The wait per batch falls towards that of a single request.",
        never_with=(Need.WORKERS_CPU_BOUND,),
    ),
    Remedy(
        id="denser-format",
        title="store fewer bytes per sample, without loss",
        applies="The store gives all the bytes per second that it has.",
        not_when="Decompression then takes the cores that are missing already.",
        needs=(Need.WORKERS_IO_WAIT, Need.SAMPLES_WIDE),
        paste='np.save("tokens.npy", tokens.astype(np.uint16))  # vocabulary below 65,536; images as uint8',
        ceiling="the factor by which the bytes shrink: 4x from int64 to uint16 or float32 to uint8",
        risk=Risk.NONE,
        proof="Bytes per sample fall, samples/s rise by the same factor.",
        never_with=(Need.CORES_FULL,),
    ),
    Remedy(
        id="read-in-order",
        title="read each file from start to end, shuffle shards and a buffer",
        applies="The working set is larger than the memory for cached pages, so that random access reads "
        "every page again and again.",
        not_when="Shuffling must be exact over the whole data set.",
        needs=(Need.REFAULTS_SEEN,),
        paste="info = torch.utils.data.get_worker_info()  # in __iter__; rng: the same seed everywhere\n"
        "first, step = rank * info.num_workers + info.id, world * info.num_workers\n"
        "shards = rng.permutation(shards)[first::step]  # then rows in order through a shuffle buffer",
        ceiling="{gain}, or the refaulted bytes that are no longer read twice",
        risk=Risk.EXPERIMENT,
        proof="Refaults and major faults fall to about zero.",
    ),
    Remedy(
        id="gpu-transforms",
        title="move casts and normalisation to the GPU",
        applies="The workers convert to float and normalise; a GPU does that in microseconds, and uint8 "
        "batches are four times smaller on their way.",
        not_when="The GPU has no idle time, or the transform is random: on a batch tensor a torchvision "
        "v2 transform draws once for the whole batch, which changes the augmentation.",
        needs=(Need.WORKERS_CPU_BOUND, Need.GPU_PRESENT, Need.TRANSFORM_MOVABLE),
        paste="to_float = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])\n"
        'batch = to_float(batch.to("cuda", non_blocking=True))',
        ceiling="the share of these transforms in a worker's time",
        risk=Risk.NUMERICS,
        proof="CPU time of a worker per batch falls; samples/s rise while the GPU still has idle time.",
    ),
    Remedy(
        id="transform-once",
        title="do the deterministic part of the transform once, before the run: only what is not random can "
        "be stored",
        applies="Every epoch decodes, resizes or tokenises the same samples in the same way.",
        not_when="The step is random: storing its result freezes the augmentation. Storing resized images "
        "as JPEG again loses detail.",
        needs=(Need.TORCH_LOADER, Need.WORKERS_CPU_BOUND),
        paste="torch.save([transform(sample) for sample in chunk], f'chunk-{{n:05d}}.pt')",
        ceiling="{gain}, or the share of that part in a worker's time",
        risk=Risk.NUMERICS,
        proof="CPU time per sample of a worker falls; bytes read per sample rise and are still no limit.",
    ),
    Remedy(
        id="decode-on-gpu",
        title="decode JPEGs on the GPU",
        applies="The workers read JPEG files and decode them; a card decodes a batch at once, beside its "
        "steps.",
        not_when="The GPU has no idle time or no memory free. Crops and flips must then run on tensors, too. "
        "Another decoder gives slightly other pixels.",
        needs=(Need.WORKERS_CPU_BOUND, Need.GPU_PRESENT, Need.JPEG_DECODED),
        paste="# the data set returns torchvision.io.read_file(path), collate_fn a list; in the loop:\n"
        'images = torchvision.io.decode_jpeg(files, device="cuda")  # a list of uint8; or NVIDIA DALI',
        ceiling="the share of decoding in a worker's time",
        risk=Risk.NUMERICS,
        proof="CPU time per sample of a worker falls; samples/s rise while the GPU still has idle time.",
        never_with=(Need.GPU_MEMORY_FULL,),
    ),
    Remedy(
        id="decode-smaller",
        title="decode at the size that is used",
        applies="Large JPEGs are decoded in full and then made small.",
        not_when="Crops need the full resolution.",
        needs=(Need.WORKERS_CPU_BOUND,),
        paste='image.draft("RGB", (2 * size, 2 * size))  # PIL, after open() and before load(); JPEG only',
        ceiling="about 2x to 4x of the decoding",
        risk=Risk.NUMERICS,
        proof="CPU time per sample of a worker falls.",
    ),
    Remedy(
        id="cap-worker-threads",
        title="give each worker one thread",
        applies="numpy, OpenCV or numexpr start a pool of all cores in every worker; torch limits itself "
        "to one thread there, they do not.",
        not_when="There are fewer workers than cores and their libraries scale: then cores / workers.",
        needs=(Need.POOL_IN_WORKERS,),
        paste="def one_thread(worker_id):\n{worker_cap}\n# DataLoader(..., worker_init_fn=one_thread)",
        ceiling="{gain}; the wait for a CPU (WAIT share) goes away",
        risk=Risk.NONE,
        proof="Runnable threads fall to the number of workers and batches/s rise.",
    ),
)
