"""Have a trace summed up by a niced child: the one parser of traces is ``tpmon.trace``."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from tpmon.model.codec import CodecError, decode
from tpmon.model.known import Missing
from tpmon.model.trace import SummaryReply, TraceSummary
from tpmon.own_command import call_python


def ask_child(command: Sequence[str]) -> tuple[bytes, int]:
    """Return what a child wrote, and its exit code; it ends once its standard input does.

    Where something ends the wait, nobody waits for the child: what it reads may be on a mount that hangs.

    Raises:
        OSError: when it cannot be started.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the terminal may be the screen's
        start_new_session=True,  # Ctrl-C is for tpmon, which then closes its standard input
    )
    if child.stdin is None or child.stdout is None:
        raise AssertionError("the child was started with pipes")
    with child.stdin, child.stdout:
        return child.stdout.read(), child.wait()


def read_summary(path: str) -> TraceSummary | Missing:
    """Return the summary of a trace, or why there is none."""
    try:
        text, code = ask_child(
            call_python("from tpmon.trace.summary_child import main; sys.exit(main(sys.argv[1]))", path)
        )
    except OSError as error:
        return Missing(f"no summary: {error.strerror or error}")
    if code:
        return Missing(f"no summary: the process that read the trace ended with {code}")
    try:
        return decode(SummaryReply, text.decode("utf-8", "replace")).summary
    except CodecError as error:
        return Missing(f"no summary: {error}")
