"""Remedies for the CPU: pools, quotas, affinity, Python's interpreter lock."""

from __future__ import annotations

from tpmon.judge.advice.entry import Language, Remedy, Risk
from tpmon.judge.answers.needs import Need

REMEDIES = (
    Remedy(
        id="cap-rank-threads",
        title="cap the thread pools of each rank: {threads_per_rank} per rank",
        applies="Each rank made a pool for all CPUs of the machine and shares them with others, or with "
        "less quota than CPUs: torch sees affinity, never the quota.",
        not_when="The pool is as large as its share already, or the rank waits for data. Never set it "
        "higher than the CPU budget.",
        needs=(Need.POOL_IN_RANK,),
        paste="export {pool_exports}",
        language=Language.SHELL,
        ceiling="{gain}; 16 threads on 2 CPUs ran at 0.44 of the speed of 2 threads",
        risk=Risk.NUMERICS,
        proof="Runnable threads fall to the budget, the share of waiting for a CPU to a few percent.",
        never_with=(Need.THREADS_IN_SCRIPT,),
    ),
    Remedy(
        id="cap-threads-in-script",
        title="change the thread number in the program to {threads_per_rank}",
        applies="More threads compute than there are CPUs, and no variable of the environment asked for "
        "them: the program calls torch.set_num_threads, or makes pools of its own.",
        not_when="The threads are those of the loader's workers.",
        needs=(Need.THREADS_IN_SCRIPT,),
        paste="torch.set_num_threads({threads_per_rank})  # in the place of the number that is there",
        ceiling="{gain}; 16 threads on 2 CPUs ran at 0.44 of the speed of 2 threads",
        risk=Risk.NUMERICS,
        proof="Runnable threads fall to the budget, the share of waiting for a CPU to a few percent.",
    ),
    Remedy(
        id="fewer-ranks",
        title="start fewer ranks: at most one per core",
        applies="More CPU ranks run here than there are cores; ranks that wait for each other lose more "
        "than their share.",
        not_when="Each rank has a GPU of its own: then ask for more cores.",
        needs=(Need.RANKS_EXCEED_CORES,),
        paste="torchrun --nproc-per-node={cores} train.py  # and a larger batch per rank",
        language=Language.SHELL,
        ceiling="{gain}; 4 ranks of 2 threads on 2 CPUs ran at 0.38 of their fair share",
        risk=Risk.EXPERIMENT,
        proof="Samples/s of the whole job rise with fewer ranks.",
        never_with=(Need.GPU_PRESENT,),
    ),
    Remedy(
        id="more-cores",
        title="ask the scheduler for more cores",
        applies="Every core of the budget works for this job and the compute still waits.",
        not_when="The cores go to oversized thread pools: cap those first.",
        needs=(Need.CORES_FULL,),
        paste="#SBATCH --cpus-per-task=N  # in Kubernetes: resources.limits.cpu and requests.cpu\n"
        "export SRUN_CPUS_PER_TASK=N  # below it: srun of Slurm >= 22.05 does not inherit that line",
        language=Language.SHELL,
        ceiling="{gain}, or new cores / present cores, whichever is less",
        risk=Risk.NONE,
        proof="The CPU budget in the header grows and so do samples/s.",
        never_with=(Need.POOL_IN_WORKERS, Need.POOL_IN_RANK),
        first_with=(Need.AFFINITY_BELOW_HOST, Need.QUOTA_BELOW_AFFINITY),
    ),
    Remedy(
        id="raise-quota",
        title="raise or remove the CPU quota",
        applies="The control group stops all threads of the job for the rest of each period once its "
        "quota is used.",
        not_when="The limit is meant: then make the job need less.",
        needs=(Need.QUOTA_THROTTLING, Need.QUOTA_BELOW_AFFINITY),
        paste="docker update --cpus=N CONTAINER  # in Kubernetes: raise or drop resources.limits.cpu",
        language=Language.SHELL,
        ceiling="{gain}, or new quota / present quota",
        risk=Risk.NONE,
        proof="No periods are throttled any more (cpu.stat) and samples/s rise.",
    ),
    Remedy(
        id="fit-workers-to-quota",
        title="use no more workers than the quota pays for: num_workers={workers_in_quota}",
        applies="Workers use up the quota early in each period, and the training thread is "
        "stopped with them.",
        not_when="Workers wait for reads: they use no quota then.",
        needs=(Need.QUOTA_THROTTLING, Need.WORKERS_PRESENT, Need.WORKERS_CPU_BOUND),
        paste="num_workers={workers_in_quota},  # argument of DataLoader, for each rank",
        ceiling="the stalls in the middle of a step; the loading itself gets no faster",
        risk=Risk.NONE,
        proof="Fewer throttled periods at the same or higher samples/s.",
        caps_workers=True,
    ),
    Remedy(
        id="widen-affinity",
        title="let the job run on more CPUs of this machine",
        applies="A binding (taskset, OMP_PROC_BIND, numactl, a cpuset) leaves it a few CPUs only.",
        not_when="The scheduler gave these CPUs to the job and the others to somebody else.",
        needs=(Need.AFFINITY_BELOW_HOST, Need.CORES_FULL),
        paste="OMP_PROC_BIND=false torchrun ...  # and without taskset or numactl, on the job's own CPUs; "
        "a scheduler's binding: ask it for more",
        language=Language.SHELL,
        ceiling="{gain}, or new CPUs / present CPUs",
        risk=Risk.NONE,
        proof="The CPU budget in the header grows and so do samples/s.",
    ),
    Remedy(
        id="unbind-workers",
        title="let the workers run on all CPUs of the job",
        applies="The workers inherited the mask of the main thread, which OMP_PROC_BIND, GOMP_CPU_AFFINITY "
        "or KMP_AFFINITY bound to one CPU or a few; more workers would share the same ones.",
        not_when="The program binds each worker on purpose, or several ranks share the machine: then give "
        "each rank's workers its part of the CPUs.",
        needs=(Need.WORKERS_BOUND,),
        paste="env -u KMP_AFFINITY -u GOMP_CPU_AFFINITY OMP_PROC_BIND=false torchrun ...",
        language=Language.SHELL,
        ceiling="{gain}, or the CPUs that they then use over those of now",
        risk=Risk.NONE,
        proof="Cpus_allowed_list in /proc/PID/status of a worker names all CPUs, and it waits for none.",
    ),
    Remedy(
        id="use-all-cores",
        title="let the rank use its cores: OMP_NUM_THREADS={threads_in_free}",
        applies="torchrun sets OMP_NUM_THREADS=1 when it starts several ranks; each then computes on one "
        "core while others are free.",
        not_when="The model computes on a GPU and the rank's CPU work is Python: threads do not help it.",
        needs=(Need.ONE_THREAD_SET, Need.CORES_FREE),
        paste="OMP_NUM_THREADS={threads_in_free} torchrun ...",
        language=Language.SHELL,
        ceiling="{gain}, or the new threads over one",
        risk=Risk.NUMERICS,
        proof="The rank uses several cores and the steps get shorter.",
        never_with=(Need.CORES_FULL, Need.GPU_PRESENT),
        adds_threads=True,
    ),
    Remedy(
        id="processes-not-threads",
        title="move the Python work from threads to processes",
        applies="Several Python threads of the rank want the interpreter lock; together they do the work "
        "of one core.",
        not_when="The threads spend their time in calls that release the lock (torch, numpy, I/O).",
        needs=(Need.GIL_WAIT,),
        paste="pool = concurrent.futures.ProcessPoolExecutor(\n"
        "    mp_context=multiprocessing.get_context('spawn')\n"
        ")",
        ceiling="{gain}",
        risk=Risk.NONE,
        proof="The rank and its helpers use more than one core together; steps get shorter.",
    ),
    Remedy(
        id="log-rarely",
        title="log, print and compute metrics every 50 steps",
        applies="Part of each step goes into logging, a progress bar or metrics.",
        not_when="It is under 2 % of the step.",
        needs=(Need.LOGGING_IN_STACK,),
        paste="if step % 50 == 0:\n    log(step, loss.item())",
        ceiling="{gain}: the share of logging goes away",
        risk=Risk.NONE,
        proof="The main thread is rarely found in logging; steps/s rise.",
    ),
    Remedy(
        id="call-aside",
        title="make the call that waits every N steps only, or in a thread beside the loop",
        applies="The loop sleeps in a call of its own in each step: a synced write, a request, a program.",
        not_when="The next step needs what the call returns: then ask for it a step ahead, or for several at "
        "a time. A pause that is meant is none of this.",
        needs=(Need.BLOCKING_CALL,),
        paste="aside = concurrent.futures.ThreadPoolExecutor(max_workers=1)  # before the loop\n"
        "aside.submit(send, loss.item())  # in the place of send(loss.item()), the call that waits",
        ceiling="{gain}: what the loop sleeps goes away",
        risk=Risk.NONE,
        proof="The main thread is rarely found in the call; steps/s rise.",
    ),
    Remedy(
        id="feed-event-loop",
        title="let several tasks make what the training awaits, side by side and ahead of it",
        applies="The training is a task of asyncio, and for most of the time no task can go on: all of them "
        "await a server, a timer or each other.",
        not_when="One of the tasks computes or blocks: then the loop is not found waiting.",
        needs=(Need.EVENT_LOOP_WAIT,),
        paste="batches = asyncio.Queue(maxsize=8)  # each of four tasks has a request of its own open\n"
        "await asyncio.gather(*(produce(batches) for _ in range(4)), train(batches))",
        ceiling="{gain}: what the loop waits goes away",
        risk=Risk.NONE,
        proof="The event loop is rarely found in its selector; steps/s rise.",
    ),
    Remedy(
        id="profile-python",
        title="find the hot Python lines, then replace loops by tensor operations",
        applies="One thread of the rank runs Python all the time and no pool, loader or GPU is busy.",
        not_when="The thread spins in a wait: then its stack does not move.",
        needs=(Need.ONE_THREAD_BUSY,),
        paste="py-spy record --nonblocking -d 20 -o hot.svg --pid {pid}",
        language=Language.SHELL,
        ceiling="{gain}: what Python takes of the step",
        risk=Risk.NONE,
        proof="The hottest line is torch's; steps/s rise.",
    ),
)
