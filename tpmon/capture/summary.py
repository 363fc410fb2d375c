"""Have a trace read by a niced child: the one parser of traces is ``tpmon.trace``."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace

from tpmon.model.codec import CodecError, decode
from tpmon.model.known import Applicable, Missing, is_known
from tpmon.model.results.trace import SummaryReply, TraceSummary
from tpmon.own_command import call_python


def run_child(module: str, *arguments: str, shared: Sequence[int]) -> tuple[str, int]:
    """Have a child call a ``main`` on open files, and return what it says and its exit code.

    Where something ends the wait, nobody waits for the child: what it reads may be on a mount that hangs.

    Raises:
        OSError: where it cannot be started.
    """
    files = (f"/proc/self/fd/{one}" for one in shared)
    child = subprocess.Popen(
        call_python(f"from {module} import main; sys.exit(main(*sys.argv[1:]))", *files, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the terminal may be the screen's
        start_new_session=True,  # Ctrl-C is for tpmon, which then closes its standard input
        pass_fds=shared,
    )
    if child.stdin is None or child.stdout is None:
        raise AssertionError("the child was started with pipes")
    with child.stdin, child.stdout:
        return child.stdout.read().decode("utf-8", "replace"), child.wait()


def read_summary(path: str, source: int, rank: Applicable[int]) -> TraceSummary | Missing:
    """Return the summary of an open trace, or why there is none; ``path`` and ``rank`` are the file's."""
    try:
        text, code = run_child("tpmon.trace.summary", shared=(source,))
        found = decode(SummaryReply, text).summary
    except OSError as error:
        return Missing(f"no summary: {error.strerror or error}")
    except CodecError as error:
        ended = f"the process that read the trace ended with {code}"
        return Missing(f"no summary: {ended if code else error}")
    if isinstance(found, Missing):
        return Missing(found.reason.replace(f"/proc/self/fd/{source}", path))
    return replace(found, path=path, rank=rank if is_known(rank) else found.rank)
