"""Tell what is around a process of a job, and join ranks whose launcher is gone or hidden.

/proc may hide the processes of others (hidepid), and slurmstepd is root's. Ranks are one job if they meet:
the same user, address, port, world size and run, in one network, each with a number of its own. Where
programs set the address themselves, the Slurm step, the MPI run or the parent process decides.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.model.process import WORKER_NAME
from tpmon.probe.base.procread import PROC, StatLine, read_file, read_or, read_status
from tpmon.probe.job.process_facts import BY_MPI, BY_SLURM, Facts, RankPlace
from tpmon.probe.job.programs import FORKSERVER, parse_command

COMM_THREADS = ("pt_gloo", "gloo_tcp", "pt_nccl", "NCCL ", "pt_mpi", "pt_ucc")
_TRAINING_THREADS = (*COMM_THREADS, "pt_autograd", "pt_data_pin")


def is_given_place(child: RankPlace | None, own: RankPlace | None) -> bool:
    """Tell whether a process gave its child a place, and did not just pass on its own.

    A shell in a step of Slurm (``srun --pty bash``) and a pod have a place in a smaller world than their
    ranks.
    """
    return child is not None and (own is None or (child.world_size or 0) > (own.world_size or 1))


def starts_ranks(starter: Facts, children: Iterable[Facts]) -> bool:
    """Tell whether a process gave at least two children different places."""
    own = starter.place
    places = [place for child in children if (place := child.place) and is_given_place(place, own)]
    return len({(place.rank, place.local_rank) for place in places}) > 1


REST_CORES = 0.05
"""CPUs below which a process computes nothing: one that asks for its child ten times a second uses 0.01."""
COMPUTE_CORES = 0.25
"""CPUs from which it computes; in between it does what it did before."""
_AWAITS_CHILD = b"do_wait"


class Effort(Enum):
    """Say what a process did between two readings of its CPU time."""

    COMPUTES = "computes"
    RESTS = "rests"
    AWAITS_CHILD = "awaits a child"


def tell_effort(before: StatLine, now: StatLine, span_s: float, proc: str = PROC) -> Effort | None:
    """Tell what a process did between two readings; None where that is neither work nor rest."""
    cores = (now.cpu_s - before.cpu_s) / span_s if span_s > 0 else 0.0
    if cores >= COMPUTE_CORES:
        return Effort.COMPUTES
    if cores >= REST_CORES or now.state in "RDTt":
        return None
    wchan = read_or(b"", lambda: read_file(f"{proc}/{now.pid}/wchan", 64))
    return Effort.AWAITS_CHILD if wchan.startswith(_AWAITS_CHILD) else Effort.RESTS


def find_waiting(
    facts: Mapping[int, Facts], stats: Mapping[int, StatLine], efforts: Mapping[int, Effort | None]
) -> frozenset[int]:
    """Find the processes that only wait for a program which they started: sweeps, launchers of one's own.

    Each has torch but no sign of training and rests, while a program of torch below it computes, has used
    more CPU than its parent ever did, or is what the parent waits for in the kernel: it may be hung.
    """
    resting = {Effort.RESTS, Effort.AWAITS_CHILD}
    above = {
        pid for pid, effort in efforts.items() if effort in resting and pid in facts and facts[pid].torch
    }
    if not above:
        return frozenset()
    family = Family(facts)

    def waits(pid: int) -> bool:
        if not family.may_only_wait(pid):
            return False
        return any(
            efforts.get(kid) is Effort.COMPUTES
            or efforts[pid] is Effort.AWAITS_CHILD
            or (kid in stats and stats[kid].cpu_s > stats[pid].cpu_s)
            for kid in family.programs_below(pid)
        )

    return frozenset(pid for pid in above if pid in stats and waits(pid))


class Family:
    """Hold the processes of a job, or those below one process of the machine, by parentage."""

    def __init__(self, facts: Mapping[int, Facts], *, named_workers: bool = True) -> None:
        self.facts = facts
        self.named_workers = named_workers
        self.programs = {pid: fact.program for pid, fact in facts.items()}
        self._children: dict[int, list[int]] = {}
        for pid in sorted(facts, key=self.birth):
            self._children.setdefault(facts[pid].stat.parent, []).append(pid)

    def birth(self, pid: int) -> tuple[int, int]:
        """Return the sort key of age, the oldest first."""
        return self.facts[pid].stat.start_ticks, pid

    def children(self, pid: int) -> list[int]:
        """List the children of a process, the oldest first."""
        return self._children.get(pid, [])

    def placed(self, pid: int) -> list[int]:
        """List the Python children to which a process gave a place."""
        own = self.facts[pid].place
        return [kid for kid in self.pythons(pid) if is_given_place(self.facts[kid].place, own)]

    def starts_ranks(self, pid: int) -> bool:
        """Tell whether a process gave at least two Python children different places."""
        return starts_ranks(self.facts[pid], [self.facts[kid] for kid in self.pythons(pid)])

    def in_group(self, pid: int) -> bool:
        """Tell whether the process has threads of a process group (gloo, NCCL)."""
        return any(name.startswith(COMM_THREADS) for name in self.facts[pid].thread_names)

    def has_workers(self, pid: int, *, named: bool = False) -> bool:
        """Tell whether a process has loader workers; with torch before 2.5, any forked child is one."""
        if any(
            self._is_worker(kid) for nurse in (pid, *self.forkservers(pid)) for kid in self.children(nurse)
        ):
            return True
        return not (named or self.named_workers) and bool(self.sprung(pid))

    def is_forkserver(self, pid: int) -> bool:
        """Tell whether a process is the fork server of multiprocessing."""
        program = self.programs.get(pid)
        return program is not None and program.service == FORKSERVER

    def forkservers(self, pid: int) -> list[int]:
        """List the fork servers of a process."""
        return [kid for kid in self.children(pid) if self.is_forkserver(kid)]

    def sprung(self, pid: int) -> list[int]:
        """List what multiprocessing started for a process: spawned, forked, or by its fork server."""
        argv = self.facts[pid].argv
        own = [
            kid
            for kid in self.children(pid)
            if not self.is_forkserver(kid)
            and (self.programs[kid].spawned or (argv and self.facts[kid].argv == argv))
        ]
        nursed = [kid for nurse in self.forkservers(pid) for kid in self.children(nurse)]
        return [kid for kid in own + nursed if not self._is_worker(kid)]

    def active(self, pid: int) -> list[int]:
        """List what multiprocessing started for a process and what trains by itself."""
        return [kid for kid in self.sprung(pid) if self.in_group(kid) or self.has_workers(kid)]

    def pythons(self, pid: int) -> list[int]:
        """List the Python children of a process, also those behind a shell; no services, no workers."""
        found: list[int] = []
        for kid in self.children(pid):
            fact, program = self.facts[kid], self.programs[kid]
            if program.boundary or program.service or self._is_worker(kid):
                continue
            if program.shell:
                found += self.pythons(kid)
            elif fact.python and not program.compiles:
                found.append(kid)
        return found

    def wraps(self, pid: int) -> bool:
        """Tell whether a Python process only started what trains.

        It has no torch and one below has (``conda run``), or it has torch but no sign of training and started
        a launcher or another program that trains (``yolo train``, a sweep).
        """
        if not self.facts[pid].torch:
            below = self.children(pid)
            return not self.starts_ranks(pid) and any(
                self.facts[kid].torch or self.wraps(kid) for kid in below
            )
        environ = self.facts[pid].environ
        # With RANK in the environment thread names are not read, so they say nothing.
        if (is_known(environ) and "RANK" in environ) or self._trains(pid) or self.placed(pid):
            return False
        return any(self._leads_to_training(kid, pid) for kid in self.children(pid))

    def may_only_wait(self, pid: int) -> bool:
        """Tell whether a process with torch shows no sign of training and started a program with torch."""
        fact = self.facts[pid]
        placed = fact.place is not None or bool(self.placed(pid))
        if placed or self.programs[pid].launcher or not (fact.python and fact.torch) or self._trains(pid):
            return False
        return any(True for _ in self.programs_below(pid))

    def programs_below(self, pid: int) -> Iterator[int]:
        """Yield the programs with torch that a process started, also behind shells and wrappers."""
        yield from self._programs_below(pid, pid)

    def _programs_below(self, pid: int, above: int) -> Iterator[int]:
        for kid in self.children(pid):
            fact, program = self.facts[kid], self.programs[kid]
            if program.boundary or program.service or program.compiles or self._is_worker(kid):
                continue
            if not (fact.python and fact.torch):
                yield from self._programs_below(kid, above)
            elif self._is_program(kid, above) and not program.launcher:
                yield kid

    def _leads_to_training(self, pid: int, parent: int) -> bool:
        """Tell whether a process is a launcher or a separate program that trains, or leads to one."""
        fact, program = self.facts[pid], self.programs[pid]
        if program.launcher:
            return True
        if program.boundary or program.service or program.compiles or self._is_worker(pid):
            return False
        if fact.python and fact.torch:
            trains = self._trains(pid)
            if self._is_program(pid, parent) and (trains or self.active(pid) or self.starts_ranks(pid)):
                return True
            if trains:
                return False
        return any(self._leads_to_training(kid, pid) for kid in self.children(pid))

    def _is_program(self, pid: int, parent: int) -> bool:
        """Tell whether Python was started as a program, not by multiprocessing (forks may set a title)."""
        fact, above = self.facts[pid], self.facts[parent]
        forked = fact.argv == above.argv or (fact.stat.image and fact.stat.image == above.stat.image)
        how = parse_command(fact.argv).how
        return how in ("script", "module", "code") and not self.programs[pid].spawned and not forked

    def _trains(self, pid: int) -> bool:
        """Tell whether a process has threads or workers that only training has."""
        return any(
            name.startswith(_TRAINING_THREADS) for name in self.facts[pid].thread_names
        ) or self.has_workers(pid)

    def _is_worker(self, pid: int) -> bool:
        return self.facts[pid].stat.name.startswith(WORKER_NAME)


RUN_ID = "TORCHELASTIC_RUN_ID"
"""Set by torchrun in every rank (torch/distributed/elastic/agent/server/local_elastic_agent.py)."""
LAUNCHER_GONE = "environment; their launcher is gone"
NO_LAUNCHER = "environment; no launcher above them, they meet at one address"
NO_ADDRESS = "environment; no launcher above them, one process started them"

_MPI_RUNS = ("PMIX_NAMESPACE", "PALS_APID", "FLUX_JOB_ID", "PMI_JOBID")
"""Names of one start by MPI: of PMIx, HPE's PALS, Flux, and Slurm's or Hydra's PMI."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Name what the ranks of one process group share; address and port are "" where unknown."""

    user: int
    address: str
    port: str
    world_size: int
    run: str
    network: str


def read_rendezvous(fact: Facts, proc: str = PROC) -> tuple[Rendezvous, int] | None:
    """Read where a rank meets the others, and its number; None where its environment lacks it."""
    environ = fact.environ
    place = fact.place
    if place is None or not is_known(environ) or place.rank is None:
        return None
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    run = environ.get(RUN_ID, "")
    if not address or not port:
        address = port = ""
        run = _name_start(fact, place, environ)
    if not (address or run) or (place.world_size or 1) < 2:
        return None
    pid = fact.stat.pid
    try:
        user = read_status(pid, proc).uid
        network = os.readlink(f"{proc}/{pid}/ns/net")
    except OSError:
        return None  # gone, or its network cannot be read
    return Rendezvous(user, address, port, place.world_size or 1, run, network), place.rank


def _name_start(fact: Facts, place: RankPlace, environ: Mapping[str, str]) -> str:
    """Name the one start of ranks that carry no address: the step, the MPI run, the parent; "" for none."""
    if place.source == BY_SLURM and "SLURM_JOB_ID" in environ:
        return f"step {environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '')}"
    if place.source == BY_MPI and (named := [environ[name] for name in _MPI_RUNS if name in environ]):
        return f"MPI {named[0]}"
    return f"child of {fact.stat.parent}" if fact.stat.parent > 1 else ""


def join_strays(roots: Iterable[Facts], proc: str = PROC) -> list[tuple[int, ...]]:
    """Join the roots that are ranks of one run, the lowest rank first; the others stay alone.

    Of two with the same number one is left over from another run: then all stay alone.
    """
    groups: dict[object, list[tuple[int, int]]] = {}
    for fact in roots:
        pid = fact.stat.pid
        met = None if fact.program.launcher else read_rendezvous(fact, proc)
        groups.setdefault(pid if met is None else met[0], []).append((0 if met is None else met[1], pid))
    joined: list[tuple[int, ...]] = []
    for group in groups.values():
        pids = tuple(pid for _, pid in sorted(group))
        distinct = len({rank for rank, _ in group}) == len(group)
        joined += [pids] if distinct else [(pid,) for _, pid in group]
    return joined


def describe_stray(fact: Facts, *, joined: bool) -> str:
    """Say why a rank has no launcher above it; "" where nothing speaks for one."""
    if is_known(fact.environ) and RUN_ID in fact.environ and fact.stat.parent:
        return LAUNCHER_GONE
    if not joined:
        return ""
    return NO_LAUNCHER if is_known(fact.environ) and fact.environ.get("MASTER_ADDR") else NO_ADDRESS
