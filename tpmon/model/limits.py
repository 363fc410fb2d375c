"""Readings of what a job may run out of besides memory: descriptors, threads, disk space, inodes."""

from __future__ import annotations

from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable


class Resource(str, Enum):
    """Name what is used up."""

    DESCRIPTORS = "descriptors"
    THREADS = "threads"
    DISK = "disk"
    INODES = "inodes"


@dataclass(frozen=True, slots=True)
class DescriptorGroup:
    """Count the descriptors of one process that lead to the same kind of thing."""

    target: str
    """"socket", "pipe", the name of an anonymous inode, or the folder of files."""
    count: int


@dataclass(frozen=True, slots=True)
class LimitSample:
    """Hold how much of one limit is used; the unit is bytes of a disk, else a count."""

    resource: Resource
    used: int
    limit: int
    of: str
    """Whose limit it is: a user's, a control group, the mount point of a file system."""
    pid: Applicable[int] = NOT_APPLICABLE
    """The process with the descriptors."""
    groups: tuple[DescriptorGroup, ...] = ()
    """What most of the descriptors are, the most first; empty while few are open."""
