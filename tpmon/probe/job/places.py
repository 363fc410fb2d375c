"""Read the place of a rank from the environment that its launcher gave it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tpmon.model.frozen import dataclass

BY_ENVIRONMENT = "environment"
BY_MPI = "MPI environment"
BY_SLURM = "Slurm environment"

_MOST_DIGITS = 6
"""No job has a million ranks; what counts up to a number that others wrote must end."""
_NO_STEP = 1 << 31
"""Slurm gives the batch, extern and interactive steps numbers from 0xfffffff0 on (slurm.h)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Hold the place in a process group that a launcher wrote into the environment of a rank."""

    rank: int | None
    local_rank: int | None
    world_size: int | None
    source: str


def parse_count(text: str) -> int | None:
    """Return a number that text of others says in ASCII digits; None for other text and absurd lengths."""
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdecimal() else None


def parse_place(environ: Mapping[str, str]) -> Place | None:
    """Read the place of a rank: torch's own names first, then Horovod's, MPI's and Slurm's.

    Slurm's count only inside a numbered step: the batch script also carries SLURM_PROCID=0.
    """
    number = {name: count for name, value in environ.items() if (count := parse_count(value)) is not None}

    def place(rank: str, local_rank: str, world_size: str, source: str) -> Place:
        return Place(number.get(rank), number.get(local_rank), number.get(world_size), source)

    if "RANK" in number:
        return place("RANK", "LOCAL_RANK", "WORLD_SIZE", BY_ENVIRONMENT)
    if "LOCAL_RANK" in number:  # Lightning starts its other ranks with LOCAL_RANK and NODE_RANK alone
        known = "LOCAL_RANK" if number.get("NODE_RANK", 0) == 0 else "RANK"
        return place(known, "LOCAL_RANK", "WORLD_SIZE", BY_ENVIRONMENT)
    if "HOROVOD_RANK" in number:
        return place("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE", source="Horovod environment")
    if "OMPI_COMM_WORLD_RANK" in number:
        names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE")
        return place(*names, source=BY_MPI)
    if "PMI_RANK" in number:
        return place("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", source=BY_MPI)
    if "SLURM_PROCID" in number and number.get("SLURM_STEP_ID", _NO_STEP) < _NO_STEP:
        return place("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", source=BY_SLURM)
    return None
