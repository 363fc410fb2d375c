"""Fill the templates of the catalogue with what was read of one run. Pure."""

from __future__ import annotations

import math
import re
import shlex
import string
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tpmon.judge.advice.facts import (
    LEAST_WORKER_CORES,
    ROUNDING_CORES,
    UNREAD,
    RunFacts,
    count_threads_in_free,
    count_threads_per_rank,
    count_workers_in_quota,
    size_loader,
    whole_cores,
)
from tpmon.model.frozen import dataclass
from tpmon.model.host import PoolLibrary
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, is_known, known_or
from tpmon.model.process import Freezer
from tpmon.model.units import format_bytes

if TYPE_CHECKING:
    from tpmon.judge.advice.hot import HotSpot

# What each threshold is, and where it comes from: docs/thresholds.toml.
MOST_GAIN = 20.0

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


def _workers_gain(facts: RunFacts) -> Known[str]:
    """Return what so many workers gain a loop that loads by itself: it no longer takes turns with loading."""
    # Of a share w of the time in loading, n workers leave w / n, or all the rest if that is longer.
    waiting, count = facts.waiting_ratio, size_loader(facts)
    if not is_known(waiting) or not 0 <= waiting <= 1 or not is_known(count) or count < 1:
        return UNREAD
    loading = max(known_or(facts.loading_ratio, waiting), waiting)
    return write_gain(1 - min(1.0, max(loading / count, 1 - waiting)))


def _growth_gain(facts: RunFacts) -> Known[str]:
    """Return what more workers than there are gain: no more than the whole wait."""
    # A batch takes the CPU time that it takes now: beyond the free cores more workers only share. Workers
    # that wait for reads take next to no core, and are limited only by their number.
    now, waiting, count = facts.workers_per_rank, facts.waiting_ratio, size_loader(facts)
    free, busy, needed = facts.cores_free, facts.worker_busy_ratio, facts.needed_ratio
    if not (is_known(count) and is_known(now) and is_known(free) and is_known(busy) and is_known(needed)):
        return UNREAD
    if now < 1 or not is_known(waiting) or not 0 <= waiting <= 1:
        return UNREAD
    busy_cores = now * busy if busy > LEAST_WORKER_CORES else 0.0
    free_cores = free / max(known_or(facts.ranks, 1), 1) + ROUNDING_CORES
    by_cores = (busy_cores + free_cores) / busy_cores if busy_cores > 0 else count / now
    return write_gain(min(waiting, 1 - 1 / max(1.0, min(count / now, by_cores, needed))))


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
    return " ".join(f"{name}={threads}" for name in names or dict(_POOL_VARIABLES))


def _worker_cap(facts: RunFacts) -> str:
    seen = known_or(facts.pool_libraries, ())
    lines = ["threadpoolctl.threadpool_limits(1)  # OpenMP, MKL, OpenBLAS; torch has done so for itself"]
    own = [call for library, call in _OWN_CAPS.items() if library in seen]
    if own:
        lines = [*(lines if len(seen) > 1 else ()), *own]
    elif not seen:
        lines.append("cv2.setNumThreads(0)  # where cv2 is used")
    return "\n".join(f"    {line}" for line in lines)


def _write_shm_size(total: int) -> str:
    return f"{math.ceil(max(2 * total, _LEAST_SHM_BYTES) / _GIB)}g"


def _shm_note(facts: RunFacts) -> str:
    """Return a line to paste for a small /dev/shm in which no growth was seen: batches may not fit."""
    total = facts.shm_total_bytes
    if not is_known(total) or total >= _GIB or is_known(facts.shm_room):
        return ""
    return (
        f"\n# /dev/shm here is {format_bytes(total)}, batches lie in it: start the container with "
        "--shm-size=8g or --ipc=host first"
    )


def _write_hot(hot: HotSpot) -> str:
    place = f"{hot.place} is in" if hot.place else "most of the time is in"
    return f"{hot.call.title} ({place} {hot.call.words})"


@dataclass(frozen=True, slots=True)
class Field:
    """Hold one field of the templates: its reading, and what stands there when it was not read.

    Without a ``stand_in`` it names one thing of this run, which nobody is to guess: unread, a template that
    has it is not used. ``meaning`` is said below what is pasted with a stand-in.
    """

    read: Callable[[RunFacts], Applicable[object]]
    stand_in: str = ""
    meaning: str = ""


def _of(name: str, write: Callable[[Any], object]) -> Callable[[RunFacts], Applicable[object]]:

    def read(facts: RunFacts) -> Applicable[object]:
        value = getattr(facts, name)
        return write(value) if is_known(value) else value

    return read


def _unless(
    limit: str, read: Callable[[RunFacts], Applicable[object]]
) -> Callable[[RunFacts], Applicable[object]]:
    """Return what reads a fact where it is known that a limit is not there."""
    return lambda facts: read(facts) if getattr(facts, limit) is NOT_APPLICABLE else UNREAD


def _count(read: Callable[[RunFacts], Applicable[object]], meaning: str) -> Field:
    return Field(read, _ANY, meaning)


_POOL_SHARE = "CPU budget / ranks (or processes with a pool)"
_NAMES = "pid rank card launcher tenant slurm_job alone_rank alone_place fork_switch"
FIELDS: Mapping[str, Field] = {
    **{name: Field(attrgetter(name)) for name in _NAMES.split()},
    **{name: Field(_of(name, shlex.quote)) for name in ("log_path", "lock_file", "mount")},
    "other": Field(attrgetter("other_pid")),
    "hot_title": Field(_of("hot", _write_hot)),
    "hot_paste": Field(_of("hot", attrgetter("call.paste"))),
    "thaw": Field(_of("frozen", write_thaw)),
    "cores_without_quota": Field(_unless("quota_cores", _of("budget_cores", whole_cores))),
    "free_without_limit": Field(_unless("memory_limit_bytes", _of("memory_free_bytes", format_bytes))),
    "tracer_pid": Field(_of("tracer", attrgetter("pid"))),
    # Of a mount that something else fills: a container's default is small.
    "large_shm": Field(_of("shm_total_bytes", lambda one: _write_shm_size(one) if one >= _GIB else UNREAD)),
    "workers": _count(size_loader, "as many as free cores and memory allow"),
    "workers_now": _count(attrgetter("workers_per_rank"), "the workers that there are"),
    "fewer_workers": _count(_of("workers_per_rank", lambda one: max(1, one // 2)), "half of the workers"),
    "workers_in_quota": _count(count_workers_in_quota, "quota / ranks - 1"),
    "cores": _count(_of("budget_cores", whole_cores), "the cores of the CPU budget"),
    "more_cores": _count(_of("budget_cores", lambda one: 2 * whole_cores(one)), "twice the CPU budget"),
    "last_cpu": _count(_of("budget_cores", lambda one: whole_cores(one) - 1), "as many as its CPU budget"),
    "last_host_cpu": _count(_of("host_cores", lambda cores: cores - 1), "the last CPU of the machine"),
    "threads_per_rank": _count(count_threads_per_rank, _POOL_SHARE),
    "threads_in_free": _count(count_threads_in_free, "1 + free cores / ranks"),
    "ranks": _count(attrgetter("ranks"), "the ranks of one machine"),
    "memory_free": _count(_of("memory_free_bytes", format_bytes), "the free memory"),
    "pool_exports": Field(_pool_exports, "OMP_NUM_THREADS=...", _POOL_SHARE),
    "script": Field(_of("script", shlex.quote), "train.py"),
    "peer": Field(attrgetter("peer"), "the other end"),
    "await": Field(lambda facts: "await" if facts.event_loop else NOT_APPLICABLE),
    "past": Field(attrgetter("past"), "a rank is"),
    "lacking": Field(attrgetter("lacking"), "a pool of it"),
    "holder": Field(_of("other_pid", "process {}".format), "another process"),
    "tracer": Field(_of("tracer", lambda one: f"{one.name} ({one.pid})"), "the debugger"),
    "shm_size": Field(_of("shm_total_bytes", _write_shm_size), f"{_LEAST_SHM_BYTES // _GIB}g"),
    "shm_note": Field(_shm_note),
    "worker_cap": Field(_worker_cap),
    "gain": Field(
        _of("waiting_ratio", lambda one: write_gain(one) if 0 <= one <= 1 else UNREAD),
        "1 / (1 - share of the wait)",
    ),
    "workers_gain": Field(_workers_gain, "1 / (share of the wait / workers)"),
    "growth_gain": Field(_growth_gain, "the lesser of new / present workers and 1 / (1 - share of the wait)"),
}


def list_fields(template: str) -> tuple[str, ...]:
    """Name the fields of a template, each once."""
    names = (name for _, name, _, _ in string.Formatter().parse(template) if name)
    return tuple(dict.fromkeys(names))


def names_all(template: str, facts: RunFacts) -> bool:
    """Tell whether every thing of the run that a template names was read."""
    fields = (FIELDS[name] for name in list_fields(template))
    return all(one.stand_in or is_known(one.read(facts)) for one in fields)


def fill(template: str, facts: RunFacts) -> str:
    """Put the numbers of a run into a template, with stand-ins for what was not read."""
    fields = {name: FIELDS[name] for name in list_fields(template)}
    return template.format_map(
        {name: known_or(one.read(facts), one.stand_in or f"{{{name}}}") for name, one in fields.items()}
    )


def fill_paste(pastes: Sequence[str], facts: RunFacts) -> str:
    """Fill the first whose things were all read, else the last, and say below what each stand-in is for."""
    paste = next((one for one in pastes if names_all(one, facts)), pastes[-1])
    unread = [one for name in list_fields(paste) if not is_known((one := FIELDS[name]).read(facts))]
    comments = dict.fromkeys(f"# {one.stand_in}: {one.meaning}" for one in unread if one.meaning)
    return "\n".join((fill(paste, facts), *comments))
