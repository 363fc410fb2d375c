"""Say whether this machine lets py-spy look at a child, and which py-spys run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.children import child
from tpmon.model.dump import ErrorKind
from tpmon.model.known import is_known
from tpmon.probe.base.procread import read_table
from tpmon.probe.proc.access import explain_refusal, read_standing
from tpmon.probe.spy.failure import find_spy
from tpmon.probe.spy.pool import SpyChild, dump_arguments

NAP = "say('up')\ntime.sleep(60)\n"


@dataclass(frozen=True)
class BrokenSpy:
    """What stands for py-spy, why there are no stacks then, the line of the doctor, and what to try."""

    text: str | None
    why: str
    line: str
    tip: str
    kind: ErrorKind

    def put(self, folder: Path) -> None:
        if self.text is not None:
            (folder / "py-spy").write_text(f"#!/bin/sh\n{self.text}\n")
            (folder / "py-spy").chmod(0o755)


MISSING = "py-spy is not installed beside tpmon or on PATH"
ODD = "py-spy printed what tpmon does not understand"
RAVE, TRY = "head -c 3000 /dev/urandom; echo garbage", "tries py-spy"
BROKEN_SPIES = {
    "missing": BrokenSpy(None, MISSING, "py-spy", "install", ErrorKind.NO_SPY),
    "failing": BrokenSpy(
        "echo 'Error: no luck' >&2; exit 1", "py-spy failed: no luck", "stacks", TRY, ErrorKind.FAILED
    ),
    "raving": BrokenSpy(RAVE, ODD, "py-spy", TRY, ErrorKind.FAILED),
    "hanging": BrokenSpy("exec sleep 600", "py-spy gave no answer within", "stacks", TRY, ErrorKind.LATE),
}


def may_sample() -> str:
    """Say why this machine lets nobody sample a child; "" when it does."""
    spy = find_spy()
    if not is_known(spy):
        return spy.reason
    with child(NAP) as one:
        outcome = SpyChild().run((spy, *dump_arguments(one.pid)), 20)
        return explain_refusal(read_standing(one.pid)) if outcome.status else ""


def spies_of(pid: int) -> list[int]:
    """Return the py-spy children of a tpmon, zombies included; its working process may be a child itself."""
    table = read_table()
    working = {pid, *(one.pid for one in table.values() if one.parent == pid)}
    return [one.pid for one in table.values() if one.parent in working and one.name == "py-spy"]
