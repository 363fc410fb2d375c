"""Say in what tpmon runs: on the host itself, in WSL, or in which kind of container."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.probe.base.procread import PROC, in_first_pid_namespace, read_file

_MARKS = ("/.dockerenv", "/run/.containerenv")
"""Files that Docker and Podman lay into their containers."""
_TOOLBOX = "/run/.toolboxenv"
_MANAGER = "/run/systemd/container"
"""Where systemd writes down what it found itself started in (its container interface)."""


class Around(str, Enum):
    """Name what is around tpmon, as far as other commands help there."""

    HOST = "host"
    WSL = "WSL"
    """A virtual machine whose distributions have PIDs of their own; root is root."""
    ENGINE = "engine"
    """A container of Docker or Podman: ``docker exec`` and ``docker run`` reach it from outside."""
    TOOLBOX = "toolbox"
    """A container of this user with the host's PIDs, whose root is nobody outside of it."""
    LXC = "LXC"
    """A container with an init of its own, whose root may trace what runs in it."""
    UNKNOWN = "unknown"
    """PIDs of its own and no mark of an engine, or one that Kubernetes drives."""


@dataclass(frozen=True, slots=True)
class RuntimePlace:
    """Say what is around tpmon, and whether PIDs are its own there: two things, see ``--pid=host``."""

    around: Around = Around.HOST
    own_pids: bool = False


def parse_place(
    marks: frozenset[str], manager: str, release: str, *, pods: bool, own_pids: bool
) -> RuntimePlace:
    """Tell what is around tpmon. Pure.

    Args:
        marks: the files of engines that are there.
        manager: what ``container`` is set to for the init of this place, "" for nothing.
        release: /proc/sys/kernel/osrelease.
        pods: Kubernetes started this.
        own_pids: the PID namespace is not the machine's first.
    """
    if _TOOLBOX in marks:
        return RuntimePlace(Around.TOOLBOX, own_pids)
    if marks and not pods:
        return RuntimePlace(Around.ENGINE, own_pids)
    if manager.startswith("lxc"):
        return RuntimePlace(Around.LXC, own_pids)
    if marks or pods:
        return RuntimePlace(Around.UNKNOWN, own_pids)
    if not own_pids:
        return RuntimePlace(Around.HOST, own_pids)
    return RuntimePlace(Around.WSL if "microsoft" in release.lower() else Around.UNKNOWN, own_pids)


def read_place(proc: str = PROC, environment: Mapping[str, str] = os.environ) -> RuntimePlace:
    """Read what is around tpmon."""
    marks = frozenset(filter(os.path.exists, (*_MARKS, _TOOLBOX)))
    manager = environment.get("container") or _read_text(_MANAGER).strip() or _read_manager(proc)
    return parse_place(
        marks,
        manager,
        _read_text(f"{proc}/sys/kernel/osrelease"),
        pods="KUBERNETES_SERVICE_HOST" in environment,
        own_pids=proc == PROC and not in_first_pid_namespace(),
    )


def _read_manager(proc: str) -> str:
    for entry in _read_text(f"{proc}/1/environ").split("\0"):
        name, _, value = entry.partition("=")
        if name == "container":
            return value
    return ""


def _read_text(path: str) -> str:
    try:
        return read_file(path, 1 << 16).decode("utf-8", "replace")
    except OSError:
        return ""  # not there, or not for this user
