"""Have a trace read by a niced child: the one parser of traces is ``tpmon.trace``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

from tpmon.model.codec import CodecError, decode
from tpmon.model.known import Applicable, Missing, is_known
from tpmon.model.trace import SummaryReply, TraceSummary


def run_child(module: str, *arguments: str, shared: Sequence[int]) -> tuple[str, int]:
    """Have a child call a ``main`` on open files, and return what it says and its exit code.

    Raises:
        OSError: where it cannot be started.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = (  # the working directory is not on its module path
        "import sys; "
        "sys.path[:] = [path for path in sys.path if path]; "
        f"sys.path[len(sys.path):] = [path for path in [{root!r}] if path not in sys.path]; "
        f"from {module} import main; sys.exit(main(*sys.argv[1:]))"
    )
    with subprocess.Popen(
        (sys.executable, "-c", code, *(f"/proc/self/fd/{one}" for one in shared), *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the terminal may be the screen's
        start_new_session=True,  # Ctrl-C is for tpmon, which then closes its standard input
        pass_fds=shared,
    ) as child:
        if child.stdout is None:
            raise AssertionError("the child was started with a pipe")
        text = child.stdout.read()
    return text.decode("utf-8", "replace"), child.returncode


def read_summary(path: str, source: int, rank: Applicable[int]) -> TraceSummary | Missing:
    """Return the summary of an open trace, or why there is none; ``path`` and ``rank`` are the file's."""
    try:
        text, code = run_child("tpmon.trace.summary_child", shared=(source,))
        found = decode(SummaryReply, text).summary
    except OSError as error:
        return Missing(f"no summary: {error.strerror or error}")
    except CodecError as error:
        ended = f"the process that read the trace ended with {code}"
        return Missing(f"no summary: {ended if code else error}")
    if isinstance(found, Missing):
        return Missing(found.reason.replace(f"/proc/self/fd/{source}", path))
    return replace(found, path=path, rank=rank if is_known(rank) else found.rank)
