"""Have a trace summed up by a niced child: the one parser of traces is ``tpmon.trace``."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from tpmon.model.codec import CodecError, decode
from tpmon.model.known import Applicable, Missing, is_known
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


def read_summary(path: str, source: int, rank: Applicable[int]) -> TraceSummary | Missing:
    """Return the summary of an open trace, or why there is none; ``path`` and ``rank`` are the file's."""
    link = f"/proc/self/fd/{source}"
    try:
        with subprocess.Popen(
            child_command(link),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the terminal may be the screen's
            start_new_session=True,  # Ctrl-C is for tpmon, which then closes its standard input
            pass_fds=(source,),
        ) as child:
            if child.stdout is None:
                raise AssertionError("the child was started with a pipe")
            text = child.stdout.read()
    except OSError as error:
        return Missing(f"no summary: {error.strerror or error}")
    if child.returncode:
        return Missing(f"no summary: the process that read the trace ended with {child.returncode}")
    try:
        found = decode(SummaryReply, text.decode("utf-8", "replace")).summary
    except CodecError as error:
        return Missing(f"no summary: {error}")
    if isinstance(found, Missing):
        return Missing(found.reason.replace(link, path))
    return replace(found, path=path, rank=rank if is_known(rank) else found.rank)
