"""Tell the part of each process of a job from names, command lines, environments and parentage. Pure.

Ranks are told by their start environment where a launcher put it there, else by parentage, by
the threads of a process group (gloo, NCCL) and by birth order; ``Part.source`` says which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.model.process import Identity, Role, ThreadKind
from tpmon.probe.facts import Facts
from tpmon.probe.places import BY_ENVIRONMENT, Place, parse_place
from tpmon.probe.procread import TICKS_PER_S, WORKER_NAME
from tpmon.probe.programs import FORKSERVER, Program
from tpmon.probe.strays import say_stray

BY_PARENTAGE = "parentage and threads"
SINGLE = "single process"

WORKER_LABEL = "loader worker"
STARTING = "starting"

YOUNG_S = 30.0
"""A spawned worker needs 1.5-2 s of CPU before it names itself; on a busy machine many times that."""

_COMM_THREADS = ("pt_gloo", "gloo_tcp", "pt_nccl", "NCCL ", "pt_mpi", "pt_ucc")
_THREADS = (
    ("pt_data_pin", ThreadKind.PIN),
    ("pt_autograd", ThreadKind.AUTOGRAD),
    ("pt_tcpstore", ThreadKind.COMM),
    ("libuv-worker", ThreadKind.COMM),
    *((prefix, ThreadKind.COMM) for prefix in _COMM_THREADS),
    ("pt_thread_pool", ThreadKind.POOL),
    ("PTThreadPool", ThreadKind.POOL),
)


@dataclass(frozen=True, slots=True)
class Part:
    """Hold the part of one process in its job; ``source`` and ``world_size`` are said of ranks alone."""

    role: Role
    label: str
    rank: Applicable[int] = NOT_APPLICABLE
    local_rank: Applicable[int] = NOT_APPLICABLE
    worker: Applicable[int] = NOT_APPLICABLE
    rank_pid: Applicable[int] = NOT_APPLICABLE
    world_size: Applicable[int] = NOT_APPLICABLE
    source: str = ""
    starter: Applicable[int] = NOT_APPLICABLE
    """The process whose birth order numbers this rank, where no environment does."""


@dataclass(frozen=True, slots=True)
class Departed:
    """Keep the place in the birth order of a rank that died while others of its parent live."""

    starter: int
    identity: Identity


def thread_kind(name: str, *, main: bool) -> ThreadKind:
    """Tell what a thread is for by its name.

    A new thread inherits its creator's name, so OpenMP pools, queue feeders and most of CUDA's
    threads carry the name of the program and are OTHER.
    """
    if main:
        return ThreadKind.MAIN
    for prefix, kind in _THREADS:
        if name.startswith(prefix):
            return kind
    return ThreadKind.OTHER


def place_of(fact: Facts) -> Place | None:
    """Return the place that the start environment of a process tells, if it was read."""
    return parse_place(fact.environ) if is_known(fact.environ) else None


def starts_ranks(starter: Facts, children: Iterable[Facts]) -> bool:
    """Tell whether a process without a place gave at least two children different ones."""
    places = {(place.rank, place.local_rank) for child in children if (place := place_of(child))}
    return place_of(starter) is None and len(places) > 1


def assign_parts(
    facts: Mapping[int, Facts],
    root: int,
    *,
    now_ticks: int,
    named_workers: bool = True,
    previous: Mapping[int, Part] | None = None,
    departed: Iterable[Departed] = (),
    strays: Iterable[int] = (),
) -> dict[int, Part]:
    """Give every process of a job its part; shells and what lies beyond a boundary get none.

    Args:
        facts: what each process under ``root`` says of itself, ``root`` included.
        root: PID of the launcher or of the highest Python process with torch.
        now_ticks: clock ticks since boot, to tell young processes.
        named_workers: whether this torch names its loader workers (2.5 and later).
        previous: parts at the last look; numbers told by birth order stay with the living, and
            a process whose parent died keeps its part.
        departed: ranks told by birth order that died while a sibling lives.
        strays: further ranks of the job that do not descend from ``root`` (``strays``).
    """
    casting = _Casting(facts, now_ticks, named_workers, previous or {}, tuple(departed))
    return casting.cast(root, tuple(strays))


class _Casting:
    """Walk a job from its root downwards and note the part of each process."""

    def __init__(
        self,
        facts: Mapping[int, Facts],
        now_ticks: int,
        named_workers: bool,
        previous: Mapping[int, Part],
        departed: tuple[Departed, ...],
    ) -> None:
        self._facts = facts
        self._now_ticks = now_ticks
        self._named_workers = named_workers
        self._previous = previous
        self._departed = departed
        self._parts: dict[int, Part] = {}
        self._by_birth: dict[int, list[int]] = {}
        self._programs: dict[int, Program] = {pid: fact.program for pid, fact in facts.items()}
        self._children: dict[int, list[int]] = {}
        for pid in sorted(facts, key=self._birth):
            self._children.setdefault(facts[pid].stat.parent, []).append(pid)

    def cast(self, root: int, strays: tuple[int, ...]) -> dict[int, Part]:
        for pid in (root, *strays):
            if pid in self._facts:
                self._cast_above_ranks(pid, pid)
                self._say_stray(pid, joined=bool(strays))
        for pid, fact in self._facts.items():
            if pid != root and pid not in strays and fact.stat.parent not in self._facts:
                self._keep(pid)
        self._number_by_birth()
        self._number_workers()
        return self._parts

    def _say_stray(self, pid: int, *, joined: bool) -> None:
        """Say of a rank that stands at the top why there is no launcher."""
        part = self._parts.get(pid)
        if part is not None and part.source == BY_ENVIRONMENT:
            said = say_stray(self._facts[pid], joined=joined)
            self._parts[pid] = replace(part, source=said or part.source)

    def _birth(self, pid: int) -> tuple[int, int]:
        return self._facts[pid].stat.start_ticks, pid

    def _keep(self, pid: int) -> None:
        """Leave a process whose parent died in the part it had, and cast what it started."""
        part = self._previous.get(pid)
        if part is None:  # a shell, or nothing that was ever met
            for child in self._children.get(pid, ()):
                self._keep(child)
            return
        self._parts[pid] = part
        self._say_stray(pid, joined=False)
        rank = pid if part.role is Role.RANK else part.rank_pid
        if is_known(rank) and rank in self._facts:
            self._cast_children(pid, rank)
            return
        for child in self._children.get(pid, ()):
            if child in self._previous:
                self._keep(child)
            else:
                self._cast_above_ranks(child, pid)

    def _cast_above_ranks(self, pid: int, starter: int) -> None:
        """Cast a process that no rank stands above: launcher, wrapper, rank, or starter of ranks."""
        program = self._programs[pid]
        if program.boundary:
            return
        if self._facts[pid].stat.name.startswith(WORKER_NAME):
            self._cast_orphan_worker(pid)
        elif program.launcher:
            self._parts[pid] = Part(Role.LAUNCHER, program.launcher)
            starter = pid
        elif program.shell:
            pass
        elif not self._facts[pid].python or program.service or self._wraps(pid):
            self._parts[pid] = Part(Role.HELPER, program.service or program.label)
        else:
            self._cast_trainer(pid, starter)
            return
        for child in self._children.get(pid, ()):
            self._cast_above_ranks(child, starter)

    def _cast_orphan_worker(self, pid: int) -> None:
        """Cast a loader worker that was handed to the root after its rank had ended."""
        ended = Missing("its rank has ended")
        place = self._place(pid)
        number = ended if place is None or place.rank is None else place.rank
        self._parts[pid] = Part(Role.WORKER, WORKER_LABEL, rank=number, worker=ended, rank_pid=ended)

    def _wraps(self, pid: int) -> bool:
        """Tell whether a Python process without torch stands above one with it (``conda run``)."""
        return (
            not self._facts[pid].torch
            and not starts_ranks(self._facts[pid], [self._facts[kid] for kid in self._pythons(pid)])
            and any(self._facts[below].torch or self._wraps(below) for below in self._children.get(pid, ()))
        )

    def _cast_trainer(self, pid: int, starter: int) -> None:
        """Cast the highest Python process: a rank, or the process that started the ranks."""
        label = self._programs[pid].label
        place = self._place(pid)
        placed = [kid for kid in self._pythons(pid) if self._place(kid)] if place is None else []
        active = [kid for kid in self._sprung(pid) if self._in_group(kid) or self._has_workers(kid)]
        trains = self._in_group(pid) or self._has_workers(pid, named=True)
        ranks: list[int] = []
        if placed:
            ranks = placed
            places = [known for kid in placed if (known := self._place(kid))]
            taken = {known.local_rank for known in places}
            if trains or 0 not in taken:  # Lightning: the first rank starts the others
                local = next(number for number in range(len(taken) + 1) if number not in taken)
                self._cast_rank(pid, label, Place(local, local, places[0].world_size, BY_PARENTAGE), starter)
            else:
                self._parts[pid] = Part(Role.LAUNCHER, label)
        elif active and not trains:
            ranks = active
            self._parts[pid] = Part(Role.LAUNCHER, label)
        else:
            if place is None and self._in_group(pid):
                ranks = [kid for kid in active if self._in_group(kid)]
            self._cast_rank(pid, label, place, pid if ranks else starter)
        for kid in ranks:
            self._cast_rank(kid, label, None if kid not in placed else self._place(kid), pid)
        self._cast_children(pid, pid if self._parts[pid].role is Role.RANK else None)
        for kid in ranks:
            self._cast_children(kid, kid)

    def _cast_rank(self, pid: int, label: str, place: Place | None, starter: int) -> None:
        if place is None:
            self._by_birth.setdefault(starter, []).append(pid)
            self._parts[pid] = Part(Role.RANK, label, rank_pid=pid)
            return
        missing = Missing("not in the start environment of the rank")
        self._parts[pid] = Part(
            role=Role.RANK,
            label=label,
            rank=missing if place.rank is None else place.rank,
            local_rank=missing if place.local_rank is None else place.local_rank,
            rank_pid=pid,
            world_size=missing if place.world_size is None else place.world_size,
            source=place.source,
        )

    def _cast_children(self, pid: int, rank: int | None) -> None:
        """Cast what stands below a rank, or besides the ranks under their starter."""
        for child in self._children.get(pid, ()):
            program = self._programs[child]
            if child in self._parts or program.boundary:
                continue
            if rank is not None and not program.shell:
                role, label = self._role_below_rank(child, rank)
                self._parts[child] = Part(role, label, rank_pid=rank)
            elif not program.shell:
                label = program.service or (STARTING if program.spawned else program.label)
                self._parts[child] = Part(Role.HELPER, label)
            self._cast_children(child, rank)

    def _role_below_rank(self, pid: int, rank: int) -> tuple[Role, str]:
        fact, program = self._facts[pid], self._programs[pid]
        parent = self._parts.get(fact.stat.parent)
        named = fact.stat.name.startswith(WORKER_NAME)
        if program.compiles:
            return Role.COMPILE, "inductor compile worker"
        if program.service and not self._is_forkserver(fact.stat.parent):
            return Role.HELPER, program.service
        if not named and pid not in self._sprung(rank):
            return Role.HELPER, program.label
        if parent is not None and parent.role is Role.WORKER:
            return Role.HELPER, "started by a loader worker"
        if named or not self._named_workers:
            return Role.WORKER, WORKER_LABEL
        young = self._now_ticks - fact.stat.start_ticks < YOUNG_S * TICKS_PER_S
        if not young or fact.argv == self._facts[rank].argv:
            return Role.HELPER, "multiprocessing child"
        trains = self._place(rank) is not None or self._in_group(rank) or self._has_workers(rank)
        return (Role.WORKER, WORKER_LABEL) if trains else (Role.HELPER, STARTING)

    def _place(self, pid: int) -> Place | None:
        return place_of(self._facts[pid])

    def _in_group(self, pid: int) -> bool:
        """Tell whether the process has threads of a process group (gloo, NCCL)."""
        return any(name.startswith(_COMM_THREADS) for name in self._facts[pid].thread_names)

    def _has_workers(self, pid: int, *, named: bool = False) -> bool:
        """Tell whether a process has loader workers; with torch before 2.5, any forked child is one."""
        if any(
            self._facts[kid].stat.name.startswith(WORKER_NAME)
            for nurse in (pid, *self._forkservers(pid))
            for kid in self._children.get(nurse, ())
        ):
            return True
        return not (named or self._named_workers) and bool(self._sprung(pid))

    def _is_forkserver(self, pid: int) -> bool:
        program = self._programs.get(pid)
        return program is not None and program.service == FORKSERVER

    def _forkservers(self, pid: int) -> list[int]:
        return [kid for kid in self._children.get(pid, ()) if self._is_forkserver(kid)]

    def _sprung(self, pid: int) -> list[int]:
        """List what multiprocessing started for a process: spawned, forked, or by its fork server."""
        argv = self._facts[pid].argv
        own = [
            kid
            for kid in self._children.get(pid, ())
            if not self._is_forkserver(kid)
            and (self._programs[kid].spawned or (argv and self._facts[kid].argv == argv))
        ]
        nursed = [kid for nurse in self._forkservers(pid) for kid in self._children.get(nurse, ())]
        return [kid for kid in own + nursed if not self._facts[kid].stat.name.startswith(WORKER_NAME)]

    def _pythons(self, pid: int) -> list[int]:
        """List the Python children of a process, also those behind a shell; no services, no workers."""
        found: list[int] = []
        for kid in self._children.get(pid, ()):
            fact, program = self._facts[kid], self._programs[kid]
            if program.boundary or program.service or fact.stat.name.startswith(WORKER_NAME):
                continue
            if program.shell:
                found += self._pythons(kid)
            elif fact.python and not program.compiles:
                found.append(kid)
        return found

    def _number_by_birth(self) -> None:
        """Number the ranks that carry no number by the order in which their starter had them."""
        missing = Missing("no WORLD_SIZE in the start environment")
        for starter, pids in self._by_birth.items():
            born = [(self._birth(pid), pid) for pid in pids]
            lost = [
                ((gone.identity.start_ticks, gone.identity.pid), -1)
                for gone in self._departed
                if gone.starter == starter
            ]
            order = [pid for _, pid in sorted(born + lost)]
            program = self._programs.get(starter)
            named = program is not None and bool(program.launcher)
            for pid in pids:
                part = self._parts[pid]
                if len(order) > 1 or not (starter == pid or named):
                    number: Applicable[int] = order.index(pid)
                    part = replace(part, world_size=missing, source=BY_PARENTAGE, starter=starter)
                elif self._in_group(pid):
                    number = Missing("no RANK in the start environment")
                    part = replace(part, world_size=missing, source="threads")
                else:
                    number = 0
                    part = replace(part, world_size=1, source=SINGLE)
                self._parts[pid] = replace(part, rank=number, local_rank=number)

    def _number_workers(self) -> None:
        """Number workers by birth with the lowest free number, and pass ranks down to what they own."""
        taken: dict[int, set[int]] = {}
        fresh: list[int] = []
        for pid in sorted(self._parts, key=self._birth):
            part = self._parts[pid]
            owner = part.rank_pid
            if part.role is Role.RANK or not is_known(owner):
                continue
            before = self._previous.get(pid)
            worker = part.worker
            if part.role is Role.WORKER:
                if before is not None and before.rank_pid == owner and is_known(before.worker):
                    worker = before.worker
                    taken.setdefault(owner, set()).add(before.worker)
                else:
                    fresh.append(pid)
            rank = self._parts.get(owner) or self._previous.get(owner) or part
            self._parts[pid] = replace(part, rank=rank.rank, local_rank=rank.local_rank, worker=worker)
        for pid in fresh:
            part = self._parts[pid]
            if is_known(part.rank_pid):
                used = taken.setdefault(part.rank_pid, set())
                number = next(free for free in range(len(used) + 1) if free not in used)
                used.add(number)
                self._parts[pid] = replace(part, worker=number)
