"""Find the control groups of a job: v1, v2 and both at once, seen from inside or outside a container.

A group's place is the path in /proc/PID/cgroup less the root field of its mount in /proc/self/mountinfo:
cgroups(7), cgroup_namespaces(7). Groups above a container's namespace are invisible, so a limit that is read
inside one is an upper bound.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing
from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.procread import read_or, read_text

OUTSIDE_VIEW = Missing("its control group is outside this container's view")
NOT_MOUNTED = Missing("no control groups are mounted here")
NOT_USED = Missing("no control groups are mounted here, and the job is in none")
PATH_LENGTH = 60
_FIRST_CGROUP_NAMESPACE = "cgroup:[4026531835]"  # PROC_CGROUP_INIT_INO of include/linux/proc_ns.h

V2 = ""  # how the path of the unified hierarchy is keyed among the controllers


@dataclass(frozen=True, slots=True)
class Mount:
    """Hold one cgroup mount: where it is, and which group it shows as its root."""

    version: int
    controllers: frozenset[str]
    root: str
    point: str


@dataclass(frozen=True, slots=True)
class Group:
    """Name one readable control group by directory and path; ``top`` is the uppermost in view."""

    version: int
    directory: str
    path: str
    top: str

    def lineage(self) -> Iterator[Group]:
        """Yield this group and every visible one above it, innermost first."""
        directory, path = self.directory, self.path
        while True:
            yield Group(self.version, directory, path, self.top)
            if len(directory) <= len(self.top):
                return
            directory, path = os.path.dirname(directory), os.path.dirname(path)

    def is_root(self) -> bool:
        """Tell whether this is the root of the machine's hierarchy, which has no limits; no container's is.

        It alone has release_agent (v1) and lacks cgroup.events (v2): CFTYPE_*_ON_ROOT of kernel/cgroup/.
        """
        if self.version == 1:
            return os.path.exists(f"{self.directory}/release_agent")
        return not os.path.exists(f"{self.directory}/cgroup.events")

    def sees_root(self) -> bool:
        """Tell whether all groups above are in view, up to the machine's root."""
        return Group(self.version, self.top, "/", self.top).is_root()

    def label(self) -> str:
        """Name the group for a person: its path, cut at the left, or the container or machine."""
        if self.path == "/":
            return "this machine" if self.is_root() else "this container"
        path = admit_text(self.path, 4 * PATH_LENGTH)
        return path if len(path) <= PATH_LENGTH else "…" + path[1 - PATH_LENGTH :]


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Parse the cgroup mounts of /proc/self/mountinfo (proc_pid_mountinfo(5)), in its order."""
    mounts = []
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if not dash or len(fields) < 6 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        controllers = frozenset((V2,)) if version == 2 else frozenset(kind[2].split(","))
        mounts.append(Mount(version, controllers, _unescape(fields[3]), _unescape(fields[4])))
    return tuple(mounts)


def parse_groups(text: str) -> dict[str, str]:
    """Parse /proc/PID/cgroup into paths by controller, without groups that were removed under the process."""
    paths = {}
    for line in text.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3 and not fields[2].endswith(" (deleted)"):
            for controller in fields[1].split(","):
                paths[controller] = fields[2]
    return paths


def find_group(
    controller: str, paths: Sequence[str], mounts: Sequence[Mount], *, outermost: bool = True
) -> Known[Group]:
    """Find the lowest common group of ``paths``; ``outermost``: / is the machine's root, no container's."""
    if not paths:
        return Missing("no control group of the job could be read")
    if not any(controller in mount.controllers for mount in mounts):
        # A hierarchy that is not mounted can set any limit; only its root has none.
        return NOT_USED if outermost and all(path == "/" for path in paths) else NOT_MOUNTED
    if any(".." in path.split("/") for path in paths):
        return OUTSIDE_VIEW
    common = os.path.commonpath(paths)
    # Take the mount that shows most of the tree; of two at one place the later hides the earlier.
    best: Mount | None = None
    for mount in mounts:
        inside = mount.root in ("/", common) or common.startswith(mount.root + "/")
        if controller in mount.controllers and inside and (best is None or len(mount.root) <= len(best.root)):
            best = mount
    if best is None:
        return OUTSIDE_VIEW
    below = common[len(best.root) :] if best.root != "/" else common
    directory = (best.point + "/" + below.strip("/")).rstrip("/")
    return Group(best.version, directory, common, best.point)


class JobGroups:
    """Hold the control group paths of the processes of a job, by controller."""

    def __init__(self, pids: Sequence[int], proc: str = "/proc") -> None:
        self.paths: list[Mapping[str, str]] = []  # of each process that was still there
        for pid in pids:
            text = read_text(f"{proc}/{pid}/cgroup", errors="surrogateescape")
            state = read_text(f"{proc}/{pid}/stat", errors="surrogateescape").rpartition(") ")[2][:1]
            if text and state not in ("Z", "X"):
                self.paths.append(parse_groups(text))
        self._mounts = parse_mounts(read_text(f"{proc}/self/mountinfo", errors="surrogateescape"))
        self._outermost = in_first_namespace(proc)

    def _paths(self, controller: str) -> tuple[str, list[str]]:
        name = controller if any(controller in paths for paths in self.paths) else V2
        return name, [paths[name] for paths in self.paths if name in paths]

    def common(self, controller: str) -> Known[Group]:
        """Find the lowest group that holds all processes; ``V2`` asks for the unified hierarchy."""
        name, paths = self._paths(controller)
        return find_group(name, paths, self._mounts, outermost=self._outermost)

    def distinct(self, controller: str) -> list[Group]:
        """Find every group that holds at least one of the processes."""
        name, paths = self._paths(controller)
        found = (find_group(name, [path], self._mounts) for path in sorted(set(paths)))
        return [group for group in found if not isinstance(group, Missing)]


def in_first_namespace(proc: str) -> bool:
    """Tell whether control group paths begin at the machine's root; True without namespaces."""
    return read_or(True, lambda: os.readlink(f"{proc}/self/ns/cgroup") == _FIRST_CGROUP_NAMESPACE)
