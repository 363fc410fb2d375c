"""Say who runs tpmon in a test of its permissions, and what a check answers."""

from __future__ import annotations

from tpmon.model.known import is_known
from tpmon.model.results.doctor import Access, Check
from tpmon.probe.doctor.rules import Own
from tpmon.probe.proc.access import Caller, RuntimeKind

ALLOWED, DENIED, ABSENT, UNKNOWN = Access.ALLOWED, Access.DENIED, Access.ABSENT, Access.UNKNOWN
STATUS = b"Name:\tpython3\nUid:\t1000\t1000\t1000\t1000\nCapPrm:\t0000000000000000\nCapEff:\t%016x\nSeccomp:\t%d\n"


def own(
    uid: int = 1000,
    *capabilities: int,
    runtime: RuntimeKind = RuntimeKind.HOST,
    own_pids: bool = False,
    all_users: bool = True,
    filtered: int = 0,
):
    mask = sum(1 << number for number in capabilities)
    caller = Caller(uid, runtime, root_may=runtime is not RuntimeKind.ENGINE)
    return Own(caller, 19 in capabilities, own_pids, all_users, STATUS % (mask, filtered))


def fix_of(check: Check) -> str:
    return check.fix if is_known(check.fix) else ""
