"""Assign the part of each process of a job by names, command lines, environments and parentage. Pure.

Ranks are known by the environment that a launcher wrote, else by parentage, threads of a process group (gloo,
NCCL) and birth order; ``RolePart.source`` says which.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.model.process import WORKER_NAME, Identity, Role, ThreadKind
from tpmon.probe.base.procread import TICKS_PER_S, Mapped
from tpmon.probe.job.process_facts import BY_ENVIRONMENT, IMPORT_S, Facts, RankPlace
from tpmon.probe.job.tree import COMM_THREADS, Family, describe_stray

BY_PARENTAGE = "parentage and threads"
SINGLE = "single process"

WORKER_LABEL = "loader worker"
STARTING = "starting child"

YOUNG_S = 30.0  # a spawned worker names itself after 1.5-2 s of CPU, many times that on a busy machine

_THREADS = (
    ("pt_data_pin", ThreadKind.PIN),
    ("pt_autograd", ThreadKind.AUTOGRAD),
    ("pt_tcpstore", ThreadKind.COMM),
    ("libuv-worker", ThreadKind.COMM),
    *((prefix, ThreadKind.COMM) for prefix in COMM_THREADS),
    ("pt_thread_pool", ThreadKind.POOL),
    ("PTThreadPool", ThreadKind.POOL),
)


@dataclass(frozen=True, slots=True)
class RolePart:
    """Hold the part of one process in its job; ``source`` and ``world_size`` are of ranks alone."""

    role: Role
    label: str
    rank: Applicable[int] = NOT_APPLICABLE
    local_rank: Applicable[int] = NOT_APPLICABLE
    worker: Applicable[int] = NOT_APPLICABLE
    rank_pid: Applicable[int] = NOT_APPLICABLE
    world_size: Applicable[int] = NOT_APPLICABLE
    source: str = ""
    starter: Applicable[int] = NOT_APPLICABLE  # whose birth order numbers this rank, if no environment does


@dataclass(frozen=True, slots=True)
class Departed:
    """Keep the place in the birth order of a rank that died while its siblings live."""

    starter: int
    identity: Identity


def thread_kind(name: str, *, main: bool) -> ThreadKind:
    """Tell what a thread is for by its name; OTHER where it is inherited: OpenMP, feeders, most of CUDA."""
    if main:
        return ThreadKind.MAIN
    for prefix, kind in _THREADS:
        if name.startswith(prefix):
            return kind
    return ThreadKind.OTHER


def assign_parts(
    facts: Mapping[int, Facts],
    root: int,
    *,
    now_ticks: int,
    named_workers: bool = True,
    previous: Mapping[int, RolePart] | None = None,
    departed: Iterable[Departed] = (),
    strays: Iterable[int] = (),
    waiting: Collection[int] = (),
) -> dict[int, RolePart]:
    """Give every process of a job its part; shells and what lies beyond a boundary get none.

    ``strays`` are ranks that do not descend from ``root``. ``named_workers``: this torch names its loader
    workers (2.5 and later). Numbers by birth order stay with the living (``previous``) and follow those of
    ranks that died while a sibling lives (``departed``). A process that lost its parent keeps its part. Those
    that are ``waiting`` only wait for what they started (``tree.find_waiting``).
    """
    casting = _Casting(facts, now_ticks, named_workers, previous or {}, tuple(departed), waiting=waiting)
    return casting.cast(root, tuple(strays))


class _Casting:
    """Walk a job from its root downwards and note the part of each process."""

    def __init__(
        self,
        facts: Mapping[int, Facts],
        now_ticks: int,
        named_workers: bool,
        previous: Mapping[int, RolePart],
        departed: tuple[Departed, ...],
        *,
        waiting: Collection[int],
    ) -> None:
        self._facts = facts
        self._now_ticks = now_ticks
        self._previous = previous
        self._departed = departed
        self._waiting = waiting
        self._tops: tuple[int, ...] = ()
        self._parts: dict[int, RolePart] = {}
        self._by_birth: dict[int, list[int]] = {}
        self._family = Family(facts, named_workers=named_workers)
        self._programs = self._family.programs
        self._torch_places = {
            place
            for pid, fact in facts.items()
            if fact.python and fact.torch and not self._programs[pid].launcher and (place := fact.place)
        }

    def cast(self, root: int, strays: tuple[int, ...]) -> dict[int, RolePart]:
        self._tops = (root, *strays)
        for pid in self._tops:
            if pid in self._facts:
                self._cast_above_ranks(pid, pid)
                self._describe_stray(pid, joined=bool(strays))
        for pid, fact in self._facts.items():
            if pid != root and pid not in strays and fact.stat.parent not in self._facts:
                self._keep(pid)
        self._number_by_birth()
        self._number_workers()
        return self._parts

    def _describe_stray(self, pid: int, *, joined: bool) -> None:
        """Say of a rank at the top why there is no launcher."""
        part = self._parts.get(pid)
        if part is not None and part.source == BY_ENVIRONMENT:
            said = describe_stray(self._facts[pid], joined=joined)
            self._parts[pid] = replace(part, source=said or part.source)

    def _keep(self, pid: int) -> None:
        """Keep the part of a process whose parent died, and cast what it started."""
        part = self._previous.get(pid)
        if part is None:  # a shell, or a process that was never met
            for child in self._family.children(pid):
                self._keep(child)
            return
        self._parts[pid] = part
        self._describe_stray(pid, joined=False)
        rank = pid if part.role is Role.RANK else part.rank_pid
        if is_known(rank) and rank in self._facts:
            self._cast_children(pid, rank)
            return
        for child in self._family.children(pid):
            if child in self._previous:
                self._keep(child)
            else:
                self._cast_above_ranks(child, pid)

    def _cast_above_ranks(self, pid: int, starter: int) -> None:
        """Cast a process that has no rank above it: launcher, wrapper, rank, or starter of ranks."""
        program = self._programs[pid]
        if program.boundary:
            return
        if self._facts[pid].stat.name.startswith(WORKER_NAME):
            self._cast_orphan_worker(pid)
        elif program.launcher:
            self._parts[pid] = RolePart(Role.LAUNCHER, program.launcher)
            starter = pid
        elif program.shell:
            pass
        elif not self._facts[pid].python or program.service or self._is_beside(pid, starter):
            self._parts[pid] = RolePart(Role.HELPER, program.service or program.label)
        elif pid in self._waiting:
            self._parts[pid] = RolePart(Role.LAUNCHER, program.label)
            starter = pid
        elif self._family.wraps(pid):
            self._parts[pid] = RolePart(Role.HELPER, program.label)
            if not self._programs[starter].launcher:
                for child in self._family.children(pid):
                    self._cast_above_ranks(child, child)
                return
        else:
            self._cast_trainer(pid, starter)
            return
        for child in self._family.children(pid):
            self._cast_above_ranks(child, starter)

    def _is_beside(self, pid: int, starter: int) -> bool:
        """Tell whether a Python process without torch only runs beside the ranks (TensorBoard, a watcher).

        One that may still import torch is a rank where a launcher or a number speaks for it and no process
        with torch carries that number.
        """
        fact = self._facts[pid]
        if pid in self._tops or fact.torch or not isinstance(fact.mapped, Mapped):
            return False
        if self._family.wraps(pid) or self._family.starts_ranks(pid):
            return False
        place = self._facts[pid].place
        expected = place is not None or bool(self._programs[starter].launcher)
        age_s = (self._now_ticks - fact.stat.start_ticks) / TICKS_PER_S
        return not expected or age_s >= IMPORT_S or place in self._torch_places

    def _cast_orphan_worker(self, pid: int) -> None:
        """Cast a loader worker that the root inherited when its rank ended."""
        ended = Missing("its rank has ended")
        place = self._facts[pid].place
        number = ended if place is None or place.rank is None else place.rank
        self._parts[pid] = RolePart(Role.WORKER, WORKER_LABEL, rank=number, worker=ended, rank_pid=ended)

    def _cast_trainer(self, pid: int, starter: int) -> None:
        """Cast the highest Python process: a rank, or the process that started the ranks."""
        label = self._programs[pid].label
        family = self._family
        place = self._facts[pid].place
        placed, active = family.placed(pid), family.active(pid)
        if place is not None and place.world_size == 1 and any(family.in_group(kid) for kid in active):
            place = None  # of the shell that it was started in (srun --pty bash): its group is larger
        trains = family.in_group(pid) or family.has_workers(pid, named=True)
        ranks: list[int] = []
        if placed:
            ranks = placed
            places = [known for kid in placed if (known := self._facts[kid].place)]
            taken = {known.local_rank for known in places}
            if trains or 0 not in taken:  # Lightning: the first rank starts the others
                local = next(number for number in range(len(taken) + 1) if number not in taken)
                first = RankPlace(local, local, places[0].world_size, BY_PARENTAGE)
                self._cast_rank(pid, label, first, starter)
            else:
                self._parts[pid] = RolePart(Role.LAUNCHER, label)
        elif active and not trains:
            ranks = active
            self._parts[pid] = RolePart(Role.LAUNCHER, label)
        else:
            if place is None and family.in_group(pid):
                ranks = [kid for kid in active if family.in_group(kid)]
            self._cast_rank(pid, label, place, pid if ranks else starter)
        for kid in ranks:
            self._cast_rank(kid, label, None if kid not in placed else self._facts[kid].place, pid)
        self._cast_children(pid, pid if self._parts[pid].role is Role.RANK else None)
        for kid in ranks:
            self._cast_children(kid, kid)

    def _cast_rank(self, pid: int, label: str, place: RankPlace | None, starter: int) -> None:
        if place is None:
            self._by_birth.setdefault(starter, []).append(pid)
            self._parts[pid] = RolePart(Role.RANK, label, rank_pid=pid)
            return
        missing = Missing("not in the start environment of the rank")
        self._parts[pid] = RolePart(
            role=Role.RANK,
            label=label,
            rank=missing if place.rank is None else place.rank,
            local_rank=missing if place.local_rank is None else place.local_rank,
            rank_pid=pid,
            world_size=missing if place.world_size is None else place.world_size,
            source=place.source,
        )

    def _cast_children(self, pid: int, rank: int | None) -> None:
        """Cast what is below a rank, or beside the ranks under their starter."""
        for child in self._family.children(pid):
            program = self._programs[child]
            if child in self._parts or program.boundary:
                continue
            if rank is not None and not program.shell:
                role, label = self._role_below_rank(child, rank)
                self._parts[child] = RolePart(role, label, rank_pid=rank)
            elif not program.shell:
                label = program.service or (STARTING if program.spawned else program.label)
                self._parts[child] = RolePart(Role.HELPER, label)
            self._cast_children(child, rank)

    def _role_below_rank(self, pid: int, rank: int) -> tuple[Role, str]:
        fact, program = self._facts[pid], self._programs[pid]
        parent = self._parts.get(fact.stat.parent)
        named = fact.stat.name.startswith(WORKER_NAME)
        if program.compiles:
            return Role.COMPILE, "inductor compile worker"
        if program.service and not self._family.is_forkserver(fact.stat.parent):
            return Role.HELPER, program.service
        if not named and pid not in self._family.sprung(rank):
            return Role.HELPER, program.label
        if parent is not None and parent.role is Role.WORKER:
            return Role.HELPER, "started by a loader worker"
        if named or not self._family.named_workers:
            return Role.WORKER, WORKER_LABEL
        young = self._now_ticks - fact.stat.start_ticks < YOUNG_S * TICKS_PER_S
        if not young or fact.argv == self._facts[rank].argv:
            return Role.HELPER, "multiprocessing child"
        family = self._family
        trains = self._facts[rank].place is not None or family.in_group(rank) or family.has_workers(rank)
        return (Role.WORKER, WORKER_LABEL) if trains else (Role.HELPER, STARTING)

    def _number_by_birth(self) -> None:
        """Number ranks that carry no number in the order in which their starter had them."""
        missing = Missing("no WORLD_SIZE in the start environment")
        for starter, pids in self._by_birth.items():
            born = [(self._family.birth(pid), pid) for pid in pids]
            lost = [
                ((gone.identity.start_ticks, gone.identity.pid), -1)
                for gone in self._departed
                if gone.starter == starter
            ]
            order = [pid for _, pid in sorted(born + lost)]
            program = self._programs.get(starter)
            named = starter in self._waiting or (program is not None and bool(program.launcher))
            for pid in pids:
                part = self._parts[pid]
                if len(order) > 1 or not (starter == pid or named):
                    number: Applicable[int] = order.index(pid)
                    part = replace(part, world_size=missing, source=BY_PARENTAGE, starter=starter)
                elif self._family.in_group(pid):
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
        for pid in sorted(self._parts, key=self._family.birth):
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
