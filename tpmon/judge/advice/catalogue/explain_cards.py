"""What each verdict about cards, ranks and progress means, what tpmon sees, what it is confused with."""

from __future__ import annotations

from tpmon.judge.advice.entry import Explanation
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.verdict import Kind

EXPLANATIONS = (
    Explanation(
        Kind.COMPUTE_BOUND,
        "gpu-compute",
        "The cards compute nearly all the time and their SMs are active: the healthy end.",
        "Utilisation of 90 % or more with active SMs or high power, and no throttle reason.",
        "hollow utilisation, where a kernel is always there but does little.",
    ),
    Explanation(
        Kind.COMPUTE_BOUND,
        "gpu-memory-bandwidth",
        "The cards move data between their memory and their SMs nearly all the time.",
        "GPM: DRAM active high, tensor and SM pipes not.",
        "many small kernels, where neither is high.",
    ),
    Explanation(
        Kind.COMPUTE_BOUND,
        "gpu",
        "The cards are busy and draw power; without GPM it is not known what they are busy with.",
        "Utilisation of 90 % or more, power well above idle. At medium power the cards never run empty and "
        "are not full either: that is said at low confidence, and not of ranks that exchange data meanwhile. "
        "So it is of a laptop, a vGPU or a MIG slice that does not tell its power or SM activity, while the "
        "run is seen to get on.",
        "hollow utilisation; collectives, whose kernels count as busy while they wait.",
    ),
    Explanation(
        Kind.STARTING,
        "import",
        "The program imports its libraries.",
        "Stacks in the import machinery of a young process.",
        "imports on a slow network file system, which can take minutes: look at the wait.",
    ),
    Explanation(
        Kind.STARTING,
        "load",
        "A checkpoint, a model or a data set is being read before the first step.",
        "Stacks in torch.load and its relatives.",
        "data loading of the training itself.",
    ),
    Explanation(
        Kind.STARTING,
        "compile",
        "torch.compile traces and generates code.",
        "Stacks in dynamo or inductor, compile workers.",
        "recompilations in the middle of a run, which cost the same and come back.",
    ),
    Explanation(
        Kind.STARTING,
        "autotune",
        "Kernels are being measured against each other before the first steps.",
        "Stacks in autotuning.",
        "a benchmark inside the program.",
    ),
    Explanation(
        Kind.STARTING,
        "first-steps",
        "The first steps are slower than all later ones: caches, allocator, autotuning.",
        "A young process, no steady figures yet.",
        "a run that is slow for good: the verdict that follows says so.",
        "wait for the verdict that follows; `tpmon diagnose PID --for 60s` looks for longer.",
    ),
    Explanation(
        Kind.PAUSED,
        "checkpoint",
        "Training waits while a checkpoint is written.",
        "Stacks in torch.save and its relatives.",
        "a hang on a dead mount: then the writing does not move.",
    ),
    Explanation(
        Kind.PAUSED,
        "validation",
        "Training waits while the model is evaluated.",
        "Stacks in a validation or evaluation loop.",
        "a program that only evaluates.",
    ),
    Explanation(
        Kind.IDLE,
        "finished",
        "The job has ended with exit 0, or every rank has and none has been left for 20 s.",
        "The exit status of the job's first process, or of its ranks.",
        "a program that catches its error and ends with exit 0.",
        "nothing; where results are missing, read the end of its log.",
    ),
    Explanation(
        Kind.IDLE,
        "failed",
        "The job has ended and not well: another exit status than 0, or a signal. Exit code 10.",
        "The exit status of the job's first process; of its ranks where a launcher lives on without them.",
        "a job that was ended on purpose; a restart by torchrun that takes longer than 20 s.",
    ),
    Explanation(
        Kind.IDLE,
        "ended",
        "The job has ended and nobody could see how. Exit code 11: it is no success.",
        "The process is gone. Before Linux 6.15 a kernel tells others the status until its parent asks.",
        "success and failure: the end of its log tells.",
    ),
    Explanation(
        Kind.IDLE,
        "waiting-for-input",
        "The program waits for a person, at a prompt or in a debugger, or as a server for requests.",
        "The main thread reads from the terminal, or rests in the loop of a server; or at a queue, where "
        "nothing shows a training: no step, collective or loader, and no function or file of that name.",
        "a hang.",
    ),
    Explanation(
        Kind.LAUNCH_BOUND,
        "tiny-kernels",
        "The card waits for the next launch: the host's launches do not keep it busy.",
        "Utilisation high, SM activity or power low, and a main thread that moves through the model.",
        "a collective that spins (comms-bound or hung): its stack does not move; an optimizer on the CPU, "
        "or cards of one process that work one after another: those are named among what is unknown.",
    ),
    Explanation(
        Kind.LAUNCH_BOUND,
        "main-thread",
        "Python between the launches keeps the card waiting.",
        "A low GPU, a main thread at 100 % outside of loader and collectives.",
        "single-threaded work on a job without GPUs (python-bound).",
    ),
    Explanation(
        Kind.SYNC_BOUND,
        "explicit",
        "The program waits for the GPU in each step: synchronize, .item(), printing the loss, or a look that "
        "a GradScaler or a Trainer takes by itself.",
        "Stacks in a synchronise while the GPU has gaps.",
        "the one wait at the end of a step of a busy GPU, which costs nothing.",
    ),
    Explanation(
        Kind.SYNC_BOUND,
        "implicit",
        "A copy from pageable memory or an operation whose result decides a size makes the host wait.",
        "Stacks in copies or indexing while the GPU has gaps.",
        "explicit synchronisation.",
    ),
    Explanation(
        Kind.SYNC_BOUND,
        "allocator",
        "The GPU memory allocator asks the driver in the middle of steps.",
        "Stacks in empty_cache or in the allocator.",
        "the first steps, in which it always does.",
    ),
    Explanation(
        Kind.COMMS_BOUND,
        "straggler",
        "One rank is slower, and the others wait for it in each collective.",
        "One rank computes or waits for data while the others are in a collective.",
        "a missing rank (hung): a straggler's stack moves.",
    ),
    Explanation(
        Kind.COMMS_BOUND,
        "transfer",
        "All ranks exchange data a large part of the time.",
        "All ranks in collectives alike, and a network or link that moves bytes. Or, at low confidence, "
        "cards that are all busy and do little while bytes move: hosts run ahead, and no stack tells.",
        "waiting for ranks on other machines, which looks the same from one of them.",
    ),
    Explanation(
        Kind.COMMS_BOUND,
        "unknown",
        "The ranks of this machine wait in collectives; what for cannot be told from here.",
        "Busy GPUs with low power, spinning collective threads.",
        "hollow utilisation of tiny kernels.",
    ),
    Explanation(
        Kind.GPU_THROTTLED,
        "thermal",
        "A card lowers its clocks for a thermal reason.",
        "Thermal slowdown reasons or their counters. Where the core has 10 C and more left it is not what is "
        "hot: its memory, a hot spot or the power stage are.",
        "the power limit, which is information and no fault.",
    ),
    Explanation(
        Kind.GPU_THROTTLED,
        "brake",
        "An external signal (power supply, chassis) slows the card.",
        "The power brake reason.",
        "a short hardware slowdown at a change of performance state.",
    ),
    Explanation(
        Kind.GPU_THROTTLED,
        "odd-cap",
        "The clock of a busy card is below 80 % for a cap that neither heat nor its power limit explains.",
        "Clocks that somebody set, or the power cap at a low draw: then the limit is that of a module, "
        "a rail or the rack.",
        "a card at its power limit, which is a note and no fault.",
    ),
    Explanation(
        Kind.GPU_THROTTLED,
        "pcie",
        "The PCIe link of a card runs below its width or generation under load.",
        "Link state against its maximum, read while the card works.",
        "the link's power saving when the card idles.",
    ),
    Explanation(
        Kind.GPU_UNHEALTHY,
        NOT_APPLICABLE,
        "A card reports errors that want a reset or a replacement, or does not answer while the run goes on.",
        "Remapped rows pending or failed, uncorrected memory errors, Xid events, a recovery action; no "
        "answer for 10 s of a card that the job computes on.",
        "Xid events that a bug of the program causes (13, 31, 32, 43), or that tell of no fault (92, 137).",
    ),
    Explanation(
        Kind.NOT_ENOUGH_EVIDENCE,
        NOT_APPLICABLE,
        "What could be read does not decide.",
        "The line below says what could not be read, and why.",
        "a healthy run: that is balanced or compute-bound.",
        "look for longer (`tpmon diagnose PID --for 60s`), and let `tpmon doctor PID` name what may not be "
        "read and its fix.",
    ),
    Explanation(
        Kind.HUNG,
        "missing-rank",
        "The ranks wait in a collective for one that is elsewhere in the program, or that has ended.",
        "Three looks at the stacks of all ranks, 5 s apart in all, in which nobody moved; a rank of this "
        "machine is not in the collective. A host that waits over a card that is busy and does next to "
        "nothing is in one. Of a rank whose stack could not be read the kernel tells after five minutes.",
        "a straggler, which moves and arrives in the end.",
    ),
    Explanation(
        Kind.HUNG,
        "remote-rank",
        "All ranks of this machine wait, and the job has ranks on others.",
        "The same looks, every rank here in a collective, and a world size that is larger. No rank of this "
        "machine is accused. It takes five minutes, because one rank may save or prepare something alone "
        "while the others wait in the next collective, or as long as --hang-after says, but at a barrier; "
        "half a minute where NCCL says that a process is dead, records show calls that do not fit, or rank 0 "
        "waits here and its log is five minutes old.",
        "a missing rank of this machine.",
    ),
    Explanation(
        Kind.HUNG,
        "lock",
        "A thread waits for a lock that nobody releases, for the interpreter's lock (GIL) that a library "
        "keeps, or at its end for a thread that does not end.",
        "The same stack in every look and no CPU used; who holds the lock where it can be seen, else which "
        "other thread stands in the program. The holder of the GIL is read with the stacks.",
        "a wait for what works: a thread that gets on is no hang, one that computes has five minutes, "
        "a pool of them half an hour.",
    ),
    Explanation(
        Kind.HUNG,
        "dead-worker",
        "A worker, or a process that the program started, died and its batch or result is waited for.",
        "A worker that ended while its rank waits; a child that nobody asked about, with how it ended.",
        "workers that end with their epoch.",
    ),
    Explanation(
        Kind.HUNG,
        "lost-batch",
        "Rank and workers wait for each other: a batch or a result was dropped, often for want of /dev/shm.",
        "Everybody waits at a queue in every look, nothing is in it, and no thread that pins memory has it.",
        "a slow store, where a worker waits for a read.",
    ),
    Explanation(
        Kind.HUNG,
        "blocked-io",
        "A process waits for a read or write that does not come back.",
        "One call in every look, with its file, mount, pipe or peer, and no CPU used meanwhile. Who asked a "
        "server through a client for HTTP, of a store, wandb or the like has five minutes, who asked actors "
        "of ray or a model on the same machine half an hour. A process that was killed and cannot end, "
        "because a thread of it is stuck in a driver or a file system, is told so.",
        "slow storage, where reads do come back.",
    ),
    Explanation(
        Kind.HUNG,
        "gpu-wait",
        "The main thread waits for the GPU and neither side gets on.",
        "A stack that does not move: in a synchronise while the card is idle, or anywhere while the card is "
        "busy 100 % with next to no work by SM activity or power, and its links are at rest. Where all "
        "ranks do, no rank is named: it is most likely one collective, although their hosts may wait at "
        "different lines after it. A process alone whose card is told by its power only has 75 s, as a slow "
        "kernel draws as little; one whose card works half an hour. Ranks with threads of NCCL whose cards "
        "cannot be read (AMD, another container) are taken for ones that wait, after five minutes.",
        "a long kernel, where the card does work; a slow collective, where bytes move.",
    ),
    Explanation(
        Kind.HUNG,
        "spin",
        "A thread computes at 100 % at the same place.",
        "One function of the program in every look and sample, at several lines, holding the interpreter's "
        "lock, for two minutes in a run that was seen in steps; before them, at one line alone, without that "
        "lock, or while it makes memory, it may be work, which has five, and half an hour while it reads or "
        "writes, or with a pool of threads.",
        "a long computation in one call.",
    ),
    Explanation(
        Kind.HUNG,
        "stopped",
        "A process of the job is stopped: Ctrl-Z, SIGSTOP, a debugger, the freezer of its control group.",
        "Its state in /proc with the process that traces it, and freezer.state or cgroup.events of its group "
        "and of those above: nothing else tells a frozen process from one that sleeps or is blocked.",
        "a scheduler that has suspended the job on purpose.",
    ),
    Explanation(
        Kind.HUNG,
        "gpu-lost",
        "A card of the job no longer answers the driver, and the run stands.",
        "NVML says that the card is lost, or gets no answer of it for 20 s, and neither hook, log, stacks, "
        "waits nor workers gave a sign of life since. Also of a card that never answered, by the process "
        "list, by /proc/driver/nvidia, or as the one that the job holds open and that is none of the others.",
        "a driver upgrade under way.",
    ),
    Explanation(
        Kind.HUNG,
        "no-progress",
        "Nothing of the job moves: no CPU, no switch of threads, no line, no batch.",
        "Main threads at rest for half a minute, quiet workers, an old log, where no stacks may be read or "
        "they show no cause. Where no stack tells at all what a rank is in, it takes 75 s, and five minutes "
        "with ranks elsewhere, in a sleep, or at a socket. Of ranks that all wait in one collective none is "
        "named; where nobody says how many there are (a program that starts its ranks itself, without a "
        "WORLD_SIZE) they have five minutes, but where every connection of the job ends on this machine, or "
        "a hook, a record of its collectives or NCCL counts as many as run here.",
        "a long wait on purpose, such as a barrier with a late machine.",
    ),
)
