"""Say whether this machine lets py-spy look at a child, and which py-spys run."""

from __future__ import annotations

from tests.children import child
from tpmon.model.known import is_known
from tpmon.probe.base.procread import read_table
from tpmon.probe.proc.access import explain_refusal, read_standing
from tpmon.probe.spy.failure import find_spy
from tpmon.probe.spy.pool import SpyChild, dump_arguments

NAP = "say('up')\ntime.sleep(60)\n"


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
