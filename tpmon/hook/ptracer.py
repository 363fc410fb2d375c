"""Allow stacks to be read where Yama forbids it: any process of the user may attach afterwards."""

from __future__ import annotations

_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = -1

_ALLOWED: list[bool] = []


def allow_stacks() -> bool:
    """Let every process of this user read the stacks of this one and of those it forks.

    Under Yama's ``ptrace_scope`` 1 only an ancestor may, so that tpmon and py-spy need root. This
    also lets any process of the user read and change the memory of this one.

    Returns:
        True when the kernel granted it; False where there is no Yama, and so nothing to allow.
    """
    import ctypes  # noqa: PLC0415 only who calls this pays for it

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    arguments = (_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)
    granted = bool(prctl(*(ctypes.c_long(argument) for argument in arguments)) == 0)
    if granted and not _ALLOWED:
        _ALLOWED.append(True)
    return granted


def allow_again() -> None:
    """Allow in a forked child what its parent allowed: the kernel forgets it at a fork."""
    if _ALLOWED:
        allow_stacks()
