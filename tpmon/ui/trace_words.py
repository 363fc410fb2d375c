"""How the screen of a trace writes the name of a kernel."""

from __future__ import annotations

_COMMON = ("(anonymous namespace)::", "at::native::", "at::", "c10::", "std::")


def shorten_kernel(name: str) -> str:
    """Take out of the name of a kernel what most of them begin with, so that a cut one still tells which."""
    short = name.removeprefix("void ")
    for part in _COMMON:
        short = short.replace(part, "")
    return short or name
