"""Have a trace summed up by a niced child: the one parser of traces is ``tpmon.trace``."""

from __future__ import annotations

import os
import subprocess
import sys

from tpmon.model.codec import CodecError, decode
from tpmon.model.known import Missing
from tpmon.model.trace import SummaryReply, TraceSummary


def child_command(path: str) -> tuple[str, ...]:
    """Return the command of the child; the working directory is not on its module path."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = (
        "import sys; "
        "sys.path[:] = [path for path in sys.path if path]; "
        f"sys.path[len(sys.path):] = [path for path in [{root!r}] if path not in sys.path]; "
        "from tpmon.trace.summary_child import main; sys.exit(main(sys.argv[1]))"
    )
    return (sys.executable, "-c", code, path)


def read_summary(path: str) -> TraceSummary | Missing:
    """Return the summary of a trace, or why there is none."""
    try:
        with subprocess.Popen(
            child_command(path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the terminal may be the screen's
            start_new_session=True,  # Ctrl-C is for tpmon, which then closes its standard input
        ) as child:
            if child.stdout is None:
                raise AssertionError("the child was started with a pipe")
            text = child.stdout.read()
    except OSError as error:
        return Missing(f"no summary: {error.strerror or error}")
    if child.returncode:
        return Missing(f"no summary: the process that read the trace ended with {child.returncode}")
    try:
        return decode(SummaryReply, text.decode("utf-8", "replace")).summary
    except CodecError as error:
        return Missing(f"no summary: {error}")
