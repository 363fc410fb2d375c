"""Send tpmon.pyz to nodes that have no tpmon: which words put it there, and which run it."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

from tpmon.errors import UsageError
from tpmon.model.frozen import dataclass

_PYTHON = "python3"
_RECEIVER = Path(__file__).with_name("receive.py")


@dataclass(frozen=True, slots=True)
class Parcel:
    """Hold the file to send, and the words that take it from standard input on a node, and that run it."""

    path: str
    put: tuple[str, ...]
    run: tuple[str, ...]


def pack_parcel(archive: str) -> Parcel:
    """Return what sends a tpmon.pyz; UsageError where this tpmon is none, or it cannot be read."""
    if not archive:
        raise UsageError(
            "--agent ship: this tpmon is installed, and only tpmon.pyz can be sent",
            "python3 tpmon.pyz fleet ... --agent ship, or --agent COMMAND where tpmon is installed",
        )
    try:
        data = Path(archive).read_bytes()
    except OSError as error:
        raise UsageError(f"--agent ship: {archive}: {error.strerror or error}", "start it again") from error
    # Any shell on the way takes this for one word without signs of its own.
    text = base64.b64encode(_RECEIVER.read_bytes()).decode()
    digest = hashlib.sha256(data).hexdigest()
    words = (_PYTHON, "-c", f"import base64;exec(base64.b64decode('{text}'))", digest)
    return Parcel(os.path.abspath(archive), (*words, "put", str(len(data))), (*words, "run"))
