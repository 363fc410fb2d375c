"""Sum up one trace in a process of its own, niced: the training beside it comes first.

Its memory goes with it, and it ends when its standard input does, so that it never outlives tpmon.
"""

from __future__ import annotations

import os
import sys
import threading

from tpmon.errors import TpmonError
from tpmon.model.codec import encode
from tpmon.model.known import Missing
from tpmon.model.results.trace import SummaryReply

NICENESS = 10


def main(path: str) -> int:
    """Write the summary of a trace, or why there is none, to standard output: a line of JSON."""
    begin_child()
    try:
        from tpmon.trace.summary import summarize  # noqa: PLC0415 numpy and msgspec may not be there

        reply = SummaryReply(summarize(path))
    except TpmonError as error:
        reply = SummaryReply(Missing(error.what))
    except ImportError as error:
        reply = SummaryReply(Missing(f"no summary: {error}"))
    except MemoryError:
        reply = SummaryReply(Missing("too little memory to read the trace"))
    sys.stdout.write(encode(reply) + "\n")
    return 0


def begin_child() -> None:
    """Leave the CPUs to the training, and end this process once its standard input ends."""
    os.nice(NICENESS)
    threading.Thread(target=_end_with_stdin, daemon=True).start()


def _end_with_stdin() -> None:
    while os.read(0, 4096):  # not sys.stdin, whose lock is held at the end of the interpreter
        pass
    os._exit(1)
