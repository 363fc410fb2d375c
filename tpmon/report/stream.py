"""Choose the form in which the Frames of a session are written."""

from __future__ import annotations

from collections.abc import Callable

from tpmon.config import Options
from tpmon.model.codec import encode
from tpmon.model.frame import Frame
from tpmon.report.once import write_once
from tpmon.report.plain import PlainReport, write_status
from tpmon.report.write import Output


def pick_form(output: Output, options: Options) -> Callable[[Frame], None]:
    """Return what writes a Frame to ``output`` as ``options`` ask: JSON, lines of words, or text."""
    if options.json:
        return lambda frame: output.write_json(encode(frame))
    if not options.plain:
        return lambda frame: output.write_lines(*write_once(frame))
    if options.once:
        return lambda frame: output.write_lines(write_status(frame))
    report = PlainReport()
    return lambda frame: output.write_lines(*report.read(frame))
