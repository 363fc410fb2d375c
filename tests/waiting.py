"""Wait for what a test has set going."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], seconds: float = 30.0, every_s: float = 0.01) -> bool:
    """Look again and again until ``holds`` says yes; False when it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True
