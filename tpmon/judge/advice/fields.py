"""Fill the templates of the catalogue with what was read of one run. Pure."""

from __future__ import annotations

import math
import re
import shlex
import string
from collections.abc import Callable
from operator import attrgetter

from tpmon.judge.advice.facts import (
    LEAST_WORKER_CORES,
    ROUNDING_CORES,
    UNREAD,
    RunFacts,
    count_threads_in_free,
    count_threads_per_rank,
    count_workers_in_quota,
    limit_growth,
    size_loader,
    whole_cores,
)
from tpmon.model.frozen import dataclass
from tpmon.model.host import PoolLibrary
from tpmon.model.known import Applicable, Known, is_known, known_or, map_known
from tpmon.model.process import Freezer
from tpmon.model.text.dump_words import TO_FILES, write_step
from tpmon.model.units import format_bytes

MOST_GAIN = 20.0
"""Above this the ceiling is no number: the share behind it is not known well enough."""

_GIB = 1 << 30
_LEAST_SHM_BYTES = 8 * _GIB
_ANY = "..."
"""Stands for a number that was not read."""


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


def write_gain(share: float) -> str:
    """Write what a run gains when a share of its time (0-1) goes away: "2.4x"."""
    if share > 1 - 1 / MOST_GAIN:
        return f"more than {MOST_GAIN:.0f}x"
    return f"{1 / (1 - share):.1f}x"


def _gain(facts: RunFacts) -> Known[str]:
    waiting = facts.waiting_ratio
    if not is_known(waiting) or not 0 <= waiting <= 1:
        return UNREAD
    return write_gain(waiting)


def _workers_gain(facts: RunFacts) -> Known[str]:
    """Return what so many workers gain a loop that loads by itself: it no longer takes turns with loading.

    Of a share w of the time in loading, n workers leave w / n, or all the rest if that is longer.
    """
    waiting, loading, count = facts.waiting_ratio, facts.loading_ratio, size_loader(facts)
    if not is_known(waiting) or not 0 <= waiting <= 1 or not is_known(count) or count < 1:
        return UNREAD
    loading = max(known_or(loading, waiting), waiting)
    return write_gain(1 - min(1.0, max(loading / count, 1 - waiting)))


def _growth_gain(facts: RunFacts) -> Known[str]:
    """Return what more workers than there are gain: no more than the whole wait."""
    now, waiting, count = facts.workers_per_rank, facts.waiting_ratio, size_loader(facts)
    free, busy, needed = facts.cores_free, facts.worker_busy_ratio, facts.needed_ratio
    if not (is_known(count) and is_known(now) and is_known(free) and is_known(busy) and is_known(needed)):
        return UNREAD
    if now < 1 or not is_known(waiting) or not 0 <= waiting <= 1:
        return UNREAD
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
    threads = count_threads_per_rank(facts)
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
        return UNREAD
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
    return map_known(lambda cores: 2 * cores, whole_cores(facts.budget_cores))


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
        return UNREAD
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
    "workers_in_quota": Field(count_workers_in_quota, _ANY, "quota / ranks - 1"),
    "threads_per_rank": Field(count_threads_per_rank, _ANY, _POOL_SHARE),
    "threads_in_free": Field(count_threads_in_free, _ANY, "1 + free cores / ranks"),
    "cores": Field(lambda facts: whole_cores(facts.budget_cores), _ANY, "the cores of the CPU budget"),
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
        lambda facts: map_known(shlex.quote, facts.lock_file) if is_known(facts.lock_file) else UNREAD,
        "FILE",
        "the lock file",
        is_name=True,
    ),
    "hot_title": Field(
        _hot_title, "what the table below says of it", "what to do about that call", is_name=True
    ),
    "hot_paste": Field(
        lambda facts: facts.hot.call.paste if is_known(facts.hot) else UNREAD,
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
        lambda facts: map_known(lambda cores: cores - 1, whole_cores(facts.budget_cores)),
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
        lambda facts: f"{facts.tracer.name} ({facts.tracer.pid})" if is_known(facts.tracer) else UNREAD,
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
