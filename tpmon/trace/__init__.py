"""Read and analyse traces of torch.profiler. Needs numpy and msgspec; no other room imports them."""

from tpmon.trace.reading.read import Trace, read_trace

__all__ = ["Trace", "open_trace"]

open_trace = read_trace
"""Read the trace at a path, plain or gzip, into tables of numpy columns (``Trace``)."""
