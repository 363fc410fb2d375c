"""Join the ranks of one run that no launcher stands above: it died, or there never was one.

Or it may not be seen: /proc hides the processes of others (hidepid), and slurmstepd is root's. Such
ranks descend from nothing in common. What makes them one job is that they meet: the same user,
address, port, world size and run, in one network, each with a number of its own. Programs that set the
address themselves meet in the step or the MPI run that they carry, or in the process that started them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.probe.base.procread import PROC, read_status
from tpmon.probe.job.facts import Facts
from tpmon.probe.job.places import BY_MPI, BY_SLURM, Place

RUN_ID = "TORCHELASTIC_RUN_ID"
"""torchrun gives it to every rank (torch/distributed/elastic/agent/server/local_elastic_agent.py)."""
LAUNCHER_GONE = "environment; their launcher is gone"
NO_LAUNCHER = "environment; no launcher above them, they meet at one address"
NO_ADDRESS = "environment; no launcher above them, one process started them"

_MPI_RUNS = ("PMIX_NAMESPACE", "PALS_APID", "FLUX_JOB_ID", "PMI_JOBID")
"""Names of one start by MPI: of PMIx, HPE's PALS, Flux, and Slurm's or Hydra's PMI."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Name what the ranks of one process group have in common; ``network`` is their network namespace.

    ``address`` and ``port`` are "" where the start environment does not tell them.
    """

    user: int
    address: str
    port: str
    world_size: int
    run: str
    network: str


def read_meeting(fact: Facts, proc: str = PROC) -> tuple[Meeting, int] | None:
    """Read where a rank meets the others, and its number; None where its environment does not say so."""
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
        return None  # gone, or it may not be told which network it is in
    return Meeting(user, address, port, place.world_size or 1, run, network), place.rank


def _name_start(fact: Facts, place: Place, environ: Mapping[str, str]) -> str:
    """Name the one start of ranks that carry no address: the step, the MPI run, the parent; "" for none."""
    if place.source == BY_SLURM and "SLURM_JOB_ID" in environ:
        return f"step {environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '')}"
    if place.source == BY_MPI and (named := [environ[name] for name in _MPI_RUNS if name in environ]):
        return f"MPI {named[0]}"
    return f"child of {fact.stat.parent}" if fact.stat.parent > 1 else ""


def join_strays(roots: Iterable[Facts], proc: str = PROC) -> list[tuple[int, ...]]:
    """Put the roots of jobs that are ranks of one run together, the lowest rank first; the others stay alone.

    Two of the same number are of two runs, one of which is left over: then nobody can say whose the
    others are, and all stay alone.
    """
    groups: dict[object, list[tuple[int, int]]] = {}
    for fact in roots:
        pid = fact.stat.pid
        met = None if fact.program.launcher else read_meeting(fact, proc)
        groups.setdefault(pid if met is None else met[0], []).append((0 if met is None else met[1], pid))
    joined: list[tuple[int, ...]] = []
    for group in groups.values():
        pids = tuple(pid for _, pid in sorted(group))
        distinct = len({rank for rank, _ in group}) == len(group)
        joined += [pids] if distinct else [(pid,) for _, pid in group]
    return joined


def say_stray(fact: Facts, *, joined: bool) -> str:
    """Say why a rank has no launcher above it; "" where nothing speaks for one."""
    if is_known(fact.environ) and RUN_ID in fact.environ and fact.stat.parent:
        return LAUNCHER_GONE
    if not joined:
        return ""
    return NO_LAUNCHER if is_known(fact.environ) and fact.environ.get("MASTER_ADDR") else NO_ADDRESS
