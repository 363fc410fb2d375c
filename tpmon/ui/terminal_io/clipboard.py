"""Copy text out of the screen: OSC 52 to the terminal, and the paste buffer of tmux.

No terminal confirms an OSC 52, and tmux drops it with its default ``set-clipboard external``. So the text
also goes to tmux itself, and tpmon prints it on exit.
"""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress

OSC_52_LIMIT_BYTES = 74_994
"""xterm and tmux drop a longer sequence: 100,000 bytes with its base64 (xterm ctlseqs, OSC 52)."""

_TMUX_SECONDS = 2.0


def osc_52(text: str) -> str:
    """Return the sequence that puts ``text`` on a terminal's clipboard; "" if it is too long."""
    data = text.encode("utf-8", "replace")
    if len(data) > OSC_52_LIMIT_BYTES:
        return ""
    return f"\x1b]52;c;{base64.b64encode(data).decode('ascii')}\x07"


def load_tmux_buffer(text: str) -> str:
    """Give ``text`` to the tmux around us and return the result in words; "" outside tmux.

    ``-w`` passes it on to the clipboard of the terminal around tmux. Blocks for up to 2 s.
    """
    if not os.environ.get("TMUX"):
        return ""
    try:
        done = subprocess.run(
            ["tmux", "load-buffer", "-w", "-"],
            input=text.encode("utf-8", "replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TMUX_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return "no tmux command"
    except OSError as error:
        return f"tmux did not start ({error.strerror})"
    except subprocess.TimeoutExpired:
        return "tmux did not answer"
    return "tmux buffer" if done.returncode == 0 else f"tmux refused ({done.returncode})"


def copied_message(what: str, sent: str, tmux: str) -> str:
    """Write in one line what was copied and where it went."""
    places = [place for place in ("terminal (OSC 52)" if sent else "", tmux) if place]
    return f"copied {what}: {', '.join((*places, 'printed on exit'))}"


def tell_tmux(what: str, text: str, sequence: str, tell: Callable[[str], object]) -> None:
    """Give ``text`` to tmux in a thread and ``tell`` in one line where it went."""

    def run() -> None:
        line = copied_message(what, sequence, load_tmux_buffer(text))
        with suppress(RuntimeError):  # the screen has ended, and the text is printed anyway
            tell(line)

    threading.Thread(target=run, name="tpmon-copy", daemon=True).start()
