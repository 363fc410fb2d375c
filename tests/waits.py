"""Read waits that tests write in words, as the kernel's functions and ``describe_wait`` name them."""

from __future__ import annotations

from tpmon.model.known import Known, Missing
from tpmon.model.process import Role
from tpmon.model.waits import Wait, WaitReason, parse_wait
from tpmon.probe.proc.wchan import is_in_driver, read_wait


def wait_of(words: str) -> Wait:
    """Return the wait of which these are the words, or the kernel function."""
    if ", but thread " in words:
        reason = WaitReason.ENDING if words.startswith("killed or ended") else WaitReason.KILLED
        return Wait(WaitReason(f"{reason.value}-in-driver") if is_in_driver(words) else reason, words)
    by_name = read_wait("S", words, Missing("not read"), Role.LAUNCHER, "")
    by_words = parse_wait(words)
    return by_name if by_words.reason is WaitReason.OTHER and isinstance(by_name, Wait) else by_words


def read_words(waits: Known[Wait] | str) -> Known[Wait]:
    """Return a wait as it is, or the one of which these are the words."""
    return waits if isinstance(waits, (Wait, Missing)) else wait_of(waits)
