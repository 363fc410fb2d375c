"""One look at a trace, also in a niced process of its own.

Its memory goes with it, and it ends when its standard input does, so that it never outlives tpmon.
"""

from __future__ import annotations

import os
import sys
import threading

import numpy as np

from tpmon.errors import TpmonError
from tpmon.model.codec import encode
from tpmon.model.known import Missing
from tpmon.model.results.trace import SummaryReply, TraceSummary
from tpmon.trace.figures.breakdown import break_down, find_activity
from tpmon.trace.figures.operators import nest_operators, sum_operators
from tpmon.trace.figures.steps import find_steps
from tpmon.trace.reading.read import Progress, Trace, read_distributed, read_trace
from tpmon.trace.reading.schema import Category

TOP_OPERATORS = 10
_NO_STEPS = Missing("the trace marks no steps")


def summarize(path: str, progress: Progress | None = None) -> TraceSummary:
    """Read the trace at ``path`` and sum it up.

    Raises:
        UsageError: where it is no trace.
        NotPermittedError: where it may not be read.
    """
    return summarize_trace(read_trace(path, progress))


def summarize_trace(trace: Trace) -> TraceSummary:
    """Sum up a trace that is read."""
    steps = find_steps(trace)
    lengths = (steps.end - steps.start) / 1e6
    about = read_distributed(trace)
    return TraceSummary(
        path=trace.path,
        rank=trace.rank if trace.rank >= 0 else Missing("neither the trace nor its name has the rank"),
        world_size=about.world_size if about.world_size > 0 else Missing("the trace does not say it"),
        events=sum(trace.phases.values()),
        steps=len(steps.names) if steps.marked else 0,
        step_ms=float(lengths.mean()) if steps.marked else _NO_STEPS,
        step_p50_ms=float(np.percentile(lengths, 50)) if steps.marked else _NO_STEPS,
        step_p95_ms=float(np.percentile(lengths, 95)) if steps.marked else _NO_STEPS,
        split_us=break_down(find_activity(trace), steps, exclusive=True),
        kernels=int(trace.select(Category.KERNEL).sum()),
        operators=sum_operators(trace, nest_operators(trace), TOP_OPERATORS),
        lost=trace.lost,
    )


NICENESS = 10


def main(path: str) -> int:
    """Write the summary of a trace, or why there is none, to standard output: a line of JSON."""
    begin_child()
    try:
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
