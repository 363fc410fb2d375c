"""Say how a frozen control group is thawed, by whoever made it. Pure."""

from __future__ import annotations

import re
import shlex

from tpmon.model.known import Known, is_known
from tpmon.model.stops import Freezer

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
    """Return the command of what made the group by the form of its path, "" where that does not tell."""
    if found := _CONTAINER.search(directory):
        return f"{_TOOLS[found[1]]} unpause {found[2]}"
    if found := _SLURM.search(directory):
        return f"scontrol resume {found[1]}"
    # systemd freezes units of the unified hierarchy alone, and no group that a unit made within its own.
    unit = _UNIT.search(directory) if version == 2 else None
    return f"sudo systemctl thaw {shlex.quote(unit[1])}" if unit else ""
