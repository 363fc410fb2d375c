"""Write what was read on demand as its command prints it, to be copied from the screen."""

from __future__ import annotations

from tpmon.model.known import is_known
from tpmon.model.results.capture import CaptureUpdate
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate
from tpmon.report.stacks import write_dump, write_sample


def write_reading(reading: DumpUpdate | SampleUpdate | CaptureUpdate) -> str:
    """Write a dump, hot functions or a capture as their commands print them."""
    if isinstance(reading, CaptureUpdate):
        return "\n".join(reading.report)
    if isinstance(reading, SampleUpdate):
        return "\n".join(write_sample(reading.hot)) if is_known(reading.hot) else reading.hot.reason
    from tpmon.judge.dumps.describe import shorten_stack  # noqa: PLC0415  # the rules: a screen does without

    dump = reading.dump
    return "\n".join(write_dump(dump, shorten_stack)) if is_known(dump) else f"no stacks: {dump.reason}"
