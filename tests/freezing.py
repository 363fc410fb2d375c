"""Freeze processes in a control group of their own, as docker pause does, and thaw them whatever happens."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import wait_until
from tpmon.probe.base.cgroup_tree import V2, parse_mounts

_KNOBS = {1: ("freezer.state", "FROZEN", "THAWED"), 2: ("cgroup.freeze", "1", "0")}


@contextmanager
def making_group(controller: str) -> Iterator[Path]:
    """Make a control group, or skip the test with the reason; what is left in it goes back to the top."""
    mounts = parse_mounts(Path("/proc/self/mountinfo").read_text())
    points = [one.point for one in mounts if controller in one.controllers]
    if not points:
        pytest.skip(f"no control groups of {controller or 'v2'} are mounted here")
    top = Path(points[-1])
    group = top / f"tpmon-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a control group: {error}")
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it has ended
                (top / "cgroup.procs").write_text(pid)
        wait_until(lambda: _is_removed(group))


def is_frozen(group: Path, version: int) -> bool:
    if version == 1:
        return (group / "freezer.state").read_text().strip() == "FROZEN"
    return "frozen 1" in (group / "cgroup.events").read_text()


@contextmanager
def freezing(pids: Sequence[int], version: int) -> Iterator[Path]:
    """Put ``pids`` into a new group and freeze it; thaws at the end, and gives them back."""
    name, freeze, thaw = _KNOBS[version]
    with making_group("freezer" if version == 1 else V2) as group:
        if not (group / name).exists():
            pytest.skip(f"this kernel has no {name}")
        try:
            try:
                for pid in pids:
                    (group / "cgroup.procs").write_text(str(pid))
                (group / name).write_text(freeze)
            except OSError as error:
                pytest.skip(f"cannot freeze a control group: {error}")
            assert wait_until(lambda: is_frozen(group, version))
            yield group
        finally:
            with contextlib.suppress(OSError):
                (group / name).write_text(thaw)


def _is_removed(group: Path) -> bool:
    with contextlib.suppress(OSError):  # the kernel lets go of a dead member's group a moment later
        group.rmdir()
    return not group.exists()
