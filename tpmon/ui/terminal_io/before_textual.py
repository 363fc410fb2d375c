"""Set what textual reads while it is imported; ``shell.py`` imports this first."""

from __future__ import annotations

import os
import sys
from types import ModuleType

# Textual reads these while it is imported. No kitty keys: a killed process would leave them on.
# No in-band resize: one of 0x0 pixels makes the next mouse report divide by zero (textual 6706).
os.environ.update(TEXTUAL_ANIMATIONS="none", TEXTUAL_DISABLE_KITTY_KEY="1", TEXTUAL_SMOOTH_SCROLL="0")
os.environ.setdefault("ESCDELAY", "25")


def import_asyncio_without_tls() -> None:
    """Import asyncio, which textual needs, as on a Python that was built without TLS.

    OpenSSL takes a twentieth to a tenth of textual's import (docs/overhead.md), and the screen needs no TLS.
    A later import of ``ssl`` works.
    """
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]  # None: there is none
    if "asyncio" in modules or "ssl" in modules:
        return
    modules["ssl"] = None
    try:
        import asyncio  # noqa: F401, PLC0415
    finally:
        del modules["ssl"]


import_asyncio_without_tls()
