"""Compute the numbers of one run that fill the templates of the catalogue. Pure."""

from __future__ import annotations

import math
import re
import shlex
import string
from collections.abc import Callable
from operator import attrgetter

from tpmon.judge.advice.hot import HotSpot
from tpmon.model.frozen import dataclass
from tpmon.model.host import PoolLibrary
from tpmon.model.known import Applicable, Known, Missing, is_known, known_or, map_known
from tpmon.model.process import Freezer, Tracer
from tpmon.model.text.dump_words import TO_FILES, write_step
from tpmon.model.units import format_bytes

MEMORY_SHARE = 0.8
"""Share of the free memory that new workers may take; the rest is for their batches and for growth."""

CORE_SLACK = 0.5
"""Cores that a proposal may go over the budget: half a free core makes another worker worthwhile, as in the
rules of the loader, and single-threaded workers beyond the budget cost nothing."""

ROUNDING_CORES = 0.25
"""Part of a free core that may be missing: a computing thread takes a little more than its core."""

LEAST_WORKER_CORES = 0.05
"""Cores counted for a worker that only waits for reads."""

MOST_AT_ONCE = 4
"""Most times the present workers in one proposal: what a store gives so many is not known."""

WORKERS_A_CORE = 2.0
"""Workers per core of the budget above which a proposal at most doubles them: each has its own imports."""

QUEUED_BATCHES = 2
"""Batches of each worker that lie in /dev/shm: prefetch_factor, by default."""


def propose_workers(
    *,
    workers_now: Known[int],
    needed_ratio: Known[float],
    cores_free: Known[float],
    memory_free_bytes: Known[int],
    worker_rss_bytes: Known[int],
    worker_busy_ratio: Known[float],
    budget_cores: Known[float],
    shm_room: Known[float],
) -> Known[int]:
    """Size ``num_workers`` of one rank against need, cores, memory and /dev/shm.

    wanted    = ceil(needed_ratio * max(now, 1)); with no workers the loop itself is the one loader
    by cores  = now + floor((cores_free + moved + 0.5) / max(busy, 0.05)); with no workers
                moved = r / (1 + r), the part of a core that loading takes in the rank today
    by memory = now + floor(0.8 * memory_free / worker_rss)
    by step   = 4 * now, and above two workers a core of the budget 2 * now; with no workers any
    by shm    = now + floor(0.8 * shm_room / 2), where /dev/shm was seen to grow
    proposal  = max(now, min(wanted, by cores, by memory, by step, by shm)): never fewer than there are

    All cores, bytes and batches are the rank's share. Missing if one of them was not read, except the room in
    /dev/shm: where no batch was seen in it, it is no limit.
    """
    readings: dict[str, Known[float]] = {
        "workers": workers_now,
        "need": needed_ratio,
        "free cores": cores_free,
        "free memory": memory_free_bytes,
        "memory of a worker": worker_rss_bytes,
        "load of a worker": worker_busy_ratio,
        "CPU budget": budget_cores,
    }
    for name, value in readings.items():
        if isinstance(value, Missing):
            return Missing(f"{name}: {value.reason}")
        if not math.isfinite(value) or value < 0:
            return Missing(f"{name}: {value}")
    now, needed, cores, memory, rss, busy, budget = (value for value in readings.values() if is_known(value))
    moved = needed / (1 + needed) if now == 0 else 0.0
    wanted = math.ceil(needed * max(now, 1))
    by_cores = now + math.floor((cores + moved + CORE_SLACK) / max(busy, LEAST_WORKER_CORES))
    by_memory = now + math.floor(MEMORY_SHARE * memory / max(rss, 1))
    limits = [wanted, by_cores, by_memory]
    if now > 0:
        limits.append(max(2 * now, min(MOST_AT_ONCE * now, math.floor(WORKERS_A_CORE * budget))))
    if is_known(shm_room) and math.isfinite(shm_room):
        limits.append(now + math.floor(MEMORY_SHARE * max(shm_room, 0.0) / QUEUED_BATCHES))
    return int(max(now, min(limits)))


def limit_growth(
    *, workers_now: int, workers: int, worker_cores: float, cores_free: float, needed_ratio: float
) -> float:
    """Return how many times the batches of today ``workers`` make at most, and the compute takes.

    by number = workers / now
    by cores  = (cores of the workers now + free cores) / cores of the workers now
    by need   = the batches that the compute could take over those of today

    A batch takes the CPU time that it takes now: beyond the free cores more workers only share. Workers that
    wait for reads take next to no core, and are limited only by their number.
    """
    busy_cores = workers_now * worker_cores
    by_cores = (busy_cores + cores_free) / busy_cores if busy_cores > 0 else workers / workers_now
    return max(1.0, min(workers / workers_now, by_cores, needed_ratio))


_CONTAINER = re.compile(r"/(docker|libpod)[-/]([0-9a-f]{12})(?:[0-9a-f]{52})?(?:\.scope)?(?:/|$)")
_SLURM = re.compile(r"/slurm.*/job_([0-9]+)(?:/|$)")
_UNIT = re.compile(r"/([A-Za-z0-9:_.@\\-]+\.(?:service|scope|slice))$")
_TOOLS = {"docker": "docker", "libpod": "podman"}


def write_thaw(frozen: Freezer) -> Known[str]:
    """Return the commands that thaw a group, the one of its maker first; missing for a group out of view."""
    directory = frozen.directory
    if not is_known(directory):
        return directory
    knob, word = ("freezer.state", "THAWED") if frozen.version == 1 else ("cgroup.freeze", "0")
    by_kernel = f"echo {word} | sudo tee {shlex.quote(f'{directory}/{knob}')}"
    by_maker = _find_maker(directory, frozen.version)
    return f"{by_maker}  # or: {by_kernel}" if by_maker else by_kernel


def _find_maker(directory: str, version: int) -> str:
    """Return the command of what made the group, by its path; "" where that does not tell."""
    if found := _CONTAINER.search(directory):
        return f"{_TOOLS[found[1]]} unpause {found[2]}"
    if found := _SLURM.search(directory):
        return f"scontrol resume {found[1]}"
    # systemd freezes only units of the unified hierarchy, and no group that a unit made within its own.
    unit = _UNIT.search(directory) if version == 2 else None
    return f"sudo systemctl thaw {shlex.quote(unit[1])}" if unit else ""


MOST_GAIN = 20.0
"""Above this the ceiling is no number: the share behind it is not known well enough."""

_GIB = 1 << 30
_LEAST_SHM_BYTES = 8 * _GIB

_UNREAD = Missing("not measured")
_ANY = "..."
"""Stands for a number that was not read."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Hold the numbers that remedies name.

    Cores, memory and ranks are those of the job on this machine; workers are those of one rank.
    ``waiting_ratio`` is the share of the step time (0-1) that goes away at best; ``needed_ratio`` the batches
    per second that the compute could take over those that the loader makes. ``pid``, ``rank`` and ``card``
    are those of the verdict.
    """

    ranks: Known[int] = _UNREAD
    workers_per_rank: Known[int] = _UNREAD
    budget_cores: Known[float] = _UNREAD
    cores_free: Known[float] = _UNREAD
    quota_cores: Applicable[float] = _UNREAD
    memory_free_bytes: Known[int] = _UNREAD
    worker_rss_bytes: Known[int] = _UNREAD
    """RSS of one worker; without workers that of the rank, an upper bound of what a fork costs."""
    worker_busy_ratio: Known[float] = _UNREAD
    needed_ratio: Known[float] = _UNREAD
    waiting_ratio: Known[float] = _UNREAD
    loading_ratio: Known[float] = _UNREAD
    """Share of its time (0-1) that the rank waits for or works on batches, whatever its card does."""
    pool_libraries: Applicable[tuple[PoolLibrary, ...]] = _UNREAD
    shm_total_bytes: Known[int] = _UNREAD
    shm_room: Known[float] = _UNREAD
    """Free bytes of /dev/shm over its largest growth in a second: the batches that still fit, at least."""
    pid: Applicable[int] = _UNREAD
    rank: Applicable[int] = _UNREAD
    card: Applicable[int] = _UNREAD
    other_pid: Applicable[int] = _UNREAD
    """The process that the named one waits for."""
    peer: Applicable[str] = _UNREAD
    """What its socket is connected to."""
    script: Known[str] = _UNREAD
    pools: Known[int] = _UNREAD
    """Processes with a thread pool at work, except loader workers."""
    log_path: Known[str] = _UNREAD
    """The file that the job wrote to last."""
    slurm_job: Applicable[str] = _UNREAD
    """Its number in Slurm, by its environment."""
    launcher: Applicable[int] = _UNREAD
    host_cores: Known[int] = _UNREAD
    tenant: Applicable[int] = _UNREAD
    """The process of others that uses most of the job's CPUs."""
    frozen: Applicable[Freezer] = _UNREAD
    tracer: Applicable[Tracer] = _UNREAD
    hot: Applicable[HotSpot] = _UNREAD
    """The known call that takes most of the time."""
    mount: Applicable[str] = _UNREAD
    """Where the file system is mounted that it waits for."""
    lock_file: Applicable[str] = _UNREAD
    alone_rank: Applicable[int] = _UNREAD
    alone_place: Applicable[str] = _UNREAD
    """The one rank in a collective that the others do not reach, and its line: "train.py:14"."""
    lacking: Applicable[str] = _UNREAD
    """The threads that a forked process has not: "the pool of tokenizers"."""
    fork_switch: Applicable[str] = _UNREAD
    """What makes that library do without them."""


def size_loader(facts: RunFacts) -> Known[int]:
    """Propose ``num_workers`` for one rank of the job, each rank with an equal share of what is free."""
    if not is_known(facts.ranks):
        return facts.ranks
    ranks = max(facts.ranks, 1)
    return propose_workers(
        workers_now=facts.workers_per_rank,
        needed_ratio=facts.needed_ratio,
        cores_free=map_known(lambda cores: cores / ranks, facts.cores_free),
        memory_free_bytes=map_known(lambda size: size // ranks, facts.memory_free_bytes),
        worker_rss_bytes=facts.worker_rss_bytes,
        worker_busy_ratio=facts.worker_busy_ratio,
        budget_cores=map_known(lambda cores: cores / ranks, facts.budget_cores),
        shm_room=map_known(lambda batches: batches / ranks, facts.shm_room),
    )


def _whole_cores(value: Applicable[float]) -> Known[int]:
    if not is_known(value) or not math.isfinite(value):
        return _UNREAD
    return max(1, math.floor(value))


def _threads_per_rank(facts: RunFacts) -> Known[int]:
    cores = _whole_cores(facts.budget_cores)
    if not is_known(cores) or not is_known(facts.ranks):
        return _UNREAD
    return max(1, cores // max(facts.ranks, known_or(facts.pools, 1), 1))


def count_threads_in_free(facts: RunFacts) -> Known[int]:
    """Return the threads for a rank that has one: its share at most, with a free core for each new one.

    The loader's workers have the other cores: a pool of the whole budget would fight with them.
    """
    most = _threads_per_rank(facts)
    if not is_known(most) or not is_known(facts.ranks):
        return most
    if not is_known(facts.cores_free):
        return facts.cores_free
    return min(most, 1 + math.floor(facts.cores_free / max(facts.ranks, 1) + ROUNDING_CORES))


def _workers_in_quota(facts: RunFacts) -> Known[int]:
    """Leave each rank a core of the quota and share the rest among its workers."""
    quota = _whole_cores(facts.quota_cores)
    if not is_known(quota) or not is_known(facts.ranks):
        return _UNREAD
    return max(1, quota // max(facts.ranks, 1) - 1)


def may_exceed_quota(facts: RunFacts) -> bool:
    """Tell whether a rank may have more workers than its quota pays for; a cap never exceeds what runs."""
    most, now = _workers_in_quota(facts), facts.workers_per_rank
    return not is_known(most) or not is_known(now) or now > most


def write_gain(share: float) -> str:
    """Write what a run gains when a share of its time (0-1) goes away: "2.4x"."""
    if share > 1 - 1 / MOST_GAIN:
        return f"more than {MOST_GAIN:.0f}x"
    return f"{1 / (1 - share):.1f}x"


def _gain(facts: RunFacts) -> Known[str]:
    waiting = facts.waiting_ratio
    if not is_known(waiting) or not 0 <= waiting <= 1:
        return _UNREAD
    return write_gain(waiting)


def _workers_gain(facts: RunFacts) -> Known[str]:
    """Return what so many workers gain a loop that loads by itself: it no longer takes turns with loading.

    Of a share w of the time in loading, n workers leave w / n, or all the rest if that is longer.
    """
    waiting, loading, count = facts.waiting_ratio, facts.loading_ratio, size_loader(facts)
    if not is_known(waiting) or not 0 <= waiting <= 1 or not is_known(count) or count < 1:
        return _UNREAD
    loading = max(known_or(loading, waiting), waiting)
    return write_gain(1 - min(1.0, max(loading / count, 1 - waiting)))


def _growth_gain(facts: RunFacts) -> Known[str]:
    """Return what more workers than there are gain: no more than the whole wait."""
    now, waiting, count = facts.workers_per_rank, facts.waiting_ratio, size_loader(facts)
    free, busy, needed = facts.cores_free, facts.worker_busy_ratio, facts.needed_ratio
    if not (is_known(count) and is_known(now) and is_known(free) and is_known(busy) and is_known(needed)):
        return _UNREAD
    if now < 1 or not is_known(waiting) or not 0 <= waiting <= 1:
        return _UNREAD
    growth = limit_growth(
        workers_now=now,
        workers=count,
        worker_cores=busy if busy > LEAST_WORKER_CORES else 0.0,
        cores_free=free / max(known_or(facts.ranks, 1), 1) + ROUNDING_CORES,
        needed_ratio=needed,
    )
    return write_gain(min(waiting, 1 - 1 / growth))


_POOL_VARIABLES = (
    ("OMP_NUM_THREADS", {PoolLibrary.GOMP, PoolLibrary.IOMP}),
    ("MKL_NUM_THREADS", {PoolLibrary.MKL, PoolLibrary.IOMP}),
    ("OPENBLAS_NUM_THREADS", {PoolLibrary.OPENBLAS}),
    ("OPENCV_FOR_THREADS_NUM", {PoolLibrary.OPENCV}),
    ("NUMEXPR_NUM_THREADS", {PoolLibrary.NUMEXPR}),
)


_OWN_CAPS = {PoolLibrary.OPENCV: "cv2.setNumThreads(0)", PoolLibrary.NUMEXPR: "numexpr.set_num_threads(1)"}
"""Libraries that threadpoolctl does not know, and what limits each."""


def _pool_exports(facts: RunFacts) -> Known[str]:
    threads = _threads_per_rank(facts)
    if not is_known(threads):
        return threads
    seen = known_or(facts.pool_libraries, ())
    names = [name for name, libraries in _POOL_VARIABLES if not libraries.isdisjoint(seen)]
    names = names or [name for name, _ in _POOL_VARIABLES]
    return " ".join(f"{name}={threads}" for name in names)


def _worker_cap(facts: RunFacts) -> str:
    seen = known_or(facts.pool_libraries, ())
    lines = ["threadpoolctl.threadpool_limits(1)  # OpenMP, MKL, OpenBLAS; torch has done so for itself"]
    own = [call for library, call in _OWN_CAPS.items() if library in seen]
    if own:
        lines = [*(lines if len(seen) > 1 else ()), *own]
    elif not seen:
        lines.append("cv2.setNumThreads(0)  # where cv2 is used")
    return "\n".join(f"    {line}" for line in lines)


def _shm_size(facts: RunFacts) -> Known[str]:
    if not is_known(facts.shm_total_bytes):
        return _UNREAD
    wanted = max(2 * facts.shm_total_bytes, _LEAST_SHM_BYTES)
    return f"{math.ceil(wanted / _GIB)}g"


def _shm_note(facts: RunFacts) -> str:
    """Return a line to paste for a small /dev/shm in which no growth was seen: batches may not fit."""
    total = facts.shm_total_bytes
    if not is_known(total) or total >= _GIB or is_known(facts.shm_room):
        return ""
    return (
        f"\n# /dev/shm here is {format_bytes(total)}, batches lie in it: start the container with "
        "--shm-size=8g or --ipc=host first"
    )


def _shm_fix(facts: RunFacts) -> str:
    """Return what to paste against a full /dev/shm: a small default, or a mount that something fills."""
    size = known_or(_shm_size(facts), f"{_LEAST_SHM_BYTES // _GIB}g")
    start = f"docker run --shm-size={size} ...  # in a container"
    if is_known(facts.shm_total_bytes) and facts.shm_total_bytes >= _GIB:
        return (
            "du -ah /dev/shm | sort -rh | head  # where the job runs: remove what no process has open\n"
            f"{start}\n"
            f"# without a container: sudo mount -o remount,size={size} /dev/shm; what lies in it takes memory"
        )
    return start


def _dump_all_hosts(facts: RunFacts) -> str:
    if not is_known(facts.slurm_job):
        return "tpmon dump --job --json > dump-$(hostname).json  # on each host, into a folder that all share"
    # A pipe would not do: srun cuts and mixes the output of its tasks. Without -N and -n a batch script's
    # shell asks for its own number of tasks.
    job = facts.slurm_job
    return (
        "# in a folder that all hosts share and that holds no older dump\n"
        f"H=$(squeue -h -j {job} -o %D)  # its hosts\n"
        f"{write_step(job, '$H')} {TO_FILES}"
    )


def _more_cores(facts: RunFacts) -> Known[int]:
    return map_known(lambda cores: 2 * cores, _whole_cores(facts.budget_cores))


def _ask_cores(facts: RunFacts) -> str:
    """Return how the job gets more CPUs: from Slurm only where that runs it."""
    cores = known_or(_more_cores(facts), _ANY)
    if not is_known(facts.slurm_job):
        return f"docker run --cpus={cores} ...  # in a container; else a larger machine"
    return (
        f"#SBATCH --cpus-per-task={cores}\n"
        f"export SRUN_CPUS_PER_TASK={cores}  # below it: srun of Slurm >= 22.05 does not inherit that line"
    )


def _ask_memory(facts: RunFacts) -> str:
    by_slurm = "#SBATCH --mem=...  # in place of the dots: twice as much"
    by_hand = "docker run --memory=... ...  # in a container: twice as much; else a larger machine"
    return by_slurm if is_known(facts.slurm_job) else by_hand


def _last_words(facts: RunFacts) -> str:
    """Return how its last output is read; one that is no file is where the job was started."""
    if not is_known(facts.log_path):
        return "# its output goes to no file that could be seen: read it where the job was started"
    return f"tail -n 50 {shlex.quote(facts.log_path)}"


def _thaw(facts: RunFacts) -> str:
    """Return what thaws the group; one out of view is thawed outside."""
    outside = "# a group above what can be seen here is frozen: thaw it outside of this container"
    return known_or(write_thaw(facts.frozen), outside) if is_known(facts.frozen) else outside


def _tracer_look(facts: RunFacts) -> str:
    if is_known(facts.tracer):
        return f"ps -o pid,ppid,user,tty,stat,etime,args -p {facts.tracer.pid}"
    return f"grep TracerPid /proc/{known_or(facts.pid, 'self')}/status"


def _lock_holder(facts: RunFacts) -> str:
    known = is_known(facts.other_pid)
    return f"look at process {facts.other_pid}, which holds" if known else "find who holds"


def _lock_look(facts: RunFacts) -> str:
    if is_known(facts.other_pid):
        return f"ps -o pid,ppid,stat,etime,args -p {facts.other_pid}; cat /proc/locks"
    return "cat /proc/locks  # who is not in it may hold it on another host, over NFS"


def _hot_title(facts: RunFacts) -> Known[str]:
    if not is_known(facts.hot):
        return _UNREAD
    place = f"{facts.hot.place} is in" if facts.hot.place else "most of the time is in"
    return f"{facts.hot.call.title} ({place} {facts.hot.call.words})"


def _tenant_look(facts: RunFacts) -> str:
    """Return who else computes, and how the largest gives way; where none was named, the list of all."""
    if not is_known(facts.tenant):
        return "ps -eo pid,user,pcpu,etime,args --sort=-pcpu | head  # then renice -n 19 -p of those"
    pid = facts.tenant
    return (
        f"ps -o pid,user,etime,args -p {pid}  # whose it is, and what\n"
        f"renice -n 19 -p {pid}; echo 19 > /proc/{pid}/autogroup  # with sudo, where it is another user's"
    )


def _mount_check(facts: RunFacts) -> str:
    return f"; timeout 5 stat {shlex.quote(facts.mount)} || echo stuck" if is_known(facts.mount) else ""


def _fork_switch(facts: RunFacts) -> str:
    if not is_known(facts.fork_switch):
        return "# or make what needs threads in each process, and use it nowhere before the fork"
    return f"# or, for {known_or(facts.lacking, 'its threads')}: {facts.fork_switch}"


@dataclass(frozen=True, slots=True)
class Field:
    """Hold one field of the templates: its reading, and what stands there when it was not read.

    ``is_name``: it names one thing of this run. Nobody is to guess it: unread, there is no remedy.
    """

    read: Callable[[RunFacts], Applicable[object]]
    stand_in: str
    meaning: str
    is_name: bool = False


_POOL_SHARE = "CPU budget / ranks (or processes with a pool)"
FIELDS = {
    "workers": Field(size_loader, _ANY, "as many as free cores and memory allow"),
    "workers_now": Field(attrgetter("workers_per_rank"), _ANY, "the workers that there are"),
    "fewer_workers": Field(
        lambda facts: map_known(lambda count: max(1, count // 2), facts.workers_per_rank),
        _ANY,
        "half of the workers",
    ),
    "more_cores": Field(_more_cores, _ANY, "twice the CPU budget"),
    "workers_in_quota": Field(_workers_in_quota, _ANY, "quota / ranks - 1"),
    "threads_per_rank": Field(_threads_per_rank, _ANY, _POOL_SHARE),
    "threads_in_free": Field(count_threads_in_free, _ANY, "1 + free cores / ranks"),
    "cores": Field(lambda facts: _whole_cores(facts.budget_cores), _ANY, "the cores of the CPU budget"),
    "gain": Field(_gain, "1 / (1 - share of the wait)", "what the run gains at best"),
    "workers_gain": Field(
        _workers_gain, "1 / (share of the wait / workers)", "what so many workers gain at best"
    ),
    "growth_gain": Field(
        _growth_gain,
        "the lesser of new / present workers and 1 / (1 - share of the wait)",
        "what more workers gain at best",
    ),
    "pool_exports": Field(_pool_exports, "OMP_NUM_THREADS=...", _POOL_SHARE),
    "worker_cap": Field(_worker_cap, "    ...", "lines that leave a library one thread"),
    "memory_free": Field(
        lambda facts: map_known(format_bytes, facts.memory_free_bytes), _ANY, "the free memory"
    ),
    "shm_size": Field(_shm_size, "8g", "twice the present size, 8 GiB at least"),
    "shm_note": Field(_shm_note, "", "a line where /dev/shm is small"),
    "shm_fix": Field(_shm_fix, "8g", "how to make room in /dev/shm"),
    "pid": Field(attrgetter("pid"), "PID", "the process that the verdict names", is_name=True),
    "other": Field(attrgetter("other_pid"), "OTHER", "the process that it waits for", is_name=True),
    "peer": Field(attrgetter("peer"), "the other end", "what its socket is connected to"),
    "ranks": Field(attrgetter("ranks"), _ANY, "the ranks of one machine"),
    "rank": Field(attrgetter("rank"), "R", "the rank that the verdict names", is_name=True),
    "script": Field(lambda facts: map_known(shlex.quote, facts.script), "train.py", "the training script"),
    "last_words": Field(_last_words, "", "how its last output is read"),
    "mount_check": Field(_mount_check, "", "a look at the mount that it waits for"),
    "dump_all_hosts": Field(_dump_all_hosts, "", "how the stacks of all hosts come into one folder"),
    "ask_memory": Field(_ask_memory, "", "how the job gets more memory"),
    "lock_file": Field(
        lambda facts: map_known(shlex.quote, facts.lock_file) if is_known(facts.lock_file) else _UNREAD,
        "FILE",
        "the lock file",
        is_name=True,
    ),
    "hot_title": Field(
        _hot_title, "what the table below says of it", "what to do about that call", is_name=True
    ),
    "hot_paste": Field(
        lambda facts: facts.hot.call.paste if is_known(facts.hot) else _UNREAD,
        "# see the table of calls",
        "what to paste",
        is_name=True,
    ),
    "alone_rank": Field(attrgetter("alone_rank"), "R", "the rank that is alone", is_name=True),
    "alone_place": Field(attrgetter("alone_place"), "FILE:LINE", "its line", is_name=True),
    "lacking": Field(attrgetter("lacking"), "a pool of it", "the threads that it has not"),
    "fork_switch": Field(_fork_switch, "", "what does without these threads"),
    "ask_cores": Field(_ask_cores, "", "how the job gets more CPUs"),
    "reserve": Field(
        lambda facts: "; in Slurm: #SBATCH --exclusive" if is_known(facts.slurm_job) else "",
        "",
        "how Slurm reserves a machine",
    ),
    "tenant_look": Field(_tenant_look, "", "who else computes, and how it gives way"),
    "launcher": Field(attrgetter("launcher"), "PID", "what started the ranks", is_name=True),
    "last_host_cpu": Field(
        lambda facts: map_known(lambda cores: cores - 1, facts.host_cores),
        _ANY,
        "the last CPU of the machine",
    ),
    "last_cpu": Field(
        lambda facts: map_known(lambda cores: cores - 1, _whole_cores(facts.budget_cores)),
        _ANY,
        "as many as its CPU budget",
    ),
    "ask_slurm": Field(
        lambda facts: f"; sacct -j {facts.slurm_job}" if is_known(facts.slurm_job) else "",
        "",
        "what Slurm says of the job",
    ),
    "card": Field(attrgetter("card"), "INDEX", "the card that the verdict names", is_name=True),
    "thaw": Field(_thaw, "", "how the control group is thawed"),
    "tracer": Field(
        lambda facts: f"{facts.tracer.name} ({facts.tracer.pid})" if is_known(facts.tracer) else _UNREAD,
        "the debugger",
        "who holds the process",
    ),
    "tracer_look": Field(_tracer_look, "", "a look at who holds the process"),
    "lock_holder": Field(_lock_holder, "", "who holds the lock"),
    "lock_look": Field(_lock_look, "", "a look at who holds the lock"),
}


def list_fields(template: str) -> tuple[str, ...]:
    """Name the fields of a template, each once."""
    names = (name for _, name, _, _ in string.Formatter().parse(template) if name)
    return tuple(dict.fromkeys(names))


def names_all(template: str, facts: RunFacts) -> bool:
    """Tell whether every thing of the run that a template names was read."""
    fields = (FIELDS[name] for name in list_fields(template))
    return all(is_known(field.read(facts)) for field in fields if field.is_name)


def fill(template: str, facts: RunFacts) -> str:
    """Put the numbers of a run into a template, with stand-ins for what was not read."""
    fields = {name: FIELDS[name] for name in list_fields(template)}
    return template.format_map(
        {name: known_or(one.read(facts), one.stand_in) for name, one in fields.items()}
    )


def fill_paste(template: str, facts: RunFacts) -> str:
    """Fill what is pasted, and say in a comment below what each stand-in is for."""
    unread = [FIELDS[name] for name in list_fields(template) if not is_known(FIELDS[name].read(facts))]
    comments = dict.fromkeys(
        f"# {field.stand_in}: {field.meaning}"
        for field in unread
        if field.stand_in in (_ANY, field.stand_in.upper())
    )
    return "\n".join((fill(template, facts), *comments))
